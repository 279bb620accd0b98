//! Numbers as the server's language writes them: it has only one kind.

use std::fmt;

use serde::{Deserializer, de};

/// Reads a count. A provider's arithmetic can leave a fraction or a negative number; neither is worth losing a message for.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number")
        }

        fn visit_u64<E>(self, count: u64) -> Result<u64, E> {
            Ok(count)
        }

        fn visit_i64<E>(self, count: i64) -> Result<u64, E> {
            Ok(count.try_into().unwrap_or(0))
        }

        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and fractions of a token are noise"
        )]
        fn visit_f64<E>(self, count: f64) -> Result<u64, E> {
            Ok(count as u64)
        }

        fn visit_unit<E>(self) -> Result<u64, E> {
            Ok(0)
        }
    }
    deserializer.deserialize_any(Visitor)
}

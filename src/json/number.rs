//! Numbers as the server's language writes them: it has only one kind.

use serde::{Deserialize, Deserializer};

/// Reads a count. A provider's arithmetic can leave a fraction or a negative number; neither is worth losing a message for.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Count(u64),
        Other(f64),
        Nothing(()),
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and fractions of a token are noise"
    )]
    Ok(match Number::deserialize(deserializer)? {
        Number::Count(count) => count,
        Number::Other(number) => number as u64,
        Number::Nothing(()) => 0,
    })
}

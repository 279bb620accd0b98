//! Numbers as the server's language writes them: it has only one kind.

use serde::{Deserialize, Deserializer, Serializer};

/// Reads a count. A provider's arithmetic can leave a fraction or a negative number; neither is worth losing a message for.
pub(super) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
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

/// Writes a number without a fraction as an integer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn write<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    /// From here on a float can no longer tell neighbouring integers apart.
    const MAX_SAFE: f64 = 9_007_199_254_740_991.0;
    if number.fract() == 0.0 && number.abs() <= MAX_SAFE {
        #[expect(clippy::cast_possible_truncation, reason = "checked to be a small integer")]
        return serializer.serialize_i64(*number as i64);
    }
    serializer.serialize_f64(*number)
}

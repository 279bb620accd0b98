//! Moments, as the server gives them: milliseconds since 1970.
//!
//! The core never reads a clock. Every timestamp in a conversation comes from the data, so that folding the same data twice
//! gives the same state.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in milliseconds since 1970, as a number in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Millis(i64);

impl Millis {
    /// That many milliseconds after 1970 began.
    pub const fn new(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970 began.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Milliseconds from `earlier` to this; nothing if this is not later.
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Millis;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("milliseconds since 1970")
            }

            fn visit_i64<E>(self, value: i64) -> Result<Millis, E> {
                Ok(Millis(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Millis, E> {
                i64::try_from(value).map(Millis).map_err(E::custom)
            }

            #[expect(
                clippy::cast_possible_truncation,
                reason = "fractions of a millisecond are noise; the cast saturates"
            )]
            fn visit_f64<E>(self, value: f64) -> Result<Millis, E> {
                Ok(Millis(value as i64))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A moment as people and browsers write it: `2026-01-31T12:00:00.000Z` in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(jiff::Timestamp);

impl Timestamp {
    /// The same moment in milliseconds since 1970.
    pub fn millis(self) -> Millis {
        Millis(self.0.as_millisecond())
    }
}

impl From<Millis> for Timestamp {
    /// Moments outside the calendar are moved to its nearest end.
    fn from(millis: Millis) -> Self {
        let end = if millis.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        Self(jiff::Timestamp::from_millisecond(millis.0).unwrap_or(end))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

/// A text that is not a moment in ISO 8601 with an offset.
#[derive(Debug, Clone, thiserror::Error)]
#[error("not a timestamp like 2026-01-31T12:00:00Z: {text:?}")]
#[non_exhaustive]
pub struct InvalidTimestamp {
    /// The text that was read.
    pub text: String,
    source: jiff::Error,
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    /// Reads any ISO 8601 moment with an offset; anything finer than a millisecond is dropped.
    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        match text.trim().parse::<jiff::Timestamp>() {
            Ok(moment) => Ok(Millis(moment.as_millisecond()).into()),
            Err(source) => Err(InvalidTimestamp { text: text.to_owned(), source }),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_look_like_javascripts() {
        let check = |millis: i64, text: &str| {
            let moment = Timestamp::from(Millis::new(millis));
            assert_eq!(moment.to_string(), text);
            assert_eq!(text.parse::<Timestamp>().unwrap(), moment);
            assert_eq!(moment.millis(), Millis::new(millis));
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_786_706_395_007, "2026-08-14T11:19:55.007Z");
        check(-1, "1969-12-31T23:59:59.999Z");
        assert_eq!(
            "2026-01-01T01:00:00.0009+01:00".parse::<Timestamp>().unwrap().to_string(),
            "2026-01-01T00:00:00.000Z"
        );
        assert!("yesterday".parse::<Timestamp>().unwrap_err().to_string().contains("yesterday"));
        assert_eq!(Timestamp::from(Millis::new(i64::MAX)).to_string().get(..4), Some("9999"));
    }

    #[test]
    fn millis_come_as_integers_and_floats() {
        assert_eq!(serde_json::from_str::<Vec<Millis>>("[1, 2.9, -3]").unwrap(), [1, 2, -3].map(Millis::new));
        assert!(serde_json::from_str::<Millis>("\"1\"").is_err());
    }
}

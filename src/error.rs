//! What several layers report alike.

use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Input that was refused before anything was sent.
///
/// The value itself is left out: it may be a prompt, or hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}")]
#[non_exhaustive]
pub struct InvalidInput {
    /// Which field.
    pub field: &'static str,
    /// What it has to be.
    pub rule: &'static str,
}

impl InvalidInput {
    /// `field` breaks `rule`, which reads as the end of a sentence: "must be an absolute path".
    pub const fn new(field: &'static str, rule: &'static str) -> Self {
        Self { field, rule }
    }

    /// Refuses durations that are no limit, because they are nothing, or because nobody waits that long.
    pub(crate) fn check_durations(durations: &[(&'static str, Duration)]) -> Result<(), Self> {
        for &(name, value) in durations {
            if value.is_zero() {
                return Err(Self::new(name, "must be longer than nothing"));
            }
            if value > YEAR {
                return Err(Self::new(name, "must not be longer than a year"));
            }
        }
        Ok(())
    }
}

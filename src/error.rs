//! What several layers report alike.

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
}

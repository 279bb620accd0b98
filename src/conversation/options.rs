//! What of a session a conversation shows.

use crate::setters::setters;

/// What a conversation shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Whether the model's thinking is kept (default) or left out.
    pub thinking: Thinking,
}

impl ConvertOptions {
    setters! {
        /// Keeps the model's thinking (the default) or leaves it out.
        thinking(thinking: Thinking) { thinking = thinking }
    }
}

/// What becomes of the model's thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Thinking {
    /// It is part of the conversation.
    #[default]
    Keep,
    /// It is left out.
    Omit,
}

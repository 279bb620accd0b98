//! What the manager promises with every agent: one suite, run on each of them.
//!
//! A [`World`] is an agent whose model does what a prompt says ([`Play`]), and which outlives the managers that use it.

#[cfg(all(unix, feature = "claude", feature = "test-util"))]
mod claude;
pub(crate) mod memory;
mod opencode;
mod suite;

use opencode_conductor::{BoxFuture, ManagerBuilder, MessageId, SessionId};
use serde::{Deserialize, Serialize};

/// What the model does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Play {
    /// Says something.
    Say(String),
    /// Stands at the gate until it is opened, then says something.
    Gate(String),
    /// Asks for permission to run a command, then says what came of it.
    Permission(String),
    /// Asks a question, then says what the answer was.
    Question(String),
    /// Fails with these words.
    Fail(String),
}

/// An agent that can be made to do things.
pub(crate) trait World: Send + Sync + 'static {
    /// A manager of its own, as another process would have it.
    fn builder(&self) -> ManagerBuilder;

    /// A prompt that makes the model do this; one line.
    fn prompt(&self, play: &Play) -> String;

    /// How often the model was called for a prompt.
    fn runs(&self, session: &SessionId, message: &MessageId) -> usize;

    /// Waits until a turn stands at the gate.
    fn at_gate(&self) -> BoxFuture<'_, ()>;

    fn open_gate(&self);
}

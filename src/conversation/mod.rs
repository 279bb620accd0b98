//! The conversation: what a user sees of a session, whichever way we learned of it.
//!
//! A conversation is folded from [`ConversationEvent`]s by a pure reducer. The problem that forced its shape: the same
//! session reaches us as a stream, as polled lists and as files, in any mixture, and all of them must end in *equal* states.
//! So nothing here depends on arrival. A block is found by its id and stands where its [`BlockOrder`] says; usage is kept per
//! message; times come from the data. Everything is persistent: an old state stays valid while newer ones share its parts.

#![warn(clippy::wildcard_enum_match_arm)]

mod block;
mod block_json;
mod event;
mod event_json;
mod fields;
#[cfg(test)]
mod json_laws;
#[cfg(test)]
mod json_tests;
mod options;
mod output;
mod reducer;
#[cfg(test)]
mod reducer_tests;
mod state;
mod text;
mod thread;
mod usage;

pub use block::{
    BlockBody, BlockOrder, BlockStatus, ContentPart, ConversationBlock, Metadata, RunStatus, SubagentBlock,
};
pub(crate) use block_json::RunWords;
pub use event::{ConversationEvent, SubagentCompleted, SubagentSpawned};
pub use options::{ConvertOptions, Thinking};
pub use output::BlockOutput;
pub use reducer::{Change, reduce_session_event, reduce_with_changes};
pub use state::{SessionConversationState, SubagentState};
pub use text::BlockText;
pub use thread::Thread;
pub(crate) use usage::write_number;
pub use usage::{ConversationMetadata, MessageUsage, TokenUsage, Usage};

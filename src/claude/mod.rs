//! Claude Code: what its command line says, what it writes to disk, and how both become the same conversation.
//!
//! [`wire`] is what it says, line for line; `convert` says what a line means; [`SessionMirror`] merges what a session streams with what
//! its files say; `transcript` loads files. Nothing of that does I/O.

mod convert;
mod mirror;
pub(crate) mod transcript;
pub mod wire;

pub use self::{
    mirror::{FileRead, SessionMirror},
    transcript::{ClaudeFiles, SubagentFile},
};

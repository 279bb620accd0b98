//! What a read of a session brought.

use crate::{
    ids::SessionId,
    opencode::wire::{Message, PermissionRequest, QuestionRequest, SessionInfo, StatusMap},
};

/// What was read. What was not asked for, or the server does not know, is not there.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) status: Option<StatusMap>,
    /// The root's messages back to the prompt's.
    pub(crate) messages: Option<Messages>,
    /// The sessions below the root, parents before their children.
    pub(crate) children: Vec<SessionInfo>,
    /// The server did not say which children some session has.
    pub(crate) lacks_children: bool,
    pub(crate) of_children: Vec<(SessionId, Messages)>,
    /// All permissions that the server waits for, of this tree and of others.
    pub(crate) permissions: Option<Vec<PermissionRequest>>,
    /// All questions that the server waits for, of this tree and of others.
    pub(crate) questions: Option<Vec<QuestionRequest>>,
}

/// A run of a session's newest messages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) messages: Vec<Message>,
    /// Nothing in it was malformed, so that what is not in it is not there.
    pub(crate) is_sound: bool,
}

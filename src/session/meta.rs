//! What the manager knows of a session.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    agent::SessionDescription,
    directory::Directory,
    ids::{ProjectId, SessionId, TaskId},
    time::Timestamp,
};

/// What is known of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ConversationSessionMeta {
    /// The agent's name for the session.
    pub session_id: SessionId,
    /// The task it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The project of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// The project's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_directory: Option<PathBuf>,
    /// The directory it works in.
    pub directory: Directory,
    /// Its title, as the agent last said.
    pub title: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed, as the agent last said.
    pub updated_at: Timestamp,
}

impl From<SessionDescription> for ConversationSessionMeta {
    fn from(described: SessionDescription) -> Self {
        Self {
            session_id: described.id,
            task_id: None,
            project_id: None,
            project_directory: None,
            directory: described.directory,
            title: described.title,
            created_at: described.created_at,
            updated_at: described.updated_at,
        }
    }
}

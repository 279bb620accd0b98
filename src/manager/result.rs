//! What came of a prompt.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::error::TurnFailed;
use crate::{
    agent::{AgentError, Ask, Completion, NativeMessages, PreparedPrompt},
    conversation::{SessionConversationState, Usage},
    ids::{MessageId, SessionId, TaskId},
    time::Timestamp,
};

/// A prompt that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PromptSubmission {
    /// The session it was sent to.
    pub session_id: SessionId,
    /// The user message that it became.
    pub message_id: MessageId,
    /// Its text.
    pub prompt: String,
    /// When it was first sent.
    pub submitted_at: Timestamp,
}

impl From<&PreparedPrompt> for PromptSubmission {
    fn from(prompt: &PreparedPrompt) -> Self {
        Self {
            session_id: prompt.session_id.clone(),
            message_id: prompt.message_id.clone(),
            prompt: prompt.text.clone(),
            submitted_at: prompt.prepared_at,
        }
    }
}

/// What came of a prompt that the model was called for: there is at least one assistant message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PromptExecutionResult {
    /// The prompt.
    pub submission: PromptSubmission,
    /// The task that the session belongs to.
    pub task_id: Option<TaskId>,
    /// Everything after the prompt's own message, in order, each message once and as it was last, in the agent's own form:
    /// [`messages.opencode()`](NativeMessages::opencode).
    pub messages: NativeMessages,
    /// Prompts of other clients that the agent answered in the same turn. If there are any, the answer may be one to them: an agent
    /// that is prompted while it runs merges the prompts.
    pub other_prompts: Vec<MessageId>,
    /// What the agent asked for and did not get, in the order of the decisions: tools that were not allowed to run, and questions that
    /// were left to the model. No more than the first thousand; [`TurnStatistics::refusals`](super::TurnStatistics::refusals) counts all.
    pub refused: Vec<Ask>,
    /// How it ended. Only [`Completion::Settled`] is a success; see [`PromptExecutionResult::settled`].
    pub completion: Completion,
    /// What it used and cost, descendants included.
    pub usage: Usage,
    /// The same per session.
    pub usage_by_session: BTreeMap<SessionId, Usage>,
    /// The whole conversation as far as this manager has seen it.
    pub conversation: SessionConversationState,
    /// The agent's last error while the turn was waited for, if there was one: a turn that settled may have seen some.
    pub cause: Option<Arc<AgentError>>,
    pub(super) answer: Option<String>,
}

impl PromptExecutionResult {
    /// The text of the final answer: that of the last step that says something, without thinking.
    ///
    /// Summaries of the history are no answers, and neither is what the model says when the agent, having made one after
    /// the answer, asks it to continue.
    pub fn answer(&self) -> Option<String> {
        self.answer.clone()
    }

    /// This result if the turn is a success, and an error that holds it otherwise.
    ///
    /// # Errors
    /// If the turn was aborted, interrupted, rejected, ran out of time or failed.
    pub fn settled(self) -> Result<Self, TurnFailed> {
        if self.completion.is_settled() { Ok(self) } else { Err(TurnFailed::new(self)) }
    }
}

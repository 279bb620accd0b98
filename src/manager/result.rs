//! What came of a prompt.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize, Serializer};

use super::{
    error::{PromptError, SessionError, TurnFailed},
    inner::agent_error,
};
use crate::{
    agent::{
        AbortReport, AgentError, Ask, Completion, Delivery, FileChange, NativeMessages, OpenSession,
        PreparedPrompt,
    },
    conversation::{SessionConversationState, Usage},
    error::error_chain,
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
///
/// As JSON an object of these names in camel case, with the `answer` and without the `conversation`, which can be written by itself.
/// `completion` also has what it means in words (`message`, unless it is settled), and whether it is `retryable`. It is read as a [`Completion`].
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
    /// What became of the agent's run, if this manager aborted it: because the caller said so, a policy ended the turn, or a limit ran out.
    pub abort: Option<AbortReport>,
    /// What it used and cost, descendants included.
    pub usage: Usage,
    /// The same per session.
    pub usage_by_session: BTreeMap<SessionId, Usage>,
    /// The whole conversation as far as this manager has seen it.
    pub conversation: SessionConversationState,
    /// The agent's error that was not overcome when the turn ended, if there was one; for a provider that kept failing what it said last.
    pub cause: Option<Arc<AgentError>>,
    pub(super) answer: Option<String>,
    pub(super) session: AskedSession,
}

/// The session that a result is of, for as long as the manager knows it.
#[derive(Clone, Default)]
pub(super) struct AskedSession(pub(super) Option<Weak<dyn OpenSession>>);

impl fmt::Debug for AskedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskedSession")
    }
}

impl PromptSubmission {
    /// A prompt that became a message of a session.
    pub fn new(
        session_id: impl Into<SessionId>,
        message_id: impl Into<MessageId>,
        prompt: impl Into<String>,
        submitted_at: Timestamp,
    ) -> Self {
        let (session_id, message_id) = (session_id.into(), message_id.into());
        Self { session_id, message_id, prompt: prompt.into(), submitted_at }
    }
}

impl PromptExecutionResult {
    /// A result with nothing to show, for tests of what your code makes of results. The other fields can be set.
    ///
    /// # Examples
    /// ```
    /// use opencode_conductor::{Completion, Millis, PromptExecutionResult, PromptSubmission};
    ///
    /// let sent = PromptSubmission::new("ses_1", "msg_1", "Say hello.", Millis::new(0).into());
    /// let mut result = PromptExecutionResult::new(sent, Completion::Settled).said("Hello.");
    /// result.usage.cost = 0.02;
    /// assert_eq!(result.answer().as_deref(), Some("Hello."));
    /// ```
    pub fn new(submission: PromptSubmission, completion: Completion) -> Self {
        Self {
            submission,
            task_id: None,
            messages: NativeMessages::default(),
            other_prompts: Vec::new(),
            refused: Vec::new(),
            completion,
            abort: None,
            usage: Usage::default(),
            usage_by_session: BTreeMap::new(),
            conversation: SessionConversationState::default(),
            cause: None,
            answer: None,
            session: AskedSession::default(),
        }
    }

    /// The result with this text as its final answer.
    #[must_use]
    pub fn said(mut self, answer: impl Into<String>) -> Self {
        self.answer = Some(answer.into());
        self
    }

    /// What the turn did to files, as [`ConversationManager::diff`](super::ConversationManager::diff) says it.
    ///
    /// # Errors
    /// If the manager does not know the session any more, or the agent cannot be asked, or does not know: not every agent does.
    pub async fn diff(&self) -> Result<Vec<FileChange>, SessionError> {
        let PromptSubmission { session_id, message_id, .. } = &self.submission;
        let session = self.session.0.as_ref().and_then(Weak::upgrade);
        let session = session.ok_or_else(|| SessionError::Unknown { session: session_id.clone() })?;
        let changes = session.diff(message_id).await;
        changes.map_err(|source| agent_error("reading what was changed in", session_id, source))
    }

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

impl Serialize for PromptExecutionResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            submission: &'a PromptSubmission,
            #[serde(skip_serializing_if = "Option::is_none")]
            task_id: Option<&'a TaskId>,
            completion: Ended<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            abort: Option<&'a AbortReport>,
            answer: Option<&'a str>,
            usage: Usage,
            usage_by_session: &'a BTreeMap<SessionId, Usage>,
            messages: &'a NativeMessages,
            other_prompts: &'a [MessageId],
            refused: &'a [Ask],
            #[serde(skip_serializing_if = "Option::is_none")]
            cause: Option<String>,
        }
        #[derive(Serialize)]
        struct Ended<'a> {
            #[serde(flatten)]
            completion: &'a Completion,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<String>,
            retryable: bool,
        }
        let completion = &self.completion;
        let written = Written {
            submission: &self.submission,
            task_id: self.task_id.as_ref(),
            completion: Ended {
                completion,
                message: match completion {
                    // A failure has a message of its own.
                    Completion::Settled | Completion::Failed(_) => None,
                    other => Some(other.to_string()),
                },
                retryable: completion.is_retryable(),
            },
            abort: self.abort.as_ref(),
            answer: self.answer.as_deref(),
            usage: self.usage,
            usage_by_session: &self.usage_by_session,
            messages: &self.messages,
            other_prompts: &self.other_prompts,
            refused: &self.refused,
            cause: self.cause.as_deref().map(|cause| error_chain(cause)),
        };
        written.serialize(serializer)
    }
}

impl Serialize for PromptError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            r#type: &'static str,
            reason: &'static str,
            message: String,
            delivery: Delivery,
            retryable: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            session_id: Option<&'a SessionId>,
            #[serde(skip_serializing_if = "Option::is_none")]
            task_id: Option<&'a TaskId>,
        }
        let written = Written {
            r#type: "notRun",
            reason: self.name(),
            message: error_chain(self),
            delivery: self.delivery(),
            retryable: self.is_retryable(),
            session_id: self.session(),
            task_id: self.task(),
        };
        written.serialize(serializer)
    }
}

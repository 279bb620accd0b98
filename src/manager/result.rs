//! What came of a prompt.

use std::{collections::BTreeMap, sync::Arc};

use super::error::TurnFailed;
use crate::{
    conversation::{SessionConversationState, Usage},
    ids::{MessageId, SessionId},
    observe::SessionTree,
    time::Timestamp,
    turn::{Limit, Stop},
    wire::{AssistantMessage, Message, MessageError, MessageInfo, Part, PartBody, PartTime, ToolStatus},
};

/// A prompt that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// What came of a prompt that the model was called for: there is at least one assistant message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PromptExecutionResult {
    /// The prompt.
    pub submission: PromptSubmission,
    /// Everything after the prompt's own message, in order, each message once and as it was last.
    pub messages: Vec<Arc<Message>>,
    /// How it ended. Only [`Completion::Settled`] is a success; see [`PromptExecutionResult::settled`].
    pub completion: Completion,
    /// What it used and cost, descendants included.
    pub usage: Usage,
    /// The same per session.
    pub usage_by_session: BTreeMap<SessionId, Usage>,
    /// The whole conversation as far as this manager has seen it.
    pub conversation: SessionConversationState,
}

/// How a turn ended that the model was called for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Completion {
    /// The model finished, and the session is at rest.
    Settled,
    /// The provider, or the server, gave up.
    Failed(MessageError),
    /// Somebody aborted it.
    Aborted,
    /// A permission or a question was rejected, which ended it.
    Rejected,
    /// The manager's own policy ended it because of a request.
    Refused,
    /// The server died meanwhile; what was streamed since its last write is lost.
    Interrupted,
    /// A limit ran out.
    TimedOut {
        /// Which one.
        limit: Limit,
        /// What became of the server's run; nothing if it was left alone.
        abort: Option<AbortReport>,
    },
}

/// What an abort could confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbortReport {
    /// The server says that the session and its descendants are idle. A prompt that was on its way meanwhile may start after that;
    /// its [`Delivery`](crate::Delivery) is not `NotSent` then.
    pub confirmed: bool,
    /// The sessions that were aborted.
    pub sessions: Vec<SessionId>,
}

impl Completion {
    /// Whether the model finished.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }

    /// Whether the same task may succeed when it is tried again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Interrupted | Self::TimedOut { .. } => true,
            Self::Failed(error) => {
                error.data.get("isRetryable").and_then(serde_json::Value::as_bool).unwrap_or(false)
            }
            Self::Settled | Self::Aborted | Self::Rejected | Self::Refused => false,
        }
    }

    /// Reads the end of a session at rest off its last messages. `unbroken`: the server cannot have died meanwhile.
    pub(super) fn of_rest(messages: &[Arc<Message>], unbroken: bool) -> Self {
        let Some((last, parts)) = steps(messages).next_back() else { return Self::Aborted };
        let calls = parts.iter().any(|part| matches!(part.body, PartBody::Tool(_)));
        let answered = !calls && last.finish.as_deref().is_some_and(|finish| finish != "unknown");
        // A summary that was in the way of the answer; one that came after it is no loss.
        let summary = messages.iter().filter_map(|message| message.info.as_assistant()).next_back();
        if let Some(error) =
            summary.filter(|last| last.summary == Some(true)).and_then(|last| last.error.as_ref())
            && last.error.is_none()
            && !answered
        {
            return if error.is_aborted() { Self::Aborted } else { Self::Failed(error.clone()) };
        }
        match (&last.error, last.finish.as_deref()) {
            (Some(error), _) if error.is_aborted() => Self::Aborted,
            (Some(error), _) => Self::Failed(error.clone()),
            // An abort while the server waited for the provider leaves neither a reason nor an error.
            (None, None) => Self::Aborted,
            // Whatever the reason given, the server goes on after calls. With more steps to come, nothing brings a session to
            // rest but a rejection, an abort between two steps, or the death of the server.
            (None, Some(finish)) if calls || matches!(finish, "tool-calls" | "unknown") => {
                if parts.iter().any(is_rejected) {
                    Self::Rejected
                } else if unbroken {
                    Self::Aborted
                } else {
                    Self::Interrupted
                }
            }
            (None, Some(_)) => Self::Settled,
        }
    }

    pub(super) fn of_stop(stop: Stop) -> Self {
        match stop {
            Stop::Aborted => Self::Aborted,
            Stop::Refused => Self::Refused,
        }
    }
}

impl PromptExecutionResult {
    /// The text of the final answer: that of the last step that says something, without thinking.
    ///
    /// Summaries of the history are no answers, and neither is what the model says when the server, having made one after
    /// the answer, asks it to continue.
    pub fn answer(&self) -> Option<String> {
        answer(&self.messages)
    }

    /// This result if the turn is a success, and an error that holds it otherwise.
    ///
    /// # Errors
    /// If the turn was aborted, interrupted, rejected, ran out of time or failed.
    pub fn settled(self) -> Result<Self, TurnFailed> {
        if self.completion.is_settled() { Ok(self) } else { Err(TurnFailed::new(self)) }
    }
}

/// Whether a tool was not allowed to run, or its question not answered, which ends a turn. With feedback for the model it does
/// not.
fn is_rejected(part: &Part) -> bool {
    let PartBody::Tool(tool) = &part.body else { return false };
    let error = tool.state.error.as_deref().unwrap_or_default();
    tool.state.status == ToolStatus::Error
        && (error.contains("dismissed this question")
            || error.contains("rejected permission") && !error.contains("feedback"))
}

/// The model's steps, without summaries.
fn steps(messages: &[Arc<Message>]) -> impl DoubleEndedIterator<Item = (&AssistantMessage, &[Part])> {
    let step =
        |message: &'_ Message| message.info.as_assistant().is_some_and(|step| step.summary != Some(true));
    let steps = messages.iter().filter(move |message| step(message));
    steps.filter_map(|message| Some((message.info.as_assistant()?, message.parts.as_slice())))
}

fn answer(messages: &[Arc<Message>]) -> Option<String> {
    let continues =
        |id: &MessageId| messages.iter().any(|message| message.info.id() == id && is_continuation(message));
    let spoken: Vec<(bool, String)> = steps(messages)
        .filter(|(step, _)| step.finish.as_deref() != Some("tool-calls"))
        .filter_map(|(step, parts)| {
            let text = text_of(step, parts);
            (!text.trim().is_empty()).then(|| (step.parent_id.as_ref().is_some_and(continues), text))
        })
        .collect();
    let own = spoken.iter().rev().find(|(continuation, _)| !continuation);
    own.or(spoken.last()).map(|(_, text)| text.clone())
}

/// Whether the server asks here, after a summary, for the model to continue.
fn is_continuation(message: &Message) -> bool {
    matches!(message.info, MessageInfo::User(_))
        && message.parts.iter().all(|part| match &part.body {
            PartBody::Text(text) => text.synthetic == Some(true),
            _ => false,
        })
        && !message.parts.is_empty()
}

/// What a step says. Attempts that failed leave unfinished texts behind in a step that is complete; old servers store them.
fn text_of(step: &AssistantMessage, parts: &[Part]) -> String {
    let is_complete = step.time.completed.is_some();
    let is_left_behind = |time: &PartTime| is_complete && time.end.is_none();
    let texts = parts.iter().filter_map(|part| match &part.body {
        PartBody::Text(text) if text.synthetic == Some(true) || text.ignored == Some(true) => None,
        PartBody::Text(text) if text.time.as_ref().is_some_and(is_left_behind) => None,
        PartBody::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// What a turn used: everything after the prompt, and what its descendants did since.
pub(super) fn usage_of(tree: &SessionTree, prompt: &MessageId) -> BTreeMap<SessionId, Usage> {
    let root = tree.root();
    let since = tree.message(root, prompt).map(|message| message.info.time().created);
    let mut by_session = BTreeMap::new();
    let mut add = |session: &SessionId, message: &Message| {
        if let Some(step) = message.info.as_assistant() {
            let usage: &mut Usage = by_session.entry(session.clone()).or_default();
            *usage += Usage { tokens: (&step.tokens).into(), cost: step.cost };
        }
    };
    for message in tree.turn(root, prompt) {
        add(root, message);
    }
    for child in tree.children() {
        for message in tree.messages(child).filter(|message| Some(message.info.time().created) >= since) {
            add(child, message);
        }
    }
    by_session
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_of_a_session_at_rest_is_read_off_its_last_step() {
        use Completion::*;
        let rejected = "The user rejected permission to use this specific tool call.";
        let corrected =
            "The user rejected permission to use this specific tool call with the following feedback: no";
        let cases = [
            // A step that called tools is no end, whatever reason it gives.
            ("tool-calls", "completed", "", true, Aborted),
            ("tool-calls", "completed", "", false, Interrupted),
            ("stop", "completed", "", true, Aborted),
            ("stop", "completed", "", false, Interrupted),
            ("tool-calls", "error", rejected, true, Rejected),
            ("tool-calls", "error", rejected, false, Rejected),
            ("stop", "error", rejected, true, Rejected),
            ("tool-calls", "error", "The user dismissed this question", true, Rejected),
            // A tool that fails by itself, or is told what to do instead, ends nothing.
            ("tool-calls", "error", corrected, false, Interrupted),
            ("tool-calls", "error", "File not found: /x", false, Interrupted),
            ("tool-calls", "error", "File not found: /x", true, Aborted),
        ];
        for (finish, status, error, unbroken, expected) in cases {
            let message = json!({
                "info": {"id": "msg_2", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1",
                    "time": {"created": 1, "completed": 2}, "modelID": "m", "providerID": "p", "cost": 0,
                    "finish": finish, "tokens": {"input": 1, "output": 1}},
                "parts": [{"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_2", "type": "tool",
                    "tool": "bash", "callID": "c", "state": {"status": status, "input": {}, "output": "x",
                        "title": "", "metadata": {}, "error": error, "time": {"start": 1, "end": 2}}}]});
            let messages = [Arc::new(serde_json::from_value(message).unwrap())];
            let completion = Completion::of_rest(&messages, unbroken);
            assert_eq!(completion, expected, "{finish}, {status}, {error:?}, {unbroken}");
        }
    }
}

//! How a turn ends, in words that fit every agent.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::Value;

use super::{AgentError, Allowed, Limit};
use crate::{
    conversation::Usage,
    ids::{MessageId, SessionId},
};

/// How far a prompt is known to have got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Delivery {
    /// It never left, or never arrived.
    NotSent,
    /// The agent refused it.
    Rejected,
    /// It was sent, but nothing tells whether it arrived.
    Unknown,
    /// The agent has it.
    Accepted,
    /// The model was called.
    Started,
}

/// How a turn ended that the model was called for.
///
/// As JSON it is an object whose `type` names the variant: `{"type": "settled"}`, `{"type": "timedOut", "limit": "idle", …}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[non_exhaustive]
pub enum Completion {
    /// The model finished, and the session is at rest.
    Settled,
    /// The provider, or the agent, gave up.
    Failed(Failure),
    /// The session was aborted, by this manager or from elsewhere.
    Aborted,
    /// A permission or a question was rejected, which ended it.
    Rejected,
    /// The manager's own policy ended it because of a request.
    Refused,
    /// The agent died meanwhile; what was streamed since its last write is lost.
    Interrupted,
    /// A limit ran out.
    #[non_exhaustive]
    TimedOut {
        /// Which one.
        limit: Limit,
        /// How much it allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allowed: Option<Allowed>,
        /// What became of the agent's run; nothing if it was left alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        abort: Option<AbortReport>,
    },
    /// The session was deleted meanwhile.
    SessionGone,
    /// The agent began to refuse the credentials; its run may go on.
    Unauthorized,
    /// The manager was shut down, or its caller lost interest; the agent's run goes on.
    GivenUp,
}

/// How the provider, or the agent, failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Failure {
    /// The agent's name for it, such as `APIError`.
    pub name: String,
    /// The failure in words.
    pub message: String,
    /// Whether the agent says that the same request may succeed later.
    #[serde(default)]
    pub is_retryable: bool,
    /// What else the agent says about it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// What an abort could confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AbortReport {
    /// The agent says that the session and its descendants are idle. A prompt that was on its way meanwhile may start after that;
    /// its [`Delivery`] is not `NotSent` then.
    pub confirmed: bool,
    /// The sessions that were aborted.
    pub sessions: Vec<SessionId>,
}

/// What is said of an abort that was not confirmed, behind what was aborted.
pub(crate) const UNCONFIRMED: &str = ", and the abort could not be confirmed";

/// How a session came to rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "completion", rename_all = "camelCase")]
#[non_exhaustive]
pub enum IdleOutcome {
    /// Its last turn is complete, in the way that is given; nothing if it has none.
    Rest(Option<Completion>),
    /// Its last prompt was stored but not run.
    Unanswered,
}

/// What ended the execution of a prompt.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// The session is at rest, and this is what became of the turn.
    Completed(Completion),
    /// The agent has the prompt and does not run it.
    #[non_exhaustive]
    NotRun {
        /// What it said about that.
        failure: Option<Failure>,
    },
    /// The prompt could not be delivered.
    NotDelivered,
    /// The phase before an effect could not be recorded, so the effect did not happen.
    NotRecorded,
    /// A limit ran out.
    Limit(Limit),
    /// It was stopped.
    Stopped(Stop),
    /// The session does not exist any more.
    SessionGone,
    /// The agent refuses the credentials.
    Unauthorized,
}

/// Why a turn was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The caller aborted the session.
    Aborted,
    /// The policy says that such a request fails the turn.
    Refused,
    /// The manager was shut down, or its caller lost interest.
    GivenUp,
}

/// What came of executing a prompt.
#[derive(Debug)]
#[non_exhaustive]
pub struct Execution {
    /// What ended it.
    pub ended: Ended,
    /// How far the prompt got.
    pub delivery: Delivery,
    /// The message that the prompt became, if the agent gave it another id than the prepared one.
    pub message_id: Option<MessageId>,
    /// The text of the final answer, if there is one.
    pub answer: Option<String>,
    /// What the turn used, per session.
    pub usage: BTreeMap<SessionId, Usage>,
    /// The turn's messages in the agent's own form.
    pub messages: NativeMessages,
    /// Prompts of other clients that the agent answered in the same turn.
    pub other_prompts: Vec<MessageId>,
    /// What became of the agent's run, if it was aborted.
    pub abort: Option<AbortReport>,
    /// The last error of the agent that it has not overcome, if there was one.
    pub cause: Option<AgentError>,
}

/// Messages in the agent's own form.
///
/// Each agent has a method for its own: [`opencode`](Self::opencode) gives `OpenCode`'s. As JSON they are an array of what the agent
/// says itself, which is empty if its messages cannot be written.
#[derive(Clone)]
pub struct NativeMessages {
    messages: Arc<dyn Any + Send + Sync>,
    to_json: fn(&dyn Any) -> serde_json::Result<Value>,
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
            Self::Failed(failure) => failure.is_retryable,
            Self::Settled
            | Self::Aborted
            | Self::Rejected
            | Self::Refused
            | Self::SessionGone
            // The agent's run goes on, and another prompt would come on top of it.
            | Self::GivenUp
            | Self::Unauthorized => false,
        }
    }

    /// A limit ran out that allowed so much.
    pub fn timed_out(limit: Limit, allowed: Allowed, abort: Option<AbortReport>) -> Self {
        Self::TimedOut { limit, allowed: Some(allowed), abort }
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled => f.write_str("settled"),
            Self::Failed(failure) => write!(f, "failed: {failure}"),
            Self::Aborted => f.write_str("was aborted"),
            Self::Rejected => f.write_str("stopped because a request was rejected"),
            Self::Refused => f.write_str("was stopped by the permission policy"),
            Self::Interrupted => f.write_str("was interrupted: the agent died meanwhile"),
            Self::TimedOut { limit, allowed, abort } => {
                write!(f, "timed out: {limit}")?;
                if let Some(allowed) = allowed {
                    write!(f, " ({allowed})")?;
                }
                match abort {
                    Some(AbortReport { confirmed: false, .. }) => f.write_str(UNCONFIRMED),
                    Some(_) | None => Ok(()),
                }
            }
            Self::SessionGone => f.write_str("was lost: the session does not exist any more"),
            Self::Unauthorized => f.write_str(
                "was lost sight of: the agent refuses the credentials (check the password or the login)",
            ),
            Self::GivenUp => f.write_str("was not waited for any longer"),
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "not sent",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown whether it arrived",
            Self::Accepted => "accepted",
            Self::Started => "started",
        })
    }
}

impl Failure {
    /// A failure that the agent calls `name`, in words.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), message: message.into(), is_retryable: false, data: Value::Null }
    }

    /// The HTTP status of the provider's answer, if the agent says so.
    pub fn status_code(&self) -> Option<u16> {
        self.data.get("statusCode")?.as_u64()?.try_into().ok()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl AbortReport {
    /// What an abort of these sessions could confirm.
    pub fn new(confirmed: bool, sessions: Vec<SessionId>) -> Self {
        Self { confirmed, sessions }
    }
}

impl Ended {
    /// The agent has the prompt and does not run it.
    pub fn not_run(failure: Option<Failure>) -> Self {
        Self::NotRun { failure }
    }

    /// What it is in a word or two, without what the agent said.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed(Completion::Settled) => "settled",
            Self::Completed(Completion::Failed(_)) => "failed",
            Self::Completed(Completion::Rejected) => "rejected",
            Self::Completed(Completion::Interrupted) => "interrupted",
            Self::Completed(Completion::Aborted) | Self::Stopped(Stop::Aborted) => "aborted",
            Self::Completed(Completion::Refused) | Self::Stopped(Stop::Refused) => "refused",
            Self::Completed(Completion::GivenUp) | Self::Stopped(Stop::GivenUp) => "given up",
            Self::Completed(Completion::TimedOut { .. }) | Self::Limit(_) => "timed out",
            Self::Completed(Completion::SessionGone) | Self::SessionGone => "session gone",
            Self::Completed(Completion::Unauthorized) | Self::Unauthorized => "unauthorized",
            Self::NotRun { .. } => "not run",
            Self::NotDelivered => "not delivered",
            Self::NotRecorded => "not recorded",
        }
    }
}

impl Execution {
    /// An execution that ended like this, of a prompt that got so far, with nothing to show for it.
    pub fn new(ended: Ended, delivery: Delivery) -> Self {
        Self {
            ended,
            delivery,
            message_id: None,
            answer: None,
            usage: BTreeMap::new(),
            messages: NativeMessages::default(),
            other_prompts: Vec::new(),
            abort: None,
            cause: None,
        }
    }
}

impl NativeMessages {
    /// Messages of an agent's own type, which cannot be written as JSON.
    pub fn new<M: Any + Send + Sync>(messages: Vec<M>) -> Self {
        Self { messages: Arc::new(messages), to_json: |_| Ok(Value::Array(Vec::new())) }
    }

    /// Messages of an agent's own type, which can be written as JSON.
    pub fn serializable<M: Serialize + Any + Send + Sync>(messages: Vec<M>) -> Self {
        let to_json = |messages: &dyn Any| serde_json::to_value(messages.downcast_ref::<Vec<M>>());
        Self { messages: Arc::new(messages), to_json }
    }

    /// The messages, if they are of this type; none otherwise.
    pub fn of<M: Any + Send + Sync>(&self) -> &[M] {
        self.messages.downcast_ref::<Vec<M>>().map_or(&[], Vec::as_slice)
    }
}

impl Default for NativeMessages {
    fn default() -> Self {
        Self::new::<()>(Vec::new())
    }
}

impl Serialize for NativeMessages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.to_json)(&*self.messages).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl fmt::Debug for NativeMessages {
    /// Without the messages: they belong in no log above trace level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NativeMessages")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn completions_are_written_and_read_as_documented() {
        let report = AbortReport::new(true, vec!["ses_1".into()]);
        let failure = Failure { data: json!({"statusCode": 400}), ..Failure::new("APIError", "refused") };
        let cases = [
            (Completion::Settled, json!({"type": "settled"})),
            (
                Completion::Failed(failure),
                json!({"type": "failed", "name": "APIError", "message": "refused", "isRetryable": false,
                    "data": {"statusCode": 400}}),
            ),
            (
                Completion::timed_out(Limit::Idle, Allowed::Time(Duration::from_secs(45)), Some(report)),
                json!({"type": "timedOut", "limit": "idle", "allowed": {"millis": 45000},
                    "abort": {"confirmed": true, "sessions": ["ses_1"]}}),
            ),
            (
                Completion::TimedOut { limit: Limit::Steps, allowed: None, abort: None },
                json!({"type": "timedOut", "limit": "steps"}),
            ),
            (Completion::SessionGone, json!({"type": "sessionGone"})),
        ];
        for (completion, json) in cases {
            assert_eq!(serde_json::to_value(&completion).unwrap(), json);
            assert_eq!(serde_json::from_value::<Completion>(json).unwrap(), completion);
        }
        for outcome in
            [IdleOutcome::Unanswered, IdleOutcome::Rest(None), IdleOutcome::Rest(Some(Completion::Aborted))]
        {
            let json = serde_json::to_value(&outcome).unwrap();
            assert_eq!(serde_json::from_value::<IdleOutcome>(json).unwrap(), outcome);
        }
    }

    #[test]
    fn messages_are_found_by_their_type_only() {
        let messages = NativeMessages::serializable(vec!["one", "two"]);
        assert_eq!(messages.of::<&str>(), ["one", "two"]);
        assert!(messages.of::<String>().is_empty());
        assert!(NativeMessages::default().of::<&str>().is_empty());
        assert_eq!(serde_json::to_value(&messages).unwrap(), json!(["one", "two"]));
        assert_eq!(serde_json::to_value(NativeMessages::new(vec!["one"])).unwrap(), json!([]));
    }
}

//! Results as JSON, for programs that read what these print.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use opencode_conductor::{
    ClientStatistics, Completion, MessageId, PromptError, PromptExecutionResult, SessionId, Timestamp, Usage,
    wire::Message,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::one_line;

/// What came of one prompt.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Report {
    /// The prompt; nothing if the model was not called for it.
    pub submission: Option<Submission>,
    /// How it ended: its `type`, and what there is to know about it.
    pub completion: Value,
    /// The final answer.
    pub answer: Option<String>,
    /// What it used and cost, subagents included.
    pub usage: Usage,
    /// The same per session.
    pub usage_by_session: BTreeMap<SessionId, Usage>,
    /// Everything after the prompt, as the server has it.
    pub messages: Vec<Arc<Message>>,
    /// How long it took.
    pub elapsed_ms: u64,
    /// What the client did and saw.
    pub client: Value,
}

/// A prompt that was sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Submission {
    /// The session it was sent to.
    pub session_id: SessionId,
    /// The user message that it became.
    pub message_id: MessageId,
    /// Its text.
    pub prompt: String,
    /// When it was first sent.
    pub submitted_at: Timestamp,
}

impl Report {
    /// The report on a prompt that ended like this.
    pub fn new(
        ended: &Result<PromptExecutionResult, PromptError>,
        elapsed: Duration,
        client: &ClientStatistics,
    ) -> Self {
        let result = ended.as_ref().ok();
        Self {
            submission: result.map(|result| Submission {
                session_id: result.submission.session_id.clone(),
                message_id: result.submission.message_id.clone(),
                prompt: result.submission.prompt.clone(),
                submitted_at: result.submission.submitted_at,
            }),
            completion: match ended {
                Ok(result) => completion(&result.completion),
                Err(error) => not_run(error),
            },
            answer: result.and_then(PromptExecutionResult::answer),
            usage: result.map(|result| result.usage).unwrap_or_default(),
            usage_by_session: result.map(|result| result.usage_by_session.clone()).unwrap_or_default(),
            messages: result.map(|result| result.messages.clone()).unwrap_or_default(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            client: statistics(client),
        }
    }
}

/// How a turn ended.
pub fn completion(completion: &Completion) -> Value {
    let mut value = match completion {
        Completion::Failed(error) => json!({"type": "failed", "message": error.message(), "error": error}),
        Completion::TimedOut { limit, abort } => json!({
            "type": "timedOut",
            "limit": camel(limit),
            "message": limit.to_string(),
            "abort": abort.as_ref().map(|abort| json!({"confirmed": abort.confirmed, "sessions": abort.sessions})),
        }),
        other => json!({"type": camel(other)}),
    };
    value["retryable"] = completion.is_retryable().into();
    value
}

/// Why the model was not called.
pub fn not_run(error: &PromptError) -> Value {
    json!({
        "type": "notRun",
        "message": one_line(error),
        "delivery": camel(error.delivery()),
        "retryable": error.is_retryable(),
    })
}

/// What a client did and saw.
pub fn statistics(client: &ClientStatistics) -> Value {
    json!({
        "requests": client.requests,
        "retries": client.retries,
        "bytesSent": client.bytes_sent,
        "bytesReceived": client.bytes_received,
        "feedBytes": client.feed_bytes,
        "events": client.events,
        "eventsUnknown": client.events_unknown,
        "eventsMalformed": client.events_malformed,
        "reconnects": client.reconnects,
        "resyncs": client.resyncs,
    })
}

/// The name of a variant, as JSON likes it.
fn camel(variant: impl std::fmt::Debug) -> String {
    let name = format!("{variant:?}");
    let mut letters = name.chars().take_while(|c| c.is_alphanumeric());
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

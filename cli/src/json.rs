//! Results as JSON, for programs that read what these print.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use opencode_conductor::{
    ClientStatistics, Completion, PromptError, PromptExecutionResult, PromptSubmission, SessionId, Usage,
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
    pub submission: Option<PromptSubmission>,
    /// How it ended: its `type`, and what there is to know about it.
    pub completion: Value,
    /// The final answer.
    pub answer: Option<String>,
    /// What it used and cost, subagents included.
    pub usage: Usage,
    /// The same per session.
    pub usage_by_session: BTreeMap<SessionId, Usage>,
    /// Everything after the prompt, as the server has it; nothing of Claude Code, whose lines are in its transcript.
    pub messages: Vec<Arc<Message>>,
    /// How long it took.
    pub elapsed_ms: u64,
    /// What the client did and saw; nothing where there is no server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientStatistics>,
}

impl Report {
    /// The report on a prompt that ended like this.
    pub fn new(
        ended: &Result<PromptExecutionResult, PromptError>,
        elapsed: Duration,
        client: Option<ClientStatistics>,
    ) -> Self {
        let result = ended.as_ref().ok();
        Self {
            submission: result.map(|result| result.submission.clone()),
            completion: match ended {
                Ok(result) => completion(&result.completion),
                Err(error) => not_run(error),
            },
            answer: result.and_then(PromptExecutionResult::answer),
            usage: result.map(|result| result.usage).unwrap_or_default(),
            usage_by_session: result.map(|result| result.usage_by_session.clone()).unwrap_or_default(),
            messages: result.map(|result| result.messages.opencode().to_vec()).unwrap_or_default(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            client,
        }
    }
}

/// How a turn ended, in words too.
pub fn completion(completion: &Completion) -> Value {
    let mut value = json!(completion);
    if !completion.is_settled() {
        value["message"] = completion.to_string().into();
    }
    value["retryable"] = completion.is_retryable().into();
    value
}

/// Why the model was not called.
pub fn not_run(error: &PromptError) -> Value {
    json!({
        "type": "notRun",
        "message": one_line(error),
        "delivery": error.delivery(),
        "retryable": error.is_retryable(),
    })
}

//! What single lines of Claude Code mean; no memory.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::wire::{
    ApiRetry, ApiUsage, CompactMetadata, Content, ContentBlock, MediaSource, TaskNotification, UserLine,
};
use crate::{
    conversation::{ContentPart, Metadata, RunStatus, TokenUsage, Usage},
    ids::{AgentId, ToolUseId},
};

/// What Claude Code calls the tool that starts a subagent, now and before 2.1.
const AGENT_TOOLS: [&str; 2] = ["Agent", "Task"];

/// What stands where the user ended a turn.
const INTERRUPTED: [&str; 2] =
    ["[Request interrupted by user]", "[Request interrupted by user for tool use]"];

/// How the summary of a conversation begins.
const SUMMARY: &str = "This session is being continued from a previous conversation";

/// What Claude Code writes over a prompt that was never answered.
const NO_RESPONSE: &str = "No response requested.";

/// What the text of a user line is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// What a user wrote.
    Prompt(String),
    /// For the model only.
    Hidden,
    /// The summary of what was said before.
    Summary(String),
    /// The user ended the turn.
    Interruption(String),
    /// A slash command, or what it printed.
    Command { subtype: &'static str, content: String },
    /// A task in the background ended.
    TaskEnded(TaskEnd),
}

/// How a task in the background ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskEnd {
    pub(super) run_id: Option<Box<str>>,
    pub(super) tool_use_id: Option<ToolUseId>,
    pub(super) status: RunStatus,
    pub(super) output: Option<String>,
    pub(super) duration_ms: Option<u64>,
}

/// What a finished subagent returned, before it was made a text for the model.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentReport {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    agent_id: Option<AgentId>,
    #[serde(default)]
    total_duration_ms: Option<u64>,
    #[serde(default)]
    content: Option<Content>,
}

/// What the call that started a subagent gave.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AgentGave {
    pub(super) agent_id: Option<AgentId>,
    /// Nothing if it only was started, and goes on in the background.
    pub(super) end: Option<(RunStatus, String, Option<u64>)>,
}

pub(super) fn is_agent_tool(name: &str) -> bool {
    AGENT_TOOLS.contains(&name)
}

/// Whether a text shows nothing.
pub(super) fn is_silent(text: &str, is_synthetic: bool) -> bool {
    text.trim().is_empty() || (is_synthetic && text == NO_RESPONSE)
}

/// What the text of a user line is; nothing if it has none.
pub(super) fn meaning(line: &UserLine) -> Option<Meaning> {
    let mut texts = line.message.content.texts().peekable();
    let has_media = line.message.content.blocks().iter().any(|block| media(block).is_some());
    if texts.peek().is_none() && !has_media {
        return None;
    }
    let text = texts.collect::<Vec<_>>().join("\n");
    let is_note = line.origin.as_ref().is_some_and(|origin| origin.kind == "task-notification");
    if is_note || text.starts_with("<task-notification>") {
        let run_id = line.origin.as_ref().and_then(|origin| origin.run_id.as_deref()).map(Box::from);
        return Some(task_ended(&text, run_id).map_or(Meaning::Hidden, Meaning::TaskEnded));
    }
    let is_ours = line.is_meta || line.is_synthetic;
    Some(if line.is_compact_summary || (is_ours && text.starts_with(SUMMARY)) {
        Meaning::Summary(text)
    } else if INTERRUPTED.contains(&text.as_str()) {
        Meaning::Interruption(text)
    } else if is_ours {
        Meaning::Hidden
    } else if text.starts_with("<command-") {
        let name = between(&text, "<command-name>", "</command-name>").unwrap_or_default();
        let arguments = between(&text, "<command-args>", "</command-args>").unwrap_or_default();
        let content = format!("{} {}", name.trim(), arguments.trim()).trim().to_owned();
        Meaning::Command { subtype: "command", content }
    } else if let Some(printed) = text.strip_prefix("<local-command-std") {
        let printed = printed.split_once('>').map_or("", |(_, printed)| printed);
        let printed = printed.rsplit_once("</local-command-std").map_or(printed, |(printed, _)| printed);
        Meaning::Command { subtype: "command_output", content: printed.trim().to_owned() }
    } else if text.trim().is_empty() && !has_media {
        Meaning::Hidden
    } else {
        Meaning::Prompt(text)
    })
}

/// What is besides text, without its bytes.
pub(super) fn parts(content: &Content) -> Vec<ContentPart> {
    content.blocks().iter().filter_map(media).collect()
}

fn media(block: &ContentBlock) -> Option<ContentPart> {
    let (ContentBlock::Image(source) | ContentBlock::Document(source)) = block else { return None };
    let MediaSource { media_type, data, url, .. } = source;
    Some(ContentPart::File {
        media_type: media_type.clone().unwrap_or_default(),
        filename: None,
        url: url.clone(),
        size: data.as_ref().map(|data| (data.trim_end_matches('=').len() * 3 / 4) as u64),
    })
}

/// What a tool gave, as text.
pub(super) fn output(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Blocks(_) => content.texts().collect::<Vec<_>>().join("\n"),
    }
}

/// What the call that started a subagent gave.
pub(super) fn agent_gave(content: &Content, is_error: bool, structured: Option<&RawValue>) -> AgentGave {
    let report: AgentReport =
        structured.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    let AgentReport { status, agent_id, total_duration_ms, content: answer } = report;
    if status.as_deref() == Some("async_launched") {
        return AgentGave { agent_id, end: None };
    }
    // Beside the answer stands what Claude Code notes for the model.
    let is_answer = |text: &&str| !text.starts_with("<tools-used-before-summary>");
    let answer = answer.as_ref().filter(|_| !is_error).map(|answer| {
        let texts: Vec<_> = answer.texts().filter(is_answer).collect();
        texts.join("\n")
    });
    let status = if is_error { RunStatus::Error } else { RunStatus::Success };
    AgentGave { agent_id, end: Some((status, answer.unwrap_or_else(|| output(content)), total_duration_ms)) }
}

/// How a task ended, as the stream says.
pub(super) fn task_end(note: &TaskNotification) -> TaskEnd {
    let (status, has_output) = ended(&note.status);
    TaskEnd {
        run_id: note.run_id.clone(),
        tool_use_id: note.tool_use_id.clone(),
        status,
        output: note.summary.clone().filter(|_| has_output),
        duration_ms: note.usage.as_ref().and_then(|usage| usage.duration_ms),
    }
}

/// How a task ended, as a transcript says, in a text for the model.
fn task_ended(text: &str, run_id: Option<Box<str>>) -> Option<TaskEnd> {
    let (status, has_output) = ended(between(text, "<status>", "</status>")?);
    let summary = between(text, "<summary>", "</summary>");
    let reason = summary.map(|summary| summary.split_once("\" failed: ").map_or(summary, |(_, why)| why));
    let result = text.split_once("<result>").and_then(|(_, rest)| rest.rsplit_once("</result>"));
    let output = result.map(|(result, _)| result).or(reason);
    Some(TaskEnd {
        run_id,
        tool_use_id: between(text, "<tool-use-id>", "</tool-use-id>").map(ToolUseId::from),
        status,
        output: output.filter(|_| has_output).map(str::to_owned),
        duration_ms: between(text, "<duration_ms>", "</duration_ms>").and_then(|ms| ms.parse().ok()),
    })
}

/// How a task ended, and whether that says what it answered or why it failed.
fn ended(status: &str) -> (RunStatus, bool) {
    match status {
        "completed" => (RunStatus::Success, true),
        "failed" => (RunStatus::Error, true),
        _ => (RunStatus::Error, false),
    }
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    text.split_once(begin)?.1.split_once(end).map(|(inside, _)| inside)
}

/// What a message used.
pub(super) fn usage(api: &ApiUsage) -> Usage {
    let reasoning = api.output_tokens_details.and_then(|details| details.thinking_tokens).unwrap_or(0);
    Usage {
        tokens: TokenUsage {
            input: api.input_tokens.unwrap_or(0),
            output: api.output_tokens.unwrap_or(0).saturating_sub(reasoning),
            reasoning,
            cache_read: api.cache_read_input_tokens.unwrap_or(0),
            cache_write: api.cache_creation_input_tokens.unwrap_or(0),
        },
        cost: 0.0,
    }
}

/// What is known of a message's usage from two places: both count up.
pub(super) fn most(one: &ApiUsage, two: &ApiUsage) -> ApiUsage {
    ApiUsage {
        input_tokens: one.input_tokens.max(two.input_tokens),
        output_tokens: one.output_tokens.max(two.output_tokens),
        cache_creation_input_tokens: one.cache_creation_input_tokens.max(two.cache_creation_input_tokens),
        cache_read_input_tokens: one.cache_read_input_tokens.max(two.cache_read_input_tokens),
        output_tokens_details: one.output_tokens_details.max(two.output_tokens_details),
    }
}

/// A failed attempt, in words and in figures.
pub(super) fn retry(retry: &ApiRetry) -> (String, Metadata) {
    let ApiRetry { attempt, max_retries, retry_delay_ms, error_status, .. } = retry;
    let of = max_retries.map(|max| format!(" of {max}")).unwrap_or_default();
    let status = error_status.map(|status| format!(" with status {status}")).unwrap_or_default();
    let mut metadata = Map::from_iter([
        ("attempt".to_owned(), json!(attempt)),
        ("retryDelayMs".to_owned(), json!(retry_delay_ms)),
    ]);
    if let Some(status) = error_status {
        metadata.insert("statusCode".to_owned(), json!(status));
    }
    (format!("Attempt {attempt}{of} failed{status}."), Some(Arc::new(metadata)))
}

/// Why a conversation was summarised.
pub(super) fn compaction(metadata: &CompactMetadata) -> Metadata {
    let CompactMetadata { trigger, pre_tokens, post_tokens, .. } = metadata;
    let fields = [
        ("trigger", trigger.as_deref().map(Value::from)),
        ("preTokens", pre_tokens.map(Value::from)),
        ("postTokens", post_tokens.map(Value::from)),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let fields: Map<_, _> = fields.collect();
    (!fields.is_empty()).then(|| Arc::new(fields))
}

/// What a subagent was given besides what every subagent is given.
pub(super) fn other_arguments(input: &Value) -> Metadata {
    let told = ["description", "prompt", "subagent_type"];
    let others = input.as_object()?.iter().filter(|(name, _)| !told.contains(&name.as_str()));
    let others: Map<_, _> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!others.is_empty()).then(|| Arc::new(Map::from_iter([("input".to_owned(), Value::from(others))])))
}

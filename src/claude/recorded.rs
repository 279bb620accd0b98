//! What a transcript says about a prompt: how its turn ended, and what it used.

use std::collections::BTreeMap;

use super::{
    ClaudeFiles,
    wire::{ApiUsage, AssistantLine, Content, ContentBlock, TranscriptLine, UserLine},
};
use crate::{
    agent::{Completion, Failure, IdleOutcome},
    conversation::{TokenUsage, Usage},
    ids::{MessageId, SessionId},
    time::Timestamp,
};

/// How Claude Code begins the line that it leaves where a turn was interrupted.
const INTERRUPTED: &str = "[Request interrupted by user";
/// What it writes when it goes on after a prompt that has no answer.
const NO_RESPONSE: &str = "No response requested.";
/// Its word for credentials that are missing or refused.
pub(super) const NOT_LOGGED_IN: &str = "authentication_failed";
/// Its word for a model that does not exist, or that the account may not use.
pub(super) const NO_SUCH_MODEL: &str = "model_not_found";

/// What a transcript says about a prompt.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Where it stands.
    pub(super) position: PromptPosition,
    /// How its turn ended; nothing if there is no answer to it.
    pub(super) completion: Option<Completion>,
    /// The model has said something.
    pub(super) has_begun: bool,
    /// The text of the final answer.
    pub(super) answer: Option<String>,
    /// The last line of the model's side.
    pub(super) last_line: Option<MessageId>,
    /// What the turn used, per thread, without costs.
    pub(super) usage: BTreeMap<SessionId, Usage>,
}

/// Where a prompt stands in a transcript.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum PromptPosition {
    /// It is not there.
    #[default]
    Absent,
    /// Another prompt came after it, so that its turn is over.
    Past,
    /// It is the last prompt, whose turn may still run.
    Last,
}

impl ClaudeFiles {
    /// Looks up a prompt of a session. It is read when nothing runs, so that what has no end was interrupted.
    pub(super) fn look_up(&self, session: &SessionId, prompt: &MessageId) -> Recorded {
        let Some(start) = self.main.iter().position(|line| is_prompt(line, prompt)) else {
            return Recorded::default();
        };
        let rest = self.main.get(start + 1..).unwrap_or_default();
        let end = rest.iter().position(begins_another_turn).unwrap_or(rest.len());
        let turn = rest.get(..end).unwrap_or_default();
        let since = self.main.get(start).and_then(time_of);
        let until = rest.get(end).and_then(time_of);
        let position = if end < rest.len() { PromptPosition::Past } else { PromptPosition::Last };
        let completion = end_of(turn);
        let said = || {
            turn.iter().filter_map(|line| match line {
                TranscriptLine::Assistant(line) if !line.is_sidechain => Some(&**line),
                _ => None,
            })
        };
        let has_begun = said().any(|line| !line.is_error() && !is_left_out(line));
        let (answer, last_line) = (answer(said()), said().next_back().and_then(|line| line.uuid.clone()));
        let mut usage = BTreeMap::new();
        add_usage(&mut usage, session, turn.iter());
        for subagent in &self.subagents {
            let is_of_turn = |line: &&TranscriptLine| {
                let time = time_of(line);
                time >= since && until.is_none_or(|until| time < Some(until))
            };
            let id = SessionId::new(subagent.id.as_str());
            add_usage(&mut usage, &id, subagent.lines.iter().filter(is_of_turn));
        }
        Recorded { position, completion, has_begun, answer, last_line, usage }
    }

    /// How the session came to rest: by the end of its last turn, if it has one.
    pub(super) fn rest(&self) -> IdleOutcome {
        let Some(last) = self.main.iter().rposition(begins_another_turn) else {
            return IdleOutcome::Rest(None);
        };
        match end_of(self.main.get(last + 1..).unwrap_or_default()) {
            None => IdleOutcome::Unanswered,
            completion => IdleOutcome::Rest(completion),
        }
    }
}

/// How a turn ended that nothing is at work on any more.
fn end_of(turn: &[TranscriptLine]) -> Option<Completion> {
    let mut completion = None;
    for line in turn {
        match line {
            TranscriptLine::User(line) if is_interruption(line) => completion = Some(Completion::Aborted),
            TranscriptLine::Assistant(line) if is_left_out(line) => {}
            TranscriptLine::Assistant(line) if line.is_error() => {
                completion = Some(Completion::Failed(failure(line)));
            }
            TranscriptLine::Assistant(line) => {
                let is_final = line.message.stop_reason.as_deref().is_some_and(|reason| reason != "tool_use");
                completion = Some(if is_final { Completion::Settled } else { Completion::Interrupted });
            }
            TranscriptLine::User(_)
            | TranscriptLine::System(_)
            | TranscriptLine::Attachment(_)
            | TranscriptLine::CostState { .. }
            | TranscriptLine::Unknown(_) => {}
        }
    }
    completion
}

/// The text of the final answer: that of the last message of the model that says something and calls no tool. Lines as they are
/// streamed and as they are written give the same.
pub(super) fn answer<'a>(lines: impl Iterator<Item = &'a AssistantLine>) -> Option<String> {
    let mut messages: Vec<(&MessageId, Vec<&str>, bool)> = Vec::new();
    for line in lines.filter(|line| !line.is_error() && !is_left_out(line)) {
        if messages.last().is_none_or(|(id, ..)| **id != line.message.id) {
            messages.push((&line.message.id, Vec::new(), false));
        }
        if let Some((_, words, calls)) = messages.last_mut() {
            words.extend(texts(line).filter(|text| !text.trim().is_empty()));
            *calls |= line.message.content.iter().any(|block| matches!(block, ContentBlock::ToolUse { .. }));
        }
    }
    let last = messages.into_iter().rfind(|(_, words, calls)| !words.is_empty() && !calls);
    last.map(|(_, words, _)| words.join("\n\n"))
}

/// Whether a failure means that no model could be called.
pub(super) fn is_refusal(name: &str) -> bool {
    name == NOT_LOGGED_IN || name == NO_SUCH_MODEL
}

/// What the provider answered instead of a message.
pub(super) fn failure(line: &AssistantLine) -> Failure {
    let words: Vec<&str> = texts(line).collect();
    Failure::new(line.error.as_deref().unwrap_or("api_error"), words.join("\n"))
}

/// What a line of the model's side says.
pub(super) fn texts(line: &AssistantLine) -> impl Iterator<Item = &str> {
    line.message.content.iter().filter_map(|block| match block {
        ContentBlock::Text { text } => Some(text.as_str()),
        _ => None,
    })
}

/// Whether a line is what Claude Code writes for itself.
pub(super) fn is_left_out(line: &AssistantLine) -> bool {
    line.is_synthetic() && texts(line).all(|text| text == NO_RESPONSE)
}

/// Whether a turn was interrupted here.
pub(super) fn is_interruption(line: &UserLine) -> bool {
    line.message.content.texts().any(|text| text.starts_with(INTERRUPTED))
}

fn is_prompt(line: &TranscriptLine, prompt: &MessageId) -> bool {
    match line {
        TranscriptLine::User(line) => line.uuid.as_ref() == Some(prompt),
        TranscriptLine::Attachment(line) => {
            line.queued.as_ref().is_some_and(|queued| queued.source_uuid.as_ref() == Some(prompt))
        }
        TranscriptLine::Assistant(_)
        | TranscriptLine::System(_)
        | TranscriptLine::CostState { .. }
        | TranscriptLine::Unknown(_) => false,
    }
}

/// Whether a line is a prompt of the user, and not something that goes with the turn.
fn begins_another_turn(line: &TranscriptLine) -> bool {
    let TranscriptLine::User(line) = line else { return false };
    let is_result = |block: &ContentBlock| matches!(block, ContentBlock::ToolResult { .. });
    !line.is_meta
        && !line.is_sidechain
        && !line.is_compact_summary
        && line.origin.is_none()
        && !is_interruption(line)
        && !line.message.content.blocks().iter().any(is_result)
        && !matches!(&line.message.content, Content::Text(text) if text.starts_with('<'))
}

fn time_of(line: &TranscriptLine) -> Option<Timestamp> {
    match line {
        TranscriptLine::User(line) => line.timestamp,
        TranscriptLine::Assistant(line) => line.timestamp,
        TranscriptLine::System(line) => line.timestamp,
        TranscriptLine::Attachment(line) => line.timestamp,
        TranscriptLine::CostState { .. } | TranscriptLine::Unknown(_) => None,
    }
}

/// Adds up what messages used. The lines of one message all say what the whole of it used.
fn add_usage<'a>(
    usage: &mut BTreeMap<SessionId, Usage>,
    thread: &SessionId,
    lines: impl Iterator<Item = &'a TranscriptLine>,
) {
    let mut messages = BTreeMap::new();
    for line in lines {
        if let TranscriptLine::Assistant(line) = line
            && let Some(used) = &line.message.usage
            && !line.is_synthetic()
        {
            messages.insert(&line.message.id, tokens(used));
        }
    }
    for tokens in messages.into_values() {
        let sum: &mut Usage = usage.entry(thread.clone()).or_default();
        *sum += Usage { tokens, cost: 0.0 };
    }
}

fn tokens(used: &ApiUsage) -> TokenUsage {
    let count = |tokens: Option<u64>| tokens.unwrap_or_default();
    let reasoning = count(used.output_tokens_details.and_then(|details| details.thinking_tokens));
    TokenUsage {
        input: count(used.input_tokens),
        output: count(used.output_tokens).saturating_sub(reasoning),
        reasoning,
        cache_read: count(used.cache_read_input_tokens),
        cache_write: count(used.cache_creation_input_tokens),
    }
}

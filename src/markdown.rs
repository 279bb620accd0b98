//! A conversation as readable Markdown.
//!
//! What models and users wrote is Markdown already and is passed on as it is, HTML and control characters included. A program that turns the result into
//! a web page has to leave HTML out, or sanitise it, as of any stranger's text; one that prints it has to filter control characters.

use std::{collections::HashSet, fmt::Write};

use serde_json::Value;

use crate::{
    conversation::{
        BlockBody, BlockText, ContentPart, ConversationBlock, RunStatus, SessionConversationState,
        SubagentBlock, Thread, Usage,
    },
    ids::ToolUseId,
    setters::setters,
};

/// Deeper subagents are only named.
const MAX_DEPTH: usize = 16;

/// What is shown, and how much of it.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct MarkdownOptions {
    /// Whether thinking is shown, folded.
    pub thinking: bool,
    /// How many lines of a tool's input or output are shown; the rest is counted.
    pub max_lines: usize,
}

impl Default for MarkdownOptions {
    /// Thinking folded, and the first 40 lines of what tools say.
    fn default() -> Self {
        Self { thinking: true, max_lines: 40 }
    }
}

impl MarkdownOptions {
    setters! {
        /// Shows thinking, folded (the default), or leaves it out.
        thinking(thinking: bool) { thinking = thinking }
        /// Sets how many lines of a tool's input or output are shown (default 40).
        max_lines(max_lines: usize) { max_lines = max_lines }
    }
}

/// Renders a conversation: tools with input and result, thinking folded, subagents quoted inside their parent's thread.
#[must_use]
pub fn render(state: &SessionConversationState, options: &MarkdownOptions) -> String {
    let mut renderer = Renderer { state, options, shown: HashSet::new() };
    let mut text = renderer.thread(state.blocks(), 0);
    // Threads whose subagent was never announced have no block to stand under.
    for subagent in state.subagents() {
        if !renderer.shown.contains(&subagent.tool_use_id) {
            let _ = writeln!(text, "### Subagent {}\n", code(subagent.tool_use_id.as_str()));
            renderer.shown.insert(subagent.tool_use_id.clone());
            text.push_str(&quote(&renderer.thread(&subagent.blocks, 1)));
        }
    }
    let usage = state.total_usage();
    if usage.tokens.total() > 0 {
        let _ = writeln!(text, "---\n\n{}", usage_line(&usage));
    }
    text
}

struct Renderer<'a> {
    state: &'a SessionConversationState,
    options: &'a MarkdownOptions,
    /// Subagents that were rendered; each is, once.
    shown: HashSet<ToolUseId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    None,
    User,
    Assistant,
}

impl Renderer<'_> {
    fn thread(&mut self, thread: &Thread, depth: usize) -> String {
        let mut text = String::new();
        let mut speaker = Speaker::None;
        for block in thread.iter() {
            let next = match &block.body {
                BlockBody::UserMessage { .. } => Speaker::User,
                BlockBody::AssistantText { .. }
                | BlockBody::Thinking { .. }
                | BlockBody::ToolUse { .. }
                | BlockBody::ToolResult { .. }
                | BlockBody::Subagent(_) => Speaker::Assistant,
                BlockBody::System { .. } | BlockBody::Error { .. } | BlockBody::Unknown { .. } => speaker,
            };
            let is_hidden = matches!(&block.body, BlockBody::Thinking { .. }) && !self.options.thinking;
            if is_hidden {
                continue;
            }
            // Each prompt is a message of its own; an answer is many blocks.
            if next != speaker || next == Speaker::User && matches!(block.body, BlockBody::UserMessage { .. })
            {
                text.push_str(match next {
                    Speaker::User => "## User\n\n",
                    Speaker::Assistant => "## Assistant\n\n",
                    Speaker::None => "",
                });
                speaker = next;
            }
            self.block(&mut text, block, depth);
        }
        text
    }

    fn block(&mut self, text: &mut String, block: &ConversationBlock, depth: usize) {
        let result = match &block.body {
            BlockBody::UserMessage { content, parts } => prompt(text, block, content, parts),
            BlockBody::AssistantText { content, .. } => {
                if is_marked(block, "summary") {
                    text.push_str("*Summary of the conversation so far:*\n\n");
                }
                writeln!(text, "{}\n", content.as_str().trim())
            }
            BlockBody::Thinking { content, .. } => writeln!(
                text,
                "<details><summary>Thinking</summary>\n\n{}\n\n</details>\n",
                content.as_str().trim()
            ),
            BlockBody::ToolUse { name, title, input, tool_status, .. } => {
                let title = title.as_deref().map(|title| format!(" {title}")).unwrap_or_default();
                let status = status(*tool_status);
                let input = fenced("json", &pretty(input), self.options.max_lines);
                writeln!(text, "**{name}**{title} · {status}\n\n{input}")
            }
            BlockBody::ToolResult { output, is_error, duration_ms, parts, .. } => {
                let what = if *is_error { "Error" } else { "Result" };
                let output = fenced("", &output.as_str(), self.options.max_lines);
                writeln!(text, "{what}{}:\n\n{output}", duration(*duration_ms))
                    .and_then(|()| parts.iter().try_for_each(|part| content_part(text, part)))
            }
            BlockBody::System { content, .. } => writeln!(text, "*{}*\n", content.as_str().trim()),
            BlockBody::Error { content } => writeln!(text, "> **Error:** {}\n", one_line(&content.as_str())),
            BlockBody::Subagent(subagent) => self.subagent(text, subagent, depth),
            BlockBody::Unknown { kind } => {
                let said =
                    block.extra.as_ref().map(|extra| Value::from((**extra).clone())).unwrap_or_default();
                writeln!(text, "**{kind}**\n\n{}", fenced("json", &pretty(&said), self.options.max_lines))
            }
        };
        // Writing to a string cannot fail.
        debug_assert!(result.is_ok());
    }

    fn subagent(&mut self, text: &mut String, block: &SubagentBlock, depth: usize) -> std::fmt::Result {
        let name = if block.name.is_empty() { "subagent" } else { &block.name };
        let description = block.description.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        let status = status(block.subagent_status);
        writeln!(text, "### Subagent {name}{description} · {status}{}\n", duration(block.duration_ms))?;
        let state = self.state.subagent(&block.tool_use_id);
        if let Some(state) = state.filter(|_| depth < MAX_DEPTH)
            && self.shown.insert(state.tool_use_id.clone())
        {
            let thread = self.thread(&state.blocks, depth + 1);
            text.push_str(&quote(&thread));
            let usage = state.metadata.usage();
            if usage.tokens.total() > 0 {
                writeln!(text, "> {}\n", usage_line(&usage))?;
            }
        }
        match &block.output {
            Some(output) if !output.is_blank() => {
                writeln!(text, "Answer:\n\n{}", fenced("", &output.as_str(), self.options.max_lines))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn prompt(
    text: &mut String,
    block: &ConversationBlock,
    content: &BlockText,
    parts: &[ContentPart],
) -> std::fmt::Result {
    if is_marked(block, "synthetic") {
        text.push_str("*Written by the server:*\n\n");
    }
    if !content.is_blank() {
        writeln!(text, "{}\n", content.as_str().trim())?;
    }
    parts.iter().try_for_each(|part| content_part(text, part))?;
    if !parts.is_empty() {
        text.push('\n');
    }
    Ok(())
}

fn content_part(text: &mut String, part: &ContentPart) -> std::fmt::Result {
    match part {
        ContentPart::File { media_type, filename, url, size } => {
            let name = filename.as_deref().or(url.as_deref()).unwrap_or("file");
            let size = size.map(|size| format!(", {size} bytes")).unwrap_or_default();
            writeln!(text, "- {} ({media_type}{size})", code(name))
        }
        ContentPart::Agent { name } => writeln!(text, "- @{name}"),
        ContentPart::Subtask { agent, description, prompt } => {
            writeln!(text, "- @{agent}: {description}\n\n{}", quote(prompt))
        }
    }
}

fn is_marked(block: &ConversationBlock, mark: &str) -> bool {
    block.metadata.as_ref().and_then(|metadata| metadata.get(mark)) == Some(&Value::Bool(true))
}

fn status(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Pending => "pending",
        RunStatus::Running => "running",
        RunStatus::Success => "success",
        RunStatus::Error => "error",
    }
}

fn duration(millis: Option<u64>) -> String {
    millis.map(|millis| format!(" ({millis} ms)")).unwrap_or_default()
}

fn usage_line(usage: &Usage) -> String {
    let tokens = usage.tokens;
    format!(
        "*{} tokens: {} in, {} out, {} thinking, {} + {} cached; cost {}*",
        tokens.total(),
        tokens.input,
        tokens.output,
        tokens.reasoning,
        tokens.cache_read,
        tokens.cache_write,
        usage.cost
    )
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'"))
}

/// A code block whose fence the content cannot close.
fn fenced(language: &str, content: &str, max_lines: usize) -> String {
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let total = content.lines().count();
    let lines: Vec<&str> = content.lines().take(max_lines).collect();
    let more = match total.saturating_sub(max_lines) {
        0 => String::new(),
        more => format!("… {more} more lines\n"),
    };
    format!("{fence}{language}\n{}\n{more}{fence}\n", lines.join("\n"))
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + text.len() / 20);
    for line in text.trim_end().lines() {
        quoted.push('>');
        if !line.is_empty() {
            quoted.push(' ');
            quoted.push_str(line);
        }
        quoted.push('\n');
    }
    quoted.push('\n');
    quoted
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;

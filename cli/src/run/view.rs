//! The live view: what is finished scrolls by, what is not is redrawn below it.

use std::{collections::HashSet, time::Duration};

use opencode_conductor::{
    AgentStatus, BlockBody, BlockId, BlockStatus, ChangeKind, ClientStatistics, ConversationBlock,
    FileChange, PromptExecutionResult, RunStatus, SessionConversationState, SubagentBlock, Thread, Update,
};
use opencode_conductor_cli::{
    ending,
    output::{self, Colours, LiveLines},
    refused, steps,
    style::{self, Ink, Style, shorten, wrap},
};
use serde_json::Value;

use super::Arguments;

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// How much of a tool's output is shown.
const OUTPUT_LINES: usize = 4;
/// How many of the changed files are named.
const MAX_CHANGES: usize = 8;
/// Deeper subagents are only named.
const MAX_DEPTH: usize = 4;

pub(crate) struct View {
    style: Style,
    /// Blocks that have scrolled by.
    printed: HashSet<BlockId>,
    /// Whether the last of them was close.
    close: bool,
    /// Lines at the bottom that will be drawn again.
    live: LiveLines,
    frame: usize,
    /// Why nothing moves, if there is a reason.
    remark: Option<String>,
    stream_lost: bool,
}

/// Some lines, and whether they will change.
struct Item {
    lines: Vec<String>,
    finished: bool,
    /// Neighbours that are both close stand together; others are kept apart by an empty line.
    close: bool,
}

impl View {
    pub(crate) fn new(server: &str, arguments: &Arguments) -> Self {
        let style = Style::of_stdout();
        let view = Self {
            style,
            printed: HashSet::new(),
            close: false,
            live: LiveLines::default(),
            frame: 0,
            remark: None,
            stream_lost: false,
        };
        let title =
            format!("{} {}", style.paint(Ink::Bold, "opencode-conductor"), style.paint(Ink::Dim, server));
        let place = style.paint(
            Ink::Dim,
            &format!("task {} in {}", arguments.task, style::home_relative(&arguments.directory)),
        );
        print(&[title, place]);
        view
    }

    /// Remembers what the conversation does not tell.
    pub(crate) fn note(&mut self, update: &Update) {
        match update {
            Update::Status(AgentStatus::Retrying { attempt, message, .. }) => {
                self.remark = Some(format!("the provider failed, attempt {attempt}: {message}"));
            }
            Update::Asked(ask) => {
                self.remark = Some(ask.permission().map_or_else(
                    || "the model has a question".to_owned(),
                    |asked| format!("permission: {} {}", asked.permission, asked.patterns.join(" ")),
                ));
            }
            Update::StreamLost => self.stream_lost = true,
            Update::StreamRestored => self.stream_lost = false,
            Update::Conversation(_) | Update::Status(_) => self.remark = None,
            _ => {}
        }
    }

    /// Prints what has been finished since, and redraws the rest.
    pub(crate) fn draw(&mut self, state: Option<&SessionConversationState>, elapsed: Duration) {
        let Some(state) = state else { return };
        self.frame += 1;
        let mut live = Vec::new();
        let mut scrolled = Vec::new();
        let mut close = self.close;
        for block in state.blocks().iter() {
            if self.printed.contains(&block.id) {
                continue;
            }
            let Some(item) = self.item(state, state.blocks(), block, 0) else { continue };
            // Only what nothing unfinished stands before may scroll away.
            let into = if item.finished && live.is_empty() {
                self.printed.insert(block.id.clone());
                self.close = item.close;
                &mut scrolled
            } else {
                &mut live
            };
            if !(close && item.close) {
                into.push(String::new());
            }
            close = item.close;
            into.extend(item.lines);
        }
        if self.style.live {
            let room = Style::rows().saturating_sub(4);
            live.drain(..live.len().saturating_sub(room));
            live.push(String::new());
            live.push(self.status_line(state, elapsed));
            self.live.redraw(&scrolled, &live);
        } else {
            print(&scrolled);
        }
    }

    /// Takes the changing lines away.
    pub(crate) fn clear(&mut self) {
        if self.style.live {
            self.live.redraw(&[], &[]);
        }
    }

    /// Prints what is left, and the figures.
    pub(crate) fn finish(
        &mut self,
        result: Option<&PromptExecutionResult>,
        changes: &[FileChange],
        elapsed: Duration,
        client: Option<&ClientStatistics>,
    ) {
        self.draw(result.map(|result| &result.conversation), elapsed);
        self.clear();
        let style = self.style;
        let Some(result) = result else { return };
        let state = &result.conversation;
        let mut lines = vec![String::new()];
        let (mark, ink, words) = ending::mark(&result.completion);
        let usage = &result.usage;
        let tokens = &usage.tokens;
        let n_steps = steps::count(result);
        let is_tool =
            |block: &&std::sync::Arc<ConversationBlock>| matches!(block.body, BlockBody::ToolUse { .. });
        let threads = || state.subagents().map(|subagent| &subagent.blocks).chain([state.blocks()]);
        let n_tools = threads().map(|thread| thread.iter().filter(is_tool).count()).sum();
        let mut facts = vec![style::plural(n_steps, "step"), style::plural(n_tools, "tool call")];
        facts.push(style::plural(state.subagents().count(), "subagent"));
        lines.push(style.paint(Ink::Dim, &"─".repeat(Style::columns().min(72))));
        let verdict = format!("{mark} {words} in {}", style::duration(elapsed));
        lines.push(format!("{}  {}", style.paint(ink, &verdict), facts.join(" · ")));
        lines.push(format!(
            "  {}{} in · {} out · {} thinking · {} from cache   {}${:.4}",
            style.paint(Ink::Dim, "tokens  "),
            style::count(tokens.input),
            style::count(tokens.output),
            style::count(tokens.reasoning),
            style::count(tokens.cache_read),
            style.paint(Ink::Dim, "cost "),
            usage.cost,
        ));
        if !changes.is_empty() {
            let mut words: Vec<String> = changes.iter().take(MAX_CHANGES).map(change).collect();
            let n_more = changes.len().saturating_sub(MAX_CHANGES);
            words.extend((n_more > 0).then(|| format!("{n_more} more")));
            lines.extend(self.fact("changed ", &words.join(" · ")));
        }
        if let Some(words) = refused::summary(&result.refused) {
            lines.extend(self.fact("refused ", &words));
        }
        if let Some(client) = client {
            lines.push(format!(
                "  {}{} · {} read · {} of events · {}",
                style.paint(Ink::Dim, "client  "),
                style::plural(usize::try_from(client.requests).unwrap_or(usize::MAX), "request"),
                style::bytes(client.bytes_received),
                style::bytes(client.feed_bytes),
                style::plural(usize::try_from(client.reconnects).unwrap_or(usize::MAX), "reconnect"),
            ));
        }
        print(&lines);
    }

    /// A line of the figures, or some, if there is much to say.
    fn fact(&self, name: &str, words: &str) -> Vec<String> {
        let lines = wrap(words, Style::columns().saturating_sub(10));
        let line = |(index, line): (usize, String)| {
            let name = if index == 0 { self.style.paint(Ink::Dim, name) } else { " ".repeat(8) };
            format!("  {name}{line}")
        };
        lines.into_iter().enumerate().map(line).collect()
    }

    fn status_line(&self, state: &SessionConversationState, elapsed: Duration) -> String {
        let style = self.style;
        let spinner = style.paint(Ink::Cyan, self.spinner());
        let mut doing = match &self.remark {
            Some(remark) => remark.clone(),
            None => doing(state).to_owned(),
        };
        if self.stream_lost {
            doing.push_str(", event stream lost, polling");
        }
        let tokens = state.total_usage().tokens.total();
        let words = format!("{} · {} tokens · {doing}", style::duration(elapsed), style::count(tokens));
        format!("{spinner} {}", style.paint(Ink::Dim, &shorten(&words, Style::columns() - 2)))
    }

    fn spinner(&self) -> &'static str {
        SPINNER[self.frame % SPINNER.len()]
    }

    /// A block of a thread with what belongs to it; nothing for what is shown elsewhere.
    fn item(
        &self,
        state: &SessionConversationState,
        thread: &Thread,
        block: &ConversationBlock,
        depth: usize,
    ) -> Option<Item> {
        let columns = Style::columns() - 2 * depth;
        let lines = match &block.body {
            BlockBody::UserMessage { content, .. } => {
                self.text(Ink::Cyan, "❯", Ink::Bold, &content.as_str(), columns)
            }
            BlockBody::AssistantText { content, .. } => {
                self.text(Ink::Green, "●", Ink::Plain, &content.as_str(), columns)
            }
            BlockBody::Thinking { content, .. } => {
                self.text(Ink::Dim, "✻", Ink::Dim, &content.as_str(), columns)
            }
            BlockBody::System { content, .. } => {
                self.text(Ink::Blue, "─", Ink::Blue, &content.as_str(), columns)
            }
            BlockBody::Error { content, .. } => {
                self.text(Ink::Red, "✗", Ink::Red, &content.as_str(), columns)
            }
            BlockBody::ToolUse { tool_use_id, name, title, input, tool_status, .. } => {
                let what = title.as_deref().map_or_else(|| argument(input), str::to_owned);
                let result = thread.get(&BlockId::new(format!("result-{tool_use_id}")));
                let (output, is_error, ms) = match result.map(|block| &block.body) {
                    Some(BlockBody::ToolResult { output, is_error, duration_ms, .. }) => {
                        (output.to_string(), *is_error, *duration_ms)
                    }
                    _ => (String::new(), false, None),
                };
                let mut lines = vec![self.run(*tool_status, Ink::Bold, name, &what, ms, columns)];
                lines.extend(self.output(&output, is_error, columns));
                lines
            }
            // Shown with its call.
            BlockBody::ToolResult { .. } => return None,
            BlockBody::Subagent(subagent) => self.subagent(state, subagent, columns, depth),
            other => vec![self.style.paint(Ink::Dim, &shorten(&format!("? {other:?}"), columns))],
        };
        let close = matches!(block.body, BlockBody::ToolUse { .. });
        Some(Item { lines, finished: block.status != BlockStatus::Pending, close })
    }

    fn subagent(
        &self,
        state: &SessionConversationState,
        subagent: &SubagentBlock,
        columns: usize,
        depth: usize,
    ) -> Vec<String> {
        let what = subagent.description.as_deref().unwrap_or_default();
        let name = format!("@{}", subagent.name);
        let status = subagent.subagent_status;
        let mut lines = vec![self.run(status, Ink::Magenta, &name, what, subagent.duration_ms, columns)];
        if let Some(below) = state.subagent(&subagent.tool_use_id).filter(|_| depth < MAX_DEPTH) {
            let bar = self.style.paint(Ink::Magenta, "│");
            for block in below.blocks.iter() {
                // What it was asked is in its parent's words already.
                if matches!(block.body, BlockBody::UserMessage { .. }) {
                    continue;
                }
                let nested = self.item(state, &below.blocks, block, depth + 1);
                lines.extend(
                    nested.into_iter().flat_map(|item| item.lines).map(|line| format!("{bar} {line}")),
                );
            }
        }
        lines
    }

    /// A paragraph behind a mark.
    fn text(&self, mark_ink: Ink, mark: &str, ink: Ink, text: &str, columns: usize) -> Vec<String> {
        let lines = wrap(text.trim(), columns.saturating_sub(2));
        let painted = lines.iter().enumerate().map(|(index, line)| {
            let mark = if index == 0 { self.style.paint(mark_ink, mark) } else { " ".to_owned() };
            format!("{mark} {}", self.style.paint(ink, line)).trim_end().to_owned()
        });
        painted.collect()
    }

    /// One line for something that runs: how it is doing, its name, what it does, how long it took.
    fn run(
        &self,
        status: RunStatus,
        ink: Ink,
        name: &str,
        what: &str,
        ms: Option<u64>,
        columns: usize,
    ) -> String {
        let mark = match status {
            RunStatus::Success => self.style.paint(Ink::Green, "✓"),
            RunStatus::Error => self.style.paint(Ink::Red, "✗"),
            _ if self.style.live => self.style.paint(Ink::Yellow, self.spinner()),
            _ => "…".to_owned(),
        };
        let time = ms.map(|ms| style::duration(Duration::from_millis(ms))).unwrap_or_default();
        let name = &style::harmless(name);
        let used = 2 + style::width(name) + 1 + style::width(&time) + 1;
        let what = shorten(what, columns.saturating_sub(used));
        let gap = columns.saturating_sub(used + style::width(&what));
        let (name, time) = (self.style.paint(ink, name), self.style.paint(Ink::Dim, &time));
        format!("{mark} {name} {what}{} {time}", " ".repeat(gap)).trim_end().to_owned()
    }

    /// The first lines of what a tool said.
    fn output(&self, output: &str, is_error: bool, columns: usize) -> Vec<String> {
        let ink = if is_error { Ink::Red } else { Ink::Dim };
        let all: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
        let shown = if all.len() == OUTPUT_LINES + 1 { all.len() } else { OUTPUT_LINES };
        let line = |text: &str| format!("  {}", self.style.paint(ink, &shorten_raw(text, columns - 4)));
        let mut lines: Vec<String> = all.iter().take(shown).map(|text| line(text)).collect();
        if all.len() > shown {
            lines.push(line(&format!("… {}", style::plural(all.len() - shown, "more line"))));
        }
        lines
    }
}

/// A file and how many lines of it are new or gone.
fn change(change: &FileChange) -> String {
    let kind = match change.kind {
        ChangeKind::Added => " new",
        ChangeKind::Deleted => " deleted",
        _ => "",
    };
    format!("{}{kind} +{} −{}", change.path, change.additions, change.deletions)
}

fn print(lines: &[String]) {
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    // A reader that has seen enough is no reason to stop the task.
    let _ = output::print(&text, Colours::of_stdout());
}

/// What happens now, in a word or two.
fn doing(state: &SessionConversationState) -> &'static str {
    let last = state.blocks().iter().rev().find(|block| block.status == BlockStatus::Pending);
    match last.map(|block| &block.body) {
        Some(BlockBody::Thinking { .. }) => "thinking",
        Some(BlockBody::AssistantText { .. }) => "writing",
        Some(BlockBody::ToolUse { .. }) => "running a tool",
        Some(BlockBody::Subagent(_)) => "a subagent works",
        _ => "waiting for the model",
    }
}

/// The argument of a call that says most about it.
fn argument(input: &Value) -> String {
    let telling = ["command", "filePath", "file_path", "pattern", "url", "query", "description", "path"];
    match telling.iter().find_map(|name| input.get(name)?.as_str()) {
        Some(text) => text.to_owned(),
        None if input.as_object().is_some_and(serde_json::Map::is_empty) => String::new(),
        None => input.to_string(),
    }
}

/// As [`shorten`], but keeps the line's indentation.
fn shorten_raw(line: &str, columns: usize) -> String {
    let indent = line.len() - line.trim_start().len();
    let indent = indent.min(columns / 2);
    format!("{}{}", " ".repeat(indent), shorten(line, columns - indent))
}

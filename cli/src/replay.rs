//! Folds recorded sessions and shows the conversation.
//!
//! ```sh
//! cargo run --example replay -- fixtures/subagent/events.sse
//! cargo run --example replay -- fixtures/subagent/messages/*.json --markdown
//! cargo run --example replay -- fixtures/plain/export.json --json
//! cargo run --example replay -- fixtures/subagent/events.sse --events
//! cargo run --example replay -- fixtures/claude/subagent/stream-1.jsonl --format claude-stream
//! cargo run --example replay -- fixtures/claude/subagent/transcript.jsonl fixtures/claude/subagent/subagents/*.jsonl --format claude-transcript
//! ```

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use opencode_conductor::{
    BlockBody, BlockStatus, ConversationEvent, ConvertOptions, OpenCodeFormat, OpenCodeOptions, RunStatus,
    SessionConversationState, SessionId, Thread, Transcript, TranscriptError,
    claude::SubagentFile,
    markdown::{self, MarkdownOptions},
    parse_claude, parse_claude_stream, parse_opencode_events,
};
use opencode_conductor_examples::output::{Colours, complain, filtered, print, print_json};

const USAGE: &str = "usage: replay FILE… [--format opencode-events|opencode-messages|opencode-export|auto|\
                     claude-stream|claude-transcript] [--session ID] [--json|--markdown|--events]";

enum Output {
    Terminal,
    Json,
    Markdown,
    /// One conversation event per line, as a web client would be sent them.
    Events,
}

/// What wrote the files.
enum Agent {
    OpenCode(OpenCodeOptions),
    /// Claude Code's standard output.
    ClaudeStream,
    /// Claude Code's transcript, then those of its subagents; or the directory that is named after the session.
    ClaudeTranscript,
}

struct Arguments {
    files: Vec<String>,
    agent: Agent,
    output: Output,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            complain(&format!("replay: {message}"));
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let Arguments { files, agent, output } = arguments(env::args().skip(1))?;
    let files = if matches!(agent, Agent::ClaudeTranscript) { session_files(files)? } else { files };
    let mut documents = Vec::new();
    for file in &files {
        documents.push(fs::read(file).map_err(|error| format!("{file}: {error}"))?);
    }
    let mut events = String::new();
    let on_event = |event: &ConversationEvent| {
        if matches!(output, Output::Events) {
            // Writing plain data to a string cannot fail.
            events.extend([serde_json::to_string(event).unwrap_or_default().as_str(), "\n"]);
        }
    };
    let transcript = load(&agent, &files, &documents, on_event)?;
    for malformed in &transcript.malformed {
        complain(&format!("replay: {}: {}", files[malformed.document], with_causes(malformed)));
    }
    let printed = match output {
        Output::Json => {
            print_json(&(serde_json::to_string(&transcript.state).map_err(|error| error.to_string())? + "\n"))
        }
        Output::Markdown => {
            print(&markdown::render(&transcript.state, &MarkdownOptions::default()), Colours::None)
        }
        Output::Events => print_json(&events),
        Output::Terminal => {
            let terminal = Terminal::new();
            let colours = if terminal.is_plain { Colours::None } else { Colours::Kept };
            print(&terminal.render(&transcript.state), colours)
        }
    };
    // A reader that has seen enough, such as `head`, is no failure.
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn load(
    agent: &Agent,
    files: &[String],
    documents: &[Vec<u8>],
    on_event: impl FnMut(&ConversationEvent),
) -> Result<Transcript, String> {
    let transcript = match agent {
        Agent::OpenCode(options) => {
            let mut texts = Vec::new();
            for (file, bytes) in files.iter().zip(documents) {
                texts.push(str::from_utf8(bytes).map_err(|error| format!("{file}: {error}"))?);
            }
            parse_opencode_events(&texts, options, on_event)
        }
        Agent::ClaudeStream => {
            parse_claude_stream(&documents.join(&b'\n'), ConvertOptions::default(), on_event)
        }
        Agent::ClaudeTranscript => {
            let metas: Vec<_> =
                files.iter().map(|file| fs::read(Path::new(file).with_extension("meta.json")).ok()).collect();
            let subagents = files.iter().zip(documents).zip(&metas).skip(1).map(|((file, bytes), meta)| {
                let id = Path::new(file).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
                let subagent = SubagentFile::new(id, bytes);
                meta.as_deref().map_or(subagent, |meta| subagent.with_meta(meta))
            });
            let subagents: Vec<_> = subagents.collect();
            parse_claude(&documents[0], &subagents, ConvertOptions::default(), on_event)
        }
    };
    transcript.map_err(|error| match &error {
        TranscriptError::Unrecognised { document, .. } | TranscriptError::Malformed { document, .. } => {
            format!("{}: {}", files[*document], with_causes(&error))
        }
        _ => with_causes(&error),
    })
}

/// The files of a Claude Code session, if its directory is given: the transcript beside it, and the subagents' inside.
fn session_files(files: Vec<String>) -> Result<Vec<String>, String> {
    let [directory] = files.as_slice() else { return Ok(files) };
    let directory = Path::new(directory);
    if !directory.is_dir() {
        return Ok(files);
    }
    let subagents = fs::read_dir(directory.join("subagents"));
    let mut found: Vec<_> =
        subagents.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    found.sort();
    let inside = directory.join("transcript.jsonl");
    let main = if inside.exists() { inside } else { directory.with_extension("jsonl") };
    let name = |path: PathBuf| path.into_os_string().into_string();
    let named: Result<Vec<String>, _> = std::iter::once(main).chain(found).map(name).collect();
    named.map_err(|path| format!("{}: not UTF-8", path.display()))
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments { files: Vec::new(), agent: Agent::ClaudeStream, output: Output::Terminal };
    let mut options = OpenCodeOptions::default();
    let mut claude = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
        match word.as_str() {
            "--format" => {
                claude = None;
                let format = match value()?.as_str() {
                    "auto" => OpenCodeFormat::Auto,
                    "opencode-events" => OpenCodeFormat::Events,
                    "opencode-messages" => OpenCodeFormat::Messages,
                    "opencode-export" => OpenCodeFormat::Export,
                    "claude-stream" => {
                        claude = Some(Agent::ClaudeStream);
                        continue;
                    }
                    "claude-transcript" => {
                        claude = Some(Agent::ClaudeTranscript);
                        continue;
                    }
                    other => return Err(format!("unknown format {other:?}; {USAGE}")),
                };
                options = options.with_format(format);
            }
            "--session" => options = options.with_session(SessionId::new(value()?)),
            "--json" => arguments.output = Output::Json,
            "--events" => arguments.output = Output::Events,
            "--markdown" => arguments.output = Output::Markdown,
            option if option.starts_with("--") => return Err(format!("unknown option {option}; {USAGE}")),
            _ => arguments.files.push(word),
        }
    }
    arguments.agent = claude.unwrap_or(Agent::OpenCode(options));
    if arguments.files.is_empty() {
        return Err(format!("no file given; {USAGE}"));
    }
    Ok(arguments)
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}

/// The coloured view; plain if `NO_COLOR` is set.
struct Terminal {
    is_plain: bool,
    text: String,
}

const DIM: &str = "2";
const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const BLUE: &str = "34";
const MAGENTA: &str = "35";
const CYAN: &str = "36";

/// How many lines of a tool's output are shown.
const MAX_LINES: usize = 12;

/// Deeper subagents are only named; a conversation folded from arbitrary events could even contain itself.
const MAX_DEPTH: usize = 16;

impl Terminal {
    fn new() -> Self {
        Self { is_plain: env::var_os("NO_COLOR").is_some(), text: String::new() }
    }

    fn render(mut self, state: &SessionConversationState) -> String {
        self.thread(state, state.blocks(), 0);
        let usage = state.total_usage();
        let model = state.metadata().model().map_or("", |model| model);
        let line = format!("{} tokens · cost {} · {model}", usage.tokens.total(), usage.cost);
        self.line(0, DIM, &line);
        self.text
    }

    fn thread(&mut self, state: &SessionConversationState, thread: &Thread, depth: usize) {
        for block in thread.iter() {
            let open = if block.status == BlockStatus::Pending { " …" } else { "" };
            match &block.body {
                BlockBody::UserMessage { content, parts } => {
                    self.line(depth, CYAN, &format!("❯ {}", content.as_str().trim()));
                    for part in parts {
                        let json = serde_json::to_string(part).unwrap_or_default();
                        self.line(depth + 1, DIM, &format!("+ {json}"));
                    }
                }
                BlockBody::AssistantText { content, .. } => {
                    self.line(depth, "", &format!("{}{open}", content.as_str().trim()));
                }
                BlockBody::Thinking { content, .. } => {
                    self.line(depth, DIM, &format!("· {}{open}", content.as_str().trim()));
                }
                BlockBody::ToolUse { name, title, input, tool_status, .. } => {
                    let what = title.as_deref().map_or_else(|| input.to_string(), str::to_owned);
                    let colour = status_colour(*tool_status);
                    self.line(depth, colour, &format!("⏺ {name} {}{open}", first_line(&what)));
                }
                BlockBody::ToolResult { output, is_error, .. } => {
                    let colour = if *is_error { RED } else { DIM };
                    self.line(depth + 1, colour, &shortened(&output.as_str()));
                }
                BlockBody::System { content, .. } => self.line(depth, BLUE, &format!("─ {content}")),
                BlockBody::Error { content } => self.line(depth, RED, &format!("✗ {content}")),
                BlockBody::Subagent(subagent) => {
                    let what = subagent.description.as_deref().unwrap_or_default();
                    let line = format!("⏵ {} {what}{open}", subagent.name);
                    self.line(depth, status_colour(subagent.subagent_status), &line);
                    if let Some(below) = state.subagent(&subagent.tool_use_id)
                        && depth < MAX_DEPTH
                    {
                        self.thread(state, &below.blocks, depth + 1);
                    }
                    if let Some(output) = &subagent.output {
                        self.line(depth + 1, BOLD, &format!("⏴ {}", shortened(&output.as_str())));
                    }
                }
                // A kind that a later version may add.
                other => self.line(depth, DIM, &format!("? {other:?}")),
            }
        }
    }

    fn line(&mut self, depth: usize, colour: &str, text: &str) {
        for line in text.lines() {
            self.text.push_str(&"  ".repeat(depth));
            let line = filtered(line, Colours::None);
            if self.is_plain || colour.is_empty() {
                self.text.push_str(&line);
            } else {
                self.text.extend(["\u{1b}[", colour, "m", &line, "\u{1b}[0m"]);
            }
            self.text.push('\n');
        }
    }
}

fn status_colour(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Success => GREEN,
        RunStatus::Error => RED,
        RunStatus::Running => YELLOW,
        _ => MAGENTA,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn shortened(text: &str) -> String {
    let total = text.lines().count();
    let mut shown: Vec<&str> = text.lines().take(MAX_LINES).collect();
    let more = format!("… {} more lines", total.saturating_sub(MAX_LINES));
    if total > MAX_LINES {
        shown.push(&more);
    }
    shown.join("\n")
}

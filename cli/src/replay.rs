//! `conductor replay`: folds recorded sessions and shows the conversation.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum, ValueHint};
use opencode_conductor::{
    BlockBody, BlockStatus, ConversationEvent, ConvertOptions, OpenCodeFormat, OpenCodeOptions, RunStatus,
    SessionConversationState, SessionId, Thread, Transcript, TranscriptError,
    claude::SubagentFile,
    error_chain,
    markdown::{self, MarkdownOptions},
    parse_claude, parse_claude_stream, parse_opencode_events,
};
use opencode_conductor_cli::{
    failure::Failure,
    output::{Colours, complain, filtered, print, print_json},
    style::{Ink, Style},
};

/// Folds recorded sessions and shows the conversation
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Recordings of one session; of a Claude Code transcript also the directory that is named after the session
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::AnyPath)]
    files: Vec<String>,
    /// What wrote the files
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    format: Format,
    /// The session to show [default: the first]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Print the folded state as JSON
    #[arg(long, overrides_with_all = ["markdown", "events"])]
    json: bool,
    /// Print the conversation as Markdown
    #[arg(long, overrides_with_all = ["json", "events"])]
    markdown: bool,
    /// Print one conversation event per line, as a web client would be sent them
    #[arg(long, overrides_with_all = ["json", "markdown"])]
    events: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// OpenCode's, whichever it looks like
    Auto,
    /// A recorded event stream of OpenCode
    OpencodeEvents,
    /// Message lists, as OpenCode's server gives them
    OpencodeMessages,
    /// What `opencode export` prints
    OpencodeExport,
    /// What Claude Code prints
    ClaudeStream,
    /// Claude Code's transcript, then those of its subagents
    ClaudeTranscript,
}

/// Shows the conversation.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let files = session_files(arguments)?;
    let mut documents = Vec::new();
    for file in &files {
        documents.push(fs::read(file).map_err(|error| Failure::because(file, &error))?);
    }
    let mut events = String::new();
    let on_event = |event: &ConversationEvent| {
        if arguments.events {
            // Writing plain data to a string cannot fail.
            events.extend([serde_json::to_string(event).unwrap_or_default().as_str(), "\n"]);
        }
    };
    let transcript = load(arguments, &files, &documents, on_event)?;
    for malformed in &transcript.malformed {
        complain(&format!("conductor: {}: {}", files[malformed.document], error_chain(malformed)));
    }
    let state = &transcript.state;
    let printed = if arguments.json {
        let json = serde_json::to_string(state);
        print_json(&(json.map_err(|error| Failure::because("cannot print the state", &error))? + "\n"))
    } else if arguments.markdown {
        print(&markdown::render(state, &MarkdownOptions::default()), Colours::None)
    } else if arguments.events {
        print_json(&events)
    } else {
        print(&Terminal::new().render(state), Colours::of_stdout())
    };
    // A reader that has seen enough, such as `head`, is no failure.
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::because("cannot print the conversation", &error))
        }
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}

fn load(
    arguments: &Arguments,
    files: &[String],
    documents: &[Vec<u8>],
    on_event: impl FnMut(&ConversationEvent),
) -> Result<Transcript, Failure> {
    let options = OpenCodeOptions::default();
    let options = match arguments.format {
        Format::Auto | Format::ClaudeStream | Format::ClaudeTranscript => options,
        Format::OpencodeEvents => options.format(OpenCodeFormat::Events),
        Format::OpencodeMessages => options.format(OpenCodeFormat::Messages),
        Format::OpencodeExport => options.format(OpenCodeFormat::Export),
    };
    let transcript = match arguments.format {
        Format::Auto | Format::OpencodeEvents | Format::OpencodeMessages | Format::OpencodeExport => {
            let mut texts = Vec::new();
            for (file, bytes) in files.iter().zip(documents) {
                texts.push(str::from_utf8(bytes).map_err(|error| Failure::because(file, &error))?);
            }
            let options = match &arguments.session {
                Some(session) => options.session(SessionId::new(session.as_str())),
                None => options,
            };
            parse_opencode_events(&texts, &options, on_event)
        }
        Format::ClaudeStream => {
            parse_claude_stream(&documents.join(&b'\n'), ConvertOptions::default(), on_event)
        }
        Format::ClaudeTranscript => {
            let metas: Vec<_> =
                files.iter().map(|file| fs::read(Path::new(file).with_extension("meta.json")).ok()).collect();
            let subagents = files.iter().zip(documents).zip(&metas).skip(1).map(|((file, bytes), meta)| {
                let id = Path::new(file).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
                let subagent = SubagentFile::new(id, bytes);
                meta.as_deref().map_or(subagent, |meta| subagent.meta(meta))
            });
            let subagents: Vec<_> = subagents.collect();
            parse_claude(&documents[0], &subagents, ConvertOptions::default(), on_event)
        }
    };
    transcript.map_err(|error| match &error {
        TranscriptError::Unrecognised { document, .. } | TranscriptError::Malformed { document, .. } => {
            Failure::because(&files[*document], &error)
        }
        _ => Failure::usage(error_chain(&error)),
    })
}

/// The files that were named; for the directory of a Claude Code session the transcript beside it, and the subagents' inside.
fn session_files(arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let directory = match arguments.files.as_slice() {
        [directory] if arguments.format == Format::ClaudeTranscript && Path::new(directory).is_dir() => {
            Path::new(directory)
        }
        files => return Ok(files.to_vec()),
    };
    let subagents = fs::read_dir(directory.join("subagents"));
    let mut found: Vec<_> =
        subagents.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    found.sort();
    let inside = directory.join("transcript.jsonl");
    let main = if inside.exists() { inside } else { directory.with_extension("jsonl") };
    let name = |path: PathBuf| path.into_os_string().into_string();
    let named: Result<Vec<String>, _> = std::iter::once(main).chain(found).map(name).collect();
    named.map_err(|path| Failure::usage(format!("{}: not UTF-8", path.display())))
}

/// How many lines of a tool's output are shown.
const MAX_LINES: usize = 12;

/// Deeper subagents are only named; a conversation folded from arbitrary events could even contain itself.
const MAX_DEPTH: usize = 16;

/// The view for a person, in colours where standard output has them.
struct Terminal {
    style: Style,
    text: String,
}

impl Terminal {
    fn new() -> Self {
        Self { style: Style::of_stdout(), text: String::new() }
    }

    fn render(mut self, state: &SessionConversationState) -> String {
        self.thread(state, state.blocks(), 0);
        let usage = state.total_usage();
        let model = state.metadata().model().map_or("", |model| model);
        let line = format!("{} tokens · cost {} · {model}", usage.tokens.total(), usage.cost);
        self.line(0, Ink::Dim, &line);
        self.text
    }

    fn thread(&mut self, state: &SessionConversationState, thread: &Thread, depth: usize) {
        for block in thread.iter() {
            let open = if block.status == BlockStatus::Pending { " …" } else { "" };
            match &block.body {
                BlockBody::UserMessage { content, parts } => {
                    self.line(depth, Ink::Cyan, &format!("❯ {}", content.as_str().trim()));
                    for part in parts {
                        let json = serde_json::to_string(part).unwrap_or_default();
                        self.line(depth + 1, Ink::Dim, &format!("+ {json}"));
                    }
                }
                BlockBody::AssistantText { content, .. } => {
                    self.line(depth, Ink::Plain, &format!("{}{open}", content.as_str().trim()));
                }
                BlockBody::Thinking { content, .. } => {
                    self.line(depth, Ink::Dim, &format!("· {}{open}", content.as_str().trim()));
                }
                BlockBody::ToolUse { name, title, input, tool_status, .. } => {
                    let what = title.as_deref().map_or_else(|| input.to_string(), str::to_owned);
                    let ink = status_ink(*tool_status);
                    self.line(depth, ink, &format!("⏺ {name} {}{open}", first_line(&what)));
                }
                BlockBody::ToolResult { output, is_error, .. } => {
                    let ink = if *is_error { Ink::Red } else { Ink::Dim };
                    self.line(depth + 1, ink, &shortened(&output.as_str()));
                }
                BlockBody::System { content, .. } => self.line(depth, Ink::Blue, &format!("─ {content}")),
                BlockBody::Error { content, .. } => self.line(depth, Ink::Red, &format!("✗ {content}")),
                BlockBody::Subagent(subagent) => {
                    let what = subagent.description.as_deref().unwrap_or_default();
                    let line = format!("⏵ {} {what}{open}", subagent.name);
                    self.line(depth, status_ink(subagent.subagent_status), &line);
                    if let Some(below) = state.subagent(&subagent.tool_use_id)
                        && depth < MAX_DEPTH
                    {
                        self.thread(state, &below.blocks, depth + 1);
                    }
                    if let Some(output) = &subagent.output {
                        self.line(depth + 1, Ink::Bold, &format!("⏴ {}", shortened(&output.as_str())));
                    }
                }
                // A kind that a later version may add.
                other => self.line(depth, Ink::Dim, &format!("? {other:?}")),
            }
        }
    }

    fn line(&mut self, depth: usize, ink: Ink, text: &str) {
        for line in text.lines() {
            let line = self.style.paint(ink, &filtered(line, Colours::None));
            self.text.extend(["  ".repeat(depth).as_str(), &line, "\n"]);
        }
    }
}

fn status_ink(status: RunStatus) -> Ink {
    match status {
        RunStatus::Success => Ink::Green,
        RunStatus::Error => Ink::Red,
        RunStatus::Running => Ink::Yellow,
        _ => Ink::Magenta,
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

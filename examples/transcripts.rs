//! A recorded session as Markdown, with nothing running: the parsers are pure functions, and need no feature.
//!
//! `cargo run --example transcripts`, or with a file that `opencode export` wrote: `cargo run --example transcripts -- session.json`.

#![expect(clippy::print_stdout, reason = "it is there to be read")]

use std::{env, error::Error, fs};

use opencode_conductor::{
    Architecture,
    markdown::{self, MarkdownOptions},
    parse_transcript,
};

// Its prompt holds the script that the model played for the recording.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tools/export.json");

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| RECORDED.to_owned());
    let text = fs::read_to_string(path)?;

    // Message lists, exports and recorded event streams are told apart by what they look like. For Claude Code's files there is
    // `Architecture::ClaudeCode`.
    let transcript = parse_transcript(Architecture::OpenCode, &text)?;
    // What cannot be read is reported beside what can.
    for malformed in &transcript.malformed {
        println!("(left out: {malformed})");
    }

    // The same state, field for field, as a manager has that watched the session live.
    let state = &transcript.state;
    println!("{}", markdown::render(state, &MarkdownOptions::default().max_lines(5)));
    let usage = state.total_usage();
    println!("---\n{} blocks, {} tokens, ${:.4}", state.blocks().len(), usage.tokens.total(), usage.cost);
    Ok(())
}

//! Records the sessions in `fixtures/claude/` from a real Claude Code, offline, with a scripted model.
//!
//! `cargo run --example record_claude -- [--claude PATH] [--only NAME] [--out DIR] [--old VERSION]`
//!
//! `--claude` is by default `CLAUDE_BIN`; `.ci/install-claude` installs the version that everything was measured on. `--only` picks the
//! scenarios whose name begins so. `--old` records one session with two subagents from an old release, which takes fewer flags and writes
//! other files.

#[path = "../../tests/support/anthropic.rs"]
mod anthropic;
mod host;
mod old;
mod scenarios;
mod stage;

use std::path::PathBuf;

use stage::Stage;

#[expect(clippy::print_stdout, reason = "a command-line tool tells what it does")]
#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let (mut claude, mut only) = (std::env::var_os("CLAUDE_BIN").map(PathBuf::from), String::new());
    let (mut out, mut old) = (PathBuf::from("fixtures/claude"), None);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--claude" => claude = Some(PathBuf::from(value)),
            "--only" => only = value,
            "--out" => out = PathBuf::from(value),
            "--old" => old = Some(value),
            _ => panic!("unknown option {arg}"),
        }
    }
    let claude = claude.unwrap_or_else(|| panic!("name an executable with --claude or CLAUDE_BIN"));
    if let Some(name) = old {
        let lines = old::record(&claude, &out.with_file_name("claude-old").join(&name)).await;
        println!("{name}: {lines} lines");
        return;
    }
    for name in scenarios::ALL.iter().filter(|name| name.starts_with(&only)) {
        let mut stage = Stage::set(&claude).await;
        scenarios::play(name, &mut stage).await;
        let lines = stage.save(&out.join(name)).await;
        println!("{name}: {lines} lines");
    }
}

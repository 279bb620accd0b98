//! Records the sessions in `fixtures/claude/` from a real Claude Code, offline, with a scripted model.
//!
//! `cargo run -p opencode-conductor-tools --bin record_claude -- --help` tells how; `.ci/install-claude` installs the version that everything
//! was measured on.

#[path = "../../../../tests/support/anthropic.rs"]
mod anthropic;
mod host;
mod old;
mod scenarios;
mod stage;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
};
use stage::Stage;

/// Records the sessions in `fixtures/claude/` from a real Claude Code
#[derive(Debug, Parser)]
#[command(name = "record_claude")]
struct Arguments {
    /// The executable [default: `CLAUDE_BIN`]
    #[arg(long, value_name = "PATH")]
    claude: Option<PathBuf>,
    /// Plays only the scenarios whose name begins so
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    only: String,
    /// Where the recordings go
    #[arg(long, value_name = "DIR", default_value = "fixtures/claude")]
    out: PathBuf,
    /// Records one session with two subagents from an old release, which takes fewer flags and writes other files
    #[arg(long, value_name = "VERSION")]
    old: Option<String>,
}

#[expect(clippy::print_stdout, reason = "a command-line tool tells what it does")]
#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { claude, only, out, old } = match command_line::parse("record_claude") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let Some(claude) = claude.or_else(|| std::env::var_os("CLAUDE_BIN").map(PathBuf::from)) else {
        return failure::exit(
            "record_claude",
            Err(Failure::usage("name an executable with --claude or CLAUDE_BIN")),
        );
    };
    if let Some(name) = old {
        let lines = old::record(&claude, &out.with_file_name("claude-old").join(&name)).await;
        println!("{name}: {lines} lines");
        return ExitCode::SUCCESS;
    }
    for name in scenarios::ALL.iter().filter(|name| name.starts_with(&only)) {
        let mut stage = Stage::set(&claude).await;
        scenarios::play(name, &mut stage).await;
        let lines = stage.save(&out.join(name)).await;
        println!("{name}: {lines} lines");
    }
    ExitCode::SUCCESS
}

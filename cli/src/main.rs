//! `conductor`: runs coding tasks on OpenCode or Claude Code, and shows what came of them.
//!
//! ```sh
//! conductor run                                       # a demonstration on a fake server
//! conductor run --managed "Explain src/lib.rs"        # on a real `opencode`, started for this run
//! conductor fleet --managed --directory . "Find one bug and fix it" "Write one missing test"
//! conductor serve                                     # tasks on a web page
//! conductor replay fixtures/subagent/events.sse       # a recorded session
//! conductor completions bash                          # what completes all this in a shell
//! ```
//!
//! Exit status: 0 if all went well, 1 if a task failed, 2 if it could not be tried.

mod fleet;
mod prompt_flags;
mod replay;
mod run;
mod serve;

use std::{
    io::{Write, stdout},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
    logging,
};

/// Runs coding tasks on OpenCode or Claude Code, and shows what came of them.
#[derive(Debug, Parser)]
#[command(name = "conductor", bin_name = "conductor", version, propagate_version = true)]
#[command(
    args_override_self = true,
    after_help = "Each command has a --help of its own. RUST_LOG=debug writes logs to standard error."
)]
struct Conductor {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Fleet(fleet::Arguments),
    Serve(serve::Arguments),
    Replay(replay::Arguments),
    /// Prints what completes commands and flags in a shell, such as `conductor completions bash`
    Completions {
        shell: Shell,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    logging::init();
    let Conductor { command } = match command_line::parse("conductor") {
        Ok(typed) => typed,
        Err(status) => return status,
    };
    let ended = match command {
        Command::Run(arguments) => run::run(&arguments).await,
        Command::Fleet(arguments) => fleet::run(&arguments).await,
        Command::Serve(arguments) => serve::run(&arguments).await,
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Completions { shell } => completions(shell),
    };
    failure::exit("conductor", ended)
}

fn completions(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Conductor::command(), "conductor", &mut script);
    let printed = stdout().write_all(&script);
    printed.map_err(|error| Failure::because("cannot print the completions", &error))?;
    Ok(ExitCode::SUCCESS)
}

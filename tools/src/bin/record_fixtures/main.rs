//! Records the sessions in `fixtures/` from real servers, offline, with a scripted model.
//!
//! `cargo run -p opencode-conductor-tools --bin record_fixtures -- --help` tells how.

#[path = "../../../../tests/support/model.rs"]
mod model;
mod play;
#[path = "../../../../tests/support/real.rs"]
mod real;
mod scenarios;
mod stage;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use opencode_conductor_cli::command_line;
use scenarios::Scenario;
use stage::Stage;

/// Records the sessions in `fixtures/` from real servers
#[derive(Debug, Parser)]
#[command(name = "record_fixtures")]
struct Arguments {
    /// Plays every scenario [default: `OPENCODE_BIN`, else `opencode` on the PATH]
    #[arg(long, value_name = "PATH")]
    opencode: Option<PathBuf>,
    /// An older executable, which plays the basic ones into directories that begin with its version
    #[arg(long, value_name = "PATH")]
    old: Vec<PathBuf>,
    /// Plays only the scenarios whose name is this, or begins so
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    only: String,
    /// Where the recordings go
    #[arg(long, value_name = "DIR", default_value = "fixtures")]
    out: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { opencode, old, only, out } = match command_line::parse("record_fixtures") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let chosen = |scenario: &&Scenario| scenario.name.starts_with(&only);
    if let Some(executable) = opencode.or_else(real::RealServer::find) {
        for scenario in scenarios::ALL.iter().filter(chosen) {
            record(scenario, &executable, &out.join(scenario.name)).await;
        }
    }
    for executable in old {
        for scenario in scenarios::ALL.iter().filter(|scenario| scenario.basic).filter(chosen) {
            let version = Stage::version_of(&executable).await;
            record(scenario, &executable, &out.join(format!("v{version}-{}", scenario.name))).await;
        }
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "a command-line tool tells what it does")]
async fn record(scenario: &Scenario, executable: &Path, directory: &Path) {
    println!("{}", directory.display());
    let mut stage = Stage::set(scenario, executable).await;
    play::play(scenario.name, &mut stage).await;
    stage.save(scenario, directory).await;
}

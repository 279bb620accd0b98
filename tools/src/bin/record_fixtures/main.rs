//! Records the sessions in `fixtures/` from real servers, offline, with a scripted model.
//!
//! `cargo run --example record_fixtures -- [--opencode PATH] [--old PATH]... [--only NAME] [--out DIR]`
//!
//! `--opencode` (default: `OPENCODE_BIN`, else `opencode` on the `PATH`) plays every scenario; each `--old` names an
//! older executable, which plays the basic ones into directories that begin with its version. `--only` picks the
//! scenarios whose name it is or begins.

#[path = "../../tests/support/model.rs"]
mod model;
mod play;
#[path = "../../tests/support/real.rs"]
mod real;
mod scenarios;
mod stage;

use std::path::{Path, PathBuf};

use scenarios::Scenario;
use stage::Stage;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let (mut opencode, mut old, mut only, mut out) = (None, Vec::new(), String::new(), "fixtures".into());
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--opencode" => opencode = Some(PathBuf::from(value)),
            "--old" => old.push(PathBuf::from(value)),
            "--only" => only = value,
            "--out" => out = PathBuf::from(value),
            _ => panic!("unknown option {arg}"),
        }
    }
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
}

#[expect(clippy::print_stdout, reason = "a command-line tool tells what it does")]
async fn record(scenario: &Scenario, executable: &Path, directory: &Path) {
    println!("{}", directory.display());
    let mut stage = Stage::set(scenario, executable).await;
    play::play(scenario.name, &mut stage).await;
    stage.save(scenario, directory).await;
}

//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueHint};
use opencode_conductor_cli::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    values,
};

use crate::prompt_flags::PromptFlags;

/// More would be a mistake.
const MAX_TASKS: usize = 100;

const AFTER_HELP: &str = "\
Each prompt starts a task; more can be started on the page. Ctrl-C aborts everything that runs and ends the program.

Exit status: 0 ended by Ctrl-C, 1 ended by a second one, 2 could not start";

/// Runs tasks and shows them live on a web page, where permissions are granted and questions answered
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// What to do, a task each [default on the fake server: demonstrations]
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Where the page is, on this machine only; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4747", value_parser = own_address)]
    pub(crate) listen: SocketAddr,
    /// Where the tasks work, all of them
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    #[arg(value_parser = values::existing_directory())]
    pub(crate) directory: PathBuf,
    /// How many demonstrations to begin with, on the fake server [default: 4]
    #[arg(long, value_name = "N", value_parser = values::count(MAX_TASKS), allow_negative_numbers = true)]
    tasks: Option<usize>,
    #[command(flatten)]
    pub(crate) prompt_flags: PromptFlags,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

impl Arguments {
    /// What to do in each of the first tasks.
    pub(crate) fn prompts(&self) -> Result<Vec<String>, Failure> {
        if self.prompts.iter().any(|prompt| prompt.trim().is_empty()) {
            return Err(Failure::usage("a prompt is empty"));
        }
        let shows_demonstrations = self.server.choice()? == Choice::Fake && self.prompts.is_empty();
        if self.tasks.is_some() && !shows_demonstrations {
            return Err(Failure::usage(
                "--tasks counts demonstrations on the fake server; give one prompt per task",
            ));
        }
        if !shows_demonstrations {
            return Ok(self.prompts.clone());
        }
        let demonstrations = demo::WATCHED.iter().chain(&demo::PROMPTS[1..]).cycle();
        Ok(demonstrations.take(self.tasks.unwrap_or(4)).map(|prompt| (*prompt).to_owned()).collect())
    }
}

/// An address of this machine only: the page is not encrypted, and whoever has its token may decide what tools do.
fn own_address(value: &str) -> Result<SocketAddr, &'static str> {
    let address: SocketAddr =
        value.parse().map_err(|_error| "give an address and a port, such as 127.0.0.1:4747")?;
    if !address.ip().is_loopback() {
        return Err("the page is not encrypted, so it listens on 127.0.0.1 or [::1] only; \
                    from elsewhere use a tunnel such as `ssh -L`");
    }
    Ok(address)
}

//! The command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use opencode_conductor_cli::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    values,
};

use crate::prompt_flags::PromptFlags;

/// Runs one task and shows it live
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 the task succeeded, 1 it failed, 2 it could not be tried")]
pub(crate) struct Arguments {
    /// What to do [default on the fake server: a demonstration]
    prompt: Option<String>,
    /// Where the task works
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    #[arg(value_parser = values::existing_directory())]
    pub(crate) directory: PathBuf,
    /// The task's id
    #[arg(long, value_name = "ID", default_value = "1")]
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) prompt_flags: PromptFlags,
    /// What happens when a tool needs permission
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Permission::Reject)]
    pub(crate) permission: Permission,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permission {
    Allow,
    Reject,
    Ask,
}

impl Arguments {
    /// Why nothing could be tried; printed, if JSON is to be printed.
    pub(crate) fn untried(&self, failure: Failure) -> Failure {
        if self.json { failure.printed_as_json() } else { failure }
    }

    /// What to do.
    pub(crate) fn prompt(&self) -> Result<&str, Failure> {
        match &self.prompt {
            Some(prompt) if prompt.trim().is_empty() => Err(Failure::usage("the prompt is empty")),
            Some(prompt) => Ok(prompt),
            None if self.server.choice()? == Choice::Fake => Ok(demo::PROMPT),
            None => Err(Failure::usage("say what to do: conductor run [OPTIONS] \"PROMPT\"")),
        }
    }
}

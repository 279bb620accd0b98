//! The command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use opencode_conductor::{PermissionPolicy, worktree::IgnoredFiles};
use opencode_conductor_cli::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    values,
};

use crate::prompt_flags::PromptFlags;

/// More would be a mistake.
const MAX_TASKS: usize = 1000;

const AFTER_HELP: &str = "\
Worktrees in which a task has left work (files, ignored files, commits) are kept and named in the summary.
Ctrl-C aborts everything that runs, starts nothing more, and still prints the summary; a second one does not wait for the aborts.

Exit status: 0 all tasks succeeded, 1 not all did, 2 they could not be tried";

/// Runs many tasks at a time, each in a git worktree of its own
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// What to do, used in turn [default on the fake server: demonstrations]
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
    /// How many tasks [default: one per prompt, else 6]
    #[arg(long, value_name = "N", value_parser = values::count(MAX_TASKS), allow_negative_numbers = true)]
    tasks: Option<usize>,
    /// How many at a time
    #[arg(long, value_name = "N", value_parser = values::count(MAX_TASKS), allow_negative_numbers = true)]
    #[arg(default_value = "3")]
    pub(crate) concurrency: usize,
    /// The git repository to make worktrees of [default: a small one, made for the occasion]
    #[arg(long, value_name = "DIR", value_parser = values::existing_directory(), value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) prompt_flags: PromptFlags,
    /// What happens when a tool needs permission
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Permission::Reject)]
    permission: Permission,
    /// Remove worktrees in which only ignored files are new [default: they are kept]
    #[arg(long)]
    discard_ignored: bool,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

/// There are too many tasks for a person to be asked.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Permission {
    Allow,
    Reject,
}

impl Arguments {
    /// Why nothing could be tried; printed, if JSON is to be printed.
    pub(crate) fn untried(&self, failure: Failure) -> Failure {
        if self.json { failure.printed_as_json() } else { failure }
    }

    /// What to do in each task.
    pub(crate) fn prompts(&self) -> Result<Vec<String>, Failure> {
        if self.prompts.iter().any(|prompt| prompt.trim().is_empty()) {
            return Err(Failure::usage("a prompt is empty"));
        }
        let is_fake = self.server.choice()? == Choice::Fake;
        let prompts = if !self.prompts.is_empty() {
            self.prompts.clone()
        } else if is_fake {
            demo::PROMPTS.map(str::to_owned).to_vec()
        } else {
            return Err(Failure::usage("say what to do: conductor fleet [OPTIONS] \"PROMPT\"..."));
        };
        let n_tasks = self.tasks.unwrap_or(prompts.len());
        Ok(prompts.into_iter().cycle().take(n_tasks).collect())
    }

    pub(crate) fn permissions(&self) -> PermissionPolicy {
        match self.permission {
            Permission::Allow => PermissionPolicy::AllowOnce,
            Permission::Reject => PermissionPolicy::Reject,
        }
    }

    pub(crate) fn ignored_files(&self) -> IgnoredFiles {
        if self.discard_ignored { IgnoredFiles::Discard } else { IgnoredFiles::Keep }
    }
}

//! The command line.

use std::{path::PathBuf, time::Duration};

use lexopt::{Arg, Parser};
use opencode_conductor::{wire::ModelRef, worktree::IgnoredFiles};
use opencode_conductor_examples::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    flags::{self, Word, existing_directory, text},
};

pub(crate) const HELP: &str = "\
Runs many tasks at a time, each in a git worktree of its own.

usage: fleet [FLAGS] [\"PROMPT\"...]

  --tasks N            how many tasks (default: one per prompt, else 6); prompts are used in turn
  --concurrency N      how many at a time (default: 3)
  --directory DIR      the git repository to make worktrees of (default: a small one, made for the occasion)
  --model P/M          the model, as provider/model (default: the server's)
  --agent NAME         the agent (default: the server's)
  --timeout SECONDS    how long a model may be silent (default: 45)
  --permission WHAT    what happens when a tool needs permission: allow or reject (default: reject)
  --discard-ignored    remove worktrees in which only ignored files are new (default: they are kept)
  --json               print one JSON object at the end, and nothing else

{server}

exit status: 0 all tasks succeeded, 1 not all did, 2 they could not be tried
";

/// More would be a mistake.
const MAX_TASKS: usize = 1000;

pub(crate) struct Arguments {
    pub(crate) server: ServerFlags,
    pub(crate) tasks: usize,
    pub(crate) concurrency: usize,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) model: Option<ModelRef>,
    pub(crate) agent: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) allow: bool,
    pub(crate) ignored: IgnoredFiles,
    pub(crate) json: bool,
    pub(crate) prompts: Vec<String>,
}

impl Arguments {
    /// What was typed; nothing if help was asked for.
    pub(crate) fn parse() -> Result<Option<Self>, Failure> {
        let mut server = ServerFlags::default();
        let (mut tasks, mut concurrency, mut directory) = (None, 3, None);
        let (mut model, mut agent, mut timeout, mut prompts) = (None, None, None, Vec::new());
        let (mut allow, mut json, mut ignored) = (false, false, IgnoredFiles::Keep);
        let mut parser = Parser::from_env();
        while let Some(word) = flags::next(&mut parser)? {
            let flag = match word {
                Word::Flag(name) => name,
                Word::Value(prompt) => {
                    prompts.push(prompt);
                    continue;
                }
            };
            match flag.as_str() {
                "help" => return Ok(None),
                "json" => json = true,
                "discard-ignored" => ignored = IgnoredFiles::Discard,
                "tasks" => tasks = Some(flags::count("--tasks", &text(parser.value()?), MAX_TASKS)?),
                "concurrency" => {
                    concurrency = flags::count("--concurrency", &text(parser.value()?), MAX_TASKS)?;
                }
                "directory" => directory = Some(existing_directory(&PathBuf::from(parser.value()?))?),
                "model" => model = Some(flags::model(&text(parser.value()?))?),
                "agent" => agent = Some(text(parser.value()?)),
                "timeout" => timeout = Some(flags::seconds("--timeout", &text(parser.value()?))?),
                "permission" => {
                    allow = match text(parser.value()?).as_str() {
                        "allow" => true,
                        "reject" => false,
                        other => {
                            let line = format!("--permission {other}: choose allow or reject");
                            return Err(Failure::usage(line));
                        }
                    }
                }
                other => {
                    if !server.take(other, &mut parser)? {
                        return Err(Arg::Long(other).unexpected().into());
                    }
                }
            }
        }
        if prompts.iter().any(|prompt| prompt.trim().is_empty()) {
            return Err(Failure::usage("a prompt is empty"));
        }
        if prompts.is_empty() && server.choice != Choice::Fake {
            return Err(Failure::usage("say what to do: fleet [FLAGS] \"PROMPT\"..."));
        }
        let tasks = tasks.unwrap_or(if prompts.is_empty() { 6 } else { prompts.len() });
        if prompts.is_empty() {
            prompts = demo::PROMPTS.map(str::to_owned).to_vec();
        }
        Ok(Some(Self {
            server,
            tasks,
            concurrency,
            directory,
            model,
            agent,
            timeout,
            allow,
            ignored,
            json,
            prompts,
        }))
    }
}

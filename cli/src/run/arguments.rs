//! The command line.

use std::{path::PathBuf, time::Duration};

use lexopt::{Arg, Parser};
use opencode_conductor::wire::ModelRef;
use opencode_conductor_examples::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    flags::{self, Word, existing_directory, text},
};

pub(crate) const HELP: &str = "\
Runs one task and shows it live.

usage: run_task [FLAGS] \"PROMPT\"

  --directory DIR      where the task works (default: here)
  --task ID            the task's id (default: run_task)
  --model P/M          the model, as provider/model (default: the server's)
  --agent NAME         the agent (default: the server's)
  --timeout SECONDS    how long the model may be silent (default: 45)
  --permission WHAT    what happens when a tool needs permission: allow, reject or ask (default: reject)
  --json               print one JSON object at the end, and nothing else

{server}

exit status: 0 the task succeeded, 1 it failed, 2 it could not be tried
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    Allow,
    Reject,
    Ask,
}

pub(crate) struct Arguments {
    pub(crate) server: ServerFlags,
    pub(crate) directory: PathBuf,
    pub(crate) task: String,
    pub(crate) model: Option<ModelRef>,
    pub(crate) agent: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) permission: Permission,
    pub(crate) json: bool,
    pub(crate) prompt: String,
}

impl Arguments {
    /// What was typed; nothing if help was asked for.
    pub(crate) fn parse() -> Result<Option<Self>, Failure> {
        let mut server = ServerFlags::default();
        let mut directory = PathBuf::from(".");
        let mut task = "run_task".to_owned();
        let (mut model, mut agent, mut timeout, mut prompt) = (None, None, None, None);
        let (mut permission, mut json) = (Permission::Reject, false);
        let mut parser = Parser::from_env();
        while let Some(word) = flags::next(&mut parser)? {
            let flag = match word {
                Word::Flag(name) => name,
                Word::Value(value) if prompt.is_none() => {
                    prompt = Some(value);
                    continue;
                }
                Word::Value(_) => return Err(Failure::usage("only one prompt; put it in quotes")),
            };
            match flag.as_str() {
                "help" => return Ok(None),
                "json" => json = true,
                "directory" => directory = parser.value()?.into(),
                "task" => task = text(parser.value()?),
                "model" => model = Some(flags::model(&text(parser.value()?))?),
                "agent" => agent = Some(text(parser.value()?)),
                "timeout" => timeout = Some(flags::seconds("--timeout", &text(parser.value()?))?),
                "permission" => permission = parse_permission(&text(parser.value()?))?,
                other => {
                    if !server.take(other, &mut parser)? {
                        return Err(Arg::Long(other).unexpected().into());
                    }
                }
            }
        }
        let prompt = match prompt {
            Some(prompt) if prompt.trim().is_empty() => return Err(Failure::usage("the prompt is empty")),
            Some(prompt) => prompt,
            None if server.choice == Choice::Fake => demo::PROMPT.to_owned(),
            None => return Err(Failure::usage("say what to do: run_task [FLAGS] \"PROMPT\"")),
        };
        let directory = existing_directory(&directory)?;
        Ok(Some(Self { server, directory, task, model, agent, timeout, permission, json, prompt }))
    }
}

fn parse_permission(value: &str) -> Result<Permission, Failure> {
    match value {
        "allow" => Ok(Permission::Allow),
        "reject" => Ok(Permission::Reject),
        "ask" => Ok(Permission::Ask),
        _ => Err(Failure::usage(format!("--permission {value}: choose allow, reject or ask"))),
    }
}

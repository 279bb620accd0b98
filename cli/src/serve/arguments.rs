//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use lexopt::{Arg, Parser};
use opencode_conductor::wire::ModelRef;
use opencode_conductor_examples::{
    backend::{Choice, ServerFlags},
    demo,
    failure::Failure,
    flags::{self, Word, existing_directory, text},
};

pub(crate) const HELP: &str = "\
Runs tasks and shows them live on a web page, where permissions are granted and questions answered.

usage: dashboard [FLAGS] [\"PROMPT\"...]

  --listen ADDRESS     where the page is, on this machine only (default: 127.0.0.1:4747; port 0 takes a free one)
  --directory DIR      where the tasks work, all of them (default: here)
  --tasks N            how many demonstrations to begin with (default: 4); only on the fake server
  --model P/M          the model, as provider/model (default: the server's)
  --agent NAME         the agent (default: the server's)

{server}

Each prompt starts a task; more can be started on the page.

exit status: 0 ended by Ctrl-C, 1 ended by a second one, 2 could not start
";

/// More would be a mistake.
const MAX_TASKS: usize = 100;

pub(crate) struct Arguments {
    pub(crate) server: ServerFlags,
    pub(crate) listen: SocketAddr,
    pub(crate) directory: PathBuf,
    pub(crate) model: Option<ModelRef>,
    pub(crate) agent: Option<String>,
    pub(crate) prompts: Vec<String>,
}

impl Arguments {
    /// What was typed; nothing if help was asked for.
    pub(crate) fn parse() -> Result<Option<Self>, Failure> {
        let mut server = ServerFlags::default();
        let mut listen = SocketAddr::from(([127, 0, 0, 1], 4747));
        let mut directory = PathBuf::from(".");
        let (mut tasks, mut model, mut agent, mut prompts) = (None, None, None, Vec::new());
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
                "listen" => listen = parse_address(&text(parser.value()?))?,
                "directory" => directory = parser.value()?.into(),
                "tasks" => tasks = Some(flags::count("--tasks", &text(parser.value()?), MAX_TASKS)?),
                "model" => model = Some(flags::model(&text(parser.value()?))?),
                "agent" => agent = Some(text(parser.value()?)),
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
        if tasks.is_some() && (server.choice != Choice::Fake || !prompts.is_empty()) {
            return Err(Failure::usage(
                "--tasks counts demonstrations on the fake server; give one prompt per task",
            ));
        }
        if prompts.is_empty() && server.choice == Choice::Fake {
            let demonstrations = demo::WATCHED.iter().chain(&demo::PROMPTS[1..]).cycle();
            prompts = demonstrations.take(tasks.unwrap_or(4)).map(|prompt| (*prompt).to_owned()).collect();
        }
        let directory = existing_directory(&directory)?;
        Ok(Some(Self { server, listen, directory, model, agent, prompts }))
    }
}

/// An address of this machine only: the page has no password.
fn parse_address(value: &str) -> Result<SocketAddr, Failure> {
    let address: SocketAddr = value.parse().map_err(|_error| {
        Failure::usage(format!("--listen {value}: give an address and a port, such as 127.0.0.1:4747"))
    })?;
    if !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "--listen {value}: the page has no password, so it listens on 127.0.0.1 or [::1] only; \
             from elsewhere use a tunnel such as `ssh -L`"
        )));
    }
    Ok(address)
}

//! Runs many tasks for minutes while things go wrong, and counts what must not happen.
//!
//! ```sh
//! cargo run --release --example soak -- --tasks 200 --minutes 2 --faults
//! cargo run --release --example soak -- --tasks 20 --minutes 0.2 --faults --seed 7 --json
//! ```
//!
//! Tasks live in worlds: a fake server, a manager, and up to twenty sessions that share both. A world plays a few turns per
//! session, is checked, and makes room for the next one, until the time is up. A seed repeats the scripts and the faults, though
//! not their timing.

mod faults;
mod scripts;
mod tally;
mod world;

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use futures_util::future::join_all;
use opencode_conductor_examples::{
    failure::{self, Failure},
    flags::{self, text},
};

use crate::{tally::Tally, world::World};

const HELP: &str = "\
Runs many tasks for minutes while things go wrong, and counts what must not happen.

  soak [--tasks N] [--minutes M] [--faults] [--seed S] [--json]

  --tasks N    tasks at once (default 50)
  --minutes M  how long (default 1; fractions are fine)
  --faults     make things go wrong
  --seed S     play the scripts and faults of an earlier run
  --json       print one JSON object

The exit status is 1 if anything happened that must not.
";

/// How many tasks share a server and a manager.
const TASKS_PER_WORLD: usize = 20;
const MAX_MINUTES: f64 = 24.0 * 60.0;

#[derive(Debug)]
struct Arguments {
    tasks: usize,
    time: Duration,
    faults: bool,
    seed: u64,
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    failure::exit("soak", run().await)
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
async fn run() -> Result<ExitCode, Failure> {
    let Some(arguments) = parse()? else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let tally = soak(&arguments).await?;
    if arguments.json {
        println!("{:#}", tally.json(arguments.seed));
    } else {
        println!("{}", tally.table(arguments.seed));
    }
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse() -> Result<Option<Arguments>, Failure> {
    let seed = fastrand::u64(..);
    let mut arguments =
        Arguments { tasks: 50, time: Duration::from_secs(60), faults: false, seed, json: false };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            lexopt::Arg::Long("tasks") => {
                arguments.tasks = flags::count("--tasks", &text(parser.value()?), 10_000)?;
            }
            lexopt::Arg::Long("minutes") => arguments.time = minutes(&text(parser.value()?))?,
            lexopt::Arg::Long("faults") => arguments.faults = true,
            lexopt::Arg::Long("seed") => arguments.seed = seed_of(&text(parser.value()?))?,
            lexopt::Arg::Long("json") => arguments.json = true,
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(arguments))
}

fn minutes(value: &str) -> Result<Duration, Failure> {
    let minutes = value.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= MAX_MINUTES);
    minutes.map(|minutes: f64| Duration::from_secs_f64(minutes * 60.0)).ok_or_else(|| {
        Failure::usage(format!("--minutes {value}: give a number above 0, at most {MAX_MINUTES}"))
    })
}

fn seed_of(value: &str) -> Result<u64, Failure> {
    value.parse().map_err(|_no_number| {
        Failure::usage(format!("--seed {value}: give a whole number from 0 to {}", u64::MAX))
    })
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
async fn soak(arguments: &Arguments) -> Result<Tally, Failure> {
    let tally = Arc::new(Tally::default());
    tally.remember("start");
    let end = Instant::now() + arguments.time;
    let n_worlds = arguments.tasks.div_ceil(TASKS_PER_WORLD);
    let worlds = (0..n_worlds).map(|index| {
        let tasks = arguments.tasks / n_worlds + usize::from(index < arguments.tasks % n_worlds);
        let mut rng = Rng::with_seed(arguments.seed.wrapping_add(index as u64));
        let tally = Arc::clone(&tally);
        async move {
            while Instant::now() < end {
                let world = World::start(rng.fork(), Arc::clone(&tally)).await;
                let world = world.map_err(|error| Failure::because("cannot start a world", &*error))?;
                world.live(tasks, arguments.faults).await;
            }
            Ok::<_, Failure>(())
        }
    });
    // Memory is compared under the same load, long after the first worlds have come and gone.
    let watch = async {
        tokio::time::sleep(arguments.time / 2).await;
        tally.remember("half time");
        tokio::time::sleep_until(end.into()).await;
        tally.remember("end");
        tally.judge_memory();
    };
    let (ended, ()) = tokio::join!(join_all(worlds), watch);
    ended.into_iter().collect::<Result<(), _>>()?;
    Arc::into_inner(tally).ok_or_else(|| Failure::task("a world outlived its end"))
}

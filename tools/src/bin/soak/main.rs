//! Runs many tasks for minutes while things go wrong, and counts what must not happen.
//!
//! ```sh
//! cargo run --release -p opencode-conductor-tools --bin soak -- --tasks 200 --minutes 2 --faults
//! cargo run --release -p opencode-conductor-tools --bin soak -- --tasks 20 --minutes 0.2 --faults --seed 7 --json
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

use clap::Parser;
use fastrand::Rng;
use futures_util::future::join_all;
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
    values,
};

use crate::{tally::Tally, world::World};

/// How many tasks share a server and a manager.
const TASKS_PER_WORLD: usize = 20;
const MAX_MINUTES: f64 = 24.0 * 60.0;

/// Runs many tasks for minutes while things go wrong, and counts what must not happen
#[derive(Debug, Parser)]
#[command(name = "soak", args_override_self = true)]
#[command(after_help = "The exit status is 1 if anything happened that must not.")]
struct Arguments {
    /// Tasks at once
    #[arg(long, value_name = "N", default_value = "50", value_parser = values::count(10_000))]
    tasks: usize,
    /// How long; fractions are fine
    #[arg(long = "minutes", value_name = "M", default_value = "1", value_parser = minutes)]
    time: Duration,
    /// Make things go wrong
    #[arg(long)]
    faults: bool,
    /// Play the scripts and faults of an earlier run [default: a new one]
    #[arg(long, value_name = "S", default_value_t = fastrand::u64(..), hide_default_value = true)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match command_line::parse("soak") {
        Ok(arguments) => failure::exit("soak", run(&arguments).await),
        Err(status) => status,
    }
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let tally = soak(arguments).await?;
    if arguments.json {
        println!("{:#}", tally.json(arguments.seed));
    } else {
        println!("{}", tally.table(arguments.seed));
    }
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn minutes(value: &str) -> Result<Duration, String> {
    let minutes = value.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= MAX_MINUTES);
    let time = minutes.map(|minutes: f64| Duration::from_secs_f64(minutes * 60.0));
    time.ok_or_else(|| format!("give a number above 0, at most {MAX_MINUTES}"))
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

//! Runs many tasks at a time, each in a git worktree of its own, and shows how they get on.
//!
//! ```sh
//! cargo run --example fleet -- --tasks 12 --concurrency 4         # a demonstration on a fake server
//! cargo run --example fleet -- --managed --directory . "Find one bug and fix it" "Write one missing test"
//! ```
//!
//! Worktrees in which a task has left work (files, ignored files, commits) are kept and named in the summary; the others are removed. Ctrl-C aborts
//! everything that runs, starts nothing more, and still prints the summary.
//!
//! Exit status: 0 if all tasks succeeded, 1 if not, 2 if they could not be tried.

mod arguments;
mod board;
mod summary;
mod work;
mod worktrees;

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use opencode_conductor::PermissionPolicy;
use opencode_conductor_examples::{
    backend::{Backend, ServerFlags},
    failure::{self, Failure},
    interrupt::Interrupts,
    logging,
    output::{self, Colours},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    arguments::Arguments,
    board::Board,
    summary::Summary,
    work::{Outcome, Task},
    worktrees::Worktrees,
};

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    logging::init();
    failure::exit("fleet", run().await)
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
async fn run() -> Result<ExitCode, Failure> {
    let Some(arguments) = Arguments::parse()? else {
        print!("{}", arguments::HELP.replace("{server}", ServerFlags::HELP));
        return Ok(ExitCode::SUCCESS);
    };
    let worktrees = Worktrees::create(arguments.directory.as_deref(), arguments.tasks).await?;
    let backend = Backend::start(&arguments.server, worktrees.repository()).await?;
    let summary = run_all(&backend, &arguments, &worktrees).await;
    backend.stop().await;
    let kept = worktrees.remove_unchanged(arguments.ignored).await;
    let summary = summary?.with_kept(kept);
    // A reader that has seen enough is no failure.
    let _ = if arguments.json {
        output::print_json(&format!("{:#}\n", summary.json()))
    } else {
        output::print(&summary.to_string(), Colours::of_stdout())
    };
    summary.verdict()
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
async fn run_all(
    backend: &Backend,
    arguments: &Arguments,
    worktrees: &Worktrees,
) -> Result<Summary, Failure> {
    let permissions = if arguments.allow { PermissionPolicy::AllowOnce } else { PermissionPolicy::Reject };
    // One manager for all: their sessions share its connections, one event stream per directory.
    let manager = backend.manager().permissions(permissions).build();
    let places = Arc::new(Semaphore::new(arguments.concurrency));
    let stop = CancellationToken::new();
    let (news, mut reader) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    let tasks: Vec<Task> = worktrees.tasks(arguments);
    let started = Instant::now();
    for (index, task) in tasks.iter().cloned().enumerate() {
        let work = task.run(index, manager.clone(), Arc::clone(&places), stop.clone(), news.clone());
        running.spawn(async move { (index, work.await) });
    }
    drop(news);

    let mut board = (!arguments.json).then(|| Board::new(&tasks, arguments.concurrency, backend.name()));
    let mut outcomes: Vec<Option<Outcome>> = tasks.iter().map(|_| None).collect();
    let mut interrupts = Interrupts::listen()?;
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some((index, news)) = reader.recv() => if let Some(board) = &mut board {
                board.note(index, news);
            },
            ended = running.join_next() => match ended {
                Some(Ok((index, outcome))) => {
                    if let Some(board) = &mut board {
                        board.ended(index, &outcome);
                    }
                    outcomes[index] = Some(outcome);
                }
                // A task that panicked has no outcome, and the summary says so.
                Some(Err(_)) => {}
                None => break,
            },
            _ = redraw.tick(), if board.is_some() => if let Some(board) = &mut board {
                board.draw(started.elapsed());
            },
            () = interrupts.next() => {
                if stop.is_cancelled() {
                    return Err(Failure::task("stopped without waiting for the server"));
                }
                stop.cancel();
            }
        }
    }
    if let Some(board) = &mut board {
        board.close();
    }
    let summary = Summary::new(tasks, outcomes, started.elapsed(), backend.statistics());
    manager.shutdown().await;
    Ok(summary)
}

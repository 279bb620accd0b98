//! `conductor fleet`: many tasks at a time, each in a git worktree of its own, and how they get on.

mod arguments;
mod board;
mod summary;
mod work;
mod worktrees;

use std::{
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use opencode_conductor::worktree::IgnoredFiles;
use opencode_conductor_cli::{
    backend::Backend,
    failure::Failure,
    interrupt::Interrupts,
    output::{self, Colours},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    board::Board,
    summary::Summary,
    work::{End, Outcome, Task},
    worktrees::Worktrees,
};

pub(crate) use self::arguments::Arguments;

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(100);

/// How long the end waits after the person at the terminal does not.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the tasks; whether all succeeded is the program's end.
pub(crate) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let prompts = arguments.prompts()?;
    let untried = |failure| arguments.untried(failure);
    // Before anything is made or started that has to be removed or ended.
    let mut interrupts = Interrupts::listen()?;
    let worktrees = Worktrees::create(arguments.directory.as_deref(), prompts.len(), &mut interrupts).await;
    let worktrees = worktrees.map_err(untried)?;
    let tasks = worktrees.tasks(&prompts, &arguments.prompt_flags);
    let backend = interrupts.unless(Backend::start(&arguments.server, worktrees.repository())).await;
    let backend = match backend.unwrap_or_else(|| Err(Failure::interrupted())) {
        Ok(backend) => backend,
        Err(failure) => {
            // No agent has seen them.
            worktrees.remove_unchanged(IgnoredFiles::Discard).await;
            return Err(untried(failure));
        }
    };
    let summary = run_all(&backend, arguments, tasks, &mut interrupts).await;
    // What it started is killed if it takes too long for somebody.
    let _ = interrupts.unless(backend.stop()).await;
    let kept = worktrees.remove_unchanged(arguments.ignored_files()).await;
    let summary = summary.with_kept(kept);
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
    tasks: Vec<Task>,
    interrupts: &mut Interrupts,
) -> Summary {
    // One manager for all: their sessions share its connections, one event stream per directory.
    let manager = backend.manager().permissions(arguments.permissions()).build();
    let places = Arc::new(Semaphore::new(arguments.concurrency));
    let stop = CancellationToken::new();
    let (news, mut reader) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    let started = Instant::now();
    for (index, task) in tasks.iter().cloned().enumerate() {
        let work = task.run(index, manager.clone(), Arc::clone(&places), stop.clone(), news.clone());
        running.spawn(async move { (index, work.await) });
    }
    drop(news);

    let mut board = (!arguments.json).then(|| Board::new(&tasks, arguments.concurrency, backend.name()));
    let mut outcomes: Vec<Option<Outcome>> = tasks.iter().map(|_| None).collect();
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let is_over = loop {
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
                None => break true,
            },
            _ = redraw.tick(), if board.is_some() => if let Some(board) = &mut board {
                board.draw(started.elapsed());
            },
            () = interrupts.next() => {
                if stop.is_cancelled() {
                    break false;
                }
                stop.cancel();
            }
        }
    };
    if let Some(board) = &mut board {
        board.close();
    }
    let statistics = backend.statistics();
    if is_over {
        let _ = interrupts.unless(manager.shutdown()).await;
    } else {
        // The tasks end with what there is of them, unless they wait for the server to abort them.
        let given_up = async {
            let mut shutdown = pin!(manager.shutdown().fuse());
            loop {
                tokio::select! {
                    ended = running.join_next() => match ended {
                        Some(Ok((index, outcome))) => outcomes[index] = Some(outcome),
                        Some(Err(_)) => {}
                        None => break,
                    },
                    () = &mut shutdown => {}
                }
            }
        };
        let _ = interrupts.unless(timeout(GRACE, given_up)).await;
        running.shutdown().await;
        for (task, outcome) in tasks.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            let work = task.worktree.work().await.unwrap_or_default();
            *outcome = Some(Outcome { end: End::GivenUp, elapsed: started.elapsed(), work });
        }
    }
    Summary::new(tasks, outcomes, started.elapsed(), statistics)
}

//! `conductor fleet`: many tasks at a time, each in a git worktree of its own, and how they get on.

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
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use self::{
    board::Board,
    summary::Summary,
    work::{Outcome, Task},
    worktrees::Worktrees,
};

pub(crate) use self::arguments::Arguments;

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(100);

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
    tasks: Vec<Task>,
    interrupts: &mut Interrupts,
) -> Result<Summary, Failure> {
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

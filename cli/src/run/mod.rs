//! `conductor run`: one task, shown live.

mod arguments;
mod ask;
mod view;

use std::{
    pin::pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt};
use opencode_conductor::{
    ClientStatistics, Completion, CreateTaskSession, PermissionPolicy, PromptError, PromptExecutionResult,
    PromptInput, error_chain,
};
use opencode_conductor_cli::{backend::Backend, failure::Failure, interrupt::Interrupts, output};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::{
    arguments::Permission,
    ask::{Asker, Screen, Step},
    view::View,
};

pub(crate) use self::arguments::Arguments;

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(80);

/// How long the end waits after the person at the terminal does not.
const GRACE: Duration = Duration::from_secs(2);

/// What `--json` prints: the result, or, if the model was not called, why as its completion.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    #[serde(flatten)]
    result: Option<&'a PromptExecutionResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion: Option<Value>,
    elapsed_ms: u128,
    /// What the client did and saw; nothing where there is no server.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<ClientStatistics>,
}

/// Runs the task; its end is the program's.
pub(crate) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let prompt = arguments.prompt()?;
    // Before anything is started that has to be ended.
    let mut interrupts = Interrupts::listen()?;
    let backend = interrupts.unless(Backend::start(&arguments.server, &arguments.directory)).await;
    let backend = backend.unwrap_or_else(|| Err(Failure::interrupted()));
    let backend = backend.map_err(|failure| arguments.untried(failure))?;
    let ran = run_on(&backend, arguments, prompt, &mut interrupts).await;
    // What it started is killed if it takes too long for somebody.
    let _ = interrupts.unless(backend.stop()).await;
    ran
}

#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
async fn run_on(
    backend: &Backend,
    arguments: &Arguments,
    prompt: &str,
    interrupts: &mut Interrupts,
) -> Result<ExitCode, Failure> {
    // Who answers when a tool needs permission or the model has a question.
    let screen = if arguments.json { Screen::Stderr } else { Screen::Stdout };
    let (asker, mut questions) = Asker::new(screen);
    let builder = backend.manager();
    let manager = match arguments.permission {
        Permission::Allow => builder.permissions(PermissionPolicy::AllowOnce),
        Permission::Reject => builder.permissions(PermissionPolicy::Reject),
        Permission::Ask => builder.permissions(asker.permissions()).questions(asker.questions()),
    }
    .build();

    // One session per task, in the task's directory.
    let directory = &arguments.directory;
    let session = CreateTaskSession::new("conductor", arguments.task.as_str(), directory, directory);
    let session = match interrupts.unless(manager.create_task_session(session)).await {
        Some(Ok(meta)) => meta.session_id,
        Some(Err(error)) => return Err(arguments.untried(Failure::usage(error_chain(&error)))),
        None => return Err(arguments.untried(Failure::interrupted())),
    };

    // The prompt runs in the background; its updates say when to look.
    let input = arguments.prompt_flags.apply(PromptInput::new(session.clone(), prompt));
    let started = Instant::now();
    let mut running = manager.prompt(input).start();
    let mut updates = running.updates();
    let mut view = (!arguments.json).then(|| View::new(backend.name(), arguments));
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let stop = CancellationToken::new();
    let aborted = async {
        stop.cancelled().await;
        manager.abort(&session).await
    };
    let mut aborted = pin!(aborted.fuse());
    let ended = loop {
        tokio::select! {
            ended = &mut running => break Some(ended),
            Some(update) = next(&mut updates) => if let Some(view) = &mut view {
                view.note(&update);
            },
            _ = redraw.tick(), if view.is_some() && !questions.is_any_shown() => if let Some(view) = &mut view {
                view.draw(manager.conversation(&session).as_ref(), started.elapsed());
            },
            change = questions.next() => if let Step::Ask(question) = change {
                if let Some(view) = &mut view {
                    view.clear();
                }
                questions.show(question);
            },
            () = interrupts.next() => {
                if stop.is_cancelled() {
                    break None;
                }
                stop.cancel();
            }
            // There is nothing to wait for.
            Err(_) = &mut aborted => break None,
        }
    };
    questions.withdraw();
    let elapsed = started.elapsed();
    let statistics = backend.statistics();
    let mut changes = Vec::new();
    let ended = if let Some(ended) = ended {
        if let (Ok(result), Some(_)) = (&ended, &view) {
            // An agent that cannot say, or not now, is no reason to fail.
            let diff = interrupts.unless(result.diff()).await;
            changes = diff.and_then(Result::ok).unwrap_or_default();
        }
        let _ = interrupts.unless(manager.shutdown()).await;
        Some(ended)
    } else {
        // The prompt ends with what there is of it, unless it waits for the server to abort it.
        let given_up = async {
            let mut shutdown = pin!(manager.shutdown().fuse());
            loop {
                tokio::select! {
                    ended = &mut running => break ended,
                    () = &mut shutdown => {}
                }
            }
        };
        interrupts.unless(timeout(GRACE, given_up)).await.and_then(Result::ok)
    };

    if arguments.json {
        let report = Report {
            result: ended.as_ref().and_then(|ended| ended.as_ref().ok()),
            completion: match &ended {
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(json!(error)),
                None => Some(json!(Completion::GivenUp)),
            },
            elapsed_ms: elapsed.as_millis(),
            client: statistics,
        };
        let report = serde_json::to_string_pretty(&report);
        let report = report.map_err(|error| Failure::because("cannot print the result", &error))?;
        output::print_json(&format!("{report}\n"))
            .map_err(|error| Failure::because("cannot print the result", &error))?;
    } else if let Some(mut view) = view {
        let result = ended.as_ref().and_then(|ended| ended.as_ref().ok());
        view.finish(result, &changes, elapsed, statistics.as_ref());
    }
    ended.map_or_else(|| Err(Failure::task("stopped without waiting for the server")), status)
}

/// Whether the task succeeded, and if not, one line on why.
fn status(ended: Result<PromptExecutionResult, PromptError>) -> Result<ExitCode, Failure> {
    match ended {
        Ok(result) => match result.settled() {
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(failed) => Err(Failure::task(error_chain(&failed))),
        },
        Err(error @ (PromptError::Invalid(_) | PromptError::Unauthorized { .. })) => {
            Err(Failure::usage(error_chain(&error)))
        }
        Err(error) => Err(Failure::task(error_chain(&error))),
    }
}

async fn next<S: futures_util::Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    stream.as_mut()?.next().await
}

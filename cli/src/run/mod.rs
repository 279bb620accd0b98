//! `conductor run`: one task, shown live.

mod arguments;
mod ask;
mod view;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use opencode_conductor::{
    ClientStatistics, ConversationManager, CreateTaskSession, PermissionPolicy, PromptError,
    PromptExecutionResult, PromptInput, SessionId, error_chain,
};
use opencode_conductor_cli::{backend::Backend, failure::Failure, interrupt::Interrupts, output};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use self::{arguments::Permission, ask::Asker, view::View};

pub(crate) use self::arguments::Arguments;

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(80);

/// What `--json` prints: the result, or, if the model was not called, why as its completion.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    #[serde(flatten)]
    result: Option<&'a PromptExecutionResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion: Option<&'a PromptError>,
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
    let (asker, mut questions) = Asker::new();
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
    let mut interrupted = false;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            Some(update) = next(&mut updates) => if let Some(view) = &mut view {
                view.note(&update);
            },
            _ = redraw.tick(), if view.is_some() => if let Some(view) = &mut view {
                view.draw(manager.conversation(&session).as_ref(), started.elapsed());
            },
            Some(question) = questions.recv() => {
                if let Some(view) = &mut view {
                    view.clear();
                }
                tokio::select! {
                    () = question.answer_from_terminal() => {}
                    () = interrupts.next() => abort(&manager, &session).await?,
                }
            }
            () = interrupts.next() => {
                if interrupted {
                    return Err(Failure::task("stopped without waiting for the server"));
                }
                interrupted = true;
                abort(&manager, &session).await?;
            }
        }
    };
    let elapsed = started.elapsed();
    let statistics = backend.statistics();
    let changes = match &ended {
        // An agent that cannot say, or not now, is no reason to fail.
        Ok(result) if view.is_some() => result.diff().await.unwrap_or_default(),
        _ => Vec::new(),
    };
    manager.shutdown().await;

    if arguments.json {
        let report = Report {
            result: ended.as_ref().ok(),
            completion: ended.as_ref().err(),
            elapsed_ms: elapsed.as_millis(),
            client: statistics,
        };
        let report = serde_json::to_string_pretty(&report);
        let report = report.map_err(|error| Failure::because("cannot print the result", &error))?;
        output::print_json(&format!("{report}\n"))
            .map_err(|error| Failure::because("cannot print the result", &error))?;
    } else if let Some(mut view) = view {
        view.finish(ended.as_ref().ok(), &changes, elapsed, statistics.as_ref());
    }
    status(ended)
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

async fn abort(manager: &ConversationManager, session: &SessionId) -> Result<(), Failure> {
    let aborted = manager.abort(session).await;
    aborted.map(drop).map_err(|error| Failure::task(error_chain(&error)))
}

async fn next<S: futures_util::Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    stream.as_mut()?.next().await
}

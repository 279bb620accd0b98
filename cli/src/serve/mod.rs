//! `conductor serve`: tasks on a web page, with text as it streams, tools, subagents, cost, and what needs a decision.
//!
//! The page gets a snapshot of all tasks and then every change, among them the library's own conversation events, which it folds as
//! the library does. It listens on this machine only, and lets in only who knows the address that it prints, with the token in it: the person who
//! is in can start tasks and grant permissions.

mod arguments;
mod hub;
mod web;
mod work;

use std::{future::IntoFuture, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use opencode_conductor::ApprovalDesk;
use opencode_conductor_cli::{backend::Backend, failure::Failure, interrupt::Interrupts};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use self::{
    hub::{About, Hub},
    web::{Key, Site},
    work::Runner,
};

pub(crate) use self::arguments::Arguments;

/// How long the end waits for those who still read, on connections that all end on this machine.
const GRACE: Duration = Duration::from_secs(3);

/// Serves the page until Ctrl-C.
pub(crate) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let prompts = arguments.prompts()?;
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
        Failure::usage(format!("--listen {}: {error}; choose another address", arguments.listen))
    })?;
    // Before anything is started that has to be ended.
    let mut interrupts = Interrupts::listen()?;
    let starting = Backend::start(&arguments.server, &arguments.directory);
    let Some(backend) = interrupts.unless(starting).await else { return Ok(ExitCode::SUCCESS) };
    let backend = backend?;
    let served = serve(&backend, arguments, prompts, listener, &mut interrupts).await;
    // What it started is killed if it takes too long for somebody.
    let _ = interrupts.unless(backend.stop()).await;
    served
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
async fn serve(
    backend: &Backend,
    arguments: &Arguments,
    prompts: Vec<String>,
    listener: TcpListener,
    interrupts: &mut Interrupts,
) -> Result<ExitCode, Failure> {
    let address = listener.local_addr();
    let address = address.map_err(|error| Failure::because("cannot tell the page's address", &error))?;
    let about = About {
        server: backend.name().to_owned(),
        directory: arguments.directory.to_string_lossy().into_owned(),
    };
    let hub = Arc::new(Hub::new(about));
    // Who answers when a tool needs permission or the model has a question: the person who looks at the page.
    let desk = ApprovalDesk::new();
    let manager = backend.manager().permissions(desk.permissions()).questions(desk.questions()).build();
    let runner = Runner::new(manager.clone(), desk.clone(), Arc::clone(&hub), arguments);
    for prompt in prompts {
        runner.start(prompt);
    }

    let closing = CancellationToken::new();
    let site = Site { hub, runner: runner.clone(), desk, closing: closing.clone(), watchers: Arc::default() };
    let key = Key::new(address.port())?;
    let closed = closing.clone().cancelled_owned();
    println!("{} shows the tasks; Ctrl-C ends them ({})", key.address(address), backend.name());
    let serving = axum::serve(listener, web::router(site, key)).with_graceful_shutdown(closed);
    let mut serving = pin!(serving.into_future());
    let failed = |error| Failure::because("cannot serve the page", &error);
    let end = async {
        interrupts.next().await;
        let stopped = interrupts.unless(runner.stop()).await;
        // The tasks that were not waited for are given up.
        let _ = interrupts.unless(timeout(GRACE, manager.shutdown())).await;
        closing.cancel();
        stopped.ok_or_else(|| Failure::task("stopped without waiting for the server"))
    };
    tokio::select! {
        served = &mut serving => return served.map(|()| ExitCode::SUCCESS).map_err(failed),
        ended = end => ended?,
    }
    // Somebody who has sent half a request, or does not read the answer, is not waited for.
    if let Some(Ok(served)) = interrupts.unless(timeout(GRACE, serving)).await {
        served.map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

//! One task, from its place in the queue to its outcome.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use opencode_conductor::{
    AbortReport, AgentStatus, BlockBody, ConversationEvent, ConversationManager, CreateTaskSession,
    PromptError, PromptExecutionResult, PromptInput, Update, error_chain,
    worktree::{Work, Worktree},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::prompt_flags::PromptFlags;

#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) prompt: String,
    pub(crate) repository: PathBuf,
    pub(crate) worktree: Worktree,
    pub(crate) flags: PromptFlags,
}

/// Something to show while a task runs.
pub(crate) enum News {
    Started,
    /// What it does now.
    Doing(String),
    Tool,
}

/// What came of a task.
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) elapsed: Duration,
    /// What it left in its worktree.
    pub(crate) work: Work,
}

pub(crate) enum End {
    Ran(Box<PromptExecutionResult>),
    /// The model was not called.
    Failed(PromptError),
    /// There was not even a session.
    NoSession(String),
    /// The user pressed Ctrl-C before its turn.
    NotStarted,
    /// The user pressed Ctrl-C again while it was aborted.
    GivenUp,
}

type Reports = mpsc::UnboundedSender<(usize, News)>;

impl Task {
    /// Waits for a place, then runs; ends early once `stop` says so.
    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    pub(crate) async fn run(
        self,
        index: usize,
        manager: ConversationManager,
        places: Arc<Semaphore>,
        stop: CancellationToken,
        reports: Reports,
    ) -> Outcome {
        let place = tokio::select! {
            place = places.acquire() => place.ok(),
            () = stop.cancelled() => None,
        };
        let started = Instant::now();
        let end = match place {
            Some(_) if !stop.is_cancelled() => {
                self.work(&manager, &stop, |news| drop(reports.send((index, news)))).await
            }
            _ => End::NotStarted,
        };
        let elapsed = started.elapsed();
        Outcome { end, elapsed, work: self.worktree.work().await.unwrap_or_default() }
    }

    async fn work(
        &self,
        manager: &ConversationManager,
        stop: &CancellationToken,
        tell: impl Fn(News),
    ) -> End {
        tell(News::Started);
        let session =
            CreateTaskSession::new("fleet", self.id.as_str(), &self.repository, self.worktree.path());
        let made = tokio::select! {
            made = manager.create_task_session(session) => made,
            () = stop.cancelled() => return End::NotStarted,
        };
        let session = match made {
            Ok(meta) => meta.session_id,
            Err(error) => return End::NoSession(error_chain(&error)),
        };
        let input = self.flags.apply(PromptInput::new(session.clone(), self.prompt.as_str()));
        let mut running = manager.prompt(input).start();
        let mut updates = running.updates();
        let ended = loop {
            tokio::select! {
                ended = &mut running => break ended,
                Some(update) = async { updates.as_mut()?.next().await } => {
                    news_in(&update).into_iter().for_each(&tell);
                }
                () = stop.cancelled() => {
                    tell(News::Doing("aborting".to_owned()));
                    // Ends the prompt too, with what there is of it.
                    let _: Result<AbortReport, _> = manager.abort(&session).await;
                    break running.await;
                }
            }
        };
        match ended {
            Ok(result) => End::Ran(Box::new(result)),
            Err(error) => End::Failed(error),
        }
    }
}

fn news_in(update: &Update) -> Option<News> {
    match update {
        Update::Status(AgentStatus::Retrying { message, .. }) => {
            Some(News::Doing(format!("the provider failed: {message}")))
        }
        Update::Asked(ask) => {
            let permission = ask.permission()?;
            Some(News::Doing(format!("permission for {}", permission.permission)))
        }
        Update::StreamLost => Some(News::Doing("event stream lost, polling".to_owned())),
        Update::Conversation(ConversationEvent::SubagentSpawned(spawned)) => Some(News::Doing(format!(
            "@{} {}",
            spawned.subagent_type,
            spawned.description.as_deref().unwrap_or_default()
        ))),
        Update::Conversation(ConversationEvent::BlockUpsert { block, .. }) => match &block.body {
            BlockBody::Thinking { .. } => Some(News::Doing("thinking".to_owned())),
            BlockBody::AssistantText { .. } => Some(News::Doing("writing".to_owned())),
            BlockBody::ToolUse { name, .. } => Some(News::Doing(name.to_string())),
            BlockBody::ToolResult { .. } => Some(News::Tool),
            _ => None,
        },
        _ => None,
    }
}

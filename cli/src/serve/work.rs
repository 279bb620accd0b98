//! The tasks, from their prompt to their outcome.

use std::{
    collections::HashMap,
    iter,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt;
use opencode_conductor::{
    AbortReport, AgentStatus, ApprovalDesk, ConversationManager, CreateTaskSession, PromptInput, SessionId,
    Update, error_chain,
};
use opencode_conductor_cli::style::shorten;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Arguments,
    hub::{Hub, Status, now},
};
use crate::prompt_flags::PromptFlags;

/// Starts tasks, and ends them.
#[derive(Clone)]
pub(crate) struct Runner(Arc<Inner>);

struct Inner {
    manager: ConversationManager,
    desk: ApprovalDesk,
    hub: Arc<Hub>,
    directory: PathBuf,
    flags: PromptFlags,
    running: TaskTracker,
    stop: CancellationToken,
    stops: Mutex<HashMap<usize, CancellationToken>>,
}

impl Runner {
    pub(crate) fn new(
        manager: ConversationManager,
        desk: ApprovalDesk,
        hub: Arc<Hub>,
        arguments: &Arguments,
    ) -> Self {
        Self(Arc::new(Inner {
            manager,
            desk,
            hub,
            directory: arguments.directory.clone(),
            flags: arguments.prompt_flags.clone(),
            running: TaskTracker::new(),
            stop: CancellationToken::new(),
            stops: Mutex::default(),
        }))
    }

    /// Starts a task and returns its id, if there is room for another.
    pub(crate) fn start(&self, prompt: String) -> Option<usize> {
        let id = self.0.hub.add(prompt.clone())?;
        let stop = self.0.stop.child_token();
        self.0.stops.lock().unwrap_or_else(PoisonError::into_inner).insert(id, stop.clone());
        let inner = Arc::clone(&self.0);
        self.0.running.spawn(async move {
            let outcome = inner.work(id, prompt, &stop).await;
            inner.stops.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            inner.hub.change(id, |task| {
                task.status = Status::Ended;
                task.ended_at = Some(now());
                task.note = None;
                task.outcome = Some(outcome);
            });
        });
        Some(id)
    }

    /// Aborts a task; false if it does not run.
    pub(crate) fn abort(&self, id: usize) -> bool {
        let stops = self.0.stops.lock().unwrap_or_else(PoisonError::into_inner);
        stops.get(&id).map(CancellationToken::cancel).is_some()
    }

    /// Aborts all tasks and waits for their ends.
    pub(crate) async fn stop(&self) {
        self.0.stop.cancel();
        self.0.running.close();
        self.0.running.wait().await;
    }
}

impl Inner {
    /// Runs a task to its end, and tells the hub of everything on the way.
    async fn work(&self, id: usize, prompt: String, stop: &CancellationToken) -> Value {
        let session =
            CreateTaskSession::new("dashboard", format!("task-{id}"), &self.directory, &self.directory)
                .title(shorten(&prompt, 60));
        let made = tokio::select! {
            made = self.manager.create_task_session(session) => made,
            () = stop.cancelled() => return json!({"type": "aborted"}),
        };
        let session = match made {
            Ok(meta) => meta.session_id,
            Err(error) => return json!({"type": "noSession", "message": error_chain(&error)}),
        };
        let input = self.flags.apply(PromptInput::new(session.clone(), prompt));
        self.hub.change(id, |task| {
            task.status = Status::Running;
            task.session = Some(session.clone());
        });

        let mut running = self.manager.prompt(input).start();
        if let Some(mut updates) = running.updates() {
            let mut waiting = self.desk.watch();
            let mut aborting = false;
            loop {
                tokio::select! {
                    update = updates.next() => match update {
                        Some(Update::Conversation(event)) => self.hub.fold(id, &event),
                        Some(Update::Missed(conversation)) => self.hub.settle(id, &conversation),
                        Some(update) => self.note(id, update),
                        // The turn is over.
                        None => break,
                    },
                    Some(asks) = waiting.next() => {
                        self.hub.show_asks(id, asks.into_iter().filter(|ask| ask.root == session));
                    }
                    () = stop.cancelled(), if !aborting => {
                        aborting = true;
                        self.hub.change(id, |task| task.status = Status::Aborting);
                        // Ends the prompt too, with what there is of it.
                        let _: Result<AbortReport, _> = self.manager.abort(&session).await;
                    }
                }
            }
        }
        let ended = running.await;
        self.hub.show_asks(id, iter::empty());
        self.refresh(id, &session);
        match ended {
            Ok(result) => json!(result)["completion"].take(),
            Err(error) => json!(error),
        }
    }

    fn note(&self, id: usize, update: Update) {
        let note = match update {
            Update::Status(AgentStatus::Retrying { message, .. }) => {
                Some(format!("the provider failed and is tried again: {message}"))
            }
            Update::StreamLost => Some("event stream lost, polling".to_owned()),
            Update::Status(_) | Update::StreamRestored => None,
            _ => return,
        };
        self.hub.change(id, |task| task.note = note);
    }

    /// Shows the conversation as the manager has it.
    fn refresh(&self, id: usize, session: &SessionId) {
        if let Some(conversation) = self.manager.conversation(session) {
            self.hub.settle(id, &conversation);
        }
    }
}

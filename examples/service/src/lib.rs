#![doc = include_str!("../README.md")]

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, sse},
    routing::{get, post, put},
};
use futures_util::{Stream, StreamExt, stream};
use opencode_conductor::{
    AbortReport, AnswerError, ApprovalDesk, Ask, ConversationManager, CreateTaskSession, Decision,
    FileChange, MessageId, OpenCodeClient, PromptError, PromptInput, RequestId, RunningPrompt, SessionError,
    SessionId, Store, StoreError, TaskId, error_chain,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};
use tokio_util::task::TaskTracker;

/// The service; cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    manager: ConversationManager,
    desk: ApprovalDesk,
    /// How this process's prompts ended; the completion of one that is open is null.
    prompts: Arc<Mutex<HashMap<MessageId, Value>>>,
    /// The sessions of which was read what was said before this process.
    loaded: Arc<Mutex<HashSet<SessionId>>>,
    running: TaskTracker,
}

/// A task to be made.
#[derive(Debug, Deserialize)]
struct NewTask {
    project: String,
    directory: PathBuf,
    worktree: PathBuf,
}

type Answer<T> = Result<T, (StatusCode, Json<Value>)>;
type S = State<Service>;
type Task = Path<TaskId>;
type Prompt = Path<(TaskId, String)>;
type Asked = Path<(TaskId, RequestId)>;
type SseEvent = Result<sse::Event, axum::Error>;

impl Service {
    /// Starts the service, which goes on with the prompts that an earlier process left open in the store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn start(client: OpenCodeClient, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let desk = ApprovalDesk::new();
        let builder = ConversationManager::builder(client).store(store);
        let manager = builder.permissions(desk.permissions()).questions(desk.questions()).build();
        let (prompts, loaded, running) = (Arc::default(), Arc::default(), TaskTracker::new());
        let service = Self { manager, desk, prompts, loaded, running };
        service.restore().await?;
        Ok(service)
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/tasks", get(async |State(it): S| Json(it.manager.sessions())))
            .route("/tasks/{task}", put(create).get(view))
            .route("/tasks/{task}/prompts/{prompt}", put(prompt).get(ended))
            .route("/tasks/{task}/prompts/{prompt}/diff", get(diff))
            .route("/tasks/{task}/events", get(events))
            .route("/tasks/{task}/abort", post(abort))
            .route("/tasks/{task}/asks/{ask}", post(answer))
            .route("/asks", get(async |State(it): S| Json(it.desk.pending())))
            .with_state(self.clone())
    }

    /// Stops waiting. What runs goes on with the agent, and the next process collects it.
    pub async fn stop(&self) {
        self.manager.shutdown().await;
        self.running.close();
        self.running.wait().await;
    }

    /// Goes on with what is open in the store and runs nowhere.
    async fn restore(&self) -> Result<(), StoreError> {
        for turn in self.manager.restore().await? {
            self.follow(&mut lock(&self.prompts), turn.record.prompt.message_id, turn.running);
        }
        Ok(())
    }

    /// Does so again and again, without end: the agent, or the store, may have been out of reach.
    pub async fn restore_later(&self) {
        for n_times in 0.. {
            sleep(Duration::from_secs(1 << n_times.min(4))).await;
            drop(self.restore().await);
        }
    }

    /// Notes how a prompt ends.
    fn follow(&self, prompts: &mut HashMap<MessageId, Value>, message: MessageId, running: RunningPrompt) {
        prompts.insert(message.clone(), json!({"completion": null}));
        let service = self.clone();
        self.running.spawn(async move {
            let ended = match running.await {
                Ok(result) => json!(result),
                // It is open in the store, and will be restored again.
                Err(PromptError::Session { source, .. }) if source.is_retryable() => return,
                Err(error) => json!({"completion": error}),
            };
            lock(&service.prompts).insert(message, ended);
        });
    }

    /// The session of a task. The manager knows all that was said in it, also before this process.
    async fn session(&self, task: &TaskId) -> Answer<SessionId> {
        let unknown = || refusal(StatusCode::NOT_FOUND, &format!("there is no task {task}"));
        let session = self.manager.task_session_id(&task.clone().trimmed()).ok_or_else(unknown)?;
        if !lock(&self.loaded).contains(&session) {
            self.manager.load_conversation(&session).await.map_err(failed)?;
            lock(&self.loaded).insert(session.clone());
        }
        Ok(session)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn create(State(it): S, Path(task): Task, Json(new): Json<NewTask>) -> Answer<impl IntoResponse> {
    let create = CreateTaskSession::new(new.project, task, new.directory, new.worktree);
    Ok((StatusCode::CREATED, Json(it.manager.create_task_session(create).await.map_err(failed)?)))
}

async fn view(State(it): S, Path(task): Task) -> Answer<Json<Value>> {
    let session = it.session(&task).await?;
    let usage = it.manager.conversation(&session).map(|conversation| conversation.total_usage());
    let (meta, is_running) = (it.manager.session(&session), it.manager.is_running(&session));
    Ok(Json(json!({"session": meta, "isRunning": is_running, "usage": usage})))
}

/// The message that a prompt of this name is.
fn message_id(session: &SessionId, name: &str) -> MessageId {
    MessageId::new(format!("msg_{session}_{name}"))
}

async fn prompt(State(it): S, Path((task, name)): Prompt, text: String) -> Answer<StatusCode> {
    let session = it.session(&task).await?;
    if text.trim().is_empty() {
        return Err(refusal(StatusCode::UNPROCESSABLE_ENTITY, "the prompt must not be empty"));
    }
    drop(it.restore().await); // What is open goes on first.
    let message = message_id(&session, &name);
    let mut prompts = lock(&it.prompts);
    // What was not run is tried again, and in no case run twice.
    if prompts.get(&message).is_none_or(|ended| ended["completion"]["type"] == "notRun") {
        let input = PromptInput::new(session, text).message_id(message.clone());
        it.follow(&mut prompts, message, it.manager.prompt(input).start());
    }
    Ok(StatusCode::ACCEPTED)
}

async fn ended(State(it): S, Path((task, name)): Prompt) -> Answer<Json<Value>> {
    let message = message_id(&it.session(&task).await?, &name);
    let unknown = || refusal(StatusCode::NOT_FOUND, &format!("prompt {name} was not sent to this process"));
    lock(&it.prompts).get(&message).cloned().map(Json).ok_or_else(unknown)
}

async fn diff(State(it): S, Path((task, name)): Prompt) -> Answer<Json<Vec<FileChange>>> {
    let session = it.session(&task).await?;
    let changes = it.manager.diff(&session, &message_id(&session, &name)).await;
    changes.map(Json).map_err(failed)
}

async fn events(State(it): S, Path(task): Task) -> Answer<sse::Sse<impl Stream<Item = SseEvent>>> {
    let (state, updates) = it.manager.watch(&it.session(&task).await?).map_err(failed)?;
    let snapshot = stream::once(async move { sse::Event::default().event("snapshot").json_data(state) });
    let updates = updates.map(|update| sse::Event::default().event("update").json_data(update));
    Ok(sse::Sse::new(snapshot.chain(updates)).keep_alive(sse::KeepAlive::default()))
}

async fn abort(State(it): S, Path(task): Task) -> Answer<Json<AbortReport>> {
    it.manager.abort_all(&it.session(&task).await?).await.map(Json).map_err(failed)
}

async fn answer(State(it): S, Path((task, ask)): Asked, Json(decision): Json<Decision>) -> Answer<Json<Ask>> {
    let session = it.session(&task).await?;
    it.desk.answer(&session, &ask, decision).map(Json).map_err(|error| match error {
        AnswerError::NotPending { .. } => refusal(StatusCode::CONFLICT, &error.to_string()),
        _ => refusal(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
    })
}

/// What a request is answered with that cannot be served.
fn refusal(status: StatusCode, why: &str) -> (StatusCode, Json<Value>) {
    (status, Json(json!({"error": why})))
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives the value")]
fn failed(error: SessionError) -> (StatusCode, Json<Value>) {
    let status = match &error {
        SessionError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        SessionError::TaskHasSession { .. } | SessionError::InProgress { .. } => StatusCode::CONFLICT,
        SessionError::Agent { source, .. } if source.is_not_found() => StatusCode::NOT_FOUND,
        error if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    refusal(status, &error_chain(&error))
}

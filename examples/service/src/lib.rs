//! A task runner as an HTTP service: what a service has to write itself when the library does the rest.
//!
//! | | |
//! |---|---|
//! | `POST /tasks` | a task: `{"task", "project", "directory", "worktree", "prompt"}`; runs in the background |
//! | `GET /tasks`, `GET /tasks/{task}` | all of them; one with whether it runs, what it cost and how its last prompt ended |
//! | `GET /tasks/{task}/events` | the conversation as it stands and then every update, as server-sent events |
//! | `POST /tasks/{task}/prompts` | a further prompt, as text; waits for its turn |
//! | `GET /tasks/{task}/diff` | the files that the last prompt changed, with patches |
//! | `POST /tasks/{task}/abort` | stops it, and the prompts that wait |
//! | `GET /asks` | what waits for a person |
//! | `POST /tasks/{task}/asks/{ask}` | a decision, such as `{"type": "allowOnce"}` |
//!
//! Killed at any moment and started again with the same store, it goes on with every prompt that was open, and sends none twice. There
//! is no authentication: put it behind something that has.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use futures_util::{Stream, StreamExt, stream};
use opencode_conductor::{
    AbortReport, AnswerError, ApprovalDesk, Ask, BlockBody, ConversationManager, CreateTaskSession, Decision,
    Error, FileChange, MessageId, OpenCodeClient, PromptInput, RequestId, RunningPrompt,
    SessionConversationState, SessionError, SessionId, Store, TaskId, error_chain,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

/// The service; cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    manager: ConversationManager,
    desk: ApprovalDesk,
    /// How the last prompt of each task ended, in this process.
    ended: Arc<Mutex<HashMap<TaskId, Value>>>,
    running: TaskTracker,
}

/// A task to be run.
#[derive(Debug, Deserialize)]
struct NewTask {
    task: TaskId,
    project: String,
    directory: PathBuf,
    worktree: PathBuf,
    prompt: String,
}

/// What a request is answered with that cannot be served.
#[derive(Debug)]
struct Refusal(StatusCode, String);

type Answer<T> = Result<T, Refusal>;
type S = State<Service>;
type Task = Path<TaskId>;
type SseEvent = Result<Event, axum::Error>;

impl Service {
    /// Starts the service, which goes on with the prompts that an earlier process left open in the store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn start(client: OpenCodeClient, store: Arc<dyn Store>) -> Result<Self, Error> {
        let desk = ApprovalDesk::new();
        let builder = ConversationManager::builder(client).store(store);
        let manager = builder.permissions(desk.permissions()).questions(desk.questions()).build();
        let service = Self { manager, desk, ended: Arc::default(), running: TaskTracker::new() };
        for turn in service.manager.restore().await? {
            if let Some(task) = turn.record.task_id {
                service.follow(task, turn.running);
            }
        }
        Ok(service)
    }

    /// Its routes.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/tasks", post(create).get(async |State(it): S| Json(it.manager.sessions())))
            .route("/tasks/{task}", get(async |State(it): S, Path(task): Task| it.view(&task).await))
            .route("/tasks/{task}/events", get(events))
            .route("/tasks/{task}/prompts", post(prompt))
            .route("/tasks/{task}/diff", get(diff))
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

    fn run(&self, task: TaskId, session: SessionId, prompt: String) {
        self.follow(task, self.manager.prompt(PromptInput::new(session, prompt)).start());
    }

    /// Notes how a prompt ends.
    fn follow(&self, task: TaskId, running: RunningPrompt) {
        let service = self.clone();
        self.running.spawn(async move {
            let ended = match running.await {
                Ok(result) => json!(result),
                Err(error) => json!({"completion": error}),
            };
            service.ended().insert(task, ended);
        });
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<TaskId, Value>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, task: &TaskId) -> Answer<SessionId> {
        let session = self.manager.task_session_id(task);
        session.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, format!("there is no task {task}")))
    }

    /// The conversation; that of a session which this process has not used yet is loaded.
    async fn conversation(&self, session: &SessionId) -> Answer<SessionConversationState> {
        match self.manager.conversation(session) {
            Some(state) => Ok(state),
            None => Ok(self.manager.load_conversation(session).await?),
        }
    }

    async fn view(&self, task: &TaskId) -> Answer<Json<Value>> {
        let session = self.session(task)?;
        let usage = self.conversation(&session).await?.total_usage();
        let (meta, is_running) = (self.manager.session(&session), self.manager.is_running(&session));
        let last = self.ended().get(task).cloned();
        Ok(Json(json!({"session": meta, "isRunning": is_running, "usage": usage, "last": last})))
    }
}

async fn create(State(service): S, Json(new): Json<NewTask>) -> Answer<(StatusCode, Json<Value>)> {
    let create = CreateTaskSession::new(new.project, new.task.clone(), new.directory, new.worktree);
    let session = service.manager.create_task_session(create).await?.session_id;
    service.run(new.task.clone(), session, new.prompt);
    Ok((StatusCode::ACCEPTED, service.view(&new.task).await?))
}

async fn events(State(service): S, Path(task): Task) -> Answer<Sse<impl Stream<Item = SseEvent>>> {
    let session = service.session(&task)?;
    service.conversation(&session).await?;
    let (state, updates) = service.manager.watch(&session)?;
    let snapshot = stream::once(async move { Event::default().event("snapshot").json_data(state) });
    let updates = updates.map(|update| Event::default().event("update").json_data(update));
    Ok(Sse::new(snapshot.chain(updates)).keep_alive(KeepAlive::default()))
}

async fn prompt(State(service): S, Path(task): Task, prompt: String) -> Answer<StatusCode> {
    let session = service.session(&task)?;
    service.run(task, session, prompt);
    Ok(StatusCode::ACCEPTED)
}

async fn diff(State(service): S, Path(task): Task) -> Answer<Json<Vec<FileChange>>> {
    let session = service.session(&task)?;
    let state = service.conversation(&session).await?;
    let mut prompts = state.blocks().iter().filter(|it| matches!(it.body, BlockBody::UserMessage { .. }));
    match prompts.next_back() {
        Some(prompt) => Ok(Json(service.manager.diff(&session, &MessageId::new(prompt.id.as_str())).await?)),
        None => Ok(Json(Vec::new())),
    }
}

async fn abort(State(service): S, Path(task): Task) -> Answer<Json<AbortReport>> {
    let session = service.session(&task)?;
    Ok(Json(service.manager.abort_all(&session).await?))
}

async fn answer(
    State(service): S,
    Path((task, ask)): Path<(TaskId, RequestId)>,
    Json(decision): Json<Decision>,
) -> Answer<Json<Ask>> {
    let session = service.session(&task)?;
    service.desk.answer(&session, &ask, decision).map(Json).map_err(|error| match error {
        AnswerError::NotPending { .. } => Refusal(StatusCode::CONFLICT, error.to_string()),
        _ => Refusal(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    })
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        let status = match &error {
            SessionError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            SessionError::TaskHasSession { .. } | SessionError::InProgress { .. } => StatusCode::CONFLICT,
            SessionError::Unknown { .. } => StatusCode::NOT_FOUND,
            error if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self(status, error_chain(&error))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

#![doc = include_str!("../README.md")]

mod database;
mod options;
mod owner;
mod saved;
mod schema;

pub use options::SqliteOptions;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use opencode_conductor::{
    BoxFuture, ConversationSessionMeta, MessageId, SavedSessionData, SessionId, SessionListData, Store,
    StoreError, StoreErrorKind, TaskClaim, TaskId, TurnRecord,
};
use tokio::sync::oneshot;

use crate::database::{Database, Failure};

/// What the thread of a store is asked to do. What came of it is told once it is on disk.
type Call = Box<dyn FnOnce(&mut Database) -> Answer + Send>;

/// Tells the caller what came of it: an error if what was written could not be committed.
type Answer = Box<dyn FnOnce(Result<(), &Failure>)>;

/// This many calls are written at once, so that the last one need not wait for long before the first is told.
const BATCH: usize = 256;

/// A handle to a store in a SQLite file.
///
/// The file is used by one thread per handle, in the order of the calls. Calls that wait for it are written together, which costs the disk
/// as much as one. Dropping the handle waits for the calls that were made, and gives up what it has claimed.
pub struct SqliteStore {
    path: PathBuf,
    /// Nothing only while it is dropped.
    calls: Option<mpsc::Sender<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens a store, or makes an empty one, with the default options.
    ///
    /// # Errors
    /// As for [`SqliteOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteOptions::new().open(path).await
    }

    /// The database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn open_with(options: SqliteOptions, path: &Path) -> Result<Self, StoreError> {
        let attempt = format!("opening {}", path.display());
        let (calls, inbox) = mpsc::channel::<Call>();
        let (opened, is_open) = oneshot::channel();
        let in_thread = path.to_owned();
        let thread = std::thread::Builder::new().name("sqlite-store".to_owned()).spawn(move || {
            match Database::open(&in_thread, &options) {
                Ok(mut database) => {
                    // The caller of `open` may have gone away.
                    drop(opened.send(Ok(())));
                    while let Ok(call) = inbox.recv() {
                        let waiting = inbox.try_iter().take(BATCH - 1);
                        database.together(std::iter::once(call).chain(waiting).collect());
                    }
                }
                Err(failure) => drop(opened.send(Err(failure))),
            }
        });
        let failed = |error| StoreError::new(attempt.clone(), StoreErrorKind::Failed).because(error);
        let thread = thread.map_err(failed)?;
        match is_open.await {
            Ok(Ok(())) => Ok(Self { path: path.to_owned(), calls: Some(calls), thread: Some(thread) }),
            Ok(Err(failure)) => Err(failure.into_error(attempt)),
            Err(_) => Err(StoreError::new(attempt, StoreErrorKind::Failed)),
        }
    }

    /// Has the thread do something, in the order of these calls. `attempt` says what, for the error.
    fn call<T: Send + 'static>(
        &self,
        attempt: String,
        work: impl FnOnce(&mut Database) -> Result<T, Failure> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, answer) = oneshot::channel();
        let call: Call = Box::new(move |database| {
            let done = work(database);
            Box::new(move |committed| {
                let told = done.and_then(|done| committed.map(|()| done).map_err(Failure::again));
                // The caller may have gone away.
                drop(sender.send(told));
            })
        });
        let sent = self.calls.as_ref().is_some_and(|calls| calls.send(call).is_ok());
        Box::pin(async move {
            match answer.await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(failure)) => Err(failure.into_error(attempt)),
                // The thread has panicked.
                Err(_) => {
                    let kind = if sent { StoreErrorKind::Failed } else { StoreErrorKind::Unavailable };
                    Err(StoreError::new(attempt, kind))
                }
            }
        })
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            // Its caller is gone, and cannot be told.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn claim_task<'a>(
        &'a self,
        task: &'a TaskId,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>> {
        let (task, tag) = (task.clone(), tag.to_owned());
        self.call(format!("claiming task {task}"), move |database| database.claim_task(&task, &tag))
    }

    fn release_task<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<(), StoreError>> {
        let task = task.clone();
        self.call(format!("releasing task {task}"), move |database| database.release_task(&task))
    }

    fn put_session<'a>(
        &'a self,
        session: &'a ConversationSessionMeta,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let attempt = format!("writing session {}", session.session_id);
        self.call(attempt, move |database| database.put_session(&session))
    }

    fn remove_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        self.call(format!("removing session {session}"), move |database| database.remove_session(&session))
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<ConversationSessionMeta>, StoreError>> {
        self.call("reading the sessions".to_owned(), Database::sessions)
    }

    fn put_turn<'a>(&'a self, record: &'a TurnRecord) -> BoxFuture<'a, Result<(), StoreError>> {
        let record = record.clone();
        let (session, message) = (&record.prompt.session_id, &record.prompt.message_id);
        let attempt = format!("recording the turn of {message} in session {session}");
        self.call(attempt, move |database| database.put_turn(&record))
    }

    fn remove_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (session, message) = (session.clone(), message.clone());
        let attempt = format!("forgetting the turn of {message} in session {session}");
        self.call(attempt, move |database| database.remove_turn(&session, &message))
    }

    fn claim_turn<'a>(
        &'a self,
        session: &'a SessionId,
        message: &'a MessageId,
    ) -> BoxFuture<'a, Result<Option<TurnRecord>, StoreError>> {
        let (session, message) = (session.clone(), message.clone());
        let attempt = format!("claiming the turn of {message} in session {session}");
        self.call(attempt, move |database| database.claim_turn(&session, &message))
    }

    fn claim_turns(&self) -> BoxFuture<'_, Result<Vec<TurnRecord>, StoreError>> {
        self.call("claiming the open turns".to_owned(), Database::claim_turns)
    }

    fn put_saved<'a>(&'a self, data: &'a SavedSessionData) -> BoxFuture<'a, Result<(), StoreError>> {
        let data = data.clone();
        let attempt = format!("saving session {}", data.listed.session_id);
        self.call(attempt, move |database| database.put_saved(data))
    }

    fn saved<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<SavedSessionData>, StoreError>> {
        let session = session.clone();
        self.call(format!("reading saved session {session}"), move |database| database.saved(&session))
    }

    fn remove_saved<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        self.call(format!("removing saved session {session}"), move |database| {
            database.remove_saved(&session)
        })
    }

    fn saved_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionListData>, StoreError>> {
        self.call("listing the saved sessions".to_owned(), Database::saved_sessions)
    }

    fn release(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.call("releasing all claims".to_owned(), Database::release)
    }
}

//! What outlives a process: the turns that are open, each with its prepared prompt and how far it got.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::{
    agent::{BoxFuture, Phase, PreparedPrompt},
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
};

/// A prompt that was prepared, and how far it got: all that another process needs to go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnRecord {
    /// The task that the session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Where the session works.
    pub directory: Directory,
    /// The prompt, to the byte.
    pub prompt: PreparedPrompt,
    /// How far it got.
    pub phase: Phase,
}

impl TurnRecord {
    /// A prompt of a session that works in `directory`.
    pub fn new(task_id: Option<TaskId>, directory: Directory, prompt: PreparedPrompt, phase: Phase) -> Self {
        Self { task_id, directory, prompt, phase }
    }
}

/// Keeps records of turns.
pub trait Store: Send + Sync {
    /// Writes a record, in place of an earlier one of the same message. Returns once it is safe.
    ///
    /// # Errors
    /// If it could not be written. The turn then ends before the effect that the record's phase names.
    fn put_turn<'a>(
        &'a self,
        record: &'a TurnRecord,
    ) -> BoxFuture<'a, Result<(), Box<dyn Error + Send + Sync>>>;
}

/// Keeps records in memory: for tests, and to see what would be kept.
#[derive(Debug, Default)]
pub struct MemoryStore {
    turns: Mutex<BTreeMap<(SessionId, MessageId), TurnRecord>>,
}

impl MemoryStore {
    /// The records of turns that are not over, by session and message.
    pub fn open_turns(&self) -> Vec<TurnRecord> {
        self.turns().values().filter(|record| record.phase != Phase::Finished).cloned().collect()
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<(SessionId, MessageId), TurnRecord>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn put_turn<'a>(
        &'a self,
        record: &'a TurnRecord,
    ) -> BoxFuture<'a, Result<(), Box<dyn Error + Send + Sync>>> {
        let key = (record.prompt.session_id.clone(), record.prompt.message_id.clone());
        self.turns().insert(key, record.clone());
        Box::pin(std::future::ready(Ok(())))
    }
}

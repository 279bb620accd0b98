//! What is known of a session while it is open here.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use super::{
    ClaudeFiles, FileRead, SessionMirror,
    activity::Activity,
    error::ClaudeError,
    process::{Line, MAX_LINE},
    wire::StreamMessage,
};
use crate::{
    agent::ConversationSink,
    conversation::{ConversationEvent, ConvertOptions},
    lock::lock,
};

/// What is known of a session: folded from the output of its process and from its files, and told to its conversation.
pub(super) struct Live {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    sink: Arc<dyn ConversationSink>,
}

pub(super) struct State {
    pub(super) activity: Activity,
    pub(super) mirror: SessionMirror,
    /// The process whose output counts: what an earlier one still says does not.
    process: u64,
    /// The last line that could not be read.
    pub(super) malformed: Option<ClaudeError>,
}

impl Live {
    pub(super) fn new(convert: ConvertOptions, sink: Arc<dyn ConversationSink>) -> Self {
        let mirror = SessionMirror::new(convert);
        let state = State { activity: Activity::default(), mirror, process: 0, malformed: None };
        Self { state: Mutex::new(state), changed: watch::Sender::new(0), sink }
    }

    /// For short sections only, never across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes whenever something was taken in.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A new process is about to be started; the number is for its lines.
    pub(super) fn restart(&self, cost: Option<f64>) -> u64 {
        let mut state = self.state();
        state.activity.restart(cost);
        state.process += 1;
        state.process
    }

    /// Takes in a line of a process.
    pub(super) fn line(&self, process: u64, line: &Line<'_>) {
        let decoded = match line {
            Line::Whole(line) => StreamMessage::from_bytes(line).map_err(ClaudeError::from),
            Line::TooLong => Err(ClaudeError::LineTooLong { limit: MAX_LINE }),
        };
        let mut state = self.state();
        if state.process != process {
            return;
        }
        match decoded {
            Ok(message) => {
                let events = state.mirror.stream(&message);
                state.activity.take(&Arc::new(message));
                // Under the lock, so that events come in the order of the lines.
                self.emit(events);
            }
            Err(error) => {
                tracing::warn!(%error, "a line was left out");
                state.malformed = Some(error);
            }
        }
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Takes in what was read from the session's files.
    pub(super) fn read(&self, files: &ClaudeFiles, read: FileRead) {
        let mut state = self.state();
        let events = state.mirror.files(files, read);
        self.emit(events);
    }

    fn emit(&self, events: Vec<ConversationEvent>) {
        if !events.is_empty() {
            self.sink.emit(events);
        }
    }
}

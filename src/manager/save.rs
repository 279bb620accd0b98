//! Saving a session as it goes.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::warn;

use super::{
    SessionError,
    agent_session::Shared,
    inner::{Inner, agent_error},
    record::Recording,
};
use crate::{
    backoff::Backoff,
    conversation::BlockBody,
    deadline::reached,
    session::{SavedSessionData, SessionStatus},
    transcript::{Architecture, CombinedTranscript},
};

/// How long changes are collected before they are saved: short enough to lose little, long enough that a conversation which is written
/// whole is not written all the time.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before a store that failed is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(10);

pub(super) type Answer = oneshot::Sender<Result<(), SessionError>>;

/// Saves one session, and is the only one to do so for its handles.
pub(super) struct Saver {
    inner: Arc<Inner>,
    recording: Recording,
    shared: Arc<Shared>,
}

impl Saver {
    pub(super) fn new(inner: Arc<Inner>, recording: Recording, shared: Arc<Shared>) -> Self {
        Self { inner, recording, shared }
    }

    /// Saves what changes, until the last handle that could change it is dropped.
    pub(super) async fn run(self, mut asked: mpsc::Receiver<Answer>) {
        let mut changes = self.shared.session.conversation.changes();
        let mut backoff = Backoff::new(PAUSE, MAX_PAUSE);
        // That there is a session is to be seen at once.
        let mut due = Some(Instant::now());
        loop {
            let answer = tokio::select! {
                biased;
                () = self.inner.shutdown.cancelled() => break,
                answer = asked.recv() => match answer {
                    Some(answer) => Some(answer),
                    None => break,
                },
                () = reached(due) => None,
                _ = changes.changed() => {
                    due.get_or_insert_with(|| Instant::now() + PAUSE);
                    continue;
                }
            };
            changes.mark_unchanged();
            let saved = self.save().await;
            due = match &saved {
                Ok(()) => {
                    backoff.reset();
                    None
                }
                // It was forgotten, and nothing will change that.
                Err(SessionError::Unknown { .. }) => None,
                Err(_) => Some(Instant::now() + backoff.next_pause()),
            };
            match (answer, saved) {
                // The caller of `save` may have gone.
                (Some(answer), saved) => drop(answer.send(saved)),
                (None, Err(error)) => self.warn(&error),
                (None, Ok(())) => {}
            }
        }
        if (due.is_some() || changes.has_changed().unwrap_or(false))
            && let Err(error) = self.save().await
        {
            self.warn(&error);
        }
    }

    fn warn(&self, error: &SessionError) {
        warn!(session = %self.shared.session.id, %error, "the session could not be saved");
    }

    async fn save(&self) -> Result<(), SessionError> {
        let session = &self.shared.session;
        let transcript = session.agent.transcript().await;
        let transcript =
            transcript.map_err(|source| agent_error("reading the transcript of", &session.id, source))?;
        let (architecture, transcript) = match transcript {
            Some(transcript) => (self.inner.agent.architecture(), transcript),
            None => (Architecture::Conversation, self.written().await),
        };
        // Not what was forgotten while its transcript was read.
        self.inner.known(&session.id)?;
        let data = self.refresh(architecture, transcript);
        let saved = self.recording.wait(self.recording.store.put_saved(&data)).await;
        saved.map_err(|source| SessionError::Store { source })
    }

    /// The conversation as a transcript.
    async fn written(&self) -> CombinedTranscript {
        let state = self.shared.session.conversation.state();
        // A long conversation takes milliseconds, in which others want to go on.
        let written = tokio::task::spawn_blocking(move || serde_json::to_string(&state)).await;
        CombinedTranscript::new(written.ok().and_then(Result::ok).unwrap_or_default())
    }

    /// Takes over what is known now.
    fn refresh(&self, architecture: Architecture, transcript: CombinedTranscript) -> Arc<SavedSessionData> {
        let session = &self.shared.session;
        let meta = session.meta();
        let state = session.conversation.state();
        let failed = state
            .blocks()
            .iter()
            .next_back()
            .is_some_and(|block| matches!(block.body, BlockBody::Error { .. }));
        let status = match (session.queue.is_taken(), failed) {
            (true, _) => SessionStatus::Running,
            (false, true) => SessionStatus::Error,
            (false, false) => SessionStatus::Idle,
        };
        let mut data = self.shared.data();
        // The old transcripts are not copied for this.
        let mut next = SavedSessionData::new(data.listed.clone());
        next.workspace_files.clone_from(&data.workspace_files);
        next.agent_profile.clone_from(&data.agent_profile);
        next.extra.clone_from(&data.extra);
        next.listed.architecture = architecture;
        next.listed.status = status;
        next.listed.last_activity = next.listed.last_activity.max(Some(meta.updated_at.millis()));
        next.refresh(transcript);
        *data = Arc::new(next);
        Arc::clone(&data)
    }
}

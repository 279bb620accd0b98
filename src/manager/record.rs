//! Writing down what must not be lost with the process.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, warn};

use crate::{
    agent::{BoxFuture, Phase},
    backoff::Backoff,
    lock::lock,
    store::{Store, StoreError, StoreErrorKind, TurnRecord},
};

/// The first pause before a store that failed is tried again, and the longest.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(10);

/// What happens to a turn when its store fails, or does not answer in time.
///
/// A store that works and says no always ends the turn: the prompt belongs to another process then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenStoreFails {
    /// The turn ends before the effect that could not be recorded.
    #[default]
    FailTurn,
    /// The turn goes on, and is recorded once the store works again. If the process dies before that, the next one does not
    /// know of the prompt: it may be lost, and if you send it again, it may run twice.
    GoOn,
}

/// A manager's store, and how patient it is with it.
#[derive(Clone)]
pub(super) struct Recording {
    pub(super) store: Arc<dyn Store>,
    pub(super) when_it_fails: WhenStoreFails,
    pub(super) patience: Duration,
}

impl Recording {
    /// Waits for an answer of the store, but not for ever.
    pub(super) async fn wait<T>(&self, call: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        match timeout(self.patience, call).await {
            Ok(answer) => answer,
            Err(elapsed) => {
                let attempt = "waiting for the store";
                Err(StoreError::new(attempt, StoreErrorKind::Unavailable).because(elapsed))
            }
        }
    }

    /// Whether the work goes on without what `error` kept from being written.
    pub(super) fn goes_on(&self, error: &StoreError) -> bool {
        self.when_it_fails == WhenStoreFails::GoOn && !error.is_refusal()
    }
}

/// Writes the record of one turn, in order.
#[derive(Clone)]
pub(super) struct TurnWriter {
    recording: Recording,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
enum State {
    /// Everything was written.
    #[default]
    Written,
    /// A task tries to write what failed. Holds the newest record that it has not begun to write.
    CatchingUp(Option<Box<TurnRecord>>),
    /// The turn is not this manager's; nothing is written any more.
    Refused,
}

impl TurnWriter {
    pub(super) fn new(recording: Recording, tasks: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { recording, tasks, shutdown, state: Arc::default() }
    }

    /// Writes a record. Returns once it is safe, or, if the turn goes on without it, at once.
    pub(super) async fn write(&self, record: TurnRecord) -> Result<(), StoreError> {
        match &mut *self.state() {
            State::Written => {}
            State::CatchingUp(newest) => {
                *newest = Some(Box::new(record));
                return Ok(());
            }
            State::Refused => {
                return Err(StoreError::new("recording a phase", StoreErrorKind::Taken));
            }
        }
        let Err(error) = self.recording.wait(self.recording.store.put_turn(&record)).await else {
            return Ok(());
        };
        warn!(phase = ?record.phase, %error, "the phase could not be recorded");
        if error.is_refusal() {
            *self.state() = State::Refused;
            return Err(error);
        }
        // What is over is over, whatever the record says.
        if self.recording.goes_on(&error) || record.phase == Phase::Finished {
            *self.state() = State::CatchingUp(Some(Box::new(record)));
            self.tasks.spawn(self.clone().catch_up());
            return Ok(());
        }
        Err(error)
    }

    /// Forgets the turn, as if it had never been written; says whether that is so.
    pub(super) async fn forget(&self, record: &TurnRecord) -> bool {
        if !self.is_up_to_date() {
            return false;
        }
        let (session, message) = (&record.prompt.session_id, &record.prompt.message_id);
        let forgotten = self.recording.wait(self.recording.store.remove_turn(session, message)).await;
        forgotten.inspect_err(|error| warn!(%error, "a turn that was not run could not be forgotten")).is_ok()
    }

    /// Whether everything was written.
    pub(super) fn is_up_to_date(&self) -> bool {
        matches!(*self.state(), State::Written)
    }

    /// Writes what could not be written, until that succeeds or the manager is shut down.
    async fn catch_up(self) {
        let mut backoff = Backoff::new(PAUSE, MAX_PAUSE);
        loop {
            let is_last = tokio::select! {
                () = sleep(backoff.next_pause()) => false,
                () = self.shutdown.cancelled() => true,
            };
            let newest = match &mut *self.state() {
                State::CatchingUp(newest) => newest.take(),
                State::Written | State::Refused => return,
            };
            let Some(record) = newest else {
                *self.state() = State::Written;
                return;
            };
            match self.recording.wait(self.recording.store.put_turn(&record)).await {
                Ok(()) => {
                    let mut state = self.state();
                    if matches!(*state, State::CatchingUp(None)) {
                        *state = State::Written;
                        return;
                    }
                }
                // Another turn of the session may be over and not be written yet, either.
                Err(refusal) if *refusal.kind() == StoreErrorKind::Taken => {
                    error!(session = %record.prompt.session_id, %refusal, "a turn went on that is another's");
                    *self.state() = State::Refused;
                    return;
                }
                Err(_) if is_last => return,
                Err(_) => {
                    if let State::CatchingUp(newest) = &mut *self.state() {
                        newest.get_or_insert(record);
                    }
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("when_it_fails", &self.when_it_fails)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

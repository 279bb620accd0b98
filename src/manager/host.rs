//! What a session's agent may ask of the manager while it works on a prompt.

use std::{
    any::Any,
    collections::BTreeMap,
    error::Error,
    future, mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use futures_util::future::{AbortHandle, abortable};
use tokio::sync::watch;
use tracing::debug;

use super::{
    ended::answer, inner::Inner, input::OnMessage, policy::Policies, queue::Permit, record::TurnWriter,
    restore::turn_key, session::Session, updates::Update,
};
use crate::{
    agent::{
        Ask, Asked, BoxFuture, ConversationSink, Decision, Notice, Phase, PreparedPrompt, StopRequest,
        Subject, TurnHost, WaitOptions,
    },
    conversation::ConversationEvent,
    ids::RequestId,
    lock::lock,
    store::{StoreError, TurnRecord},
    time::Timestamp,
};

/// More than a person reads. A turn can go on for very long.
const MAX_REFUSED: usize = 1000;

/// One turn, as its agent sees it.
pub(super) struct Host<'a> {
    pub(super) turn: &'a TurnState<'a>,
    pub(super) limits: WaitOptions,
}

/// What a turn is about, and what was recorded of it.
pub(super) struct TurnState<'a> {
    session: &'a Session,
    inner: &'a Inner,
    policies: Policies,
    stop: watch::Receiver<Option<StopRequest>>,
    on_message: Option<OnMessage>,
    writer: Option<TurnWriter>,
    recorded: Mutex<Recorded>,
    refused: Arc<Mutex<Refused>>,
    submissions: AtomicUsize,
    /// Ends the wait for a decision that is not needed any more.
    waiting: Mutex<BTreeMap<RequestId, AbortHandle>>,
}

/// What the agent asked for and did not get.
#[derive(Default)]
pub(super) struct Refused {
    /// The first of them, up to [`MAX_REFUSED`].
    pub(super) asks: Vec<Ask>,
    pub(super) n_in_all: usize,
}

impl Refused {
    fn push(&mut self, ask: Ask) {
        self.n_in_all += 1;
        if self.asks.len() < MAX_REFUSED {
            self.asks.push(ask);
        }
    }
}

#[derive(Default)]
struct Recorded {
    /// The turn with the phase that it entered last; nothing before its prompt is prepared.
    turn: Option<TurnRecord>,
    /// The phase that is known to be written.
    written: Option<Phase>,
    /// Why a phase could not be recorded.
    failure: Option<StoreError>,
}

impl<'a> TurnState<'a> {
    /// A turn of `session` that begins now, by the right of a permit.
    pub(super) fn begin(
        inner: &'a Inner,
        session: &'a Session,
        permit: &Permit,
        policies: Policies,
        on_message: Option<OnMessage>,
    ) -> Self {
        let recording = inner.options.recording();
        let writer = recording
            .map(|recording| TurnWriter::new(recording, inner.tasks.clone(), inner.shutdown.clone()));
        Self {
            session,
            inner,
            policies,
            stop: permit.stop(),
            on_message,
            writer,
            recorded: Mutex::default(),
            refused: Arc::default(),
            submissions: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Names the prompt that phases are recorded of, with limits of its own, and the phase that was recorded already.
    pub(super) fn set_prompt(
        &self,
        prompt: &PreparedPrompt,
        limits: Option<WaitOptions>,
        written: Option<Phase>,
    ) {
        let (task, directory) = (self.session.meta().task_id, self.session.directory.clone());
        let phase = written.unwrap_or(Phase::Prepared);
        let turn = TurnRecord { limits, ..TurnRecord::new(task, directory, prompt.clone(), phase) };
        self.inner.in_flight().insert(turn_key(&turn));
        *self.recorded() = Recorded { turn: Some(turn), written, failure: None };
    }

    /// Resolves once the turn is to end.
    pub(super) async fn stop_requested(&self) -> StopRequest {
        let mut stop = self.stop.clone();
        match stop.wait_for(Option::is_some).await.map(|stop| *stop) {
            Ok(Some(request)) => request,
            // The turn is over for the manager.
            Ok(None) | Err(_) => StopRequest::GiveUp,
        }
    }

    /// How often the prompt was submitted.
    pub(super) fn submissions(&self) -> usize {
        self.submissions.load(Ordering::Relaxed)
    }

    /// The phase that the turn entered last.
    pub(super) fn phase(&self) -> Option<Phase> {
        self.recorded().turn.as_ref().map(|turn| turn.phase)
    }

    /// The turn as it was recorded last.
    pub(super) fn turn(&self) -> Option<TurnRecord> {
        self.recorded().turn.clone()
    }

    /// Why a phase could not be recorded, if that happened.
    pub(super) fn take_failure(&self) -> Option<StoreError> {
        self.recorded().failure.take()
    }

    /// What the agent asked for and did not get.
    pub(super) fn take_refused(&self) -> Refused {
        mem::take(&mut *lock(&self.refused))
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<RequestId, AbortHandle>> {
        lock(&self.waiting)
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        lock(&self.recorded)
    }

    /// Records that the turn enters a phase, unless that was recorded already.
    pub(super) async fn record(&self, phase: Phase) -> Result<(), StoreError> {
        let record = {
            let recorded = &mut *self.recorded();
            let Some(turn) = &mut recorded.turn else { return Ok(()) };
            turn.phase = turn.phase.max(phase);
            if recorded.written >= Some(phase) {
                return Ok(());
            }
            TurnRecord { phase, ..turn.clone() }
        };
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.write(record).await?;
        let mut recorded = self.recorded();
        recorded.written = recorded.written.max(Some(phase));
        Ok(())
    }

    /// Records that the turn is over. One that the model was not called for is forgotten instead: its prompt may be sent again.
    pub(super) async fn end(&self, was_run: bool) {
        let Some(turn) = self.turn() else { return };
        let was_run = was_run || turn.phase >= Phase::Started;
        let Some(writer) = &self.writer else { return };
        if !was_run && writer.forget(&turn).await {
            return;
        }
        // What ended is known to the caller; that the record may still say otherwise costs one read after a restart.
        drop(self.record(Phase::Finished).await);
        if !writer.is_up_to_date() {
            // The next prompt tries it once more, or it would be refused because of this one.
            self.session.leave_open(self.turn());
        }
    }
}

impl Drop for TurnState<'_> {
    /// What the agent asked and was not answered needs no answer from here any more.
    fn drop(&mut self) {
        for (request, stop_waiting) in mem::take(&mut *self.waiting()) {
            stop_waiting.abort();
            self.session.conversation.tell(&Update::RequestClosed(request));
        }
        if let Some(turn) = mem::take(&mut *self.recorded()).turn {
            self.inner.in_flight().remove(&turn_key(&turn));
            if thread::panicking() && turn.is_open() {
                // The agent goes on with it.
                self.session.leave_open(Some(turn));
            }
        }
    }
}

impl ConversationSink for Host<'_> {
    fn emit(&self, events: Vec<ConversationEvent>) {
        self.turn.session.conversation.emit(events);
    }

    fn describe(&self, title: Option<&str>, updated_at: Option<Timestamp>) {
        self.turn.session.conversation.describe(title, updated_at);
    }
}

impl TurnHost for Host<'_> {
    fn limits(&self) -> &WaitOptions {
        &self.limits
    }

    fn ask(&self, mut ask: Ask) -> Asked {
        ask.task = self.turn.session.meta().task_id;
        match &ask.subject {
            Subject::Permission(permission) => {
                debug!(asking = %ask.session_id, permission = %permission.permission, "permission asked");
                self.turn.inner.counters.turns.permissions.increment();
            }
            Subject::Questions { .. } => {
                debug!(asking = %ask.session_id, "question asked");
                self.turn.inner.counters.turns.questions.increment();
            }
        }
        self.turn.session.conversation.tell(&Update::Asked(Box::new(ask.clone())));
        let refused = Arc::clone(&self.turn.refused);
        let Asked { is_human, decision } = self.turn.policies.decide(ask.clone());
        let (decision, stop_waiting) = abortable(decision);
        self.turn.waiting().insert(ask.id.clone(), stop_waiting);
        let decision = async move {
            // Once the request is closed there is nothing to decide. The policy's handler is dropped, and takes the request off its list.
            let Ok(said) = decision.await else { return future::pending().await };
            // A refusal in words of its own reaches the model as an answer, and an answer that does not fit as a refusal.
            let decision = ask.fit(said.clone());
            if is_refused(&ask, &said) || is_refused(&ask, &decision) {
                lock(&refused).push(ask);
            }
            decision
        };
        Asked { is_human, decision: Box::pin(decision) }
    }

    fn record(&self, phase: Phase) -> BoxFuture<'_, Result<(), Box<dyn Error + Send + Sync>>> {
        Box::pin(async move {
            self.turn.record(phase).await.map_err(|error| {
                let told = error.to_string();
                self.turn.recorded().failure = Some(error);
                told.into()
            })
        })
    }

    fn notice(&self, notice: Notice) {
        let turns = &self.turn.inner.counters.turns;
        let update = match notice {
            Notice::Submitted { message_id, kick } => {
                let attempt = self.turn.submissions.fetch_add(1, Ordering::Relaxed) + 1;
                debug!(%message_id, attempt, kick, "submit");
                turns.submissions.increment();
                turns.kicks.add(usize::from(kick));
                Update::Submitted(message_id)
            }
            Notice::Polled => return turns.polls.increment(),
            Notice::Status(status) => Update::Status(status),
            Notice::RequestClosed(request) => {
                if let Some(stop_waiting) = self.turn.waiting().remove(&request) {
                    stop_waiting.abort();
                }
                Update::RequestClosed(request)
            }
            Notice::Aborted(report) => {
                return answer(self.turn.session.queue.take_aborts(), &report);
            }
            Notice::StreamLost => Update::StreamLost,
            Notice::StreamRestored => Update::StreamRestored,
        };
        self.turn.session.conversation.tell(&update);
    }

    fn stop_requested(&self) -> BoxFuture<'_, StopRequest> {
        Box::pin(self.turn.stop_requested())
    }

    fn wants_messages(&self) -> bool {
        self.turn.on_message.is_some()
    }

    fn message(&self, message: &dyn Any) {
        if let Some(on_message) = &self.turn.on_message {
            on_message(message);
        }
    }
}

/// Whether the agent does not get what it asks for: a tool may not run, the turn ends, or the model's questions are left to itself.
fn is_refused(ask: &Ask, decision: &Decision) -> bool {
    match decision {
        Decision::Reject(_) | Decision::FailTurn => true,
        Decision::Answer(_) => *decision == ask.decline(),
        Decision::AllowOnce | Decision::AllowAlways => false,
    }
}

//! What a session's agent may ask of the manager while it works on a prompt.

use std::{
    any::Any,
    error::Error,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use tracing::{debug, warn};

use super::{inner::Inner, input::OnMessage, policy::Policies, session::Session, updates::Update};
use crate::{
    agent::{
        Ask, Asked, BoxFuture, ConversationSink, Notice, Phase, PreparedPrompt, StopRequest, Subject,
        TurnHost, WaitOptions,
    },
    conversation::ConversationEvent,
    store::TurnRecord,
    time::Timestamp,
};

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
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    prompt: Option<PreparedPrompt>,
    phase: Option<Phase>,
}

impl<'a> TurnState<'a> {
    /// A turn of `session` that begins now.
    pub(super) fn begin(
        inner: &'a Inner,
        session: &'a Session,
        policies: Policies,
        on_message: Option<OnMessage>,
    ) -> Self {
        Self { session, inner, policies, stop: session.begin_turn(), on_message, recorded: Mutex::default() }
    }

    /// Names the prompt that phases are recorded of, and the phase that was recorded already.
    pub(super) fn set_prompt(&self, prompt: &PreparedPrompt, phase: Option<Phase>) {
        *self.recorded() = Recorded { prompt: Some(prompt.clone()), phase };
    }

    /// The phase that was recorded last.
    pub(super) fn phase(&self) -> Option<Phase> {
        self.recorded().phase
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the turn enters a phase.
    pub(super) async fn record(&self, phase: Phase) -> Result<(), Box<dyn Error + Send + Sync>> {
        let prompt = {
            let mut recorded = self.recorded();
            recorded.phase = recorded.phase.max(Some(phase));
            recorded.prompt.clone()
        };
        let (Some(store), Some(prompt)) = (&self.inner.options.store, prompt) else { return Ok(()) };
        let task_id = self.session.meta().task_id;
        let record = TurnRecord::new(task_id, self.session.directory.clone(), prompt, phase);
        store.put_turn(&record).await.inspect_err(|error| {
            warn!(session = %self.session.id, ?phase, %error, "the phase could not be recorded");
        })
    }
}

impl Drop for TurnState<'_> {
    /// Lets calls that want the turn aborted find that none runs.
    fn drop(&mut self) {
        self.session.end_turn();
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
                debug!(session = %ask.session_id, permission = %permission.permission, "permission asked");
                self.turn.inner.counters.turns.permissions.increment();
            }
            Subject::Questions { .. } => {
                debug!(session = %ask.session_id, "question asked");
                self.turn.inner.counters.turns.questions.increment();
            }
        }
        self.turn.session.conversation.tell(&Update::Asked(Box::new(ask.clone())));
        self.turn.policies.decide(ask)
    }

    fn record(&self, phase: Phase) -> BoxFuture<'_, Result<(), Box<dyn Error + Send + Sync>>> {
        Box::pin(self.turn.record(phase))
    }

    fn notice(&self, notice: Notice) {
        let turns = &self.turn.inner.counters.turns;
        let update = match notice {
            Notice::Submitted { message_id, kick } => {
                debug!(session = %self.turn.session.id, %message_id, kick, "submit");
                turns.submissions.increment();
                turns.kicks.add(usize::from(kick));
                Update::Submitted(message_id)
            }
            Notice::Polled => return turns.polls.increment(),
            Notice::Status(status) => Update::Status(status),
            Notice::RequestClosed(request) => Update::RequestClosed(request),
            Notice::Aborted(report) => return self.turn.session.answer_aborts(&report),
            Notice::StreamLost => Update::StreamLost,
            Notice::StreamRestored => Update::StreamRestored,
        };
        self.turn.session.conversation.tell(&update);
    }

    fn stop_requested(&self) -> BoxFuture<'_, StopRequest> {
        let mut stop = self.turn.stop.clone();
        Box::pin(async move {
            match stop.wait_for(Option::is_some).await.map(|stop| *stop) {
                Ok(Some(request)) => request,
                // The turn is over for the manager.
                Ok(None) | Err(_) => StopRequest::GiveUp,
            }
        })
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

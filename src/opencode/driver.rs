//! Performs what a turn asks for. Tells the turn the time, which it does not read itself.

use std::{collections::HashSet, future::pending, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, trace, warn};

use super::{
    abort::abort_tree,
    client::{ApiError, DirectoryClient, FeedSignal, GoneReason, Subscription, Watch},
    failing::{Attempt, Failing},
    mirror::Observed,
    reading::{Back, SessionReader},
    replies::{Reply, ask},
    session::{OpenCodeSession, stopped},
    turn::machine::{Action, Ended as TurnEnded, Goal, Input, Read, ReadId, Reading, Request, Turn},
    wire::{EventPayload, Message, MessageInfo, ServerEvent, SessionStatus},
};
use crate::{
    agent::{
        AbortReport, AgentError, AgentErrorKind, AgentStatus, Asked, Decision, Delivery, Ended, Limit,
        Notice, Phase, Stop, StopRequest, TurnHost, WaitOptions,
    },
    ids::{MessageId, RequestId, SessionId},
};

/// This many events are taken in at once before the conversation's readers hear of them.
const BATCH: usize = 256;

/// How a driven turn ended, and what only the driver knows of it.
pub(super) struct Driven {
    /// What the turn concluded, else what ended it from outside.
    pub(super) ended: Result<TurnEnded, Ended>,
    /// The message that the prompt became; none for a turn without one.
    pub(super) prompt: Option<MessageId>,
    pub(super) delivery: Delivery,
    /// The server cannot have died meanwhile.
    pub(super) is_unbroken: bool,
    /// The prompt was sent here, so that no turn began after its own which is not part of it.
    pub(super) was_sent: bool,
    pub(super) abort: Option<AbortReport>,
    /// What still failed when it ended, or what the provider said last; nothing if the session came to rest.
    pub(super) cause: Option<AgentError>,
}

/// A prompt to be sent.
pub(super) struct Prompt {
    pub(super) message_id: MessageId,
    pub(super) text: String,
    pub(super) body: Bytes,
    /// The phase that was recorded last.
    pub(super) from: Phase,
}

/// The events of a session, and whether they arrive.
pub(super) struct Events {
    subscription: Subscription,
    stream: Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Opening,
    Open,
    Lost,
}

impl Events {
    /// The events of `session` from when the stream is open.
    pub(super) fn subscribe(session: &OpenCodeSession) -> Self {
        Self { subscription: session.api().subscribe(&session.id), stream: Stream::Opening }
    }

    /// What can tell later whether the stream has been lost since.
    pub(super) fn watch(&self) -> Watch {
        self.subscription.watch()
    }
}

/// One turn of one session.
pub(super) struct Driver<'a> {
    api: DirectoryClient,
    session: &'a OpenCodeSession,
    host: &'a dyn TurnHost,
    prompt: Option<Prompt>,
    events: &'a mut Events,
    turn: Turn,
    began: Instant,
    work: FuturesUnordered<BoxFuture<'a, Done>>,
    /// The phase to record before the next submission.
    unrecorded: Option<Phase>,
    was_sent: bool,
    abort: Option<AbortReport>,
    failing: Failing,
}

/// What came of an action.
enum Done {
    Recorded,
    NotRecorded,
    Submitted(Result<(), ApiError>),
    Read(ReadId, Result<Reading, ApiError>),
    Aborted(AbortReport),
    /// A request of a session was decided about.
    Decided(SessionId, RequestId, Decision),
    Replied(Reply, Result<(), ApiError>),
}

impl<'a> Driver<'a> {
    /// A turn that submits `prompt`, or, without one, waits for the session to come to rest.
    pub(super) fn new(
        session: &'a OpenCodeSession,
        host: &'a dyn TurnHost,
        limits: WaitOptions,
        prompt: Option<Prompt>,
        events: &'a mut Events,
    ) -> Self {
        let goal = prompt.as_ref().map_or(Goal::Rest, |prompt| Goal::Answer {
            prompt: prompt.message_id.clone(),
            text: prompt.text.clone(),
            from: prompt.from.delivery(),
        });
        let mut turn = Turn::new(goal, limits, Duration::ZERO);
        if prompt.is_none() && session.live().was_aborted {
            turn.after_an_abort();
        }
        Self {
            api: session.api(),
            session,
            host,
            prompt,
            events,
            turn,
            began: Instant::now(),
            work: FuturesUnordered::new(),
            unrecorded: None,
            was_sent: false,
            abort: None,
            failing: Failing::default(),
        }
    }

    /// Drives the turn to its end.
    ///
    /// # Cancel safety
    /// Dropping it leaves the server's run alone.
    pub(super) async fn run(mut self) -> Driven {
        // The stream tells of new descendants, not of those that there are.
        for child in self.session.live().tree.children() {
            self.events.subscription.follow(child);
        }
        match self.events.stream {
            Stream::Opening => {}
            Stream::Open => self.take(Input::StreamOpened),
            Stream::Lost => self.take(Input::StreamLost),
        }
        let dropped_before = self.session.live().tree.n_dropped();
        let mut stop = Some(self.host.stop_requested());
        let mut ended = self.advance();
        let ended = loop {
            if let Some(ended) = ended.take() {
                break Ok(ended);
            }
            let wake = self.began + self.turn.next_wakeup().unwrap_or(Duration::from_secs(3600));
            let taken = tokio::select! {
                signal = self.events.subscription.next() => self.signals(signal),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done),
                request = stop_request(&mut stop) => {
                    stop = None;
                    match request {
                        StopRequest::Abort => {
                            self.take(Input::Stop);
                            Ok(())
                        }
                        other => Err(Ended::Stopped(stopped(other))),
                    }
                }
                () = sleep_until(wake) => Ok(()),
            };
            match taken {
                Ok(()) => ended = self.advance(),
                Err(end) => break Err(end),
            }
        };
        if let Ok(ended) = &ended {
            debug!(ended = ended.name(), kicks = self.turn.kicks(), "turn over");
        }
        let dropped = self.session.live().tree.n_dropped() - dropped_before + self.turn.n_dropped();
        if dropped > 0 {
            warn!(dropped, "too many sessions, messages or requests");
            self.api.count_dropped(dropped);
        }
        let cause = self.cause(&ended);
        Driven {
            ended,
            prompt: self.turn.prompt().cloned(),
            delivery: self.turn.delivery(),
            is_unbroken: self.turn.is_unbroken(),
            was_sent: self.was_sent,
            abort: self.abort,
            cause,
        }
    }

    /// Why a turn ended otherwise than by coming to rest, as far as errors tell.
    fn cause(&mut self, ended: &Result<TurnEnded, Ended>) -> Option<AgentError> {
        let delivery = self.turn.delivery();
        if delivery == Delivery::Started {
            self.failing.succeeded(&Attempt::Submission);
        }
        let failing = mem::take(&mut self.failing);
        match ended {
            // What the messages say is all there is to say.
            Ok(TurnEnded::AtRest | TurnEnded::Failed(_)) => None,
            Ok(TurnEnded::Limit(Limit::Retry)) => {
                let said = self.turn.provider_said().map(str::to_owned);
                said.map(|said| AgentError::new(AgentErrorKind::Unavailable, delivery, said))
                    .or(failing.into_last())
            }
            Ok(_) | Err(_) => failing.into_last(),
        }
    }

    /// Tells the turn what happened, and emits what that means.
    fn take(&mut self, input: Input<'_>) {
        let now = self.began.elapsed();
        let observed = self.session.observe(|tree| self.turn.handle(now, tree, input));
        self.observed(&observed);
    }

    /// Follows sessions that were found, and reports messages that changed.
    fn observed(&self, observed: &Observed) {
        for child in &observed.new_sessions {
            self.events.subscription.follow(child);
        }
        self.report(observed);
    }

    /// Performs what the turn asks for.
    fn advance(&mut self) -> Option<TurnEnded> {
        let mut ended = None;
        loop {
            let now = self.began.elapsed();
            let mut actions = Vec::new();
            let observed = self.session.observe(|tree| {
                let step = self.turn.advance(now, tree);
                actions = step.actions;
                step.observed
            });
            self.observed(&observed);
            if actions.is_empty() {
                return ended;
            }
            for action in actions {
                trace!(?action, "turn");
                ended = ended.or(self.perform(action));
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<TurnEnded> {
        match action {
            Action::Record(delivery) => self.record(delivery),
            Action::Submit => self.submit(),
            Action::Read(Read { id, scope }) => {
                self.host.notice(Notice::Polled);
                let read = self.reader().read(scope);
                self.work.push(read.map(move |reading| Done::Read(id, reading)).boxed());
            }
            Action::Ask(request) => self.ask(request),
            Action::Closed(request) => self.host.notice(Notice::RequestClosed(request)),
            Action::Abort => {
                let sessions = self.session.live().tree.confirmed().cloned().collect();
                let (api, root) = (self.api.clone(), self.session.id.clone());
                self.work.push(async move { Done::Aborted(abort_tree(&api, root, sessions).await) }.boxed());
            }
            Action::Finish(ended) => return Some(ended),
        }
        None
    }

    /// Records how far the prompt got: before its submission, and once the model was called. That the server has it changes nothing
    /// about what another process would do, and is not worth a write.
    fn record(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Unknown => self.unrecorded = Some(Phase::Submitted),
            Delivery::Started => {
                let host = self.host;
                let record = async move {
                    // The model runs whatever the record says.
                    drop(host.record(Phase::Started).await);
                    Done::Recorded
                };
                self.work.push(record.boxed());
            }
            Delivery::NotSent | Delivery::Rejected | Delivery::Accepted => {}
        }
    }

    fn submit(&mut self) {
        let Some(prompt) = &self.prompt else { return };
        let (message_id, body) = (prompt.message_id.clone(), prompt.body.clone());
        let (api, session, host) = (self.api.clone(), self.session.id.clone(), self.host);
        let (phase, kick) = (self.unrecorded.take(), self.turn.kicks() > 0);
        self.was_sent = true;
        let submit = async move {
            if let Some(phase) = phase
                && host.record(phase).await.is_err()
            {
                return Done::NotRecorded;
            }
            host.notice(Notice::submitted(message_id, kick));
            Done::Submitted(api.submit(&session, body).await)
        };
        self.work.push(submit.boxed());
    }

    fn reader(&self) -> SessionReader {
        let live = self.session.live();
        let root = self.session.id.clone();
        let (back, expected) = match self.turn.prompt() {
            Some(prompt) => {
                let after = live.tree.turn_logs(&root, prompt).count();
                // The prompt, and the message before it.
                (Back::To(prompt.clone(), live.known_to.clone()), after + 2)
            }
            None => (Back::ToPrompt, 1),
        };
        let known_children = live.tree.children().cloned().collect();
        let (api, reads) = (self.api.clone(), Arc::clone(&self.session.reads));
        SessionReader { api, reads, root, back, expected, known_children }
    }

    fn done(&mut self, done: Done) -> Result<(), Ended> {
        let input = match done {
            Done::Recorded => return Ok(()),
            Done::NotRecorded => return Err(Ended::NotRecorded),
            Done::Submitted(Ok(())) => {
                self.failing.succeeded(&Attempt::Submission);
                Input::Submitted(Delivery::Accepted)
            }
            Done::Submitted(Err(error)) => {
                warn!(%error, "submission failed");
                let (input, delivery) = (refusal(&error), error.delivery());
                self.failing.failed(Attempt::Submission, error);
                if input.is_some() {
                    self.take(Input::SubmissionRefused(delivery));
                }
                input.unwrap_or(Input::Submitted(delivery))
            }
            Done::Read(id, Ok(reading)) => {
                self.failing.succeeded(&Attempt::Read);
                Input::ReadDone(id, reading)
            }
            Done::Read(id, Err(error)) => {
                debug!(%error, "read failed");
                let input = refusal(&error).unwrap_or(Input::ReadFailed(id));
                self.failing.failed(Attempt::Read, error);
                input
            }
            Done::Aborted(report) => {
                let confirmed = report.confirmed;
                self.host.notice(Notice::Aborted(report.clone()));
                self.abort = Some(report);
                Input::AbortDone { confirmed }
            }
            Done::Decided(session, request, decision) => {
                match Reply::new(self.api.clone(), session, request.clone(), decision) {
                    Some(reply) => {
                        self.reply(reply);
                        Input::Decided(request)
                    }
                    None => Input::Refused(request),
                }
            }
            Done::Replied(reply, Ok(())) => {
                self.failing.succeeded(&Attempt::Reply(reply.request));
                return Ok(());
            }
            Done::Replied(reply, Err(error)) => {
                warn!(request = %reply.request, %error, "the request could not be answered yet");
                let input = refusal(&error);
                self.failing.failed(Attempt::Reply(reply.request.clone()), error);
                let Some(input) = input else {
                    self.reply(reply);
                    return Ok(());
                };
                input
            }
        };
        self.take(input);
        Ok(())
    }

    /// Takes in a signal of the feed, and those that wait behind it.
    fn signals(&mut self, first: FeedSignal) -> Result<(), Ended> {
        let mut events = Vec::new();
        let mut next = Some(first);
        let mut n_signals = 0;
        while let Some(signal) = next.take() {
            n_signals += 1;
            match signal {
                FeedSignal::Event(event) => events.push(event),
                signal => {
                    self.take_events(&mut events);
                    self.stream_signal(signal)?;
                }
            }
            if n_signals < BATCH {
                next = self.events.subscription.next().now_or_never();
            }
        }
        self.take_events(&mut events);
        Ok(())
    }

    /// Tells the turn of many events at once, so that the conversation's readers hear of them at once.
    fn take_events(&mut self, events: &mut Vec<Arc<ServerEvent>>) {
        if events.is_empty() {
            return;
        }
        let now = self.began.elapsed();
        let is_told = |event: &&Arc<ServerEvent>| {
            matches!(event.payload, EventPayload::SessionStatus { .. } | EventPayload::SessionUpdated(_))
        };
        let told: Vec<_> = events.iter().filter(is_told).cloned().collect();
        let observed = self.session.observe(|tree| {
            let mut observed = Observed::default();
            for event in events.drain(..) {
                let event = Arc::unwrap_or_clone(event);
                observed.append(self.turn.handle(now, tree, Input::Event(event.into())));
            }
            observed
        });
        for event in told {
            self.tell(&event);
        }
        self.observed(&observed);
    }

    /// Tells the manager what an event says about the root session.
    fn tell(&self, event: &ServerEvent) {
        match &event.payload {
            EventPayload::SessionStatus { session_id, status } if *session_id == self.session.id => {
                self.host.notice(Notice::Status(AgentStatus::from(status)));
            }
            EventPayload::SessionUpdated(info) if info.id == self.session.id => {
                self.host.describe(Some(&info.title), Some(info.time.updated.into()));
            }
            _ => {}
        }
    }

    /// Takes in that the stream opened, was lost, has a gap, or is gone for good.
    fn stream_signal(&mut self, signal: FeedSignal) -> Result<(), Ended> {
        let was_lost = self.events.stream == Stream::Lost;
        let input = match signal {
            FeedSignal::Event(_) => return Ok(()),
            FeedSignal::Gone { reason: GoneReason::ShutDown } => return Err(Ended::Stopped(Stop::GivenUp)),
            FeedSignal::Gone { reason: GoneReason::Unauthorized(error) } => {
                let error = AgentError::new(AgentErrorKind::Unauthorized, error.delivery(), error);
                self.failing = Failing::default();
                self.failing.failed(Attempt::Stream, error);
                return Err(Ended::Unauthorized);
            }
            FeedSignal::Lost { reason } => {
                debug!(%reason, "stream lost");
                self.failing.failed(Attempt::Stream, reason);
                self.events.stream = Stream::Lost;
                self.host.notice(Notice::StreamLost);
                self.take(Input::StreamLost);
                return Ok(());
            }
            FeedSignal::Connected => Input::StreamOpened,
            FeedSignal::Resync { reason } => {
                debug!(%reason, "stream has a gap");
                Input::StreamGap
            }
        };
        self.events.stream = Stream::Open;
        self.failing.succeeded(&Attempt::Stream);
        if was_lost {
            self.host.notice(Notice::StreamRestored);
        }
        self.take(input);
        Ok(())
    }

    /// Lets the policy decide about a request.
    fn ask(&mut self, request: Request) {
        let (id, session) = (request.id().clone(), request.session().clone());
        let path = self.session.live().tree.path(&session);
        let Asked { is_human, decision, .. } = self.host.ask(ask(request, self.session.id.clone(), path));
        if is_human {
            self.take(Input::HumanAsked(id.clone()));
        }
        self.work.push(decision.map(|decision| Done::Decided(session, id, decision)).boxed());
    }

    /// Tells the server what was decided, again and again for as long as the turn waits: an open request holds all of it.
    fn reply(&mut self, mut reply: Reply) {
        let send = async move {
            let sent = reply.send().await;
            Done::Replied(reply, sent)
        };
        self.work.push(send.boxed());
    }

    /// Reports the turn's messages that changed.
    fn report(&self, observed: &Observed) {
        if !self.host.wants_messages() {
            return;
        }
        let Some(prompt) = self.turn.prompt() else { return };
        let root = &self.session.id;
        let mut seen = HashSet::new();
        let changed = observed.changed.iter().filter(|(session, id)| session == root && seen.insert(id));
        let messages: Vec<Arc<Message>> = {
            let live = self.session.live();
            let turn = live.tree.turn_logs(root, prompt);
            let turn = turn.filter_map(|log| log.info.as_ref()).map(MessageInfo::id);
            let turn: HashSet<&MessageId> = turn.chain([prompt]).collect();
            let of_turn = changed.filter(|(_, id)| turn.contains(id));
            of_turn.filter_map(|(_, id)| live.tree.message(root, id).cloned()).collect()
        };
        for message in messages {
            self.host.message(&message);
        }
    }
}

/// Waits for the first request to stop; for ever after that.
async fn stop_request(stop: &mut Option<BoxFuture<'_, StopRequest>>) -> StopRequest {
    match stop {
        Some(request) => request.await,
        None => pending().await,
    }
}

/// What an error says about the whole session, if it is not about one request only.
fn refusal(error: &ApiError) -> Option<Input<'static>> {
    match error {
        error if error.is_not_found() => Some(Input::SessionGone),
        error if error.is_unauthorized() => Some(Input::Unauthorized),
        _ => None,
    }
}

impl From<&SessionStatus> for AgentStatus {
    fn from(status: &SessionStatus) -> Self {
        match status {
            SessionStatus::Idle => Self::Idle,
            SessionStatus::Busy => Self::Busy,
            SessionStatus::Retry { attempt, message, next } => {
                Self::retrying(*attempt, message.as_str(), (*next).into())
            }
            SessionStatus::Unknown(raw) => {
                Self::other(raw.get("type").and_then(serde_json::Value::as_str).unwrap_or_default())
            }
        }
    }
}

//! Performs what a turn asks for. The only reader of the clock.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, trace, warn};

use super::{
    facts::{facts, tree_status},
    policy::{self, PermissionPolicy, QuestionPolicy, Verdict},
    reading::{Back, Messages, Reader, Reading},
    registry::Session,
    replies::{Answered, answer_permission, answer_question},
    result::AbortReport,
    stats::Counters,
    updates::{Reporter, Update},
};
use crate::{
    client::{ApiError, DirectoryClient, FeedSignal, GoneReason, Subscription},
    ids::{MessageId, RequestId, SessionId},
    observe::{Observed, Snapshot},
    turn::{Action, Activity, Delivery, Ended, Facts, Goal, Input, Read, Stop, Turn, WaitOptions},
    wire::{
        EventPayload, Message, MessageInfo, PermissionRequest, PromptRequest, QuestionRequest, ServerEvent,
    },
};

/// How long an abort may take, confirmation included. The server needs 0.1 to 0.4 s.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before the server is asked again whether everything has stopped.
const ABORT_PAUSE: Duration = Duration::from_millis(200);
/// How long the last read after an abort may take.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// This many events are taken in at once before anybody is told.
const BATCH: usize = 256;

/// How a driven turn ended, and what only the driver knows of it.
pub(super) struct Driven {
    pub(super) ended: End,
    pub(super) delivery: Delivery,
    /// The server cannot have died meanwhile.
    pub(super) unbroken: bool,
    /// Whether the event stream was open at the end.
    pub(super) stream_open: bool,
    pub(super) abort: Option<AbortReport>,
    /// Why the last submission failed, or the session could not be read.
    pub(super) cause: Option<ApiError>,
}

pub(super) enum End {
    Turn(Ended),
    Unauthorized,
    GivenUp,
}

/// A wish that the turn be aborted; answered with what came of it.
pub(super) type AbortWish = oneshot::Sender<AbortReport>;

/// Whom to ask, and how long to wait.
pub(super) struct Terms {
    pub(super) wait: WaitOptions,
    pub(super) permissions: PermissionPolicy,
    pub(super) questions: QuestionPolicy,
    pub(super) counters: Arc<Counters>,
}

/// One turn of one session.
pub(super) struct Driver<'a> {
    api: &'a DirectoryClient,
    session: &'a Session,
    terms: &'a Terms,
    prompt: Option<&'a PromptRequest>,
    subscription: &'a mut Subscription,
    reporter: &'a mut Reporter,
    turn: Turn,
    began: Instant,
    work: FuturesUnordered<BoxFuture<'a, Done>>,
    facts: Facts,
    stream_lost: bool,
    /// The requests that have been dealt with.
    requests: HashSet<RequestId>,
    /// Those of them that somebody has answered.
    closed: HashSet<RequestId>,
    /// Those that were open when the read under way began.
    open_before_read: Vec<RequestId>,
    abort: Option<AbortReport>,
    wishes: Vec<AbortWish>,
    cause: Option<ApiError>,
}

/// What came of an action.
enum Done {
    Submitted(Result<(), ApiError>),
    Read(Result<Reading, ApiError>),
    Aborted(AbortReport),
    Answered(Answered),
}

impl<'a> Driver<'a> {
    /// A turn that submits `prompt`, or, without one, waits for the session to come to rest.
    pub(super) fn new(
        api: &'a DirectoryClient,
        session: &'a Session,
        terms: &'a Terms,
        prompt: Option<&'a PromptRequest>,
        subscription: &'a mut Subscription,
        reporter: &'a mut Reporter,
    ) -> Self {
        let goal = if prompt.is_some() { Goal::Answer } else { Goal::Rest };
        Self {
            api,
            session,
            terms,
            prompt,
            subscription,
            reporter,
            turn: Turn::new(goal, terms.wait.clone(), Duration::ZERO),
            began: Instant::now(),
            work: FuturesUnordered::new(),
            facts: Facts::default(),
            stream_lost: false,
            requests: HashSet::new(),
            closed: HashSet::new(),
            open_before_read: Vec::new(),
            abort: None,
            wishes: Vec::new(),
            cause: None,
        }
    }

    /// Drives the turn to its end.
    ///
    /// `connected` says that the subscription has already said so, to an earlier turn on it.
    ///
    /// # Cancel safety
    /// Dropping it leaves the server's run alone.
    pub(super) async fn run(
        mut self,
        connected: Option<bool>,
        stop: &mut mpsc::Receiver<AbortWish>,
    ) -> Driven {
        // The stream tells of new descendants, not of those that there are.
        for child in self.session.live().tree.children() {
            self.subscription.follow(child);
        }
        self.look();
        let mut ended = None;
        if let Some(open) = connected {
            self.stream_lost = !open;
            ended = self.feed(vec![if open { Input::StreamOpened } else { Input::StreamLost }]);
        }
        let ended = loop {
            if let Some(ended) = ended.take() {
                break ended;
            }
            let wake = self.turn.next_wakeup(self.began.elapsed());
            let wake = self.began + wake.unwrap_or(Duration::from_secs(3600));
            let inputs = tokio::select! {
                signal = self.subscription.next() => match self.signals(signal) {
                    Ok(inputs) => inputs,
                    Err(end) => break end,
                },
                Some(done) = self.work.next(), if !self.work.is_empty() => match self.done(done) {
                    Ok(inputs) => inputs,
                    Err(end) => break end,
                },
                Some(wish) = stop.recv() => {
                    self.wishes.push(wish);
                    vec![Input::Stop(Stop::Aborted)]
                }
                () = sleep_until(wake) => vec![Input::Tick],
            };
            ended = self.feed(inputs);
        };
        self.wind_up(ended).await
    }

    async fn wind_up(mut self, end: End) -> Driven {
        self.terms.counters.turns.kicks.add(self.turn.kicks() as usize);
        if let End::Turn(ended) = &end {
            debug!(session = %self.session.id, ended = ended.name(), kicks = self.turn.kicks(), "turn over");
            match ended {
                Ended::NotStarted { .. } if self.abort.is_none() => {}
                Ended::Limit(_) | Ended::Stopped(_) | Ended::NotStarted { .. } => {
                    // What the abort left behind; best effort, since the server may be the reason for all this.
                    let reader = self.reader();
                    let read = Read { messages: true, status: false, tree: self.facts.descendant_open };
                    let confirmed = self.abort.as_ref().is_some_and(|abort| abort.confirmed);
                    if let Ok(Ok(reading)) = timeout(LAST_READ_TIMEOUT, reader.read(read)).await {
                        let snapshot = if confirmed { Snapshot::Settled } else { Snapshot::Live };
                        self.merge(reading, snapshot);
                    }
                    if confirmed {
                        self.settle();
                    }
                }
                Ended::Interrupted => self.settle(),
                Ended::Settled | Ended::NotDelivered(_) | Ended::SessionGone => {}
            }
        }
        // The turn ended before it could be aborted; the wish was for the session, and nothing else runs in it yet.
        if !self.wishes.is_empty() {
            let report = abort_tree(self.api, self.session.id.clone(), self.sessions()).await;
            self.grant(&report);
        }
        self.admit_untold();
        if self.prompt.is_some() || self.reporter.can_catch_up() {
            self.reporter.catch_up(&self.session.live().state);
        }
        Driven {
            ended: end,
            delivery: self.turn.delivery(),
            unbroken: self.turn.is_unbroken(),
            stream_open: self.turn.is_stream_open(),
            abort: self.abort,
            cause: self.cause,
        }
    }

    fn grant(&mut self, report: &AbortReport) {
        for wish in self.wishes.drain(..) {
            // Whoever wished it may have lost interest.
            drop(wish.send(report.clone()));
        }
    }

    fn sessions(&self) -> Vec<SessionId> {
        self.session.live().tree.sessions().cloned().collect()
    }

    /// Takes in that nothing of the tree runs any more, whatever it left unfinished.
    fn settle(&mut self) {
        let mut observed = Observed::default();
        for session in self.sessions() {
            observed.append(self.session.live().tree.settle(&session));
        }
        self.tell(observed);
    }

    /// Gives the turn its inputs and performs what it asks for.
    fn feed(&mut self, inputs: Vec<Input>) -> Option<End> {
        for input in inputs {
            for action in self.turn.handle(self.began.elapsed(), input, self.facts) {
                trace!(session = %self.session.id, ?action, "turn");
                match action {
                    Action::Submit => self.submit(),
                    Action::Read(read) => {
                        self.terms.counters.turns.polls.increment();
                        let reader = self.reader();
                        self.open_before_read = self.requests.difference(&self.closed).cloned().collect();
                        self.work.push(reader.read(read).map(Done::Read).boxed());
                    }
                    Action::Abort => {
                        let abort = abort_tree(self.api, self.session.id.clone(), self.sessions());
                        self.work.push(abort.map(Done::Aborted).boxed());
                    }
                    Action::Finish(ended) => return Some(End::Turn(ended)),
                }
            }
        }
        None
    }

    fn submit(&mut self) {
        if let Some(prompt) = self.prompt {
            debug!(session = %self.session.id, message_id = %prompt.message_id, "submit");
            self.terms.counters.turns.submissions.increment();
            self.reporter.send(Update::Submitted(prompt.message_id.clone()));
            self.work.push(self.api.prompt_async(&self.session.id, prompt).map(Done::Submitted).boxed());
        }
    }

    fn reader(&self) -> Reader {
        let live = self.session.live();
        let root = self.session.id.clone();
        let (back, expected) = match self.prompt {
            Some(prompt) => {
                let after = live.tree.turn_logs(&root, &prompt.message_id).count();
                (Back::To(prompt.message_id.clone()), after + 1)
            }
            None => (Back::ToPrompt, 1),
        };
        let known_children = live.tree.children().cloned().collect();
        Reader { api: self.api.clone(), root, back, expected, known_children }
    }

    fn done(&mut self, done: Done) -> Result<Vec<Input>, End> {
        Ok(match done {
            Done::Submitted(Ok(())) => vec![Input::Submitted(Delivery::Accepted)],
            Done::Submitted(Err(error)) if error.is_unauthorized() => return Err(End::Unauthorized),
            Done::Submitted(Err(error)) => {
                debug!(session = %self.session.id, %error, "submission failed");
                let delivery = error.delivery();
                let gone = error.is_not_found();
                self.cause = Some(error);
                if gone { vec![Input::SessionGone] } else { vec![Input::Submitted(delivery)] }
            }
            Done::Read(Ok(reading)) => {
                let snapshot = if self.turn.read_is_final() { Snapshot::Settled } else { Snapshot::Live };
                self.merge(reading, snapshot)
            }
            Done::Read(Err(error)) => {
                debug!(session = %self.session.id, %error, "read failed");
                let gone = error.is_not_found();
                self.cause = Some(error);
                if gone { vec![Input::SessionGone] } else { vec![Input::ReadFailed] }
            }
            Done::Aborted(report) => {
                self.grant(&report);
                self.abort = Some(report);
                vec![Input::AbortDone]
            }
            Done::Answered(Answered { request, human, fail }) => {
                let closed = self.closed.contains(&request);
                let mut inputs = Vec::new();
                if human {
                    inputs.push(Input::HumanAnswered(request));
                }
                if fail && !closed {
                    inputs.push(Input::Stop(Stop::Refused));
                }
                inputs
            }
        })
    }

    /// Takes in what was read.
    fn merge(&mut self, reading: Reading, snapshot: Snapshot) -> Vec<Input> {
        let Reading { messages, status, children, of_children, permissions, questions } = reading;
        let certainty = |session: &SessionId, messages: &Messages| {
            let runs = status.as_ref().is_some_and(|status| !status.get(session).is_idle());
            if messages.sound && !runs { snapshot } else { Snapshot::Live }
        };
        let mut observed = Observed::default();
        let status = {
            let mut live = self.session.live();
            for child in &children {
                observed.append(live.tree.apply_session(child));
            }
            for (child, messages) in &of_children {
                let snapshot = certainty(child, messages);
                observed.append(live.tree.apply_messages(child, &messages.messages, snapshot));
            }
            if let Some(messages) = &messages {
                let snapshot = certainty(&self.session.id, messages);
                observed.append(live.tree.apply_messages(&self.session.id, &messages.messages, snapshot));
            }
            status.as_ref().map(|status| tree_status(&live.tree, status))
        };
        for child in &observed.new_sessions {
            self.subscription.follow(child);
        }
        let progress = observed.progress;
        let found = !observed.new_sessions.is_empty();
        self.tell(observed);
        self.look();
        let mut inputs = self.close_unlisted(permissions.as_deref(), questions.as_deref());
        for request in permissions.into_iter().flatten() {
            inputs.extend(self.permission(request));
        }
        for request in questions.into_iter().flatten() {
            inputs.extend(self.question(request));
        }
        inputs.push(Input::ReadDone { status, progress });
        if found {
            inputs.push(Input::DescendantFound);
        }
        inputs
    }

    /// Takes in a signal of the feed, and those that wait behind it.
    fn signals(&mut self, first: FeedSignal) -> Result<Vec<Input>, End> {
        let mut inputs = Vec::new();
        let mut observed = Observed::default();
        let mut ended = Ok(());
        let mut next = Some(first);
        let mut n_signals = 0;
        let mut only_text = true;
        let is_watched = self.reporter.wants_messages();
        while let Some(signal) = next.take() {
            n_signals += 1;
            let is_text = |event: &ServerEvent| matches!(event.payload, EventPayload::PartDelta(_));
            only_text &= matches!(&signal, FeedSignal::Event(event) if is_text(event));
            match signal {
                FeedSignal::Connected => {
                    if std::mem::take(&mut self.stream_lost) {
                        self.reporter.send(Update::StreamRestored);
                    }
                    inputs.push(Input::StreamOpened);
                }
                FeedSignal::Lost { reason } => {
                    debug!(session = %self.session.id, %reason, "stream lost");
                    self.stream_lost = true;
                    self.reporter.send(Update::StreamLost);
                    inputs.push(Input::StreamLost);
                }
                FeedSignal::Resync { reason } => {
                    debug!(session = %self.session.id, %reason, "stream has a gap");
                    if std::mem::take(&mut self.stream_lost) {
                        self.reporter.send(Update::StreamRestored);
                    } else {
                        inputs.push(Input::Gap);
                    }
                    inputs.push(Input::StreamOpened);
                }
                FeedSignal::Gone { reason } => {
                    ended = Err(match reason {
                        GoneReason::Unauthorized(_) => End::Unauthorized,
                        GoneReason::ShutDown => End::GivenUp,
                    });
                    break;
                }
                FeedSignal::Event(event) => {
                    let seen = {
                        let mut live = self.session.live();
                        let seen = live.tree.apply_event(&event);
                        live.fold(&seen);
                        seen
                    };
                    match inputs.last_mut() {
                        Some(Input::Observed { progress }) => *progress |= seen.progress,
                        _ => inputs.push(Input::Observed { progress: seen.progress }),
                    }
                    if is_watched {
                        observed.append(seen);
                    }
                    inputs.extend(self.event(&event));
                }
            }
            // What is taken out of the queue is taken in.
            if n_signals < BATCH {
                next = self.subscription.next().now_or_never();
            }
        }
        // More text changes no fact.
        if !only_text {
            self.look();
        }
        self.report(observed);
        ended.map(|()| inputs)
    }

    /// What an event means for the turn, beyond what it shows of messages.
    fn event(&mut self, event: &ServerEvent) -> Option<Input> {
        let root = &self.session.id;
        match &event.payload {
            EventPayload::SessionStatus { session_id, status } => {
                if session_id == root {
                    self.reporter.send(Update::Status(status.clone()));
                }
                self.status(session_id, Activity::from(status))
            }
            EventPayload::SessionIdle { session_id } => self.status(session_id, Activity::Idle),
            EventPayload::SessionError { session_id: Some(session), error: Some(error) }
                if session == root =>
            {
                Some(Input::SessionError(error.clone()))
            }
            EventPayload::SessionDeleted(info) if info.id == *root => Some(Input::SessionGone),
            EventPayload::PermissionAsked(request) => self.permission(request.clone()),
            EventPayload::QuestionAsked(request) => self.question(request.clone()),
            EventPayload::PermissionReplied { request_id, .. }
            | EventPayload::QuestionClosed { request_id, .. } => Some(self.close(request_id)),
            _ => None,
        }
    }

    /// Takes in that a request needs no answer any more.
    fn close(&mut self, request: &RequestId) -> Input {
        if self.requests.contains(request) && self.closed.insert(request.clone()) {
            self.reporter.send(Update::RequestClosed(request.clone()));
        }
        Input::HumanAnswered(request.clone())
    }

    /// Closes what was open before a read and is pending no more: its answer was not heard.
    fn close_unlisted(
        &mut self,
        permissions: Option<&[PermissionRequest]>,
        questions: Option<&[QuestionRequest]>,
    ) -> Vec<Input> {
        let (Some(permissions), Some(questions)) = (permissions, questions) else { return Vec::new() };
        let listed =
            permissions.iter().map(|request| &request.id).chain(questions.iter().map(|request| &request.id));
        let listed: HashSet<&RequestId> = listed.collect();
        let open = std::mem::take(&mut self.open_before_read);
        open.iter().filter(|request| !listed.contains(request)).map(|request| self.close(request)).collect()
    }

    fn status(&self, session: &SessionId, activity: Activity) -> Option<Input> {
        if *session == self.session.id {
            return Some(Input::Status { descendant: None, activity });
        }
        let known = self.session.live().tree.contains(session);
        known.then(|| Input::Status { descendant: Some(session.clone()), activity })
    }

    fn permission(&mut self, request: PermissionRequest) -> Option<Input> {
        let message = request.tool.as_ref().map(|tool| &tool.message_id);
        if !self.is_ours(&request.id, &request.session_id, message) {
            return None;
        }
        let (id, session) = (request.id.clone(), request.session_id.clone());
        debug!(session = %session, permission = %request.permission, "permission asked");
        self.terms.counters.turns.permissions.increment();
        self.reporter.send(Update::PermissionAsked(request.clone()));
        let Verdict { human, decision } = self.terms.permissions.decide(request);
        let answer = answer_permission(self.api, session, id.clone(), human, decision);
        self.work.push(answer.map(Done::Answered).boxed());
        human.then_some(Input::HumanAsked(id))
    }

    fn question(&mut self, request: QuestionRequest) -> Option<Input> {
        let message = request.tool.as_ref().map(|tool| &tool.message_id);
        if !self.is_ours(&request.id, &request.session_id, message) {
            return None;
        }
        let (id, declined) = (request.id.clone(), policy::declined(&request));
        debug!(session = %request.session_id, "question asked");
        self.terms.counters.turns.questions.increment();
        self.reporter.send(Update::QuestionAsked(request.clone()));
        let Verdict { human, decision } = self.terms.questions.decide(request);
        let answer = answer_question(self.api, id.clone(), declined, human, decision);
        self.work.push(answer.map(Done::Answered).boxed());
        human.then_some(Input::HumanAsked(id))
    }

    /// Whether a request is new, of this tree, and not the ghost of a step that is over: after an abort the server goes on
    /// listing what nobody waits for.
    fn is_ours(&mut self, request: &RequestId, session: &SessionId, message: Option<&MessageId>) -> bool {
        let live = self.session.live();
        let known = message.and_then(|message| live.tree.log(session, message)?.info.as_ref());
        let ghost = known.is_some_and(|info| info.time().completed.is_some());
        live.tree.contains(session) && !ghost && self.requests.insert(request.clone())
    }

    /// Folds and tells what was observed.
    fn tell(&mut self, observed: Observed) {
        self.session.live().fold(&observed);
        self.report(observed);
    }

    fn report(&mut self, observed: Observed) {
        if !self.reporter.wants_messages() {
            return;
        }
        let root = &self.session.id;
        let mut told = HashSet::new();
        let changed = observed.changed.iter().filter(|(session, id)| session == root && told.insert(id));
        let messages: Vec<(Arc<Message>, bool)> = {
            let live = self.session.live();
            let turn: HashSet<&MessageId> = self.prompt.map_or_else(HashSet::new, |prompt| {
                let turn = live.tree.turn_logs(root, &prompt.message_id);
                let turn = turn.filter_map(|log| log.info.as_ref()).map(MessageInfo::id);
                turn.chain([&prompt.message_id]).collect()
            });
            changed
                .filter_map(|(_, id)| Some((live.tree.message(root, id)?.clone(), turn.contains(id))))
                .collect()
        };
        self.reporter.observed(observed, messages);
        self.admit_untold();
        // All that was folded has been told or missed by now.
        if self.reporter.can_catch_up() {
            self.reporter.catch_up(&self.session.live().state);
        }
    }

    /// What was loaded meanwhile is in the state, and in no update.
    fn admit_untold(&mut self) {
        if std::mem::take(&mut self.session.live().untold) {
            self.reporter.miss();
        }
    }

    fn look(&mut self) {
        let live = self.session.live();
        self.facts = facts(&live.tree, self.prompt.map(|prompt| &prompt.message_id));
    }
}

/// Aborts a session and its descendants and looks whether they have stopped.
pub(super) async fn abort_tree(
    api: &DirectoryClient,
    root: SessionId,
    sessions: Vec<SessionId>,
) -> AbortReport {
    let stop = async {
        // The server aborts the descendants that it waits for itself, and not those in the background.
        let mut aborted = api.abort(&root).await.is_ok();
        loop {
            let Ok(status) = api.session_status().await else { break false };
            let busy: Vec<&SessionId> = sessions.iter().filter(|id| !status.get(id).is_idle()).collect();
            if busy.is_empty() {
                break aborted;
            }
            for session in busy {
                aborted |= api.abort(session).await.is_ok();
            }
            sleep(ABORT_PAUSE).await;
        }
    };
    let confirmed = timeout(ABORT_TIMEOUT, stop).await.unwrap_or(false);
    if !confirmed {
        warn!(session = %root, "the abort could not be confirmed");
    }
    AbortReport { confirmed, sessions }
}

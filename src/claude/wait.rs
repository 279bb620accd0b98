//! Waiting for a turn: what the process says, what the policy answers, and how long it may take.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{
    activity::{Progress, Seen, Waiting},
    ask,
    clock::{Clock, Due},
    error::ClaudeError,
    process::Exit,
    session::ClaudeSession,
    wire::ControlRequest,
};
use crate::{
    agent::{
        AgentStatus, Ask, BoxFuture, Decision, Limit, Notice, Phase, StopRequest, TurnHost, WaitOptions,
    },
    deadline::reached,
    ids::RequestId,
    time::Millis,
    wall_clock::now,
};

/// What ended the waiting.
#[derive(Debug)]
pub(super) enum Waited {
    /// The turn, and what followed from it, is over.
    Rest,
    /// The process ended.
    Exited(Exit),
    /// A limit ran out.
    Limit {
        limit: Limit,
        /// The failure that the provider was to be asked again after.
        failure: Option<ClaudeError>,
    },
    /// It was stopped from outside.
    Stopped(StopRequest),
    /// The policy ended the turn.
    Refused,
    /// The phase could not be recorded.
    NotRecorded,
}

impl Waited {
    fn limit(limit: Limit, seen: &Seen) -> Self {
        Self::Limit { limit, failure: seen.retry.as_ref().map(ClaudeError::from) }
    }
}

/// A request that the readers of the turn know of, and that is being decided.
struct Open {
    request: RequestId,
    is_human: bool,
}

/// A wait for a session's process.
///
/// It asks for all requests that are open, also for those of an earlier wait. Dropping it closes them for the readers of its turn;
/// the process waits on, and the next wait asks again.
pub(super) struct Wait<'a> {
    session: &'a ClaudeSession,
    turn: &'a dyn TurnHost,
    limits: &'a WaitOptions,
    /// The phases of a prompt are recorded.
    records: bool,
    is_started: bool,
    open: Vec<Open>,
    decisions: FuturesUnordered<BoxFuture<'static, (Arc<ControlRequest>, Ask, Decision)>>,
    /// The status that was told last.
    told: Option<(bool, Option<u32>)>,
}

impl<'a> Wait<'a> {
    /// Waits for what runs in the session, whichever prompt began it.
    pub(super) fn for_rest(
        session: &'a ClaudeSession,
        turn: &'a dyn TurnHost,
        limits: &'a WaitOptions,
    ) -> Self {
        let (open, decisions) = (Vec::new(), FuturesUnordered::new());
        Self { session, turn, limits, records: false, is_started: false, open, decisions, told: None }
    }

    /// Waits for the prompt that was sent just now; records that the model was called.
    pub(super) fn for_prompt(
        session: &'a ClaudeSession,
        turn: &'a dyn TurnHost,
        limits: &'a WaitOptions,
    ) -> Self {
        let mut wait = Self::for_rest(session, turn, limits);
        wait.records = true;
        wait
    }

    /// Waits until the process is at rest, or something else ends the waiting.
    pub(super) async fn wait(mut self) -> Waited {
        let mut changes = self.session.live.changes();
        let Some(exited) = self.session.exited() else { return Waited::Rest };
        let mut exited = exited.boxed();
        let mut clock = Clock::new(Instant::now(), self.limits);
        loop {
            changes.mark_unchanged();
            let seen = match self.look().await {
                Ok(seen) => seen,
                Err(ended) => return ended,
            };
            if seen.waiting == Waiting::Rest {
                return Waited::Rest;
            }
            let asks_a_person = self.open.iter().any(|open| open.is_human);
            clock.observe(Instant::now(), seen.n_events, seen.waiting, asks_a_person);
            let next = clock.next(seen.waiting);
            tokio::select! {
                // What was said before the end counts.
                biased;
                stop = self.turn.stop_requested() => return Waited::Stopped(stop),
                _ = changes.changed() => {}
                Some((request, ask, decision)) = self.decisions.next() => {
                    if self.answer(&request, &ask, decision) {
                        return Waited::Refused;
                    }
                }
                exit = &mut exited => {
                    return match exit {
                        // Its last lines were taken in before.
                        _ if self.session.live.state().activity.is_at_rest() => Waited::Rest,
                        Some(exit) => Waited::Exited(exit),
                        None => Waited::Stopped(StopRequest::GiveUp),
                    };
                }
                () = reached(next.map(|(at, _)| at)) => match next {
                    Some((_, Due::Limit(limit))) => return Waited::limit(limit, &seen),
                    Some((_, Due::Settled)) | None => return Waited::Rest,
                },
            }
        }
    }

    /// Takes in what has happened: records, reports and asks.
    async fn look(&mut self) -> Result<Seen, Waited> {
        let seen = self.session.live.state().activity.see();
        if self.records && !self.is_started && seen.progress >= Progress::Started {
            self.is_started = true;
            if self.turn.record(Phase::Started).await.is_err() {
                return Err(Waited::NotRecorded);
            }
        }
        self.tell(&seen);
        let still_open = |open: &Open| seen.requests.iter().any(|request| request.request_id == open.request);
        for closed in self.open.extract_if(.., |open| !still_open(open)) {
            self.turn.notice(Notice::RequestClosed(closed.request));
        }
        for request in &seen.requests {
            if self.open.iter().all(|open| open.request != request.request_id) {
                self.ask(request);
            }
        }
        if self.records && seen.n_steps > self.limits.max_steps {
            return Err(Waited::limit(Limit::Steps, &seen));
        }
        Ok(seen)
    }

    /// Reports what the process does, if that is news, and the lines of the turn.
    fn tell(&mut self, seen: &Seen) {
        let status = match (&seen.retry, seen.waiting) {
            (Some(retry), _) => {
                let next = Millis::new(now().get().saturating_add_unsigned(retry.retry_delay_ms));
                AgentStatus::retrying(retry.attempt, ClaudeError::from(retry).to_string(), next.into())
            }
            (None, Waiting::Rest) => AgentStatus::Idle,
            (None, _) => AgentStatus::Busy,
        };
        // The moment of the next attempt is no news.
        let kind = (status.is_idle(), seen.retry.as_ref().map(|retry| retry.attempt));
        if self.told != Some(kind) {
            self.told = Some(kind);
            self.turn.notice(Notice::Status(status));
        }
        if self.records && self.turn.wants_messages() {
            for message in &seen.messages {
                self.turn.message(message);
            }
        }
    }

    /// Lets the policy decide about a request; refuses one that is not understood.
    fn ask(&mut self, request: &Arc<ControlRequest>) {
        // A process that has ended does not listen any more.
        if !self.session.is_listening() {
            return;
        }
        let ask = ask::ask(request, &self.session.id, &self.session.live.state().mirror);
        let Some(ask) = ask else {
            self.session.live.state().activity.answer(&request.request_id);
            self.session.write(ask::refuse(&request.request_id));
            return;
        };
        let asked = self.turn.ask(ask.clone());
        self.open.push(Open { request: request.request_id.clone(), is_human: asked.is_human });
        let (request, decision) = (Arc::clone(request), asked.decision);
        self.decisions.push(Box::pin(async move { (request, ask, decision.await) }));
    }

    /// Answers a request, unless it was withdrawn; says whether the turn is over.
    fn answer(&self, request: &ControlRequest, ask: &Ask, decision: Decision) -> bool {
        if !self.session.live.state().activity.answer(&request.request_id) {
            return false;
        }
        let decision = ask.fit(decision);
        self.session.write(ask::answer(request, ask, &decision));
        decision == Decision::FailTurn
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        for open in self.open.drain(..) {
            self.turn.notice(Notice::RequestClosed(open.request));
        }
    }
}

//! Bringing a session to rest: claiming it, waiting for what runs in it, and ending that.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{
    activity::Waiting,
    agent::uuid,
    ask,
    claim::{self, Claim, LOOK_AGAIN},
    clock::{Clock, Due},
    error::ClaudeError,
    request::Setup,
    session::{CLOSE_GRACE, ClaudeSession, Held},
    wait::{Wait, Waited},
};
use crate::agent::{
    AbortReport, AgentError, Ended, Notice, Stop, StopRequest, TimeoutAction, TurnHost, Unprepared,
    WaitOptions,
};

/// How long an owner that is about to let go of a session is waited for.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// How long an interrupted turn may take to end before its process is killed: an abort has ten seconds in all.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// Why a prompt did not come as far as its turn.
pub(super) struct NotSent {
    pub(super) ended: Ended,
    pub(super) abort: Option<AbortReport>,
    pub(super) cause: Option<AgentError>,
}

impl From<ClaudeError> for NotSent {
    fn from(error: ClaudeError) -> Self {
        Self { ended: Ended::NotDelivered, abort: None, cause: Some(error.into()) }
    }
}

impl NotSent {
    /// Whether it is because another owner works with the session.
    pub(super) fn is_in_use(&self) -> bool {
        let cause = self.cause.as_ref().and_then(AgentError::downcast_ref);
        matches!(cause, Some(ClaudeError::SessionInUse { .. }))
    }
}

impl From<NotSent> for Unprepared {
    fn from(not_sent: NotSent) -> Self {
        Self { abort: not_sent.abort, ..Self::new(not_sent.ended, not_sent.cause) }
    }
}

/// Whose turn it is that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// That of the prompt that waits: its limits hold, and it is aborted with the prompt.
    Own,
    /// An earlier one. It is left alone when the prompt that waits for it is out of patience, or is aborted.
    Earlier,
}

impl ClaudeSession {
    /// Makes this the session's only owner, and waits until nothing runs in it.
    pub(super) async fn come_to_rest(
        &self,
        turn: &dyn TurnHost,
        limits: &WaitOptions,
        awaited: Awaited,
    ) -> Result<(), NotSent> {
        let mut limits = limits.clone();
        if awaited == Awaited::Earlier {
            limits = limits.on_limit(TimeoutAction::Leave);
        }
        let limits = &limits;
        let is_held = self.held().is_some();
        if !is_held {
            let path = self.shared.files.lock(&self.id);
            let mut claim = tokio::select! {
                claim = Claim::take(&path, &self.id, CLAIM_PATIENCE) => claim?,
                stop = turn.stop_requested() => return Err(stopped(stop, None)),
            };
            if let Some(process) = claim.process() {
                self.outwait(process, turn, limits, awaited).await?;
            }
            *self.held() = Some(Held { claim, process: None, setup: Setup::default() });
            return Ok(());
        }
        if self.live.state().activity.is_at_rest() {
            return Ok(());
        }
        match Wait::for_rest(self, turn, limits).wait().await {
            Waited::Rest | Waited::Exited(_) => Ok(()),
            Waited::Limit { limit, failure } => {
                let abort = self.abort_on_limit(turn, limits).await;
                Err(NotSent { ended: Ended::Limit(limit), abort, cause: failure.map(AgentError::from) })
            }
            Waited::Stopped(StopRequest::Abort) => Err(stopped(StopRequest::Abort, Some(self.abort().await))),
            Waited::Stopped(StopRequest::GiveUp) => Err(stopped(StopRequest::GiveUp, None)),
            Waited::Refused => {
                let abort = Some(self.abort().await);
                Err(NotSent { ended: Ended::Stopped(Stop::Refused), abort, cause: None })
            }
            Waited::NotRecorded => Err(NotSent { ended: Ended::NotRecorded, abort: None, cause: None }),
        }
    }

    /// Waits for a process whose owner is gone: it finishes its turn and ends.
    async fn outwait(
        &self,
        process: u32,
        turn: &dyn TurnHost,
        limits: &WaitOptions,
        awaited: Awaited,
    ) -> Result<(), NotSent> {
        let mut clock = Clock::new(Instant::now(), limits);
        while claim::is_running(process, &self.id) {
            // Its files are all that shows progress, and a tool that runs shows none.
            let size = self.shared.files.size(&self.id, &self.directory);
            clock.observe(Instant::now(), size, Waiting::Tool, false);
            if let Some((at, Due::Limit(limit))) = clock.next(Waiting::Tool)
                && at <= Instant::now()
            {
                let abort = match limits.on_limit {
                    TimeoutAction::Abort => Some(self.end_left_behind(process).await),
                    TimeoutAction::Leave => None,
                };
                return Err(NotSent { ended: Ended::Limit(limit), abort, cause: None });
            }
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                stop = turn.stop_requested() => {
                    let abort = match stop {
                        StopRequest::Abort if awaited == Awaited::Own => {
                            Some(self.end_left_behind(process).await)
                        }
                        StopRequest::Abort | StopRequest::GiveUp => None,
                    };
                    return Err(stopped(stop, abort));
                }
            }
        }
        Ok(())
    }

    /// Ends a process whose owner is gone.
    async fn end_left_behind(&self, process: u32) -> AbortReport {
        claim::kill(process, &self.id);
        let ended = async {
            while claim::is_running(process, &self.id) {
                sleep(LOOK_AGAIN).await;
            }
        };
        let confirmed = timeout(CLOSE_GRACE, ended).await.is_ok();
        AbortReport::new(confirmed, vec![self.id.clone()])
    }

    pub(super) async fn abort_on_limit(
        &self,
        turn: &dyn TurnHost,
        limits: &WaitOptions,
    ) -> Option<AbortReport> {
        if limits.on_limit == TimeoutAction::Leave {
            return None;
        }
        let report = self.abort().await;
        turn.notice(Notice::Aborted(report.clone()));
        Some(report)
    }

    /// Interrupts whatever runs; kills what does not listen.
    pub(super) async fn abort(&self) -> AbortReport {
        let report = |confirmed| AbortReport::new(confirmed, vec![self.id.clone()]);
        let Some(exited) = self.exited() else { return self.abort_left_behind().await };
        if self.live.state().activity.is_at_rest() {
            return report(true);
        }
        self.write(ask::interrupt(&uuid().into()));
        let mut changes = self.live.changes();
        let at_rest =
            async { while !self.live.state().activity.is_at_rest() && changes.changed().await.is_ok() {} };
        let stopped = async {
            tokio::select! { () = at_rest => {}, _ = exited => {} }
        };
        if timeout(INTERRUPT_GRACE, stopped).await.is_ok() {
            return report(true);
        }
        let exited = {
            let held = self.held();
            let process = held.as_ref().and_then(|held| held.process.as_ref());
            process.map(|process| {
                process.kill();
                process.exited()
            })
        };
        match exited {
            Some(exited) => report(timeout(CLOSE_GRACE, exited).await.is_ok()),
            None => report(true),
        }
    }

    /// Ends the process that an earlier owner left behind, unless the session has an owner now.
    async fn abort_left_behind(&self) -> AbortReport {
        let nothing = AbortReport::new(true, vec![self.id.clone()]);
        if self.held().is_some() {
            return nothing;
        }
        match Claim::take(&self.shared.files.lock(&self.id), &self.id, Duration::ZERO).await {
            Ok(mut claim) => match claim.process() {
                Some(process) => self.end_left_behind(process).await,
                None => nothing,
            },
            Err(_) => AbortReport::new(false, vec![self.id.clone()]),
        }
    }
}

fn stopped(request: StopRequest, abort: Option<AbortReport>) -> NotSent {
    let stop = match request {
        StopRequest::Abort => Stop::Aborted,
        StopRequest::GiveUp => Stop::GivenUp,
    };
    NotSent { ended: Ended::Stopped(stop), abort, cause: None }
}

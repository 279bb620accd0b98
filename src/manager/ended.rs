//! What the end of an execution means for the caller.

use std::sync::Arc;

use super::{
    PromptError, PromptExecutionResult, PromptSubmission,
    inner::{Inner, agent_error},
    queue::{AbortCall, Permit},
    result::AskedSession,
    session::Session,
};
use crate::{
    agent::{
        AbortReport, AgentErrorKind, Completion, Delivery, Ended, Execution, Limit, PreparedPrompt, Stop,
        Unprepared, WaitOptions,
    },
    ids::SessionId,
};

impl Inner {
    /// The error of a prompt whose waiting was given up.
    pub(super) fn given_up(&self, session: &SessionId, delivery: Delivery) -> PromptError {
        let task = self.registry().meta(session).and_then(|meta| meta.task_id);
        let session = session.clone();
        if self.shutdown.is_cancelled() {
            PromptError::ShutDown { session, task, delivery }
        } else {
            PromptError::GivenUp { session, task, delivery }
        }
    }

    /// Why a prompt was not sent.
    pub(super) fn unprepared(
        &self,
        session: &Session,
        limits: &WaitOptions,
        unprepared: Unprepared,
    ) -> PromptError {
        let cause = unprepared.cause.as_ref();
        let is_unreachable = cause.is_some_and(|cause| cause.kind() == AgentErrorKind::Unreachable);
        match unprepared.ended {
            // It is the prompt's as well, and says how long the caller would wait for both.
            Ended::Limit(Limit::Deadline) => self.not_begun(session, limits, unprepared),
            // An agent that cannot be reached is down, not busy.
            Ended::Limit(limit) if limit == Limit::Contact || is_unreachable => PromptError::NotDelivered {
                session: session.id.clone(),
                task: session.meta().task_id,
                delivery: Delivery::NotSent,
                limit: Some(limit),
                allowed: Some(limits.allowed(limit)),
                source: unprepared.cause,
            },
            Ended::Limit(_) => self.not_at_rest(session, limits, unprepared),
            _ => self.not_begun(session, limits, unprepared),
        }
    }

    /// Why the waiting for a session to come to rest has failed.
    pub(super) fn not_at_rest(
        &self,
        session: &Session,
        limits: &WaitOptions,
        unprepared: Unprepared,
    ) -> PromptError {
        match unprepared {
            Unprepared { ended: Ended::Limit(limit), cause, abort } => PromptError::NotAtRest {
                session: session.id.clone(),
                task: session.meta().task_id,
                limit,
                allowed: limits.allowed(limit),
                abort,
                source: cause,
            },
            // There is no prompt that could have been delivered.
            Unprepared { ended: Ended::NotDelivered, cause: Some(cause), .. } => {
                let error = agent_error("waiting for", &session.id, cause);
                PromptError::unopened(session.id.clone(), session.meta().task_id, Delivery::NotSent, error)
            }
            unprepared => self.not_begun(session, limits, unprepared),
        }
    }

    fn not_begun(&self, session: &Session, limits: &WaitOptions, unprepared: Unprepared) -> PromptError {
        let Unprepared { ended, cause, abort } = unprepared;
        let execution = Execution { abort, cause, ..Execution::new(ended, Delivery::NotSent) };
        self.not_started(session, limits, execution)
    }

    /// The result of a turn that the model was called for, else the error.
    pub(super) fn result_of(
        &self,
        session: &Session,
        limits: &WaitOptions,
        prompt: &PreparedPrompt,
        execution: Execution,
    ) -> Result<PromptExecutionResult, PromptError> {
        if execution.ended == Ended::SessionGone {
            self.forget(&session.id);
        }
        if execution.delivery != Delivery::Started {
            return Err(self.not_started(session, limits, execution));
        }
        let completion = match execution.ended {
            Ended::Completed(completion) => completion,
            // The model was called after the agent had given the prompt up; the agent then aborted it.
            Ended::NotRun { .. } | Ended::NotDelivered | Ended::Stopped(Stop::Aborted) => Completion::Aborted,
            Ended::NotRecorded | Ended::Stopped(Stop::GivenUp) => Completion::GivenUp,
            Ended::Stopped(Stop::Refused) => Completion::Refused,
            Ended::Limit(limit) => {
                Completion::timed_out(limit, limits.allowed(limit), execution.abort.clone())
            }
            Ended::SessionGone => Completion::SessionGone,
            Ended::Unauthorized => Completion::Unauthorized,
        };
        let mut submission = PromptSubmission::from(prompt);
        if let Some(other) = execution.message_id {
            submission.message_id = other;
        }
        Ok(PromptExecutionResult {
            submission,
            task_id: session.meta().task_id,
            messages: execution.messages,
            other_prompts: execution.other_prompts,
            refused: Vec::new(),
            completion,
            abort: execution.abort,
            usage: execution.usage.values().copied().sum(),
            usage_by_session: execution.usage,
            conversation: session.conversation.state(),
            cause: execution.cause.map(Arc::new),
            answer: execution.answer,
            session: AskedSession(Some(Arc::downgrade(&session.agent))),
        })
    }

    /// The error of a turn that the model was not called for, as far as is known.
    fn not_started(&self, session: &Session, limits: &WaitOptions, execution: Execution) -> PromptError {
        let Execution { ended, delivery, abort, cause: source, .. } = execution;
        let (session, task) = (session.id.clone(), session.meta().task_id);
        match ended {
            Ended::NotRun { failure } => {
                PromptError::NotStarted { session, task, error: failure.map(Box::new), abort, source }
            }
            Ended::Completed(Completion::Failed(failure)) => {
                PromptError::NotStarted { session, task, error: Some(failure.into()), abort, source }
            }
            Ended::Completed(Completion::Interrupted) => {
                PromptError::Interrupted { session, task, delivery, source }
            }
            Ended::NotDelivered => {
                PromptError::NotDelivered { session, task, delivery, limit: None, allowed: None, source }
            }
            Ended::NotRecorded => PromptError::NotRecorded { session, task, source: None },
            Ended::Limit(limit) => {
                let allowed = limits.allowed(limit);
                PromptError::TimedOut { session, task, limit, allowed, delivery, abort, source }
            }
            Ended::Stopped(Stop::GivenUp) => self.given_up(&session, delivery),
            Ended::SessionGone => PromptError::SessionGone { session, task, delivery, source },
            Ended::Unauthorized => PromptError::Unauthorized { session, task, delivery, source },
            Ended::Completed(_) | Ended::Stopped(Stop::Aborted | Stop::Refused) => {
                PromptError::Aborted { session, task, delivery, abort, source }
            }
        }
    }
}

/// Answers the calls that wanted a turn aborted. A turn that ended before it could be is followed by an abort of the session: that
/// is what they asked for, and nothing else runs in it yet.
pub(super) async fn answer_aborts(session: &Session, calls: Vec<AbortCall>, report: Option<AbortReport>) {
    let report = match report {
        Some(report) => report,
        None => session.agent.abort().await,
    };
    answer(calls, &report);
}

/// Lets the next prompt have its turn. Calls that want aborted what had it before are answered first, since they do not mean the next.
pub(super) async fn pass_on(session: &Session, mut permit: Permit, report: Option<&AbortReport>) {
    while let Err((unanswered, calls)) = permit.pass_on() {
        answer_aborts(session, calls, report.cloned()).await;
        permit = unanswered;
    }
}

pub(super) fn answer(calls: Vec<AbortCall>, report: &AbortReport) {
    for call in calls {
        // The call may have been dropped.
        drop(call.send(report.clone()));
    }
}

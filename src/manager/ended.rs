//! What the end of an execution means for the caller.

use tokio::sync::oneshot;

use super::{PromptError, PromptExecutionResult, PromptSubmission, inner::Inner, session::Session};
use crate::{
    agent::{
        AbortReport, AgentErrorKind, Completion, Delivery, Ended, Execution, Limit, PreparedPrompt, Stop,
        Unprepared,
    },
    ids::SessionId,
};

impl Inner {
    /// The error of a prompt whose waiting was given up.
    pub(super) fn given_up(&self, session: &SessionId, delivery: Delivery) -> PromptError {
        let session = session.clone();
        if self.shutdown.is_cancelled() {
            PromptError::ShutDown { session, delivery }
        } else {
            PromptError::GivenUp { session, delivery }
        }
    }

    /// Why a prompt was not sent.
    pub(super) fn unprepared(&self, session: &Session, unprepared: Unprepared) -> PromptError {
        let Unprepared { ended, cause } = unprepared;
        let is_reached = cause.as_ref().is_none_or(|cause| cause.kind() != AgentErrorKind::Unreachable);
        let ended = match ended {
            Ended::Limit(limit) if limit != Limit::Deadline && is_reached => {
                return PromptError::NotAtRest { session: session.id.clone(), limit, source: cause };
            }
            // An agent that cannot be reached is down, not busy.
            Ended::Limit(limit) if limit != Limit::Deadline => Ended::NotDelivered,
            ended => ended,
        };
        self.not_started(session, Execution { cause, ..Execution::new(ended, Delivery::NotSent) })
    }

    /// The result of a turn that the model was called for, else the error.
    pub(super) fn result_of(
        &self,
        session: &Session,
        prompt: &PreparedPrompt,
        mut execution: Execution,
    ) -> Result<PromptExecutionResult, PromptError> {
        if execution.ended == Ended::SessionGone {
            self.forget(&session.id);
        }
        if execution.delivery != Delivery::Started {
            return Err(self.not_started(session, execution));
        }
        let completion = match execution.ended {
            Ended::Completed(completion) => completion,
            // The model was called after the agent had given the prompt up; the agent then aborted it.
            Ended::NotRun { .. } | Ended::NotDelivered | Ended::Stopped(Stop::Aborted) => Completion::Aborted,
            Ended::NotRecorded | Ended::Stopped(Stop::GivenUp) => Completion::GivenUp,
            Ended::Stopped(Stop::Refused) => Completion::Refused,
            Ended::Limit(limit) => Completion::timed_out(limit, execution.abort.take()),
            Ended::SessionGone => Completion::SessionGone,
            Ended::Unauthorized => Completion::Unauthorized,
        };
        Ok(PromptExecutionResult {
            submission: PromptSubmission::from(prompt),
            messages: execution.messages,
            other_prompts: execution.other_prompts,
            completion,
            usage: execution.usage.values().copied().sum(),
            usage_by_session: execution.usage,
            conversation: session.conversation.state(),
            answer: execution.answer,
        })
    }

    /// The error of a turn that the model was not called for, as far as is known.
    fn not_started(&self, session: &Session, execution: Execution) -> PromptError {
        let Execution { ended, delivery, abort, cause: source, .. } = execution;
        let session = session.id.clone();
        match ended {
            Ended::NotRun { failure } => PromptError::NotStarted { session, error: failure },
            Ended::Completed(Completion::Failed(failure)) => {
                PromptError::NotStarted { session, error: Some(failure) }
            }
            Ended::Completed(Completion::Interrupted) => PromptError::Interrupted { session, delivery },
            Ended::NotDelivered => PromptError::NotDelivered { session, delivery, source },
            Ended::NotRecorded => PromptError::NotRecorded { session, source: None },
            Ended::Limit(limit) => PromptError::TimedOut { session, limit, delivery, abort, source },
            Ended::Stopped(Stop::GivenUp) => self.given_up(&session, delivery),
            Ended::SessionGone => PromptError::SessionGone { session, delivery },
            Ended::Unauthorized => PromptError::Unauthorized { session, delivery, source },
            Ended::Completed(_) | Ended::Stopped(Stop::Aborted | Stop::Refused) => {
                PromptError::Aborted { session, delivery }
            }
        }
    }
}

/// Answers the calls that wanted a turn aborted. A turn that ended before it could be is followed by an abort of the session: that
/// is what they asked for, and nothing else runs in it yet.
pub(super) async fn answer_aborts(
    session: &Session,
    calls: Vec<oneshot::Sender<AbortReport>>,
    report: Option<AbortReport>,
) {
    let report = match report {
        Some(report) => report,
        None => session.agent.abort().await,
    };
    for call in calls {
        // The call may have been dropped.
        drop(call.send(report.clone()));
    }
}

//! What of a turn's work fails, so that an error can say why.

use super::client::{ApiError, ApiErrorKind, FeedLoss};
use crate::{
    agent::{AgentError, AgentErrorKind, Delivery},
    ids::RequestId,
};

/// What is tried again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempt {
    /// To keep the event stream open.
    Stream,
    /// To submit the prompt.
    Submission,
    /// To read the session.
    Read,
    /// To answer this request.
    Reply(RequestId),
}

/// The last error of each attempt that has not succeeded since: what went wrong for a moment, an hour ago, is no cause of anything.
#[derive(Debug, Default)]
pub(super) struct Failing(Vec<(Attempt, AgentError)>);

impl Failing {
    pub(super) fn failed(&mut self, attempt: Attempt, error: impl Into<AgentError>) {
        self.succeeded(&attempt);
        self.0.push((attempt, error.into()));
    }

    pub(super) fn succeeded(&mut self, attempt: &Attempt) {
        self.0.retain(|(failed, _)| failed != attempt);
    }

    /// The last error. A stream that is down says little, so that its error counts only where there is no other.
    pub(super) fn into_last(mut self) -> Option<AgentError> {
        self.0.sort_by_key(|(attempt, _)| *attempt != Attempt::Stream);
        self.0.pop().map(|(_, error)| error)
    }
}

impl From<ApiError> for AgentError {
    fn from(error: ApiError) -> Self {
        Self::new(kind(&error), error.delivery(), error)
    }
}

impl From<FeedLoss> for AgentError {
    fn from(loss: FeedLoss) -> Self {
        let kind = match &loss {
            FeedLoss::Failed(error) => kind(error),
            _ => AgentErrorKind::Unavailable,
        };
        Self::new(kind, Delivery::NotSent, loss)
    }
}

fn kind(error: &ApiError) -> AgentErrorKind {
    match error.kind() {
        _ if error.is_unauthorized() => AgentErrorKind::Unauthorized,
        _ if error.is_not_found() => AgentErrorKind::NotFound,
        ApiErrorKind::Connect(_) => AgentErrorKind::Unreachable,
        _ if error.is_retryable() => AgentErrorKind::Unavailable,
        _ => AgentErrorKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_last_error_of_what_has_not_succeeded_since() {
        let error = |words: &str| AgentError::new(AgentErrorKind::Failed, Delivery::NotSent, words);
        let cause = |failing: Failing| failing.into_last().map(|error| source(&error));
        let mut failing = Failing::default();
        failing.failed(Attempt::Submission, error("submission"));
        failing.failed(Attempt::Read, error("read"));
        failing.failed(Attempt::Reply("per_1".into()), error("reply"));
        failing.failed(Attempt::Submission, error("submission again"));
        failing.failed(Attempt::Stream, error("stream"));
        for (succeeds, expected) in [
            (None, Some("submission again")),
            (Some(Attempt::Submission), Some("reply")),
            (Some(Attempt::Reply("per_2".into())), Some("reply")),
            (Some(Attempt::Reply("per_1".into())), Some("read")),
            (Some(Attempt::Read), Some("stream")),
            (Some(Attempt::Stream), None),
        ] {
            if let Some(attempt) = &succeeds {
                failing.succeeded(attempt);
            }
            let left = Failing(
                failing.0.iter().map(|(attempt, it)| (attempt.clone(), error(&source(it)))).collect(),
            );
            assert_eq!(cause(left).as_deref(), expected, "{succeeds:?}");
        }
    }

    fn source(error: &AgentError) -> String {
        std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
    }
}

//! What a manager did: how its prompts ended, and what that took.

use tokio::time::Instant;

use serde::{Deserialize, Serialize};

use super::{PromptError, PromptExecutionResult};
use crate::{
    agent::Completion,
    count::{Counter, Gauge, Held, counters},
};

counters! {
    /// How the prompts of a manager ended, and what that took.
    TurnStatistics, TurnCounters {
        /// The model finished.
        settled: "opencode_turns_total" ["outcome" = "settled"],
        /// The provider, or the agent, gave up.
        failed: "opencode_turns_total" ["outcome" = "failed"],
        /// The session was aborted.
        aborted: "opencode_turns_total" ["outcome" = "aborted"],
        /// A permission or a question was rejected, which ended it.
        rejected: "opencode_turns_total" ["outcome" = "rejected"],
        /// The manager's own policy ended it because of a request.
        refused: "opencode_turns_total" ["outcome" = "refused"],
        /// The agent died meanwhile.
        interrupted: "opencode_turns_total" ["outcome" = "interrupted"],
        /// A limit ran out.
        timed_out: "opencode_turns_total" ["outcome" = "timed_out"],
        /// The agent did not take the prompt, or did not run it.
        not_started: "opencode_turns_total" ["outcome" = "not_started"],
        /// The manager was shut down, or the caller lost interest.
        given_up: "opencode_turns_total" ["outcome" = "given_up"],
        /// Anything else: bad input, a session that is busy or gone, bad credentials.
        error: "opencode_turns_total" ["outcome" = "error"],
        /// How long they took in all, the waiting in line not included.
        millis: "opencode_turn_milliseconds_total",
        /// Reads of a session while it was waited for.
        polls: "opencode_polls_total",
        /// Submissions of prompts, repeated ones included.
        submissions: "opencode_submissions_total",
        /// Prompts submitted again because they did not start.
        kicks: "opencode_kicks_total",
        /// Permissions asked for.
        permissions: "opencode_permissions_total",
        /// Questions asked.
        questions: "opencode_questions_total",
        /// Permissions that were not given, and questions that were left to the model.
        refusals: "opencode_refusals_total",
    }
}

/// What a manager did since it was made, and what it is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ManagerStatistics {
    /// How its prompts ended, and what that took.
    pub turns: TurnStatistics,
    /// Prompts that wait for their turn now.
    pub waiting: u64,
    /// Prompts in flight now.
    pub running: u64,
}

#[derive(Debug)]
pub(super) struct ManagerCounters {
    pub(super) turns: TurnCounters,
    pub(super) waiting: Gauge,
    pub(super) running: Gauge,
}

impl Default for ManagerCounters {
    fn default() -> Self {
        Self {
            turns: TurnCounters::default(),
            waiting: Gauge::new("opencode_prompts_waiting"),
            running: Gauge::new("opencode_prompts_running"),
        }
    }
}

/// A turn that runs; dropped when it is over.
pub(super) struct Running<'a> {
    turns: &'a TurnCounters,
    _held: Held<'a>,
    began: Instant,
}

impl ManagerCounters {
    pub(super) fn snapshot(&self) -> ManagerStatistics {
        let (waiting, running) = (self.waiting.get(), self.running.get());
        ManagerStatistics { turns: self.turns.snapshot(), waiting, running }
    }

    pub(super) fn begin(&self) -> Running<'_> {
        Running { turns: &self.turns, _held: self.running.hold(), began: Instant::now() }
    }

    /// Counts the end of a prompt.
    pub(super) fn ended(&self, result: &Result<PromptExecutionResult, PromptError>) {
        self.counted_as(result).0.increment();
    }

    /// What the end of a prompt is called, in logs as in metrics.
    pub(super) fn outcome(&self, result: &Result<PromptExecutionResult, PromptError>) -> &'static str {
        self.counted_as(result).1
    }

    fn counted_as(&self, result: &Result<PromptExecutionResult, PromptError>) -> (&Counter, &'static str) {
        let turns = &self.turns;
        match result {
            Ok(result) => match &result.completion {
                Completion::Settled => (&turns.settled, "settled"),
                Completion::Failed(_) => (&turns.failed, "failed"),
                Completion::Aborted => (&turns.aborted, "aborted"),
                Completion::Rejected => (&turns.rejected, "rejected"),
                Completion::Refused => (&turns.refused, "refused"),
                Completion::Interrupted => (&turns.interrupted, "interrupted"),
                Completion::TimedOut { .. } => (&turns.timed_out, "timed_out"),
                Completion::GivenUp => (&turns.given_up, "given_up"),
                Completion::SessionGone | Completion::Unauthorized => (&turns.error, "error"),
            },
            Err(PromptError::NotDelivered { .. } | PromptError::NotStarted { .. }) => {
                (&turns.not_started, "not_started")
            }
            Err(PromptError::TimedOut { .. }) => (&turns.timed_out, "timed_out"),
            Err(PromptError::Interrupted { .. }) => (&turns.interrupted, "interrupted"),
            Err(PromptError::Aborted { .. }) => (&turns.aborted, "aborted"),
            Err(PromptError::GivenUp { .. } | PromptError::ShutDown { .. }) => (&turns.given_up, "given_up"),
            Err(
                PromptError::Invalid(_)
                | PromptError::Attachment(_)
                | PromptError::Session { .. }
                | PromptError::Busy { .. }
                | PromptError::NotAtRest { .. }
                | PromptError::NotRecorded { .. }
                | PromptError::TurnOpen { .. }
                | PromptError::NotClaimed { .. }
                | PromptError::SessionGone { .. }
                | PromptError::Unauthorized { .. }
                | PromptError::Panicked { .. },
            ) => (&turns.error, "error"),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.turns.millis.add(usize::try_from(took.as_millis()).unwrap_or(usize::MAX));
        #[cfg(feature = "metrics")]
        metrics::histogram!("opencode_turn_seconds").record(took);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statistics_of_an_earlier_version_are_read() {
        let read: ManagerStatistics = serde_json::from_value(json!({"turns": {"settled": 2}})).unwrap();
        let turns = TurnStatistics { settled: 2, ..TurnStatistics::default() };
        assert_eq!(read, ManagerStatistics { turns, ..ManagerStatistics::default() });
    }
}

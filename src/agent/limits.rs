//! How long to wait for what.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{error::InvalidInput, setters::setters};

/// How long a turn may take, and for what reasons.
///
/// Only progress in the session's tree moves the sliding limits: heartbeats, other sessions and "still busy" do not. All of them
/// stand still while a human is being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct WaitOptions {
    /// Silence allowed while the model is expected to speak. Default 45 s.
    pub idle_timeout: Duration,
    /// Silence allowed while a tool runs. Default 10 min.
    pub tool_timeout: Duration,
    /// How long the server may go on retrying the provider without progress. Default 5 min.
    pub retry_budget: Duration,
    /// How long an accepted prompt may take to start before it is submitted again; after that, up to four times as long.
    /// Default 5 s: a cold server needs up to 3 s.
    pub start_timeout: Duration,
    /// How often a prompt that does not start is submitted again. Default 3.
    pub max_kicks: u32,
    /// How long a session may be idle with an unfinished message before the turn counts as interrupted, or, if an error came after
    /// the idle, as failed. Default 5 s: after an error the server says idle first and cleans up then, for as long as git takes.
    /// While the event stream shows that the server has not died, and no error came after the idle, only the other limits count.
    pub settle_grace: Duration,
    /// A hard limit for the whole turn. Default none.
    pub deadline: Option<Duration>,
    /// How many steps the model may take. Default 250: on some provider faults the server calls the model without end.
    pub max_steps: usize,
    /// What happens to the agent's run when a limit runs out. Default [`TimeoutAction::Abort`].
    pub on_limit: TimeoutAction,
}

/// What happens to the agent's run when a limit runs out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum TimeoutAction {
    /// The session and its descendants are aborted.
    #[default]
    Abort,
    /// It goes on, and the turn does not wait for it.
    Leave,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(45),
            tool_timeout: Duration::from_secs(600),
            retry_budget: Duration::from_secs(300),
            start_timeout: Duration::from_secs(5),
            max_kicks: 3,
            settle_grace: Duration::from_secs(5),
            deadline: None,
            max_steps: 250,
            on_limit: TimeoutAction::Abort,
        }
    }
}

impl WaitOptions {
    setters! {
        /// Sets the silence allowed while the model is expected to speak; default 45 s.
        idle_timeout(limit: Duration) { idle_timeout = limit }
        /// Sets the silence allowed while a tool runs; default 10 min.
        tool_timeout(limit: Duration) { tool_timeout = limit }
        /// Sets how long the server may go on retrying the provider; default 5 min.
        retry_budget(limit: Duration) { retry_budget = limit }
        /// Sets how long an accepted prompt may take to start; default 5 s.
        start_timeout(limit: Duration) { start_timeout = limit }
        /// Sets how often a prompt that does not start is submitted again; default 3.
        max_kicks(limit: u32) { max_kicks = limit }
        /// Sets how long a session may be idle with an unfinished message; default 5 s.
        settle_grace(limit: Duration) { settle_grace = limit }
        /// Sets a hard limit for the whole turn; default none.
        deadline(limit: impl Into<Option<Duration>>) { deadline = limit.into() }
        /// Sets how many steps the model may take; default 250.
        max_steps(limit: usize) { max_steps = limit }
        /// Sets what happens to the agent's run when a limit runs out; default [`TimeoutAction::Abort`].
        on_limit(action: TimeoutAction) { on_limit = action }
    }

    /// Names the first setting that makes no sense, and the rule that it breaks.
    ///
    /// # Errors
    /// If a duration is zero or longer than a year, or no step is allowed.
    pub fn validate(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_durations(&[
            ("idle_timeout", self.idle_timeout),
            ("tool_timeout", self.tool_timeout),
            ("retry_budget", self.retry_budget),
            ("start_timeout", self.start_timeout),
            ("settle_grace", self.settle_grace),
            ("deadline", self.deadline.unwrap_or(Duration::from_secs(1))),
        ])?;
        if self.max_steps == 0 {
            return Err(InvalidInput::new("max_steps", "must be at least 1"));
        }
        Ok(())
    }
}

/// The limit that a turn ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Limit {
    /// [`WaitOptions::idle_timeout`].
    Idle,
    /// [`WaitOptions::tool_timeout`].
    Tool,
    /// [`WaitOptions::retry_budget`].
    Retry,
    /// [`WaitOptions::deadline`].
    Deadline,
    /// [`WaitOptions::max_steps`].
    Steps,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle => "no progress within idle_timeout",
            Self::Tool => "no progress of a running tool within tool_timeout",
            Self::Retry => "the provider kept failing for longer than retry_budget",
            Self::Deadline => "deadline passed",
            Self::Steps => "more than max_steps steps",
        })
    }
}

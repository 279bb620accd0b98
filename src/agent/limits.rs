//! How long to wait for what.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{error::InvalidInput, setters::setters};

/// How long a turn may take, and for what reasons.
///
/// Only progress in the session's tree moves the sliding limits: heartbeats, other sessions and "still busy" do not. They and
/// the deadline stand still while a human is being asked; `contact_timeout` does not.
///
/// As JSON an object of these names in camel case, with durations in milliseconds; what is absent has its default:
/// `{"idleTimeout": 120000, "maxSteps": 50}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[must_use]
#[non_exhaustive]
pub struct WaitOptions {
    /// Silence allowed while the model is expected to speak. Default 6 min: models that do not show their thinking are silent for minutes, and an
    /// agent that gives up on a silent provider after five, as `OpenCode` does, must get to ask it again.
    #[serde(with = "millis")]
    pub idle_timeout: Duration,
    /// Silence allowed while a tool runs. Default 10 min.
    #[serde(with = "millis")]
    pub tool_timeout: Duration,
    /// How long the agent may be out of reach: there is no event stream, and every request fails. Default 45 s, in which a server is started again.
    #[serde(with = "millis")]
    pub contact_timeout: Duration,
    /// How long the server may go on retrying the provider without progress. Default 5 min.
    #[serde(with = "millis")]
    pub retry_budget: Duration,
    /// How long an accepted prompt may take to start before it is submitted again; after that, up to four times as long.
    /// Default 5 s: a cold server needs up to 3 s.
    #[serde(with = "millis")]
    pub start_timeout: Duration,
    /// How often a prompt that does not start is submitted again. Default 3.
    pub max_kicks: u32,
    /// How long a session may be idle with an unfinished message before the turn counts as interrupted, or, if an error came after
    /// the idle, as failed. Default 5 s: after an error the server says idle first and cleans up then, for as long as git takes.
    /// While the event stream shows that the server has not died, and no error came after the idle, only the other limits count.
    #[serde(with = "millis")]
    pub settle_grace: Duration,
    /// A hard limit for the whole turn. Default none.
    #[serde(with = "optional_millis", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// How many steps the model may take, in the session and, with `OpenCode`, in each subagent. Default 250: on some provider faults the
    /// server calls the model without end.
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
            // To abort a turn that lives is worse than to wait for one that does not, so this is more than any pause that is known to be
            // well: thinking that is not streamed takes up to five minutes, and at five minutes `OpenCode` itself (1.18.33, measured)
            // drops a silent provider and asks again, which is the business of `retry_budget`.
            idle_timeout: Duration::from_secs(360),
            tool_timeout: Duration::from_secs(600),
            contact_timeout: Duration::from_secs(45),
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
        /// Sets the silence allowed while the model is expected to speak; default 6 min.
        idle_timeout(limit: Duration) { idle_timeout = limit }
        /// Sets the silence allowed while a tool runs; default 10 min.
        tool_timeout(limit: Duration) { tool_timeout = limit }
        /// Sets how long the agent may be out of reach; default 45 s.
        contact_timeout(limit: Duration) { contact_timeout = limit }
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

    /// How much a limit allows.
    pub fn allowed(&self, limit: Limit) -> Allowed {
        match limit {
            Limit::Idle => Allowed::Time(self.idle_timeout),
            Limit::Tool => Allowed::Time(self.tool_timeout),
            Limit::Contact => Allowed::Time(self.contact_timeout),
            Limit::Retry => Allowed::Time(self.retry_budget),
            Limit::Deadline => Allowed::Time(self.deadline.unwrap_or_default()),
            Limit::Steps => Allowed::Steps(self.max_steps),
        }
    }

    /// Names the first setting that makes no sense, and the rule that it breaks.
    ///
    /// # Errors
    /// If a duration is zero or longer than a year, or no step is allowed.
    pub fn validate(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_durations(&[
            ("idle_timeout", self.idle_timeout),
            ("tool_timeout", self.tool_timeout),
            ("contact_timeout", self.contact_timeout),
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
    /// [`WaitOptions::contact_timeout`].
    Contact,
    /// [`WaitOptions::retry_budget`].
    Retry,
    /// [`WaitOptions::deadline`].
    Deadline,
    /// [`WaitOptions::max_steps`].
    Steps,
}

/// How much a limit allowed. As JSON `{"millis": 45000}` or `{"steps": 250}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Allowed {
    /// So much time.
    #[serde(rename = "millis", with = "millis")]
    Time(Duration),
    /// So many steps.
    Steps(usize),
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => write!(f, "{time:?}"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "no progress within idle_timeout",
            Self::Tool => "no progress of a running tool within tool_timeout",
            Self::Contact => "the agent was out of reach for longer than contact_timeout",
            Self::Retry => "the provider kept failing for longer than retry_budget",
            Self::Deadline => "deadline passed",
            Self::Steps => "more than max_steps steps",
        })
    }
}

/// Durations as milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        // Rounded up: no limit becomes none.
        let millis = duration.as_nanos().div_ceil(1_000_000);
        serializer.serialize_u64(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// Durations that may be absent, as milliseconds.
mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::millis::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_written_in_milliseconds_and_read_with_defaults() {
        let options =
            WaitOptions::default().idle_timeout(Duration::from_millis(1500)).deadline(Duration::from_secs(7));
        let written = serde_json::to_value(&options).unwrap();
        assert_eq!(written["idleTimeout"], 1500);
        assert_eq!(written["deadline"], 7000);
        assert_eq!(written["onLimit"], "abort");
        assert_eq!(serde_json::from_value::<WaitOptions>(written).unwrap(), options);
        let read: WaitOptions = serde_json::from_value(json!({"maxSteps": 3})).unwrap();
        assert_eq!(read, WaitOptions::default().max_steps(3));
        let short =
            serde_json::to_value(WaitOptions::default().idle_timeout(Duration::from_micros(10))).unwrap();
        assert_eq!(short["idleTimeout"], 1, "0 would be refused");
    }

    #[test]
    fn every_limit_tells_how_much_it_allowed() {
        let options = WaitOptions::default().deadline(Duration::from_secs(60));
        let check = |limit, words: &str, json| {
            let allowed = options.allowed(limit);
            assert_eq!(allowed.to_string(), words);
            assert_eq!(serde_json::to_value(allowed).unwrap(), json);
        };
        check(Limit::Idle, "360s", json!({"millis": 360_000}));
        check(Limit::Tool, "600s", json!({"millis": 600_000}));
        check(Limit::Contact, "45s", json!({"millis": 45_000}));
        check(Limit::Retry, "300s", json!({"millis": 300_000}));
        check(Limit::Deadline, "60s", json!({"millis": 60_000}));
        check(Limit::Steps, "250 steps", json!({"steps": 250}));
    }
}

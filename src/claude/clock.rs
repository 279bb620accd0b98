//! How long a turn may still take.

use tokio::time::{Duration, Instant};

use super::activity::Waiting;
use crate::agent::{Limit, WaitOptions};

/// The limits of a turn. Only what brings the turn forward moves them, and they stand still while a person is being asked.
#[derive(Debug)]
pub(super) struct Clock {
    limits: WaitOptions,
    deadline: Option<Instant>,
    /// When something last happened, and how much had happened by then.
    progress: Instant,
    n_events: u64,
    /// When the provider began to fail.
    retrying: Option<Instant>,
    /// When a person was asked.
    asked: Option<Instant>,
}

/// What time brings next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The turn has its result, and nothing more came.
    Settled,
    /// A limit runs out.
    Limit(Limit),
}

impl Clock {
    pub(super) fn new(now: Instant, limits: &WaitOptions) -> Self {
        let deadline = limits.deadline.map(|limit| now + limit);
        Self { limits: limits.clone(), deadline, progress: now, n_events: 0, retrying: None, asked: None }
    }

    /// Takes in what has happened until now.
    pub(super) fn observe(&mut self, now: Instant, n_events: u64, waiting: Waiting, asks_a_person: bool) {
        match (self.asked, asks_a_person) {
            (None, true) => self.asked = Some(now),
            (Some(since), false) => {
                let pause = now.saturating_duration_since(since);
                self.asked = None;
                self.progress += pause;
                self.deadline = self.deadline.map(|deadline| deadline + pause);
                self.retrying = self.retrying.map(|since| since + pause);
            }
            (None, false) | (Some(_), true) => {}
        }
        if n_events != self.n_events {
            self.n_events = n_events;
            self.progress = now;
            self.retrying = None;
        }
        if waiting == Waiting::Retry {
            self.retrying.get_or_insert(now);
        }
    }

    /// What comes next if nothing else happens, and when; nothing while a person is being asked.
    pub(super) fn next(&self, waiting: Waiting) -> Option<(Instant, Due)> {
        if self.asked.is_some() {
            return None;
        }
        let after = |since: Instant, time: Duration| since.checked_add(time);
        let silence = match waiting {
            Waiting::Rest | Waiting::Confirmation => {
                after(self.progress, self.limits.settle_grace).map(|at| (at, Due::Settled))
            }
            Waiting::Tool => {
                after(self.progress, self.limits.tool_timeout).map(|at| (at, Due::Limit(Limit::Tool)))
            }
            Waiting::Model => {
                after(self.progress, self.limits.idle_timeout).map(|at| (at, Due::Limit(Limit::Idle)))
            }
            Waiting::Retry => {
                let since = self.retrying.unwrap_or(self.progress);
                after(since, self.limits.retry_budget).map(|at| (at, Due::Limit(Limit::Retry)))
            }
        };
        let deadline = self.deadline.map(|at| (at, Due::Limit(Limit::Deadline)));
        silence.into_iter().chain(deadline).min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_silence_has_its_limit_and_people_stop_the_clock() {
        let limits = WaitOptions::default()
            .idle_timeout(Duration::from_secs(1))
            .tool_timeout(Duration::from_secs(10))
            .retry_budget(Duration::from_secs(20))
            .settle_grace(Duration::from_secs(2))
            .deadline(Duration::from_secs(100));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = Clock::new(start, &limits);
        clock.observe(at(5), 1, Waiting::Model, false);
        let cases = [
            (Waiting::Model, at(6), Due::Limit(Limit::Idle)),
            (Waiting::Tool, at(15), Due::Limit(Limit::Tool)),
            (Waiting::Confirmation, at(7), Due::Settled),
        ];
        for (waiting, when, due) in cases {
            assert_eq!(clock.next(waiting), Some((when, due)));
        }
        clock.observe(at(6), 1, Waiting::Retry, false);
        clock.observe(at(16), 1, Waiting::Retry, false);
        assert_eq!(clock.next(Waiting::Retry), Some((at(26), Due::Limit(Limit::Retry))));
        clock.observe(at(20), 2, Waiting::Tool, true);
        assert_eq!(clock.next(Waiting::Tool), None);
        clock.observe(at(90), 2, Waiting::Tool, false);
        assert_eq!(clock.next(Waiting::Tool), Some((at(100), Due::Limit(Limit::Tool))));
        clock.observe(at(168), 3, Waiting::Tool, false);
        assert_eq!(clock.next(Waiting::Tool), Some((at(170), Due::Limit(Limit::Deadline))));
    }
}

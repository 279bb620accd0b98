//! How much longer a turn may take.

use std::{collections::BTreeSet, time::Duration};

use super::{Facts, Limit, WaitOptions};
use crate::ids::RequestId;

/// Text that is streamed during a gap is in no list until it is whole. So after a gap the sliding limit starts anew, but not
/// more often than this without progress: a stream that keeps breaking must not keep a dead turn alive.
const MAX_GAPS: u32 = 3;

/// What the limits of a turn are measured from.
#[derive(Debug)]
pub(super) struct SlidingLimits {
    began: Duration,
    last_progress: Duration,
    /// How often the turn got further.
    n_progress: u64,
    /// Gaps in the stream since the last progress.
    n_gaps: u32,
    retrying: Option<Retrying>,
    /// There has been no stream since then, and every request has failed.
    out_of_reach_since: Option<Duration>,
    /// The requests that a human has yet to answer. All limits but that of contact stand still until then.
    humans: BTreeSet<RequestId>,
    paused_since: Option<Duration>,
    /// How long the limits have stood still in all.
    paused: Duration,
}

/// A provider is called again and again.
#[derive(Debug, Clone, Copy)]
struct Retrying {
    /// When its first call failed since the turn last said or did something.
    since: Duration,
    /// The last call has begun to be answered, so that it is held to the limits of any other until it fails.
    has_begun: bool,
}

impl SlidingLimits {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            began: now,
            last_progress: now,
            n_progress: 0,
            n_gaps: 0,
            retrying: None,
            out_of_reach_since: None,
            humans: BTreeSet::new(),
            paused_since: None,
            paused: Duration::ZERO,
        }
    }

    /// How often the turn got further so far.
    pub(super) fn n_progress(&self) -> u64 {
        self.n_progress
    }

    pub(super) fn progressed(&mut self, now: Duration) {
        self.last_progress = now;
        self.n_progress += 1;
        self.n_gaps = 0;
        if let Some(retrying) = &mut self.retrying {
            retrying.has_begun = true;
        }
    }

    /// The model said something, or a tool did.
    pub(super) fn provider_answered(&mut self) {
        self.retrying = None;
    }

    /// Gives a turn that did not get further time to do so: something was sent to the server, or found out about it.
    pub(super) fn restart(&mut self, now: Duration) {
        self.last_progress = now;
    }

    pub(super) fn gap_ended(&mut self, now: Duration) {
        if self.n_gaps < MAX_GAPS {
            self.n_gaps += 1;
            self.restart(now);
        }
    }

    pub(super) fn provider_retries(&mut self, now: Duration) {
        let retrying = self.retrying.get_or_insert(Retrying { since: now, has_begun: false });
        retrying.has_begun = false;
    }

    /// A request failed, and there is no stream.
    pub(super) fn out_of_reach(&mut self, now: Duration) {
        self.out_of_reach_since.get_or_insert(now);
    }

    /// The server was heard.
    pub(super) fn in_reach(&mut self) {
        self.out_of_reach_since = None;
    }

    pub(super) fn human_asked(&mut self, now: Duration, request: RequestId) {
        self.humans.insert(request);
        self.paused_since.get_or_insert(now);
    }

    /// A human answered, or need not any more.
    pub(super) fn human_answered(&mut self, now: Duration, request: &RequestId) {
        self.humans.remove(request);
        if !self.humans.is_empty() {
            return;
        }
        if let Some(since) = self.paused_since.take() {
            let pause = now.saturating_sub(since);
            self.paused += pause;
            if let Some(retrying) = &mut self.retrying {
                retrying.since += pause;
            }
            // The tool that got an answer needs time to act on it.
            self.restart(now);
        }
    }

    /// The limit in force and when it runs out. While a human is asked there is none but that of contact: a server that is out of
    /// reach has lost the request, or could not take the answer.
    pub(super) fn in_force(&self, options: &WaitOptions, facts: &Facts) -> Option<(Limit, Duration)> {
        let contact = self.out_of_reach_since.map(|since| (Limit::Contact, since + options.contact_timeout));
        if self.paused_since.is_some() {
            return contact;
        }
        let sliding = match self.retrying {
            Some(Retrying { since, has_begun: false }) => (Limit::Retry, since + options.retry_budget),
            _ if facts.tool_running => (Limit::Tool, self.last_progress + options.tool_timeout),
            _ => (Limit::Idle, self.last_progress + options.idle_timeout),
        };
        let deadline = options.deadline.map(|limit| (Limit::Deadline, self.began + self.paused + limit));
        // Of several that run out together, a deadline is what the caller has set.
        deadline.into_iter().chain(contact).chain([sliding]).min_by_key(|(_, at)| *at)
    }
}

//! Which read is under way, and which is to be made next.

use std::time::Duration;

use super::{Read, ReadId, Scope};
use crate::ids::RequestId;

/// While the event stream is down, every so many polls read the whole tree, for requests that no event tells of.
const TREE_POLLS: u32 = 3;

/// What to read, one read at a time.
#[derive(Debug, Default)]
pub(super) struct Reads {
    next_id: u64,
    under_way: Option<ReadUnderWay>,
    wanted: Scope,
    /// Reads because of silence since the last progress.
    n_silence_polls: u32,
    /// Reads since the stream was lost.
    n_blind_polls: u32,
}

/// A read that was asked for, with what was known when it began.
#[derive(Debug)]
pub(super) struct ReadUnderWay {
    id: ReadId,
    pub(super) scope: Scope,
    pub(super) began: Duration,
    pub(super) mark: Mark,
    /// The requests that were open then: those that the read does not list were answered unheard.
    pub(super) open_requests: Vec<RequestId>,
}

/// How much had been heard at some moment. What was read while this changed may be older than what was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) n_status_changes: u64,
    pub(super) n_progress: u64,
}

impl Reads {
    pub(super) fn want(&mut self, scope: Scope) {
        self.wanted = self.wanted.union(scope);
    }

    /// Whether the descendants are to be read.
    pub(super) fn wants_tree(&self) -> bool {
        self.wanted.tree
    }

    /// How many reads were wanted because of silence since the last progress.
    pub(super) fn n_silence_polls(&self) -> u32 {
        self.n_silence_polls
    }

    /// The stream has been silent: one request looks at the messages or at the status, in turns; at the messages each time if the stream
    /// is known not to tell of them.
    pub(super) fn want_for_silence(&mut self, lacks_message_events: bool) {
        self.n_silence_polls += 1;
        let is_for_messages = self.n_silence_polls % 2 == 1;
        if is_for_messages || lacks_message_events {
            self.want(Scope::MESSAGES);
        }
        if !is_for_messages {
            self.want(Scope::STATUS);
        }
    }

    /// There is no stream, so that everything has to be read.
    pub(super) fn want_while_blind(&mut self) {
        self.n_blind_polls += 1;
        let with_tree = self.n_blind_polls.is_multiple_of(TREE_POLLS);
        self.want(if with_tree { Scope::ALL } else { Scope::SESSION });
    }

    pub(super) fn progressed(&mut self) {
        self.n_silence_polls = 0;
    }

    pub(super) fn stream_opened(&mut self) {
        self.n_blind_polls = 0;
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Begins the read that is wanted, if any is.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        mark: Mark,
        open_requests: impl FnOnce() -> Vec<RequestId>,
    ) -> Option<Read> {
        if self.wanted == Scope::default() {
            return None;
        }
        let scope = std::mem::take(&mut self.wanted);
        self.next_id += 1;
        let id = ReadId(self.next_id);
        let open_requests = if scope.requests { open_requests() } else { Vec::new() };
        self.under_way = Some(ReadUnderWay { id, scope, began: now, mark, open_requests });
        Some(Read { id, scope })
    }

    /// Takes the read with this id; nothing if it is not under way any more.
    pub(super) fn end(&mut self, id: ReadId) -> Option<ReadUnderWay> {
        self.under_way.take_if(|read| read.id == id)
    }

    /// Lets nothing be read but what is wanted from now on.
    pub(super) fn reset(&mut self) {
        self.under_way = None;
        self.wanted = Scope::default();
    }
}

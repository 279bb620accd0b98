//! What of the truth reaches the client: events that get lost, and reads that take time.

use std::{collections::VecDeque, sync::Arc};

use super::{plan::ROOT, *};
use crate::opencode::wire::{EventPayload, ServerEvent, StatusMap};

/// The network between server and client, and what this release of the server sends over it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Wire {
    /// Counts the connections of the stream.
    pub(super) connection: u32,
    pub(super) stream_open: bool,
    /// Some releases send no event about a message, a part or a new session, but only what is added to texts.
    pub(super) message_events: bool,
    /// Some releases say twice that a session is idle.
    pub(super) idle_events: bool,
    /// Requests of a hundred that fail.
    pub(super) fails: u64,
    /// Events of a hundred that come twice.
    pub(super) repeats: u64,
    /// Events of a hundred that the client does not take at once, so that more wait when it does.
    pub(super) lags: u64,
    /// Requests of a hundred that another client answers, too.
    pub(super) foreign_answers: u64,
    /// Answers take equally long.
    pub(super) steady: bool,
    /// How long the stream stays down, in milliseconds: at least and at most.
    pub(super) outage: (u64, u64),
    /// How long the first submission may take to be stored, in milliseconds.
    pub(super) slowest_store: u64,
    /// What becomes of the next submissions; after that, what `fails` says.
    pub(super) fates: VecDeque<Fate>,
    /// The reads that fail, by number; others as `fails` says.
    pub(super) failing_reads: BTreeSet<u64>,
    /// How often events were lost on a connection that stayed.
    pub(super) n_overflows: u32,
    /// The sessions whose events reach the client.
    pub(super) followed: BTreeSet<SessionId>,
    /// Events that have arrived and were not taken.
    pub(super) inbox: Vec<Arc<ServerEvent>>,
}

/// What becomes of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrives and is answered.
    Arrives,
    /// It arrives, after so many milliseconds, and its answer is lost.
    ArrivesUnanswered { after_ms: u64 },
    /// It is lost on the way there, or fails without effect: nothing tells which.
    IsLost,
    /// It never leaves.
    IsNotSent,
}

impl Wire {
    /// Where nothing goes wrong.
    pub(super) fn perfect() -> Self {
        Self {
            connection: 0,
            stream_open: false,
            message_events: true,
            idle_events: true,
            fails: 0,
            repeats: 0,
            lags: 0,
            foreign_answers: 0,
            steady: true,
            outage: (3000, 3000),
            slowest_store: 10,
            fates: VecDeque::new(),
            failing_reads: BTreeSet::new(),
            n_overflows: 0,
            followed: BTreeSet::from([ROOT_ID.into()]),
            inbox: Vec::new(),
        }
    }

    pub(super) fn random(rng: &mut fastrand::Rng) -> Self {
        Self {
            message_events: rng.u8(..8) != 0,
            idle_events: rng.u8(..8) != 0,
            // Between a perfect network and one that fails three times in ten.
            fails: [0, 0, 10, 30][rng.usize(..4)],
            repeats: 2,
            lags: [0, 10, 60][rng.usize(..3)],
            foreign_answers: 10,
            steady: false,
            outage: (50, 15_000),
            slowest_store: 2600,
            ..Self::perfect()
        }
    }
}

impl World {
    pub(super) fn emit(&mut self, payload: EventPayload) {
        let is_of_message = matches!(
            payload,
            EventPayload::MessageUpdated(_)
                | EventPayload::PartUpdated { .. }
                | EventPayload::SessionCreated(_)
        );
        if is_of_message && !self.wire.message_events {
            return;
        }
        // Events keep their order: all of one connection take equally long.
        let connection = self.wire.connection;
        let event = Arc::new(ServerEvent::new(payload));
        if self.wire.repeats > 0 && self.chance(self.wire.repeats) {
            self.at(5 * MILLI, Scheduled::Event { connection, event: Arc::clone(&event) });
        }
        self.at(5 * MILLI, Scheduled::Event { connection, event });
    }

    /// An event arrives at the client's end of the stream.
    pub(super) fn arrive(&mut self, event: Arc<ServerEvent>) {
        if let EventPayload::SessionCreated(info) = &event.payload
            && info.parent_id.as_ref().is_some_and(|parent| self.wire.followed.contains(parent))
        {
            self.wire.followed.insert(info.id.clone());
        }
        let is_followed =
            event.payload.session_id().is_some_and(|session| self.wire.followed.contains(session));
        if !is_followed {
            return;
        }
        self.wire.inbox.push(event);
        if self.wire.lags > 0 && self.chance(self.wire.lags) {
            let after = self.between(0, 20);
            self.at(after, Scheduled::TakeEvents);
        } else {
            self.take_events();
        }
    }

    pub(super) fn cut(&mut self) {
        if self.wire.stream_open {
            self.take_events();
            self.wire.stream_open = false;
            self.input(Input::StreamLost);
            let (least, most) = self.wire.outage;
            let after = self.between(least, most);
            self.at(after, Scheduled::Reopen { client: self.client.number });
        }
    }

    /// The client's queue overflows: what is on its way is lost, and the connection stays.
    pub(super) fn overflow(&mut self) {
        if self.wire.stream_open {
            self.wire.connection += 1;
            self.wire.n_overflows += 1;
            self.wire.inbox.clear();
            self.input(Input::StreamGap);
        }
    }

    pub(super) fn reopen(&mut self) {
        if !self.server.alive {
            return self.at(500 * MILLI, Scheduled::Reopen { client: self.client.number });
        }
        if !self.wire.stream_open {
            self.wire.connection += 1;
            self.wire.stream_open = true;
            self.input(Input::StreamOpened);
        }
    }

    /// A read begins with the status, goes on with the messages, and ends with the rest of the tree.
    pub(super) fn read_next(&mut self, mut pending: PendingRead) {
        let client = pending.client;
        let after = self.latency();
        if !self.server.alive {
            return self.at(after, Scheduled::ReadFails { client, id: pending.id });
        }
        if self.server.deleted {
            return self.at(after, Scheduled::Gone { client });
        }
        let left = &mut pending.left;
        let stage = if std::mem::take(&mut left.status) {
            Stage::Status
        } else if std::mem::take(&mut left.messages) {
            Stage::Messages
        } else if std::mem::take(&mut left.tree) {
            Stage::Tree
        } else if std::mem::take(&mut left.requests) {
            Stage::Requests
        } else {
            return self.at(Duration::ZERO, Scheduled::ReadDone { pending });
        };
        match stage {
            Stage::Status => {
                let busy = self.server.sessions.iter().filter(|session| session.doing != plan::Doing::Idle);
                let status = busy.map(|session| (session.info.id.clone(), session.doing.status()));
                pending.reading.status = Some(StatusMap::new(status));
            }
            Stage::Messages => {
                pending.listed_at = self.now;
                pending.reading.messages = Some(self.list(ROOT));
            }
            Stage::Tree => {
                let children = 1..self.server.sessions.len();
                let reading = &mut pending.reading;
                reading.children = self.server.sessions[1..].iter().map(|child| child.info.clone()).collect();
                for child in children {
                    let id = self.server.sessions[child].info.id.clone();
                    let messages = self.list(child);
                    pending.reading.of_children.push((id, messages));
                }
            }
            Stage::Requests => {
                pending.reading.permissions = Some(self.server.permissions.clone());
                pending.reading.questions = Some(self.server.questions.clone());
            }
        }
        self.at(after, Scheduled::Read { pending });
    }

    fn list(&self, session: usize) -> Messages {
        let mut messages = self.server.sessions[session].messages.clone();
        messages.sort_by(|one, two| {
            let place = |message: &Message| (message.info.time().created, message.info.id().clone());
            place(one).cmp(&place(two))
        });
        Messages { messages, is_sound: true }
    }
}

enum Stage {
    Status,
    Messages,
    Tree,
    Requests,
}

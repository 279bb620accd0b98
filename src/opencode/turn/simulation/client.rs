//! Who drives the machine, in place of the manager's driver.

use super::{wire::Fate, *};
use crate::{conversation::ConvertOptions, opencode::mirror::SessionTree};

/// How the client answers requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// Asks a human, who takes up to twenty minutes.
    Human,
    /// Answers at once.
    Rule,
    /// Ends the turn.
    Fail,
}

impl Policy {
    pub(super) fn random(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(..10) {
            0 => Self::Fail,
            1..4 => Self::Rule,
            _ => Self::Human,
        }
    }
}

pub(super) struct Client {
    /// Counts the clients: each is dropped before the next begins.
    pub(super) number: u32,
    pub(super) turn: Turn,
    pub(super) tree: SessionTree,
    pub(super) policy: Policy,
    pub(super) began: Duration,
    /// It does not run: it has died, or has yet to begin.
    pub(super) is_away: bool,
    /// It dies as soon as it has recorded this.
    pub(super) dies_at: Option<Delivery>,
    /// It has recorded what it dies at.
    is_dying: bool,
    pub(super) goal: Goal,
    pub(super) ended: Option<Ended>,
    /// What would be there after a crash of the client.
    pub(super) recorded: Delivery,
    pub(super) submissions: u32,
    pub(super) reads: u64,
    pub(super) wake_at: Option<Duration>,
    /// When the messages were listed that it read last.
    pub(super) listed_at: Duration,
    /// How long the server had made no progress when it was told to abort.
    pub(super) silence: Option<Duration>,
}

impl Client {
    pub(super) fn new(goal: Goal, now: Duration) -> Self {
        let recorded = match &goal {
            Goal::Answer { from, .. } => *from,
            Goal::Rest => Delivery::NotSent,
        };
        Self {
            number: 0,
            turn: Turn::new(goal.clone(), WaitOptions::default(), now),
            tree: SessionTree::new(ROOT_ID.into(), ConvertOptions::default()),
            policy: Policy::Human,
            began: now,
            is_away: false,
            dies_at: None,
            is_dying: false,
            goal,
            ended: None,
            recorded,
            submissions: 0,
            reads: 0,
            wake_at: None,
            listed_at: now,
            silence: None,
        }
    }
}

impl World {
    /// Takes in all events that have arrived, then asks what to do.
    pub(super) fn take_events(&mut self) {
        for event in std::mem::take(&mut self.wire.inbox) {
            self.take(Input::Event((&*event).into()));
        }
        self.advance();
    }

    pub(super) fn input(&mut self, input: Input<'_>) {
        self.take(input);
        self.advance();
    }

    fn take(&mut self, input: Input<'_>) {
        self.print(&input);
        let observed = self.client.turn.handle(self.now, &mut self.client.tree, input);
        self.wire.followed.extend(observed.new_sessions);
    }

    /// The client is gone, with everything but what it recorded. What it sent still arrives.
    pub(super) fn die(&mut self) {
        if !self.client.is_away {
            self.client.number += 1;
            self.client.is_away = true;
            self.wire.stream_open = false;
            self.wire.connection += 1;
            self.wire.inbox.clear();
            let longest = if self.chance(20) { 600_000 } else { 30_000 };
            let after = self.between(0, longest);
            self.at(after, Scheduled::ClientBegins);
        }
    }

    /// A client begins with an empty mirror, where the one before left off.
    pub(super) fn begin(&mut self) {
        let goal = match &self.client.goal {
            Goal::Answer { prompt, text, .. } => {
                Goal::Answer { prompt: prompt.clone(), text: text.clone(), from: self.client.recorded }
            }
            Goal::Rest => Goal::Rest,
        };
        let Client { number, policy, submissions, reads, .. } = self.client;
        self.client = Client { number, policy, submissions, reads, ..Client::new(goal, self.now) };
        self.wire.followed = BTreeSet::from([ROOT_ID.into()]);
        self.at(10 * MILLI, Scheduled::Reopen { client: number });
        self.advance();
    }

    pub(super) fn advance(&mut self) {
        if self.client.is_away {
            return;
        }
        loop {
            self.client.tree.check_lone_calls();
            let actions = self.client.turn.advance(self.now, &mut self.client.tree).actions;
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.print(&action);
                self.perform(action);
                if std::mem::take(&mut self.client.is_dying) {
                    return self.die();
                }
            }
        }
        if let Some(at) = self.client.turn.next_wakeup()
            && self.client.wake_at.is_none_or(|scheduled| at < scheduled)
        {
            self.client.wake_at = Some(at);
            let client = self.client.number;
            self.at(at.saturating_sub(self.now) + Duration::from_nanos(1), Scheduled::Wake { client });
        }
    }

    fn perform(&mut self, action: Action) {
        let client = self.client.number;
        match action {
            Action::Record(delivery) => {
                assert!(delivery > self.client.recorded, "seed {}: recorded back", self.seed);
                self.client.recorded = delivery;
                self.client.is_dying = self.client.dies_at == Some(delivery);
            }
            Action::Submit => self.submit(),
            Action::Read(read) => {
                self.client.reads += 1;
                let after = self.latency();
                if self.chance(self.wire.fails) || self.wire.failing_reads.contains(&self.client.reads) {
                    self.at(after, Scheduled::ReadFails { client, id: read.id });
                } else {
                    let reading = Reading::default();
                    let pending =
                        PendingRead { client, id: read.id, left: read.scope, listed_at: self.now, reading };
                    self.at(after, Scheduled::Read { pending });
                }
            }
            Action::Ask(request) => {
                let human = self.client.policy == Policy::Human;
                let after = if human { self.between(0, 1_200_000) } else { self.latency() };
                let request = request.id().clone();
                self.at(after, Scheduled::Decided { client, request: request.clone() });
                if human {
                    self.take(Input::HumanAsked(request));
                }
            }
            Action::Closed(_) => {}
            Action::Abort => {
                // What a client before this one saw is no progress to it.
                let last_progress = self.server.last_progress.max(self.client.began);
                self.client.silence = Some(self.now.saturating_sub(last_progress));
                let after = self.latency();
                self.at(after, Scheduled::AbortArrives { client });
            }
            Action::Finish(ended) => self.client.ended = Some(ended),
        }
    }

    pub(super) fn decided(&mut self, request: RequestId) {
        if self.client.policy == Policy::Fail {
            return self.input(Input::Refused(request));
        }
        self.at(Duration::ZERO, Scheduled::Reply { request: request.clone() });
        self.input(Input::Decided(request));
    }

    fn print(&self, what: &impl std::fmt::Debug) {
        if self.printed {
            eprintln!("{:>12?} {:?}: {what:?}", self.now, self.server.sessions[0].doing);
        }
    }

    fn submit(&mut self) {
        let recorded = self.client.recorded;
        assert!(recorded >= Delivery::Unknown, "seed {}: sent before it was recorded", self.seed);
        if let Goal::Answer { from: from @ (Delivery::Accepted | Delivery::Started), .. } = self.client.goal {
            let is_kick = from == Delivery::Accepted && self.server.prompt().is_some();
            assert!(is_kick, "seed {}: sent again from {from:?}", self.seed);
        }
        self.client.submissions += 1;
        let client = self.client.number;
        let after = self.latency();
        let fate = self.wire.fates.pop_front().unwrap_or_else(|| {
            if self.rng.u64(..100) >= self.wire.fails {
                return Fate::Arrives;
            }
            match self.rng.u8(..3) {
                0 => Fate::IsNotSent,
                1 => Fate::IsLost,
                _ => Fate::ArrivesUnanswered { after_ms: 0 },
            }
        });
        match fate {
            Fate::Arrives => {
                self.at(after, Scheduled::SubmissionArrives { client, answer: Some(Delivery::Accepted) });
            }
            Fate::ArrivesUnanswered { after_ms: 0 } => {
                self.at(after, Scheduled::SubmissionArrives { client, answer: Some(Delivery::Unknown) });
            }
            Fate::ArrivesUnanswered { after_ms } => {
                let late = Duration::from_millis(after_ms);
                self.at(late, Scheduled::SubmissionArrives { client, answer: None });
                self.at(after, Scheduled::Answered { client, delivery: Delivery::Unknown });
            }
            Fate::IsLost => self.at(after, Scheduled::Answered { client, delivery: Delivery::Unknown }),
            Fate::IsNotSent => self.at(after, Scheduled::Answered { client, delivery: Delivery::NotSent }),
        }
    }
}

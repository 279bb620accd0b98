//! The turn against a model of the server, over many random schedules.
//!
//! The model has a truth (sessions, messages, a runner, a status) that only it can see, and shows it as a real server does: by
//! events that arrive late or not at all, by reads that take time or fail, and by answers that get lost. The client is the real
//! mirror, the real facts and the real machine. Whatever it concludes is held against the truth. A schedule is made from its seed
//! alone; a failure prints it.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
    time::Duration,
};

use super::{
    Delivery, Limit, WaitOptions,
    machine::{Action, Ended, Goal, Input, Messages, ReadId, Reading, Scope, Stop, Turn},
};
use crate::{
    ids::{MessageId, RequestId, SessionId},
    opencode::wire::{EventPayload, Message, ServerEvent},
    time::Millis,
};

mod cases;
mod client;
mod judge;
mod plan;
mod server;
mod steps;
mod wire;

use client::Client;
use plan::{PLANS, Plan};
use server::Server;
use wire::Wire;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ROOT_ID: &str = "ses_root";
/// The prompt's own message; those that the server makes have greater ids.
const PROMPT: &str = "msg_000000";
const OLD_PROMPT: &str = "msg_000000_old_prompt";
const OLD_STEP: &str = "msg_000000_old_step";

/// What a client may have recorded last when it dies.
const DEATHS: [Delivery; 3] = [Delivery::Unknown, Delivery::Accepted, Delivery::Started];

/// Something that will happen. What belongs to a client that is gone, a connection that is closed, or a run or a life of the
/// server that is over, does not happen.
#[derive(Debug)]
enum Scheduled {
    SubmissionArrives {
        client: u32,
        /// What the client is told, if it is told anything.
        answer: Option<Delivery>,
    },
    Store {
        life: u32,
    },
    Start,
    Beat {
        run: u32,
    },
    Crash,
    Restart,
    Cut,
    Overflow,
    Reopen {
        client: u32,
    },
    ClientDies,
    ClientBegins,
    Event {
        connection: u32,
        event: Arc<ServerEvent>,
    },
    TakeEvents,
    Answered {
        client: u32,
        delivery: Delivery,
    },
    Gone {
        client: u32,
    },
    Read {
        pending: PendingRead,
    },
    ReadDone {
        pending: PendingRead,
    },
    ReadFails {
        client: u32,
        id: ReadId,
    },
    AbortArrives {
        client: u32,
    },
    AbortDone {
        client: u32,
    },
    /// Another client aborts the session.
    ForeignAbort,
    /// The server gives up the directory's state: all turns are aborted, the stream ends.
    Dispose,
    Delete,
    /// The cleanup of the turn before is over.
    HistoryCompletes,
    LateError,
    /// The client's policy has decided.
    Decided {
        client: u32,
        request: RequestId,
    },
    /// An answer to a request reaches the server.
    Reply {
        request: RequestId,
    },
    Wake {
        client: u32,
    },
}

/// A read on its way through the server.
#[derive(Debug)]
struct PendingRead {
    client: u32,
    id: ReadId,
    left: Scope,
    listed_at: Duration,
    reading: Reading,
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    number: u64,
    what: Scheduled,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, for a heap that gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

struct World {
    rng: fastrand::Rng,
    seed: u64,
    /// Every input and action is printed.
    printed: bool,
    now: Duration,
    queue: BinaryHeap<Entry>,
    n_scheduled: u64,
    server: Server,
    wire: Wire,
    client: Client,
}

impl World {
    /// A world in which nothing goes wrong that is not said.
    fn perfect(plan: Plan) -> Self {
        let mut world = Self {
            rng: fastrand::Rng::with_seed(0),
            seed: 0,
            printed: false,
            now: SECOND,
            queue: BinaryHeap::new(),
            n_scheduled: 0,
            server: Server::new(plan),
            wire: Wire::perfect(),
            client: Client::new(
                Goal::Answer { prompt: PROMPT.into(), text: "do it".to_owned(), from: Delivery::NotSent },
                SECOND,
            ),
        };
        world.at(10 * MILLI, Scheduled::Reopen { client: 0 });
        world
    }

    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = if rng.u8(..3) == 0 { Plan::Answer } else { PLANS[rng.usize(..PLANS.len())] };
        let wire = Wire::random(&mut rng);
        let mut world = Self { rng, seed, wire, ..Self::perfect(plan) };
        world.client.policy = client::Policy::random(&mut world.rng);
        // The turn before ended in an error: its second idle is still to come, and until then prompts are lost.
        if world.chance(30) {
            world.add_history(false);
            let rest = world.between(0, 400);
            world.server.cleanup_until = Some(world.now + rest);
            world.at(rest, Scheduled::HistoryCompletes);
            if world.chance(50) {
                let late = world.between(0, 1500);
                world.at(late, Scheduled::LateError);
            }
        } else if world.chance(50) {
            world.add_history(true);
        }
        if world.chance(15) {
            let after = world.between(0, 30_000);
            world.at(after, Scheduled::Crash);
        }
        for _ in 0..world.rng.u8(..4) {
            let after = world.between(0, 20_000);
            let what = if world.chance(20) { Scheduled::Overflow } else { Scheduled::Cut };
            world.at(after, what);
        }
        for (percent, what) in [(5, Scheduled::ForeignAbort), (5, Scheduled::Dispose), (2, Scheduled::Delete)]
        {
            if world.chance(percent) {
                let after = world.between(0, 20_000);
                world.at(after, what);
            }
        }
        match world.rng.u8(..100) {
            0..10 => world.client.dies_at = Some(DEATHS[world.rng.usize(..DEATHS.len())]),
            10..25 => {
                let after = world.between(0, 30_000);
                world.at(after, Scheduled::ClientDies);
            }
            // Another client asks, and this one waits for the end of that.
            25..30 => {
                world.client.goal = Goal::Rest;
                world.client.is_away = true;
                world.at(Duration::ZERO, Scheduled::SubmissionArrives { client: u32::MAX, answer: None });
                let after = world.between(3_000, 30_000);
                world.at(after, Scheduled::ClientBegins);
            }
            _ => {}
        }
        world
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.u64(..100) < percent
    }

    fn between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from_ms..=to_ms))
    }

    fn latency(&mut self) -> Duration {
        if self.wire.steady {
            5 * MILLI
        } else if self.chance(95) {
            self.between(0, 20)
        } else {
            self.between(20, 300)
        }
    }

    fn at(&mut self, after: Duration, what: Scheduled) {
        self.n_scheduled += 1;
        self.queue.push(Entry { at: self.now + after, number: self.n_scheduled, what });
    }

    /// Runs the schedule to its end.
    fn play(&mut self) -> &Ended {
        self.advance();
        while self.client.ended.is_none() {
            let Some(entry) = self.queue.pop() else {
                panic!("seed {}: nothing will ever happen", self.seed)
            };
            self.now = entry.at;
            self.happen(entry.what);
            if let Some(over_at) = self.server.over_at {
                // Half a minute of a broken network is the worst that the model has.
                let late = self.now.saturating_sub(over_at.max(self.client.began));
                let is_excused =
                    self.may_miss_failure() || self.client.is_away || self.client.ended.is_some();
                let noticed = late < 60 * SECOND || is_excused;
                assert!(noticed, "seed {}: over, but not noticed", self.seed);
            }
            // A human may take twenty minutes for each of a few requests.
            assert!(self.now < 4 * 3600 * SECOND, "seed {}: hangs", self.seed);
        }
        self.judge();
        self.client.ended.as_ref().unwrap()
    }

    fn happen(&mut self, what: Scheduled) {
        match what {
            Scheduled::SubmissionArrives { client, answer } => self.submission_arrives(client, answer),
            Scheduled::Store { life } if life == self.server.life => self.store(),
            Scheduled::Start => self.start(),
            Scheduled::Beat { run } if run == self.server.run => self.beat(),
            Scheduled::Crash => self.crash(),
            Scheduled::Restart => self.server.alive = true,
            Scheduled::Cut => self.cut(),
            Scheduled::Overflow => self.overflow(),
            Scheduled::Reopen { client } if client == self.client.number => self.reopen(),
            Scheduled::ClientDies => self.die(),
            Scheduled::ClientBegins => self.begin(),
            Scheduled::Event { connection, event }
                if connection == self.wire.connection && self.wire.stream_open =>
            {
                self.arrive(event);
            }
            Scheduled::TakeEvents => self.take_events(),
            Scheduled::Read { pending } if pending.client == self.client.number => self.read_next(pending),
            Scheduled::AbortArrives { client } => {
                self.abort_run();
                let after = self.between(100, 400);
                self.at(after, Scheduled::AbortDone { client });
            }
            Scheduled::ForeignAbort => self.interfere(),
            Scheduled::Dispose => {
                self.interfere();
                self.cut();
            }
            Scheduled::Delete if self.server.alive && self.server.over_at.is_none() => {
                self.server.run += 1;
                self.server.deleted = true;
                let info = self.server.sessions[plan::ROOT].info.clone();
                self.emit(EventPayload::SessionDeleted(info));
            }
            Scheduled::HistoryCompletes if self.server.alive => self.complete_history(),
            Scheduled::LateError if self.server.alive => {
                self.server.has_late_error = true;
                self.emit_error(plan::ROOT, "UnknownError");
            }
            Scheduled::Reply { request } => self.reply(&request),
            what => self.happen_to_client(what),
        }
    }

    fn happen_to_client(&mut self, what: Scheduled) {
        let number = self.client.number;
        match what {
            Scheduled::Answered { client, delivery } if client == number => {
                self.input(Input::Submitted(delivery));
            }
            Scheduled::Gone { client } if client == number => self.input(Input::SessionGone),
            Scheduled::ReadDone { pending } if pending.client == number => {
                self.client.listed_at = pending.listed_at;
                self.input(Input::ReadDone(pending.id, pending.reading));
            }
            Scheduled::ReadFails { client, id } if client == number => self.input(Input::ReadFailed(id)),
            Scheduled::AbortDone { client } if client == number => {
                self.input(Input::AbortDone { confirmed: self.server.alive });
            }
            Scheduled::Decided { client, request } if client == number => self.decided(request),
            Scheduled::Wake { client } if client == number => {
                self.client.wake_at = None;
                self.advance();
            }
            _ => {}
        }
    }
}

/// One schedule; for a seed that a failure printed, given as `SIM_SEED`.
#[test]
fn one_schedule() {
    let seed: Option<u64> = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    World { printed: seed.is_some(), ..World::new(seed.unwrap_or(0)) }.play();
}

/// Many schedules: `SIM_SCHEDULES` says how many, 200,000 in CI, and `SIM_FIRST` where to begin. Prints how often each plan ended
/// in which way.
#[test]
#[expect(clippy::cast_precision_loss, reason = "an average for people")]
fn many_schedules() {
    let number = |name| std::env::var(name).ok().and_then(|n: String| n.parse::<u64>().ok());
    let n_schedules = number("SIM_SCHEDULES").unwrap_or(500);
    let first_seed = number("SIM_FIRST").unwrap_or(0);
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let play = |first: u64| {
        let mut ends: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for seed in (first..n_schedules).step_by(n_threads) {
            let mut world = World::new(first_seed + seed);
            let ended = world.play().name();
            let (count, reads) = ends.entry(format!("{:?}: {ended}", world.server.plan)).or_default();
            *count += 1;
            *reads += world.client.reads;
        }
        ends
    };
    let mut ends: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..n_schedules).take(n_threads).map(|first| scope.spawn(move || play(first))).collect();
        for thread in threads {
            for (end, (count, reads)) in thread.join().unwrap() {
                let sums = ends.entry(end).or_default();
                *sums = (sums.0 + count, sums.1 + reads);
            }
        }
    });
    for plan in PLANS {
        let is_plan = |end: &&String| end.starts_with(&format!("{plan:?}:"));
        assert!(n_schedules < 2_000 || ends.keys().any(|end| is_plan(&end)), "{plan:?} was not played");
    }
    for (end, (count, reads)) in ends {
        println!("{count:>8} × {end}, {:.1} reads each", reads as f64 / count as f64);
    }
}

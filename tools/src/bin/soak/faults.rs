//! What goes wrong, at random.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use fastrand::Rng;
use opencode_conductor::{
    DirectoryClient, SessionId,
    test_util::{FakeOpenCode, Fault, Route},
};

use crate::tally::Tally;

/// Blows that change how turns end, counted before and after they fall.
#[derive(Debug, Default)]
pub(crate) struct Blows {
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl Blows {
    async fn strike<T>(&self, blow: impl Future<Output = T>) -> T {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = blow.await;
        self.done.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// How many are over.
    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Whether any fell since so many were over.
    pub(crate) fn fell_since(&self, done: usize) -> bool {
        self.begun.load(Ordering::SeqCst) > done
    }
}

/// Makes things go wrong in one world.
pub(crate) struct Saboteur<'a> {
    pub(crate) fake: &'a FakeOpenCode,
    pub(crate) api: DirectoryClient,
    pub(crate) directory: &'a str,
    /// The sessions, each with its own aborts.
    pub(crate) sessions: &'a [(SessionId, Blows)],
    pub(crate) tally: &'a Tally,
    pub(crate) kills: &'a Blows,
    pub(crate) disposals: &'a Blows,
}

impl Saboteur<'_> {
    /// Goes on until it is dropped, or the server cannot be brought back.
    pub(crate) async fn go_on(&self, rng: &mut Rng) -> io::Result<()> {
        loop {
            tokio::time::sleep(Duration::from_millis(rng.u64(20..300))).await;
            match rng.u8(..20) {
                0..5 => self.inject("submission", Route::PromptAsync, submission(rng)),
                5..9 => self.inject("read", *rng.choice(&READS).unwrap_or(&Route::Status), read(rng)),
                9..11 => self.inject("reply", Route::ReplyPermission, Fault::DropAfterEffect),
                11..13 => self.inject("new stream", Route::Event, stream(rng)),
                13 | 14 => self.say("stream cut", FakeOpenCode::cut_streams),
                15 => self.say("stream ended", FakeOpenCode::end_streams),
                16 => self.say("stream silenced", FakeOpenCode::silence_streams),
                17 => {
                    self.tally.fault("server killed");
                    self.kills.strike(self.fake.restart()).await?;
                }
                18 => {
                    self.tally.fault("instance disposed");
                    self.disposals.strike(self.fake.dispose(self.directory)).await;
                }
                _ => {
                    self.tally.fault("session aborted");
                    if let Some((session, aborts)) = rng.choice(self.sessions) {
                        // Whether it arrives or not, it was tried.
                        let _ = aborts.strike(self.api.abort(session)).await;
                    }
                }
            }
        }
    }

    fn inject(&self, name: &'static str, route: Route, fault: Fault) {
        self.tally.fault(name);
        self.fake.inject(route, fault);
    }

    fn say(&self, name: &'static str, fault: impl Fn(&FakeOpenCode)) {
        self.tally.fault(name);
        fault(self.fake);
    }
}

const READS: [Route; 5] =
    [Route::ListMessages, Route::ListMessages, Route::Status, Route::Children, Route::ListPermissions];

fn submission(rng: &mut Rng) -> Fault {
    match rng.u8(..6) {
        0 => Fault::DropBeforeEffect,
        1 => Fault::DropAfterEffect,
        2 => Fault::Status(503),
        3 => Fault::StatusAfterEffect(502),
        4 => Fault::LosePrompt,
        _ => Fault::ForgetPrompt,
    }
}

fn read(rng: &mut Rng) -> Fault {
    match rng.u8(..4) {
        0 => Fault::DropBeforeEffect,
        1 => Fault::Status(500),
        2 => Fault::DropAfterEffect,
        _ => Fault::TruncateBody(rng.usize(1..200)),
    }
}

fn stream(rng: &mut Rng) -> Fault {
    match rng.u8(..7) {
        0 => Fault::CutAfterEvents(rng.usize(1..40)),
        1 => Fault::CutAfterBytes(rng.usize(1..9000)),
        2 => Fault::EndAfterEvents(rng.usize(1..40)),
        3 => Fault::SilenceAfterEvents(rng.usize(1..40)),
        4 => Fault::DuplicateEvents,
        5 => Fault::ReorderEvents,
        _ => Fault::Status(503),
    }
}

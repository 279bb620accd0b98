//! What goes wrong on the fake, and what is promised then.

use std::sync::Arc;

use opencode_conductor::test_util::{Fault, Route};

use crate::matrix::Row;

/// One thing that goes wrong.
pub(crate) enum Strike {
    /// The next so many submissions. Where the prompt is accepted already, the server loses it, and the kick is struck.
    Submission(Fault, usize),
    /// The next so many reads. The stream is down meanwhile, so that reads are all there is; but for the final one.
    Read(Route, Fault, usize),
    /// The next so many answers to a permission request.
    Reply(Fault, usize),
    CutStreams,
    EndStreams,
    SilenceStreams,
    /// The stream is cut, and so many of those that follow have this fault.
    Streams(Fault, usize),
    /// The server is killed and is back at once.
    Restart,
    /// The server is killed and is back when the manager has noticed.
    Outage,
    /// The server is killed and is away for as long as the turn waits.
    Gone,
    Dispose,
    /// Another client aborts the session.
    Abort,
    /// Another client deletes it.
    Delete,
    /// Another client allows what is asked for.
    AllowElsewhere,
    /// Another client rejects it.
    RejectElsewhere,
    ClockAhead,
    ClockBehind,
    /// The directory is not there, so that a run dies when its next step has begun.
    RunDies,
    /// The server is killed, and is back with its port open before it serves.
    SlowStart,
}

/// The promises.
pub(crate) fn rows() -> Vec<Row<Arc<Strike>>> {
    use Strike::{
        Abort, AllowElsewhere, ClockAhead, ClockBehind, CutStreams, Delete, Dispose, EndStreams, Gone,
        Outage, Read, RejectElsewhere, Reply, Restart, RunDies, SilenceStreams, SlowStart, Streams,
        Submission,
    };
    // More than any cell needs, and yet counted.
    let always = 1_000_000;
    let never = || "never".to_owned();
    let row = |fault, strike, promise| Row { fault, strike: Arc::new(strike), promise };
    let submission = ". S S . . . . . . .";
    let refused = ". d . . . . . . . .";
    // Settling is the phase of a turn that fails, as its script says.
    let anywhere = "S S S S S S S S F S";
    let read = ". . S S S S S S F S";
    // A final read on a healthy stream needs the list and nothing else.
    let look = ". . S S S S S S F .";
    let reply = ". . . . . . . S . .";
    vec![
        row("submission dropped before effect", Submission(Fault::DropBeforeEffect, 1), submission),
        row("three submissions dropped", Submission(Fault::DropBeforeEffect, 3), submission),
        row("submission dropped after effect", Submission(Fault::DropAfterEffect, 1), submission),
        row("submission answered 503", Submission(Fault::Status(503), 1), submission),
        row("three submissions answered 503", Submission(Fault::Status(503), 3), submission),
        row("submission runs, answered 502", Submission(Fault::StatusAfterEffect(502), 1), submission),
        row("submission hangs", Submission(Fault::Hang, 1), submission),
        row("answer never arrives", Submission(Fault::HoldAnswerUntil(never()), 1), submission),
        row("prompt stored and not run", Submission(Fault::LosePrompt, 1), submission),
        row("prompt accepted and forgotten", Submission(Fault::ForgetPrompt, 1), submission),
        row("submission answered 400", Submission(Fault::Status(400), always), refused),
        row("submission answered with a page", Submission(Fault::Html, always), refused),
        row("stream cut", CutStreams, anywhere),
        row("stream ended in good order", EndStreams, anywhere),
        row("stream silent", SilenceStreams, anywhere),
        row("stream cut after every 3 events", Streams(Fault::CutAfterEvents(3), always), anywhere),
        row("stream cut within an event", Streams(Fault::CutAfterBytes(700), 5), anywhere),
        row("stream silent after 4 events", Streams(Fault::SilenceAfterEvents(4), 2), anywhere),
        row("stream stalls before a heartbeat", Streams(Fault::SilenceAfterEvents(1), 1), anywhere),
        row("streams refused from now on", Streams(Fault::Status(503), always), anywhere),
        row("streams hang", Streams(Fault::Hang, 2), anywhere),
        row("stream answered with a page", Streams(Fault::Html, 3), anywhere),
        row("events doubled", Streams(Fault::DuplicateEvents, always), anywhere),
        row("events out of order", Streams(Fault::ReorderEvents, always), anywhere),
        row("list dropped", Read(Route::ListMessages, Fault::DropBeforeEffect, 2), read),
        row("list answered 503", Read(Route::ListMessages, Fault::Status(503), 6), read),
        row("list truncated", Read(Route::ListMessages, Fault::TruncateBody(40), 2), read),
        row("list hangs", Read(Route::ListMessages, Fault::Hang, 1), read),
        row("status answered 500", Read(Route::Status, Fault::Status(500), 6), look),
        row("status truncated", Read(Route::Status, Fault::TruncateBody(1), 2), look),
        // Without a subagent a turn may be over before the client looks for one.
        row("children answered 503", Read(Route::Children, Fault::Status(503), 6), ". . . . . . S . . ."),
        row("three requests dropped", Read(Route::Any, Fault::DropAfterEffect, 3), read),
        row("reply dropped before effect", Reply(Fault::DropBeforeEffect, 1), reply),
        row("reply dropped after effect", Reply(Fault::DropAfterEffect, 1), reply),
        row("reply answered 503", Reply(Fault::Status(503), 2), reply),
        row("reply answered 503 for long", Reply(Fault::Status(503), 6), reply),
        row("allowed by another client", AllowElsewhere, reply),
        row("rejected by another client", RejectElsewhere, ". . . . . . . R . ."),
        row("server killed, back at once", Restart, "S S S I I I I I I S"),
        row("server killed, back later", Outage, "S S S I I I I I I S"),
        // What the server sent last may not have arrived.
        row("server killed, stays away", Gone, "t t t Tt Tt Tt Tt T Tt T"),
        row("server killed, starts slowly", SlowStart, "S S S I I I I I I S"),
        // The step that runs goes on; the next one dies.
        row("run dies in a living server", RunDies, "D D D . . D D D . ."),
        row("instance disposed", Dispose, "S S S A A A A A F S"),
        row("aborted by another client", Abort, "S S S A A A A A F S"),
        row("session deleted", Delete, "g g g G G G G G G G"),
        row("server's clock an hour ahead", ClockAhead, anywhere),
        row("server's clock an hour behind", ClockBehind, anywhere),
    ]
}

//! Schedules with a name: what random ones found, told step by step.

use super::{
    plan::{Beat, Doing, ROOT, What, of, root},
    wire::Fate,
    *,
};

const IDLE: What = What::Status(Doing::Idle);
const BUSY: What = What::Status(Doing::Busy);
const ERROR: What = What::Error { aborted: false };
const SETTLE_GRACE: Duration = SECOND.saturating_mul(5);

impl World {
    /// A perfect network, and a server whose runs do this.
    fn scripted<const N: usize>(runs: [Vec<Beat>; N]) -> Self {
        let mut world = Self::perfect(Plan::Answer);
        world.server.script = runs.into();
        world
    }

    /// Lets something happen so many milliseconds after the start.
    fn after(mut self, millis: u64, what: Scheduled) -> Self {
        self.at(Duration::from_millis(millis), what);
        self
    }

    fn fates<const N: usize>(mut self, fates: [Fate; N]) -> Self {
        self.wire.fates = fates.into();
        self
    }

    /// Plays it, and tells how long the server had been done when the client noticed.
    #[track_caller]
    fn ends(&mut self, ended: &Ended) -> Duration {
        assert_eq!(self.play(), ended);
        self.now.saturating_sub(self.server.over_at.unwrap_or(self.now))
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A run of one step that is answered after so many milliseconds.
fn answer(takes_ms: u64) -> Vec<Beat> {
    let beats = [
        (ms(5), BUSY),
        (ms(5), What::Step),
        (ms(takes_ms), What::Text),
        (ms(5), What::Complete),
        (MILLI, IDLE),
        (MILLI, What::End),
    ];
    root(beats).collect()
}

/// A run that fails, and is done with its cleanup so many milliseconds after its first idle.
fn failure(cleanup_ms: u64) -> Vec<Beat> {
    let beats = [
        (ms(5), BUSY),
        (ms(5), What::Step),
        (ms(100), ERROR),
        (MILLI, IDLE),
        (MILLI, What::Cleanup),
        (ms(cleanup_ms), What::Complete),
        (MILLI, IDLE),
        (MILLI, What::End),
    ];
    root(beats).collect()
}

#[test]
fn an_answer_costs_one_read() {
    let mut world = World::scripted([answer(500)]);
    assert!(world.ends(&Ended::AtRest) < 50 * MILLI);
    assert_eq!((world.client.submissions, world.client.reads), (1, 1));
    assert_eq!(world.client.recorded, Delivery::Started);
}

/// Found by seed 4444215 of an earlier model. The session says idle before its message is complete, and again a moment after; a client that only
/// polls can meet it in between. All is
/// said by then, and a prompt that is sent at once is run.
#[test]
fn a_run_with_nothing_but_its_idle_left_to_say_is_over() {
    let mut run = failure(1500);
    let last_idle = run.len() - 2;
    run[last_idle].after = 5 * SECOND;
    let mut world = World::scripted([run]).after(100, Scheduled::Cut);
    world.wire.steady = true;
    assert_eq!(world.play(), &Ended::AtRest);
    assert!(world.server.running, "its second idle is still to come");
    assert_eq!(world.server.runs_begun, 1);
    // The next prompt.
    world.store();
    while world.server.runs_begun == 1 {
        let entry = world.queue.pop().expect("the next prompt is run");
        world.now = entry.at;
        world.client.is_away = true;
        world.happen(entry.what);
    }
}

/// An error that comes after the prompt was sent may be a late word about the turn before, in whose cleanup the prompt was lost.
#[test]
fn a_late_error_of_the_turn_before_does_not_fail_this_one() {
    let mut world = World::scripted([answer(500)]).after(300, Scheduled::HistoryCompletes);
    world.add_history(false);
    world.server.cleanup_until = Some(world.now + 300 * MILLI);
    let mut world = world.after(600, Scheduled::LateError);
    world.ends(&Ended::AtRest);
    assert_eq!(world.client.turn.kicks(), 1);
    assert_eq!(world.server.runs_begun, 1);
}

/// A permission is asked while events are lost, and the read that would show it fails.
#[test]
fn a_request_is_found_although_the_read_after_the_gap_fails() {
    let beats = [
        (ms(5), BUSY),
        (ms(5), What::Step),
        (ms(5), What::Tool { running: true }),
        (ms(485), What::Ask),
        (ms(5), What::Tool { running: false }),
        (ms(5), What::Complete),
        (MILLI, IDLE),
        (MILLI, What::End),
    ];
    for (lost, what) in [(542, Scheduled::Overflow), (400, Scheduled::Cut)] {
        let mut world = World::scripted([root(beats).collect()]).after(lost, what);
        world.client.policy = client::Policy::Rule;
        world.wire.failing_reads = BTreeSet::from([1]);
        assert!(world.ends(&Ended::AtRest) < 3 * SECOND);
    }
}

/// Submitted again while it runs, the prompt moves behind what was said already. The turn is all of it.
#[test]
fn a_prompt_that_moves_while_it_runs_keeps_its_first_steps() {
    let first = [(ms(5), BUSY), (ms(5), What::Step), (ms(200), What::Complete), (ms(2000), What::Step)];
    let rest = [(ms(200), What::Complete), (MILLI, IDLE), (MILLI, What::End)];
    let run = root(first).chain(root(rest)).collect();
    // The first one is on its way for long, and the second one arrives when the first has begun to run.
    let mut world = World::scripted([run])
        .fates([Fate::ArrivesUnanswered { after_ms: 300 }, Fate::ArrivesUnanswered { after_ms: 800 }]);
    world.ends(&Ended::AtRest);
    assert_eq!(world.server.runs_begun, 1);
    let prompt = world.server.prompt().unwrap().info.time().created;
    let steps: Vec<_> = world.server.steps().map(|step| step.time.created).collect();
    assert!(steps[0] < prompt && prompt < steps[1], "{steps:?} around {prompt:?}");
    assert_eq!(world.client.tree.turn(&ROOT_ID.into(), &PROMPT.into()).count(), 2);
}

/// A submission that is stored when the run of another one has failed runs the prompt again. The turn ends after that.
#[test]
fn a_prompt_that_runs_again_after_it_failed_is_waited_for() {
    let mut reruns = 0;
    for after_ms in 200..500 {
        let mut world = World::scripted([failure(100), answer(300)])
            .fates([Fate::ArrivesUnanswered { after_ms: 300 }, Fate::ArrivesUnanswered { after_ms }]);
        world.ends(&Ended::AtRest);
        let steps: Vec<bool> = world.server.steps().map(|step| step.error.is_some()).collect();
        match steps[..] {
            [true] => {}
            [true, false] => reruns += 1,
            _ => panic!("{after_ms}: {steps:?}"),
        }
    }
    assert!(reruns > 0, "some of them arrive in time");
}

/// Text that is streamed while the stream is down is in no list until it is whole.
#[test]
fn text_that_is_streamed_unheard_is_not_silence() {
    let mut run: Vec<Beat> = root([(ms(5), BUSY), (ms(5), What::Step)]).collect();
    run.extend((0..9).map(|_| Beat { after: 9 * SECOND, session: ROOT, what: What::Text }));
    run.extend(root([(ms(5), What::Complete), (MILLI, IDLE), (MILLI, What::End)]));
    // Down for most of the time, in four pieces.
    let mut world = World::scripted([run]);
    world.wire.outage = (13_000, 13_000);
    for cut in [1_000, 16_000, 31_000, 46_000] {
        world = world.after(cut, Scheduled::Cut);
    }
    world.ends(&Ended::AtRest);
}

/// All that is known of a subagent in the background is the call that started it.
#[test]
fn a_background_subagent_whose_events_were_missed_is_waited_for() {
    let beats = root([(ms(5), BUSY), (ms(5), What::Step), (ms(5), What::Spawn { child: 1 })])
        .chain(of(1, [(ms(5), BUSY), (ms(5), What::ExtraPrompt)]))
        .chain(root([(ms(5), What::TaskDone { child: 1, background: true }), (ms(5), What::Complete)]))
        .chain(root([(ms(20), IDLE)]))
        .chain(of(1, [(ms(5), What::Step), (3 * SECOND, What::Complete), (ms(5), IDLE)]))
        .chain(root([(ms(2000), What::ExtraPrompt), (MILLI, BUSY), (ms(5), What::Step)]))
        .chain(root([(ms(500), What::Complete), (MILLI, IDLE), (MILLI, What::End)]));
    let beats: Vec<Beat> = beats.collect();
    for message_events in [true, false] {
        for lost in [30, 40, 50, 60, 70, 80] {
            for what in [Scheduled::Cut, Scheduled::Overflow] {
                let mut world = World::scripted([beats.clone()]).after(lost, what);
                world.wire.message_events = message_events;
                world.ends(&Ended::AtRest);
                assert_eq!(world.server.steps().count(), 2, "{lost}, {message_events}");
            }
        }
    }
}

/// On a large repository the cleanup takes as long as git does, and the server lives.
#[test]
fn a_long_cleanup_is_neither_an_interruption_nor_a_failure() {
    for cleanup in [4_000, 6_000, 30_000] {
        let mut world = World::scripted([failure(cleanup)]);
        assert!(world.ends(&Ended::AtRest) < SECOND, "{cleanup}");
    }
}

/// The prompt may start when it has been given up, so the session is aborted.
#[test]
fn a_prompt_that_is_given_up_is_aborted() {
    let mut world = World::perfect(Plan::NeverRuns);
    world.ends(&Ended::NotStarted { error: None });
    assert!(world.client.silence.is_some(), "it was told to abort");
    assert_eq!(world.client.turn.kicks(), 3);
}

#[test]
fn a_run_that_dies_after_its_idle_has_failed_within_a_grace() {
    let beats = [(ms(5), BUSY), (ms(5), What::Step), (ms(50), IDLE), (MILLI, What::Die), (ms(1500), ERROR)];
    let mut world = World::scripted([root(beats).collect()]);
    world.server.plan = Plan::FailsAfterIdle;
    let late = world.ends(&Ended::Failed(steps::failure("UnknownError")));
    assert!(late < 1500 * MILLI + SETTLE_GRACE + SECOND, "{late:?}");
    assert_eq!(world.client.submissions, 1, "it is not run again");

    // The error came while the stream was down: all that is left is a message that is never completed.
    let mut world = World::scripted([root(beats).collect()]).after(100, Scheduled::Cut);
    world.server.plan = Plan::FailsAfterIdle;
    world.ends(&Ended::Interrupted);
}

#[test]
fn a_status_that_is_not_known_holds_a_turn_for_no_longer_than_a_grace() {
    let mut run = answer(500);
    let idle = run.len() - 2;
    run[idle].what = What::Status(Doing::Finished);
    let mut world = World::scripted([run.clone()]);
    let late = world.ends(&Ended::AtRest);
    assert!((4 * SECOND..SETTLE_GRACE + SECOND).contains(&late), "{late:?}");

    // Nor is a step cut off that takes longer, with a status that is not known.
    run[0].what = What::Status(Doing::Thinking);
    run[2].after = 30 * SECOND;
    World::scripted([run]).ends(&Ended::AtRest);
}

#[test]
fn a_subagent_whose_idle_is_never_said_holds_a_turn_for_no_longer_than_a_grace() {
    let beats = root([(ms(5), BUSY), (ms(5), What::Step), (ms(5), What::Spawn { child: 1 })])
        .chain(of(1, [(ms(5), BUSY), (ms(5), What::ExtraPrompt), (ms(5), What::Step)]))
        .chain(of(1, [(ms(50), What::Complete), (ms(5), What::SilentStatus(Doing::Idle))]))
        .chain(root([(ms(5), What::TaskDone { child: 1, background: false }), (ms(5), What::Complete)]))
        .chain(root([(ms(5), IDLE), (MILLI, What::End)]));
    let mut world = World::scripted([beats.collect()]);
    let late = world.ends(&Ended::AtRest);
    assert!(late < SETTLE_GRACE + SECOND, "{late:?}");
}

/// Wherever the client dies, the prompt is run once, and the one that goes on gets the answer.
#[test]
fn a_client_that_dies_at_any_moment_leaves_a_turn_that_ends_as_it_should() {
    for dies_at in DEATHS {
        for is_answered in [true, false] {
            let fate = if is_answered { Fate::Arrives } else { Fate::ArrivesUnanswered { after_ms: 0 } };
            let mut world = World::scripted([answer(2000)]).fates([fate]);
            world.client.dies_at = Some(dies_at);
            world.ends(&Ended::AtRest);
            assert_eq!(world.server.runs_begun, 1, "{dies_at:?}");
        }
    }
    for dies in (0..3000).step_by(7) {
        let mut world = World::scripted([answer(2000)]).after(dies, Scheduled::ClientDies);
        world.ends(&Ended::AtRest);
        assert_eq!((world.server.runs_begun, world.client.number), (1, u32::from(dies < 2045)), "{dies}");
    }
}

#[test]
fn a_turn_whose_client_and_server_died_is_interrupted_and_not_run_again() {
    for server_first in [true, false] {
        let (crash, death) = if server_first { (500, 600) } else { (600, 500) };
        let mut world = World::scripted([answer(20_000)])
            .after(crash, Scheduled::Crash)
            .after(death, Scheduled::ClientDies);
        world.ends(&Ended::Interrupted);
        assert_eq!((world.server.runs_begun, world.client.submissions), (1, 1));
        assert_eq!(world.client.recorded, Delivery::Started);
    }
}

/// The server said that it had the prompt, and died before it stored it.
#[test]
fn a_prompt_that_was_accepted_and_is_gone_is_not_sent_again() {
    let mut world = World::perfect(Plan::Answer);
    world.wire.slowest_store = 2600;
    world.client.dies_at = Some(Delivery::Accepted);
    let mut world = world.after(21, Scheduled::Crash);
    world.ends(&Ended::Interrupted);
    assert_eq!((world.server.runs_begun, world.client.submissions), (0, 1));
}

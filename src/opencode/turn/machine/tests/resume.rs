//! Going on where an earlier client left off.

use super::{delivery::store_text, *};

/// A client that knows nothing but what was recorded, on an open stream, and what it does first.
fn resume(from: Delivery) -> Bench {
    let mut bench = Bench::from(from);
    assert_eq!(bench.input(Input::StreamOpened), [read(true, true, true)], "{from:?}");
    assert!(!bench.turn.is_unbroken(), "the server may have died meanwhile");
    bench
}

const RESUMED: [Delivery; 3] = [Delivery::Unknown, Delivery::Accepted, Delivery::Started];

#[test]
fn each_stage_is_recorded_once_and_before_it_is_acted_on() {
    let mut bench = Bench::new();
    bench.turn.handle(bench.now, &mut bench.tree, Input::StreamOpened);
    let actions = bench.turn.advance(bench.now, &mut bench.tree).actions;
    assert_eq!(actions, [Action::Record(Delivery::Unknown), Action::Submit]);
    bench.input(Input::Submitted(Delivery::Accepted));
    bench.busy();
    bench.store_prompt();
    bench.answer(1);
    bench.answer(2);
    bench.idle();
    bench.read(SessionStatus::Idle);
    assert_eq!(bench.recorded, [Delivery::Accepted, Delivery::Started]);
}

#[test]
fn a_kick_is_recorded_no_second_time() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Submit]);
    assert_eq!(bench.recorded, [Delivery::Unknown, Delivery::Accepted]);
}

#[test]
fn a_prompt_that_was_never_sent_is_sent() {
    let mut bench = Bench::from(Delivery::NotSent);
    assert_eq!(bench.input(Input::StreamOpened), [Done::Submit]);
}

#[test]
fn a_prompt_that_was_refused_is_not_sent_again() {
    let mut bench = Bench::from(Delivery::Rejected);
    let refused = Ended::NotDelivered(Delivery::Rejected);
    assert_eq!(bench.input(Input::StreamOpened), finish(refused));
}

#[test]
fn a_prompt_that_was_answered_meanwhile_is_settled() {
    for from in RESUMED {
        let mut bench = resume(from);
        bench.unheard(|bench| (bench.store_prompt(), bench.answer(1)));
        assert_eq!(bench.read(SessionStatus::Idle), [read(true, true, false)], "{from:?}");
        assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest), "{from:?}");
        let unrecorded = if from == Delivery::Started { vec![] } else { vec![Delivery::Started] };
        assert_eq!(bench.recorded, unrecorded, "{from:?}");
        assert!(!bench.done.contains(&Done::Submit), "{from:?}");
    }
}

#[test]
fn a_prompt_that_still_runs_is_waited_for() {
    for from in RESUMED {
        let mut bench = resume(from);
        bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
        assert_eq!(bench.read(SessionStatus::Busy), [], "{from:?}");
        bench.complete(1);
        assert_eq!(bench.idle(), [read(true, false, false)], "{from:?}");
        assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest), "{from:?}");
    }
}

/// What came after it is not its own, and somebody may be waiting for it.
#[test]
fn an_old_prompt_is_not_ended_by_the_steps_that_came_after_its_turn() {
    for (from, n_steps, is_followed, status, is_cut_off) in [
        (Delivery::Unknown, 5, true, SessionStatus::Idle, false),
        (Delivery::Unknown, 5, true, SessionStatus::Busy, false),
        (Delivery::Started, 5, true, SessionStatus::Busy, false),
        (Delivery::Started, 5, false, SessionStatus::Busy, true),
        (Delivery::Started, 5, false, unrecognised(), true),
        (Delivery::Started, 3, false, SessionStatus::Busy, false),
        // What rests does not loop.
        (Delivery::Started, 5, false, SessionStatus::Idle, false),
    ] {
        let case = format!("{from:?}, {n_steps} steps, followed: {is_followed}, {status:?}");
        let goal = Goal::Answer { prompt: PROMPT.into(), text: String::new(), from };
        let mut bench = Bench::of(goal, WaitOptions::default().max_steps(3));
        bench.input(Input::StreamOpened);
        bench.unheard(Bench::store_prompt);
        bench.now += SECOND;
        bench.unheard(|bench| bench.answer(1));
        if is_followed {
            bench.now += SECOND;
            store_text(&mut bench, "msg_02", "something else");
        }
        bench.now += SECOND;
        bench.unheard(|bench| (3..n_steps + 2).for_each(|number| drop(bench.answer(number))));
        let done = bench.read(status);
        assert_eq!(done == [Done::Abort], is_cut_off, "{case}: {done:?}");
    }
}

#[test]
fn a_prompt_whose_server_died_meanwhile_is_interrupted() {
    for from in RESUMED {
        let mut bench = resume(from);
        bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
        assert_eq!(bench.read(SessionStatus::Idle), [], "{from:?}");
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Interrupted), "{from:?}");
        assert!(!bench.done.contains(&Done::Submit), "{from:?}");
    }
}

#[test]
fn a_prompt_that_may_have_been_sent_and_is_not_there_is_sent() {
    let mut bench = resume(Delivery::Unknown);
    assert_eq!(bench.turn.delivery(), Delivery::Unknown);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait(SECOND), [Done::Submit]);
    assert_eq!(bench.recorded, [], "it was recorded by the client before");
    assert_eq!(bench.input(Input::Submitted(Delivery::Accepted)), []);
    assert!(!bench.turn.is_unbroken());
}

#[test]
fn a_prompt_that_may_have_been_sent_is_not_sent_unread() {
    let mut bench = resume(Delivery::Unknown);
    for _ in 0..20 {
        assert_eq!(bench.read_fails(), []);
        assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
    }
    // And it may be running, so that a stop has something to abort.
    assert_eq!(bench.input(Input::Stop), [Done::Abort]);
}

#[test]
fn a_prompt_that_the_server_has_is_kicked_if_it_does_not_start() {
    for from in [Delivery::Unknown, Delivery::Accepted] {
        let mut bench = resume(from);
        bench.unheard(Bench::store_prompt);
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Submit], "{from:?}");
        assert_eq!(bench.turn.kicks(), 1);
    }
}

/// It may have run, and what it did may be gone with the server's memory of it.
#[test]
fn a_prompt_that_the_server_had_and_has_no_more_is_interrupted() {
    let mut bench = resume(Delivery::Accepted);
    let began = bench.now;
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Interrupted));
    // The server says that it has a prompt before it stores it.
    assert!(bench.now.saturating_sub(began) >= WaitOptions::default().start_timeout);
    assert!(!bench.done.contains(&Done::Submit));

    let mut bench = resume(Delivery::Accepted);
    bench.read(SessionStatus::Idle);
    bench.now += SECOND;
    bench.store_prompt();
    bench.busy();
    bench.answer(1);
    assert_eq!(bench.idle(), [read(true, false, false)], "it was stored late");
}

#[test]
fn a_prompt_that_was_started_is_never_sent_again() {
    // Neither the prompt nor a step of it is there.
    let mut bench = resume(Delivery::Started);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Interrupted));
    assert!(!bench.done.contains(&Done::Submit));

    // The prompt is, but no step of it.
    let mut bench = resume(Delivery::Started);
    bench.unheard(Bench::store_prompt);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Interrupted));
    assert!(!bench.done.contains(&Done::Submit));

    // A step is, but not the prompt.
    let mut bench = resume(Delivery::Started);
    bench.unheard(|bench| bench.answer(1));
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Interrupted));
    assert!(!bench.done.contains(&Done::Submit));
}

#[test]
fn a_request_that_was_open_is_asked_again() {
    let mut bench = resume(Delivery::Started);
    bench.unheard(|bench| (bench.store_prompt(), bench.step(1), bench.asks(ROOT, "per_1", 1)));
    assert_eq!(bench.read(SessionStatus::Busy), [Done::Ask("per_1".into())]);
}

#[test]
fn without_a_stream_a_turn_is_resumed_by_polling() {
    for from in RESUMED {
        let mut bench = Bench::from(from);
        assert_eq!(bench.wait(9 * SECOND), []);
        assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)], "{from:?}");
        bench.unheard(|bench| (bench.store_prompt(), bench.answer(1)));
        assert_eq!(bench.read(SessionStatus::Idle), [], "{from:?}");
        assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)], "{from:?}");
        assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest), "{from:?}");
    }
}

//! How turns end.

use super::*;

#[test]
fn refused_credentials_end_a_turn_at_once_unless_it_is_being_aborted() {
    let mut bench = Bench::running();
    assert_eq!(bench.input(Input::Unauthorized), finish(Ended::Unauthorized));

    let mut bench = Bench::running();
    assert_eq!(bench.input(Input::Stop), [Done::Abort]);
    assert_eq!(bench.input(Input::Unauthorized), []);
    assert_eq!(bench.abort_done(), finish(Ended::Stopped(Stop::Aborted)));
}

#[test]
fn a_normal_turn_needs_one_submission_and_one_read() {
    let mut bench = Bench::running();
    bench.complete(1);
    assert_eq!(bench.idle(), [read(true, false, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
    assert_eq!(bench.turn.delivery(), Delivery::Started);
    assert_eq!(bench.turn.next_wakeup(), None);
}

#[test]
fn a_last_read_is_the_truth_also_about_what_is_gone() {
    let mut bench = Bench::running();
    bench.complete(1);
    bench.answer(2);
    bench.idle();
    bench.messages_of(ROOT).truncate(2);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
    assert_eq!(bench.tree.turn(&ROOT.into(), &PROMPT.into()).count(), 1);
}

#[test]
fn a_read_that_news_overtook_is_not_the_truth() {
    let mut bench = Bench::running();
    bench.complete(1);
    bench.idle();
    let stored = bench.stored.clone();
    bench.busy();
    bench.answer(2);
    // The list was made before the second step.
    let newest = std::mem::replace(&mut bench.stored, stored);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.tree.turn(&ROOT.into(), &PROMPT.into()).count(), 2);
    bench.stored = newest;
    assert_eq!(bench.idle(), [read(true, false, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
}

/// The step that it does not list was told of while it was made, without a word about the session.
#[test]
fn a_read_that_progress_overtook_is_not_the_truth() {
    let mut bench = Bench::running();
    bench.complete(1);
    assert_eq!(bench.idle(), [read(true, false, false)]);
    let stored = bench.stored.clone();
    bench.unheard(|bench| (bench.step(2), bench.complete(2)));
    let step = bench.stored[0].1[2].info.clone();
    let event = ServerEvent::new(EventPayload::MessageUpdated(step));
    bench.turn.handle(bench.now, &mut bench.tree, Input::Event((&event).into()));
    bench.stored = stored;
    bench.read(SessionStatus::Idle);
    assert_eq!(bench.tree.turn(&ROOT.into(), &PROMPT.into()).count(), 2, "it is not gone");
}

#[test]
fn a_stale_idle_does_not_end_the_turn() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    assert_eq!(bench.idle(), []);
    bench.busy();
    bench.step(1);
    assert_eq!(bench.wait(9 * SECOND), []);
}

#[test]
fn an_idle_between_steps_is_not_believed_without_a_busy() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    bench.idle();
    bench.step(1);
    assert_eq!(bench.complete(1), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Busy), []);
    bench.answer(2);
    assert_eq!(bench.idle(), [read(true, false, false)]);
}

#[test]
fn the_first_of_two_idles_waits_for_the_message_to_complete() {
    let mut bench = Bench::running();
    bench.error("APIError");
    assert_eq!(bench.idle(), []);
    assert_eq!(bench.wait(2 * SECOND), []);
    assert_eq!(bench.complete(1), [read(true, false, false)]);
    assert_eq!(bench.idle(), []);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
}

/// A busy machine needs seconds to clean up after an error, and a large repository more.
#[test]
fn a_cleanup_that_takes_long_is_no_interruption() {
    let mut bench = Bench::running();
    bench.error("APIError");
    bench.idle();
    let until = bench.now + 30 * SECOND;
    while bench.now < until {
        let done = bench.wait(until.saturating_sub(bench.now));
        if matches!(done[..], [Done::Read(_)]) {
            assert_eq!(bench.read(SessionStatus::Idle), []);
        }
    }
    bench.complete(1);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::AtRest));
}

#[test]
fn idle_with_an_unfinished_message_is_an_interruption_in_the_end() {
    let mut bench = Bench::running();
    assert_eq!(bench.input(Input::StreamLost), [read(true, true, false)]);
    assert_eq!(bench.read_fails(), []);
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.input(Input::StreamOpened), []);
    assert_eq!(bench.wait(SECOND), [read(true, true, true)]);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait(10 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Interrupted));
    assert!(bench.tree.is_at_rest(&ROOT.into()), "what is unfinished stays so");
}

/// The session's directory does not exist, or a plugin throws: the run dies, and the server does not.
#[test]
fn an_error_after_the_idle_is_the_end_of_a_message_that_stays_unfinished() {
    let mut bench = Bench::running();
    assert_eq!(bench.idle(), []);
    assert_eq!(bench.error("UnknownError"), []);
    let began = bench.now;
    assert_eq!(bench.wait(30 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.now.saturating_sub(began), WaitOptions::default().settle_grace);
    assert!(bench.turn.is_unbroken());
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Failed(error("UnknownError"))));
    assert!(bench.tree.is_at_rest(&ROOT.into()));
}

#[test]
fn an_error_after_the_idle_is_not_the_end_if_the_session_goes_on() {
    let go_on: [fn(&mut Bench) -> Vec<Done>; 3] =
        [|bench| bench.busy(), |bench| bench.text(1), |bench| bench.status_of(ROOT, retry())];
    for (case, go_on) in go_on.into_iter().enumerate() {
        let mut bench = Bench::running();
        bench.idle();
        bench.error("UnknownError");
        bench.now += 3 * SECOND;
        go_on(&mut bench);
        assert_eq!(bench.wait(8 * SECOND), [], "{case}");
    }
}

/// Its message was not heard of, so that only a read shows it, when the run is over.
#[test]
fn a_run_that_is_first_seen_when_it_has_died_has_failed() {
    let mut bench = Bench::accepted();
    bench.busy();
    bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
    bench.idle();
    bench.error("UnknownError");
    let began = bench.now;
    assert_eq!(bench.wait(9 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Failed(error("UnknownError"))));
    assert_eq!(bench.done.iter().rev().nth(1), Some(&read(true, true, false)), "a read confirms it");
    assert!(bench.now.saturating_sub(began) < 6 * SECOND, "no limit had to run out");
}

/// In a cleanup after an error, what else fails says nothing about whether the cleanup will end.
#[test]
fn an_error_in_a_cleanup_is_not_the_end() {
    let mut bench = Bench::running();
    bench.error("APIError");
    bench.idle();
    bench.error("UnknownError");
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.complete(1), [read(true, false, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
}

/// The error of a run that recovered is no reason to doubt the error that it dies of.
#[test]
fn an_error_that_the_run_outlived_does_not_hide_the_one_it_dies_of() {
    let mut bench = Bench::running();
    bench.error("ContextOverflowError");
    bench.complete(1);
    bench.step(2);
    bench.idle();
    bench.error("UnknownError");
    assert_eq!(bench.wait(9 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Failed(error("UnknownError"))));
}

#[test]
fn a_status_that_is_not_known_says_nothing() {
    // Settled: the messages decide, and it has to last.
    let mut bench = Bench::running();
    bench.complete(1);
    assert_eq!(bench.status_of(ROOT, unrecognised()), []);
    let began = bench.now;
    assert_eq!(bench.wait(9 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.now.saturating_sub(began), WaitOptions::default().settle_grace);
    assert_eq!(bench.read(unrecognised()), finish(Ended::AtRest));
    assert!(bench.tree.is_at_rest(&ROOT.into()));

    // What happens meanwhile shows that it runs.
    let mut bench = Bench::running();
    bench.complete(1);
    bench.status_of(ROOT, unrecognised());
    bench.now += 4 * SECOND;
    bench.answer(2);
    assert_eq!(bench.wait(4 * SECOND), []);
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)]);
    bench.unheard(|bench| bench.answer(3));
    assert_eq!(bench.read(unrecognised()), []);
    assert_eq!(bench.wait_reading(&unrecognised()), finish(Ended::AtRest));

    // A step that goes on is not interrupted by it.
    let mut bench = Bench::running();
    bench.input(Input::StreamLost);
    bench.read(unrecognised());
    bench.input(Input::StreamOpened);
    bench.wait(SECOND);
    bench.read(unrecognised());
    assert_eq!(bench.wait(8 * SECOND), []);

    // A prompt that has not started is submitted again as after silence.
    let mut bench = Bench::accepted();
    bench.store_prompt();
    bench.status_of(ROOT, unrecognised());
    assert_eq!(bench.wait(9 * SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(unrecognised()), [Done::Submit]);
}

#[test]
fn a_descendant_with_a_status_that_is_not_known_works_while_its_messages_say_so() {
    let mut bench = Bench::running();
    bench.child();
    bench.status_of(CHILD, unrecognised());
    bench.step_of(CHILD, 50, None);
    bench.task(1, ToolStatus::Completed, true);
    bench.complete(1);
    assert_eq!(bench.idle(), [read(false, true, true)]);
    let still = [(ROOT, SessionStatus::Idle), (CHILD, unrecognised())];
    assert_eq!(bench.read_of(still.clone()), []);
    assert_eq!(bench.wait(9 * SECOND), []);
    // Where the stream does not carry its messages, they are read whenever it is silent.
    assert_eq!(bench.wait(2 * SECOND), [read(true, false, true)]);
    assert_eq!(bench.read_of(still.clone()), []);
    let completed = Some(bench.created());
    assert_eq!(bench.step_of(CHILD, 50, completed), []);
    assert_eq!(bench.wait(9 * SECOND), [read(true, true, true)]);
    assert_eq!(bench.read_of(still), finish(Ended::AtRest));
}

#[test]
fn a_background_subagent_keeps_the_turn_open() {
    let mut bench = Bench::running();
    bench.child();
    bench.status_of(CHILD, SessionStatus::Busy);
    bench.complete(1);
    assert_eq!(bench.idle(), [read(false, true, false)]);
    assert_eq!(bench.read_of([(CHILD, SessionStatus::Busy)]), []);
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.status_of(CHILD, SessionStatus::Idle), []);
    assert_eq!(bench.wait(SECOND), []);
    bench.busy();
    bench.answer(2);
    bench.idle();
    assert_eq!(bench.wait(6 * SECOND), [read(true, true, true)]);
}

/// Its idle was not heard, or it was deleted.
#[test]
fn a_descendant_that_alone_keeps_the_turn_open_is_looked_at_at_once() {
    let mut bench = Bench::running();
    bench.child();
    bench.status_of(CHILD, SessionStatus::Busy);
    bench.complete(1);
    let began = bench.now;
    assert_eq!(bench.idle(), [read(false, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::AtRest));
    let took = bench.now.saturating_sub(began);
    assert!(took < WaitOptions::default().settle_grace + SECOND, "{took:?}");

    let mut bench = Bench::running();
    bench.child();
    bench.status_of(CHILD, SessionStatus::Busy);
    bench.complete(1);
    bench.event(EventPayload::SessionDeleted(SessionInfo { id: CHILD.into(), ..SessionInfo::default() }));
    assert_eq!(bench.idle(), [read(true, false, false)]);
}

/// What was heard while the status was read is newer.
#[test]
fn a_status_of_descendants_that_news_overtook_is_read_again() {
    let mut bench = Bench::running();
    bench.child();
    bench.status_of(CHILD, SessionStatus::Busy);
    bench.complete(1);
    assert_eq!(bench.idle(), [read(false, true, false)]);
    bench.status_of(CHILD, retry());
    assert_eq!(bench.read(SessionStatus::Idle), [read(false, true, false)]);
    assert_eq!(bench.read_of([(CHILD, retry())]), []);
    assert_eq!(bench.wait(9 * SECOND), []);
}

/// The result of a subagent in the background comes as a prompt of the server's own, which begins another run.
#[test]
fn a_prompt_of_the_servers_own_is_waited_for_and_then_answered() {
    let mut bench = Bench::running();
    bench.child();
    bench.task(1, ToolStatus::Completed, true);
    bench.complete(1);
    // The call says that a result will come back.
    assert_eq!(bench.idle(), []);
    assert_eq!(bench.wait(3 * SECOND), []);
    bench.store_user("msg_02");
    assert_eq!(bench.wait(3 * SECOND), [read(true, true, true)], "five seconds since the idle");
    assert_eq!(bench.read(SessionStatus::Busy), []);
    bench.answer(3);
    bench.idle();
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::AtRest));
}

/// The list was made between the two, after a status that was idle.
#[test]
fn a_prompt_of_the_servers_own_that_does_not_run_yet_is_waited_for() {
    let mut bench = Bench::running();
    assert_eq!(bench.input(Input::StreamLost), [read(true, true, false)]);
    bench.unheard(|bench| {
        bench.task(1, ToolStatus::Completed, true);
        bench.complete(1);
        bench.store_user("msg_02");
    });
    assert_eq!(bench.read(SessionStatus::Idle), []);
    for _ in 0..3 {
        assert!(matches!(bench.wait(2 * SECOND)[..], [Done::Read(_)]));
        assert_eq!(bench.read(SessionStatus::Idle), []);
    }
    bench.unheard(|bench| bench.step(3));
    bench.wait(2 * SECOND);
    assert_eq!(bench.read(SessionStatus::Busy), []);
    bench.unheard(|bench| bench.complete(3));
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::AtRest));
}

#[test]
fn waiting_for_rest_needs_no_prompt() {
    let mut bench = Bench::rest();
    assert_eq!(bench.input(Input::StreamOpened), [read(true, true, true)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));

    let mut bench = Bench::rest();
    bench.input(Input::StreamOpened);
    bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
    assert_eq!(bench.read(SessionStatus::Busy), []);
    bench.complete(1);
    assert_eq!(bench.idle(), [read(true, false, false)]);
    assert_eq!(bench.recorded, [], "there is no prompt to record anything of");
}

/// A prompt that was aborted before it started is not about to start, so that the next one need not wait for that.
#[test]
fn what_was_aborted_before_it_started_is_soon_at_rest() {
    let rests_within = |aborted: bool| {
        let mut bench = Bench::rest();
        if aborted {
            bench.turn.after_an_abort();
        }
        bench.unheard(Bench::store_prompt);
        bench.input(Input::StreamOpened);
        let began = bench.now;
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::NotStarted { error: None }));
        bench.now.saturating_sub(began)
    };
    assert!(rests_within(true) < SECOND);
    assert!(rests_within(false) >= 5 * SECOND);
}

#[test]
fn a_status_read_before_the_news_is_old() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    assert_eq!(bench.wait(6 * SECOND), [read(true, true, false)]);
    bench.busy();
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait(9 * SECOND), []);
}

#[test]
fn events_of_one_batch_are_taken_in_before_anything_is_decided() {
    let mut bench = Bench::accepted();
    let payloads: Vec<EventPayload> = {
        let mut other = Bench::accepted();
        other.unheard(|other| (other.store_prompt(), other.answer(1)));
        let stored =
            other.stored[0].1.iter().map(|message| EventPayload::MessageUpdated(message.info.clone()));
        let status = |status| EventPayload::SessionStatus { session_id: ROOT.into(), status };
        let stored: Vec<_> = stored.collect();
        [vec![status(SessionStatus::Busy)], stored, vec![status(SessionStatus::Idle)]].concat()
    };
    for payload in payloads {
        bench.turn.handle(bench.now, &mut bench.tree, Input::Event(ServerEvent::new(payload).into()));
    }
    assert_eq!(bench.advance(), [read(true, false, false)]);
    assert_eq!(bench.recorded, [Delivery::Unknown, Delivery::Accepted, Delivery::Started]);
}

/// A text that is streamed in n pieces would otherwise cost n looks at all messages.
#[test]
fn more_text_is_no_reason_to_look_at_the_messages() {
    let mut bench = Bench::running();
    let text =
        Part::new("prt_text".into(), ROOT.into(), "msg_01".into(), PartBody::Text(TextPart::default()));
    bench.event(EventPayload::PartUpdated { part: text, delta: None });
    let before = bench.turn.facts;
    for _ in 0..3 {
        let delta = PartDelta::new(ROOT.into(), "msg_01".into(), "prt_text".into(), "word ");
        let event = ServerEvent::new(EventPayload::PartDelta(delta));
        let observed = bench.turn.handle(bench.now, &mut bench.tree, Input::Event((&event).into()));
        assert!(observed.progress && !bench.turn.facts_outdated);
    }
    assert_eq!(
        Facts::of(&bench.tree, Some(&PROMPT.into()), std::iter::empty()),
        before,
        "it would see the same"
    );
    bench.complete(1);
    assert_ne!(bench.turn.facts, before);
}

/// A run between two idles must not be missed because all of it was taken in at once.
#[test]
fn an_idle_that_was_interrupted_within_a_batch_begins_anew() {
    let mut bench = Bench::running();
    bench.child();
    bench.task(1, ToolStatus::Completed, true);
    bench.complete(1);
    assert_eq!(bench.idle(), []);
    bench.now += 4 * SECOND;
    for status in [SessionStatus::Busy, SessionStatus::Idle] {
        let payload = EventPayload::SessionStatus { session_id: ROOT.into(), status };
        bench.turn.handle(bench.now, &mut bench.tree, Input::Event(ServerEvent::new(payload).into()));
    }
    assert_eq!(bench.advance(), []);
    assert_eq!(bench.wait(4 * SECOND), []);
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
}

//! Submitting a prompt, and submitting it again.

use super::*;

#[test]
fn a_lost_prompt_is_submitted_again_a_bounded_number_of_times() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    let began = bench.now;
    for kick in 1..=3 {
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Submit]);
        assert_eq!(bench.turn.kicks(), kick);
        bench.input(Input::Submitted(Delivery::Accepted));
    }
    // A busy server is given time, and in the end nothing is left that could begin later.
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Abort]);
    let took = bench.now.saturating_sub(began);
    assert!((50 * SECOND..60 * SECOND).contains(&took), "{took:?}");
    assert_eq!(bench.abort_done(), finish(Ended::NotStarted { error: None }));
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
}

#[test]
fn an_idle_without_an_answer_hints_at_a_lost_prompt() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    bench.idle();
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), [Done::Submit]);
    bench.busy();
    bench.answer(1);
    assert_eq!(bench.idle(), [read(true, false, false)]);
}

#[test]
fn an_idle_shortens_a_wait_that_has_begun() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    assert_eq!(bench.wait(3 * SECOND), []);
    assert_eq!(bench.idle(), [read(true, true, false)]);
}

#[test]
fn an_error_without_an_answer_is_believed_the_second_time() {
    let mut bench = Bench::accepted();
    bench.error("UnknownError");
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), [Done::Submit]);
    bench.input(Input::Submitted(Delivery::Accepted));
    bench.error("UnknownError");
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)]);
    let error = Some(error("UnknownError"));
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::NotStarted { error }));
}

#[test]
fn an_aborted_prompt_is_not_submitted_again() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    bench.error("MessageAbortedError");
    bench.wait(SECOND);
    let error = Some(error("MessageAbortedError"));
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::NotStarted { error }));
}

#[test]
fn a_prompt_with_a_newer_one_behind_it_is_not_submitted_again() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    bench.store_user("msg_01");
    bench.wait(6 * SECOND);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::NotStarted { error: None }));
}

#[test]
fn a_kick_that_did_not_arrive_is_no_kick() {
    let mut bench = Bench::accepted();
    bench.store_prompt();
    for _ in 0..5 {
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Submit]);
        bench.input(Input::Submitted(Delivery::Unknown));
        assert_eq!(bench.turn.kicks(), 0);
    }
}

#[test]
fn an_unclear_submission_is_read_then_repeated() {
    let mut bench = Bench::new();
    bench.input(Input::StreamOpened);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), [read(true, false, false)]);
    assert_eq!(bench.turn.delivery(), Delivery::Unknown);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.wait(SECOND), [Done::Submit]);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), [read(true, false, false)]);
    bench.unheard(Bench::store_prompt);
    assert_eq!(bench.read(SessionStatus::Idle), []);
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
    assert_eq!(bench.turn.kicks(), 0);
    assert_eq!(bench.recorded, [Delivery::Unknown, Delivery::Accepted]);
}

/// Stores a prompt of this text under an id of the server's own.
pub(super) fn store_text(bench: &mut Bench, id: &str, text: &str) {
    bench.unheard(|bench| bench.store_user(id));
    let text = TextPart { text: text.to_owned(), ..TextPart::default() };
    let part = Part::new(PartId::new(id), ROOT.into(), id.into(), PartBody::Text(text));
    bench.messages_of(ROOT).last_mut().unwrap().parts.push(part);
}

/// A server, or a proxy, that ignores the ids of its clients makes another prompt of every submission.
#[test]
fn a_prompt_that_the_server_has_under_another_id_is_not_sent_again() {
    for unclear in [false, true] {
        let mut bench = Bench::new();
        store_text(&mut bench, "msg_before", TEXT);
        bench.event(EventPayload::MessageUpdated(bench.stored[0].1[0].info.clone()));
        bench.now += SECOND;
        assert_eq!(bench.input(Input::StreamOpened), [Done::Submit]);
        let answer = if unclear { Delivery::Unknown } else { Delivery::Accepted };
        bench.input(Input::Submitted(answer));
        bench.now += SECOND;
        store_text(&mut bench, "msg_other", "something else");
        store_text(&mut bench, "msg_renamed", TEXT);
        bench.now += SECOND;
        bench.unheard(|bench| bench.answer(7));
        let Some(MessageInfo::Assistant(step)) = bench.stored[0].1.last_mut().map(|last| &mut last.info)
        else {
            panic!("no step")
        };
        step.parent_id = Some("msg_renamed".into());
        assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::AtRest), "{unclear}");
        assert_eq!(bench.turn.prompt().map(MessageId::as_str), Some("msg_renamed"));
        assert_eq!(bench.done.iter().filter(|done| **done == Done::Submit).count(), 1);
    }
}

#[test]
fn a_prompt_under_another_id_that_does_not_start_is_given_up() {
    let mut bench = Bench::accepted();
    bench.now += SECOND;
    store_text(&mut bench, "msg_renamed", TEXT);
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Abort]);
    assert_eq!(bench.abort_done(), finish(Ended::NotStarted { error: None }));
    assert_eq!(bench.done.iter().filter(|done| **done == Done::Submit).count(), 1);
}

/// What there was before an earlier client's submission is not known. The prompt before this one may have said the same, so that its
/// answer must not pass for this one's; but if it is this one, it must not run twice.
#[test]
fn a_resumed_prompt_is_not_sent_if_the_newest_one_says_the_same() {
    for (text, expected) in [(TEXT, None), ("something else", Some(Done::Submit))] {
        let mut bench = Bench::from(Delivery::Unknown);
        store_text(&mut bench, "msg_renamed", text);
        bench.now += SECOND;
        bench.unheard(|bench| bench.answer(7));
        bench.input(Input::StreamOpened);
        let done = bench.wait_reading(&SessionStatus::Idle);
        assert_eq!(done, [expected.unwrap_or(Done::Finish(Ended::Interrupted))], "{text}");
    }
}

#[test]
fn an_unclear_submission_is_never_repeated_unread() {
    let mut bench = Bench::new();
    bench.input(Input::StreamOpened);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), [read(true, false, false)]);
    let mut reads = 1;
    loop {
        assert_eq!(bench.read_fails(), []);
        match bench.wait(60 * SECOND)[..] {
            [Done::Read(Scope { messages: true, .. })] => reads += 1,
            [Done::Abort] => break,
            ref other => panic!("{other:?} without knowing"),
        }
    }
    let seconds = usize::try_from(WaitOptions::default().idle_timeout.as_secs()).unwrap();
    assert!((seconds - 5..seconds + 5).contains(&reads), "one read a second until idle_timeout, not {reads}");
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Idle)));
    assert_eq!(bench.turn.delivery(), Delivery::Unknown);
}

/// What could not be decoded may be the prompt.
#[test]
fn a_list_that_could_not_be_decoded_in_full_shows_nothing_to_be_absent() {
    let mut bench = Bench::new();
    bench.input(Input::StreamOpened);
    bench.input(Input::Submitted(Delivery::Unknown));
    let Some(Read { id, .. }) = bench.read.take() else { panic!("no read") };
    let messages = Some(Messages { messages: Vec::new(), is_sound: false });
    let done = bench.input(Input::ReadDone(id, Reading { messages, ..Reading::default() }));
    assert_eq!(done, [read(true, false, false)]);
}

#[test]
fn a_server_that_is_away_gets_a_few_tries() {
    let mut bench = Bench::new();
    bench.input(Input::StreamLost);
    let mut submissions = 1;
    let ended = loop {
        let ended = bench.input(Input::Submitted(Delivery::NotSent));
        bench.read = None;
        if let [Done::Finish(_)] = ended.as_slice() {
            // At once: there is nothing more to wait for.
            break ended;
        }
        while bench.wait(60 * SECOND) != [Done::Submit] {
            bench.read_fails();
        }
        submissions += 1;
    };
    assert_eq!(submissions, 6);
    assert_eq!(ended, finish(Ended::NotDelivered(Delivery::NotSent)));
    assert_eq!(bench.turn.delivery(), Delivery::NotSent);
}

#[test]
fn a_refused_submission_is_final() {
    let mut bench = Bench::new();
    bench.input(Input::StreamOpened);
    let refused = bench.input(Input::Submitted(Delivery::Rejected));
    assert_eq!(refused, finish(Ended::NotDelivered(Delivery::Rejected)));
    assert_eq!(bench.turn.delivery(), Delivery::Rejected);
    assert_eq!(bench.recorded, [Delivery::Unknown]);
}

#[test]
fn a_refusal_does_not_take_back_an_unclear_submission() {
    let mut bench = Bench::new();
    assert_eq!(bench.input(Input::StreamOpened), [Done::Submit]);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), [read(true, false, false)]);
    bench.read(SessionStatus::Idle);
    assert_eq!(bench.wait(2 * SECOND), [Done::Submit]);
    let ended = bench.input(Input::Submitted(Delivery::Rejected));
    assert_eq!(ended, finish(Ended::NotDelivered(Delivery::Unknown)), "the first may have arrived");
}

/// The server refuses the credentials, or knows no such session, and so has not taken the prompt.
#[test]
fn a_submission_that_is_refused_with_the_whole_session_is_not_unclear() {
    for (is_gone, before, expected) in [
        (true, None, Delivery::Rejected),
        (false, None, Delivery::Rejected),
        (true, Some(Delivery::NotSent), Delivery::Rejected),
        // The first may have arrived.
        (true, Some(Delivery::Unknown), Delivery::Unknown),
        (false, Some(Delivery::Unknown), Delivery::Unknown),
    ] {
        let case = format!("gone: {is_gone}, {before:?} before");
        let mut bench = Bench::new();
        bench.input(Input::StreamOpened);
        if let Some(before) = before {
            bench.input(Input::Submitted(before));
            assert_eq!(bench.wait_reading(&SessionStatus::Idle), [Done::Submit], "{case}");
        }
        assert_eq!(bench.input(Input::SubmissionRefused(Delivery::Rejected)), [], "{case}");
        let (says, ended) = if is_gone {
            (Input::SessionGone, Ended::SessionGone)
        } else {
            (Input::Unauthorized, Ended::Unauthorized)
        };
        assert_eq!(bench.input(says), finish(ended), "{case}");
        assert_eq!(bench.turn.delivery(), expected, "{case}");
    }
}

#[test]
fn a_message_seen_before_its_answer_counts_as_accepted() {
    let mut bench = Bench::new();
    bench.input(Input::StreamOpened);
    bench.store_prompt();
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), []);
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
}

#[test]
fn a_stop_before_submission_has_nothing_to_abort() {
    let mut bench = Bench::new();
    assert_eq!(bench.input(Input::Stop), finish(Ended::Stopped(Stop::Aborted)));

    let mut bench = Bench::accepted();
    assert_eq!(bench.input(Input::Stop), [Done::Abort]);
    assert_eq!(bench.abort_done(), finish(Ended::Stopped(Stop::Aborted)));
}

#[test]
fn a_submission_under_way_is_not_unsent() {
    let mut bench = Bench::new();
    assert_eq!(bench.input(Input::StreamOpened), [Done::Submit]);
    assert_eq!(bench.input(Input::Stop), [Done::Abort]);
    assert_eq!(bench.abort_done(), finish(Ended::Stopped(Stop::Aborted)));
    assert_ne!(bench.turn.delivery(), Delivery::NotSent, "the request is on its way");
}

/// Submitted twice, and the server got to one of the two only after the run of the other had failed.
#[test]
fn a_prompt_that_stands_behind_its_failed_answer_will_run_again() {
    let mut bench = Bench::accepted();
    bench.busy();
    bench.store_prompt();
    bench.step(1);
    bench.now += SECOND;
    let completed = Some(bench.created());
    let mut failed = bench.stored[0].1[1].info.as_assistant().unwrap().clone();
    failed.time.completed = completed;
    failed.error = Some(error("APIError"));
    bench.store(ROOT, MessageInfo::Assistant(Box::new(failed)));
    bench.now += SECOND;
    bench.store_prompt();
    assert_eq!(bench.idle(), [], "it will run again");
    assert_eq!(bench.wait(4 * SECOND), []);
    bench.busy();
    bench.step(2);
    assert_eq!(bench.turn.facts.steps, 2, "the first step still belongs to the turn");
    bench.complete(2);
    assert_eq!(bench.idle(), [read(true, false, false)]);
}

//! Polling, silence, and limits that run out.

use super::*;

#[test]
fn without_a_stream_the_prompt_goes_out_and_the_session_is_polled() {
    let mut bench = Bench::new();
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.wait(2 * SECOND), [Done::Submit]);
    assert_eq!(bench.input(Input::Submitted(Delivery::Accepted)), [read(true, true, false)]);
    assert!(!bench.turn.is_stream_open() && !bench.turn.is_stream_lost(), "it may still open");
    bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
    assert_eq!(bench.read(SessionStatus::Busy), []);
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)]);
    bench.unheard(|bench| bench.complete(1));
    bench.read(SessionStatus::Idle);
    // Once in a while with everything that no event may have told of.
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::AtRest));
}

#[test]
fn silence_costs_one_request_in_ten_seconds_and_then_the_turn() {
    let mut bench = Bench::running();
    bench.done.clear();
    let began = bench.now;
    assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort]);
    let (requests, last) = bench.done.split_at(35);
    let in_turn = [read(true, false, false), read(false, true, false)];
    assert!(requests.iter().eq(in_turn.iter().cycle().take(35)), "{requests:?}");
    assert_eq!(last, [read(true, true, true), Done::Abort], "a last look");
    assert_eq!(bench.now.saturating_sub(began).as_secs(), 360);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Idle)));
}

#[test]
fn a_last_look_can_save_the_turn() {
    let mut bench = Bench::running();
    while bench.wait(60 * SECOND) != [read(true, true, true)] {
        bench.read(SessionStatus::Busy);
    }
    bench.unheard(|bench| (bench.complete(1), bench.step(2)));
    assert_eq!(bench.read(SessionStatus::Busy), []);
    let saved = bench.now;
    assert_eq!(bench.wait(SECOND), [read(true, false, false)], "what is not heard is read");
    assert_eq!(bench.read(SessionStatus::Busy), []);
    assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort], "the next limit");
    assert_eq!(bench.now.saturating_sub(saved).as_secs(), 360);
}

/// A stream without message events, as that of 1.15.0.
#[test]
fn what_the_stream_does_not_tell_is_read_soon_and_then_less_often() {
    let mut bench = Bench::accepted();
    bench.busy();
    bench.unheard(|bench| (bench.store_prompt(), bench.step(1)));
    let messages = [read(true, false, false)];
    assert_eq!(bench.wait(SECOND), messages, "a run without its prompt's message");
    bench.read(SessionStatus::Busy);
    bench.unheard(|bench| (bench.complete(1), bench.step(2)));
    assert_eq!(bench.wait(SECOND), messages);
    bench.read(SessionStatus::Busy);
    for pause in (1..10).chain([10, 10, 10]) {
        assert_eq!(bench.wait((2 * pause - 1) * SECOND / 2), [], "{pause} s");
        assert!(matches!(bench.wait(SECOND / 2)[..], [Done::Read(_)]), "{pause} s");
        bench.read(SessionStatus::Busy);
    }
    // One message event shows that the stream carries them after all.
    bench.complete(2);
    bench.step(3);
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.wait(SECOND), messages);
}

#[test]
fn a_last_look_that_fails_or_takes_too_long_saves_nothing() {
    for fails in [true, false] {
        let mut bench = Bench::running();
        while bench.wait(60 * SECOND) != [read(true, true, true)] {
            bench.read(SessionStatus::Busy);
        }
        let aborted = if fails { bench.read_fails() } else { bench.wait(6 * SECOND) };
        assert_eq!(aborted, [Done::Abort]);
    }
}

#[test]
fn a_running_tool_and_a_retrying_provider_have_their_own_limits() {
    let check = |prepare: &dyn Fn(&mut Bench), status: SessionStatus, limit: Limit, after: u64| {
        let mut bench = Bench::running();
        prepare(&mut bench);
        let began = bench.now;
        assert_eq!(bench.wait_reading(&status), [Done::Abort]);
        assert_eq!(bench.abort_done(), finish(Ended::Limit(limit)));
        assert_eq!(bench.now.saturating_sub(began).as_secs(), after, "{limit:?}");
    };
    let tool = |bench: &mut Bench| drop(bench.tool(1, "call", ToolStatus::Running));
    check(&tool, SessionStatus::Busy, Limit::Tool, 600);
    check(&|bench| drop(bench.status_of(ROOT, retry())), retry(), Limit::Retry, 300);
    check(&|_| {}, SessionStatus::Busy, Limit::Idle, 360);
}

/// Each attempt begins anew, as the second one of the recording `retry_partial` does, and says nothing.
#[test]
fn an_attempt_that_only_begins_does_not_extend_the_budget_of_retries() {
    let text = |text: &str| PartBody::Text(TextPart { text: text.to_owned(), ..TextPart::default() });
    // The last attempt fails like the others, hangs, or is answered.
    for (last, limit, after) in
        [("fails", Limit::Retry, 300), ("hangs", Limit::Idle, 290 + 360), ("says", Limit::Idle, 290 + 360)]
    {
        let mut bench = Bench::running();
        let began = bench.now;
        for n in 1..30 {
            bench.status_of(ROOT, retry());
            assert_eq!(bench.wait(9 * SECOND), [], "{last}: {n}");
            bench.now = began + 10 * SECOND * n;
            bench.busy();
            bench.part(1, &format!("prt_{n}_start"), PartBody::StepStart(StepStartPart::default()));
            assert_eq!(bench.part(1, &format!("prt_{n}_text"), text("")), [], "{last}: {n}");
        }
        match last {
            "fails" => drop(bench.status_of(ROOT, retry())),
            "says" => drop(bench.part(1, "prt_word", text("Hello"))),
            _ => {}
        }
        assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort]);
        assert_eq!(bench.abort_done(), finish(Ended::Limit(limit)), "{last}");
        assert_eq!(bench.now.saturating_sub(began).as_secs(), after, "{last}");
    }
}

#[test]
fn a_subagent_whose_provider_is_retried_has_the_budget_of_retries() {
    let options = WaitOptions::default().idle_timeout(60 * SECOND);
    for heard in [true, false] {
        let mut bench = Bench::with(options.clone()).into_running();
        bench.child();
        bench.task(1, ToolStatus::Running, false);
        bench.step_of(CHILD, 50, None);
        let began = bench.now;
        if heard {
            bench.status_of(CHILD, retry());
        }
        let aborted = loop {
            let done = if bench.read.is_some() {
                bench.read_of([(ROOT, SessionStatus::Busy), (CHILD, retry())])
            } else {
                bench.wait(10 * SECOND)
            };
            if done == [Done::Abort] {
                break bench.now.saturating_sub(began).as_secs();
            }
        };
        assert!(aborted >= 300, "{aborted}");
        assert_eq!(bench.turn.provider_said(), Some("Overloaded"));
    }
}

#[test]
fn a_tool_that_waits_for_a_subagent_is_no_running_tool() {
    let mut bench = Bench::running();
    bench.child();
    bench.task(1, ToolStatus::Running, false);
    assert!(!bench.turn.facts.tool_running, "the subagent speaks for itself");
    bench.tool(1, "call", ToolStatus::Running);
    assert!(bench.turn.facts.tool_running);
}

/// Text that is streamed meanwhile is in no list until it is whole.
#[test]
fn a_gap_in_the_stream_starts_the_limit_anew_but_not_without_end() {
    let mut bench = Bench::running();
    let began = bench.now;
    let aborted = loop {
        bench.input(Input::StreamGap);
        let until = bench.now + 30 * SECOND;
        let mut done = Vec::new();
        while bench.now < until && done != [Done::Abort] {
            done = if bench.read.is_some() {
                bench.read(SessionStatus::Busy)
            } else {
                bench.wait(until.saturating_sub(bench.now))
            };
        }
        if done == [Done::Abort] {
            break bench.now;
        }
    };
    let took = aborted.saturating_sub(began).as_secs();
    assert_eq!(took, 60 + 360, "three gaps count: at once, after 30 s, and after 60 s");
    assert!(bench.turn.is_unbroken(), "the server lives");
}

#[test]
fn a_gap_after_a_loss_opens_the_stream_again() {
    let mut bench = Bench::running();
    bench.input(Input::StreamLost);
    bench.read(SessionStatus::Busy);
    bench.input(Input::StreamGap);
    assert!(bench.turn.is_stream_open() && !bench.turn.is_unbroken());
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
}

#[test]
fn the_clocks_stand_still_while_a_human_is_asked() {
    let mut bench = Bench::with(WaitOptions::default().deadline(100 * SECOND)).into_running();
    let request = RequestId::new("per_1");
    assert_eq!(bench.asks(ROOT, "per_1", 1), [Done::Ask(request.clone())]);
    bench.input(Input::HumanAsked(request.clone()));
    let until = bench.now + 10_000 * SECOND;
    while bench.now < until {
        bench.wait(10 * SECOND);
        if bench.read.is_some() {
            bench.read(SessionStatus::Busy);
        }
        assert!(!bench.done.contains(&Done::Abort));
    }
    bench.input(Input::Decided(request));
    assert!(bench.turn.next_wakeup().is_some_and(|at| at > bench.now));
    let answered = bench.now;
    let mut number = 1;
    while !bench.done.contains(&Done::Abort) {
        bench.wait(20 * SECOND);
        if bench.read.is_some() {
            bench.read(SessionStatus::Busy);
        }
        if !bench.done.contains(&Done::Abort) {
            number += 1;
            bench.answer(number);
        }
    }
    let left = bench.now.saturating_sub(answered);
    assert!((99 * SECOND..=100 * SECOND).contains(&left), "{left:?}");
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Deadline)));
}

#[test]
fn too_many_steps_of_a_subagent_end_the_turn() {
    let busy = || SessionStatus::Busy;
    let idle = || SessionStatus::Idle;
    for (case, n_before, n_since, root, child, is_ended) in [
        ("as many as it may", 0, 3, busy(), busy(), false),
        ("one more", 0, 4, busy(), busy(), true),
        ("in the background", 0, 4, idle(), busy(), true),
        ("it rests", 0, 4, busy(), idle(), false),
        ("another turn's", 4, 3, busy(), busy(), false),
    ] {
        let mut bench = Bench::with(WaitOptions::default().max_steps(3));
        bench.child();
        let steps = |bench: &mut Bench, from: u32, n: u32| {
            for number in from..from + n {
                bench.step_of(CHILD, number, Some(bench.created()));
            }
        };
        steps(&mut bench, 40, n_before);
        bench.now += SECOND;
        bench.busy();
        bench.store_prompt();
        bench.now += SECOND;
        // Each session has its own count.
        bench.answer(1);
        bench.answer(2);
        bench.status_of(ROOT, root);
        bench.status_of(CHILD, child);
        bench.done.clear();
        steps(&mut bench, 50, n_since);
        assert_eq!(bench.done.contains(&Done::Abort), is_ended, "{case}: {:?}", bench.done);
    }
}

#[test]
fn too_many_steps_end_an_endless_loop() {
    let mut bench = Bench::running();
    bench.complete(1);
    for number in 2..=250 {
        assert_eq!(bench.answer(number), []);
    }
    assert_eq!(bench.step(251), [Done::Abort]);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Steps)));
}

#[test]
fn a_turn_that_is_left_alone_is_read_once_more_and_not_aborted() {
    let mut bench = Bench::with(WaitOptions::default().on_limit(TimeoutAction::Leave)).into_running();
    // A last look, then what there is to be seen.
    while bench.wait(60 * SECOND) != [read(true, true, true)] {
        bench.read(SessionStatus::Busy);
    }
    assert_eq!(bench.read(SessionStatus::Busy), [read(true, false, false)]);
    bench.unheard(|bench| bench.tool(1, "call", ToolStatus::Running));
    assert_eq!(bench.read(SessionStatus::Busy), finish(Ended::Limit(Limit::Idle)));
    assert!(!bench.tree.is_at_rest(&ROOT.into()), "it goes on");
    assert!(!bench.done.contains(&Done::Abort));
}

#[test]
fn the_read_after_an_abort_is_best_effort() {
    // Confirmed, read: the last word, and nothing of it changes any more.
    let mut bench = Bench::running();
    bench.input(Input::Stop);
    assert_eq!(bench.abort_done(), finish(Ended::Stopped(Stop::Aborted)));
    assert!(bench.tree.is_at_rest(&ROOT.into()));

    // Not confirmed: it may go on.
    let mut bench = Bench::running();
    bench.input(Input::Stop);
    assert_eq!(bench.input(Input::AbortDone { confirmed: false }), [read(true, false, false)]);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Stopped(Stop::Aborted)));
    assert!(!bench.tree.is_at_rest(&ROOT.into()));

    // Old servers say that nothing runs before they have written down how it ended: it is read until it has its end.
    let mut bench = Bench::running();
    bench.input(Input::Stop);
    bench.input(Input::AbortDone { confirmed: true });
    for _ in 0..3 {
        assert_eq!(bench.read(SessionStatus::Idle), []);
        assert_eq!(bench.wait(SECOND), [read(true, false, false)]);
    }
    bench.finish_steps();
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Stopped(Stop::Aborted)));
    assert!(
        bench
            .tree
            .messages(&ROOT.into())
            .all(|message| message.info.time().completed.is_some() || message.info.as_assistant().is_none())
    );

    // So is a subagent that ends after its root; and what never gets an end is not waited for any longer than the grace.
    let mut bench = Bench::running();
    bench.child();
    bench.step_of(CHILD, 5, None);
    bench.input(Input::Stop);
    bench.complete(1);
    assert_eq!(bench.input(Input::AbortDone { confirmed: true }), [read(true, false, true)]);
    let began = bench.now;
    assert_eq!(bench.wait_reading(&SessionStatus::Idle), finish(Ended::Stopped(Stop::Aborted)));
    let seconds = bench.now.saturating_sub(began).as_secs();
    assert!((4..=6).contains(&seconds), "{seconds} s");
    assert!(bench.tree.is_at_rest(&CHILD.into()));

    // It fails, never comes, finds the session gone, or is not allowed any more.
    let ends: [fn(&mut Bench) -> Vec<Done>; 4] = [
        Bench::read_fails,
        |bench| bench.wait(6 * SECOND),
        |bench| bench.input(Input::SessionGone),
        |bench| bench.input(Input::Unauthorized),
    ];
    for end in ends {
        let mut bench = Bench::running();
        bench.input(Input::Stop);
        bench.input(Input::AbortDone { confirmed: true });
        assert_eq!(end(&mut bench), finish(Ended::Stopped(Stop::Aborted)));
        assert!(bench.tree.is_at_rest(&ROOT.into()));
    }
}

/// It was asked for before the abort, and nothing waits for it. What it shows is still true.
#[test]
fn a_read_that_was_given_up_is_merged_and_nothing_else() {
    let mut bench = Bench::running();
    bench.complete(1);
    bench.idle();
    let Some(Read { id, .. }) = bench.read else { panic!("no read") };
    bench.input(Input::Stop);
    let last = bench.input(Input::AbortDone { confirmed: true });
    assert_eq!(last, [read(true, false, false)]);
    let messages = Some(Messages { messages: bench.stored[0].1.clone(), is_sound: true });
    assert_eq!(bench.input(Input::ReadDone(id, Reading { messages, ..Reading::default() })), []);
    assert_eq!(bench.read(SessionStatus::Idle), finish(Ended::Stopped(Stop::Aborted)));
}

/// A turn whose reads all fail, from now until it is aborted; says how long that took.
fn out_of_reach(bench: &mut Bench) -> u64 {
    let began = bench.now;
    loop {
        let done = if bench.read.is_some() { bench.read_fails() } else { bench.wait(10 * SECOND) };
        if done == [Done::Abort] {
            return bench.now.saturating_sub(began).as_secs();
        }
    }
}

#[test]
fn a_server_that_is_out_of_reach_is_given_up_sooner_than_a_silent_model() {
    let mut bench = Bench::running();
    bench.input(Input::StreamLost);
    assert_eq!(out_of_reach(&mut bench), 45);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Contact)));

    // Also while a tool runs, of which nothing would be heard.
    let mut bench = Bench::running();
    bench.tool(1, "call", ToolStatus::Running);
    bench.input(Input::StreamLost);
    assert_eq!(out_of_reach(&mut bench), 45);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Contact)));
}

/// It has lost the request, or could not take the answer: the human may answer in an hour, or never.
#[test]
fn a_server_that_is_out_of_reach_is_not_waited_for_while_a_human_is_asked() {
    let request = RequestId::new("per_1");
    let asked = || {
        let mut bench = Bench::running();
        bench.tool(1, "call", ToolStatus::Running);
        bench.asks(ROOT, "per_1", 1);
        bench.input(Input::HumanAsked(request.clone()));
        bench
    };
    let mut bench = asked();
    bench.input(Input::StreamLost);
    assert_eq!(out_of_reach(&mut bench), 45);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Contact)));

    // What the answer does not reach after that is held to the limits like anything else.
    let mut bench = asked();
    bench.now += 3600 * SECOND;
    bench.input(Input::Decided(request.clone()));
    let decided = bench.now;
    assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort]);
    assert_eq!(bench.now.saturating_sub(decided).as_secs(), 600);
    assert_eq!(bench.abort_done(), finish(Ended::Limit(Limit::Tool)));
}

#[test]
fn a_server_that_is_heard_is_not_out_of_reach() {
    // Reads that fail say little while the stream is open.
    let mut bench = Bench::running();
    let took = out_of_reach(&mut bench);
    assert!(took >= 360, "{took}");

    // One answer is enough to begin anew.
    let mut bench = Bench::running();
    bench.input(Input::StreamLost);
    let began = bench.now;
    while bench.now.saturating_sub(began) < 40 * SECOND {
        if bench.read.is_some() {
            bench.read_fails()
        } else {
            bench.wait(SECOND)
        };
    }
    while bench.read.is_none() {
        bench.wait(SECOND);
    }
    bench.read(SessionStatus::Busy);
    assert!(out_of_reach(&mut bench) >= 45);
}

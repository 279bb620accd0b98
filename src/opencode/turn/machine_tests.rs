use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::{ids::RequestId, wire::MessageError};

/// A turn, its clock, and what it asked for.
struct Bench {
    turn: Turn,
    now: Duration,
    facts: Facts,
    done: Vec<Action>,
}

const EXISTS: Facts = Facts {
    exists: true,
    newest: true,
    steps: 0,
    incomplete: 0,
    tool_running: false,
    descendant_open: false,
    runs_again: false,
};
const RUNNING: Facts = Facts { steps: 1, incomplete: 1, ..EXISTS };
const ANSWERED: Facts = Facts { steps: 1, ..EXISTS };

impl Bench {
    fn new(goal: Goal, options: WaitOptions) -> Self {
        let now = Duration::from_secs(1000);
        Self { turn: Turn::new(goal, options, now), now, facts: Facts::default(), done: Vec::new() }
    }

    /// A turn whose prompt the server has accepted, on an open stream.
    fn accepted() -> Self {
        let mut bench = Self::new(Goal::Answer, WaitOptions::default());
        assert_eq!(bench.input(Input::StreamOpened), [Action::Submit]);
        assert_eq!(bench.input(Input::Submitted(Delivery::Accepted)), []);
        bench
    }

    fn input(&mut self, input: Input) -> Vec<Action> {
        let actions = self.turn.handle(self.now, input, self.facts);
        self.done.extend(actions.clone());
        actions
    }

    fn observed(&mut self, facts: Facts) -> Vec<Action> {
        self.facts = facts;
        self.input(Input::Observed { progress: true })
    }

    fn status(&mut self, activity: Activity) -> Vec<Action> {
        self.input(Input::Status { descendant: None, activity })
    }

    fn read(&mut self, root: Activity) -> Vec<Action> {
        self.now += Duration::from_millis(1);
        self.input(Input::ReadDone { status: Some(TreeStatus::new(root, BTreeSet::new())), progress: false })
    }

    /// Lets time pass until the machine asks for something, for at most `limit`.
    fn wait(&mut self, limit: Duration) -> Vec<Action> {
        let until = self.now + limit;
        while let Some(at) = self.turn.next_wakeup(self.now) {
            if at > until {
                break;
            }
            // A wake-up in the past that changes nothing would be a busy loop.
            self.now = at.max(self.now + Duration::from_nanos(1));
            let actions = self.input(Input::Tick);
            if !actions.is_empty() {
                return actions;
            }
        }
        self.now = until;
        Vec::new()
    }
}

fn read(messages: bool, status: bool, tree: bool) -> Action {
    Action::Read(Read { messages, status, tree })
}

fn finish(ended: Ended) -> [Action; 1] {
    [Action::Finish(ended)]
}

fn error(name: &str) -> MessageError {
    MessageError { name: name.into(), ..MessageError::default() }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_normal_turn_needs_one_submission_and_one_read() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    bench.observed(ANSWERED);
    assert_eq!(bench.status(Activity::Idle), [read(true, false, false)]);
    assert!(bench.turn.read_is_final());
    assert_eq!(bench.input(Input::ReadDone { status: None, progress: false }), finish(Ended::Settled));
    assert_eq!(bench.turn.delivery(), Delivery::Started);
    assert_eq!(bench.turn.next_wakeup(bench.now), None);
}

#[test]
fn a_stale_idle_does_not_end_the_turn() {
    let mut bench = Bench::accepted();
    bench.observed(EXISTS);
    assert_eq!(bench.status(Activity::Idle), []);
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    assert_eq!(bench.wait(9 * SECOND), []);
}

#[test]
fn an_idle_between_steps_is_not_believed_without_a_busy() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Idle);
    assert_eq!(bench.observed(ANSWERED), [read(true, true, false)]);
    assert_eq!(bench.read(Activity::Busy), []);
    bench.observed(Facts { steps: 2, incomplete: 1, ..EXISTS });
    bench.observed(Facts { steps: 2, ..EXISTS });
    assert_eq!(bench.status(Activity::Idle), [read(true, false, false)]);
}

#[test]
fn the_first_of_two_idles_waits_for_the_message_to_complete() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    bench.input(Input::SessionError(error("APIError")));
    assert_eq!(bench.status(Activity::Idle), []);
    assert_eq!(bench.wait(2 * SECOND), []);
    assert_eq!(bench.observed(ANSWERED), [read(true, false, false)]);
    assert_eq!(bench.status(Activity::Idle), []);
    assert_eq!(bench.input(Input::ReadDone { status: None, progress: false }), finish(Ended::Settled));
}

#[test]
fn idle_with_an_unfinished_message_is_an_interruption_in_the_end() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    bench.input(Input::StreamLost);
    assert_eq!(bench.done.last(), Some(&read(true, true, false)));
    bench.input(Input::ReadFailed);
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(Activity::Idle), []);
    assert_eq!(bench.input(Input::StreamOpened), []);
    assert_eq!(bench.wait(SECOND), [read(true, true, true)]);
    assert_eq!(bench.read(Activity::Idle), []);
    assert_eq!(bench.wait(10 * SECOND), [read(true, true, false)]);
    assert!(bench.turn.read_is_final());
    assert_eq!(bench.read(Activity::Idle), finish(Ended::Interrupted));
}

#[test]
fn a_lost_prompt_is_submitted_again_a_bounded_number_of_times() {
    let mut bench = Bench::accepted();
    bench.observed(EXISTS);
    // What it does when it has looked as often as it wants to, and nothing has begun.
    let next = |bench: &mut Bench| loop {
        let looked = bench.wait(30 * SECOND);
        assert!(matches!(looked.as_slice(), [Action::Read(_)]), "{looked:?}");
        let actions = bench.read(Activity::Idle);
        if !actions.is_empty() {
            break actions;
        }
    };
    let began = bench.now;
    for kick in 1..=3 {
        assert_eq!(next(&mut bench), [Action::Submit]);
        assert_eq!(bench.turn.kicks(), kick);
        bench.input(Input::Submitted(Delivery::Accepted));
    }
    // A busy server is given time, and in the end nothing is left that could begin later.
    assert_eq!(next(&mut bench), [Action::Abort]);
    let took = bench.now.saturating_sub(began);
    assert!((50 * SECOND..60 * SECOND).contains(&took), "{took:?}");
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::NotStarted { error: None }));
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
}

#[test]
fn an_idle_without_an_answer_hints_at_a_lost_prompt() {
    let mut bench = Bench::accepted();
    bench.observed(EXISTS);
    bench.status(Activity::Idle);
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(Activity::Idle), [Action::Submit]);
    bench.status(Activity::Busy);
    bench.observed(ANSWERED);
    assert_eq!(bench.status(Activity::Idle), [read(true, false, false)]);
}

#[test]
fn an_error_without_an_answer_is_believed_the_second_time() {
    let mut bench = Bench::accepted();
    bench.input(Input::SessionError(error("UnknownError")));
    assert_eq!(bench.wait(SECOND), [read(true, true, false)]);
    assert_eq!(bench.read(Activity::Idle), [Action::Submit]);
    bench.input(Input::Submitted(Delivery::Accepted));
    bench.input(Input::SessionError(error("UnknownError")));
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)]);
    let error = Some(error("UnknownError"));
    assert_eq!(bench.read(Activity::Idle), finish(Ended::NotStarted { error }));
}

#[test]
fn an_aborted_prompt_is_not_submitted_again() {
    let mut bench = Bench::accepted();
    bench.observed(EXISTS);
    bench.input(Input::SessionError(error("MessageAbortedError")));
    bench.wait(SECOND);
    let error = Some(error("MessageAbortedError"));
    assert_eq!(bench.read(Activity::Idle), finish(Ended::NotStarted { error }));
}

#[test]
fn a_prompt_with_a_newer_one_behind_it_is_not_submitted_again() {
    let mut bench = Bench::accepted();
    bench.observed(Facts { newest: false, ..EXISTS });
    bench.wait(6 * SECOND);
    assert_eq!(bench.read(Activity::Idle), finish(Ended::NotStarted { error: None }));
}

#[test]
fn an_unclear_submission_is_read_then_repeated() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    bench.input(Input::StreamOpened);
    let unclear = Input::Submitted(Delivery::Unknown);
    assert_eq!(bench.input(unclear.clone()), [read(true, false, false)]);
    assert_eq!(bench.turn.delivery(), Delivery::Unknown);
    assert_eq!(bench.input(Input::ReadDone { status: None, progress: false }), []);
    assert_eq!(bench.wait(SECOND), [Action::Submit]);
    assert_eq!(bench.input(unclear), [read(true, false, false)]);
    bench.facts = EXISTS;
    assert_eq!(bench.input(Input::ReadDone { status: None, progress: false }), []);
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
    assert_eq!(bench.turn.kicks(), 0);
}

#[test]
fn an_unclear_submission_is_never_repeated_unread() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    bench.input(Input::StreamOpened);
    bench.input(Input::Submitted(Delivery::Unknown));
    bench.input(Input::ReadFailed);
    let mut reads = 1;
    while bench.wait(60 * SECOND) != [Action::Abort] {
        let Some(Action::Read(Read { messages: true, .. })) = bench.done.last() else {
            panic!("{:?} without knowing", bench.done.last())
        };
        assert_eq!(bench.input(Input::ReadFailed), []);
        reads += 1;
    }
    assert!((40..50).contains(&reads), "one read a second until idle_timeout, not {reads}");
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::Limit(Limit::Idle)));
    assert_eq!(bench.turn.delivery(), Delivery::Unknown);
}

#[test]
fn a_server_that_is_away_gets_a_few_tries() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    bench.input(Input::StreamLost);
    let mut submissions = 1;
    let ended = loop {
        let ended = bench.input(Input::Submitted(Delivery::NotSent));
        if let [Action::Finish(_)] = ended.as_slice() {
            // At once: there is nothing more to wait for.
            break ended;
        }
        assert_eq!(bench.wait(60 * SECOND), [Action::Submit]);
        submissions += 1;
    };
    assert_eq!(submissions, 6);
    assert_eq!(ended, finish(Ended::NotDelivered(Delivery::NotSent)));
    assert_eq!(bench.turn.delivery(), Delivery::NotSent);
}

#[test]
fn a_refused_submission_is_final() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    bench.input(Input::StreamOpened);
    let refused = bench.input(Input::Submitted(Delivery::Rejected));
    assert_eq!(refused, finish(Ended::NotDelivered(Delivery::Rejected)));
    assert_eq!(bench.turn.delivery(), Delivery::Rejected);
}

#[test]
fn a_message_seen_before_its_answer_counts_as_accepted() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    bench.input(Input::StreamOpened);
    bench.observed(EXISTS);
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), []);
    assert_eq!(bench.turn.delivery(), Delivery::Accepted);
}

#[test]
fn without_a_stream_the_prompt_goes_out_and_the_session_is_polled() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.wait(2 * SECOND), [Action::Submit]);
    assert_eq!(bench.input(Input::Submitted(Delivery::Accepted)), [read(true, true, false)]);
    bench.facts = RUNNING;
    assert_eq!(bench.read(Activity::Busy), []);
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, false)]);
    bench.facts = ANSWERED;
    bench.read(Activity::Idle);
    // Once in a while with everything that nobody may have heard of.
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
    assert_eq!(bench.read(Activity::Idle), finish(Ended::Settled));
}

#[test]
fn silence_costs_one_request_in_ten_seconds_and_then_the_turn() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    let mut requests = Vec::new();
    let began = bench.now;
    loop {
        let actions = bench.wait(60 * SECOND);
        requests.extend(actions.clone());
        match actions.as_slice() {
            [Action::Read(_)] => drop(bench.read(Activity::Busy)),
            other => break assert_eq!(other, [Action::Abort]),
        }
        if bench.done.last() == Some(&Action::Abort) {
            break;
        }
    }
    let turns = [read(true, false, false), read(false, true, false)];
    assert_eq!(requests[..4], [turns.clone(), turns].concat());
    assert_eq!(requests[4..], [read(true, true, true)], "a last look");
    assert_eq!(bench.now.saturating_sub(began).as_secs(), 45);
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::Limit(Limit::Idle)));
}

#[test]
fn a_last_look_can_save_the_turn() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    while bench.wait(60 * SECOND) != [read(true, true, true)] {
        bench.read(Activity::Busy);
    }
    let seen = Input::ReadDone { status: None, progress: true };
    assert_eq!(bench.input(seen), []);
    assert_eq!(bench.wait(9 * SECOND), []);
}

#[test]
fn a_running_tool_and_a_retrying_provider_have_their_own_limits() {
    let check = |prepare: &dyn Fn(&mut Bench), limit: Limit, after: u64| {
        let mut bench = Bench::accepted();
        bench.status(Activity::Busy);
        bench.observed(RUNNING);
        prepare(&mut bench);
        let began = bench.now;
        while bench.wait(1000 * SECOND) != [Action::Abort] {
            bench.input(Input::ReadDone { status: None, progress: false });
            if bench.done.last() == Some(&Action::Abort) {
                break;
            }
        }
        assert_eq!(bench.input(Input::AbortDone), finish(Ended::Limit(limit)));
        assert_eq!(bench.now.saturating_sub(began).as_secs(), after, "{limit:?}");
    };
    check(&|bench| drop(bench.observed(Facts { tool_running: true, ..RUNNING })), Limit::Tool, 600);
    check(&|bench| drop(bench.status(Activity::Retry)), Limit::Retry, 300);
    check(&|_| {}, Limit::Idle, 45);
}

#[test]
fn the_clocks_stand_still_while_a_human_is_asked() {
    let mut bench = Bench::accepted();
    bench.turn = Turn::new(Goal::Answer, WaitOptions::default().deadline(100 * SECOND), bench.now);
    bench.input(Input::StreamOpened);
    bench.input(Input::Submitted(Delivery::Accepted));
    bench.status(Activity::Busy);
    bench.observed(RUNNING);
    let request = RequestId::new("per_1");
    bench.input(Input::HumanAsked(request.clone()));
    for _ in 0..1000 {
        assert!(!bench.wait(10 * SECOND).contains(&Action::Abort));
        bench.input(Input::ReadDone { status: None, progress: false });
    }
    bench.input(Input::HumanAnswered(request));
    assert_eq!(bench.turn.next_wakeup(bench.now).map(|at| at > bench.now), Some(true));
    bench.observed(RUNNING);
    let mut left = Duration::ZERO;
    while !bench.done.contains(&Action::Abort) {
        let before = bench.now;
        if bench.wait(40 * SECOND).is_empty() {
            bench.observed(RUNNING);
        }
        bench.input(Input::ReadDone { status: None, progress: true });
        left += bench.now.saturating_sub(before);
    }
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::Limit(Limit::Deadline)));
    assert!(left <= 100 * SECOND, "{left:?}");
}

#[test]
fn too_many_steps_end_an_endless_loop() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    assert_eq!(bench.observed(Facts { steps: 250, ..EXISTS }), []);
    assert_eq!(bench.observed(Facts { steps: 251, incomplete: 1, ..EXISTS }), [Action::Abort]);
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::Limit(Limit::Steps)));
}

#[test]
fn a_background_subagent_keeps_the_turn_open() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    let child = Some("ses_child".into());
    bench.input(Input::Status { descendant: child.clone(), activity: Activity::Busy });
    bench.observed(ANSWERED);
    assert_eq!(bench.status(Activity::Idle), []);
    assert_eq!(bench.wait(9 * SECOND), []);
    assert_eq!(bench.input(Input::Status { descendant: child, activity: Activity::Idle }), []);
    assert_eq!(bench.wait(SECOND), []);
    bench.status(Activity::Busy);
    bench.observed(Facts { steps: 2, ..EXISTS });
    bench.status(Activity::Idle);
    assert_eq!(bench.wait(6 * SECOND), [read(true, true, false)]);
}

#[test]
fn waiting_for_rest_needs_no_prompt() {
    let mut bench = Bench::new(Goal::Rest, WaitOptions::default());
    assert_eq!(bench.input(Input::StreamOpened), [read(true, true, true)]);
    assert_eq!(bench.read(Activity::Idle), finish(Ended::Settled));

    let mut bench = Bench::new(Goal::Rest, WaitOptions::default());
    bench.input(Input::StreamOpened);
    bench.facts = RUNNING;
    assert_eq!(bench.read(Activity::Busy), []);
    bench.observed(ANSWERED);
    assert_eq!(bench.status(Activity::Idle), [read(true, false, false)]);
}

#[test]
fn a_status_read_before_the_news_is_old() {
    let mut bench = Bench::accepted();
    bench.observed(EXISTS);
    assert_eq!(bench.wait(6 * SECOND), [read(true, true, false)]);
    bench.status(Activity::Busy);
    assert_eq!(bench.read(Activity::Idle), []);
    assert_eq!(bench.wait(9 * SECOND), []);
}

#[test]
fn a_stop_before_submission_has_nothing_to_abort() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    assert_eq!(bench.input(Input::Stop(Stop::Aborted)), finish(Ended::Stopped(Stop::Aborted)));

    let mut bench = Bench::accepted();
    assert_eq!(bench.input(Input::Stop(Stop::Refused)), [Action::Abort]);
    assert_eq!(bench.input(Input::AbortDone), finish(Ended::Stopped(Stop::Refused)));
}

#[test]
fn a_submission_under_way_is_not_unsent() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    assert_eq!(bench.input(Input::StreamOpened), [Action::Submit]);
    assert_eq!(bench.input(Input::Stop(Stop::Aborted)), [Action::Abort]);
    assert_eq!(bench.input(Input::AbortDone), [Action::Finish(Ended::Stopped(Stop::Aborted))]);
    assert_ne!(bench.turn.delivery(), Delivery::NotSent, "the request is on its way");
}

#[test]
fn a_refusal_does_not_take_back_an_unclear_submission() {
    let mut bench = Bench::new(Goal::Answer, WaitOptions::default());
    assert_eq!(bench.input(Input::StreamOpened), [Action::Submit]);
    assert_eq!(bench.input(Input::Submitted(Delivery::Unknown)), [read(true, false, false)]);
    bench.input(Input::ReadDone { status: None, progress: false });
    assert_eq!(bench.wait(Duration::from_secs(2)), [Action::Submit]);
    let ended = bench.input(Input::Submitted(Delivery::Rejected));
    assert_ne!(
        ended,
        [Action::Finish(Ended::NotDelivered(Delivery::Rejected))],
        "the first may have arrived"
    );
}

#[test]
fn an_answer_of_a_human_is_not_followed_by_a_timeout() {
    let mut bench = Bench::accepted();
    bench.status(Activity::Busy);
    bench.observed(Facts { tool_running: true, ..RUNNING });
    // The tool's limit runs out; the last look finds the request that the tool waits for.
    let limit = WaitOptions::default().tool_timeout + Duration::from_secs(1);
    let until = bench.now + limit;
    while bench.now < until {
        let actions = bench.wait(until.saturating_sub(bench.now));
        let Some(Action::Read(asked)) = actions.last() else { continue };
        if asked.tree {
            break;
        }
        bench.read(Activity::Busy);
    }
    bench.input(Input::HumanAsked(RequestId::new("per_1")));
    assert_eq!(bench.read(Activity::Busy), []);
    bench.now += Duration::from_secs(300);
    let actions = bench.input(Input::HumanAnswered(RequestId::new("per_1")));
    assert!(!actions.contains(&Action::Abort), "{actions:?}");
}

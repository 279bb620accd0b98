//! Permissions and questions.

use super::*;
use crate::opencode::wire::QuestionRequest;

fn replied(request: &str) -> EventPayload {
    EventPayload::PermissionReplied { session_id: ROOT.into(), request_id: request.into(), reply: None }
}

fn ask(request: &str) -> Done {
    Done::Ask(request.into())
}

fn closed(request: &str) -> Done {
    Done::Closed(request.into())
}

#[test]
fn a_request_is_passed_on_once() {
    let mut bench = Bench::running();
    assert_eq!(bench.asks(ROOT, "per_1", 1), [ask("per_1")]);
    let again = bench.pending[0].clone();
    assert_eq!(bench.event(EventPayload::PermissionAsked(again)), []);
    bench.input(Input::StreamGap);
    assert_eq!(bench.read(SessionStatus::Busy), []);
    assert_eq!(bench.input(Input::Decided("per_1".into())), []);
    assert_eq!(bench.event(replied("per_1")), [closed("per_1")]);
    assert_eq!(bench.event(replied("per_1")), []);
    // The list may be older than the answer.
    bench.input(Input::StreamGap);
    assert_eq!(bench.read(SessionStatus::Busy), []);
}

/// A stream may stall without ending, and with it the request of a tool that then runs for as long as no answer comes.
#[test]
fn silence_while_a_tool_runs_is_asked_what_it_waits_for() {
    let mut bench = Bench::running();
    bench.tool(1, "call", ToolStatus::Running);
    bench.unheard(|bench| bench.asks(ROOT, "per_1", 1));
    let looked = Scope { requests: true, ..Scope::MESSAGES };
    assert_eq!(bench.wait(11 * SECOND), [Done::Read(looked)]);
    assert_eq!(bench.read(SessionStatus::Busy), [ask("per_1")]);
    // It is not asked again, and one that another client answered is closed.
    let looked = Scope { requests: true, ..Scope::STATUS };
    assert_eq!(bench.wait(11 * SECOND), [Done::Read(looked)]);
    bench.pending.clear();
    assert_eq!(bench.read(SessionStatus::Busy), [closed("per_1")]);
}

#[test]
fn a_question_is_passed_on_like_a_permission() {
    let mut bench = Bench::running();
    let question =
        QuestionRequest { id: "que_1".into(), session_id: ROOT.into(), ..QuestionRequest::default() };
    assert_eq!(bench.event(EventPayload::QuestionAsked(question)), [ask("que_1")]);
    let closes =
        EventPayload::QuestionClosed { session_id: ROOT.into(), request_id: "que_1".into(), answers: None };
    assert_eq!(bench.event(closes), [closed("que_1")]);
}

#[test]
fn a_request_of_another_session_is_not_passed_on() {
    let mut bench = Bench::running();
    assert_eq!(bench.asks("ses_other", "per_1", 1), []);
    assert_eq!(bench.event(replied("per_1")), []);
}

/// After an abort the server goes on listing what nothing waits for.
#[test]
fn a_request_of_a_step_that_is_over_is_not_passed_on() {
    let mut bench = Bench::running();
    bench.unheard(|bench| bench.asks(ROOT, "per_1", 1));
    bench.complete(1);
    bench.step(2);
    bench.input(Input::StreamGap);
    assert_eq!(bench.read(SessionStatus::Busy), []);
}

#[test]
fn a_request_of_a_descendant_that_was_not_known_is_found() {
    let mut bench = Bench::running();
    bench.unheard(|bench| (bench.child(), bench.step_of(CHILD, 50, None)));
    bench.asks(CHILD, "per_1", 50);
    // The call names a session whose creation was not heard of.
    assert_eq!(bench.task(1, ToolStatus::Running, false), [read(false, false, true)]);
    assert_eq!(bench.read(SessionStatus::Busy), [ask("per_1")]);

    let mut bench = Bench::running();
    bench.child();
    assert_eq!(bench.task(1, ToolStatus::Running, false), [], "its creation was heard of");
}

/// The answer was given while the stream was down.
#[test]
fn a_request_that_is_not_listed_any_more_is_closed() {
    let mut bench = Bench::running();
    bench.asks(ROOT, "per_1", 1);
    bench.input(Input::HumanAsked("per_1".into()));
    bench.pending.clear();
    bench.input(Input::StreamGap);
    assert_eq!(bench.read(SessionStatus::Busy), [closed("per_1")]);
    // The clocks go on.
    assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort]);
}

/// A subagent was aborted or deleted by somebody else: the server goes on listing what it asked, and does not say that it is over.
#[test]
fn a_request_that_nothing_waits_for_any_more_is_closed() {
    for (case, is_heard, is_deleted) in [
        ("its step ended", true, false),
        ("its step ended unheard", false, false),
        ("its session was deleted", true, true),
    ] {
        let mut bench = Bench::running();
        bench.child();
        bench.step_of(CHILD, 50, None);
        assert_eq!(bench.asks(CHILD, "per_1", 50), [ask("per_1")], "{case}");
        bench.input(Input::HumanAsked("per_1".into()));
        let completed = Some(bench.created());
        let done = if is_deleted {
            bench.stored.pop();
            let info =
                SessionInfo { id: CHILD.into(), parent_id: Some(ROOT.into()), ..SessionInfo::default() };
            bench.event(EventPayload::SessionDeleted(info))
        } else if is_heard {
            bench.step_of(CHILD, 50, completed)
        } else {
            bench.unheard(|bench| bench.step_of(CHILD, 50, completed));
            bench.input(Input::StreamGap);
            bench.read(SessionStatus::Busy)
        };
        assert_eq!(done, [closed("per_1")], "{case}");
        // It is still listed, and not asked again; and the clocks go on.
        bench.input(Input::StreamGap);
        assert_eq!(bench.read(SessionStatus::Busy), [], "{case}");
        assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort], "{case}");
    }
}

#[test]
fn a_request_that_came_while_the_list_was_made_is_not_closed_by_it() {
    let mut bench = Bench::running();
    bench.input(Input::StreamGap);
    bench.asks(ROOT, "per_1", 1);
    bench.pending.clear();
    assert_eq!(bench.read(SessionStatus::Busy), []);
}

/// A read that failed left what it was to find unseen.
#[test]
fn a_request_that_a_failed_read_would_have_shown_is_found_by_the_next() {
    let mut bench = Bench::running();
    bench.unheard(|bench| bench.asks(ROOT, "per_1", 1));
    assert_eq!(bench.input(Input::StreamGap), [read(true, true, true)]);
    assert_eq!(bench.read_fails(), []);
    assert_eq!(bench.wait(2 * SECOND), [read(true, true, true)]);
    assert_eq!(bench.read(SessionStatus::Busy), [ask("per_1")]);
}

#[test]
fn a_request_that_fails_the_turn_does_so_unless_it_is_closed() {
    let mut bench = Bench::running();
    bench.asks(ROOT, "per_1", 1);
    assert_eq!(bench.input(Input::Refused("per_1".into())), [Done::Abort]);
    assert_eq!(bench.abort_done(), finish(Ended::Stopped(Stop::Refused)));

    let mut bench = Bench::running();
    bench.asks(ROOT, "per_1", 1);
    bench.event(replied("per_1"));
    assert_eq!(bench.input(Input::Refused("per_1".into())), []);
}

/// It was asked and answered elsewhere before the policy said that it takes a human.
#[test]
fn a_human_who_need_not_answer_does_not_stop_the_clocks() {
    let mut bench = Bench::running();
    for payload in [
        EventPayload::PermissionAsked(PermissionRequest {
            id: "per_1".into(),
            session_id: ROOT.into(),
            ..PermissionRequest::default()
        }),
        replied("per_1"),
    ] {
        bench.turn.handle(bench.now, &mut bench.tree, Input::Event(ServerEvent::new(payload).into()));
    }
    assert_eq!(bench.advance(), [ask("per_1"), closed("per_1")]);
    bench.input(Input::HumanAsked("per_1".into()));
    assert_eq!(bench.wait_reading(&SessionStatus::Busy), [Done::Abort]);
}

#[test]
fn an_answer_of_a_human_is_not_followed_by_a_timeout() {
    let mut bench = Bench::running();
    bench.tool(1, "call", ToolStatus::Running);
    // The tool's limit runs out; the last look finds a request that the tool has just begun to wait for.
    while bench.wait(1000 * SECOND) != [read(true, true, true)] {
        bench.read(SessionStatus::Busy);
    }
    bench.unheard(|bench| bench.asks(ROOT, "per_1", 1));
    assert_eq!(bench.read(SessionStatus::Busy), [ask("per_1")]);
    bench.input(Input::HumanAsked("per_1".into()));
    bench.now += 300 * SECOND;
    let looked = Scope { requests: true, ..Scope::MESSAGES };
    assert_eq!(bench.input(Input::Decided("per_1".into())), [Done::Read(looked)]);
    bench.read(SessionStatus::Busy);
    assert_eq!(bench.wait(9 * SECOND), []);
}

//! The suite.

use std::{
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::StreamExt;
use opencode_conductor::{
    AgentProfile, AgentSession, AnswerError, ApprovalDesk, Ask, BlockStatus, Completion, ConversationManager,
    CreateTaskSession, Decision, Delivery, Limit, MemoryStore, PermissionPolicy, Phase, PromptError,
    PromptExecutionResult, PromptInput, QuestionPolicy, SavedSessionData, SessionConversationState,
    SessionId, SessionStatus, Store, StoreError, StoreErrorKind, StreamEvent, TaskId, TurnRecord, Update,
    WaitOptions, WhenBusy,
    test_util::{Effect, StoreCall, TappedStore},
};
use serde_json::json;
use tokio::sync::watch;

use super::{Play, World, memory::Memory};
use crate::support::soon;

/// Runs every test of the suite on every agent.
macro_rules! on_every_agent {
    ($($name:ident)*) => {
        mod on_memory {
            $(#[tokio::test] async fn $name() { super::$name(super::Memory::default()).await; })*
        }
        mod on_opencode {
            use crate::neutral::opencode::OpenCodeWorld;
            $(#[tokio::test] async fn $name() { super::$name(OpenCodeWorld::new().await).await; })*
        }
        #[cfg(all(unix, feature = "claude", feature = "test-util"))]
        mod on_claude {
            use crate::neutral::claude::ClaudeWorld;
            $(#[tokio::test] async fn $name() { super::$name(ClaudeWorld::new().await).await; })*
        }
    };
}

on_every_agent! {
    a_prompt_is_answered_and_its_updates_fold_to_the_conversation
    prompts_of_a_session_run_in_the_order_of_the_calls
    a_busy_session_refuses_if_asked_to
    policies_answer_what_the_agent_asks
    a_prompt_may_bring_policies_of_its_own
    a_person_is_asked_with_the_task
    a_session_may_have_policies_of_its_own
    what_was_refused_is_named_in_the_result
    a_request_is_on_the_desk_until_it_is_answered
    a_request_is_closed_for_readers_when_it_is_answered
    a_request_is_closed_for_readers_when_its_turn_ends
    a_request_that_nobody_waits_for_holds_up_no_later_prompt
    an_abort_ends_the_turn_and_is_reported
    an_abort_of_all_sends_those_away_who_wait
    a_limit_ends_the_turn
    a_failure_keeps_what_there_is
    a_json_answer_is_asked_for_again
    any_number_of_readers_watch_a_session
    a_dropped_prompt_is_given_up_and_the_next_goes_on
    a_shutdown_leaves_the_turn_resumable
    a_shutdown_ends_what_was_forgotten_and_taken_up_again
    prompts_that_open_a_session_at_once_share_it
    a_turn_goes_on_from_every_recorded_phase
    what_cannot_be_recorded_is_not_sent
    a_record_that_the_agent_knows_nothing_of_runs_nothing
    a_session_is_one_handle_and_found_again
    a_session_is_saved_as_it_goes
    a_session_is_saved_once_its_store_is_back
}

fn say(words: &str) -> Play {
    Play::Say(words.to_owned())
}

fn gate(words: &str) -> Play {
    Play::Gate(words.to_owned())
}

fn limits() -> WaitOptions {
    WaitOptions::default().start_timeout(Duration::from_secs(2)).settle_grace(Duration::from_millis(200))
}

async fn create(manager: &ConversationManager) -> SessionId {
    let request = CreateTaskSession::new("project", "task", "/project", "/project/worktree");
    soon(manager.create_task_session(request)).await.unwrap().session_id
}

/// A manager with one session.
async fn session_of(world: &impl World) -> (ConversationManager, SessionId) {
    let manager = world.builder().wait(limits()).unwrap().build();
    let session = create(&manager).await;
    (manager, session)
}

fn input(world: &impl World, session: &SessionId, play: &Play) -> PromptInput {
    PromptInput::new(session.clone(), world.prompt(play))
}

async fn a_prompt_is_answered_and_its_updates_fold_to_the_conversation(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let mut running = manager.prompt(input(&world, &session, &say("hello"))).start();
    assert_eq!(*running.session_id(), session);
    let updates = running.updates().unwrap();
    let (result, updates) = soon(async { tokio::join!(running, updates.collect::<Vec<_>>()) }).await;
    let result = result.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("hello")));
    assert_eq!(world.runs(&session, &result.submission.message_id), 1);
    let mut state = SessionConversationState::new();
    for update in &updates {
        if let Update::Conversation(event) = update {
            state.apply(event);
        }
    }
    assert_eq!(state, result.conversation);
    assert_eq!(state.blocks().len(), 2);
    assert!(matches!(&updates[0], Update::Submitted(id) if *id == result.submission.message_id));
    let counted = manager.statistics();
    assert_eq!((counted.turns.settled, counted.turns.submissions, counted.running), (1, 1, 0));
    let json = serde_json::to_value(&updates).unwrap();
    assert_eq!(serde_json::from_value::<Vec<Update>>(json).unwrap(), updates, "updates travel as JSON");
}

async fn prompts_of_a_session_run_in_the_order_of_the_calls(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let start = |play: &Play| manager.prompt(input(&world, &session, play)).start();
    let first = start(&gate("one"));
    let others = ["two", "three", "four"].map(|words| start(&say(words)));
    soon(world.at_gate()).await;
    drop(start(&say("never")));
    world.open_gate();
    let mut answers = vec![soon(first).await.unwrap().answer()];
    for other in others {
        answers.push(soon(other).await.unwrap().answer());
    }
    let answers: Vec<&str> = answers.iter().flatten().map(String::as_str).collect();
    assert_eq!(answers, ["one", "two", "three", "four"]);
}

async fn a_busy_session_refuses_if_asked_to(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let first = manager.prompt(input(&world, &session, &gate("one"))).start();
    soon(world.at_gate()).await;
    let second = input(&world, &session, &say("two")).when_busy(WhenBusy::Refuse);
    let error = soon(manager.prompt(second).into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::Busy { .. }), "{error:?}");
    world.open_gate();
    soon(first).await.unwrap();
}

async fn policies_answer_what_the_agent_asks(world: impl World) {
    let permission = Play::Permission("touch x".to_owned());
    let question = Play::Question("Which?".to_owned());
    let cases = [
        (&permission, PermissionPolicy::Reject, QuestionPolicy::Decline, true),
        (&permission, PermissionPolicy::AllowOnce, QuestionPolicy::FailTurn, true),
        (&permission, PermissionPolicy::FailTurn, QuestionPolicy::Decline, false),
        // After all others: it lasts.
        (&permission, PermissionPolicy::AllowAlways, QuestionPolicy::FailTurn, true),
        (&question, PermissionPolicy::FailTurn, QuestionPolicy::Decline, true),
        (&question, PermissionPolicy::Reject, QuestionPolicy::FailTurn, false),
    ];
    for (play, permissions, questions, goes_on) in cases {
        let case = format!("{play:?} {permissions:?} {questions:?}");
        let builder = world.builder().permissions(permissions).questions(questions);
        let manager = builder.wait(limits()).unwrap().build();
        let session = create(&manager).await;
        let result = soon(manager.prompt(input(&world, &session, play)).into_future()).await.unwrap();
        let expected = if goes_on { Completion::Settled } else { Completion::Refused };
        assert_eq!(result.completion, expected, "{case}");
        let stats = manager.statistics().turns;
        assert_eq!(stats.permissions + stats.questions, 1, "{case}");
        manager.delete(&session).await.unwrap();
    }
}

async fn a_prompt_may_bring_policies_of_its_own(world: impl World) {
    let builder = world.builder().permissions(PermissionPolicy::FailTurn).questions(QuestionPolicy::FailTurn);
    let manager = builder.wait(limits()).unwrap().build();
    let session = create(&manager).await;
    for play in [Play::Permission("touch x".to_owned()), Play::Question("Which?".to_owned())] {
        let asking = || input(&world, &session, &play);
        let own = asking().permissions(PermissionPolicy::AllowOnce).questions(QuestionPolicy::Decline);
        for (prompt, expected) in [(own, Completion::Settled), (asking(), Completion::Refused)] {
            let result = soon(manager.prompt(prompt).into_future()).await.unwrap();
            assert_eq!(result.completion, expected, "{play:?}");
        }
    }
}

async fn a_person_is_asked_with_the_task(world: impl World) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let policy = PermissionPolicy::ask(move |ask| {
        log.lock().unwrap().push(ask.clone());
        async move { Decision::Reject(format!("not {}", ask.permission().unwrap().patterns.join(" "))) }
    });
    let manager = world.builder().permissions(policy).wait(limits()).unwrap().build();
    let session = create(&manager).await;
    let play = Play::Permission("touch x".to_owned());
    let mut running = manager.prompt(input(&world, &session, &play)).start();
    let updates = running.updates().unwrap();
    let (result, updates) = soon(async { tokio::join!(running, updates.collect::<Vec<_>>()) }).await;
    assert_eq!(result.unwrap().completion, Completion::Settled);
    let seen = seen.lock().unwrap();
    let [ask] = seen.as_slice() else { panic!("asked once: {seen:?}") };
    assert_eq!(ask.task.as_ref().map(opencode_conductor::TaskId::as_str), Some("task"));
    assert_eq!(
        (&ask.root, &ask.session_id, ask.path.as_slice()),
        (&session, &session, [session.clone()].as_slice())
    );
    let told = updates.iter().any(|update| matches!(update, Update::Asked(told) if **told == *ask));
    assert!(told, "the readers are told: {updates:?}");
}

/// The two kinds of requests.
fn asking() -> [Play; 2] {
    [Play::Permission("touch x".to_owned()), Play::Question("Which?".to_owned())]
}

/// A manager whose requests all wait on a desk, with one session.
async fn session_with_desk(world: &impl World) -> (ConversationManager, SessionId, ApprovalDesk) {
    let desk = ApprovalDesk::new();
    let builder = world.builder().permissions(desk.permissions()).questions(desk.questions());
    let manager = builder.wait(limits()).unwrap().build();
    let session = create(&manager).await;
    (manager, session, desk)
}

/// The desk once so many requests wait on it.
async fn with_pending(desk: &ApprovalDesk, count: usize) -> Vec<Ask> {
    soon(desk.watch().filter(|asks| ready(asks.len() == count)).next()).await.unwrap()
}

/// A decision that lets the turn go on, with nothing refused.
fn granted(ask: &Ask) -> Decision {
    match ask.permission() {
        Some(_) => Decision::AllowOnce,
        None => Decision::Answer(vec![vec!["A".to_owned()]]),
    }
}

async fn a_session_may_have_policies_of_its_own(world: impl World) {
    let builder = world.builder().permissions(PermissionPolicy::FailTurn).questions(QuestionPolicy::FailTurn);
    let manager = builder.wait(limits()).unwrap().build();
    let session = create(&manager).await;
    manager.set_permissions(&session, PermissionPolicy::AllowOnce).unwrap();
    manager.set_questions(&session, QuestionPolicy::Decline).unwrap();
    for play in asking() {
        let by_session = input(&world, &session, &play);
        let by_prompt = by_session.clone().permissions(PermissionPolicy::FailTurn);
        let by_prompt = by_prompt.questions(QuestionPolicy::FailTurn);
        for (prompt, expected) in [(by_session, Completion::Settled), (by_prompt, Completion::Refused)] {
            let result = soon(manager.prompt(prompt).into_future()).await.unwrap();
            assert_eq!(result.completion, expected, "{play:?}");
        }
    }
}

async fn what_was_refused_is_named_in_the_result(world: impl World) {
    let (manager, session) = session_of(&world).await;
    for play in asking() {
        let prompt = || input(&world, &session, &play);
        let refused = soon(manager.prompt(prompt()).into_future()).await.unwrap().refused;
        let [ask] = refused.as_slice() else { panic!("{play:?}: {refused:?}") };
        match &play {
            Play::Permission(command) => {
                assert_eq!(ask.permission().unwrap().patterns, std::slice::from_ref(command));
            }
            _ => assert_eq!(ask.questions()[0].question, "Which?"),
        }
        let ask = |ask: Ask| async move { granted(&ask) };
        let granting = prompt().permissions(PermissionPolicy::ask(ask)).questions(QuestionPolicy::ask(ask));
        let result = soon(manager.prompt(granting).into_future()).await.unwrap();
        assert_eq!((&result.completion, &result.refused[..]), (&Completion::Settled, &[][..]), "{play:?}");
    }
    assert_eq!(manager.statistics().turns.refusals, 2);
}

async fn a_request_is_on_the_desk_until_it_is_answered(world: impl World) {
    let (manager, session, desk) = session_with_desk(&world).await;
    for play in asking() {
        let running = manager.prompt(input(&world, &session, &play)).start();
        let ask = with_pending(&desk, 1).await.remove(0);
        assert_eq!((&ask.root, ask.task.as_ref().map(TaskId::as_str)), (&session, Some("task")), "{play:?}");
        let unfit = match ask.permission() {
            Some(_) => Decision::Answer(vec![vec!["yes".to_owned()]]),
            None => Decision::AllowOnce,
        };
        let unfit = desk.answer(&session, &ask.id, unfit);
        assert!(matches!(unfit, Err(AnswerError::Unfit(_))), "{play:?}: {unfit:?}");
        assert_eq!(desk.pending(), std::slice::from_ref(&ask), "{play:?}: it still waits");
        assert_eq!(desk.answer(&session, &ask.id, granted(&ask)).as_ref(), Ok(&ask), "{play:?}");
        let again = desk.answer(&session, &ask.id, granted(&ask));
        assert!(matches!(again, Err(AnswerError::NotPending { .. })), "{play:?}: {again:?}");
        let result = soon(running).await.unwrap();
        assert_eq!((&result.completion, &result.refused[..]), (&Completion::Settled, &[][..]), "{play:?}");
        assert_eq!(desk.pending(), [], "{play:?}");
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    FailsTheTurn,
    Aborted,
    GivenUp,
}

/// Lets requests end in these ways, and checks that the readers of the session are told once of each.
async fn check_closed(world: &impl World, fates: &[Fate]) {
    for (fate, play) in fates.iter().flat_map(|fate| asking().map(|play| (fate, play))) {
        let case = format!("{fate:?} {play:?}");
        let (manager, session, desk) = session_with_desk(world).await;
        let (_, mut updates) = manager.watch(&session).unwrap();
        let running = manager.prompt(input(world, &session, &play)).start();
        let ask = with_pending(&desk, 1).await.remove(0);
        let answer = |decision| drop(desk.answer(&session, &ask.id, decision).unwrap());
        match fate {
            Fate::Answered => answer(granted(&ask)),
            Fate::FailsTheTurn => answer(Decision::FailTurn),
            Fate::Aborted => drop(soon(running.abort()).await.unwrap()),
            Fate::GivenUp => drop(running),
        }
        let (mut n_asked, mut n_closed) = (0, 0);
        while n_closed == 0 {
            match soon(updates.next()).await.unwrap_or_else(|| panic!("{case}: it was not closed")) {
                Update::Asked(told) if told.id == ask.id => n_asked += 1,
                Update::RequestClosed(told) if told == ask.id => n_closed += 1,
                _ => {}
            }
        }
        assert_eq!((n_asked, desk.pending()), (1, Vec::new()), "{case}");
        soon(manager.delete(&session)).await.unwrap();
        soon(manager.shutdown()).await;
    }
}

async fn a_request_is_closed_for_readers_when_it_is_answered(world: impl World) {
    check_closed(&world, &[Fate::Answered]).await;
}

async fn a_request_is_closed_for_readers_when_its_turn_ends(world: impl World) {
    check_closed(&world, &[Fate::FailsTheTurn, Fate::Aborted, Fate::GivenUp]).await;
}

async fn a_request_that_nobody_waits_for_holds_up_no_later_prompt(world: impl World) {
    for play in asking() {
        let (manager, session, desk) = session_with_desk(&world).await;
        let dropped = manager.prompt(input(&world, &session, &play)).start();
        with_pending(&desk, 1).await;
        drop(dropped);
        with_pending(&desk, 0).await;
        // So may a call that waits for the session to come to rest.
        let rest = manager.wait_for_session_idle(&session, limits());
        drop(tokio::time::timeout(Duration::from_millis(50), rest).await);
        let next = manager.prompt(input(&world, &session, &say("next"))).start();
        let (answering, mut lists) = (desk.clone(), desk.watch());
        let answers = async {
            while let Some(asks) = lists.next().await {
                for ask in asks {
                    answering.answer(&session, &ask.id, granted(&ask)).unwrap();
                }
            }
            unreachable!("the desk is there")
        };
        let result = soon(async {
            tokio::select! { result = next => result, () = answers => unreachable!() }
        });
        assert_eq!(result.await.unwrap().answer().as_deref(), Some("next"), "{play:?}");
        soon(manager.delete(&session)).await.unwrap();
    }
}

async fn an_abort_ends_the_turn_and_is_reported(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let running = manager.prompt(input(&world, &session, &gate("never"))).start();
    let queued = manager.prompt(input(&world, &session, &say("next"))).start();
    soon(world.at_gate()).await;
    let report = soon(running.abort()).await.unwrap();
    assert!(report.confirmed && report.sessions.contains(&session), "{report:?}");
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
    assert_eq!(soon(queued).await.unwrap().answer().as_deref(), Some("next"), "what waits goes on");
    let idle = soon(manager.abort(&session)).await.unwrap();
    assert!(idle.confirmed, "an idle session is aborted, too");
}

async fn an_abort_of_all_sends_those_away_who_wait(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let start = |play: &Play| manager.prompt(input(&world, &session, play)).start();
    let (running, queued) = (start(&gate("never")), [start(&say("two")), start(&say("three"))]);
    soon(world.at_gate()).await;
    assert!(soon(manager.abort_all(&session)).await.unwrap().confirmed);
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
    for queued in queued {
        let error = soon(queued).await.unwrap_err();
        assert!(matches!(error, PromptError::Aborted { delivery: Delivery::NotSent, .. }), "{error:?}");
    }
    assert_eq!(soon(start(&say("next"))).await.unwrap().answer().as_deref(), Some("next"));
}

async fn a_limit_ends_the_turn(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let wait = limits().idle_timeout(Duration::from_millis(300));
    let input = input(&world, &session, &gate("never")).wait(wait);
    let result = soon(manager.prompt(input).into_future()).await.unwrap();
    let Completion::TimedOut { limit: Limit::Idle, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert!(abort.confirmed);
    assert_eq!(manager.statistics().turns.timed_out, 1);
}

async fn a_failure_keeps_what_there_is(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let play = Play::Fail("scripted error".to_owned());
    let result = soon(manager.prompt(input(&world, &session, &play)).into_future()).await.unwrap();
    let Completion::Failed(failure) = &result.completion else { panic!("{:?}", result.completion) };
    assert!(failure.message.contains("scripted error"), "{failure:?}");
    let failed = result.settled().unwrap_err();
    assert!(failed.to_string().contains("scripted error"), "{failed}");
    assert!(!failed.result.conversation.blocks().is_empty());
}

async fn a_json_answer_is_asked_for_again(world: impl World) {
    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Number {
        n: u32,
    }
    let schema = json!({"type": "object"});
    let (manager, session) = session_of(&world).await;
    let good = input(&world, &session, &say("Here: {\"n\": 7}"));
    let answer = soon(manager.prompt(good).json::<Number>(&schema, 0)).await.unwrap();
    assert_eq!((answer.value, answer.attempts), (Number { n: 7 }, 1));
    assert_eq!(answer.result.completion, Completion::Settled);
    let bad = input(&world, &session, &say("no idea"));
    let error = soon(manager.prompt(bad).json::<Number>(&schema, 0)).await.unwrap_err();
    assert!(error.to_string().contains("1 attempts"), "{error}");
}

async fn any_number_of_readers_watch_a_session(world: impl World) {
    let (manager, session) = session_of(&world).await;
    soon(manager.prompt(input(&world, &session, &say("before"))).into_future()).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(manager.watch(&session).unwrap());
    }
    assert!(readers[0].0.blocks().len() >= 2, "what was before is in the snapshot");
    drop(readers.remove(0));
    let result = soon(manager.prompt(input(&world, &session, &say("after"))).into_future()).await.unwrap();
    manager.forget(&session);
    drop(manager);
    for (mut state, updates) in readers {
        for update in soon(updates.collect::<Vec<_>>()).await {
            match update {
                Update::Conversation(event) => state.apply(&event),
                Update::Missed(now) => state = *now,
                _ => {}
            }
        }
        assert_eq!(state, result.conversation);
    }
}

async fn a_dropped_prompt_is_given_up_and_the_next_goes_on(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let running = manager.prompt(input(&world, &session, &gate("one")).abort_on_drop()).start();
    soon(world.at_gate()).await;
    drop(running);
    soon(async {
        while manager.statistics().turns.given_up == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.open_gate();
    let next = soon(manager.prompt(input(&world, &session, &say("two"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("two"));
}

async fn a_shutdown_leaves_the_turn_resumable(world: impl World) {
    let store = Arc::new(MemoryStore::default());
    let manager = world.builder().store(Arc::clone(&store) as _).wait(limits()).unwrap().build();
    let session = create(&manager).await;
    let running = manager.prompt(input(&world, &session, &gate("one"))).start();
    soon(world.at_gate()).await;
    soon(manager.shutdown()).await;
    assert_eq!(soon(running).await.unwrap().completion, Completion::GivenUp);
    let late = soon(manager.prompt(input(&world, &session, &say("late"))).into_future()).await.unwrap_err();
    assert!(matches!(late, PromptError::ShutDown { .. }), "{late:?}");
    assert_eq!(store.open_turns().len(), 1);
    world.open_gate();
    // The first process need not end before another takes over.
    let other = Arc::new(store.another_handle());
    let fresh = world.builder().store(other).wait(limits()).unwrap().build();
    let mut restored = soon(fresh.restore()).await.unwrap();
    let result = soon(restored.remove(0).running).await.unwrap();
    assert!(store.open_turns().is_empty());
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("one")));
    assert_eq!(world.runs(&session, &result.submission.message_id), 1);
}

async fn a_shutdown_ends_what_was_forgotten_and_taken_up_again(world: impl World) {
    let (manager, session) = session_of(&world).await;
    let running = manager.prompt(input(&world, &session, &gate("one"))).start();
    soon(world.at_gate()).await;
    manager.forget(&session);
    soon(manager.adopt_session("task", &session)).await.unwrap();
    soon(manager.shutdown()).await;
    assert_eq!(soon(running).await.unwrap().completion, Completion::GivenUp);
}

async fn prompts_that_open_a_session_at_once_share_it(world: impl World) {
    let (first, session) = session_of(&world).await;
    soon(first.shutdown()).await;
    let manager = world.builder().wait(limits()).unwrap().build();
    let words = ["one", "two", "three"];
    let running = words.map(|words| manager.prompt(input(&world, &session, &say(words))).start());
    for (running, words) in running.into_iter().zip(words) {
        assert_eq!(soon(running).await.unwrap().answer().as_deref(), Some(words));
    }
    soon(manager.shutdown()).await;
}

/// A store that stops the process at a phase: before it is written, or after. Nothing is written from then on.
fn stopping(memory: &MemoryStore, at: Phase, effect: Effect, reached: watch::Sender<bool>) -> TappedStore {
    TappedStore::new(Arc::new(memory.another_handle()), move |call, now| {
        let is_there = call == StoreCall::PutTurn(at) && now == effect;
        let stops = reached.send_if_modified(|reached| is_there && !std::mem::replace(reached, true))
            || *reached.borrow();
        Box::pin(async move {
            if stops {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    })
}

async fn a_turn_goes_on_from_every_recorded_phase(world: impl World) {
    let world = Arc::new(world);
    let manager = world.builder().wait(limits()).unwrap().build();
    let session = create(&manager).await;
    let mut n_recorded = 0;
    for at in [Phase::Prepared, Phase::Submitted, Phase::Started, Phase::Finished] {
        for effect in [Effect::Before, Effect::After] {
            let case = format!("{at:?}, {effect:?}");
            let memory = MemoryStore::default();
            let reached = watch::Sender::new(false);
            let mut is_reached = reached.subscribe();
            let store = Arc::new(stopping(&memory, at, effect, reached));
            // A process of its own, of which nothing is left but the store.
            let process =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (in_process, id) = (Arc::clone(&world), session.clone());
            process.spawn(async move {
                let manager = in_process.builder().store(store).wait(limits()).unwrap().build();
                manager.adopt_session("task", &id).await.unwrap();
                let prompt = input(&*in_process, &id, &say("the answer"));
                drop(manager.prompt(prompt).await);
            });
            soon(is_reached.wait_for(|reached| *reached)).await.unwrap();
            // Its handle to the store must be gone.
            let stopped = tokio::task::spawn_blocking(|| process.shutdown_timeout(Duration::from_secs(60)));
            soon(stopped).await.unwrap();
            let open = memory.open_turns();
            let fresh = world.builder().store(Arc::new(memory)).wait(limits()).unwrap().build();
            let mut restored = soon(fresh.restore()).await.unwrap();
            assert_eq!(
                fresh.task_session_id(&"task".into()),
                Some(session.clone()),
                "{case}: the maps are back"
            );
            let records: Vec<&TurnRecord> = restored.iter().map(|turn| &turn.record).collect();
            assert_eq!(records, open.iter().collect::<Vec<_>>(), "{case}");
            let Some(turn) = restored.pop() else {
                assert!(
                    at == Phase::Prepared && effect == Effect::Before
                        || at == Phase::Finished && effect == Effect::After,
                    "{case}"
                );
                continue;
            };
            n_recorded += 1;
            let message = turn.record.prompt.message_id.clone();
            let result = soon(turn.running).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
            assert_eq!(result.completion, Completion::Settled, "{case}");
            assert_eq!(result.answer().as_deref(), Some("the answer"), "{case}");
            assert_eq!(result.submission.message_id, message, "{case}");
            assert_eq!(world.runs(&session, &message), 1, "{case}");
            assert!(soon(fresh.restore()).await.unwrap().is_empty(), "{case}: nothing is open any more");
            let again = soon(fresh.resume(session.clone(), message.clone())).await.unwrap();
            assert_eq!(again.answer(), result.answer(), "{case}: what is over can be asked for");
            assert_eq!(world.runs(&session, &message), 1, "{case}");
        }
    }
    assert_eq!(n_recorded, 6);
}

/// A store that fails when a turn is written for the n-th time.
fn failing(at: usize) -> TappedStore {
    let n_writes = AtomicUsize::new(0);
    TappedStore::new(Arc::new(MemoryStore::default()), move |call, effect| {
        let is_write = matches!(call, StoreCall::PutTurn(_)) && effect == Effect::Before;
        let fails = is_write && n_writes.fetch_add(1, SeqCst) == at;
        let full = StoreError::new("writing a turn", StoreErrorKind::Full);
        Box::pin(std::future::ready(if fails { Err(full) } else { Ok(()) }))
    })
}

async fn what_cannot_be_recorded_is_not_sent(world: impl World) {
    for at in [0, 1] {
        let manager = world.builder().store(Arc::new(failing(at))).wait(limits()).unwrap().build();
        let session = create(&manager).await;
        let input = input(&world, &session, &say("at last")).message_id(format!("msg_unsent{at}"));
        let error = soon(manager.prompt(input.clone()).into_future()).await.unwrap_err();
        assert!(matches!(error, PromptError::NotRecorded { .. }), "{at}: {error:?}");
        assert_eq!(error.delivery(), Delivery::NotSent);
        let message = format!("msg_unsent{at}").into();
        assert_eq!(world.runs(&session, &message), 0);
        // The store works again, and nothing keeps the prompt from being sent under the same id.
        let result = soon(manager.prompt(input).into_future()).await.unwrap();
        assert_eq!(result.answer().as_deref(), Some("at last"), "{at}: {}", result.completion);
        assert_eq!(world.runs(&session, &message), 1);
        manager.delete(&session).await.unwrap();
    }
}

async fn a_record_that_the_agent_knows_nothing_of_runs_nothing(world: impl World) {
    let store = Arc::new(MemoryStore::default());
    let manager = world.builder().store(Arc::clone(&store) as _).wait(limits()).unwrap().build();
    let session = create(&manager).await;
    let running = manager.prompt(input(&world, &session, &gate("one"))).start();
    soon(world.at_gate()).await;
    let record = store.open_turns().remove(0);
    drop(running);
    world.open_gate();
    for phase in [Phase::Accepted, Phase::Started] {
        let mut lie = record.clone();
        lie.prompt.message_id = format!("msg_lie{phase:?}").into();
        lie.phase = phase;
        let error = soon(resume_with(&world, &lie)).await;
        match error {
            Ok(result) => assert_eq!(result.completion, Completion::Interrupted, "{phase:?}"),
            Err(error) => assert!(matches!(error, PromptError::Interrupted { .. }), "{phase:?}: {error:?}"),
        }
        assert_eq!(world.runs(&session, &lie.prompt.message_id), 0, "{phase:?}");
    }
    let mut lost = record;
    lost.prompt.session_id = "ses_lost".into();
    let error = soon(resume_with(&world, &lost)).await.unwrap_err();
    assert!(matches!(error, PromptError::SessionGone { .. }), "{error:?}");
}

/// Restores from a store that holds nothing but this record, and checks that it is closed by that.
async fn resume_with(world: &impl World, record: &TurnRecord) -> Result<PromptExecutionResult, PromptError> {
    let store = Arc::new(MemoryStore::default());
    store.put_turn(record).await.unwrap();
    let manager = world.builder().store(Arc::clone(&store) as _).wait(limits()).unwrap().build();
    let turn = manager.restore().await.unwrap().remove(0);
    let result = turn.running.await;
    assert!(store.open_turns().is_empty(), "{record:?}");
    result
}

async fn session_on(manager: &ConversationManager) -> AgentSession {
    let request = CreateTaskSession::new("project", "task", "/project", "/project/worktree");
    soon(AgentSession::create(manager, request, AgentProfile::new("assistant"))).await.unwrap()
}

/// What is saved loads to the conversation that the session has.
fn check_saved(session: &AgentSession, saved: &SavedSessionData) {
    let state = session.state();
    assert_eq!(*state.saved, *saved);
    let (loaded, malformed) = saved.clone().load().unwrap();
    assert!(malformed.is_empty(), "{malformed:?}");
    check_same(&loaded.conversation, &state.conversation);
}

/// All but the cost, which an agent may write down later than everything else.
fn check_same(loaded: &SessionConversationState, live: &SessionConversationState) {
    assert_eq!(loaded.blocks(), live.blocks());
    assert!(loaded.subagents().eq(live.subagents()));
    assert_eq!(loaded.total_usage().tokens, live.total_usage().tokens);
}

async fn a_session_is_one_handle_and_found_again(world: impl World) {
    let store = Arc::new(MemoryStore::default());
    let manager = world.builder().store(Arc::clone(&store) as _).wait(limits()).unwrap().build();
    let session = session_on(&manager).await;
    let id = session.session_id().clone();
    let mut message = session.send_message(world.prompt(&say("hello")));
    let events: Vec<StreamEvent> = soon((&mut message).collect()).await;
    let result = soon(async { message.await }).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("hello"));
    let completed: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::BlockComplete { block, .. } => Some(block.id.clone()),
            _ => None,
        })
        .collect();
    for block in result.conversation.blocks().iter() {
        assert_eq!(block.status, BlockStatus::Complete);
        assert!(completed.contains(&block.id), "{block:?} {events:?}");
    }
    soon(session.save()).await.unwrap();
    let saved = store.saved(&id).await.unwrap().unwrap();
    assert_eq!(
        (&saved.listed.status, saved.listed.agent_profile_reference.as_str()),
        (&SessionStatus::Idle, "assistant")
    );
    assert_eq!(store.saved_sessions().await.unwrap(), std::slice::from_ref(&saved.listed));
    check_saved(&session, &saved);
    let before = session.state().conversation;
    soon(manager.shutdown()).await;

    let manager = world.builder().store(Arc::new(store.another_handle())).wait(limits()).unwrap().build();
    let session = soon(AgentSession::open(&manager, &id)).await.unwrap();
    check_same(&session.state().conversation, &before);
    soon(async { session.send_message(world.prompt(&say("more"))).await }).await.unwrap();
    let after = session.state().conversation;
    assert_eq!(after.blocks().len(), before.blocks().len() + 2);
    drop(session);
    // The end of the last handle is the end of the saving.
    soon(manager.shutdown()).await;
    let saved = store.saved(&id).await.unwrap().unwrap();
    assert_eq!(saved.agent_profile, Some(AgentProfile::new("assistant")));
    check_same(&saved.load().unwrap().0.conversation, &after);

    let manager = world.builder().store(Arc::new(store.another_handle())).build();
    soon(manager.delete(&id)).await.unwrap();
    assert_eq!(store.saved(&id).await.unwrap(), None, "what is deleted is not kept");
    assert!(soon(AgentSession::open(&manager, &id)).await.is_err());
}

/// A store that counts what was saved, and fails the first so many saves.
fn counting(memory: &MemoryStore, n_failures: usize) -> (Arc<TappedStore>, watch::Receiver<usize>) {
    let (saves, counted) = watch::channel(0);
    let store = TappedStore::new(Arc::new(memory.another_handle()), move |call, effect| {
        let is_save = call == StoreCall::PutSaved;
        let fails = is_save && effect == Effect::Before && *saves.borrow() < n_failures;
        if is_save && (fails || effect == Effect::After) {
            saves.send_modify(|n| *n += 1);
        }
        let full = StoreError::new("saving", StoreErrorKind::Full);
        Box::pin(std::future::ready(if fails { Err(full) } else { Ok(()) }))
    });
    (Arc::new(store), counted)
}

async fn a_session_is_saved_as_it_goes(world: impl World) {
    let memory = MemoryStore::default();
    let (store, mut counted) = counting(&memory, 0);
    let manager = world.builder().store(store).wait(limits()).unwrap().build();
    let session = session_on(&manager).await;
    let id = session.session_id().clone();
    let message = session.send_message(world.prompt(&gate("hello")));
    soon(world.at_gate()).await;
    // No call asks for it.
    let saved = soon(async {
        loop {
            let saved = memory.saved(&id).await.unwrap();
            let begun = saved.filter(|saved| saved.listed.status == SessionStatus::Running);
            match begun.map(|saved| saved.load().unwrap().0) {
                Some(session) if !session.conversation.blocks().is_empty() => return session,
                _ => counted.changed().await.unwrap(),
            }
        }
    })
    .await;
    assert!(saved.conversation.blocks().len() < 3, "the answer is still to come");
    world.open_gate();
    let result = soon(async { message.await }).await.unwrap();
    soon(async {
        while memory.saved(&id).await.unwrap().unwrap().listed.status != SessionStatus::Idle {
            counted.changed().await.unwrap();
        }
    })
    .await;
    let saved = memory.saved(&id).await.unwrap().unwrap();
    check_saved(&session, &saved);
    assert_eq!(session.state().conversation, result.conversation);
    let n_saves = *counted.borrow();
    assert!(n_saves <= 6, "{n_saves} saves of one short turn");
}

async fn a_session_is_saved_once_its_store_is_back(world: impl World) {
    let memory = MemoryStore::default();
    let (store, mut counted) = counting(&memory, 2);
    let manager = world.builder().store(store).wait(limits()).unwrap().build();
    let session = session_on(&manager).await;
    let result = soon(async { session.send_message(world.prompt(&say("hello"))).await }).await.unwrap();
    assert_eq!(result.completion, Completion::Settled, "no turn depends on it");
    soon(async {
        while memory.saved(session.session_id()).await.unwrap().is_none() {
            counted.changed().await.unwrap();
        }
    })
    .await;
    soon(session.save()).await.unwrap();
    check_saved(&session, &memory.saved(session.session_id()).await.unwrap().unwrap());
    manager.forget(session.session_id());
    let error = soon(session.save()).await.unwrap_err();
    assert!(matches!(error, opencode_conductor::SessionError::Unknown { .. }), "{error:?}");
}

//! No wait is endless, and no live turn is cut off.

use std::{future::ready, time::Duration};

use futures_util::{StreamExt, future::join_all};
use opencode_conductor::{
    Allowed, ApprovalDesk, Completion, Decision, Delivery, Limit, PermissionPolicy, PromptError,
    TimeoutAction, WaitOptions, error_chain,
    test_util::{Fault, Flavour, Moment, ProviderError, Route, Script, Step},
};
use tokio::time::{Instant, sleep};

use super::support::{
    secrets, soon,
    stage::{Stage, asking_tool, create, gated_text, gated_tool, ms, quick, task, texts, with},
};

/// Long enough not to matter, and different from all others.
fn long() -> WaitOptions {
    let hour = Duration::from_secs(3600);
    WaitOptions::default().idle_timeout(hour).tool_timeout(hour).retry_budget(hour).start_timeout(hour)
}

fn endless() -> Script {
    let mut step = Step::text("");
    step.words = 100_000;
    step.chunk_ms = 20;
    Script::new([step])
}

fn silent() -> Script {
    Script::new([Step::text("never").gate_before("never")])
}

/// A model whose answers break off, so that the server calls it again and again.
fn looping() -> Script {
    with(Script::new([with(Step::default(), |it| it.drop = true)]), |it| it.repeat_last = true)
}

#[tokio::test]
async fn each_limit_ends_its_kind_of_waiting_and_aborts_the_tree() {
    let retrying = with(ProviderError::default(), |it| {
        it.status = 429;
        it.headers = [("retry-after".to_owned(), "3600".to_owned())].into();
    });
    let retrying = Script::new([with(Step::default(), |it| it.error = Some(retrying))]);
    let unknown = looping();
    // So long that a slow machine gets to what is to be cut off, and all at once.
    let limit = ms(4000);
    let cases = [
        (Limit::Idle, silent(), long().idle_timeout(limit)),
        (Limit::Idle, gated_text("never", "one two three"), long().idle_timeout(limit)),
        (
            Limit::Tool,
            Script::new([Step::tool(gated_tool("never"))]),
            long().tool_timeout(limit * 3 / 2).idle_timeout(limit),
        ),
        (Limit::Retry, retrying, long().retry_budget(limit * 3 / 2).idle_timeout(limit)),
        (Limit::Deadline, endless(), long().deadline(limit)),
        (Limit::Deadline, silent(), long().deadline(limit)),
        (Limit::Steps, unknown, long().max_steps(5)),
        (Limit::Idle, Script::new([Step::tool(task(&silent()))]), long().idle_timeout(limit)),
        (
            Limit::Tool,
            Script::new([Step::tool(task(&Script::new([Step::tool(gated_tool("never"))])))]),
            long().tool_timeout(limit),
        ),
    ];
    join_all(cases.into_iter().enumerate().map(|(row, (expected, script, wait))| async move {
        let case = format!("row {row}, {expected:?}");
        // Neither heartbeats nor the neighbours are progress.
        let stage = Stage::of(quick().heartbeat(ms(20)).time_scale(1.0)).await;
        let neighbour = create(&stage.manager, "neighbour").await;
        let neighbour = opencode_conductor::PromptInput::new(neighbour, endless().prompt("go on"));
        let _neighbour = stage.manager.prompt(neighbour).start();
        let began = Instant::now();
        let input = stage.input(&script).wait(wait);
        let result = stage.send(input).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        let Completion::TimedOut { limit: found, abort, .. } = &result.completion else {
            panic!("{case}: {:?}", result.completion)
        };
        assert_eq!(*found, expected, "{case}");
        assert!(expected == Limit::Steps || began.elapsed() >= limit, "{case}: too early");
        let abort = abort.as_ref().unwrap_or_else(|| panic!("{case}: it was aborted"));
        assert!(abort.confirmed, "{case}");
        assert!(abort.sessions.contains(&stage.session), "{case}");
        assert!(stage.is_idle().await, "{case}: nothing runs any more");
        assert!(result.completion.is_retryable());
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
        if expected == Limit::Steps {
            assert!(result.messages.opencode().len() > 5, "{case}");
        }
        let next = stage.ask(&texts("next")).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(next.completion, Completion::Settled, "{case}: the session is usable");
        stage.check(&case, &next);
    }))
    .await;
}

/// It makes progress, and the session itself makes no step meanwhile.
#[tokio::test]
async fn a_subagent_that_goes_round_in_circles_ends_the_turn() {
    let stage = Stage::new().await;
    let script = Script::new([Step::tool(task(&looping())), Step::text("never")]);
    let result = stage.send(stage.input(&script).wait(long().max_steps(5))).await.unwrap();
    let Completion::TimedOut { limit: Limit::Steps, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert!(abort.sessions.contains(&stage.session) && abort.sessions.len() == 2, "{abort:?}");
    assert!(stage.is_idle().await, "nothing runs any more");
    stage.check_conversation("a looping subagent", &result.conversation);
}

#[tokio::test]
async fn a_limit_before_the_model_says_anything_is_an_error() {
    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeStore, "never");
    let input = stage.input(&texts("never")).wait(long().idle_timeout(ms(2000)));
    let error = stage.send(input).await.unwrap_err();
    let PromptError::TimedOut {
        limit: Limit::Idle, delivery: Delivery::Accepted, abort: Some(abort), ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(abort.confirmed);
    assert!(error.is_retryable());
    assert!(stage.prompts_run().is_empty());
}

#[tokio::test]
async fn a_deadline_holds_before_anything_is_sent() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Hang).always();
    let error = stage.send(stage.input(&texts("never")).wait(long().deadline(ms(200)))).await.unwrap_err();
    assert!(
        matches!(
            error,
            PromptError::TimedOut { limit: Limit::Deadline, delivery: Delivery::NotSent, abort: None, .. }
        ),
        "{error:?}"
    );
    assert_eq!(stage.requests(Route::PromptAsync), 0);
}

#[tokio::test]
async fn a_turn_may_be_left_alone_when_its_limit_runs_out() {
    let stage = Stage::new().await;
    let wait = long().idle_timeout(ms(2000)).on_limit(TimeoutAction::Leave);
    let result = stage.send(stage.input(&gated_text("gate", "one two three")).wait(wait)).await.unwrap();
    assert_eq!(result.completion, Completion::timed_out(Limit::Idle, Allowed::Time(ms(2000)), None));
    assert_eq!(stage.requests(Route::Abort), 0);
    assert!(!stage.is_idle().await, "it goes on");
    let next = stage.start(&texts("next"));
    stage.fake.open_gate("gate");
    let next = soon(next).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("next"), "the next prompt waits until it is over");
    stage.check("left alone", &next);
    stage.check_conversation("left alone", &next.conversation);
}

#[tokio::test]
async fn an_abort_that_cannot_be_confirmed_says_so() {
    let stage = Stage::new().await;
    let running = stage
        .manager
        .prompt(stage.input(&gated_text("never", "one two three")).wait(long().idle_timeout(ms(2000))));
    let running = running.start();
    soon(stage.fake.wait_at("never")).await;
    stage.fake.inject(Route::Status, Fault::Status(400)).always();
    let result = soon(running).await.unwrap();
    let Completion::TimedOut { limit: Limit::Idle, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert!(!abort.confirmed);
}

#[tokio::test]
async fn a_dead_server_ends_the_wait_in_time() {
    let stage = Stage::new().await;
    let running = stage
        .manager
        .prompt(stage.input(&gated_text("never", "one two three")).wait(long().idle_timeout(ms(2000))));
    let running = running.start();
    soon(stage.fake.wait_at("never")).await;
    stage.fake.kill().await.unwrap();
    let result = soon(running).await.unwrap();
    let Completion::TimedOut { limit: Limit::Idle, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert!(!abort.confirmed);
}

#[tokio::test]
async fn a_server_that_is_out_of_reach_is_not_waited_for_as_long_as_a_silent_model() {
    let stage = Stage::new().await;
    let script = Script::new([Step::tool(gated_tool("never"))]);
    let running = stage.manager.prompt(stage.input(&script).wait(long().contact_timeout(ms(500)))).start();
    soon(stage.fake.wait_at("never")).await;
    stage.fake.kill().await.unwrap();
    let result = soon(running).await.unwrap();
    let Completion::TimedOut { limit: Limit::Contact, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert!(!abort.confirmed);
}

#[tokio::test]
async fn a_turn_that_lives_is_not_cut_off() {
    let slow = || {
        let mut step = Step::text("");
        step.words = 25;
        step.chunk_ms = 200;
        Script::new([step])
    };
    let silent_tool = Script::new([Step::tool(gated_tool("later")), Step::text("done")]);
    let child_tool = Script::new([Step::tool(task(&silent_tool)), Step::text("done")]);
    let child_text = Script::new([Step::tool(task(&slow())), Step::text("done")]);
    let background = {
        let mut tool = task(&slow());
        tool.args["background"] = true.into();
        Script::new([Step::tool(tool), Step::text("done")])
    };
    let scripts = [
        ("text", slow()),
        ("tool", silent_tool),
        ("tool of a child", child_tool),
        ("text of a child", child_text),
        ("text of a background child", background),
    ];
    let flavours = [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1];
    let cases = flavours
        .into_iter()
        .flat_map(|flavour| scripts.clone().into_iter().map(move |(name, script)| (flavour, name, script)));
    join_all(cases.map(|(flavour, name, script)| async move {
        let case = format!("{name} on {flavour:?}");
        let stage = Stage::of(quick().flavour(flavour).background_subagents()).await;
        let wait = WaitOptions::default().idle_timeout(ms(4000)).settle_grace(ms(300));
        let running = stage.manager.prompt(stage.input(&script).wait(wait)).start();
        // The passing of time is what is tested here: five seconds of text, or of a tool that says nothing.
        if name.contains("tool") {
            soon(stage.fake.wait_at("later")).await;
            sleep(ms(5000)).await;
            stage.fake.open_gate("later");
        }
        let result = soon(running).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{case}");
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
    }))
    .await;
}

#[tokio::test]
async fn clocks_stand_still_while_a_human_is_asked() {
    let policy = PermissionPolicy::ask(|_| async {
        sleep(ms(6000)).await;
        Decision::AllowOnce
    });
    let stage = Stage::with(quick(), |manager| manager.permissions(policy)).await;
    let limit = ms(4000);
    let wait = long().idle_timeout(limit).tool_timeout(limit).deadline(limit);
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let result = stage.send(stage.input(&script).wait(wait.clone())).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    // And only then.
    let result = stage.send(stage.input(&gated_text("never", "one two")).wait(wait)).await.unwrap();
    assert!(matches!(result.completion, Completion::TimedOut { .. }));
}

/// The clocks stand still for the person, not for what becomes of the answer.
#[tokio::test]
async fn an_answer_that_the_server_does_not_take_does_not_hold_the_turn() {
    let limit = ms(2000);
    let asks = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let cases = [
        (Fault::Status(500), Some(Limit::Tool), "cannot answer a permission request"),
        (Fault::Status(401), None, "refuses the credentials"),
    ];
    join_all(cases.map(|(fault, expected, cause)| {
        let asks = &asks;
        async move {
            let stage = Stage::with(quick(), |manager| {
                manager.permissions(PermissionPolicy::ask(|_| async { Decision::AllowOnce }))
            })
            .await;
            stage.fake.inject(Route::ReplyPermission, fault.clone()).always();
            let wait = long().tool_timeout(limit);
            let result = soon(stage.send(stage.input(asks).wait(wait))).await.unwrap();
            match (&result.completion, expected) {
                (Completion::TimedOut { limit, .. }, Some(expected)) => {
                    assert_eq!(*limit, expected, "{fault:?}");
                }
                (Completion::Unauthorized, None) => {}
                (other, _) => panic!("{fault:?}: {other:?}"),
            }
            let failed = error_chain(&result.settled().unwrap_err());
            assert!(failed.contains(cause), "{fault:?}: {failed:?} has no {cause:?}");
            stage.fake.clear_faults();
            let next = soon(stage.ask(&texts("next"))).await.unwrap();
            assert_eq!(next.answer().as_deref(), Some("next"), "{fault:?}: the queue goes on");
        }
    }))
    .await;
}

#[tokio::test]
async fn a_server_that_stays_away_while_a_person_is_asked_ends_the_turn() {
    let asks = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    join_all(["answered when it is gone", "never answered"].map(|case| {
        let asks = &asks;
        async move {
            let desk = ApprovalDesk::new();
            let stage = Stage::with(quick(), |manager| manager.permissions(desk.permissions())).await;
            let running = stage.manager.prompt(stage.input(asks).wait(long().contact_timeout(ms(1000))));
            let running = running.start();
            let ask = soon(desk.watch().filter(|asks| ready(!asks.is_empty())).next()).await;
            let ask = ask.unwrap().remove(0);
            stage.fake.kill().await.unwrap();
            if case != "never answered" {
                desk.answer(&ask.root, &ask.id, Decision::AllowOnce).unwrap();
            }
            let result = soon(running).await.unwrap();
            let Completion::TimedOut { limit: Limit::Contact, abort: Some(abort), .. } = &result.completion
            else {
                panic!("{case}: {:?}", result.completion)
            };
            assert!(!abort.confirmed, "{case}");
            assert_eq!(desk.pending(), [], "{case}");
            let failed = error_chain(&result.settled().unwrap_err());
            assert!(failed.contains("cannot be reached"), "{case}: {failed}");
        }
    }))
    .await;
}

#[tokio::test]
async fn a_prompt_waits_for_what_others_run_and_not_for_ever() {
    let stage = Stage::new().await;
    let other = secrets::connect(&stage.fake.url());
    let foreign = other.prompt(stage.input(&gated_text("gate", "one two three four"))).start();
    soon(stage.fake.wait_at("gate")).await;
    // The session is not known to be at rest once another client has aborted it, or it was made elsewhere.
    let fresh = secrets::connect(&stage.fake.url());
    let wait = long().idle_timeout(ms(200));
    let error = soon(fresh.prompt(stage.input(&texts("never")).wait(wait)).into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::NotAtRest { limit: Limit::Idle, .. }), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(stage.requests(Route::Abort), 0, "what others run is left alone");
    let waiting = fresh.prompt(stage.input(&texts("second"))).start();
    stage.fake.open_gate("gate");
    let (foreign, waiting) = soon(async { tokio::join!(foreign, waiting) }).await;
    assert_eq!(foreign.unwrap().answer().as_deref(), Some("one two three four"));
    let waiting = waiting.unwrap();
    assert_eq!(waiting.answer().as_deref(), Some("second"));
    stage.check("second", &waiting);
}

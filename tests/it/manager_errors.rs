//! An error says what failed, and its causes say why.

use std::{error::Error, time::Duration};

use opencode_conductor::{
    Allowed, Completion, ConversationManager, CreateTaskSession, Delivery, Limit, OpenCodeClient,
    PromptError, PromptInput, SessionError, TimeoutAction, WaitOptions, error_chain,
    test_util::{Fault, Moment, ProviderError, Route, Script, Step},
};

use super::support::{
    secrets::{self, PASSWORD},
    soon,
    stage::{Stage, gated_text, ms, quick, task, texts, waits, with},
};

/// The words of a chain, with addresses and ids taken out.
fn words(stage: &Stage, error: &(dyn std::error::Error + 'static)) -> String {
    error_chain(error).replace(stage.session.as_str(), "SESSION").replace(&stage.fake.url(), "URL")
}

#[tokio::test]
async fn each_kind_of_trouble_reads_differently() {
    let wait = || WaitOptions::default().idle_timeout(ms(400));

    let down = Stage::new().await;
    down.fake.kill().await.unwrap();
    let down_error = down.send(down.input(&texts("never")).wait(wait())).await.unwrap_err();

    let refusing = Stage::new().await;
    refusing.fake.inject(Route::PromptAsync, Fault::Status(500)).always();
    let refusing_error = refusing.send(refusing.input(&texts("never")).wait(wait())).await.unwrap_err();

    let stuck = Stage::new().await;
    stuck.fake.hold(Moment::BeforeStore, "never");
    let stuck_error = stuck.send(stuck.input(&texts("never")).wait(wait())).await.unwrap_err();

    let killed = Stage::new().await;
    let running = killed.manager.prompt(killed.input(&gated_text("never", "one two three")).wait(wait()));
    let running = running.start();
    soon(killed.fake.wait_at("never")).await;
    killed.fake.kill().await.unwrap();
    let killed_error = soon(running).await.unwrap().settled().unwrap_err();

    let cases = [
        (words(&down, &down_error), ["SESSION of task task", "cannot be reached, is it running?", "refused"]),
        (words(&refusing, &refusing_error), ["SESSION of task task", "cannot submit a prompt", "500"]),
        (
            words(&stuck, &stuck_error),
            ["SESSION of task task timed out before the model said anything", "idle_timeout", "(400ms)"],
        ),
        (
            words(&killed, &killed_error),
            [
                "SESSION of task task timed out",
                "(400ms), and the abort could not be confirmed",
                "cannot be reached, is it running?",
            ],
        ),
    ];
    for (words, expected) in cases {
        for expected in expected {
            assert!(words.contains(expected), "{words:?} has no {expected:?}");
        }
    }
    assert_eq!(stuck_error.task().map(opencode_conductor::TaskId::as_str), Some("task"));
    assert_eq!(stuck_error.session(), Some(&stuck.session));
}

#[tokio::test]
async fn a_wrong_password_is_called_by_its_name_and_says_what_to_check() {
    let stage = Stage::of(quick().password(PASSWORD)).await;
    let wrong = OpenCodeClient::builder(&stage.fake.url()).basic_auth("opencode", "wrong").build().unwrap();
    let manager = ConversationManager::builder(wrong).build();

    let task = CreateTaskSession::new("project", "other", "/project", "/project/worktree");
    let error = manager.create_task_session(task).await.unwrap_err();
    assert!(matches!(error, SessionError::Agent { .. }), "{error:?}");
    assert!(error_chain(&error).contains("check the password"), "{}", error_chain(&error));

    let input = PromptInput::new(stage.session.clone(), "hello").directory("/project/worktree");
    let error = soon(manager.prompt(input).into_future()).await.unwrap_err();
    let PromptError::Unauthorized { delivery: Delivery::NotSent, source: Some(_), .. } = &error else {
        panic!("{error:?}")
    };
    assert!(words(&stage, &error).contains("check the password"), "{error}");
    assert!(!error.is_retryable());
}

/// A proxy may let the stream be and refuse what is asked for beside it.
#[tokio::test]
async fn credentials_that_are_refused_in_mid_turn_end_it_at_once() {
    for status in [401, 403] {
        let stage = Stage::new().await;
        let running = stage.start(&gated_text("gate", "one two three"));
        soon(stage.fake.wait_at("gate")).await;
        stage.fake.inject(Route::ListMessages, Fault::Status(status)).always();
        stage.fake.open_gate("gate");
        let result = tokio::time::timeout(Duration::from_secs(30), running).await.expect("no limit runs out");
        let failed = result.unwrap().settled().unwrap_err();
        assert_eq!(failed.result.completion, Completion::Unauthorized, "{status}");
        let words = words(&stage, &failed);
        assert!(words.contains("cannot list messages") && words.contains("check the password"), "{words}");
    }
}

/// What went wrong for a moment, and was well again, is not why a turn ended.
#[tokio::test]
async fn an_error_that_was_overcome_is_no_cause() {
    let stage = Stage::new().await;
    let fails = Script::new([Step::error(400).gate_before("gate")]);
    stage.fake.inject(Route::PromptAsync, Fault::StatusAfterEffect(502));
    let running = stage.start(&fails);
    soon(stage.fake.wait_at("gate")).await;
    let list = stage.fake.inject(Route::ListMessages, Fault::Status(400));
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|_| list.left() == 0)).await;
    stage.fake.open_gate("gate");
    let failed = soon(running).await.unwrap().settled().unwrap_err();
    assert!(matches!(failed.result.completion, Completion::Failed(_)), "{failed}");
    assert_eq!(failed.source().map(ToString::to_string), None);

    // A server that was down when the waiting began, and then was busy.
    let foreign = stage.start(&gated_text("never", "one two three"));
    soon(stage.fake.wait_at("never")).await;
    drop(foreign);
    let fresh = secrets::connect(&stage.fake.url());
    fresh.adopt_session("task", &stage.session).await.unwrap();
    let refused = stage.fake.inject(Route::Status, Fault::Status(503));
    let wait = WaitOptions::default().idle_timeout(ms(1500));
    let prompt = fresh.prompt(stage.input(&texts("never")).wait(wait));
    let error = soon(prompt.into_future()).await.unwrap_err();
    assert_eq!(refused.left(), 0, "it struck");
    let PromptError::NotAtRest { limit: Limit::Idle, source, .. } = &error else { panic!("{error:?}") };
    assert!(source.is_none(), "{source:?}");
}

#[tokio::test]
async fn a_limit_names_what_failed_until_it_ran_out() {
    let wait = || WaitOptions::default().idle_timeout(ms(1500)).retry_budget(ms(1500));
    let retrying = |status| {
        let error = with(ProviderError::default(), |it| {
            it.status = status;
            it.headers = [("retry-after".to_owned(), "3600".to_owned())].into();
        });
        Script::new([with(Step::default(), |it| it.error = Some(error))])
    };
    let in_subagent = Script::new([Step::tool(task(&retrying(429)))]);
    for (script, expected) in [(retrying(503), "scripted error 503"), (in_subagent, "scripted error 429")] {
        let stage = Stage::new().await;
        let result = stage.send(stage.input(&script).wait(wait())).await.unwrap();
        let Completion::TimedOut { limit, .. } = &result.completion else {
            panic!("{:?}", result.completion)
        };
        assert_eq!(*limit, Limit::Retry, "{expected}");
        let words = words(&stage, &result.settled().unwrap_err());
        assert!(words.contains(expected), "{words:?} has no {expected:?}");
    }

    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Status(502)).always();
    let result = stage.send(stage.input(&gated_text("never", "one two three")).wait(wait())).await.unwrap();
    let words = words(&stage, &result.settled().unwrap_err());
    for expected in ["idle_timeout", "the event stream failed", "502"] {
        assert!(words.contains(expected), "{words:?} has no {expected:?}");
    }
}

/// The limit is part of the answer also where the prompt did not get as far as its turn, and where there is none.
#[tokio::test]
async fn a_server_out_of_reach_is_told_with_the_limit_and_of_a_prompt_only_if_there_is_one() {
    let stage = Stage::new().await;
    let fresh = secrets::connect(&stage.fake.url());
    fresh.adopt_session("task", &stage.session).await.unwrap();
    stage.fake.kill().await.unwrap();
    let wait = WaitOptions::default().contact_timeout(ms(300));
    let prompt = fresh.prompt(stage.input(&texts("never")).wait(wait.clone()));
    let prompt = soon(prompt.into_future()).await.unwrap_err();
    let rest = soon(fresh.wait_for_session_idle(&stage.session, wait)).await.unwrap_err();
    let limit = "contact_timeout (300ms)";
    let rest_words = words(&stage, &rest);
    assert!(rest_words.starts_with("session SESSION of task task did not come to rest: "), "{rest_words}");
    assert!(!rest_words.contains("the prompt"), "{rest_words}");
    let prompt_words = words(&stage, &prompt);
    assert!(
        prompt_words
            .starts_with("the prompt for session SESSION of task task was not delivered (not sent): ")
    );
    for words in [prompt_words, rest_words] {
        assert!(words.contains(limit), "{words:?} has no {limit:?}");
        assert!(words.contains("cannot be reached"), "{words:?}");
    }
    let allowed = Allowed::Time(ms(300));
    let PromptError::NotDelivered { limit: Some(Limit::Contact), allowed: Some(found), .. } = prompt else {
        panic!("{prompt:?}")
    };
    assert_eq!(found, allowed);
    let PromptError::NotAtRest { limit: Limit::Contact, allowed: found, abort: Some(abort), .. } = rest
    else {
        panic!("{rest:?}")
    };
    assert_eq!(found, allowed);
    assert!(!abort.confirmed);
}

/// What was aborted on the way is reported, and whether that is certain.
#[tokio::test]
async fn what_was_aborted_is_reported_where_no_turn_was_waited_for() {
    for confirmed in [true, false] {
        let unconfirmed = ", and the abort could not be confirmed";
        let stage = Stage::new().await;
        let running = stage.start(&gated_text("never", "one two three"));
        soon(stage.fake.wait_at("never")).await;
        drop(running);
        if !confirmed {
            stage.fake.inject(Route::Status, Fault::Status(400)).always();
        }
        // So that a session of unknown status is not taken for one that was interrupted before.
        let patient = || WaitOptions::default().settle_grace(Duration::from_secs(60));
        for limits in [patient().idle_timeout(ms(300)), patient().deadline(ms(300))] {
            let left = limits.clone().on_limit(TimeoutAction::Leave);
            let error = soon(stage.manager.wait_for_session_idle(&stage.session, left)).await.unwrap_err();
            assert!(matches!(error, PromptError::NotAtRest { abort: None, .. }), "{error:?}");
        }
        let wait = patient().idle_timeout(ms(300));
        let error = soon(stage.manager.wait_for_session_idle(&stage.session, wait)).await.unwrap_err();
        let PromptError::NotAtRest { abort: Some(abort), .. } = &error else { panic!("{error:?}") };
        assert_eq!((abort.confirmed, &*abort.sessions), (confirmed, &[stage.session.clone()][..]));
        assert_eq!(words(&stage, &error).contains(unconfirmed), !confirmed, "{error}");
        assert!(error.is_retryable(), "nothing was sent");

        let stage = Stage::new().await;
        stage.fake.inject(Route::PromptAsync, Fault::LosePrompt).always();
        if !confirmed {
            stage.fake.inject(Route::Status, Fault::Status(400)).always();
        }
        let input = stage.input(&texts("never")).wait(waits().start_timeout(ms(100)).max_kicks(1));
        let error = stage.send(input).await.unwrap_err();
        let PromptError::NotStarted { error: None, abort: Some(abort), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(abort.confirmed, confirmed);
        assert_eq!(words(&stage, &error).contains(unconfirmed), !confirmed, "{error}");
        assert_eq!(error.is_retryable(), confirmed, "it may still start");
    }
}

#[tokio::test]
async fn an_abort_without_a_server_says_why_it_could_not_be_confirmed() {
    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeStore, "never");
    let running = stage.start(&texts("never"));
    soon(stage.fake.wait_at("never")).await;
    stage.fake.kill().await.unwrap();
    let report = soon(stage.manager.abort(&stage.session)).await.unwrap();
    assert!(!report.confirmed);
    let error = soon(running).await.unwrap_err();
    let PromptError::Aborted { source: Some(_), abort: Some(_), .. } = &error else { panic!("{error:?}") };
    let words = words(&stage, &error);
    assert!(words.contains("could not be confirmed") && words.contains("cannot be reached"), "{words}");
}

#[tokio::test]
async fn a_prompt_after_the_shutdown_says_so_and_is_not_tried_again() {
    let stage = Stage::new().await;
    stage.manager.shutdown().await;
    let error = stage.ask(&texts("never")).await.unwrap_err();
    assert!(matches!(error, PromptError::ShutDown { delivery: Delivery::NotSent, .. }), "{error:?}");
    assert!(!error.is_retryable());
    assert!(words(&stage, &error).contains("the manager was shut down"), "{error}");
}

#[tokio::test]
async fn a_limit_tells_how_much_it_allowed() {
    let stage = Stage::new().await;
    let wait = WaitOptions::default().deadline(Duration::from_millis(300));
    let result = stage.send(stage.input(&gated_text("never", "one two three")).wait(wait)).await.unwrap();
    let Completion::TimedOut { limit: Limit::Deadline, allowed, .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert_eq!(*allowed, Some(Allowed::Time(ms(300))));
    let json = serde_json::to_value(&result.completion).unwrap();
    assert_eq!(json["allowed"], serde_json::json!({"millis": 300}));
    assert_eq!(result.task_id.as_ref().map(opencode_conductor::TaskId::as_str), Some("task"));
}

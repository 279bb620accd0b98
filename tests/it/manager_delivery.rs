//! A prompt runs exactly once, or the caller is told that it did not.

use futures_util::{StreamExt, future::join_all};
use opencode_conductor::{
    Completion, ConversationManager, Delivery, PromptError, Update,
    test_util::{FakeOpenCode, FakeOptions, Fault, Flavour, Moment, Route},
    wire::ModelRef,
};

use super::support::{
    secrets, soon,
    stage::{Stage, client, create, feed, gated_text, ms, quick, texts, waits},
};

type Check = fn(&PromptError) -> bool;

#[tokio::test]
async fn a_prompt_runs_once_whatever_becomes_of_its_submission() {
    let cases = [
        (Fault::DropBeforeEffect, 1),
        (Fault::DropBeforeEffect, 3),
        (Fault::DropAfterEffect, 1),
        (Fault::DropAfterEffect, 2),
        (Fault::Status(408), 1),
        (Fault::Status(500), 1),
        (Fault::Status(503), 2),
        (Fault::StatusAfterEffect(500), 1),
        (Fault::StatusAfterEffect(502), 1),
        (Fault::StatusAfterEffect(504), 2),
        (Fault::Hang, 1),
        (Fault::HoldAnswerUntil("never".to_owned()), 1),
        (Fault::LosePrompt, 1),
        (Fault::LosePrompt, 2),
        (Fault::ForgetPrompt, 1),
        (Fault::ForgetPrompt, 2),
    ];
    let flavours = [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1];
    let cases = cases.into_iter().flat_map(|case| flavours.map(|flavour| (case.clone(), flavour)));
    join_all(cases.map(|((fault, times), flavour)| async move {
        let case = format!("{fault:?} x {times} on {flavour:?}");
        let fake = FakeOpenCode::start_with(quick().flavour(flavour)).await.unwrap();
        let client = secrets::client(&fake.url()).answer_timeout(ms(5000)).feed(feed()).build();
        let manager = ConversationManager::builder(client.unwrap()).wait(waits()).unwrap().build();
        let session = create(&manager, "task").await;
        let stage = Stage { fake, manager, session };
        stage.fake.inject(Route::PromptAsync, fault).times(times);
        let result = stage.ask(&texts("All done.")).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{case}");
        assert_eq!(result.answer().as_deref(), Some("All done."), "{case}");
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
    }))
    .await;
}

#[tokio::test]
async fn a_refused_submission_is_reported_and_not_repeated() {
    let not_delivered: Check = |error| {
        matches!(error, PromptError::NotDelivered { delivery: Delivery::Rejected, source: Some(_), .. })
    };
    let unauthorized: Check = |error| matches!(error, PromptError::Unauthorized { .. });
    let gone: Check = |error| matches!(error, PromptError::SessionGone { .. });
    let cases = [
        (Fault::Status(400), not_delivered),
        (Fault::Status(413), not_delivered),
        (Fault::Html, not_delivered),
        (Fault::Status(401), unauthorized),
        (Fault::Status(403), unauthorized),
        (Fault::Status(404), gone),
    ];
    for (fault, expected) in cases {
        let stage = Stage::new().await;
        stage.fake.inject(Route::PromptAsync, fault.clone()).always();
        let error = stage.ask(&texts("never")).await.unwrap_err();
        assert!(expected(&error), "{fault:?}: {error:?}");
        assert_eq!(error.delivery(), Delivery::Rejected, "{fault:?}");
        assert!(!error.is_retryable(), "{fault:?}");
        assert_eq!(stage.requests(Route::PromptAsync), 1, "{fault:?}");
        assert!(stage.prompts_run().is_empty(), "{fault:?}");
    }
}

#[tokio::test]
async fn without_a_server_nothing_is_sent() {
    let stage = Stage::new().await;
    stage.fake.kill().await.unwrap();
    let error = stage.ask(&texts("never")).await.unwrap_err();
    assert!(
        matches!(&error, PromptError::NotDelivered { delivery: Delivery::NotSent, source: Some(_), .. }),
        "{error:?}"
    );
    assert!(error.is_retryable());
    stage.fake.revive().await.unwrap();
    assert!(stage.prompts_run().is_empty());
    let result = stage.ask(&texts("now")).await.unwrap();
    stage.check("after the revival", &result);
}

#[tokio::test]
async fn a_server_that_comes_back_in_time_gets_the_prompt() {
    let stage = Stage::new().await;
    stage.fake.kill().await.unwrap();
    let mut running = stage.start(&texts("late"));
    let updates = running.updates().unwrap();
    let submitted = updates.any(async |update| matches!(update, Update::Submitted(_)));
    assert!(soon(submitted).await);
    stage.fake.revive().await.unwrap();
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    stage.check("late", &result);
}

#[tokio::test]
async fn a_prompt_that_never_starts_is_kicked_so_many_times_and_no_more() {
    for (fault, max_kicks) in [(Fault::LosePrompt, 0_u32), (Fault::LosePrompt, 2), (Fault::ForgetPrompt, 2)] {
        let stage = Stage::new().await;
        stage.fake.inject(Route::PromptAsync, fault.clone()).always();
        let input = stage.input(&texts("never")).wait(waits().start_timeout(ms(100)).max_kicks(max_kicks));
        let error = stage.send(input).await.unwrap_err();
        assert!(matches!(&error, PromptError::NotStarted { error: None, .. }), "{fault:?}: {error:?}");
        assert_eq!(error.delivery(), Delivery::Accepted);
        assert!(error.is_retryable());
        assert_eq!(stage.requests(Route::PromptAsync), 1 + max_kicks as usize, "{fault:?}");
        assert!(stage.prompts_run().is_empty());
        let n_stored = stage.fake.messages(stage.session.as_str()).len();
        assert_eq!(n_stored, usize::from(fault == Fault::LosePrompt), "the same message every time");
    }
}

#[tokio::test]
async fn what_the_server_cannot_run_is_reported_and_does_not_stick() {
    let cases = [
        ("agent", Flavour::V1_18, Some("Agent not found")),
        ("model", Flavour::V1_18, Some("Model not found")),
        ("agent", Flavour::V1_15_0, Some("Agent not found")),
        ("agent", Flavour::V1_1, None),
    ];
    join_all(cases.map(|(what, flavour, expected)| async move {
        let case = format!("unknown {what} on {flavour:?}");
        let stage = Stage::of(quick().flavour(flavour)).await;
        let input = stage.input(&texts("never")).wait(waits().start_timeout(ms(200)));
        let input = match what {
            "agent" => input.agent("nobody"),
            _ => input.model(ModelRef::new("mock", "missing")),
        };
        let error = stage.send(input).await.unwrap_err();
        let PromptError::NotStarted { error: said, .. } = &error else { panic!("{case}: {error:?}") };
        let said = said.as_ref().map(|error| error.message.clone());
        match expected {
            Some(expected) => {
                let said = said.unwrap_or_default();
                assert!(said.contains(expected), "{case}: {said}");
                assert!(error.to_string().contains(expected), "{case}: {error}");
            }
            None => assert_eq!(said, None, "{case}"),
        }
        assert!(stage.prompts_run().is_empty(), "{case}");
        let result = stage.ask(&texts("fine")).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{case}: the next prompt is not affected");
        stage.check(&case, &result);
    }))
    .await;
}

#[tokio::test]
async fn a_kick_that_arrives_when_the_run_has_begun_changes_nothing() {
    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeRun, "run");
    stage.fake.inject(Route::PromptAsync, Fault::DelayUntil("kick".to_owned())).after(1);
    let input = stage.input(&gated_text("middle", "one two three four")).wait(waits().start_timeout(ms(100)));
    let running = stage.manager.prompt(input).start();
    soon(stage.fake.wait_for(|log| log.count(Route::PromptAsync) == 2)).await;
    stage.fake.release(Moment::BeforeRun);
    stage.fake.open_gate("run");
    soon(stage.fake.wait_at("middle")).await;
    // The kick now moves the prompt behind the answer that is under way.
    stage.fake.open_gate("kick");
    soon(stage.fake.wait_for(|log| {
        let prompts = log
            .events
            .iter()
            .filter(|event| event.kind == "message.updated" && event.properties["info"]["role"] == "user");
        prompts.count() >= 2
    }))
    .await;
    stage.fake.open_gate("middle");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.answer().as_deref(), Some("one two three four"));
    assert_eq!(stage.prompts_run().len(), 1);
}

#[tokio::test]
async fn a_server_that_dies_before_the_run_answers_once_it_is_back() {
    join_all([Moment::BeforeStore, Moment::BeforeRun].map(|moment| async move {
        let stage = Stage::new().await;
        stage.fake.hold(moment, "dead");
        let running = stage.manager.prompt(stage.input(&texts("back")).wait(waits())).start();
        soon(stage.fake.wait_at("dead")).await;
        stage.fake.release(moment);
        stage.fake.restart().await.unwrap();
        let result = soon(running).await.unwrap_or_else(|error| panic!("{moment:?}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{moment:?}");
        stage.check(&format!("{moment:?}"), &result);
    }))
    .await;
}

#[tokio::test]
async fn clocks_may_differ() {
    let hour = ms(3_600_000);
    let flavours = [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1];
    let cases = flavours.into_iter().flat_map(|flavour| {
        [true, false].into_iter().flat_map(move |ahead| {
            [true, false].map(move |before_creation| (flavour, ahead, before_creation))
        })
    });
    join_all(cases.map(|(flavour, ahead, before_creation)| async move {
        let case = format!("{flavour:?}, ahead {ahead}, before {before_creation}");
        let fake = FakeOpenCode::start_with(quick().flavour(flavour)).await.unwrap();
        let set = || if ahead { fake.set_clock_ahead(hour) } else { fake.set_clock_behind(hour) };
        if before_creation {
            set();
        }
        let manager = ConversationManager::builder(client(&fake)).build();
        let session = create(&manager, "task").await;
        if !before_creation {
            set();
        }
        let stage = Stage { fake, manager, session };
        for turn in 0..3 {
            let answer = format!("answer {turn}");
            let result =
                stage.ask(&texts(&answer)).await.unwrap_or_else(|error| panic!("{case} {turn}: {error:?}"));
            assert_eq!(result.answer(), Some(answer), "{case}");
            assert_eq!(result.messages.opencode().len(), 1, "{case}");
            stage.check(&case, &result);
            stage.check_conversation(&case, &result.conversation);
        }
    }))
    .await;
}

#[tokio::test]
async fn wrong_credentials_are_not_tried_again() {
    let stage = Stage::of(FakeOptions::new()).await;
    stage.fake.inject(Route::Event, Fault::Status(401)).always();
    let error = stage.ask(&texts("never")).await.unwrap_err();
    assert!(matches!(error, PromptError::Unauthorized { .. }), "{error:?}");
    assert!(stage.prompts_run().is_empty());
}

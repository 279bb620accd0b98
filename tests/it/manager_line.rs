//! One prompt in flight per session, the others in order; different sessions at once.

use futures_util::future::join_all;
use opencode_conductor::{
    Completion, PromptError, PromptInput, WhenBusy,
    test_util::{Moment, Route},
};

use super::support::{
    secrets, soon,
    stage::{Stage, bash, create, gated_text, quick, texts},
};

#[tokio::test]
async fn prompts_of_a_session_run_in_the_order_they_were_started() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "answer 0"));
    let others: Vec<_> = (1..6).map(|n| stage.start(&texts(&format!("answer {n}")))).collect();
    soon(stage.fake.wait_at("gate")).await;
    assert_eq!(stage.requests(Route::PromptAsync), 1, "the others wait here, not on the server");
    stage.fake.open_gate("gate");
    let results = soon(join_all([first].into_iter().chain(others))).await;
    let mut prompts = Vec::new();
    for (n, result) in results.into_iter().enumerate() {
        let result = result.unwrap();
        assert_eq!(result.completion, Completion::Settled);
        assert_eq!(result.answer(), Some(format!("answer {n}")));
        assert_eq!(result.messages.opencode().len(), 1, "nothing of the others");
        stage.check("in line", &result);
        prompts.push(result.submission.message_id.to_string());
    }
    assert_eq!(stage.prompts_run(), prompts);
}

#[tokio::test]
async fn a_prompt_may_be_refused_instead_of_waiting() {
    let stage = Stage::new().await;
    let refused =
        |script: &opencode_conductor::test_util::Script| stage.input(script).when_busy(WhenBusy::Refuse);
    let running = stage.manager.prompt(refused(&gated_text("gate", "one two"))).start();
    let error = stage.send(refused(&texts("never"))).await.unwrap_err();
    assert!(matches!(&error, PromptError::Busy { session, .. } if *session == stage.session), "{error:?}");
    assert!(error.is_retryable());
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.open_gate("gate");
    soon(running).await.unwrap();
    stage.send(refused(&texts("now"))).await.unwrap();
    assert_eq!(stage.prompts_run().len(), 2);
}

#[tokio::test]
async fn prompts_for_a_session_that_is_not_known_yet_line_up_too() {
    for when_busy in [WhenBusy::Queue, WhenBusy::Refuse] {
        let stage = Stage::new().await;
        let manager = secrets::connect(&stage.fake.url());
        let prompts = (0..4).map(|n| {
            let input = stage.input(&texts(&format!("answer {n}"))).when_busy(when_busy);
            manager.prompt(input).start()
        });
        let results = soon(join_all(prompts.collect::<Vec<_>>())).await;
        let busy = results.iter().filter(|result| matches!(result, Err(PromptError::Busy { .. }))).count();
        let settled =
            results.iter().flatten().filter(|result| result.completion == Completion::Settled).count();
        match when_busy {
            WhenBusy::Queue => assert_eq!((settled, busy), (4, 0)),
            _ => assert_eq!((settled, busy), (1, 3)),
        }
        for result in results.iter().flatten() {
            assert_eq!(result.messages.opencode().len(), 1);
            stage.check("unknown session", result);
        }
        assert_eq!(stage.prompts_run().len(), settled);
    }
}

#[tokio::test]
async fn one_who_leaves_the_line_was_never_there() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two"));
    let (left, stays) = (stage.start(&texts("never")), stage.start(&texts("stays")));
    soon(stage.fake.wait_at("gate")).await;
    drop(left);
    stage.fake.open_gate("gate");
    soon(running).await.unwrap();
    assert_eq!(soon(stays).await.unwrap().answer().as_deref(), Some("stays"));
    assert_eq!(stage.prompts_run().len(), 2);
}

#[tokio::test]
async fn a_panic_in_the_callers_code_does_not_block_the_line() {
    let stage = Stage::new().await;
    let input = stage.input(&texts("one")).on_message(|_| panic!("a bug of the caller"));
    let first = stage.manager.prompt(input).start();
    let second = stage.start(&texts("two"));
    let error = soon(first).await.unwrap_err();
    assert!(matches!(&error, PromptError::Panicked { .. }), "{error:?}");
    assert_eq!(
        (error.task().map(ToString::to_string), error.is_retryable()),
        (Some("task".to_owned()), false)
    );
    assert_eq!(stage.manager.statistics().turns.error, 1);
    let second = soon(second).await.unwrap();
    assert_eq!(second.answer().as_deref(), Some("two"));
    stage.check("after a panic", &second);
}

#[tokio::test]
async fn sessions_do_not_wait_for_each_other() {
    let stage = Stage::new().await;
    let stuck = stage.start(&gated_text("gate", "one two"));
    let other = create(&stage.manager, "other").await;
    let other = stage.manager.prompt(PromptInput::new(other, texts("quick").prompt("go")));
    assert_eq!(soon(other.into_future()).await.unwrap().answer().as_deref(), Some("quick"));
    stage.fake.open_gate("gate");
    soon(stuck).await.unwrap();
}

#[tokio::test]
async fn a_hundred_turns_in_one_directory_share_one_stream() {
    let stage = Stage::of(quick()).await;
    stage.fake.hold(Moment::BeforeRun, "all");
    let sessions = join_all((0..100).map(|n| {
        let manager = stage.manager.clone();
        async move { create(&manager, &format!("task {n}")).await }
    }))
    .await;
    let running: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(n, session)| {
            let steps = [bash("ls", "x\n"), opencode_conductor::test_util::Step::text(format!("answer {n}"))];
            let script = opencode_conductor::test_util::Script::new(steps);
            // Patience: what is tested is that no two prompts are mixed up.
            let wait = opencode_conductor::WaitOptions::default().start_timeout(super::support::PATIENCE);
            stage.manager.prompt(PromptInput::new(session.clone(), script.prompt("go")).wait(wait)).start()
        })
        .collect();
    // All of them are in flight before any runs.
    soon(stage.fake.wait_for(|log| log.count(Route::PromptAsync) == 100)).await;
    assert_eq!(stage.fake.open_streams(), 1);
    stage.fake.open_gate("all");
    let results = soon(join_all(running)).await;
    for (n, (result, session)) in results.into_iter().zip(&sessions).enumerate() {
        let result = result.unwrap();
        assert_eq!(result.completion, Completion::Settled);
        assert_eq!(result.answer(), Some(format!("answer {n}")));
        assert_eq!(result.messages.opencode().len(), 2);
        assert_eq!(stage.fake.prompts_run(session.as_str()), [result.submission.message_id.to_string()]);
    }
    assert_eq!(stage.requests(Route::Event), 1, "one stream for all");
    let of_turns = |route| stage.requests(route) / 100;
    assert!(of_turns(Route::ListMessages) <= 2, "{}", of_turns(Route::ListMessages));
    assert!(of_turns(Route::Status) <= 2, "{}", of_turns(Route::Status));
}

//! Ending turns from outside: abort, loss of interest, shutdown.

use futures_util::future::join_all;
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Delivery, PromptError, PromptInput, SessionError,
    SessionId,
    test_util::{FakeOpenCode, Fault, Flavour, Moment, ProviderError, Route, Script, Step},
};

use super::support::{
    secrets::{self, PASSWORD},
    sink::Sink,
    soon,
    stage::{
        Stage, WORKTREE, bash, client, create, feed, gated_text, gated_tool, ms, quick, task, texts, waits,
        with,
    },
};

#[tokio::test]
async fn an_abort_ends_the_turn_wherever_it_is() {
    let retrying = with(ProviderError::default(), |it| {
        it.status = 429;
        it.headers = [("retry-after".to_owned(), "3600".to_owned())].into();
    });
    let cases = [
        ("text", gated_text("gate", "one two three four")),
        ("tool", Script::new([Step::tool(gated_tool("gate")), Step::text("never")])),
        ("later tool", Script::new([bash("ls", "x\n"), Step::tool(gated_tool("gate"))])),
        ("child", Script::new([Step::tool(task(&gated_text("gate", "one two three")))])),
        ("silence", Script::new([Step::default().gate_before("gate")])),
        ("retry", Script::new([with(Step::default(), |it| it.error = Some(retrying))])),
    ];
    join_all(cases.map(|(case, script)| async move {
        let stage = Stage::of(quick().time_scale(1.0)).await;
        let running = stage.start(&script);
        if case == "retry" {
            let retrying = |event: &opencode_conductor::test_util::RecordedEvent| {
                event.properties["status"]["type"] == "retry"
            };
            soon(stage.fake.wait_for(|log| log.events.iter().any(retrying))).await;
        } else {
            soon(stage.fake.wait_at("gate")).await;
        }
        let report = soon(stage.manager.abort(&stage.session)).await.unwrap();
        assert!(report.confirmed, "{case}");
        assert!(report.sessions.contains(&stage.session), "{case}");
        assert_eq!(report.sessions.len(), if case == "child" { 2 } else { 1 }, "{case}");
        let result = soon(running).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Aborted, "{case}");
        assert_eq!(result.abort, Some(report), "{case}");
        assert!(!result.completion.is_retryable());
        assert!(stage.is_idle().await, "{case}");
        stage.check(case, &result);
        stage.check_conversation(case, &result.conversation);
        let next = stage.ask(&texts("next")).await.unwrap();
        assert_eq!(next.completion, Completion::Settled, "{case}");
        stage.check(case, &next);
        stage.check_conversation(case, &next.conversation);
    }))
    .await;
}

/// The server forgets which session a cancelled call had started, and the client that watched it does not.
#[tokio::test]
async fn an_aborted_subagent_shows_as_after_a_load_also_where_its_call_does_not_name_it() {
    let stage = Stage::of(quick().flavour(Flavour::V1_17)).await;
    let children = ["one", "two"].map(|gate| task(&gated_text(gate, &format!("from {gate} and more"))));
    let running = stage.start(&Script::new([with(Step::default(), |it| it.tools = children.to_vec())]));
    soon(stage.fake.wait_at("one")).await;
    soon(stage.fake.wait_at("two")).await;
    assert!(soon(stage.manager.abort(&stage.session)).await.unwrap().confirmed);
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    let listed = stage.fake.messages(stage.session.as_str());
    let parts = listed.iter().flat_map(|message| message["parts"].as_array().unwrap());
    let calls: Vec<_> = parts.filter(|part| part["tool"] == "task").collect();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call["state"]["metadata"].is_null()), "{calls:#?}");
    stage.check_conversation("after the abort", &result.conversation);
    let agents: Vec<_> = result.conversation.subagents().filter_map(|it| it.agent_id.clone()).collect();
    assert_eq!(agents.len(), 2);
}

#[tokio::test]
async fn an_abort_before_the_model_says_anything_is_an_error() {
    for (moment, expected) in
        [(Moment::BeforeStore, Delivery::Accepted), (Moment::BeforeRun, Delivery::Accepted)]
    {
        let stage = Stage::new().await;
        stage.fake.hold(moment, "gate");
        let running = stage.start(&texts("never"));
        soon(stage.fake.wait_at("gate")).await;
        soon(stage.manager.abort(&stage.session)).await.unwrap();
        let error = soon(running).await.unwrap_err();
        let PromptError::Aborted { delivery, .. } = &error else { panic!("{moment:?}: {error:?}") };
        assert_eq!(*delivery, expected, "{moment:?}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn prompts_behind_an_aborted_one_go_on() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "one two three"));
    let second = stage.start(&texts("second"));
    soon(stage.fake.wait_at("gate")).await;
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    assert_eq!(soon(first).await.unwrap().completion, Completion::Aborted);
    let second = soon(second).await.unwrap();
    assert_eq!(second.completion, Completion::Settled);
    assert_eq!(second.answer().as_deref(), Some("second"));
    stage.check("second", &second);
}

/// From the moment in which it is started a prompt can be aborted: it need not have got anywhere.
#[tokio::test]
async fn a_prompt_that_was_only_just_started_is_aborted_before_it_is_sent() {
    enum By {
        Handle,
        Manager,
        ManagerWithQueue,
    }
    for by in [By::Handle, By::Manager, By::ManagerWithQueue] {
        let stage = Stage::new().await;
        let running = stage.start(&texts("never"));
        assert!(stage.manager.is_running(&stage.session));
        let report = match by {
            By::Handle => soon(running.abort()).await,
            By::Manager => soon(stage.manager.abort(&stage.session)).await,
            By::ManagerWithQueue => soon(stage.manager.abort_all(&stage.session)).await,
        };
        assert!(report.unwrap().confirmed);
        let error = soon(running).await.unwrap_err();
        assert!(matches!(error, PromptError::Aborted { delivery: Delivery::NotSent, .. }), "{error:?}");
        assert_eq!(stage.requests(Route::PromptAsync), 0);
        assert_eq!(stage.ask(&texts("next")).await.unwrap().answer().as_deref(), Some("next"));
    }
}

#[tokio::test]
async fn a_prompt_that_waits_is_aborted_alone() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "one two three"));
    let second = stage.start(&texts("second"));
    let third = stage.start(&texts("third"));
    soon(stage.fake.wait_at("gate")).await;
    let report = soon(second.abort()).await.unwrap();
    assert_eq!((report.confirmed, report.sessions), (true, vec![]), "nothing of it ran");
    let error = soon(second).await.unwrap_err();
    assert!(matches!(error, PromptError::Aborted { delivery: Delivery::NotSent, .. }), "{error:?}");
    stage.fake.open_gate("gate");
    assert_eq!(soon(first).await.unwrap().completion, Completion::Settled);
    assert_eq!(soon(third).await.unwrap().answer().as_deref(), Some("third"));
    assert_eq!(stage.prompts_run().len(), 2);
}

#[tokio::test]
async fn a_prompt_that_is_over_aborts_no_other() {
    let stage = Stage::new().await;
    let mut first = stage.start(&texts("first"));
    let result = soon(&mut first).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let second = stage.start(&gated_text("gate", "one two"));
    soon(stage.fake.wait_at("gate")).await;
    assert_eq!(soon(first.abort()).await.unwrap().sessions, []);
    stage.fake.open_gate("gate");
    assert_eq!(soon(second).await.unwrap().completion, Completion::Settled);
    assert!(soon(first.abort()).await.unwrap().confirmed, "nothing runs");
}

#[tokio::test]
async fn an_abort_does_not_hit_the_next_prompt() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "one two three"));
    let second = stage.start(&gated_text("second", "four five six"));
    soon(stage.fake.wait_at("gate")).await;
    // Whatever the abort does besides ending the first turn is slow.
    stage.fake.inject(Route::Abort, Fault::HoldAnswerUntil("slow".to_owned())).after(1).always();
    let abort = stage.manager.abort(&stage.session);
    let others = async {
        let first = first.await.unwrap();
        stage.fake.wait_at("second").await;
        stage.fake.open_gate("slow");
        first
    };
    let (report, first) = soon(async { tokio::join!(abort, others) }).await;
    assert!(report.unwrap().confirmed);
    assert_eq!(first.completion, Completion::Aborted);
    stage.fake.open_gate("second");
    let second = soon(second).await.unwrap();
    assert_eq!(second.completion, Completion::Settled);
    assert_eq!(second.answer().as_deref(), Some("four five six"));
}

#[tokio::test]
async fn an_abort_of_what_nobody_waits_for_does_not_hit_the_next_prompt() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    drop(first);
    let until = async |running, waiting| {
        let line = || (stage.manager.statistics().running, stage.manager.statistics().waiting);
        while line() != (running, waiting) {
            tokio::task::yield_now().await;
        }
    };
    soon(until(0, 0)).await;
    stage.fake.inject(Route::Abort, Fault::HoldAnswerUntil("slow".to_owned()));
    let abort = stage.manager.abort(&stage.session);
    let mut second = None;
    let others = async {
        stage.fake.wait_at("slow").await;
        second = Some(stage.start(&gated_text("second", "four five six")));
        tokio::select! {
            () = stage.fake.wait_at("second") => {}
            () = until(0, 1) => {}
        }
        stage.fake.open_gate("slow");
    };
    let (report, ()) = soon(async { tokio::join!(abort, others) }).await;
    assert!(report.unwrap().confirmed);
    stage.fake.open_gate("second");
    assert_eq!(soon(second.unwrap()).await.unwrap().answer().as_deref(), Some("four five six"));
}

#[tokio::test]
async fn an_abort_of_an_idle_or_foreign_session_is_harmless() {
    let stage = Stage::new().await;
    assert!(stage.manager.abort(&stage.session).await.unwrap().confirmed);
    stage.ask(&texts("first")).await.unwrap();
    assert!(stage.manager.abort(&stage.session).await.unwrap().confirmed);
    let result = stage.ask(&texts("second")).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    stage.check("after an idle abort", &result);
    // Another manager's turn.
    let running = stage.start(&gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    let other = secrets::connect(&stage.fake.url());
    assert!(other.abort(&stage.session).await.unwrap().confirmed);
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
    let error = other.abort(&"ses_unknown".into()).await.unwrap_err();
    assert!(matches!(error, SessionError::Agent { .. }), "{error:?}");
}

#[tokio::test]
async fn two_aborts_at_once_are_as_good_as_one() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    let (one, two) = soon(async {
        tokio::join!(stage.manager.abort(&stage.session), stage.manager.abort(&stage.session))
    })
    .await;
    assert!(one.unwrap().confirmed && two.unwrap().confirmed);
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
}

#[tokio::test]
async fn losing_interest_leaves_the_run_alone() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three"));
    let queued = stage.start(&texts("second"));
    soon(stage.fake.wait_at("gate")).await;
    drop(running);
    assert_eq!(stage.requests(Route::Abort), 0);
    stage.fake.open_gate("gate");
    let queued = soon(queued).await.unwrap();
    assert_eq!(queued.answer().as_deref(), Some("second"), "the next one waits until it is over");
    stage.check("queued", &queued);
    let messages = stage.fake.messages(stage.session.as_str());
    assert_eq!(messages[1]["info"]["finish"], "stop", "the first ran to its end");
    assert_eq!(stage.requests(Route::Abort), 0);
}

#[tokio::test]
async fn losing_interest_may_abort() {
    let stage = Stage::new().await;
    let input = stage.input(&gated_text("gate", "one two three")).abort_on_drop();
    let running = stage.manager.prompt(input).start();
    let queued = stage.start(&texts("second"));
    soon(stage.fake.wait_at("gate")).await;
    drop(running);
    let queued = soon(queued).await.unwrap();
    assert_eq!(queued.completion, Completion::Settled);
    stage.check("queued", &queued);
    let messages = stage.fake.messages(stage.session.as_str());
    assert_eq!(messages[1]["info"]["error"]["name"], "MessageAbortedError");
    // One that waits in line has nothing to abort.
    let aborts = stage.requests(Route::Abort);
    let running = stage.start(&gated_text("third", "one two"));
    soon(stage.fake.wait_at("third")).await;
    drop(stage.manager.prompt(stage.input(&texts("never")).abort_on_drop()).start());
    let after = stage.start(&texts("fourth"));
    stage.fake.open_gate("third");
    assert_eq!(soon(running).await.unwrap().completion, Completion::Settled);
    assert_eq!(soon(after).await.unwrap().completion, Completion::Settled);
    assert_eq!(stage.requests(Route::Abort), aborts);
}

#[tokio::test]
async fn an_abort_for_lost_interest_does_not_hit_the_next_prompt() {
    let stage = Stage::new().await;
    let input = stage.input(&gated_text("gate", "one two three")).abort_on_drop();
    let running = stage.manager.prompt(input).start();
    let next = stage.start(&gated_text("second", "four five six"));
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.inject(Route::Abort, Fault::HoldAnswerUntil("slow".to_owned()));
    drop(running);
    soon(stage.fake.wait_at("slow")).await;
    // The session is idle by now; the abort has not been answered.
    let held = async {
        stage.fake.wait_at("second").await;
    };
    let is_sent = tokio::time::timeout(ms(1000), held).await.is_ok();
    stage.fake.open_gate("slow");
    if !is_sent {
        soon(stage.fake.wait_at("second")).await;
    }
    stage.fake.open_gate("second");
    let next = soon(next).await.unwrap();
    assert_eq!(next.completion, Completion::Settled);
    assert_eq!(next.answer().as_deref(), Some("four five six"));
}

#[tokio::test]
async fn shutdown_gives_up_all_waiting_and_leaves_the_runs_alone() {
    let stage = Stage::new().await;
    let other = create(&stage.manager, "other").await;
    let running = stage.start(&gated_text("gate", "one two three"));
    let queued = stage.start(&texts("never"));
    soon(stage.fake.wait_at("gate")).await;
    let waiting = {
        let (manager, session) = (stage.manager.clone(), stage.session.clone());
        async move { manager.wait_for_session_idle(&session, waits()).await }
    };
    let shutdown = stage.manager.shutdown();
    let (running, queued, waiting, ()) =
        Box::pin(soon(async { tokio::join!(running, queued, waiting, shutdown) })).await;
    let running = running.unwrap();
    assert_eq!(running.completion, Completion::GivenUp, "it had started");
    assert!(!running.completion.is_retryable(), "the agent goes on with it");
    assert_eq!(running.messages.opencode().len(), 1, "what there is of it is kept");
    for error in [queued.unwrap_err(), waiting.unwrap_err()] {
        assert!(matches!(error, PromptError::ShutDown { delivery: Delivery::NotSent, .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
    assert_eq!(stage.requests(Route::Abort), 0);
    soon(stage.fake.wait_for(|log| log.open_streams == 0)).await;
    let late = stage.manager.prompt(PromptInput::new(other, "late"));
    let error = soon(late.into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::ShutDown { delivery: Delivery::NotSent, .. }), "{error:?}");
    let request = CreateTaskSession::new("project", "late", "/project", WORKTREE);
    let error = soon(stage.manager.create_task_session(request)).await.unwrap_err();
    assert!(matches!(error, SessionError::ShutDown), "{error:?}");
    let error = soon(stage.manager.adopt_session("late", &stage.session)).await.unwrap_err();
    assert!(matches!(error, SessionError::ShutDown) && !error.is_retryable(), "{error:?}");
    soon(stage.manager.shutdown()).await;
    assert_eq!(stage.prompts_run().len(), 1);
    // Another manager finds the run as it is.
    let fresh = secrets::connect(&stage.fake.url());
    stage.fake.open_gate("gate");
    let next = soon(fresh.prompt(stage.input(&texts("next"))).into_future()).await.unwrap();
    assert_eq!(next.completion, Completion::Settled);
}

/// Tasks that share a server each have a manager, and end at different times.
#[tokio::test]
async fn shutdown_leaves_other_managers_of_the_same_client_alone() {
    let stage = Stage::new().await;
    let client = client(&stage.fake);
    let [one, other] = [(); 2].map(|()| ConversationManager::builder(client.clone()).build());
    let (session, others) = (create(&one, "one").await, create(&other, "two").await);
    let prompt = |session: &SessionId, script: Script| PromptInput::new(session.clone(), script.prompt("go"));
    let running = other.prompt(prompt(&others, gated_text("gate", "one two three"))).start();
    soon(one.prompt(prompt(&session, texts("done"))).into_future()).await.unwrap();
    soon(stage.fake.wait_at("gate")).await;
    soon(one.shutdown()).await;
    stage.fake.open_gate("gate");
    assert_eq!(soon(running).await.unwrap().completion, Completion::Settled);
    let next = soon(other.prompt(prompt(&others, texts("next"))).into_future()).await.unwrap();
    assert_eq!(next.answer().as_deref(), Some("next"));
    // And a new one can be made.
    let third = ConversationManager::builder(client).build();
    let result = soon(third.prompt(prompt(&session, texts("third"))).into_future()).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
}

#[tokio::test]
async fn secrets_and_prompts_are_in_no_log() {
    let sink = Sink::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(sink.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let client = secrets::client(&fake.url()).feed(feed()).build().unwrap();
    let manager = ConversationManager::builder(client).build();
    let session = create(&manager, "task").await;
    let stage = Stage { fake, manager, session };
    let mut said = Vec::new();
    let input =
        stage.input(&Script::new([bash("cat secret-file", "secret-output"), Step::text("secret-answer")]));
    said.push(format!("{:?} {:?}", stage.manager, input));
    stage.send(input).await.unwrap();
    stage.fake.inject(Route::PromptAsync, Fault::Status(400));
    let error = stage.ask(&texts("secret-prompt")).await.unwrap_err();
    said.push(format!("{error} {error:?}"));
    stage.fake.inject(Route::Event, Fault::Status(401)).always();
    stage.fake.cut_streams();
    // The prompt may have started before the stream was found to be refused.
    match stage.ask(&texts("secret-prompt")).await {
        Ok(result) => assert_eq!(result.completion, Completion::Unauthorized),
        Err(error) => said.push(format!("{error} {error:?}")),
    }
    said.push(sink.text());
    let logged = said.last().unwrap();
    assert!(logged.contains(stage.session.as_str()), "something is logged: {logged}");
    for text in said {
        for secret in [PASSWORD, "b3BlbmNvZGU6", "secret-", "do it"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    assert_eq!(WORKTREE, stage.manager.session_directory(&stage.session).unwrap().as_str());
}

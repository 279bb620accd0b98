//! Done means done, and every other end is called by its name.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use opencode_conductor::{
    AgentError, AgentErrorKind, Completion, ConversationManager, PromptError, PromptExecutionResult,
    PromptInput, TimeoutAction,
    test_util::{FakeOpenCode, Fault, Flavour, Moment, ProviderError, Route, Script, ScriptedTool, Step},
};
use serde_json::json;

use super::support::{
    secrets, soon,
    stage::{
        Stage, WORKTREE, asking_tool, bash, bash_tool, create, feed, gated_text, gated_tool, ms, quick, task,
        texts, waits, with,
    },
};

/// Thinking, two rounds of tools, a subagent, and an answer.
fn long_script() -> Script {
    let mut thoughtful = bash("ls", "notes.txt\n");
    thoughtful.reasoning = "let me look around".into();
    thoughtful.text = "I will look.".into();
    let both = with(Step::default(), |it| it.tools = vec![bash_tool("cat", "one\n"), task(&texts("a part"))]);
    let mut last = Step::text("All is well.");
    last.reasoning = "now I know".into();
    Script::new([thoughtful, both, last])
}

#[tokio::test]
async fn whatever_becomes_of_the_stream_the_result_is_the_same() {
    let counts = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55];
    let faults = (counts.into_iter())
        .flat_map(|n| [Fault::CutAfterEvents(n), Fault::EndAfterEvents(n), Fault::SilenceAfterEvents(n)])
        .chain([10, 500, 3000, 9000].map(Fault::CutAfterBytes))
        .chain([Fault::DuplicateEvents, Fault::ReorderEvents, Fault::Html, Fault::Status(503), Fault::Hang]);
    join_all(faults.map(|fault| async move {
        let case = format!("{fault:?}");
        let fake = FakeOpenCode::start_with(quick().heartbeat(ms(100))).await.unwrap();
        let feed = feed().silence(ms(1000)).ready_timeout(ms(1000));
        let client = secrets::client(&fake.url()).answer_timeout(ms(2000)).feed(feed).build().unwrap();
        let manager = ConversationManager::builder(client).build();
        let session = create(&manager, "task").await;
        let stage = Stage { fake, manager, session };
        let repeated = matches!(fault, Fault::DuplicateEvents | Fault::ReorderEvents);
        stage.fake.inject(Route::Event, fault).times(if repeated { 100 } else { 1 });
        let result = stage.ask(&long_script()).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{case}");
        assert_eq!(result.answer().as_deref(), Some("All is well."), "{case}");
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
    }))
    .await;
}

#[tokio::test]
async fn a_stream_that_never_opens_is_replaced_by_polling() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Status(503)).always();
    for script in [long_script(), texts("again")] {
        let result = stage.ask(&script).await.unwrap();
        assert_eq!(result.completion, Completion::Settled);
        stage.check("polled", &result);
        stage.check_conversation("polled", &result.conversation);
    }
}

/// How a turn may end on the server, as its caller is told.
struct End {
    name: &'static str,
    script: Script,
    expected: fn(&PromptExecutionResult) -> bool,
    answer: Option<&'static str>,
}

fn ends() -> Vec<End> {
    let settled = |result: &PromptExecutionResult| result.completion == Completion::Settled;
    let failed = |result: &PromptExecutionResult| matches!(&result.completion, Completion::Failed(_));
    let step = |change: &dyn Fn(&mut Step)| {
        let mut step = Step::text("some words");
        change(&mut step);
        step
    };
    let error = |status, times, retryable: bool| {
        with(ProviderError::default(), |it| {
            it.status = status;
            it.times = times;
            it.headers =
                if retryable { [("retry-after-ms".to_owned(), "1".to_owned())].into() } else { [].into() };
        })
    };
    let unknown_tool = Step::tool(ScriptedTool::new("teleport", json!({"to": "mars"})));
    let broken_tool = Step::tool(ScriptedTool::new("bash", json!("{broken")));
    let failing = bash_tool("false", "").fails("exit 1");
    let mut twice = bash("echo 1", "1\n");
    twice.tools[0].id = Some("call_same".to_owned());
    let done = || Step::text("done");
    let end = |name, script, expected: fn(&PromptExecutionResult) -> bool, answer| End {
        name,
        script,
        expected,
        answer,
    };
    vec![
        end("stop", texts("done"), settled, Some("done")),
        end(
            "length",
            Script::new([step(&|s| s.finish = Some("length".into()))]),
            settled,
            Some("some words"),
        ),
        end("empty answer", Script::new([Step::default()]), settled, None),
        end("blank answer", Script::new([Step::text(" \n ")]), settled, None),
        end("tool error", Script::new([Step::tool(failing), done()]), settled, Some("done")),
        end("unknown tool", Script::new([unknown_tool, done()]), settled, Some("done")),
        end("broken arguments", Script::new([broken_tool, done()]), settled, Some("done")),
        end("dropped stream", Script::new([step(&|s| s.drop = true), done()]), settled, Some("done")),
        end("same call id", Script::new([twice.clone(), twice, done()]), settled, Some("done")),
        end(
            "stop with tools",
            Script::new([with(bash("ls", "x\n"), |it| it.finish = Some("stop".into())), done()]),
            settled,
            Some("done"),
        ),
        end(
            "429, then fine",
            Script::new([step(&|s| s.error = Some(error(429, 2, true)))]),
            settled,
            Some("some words"),
        ),
        end(
            "error chunk, then fine",
            Script::new([step(&|s| {
                s.error = Some(with(error(200, 2, true), |it| {
                    it.body = Some(json!({"error": {"message": "overloaded"}}));
                }));
            })]),
            settled,
            Some("some words"),
        ),
        end("400", Script::new([Step::error(400)]), failed, None),
        end("401 after a tool", Script::new([bash("ls", "x\n"), Step::error(401)]), failed, None),
        end("500 for ever", Script::new([step(&|s| s.error = Some(error(500, 0, true)))]), failed, None),
        end(
            "error chunk",
            Script::new([step(&|s| {
                s.error = Some(with(error(200, 0, false), |it| {
                    it.body = Some(json!({"error": {"message": "no"}}));
                }));
            })]),
            failed,
            Some("some words"),
        ),
        end(
            "content filter",
            Script::new([step(&|s| s.finish = Some("content_filter".into()))]),
            failed,
            Some("some words"),
        ),
        end("subagent", Script::new([Step::tool(task(&long_script())), done()]), settled, Some("done")),
        end(
            "failing subagent",
            Script::new([Step::tool(task(&Script::new([Step::error(400)]))), done()]),
            settled,
            Some("done"),
        ),
        end(
            "parallel subagents",
            Script::new([
                with(Step::default(), |it| {
                    it.tools = vec![task(&texts("a")), task(&texts("b")), bash_tool("ls", "x\n")];
                }),
                done(),
            ]),
            settled,
            Some("done"),
        ),
        end(
            "rejected permission",
            Script::new([Step::tool(asking_tool("rm x")), done()]),
            settled,
            Some("done"),
        ),
    ]
}

#[tokio::test]
async fn every_end_is_called_by_its_name_on_every_release() {
    let flavours = [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1];
    let cases = flavours.into_iter().flat_map(|flavour| ends().into_iter().map(move |end| (flavour, end)));
    // 1.1 does not ask again after an error inside a stream.
    let cases =
        cases.filter(|(flavour, end)| *flavour != Flavour::V1_1 || end.name != "error chunk, then fine");
    join_all(cases.map(|(flavour, end)| async move {
        let case = format!("{} on {flavour:?}", end.name);
        let stage = Stage::of(quick().flavour(flavour)).await;
        let result = stage.ask(&end.script).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert!((end.expected)(&result), "{case}: {:?}", result.completion);
        assert_eq!(result.answer().as_deref(), end.answer, "{case}");
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
        // A follow-up at once, on top of whatever that was.
        let next = stage.ask(&texts("next")).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(next.completion, Completion::Settled, "{case}: follow-up");
        assert_eq!(next.answer().as_deref(), Some("next"), "{case}: follow-up");
        stage.check(&case, &next);
        stage.check_conversation(&case, &next.conversation);
    }))
    .await;
}

#[tokio::test]
async fn a_failed_turn_is_no_success_and_keeps_its_error() {
    let stage = Stage::new().await;
    let failed = stage.ask(&Script::new([bash("ls", "x\n"), Step::error(401)])).await.unwrap();
    assert!(!failed.completion.is_retryable());
    let failed = failed.settled().unwrap_err();
    assert!(failed.to_string().contains("scripted error 401"), "{failed}");
    let Completion::Failed(error) = &failed.result.completion else { panic!("{failed:?}") };
    assert_eq!(error.status_code(), Some(401));
    assert_eq!(failed.result.messages.opencode().len(), 2, "what there is of it is kept");
    let retryable = with(ProviderError::default(), |it| it.status = 503);
    let retryable = Script::new([with(Step::default(), |it| it.error = Some(retryable))]);
    assert!(stage.ask(&retryable).await.unwrap().completion.is_retryable());
}

#[tokio::test]
async fn a_prompt_right_after_an_error_is_answered_once() {
    // With patience the second prompt waits until the first turn has really ended.
    let stage = Stage::new().await;
    stage.fake.hold(Moment::Cleanup, "cleanup");
    let (first, second) = (stage.start(&Script::new([Step::error(400)])), stage.start(&texts("second")));
    soon(stage.fake.wait_at("cleanup")).await;
    stage.fake.release(Moment::Cleanup);
    stage.fake.open_gate("cleanup");
    let (first, second) = soon(async { tokio::join!(first, second) }).await;
    assert!(matches!(first.unwrap().completion, Completion::Failed(_)));
    let second = second.unwrap();
    assert_eq!(second.answer().as_deref(), Some("second"));
    stage.check("patient", &second);

    // Without, it is sent while the server still cleans up, and would be lost.
    let stage = Stage::new().await;
    stage.fake.hold(Moment::Cleanup, "cleanup");
    let impatient = waits().idle_timeout(ms(1000)).on_limit(TimeoutAction::Leave);
    let input = |script: &Script| stage.input(script).wait(impatient.clone());
    let first = stage.manager.prompt(input(&Script::new([Step::error(400)]))).start();
    let second = stage.manager.prompt(input(&texts("second"))).start();
    soon(stage.fake.wait_for(|log| log.count(Route::PromptAsync) >= 2)).await;
    stage.fake.release(Moment::Cleanup);
    stage.fake.open_gate("cleanup");
    let (first, second) = soon(async { tokio::join!(first, second) }).await;
    assert!(!first.unwrap().completion.is_settled());
    let second = second.unwrap();
    assert_eq!(second.completion, Completion::Settled);
    assert_eq!(second.answer().as_deref(), Some("second"));
    stage.check("impatient", &second);
    stage.check_conversation("impatient", &second.conversation);
}

#[tokio::test]
async fn a_stale_word_of_the_server_ends_nothing() {
    let idle = |session: &str| ("session.idle", json!({"sessionID": session}));
    let status =
        |session: &str| ("session.status", json!({"sessionID": session, "status": {"type": "idle"}}));
    let error = |session: &str| {
        let error = json!({"name": "UnknownError", "data": {"message": "stale"}});
        ("session.error", json!({"sessionID": session, "error": error}))
    };
    let cases = [
        vec![idle("")],
        vec![status("")],
        vec![error("")],
        vec![status(""), idle(""), status(""), idle("")],
        vec![error(""), status(""), idle(""), error("")],
    ];
    for words in cases {
        let stage = Stage::new().await;
        let say = || {
            for (kind, properties) in &words {
                let mut properties = properties.clone();
                properties["sessionID"] = stage.session.as_str().into();
                stage.fake.send_event(WORKTREE, kind, properties);
            }
        };
        // Before the run, in the middle of the text, and in the middle of a tool.
        stage.fake.hold(Moment::BeforeRun, "run");
        let mut first = Step::tool(gated_tool("tool"));
        first.text = "one two three four".into();
        first.gate_middle = Some("text".to_owned());
        let running = stage.start(&Script::new([first, Step::text("done")]));
        soon(stage.fake.wait_at("run")).await;
        say();
        stage.fake.release(Moment::BeforeRun);
        stage.fake.open_gate("run");
        for gate in ["text", "tool"] {
            soon(stage.fake.wait_at(gate)).await;
            say();
            stage.fake.open_gate(gate);
        }
        let result = soon(running).await.unwrap();
        assert_eq!(result.completion, Completion::Settled, "{words:?}");
        assert_eq!(result.answer().as_deref(), Some("done"), "{words:?}");
        stage.check(&format!("{words:?}"), &result);
        stage.check_conversation(&format!("{words:?}"), &result.conversation);
    }
}

#[tokio::test]
async fn the_tail_of_a_turn_belongs_to_nobody() {
    let stage = Stage::new().await;
    stage.fake.hold(Moment::Tail, "tail");
    let first = stage.ask(&texts("first")).await.unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = std::sync::Arc::clone(&seen);
    let input = stage
        .input(&gated_text("middle", "second answer"))
        .on_message(move |message| log.lock().unwrap().push(message.info.id().to_string()));
    let second = stage.manager.prompt(input).start();
    soon(stage.fake.wait_at("middle")).await;
    stage.fake.release(Moment::Tail);
    stage.fake.open_gate("tail");
    let is_tail = |event: &&opencode_conductor::test_util::RecordedEvent| event.kind == "session.diff";
    soon(stage.fake.wait_for(|log| log.events.iter().filter(is_tail).count() >= 2)).await;
    stage.fake.open_gate("middle");
    let second = soon(second).await.unwrap();
    assert_eq!(second.answer().as_deref(), Some("second answer"));
    assert_eq!(second.messages.opencode().len(), 1);
    let of_first: Vec<String> =
        first.messages.opencode().iter().map(|message| message.info.id().to_string()).collect();
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&second.messages.opencode()[0].info.id().to_string()));
    assert!(!seen.contains(&first.submission.message_id.to_string()), "the first turn is not of the second");
    assert!(!seen.iter().any(|id| of_first.contains(id)));
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_leaves_an_interrupted_turn_and_a_usable_session() {
    let cases = [
        ("text", gated_text("gate", "one two three four")),
        ("tool", Script::new([Step::tool(gated_tool("gate")), Step::text("done")])),
        (
            "subagent",
            Script::new([Step::tool(task(&gated_text("gate", "one two three"))), Step::text("done")]),
        ),
        ("second step", Script::new([bash("ls", "x\n"), Step::tool(gated_tool("gate"))])),
    ];
    join_all(cases.map(|(case, script)| async move {
        let stage = Stage::new().await;
        let running = stage.manager.prompt(stage.input(&script).wait(waits())).start();
        soon(stage.fake.wait_at("gate")).await;
        stage.fake.restart().await.unwrap();
        let result = soon(running).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Interrupted, "{case}");
        assert!(result.completion.is_retryable());
        assert!(!result.messages.opencode().is_empty(), "{case}");
        stage.check(case, &result);
        stage.check_conversation(case, &result.conversation);
        let next = stage.ask(&texts("go on")).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(next.completion, Completion::Settled, "{case}");
        assert_eq!(next.answer().as_deref(), Some("go on"), "{case}");
        stage.check(case, &next);
        // What the dead turn left running does not count as running.
        let stuck = gated_text("never", "one two three");
        let stuck = stage.input(&stuck).wait(waits().idle_timeout(ms(300)));
        let stuck = stage.send(stuck).await.unwrap();
        assert!(
            matches!(stuck.completion, Completion::TimedOut { limit: opencode_conductor::Limit::Idle, .. }),
            "{case}: {:?}",
            stuck.completion
        );
    }))
    .await;
}

#[tokio::test]
async fn a_change_of_configuration_aborts_the_turn() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three four"));
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.dispose(WORKTREE).await;
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    stage.check("disposed", &result);
    stage.check_conversation("disposed", &result.conversation);
    let next = stage.ask(&texts("next")).await.unwrap();
    assert_eq!(next.completion, Completion::Settled);
}

#[tokio::test]
async fn a_session_that_is_deleted_meanwhile_is_gone() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two"));
    let queued = stage.start(&texts("never"));
    soon(stage.fake.wait_at("gate")).await;
    stage.manager.delete(&stage.session).await.unwrap();
    let running = soon(running).await.unwrap();
    assert_eq!(running.completion, Completion::SessionGone);
    assert!(!running.completion.is_retryable());
    assert_eq!(running.messages.opencode().len(), 1, "what there is of it is kept");
    let error = soon(queued).await.unwrap_err();
    assert!(matches!(error, PromptError::SessionGone { .. }), "{error:?}");
    assert!(!error.is_retryable());
    assert_eq!(stage.manager.session(&stage.session), None);
}

#[tokio::test]
async fn credentials_that_are_refused_meanwhile_end_the_waiting_and_keep_what_there_is() {
    let stage = Stage::new().await;
    let script = Script::new([bash("ls", "x\n"), Step::tool(gated_tool("gate"))]);
    let running = stage.start(&script);
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.inject(Route::Event, Fault::Status(401)).always();
    stage.fake.cut_streams();
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Unauthorized);
    assert!(!result.completion.is_retryable());
    assert_eq!(result.messages.opencode().len(), 2, "what there is of it is kept");
    assert!(result.usage.tokens.output > 0);
    let cause = result.cause.as_deref().map(AgentError::kind);
    assert_eq!(cause, Some(AgentErrorKind::Unauthorized));
    stage.fake.open_gate("gate");
}

#[tokio::test]
async fn a_background_subagent_is_part_of_the_turn() {
    let stage = Stage::of(quick().background_subagents()).await;
    let mut background = task(&gated_text("gate", "found it all"));
    background.args["background"] = true.into();
    let script = Script::new([Step::tool(background), Step::text("It works in the background.")]);
    let running = stage.manager.prompt(stage.input(&script).wait(waits())).start();
    soon(stage.fake.wait_at("gate")).await;
    soon(stage.fake.wait_for(|log| log.events_of(stage.session.as_str(), "session.idle") >= 1)).await;
    stage.fake.open_gate("gate");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let n_steps =
        result.messages.opencode().iter().filter(|message| message.info.as_assistant().is_some()).count();
    assert!(n_steps >= 3, "the result of the subagent was taken in: {n_steps} steps");
    stage.check_conversation("background", &result.conversation);
}

#[tokio::test]
async fn a_turn_that_is_compacted_ends_where_its_answer_is() {
    let full = json!({"prompt_tokens": 95_000, "completion_tokens": 5, "total_tokens": 95_005});
    let cases = [
        (
            "after the answer",
            vec![with(Step::text("the answer"), |it| it.usage = Some(full.clone()))],
            "the answer",
        ),
        (
            "between steps",
            vec![with(bash("ls", "x\n"), |it| it.usage = Some(full)), Step::text("the answer")],
            // The script does not survive the summary.
            "Hello from the scripted model.",
        ),
    ];
    for (case, steps, answer) in cases {
        for with_history in [false, true] {
            let case = format!("{case}, history {with_history}");
            let stage = Stage::new().await;
            if with_history {
                stage.ask(&texts("before")).await.unwrap();
            }
            let result = stage
                .ask(&Script::new(steps.clone()))
                .await
                .unwrap_or_else(|error| panic!("{case}: {error:?}"));
            assert_eq!(result.completion, Completion::Settled, "{case}");
            assert_eq!(result.answer().as_deref(), Some(answer), "{case}: {:#?}", result.messages.opencode());
            stage.check_conversation(&case, &result.conversation);
            let next = stage.ask(&texts("next")).await.unwrap();
            assert_eq!(next.answer().as_deref(), Some("next"), "{case}");
        }
    }
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_answered_after_the_compaction() {
    for with_history in [false, true] {
        let stage = Stage::new().await;
        if with_history {
            stage.ask(&texts("before")).await.unwrap();
        }
        // With a history the server asks again under an id of its own; without one it asks to continue.
        let overflow = json!({"error": {"message": "prompt is too long: maximum context length"}});
        let overflow = with(ProviderError::default(), |it| {
            it.status = 400;
            it.body = Some(overflow);
        });
        let failing = Script::new([with(Step::default(), |it| it.error = Some(overflow))]);
        let asked = AtomicUsize::new(0);
        stage.fake.on_prompt(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => failing.clone(),
            _ => texts("the answer"),
        });
        let prompt = PromptInput::new(stage.session.clone(), "a long story");
        let result = stage.send(prompt).await.unwrap();
        assert_eq!(result.completion, Completion::Settled, "history {with_history}");
        let answer = if with_history { "the answer" } else { "Hello from the scripted model." };
        assert_eq!(result.answer().as_deref(), Some(answer), "history {with_history}");
        assert!(
            result.messages.opencode().iter().filter(|message| message.info.as_assistant().is_some()).count()
                >= 3
        );
        stage.check_conversation("overflow", &result.conversation);
    }
}

#[tokio::test]
async fn a_compaction_that_fails_fails_what_it_was_for() {
    let full = json!({"prompt_tokens": 95_000, "completion_tokens": 5, "total_tokens": 95_005});
    let overflow = json!({"error": {"message": "prompt is too long: maximum context length"}});
    let overflow = with(ProviderError::default(), |it| {
        it.status = 400;
        it.times = 1;
        it.body = Some(overflow);
    });
    let cases = [
        ("after the answer", vec![with(Step::text("the answer"), |it| it.usage = Some(full.clone()))], true),
        (
            "between steps",
            vec![with(bash("ls", "x\n"), |it| it.usage = Some(full)), Step::text("never")],
            false,
        ),
        ("by the provider", vec![with(Step::text("never"), |it| it.error = Some(overflow))], false),
    ];
    for (case, steps, is_answered) in cases {
        let stage = Stage::new().await;
        stage.fake.set_compaction(Step::error(400));
        let result = stage.ask(&Script::new(steps)).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        match &result.completion {
            Completion::Settled => assert!(is_answered, "{case}"),
            Completion::Failed(error) => {
                assert!(!is_answered, "{case}");
                assert!(error.message.contains("scripted error 400"), "{case}: {error:?}");
            }
            other => panic!("{case}: {other:?}"),
        }
        stage.check_conversation(case, &result.conversation);
    }
}

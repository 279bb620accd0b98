//! What a prompt brings back, and what its caller sees meanwhile.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::StreamExt;
use opencode_conductor::{
    AbortReport, Allowed, AttachmentError, ChangeKind, Completion, ConversationManager, Failure, IdleOutcome,
    JsonAnswerError, Limit, PromptError, PromptExecutionResult, PromptInput, SessionConversationState,
    SessionError, TokenUsage, Update, WaitOptions, WhenBusy, message_signature,
    test_util::{Fault, Flavour, ProviderError, Route, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

use super::support::{
    secrets, soon,
    stage::{Stage, WORKTREE, bash, bash_tool, gated_text, gated_tool, ms, quick, task, texts, waits, with},
};

fn with_usage(mut step: Step, input: u64, output: u64) -> Step {
    step.usage =
        Some(json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}));
    step
}

#[tokio::test]
async fn usage_counts_every_step_of_the_tree_once() {
    let stage = Stage::of(quick().subagent_depth(2).agent("boss")).await;
    stage.ask(&Script::new([with_usage(Step::text("before"), 1000, 1000)])).await.unwrap();
    let leaf = Script::new([with_usage(Step::text("leaf"), 1, 2)]);
    let mut nested = task(&leaf);
    nested.args["subagent_type"] = "general".into();
    let middle =
        Script::new([with_usage(Step::tool(nested), 10, 20), with_usage(Step::text("middle"), 30, 40)]);
    let mut outer = task(&middle);
    outer.args["subagent_type"] = "boss".into();
    let plain = task(&Script::new([with_usage(Step::text("other"), 5, 6)]));
    let script = Script::new([
        with_usage(
            with(Step::default(), |it| it.tools = vec![outer, plain, bash_tool("ls", "x\n")]),
            100,
            200,
        ),
        with_usage(Step::text("done"), 300, 400),
    ]);
    let result = stage.ask(&script).await.unwrap();
    stage.check_conversation("usage", &result.conversation);
    let sum = |usages: &[TokenUsage]| {
        usages.iter().map(|usage| (usage.input, usage.output)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    assert_eq!(sum(&[result.usage.tokens]), (446, 668));
    let own = result.usage_by_session[&stage.session].tokens;
    assert_eq!((own.input, own.output), (400, 600));
    assert_eq!(result.usage_by_session.len(), 4);
    let all: Vec<TokenUsage> = result.usage_by_session.values().map(|usage| usage.tokens).collect();
    assert_eq!(sum(&all), (446, 668));
    // A subagent that is resumed is counted for the turn that resumed it, and only what it did then.
    let child = stage
        .fake
        .sessions()
        .into_iter()
        .rfind(|session| session["parentID"] == stage.session.as_str())
        .unwrap();
    let mut resumed = task(&Script::new([with_usage(Step::text("again"), 7, 8)]));
    resumed.args["task_id"] = child["id"].clone();
    let script = Script::new([with_usage(Step::tool(resumed), 1, 1), with_usage(Step::text("done"), 1, 1)]);
    let result = stage.ask(&script).await.unwrap();
    assert_eq!(sum(&[result.usage.tokens]), (9, 10));
    stage.check_conversation("resumed", &result.conversation);
}

#[tokio::test]
async fn changes_are_seen_as_they_happen_and_messages_are_reported_once() {
    for flavour in [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1] {
        let stage = Stage::of(quick().flavour(flavour)).await;
        stage.ask(&texts("before")).await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let script = Script::new([bash("ls", "x\n"), Step::text("one two three four")]);
        let input =
            stage.input(&script).on_message(move |message| log.lock().unwrap().push(Arc::clone(message)));
        let result = stage.send(input).await.unwrap();
        stage.check("reported", &result);
        assert_eq!(result.messages.opencode().len(), 2);
        let seen = seen.lock().unwrap();
        for message in result.messages.opencode() {
            let of_message: Vec<_> = seen.iter().filter(|seen| seen.info.id() == message.info.id()).collect();
            assert!(!of_message.is_empty(), "{flavour:?}: every message is seen");
            let last = of_message.last().unwrap();
            assert_eq!(message_signature(last), message_signature(message), "{flavour:?}: as it was last");
            // Every call brings something new.
            let repeated =
                of_message.windows(2).any(|pair| message_signature(pair[0]) == message_signature(pair[1]));
            assert!(!repeated, "{flavour:?}: nothing is told twice");
            if flavour == Flavour::V1_18 {
                assert!(of_message.len() > 1, "{flavour:?}: while it happens");
            }
        }
        let turn: Vec<&str> = std::iter::once(&result.submission.message_id)
            .chain(result.messages.opencode().iter().map(|message| message.info.id()))
            .map(opencode_conductor::MessageId::as_str)
            .collect();
        let strangers: Vec<_> =
            seen.iter().filter(|message| !turn.contains(&message.info.id().as_str())).collect();
        assert!(strangers.is_empty(), "{flavour:?}: only messages of the turn: {strangers:#?}");
    }
}

#[tokio::test]
async fn updates_fold_to_the_conversation() {
    let stage = Stage::new().await;
    let script = Script::new([
        with(bash("ls", "x\n"), |it| it.reasoning = "hm, let me see".to_owned()),
        Step::tool(task(&texts("a part"))),
        Step::text("one two three"),
    ]);
    let mut running = stage.start(&script);
    let updates = running.updates().unwrap();
    assert!(running.updates().is_none(), "they can be taken once");
    let (updates, result) = soon(async { tokio::join!(updates.collect::<Vec<_>>(), running) }).await;
    let result = result.unwrap();
    assert_eq!(folded(&updates), result.conversation);
    assert_eq!(Some(folded(&updates)), stage.manager.conversation(&stage.session));
    assert!(matches!(&updates[0], Update::Submitted(id) if *id == result.submission.message_id));
    assert!(updates.iter().any(|update| matches!(update, Update::Status(status) if !status.is_idle())));
    assert!(!updates.iter().any(|update| matches!(update, Update::Missed(_) | Update::StreamLost)));
}

/// What a reader makes of updates.
fn folded(updates: &[Update]) -> SessionConversationState {
    let mut state = SessionConversationState::default();
    for update in updates {
        match update {
            Update::Conversation(event) => state.apply(event),
            Update::Missed(conversation) => state = (**conversation).clone(),
            _ => {}
        }
    }
    state
}

fn is_missed(update: &Update) -> bool {
    matches!(update, Update::Missed(_))
}

#[tokio::test]
async fn a_reader_that_sleeps_through_the_turn_is_told_how_it_stands() {
    let stage = Stage::new().await;
    let mut long = Step::text("");
    long.words = 3000;
    let mut running = stage.start(&Script::new([long]));
    let updates = running.updates().unwrap();
    let result = soon(running).await.unwrap();
    let updates: Vec<_> = soon(updates.collect()).await;
    assert!(updates.len() <= 1025, "{}", updates.len());
    assert!(updates.last().is_some_and(is_missed), "{:?}", updates.last());
    assert_eq!(folded(&updates), result.conversation);
}

/// The session goes on after the turn, so that nothing but the missed state can tell a watcher how the turn ended.
#[tokio::test]
async fn a_watcher_that_sleeps_through_the_turn_is_told_how_it_stands() {
    let stage = Stage::new().await;
    let (mut seen, mut updates) = stage.manager.watch(&stage.session).unwrap();
    let long = with(Step::text(""), |it| it.words = 3000);
    let result = stage.ask(&Script::new([long])).await.unwrap();
    while seen != result.conversation {
        match soon(updates.next()).await.unwrap() {
            Update::Conversation(event) => seen.apply(&event),
            Update::Missed(now) => seen = *now,
            _ => {}
        }
    }
    let next = stage.ask(&texts("again")).await.unwrap();
    while seen != next.conversation {
        let update = soon(updates.next()).await.unwrap();
        assert!(!is_missed(&update), "it has caught up");
        if let Update::Conversation(event) = update {
            seen.apply(&event);
        }
    }
}

#[tokio::test]
async fn a_reader_that_wakes_up_in_the_middle_goes_on_from_there() {
    let stage = Stage::new().await;
    let long = with(Step::tool(gated_tool("awake")), |it| it.words = 3000);
    let script = Script::new([long, Step::text("one two three")]);
    let mut running = stage.start(&script);
    let mut updates = running.updates().unwrap();
    soon(stage.fake.wait_at("awake")).await;
    let mut seen = Vec::new();
    let reading = async {
        while let Some(update) = updates.next().await {
            if is_missed(&update) {
                stage.fake.open_gate("awake");
            }
            seen.push(update);
        }
    };
    let (result, ()) = soon(async { tokio::join!(running, reading) }).await;
    let gap = seen.iter().position(is_missed).unwrap();
    let after = seen[gap..].iter().filter(|update| matches!(update, Update::Conversation(_))).count();
    assert!(after > 3, "the last step comes as it is said, {after}");
    assert_eq!(folded(&seen), result.unwrap().conversation);
}

#[tokio::test]
async fn losses_of_the_stream_are_told() {
    let stage = Stage::new().await;
    let mut running = stage.start(&gated_text("gate", "one two three"));
    let updates = running.updates().unwrap();
    soon(stage.fake.wait_at("gate")).await;
    let before = stage.requests(Route::Event);
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|log| log.count(Route::Event) > before && log.count(Route::ListQuestions) > 0))
        .await;
    stage.fake.open_gate("gate");
    let (updates, result) = soon(async { tokio::join!(updates.collect::<Vec<_>>(), running) }).await;
    assert_eq!(result.unwrap().completion, Completion::Settled);
    let told: Vec<&Update> = updates
        .iter()
        .filter(|update| matches!(update, Update::StreamLost | Update::StreamRestored))
        .collect();
    assert_eq!(told, [&Update::StreamLost, &Update::StreamRestored]);
    // Also when it was not there from the start.
    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Status(503)).times(1);
    let mut running = stage.start(&gated_text("gate", "one two three"));
    let updates = running.updates().unwrap();
    soon(stage.fake.wait_for(|log| log.count(Route::Event) == 2 && log.open_streams == 1)).await;
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.open_gate("gate");
    let (updates, result) = soon(async { tokio::join!(updates.collect::<Vec<_>>(), running) }).await;
    assert_eq!(result.unwrap().completion, Completion::Settled);
    let told: Vec<&Update> = updates
        .iter()
        .filter(|update| matches!(update, Update::StreamLost | Update::StreamRestored))
        .collect();
    assert_eq!(told, [&Update::StreamLost, &Update::StreamRestored]);
}

fn stored_parts(stage: &Stage) -> Vec<Value> {
    stage.fake.messages(stage.session.as_str())[0]["parts"].as_array().unwrap().clone()
}

#[tokio::test]
async fn attachments_are_read_before_anything_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    std::fs::write(&path, "hello").unwrap();
    let stage = Stage::new().await;
    let input = stage
        .input(&texts("seen"))
        .file(&path, "text/plain")
        .bytes("dot.png", "image/png", vec![0_u8, 255])
        .mention("general")
        .system("be brief")
        .variant("high");
    stage.send(input).await.unwrap();
    let parts = stored_parts(&stage);
    assert_eq!(parts.len(), 4);
    assert_eq!(parts[1]["filename"], "notes.txt");
    assert_eq!(parts[1]["url"], "data:text/plain;base64,aGVsbG8=");
    assert_eq!(parts[2]["mime"], "image/png");
    assert_eq!(parts[2]["url"], "data:image/png;base64,AP8=");
    assert_eq!((parts[3]["type"].as_str(), parts[3]["name"].as_str()), (Some("agent"), Some("general")));
    let message = &stage.fake.messages(stage.session.as_str())[0]["info"];
    assert_eq!(message["system"], "be brief");
    assert_eq!(message["model"]["variant"], "high");

    let before = stage.requests(Route::PromptAsync);
    let missing = directory.path().join("missing.txt");
    for path in [missing.clone(), directory.path().to_owned()] {
        let error = stage.send(stage.input(&texts("x")).file(&path, "text/plain")).await.unwrap_err();
        let PromptError::Attachment(AttachmentError { path: named, .. }) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*named, path);
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(!error.is_retryable());
    }
    let large = directory.path().join("large");
    std::fs::File::create(&large).unwrap().set_len((32 << 20) + 1).unwrap();
    let error = stage.send(stage.input(&texts("x")).file(&large, "text/plain")).await.unwrap_err();
    assert!(matches!(&error, PromptError::Invalid(invalid) if invalid.field == "attachment"), "{error:?}");
    assert_eq!(stage.requests(Route::PromptAsync), before, "nothing was sent");
    // A prompt that could not be sent does not hold up the next.
    stage.ask(&texts("next")).await.unwrap();
}

/// What says that it is empty and never ends, and what never begins.
#[cfg(unix)]
#[tokio::test]
async fn an_attachment_is_a_regular_file_and_never_read_beyond_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = tokio::process::Command::new("mkfifo").arg(&pipe).status().await.unwrap();
    assert!(made.success());
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let stage = Stage::new().await;
    let before = stage.requests(Route::PromptAsync);
    for path in ["/dev/zero".into(), pipe, socket] {
        let input = stage.input(&texts("x")).file(&path, "text/plain");
        let error = stage.send(input).await.unwrap_err();
        assert!(matches!(&error, PromptError::Attachment(_)), "{path:?}: {error:?}");
    }
    assert_eq!(stage.requests(Route::PromptAsync), before, "nothing was sent");
    stage.ask(&texts("next")).await.unwrap();
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
struct Verdict {
    /// Whether it can be merged.
    ok: bool,
    reason: String,
}

#[cfg(feature = "schemars")]
#[tokio::test]
async fn the_type_of_an_answer_describes_itself() {
    let stage = Stage::new().await;
    answers(&stage, &[r#"{"ok": true, "reason": "tests pass"}"#]);
    let prompt = stage.manager.prompt(PromptInput::new(stage.session.clone(), "is it fine?"));
    let answer = soon(prompt.json_as::<Verdict>(0)).await.unwrap();
    assert_eq!(answer.value, Verdict { ok: true, reason: "tests pass".to_owned() });
    let asked = stage.fake.messages(stage.session.as_str())[0]["parts"].to_string();
    for words in ["Whether it can be merged.", "boolean", "reason", "required"] {
        assert!(asked.contains(words), "no {words:?} in {asked}");
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"ok": {"type": "boolean"}, "reason": {"type": "string"}}})
}

/// Answers the n-th prompt of any session with the n-th of these texts.
fn answers(stage: &Stage, answers: &[&str]) {
    let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
    let asked = Mutex::new(0);
    stage.fake.on_prompt(move |_| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        texts(&answers[(*asked - 1).min(answers.len() - 1)])
    });
}

#[tokio::test]
async fn an_answer_can_be_asked_for_as_json() {
    let good = "Here it is:\n```json\n{\"ok\": true, \"reason\": \"tests pass\"}\n```";
    let cases: [(&[&str], u32, Option<usize>); 6] = [
        (&[good], 0, Some(1)),
        (&[r#"{"ok": true, "reason": "tests pass"}"#], 3, Some(1)),
        (&["I think so.", good], 1, Some(2)),
        (&[r#"{"ok": "yes", "reason": "tests pass"}"#, "hm", good], 2, Some(3)),
        (&["never"], 2, None),
        (&["never"], 0, None),
    ];
    for (texts, re_asks, expected) in cases {
        let stage = Stage::new().await;
        answers(&stage, texts);
        let prompt = stage.manager.prompt(PromptInput::new(stage.session.clone(), "is it fine?"));
        let answer = soon(prompt.json::<Verdict>(&schema(), re_asks)).await;
        if let Some(attempts) = expected {
            let answer = answer.unwrap();
            assert_eq!(answer.value, Verdict { ok: true, reason: "tests pass".to_owned() });
            assert_eq!(
                (stage.prompts_run().len(), answer.attempts as usize),
                (attempts, attempts),
                "{texts:?}"
            );
            let once = answer.result.usage.tokens.input;
            assert!(once > 0 && answer.usage.tokens.input == once * u64::from(answer.attempts), "{answer:?}");
        } else {
            let error = answer.unwrap_err();
            let JsonAnswerError::Shape { attempts, answer, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*attempts, re_asks + 1);
            assert_eq!(answer, "never");
            assert_eq!(stage.prompts_run().len(), re_asks as usize + 1);
        }
        let asked = stage.fake.messages(stage.session.as_str())[0]["parts"].to_string();
        assert!(asked.contains("JSON Schema") && asked.contains("reason"), "{asked}");
        let last = stage.fake.messages(stage.session.as_str());
        let last = last.iter().rfind(|message| message["info"]["role"] == "user").unwrap();
        if stage.prompts_run().len() > 1 {
            assert!(last["parts"].to_string().contains("cannot be used"), "{last}");
        }
    }
}

#[tokio::test]
async fn json_that_cannot_be_had_says_why() {
    let stage = Stage::new().await;
    let failing = PromptInput::new(stage.session.clone(), Script::new([Step::error(400)]).prompt("x"));
    let error = soon(stage.manager.prompt(failing).json::<Verdict>(&schema(), 3)).await.unwrap_err();
    let JsonAnswerError::Turn { source: failed, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(failed.result.completion, Completion::Failed(_)));
    assert_eq!(stage.prompts_run().len(), 1, "a turn that failed is not asked again");
    let invalid = stage.manager.prompt(PromptInput::new(stage.session.clone(), " "));
    let error = soon(invalid.json::<Verdict>(&schema(), 3)).await.unwrap_err();
    assert!(matches!(error, JsonAnswerError::Prompt { source: PromptError::Invalid(_), .. }), "{error:?}");
}

/// The id that a caller chooses is that of one message, and what is wrong with its answer is said in another.
#[tokio::test]
async fn json_is_asked_for_again_also_under_an_id_of_ones_own() {
    let stage = Stage::new().await;
    answers(&stage, &["hm", r#"{"ok": true, "reason": "tests pass"}"#]);
    let input = PromptInput::new(stage.session.clone(), "is it fine?").message_id("msg_mine");
    let answer = soon(stage.manager.prompt(input).json::<Verdict>(&schema(), 2)).await.unwrap();
    assert_eq!((answer.attempts, stage.prompts_run().len()), (2, 2));
    assert_eq!(stage.prompts_run()[0], "msg_mine");
    assert_eq!(answer.usage.tokens.input, 2 * answer.result.usage.tokens.input);
}

#[tokio::test]
async fn no_prompt_comes_between_an_answer_and_what_is_wrong_with_it() {
    for when_busy in [WhenBusy::Queue, WhenBusy::Refuse] {
        let stage = Stage::new().await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        stage.fake.on_prompt(move |prompt| {
            let mut asked = log.lock().unwrap();
            asked.push(prompt.text.contains("another"));
            match asked.len() {
                1 => Script::new([Step::text("hm").gate_before("gate")]),
                2 => texts(r#"{"ok": true, "reason": "tests pass"}"#),
                _ => texts("the other's"),
            }
        });
        let input = PromptInput::new(stage.session.clone(), "is it fine?").when_busy(when_busy);
        let schema = schema();
        let (answer, other) = soon(async {
            tokio::join!(stage.manager.prompt(input).json::<Verdict>(&schema, 2), async {
                stage.fake.wait_at("gate").await;
                let other = stage.manager.prompt(PromptInput::new(stage.session.clone(), "another")).start();
                stage.fake.open_gate("gate");
                other.await
            })
        })
        .await;
        assert!(answer.unwrap().value.ok);
        assert_eq!(other.unwrap().answer().as_deref(), Some("the other's"));
        assert_eq!(*asked.lock().unwrap(), [false, false, true]);
        assert!(!stage.manager.is_running(&stage.session));
    }
}

/// Whoever counts what tasks cost must not lose an attempt because a later one failed.
#[tokio::test]
async fn what_json_cost_is_told_however_it_ends() {
    let stage = Stage::new().await;
    let asked = Mutex::new(0);
    stage.fake.on_prompt(move |_| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        Script::new([if *asked == 1 { Step::text("hm").cost(2.0) } else { Step::error(400) }])
    });
    let prompt = stage.manager.prompt(PromptInput::new(stage.session.clone(), "is it fine?"));
    let error = soon(prompt.json::<Verdict>(&schema(), 3)).await.unwrap_err();
    assert!(matches!(&error, JsonAnswerError::Turn { attempts: 2, .. }), "{error:?}");
    assert!((error.usage().cost - 2.0).abs() < 1e-9, "{error:?}");
}

#[tokio::test]
async fn the_two_named_calls_do_what_prompt_does() {
    let stage = Stage::new().await;
    let first = stage.manager.send_initial_prompt_and_await_messages(stage.input(&texts("first")));
    let first = soon(first).await.unwrap();
    assert_eq!(first.answer().as_deref(), Some("first"));
    let second = stage.manager.send_follow_up_prompt_and_await_messages(stage.input(&texts("second")));
    let second = soon(second).await.unwrap();
    assert_eq!(second.answer().as_deref(), Some("second"));
    assert_eq!(second.messages.opencode().len(), 1, "what was said before is not in it");
    assert_eq!(second.submission.session_id, stage.session);
    assert!(second.submission.prompt.starts_with("do it"));
    assert!(second.submission.submitted_at >= first.submission.submitted_at);
    assert_eq!(second.conversation.blocks().len(), 4, "but the conversation is whole");
    stage.check("first", &first);
    stage.check("second", &second);
}

#[tokio::test]
async fn the_events_of_a_session_can_be_listened_to() {
    let stage = Stage::new().await;
    let mut events = stage.manager.subscribe_to_events(&stage.session).unwrap();
    assert!(matches!(soon(events.next()).await, opencode_conductor::FeedSignal::Connected));
    let running = stage.start(&texts("hello"));
    let idle = async {
        loop {
            if let opencode_conductor::FeedSignal::Event(event) = events.next().await
                && let opencode_conductor::wire::EventPayload::SessionIdle { session_id } = &event.payload
            {
                break session_id.clone();
            }
        }
    };
    assert_eq!(soon(idle).await, stage.session);
    soon(running).await.unwrap();
    assert_eq!(stage.requests(Route::Event), 1, "the connection is shared");
    drop(events);
    stage.manager.shutdown().await;
    soon(stage.fake.wait_for(|log| log.open_streams == 0)).await;
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn check<T: Clone + Send + Sync + 'static>() {}
    check::<ConversationManager>();
}

/// The run dies when its step has begun: an idle, then an error, and a message that is never completed, on a server that lives.
#[tokio::test]
async fn a_run_that_dies_in_a_living_server_is_a_turn_that_failed() {
    let stage = Stage::with(quick(), |manager| manager.wait(waits()).unwrap()).await;
    stage.fake.remove_directory(WORKTREE);
    let result = stage.ask(&texts("never said")).await.unwrap();
    let Completion::Failed(error) = &result.completion else { panic!("{:?}", result.completion) };
    assert!(error.message.contains("realPath"), "{error:?}");
    assert_eq!(result.messages.opencode().len(), 1);
    assert_eq!(result.answer(), None);
    let step = result.messages.opencode()[0].info.as_assistant().unwrap();
    assert_eq!(step.time.completed, None, "it stays unfinished");
    assert_eq!(stage.prompts_run().len(), 0, "the model was not called, and the prompt was not sent again");
    assert_eq!(stage.requests(Route::PromptAsync), 1);

    // Later there is nothing to be seen but the unfinished message.
    let waiting = stage.manager.wait_for_session_idle(&stage.session, waits());
    let outcome = soon(waiting).await.unwrap();
    assert!(matches!(outcome, IdleOutcome::Rest(Some(Completion::Interrupted))), "{outcome:?}");

    stage.fake.restore_directory(WORKTREE);
    let result = stage.ask(&texts("said")).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("said"));
}

#[tokio::test]
async fn a_turn_tells_which_files_it_changed() {
    let stage = Stage::new().await;
    let write =
        ScriptedTool::new("write", json!({"filePath": "/project/worktree/a.txt", "content": "one\n"}));
    let result = stage.ask(&Script::new([Step::tool(write), Step::text("done")])).await.unwrap();
    let changes = result.diff().await.unwrap();
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.path.as_str(), &change.kind, change.additions), ("a.txt", &ChangeKind::Added, 1));
    assert!(change.patch.ends_with("@@ -0,0 +1,1 @@\n+one\n"), "{}", change.patch);
    let submission = &result.submission;
    let asked = stage.manager.diff(&submission.session_id, &submission.message_id).await.unwrap();
    assert_eq!(asked, changes);

    stage.manager.forget(&stage.session);
    drop(stage.manager);
    assert!(matches!(result.diff().await, Err(SessionError::Unknown { .. })), "the manager is gone");
}

/// The server then keeps the changes with a message of its own, which repeats the prompt.
#[tokio::test]
async fn a_turn_that_was_compacted_tells_all_that_it_changed() {
    let stage = Stage::new().await;
    let write = |name: &str| {
        let args = json!({"filePath": format!("/project/worktree/{name}"), "content": "one\n"});
        Step::tool(ScriptedTool::new("write", args))
    };
    stage.ask(&texts("before")).await.unwrap();
    let overflow = json!({"error": {"message": "prompt is too long: maximum context length"}});
    let overflow = with(ProviderError::default(), |it| (it.status, it.body) = (400, Some(overflow)));
    let failing = Script::new([with(Step::default(), |it| it.error = Some(overflow))]);
    let writes = Script::new([write("a.txt"), Step::text("done")]);
    let asked = AtomicUsize::new(0);
    stage.fake.on_prompt(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => failing.clone(),
        _ => writes.clone(),
    });
    let result = stage.send(PromptInput::new(stage.session.clone(), "a long story")).await.unwrap();
    let n_asked = result.messages.opencode().iter().filter(|it| it.info.as_assistant().is_none()).count();
    assert_eq!(n_asked, 2, "the summary, and the prompt again");
    let next = stage.ask(&Script::new([write("b.txt"), Step::text("done")])).await.unwrap();
    for (result, path) in [(&result, "a.txt"), (&next, "b.txt")] {
        let changes = result.diff().await.unwrap();
        assert_eq!(changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), [path]);
    }
    // A manager that has not seen the turn finds its messages first.
    let fresh = secrets::connect(&stage.fake.url());
    let submission = &result.submission;
    let changes = soon(fresh.diff(&submission.session_id, &submission.message_id)).await.unwrap();
    assert_eq!(changes, result.diff().await.unwrap());
    // One that knows nothing but the prompt's id gets the same result.
    let resumed = soon(fresh.resume(submission.session_id.clone(), submission.message_id.clone()));
    let resumed = resumed.await.unwrap();
    assert_eq!((&resumed.completion, resumed.answer()), (&Completion::Settled, result.answer()));
    assert_eq!(resumed.messages.opencode(), result.messages.opencode());
    assert_eq!(resumed.other_prompts, []);
}

#[tokio::test]
async fn a_result_travels_as_json() {
    let stage = Stage::new().await;
    let result = stage.ask(&Script::new([bash("ls", "x\n"), Step::text("done")])).await.unwrap();
    let json = serde_json::to_value(&result).unwrap();
    assert_eq!(json["completion"], json!({"type": "settled", "retryable": false}));
    assert_eq!(json["submission"]["sessionId"], stage.session.as_str());
    assert_eq!((&json["answer"], &json["taskId"]), (&json!("done"), &json!("task")));
    assert_eq!(json["messages"].as_array().unwrap().len(), result.messages.opencode().len());
    assert_eq!(json["messages"][0]["info"]["role"], "assistant");
    assert_eq!(json["usage"], json["usageBySession"][stage.session.as_str()]);
    assert_eq!((&json["refused"], &json["otherPrompts"]), (&json!([]), &json!([])));
    assert!(json.get("conversation").is_none());

    let failure = || Failure::new("APIError", "the provider is down");
    let report = || AbortReport::new(false, vec![stage.session.clone()]);
    let completions = [
        Completion::Settled,
        Completion::Failed(failure()),
        Completion::Aborted,
        Completion::Rejected,
        Completion::Refused,
        Completion::Interrupted,
        Completion::timed_out(Limit::Idle, Allowed::Time(ms(45_000)), Some(report())),
        Completion::SessionGone,
        Completion::Unauthorized,
        Completion::GivenUp,
    ];
    for completion in completions {
        #[derive(serde::Deserialize)]
        struct Written {
            completion: Completion,
            abort: Option<AbortReport>,
        }
        let mut result = PromptExecutionResult::new(result.submission.clone(), completion.clone());
        result.abort = Some(report());
        // As text: a map would not show a field that is written twice.
        let json = serde_json::to_string(&result).unwrap();
        let read: Written = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        assert_eq!((read.completion, &read.abort), (completion, &result.abort), "{json}");
        if let Err(failed) = result.settled() {
            let says_it = failed.to_string().contains("the abort could not be confirmed");
            assert!(says_it, "{failed}");
        }
    }

    stage.fake.kill().await.unwrap();
    let wait = WaitOptions::default().idle_timeout(ms(200));
    let error = stage.send(stage.input(&texts("never")).wait(wait)).await.unwrap_err();
    let json = serde_json::to_value(&error).unwrap();
    assert_eq!((&json["type"], &json["reason"]), (&json!("notRun"), &json!("timedOut")));
    assert_eq!((&json["delivery"], &json["retryable"]), (&json!(error.delivery()), &json!(true)));
    assert_eq!((&json["sessionId"], &json["taskId"]), (&json!(stage.session), &json!("task")));
    assert!(json["message"].as_str().unwrap().contains("refused"), "{json}");
}

//! What some servers do, and what becomes of a turn then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use opencode_conductor::{
    AgentErrorKind, Completion, ConversationManager, Delivery, Directory, DirectoryClient, FeedSignal,
    ManagerBuilder, PermissionPolicy, PromptError, PromptInput, message_signature,
    test_util::{FakeOpenCode, Fault, Moment, Route, Script, Step},
    wire::{PromptPart, PromptRequest},
};

use super::support::{
    secrets::{self, checked},
    soon,
    stage::{
        Stage, WORKTREE, asking_tool, bash, client, create, feed, gated_text, gated_tool, ms, quick, task,
        texts, waits,
    },
};

/// Another client, in the directory of the stage's session.
fn other(stage: &Stage) -> DirectoryClient {
    secrets::client(&stage.fake.url()).build().unwrap().directory(&Directory::new(WORKTREE).unwrap())
}

/// Lets another client play a whole turn in the stage's session.
async fn foreign_turn(stage: &Stage, id: &str, script: &Script) {
    let part = PromptPart::Text { id: format!("prt_{id}").as_str().into(), text: script.prompt("theirs") };
    let request = PromptRequest::new(format!("msg_{id}").as_str().into(), vec![part]);
    other(stage).prompt_async(&stage.session, &request).await.unwrap();
    let theirs = ConversationManager::builder(client(&stage.fake)).build();
    theirs.adopt_session("theirs", &stage.session).await.unwrap();
    soon(theirs.wait_for_session_idle(&stage.session, waits())).await.unwrap();
}

/// Once an answer that did not arrive for two seconds was given up for good, and the turn hung.
#[tokio::test]
async fn an_answer_is_tried_for_as_long_as_the_request_is_open() {
    let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
    let refusals = stage.fake.inject(Route::ReplyPermission, Fault::Status(503)).times(6);
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let result = stage.ask(&script).await.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("done")));
    assert_eq!(refusals.left(), 0, "it was tried more often than that");
}

#[tokio::test]
async fn a_hung_configuration_costs_the_time_to_start_and_no_more() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Config, Fault::Hang).always();
    let began = tokio::time::Instant::now();
    let input = stage.input(&texts("answered")).wait(waits().start_timeout(ms(500)));
    let result = stage.send(input).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("answered"));
    assert!(began.elapsed() < ms(20_000), "{:?}", began.elapsed());
}

/// A server that was restarted, or whose configuration was changed, may have another default.
#[tokio::test]
async fn the_default_model_is_asked_for_once_per_directory_and_connection() {
    for (case, is_killed, is_disposed) in
        [("connected", false, false), ("killed", true, false), ("disposed", false, true)]
    {
        let stage = Stage::new().await;
        // With somebody who listens, the connection is there as long as the server lets it.
        let directory = Directory::new(WORKTREE).unwrap();
        let mut events = stage.manager.client().unwrap().directory(&directory).subscribe(&stage.session);
        let mut heard = async |expected: fn(&FeedSignal) -> bool| {
            soon(async { while !expected(&events.next().await) {} }).await;
        };
        heard(|signal| matches!(signal, FeedSignal::Connected)).await;
        stage.ask(&texts("one")).await.unwrap();
        let asked = stage.requests(Route::Config);
        assert!(asked > 0, "{case}");
        if is_killed {
            stage.fake.restart().await.unwrap();
        }
        if is_disposed {
            stage.fake.dispose(WORKTREE).await;
        }
        if is_killed || is_disposed {
            heard(|signal| matches!(signal, FeedSignal::Lost { .. })).await;
        }
        let other = create(&stage.manager, "other").await;
        let input = PromptInput::new(other, texts("two").prompt("do it"));
        stage.send(input).await.unwrap();
        let is_asked_again = stage.requests(Route::Config) > asked;
        assert_eq!(is_asked_again, is_killed || is_disposed, "{case}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_not_called_busy() {
    let stage = Stage::new().await;
    let adopted = ConversationManager::builder(client(&stage.fake))
        .wait(waits().idle_timeout(ms(500)))
        .unwrap()
        .build();
    adopted.adopt_session("task", &stage.session).await.unwrap();
    stage.fake.kill().await.unwrap();
    let asked = [&stage.manager, &adopted].map(|manager| manager.prompt(stage.input(&texts("never"))));
    for result in join_all(asked.map(|prompt| soon(prompt.into_future()))).await {
        let error = result.unwrap_err();
        let PromptError::NotDelivered { delivery: Delivery::NotSent, source: Some(source), .. } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(source.kind(), AgentErrorKind::Unreachable, "{error:?}");
        assert!(error.is_retryable());
    }
}

/// The server merges a prompt that comes while it runs into the turn.
#[tokio::test]
async fn the_prompt_of_another_client_in_my_turn_is_named() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two"));
    soon(stage.fake.wait_at("gate")).await;
    let part = PromptPart::Text { id: "prt_other".into(), text: texts("theirs").prompt("other") };
    let other = PromptRequest::new("msg_other".into(), vec![part]);
    let api = stage.manager.client().unwrap().directory(&Directory::new(WORKTREE).unwrap());
    api.prompt_async(&stage.session, &other).await.unwrap();
    stage.fake.open_gate("gate");
    let result = soon(running).await.unwrap();
    assert_eq!(
        result.other_prompts.iter().map(opencode_conductor::MessageId::as_str).collect::<Vec<_>>(),
        ["msg_other"]
    );
    stage.check_conversation("merged", &result.conversation);
    let next = stage.ask(&texts("mine")).await.unwrap();
    assert!(next.other_prompts.is_empty());
}

#[tokio::test]
async fn what_changes_about_a_session_is_known() {
    let stage = Stage::new().await;
    let before = stage.manager.session(&stage.session).unwrap();
    let running = stage.start(&gated_text("gate", "one two"));
    soon(stage.fake.wait_at("gate")).await;
    let api = stage.manager.client().unwrap().directory(&before.directory);
    let mut change = opencode_conductor::wire::UpdateSession::default();
    change.title = Some("renamed".to_owned());
    api.update_session(&stage.session, &change).await.unwrap();
    stage.fake.open_gate("gate");
    soon(running).await.unwrap();
    let after = stage.manager.session(&stage.session).unwrap();
    assert_eq!(after.title, "renamed");
    assert!(after.updated_at >= before.updated_at);
    let json = serde_json::to_string(&after).unwrap();
    assert_eq!(serde_json::from_str::<opencode_conductor::ConversationSessionMeta>(&json).unwrap(), after);
}

#[tokio::test]
async fn ids_are_trimmed_and_malformed_messages_are_reported() {
    let stage = Stage::new().await;
    let padded = PromptInput::new(format!(" {}\n", stage.session), texts("trimmed").prompt("do it"));
    stage.send(padded).await.unwrap();
    let list = soon(stage.manager.list_conversation_messages(&stage.session)).await.unwrap();
    assert_eq!((list.messages.len(), list.malformed.len()), (2, 0));
}

/// A proxy may stall a stream without ending it, before the server had anything to say.
#[tokio::test]
async fn a_stream_that_stalls_before_its_first_heartbeat_holds_no_permission_up() {
    // There is no heartbeat in this test.
    let fake = FakeOpenCode::start_with(quick().heartbeat(ms(3_600_000))).await.unwrap();
    let client = secrets::client(&fake.url()).feed(feed().silence(ms(700))).build().unwrap();
    let manager = ConversationManager::builder(client).permissions(PermissionPolicy::AllowOnce).build();
    let session = create(&manager, "task").await;
    let stage = Stage { fake, manager, session };
    stage.fake.inject(Route::Event, Fault::SilenceAfterEvents(1));
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let result = stage.ask(&script).await.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("done")));
    stage.check("stalled", &result);
    stage.check_conversation("stalled", &result.conversation);
}

/// Behind a proxy that ignores ids every submission is another prompt.
#[tokio::test]
async fn a_server_that_ignores_our_ids_gets_the_prompt_once() {
    for fault in [None, Some(Fault::DropAfterEffect)] {
        let stage = Stage::with(quick(), |manager| manager.wait(waits()).unwrap()).await;
        stage.ask(&texts("same")).await.unwrap();
        let n_before = stage.requests(Route::PromptAsync);
        // The answer to the first submission may be lost, too: then it is known by its text alone.
        stage.fake.inject(Route::PromptAsync, Fault::RenamePrompt).always();
        if fault.is_some() {
            stage.fake.inject(Route::Event, Fault::Status(503)).always();
            stage.fake.cut_streams();
        }
        let result = stage.ask(&texts("same")).await.unwrap();
        assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("same")));
        assert_eq!(stage.requests(Route::PromptAsync), n_before + 1, "{fault:?}: sent once");
        assert_eq!(stage.prompts_run().len(), 2, "{fault:?}: run once");
        assert_eq!(result.messages.opencode().len(), 1);
        assert!(result.other_prompts.is_empty(), "it is mine");
        assert_eq!(
            stage.prompts_run().last().map(String::as_str),
            Some(result.submission.message_id.as_str())
        );
        stage.check_conversation("renamed", &result.conversation);
        stage.fake.clear_faults();
        assert_eq!(stage.ask(&texts("next")).await.unwrap().answer().as_deref(), Some("next"));
    }
}

/// Servers before 1.18 say that nothing runs before they have written down how it ended.
#[tokio::test]
async fn after_an_abort_the_state_is_that_of_a_load_also_where_the_end_comes_late() {
    let in_child = Script::new([Step::tool(task(&gated_text("gate", "a part of it"))), Step::text("never")]);
    let in_tool = Script::new([Step::tool(gated_tool("gate")), Step::text("never")]);
    for script in [gated_text("gate", "one two"), in_tool, in_child] {
        let stage = Stage::new().await;
        let running = stage.start(&script);
        soon(stage.fake.wait_at("gate")).await;
        stage.fake.hold(Moment::Cleanup, "cleanup");
        stage.fake.inject(Route::Abort, Fault::AnswerFirst).always();
        let n_lists = stage.requests(Route::ListMessages);
        let (report, ()) = tokio::join!(soon(stage.manager.abort(&stage.session)), async {
            // The first read after the abort finds everything unfinished.
            soon(stage.fake.wait_at("cleanup")).await;
            soon(stage.fake.wait_for(|log| log.count(Route::ListMessages) > n_lists)).await;
            stage.fake.release(Moment::Cleanup);
            stage.fake.open_gate("cleanup");
        });
        assert!(report.unwrap().confirmed);
        let result = checked(soon(running).await).unwrap();
        assert_eq!(result.completion, Completion::Aborted);
        let listed = stage.fake.messages(stage.session.as_str());
        assert!(listed.last().unwrap()["info"]["time"]["completed"].is_number(), "it has its end");
        stage.check_conversation("aborted", &result.conversation);
        stage.fake.clear_faults();
        assert_eq!(stage.ask(&texts("next")).await.unwrap().answer().as_deref(), Some("next"));
    }
}

/// Servers before 1.1 pass what they do not know on to the internet, and say 500 where there is none.
#[tokio::test]
async fn a_server_of_old_that_says_500_to_new_routes_is_spoken_to_by_the_old_ones() {
    let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
    for route in [Route::Health, Route::ListPermissions, Route::ListQuestions] {
        stage.fake.inject(route, Fault::Status(500)).always();
    }
    stage.fake.inject(Route::ReplyPermission, Fault::Status(500)).only("/reply").always();
    let script = Script::new([
        Step::tool(asking_tool("touch x")),
        Step::tool(task(&texts("a part of it"))),
        Step::text("done"),
    ]);
    let running = stage.start(&script);
    // A gap makes everything be read, also what there is not.
    stage.fake.cut_streams();
    let result = checked(soon(running).await).unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("done")));
    stage.check("old", &result);
    stage.check_conversation("old", &result.conversation);
    // A server that has these routes and fails for a moment is asked again.
    stage.fake.clear_faults();
    let failing = stage.fake.inject(Route::ReplyPermission, Fault::Status(500)).only("/reply").times(2);
    let result =
        stage.ask(&Script::new([Step::tool(asking_tool("touch y")), Step::text("done")])).await.unwrap();
    assert_eq!((&result.completion, failing.left()), (&Completion::Settled, 0));
}

/// What others did with the session between two prompts is part of its conversation.
#[tokio::test]
async fn after_the_turns_of_others_the_conversation_is_that_of_a_load() {
    let stage = Stage::new().await;
    stage.ask(&texts("first")).await.unwrap();
    let part =
        Script::new([Step::tool(task(&texts("their part"))), bash("echo hi", "hi\n"), Step::text("theirs")]);
    foreign_turn(&stage, "one", &part).await;
    foreign_turn(&stage, "two", &texts("theirs again")).await;
    let result = stage.ask(&texts("second")).await.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("second")));
    assert!(result.other_prompts.is_empty(), "they were answered before");
    assert_eq!(result.messages.opencode().len(), 1);
    stage.check_conversation("after others", &result.conversation);
    // What no other client touched is not read again.
    let n_lists = stage.requests(Route::ListMessages);
    let result = stage.ask(&texts("third")).await.unwrap();
    stage.check_conversation("alone", &result.conversation);
    assert_eq!(stage.requests(Route::ListMessages), n_lists + 1);
}

/// A server that starts again opens its port before it serves, and never answers what comes in between.
#[tokio::test]
async fn a_request_that_a_starting_server_never_answers_is_made_again_soon() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    // A client that waits for an answer for as long as this waits for ever.
    let patient = secrets::client(&fake.url()).answer_timeout(ms(3_600_000));
    let patient = patient.feed(feed().ready_timeout(ms(3_600_000))).build().unwrap();
    let manager = ConversationManager::builder(patient).build();
    let session = create(&manager, "task").await;
    let stage = Stage { fake, manager, session };
    stage.ask(&texts("before")).await.unwrap();
    stage.fake.kill().await.unwrap();
    let running = stage.start(&texts("after"));
    let lost = stage.fake.inject(Route::Any, Fault::Hang).times(2);
    soon(async {
        while stage.manager.client().unwrap().statistics().requests < 6 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stage.fake.revive().await.unwrap();
    let result = checked(soon(running).await).unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("after")));
    assert_eq!(lost.left(), 0, "some were lost");
    stage.check("restarted", &result);
}

/// Nothing of an aborted turn is about to start, so that the next prompt need not wait as long as a start may take.
#[tokio::test]
async fn a_prompt_after_an_abort_before_the_start_does_not_wait_for_that_start() {
    let patient = |manager: ManagerBuilder| manager.wait(waits().start_timeout(ms(600_000))).unwrap();
    let stage = Stage::with(quick(), patient).await;
    stage.fake.hold(Moment::BeforeRun, "gate");
    let running = stage.start(&texts("never"));
    soon(stage.fake.wait_at("gate")).await;
    let (report, outcome) = tokio::join!(soon(stage.manager.abort(&stage.session)), soon(running));
    assert!(report.unwrap().confirmed);
    assert!(matches!(outcome, Err(PromptError::Aborted { .. })), "{outcome:?}");
    stage.fake.release(Moment::BeforeRun);
    let result = stage.ask(&texts("next")).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("next"));
}

/// Without a stream the messages are read again and again; what has not changed is not told again.
#[tokio::test]
async fn a_polled_message_is_told_once_for_each_change() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Status(503)).always();
    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = Arc::clone(&told);
    let input = stage.input(&gated_text("gate", "one two")).on_message(move |message| {
        teller.lock().unwrap().push((message.info.id().clone(), message_signature(message)));
    });
    let running = stage.manager.prompt(input).start();
    soon(stage.fake.wait_at("gate")).await;
    let n_lists = stage.requests(Route::ListMessages);
    soon(stage.fake.wait_for(|log| log.count(Route::ListMessages) > n_lists + 3)).await;
    stage.fake.open_gate("gate");
    let result = checked(soon(running).await).unwrap();
    assert_eq!(result.answer().as_deref(), Some("one two"));
    stage.check_conversation("polled", &result.conversation);
    let told = told.lock().unwrap().clone();
    let mut last = HashMap::new();
    for (id, signature) in told {
        assert_ne!(last.insert(id.clone(), signature), Some(signature), "{id} was told twice");
    }
    assert!(!last.is_empty());
}

#[tokio::test]
async fn what_is_too_large_to_be_read_at_once_is_read_in_pieces() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let large = || bash("cat picture", &"x".repeat(5000));
    let steps = |n| (0..n).map(|_| large()).chain([Step::text("seen")]);
    let first = ConversationManager::builder(client(&fake)).wait(waits()).unwrap().build();
    let session = create(&first, "task").await;
    let part = Step::tool(task(&Script::new(steps(12))));
    let prompt = Script::new([part, Step::text("seen")]).prompt("look at them");
    let result = soon(first.prompt(PromptInput::new(session.clone(), prompt)).into_future()).await.unwrap();

    // Each of the messages fits, the longest of which are the prompts with their scripts; all of a session's do not.
    let client = secrets::client(&fake.url()).feed(feed()).body_limit(90_000).build().unwrap();
    let limits = waits().idle_timeout(ms(5000));
    let second = ConversationManager::builder(client).wait(limits).unwrap().build();
    let again = soon(second.resume(session.clone(), result.submission.message_id.clone())).await.unwrap();
    assert_eq!(again.completion, Completion::Settled);
    assert_eq!(again.messages.opencode(), result.messages.opencode());
    assert_eq!(again.usage_by_session, result.usage_by_session);
    let prompt = Script::new(steps(12)).prompt("and at these");
    let next = soon(second.prompt(PromptInput::new(session, prompt)).into_future()).await.unwrap();
    assert_eq!((&next.completion, next.answer().as_deref()), (&Completion::Settled, Some("seen")));
}

//! What two callers, or a caller and the server, do to each other at the wrong moment.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Decision, Delivery, Directory, PermissionPolicy,
    PromptError, Update,
    test_util::{Fault, Moment, Route, Script, Step},
    wire::{PartBody, PermissionReply},
};
use serde_json::json;
use tokio::{runtime::Handle, time::timeout};

use super::support::{
    soon,
    stage::{Stage, WORKTREE, asking_tool, client, create, gated_text, gated_tool, ms, quick, texts, waits},
};

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Without a stream, requests are found by polling; also in a session that was taken over.
#[tokio::test]
async fn without_a_stream_requests_are_found_in_an_adopted_session() {
    let stage = Stage::new().await;
    stage.ask(&texts("before")).await.unwrap();
    stage.fake.inject(Route::Event, Fault::Status(503)).always();
    let fresh =
        ConversationManager::builder(client(&stage.fake)).permissions(PermissionPolicy::AllowOnce).build();
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let result = timeout(s(20), fresh.prompt(stage.input(&script)).into_future()).await;
    assert_eq!(result.expect("found by polling").unwrap().completion, Completion::Settled);
}

#[tokio::test]
async fn a_second_abort_does_not_hit_the_next_prompt() {
    let stage = Stage::new().await;
    let first = stage.start(&gated_text("gate", "one two three"));
    let second = stage.start(&gated_text("second", "four five six"));
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.inject(Route::Abort, Fault::DelayUntil("slow".to_owned())).after(1).always();
    stage.fake.inject(Route::ListMessages, Fault::DelayUntil("last".to_owned())).times(1);
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    soon(stage.fake.wait_at("last")).await;
    // The first turn makes its last read; an impatient user aborts it once more.
    let (manager, session) = (stage.manager.clone(), stage.session.clone());
    let again = Handle::current().spawn(async move { manager.abort(&session).await });
    tokio::task::yield_now().await;
    stage.fake.open_gate("last");
    assert_eq!(soon(first).await.unwrap().completion, Completion::Aborted);
    soon(stage.fake.wait_at("second")).await;
    stage.fake.open_gate("slow");
    soon(again).await.unwrap().unwrap();
    stage.fake.open_gate("second");
    assert_eq!(soon(second).await.unwrap().completion, Completion::Settled);
}

#[tokio::test]
async fn updates_fold_to_the_state_also_if_it_is_loaded_meanwhile() {
    let stage = Stage::new().await;
    stage.ask(&texts("first")).await.unwrap();
    stage.ask(&texts("second")).await.unwrap();
    let fresh = ConversationManager::builder(client(&stage.fake)).build();
    fresh.adopt_session("task", &stage.session).await.unwrap();
    let mut folded = fresh.conversation(&stage.session).unwrap();
    let mut running = fresh.prompt(stage.input(&gated_text("gate", "one two three"))).start();
    let updates = running.updates().unwrap();
    soon(stage.fake.wait_at("gate")).await;
    fresh.load_conversation(&stage.session).await.unwrap();
    stage.fake.open_gate("gate");
    let (result, updates) = soon(async { tokio::join!(running, updates.collect::<Vec<_>>()) }).await;
    for update in updates {
        match update {
            Update::Conversation(event) => folded.apply(&event),
            Update::Missed(conversation) => folded = *conversation,
            _ => {}
        }
    }
    let conversation = result.unwrap().conversation;
    assert_eq!(folded, conversation);
}

#[tokio::test]
async fn an_abort_takes_ten_seconds_at_most() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Config, Fault::Hang).always();
    let running = stage.start(&texts("never"));
    soon(stage.fake.wait_for(|log| log.count(Route::Config) > 0)).await;
    timeout(s(11), stage.manager.abort(&stage.session)).await.expect("within ten seconds").unwrap();
    drop(running);
}

#[tokio::test]
async fn a_deadline_is_a_limit_for_the_whole_turn() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Config, Fault::Hang).always();
    let input = stage.input(&texts("never")).wait(waits().start_timeout(s(30)).deadline(s(1)));
    let result = timeout(s(15), stage.manager.prompt(input).into_future()).await;
    result.expect("the deadline has passed").unwrap_err();
}

#[tokio::test]
async fn one_prompt_in_flight_also_after_the_session_was_forgotten() {
    let stage = Stage::new().await;
    let _first = stage.start(&gated_text("gate", "one two three"));
    let _second = stage.start(&texts("second"));
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.hold(Moment::BeforeStore, "store");
    stage.manager.forget(&stage.session);
    let _third = stage.start(&texts("third"));
    stage.fake.open_gate("gate");
    soon(stage.fake.wait_at("store")).await;
    let both = timeout(s(5), stage.fake.wait_for(|log| log.count(Route::PromptAsync) > 2)).await;
    both.expect_err("two prompts were in flight at once");
}

#[tokio::test]
async fn what_was_answered_elsewhere_during_a_gap_stops_no_clock() {
    let policy = PermissionPolicy::ask(|_| std::future::pending());
    let stage = Stage::with(quick(), |manager| manager.permissions(policy)).await;
    let script = Script::new([Step::tool(asking_tool("touch x")), Step::tool(gated_tool("gate"))]);
    let input = stage.input(&script).wait(waits().idle_timeout(s(2)).tool_timeout(s(2)));
    let running = stage.manager.prompt(input).start();
    soon(stage.fake.wait_for(|log| log.events_of(stage.session.as_str(), "permission.asked") == 1)).await;
    stage.fake.inject(Route::Event, Fault::DelayUntil("stream".to_owned())).always();
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|log| log.open_streams == 0)).await;
    let api = client(&stage.fake).directory(&Directory::new(WORKTREE).unwrap());
    let pending = api.permissions().await.unwrap().items;
    api.reply_permission(&pending[0].id, PermissionReply::Once).await.unwrap();
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.clear_faults();
    stage.fake.open_gate("stream");
    let result = timeout(s(25), running).await.expect("the tool's limit runs out");
    assert!(matches!(result.unwrap().completion, Completion::TimedOut { .. }));
}

#[tokio::test]
async fn what_may_have_been_sent_is_not_said_to_be_unsent() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::PromptAsync, Fault::HoldAnswerUntil("answer".to_owned())).times(1);
    stage.fake.hold(Moment::BeforeStore, "store");
    let running = stage.start(&texts("it runs"));
    soon(stage.fake.wait_at("store")).await;
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    let error = soon(running).await.unwrap_err();
    stage.fake.open_gate("store");
    let PromptError::Aborted { delivery, .. } = error else { panic!("{error:?}") };
    soon(stage.fake.wait_for(|log| log.count(Route::PromptAsync) > 0)).await;
    assert_ne!(delivery, Delivery::NotSent);
}

#[tokio::test]
async fn a_run_that_began_under_the_abort_is_not_unstarted() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::Event, Fault::Status(503)).always();
    stage.fake.inject(Route::Abort, Fault::DelayUntil("abort".to_owned())).always();
    stage.fake.hold(Moment::BeforeRun, "run");
    let input = stage.input(&gated_text("gate", "one two three")).wait(waits().max_kicks(0));
    let running = stage.manager.prompt(input).start();
    soon(stage.fake.wait_at("abort")).await;
    stage.fake.open_gate("run");
    soon(stage.fake.wait_at("gate")).await;
    stage.fake.open_gate("abort");
    let result = soon(running).await.expect("the model was called");
    assert_eq!(result.completion, Completion::Aborted);
}

#[tokio::test]
async fn a_lost_response_makes_no_second_session_in_a_busy_project() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::CreateSession, Fault::DropAfterEffect).times(1);
    stage.fake.inject(Route::ListSessions, Fault::DelayUntil("list".to_owned())).times(1);
    let manager = stage.manager.clone();
    let made = Handle::current().spawn(async move {
        manager.create_task_session(CreateTaskSession::new("p", "lost", "/project", WORKTREE)).await
    });
    soon(stage.fake.wait_at("list")).await;
    for n in 0..101 {
        create(&stage.manager, &format!("task {n}")).await;
    }
    stage.fake.open_gate("list");
    soon(made).await.unwrap().unwrap();
    let lost = stage.fake.sessions().into_iter().filter(|session| session["title"] == "lost").count();
    assert_eq!(lost, 1);
}

#[tokio::test]
async fn a_gap_on_an_open_connection_does_not_mean_that_the_server_died() {
    join_all([false, true].map(|gap| async move {
        let stage = Stage::new().await;
        stage.fake.hold(Moment::Cleanup, "cleanup");
        let input = stage.input(&Script::new([Step::error(400)])).wait(waits());
        let mut running = stage.manager.prompt(input).start();
        soon(stage.fake.wait_at("cleanup")).await;
        if gap {
            let bad = json!({"sessionID": stage.session, "info": {"id": 5, "sessionID": stage.session}});
            stage.fake.send_event(WORKTREE, "message.updated", bad);
        }
        let early = timeout(s(4), &mut running).await;
        assert!(
            early.is_err(),
            "gap: {gap}, {:?}",
            early.map(|result| result.map(|result| result.completion))
        );
        stage.fake.open_gate("cleanup");
        let result = soon(running).await.unwrap();
        assert!(matches!(result.completion, Completion::Failed(_)), "{:?}", result.completion);
    }))
    .await;
}

#[tokio::test]
async fn a_late_word_on_a_closed_request_does_not_end_the_turn() {
    let (say, said) = tokio::sync::watch::channel(false);
    let policy = PermissionPolicy::ask(move |_| {
        let mut said = said.clone();
        async move {
            said.wait_for(|said| *said).await.unwrap();
            Decision::FailTurn
        }
    });
    let stage = Stage::with(quick(), |manager| manager.permissions(policy)).await;
    let tail = gated_text("gate", "all is well").steps;
    let script = Script::new([Step::tool(asking_tool("touch x"))].into_iter().chain(tail));
    let running = stage.start(&script);
    soon(stage.fake.wait_for(|log| log.events_of(stage.session.as_str(), "permission.asked") == 1)).await;
    let api = client(&stage.fake).directory(&Directory::new(WORKTREE).unwrap());
    let pending = api.permissions().await.unwrap().items;
    api.reply_permission(&pending[0].id, PermissionReply::Once).await.unwrap();
    soon(stage.fake.wait_at("gate")).await;
    say.send(true).unwrap();
    // There is one thread: whatever the word leads to has happened after this.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    stage.fake.open_gate("gate");
    assert_eq!(soon(running).await.unwrap().completion, Completion::Settled);
}

#[tokio::test]
async fn a_dashboard_that_looks_at_new_sessions_does_not_take_them_from_their_tasks() {
    let stage = Stage::new().await;
    stage.fake.inject(Route::CreateSession, Fault::HoldAnswerUntil("answer".to_owned())).times(1);
    let manager = stage.manager.clone();
    let made = Handle::current().spawn(async move {
        manager.create_task_session(CreateTaskSession::new("p", "mine", "/project", WORKTREE)).await
    });
    soon(stage.fake.wait_at("answer")).await;
    let sessions = stage.fake.sessions();
    let new = sessions.iter().find(|session| session["title"] == "mine").unwrap();
    let id = new["id"].as_str().unwrap().into();
    stage.manager.load_conversation(&id).await.unwrap();
    stage.fake.open_gate("answer");
    let meta = soon(made).await.unwrap().unwrap();
    assert_eq!(stage.manager.task_session_id(&"mine".into()), Some(meta.session_id));
}

/// A reader that is slow now and then misses nothing that fits into its queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_events_leaves_no_hole_in_a_text() {
    let stage = Stage::new().await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let texts = Arc::clone(&seen);
    let script = Script::new([Step::text("start").words(3000)]);
    let input = stage.input(&script).on_message(move |message| {
        if message.info.as_assistant().is_none() {
            return;
        }
        let text = message.parts.iter().find_map(|part| match &part.body {
            PartBody::Text(text) => Some(text.text.clone()),
            _ => None,
        });
        texts.lock().unwrap().extend(text);
        std::thread::sleep(ms(100));
    });
    let result = soon(stage.manager.prompt(input).into_future()).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let resyncs = stage.manager.client().unwrap().statistics().resyncs;
    let answer = result.answer().unwrap();
    let seen = seen.lock().unwrap();
    let holes = seen.iter().filter(|text| !answer.starts_with(text.as_str())).count();
    assert_eq!((holes, resyncs), (0, 0), "of {} snapshots", seen.len());
}

/// A list that was read earlier undoes nothing.
#[tokio::test]
async fn an_old_list_does_not_undo_a_turn() {
    let stage = Stage::new().await;
    stage.ask(&texts("first")).await.unwrap();
    stage.fake.inject(Route::ListMessages, Fault::HoldAnswerUntil("old".to_owned())).times(1);
    let (manager, session) = (stage.manager.clone(), stage.session.clone());
    let load = Handle::current().spawn(async move { manager.load_conversation(&session).await });
    soon(stage.fake.wait_at("old")).await;
    let second = stage.ask(&texts("second")).await.unwrap();
    stage.fake.open_gate("old");
    soon(load).await.unwrap().unwrap();
    let after = stage.manager.conversation(&stage.session).unwrap();
    assert_eq!(after.blocks().len(), second.conversation.blocks().len());
}

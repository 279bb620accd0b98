//! Tasks, sessions and the maps between them.

use std::path::PathBuf;

use futures_util::future::join_all;
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Delivery, Directory, IdleOutcome, InvalidInput,
    Limit, ProjectId, PromptError, PromptInput, SessionError, SessionId, TaskId, Timestamp, WaitOptions,
    test_util::{FakeOpenCode, Fault, Flavour, Moment, Route, Script, Step},
    wire::{ModelRef, PermissionAction, PermissionRule},
};
use serde_json::json;

use super::support::{
    soon,
    stage::{
        Stage, WORKTREE, asking_tool, bash, client, create, gated_text, ms, quick, task, texts, waits, with,
    },
};

fn request(task: &str) -> CreateTaskSession {
    CreateTaskSession::new("project", task, "/project", WORKTREE)
}

#[tokio::test]
async fn a_lost_response_makes_no_second_session() {
    let cases = [
        (Fault::DropBeforeEffect, 1),
        (Fault::DropBeforeEffect, 3),
        (Fault::DropAfterEffect, 1),
        (Fault::Status(503), 2),
        (Fault::StatusAfterEffect(502), 1),
        (Fault::TruncateBody(10), 1),
    ];
    join_all(cases.map(|(fault, times)| async move {
        let case = format!("{fault:?} x {times}");
        let fake = FakeOpenCode::start_with(quick()).await.unwrap();
        // Neighbours, so that the right one has to be found.
        let manager = ConversationManager::builder(client(&fake)).build();
        create(&manager, "neighbour").await;
        fake.inject(Route::CreateSession, fault).times(times);
        let meta = manager.create_task_session(request("task")).await;
        let meta = meta.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(fake.sessions().len(), 2, "{case}");
        assert_eq!(manager.task_session_id(&"task".into()), Some(meta.session_id.clone()), "{case}");
        let of_task = |session: &&serde_json::Value| session["metadata"]["conductor"]["task"] == "task";
        let found = fake.sessions();
        let found: Vec<_> = found.iter().filter(of_task).collect();
        assert_eq!(found.len(), 1, "{case}");
        assert_eq!(found[0]["id"], meta.session_id.as_str(), "{case}");
    }))
    .await;
}

#[tokio::test]
async fn no_second_session_is_made_before_the_first_was_looked_for() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let manager = ConversationManager::builder(client(&fake)).build();
    fake.inject(Route::CreateSession, Fault::DropAfterEffect);
    fake.inject(Route::ListSessions, Fault::Status(503)).times(5);
    let meta = soon(manager.create_task_session(request("task"))).await.unwrap();
    assert_eq!(fake.sessions().len(), 1);
    assert_eq!(fake.sessions()[0]["id"], meta.session_id.as_str());
}

#[tokio::test]
async fn a_server_that_refuses_leaves_no_trace_in_the_maps() {
    for fault in [Fault::Status(400), Fault::Status(401), Fault::Html, Fault::Status(503)] {
        let fake = FakeOpenCode::start_with(quick()).await.unwrap();
        let manager = ConversationManager::builder(client(&fake)).build();
        fake.inject(Route::CreateSession, fault.clone()).always();
        let error = soon(manager.create_task_session(request("task"))).await.unwrap_err();
        assert!(matches!(error, SessionError::Agent { .. }), "{fault:?}: {error:?}");
        assert!(error.to_string().contains("task"), "{error}");
        assert_eq!(manager.task_session_id(&"task".into()), None);
        fake.clear_faults();
        manager.create_task_session(request("task")).await.unwrap();
    }
}

#[tokio::test]
async fn a_task_has_one_session_unless_it_is_replaced() {
    let stage = Stage::new().await;
    let error = stage.manager.create_task_session(request("task")).await.unwrap_err();
    assert!(
        matches!(&error, SessionError::TaskHasSession { task, session, .. } if task.as_str() == "task" && *session == stage.session),
        "{error:?}"
    );
    assert_eq!(stage.fake.sessions().len(), 1, "nothing was sent");
    let new = stage.manager.create_task_session(request("task").replace()).await.unwrap();
    assert_ne!(new.session_id, stage.session);
    assert_eq!(stage.manager.task_session_id(&"task".into()), Some(new.session_id.clone()));
    assert_eq!(stage.manager.session(&stage.session), None, "the old one is forgotten");
    assert_eq!(stage.fake.sessions().len(), 2, "but not deleted");
    // A replacement that fails leaves everything as it was.
    stage.fake.inject(Route::CreateSession, Fault::Status(400));
    stage.manager.create_task_session(request("task").replace()).await.unwrap_err();
    assert_eq!(stage.manager.task_session_id(&"task".into()), Some(new.session_id));
}

#[tokio::test]
async fn a_task_is_made_a_session_by_one_call_at_a_time() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let manager = ConversationManager::builder(client(&fake)).build();
    fake.inject(Route::CreateSession, Fault::DelayUntil("gate".to_owned()));
    let first = manager.create_task_session(request("task"));
    let second = async {
        fake.wait_at("gate").await;
        let error = manager.create_task_session(request("task")).await.unwrap_err();
        assert!(
            matches!(&error, SessionError::InProgress { task, .. } if task.as_str() == "task"),
            "{error:?}"
        );
        let error = manager.create_task_session(request("task").replace()).await.unwrap_err();
        assert!(matches!(error, SessionError::InProgress { .. }), "{error:?}");
        fake.open_gate("gate");
    };
    let (first, ()) = Box::pin(soon(async { tokio::join!(first, second) })).await;
    first.unwrap();
    assert_eq!(fake.sessions().len(), 1);
    // Dropping the call frees the task.
    fake.inject(Route::CreateSession, Fault::DelayUntil("never".to_owned()));
    let mut dropped = Box::pin(manager.create_task_session(request("other")));
    tokio::select! {
        _ = &mut dropped => panic!("it is held"),
        () = fake.wait_at("never") => {}
    }
    drop(dropped);
    manager.create_task_session(request("other")).await.unwrap();
}

#[tokio::test]
async fn what_was_asked_for_is_what_is_known() {
    let fake = FakeOpenCode::start_with(quick()).await.unwrap();
    let manager = ConversationManager::builder(client(&fake)).build();
    let moment: Timestamp = "2024-05-06T07:08:09.010Z".parse().unwrap();
    let rule = PermissionRule::new("bash", "*", PermissionAction::Allow);
    let request = CreateTaskSession::new("p1", "t1", "/repo/", "/repo//wt/./a/")
        .title("  Fix\tthe\n bug \u{7} ")
        .created_at(moment)
        .permissions([rule]);
    let meta = manager.create_task_session(request).await.unwrap();
    assert_eq!(meta.task_id.as_ref().map(TaskId::as_str), Some("t1"));
    assert_eq!(meta.project_id.as_ref().map(ProjectId::as_str), Some("p1"));
    assert_eq!(meta.project_directory, Some(PathBuf::from("/repo/")));
    assert_eq!(meta.directory, Directory::new("/repo/wt/a").unwrap());
    assert_eq!(meta.title, "Fix the bug");
    assert_eq!(meta.created_at, moment);
    assert_eq!(manager.session(&meta.session_id), Some(meta.clone()));
    assert_eq!(manager.session_directory(&meta.session_id), Some(meta.directory.clone()));
    assert_eq!(manager.task_session_id(&"t1".into()), Some(meta.session_id.clone()));
    let stored = &fake.sessions()[0];
    assert_eq!(stored["title"], "Fix the bug");
    assert_eq!(stored["directory"], "/repo/wt/a");
    assert_eq!(stored["permission"], json!([{"permission": "bash", "pattern": "*", "action": "allow"}]));
    // Without a time of its own it has the server's.
    let meta = manager.create_task_session(self::request("t2")).await.unwrap();
    let created = fake.sessions()[1]["time"]["created"].as_i64().unwrap();
    assert_eq!(meta.created_at, opencode_conductor::Millis::new(created).into());
    assert_eq!(meta.title, "t2");
}

#[tokio::test]
async fn bad_input_is_refused_by_name_before_anything_is_sent() {
    let stage = Stage::new().await;
    let before = stage.fake.requests().len();
    let sessions = [
        (CreateTaskSession::new("p", "", "/p", "/p/w"), "task id"),
        (CreateTaskSession::new("p", " \t", "/p", "/p/w"), "task id"),
        (CreateTaskSession::new("p", "a\u{0}b", "/p", "/p/w"), "task id"),
        (CreateTaskSession::new("", "t", "/p", "/p/w"), "project id"),
        (CreateTaskSession::new("\n", "t", "/p", "/p/w"), "project id"),
        (CreateTaskSession::new("p", "t", "p", "/p/w"), "project directory"),
        (CreateTaskSession::new("p", "t", "", "/p/w"), "project directory"),
        (CreateTaskSession::new("p", "t", "/p", "w"), "worktree"),
        (CreateTaskSession::new("p", "t", "/p", ""), "worktree"),
        (CreateTaskSession::new("p", "t", "/p", "/p/\0"), "worktree"),
        (CreateTaskSession::new("p", "t", "/p", "/p/w").title(" \n "), "title"),
        (CreateTaskSession::new("p", "t", "/p", "/p/w").title("\u{1}\u{1b}\u{7f}"), "title"),
    ];
    for (request, field) in sessions {
        let case = format!("{request:?}");
        let error = stage.manager.create_task_session(request).await.unwrap_err();
        let SessionError::Invalid(InvalidInput { field: found, .. }) = error else {
            panic!("{case}: {error:?}")
        };
        assert_eq!(found, field, "{case}");
    }
    let input = || PromptInput::new(stage.session.clone(), "text");
    let to = |session: &str| PromptInput::new(session, "text");
    let year = std::time::Duration::from_secs(400 * 24 * 3600);
    let zero = std::time::Duration::ZERO;
    let wait = WaitOptions::default;
    let prompts = [
        (to(""), "session id"),
        (to("  "), "session id"),
        (to("msg_1"), "session id"),
        (to("ses_../x"), "session id"),
        (to("ses_a b"), "session id"),
        (PromptInput::new(stage.session.clone(), ""), "prompt"),
        (PromptInput::new(stage.session.clone(), " \n\t"), "prompt"),
        (input().agent(" "), "agent"),
        (input().mention(""), "agent"),
        (input().model(ModelRef::new("", "m")), "model"),
        (input().model(ModelRef::new("mock", " ")), "model"),
        (input().system(" "), "system"),
        (input().variant(""), "variant"),
        (input().directory("relative"), "directory"),
        (to("ses_elsewhere").directory("relative"), "directory"),
        (input().bytes("a.png", "png", vec![1, 2, 3]), "media type"),
        (input().bytes("a.png", "image/png", vec![0; (32 << 20) + 1]), "attachment"),
        (input().idle_timeout(zero), "idle_timeout"),
        (input().idle_timeout(year), "idle_timeout"),
        (input().wait(wait().tool_timeout(zero)), "tool_timeout"),
        (input().wait(wait().retry_budget(year)), "retry_budget"),
        (input().wait(wait().start_timeout(zero)), "start_timeout"),
        (input().wait(wait().settle_grace(zero)), "settle_grace"),
        (input().wait(wait().deadline(zero)), "deadline"),
        (input().wait(wait().max_steps(0)), "max_steps"),
    ];
    for (input, field) in prompts {
        let case = format!("{input:?}");
        let error = stage.send(input).await.unwrap_err();
        assert_eq!(error.delivery(), Delivery::NotSent, "{case}");
        let PromptError::Invalid(InvalidInput { field: found, .. }) = error else {
            panic!("{case}: {error:?}")
        };
        assert_eq!(found, field, "{case}");
    }
    let bad: SessionId = "nonsense".into();
    let manager = &stage.manager;
    assert!(matches!(manager.adopt_session("t", &bad).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.adopt_session("", &stage.session).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.abort(&bad).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.delete(&bad).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.list_conversation_messages(&bad).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.load_conversation(&bad).await, Err(SessionError::Invalid(_))));
    assert!(matches!(manager.wait_for_session_idle(&bad, wait()).await, Err(PromptError::Invalid(_))));
    let endless = manager.wait_for_session_idle(&stage.session, wait().idle_timeout(year)).await;
    assert!(matches!(endless, Err(PromptError::Invalid(_))));
    let unknown = manager.subscribe_to_events(&"ses_unknown".into());
    assert!(
        matches!(unknown, Err(SessionError::Unknown { session, .. }) if session.as_str() == "ses_unknown")
    );
    assert!(ConversationManager::builder(client(&stage.fake)).wait(wait().max_steps(0)).is_err());
    assert_eq!(stage.fake.requests().len(), before, "nothing was sent");
    assert_eq!(stage.manager.task_session_id(&"t".into()), None, "nothing was noted");
    assert_eq!(stage.fake.sessions().len(), 1);
}

#[tokio::test]
async fn a_timeout_of_a_prompt_changes_only_that_limit() {
    let wait = WaitOptions::default().max_steps(2).settle_grace(ms(300));
    let stage = Stage::with(quick(), |manager| manager.wait(wait).unwrap()).await;
    let endless = with(Script::new([with(Step::default(), |it| it.drop = true)]), |it| it.repeat_last = true);
    let result = stage.send(stage.input(&endless).idle_timeout(ms(20_000))).await.unwrap();
    assert!(
        matches!(result.completion, Completion::TimedOut { limit: Limit::Steps, .. }),
        "{:?}",
        result.completion
    );
    assert!(result.messages.opencode().len() < 50);
}

#[tokio::test]
async fn a_session_made_elsewhere_can_be_adopted() {
    let stage = Stage::new().await;
    let made = stage.ask(&Script::new([bash("ls", "x\n"), Step::text("before")])).await.unwrap();
    let fresh = ConversationManager::builder(client(&stage.fake)).build();
    let meta = fresh.adopt_session("task", &stage.session).await.unwrap();
    assert_eq!(meta.session_id, stage.session);
    assert_eq!(meta.directory.as_str(), WORKTREE);
    assert_eq!(meta.task_id.as_ref().map(TaskId::as_str), Some("task"));
    assert_eq!(fresh.task_session_id(&"task".into()), Some(stage.session.clone()));
    // Again is as good as once; another session is not.
    fresh.adopt_session("task", &stage.session).await.unwrap();
    let other = create(&stage.manager, "other").await;
    let error = fresh.adopt_session("task", &other).await.unwrap_err();
    assert!(matches!(error, SessionError::TaskHasSession { .. }), "{error:?}");
    // One session is not of two tasks.
    let error = fresh.adopt_session("second", &stage.session).await.unwrap_err();
    assert!(
        matches!(&error, SessionError::TaskHasSession { task, .. } if task.as_str() == "task"),
        "{error:?}"
    );
    assert_eq!(fresh.task_session_id(&"second".into()), None);
    let error = fresh.adopt_session("third", &"ses_unknown".into()).await.unwrap_err();
    let SessionError::Agent { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.is_not_found());
    assert_eq!(fresh.task_session_id(&"third".into()), None);
    // All that was said before can be had.
    assert_eq!(fresh.conversation(&stage.session).unwrap().blocks().len(), 0);
    let loaded = fresh.load_conversation(&stage.session).await.unwrap();
    assert_eq!(loaded, made.conversation);
    assert_eq!(fresh.conversation(&stage.session).unwrap(), loaded);
    let listed = fresh.list_conversation_messages(&stage.session).await.unwrap().messages;
    assert_eq!(listed.len(), 3);
}

#[tokio::test]
async fn a_session_that_was_prompted_first_can_be_adopted_later() {
    let stage = Stage::new().await;
    let fresh = ConversationManager::builder(client(&stage.fake)).build();
    soon(fresh.prompt(stage.input(&texts("first"))).into_future()).await.unwrap();
    assert_eq!(fresh.session(&stage.session).unwrap().task_id, None);
    let meta = fresh.adopt_session("task", &stage.session).await.unwrap();
    assert_eq!(meta.task_id.as_ref().map(TaskId::as_str), Some("task"));
    assert_eq!(fresh.task_session_id(&"task".into()), Some(stage.session.clone()));
    assert_eq!(fresh.session(&stage.session), Some(meta));
    assert_eq!(fresh.conversation(&stage.session).unwrap().blocks().len(), 2, "what was seen is kept");
}

#[tokio::test]
async fn loading_a_conversation_gives_what_a_transcript_gives() {
    let scripts = [
        ("error", Script::new([Step::error(400)])),
        ("subagent", Script::new([Step::tool(task(&texts("part"))), Step::text("done")])),
        ("rejection", Script::new([Step::tool(asking_tool("x")), Step::text("done")])),
        ("dropped", Script::new([with(Step::text("half"), |it| it.drop = true), Step::text("done")])),
    ];
    for (case, script) in scripts {
        let stage = Stage::new().await;
        stage.ask(&script).await.unwrap();
        let fresh = ConversationManager::builder(client(&stage.fake)).build();
        stage.check_conversation(case, &fresh.load_conversation(&stage.session).await.unwrap());
        // And a prompt on top of it agrees, too.
        let next = soon(fresh.prompt(stage.input(&texts("next"))).into_future()).await.unwrap();
        stage.check_conversation(case, &next.conversation);
    }
}

#[tokio::test]
async fn an_adopted_session_goes_on_with_its_model_and_agent() {
    let stage = Stage::of(quick().model("mock/other")).await;
    let input = stage.input(&texts("first")).model(ModelRef::new("mock", "other")).agent("plan");
    stage.send(input).await.unwrap();
    for manager in [stage.manager.clone(), ConversationManager::builder(client(&stage.fake)).build()] {
        soon(manager.prompt(stage.input(&texts("next"))).into_future()).await.unwrap();
        let messages = stage.fake.messages(stage.session.as_str());
        let last = &messages.last().unwrap()["info"];
        assert_eq!(last["modelID"], "other");
        assert_eq!(last["agent"], "plan");
    }
    // The manager's own wishes are for sessions that have none.
    let wishful = ConversationManager::builder(client(&stage.fake))
        .model(ModelRef::new("mock", "other"))
        .agent("explore")
        .build();
    let session = create(&wishful, "wishful").await;
    let input = PromptInput::new(session.clone(), texts("x").prompt("y"));
    soon(wishful.prompt(input).into_future()).await.unwrap();
    let info = stage.fake.messages(session.as_str()).last().unwrap()["info"].clone();
    assert_eq!((info["modelID"].as_str(), info["agent"].as_str()), (Some("other"), Some("explore")));
}

#[tokio::test]
async fn a_prompt_finds_a_session_by_itself() {
    for directory in [None, Some(WORKTREE), Some("/somewhere/else")] {
        let stage = Stage::new().await;
        let fresh = ConversationManager::builder(client(&stage.fake)).build();
        let mut input = stage.input(&texts("found")).wait(waits());
        if let Some(directory) = directory {
            input = input.directory(directory);
        }
        let result = soon(fresh.prompt(input).into_future()).await.unwrap();
        assert_eq!(result.completion, Completion::Settled, "{directory:?}");
        stage.check("found", &result);
        // The server's word counts: status and events of any other directory would be those of strangers.
        assert_eq!(fresh.session_directory(&stage.session), Some(Directory::new(WORKTREE).unwrap()));
    }
    let stage = Stage::new().await;
    let elsewhere = stage.input(&texts("never")).directory("/somewhere/else");
    let error = stage.send(elsewhere).await.unwrap_err();
    assert!(
        matches!(&error, PromptError::Session { source: SessionError::OtherDirectory { known, .. }, .. } if known == WORKTREE),
        "{error:?}"
    );
    assert_eq!(stage.requests(Route::PromptAsync), 0, "nothing was sent");
    let error = stage.send(PromptInput::new("ses_unknown", "hello")).await.unwrap_err();
    let PromptError::Session { source: SessionError::Agent { source, .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(source.is_not_found());
    assert!(!error.is_retryable());
    assert_eq!(error.delivery(), Delivery::NotSent);
    assert_eq!(stage.manager.session(&"ses_unknown".into()), None);
}

#[tokio::test]
async fn what_is_deleted_or_forgotten_is_unknown() {
    let stage = Stage::new().await;
    stage.manager.forget(&stage.session);
    assert_eq!(stage.manager.task_session_id(&"task".into()), None);
    assert_eq!(stage.manager.session(&stage.session), None);
    assert!(stage.manager.conversation(&stage.session).is_none());
    assert_eq!(stage.fake.sessions().len(), 1, "it stays on the server");
    stage.manager.adopt_session("task", &stage.session).await.unwrap();
    stage.fake.inject(Route::DeleteSession, Fault::Status(500)).always();
    let error = stage.manager.delete(&stage.session).await.unwrap_err();
    assert!(matches!(error, SessionError::Agent { .. }), "{error:?}");
    assert!(stage.manager.session(&stage.session).is_some(), "nothing is lost by a failure");
    stage.fake.clear_faults();
    stage.manager.delete(&stage.session).await.unwrap();
    assert!(stage.fake.sessions().is_empty());
    assert_eq!(stage.manager.task_session_id(&"task".into()), None);
    stage.manager.delete(&stage.session).await.unwrap();
}

#[tokio::test]
async fn a_deleted_child_does_not_take_the_session_with_it() {
    let stage = Stage::new().await;
    stage.ask(&Script::new([Step::tool(task(&texts("part"))), Step::text("done")])).await.unwrap();
    let child = stage.fake.sessions().into_iter().find(|session| session["parentID"].is_string()).unwrap();
    let child: SessionId = child["id"].as_str().unwrap().into();
    let running = stage.start(&gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    // Deleted where the manager does not see it.
    stage.fake.inject(Route::Event, Fault::DelayUntil("stream".to_owned()));
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|log| log.open_streams == 0)).await;
    stage.manager.client().unwrap().default_directory().delete_session(&child).await.unwrap();
    stage.fake.open_gate("stream");
    stage.fake.open_gate("gate");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
}

#[tokio::test]
async fn waiting_for_rest_tells_how_the_session_rests() {
    let wait = || waits().idle_timeout(ms(20_000));
    // Nothing was ever asked.
    let stage = Stage::new().await;
    let idle = stage.manager.wait_for_session_idle(&stage.session, wait()).await.unwrap();
    assert_eq!(idle, IdleOutcome::Rest(None));
    // An answer, a failure.
    stage.ask(&texts("done")).await.unwrap();
    let idle = stage.manager.wait_for_session_idle(&stage.session, wait()).await.unwrap();
    assert_eq!(idle, IdleOutcome::Rest(Some(Completion::Settled)));
    stage.ask(&Script::new([Step::error(400)])).await.unwrap();
    let idle = stage.manager.wait_for_session_idle(&stage.session, wait()).await.unwrap();
    assert!(matches!(idle, IdleOutcome::Rest(Some(Completion::Failed(_)))), "{idle:?}");
    // A prompt that the server does not run.
    stage.fake.inject(Route::PromptAsync, Fault::LosePrompt).always();
    stage.send(stage.input(&texts("never")).wait(wait().max_kicks(0))).await.unwrap_err();
    stage.fake.clear_faults();
    let idle = stage.manager.wait_for_session_idle(&stage.session, wait()).await.unwrap();
    assert_eq!(idle, IdleOutcome::Unanswered);
}

#[tokio::test]
async fn a_restarted_runner_waits_for_what_runs() {
    for flavour in [Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1] {
        let stage = Stage::of(quick().flavour(flavour)).await;
        let running = stage.start(&gated_text("gate", "one two three four"));
        soon(stage.fake.wait_at("gate")).await;
        drop(running);
        let fresh = ConversationManager::builder(client(&stage.fake)).build();
        let status = stage.requests(Route::Status);
        let wait = fresh.wait_for_session_idle(&stage.session, waits());
        let open = async {
            stage.fake.wait_for(|log| log.count(Route::Status) > status).await;
            stage.fake.open_gate("gate");
        };
        let (idle, ()) = Box::pin(soon(async { tokio::join!(wait, open) })).await;
        assert_eq!(idle.unwrap(), IdleOutcome::Rest(Some(Completion::Settled)), "{flavour:?}");
        assert_eq!(stage.prompts_run().len(), 1);
    }
}

#[tokio::test]
async fn after_a_crash_of_the_server_the_session_rests_interrupted() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three four"));
    soon(stage.fake.wait_at("gate")).await;
    drop(running);
    stage.fake.restart().await.unwrap();
    let fresh = ConversationManager::builder(client(&stage.fake)).build();
    let idle = soon(fresh.wait_for_session_idle(&stage.session, waits())).await.unwrap();
    assert_eq!(idle, IdleOutcome::Rest(Some(Completion::Interrupted)));
}

#[tokio::test]
async fn waiting_for_rest_ends_at_its_limit() {
    let stage = Stage::new().await;
    let running = stage.start(&gated_text("gate", "one two three four"));
    soon(stage.fake.wait_at("gate")).await;
    drop(running);
    let wait = waits().idle_timeout(ms(200)).on_limit(opencode_conductor::TimeoutAction::Leave);
    let error = soon(stage.manager.wait_for_session_idle(&stage.session, wait)).await.unwrap_err();
    assert!(matches!(error, PromptError::NotAtRest { limit: Limit::Idle, .. }), "{error:?}");
    assert_eq!(stage.requests(Route::Abort), 0);
    assert!(!stage.is_idle().await);
    let wait = waits().idle_timeout(ms(200));
    let error = soon(stage.manager.wait_for_session_idle(&stage.session, wait)).await.unwrap_err();
    assert!(matches!(error, PromptError::NotAtRest { limit: Limit::Idle, .. }), "{error:?}");
    assert!(stage.is_idle().await, "the default is to abort");
    let gone = stage.manager.wait_for_session_idle(&"ses_unknown".into(), waits()).await.unwrap_err();
    assert!(matches!(gone, PromptError::Session { source: SessionError::Agent { .. }, .. }), "{gone:?}");
}

#[tokio::test]
async fn an_early_prompt_on_a_cold_server_is_kicked_harmlessly() {
    // The run needs longer to begin than the manager waits; what it does about it changes nothing.
    let stage = Stage::new().await;
    stage.fake.hold(Moment::BeforeRun, "cold");
    let running =
        stage.manager.prompt(stage.input(&texts("late")).wait(waits().start_timeout(ms(50)))).start();
    soon(stage.fake.wait_for(|log| log.count(Route::PromptAsync) >= 3)).await;
    stage.fake.release(Moment::BeforeRun);
    stage.fake.open_gate("cold");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    stage.check("cold", &result);
    stage.check_conversation("cold", &result.conversation);
}

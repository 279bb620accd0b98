//! Permissions and questions never hang a run, wherever in the tree they come from.

use std::sync::{Arc, Mutex};

use futures_util::{
    StreamExt,
    future::{join_all, ready},
};
use opencode_conductor::{
    Completion, Decision, Directory, ManagerBuilder, Method, PermissionPolicy, PromptExecutionResult,
    QuestionPolicy, RawRequest, Update,
    test_util::{Fault, Flavour, Route, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

use super::support::{
    soon,
    stage::{
        Stage, WORKTREE, asking_tool, bash_tool, create, gated_tool, ms, quick, task, texts, waits, with,
    },
};

type Settings = fn(ManagerBuilder) -> ManagerBuilder;
type Check = fn(&PromptExecutionResult) -> bool;

fn question() -> ScriptedTool {
    let questions = json!([
        {"question": "Which database?", "header": "Database", "options": [{"label": "pg", "description": "x"}]},
        {"question": "Which port?", "header": "Port", "options": []},
    ]);
    ScriptedTool::new("question", json!({"questions": questions}))
}

/// All tool parts of all sessions.
fn tools(stage: &Stage) -> Vec<Value> {
    let sessions = stage.fake.sessions();
    let messages = sessions.iter().flat_map(|session| stage.fake.messages(session["id"].as_str().unwrap()));
    let parts = messages.flat_map(|message| message["parts"].as_array().unwrap().clone());
    parts.filter(|part| part["type"] == "tool" && part["tool"] != "task").collect()
}

#[tokio::test]
async fn a_policy_answers_for_the_whole_tree() {
    let settled: Check = |result| result.completion == Completion::Settled;
    let refused: Check = |result| result.completion == Completion::Refused;
    let cases: Vec<(&str, ScriptedTool, Settings, Check, &str)> = vec![
        ("default", asking_tool("touch x"), |m| m, settled, "not allowed here"),
        (
            "reject",
            asking_tool("touch x"),
            |m| m.permissions(PermissionPolicy::Reject),
            settled,
            "not allowed here",
        ),
        ("once", asking_tool("touch x"), |m| m.permissions(PermissionPolicy::AllowOnce), settled, "done"),
        ("always", asking_tool("touch x"), |m| m.permissions(PermissionPolicy::AllowAlways), settled, "done"),
        ("fail", asking_tool("touch x"), |m| m.permissions(PermissionPolicy::FailTurn), refused, ""),
        (
            "ask, once",
            asking_tool("touch x"),
            |m| m.permissions(PermissionPolicy::ask(|_| async { Decision::AllowOnce })),
            settled,
            "done",
        ),
        (
            "ask, always",
            asking_tool("touch x"),
            |m| m.permissions(PermissionPolicy::ask(|_| async { Decision::AllowAlways })),
            settled,
            "done",
        ),
        (
            "ask, reject",
            asking_tool("touch x"),
            |m| {
                m.permissions(PermissionPolicy::ask(|ask| async move {
                    Decision::Reject(format!("no {}", ask.permission().unwrap().patterns.join("")))
                }))
            },
            settled,
            "no touch x",
        ),
        (
            "ask, fail",
            asking_tool("touch x"),
            |m| m.permissions(PermissionPolicy::ask(|_| async { Decision::FailTurn })),
            refused,
            "",
        ),
        ("question by default", question(), |m| m, settled, "say in your answer what you assumed"),
        (
            "question, decline",
            question(),
            |m| m.questions(QuestionPolicy::Decline),
            settled,
            "No one is available",
        ),
        ("question, fail", question(), |m| m.questions(QuestionPolicy::FailTurn), refused, ""),
        (
            "question, answer",
            question(),
            |m| {
                m.questions(QuestionPolicy::ask(|ask| async move {
                    assert_eq!(ask.questions().len(), 2);
                    Decision::Answer(vec![vec!["pg".to_owned()], vec!["5432".to_owned()]])
                }))
            },
            settled,
            "\"Which port?\"=\"5432\"",
        ),
        (
            "question, ask, decline",
            question(),
            |m| m.questions(QuestionPolicy::ask(|ask| async move { ask.decline() })),
            settled,
            "No one is available",
        ),
        (
            "question, ask, fail",
            question(),
            |m| m.questions(QuestionPolicy::ask(|_| async { Decision::FailTurn })),
            refused,
            "",
        ),
    ];
    let flavours = [Flavour::V1_18, Flavour::V1_1];
    let places = cases.into_iter().flat_map(|case| [false, true].map(|in_child| (case.clone(), in_child)));
    let cases = places.flat_map(|(case, in_child)| flavours.map(|flavour| (case.clone(), in_child, flavour)));
    join_all(cases.map(|((name, tool, settings, expected, shown), in_child, flavour)| async move {
        let case = format!("{name}, in a child: {in_child}, {flavour:?}");
        let stage = Stage::with(quick().flavour(flavour), settings).await;
        let own = Script::new([Step::tool(tool.clone()), Step::tool(tool), Step::text("done")]);
        let script = if in_child { Script::new([Step::tool(task(&own)), Step::text("done")]) } else { own };
        let result = stage.ask(&script).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert!(expected(&result), "{case}: {:?}", result.completion);
        assert!(stage.is_idle().await, "{case}: nothing waits any more");
        stage.check(&case, &result);
        stage.check_conversation(&case, &result.conversation);
        if result.completion.is_settled() {
            assert_eq!(result.answer().as_deref(), Some("done"), "{case}");
            let calls = tools(&stage);
            assert_eq!(calls.len(), 2, "{case}");
            for call in calls {
                let end = &call["state"];
                let said = format!(
                    "{}{}",
                    end["output"].as_str().unwrap_or_default(),
                    end["error"].as_str().unwrap_or_default()
                );
                assert!(said.contains(shown), "{case}: {said}");
            }
        }
        if name.contains("always") {
            assert_eq!(stage.requests(Route::ReplyPermission), 1, "{case}: asked once");
        }
    }))
    .await;
}

/// The same call for the third time in one step. Told to stop, the server fails the whole turn, whatever the model is told.
#[tokio::test]
async fn a_loop_goes_on_or_ends_the_turn_as_the_policy_says() {
    let cases: [(Settings, Completion); 3] = [
        (|m| m, Completion::Rejected),
        (|m| m.permissions(PermissionPolicy::AllowOnce), Completion::Settled),
        (|m| m.permissions(PermissionPolicy::FailTurn), Completion::Refused),
    ];
    for (settings, completion) in cases {
        let stage = Stage::with(quick(), settings).await;
        let same = with(Step::default(), |it| it.tools = vec![bash_tool("echo again", "again\n"); 3]);
        let result = soon(stage.start(&Script::new([same, Step::text("enough")]))).await.unwrap();
        assert_eq!(result.completion, completion);
        stage.check_conversation(&format!("{completion:?}"), &result.conversation);
    }
}

#[tokio::test]
async fn what_another_answers_is_not_waited_for() {
    // The handler never answers; another client does.
    for (reply, expected) in [("once", Completion::Settled), ("reject", Completion::Rejected)] {
        let asked = Arc::new(Mutex::new(None));
        let told = Arc::clone(&asked);
        let policy = PermissionPolicy::ask(move |request| {
            *told.lock().unwrap() = Some(request.id.to_string());
            std::future::pending()
        });
        let stage = Stage::with(quick(), |manager| manager.permissions(policy)).await;
        let script = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
        let mut running = stage.start(&script);
        let updates = running.updates().unwrap();
        soon(stage.fake.wait_for(|log| log.events_of(stage.session.as_str(), "permission.asked") == 1)).await;
        let list = RawRequest::new(Method::Get, "/permission").directory(&Directory::new(WORKTREE).unwrap());
        let pending = stage.manager.client().unwrap().raw(list).await.unwrap().json().unwrap();
        let id = pending[0]["id"].as_str().unwrap().to_owned();
        let request = RawRequest::new(Method::Post, format!("/permission/{id}/reply"))
            .directory(&Directory::new(WORKTREE).unwrap())
            .json(json!({"reply": reply}));
        assert_eq!(stage.manager.client().unwrap().raw(request).await.unwrap().status, 200);
        let result = soon(running).await.unwrap();
        assert_eq!(result.completion, expected, "{reply}");
        assert_eq!(asked.lock().unwrap().as_deref(), Some(id.as_str()));
        let closed = Update::RequestClosed(id.into());
        assert_eq!(updates.filter(|update| ready(*update == closed)).count().await, 1, "{reply}");
        stage.check_conversation(reply, &result.conversation);
    }
}

#[tokio::test]
async fn an_answer_is_repeated_until_it_arrives() {
    for fault in
        [Fault::DropBeforeEffect, Fault::DropAfterEffect, Fault::Status(503), Fault::StatusAfterEffect(502)]
    {
        let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
        stage.fake.inject(Route::ReplyPermission, fault.clone()).times(2);
        let result =
            stage.ask(&Script::new([Step::tool(asking_tool("touch x")), Step::text("done")])).await.unwrap();
        assert_eq!(result.completion, Completion::Settled, "{fault:?}");
        assert_eq!(tools(&stage)[0]["state"]["status"], "completed", "{fault:?}");
    }
}

/// Asks, in the root or in a child, while a gate keeps the tool from asking too early.
fn asking_later(tool: &ScriptedTool, in_child: bool) -> Script {
    let first = Step::tool(gated_tool("gate"));
    let own = Script::new([first, Step::tool(tool.clone()), Step::text("done")]);
    if in_child { Script::new([Step::tool(task(&own)), Step::text("done")]) } else { own }
}

#[tokio::test]
async fn what_is_asked_during_a_gap_is_answered_after_it() {
    let cases = [
        ("permission", asking_tool("touch x"), false),
        ("permission of a child", asking_tool("touch x"), true),
        ("question", question(), false),
        ("question of a child", question(), true),
    ];
    join_all(cases.map(|(case, tool, in_child)| async move {
        let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
        let stage = Stage::with(quick(), allow).await;
        let running = stage.start(&asking_later(&tool, in_child));
        soon(stage.fake.wait_at("gate")).await;
        // The stream stays away until the request has been made, and the first look at it fails.
        stage.fake.inject(Route::Event, Fault::DelayUntil("stream".to_owned())).always();
        let list = if case.starts_with("permission") { Route::ListPermissions } else { Route::ListQuestions };
        stage.fake.inject(list, Fault::Status(503)).times(4);
        stage.fake.cut_streams();
        soon(stage.fake.wait_for(|log| log.open_streams == 0)).await;
        stage.fake.open_gate("gate");
        let asked = |log: &opencode_conductor::test_util::Log| {
            log.events
                .iter()
                .any(|event| matches!(event.kind.as_str(), "permission.asked" | "question.asked"))
        };
        soon(stage.fake.wait_for(asked)).await;
        stage.fake.clear_faults();
        stage.fake.inject(list, Fault::Status(503)).times(4);
        stage.fake.open_gate("stream");
        let result = soon(running).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "{case}");
        stage.check(case, &result);
        stage.check_conversation(case, &result.conversation);
    }))
    .await;
}

#[tokio::test]
async fn without_a_stream_requests_are_found_by_polling() {
    join_all([false, true].map(|in_child| async move {
        let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
        let stage = Stage::with(quick(), allow).await;
        stage.fake.inject(Route::Event, Fault::Status(503)).always();
        let own =
            Script::new([Step::tool(asking_tool("touch x")), Step::tool(question()), Step::text("done")]);
        let script = if in_child { Script::new([Step::tool(task(&own)), Step::text("done")]) } else { own };
        let result = stage.ask(&script).await.unwrap();
        assert_eq!(result.completion, Completion::Settled);
        stage.check("polled", &result);
        stage.check_conversation("polled", &result.conversation);
    }))
    .await;
}

#[tokio::test]
async fn a_child_that_is_found_late_is_listened_to_from_then_on() {
    // This release does not say that a session was created, so the child is found by looking.
    let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
    let stage = Stage::with(quick().flavour(Flavour::V1_15_0), allow).await;
    let own = Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]);
    let script = Script::new([Step::tool(task(&own)), Step::text("done")]);
    let before = stage.fake.requests().len();
    let result = stage.ask(&script).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let n_looks =
        stage.fake.requests()[before..].iter().filter(|request| request.path.ends_with("/message")).count();
    assert!(n_looks <= 6, "{n_looks} reads of messages");
    stage.check("late", &result);
    stage.check_conversation("late", &result.conversation);
}

#[tokio::test]
async fn a_child_of_an_earlier_turn_is_listened_to_again() {
    let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
    let stage = Stage::with(quick(), allow).await;
    stage.ask(&Script::new([Step::tool(task(&texts("first"))), Step::text("done")])).await.unwrap();
    let child = stage.fake.sessions().into_iter().find(|session| session["parentID"].is_string()).unwrap();
    let mut resumed = task(&Script::new([Step::tool(asking_tool("touch x")), Step::text("second")]));
    resumed.args["task_id"] = child["id"].clone();
    let script = Script::new([Step::tool(resumed), Step::text("done")]);
    let result = stage.send(stage.input(&script).wait(waits().idle_timeout(ms(5000)))).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(tools(&stage)[0]["state"]["status"], "completed");
    stage.check("resumed", &result);
    stage.check_conversation("resumed", &result.conversation);
}

/// A model can name any session in a call. Here it resumes one that belongs to another task: what that session asks is for its owner
/// to answer, its usage is not this turn's, and an abort leaves it out.
#[tokio::test]
async fn a_session_that_the_model_merely_names_is_not_answered_counted_or_aborted() {
    let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
    let stage = Stage::with(quick(), allow).await;
    let stranger = create(&stage.manager, "of another").await;
    let mut resumed = task(&Script::new([Step::tool(asking_tool("touch theirs")), Step::text("theirs")]));
    resumed.args["task_id"] = stranger.as_str().into();
    let running = stage.start(&Script::new([Step::tool(resumed), Step::text("done")]));
    soon(stage.fake.wait_for(|log| log.events_of(stranger.as_str(), "permission.asked") == 1)).await;
    // After a gap everything that is pending is listed: still none of our business.
    let before = stage.requests(Route::ListPermissions);
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|log| log.count(Route::ListPermissions) > before)).await;
    let report = soon(stage.manager.abort(&stage.session)).await.unwrap();
    assert_eq!(report.sessions, std::slice::from_ref(&stage.session));
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    assert_eq!(stage.requests(Route::ReplyPermission), 0, "no policy answered");
    assert_eq!(result.usage_by_session.keys().collect::<Vec<_>>(), [&stage.session]);
    let thread = result.conversation.subagents().next().expect("it shows where the call stands");
    assert_eq!(thread.metadata.messages().count(), 0, "what it used is not counted");
}

#[tokio::test]
async fn a_ghost_of_an_aborted_turn_is_not_answered() {
    let asked = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&asked);
    let policy = PermissionPolicy::ask(move |_| {
        *counter.lock().unwrap() += 1;
        std::future::pending()
    });
    let stage = Stage::with(quick(), |manager| manager.permissions(policy)).await;
    let running = stage.start(&Script::new([Step::tool(asking_tool("touch x")), Step::text("done")]));
    soon(stage.fake.wait_for(|log| log.events_of(stage.session.as_str(), "permission.asked") == 1)).await;
    assert!(stage.manager.abort(&stage.session).await.unwrap().confirmed);
    assert_eq!(soon(running).await.unwrap().completion, Completion::Aborted);
    // A gap makes the next turn read what is pending: the ghost is still listed.
    let next = stage.start(&super::support::stage::gated_text("gate", "one two three"));
    soon(stage.fake.wait_at("gate")).await;
    let before = stage.requests(Route::ListPermissions);
    stage.fake.cut_streams();
    soon(stage.fake.wait_for(|log| log.count(Route::ListPermissions) > before)).await;
    stage.fake.open_gate("gate");
    assert_eq!(soon(next).await.unwrap().completion, Completion::Settled);
    assert_eq!(*asked.lock().unwrap(), 1, "the handler is asked once");
    assert_eq!(stage.requests(Route::ReplyPermission), 0);
}

#[tokio::test]
async fn several_requests_at_once_are_all_answered() {
    let allow: Settings = |manager| manager.permissions(PermissionPolicy::AllowOnce);
    let stage = Stage::with(quick(), allow).await;
    let tools = (0..5).map(|n| asking_tool(&format!("touch {n}"))).collect();
    let script = Script::new([with(Step::default(), |it| it.tools = tools), Step::text("done")]);
    let result = stage.ask(&script).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(stage.requests(Route::ReplyPermission), 5, "each once");
}

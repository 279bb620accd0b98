//! One thing after another goes wrong, systematically.

use futures_util::future::join_all;
use opencode_conductor::{
    Completion, ConversationManager, PermissionPolicy, PromptError, SessionId,
    test_util::{FakeOpenCode, Fault, Flavour, Route, Script, Step},
};
use serde_json::{Value, json};

use super::support::{
    secrets, soon,
    stage::{
        Stage, WORKTREE, asking_tool, bash_tool, create, feed, gated_text, ms, quick, task, texts, waits,
        with,
    },
};

/// Something of everything.
fn script() -> Script {
    let own = Script::new([Step::tool(asking_tool("touch child")), Step::text("a part")]);
    let first = with(Step::default(), |it| {
        it.tools = vec![bash_tool("ls", "x\n"), asking_tool("touch root"), task(&own)];
    });
    Script::new([first, Step::text("All is well.")])
}

/// Runs a turn of which `fault` strikes one request, and says whether it struck.
async fn strike(
    case: String,
    flavour: Flavour,
    route: Route,
    fault: Fault,
    skip: usize,
    times: usize,
) -> bool {
    let fake = FakeOpenCode::start_with(quick().flavour(flavour)).await.unwrap();
    let client = secrets::client(&fake.url()).answer_timeout(ms(5000)).feed(feed()).build().unwrap();
    let manager = ConversationManager::builder(client)
        .permissions(PermissionPolicy::AllowOnce)
        .wait(waits())
        .unwrap()
        .build();
    let session = create(&manager, "task").await;
    let stage = Stage { fake, manager, session };
    let injection = stage.fake.inject(route, fault).after(skip).times(times);
    let turn = stage.manager.prompt(stage.input(&script())).into_future();
    let turn = tokio::time::timeout(super::support::PATIENCE, turn).await;
    let turn = turn.unwrap_or_else(|_| panic!("{case}: does not end"));
    let result = turn.unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let struck = injection.left() < times;
    assert_eq!(result.completion, Completion::Settled, "{case}");
    assert_eq!(result.answer().as_deref(), Some("All is well."), "{case}");
    stage.check(&case, &result);
    stage.check_conversation(&case, &result.conversation);
    stage.fake.clear_faults();
    let next = stage.ask(&texts("next")).await.unwrap_or_else(|error| panic!("{case}, next: {error:?}"));
    assert_eq!(next.answer().as_deref(), Some("next"), "{case}");
    stage.check(&case, &next);
    stage.check_conversation(&case, &next.conversation);
    struck
}

#[tokio::test]
async fn any_one_request_may_fail() {
    let faults = [
        Fault::DropBeforeEffect,
        Fault::DropAfterEffect,
        Fault::Status(503),
        Fault::StatusAfterEffect(502),
        Fault::Hang,
    ];
    let n_struck = async |flavour: Flavour| {
        let cases = faults.iter().flat_map(|fault| (0..10).map(move |skip| (fault.clone(), skip)));
        let struck = join_all(cases.map(|(fault, skip)| {
            strike(format!("{fault:?} of request {skip} on {flavour:?}"), flavour, Route::Any, fault, skip, 1)
        }))
        .await;
        struck.into_iter().filter(|struck| *struck).count()
    };
    // Most of the time they wait for requests that hang, so both at once.
    for n_struck in join_all([Flavour::V1_18, Flavour::V1_15_0].map(n_struck)).await {
        assert!(n_struck >= 5 * 5, "only {n_struck} faults struck");
    }
}

#[tokio::test]
async fn reads_that_fail_are_made_again() {
    let routes = [Route::ListMessages, Route::Status, Route::Config, Route::Children, Route::ListPermissions];
    let faults = [(Fault::Status(503), 7), (Fault::TruncateBody(5), 2), (Fault::Html, 2), (Fault::Hang, 2)];
    // A page instead of the requests is how old servers say that they have none.
    let old = |route: &Route, fault: &Fault| *route == Route::ListPermissions && *fault == Fault::Html;
    let cases = routes.into_iter().flat_map(|route| faults.clone().map(|fault| (route, fault)));
    let cases = cases.filter(|(route, (fault, _))| !old(route, fault));
    join_all(cases.map(|(route, (fault, times))| {
        // The release that needs the most reads.
        let case = format!("{fault:?} x {times} of {route:?}");
        strike(case, Flavour::V1_15_0, route, fault, 0, times)
    }))
    .await;
}

#[tokio::test]
async fn events_that_nobody_understands_do_no_harm() {
    let stage = Stage::new().await;
    let session = stage.session.as_str().to_owned();
    let events: Vec<(&str, Value)> = vec![
        ("message.updated", json!({"info": {"role": "assistant"}})),
        ("message.updated", json!({"sessionID": session, "info": {"id": 7, "sessionID": session}})),
        ("message.part.updated", json!({"sessionID": session, "part": "text"})),
        (
            "message.part.delta",
            json!({"sessionID": session, "messageID": "msg_none", "partID": "prt_none", "field": "text", "delta": "ghost"}),
        ),
        ("session.status", json!({"sessionID": session, "status": {"type": "dreaming", "of": "sheep"}})),
        ("session.status", json!({"sessionID": session})),
        ("session.error", json!({"error": {"name": "UnknownError", "data": {"message": "of nobody"}}})),
        ("session.error", json!({"sessionID": session, "error": "just text"})),
        ("permission.asked", json!({"id": "per_1", "sessionID": session})),
        (
            "permission.asked",
            json!({"id": "per_2", "sessionID": "ses_stranger", "permission": "bash", "patterns": [], "metadata": {}, "always": []}),
        ),
        (
            "session.created",
            json!({"info": {"id": "ses_stranger2", "parentID": "ses_stranger", "title": "t", "directory": "/", "time": {"created": 1, "updated": 1}}}),
        ),
        ("session.next.something", json!({"sessionID": session, "odd": [1, 2, 3]})),
        ("", json!(null)),
    ];
    let running = stage.start(&gated_text("gate", "one two three four"));
    soon(stage.fake.wait_at("gate")).await;
    for (kind, properties) in &events {
        stage.fake.send_event(WORKTREE, kind, properties.clone());
    }
    stage.fake.open_gate("gate");
    let result = soon(running).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.answer().as_deref(), Some("one two three four"));
    assert_eq!(stage.requests(Route::ReplyPermission), 1, "strangers are not answered");
    stage.check("odd events", &result);
    stage.check_conversation("odd events", &result.conversation);
}

#[tokio::test]
async fn an_event_that_is_too_large_is_read_instead() {
    let stage = Stage::new().await;
    let size = 17 << 20;
    let script = Script::new([with(Step::text(""), |it| it.blob = size)]);
    let result = stage.ask_unwatched(&script).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.answer().map(|answer| answer.len()), Some(size));
}

#[tokio::test]
async fn a_session_that_was_deleted_elsewhere_is_gone() {
    join_all([Flavour::V1_18, Flavour::V1_15_0, Flavour::V1_1].map(|flavour| async move {
        let stage = Stage::of(quick().flavour(flavour)).await;
        stage.ask(&texts("first")).await.unwrap();
        let session: SessionId = stage.session.clone();
        stage.manager.client().unwrap().default_directory().delete_session(&session).await.unwrap();
        let input = stage.input(&texts("never")).wait(waits());
        let error = stage.send(input).await.unwrap_err();
        assert!(matches!(error, PromptError::SessionGone { .. }), "{flavour:?}: {error:?}");
        assert_eq!(stage.manager.session(&session), None, "{flavour:?}: it is forgotten");
        assert_eq!(stage.manager.task_session_id(&"task".into()), None);
    }))
    .await;
}

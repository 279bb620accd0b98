//! The manager on a canned server: what it makes of answers that are whole bodies, and of an event stream that ends at once.

use std::time::Duration;

use futures_util::future::join_all;
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Delivery, PermissionPolicy, PromptError,
    PromptExecutionResult, PromptInput, SessionError, SessionId, WaitOptions,
};
use serde_json::{Value, json};

use crate::support::{
    mock::{OpenCodeMock, SESSION, answer, beginning, failure, prompt, told},
    secrets::checked,
    soon,
};

async fn create(manager: &ConversationManager) -> Result<SessionId, SessionError> {
    let request = CreateTaskSession::new("project", "task", "/project", "/project/worktree");
    Ok(checked(soon(manager.create_task_session(request)).await)?.session_id)
}

/// A server that makes a session and takes prompts, with its manager.
async fn stage() -> (OpenCodeMock, ConversationManager) {
    let mock = OpenCodeMock::start().await;
    mock.mock_create_session(&[]).await;
    mock.mock_prompt_async(204).await;
    let manager = mock.manager().build();
    create(&manager).await.unwrap();
    (mock, manager)
}

async fn ask(manager: &ConversationManager) -> Result<PromptExecutionResult, PromptError> {
    let input = PromptInput::new(SessionId::new(SESSION), "what is 2 + 2?");
    checked(soon(manager.send_initial_prompt_and_await_messages(input)).await)
}

/// A turn from nothing to its answer, as successive lists.
fn lists() -> Vec<Value> {
    let prompt = prompt("PROMPT1", 1);
    vec![
        json!([prompt]),
        json!([prompt, beginning("PROMPT1", 2)]),
        json!([prompt, answer("PROMPT1", "4", 2)]),
    ]
}

#[tokio::test]
async fn a_turn_ends_the_same_whatever_becomes_of_the_stream() {
    let whole = [prompt("PROMPT1", 1), answer("PROMPT1", "4", 2)];
    // What a connection gets, or the status of a server that has no stream.
    let streams: [(&str, Result<Vec<Value>, u16>); 5] = [
        ("says all and ends", Ok(told(&whole))),
        ("tells of the prompt, says idle too early and ends", Ok(told(&whole[..1]))),
        ("says that it is open and ends", Ok(told(&[]))),
        ("says nothing and ends", Ok(Vec::new())),
        ("is not there", Err(404)),
    ];
    let results = join_all(streams.map(|(case, stream)| async move {
        let (mock, manager) = stage().await;
        match stream {
            Ok(events) => mock.mock_events(events).await,
            Err(status) => mock.mock_no_events(status).await,
        }
        mock.mock_messages(lists()).await;
        mock.mock_status([json!({SESSION: {"type": "busy"}}), json!({})]).await;
        let result = ask(&manager).await.unwrap_or_else(|error| panic!("the stream {case}: {error:?}"));
        let prompts = mock.prompts();
        assert!(prompts.iter().all(|prompt| *prompt == prompts[0]), "the stream {case}: there is one prompt");
        (case, result)
    }))
    .await;
    for (case, result) in &results {
        assert_eq!(result.completion, Completion::Settled, "the stream {case}");
        assert_eq!(result.answer().as_deref(), Some("4"), "the stream {case}");
        assert_eq!(result.messages.opencode().len(), 1, "the stream {case}");
        assert_eq!(result.conversation.blocks().len(), 2, "the stream {case}");
    }
}

#[tokio::test]
async fn a_server_with_a_web_page_for_a_stream_is_polled() {
    let (mock, manager) = stage().await;
    mock.mock_messages(lists()).await;
    mock.mock_status([json!({})]).await;
    assert_eq!(ask(&manager).await.unwrap().answer().as_deref(), Some("4"));
}

/// A benchmark of clients has no more of a server than that, with a page or without for all else.
#[tokio::test]
async fn four_routes_make_a_server() {
    for page in [true, false] {
        let mock = OpenCodeMock::start().await;
        if !page {
            mock.mock_no_other_route().await;
        }
        mock.mock_create_session(&[]).await;
        mock.mock_prompt_async(204).await;
        mock.mock_messages(lists()).await;
        // It ends again and again, so that everything is read that there might be.
        mock.mock_events(told(&[prompt("PROMPT1", 1), answer("PROMPT1", "4", 2)])).await;
        let manager = mock.manager().build();
        create(&manager).await.unwrap();
        let result = ask(&manager).await.unwrap_or_else(|error| panic!("page: {page}: {error:?}"));
        assert_eq!(result.completion, Completion::Settled, "page: {page}");
        assert_eq!(result.answer().as_deref(), Some("4"), "page: {page}");
    }
}

/// A request of the guide's page on mocking: what it says that the least answer is, and what happens without one.
struct PageRoute {
    verb: String,
    path: String,
    answer: Value,
    /// The variant of the error without it; `None` if the turn settles all the same.
    error_without: Option<String>,
}

fn page_routes() -> Vec<PageRoute> {
    let page = include_str!("../../src/guide/mocking.md");
    let sections = page.split("\n## `").skip(1);
    let route = |section: &str| {
        let (route, text) = section.split_once("`\n").unwrap();
        let (verb, path) = route.split_once(' ').unwrap();
        let (_, code) = text.split_once("```json\n").unwrap();
        let json = code.split("```").next().unwrap().replace("PROMPT", "PROMPT1");
        let answer = if json.is_empty() { Value::Null } else { serde_json::from_str(&json).unwrap() };
        let variant = |rest: &str| rest.split("::").nth(1).unwrap().split('`').next().unwrap().to_owned();
        let error_without = text.split_once("**fails** with").map(|(_, rest)| variant(rest));
        assert!(
            error_without.is_some() != text.contains("**settles**"),
            "{route}: the page says one of them"
        );
        PageRoute { verb: verb.to_owned(), path: path.to_owned(), answer, error_without }
    };
    sections.map(route).collect()
}

#[tokio::test]
async fn the_page_on_mocking_names_what_a_turn_needs() {
    let routes = page_routes();
    let ends = join_all((0..=routes.len()).map(|missing| {
        let routes = &routes;
        async move {
            let mock = OpenCodeMock::start().await;
            mock.mock_no_other_route().await;
            for (_, route) in routes.iter().enumerate().filter(|(index, _)| *index != missing) {
                mock.mock_route(&route.verb, &route.path, route.answer.clone()).await;
            }
            let limits = WaitOptions::default().start_timeout(Duration::from_millis(500));
            let manager = mock.manager().wait(limits).unwrap().build();
            let end = match create(&manager).await {
                Ok(_) => ask(&manager).await.map_err(|error| format!("{error:?}")),
                Err(error) => Err(format!("{error:?}")),
            };
            (missing, end, mock.asked().await)
        }
    }))
    .await;
    for (missing, end, asked) in ends {
        let Some(route) = routes.get(missing) else {
            assert_eq!(end.unwrap().answer().as_deref(), Some("4"), "with all of them");
            // Each is asked for in a turn whose stream ends, so that none is there for nothing.
            let unasked = |route: &&PageRoute| !asked.contains(&format!("{} {}", route.verb, route.path));
            let unasked: Vec<&str> = routes.iter().filter(unasked).map(|route| route.path.as_str()).collect();
            assert!(unasked.is_empty(), "not asked for: {unasked:?}");
            continue;
        };
        match (&route.error_without, &end) {
            (None, Ok(result)) => {
                assert_eq!(result.completion, Completion::Settled, "without {}", route.path);
            }
            (Some(variant), Err(error)) => {
                assert!(error.starts_with(variant.as_str()), "without {}: {error}", route.path);
            }
            (None, Err(_)) | (Some(_), Ok(_)) => panic!("without {}: {end:?}", route.path),
        }
    }
}

#[tokio::test]
async fn a_prompt_that_is_refused_was_not_run() {
    for status in [400, 404] {
        let mock = OpenCodeMock::start().await;
        mock.mock_create_session(&[]).await;
        mock.mock_prompt_async(status).await;
        mock.mock_events(told(&[])).await;
        mock.mock_messages([json!([])]).await;
        mock.mock_status([json!({})]).await;
        let manager = mock.manager().build();
        create(&manager).await.unwrap();
        let error = ask(&manager).await.unwrap_err();
        let is_right = match status {
            404 => matches!(error, PromptError::SessionGone { .. }),
            _ => matches!(error, PromptError::NotDelivered { delivery: Delivery::Rejected, .. }),
        };
        assert!(is_right, "{status}: {error:?}");
        assert_eq!(mock.prompts().len(), 1, "{status}");
    }
}

/// A later release may have statuses that this one does not know. They say nothing, and the messages say all.
#[tokio::test]
async fn a_status_that_is_not_known_does_not_hold_an_answer_back() {
    join_all(["completed", "done", "thinking"].map(|status| async move {
        let (mock, manager) = stage().await;
        mock.mock_events(told(&[])).await;
        mock.mock_messages(lists()).await;
        mock.mock_status([json!({SESSION: {"type": status}})]).await;
        let limits = WaitOptions::default().settle_grace(Duration::from_millis(300));
        let input = PromptInput::new(SessionId::new(SESSION), "what is 2 + 2?").wait(limits);
        let result = checked(soon(manager.send_initial_prompt_and_await_messages(input)).await).unwrap();
        assert_eq!(result.completion, Completion::Settled, "{status}");
        assert_eq!(result.answer().as_deref(), Some("4"), "{status}");
    }))
    .await;
}

#[tokio::test]
async fn a_provider_that_fails_is_a_turn_that_failed() {
    let (mock, manager) = stage().await;
    mock.mock_events(told(&[])).await;
    mock.mock_messages([json!([prompt("PROMPT1", 1), failure("PROMPT1", "no credit", 2)])]).await;
    mock.mock_status([json!({})]).await;
    let result = ask(&manager).await.unwrap();
    assert!(matches!(&result.completion, Completion::Failed { .. }), "{:?}", result.completion);
    assert!(format!("{:?}", result.settled().unwrap_err()).contains("no credit"));
}

#[tokio::test]
async fn a_permission_is_answered_by_the_policy() {
    let rows = [
        (None, "reject"),
        (Some(PermissionPolicy::AllowOnce), "once"),
        (Some(PermissionPolicy::AllowAlways), "always"),
    ];
    join_all(rows.map(|(policy, expected)| async move {
        let mock = OpenCodeMock::start().await;
        mock.mock_create_session(&[]).await;
        mock.mock_prompt_async(204).await;
        mock.mock_events(told(&[])).await;
        mock.mock_permission(
            json!({"id": "per_1", "sessionID": SESSION, "permission": "bash", "patterns": ["ls"]}),
        )
        .await;
        // The turn goes on once the request is answered.
        let busy = json!({SESSION: {"type": "busy"}});
        mock.mock_status([busy.clone(), busy, json!({})]).await;
        mock.mock_messages(lists()).await;
        let manager = match policy {
            Some(policy) => mock.manager().permissions(policy).build(),
            None => mock.manager().build(),
        };
        create(&manager).await.unwrap();
        let result = ask(&manager).await.unwrap();
        assert_eq!(result.answer().as_deref(), Some("4"), "{expected}");
        let replies = mock.posted("/permission/per_1/reply");
        assert_eq!(replies.len(), 1, "{expected}: answered once");
        assert_eq!(replies[0]["reply"], expected);
        assert_eq!(replies[0]["message"].is_string(), expected == "reject", "a rejection says why");
    }))
    .await;
}

#[tokio::test]
async fn a_follow_up_goes_to_the_same_session_and_model() {
    let (mock, manager) = stage().await;
    let first = [prompt("PROMPT1", 1), answer("PROMPT1", "4", 2)];
    let second = [prompt("PROMPT2", 4), answer("PROMPT2", "5", 5)];
    mock.mock_events(told(&[])).await;
    mock.mock_messages([json!(first), json!([first.clone(), second].concat())]).await;
    mock.mock_status([json!({})]).await;
    assert_eq!(ask(&manager).await.unwrap().answer().as_deref(), Some("4"));
    let input = PromptInput::new(SessionId::new(SESSION), "and 2 + 3?");
    let result = soon(manager.send_follow_up_prompt_and_await_messages(input)).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("5"));
    assert_eq!(result.messages.opencode().len(), 1, "what was said before is not in it");
    assert_eq!(result.conversation.blocks().len(), 4);
    let prompts = mock.prompts();
    assert_eq!(prompts.len(), 2);
    assert_ne!(prompts[0]["messageID"], prompts[1]["messageID"]);
    assert_eq!(prompts[1]["model"], json!({"providerID": "mock", "modelID": "m"}));
    assert_eq!(prompts[1]["agent"], "build");
}

#[tokio::test]
async fn a_session_whose_making_was_not_confirmed_is_looked_up() {
    let mock = OpenCodeMock::start().await;
    mock.mock_create_session(&[502]).await;
    let manager = mock.manager().build();
    assert_eq!(create(&manager).await.unwrap().as_str(), SESSION);
    assert_eq!(mock.posted("/session").len(), 1, "no second one is made");
    assert_eq!(manager.task_session_id(&"task".into()).unwrap().as_str(), SESSION);
}

#[tokio::test]
async fn a_server_that_wants_a_password_says_so_at_once() {
    let (mock, manager) = stage().await;
    mock.mock_refusal(401).await;
    let error = ask(&manager).await.unwrap_err();
    assert!(matches!(error, PromptError::Unauthorized { .. }), "{error:?}");
    let manager = mock.manager().build();
    let error = create(&manager).await.unwrap_err();
    assert!(matches!(error, SessionError::Agent { .. }), "{error:?}");
}

#[tokio::test]
async fn an_abort_reaches_the_server() {
    let (mock, manager) = stage().await;
    mock.mock_abort().await;
    mock.mock_events(told(&[])).await;
    mock.mock_messages([json!([])]).await;
    mock.mock_status([json!({})]).await;
    let report = soon(manager.abort(&SessionId::new(SESSION))).await.unwrap();
    assert!(report.confirmed, "{report:?}");
    assert_eq!(mock.posted(&format!("/session/{SESSION}/abort")).len(), 1);
}

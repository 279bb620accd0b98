//! What a process asks its host, and what becomes of it when nobody waits any more.

use std::time::Duration;

use futures_util::StreamExt;
use opencode_conductor::{
    ApprovalDesk, Ask, Completion, ConversationManager, Decision, Limit, MessageId, PromptError, SessionId,
    claude::{ClaudeError, ClaudeOptions},
    test_util::{ClaudeFault, ClaudeMoment, ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};

use super::stage::{builder, input, manager, patient, session, soon};

fn text(words: &str) -> Vec<ClaudeStep> {
    vec![ClaudeStep::Text(words.to_owned())]
}

/// A manager whose requests wait on a desk, with one session.
pub(crate) async fn with_desk(
    options: ClaudeOptions,
    directory: &str,
) -> (ConversationManager, SessionId, ApprovalDesk) {
    let desk = ApprovalDesk::new();
    let manager = builder(options).permissions(desk.permissions()).questions(desk.questions()).build();
    let session = session(&manager, directory).await;
    (manager, session, desk)
}

/// The only request on the desk, as soon as there is one.
async fn asked(desk: &ApprovalDesk) -> Ask {
    let only = |asks: Vec<Ask>| async move { <[Ask; 1]>::try_from(asks).ok() };
    let [ask] = soon(Box::pin(desk.watch().filter_map(only)).next()).await.unwrap();
    ask
}

/// A request outlives the prompt that it belongs to, and the calls that wait for the session to come to rest: whoever waits next is
/// asked for the same.
pub(crate) async fn check_that_a_request_waits_for_the_next(
    manager: &ConversationManager,
    id: &SessionId,
    desk: &ApprovalDesk,
) {
    let script = ClaudeScript::new([vec![ClaudeTool::bash("touch made").asks().into()], text("made")]);
    let dropped = manager.prompt(input(id, &script)).start();
    let first = asked(desk).await;
    drop(dropped);
    soon(desk.watch().filter(|asks| std::future::ready(asks.is_empty())).next()).await.unwrap();
    let resting = manager.wait_for_session_idle(id, patient());
    let again = tokio::select! {
        rested = resting => panic!("it waits for an answer: {rested:?}"),
        again = asked(desk) => again,
    };
    assert_eq!(again, first);
    assert_eq!(desk.pending(), [], "nobody waits");
    let next = manager.prompt(input(id, &ClaudeScript::text("next"))).start();
    assert_eq!(asked(desk).await, first);
    desk.answer(id, &first.id, Decision::AllowOnce).unwrap();
    let result = soon(next).await.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("next")));
    let conversation = serde_json::to_string(&result.conversation).unwrap();
    assert!(conversation.contains(r#""toolStatus":"success""#), "what was allowed ran: {conversation}");
}

#[tokio::test]
async fn a_request_waits_for_whoever_waits_next() {
    let fake = FakeClaude::start().await.unwrap();
    let (manager, id, desk) = with_desk(fake.options(), "/project").await;
    check_that_a_request_waits_for_the_next(&manager, &id, &desk).await;
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_request_does_not_outlive_the_manager_that_was_asked() {
    for tool in [ClaudeTool::bash("touch made").asks(), ClaudeTool::question("Which?")] {
        let case = format!("{tool:?}");
        let fake = FakeClaude::start().await.unwrap();
        let (owner, id, desk) = with_desk(fake.options(), "/project").await;
        let script = ClaudeScript::new([vec![tool.into()], text("went on")]);
        let running = owner.prompt(input(&id, &script).message_id("asking")).start();
        asked(&desk).await;
        soon(owner.shutdown()).await;
        assert_eq!(soon(running).await.unwrap().completion, Completion::GivenUp, "{case}");
        assert_eq!(desk.pending(), [], "{case}");
        let next_desk = ApprovalDesk::new();
        let builder = builder(fake.options()).permissions(next_desk.permissions());
        let next = builder.questions(next_desk.questions()).build();
        let result = soon(next.resume(id, MessageId::from("asking"))).await.unwrap();
        let end = (&result.completion, result.answer());
        assert_eq!(end, (&Completion::Settled, Some("went on".to_owned())), "{case}");
        assert_eq!(next.statistics().turns.permissions + next.statistics().turns.questions, 0, "{case}");
        let conversation = serde_json::to_string(&result.conversation).unwrap();
        assert!(conversation.contains(r#""isError":true"#), "{case}: {conversation}");
        soon(next.shutdown()).await;
    }
}

#[tokio::test]
async fn a_request_names_all_subagents_above_the_one_that_asks() {
    let asking = || vec![ClaudeTool::bash("touch x").asks().into()];
    let nested =
        |inner: ClaudeScript| ClaudeScript::new([vec![ClaudeTool::subagent(inner).into()], text("ok")]);
    let mut script = ClaudeScript::new([asking(), text("ok")]);
    for depth in 0..4 {
        let fake = FakeClaude::start().await.unwrap();
        let (manager, id, desk) = with_desk(fake.options(), "/project").await;
        let running = manager.prompt(input(&id, &script)).start();
        let ask = asked(&desk).await;
        assert_eq!((ask.path.first(), ask.path.last()), (Some(&id), Some(&ask.session_id)));
        let state = manager.conversation(&id).unwrap();
        let known: Vec<_> = state.subagents().filter_map(|subagent| subagent.agent_id.clone()).collect();
        let below: Vec<_> = ask.path[1..].iter().map(|session| session.as_str().into()).collect();
        assert_eq!(below.len(), depth, "{:?}", ask.path);
        assert!(below.iter().all(|agent| known.contains(agent)), "{below:?}, {known:?}");
        desk.answer(&id, &ask.id, Decision::AllowOnce).unwrap();
        assert_eq!(soon(running).await.unwrap().completion, Completion::Settled);
        soon(manager.shutdown()).await;
        script = nested(script);
    }
}

#[tokio::test]
async fn a_session_that_was_opened_twice_is_deleted_and_its_process_ends() {
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let id = session(&manager, "/project").await;
    let gated = ClaudeScript::new([vec![ClaudeStep::Gate("gate".to_owned())]]);
    let running = manager.prompt(input(&id, &gated)).start();
    soon(fake.wait_at("gate")).await;
    manager.forget(&id);
    soon(manager.adopt_session("task", &id)).await.unwrap();
    soon(manager.delete(&id)).await.unwrap();
    drop(soon(running).await);
    soon(super::stage::gone(id.as_str())).await;
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_limit_that_runs_out_while_the_provider_fails_says_how_it_failed() {
    let failed = |attempt: u32| {
        let line = format!(
            r#"{{"type":"system","subtype":"api_retry","attempt":{attempt},"max_retries":10,"retry_delay_ms":600000,"error_status":529,"error":"overloaded"}}"#
        );
        ClaudeFault::Line(line.into_bytes())
    };
    let limits = patient().retry_budget(Duration::from_secs(1));
    // Before the model has said anything, and after.
    for at in [ClaudeMoment::Taken, ClaudeMoment::Streaming] {
        let fake = FakeClaude::start().await.unwrap();
        let manager = manager(fake.options());
        let id = session(&manager, "/project").await;
        for fault in [failed(1), failed(2), ClaudeFault::Hang] {
            fake.inject(at, fault);
        }
        let prompt = input(&id, &ClaudeScript::text("never")).wait(limits.clone());
        let outcome = soon(manager.prompt(prompt).into_future()).await;
        let (limit, cause) = match &outcome {
            Ok(result) => match &result.completion {
                Completion::TimedOut { limit, .. } => (limit, result.cause.as_deref()),
                other => panic!("{at:?}: {other:?}"),
            },
            Err(PromptError::TimedOut { limit, source, .. }) => (limit, source.as_ref()),
            Err(error) => panic!("{at:?}: {error:?}"),
        };
        assert_eq!(*limit, Limit::Retry, "{at:?}");
        let failure: Option<&ClaudeError> = cause.and_then(|cause| cause.downcast_ref());
        assert!(matches!(failure, Some(ClaudeError::ProviderFailed { attempt: 2, .. })), "{cause:?}");
        assert_eq!(failure.unwrap().to_string(), "the provider failed (HTTP 529, overloaded)");
        soon(manager.shutdown()).await;
    }
}

//! What some servers do, and what becomes of a turn then.

use opencode_conductor::{
    AgentErrorKind, Completion, ConversationManager, Delivery, Directory, PermissionPolicy, PromptError,
    PromptInput,
    test_util::{Fault, Route, Script, Step},
    wire::{PromptPart, PromptRequest},
};

use super::support::{
    soon,
    stage::{Stage, WORKTREE, asking_tool, client, create, gated_text, ms, quick, texts, waits},
};

/// Once an answer that did not arrive for two seconds was given up for good, and the turn hung.
#[tokio::test]
async fn an_answer_is_tried_for_as_long_as_the_request_is_open() {
    let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
    let refusals = stage.fake.inject(Route::ReplyPermission, Fault::Status(503)).times(8);
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

#[tokio::test]
async fn the_default_model_is_asked_for_once_per_directory() {
    let stage = Stage::new().await;
    stage.ask(&texts("one")).await.unwrap();
    let asked = stage.requests(Route::Config);
    assert!(asked > 0);
    let other = create(&stage.manager, "other").await;
    let input = PromptInput::new(other, texts("two").prompt("do it"));
    stage.send(input).await.unwrap();
    assert_eq!(stage.requests(Route::Config), asked);
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
    for manager in [&stage.manager, &adopted] {
        let error = soon(manager.prompt(stage.input(&texts("never"))).into_future()).await.unwrap_err();
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

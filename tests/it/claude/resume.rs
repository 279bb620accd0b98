//! Turns that another manager asks for: while they run, and when they are over.

use std::sync::Arc;

use opencode_conductor::{
    Agent, CombinedTranscript, Completion, ConversationEvent, ConversationManager, ConversationSink,
    ConvertOptions, MessageId, PromptError, PromptExecutionResult, PromptInput, SessionConversationState,
    SessionId, Timestamp,
    claude::{ClaudeCode, ClaudeError},
    test_util::{ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};

use super::stage::{input, manager, session, soon};

fn text(words: &str) -> ClaudeStep {
    ClaudeStep::Text(words.to_owned())
}

async fn resume(
    manager: &ConversationManager,
    session: &SessionId,
    prompt: &str,
) -> Result<PromptExecutionResult, PromptError> {
    soon(manager.resume(session.clone(), MessageId::from(prompt))).await
}

#[tokio::test]
async fn an_answer_is_the_same_when_it_is_asked_for_again() {
    let calling = vec![text("I look."), ClaudeTool::bash("true").into()];
    let parts = vec![text("First."), text("Second.")];
    let rows = [
        (ClaudeScript::text("one"), Some("one")),
        (ClaudeScript::new([parts.clone()]), Some("First.\n\nSecond.")),
        (ClaudeScript::new([calling.clone(), parts.clone()]), Some("First.\n\nSecond.")),
        (ClaudeScript::new([calling, vec![text("  ")]]), None),
        (
            ClaudeScript::new([
                vec![ClaudeTool::subagent(ClaudeScript::text("the part")).in_background().into()],
                vec![text("Started.")],
            ])
            .after([parts]),
            Some("First.\n\nSecond."),
        ),
    ];
    let fake = FakeClaude::start().await.unwrap();
    for (n, (script, expected)) in rows.into_iter().enumerate() {
        let live = manager(fake.options());
        let id = session(&live, "/project").await;
        let prompt = format!("prompt-{n}");
        let result = soon(live.prompt(input(&id, &script).message_id(prompt.clone())).into_future()).await;
        assert_eq!(result.unwrap().answer().as_deref(), expected, "live: {script:?}");
        soon(live.shutdown()).await;
        let later = manager(fake.options());
        let result = resume(&later, &id, &prompt).await.unwrap();
        assert_eq!(
            (result.answer().as_deref(), &result.completion),
            (expected, &Completion::Settled),
            "{script:?}"
        );
        soon(later.shutdown()).await;
    }
}

#[tokio::test]
async fn the_transcript_of_a_session_loads_to_its_conversation() {
    struct Ignored;
    impl ConversationSink for Ignored {
        fn emit(&self, _: Vec<ConversationEvent>) {}
        fn describe(&self, _: Option<&str>, _: Option<Timestamp>) {}
    }
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let id = session(&manager, "/project").await;
    let agent = ClaudeCode::new(fake.options());
    let open = soon(agent.open(&id, None, ConvertOptions::default(), Arc::new(Ignored))).await.unwrap();
    let empty = soon(open.session.transcript()).await.unwrap().unwrap();
    assert_eq!(empty, CombinedTranscript::default(), "it has no file yet");
    let part = ClaudeTool::subagent(ClaudeScript::text("the part"));
    let script = ClaudeScript::new([vec![part.into()], vec![text("done")]]);
    let result = soon(manager.prompt(input(&id, &script)).into_future()).await.unwrap();
    let transcript = soon(open.session.transcript()).await.unwrap().unwrap();
    let loaded = transcript.load(agent.architecture()).unwrap();
    assert!(loaded.malformed.is_empty(), "{:?}", loaded.malformed);
    // What it cost is written when the process ends.
    assert_eq!(loaded.state.blocks(), result.conversation.blocks());
    let subagents = |state: &SessionConversationState| {
        state.subagents().map(|subagent| subagent.blocks.clone()).collect::<Vec<_>>()
    };
    assert_eq!(subagents(&loaded.state), subagents(&result.conversation));
    assert_eq!(subagents(&loaded.state).len(), 1);
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_turn_that_another_manager_works_on_is_not_called_over() {
    let fake = FakeClaude::start().await.unwrap();
    let (owner, other) = (manager(fake.options()), manager(fake.options()));
    let id = session(&owner, "/project").await;
    soon(owner.prompt(input(&id, &ClaudeScript::text("one")).message_id("first")).into_future())
        .await
        .unwrap();
    let gated = ClaudeScript::new([vec![ClaudeStep::Gate("gate".to_owned()), text("two")]]);
    let running = owner.prompt(input(&id, &gated).message_id("second")).start();
    soon(fake.wait_at("gate")).await;
    let others = [manager(fake.options()), manager(fake.options())];
    let (past, unknown, error) = tokio::join!(
        resume(&others[0], &id, "first"),
        resume(&others[1], &id, "no-such-prompt"),
        resume(&other, &id, "second"),
    );
    assert_eq!(past.unwrap().answer().as_deref(), Some("one"), "what is over can be asked for");
    let unknown = unknown.map(|result| result.completion);
    assert!(
        matches!(unknown, Ok(Completion::Interrupted) | Err(PromptError::Interrupted { .. })),
        "no process works on it: {unknown:?}"
    );
    let error = error.unwrap_err();
    let PromptError::NotDelivered { source: Some(source), .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(ClaudeError::SessionInUse { .. })), "{source:?}");
    fake.open_gate("gate");
    assert_eq!(soon(running).await.unwrap().answer().as_deref(), Some("two"));
    soon(owner.shutdown()).await;
    assert_eq!(resume(&other, &id, "second").await.unwrap().answer().as_deref(), Some("two"));
    let next = PromptInput::new(id, ClaudeScript::text("three").prompt("go on"));
    assert_eq!(soon(other.prompt(next).into_future()).await.unwrap().answer().as_deref(), Some("three"));
    assert_eq!((fake.runs("first"), fake.runs("second")), (1, 1));
    soon(other.shutdown()).await;
}

//! Bad input on the real executable.

use std::io::Write;

use opencode_conductor::{
    AgentError, Completion, ModelRef, PromptError,
    claude::ClaudeError,
    test_util::{ClaudeScript, ClaudeStep},
};

use super::{
    real::Lab,
    stage::{LEFT_WITHOUT_MESSAGES, input, manager, session, soon},
};

#[tokio::test]
async fn who_is_not_logged_in_and_who_asks_for_no_such_model_is_told_so() {
    let Some(lab) = Lab::find().await else { return };
    let logged_out = manager(lab.options().env("ANTHROPIC_API_KEY", ""));
    let id = session(&logged_out, &lab.project()).await;
    let error =
        soon(logged_out.prompt(input(&id, &ClaudeScript::text("hi"))).into_future()).await.unwrap_err();
    let PromptError::Unauthorized { source: Some(source), .. } = &error else { panic!("{error:?}") };
    let told = AgentError::downcast_ref(source);
    assert!(matches!(told, Some(ClaudeError::NotLoggedIn { .. })), "{source:?}");
    soon(logged_out.shutdown()).await;

    let manager = manager(lab.options());
    let id = session(&manager, &lab.project()).await;
    let script = ClaudeScript::new([vec![ClaudeStep::Error(404, "model: no-such-model".to_owned())]]);
    let prompt = input(&id, &script).model(ModelRef::new("anthropic", "no-such-model"));
    let error = soon(manager.prompt(prompt).into_future()).await.unwrap_err();
    let PromptError::NotStarted { error: Some(failure), .. } = &error else { panic!("{error:?}") };
    assert_eq!(failure.name, "model_not_found");
    assert!(failure.message.contains("no-such-model"), "{failure:?}");
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_real_session_that_was_left_without_messages_can_be_used() {
    let Some(lab) = Lab::find().await else { return };
    let manager = manager(lab.options());
    // Where its sessions are.
    let id = session(&manager, &lab.project()).await;
    soon(manager.prompt(input(&id, &ClaudeScript::text("before"))).into_future()).await.unwrap();
    let projects = std::fs::read_dir(lab.root.path().join("config/projects")).unwrap();
    let projects = projects.flatten().map(|entry| entry.path());
    let project = projects.into_iter().find(|path| path.join(format!("{id}.jsonl")).exists()).unwrap();
    soon(manager.delete(&id)).await.unwrap();
    for left in LEFT_WITHOUT_MESSAGES {
        let id = session(&manager, &lab.project()).await;
        std::fs::write(project.join(format!("{id}.jsonl")), left).unwrap();
        let result =
            soon(manager.prompt(input(&id, &ClaudeScript::text("after"))).into_future()).await.unwrap();
        assert_eq!(result.answer().as_deref(), Some("after"), "{left:?}");
        soon(manager.delete(&id)).await.unwrap();
    }
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn half_a_line_in_a_transcript_costs_nothing_else() {
    let Some(lab) = Lab::find().await else { return };
    let first = manager(lab.options());
    let id = session(&first, &lab.project()).await;
    soon(first.prompt(input(&id, &ClaudeScript::text("before"))).into_future()).await.unwrap();
    soon(first.shutdown()).await;
    let projects = std::fs::read_dir(lab.root.path().join("config/projects")).unwrap();
    let path =
        projects.flatten().map(|entry| entry.path().join(format!("{id}.jsonl"))).find(|path| path.exists());
    let mut file = std::fs::OpenOptions::new().append(true).open(path.unwrap()).unwrap();
    file.write_all(b"not a line\n{\"type\":\"assistant\",\"message\":{\"id\":\"msg_\xff").unwrap();
    let next = manager(lab.options());
    let result = soon(next.prompt(input(&id, &ClaudeScript::text("after"))).into_future()).await.unwrap();
    assert_eq!((&result.completion, result.answer().as_deref()), (&Completion::Settled, Some("after")));
    assert_eq!(result.conversation.blocks().len(), 4, "{:?}", result.conversation.blocks());
    soon(next.shutdown()).await;
}

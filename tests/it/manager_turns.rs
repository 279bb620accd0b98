//! The manager on the fake server: what each guarantee means for a caller.

use std::sync::Arc;

use futures_util::StreamExt;
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, PromptInput, SessionId, Update,
    test_util::{FakeOpenCode, FakeOptions, Script, ScriptedTool, Step},
};
use serde_json::json;

use super::support::secrets::{self, PASSWORD};

/// A manager with one session on a fake server.
struct Stage {
    fake: FakeOpenCode,
    manager: ConversationManager,
    session: SessionId,
}

impl Stage {
    async fn new() -> Self {
        let fake = FakeOpenCode::start_with(FakeOptions::new().password(PASSWORD)).await.unwrap();
        let manager = secrets::connect(&fake.url());
        let task = CreateTaskSession::new("project", "task", "/project", "/project/worktree");
        let session = manager.create_task_session(task).await.unwrap().session_id;
        Self { fake, manager, session }
    }

    fn input(&self, script: &Script) -> PromptInput {
        PromptInput::new(self.session.clone(), script.prompt("do it"))
    }
}

#[tokio::test]
async fn a_prompt_is_answered() {
    let stage = Stage::new().await;
    let script = Script::new([
        Step::tool(
            ScriptedTool::new("bash", json!({"command": "echo hi", "description": "say hi"})).output("hi\n"),
        ),
        Step::text("All done."),
    ]);
    let result = stage.manager.prompt(stage.input(&script)).await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.answer().as_deref(), Some("All done."));
    assert_eq!(result.messages.len(), 2);
    assert_eq!(stage.fake.prompts_run(stage.session.as_str()).len(), 1);
}

#[tokio::test]
async fn updates_are_seen_as_they_happen() {
    let stage = Stage::new().await;
    let seen = Arc::new(std::sync::Mutex::new(0));
    let counter = Arc::clone(&seen);
    let input = stage.input(&Script::new([Step::text("one two three")])).on_message(move |_| {
        *counter.lock().unwrap() += 1;
    });
    let mut running = stage.manager.prompt(input).start();
    let updates = running.updates().unwrap();
    let (updates, result) = tokio::join!(updates.collect::<Vec<_>>(), running);
    assert_eq!(result.unwrap().answer().as_deref(), Some("one two three"));
    assert!(matches!(updates.first(), Some(Update::Submitted(_))));
    assert!(updates.iter().any(|update| matches!(update, Update::Conversation(_))));
    assert!(*seen.lock().unwrap() >= 2);
}

//! What the tests share: a manager on the fake or on the real executable, and prompts with limits.

use std::{fmt::Debug, time::Duration};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, ManagerBuilder, PermissionPolicy, PromptInput, SessionId,
    WaitOptions,
    claude::{ClaudeCode, ClaudeOptions},
    test_util::ClaudeScript,
};

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a process may leave of a transcript that is killed before it has written a message.
pub(crate) const LEFT_WITHOUT_MESSAGES: [&str; 2] = [
    "",
    "{\"type\":\"queue-operation\",\"operation\":\"enqueue\",\"timestamp\":\"2026-11-18T13:00:00.000Z\",\"content\":\"do it\"}\n",
];

/// Fails the test instead of hanging.
pub(crate) async fn soon<T: Debug>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("happens in time")
}

/// Limits that nothing here reaches by itself.
pub(crate) fn patient() -> WaitOptions {
    WaitOptions::default().idle_timeout(PATIENCE).settle_grace(Duration::from_secs(3))
}

pub(crate) fn manager(options: ClaudeOptions) -> ConversationManager {
    builder(options).build()
}

pub(crate) fn builder(options: ClaudeOptions) -> ManagerBuilder {
    let builder = ManagerBuilder::new(ClaudeCode::new(options));
    builder.permissions(PermissionPolicy::AllowOnce).wait(patient()).unwrap()
}

pub(crate) async fn session(manager: &ConversationManager, directory: &str) -> SessionId {
    let create = CreateTaskSession::new("project", "task", directory, directory);
    soon(manager.create_task_session(create)).await.unwrap().session_id
}

pub(crate) fn input(session: &SessionId, script: &ClaudeScript) -> PromptInput {
    PromptInput::new(session.clone(), script.prompt("do it"))
}

/// Waits until no process has this text on its command line.
pub(crate) async fn gone(text: &str) {
    while !processes(text).is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The processes that have this text on their command line.
fn processes(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let commands = commands.map(|command| String::from_utf8_lossy(&command).replace('\0', " "));
    commands.filter(|command| command.contains(text)).collect()
}

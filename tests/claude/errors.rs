//! What cannot work says what to do.

use std::{error::Error, fmt::Write};

use opencode_conductor::{
    ManagerBuilder, PromptError, PromptInput, SessionError,
    claude::{ClaudeCode, ClaudeError, ClaudeOptions},
    test_util::{ClaudeFault, ClaudeMoment, ClaudeScript, ClaudeStep, FakeClaude},
};

use crate::stage::{input, manager, session, soon};

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").unwrap();
        cause = error.source();
    }
    text
}

async fn create_error(options: ClaudeOptions) -> SessionError {
    let manager = ManagerBuilder::new(ClaudeCode::new(options)).build();
    let create = opencode_conductor::CreateTaskSession::new("p", "t", "/project", "/project");
    soon(manager.create_task_session(create)).await.unwrap_err()
}

#[tokio::test]
async fn an_executable_that_cannot_be_used_is_named_with_what_to_do() {
    let missing = create_error(ClaudeOptions::new().executable("/no/such/claude")).await;
    assert!(chain(&missing).contains("npm install -g @anthropic-ai/claude-code"), "{}", chain(&missing));
    assert!(chain(&missing).contains("CLAUDE_BIN"), "{}", chain(&missing));
    for (version, words) in [("2.1.197 (Claude Code)", "too old"), ("hello", "is it Claude Code?")] {
        let fake = FakeClaude::start_as(version).await.unwrap();
        let error = create_error(fake.options()).await;
        assert!(chain(&error).contains(words), "{}", chain(&error));
    }
}

#[tokio::test]
async fn who_is_not_logged_in_is_told_how_to() {
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let id = session(&manager, "/project").await;
    let script = ClaudeScript::new([vec![ClaudeStep::LoggedOut]]);
    let error = soon(manager.prompt(input(&id, &script)).into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::Unauthorized { .. }), "{error:?}");
    assert!(chain(&error).contains("/login"), "{}", chain(&error));
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_session_that_somebody_works_with_is_not_shared() {
    let fake = FakeClaude::start().await.unwrap();
    let owner = manager(fake.options());
    let id = session(&owner, "/project").await;
    soon(owner.prompt(input(&id, &ClaudeScript::text("mine"))).into_future()).await.unwrap();
    let other = manager(fake.options());
    let theirs = PromptInput::new(id.clone(), ClaudeScript::text("theirs").prompt("do it"));
    let error = soon(other.prompt(theirs.clone()).into_future()).await.unwrap_err();
    assert!(chain(&error).contains("is in use"), "{}", chain(&error));
    soon(owner.shutdown()).await;
    let result = soon(other.prompt(theirs).into_future()).await.unwrap();
    assert_eq!(result.answer().as_deref(), Some("theirs"), "once it is free it can be used");
    assert_eq!(fake.starts().len(), 2);
    soon(other.shutdown()).await;
}

#[tokio::test]
async fn a_session_that_does_not_exist_is_not_found_and_a_path_is_no_id() {
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let error =
        soon(manager.prompt(PromptInput::new("no-such-session", "hi")).into_future()).await.unwrap_err();
    assert!(chain(&error).contains("CLAUDE_CONFIG_DIR"), "{}", chain(&error));
    let error = soon(manager.prompt(PromptInput::new("../../etc", "hi")).into_future()).await.unwrap_err();
    assert!(chain(&error).contains("letters, digits"), "{}", chain(&error));
}

#[tokio::test]
async fn a_process_that_refuses_tells_why() {
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let id = session(&manager, "/project").await;
    fake.inject(ClaudeMoment::Start, ClaudeFault::Exit(1, "error: unknown option '--effort'\n".to_owned()));
    let error = soon(manager.prompt(input(&id, &ClaudeScript::text("hi"))).into_future()).await.unwrap_err();
    let PromptError::NotDelivered { source: Some(source), .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(ClaudeError::Exited { .. })), "{source:?}");
    assert!(chain(&error).contains("unknown option"), "{}", chain(&error));
    assert_eq!(fake.starts().len(), 1, "it is not asked again");
    soon(manager.shutdown()).await;
}

//! What cannot work says what to do.

use std::{error::Error, fmt::Write as _, io::Write as _};

use opencode_conductor::{
    Agent, Completion, ConvertOptions, Directory, MadeFor, ManagerBuilder, MessageId, ModelRef, PromptError,
    PromptInput, SessionError,
    claude::{ClaudeCode, ClaudeError, ClaudeOptions},
    parse_claude,
    test_util::{ClaudeFault, ClaudeMoment, ClaudeScript, ClaudeStep, FakeClaude},
};

use super::stage::{LEFT_WITHOUT_MESSAGES, gone, input, manager, session, soon};

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
    assert!(error.to_string().contains("check the password or the login"), "{error}");
    assert!(chain(&error).contains("/login"), "{}", chain(&error));
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_model_that_does_not_exist_is_told_before_anything_runs() {
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let id = session(&manager, "/project").await;
    let script = ClaudeScript::new([vec![ClaudeStep::NoSuchModel]]);
    let prompt = input(&id, &script).model(ModelRef::new("anthropic", "no-such-model"));
    let error = soon(manager.prompt(prompt).into_future()).await.unwrap_err();
    let PromptError::NotStarted { error: Some(failure), .. } = &error else { panic!("{error:?}") };
    assert_eq!(failure.name, "model_not_found");
    assert!(chain(&error).contains("pick a different model"), "{}", chain(&error));
    let asked = fake.starts().remove(0);
    assert!(asked.windows(2).any(|pair| pair == ["--model", "no-such-model"]), "{asked:?}");
    soon(manager.shutdown()).await;
}

/// Lines that are no good, or large.
fn odd_lines() -> Vec<(&'static str, Vec<u8>)> {
    let large = format!(r#"{{"type":"something_new","text":"{}"}}"#, "x".repeat(20 << 20));
    vec![
        ("not JSON", b"no { line".to_vec()),
        ("cut off", br#"{"type":"assistant","message":{"id":"msg_1","content":[{"ty"#.to_vec()),
        ("a known kind, malformed", br#"{"type":"assistant","uuid":"a","message":{"id":7}}"#.to_vec()),
        ("not UTF-8", b"{\"type\":\"user\",\"uuid\":\"\xff\xfe\"}".to_vec()),
        ("20 MB of something unknown", large.into_bytes()),
    ]
}

#[tokio::test]
async fn lines_that_cannot_be_read_cost_nothing_but_themselves() {
    for (name, line) in odd_lines() {
        let fake = FakeClaude::start().await.unwrap();
        let manager = manager(fake.options());
        let id = session(&manager, "/project").await;
        fake.inject(ClaudeMoment::Streaming, ClaudeFault::Line(line));
        let script = ClaudeScript::text("the whole answer");
        let result = soon(manager.prompt(input(&id, &script)).into_future()).await.unwrap();
        assert_eq!(
            (&result.completion, result.answer().as_deref()),
            (&Completion::Settled, Some("the whole answer")),
            "{name}"
        );
        assert_eq!(result.conversation.blocks().len(), 2, "{name}");
        soon(manager.shutdown()).await;
    }
}

#[tokio::test]
async fn a_transcript_with_lines_that_cannot_be_read_is_still_gone_on_with() {
    for (name, line) in odd_lines() {
        let fake = FakeClaude::start().await.unwrap();
        let first = manager(fake.options());
        let id = session(&first, "/project").await;
        let prompt = input(&id, &ClaudeScript::text("before")).message_id("first");
        soon(first.prompt(prompt).into_future()).await.unwrap();
        soon(first.shutdown()).await;
        // It writes what it cost when it ends.
        soon(gone(id.as_str())).await;
        let path = fake.transcript(id.as_str(), "/project");
        // Its end is missing, as when a process is killed while it writes.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&line).unwrap();
        let next = manager(fake.options());
        let resumed = soon(next.resume(id.clone(), MessageId::from("first"))).await.unwrap();
        assert_eq!(
            (&resumed.completion, resumed.answer().as_deref()),
            (&Completion::Settled, Some("before")),
            "{name}"
        );
        let result = soon(next.prompt(input(&id, &ClaudeScript::text("after"))).into_future()).await.unwrap();
        assert_eq!(result.answer().as_deref(), Some("after"), "{name}");
        assert_eq!(result.conversation.blocks().len(), 4, "{name}");
        soon(next.shutdown()).await;
        let bytes = std::fs::read(&path).unwrap();
        let loaded = parse_claude(&bytes, &[], ConvertOptions::default(), |_| {}).unwrap();
        assert_eq!(loaded.state.blocks().len(), 4, "{name}");
        assert_eq!(
            loaded.malformed.len(),
            usize::from(!name.contains("unknown")),
            "{name}: the line is told by its place"
        );
    }
}

#[tokio::test]
async fn a_session_whose_process_wrote_no_message_before_it_was_killed_can_be_used() {
    for left in LEFT_WITHOUT_MESSAGES {
        let fake = FakeClaude::start().await.unwrap();
        let manager = manager(fake.options());
        let id = session(&manager, "/project").await;
        let path = fake.transcript(id.as_str(), "/project");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, left).unwrap();
        for words in ["one", "two"] {
            let prompt = input(&id, &ClaudeScript::text(words));
            let result = soon(manager.prompt(prompt).into_future()).await.unwrap();
            assert_eq!(result.answer().as_deref(), Some(words), "{left:?}");
        }
        soon(manager.shutdown()).await;
    }
}

#[tokio::test]
async fn a_session_is_found_by_what_it_was_made_for() {
    let fake = FakeClaude::start().await.unwrap();
    let agent = ClaudeCode::new(fake.options());
    let first = manager(fake.options());
    let id = session(&first, "/project").await;
    let directory = Directory::new("/project").unwrap();
    let elsewhere = Directory::new("/elsewhere").unwrap();
    let (made, other) = (MadeFor::Task("task".into()), MadeFor::Task("other".into()));
    assert_eq!(agent.find(&made, &directory).await.unwrap(), Some(id.clone()));
    assert_eq!(agent.find(&made, &elsewhere).await.unwrap(), None);
    assert_eq!(agent.find(&other, &directory).await.unwrap(), None);
    soon(first.delete(&id)).await.unwrap();
    assert_eq!(agent.find(&made, &directory).await.unwrap(), None);
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

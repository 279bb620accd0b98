//! What becomes of a prompt when its transcript cannot be read, or its process not be started again, after it was sent.

use std::{fs, path::PathBuf, process::Command, sync::Arc};

use opencode_conductor::{
    Completion, Delivery, MemoryStore, PromptError, SessionId,
    test_util::{ClaudeFault, ClaudeMoment, ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};

use super::stage::{builder, input, manager, session, soon};

const DIRECTORY: &str = "/project/worktree";

/// Makes the transcript unreadable, also for root: where a subagent's file should be is a directory.
fn spoil(fake: &FakeClaude, session: &SessionId) -> PathBuf {
    let transcript = fake.transcript(session.as_str(), DIRECTORY);
    let path = transcript.with_extension("").join("subagents/agent-a1.jsonl");
    fs::create_dir_all(&path).unwrap();
    path
}

#[tokio::test]
async fn a_prompt_that_cannot_be_looked_up_after_it_was_sent_is_not_called_unsent() {
    for moment in [ClaudeMoment::Taken, ClaudeMoment::Streaming] {
        let fake = FakeClaude::start().await.unwrap();
        let manager = manager(fake.options());
        let id = session(&manager, DIRECTORY).await;
        soon(manager.prompt(input(&id, &ClaudeScript::text("before"))).into_future()).await.unwrap();
        spoil(&fake, &id);
        fake.inject(moment, ClaudeFault::Kill);
        let outcome = soon(manager.prompt(input(&id, &ClaudeScript::text("answer"))).into_future()).await;
        let is_known = match &outcome {
            Ok(result) => moment == ClaudeMoment::Streaming && result.completion == Completion::Interrupted,
            Err(PromptError::NotDelivered { delivery, .. }) => {
                moment == ClaudeMoment::Taken && *delivery == Delivery::Unknown
            }
            Err(_) => false,
        };
        assert!(is_known, "{moment:?}: {outcome:?}");
        assert_eq!(fake.starts().len(), 1, "{moment:?}: it is not sent again");
        soon(manager.shutdown()).await;
    }
}

#[tokio::test]
async fn a_prompt_that_was_taken_is_not_called_unsent_when_no_other_process_can_be_started() {
    let fake = FakeClaude::start().await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let once = home.path().join("claude");
    let [(_, real), _] = fake.environment();
    // It removes itself when it is started. Another process writes it: one that is open for writing cannot be started.
    let script =
        format!("#!/bin/sh\n[ \"$1\" = --version ] || rm \"$0\"\nexec '{}' \"$@\"\n", real.display());
    let write = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    assert!(Command::new("sh").args(["-c", write, "sh"]).arg(&once).arg(script).status().unwrap().success());
    let manager = manager(fake.options().executable(&once));
    let id = session(&manager, DIRECTORY).await;
    fake.inject(ClaudeMoment::Taken, ClaudeFault::Kill);
    let prompt = input(&id, &ClaudeScript::text("the answer"));
    let error = soon(manager.prompt(prompt).into_future()).await.unwrap_err();
    assert!(matches!(error, PromptError::NotDelivered { .. }), "{error:?}");
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert_eq!(fake.starts().len(), 1);
    soon(manager.shutdown()).await;
}

#[tokio::test]
async fn a_turn_that_cannot_be_looked_up_stays_open_until_it_can() {
    let fake = FakeClaude::start().await.unwrap();
    let store = Arc::new(MemoryStore::default());
    let make = || builder(fake.options()).store(Arc::clone(&store) as _).build();
    let owner = make();
    let id = session(&owner, DIRECTORY).await;
    let tool = ClaudeTool::bash("true").gate("gate");
    let text = vec![ClaudeStep::Text("the whole answer".to_owned())];
    let running = owner.prompt(input(&id, &ClaudeScript::new([vec![tool.into()], text]))).start();
    soon(fake.wait_at("gate")).await;
    soon(owner.shutdown()).await;
    drop(running);
    let spoilt = spoil(&fake, &id);
    fake.open_gate("gate");
    let next = make();
    let turn = soon(next.restore()).await.unwrap().remove(0);
    let outcome = soon(turn.running).await;
    let completion = outcome.as_ref().map(|result| &result.completion);
    assert!(matches!(completion, Ok(Completion::GivenUp)), "{outcome:?}");
    assert_eq!(store.open_turns().len(), 1, "it stays open");
    fs::remove_dir(spoilt).unwrap();
    let turn = soon(next.restore()).await.unwrap().remove(0);
    let prompt = turn.record.prompt.message_id.clone();
    let result = soon(turn.running).await.unwrap();
    assert_eq!(
        (result.completion.clone(), result.answer().as_deref()),
        (Completion::Settled, Some("the whole answer"))
    );
    assert_eq!((fake.runs(prompt.as_str()), store.open_turns().len()), (1, 0));
    soon(next.shutdown()).await;
}

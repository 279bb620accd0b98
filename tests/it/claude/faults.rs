//! The fault matrix: what goes wrong, times where a turn is when it does.
//!
//! Whatever the outcome, the model began the prompt at most once (twice is never right; not at all only if the caller was told so), the
//! session takes the next prompt, its conversation is the one on disk, and no process is left.

use std::{collections::HashMap, sync::Arc, time::Duration};

use opencode_conductor::{
    Completion, ConvertOptions, PromptError, PromptExecutionResult, SessionConversationState, parse_claude,
    test_util::{
        ClaudeFault::{self, CloseInput, Exit, Garbage, HalfLine, Hang, Kill, Lag, Slow, Stop},
        ClaudeMoment::{self, Ask, Result as AfterResult, Start, Started, Streaming, Subagent, Taken, Tool},
        ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude,
    },
};
use tokio::{sync::Semaphore, task::JoinSet};

use super::stage::{gone, input, manager, patient, session, soon};

const ALL: [ClaudeMoment; 8] = [Start, Taken, Started, Streaming, Tool, Ask, Subagent, AfterResult];
const DIRECTORY: &str = "/project/worktree";

/// How a call ended. One letter each: capitals are results, small letters errors.
pub(crate) fn letter(outcome: &Result<PromptExecutionResult, PromptError>) -> char {
    match outcome {
        Ok(result) => match &result.completion {
            Completion::Settled => 'S',
            Completion::Failed(_) => 'F',
            Completion::Aborted => 'A',
            Completion::Interrupted => 'I',
            Completion::TimedOut { .. } => 'T',
            _ => '?',
        },
        Err(PromptError::NotDelivered { .. }) => 'd',
        Err(PromptError::TimedOut { .. }) => 't',
        Err(PromptError::Interrupted { .. }) => 'i',
        Err(_) => '!',
    }
}

/// What is promised: one letter per moment, in the order of [`ALL`]; a dot where the fault has no meaning.
fn promises() -> Vec<(ClaudeFault, &'static str)> {
    let pause = Duration::from_millis(300);
    vec![
        // Sent again until the model has begun; interrupted after that; whole once the result is there.
        (Kill, "SSIIIIIS"),
        (HalfLine, "SSIIIIIS"),
        // A process that refuses to start is not asked again.
        (Exit(1, "boom".to_owned()), "dSIIIIIS"),
        // Limits end what does not go on; a result without an end counts after its grace.
        (Stop, "ttTTTTTS"),
        (Hang, ".tTTTTTS"),
        // What is no line of the protocol is left out.
        (Garbage, "SSSSSSSS"),
        (Slow(pause), "SSSSSSSS"),
        // The files are waited for.
        (Lag(pause), "SSSSSSSS"),
        // Only an answer that cannot be written any more ends the turn.
        (CloseInput, ".SSSSISS"),
    ]
}

fn script(moment: ClaudeMoment) -> ClaudeScript {
    let text = |words: &str| vec![ClaudeStep::Text(words.to_owned())];
    let tool = match moment {
        Tool => ClaudeTool::bash("true"),
        Ask => ClaudeTool::bash("touch x").asks(),
        Subagent => ClaudeTool::subagent(ClaudeScript::text("the part")),
        _ => return ClaudeScript::text("the whole answer"),
    };
    ClaudeScript::new([vec![tool.into()], text("the whole answer")])
}

async fn cell(moment: ClaudeMoment, fault: ClaudeFault, promised: char) {
    let case = format!("{fault:?} at {moment:?}");
    let fake = FakeClaude::start().await.unwrap();
    let manager = manager(fake.options());
    let session = session(&manager, DIRECTORY).await;
    fake.inject(moment, fault.clone());
    // Only what never goes on may run into a limit.
    let limits = match fault {
        Stop | Hang => patient().idle_timeout(Duration::from_secs(8)).tool_timeout(Duration::from_secs(8)),
        _ => patient(),
    };
    let prompt = format!("msg-{session}");
    let work = input(&session, &script(moment)).message_id(prompt.clone()).wait(limits);
    let outcome = soon(manager.prompt(work).into_future()).await;
    assert_eq!(letter(&outcome), promised, "{case}: {outcome:?}");
    let runs = fake.runs(&prompt);
    assert_eq!(
        runs,
        usize::from(!matches!(promised, 'd' | 't')),
        "{case}: the model began the prompt {runs} times"
    );
    if let Ok(result) = &outcome
        && result.completion.is_settled()
    {
        assert_eq!(result.answer().as_deref(), Some("the whole answer"), "{case}");
        let n_threads = if moment == Subagent { 2 } else { 1 };
        assert_eq!(result.usage_by_session.len(), n_threads, "{case}: {:?}", result.usage_by_session);
        assert!(result.usage.tokens.output >= 20 * n_threads as u64, "{case}: {:?}", result.usage);
    }
    if promised == 'd' {
        assert!(format!("{:?}", outcome.unwrap_err()).contains("boom"), "{case}: standard error is told");
    }
    let next = soon(manager.prompt(input(&session, &ClaudeScript::text("next"))).into_future()).await;
    let next = next.unwrap_or_else(|error| panic!("{case}: the next prompt: {error:?}"));
    assert_eq!((&next.completion, next.answer().as_deref()), (&Completion::Settled, Some("next")), "{case}");
    let transcript = std::fs::read(fake.transcript(session.as_str(), DIRECTORY)).unwrap();
    let loaded = parse_claude(&transcript, &[], ConvertOptions::default(), |_| {}).unwrap();
    let ids = |state: &SessionConversationState| -> Vec<String> {
        state.blocks().iter().map(|block| block.id.to_string()).collect()
    };
    let (live, disk) = (ids(&next.conversation), ids(&loaded.state));
    if !matches!(fault, Lag(_)) {
        assert_eq!(live, disk, "{case}: the conversation is the one on disk");
    }
    soon(manager.shutdown()).await;
    drop(manager);
    let home = fake.transcript("", "").ancestors().nth(3).unwrap().to_string_lossy().into_owned();
    soon(gone(&home)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_in_every_phase_ends_as_promised() {
    // So few at once that no limit is reached because of the load that they are for each other. Those that do nothing but wait for a
    // limit all go on at once.
    let busy = Arc::new(Semaphore::new(6));
    let mut cells = JoinSet::new();
    let mut names = HashMap::new();
    for (fault, letters) in promises() {
        for (moment, promised) in
            ALL.into_iter().zip(letters.chars()).filter(|(_, promised)| *promised != '.')
        {
            let case = format!("{fault:?} at {moment:?}");
            let (room, fault) = (Arc::clone(&busy), fault.clone());
            let task = cells.spawn(async move {
                let _permit = match fault {
                    Stop | Hang => None,
                    _ => Some(room.acquire_owned().await.unwrap()),
                };
                Box::pin(cell(moment, fault, promised)).await;
            });
            names.insert(task.id(), case);
        }
    }
    let n_cells = cells.len();
    let mut failures = Vec::new();
    while let Some(ended) = cells.join_next().await {
        if let Err(error) = ended {
            failures.push(format!("{}: {error}", names[&error.id()]));
        }
    }
    assert!(failures.is_empty(), "{} of {n_cells} cells: {failures:#?}", failures.len());
    assert!(n_cells >= 60, "{n_cells} cells");
}

#[tokio::test]
async fn a_turn_whose_owner_lets_go_goes_on_and_is_found_again() {
    use opencode_conductor::{MemoryStore, PermissionPolicy, claude::OnRelease};
    let gated = ClaudeTool::bash("true").gate("gate");
    let text = vec![ClaudeStep::Text("the whole answer".to_owned())];
    let streaming =
        vec![ClaudeStep::Gate("gate".to_owned()), ClaudeStep::Text("the whole answer".to_owned())];
    let rows = [
        (
            OnRelease::Finish,
            ClaudeScript::new([vec![gated.clone().into()], text.clone()]),
            Completion::Settled,
        ),
        (OnRelease::Finish, ClaudeScript::new([streaming.clone()]), Completion::Settled),
        (OnRelease::Kill, ClaudeScript::new([vec![gated.into()], text]), Completion::Interrupted),
        (OnRelease::Kill, ClaudeScript::new([streaming]), Completion::Interrupted),
    ];
    for (on_release, script, expected) in rows {
        let case = format!("{on_release:?}, {script:?}");
        let fake = FakeClaude::start().await.unwrap();
        let options = fake.options().on_release(on_release);
        let store = Arc::new(MemoryStore::default());
        let owner = super::stage::builder(options.clone()).store(Arc::clone(&store) as _).build();
        let id = session(&owner, DIRECTORY).await;
        let running = owner.prompt(input(&id, &script)).start();
        soon(fake.wait_at("gate")).await;
        soon(owner.shutdown()).await;
        drop(running);
        let record = store.open_turns().remove(0);
        if on_release == OnRelease::Finish {
            fake.open_gate("gate");
        }
        let next = super::stage::builder(options).permissions(PermissionPolicy::Reject).build();
        let result = soon(next.resume(id.clone(), record.prompt.message_id.clone())).await.unwrap();
        assert_eq!(result.completion, expected, "{case}");
        assert_eq!(fake.runs(record.prompt.message_id.as_str()), 1, "{case}");
        soon(next.shutdown()).await;
    }
}

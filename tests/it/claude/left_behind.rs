//! A process that another owner left behind: how long it is waited for, and who may end it.

use std::{
    any::Any,
    error::Error,
    fs,
    future::{pending, ready},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use opencode_conductor::{
    Agent, Ask, Asked, BoxFuture, ConversationEvent, ConversationSink, ConvertOptions, Ended, Execution,
    Limit, MessageId, Millis, Notice, OpenSession, Phase, PreparedPrompt, SessionId, Stop, StopRequest,
    Timestamp, TurnHost, WaitOptions,
    claude::ClaudeCode,
    test_util::{ClaudeScript, FakeClaude},
};

use super::stage::{gone, input, manager, session, soon};

const DIRECTORY: &str = "/project/worktree";
/// How often the process is looked at before its subagent is done: for longer than a tool may be silent.
const LOOKS: u32 = 500;

/// A turn that is waited for without a manager. Nothing but time goes by in it, which is not waited for either.
struct Host {
    limits: WaitOptions,
    stop: Option<StopRequest>,
    /// What a subagent writes to whenever the process is looked at.
    subagent: Option<PathBuf>,
    n_looks: AtomicU32,
    process: SessionProcess,
}

/// A process that has a session on its command line, as Claude Code has, in a group of its own.
struct SessionProcess(std::sync::Mutex<Child>);

impl SessionProcess {
    fn start(session: &SessionId) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read -r line", session.as_str()]).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Its command line can be read only a moment after it was started.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child.into())
    }

    fn id(&self) -> u32 {
        self.0.lock().unwrap().id()
    }

    fn is_alive(&self) -> bool {
        self.0.lock().unwrap().try_wait().unwrap().is_none()
    }

    /// Kills it, unless that was done, and waits until it has ended.
    fn end(&self) {
        let mut child = self.0.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for SessionProcess {
    fn drop(&mut self) {
        self.end();
    }
}

impl ConversationSink for Host {
    fn emit(&self, _: Vec<ConversationEvent>) {}
    fn describe(&self, _: Option<&str>, _: Option<Timestamp>) {}
}

impl TurnHost for Host {
    fn limits(&self) -> &WaitOptions {
        &self.limits
    }

    fn ask(&self, _: Ask) -> Asked {
        unreachable!("nothing is asked")
    }

    fn record(&self, _: Phase) -> BoxFuture<'_, Result<(), Box<dyn Error + Send + Sync>>> {
        Box::pin(ready(Ok(())))
    }

    fn notice(&self, _: Notice) {}

    fn stop_requested(&self) -> BoxFuture<'_, StopRequest> {
        let n_looks = self.n_looks.fetch_add(1, SeqCst);
        if let Some(subagent) = &self.subagent {
            fs::OpenOptions::new().append(true).open(subagent).unwrap().write_all(b"{}\n").unwrap();
            if n_looks == LOOKS {
                self.process.end();
            }
        }
        match self.stop {
            // The session is claimed first.
            Some(stop) if n_looks > 0 => Box::pin(ready(stop)),
            Some(_) | None => Box::pin(pending()),
        }
    }

    fn wants_messages(&self) -> bool {
        false
    }

    fn message(&self, _: &dyn Any) {}
}

struct Ignored;
impl ConversationSink for Ignored {
    fn emit(&self, _: Vec<ConversationEvent>) {}
    fn describe(&self, _: Option<&str>, _: Option<Timestamp>) {}
}

/// A session whose last prompt, `first`, may still run: an owner left a process behind.
async fn left_behind(fake: &FakeClaude) -> (SessionId, SessionProcess, Arc<dyn OpenSession>) {
    let owner = manager(fake.options());
    let id = session(&owner, DIRECTORY).await;
    let first = input(&id, &ClaudeScript::text("one")).message_id("first");
    soon(owner.prompt(first).into_future()).await.unwrap();
    soon(owner.shutdown()).await;
    soon(gone(id.as_str())).await;
    let agent = ClaudeCode::new(fake.options());
    let opened = soon(agent.open(&id, None, ConvertOptions::default(), Arc::new(Ignored))).await.unwrap();
    let process = SessionProcess::start(&id);
    let [_, (_, config)] = fake.environment();
    fs::write(config.join(format!("conductor/{id}.lock")), process.id().to_string()).unwrap();
    (id, process, opened.session)
}

async fn execute(
    session: &dyn OpenSession,
    id: &SessionId,
    prompt: &str,
    from: Phase,
    host: &Host,
) -> Execution {
    let now = Timestamp::from(Millis::new(0));
    let prompt = PreparedPrompt::new(id.clone(), MessageId::from(prompt), "do it", now, "");
    session.execute(&prompt, from, host).await
}

fn host(process: SessionProcess, stop: Option<StopRequest>, subagent: Option<PathBuf>) -> Host {
    let limits = WaitOptions::default().tool_timeout(Duration::from_secs(3));
    Host { limits, stop, subagent, n_looks: AtomicU32::new(0), process }
}

#[tokio::test]
async fn only_the_prompt_whose_turn_it_is_ends_a_process_that_was_left_behind() {
    let rows = [
        ("new", Phase::Prepared, true),
        // Its caller has named it; it was never sent.
        ("new", Phase::Submitted, true),
        ("first", Phase::Submitted, false),
        ("first", Phase::Started, false),
    ];
    for (prompt, from, is_left_alone) in rows {
        for stop in [None, Some(StopRequest::Abort)] {
            let case = format!("{prompt}, {from:?}, {stop:?}");
            let fake = FakeClaude::start().await.unwrap();
            let (id, process, session) = left_behind(&fake).await;
            let host = host(process, stop, None);
            tokio::time::pause();
            let execution = execute(&*session, &id, prompt, from, &host).await;
            tokio::time::resume();
            let expected = match stop {
                None => Ended::Limit(Limit::Tool),
                Some(_) => Ended::Stopped(Stop::Aborted),
            };
            assert_eq!(execution.ended, expected, "{case}");
            assert_eq!(execution.abort.is_none(), is_left_alone, "{case}: {:?}", execution.abort);
            if is_left_alone {
                assert!(host.process.is_alive(), "{case}");
            } else {
                // It was killed.
                host.process.0.lock().unwrap().wait().unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_process_that_was_left_behind_is_waited_for_while_its_subagent_works() {
    let fake = FakeClaude::start().await.unwrap();
    let (id, process, session) = left_behind(&fake).await;
    let subagents = fake.transcript(id.as_str(), DIRECTORY).with_extension("").join("subagents");
    fs::create_dir_all(&subagents).unwrap();
    let subagent = subagents.join("agent-a1.jsonl");
    fs::write(&subagent, "").unwrap();
    let host = host(process, None, Some(subagent));
    tokio::time::pause();
    let execution = execute(&*session, &id, "first", Phase::Started, &host).await;
    assert!(matches!(&execution.ended, Ended::Completed(end) if end.is_settled()), "{execution:?}");
    assert_eq!(execution.answer.as_deref(), Some("one"));
    assert!(host.n_looks.load(SeqCst) > LOOKS);
}

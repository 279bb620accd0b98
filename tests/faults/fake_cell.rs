//! One cell of the matrix on a fake of its own.

use std::{sync::Arc, time::Duration};

use opencode_conductor::{
    Completion, ConversationManager, Directory, DirectoryClient, RunningPrompt, Update, Updates, WaitOptions,
    test_util::{FakeOpenCode, Fault, Injection, Moment, Route, Script, Step},
    wire::PermissionReply,
};

use crate::{
    fake_rows::Strike,
    human::Human,
    matrix::{Phase, Seen, letter},
    secrets, soon,
    stage::{Stage, WORKTREE, asking_tool, create, feed, gated_text, gated_tool, ms, quick, task, texts},
};

/// Where everything waits until the fault has struck.
const GATE: &str = "phase";
const ANSWER: &str = "one two three four";
const HOUR: Duration = Duration::from_secs(3600);

struct Rig {
    stage: Stage,
    human: Arc<Human>,
    /// Another client of the same server.
    other: DirectoryClient,
}

/// Opened when the session is gone.
const DELETED: &str = "deleted";

/// Plays a cell and checks all that must hold whatever its outcome.
pub(crate) async fn play(strike: Arc<Strike>, case: String, phase: Phase) -> Seen {
    let rig = Rig::new(&strike).await;
    let warm_up = rig.stage.ask(&texts("ready")).await.unwrap();
    assert_eq!(warm_up.completion, Completion::Settled, "{case}");

    let mut running = rig.reach(&strike, phase).await;
    let injection = rig.strike(&strike, phase).await;
    let mut running = running.take().unwrap_or_else(|| rig.stage.start(&script(phase)));
    let updates = running.updates().unwrap();
    rig.let_go(phase);
    if matches!(*strike, Strike::Outage | Strike::SlowStart) {
        noticed(updates).await;
        if matches!(*strike, Strike::SlowStart) {
            rig.stage.fake.inject(Route::Any, Fault::Hang).times(3);
        }
        rig.stage.fake.revive().await.unwrap();
    }
    let outcome = running.await;
    if matches!(*strike, Strike::Gone) {
        rig.stage.fake.revive().await.unwrap();
    }
    let Rig { stage, other, .. } = rig;
    let runs = stage.prompts_run().len() - 1;
    let struck = injection.is_none_or(|(injection, times)| injection.left() < times);
    assert!(struck, "{case}: the fault has struck");
    stage.fake.clear_faults();
    stage.fake.restore_directory(WORKTREE);
    let is_gone = matches!(letter(&outcome), 'g' | 'G');
    // What the server stored before it was killed can be read only when it is back, by the next prompt.
    let is_known = !is_gone && !matches!(*strike, Strike::Gone);
    if let Ok(result) = &outcome
        && is_known
    {
        if result.completion == Completion::Settled {
            assert_eq!(result.answer().as_deref(), Some(ANSWER), "{case}");
        }
        if letter(&outcome) != 'D' {
            stage.check(&case, result);
        }
        stage.check_conversation(&case, &result.conversation);
    }
    if !is_gone {
        let next = stage.ask(&texts("next")).await.unwrap_or_else(|error| panic!("{case}, next: {error:?}"));
        assert_eq!(next.completion, Completion::Settled, "{case}: the session takes the next prompt");
        stage.check(&case, &next);
        stage.check_conversation(&case, &next.conversation);
    }
    let Stage { fake, manager, .. } = stage;
    soon(manager.shutdown()).await;
    drop((manager, other));
    soon(fake.wait_for(|log| log.open_streams == 0 && log.open_connections == 0)).await;
    Seen { letter: letter(&outcome), runs }
}

impl Rig {
    async fn new(strike: &Strike) -> Self {
        let fake = FakeOpenCode::start_with(quick().heartbeat(ms(100))).await.unwrap();
        let feed = feed().silence(ms(700)).ready_timeout(ms(700));
        let client = |fake: &FakeOpenCode| {
            secrets::client(&fake.url())
                .answer_timeout(ms(1500))
                .read_backoff(ms(20), ms(100))
                .feed(feed)
                .build()
                .unwrap()
        };
        let human = Human::new();
        // Graces are long against the time that a busy machine may take to let a turn go on.
        let wait =
            WaitOptions::default().start_timeout(ms(1000)).settle_grace(ms(1500)).idle_timeout(ms(30_000));
        let wait = if matches!(strike, Strike::Gone) { wait.contact_timeout(ms(1000)) } else { wait };
        let manager = ConversationManager::builder(client(&fake))
            .permissions(human.policy())
            .wait(wait)
            .unwrap()
            .build();
        let session = create(&manager, "task").await;
        let other = secrets::client(&fake.url()).build().unwrap();
        let other = other.directory(&Directory::new(WORKTREE).unwrap());
        Self { stage: Stage { fake, manager, session }, human, other }
    }

    /// Starts the turn and waits until it is there; nothing where the fault must strike first.
    async fn reach(&self, strike: &Strike, phase: Phase) -> Option<RunningPrompt> {
        let fake = &self.stage.fake;
        match (strike, phase) {
            (Strike::Submission(..), _) | (_, Phase::BeforeSubmit) => return None,
            // What strikes the final read cannot wait for it.
            (Strike::Read(..), Phase::FinalRead) => {
                let running = self.stage.start(&gated_text(GATE, ANSWER));
                soon(fake.wait_at(GATE)).await;
                return Some(running);
            }
            (_, Phase::Submitting) => {
                fake.inject(Route::PromptAsync, Fault::DelayUntil(GATE.to_owned()));
            }
            (_, Phase::Accepted) => fake.hold(Moment::BeforeStore, GATE),
            (_, Phase::Settling) => fake.hold(Moment::Cleanup, GATE),
            (_, Phase::FinalRead) => {
                fake.inject(Route::ListMessages, Fault::DelayUntil(GATE.to_owned()));
            }
            (_, Phase::Started | Phase::Streaming | Phase::Tool | Phase::Subagent | Phase::Permission) => {}
        }
        let running = self.stage.start(&script(phase));
        if phase == Phase::Permission {
            soon(self.human.is_asked()).await;
        } else {
            soon(fake.wait_at(GATE)).await;
        }
        Some(running)
    }

    /// Makes it go wrong; what is injected must also strike, or the cell would prove nothing.
    async fn strike(&self, strike: &Strike, phase: Phase) -> Option<(Injection, usize)> {
        let (fake, session) = (&self.stage.fake, &self.stage.session);
        match strike {
            Strike::Submission(fault, times) => {
                if phase == Phase::Accepted {
                    fake.inject(Route::PromptAsync, Fault::LosePrompt);
                }
                return Some((fake.inject(Route::PromptAsync, fault.clone()).times(*times), *times));
            }
            Strike::Read(route, fault, times) => {
                if phase != Phase::FinalRead {
                    fake.inject(Route::Event, Fault::Status(503)).always();
                    fake.cut_streams();
                }
                return Some((fake.inject(*route, fault.clone()).times(*times), *times));
            }
            Strike::Reply(fault, times) => {
                return Some((fake.inject(Route::ReplyPermission, fault.clone()).times(*times), *times));
            }
            Strike::CutStreams => fake.cut_streams(),
            Strike::EndStreams => fake.end_streams(),
            Strike::SilenceStreams => fake.silence_streams(),
            Strike::Streams(fault, times) => {
                let n_streams = fake.request_count(Route::Event);
                let injection = fake.inject(Route::Event, fault.clone()).times(*times);
                fake.cut_streams();
                if phase != Phase::BeforeSubmit {
                    soon(fake.wait_for(|log| log.count(Route::Event) > n_streams)).await;
                }
                return Some((injection, *times));
            }
            Strike::Restart => fake.restart().await.unwrap(),
            Strike::Outage | Strike::SlowStart | Strike::Gone => fake.kill().await.unwrap(),
            Strike::RunDies => fake.remove_directory(WORKTREE),
            Strike::Dispose => self.or_let_go(phase, fake.dispose(WORKTREE)).await,
            Strike::Abort => self.or_let_go(phase, async { self.other.abort(session).await.unwrap() }).await,
            Strike::Delete => {
                if phase == Phase::Settling {
                    // A turn that has read its end by then has ended well.
                    fake.inject(Route::ListMessages, Fault::DelayUntil(DELETED.to_owned())).always();
                }
                self.or_let_go(phase, async { self.other.delete_session(session).await.unwrap() }).await;
                fake.open_gate(DELETED);
            }
            Strike::AllowElsewhere | Strike::RejectElsewhere => {
                let request = self.other.permissions().await.unwrap().items[0].id.clone();
                let allow = matches!(strike, Strike::AllowElsewhere);
                let reply = if allow { PermissionReply::Once } else { PermissionReply::Reject };
                self.other.reply_permission(&request, reply).await.unwrap();
            }
            Strike::ClockAhead => fake.set_clock_ahead(HOUR),
            Strike::ClockBehind => fake.set_clock_behind(HOUR),
        }
        None
    }

    /// What waits for the turn's end must not wait for a turn that is held in its cleanup.
    async fn or_let_go(&self, phase: Phase, strike: impl Future<Output = ()>) {
        let mut strike = std::pin::pin!(strike);
        if phase == Phase::Settling {
            tokio::select! {
                biased;
                () = &mut strike => return,
                () = tokio::task::yield_now() => self.let_go(phase),
            }
        }
        strike.await;
    }

    fn let_go(&self, phase: Phase) {
        let fake = &self.stage.fake;
        match phase {
            Phase::Accepted => fake.release(Moment::BeforeStore),
            Phase::Settling => fake.release(Moment::Cleanup),
            _ => {}
        }
        fake.open_gate(GATE);
        self.human.may_answer();
    }
}

fn script(phase: Phase) -> Script {
    match phase {
        Phase::BeforeSubmit | Phase::Submitting | Phase::Accepted | Phase::FinalRead => texts(ANSWER),
        Phase::Started => Script::new([Step::text(ANSWER).gate_before(GATE)]),
        Phase::Streaming => gated_text(GATE, ANSWER),
        Phase::Tool => Script::new([Step::tool(gated_tool(GATE)), Step::text(ANSWER)]),
        Phase::Subagent => {
            Script::new([Step::tool(task(&gated_text(GATE, "a part of it"))), Step::text(ANSWER)])
        }
        Phase::Permission => Script::new([Step::tool(asking_tool("touch it")), Step::text(ANSWER)]),
        Phase::Settling => Script::new([Step::error(400)]),
    }
}

/// Waits until the manager has seen that the server is away.
async fn noticed(mut updates: Updates) {
    let lost = async {
        while let Some(update) = updates.next().await {
            if matches!(update, Update::StreamLost | Update::Submitted(_)) {
                return;
            }
        }
    };
    soon(lost).await;
}

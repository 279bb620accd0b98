//! A server, a manager, and the sessions that share them.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use futures_util::future::join_all;
use opencode_conductor::{
    Completion, ConversationManager, CreateTaskSession, Directory, FeedOptions, OpenCodeClient,
    PermissionPolicy, PromptError, PromptExecutionResult, PromptInput, SessionId, WaitOptions,
    test_util::{FakeOpenCode, FakeOptions},
};
use tokio::time::timeout;

use crate::{
    faults::{Blows, Saboteur},
    scripts::Plan,
    tally::{Bad, Tally},
};

const DIRECTORY: &str = "/soak/worktree";
/// A turn that takes longer hangs. All limits inside one are shorter.
const HANG: Duration = Duration::from_secs(120);
/// How long something may take to be gone.
const GONE: Duration = Duration::from_secs(30);
const MAX_TURNS: usize = 6;

pub(crate) struct World {
    fake: FakeOpenCode,
    manager: ConversationManager,
    tally: Arc<Tally>,
    rng: Rng,
    kills: Blows,
    disposals: Blows,
}

impl World {
    pub(crate) async fn start(rng: Rng, tally: Arc<Tally>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let options = FakeOptions::new().time_scale(0.1).heartbeat(Duration::from_millis(500));
        let fake = FakeOpenCode::start_with(options).await?;
        let silence = Duration::from_secs(3);
        let feed = FeedOptions::new()
            .backoff(Duration::from_millis(20), Duration::from_millis(500))
            .silence(silence);
        let client =
            OpenCodeClient::builder(&fake.url()).answer_timeout(Duration::from_secs(5)).feed(feed).build()?;
        let wait = WaitOptions::default().start_timeout(Duration::from_secs(1)).max_kicks(8);
        let manager =
            ConversationManager::builder(client).permissions(PermissionPolicy::AllowOnce).wait(wait)?.build();
        Ok(Self { fake, manager, tally, rng, kills: Blows::default(), disposals: Blows::default() })
    }

    /// Plays a few turns in each of so many sessions, checks them, and ends.
    pub(crate) async fn live(mut self, tasks: usize, faults: bool) {
        let mut sessions = Vec::with_capacity(tasks);
        for task in 0..tasks {
            let request = CreateTaskSession::new("soak", format!("task-{task}"), "/soak", DIRECTORY);
            match self.manager.create_task_session(request).await {
                Ok(meta) => sessions.push((meta.session_id, Blows::default())),
                Err(error) => self.tally.bad(Bad::Wrong, format!("no session: {error}")),
            }
        }
        let rngs: Vec<Rng> = sessions.iter().map(|_| self.rng.fork()).collect();
        let mut sabotage = self.rng.fork();
        let runs = sessions.iter().zip(rngs).map(|((session, aborts), rng)| self.task(session, aborts, rng));
        if faults
            && let Ok(directory) = Directory::new(DIRECTORY)
            && let Some(client) = self.manager.client()
        {
            let saboteur = Saboteur {
                fake: &self.fake,
                api: client.directory(&directory),
                directory: DIRECTORY,
                sessions: &sessions,
                tally: &self.tally,
                kills: &self.kills,
                disposals: &self.disposals,
            };
            let mut runs = std::pin::pin!(join_all(runs));
            tokio::select! {
                _ = &mut runs => {}
                Err(error) = saboteur.go_on(&mut sabotage) => {
                    self.tally.bad(Bad::Wrong, format!("the fake did not come back: {error}"));
                }
            }
        } else {
            join_all(runs).await;
        }
        self.fake.clear_faults();
        for (session, _) in &sessions {
            self.compare(session).await;
        }
        self.end().await;
    }

    async fn task(&self, session: &SessionId, aborts: &Blows, mut rng: Rng) {
        let mut reported = BTreeMap::new();
        for _ in 0..=rng.usize(..MAX_TURNS) {
            let plan = Plan::random(&mut rng);
            let before = [&self.kills, &self.disposals, aborts].map(|blows| (blows, blows.done()));
            let input = PromptInput::new(session.clone(), plan.script.prompt("do it"));
            let Ok(outcome) = timeout(HANG, self.manager.prompt(input).into_future()).await else {
                self.tally.outcome("hangs");
                self.tally.bad(Bad::Hang, format!("{session}: {:?}", plan.script));
                return;
            };
            self.tally.outcome(name(&outcome));
            if let Ok(result) = &outcome {
                reported.insert(result.submission.message_id.to_string(), name(&outcome));
            }
            let [killed, disposed, aborted] = before.map(|(blows, done)| blows.fell_since(done));
            let explained = match &outcome {
                Ok(result) => match &result.completion {
                    Completion::Settled => plan.answer.is_some() && result.answer() == plan.answer,
                    Completion::Failed(_) => plan.answer.is_none(),
                    // An abort between two steps leaves the same traces as a crash there.
                    Completion::Interrupted => killed || disposed || aborted,
                    Completion::Aborted => disposed || aborted,
                    // A disposed instance rejects what it was asking for.
                    Completion::Rejected => disposed,
                    _ => false,
                },
                // That the prompt did not run is checked below.
                Err(
                    PromptError::NotDelivered { .. }
                    | PromptError::NotStarted { .. }
                    | PromptError::Aborted { .. },
                ) => true,
                Err(_) => false,
            };
            if !explained {
                let told = outcome.as_ref().map(|result| (&result.completion, result.answer()));
                self.tally.bad(Bad::Wrong, format!("{session}: {told:?} instead of {:?}", plan.answer));
            }
        }
        self.count_runs(session, &reported);
    }

    /// What the caller was told to have run has run once, and nothing else has.
    fn count_runs(&self, session: &SessionId, reported: &BTreeMap<String, &str>) {
        let runs = self.fake.prompts_run(session.as_str());
        let run: BTreeSet<String> = runs.iter().cloned().collect();
        for _ in run.len()..runs.len() {
            self.tally.bad(Bad::Doubled, format!("{session}: {runs:?}"));
        }
        // Those that were cut short may have been so before the model was called.
        let must_run = |outcome: &str| !matches!(outcome, "aborted" | "interrupted");
        let lost = reported.iter().filter(|(message, outcome)| must_run(outcome) && !run.contains(*message));
        for (lost, outcome) in lost {
            self.tally.bad(Bad::Lost, format!("{session}: {lost}, {outcome}"));
        }
        for denied in run.iter().filter(|message| !reported.contains_key(*message)) {
            self.tally
                .bad(Bad::Wrong, format!("{session}: {denied} has run, and the caller was told otherwise"));
        }
    }

    /// What was observed is what a fresh manager loads.
    async fn compare(&self, session: &SessionId) {
        let fresh = match ConversationManager::connect(&self.fake.url()).await {
            Ok(fresh) => fresh,
            Err(error) => return self.tally.bad(Bad::Wrong, format!("{session}: {error}")),
        };
        match fresh.load_conversation(session).await {
            Ok(loaded) if Some(&loaded) == self.manager.conversation(session).as_ref() => {}
            Ok(_) => self.tally.bad(Bad::Wrong, format!("{session}: not the conversation that is stored")),
            Err(error) => self.tally.bad(Bad::Wrong, format!("{session}: {error}")),
        }
        fresh.shutdown().await;
    }

    async fn end(self) {
        let Self { fake, manager, tally, .. } = self;
        if timeout(GONE, manager.shutdown()).await.is_err() {
            tally.bad(Bad::Hang, "the shutdown");
        }
        drop(manager);
        let gone = fake.wait_for(|log| log.open_streams == 0 && log.open_connections == 0);
        if timeout(GONE, gone).await.is_err() {
            tally.bad(Bad::Leak, format!("{} connections", fake.open_connections()));
        }
    }
}

fn name(outcome: &Result<PromptExecutionResult, PromptError>) -> &'static str {
    match outcome {
        Ok(result) => match &result.completion {
            Completion::Settled => "settled",
            Completion::Failed(_) => "failed",
            Completion::Aborted => "aborted",
            Completion::Interrupted => "interrupted",
            Completion::TimedOut { .. } => "timed out",
            _ => "rejected",
        },
        Err(PromptError::NotDelivered { .. }) => "not delivered",
        Err(PromptError::NotStarted { .. }) => "not started",
        Err(PromptError::Aborted { .. }) => "aborted before the model was called",
        Err(_) => "other errors",
    }
}

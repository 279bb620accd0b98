//! What recording and restoring cost. `cargo bench -p opencode-conductor-sqlite`; with `--quick` on a tenth of everything.

#![expect(clippy::unwrap_used, reason = "a broken rig should stop the benchmark")]
#![expect(clippy::print_stdout, reason = "the figures are the result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use futures_util::future::join_all;
use opencode_conductor::{
    ConversationManager, ConversationSessionMeta, CreateTaskSession, Directory, MemoryStore, Millis,
    OpenCodeClient, Phase, PreparedPrompt, PromptInput, SessionDescription, Store, TurnRecord,
    test_util::{Effect, FakeOpenCode, FakeOptions, Script, Step, StoreCall, TappedStore},
};
use opencode_conductor_sqlite::SqliteStore;
use tokio::runtime::Runtime;

fn main() {
    let scale = if std::env::args().any(|argument| argument == "--quick") { 10 } else { 1 };
    let runtime = Runtime::new().unwrap();
    println!("| what | how much | time |\n|---|---|---|");
    runtime.block_on(async {
        recording(1000 / scale).await;
        listing(10_000 / scale).await;
        claiming(1000 / scale).await;
        restoring(1000 / scale).await;
    });
}

fn row(what: &str, how_much: &str, time: &str) {
    println!("| {what} | {how_much} | {time} |");
}

fn turn(n: usize, phase: Phase) -> TurnRecord {
    let request = format!("{{\"text\": \"{}\"}}", "a prompt of some length. ".repeat(40));
    let prompt = PreparedPrompt::new(
        format!("ses_{n}").into(),
        "msg_1".into(),
        "a prompt",
        Millis::new(1).into(),
        request,
    );
    TurnRecord::new(None, Directory::new("/w").unwrap(), prompt, phase)
}

const PHASES: [Phase; 4] = [Phase::Prepared, Phase::Submitted, Phase::Started, Phase::Finished];

async fn recording(n: usize) {
    let directory = tempfile::tempdir().unwrap();
    let stores: [(&str, Arc<dyn Store>); 2] = [
        ("memory", Arc::new(MemoryStore::default())),
        ("SQLite", Arc::new(SqliteStore::open(directory.path().join("db")).await.unwrap())),
    ];
    for (name, store) in stores {
        let began = Instant::now();
        for n in 0..n {
            for phase in PHASES {
                store.put_turn(&turn(n, phase)).await.unwrap();
            }
        }
        let each = began.elapsed().as_micros() / n as u128;
        row(&format!("recording a turn, {name}"), "4 writes", &format!("{each} µs"));
    }
}

async fn listing(n: usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    for n in 0..n {
        let work = Directory::new(format!("/srv/worktrees/task-{n}")).unwrap();
        let described =
            SessionDescription::new(format!("ses_{n}").into(), work, "a title", Millis::new(1).into());
        let mut meta = ConversationSessionMeta::from(described);
        meta.task_id = Some(format!("task-{n}").into());
        store.put_session(&meta).await.unwrap();
    }
    let began = Instant::now();
    assert_eq!(store.sessions().await.unwrap().len(), n);
    row("reading the sessions", &format!("{n}"), &format!("{} ms", began.elapsed().as_millis()));
}

async fn claiming(n: usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    leave_open(&path, n).await;
    let store = SqliteStore::open(&path).await.unwrap();
    let began = Instant::now();
    assert_eq!(store.claim_turns().await.unwrap().len(), n);
    row(
        "claiming the turns of a dead process",
        &format!("{n}"),
        &format!("{} ms", began.elapsed().as_millis()),
    );
}

async fn leave_open(path: &Path, n: usize) {
    let store = SqliteStore::open(path).await.unwrap();
    for n in 0..n {
        store.put_turn(&turn(n, Phase::Started)).await.unwrap();
    }
}

/// Turns that are done on the server when the next process comes: what is left is to collect them.
async fn restoring(n: usize) {
    let fake = FakeOpenCode::start_with(FakeOptions::new().time_scale(0.02)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let n_started = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&n_started);
    // A process that dies before it has recorded the end of any turn.
    let store = SqliteStore::open(&path).await.unwrap();
    let store = TappedStore::new(Arc::new(store), move |call, effect| {
        let is_end = call == StoreCall::PutTurn(Phase::Finished) && effect == Effect::Before;
        if is_end {
            counter.fetch_add(1, SeqCst);
        }
        Box::pin(async move { if is_end { std::future::pending().await } else { Ok(()) } })
    });
    let process = Runtime::new().unwrap();
    let url = fake.url();
    process.spawn(async move {
        let client = OpenCodeClient::new(&url).unwrap();
        let manager = ConversationManager::builder(client).store(Arc::new(store)).build();
        let manager = &manager;
        let tasks = (0..n).map(|n| async move {
            let create =
                CreateTaskSession::new("project", format!("task-{n}"), "/project", "/project/worktree");
            let session = manager.create_task_session(create).await.unwrap().session_id;
            let prompt = Script::new([Step::text("an answer")]).prompt("do it");
            drop(manager.prompt(PromptInput::new(session, prompt)).await);
        });
        join_all(tasks).await;
    });
    while n_started.load(SeqCst) < n {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    tokio::task::spawn_blocking(|| process.shutdown_timeout(std::time::Duration::from_secs(60)))
        .await
        .unwrap();
    fake.clear_log();
    let began = Instant::now();
    let store = SqliteStore::open(&path).await.unwrap();
    let client = OpenCodeClient::new(&fake.url()).unwrap();
    let manager = ConversationManager::builder(client).store(Arc::new(store)).build();
    let turns = manager.restore().await.unwrap();
    assert_eq!(turns.len(), n);
    let results = join_all(turns.into_iter().map(|turn| turn.running)).await;
    let took = began.elapsed().as_millis();
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|result| result.completion.is_settled())));
    let requests = fake.requests().len();
    row(
        "restoring open turns that are over on the server, the fake server's own work included",
        &format!("{n} turns, {requests} requests"),
        &format!("{took} ms"),
    );
}

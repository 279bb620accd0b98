//! What the store costs: recording turns, restoring them, and saved sessions. `cargo bench -p opencode-conductor-sqlite`; `-- --quick` does a
//! tenth of everything, `-- restoring` one section.
//!
//! Each figure has its floor in the same run: what the engine underneath takes for as much, with nothing of ours.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken rig should stop the benchmark")]
#![expect(clippy::print_stdout, reason = "the figures are the result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../../benches/figures/mod.rs"]
#[expect(dead_code, reason = "the benchmark uses a part of it")]
mod figures;

use std::{
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all, stream};
use opencode_conductor::{
    Architecture, CombinedTranscript, ConversationManager, CreateTaskSession, Directory, MemoryStore, Millis,
    OpenCodeClient, Phase, PreparedPrompt, PromptInput, SavedSessionData, SessionListData, Store, TurnRecord,
    parse_transcript,
    test_util::{Effect, FakeOpenCode, FakeOptions, Script, Step, StoreCall, TappedStore},
};
use opencode_conductor_sqlite::SqliteStore;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::figures::{Settings, Table};

fn main() {
    let Some(settings) = Settings::from_args() else { return };
    let scale = if settings.quick { 10 } else { 1 };
    let runtime = Runtime::new().unwrap();
    let mut tables = Vec::new();
    if settings.wants("recording") {
        tables.push(runtime.block_on(recording(1000 / scale)));
    }
    if settings.wants("restoring") {
        tables.push(runtime.block_on(restoring(1000 / scale)));
    }
    if settings.wants("sessions") {
        tables.push(runtime.block_on(sessions(10_000 / scale)));
    }
    settings.print(&tables);
}

/// Milliseconds that something takes.
async fn timed<T>(work: impl Future<Output = T>) -> (T, f64) {
    let began = Instant::now();
    let done = work.await;
    (done, began.elapsed().as_secs_f64() * 1e3)
}

fn turn(n: usize, phase: Phase) -> TurnRecord {
    let request = json!({"text": "a prompt of some length. ".repeat(40)}).to_string();
    let session = format!("ses_{n}").into();
    let prompt = PreparedPrompt::new(session, "msg_1".into(), "a prompt", Millis::new(1).into(), request);
    TurnRecord::new(None, Directory::new("/w").unwrap(), prompt, phase)
}

const PHASES: [Phase; 4] = [Phase::Prepared, Phase::Submitted, Phase::Started, Phase::Finished];

#[expect(clippy::cast_precision_loss, reason = "there are not that many")]
async fn recording(n: usize) -> Table {
    let mut table = Table::new("Recording a turn", "writes and µs", &["writes", "µs"]);
    let directory = tempfile::tempdir().unwrap();
    let stores: [(&str, Arc<dyn Store>); 2] = [
        ("in memory", Arc::new(MemoryStore::default())),
        ("in SQLite", Arc::new(SqliteStore::open(directory.path().join("db")).await.unwrap())),
    ];
    for (name, store) in stores {
        let work = async {
            for n in 0..n {
                for phase in PHASES {
                    store.put_turn(&turn(n, phase)).await.unwrap();
                }
            }
        };
        table.row(name, [PHASES.len() as f64, timed(work).await.1 * 1e3 / n as f64]);
    }
    let bare = bare(&directory.path().join("bare"));
    let work = async {
        for n in 0..n {
            for phase in PHASES {
                let record = serde_json::to_string(&turn(n, phase)).unwrap();
                bare.execute("INSERT INTO rows (body) VALUES (?)", [record]).unwrap();
            }
        }
    };
    table.row(
        "floor: as many rows on disk, by SQLite alone",
        [PHASES.len() as f64, timed(work).await.1 * 1e3 / n as f64],
    );
    table
}

/// A database with one table, written as safely as ours.
fn bare(path: &Path) -> Connection {
    let bare = Connection::open(path).unwrap();
    bare.pragma_update(None, "journal_mode", "WAL").unwrap();
    bare.pragma_update(None, "synchronous", "FULL").unwrap();
    bare.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, body TEXT NOT NULL)").unwrap();
    bare
}

/// Turns that are over on the server when the next process comes: what is left is to find that out.
#[expect(clippy::cast_precision_loss, reason = "there are not that many")]
async fn restoring(n: usize) -> Table {
    let fake = FakeOpenCode::start_with(FakeOptions::new().time_scale(0.02)).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let n_over = Arc::new(AtomicUsize::new(0));
    let process = leave_open(&fake.url(), &path, n, &n_over).await;
    while n_over.load(SeqCst) < n {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::task::spawn_blocking(|| process.shutdown_timeout(Duration::from_secs(60))).await.unwrap();
    fake.clear_log();
    let work = async {
        let store = SqliteStore::open(&path).await.unwrap();
        let client = OpenCodeClient::new(&fake.url()).unwrap();
        let manager = ConversationManager::builder(client).store(Arc::new(store)).build();
        let turns = manager.restore().await.unwrap();
        assert_eq!(turns.len(), n);
        join_all(turns.into_iter().map(|turn| turn.running)).await
    };
    let (results, took) = timed(work).await;
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(|result| result.completion.is_settled())));
    let requests: Vec<String> = fake
        .requests()
        .into_iter()
        .filter(|request| request.path != "/event")
        .map(|request| request.path)
        .collect();
    let mut table =
        Table::new("Restoring open turns", "requests per turn and ms", &["turns", "requests per turn", "ms"]);
    let figures = |took: f64| [n as f64, requests.len() as f64 / n as f64, took];
    table.row("restore, until every result is there", figures(took));
    let plain = reqwest::Client::new();
    let url = fake.url();
    let work = stream::iter(&requests).for_each_concurrent(64, async |path| {
        plain.get(format!("{url}{path}")).send().await.unwrap().bytes().await.unwrap();
    });
    table.row("floor: the same requests by a plain client", figures(timed(work).await.1));
    table
}

/// A process that dies when all its turns are over, before it has recorded the end of any.
async fn leave_open(url: &str, path: &Path, n: usize, n_over: &Arc<AtomicUsize>) -> Runtime {
    let counter = Arc::clone(n_over);
    let store = SqliteStore::open(path).await.unwrap();
    let store = TappedStore::new(Arc::new(store), move |call, effect| {
        let is_end = call == StoreCall::PutTurn(Phase::Finished) && effect == Effect::Before;
        if is_end {
            counter.fetch_add(1, SeqCst);
        }
        Box::pin(async move { if is_end { std::future::pending().await } else { Ok(()) } })
    });
    let process = Runtime::new().unwrap();
    let client = OpenCodeClient::new(url).unwrap();
    process.spawn(async move {
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
    process
}

async fn sessions(n: usize) -> Table {
    let mut table = Table::new("Saved sessions", "ms", &["ms"]);
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("db")).await.unwrap();
    for session in 0..n {
        store.put_saved(&saved(&format!("ses_{session}"), "[]")).await.unwrap();
    }
    let (listed, took) = timed(store.saved_sessions()).await;
    let listed = listed.unwrap();
    assert_eq!(listed.len(), n);
    table.row("list 10,000 sessions", [took]);
    let text = serde_json::to_string(&listed).unwrap();
    let decode = async { serde_json::from_str::<Vec<SessionListData>>(&text).unwrap().len() };
    table.row("floor: decoding the list", [timed(decode).await.1]);

    let long = transcript(n);
    let mut data = saved("ses_long", &long);
    table.row("save a session of 10,000 blocks", [timed(store.put_saved(&data)).await.1]);
    let grown = transcript(n + 2);
    data.refresh(CombinedTranscript::new(grown));
    table.row("save it again after two more", [timed(store.put_saved(&data)).await.1]);
    let bare = bare(&directory.path().join("bare"));
    let write = async { bare.execute("INSERT INTO rows (body) VALUES (?)", [&long]).unwrap() };
    table.row("floor: writing its transcript, by SQLite alone", [timed(write).await.1]);
    let open = async { store.saved(&"ses_long".into()).await.unwrap().unwrap().load().unwrap().0 };
    let (session, took) = timed(open).await;
    assert_eq!(session.conversation.blocks().len(), n + 2);
    table.row("open a session of 10,000 blocks", [took]);
    let parse = async { parse_transcript(Architecture::OpenCode, &long).unwrap().state.blocks().len() };
    table.row("floor: loading its transcript from memory", [timed(parse).await.1]);
    table
}

fn saved(session: &str, transcript: &str) -> SavedSessionData {
    let mut listed = SessionListData::new(session.into(), Architecture::OpenCode);
    (listed.created_at, listed.last_activity) = (Some(Millis::new(1)), Some(Millis::new(2)));
    let mut data = SavedSessionData::new(listed);
    data.refresh(CombinedTranscript::new(transcript));
    data
}

/// A list of messages with one block each.
fn transcript(n_blocks: usize) -> String {
    let message = |n: usize| -> Value {
        let id = format!("msg_{n:08}");
        let time = json!({"created": n, "completed": n});
        let mut info = json!({"id": id, "sessionID": "ses_long", "role": "user", "time": time});
        if n % 2 == 1 {
            info["role"] = "assistant".into();
            info["modelID"] = "m".into();
            info["providerID"] = "p".into();
        }
        let text = "some words of a sentence of usual length. ".repeat(4);
        json!({"info": info, "parts": [{"id": format!("prt_{n:08}"), "sessionID": "ses_long", "messageID": id,
            "type": "text", "text": text, "time": {"start": n, "end": n}}]})
    };
    (0..n_blocks).map(message).collect::<Value>().to_string()
}

//! The process that is killed, and the one that comes after it: a small runner with one task of two prompts.

use std::{
    collections::BTreeMap,
    future::pending,
    io::Write,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use opencode_conductor::{
    ConversationEvent, ConversationManager, CreateTaskSession, Decision, FeedOptions, MessageId,
    OpenCodeClient, PermissionPolicy, Phase, PromptInput, RunningPrompt, SessionId, Store, Update,
    WaitOptions,
    test_util::{Effect, StoreCall, TappedStore},
};
use opencode_conductor_sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The variable that makes this program a child; holds an [`Order`].
pub(crate) const ORDER: &str = "KILL_CHILD";

/// What a child is to do.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) url: String,
    pub(crate) database: PathBuf,
    pub(crate) directory: PathBuf,
    /// What is asked, in order. A worker has one task for each of them instead.
    pub(crate) prompts: Vec<String>,
    /// Where to stop; a point of the child's own, or one that only the server knows.
    pub(crate) point: Option<Point>,
    /// The prompts that were reported as done, and those that were reported as sent.
    pub(crate) done: Vec<usize>,
    pub(crate) sent: BTreeMap<usize, MessageId>,
    pub(crate) is_worker: bool,
}

/// Where a child stops and waits to be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Point {
    Store(Call, When),
    /// A permission is asked for.
    Asked,
    /// The answer is being streamed.
    Delta,
    /// The result is there, and the caller was not told.
    Result,
    /// On the server's side.
    Elsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    ClaimTask,
    PutSession,
    Prepared,
    Submitted,
    Started,
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum When {
    Before,
    /// Told to go on just before it is killed.
    Inside,
    After,
}

/// What a child says, one line each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It stands at its point.
    At,
    Sent(usize, MessageId),
    /// A permission was asked for, on behalf of this task.
    Asked(Option<String>),
    /// What came of a prompt: how it ended, and the answer.
    Done {
        step: usize,
        ended: String,
        answer: Option<String>,
    },
    /// The whole conversation, at the end.
    State(SessionId, Value),
}

pub(crate) fn say(said: &Said) {
    let mut line = serde_json::to_string(said).unwrap();
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// The place where a child stops.
struct Halt {
    point: Option<Point>,
    /// It does not stop during what comes before the prompt that matters.
    is_armed: AtomicBool,
}

impl Halt {
    async fn at(&self, point: Point) {
        if self.point != Some(point) || !self.is_armed.swap(false, SeqCst) {
            return;
        }
        say(&Said::At);
        if matches!(point, Point::Store(_, When::Inside)) {
            return wait_for_orders().await;
        }
        pending::<()>().await;
    }
}

async fn wait_for_orders() {
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
}

fn tap(store: Arc<SqliteStore>, halt: Arc<Halt>) -> TappedStore {
    TappedStore::new(store, move |call, effect| {
        let call = match call {
            StoreCall::ClaimTask => Some(Call::ClaimTask),
            StoreCall::PutSession => Some(Call::PutSession),
            StoreCall::PutTurn(Phase::Prepared) => Some(Call::Prepared),
            StoreCall::PutTurn(Phase::Submitted) => Some(Call::Submitted),
            StoreCall::PutTurn(Phase::Started) => Some(Call::Started),
            StoreCall::PutTurn(Phase::Finished) => Some(Call::Finished),
            _ => None,
        };
        let halt = Arc::clone(&halt);
        Box::pin(async move {
            let Some(call) = call else { return Ok(()) };
            if effect == Effect::Before {
                halt.at(Point::Store(call, When::Before)).await;
                halt.at(Point::Store(call, When::Inside)).await;
            } else {
                halt.at(Point::Store(call, When::After)).await;
            }
            Ok(())
        })
    })
}

fn manager(order: &Order, store: Arc<dyn Store>, halt: &Arc<Halt>) -> ConversationManager {
    let feed = FeedOptions::new().backoff(Duration::from_millis(50), Duration::from_millis(500));
    let client = OpenCodeClient::builder(&order.url).feed(feed).build().unwrap();
    let halt = Arc::clone(halt);
    let policy = PermissionPolicy::ask(move |ask| {
        let halt = Arc::clone(&halt);
        async move {
            say(&Said::Asked(ask.task.as_ref().map(ToString::to_string)));
            halt.at(Point::Asked).await;
            Decision::AllowOnce
        }
    });
    let wait =
        WaitOptions::default().start_timeout(Duration::from_secs(2)).settle_grace(Duration::from_secs(1));
    ConversationManager::builder(client).permissions(policy).wait(wait).unwrap().store(store).build()
}

pub(crate) async fn run(order: &str) {
    let order: Order = serde_json::from_str(order).unwrap();
    let is_armed = matches!(order.point, Some(Point::Store(Call::ClaimTask | Call::PutSession, _)));
    let halt = Arc::new(Halt { point: order.point, is_armed: AtomicBool::new(is_armed) });
    let store = Arc::new(SqliteStore::open(&order.database).await.unwrap());
    let tapped = Arc::new(tap(Arc::clone(&store), Arc::clone(&halt)));
    let manager = manager(&order, tapped, &halt);
    if order.is_worker {
        return crate::pair::work(&order, &manager, &store).await;
    }
    let mut done = order.done.clone();
    for turn in manager.restore().await.unwrap() {
        let is_it = |step: &usize| order.prompts[*step] == turn.record.prompt.text;
        let step = (0..order.prompts.len()).find(is_it).unwrap();
        watch(step, turn.running, &halt).await;
        done.push(step);
    }
    let session = if let Some(session) = manager.task_session_id(&"task".into()) {
        session
    } else {
        let task = CreateTaskSession::new("project", "task", &order.directory, &order.directory);
        manager.create_task_session(task).await.unwrap().session_id
    };
    for (step, prompt) in order.prompts.iter().enumerate() {
        if order.point.is_some() && step == 1 {
            wait_for_orders().await;
            halt.is_armed.store(true, SeqCst);
        }
        if !done.contains(&step) {
            let running = match order.sent.get(&step) {
                Some(message) => manager.resume(session.clone(), message.clone()),
                None => manager.prompt(PromptInput::new(session.clone(), prompt)).start(),
            };
            watch(step, running, &halt).await;
        }
    }
    let state = manager.load_conversation(&session).await.unwrap();
    say(&Said::State(session, json!(state)));
}

/// Reports what becomes of a prompt.
async fn watch(step: usize, mut running: RunningPrompt, halt: &Halt) {
    let mut updates = running.updates().unwrap();
    while let Some(update) = updates.next().await {
        match update {
            Update::Submitted(message) => say(&Said::Sent(step, message)),
            Update::Conversation(ConversationEvent::BlockDelta { .. }) => halt.at(Point::Delta).await,
            _ => {}
        }
    }
    let result = running.await;
    halt.at(Point::Result).await;
    let (ended, answer) = match &result {
        Ok(result) => (result.completion.to_string(), result.answer()),
        Err(error) => (error.to_string(), None),
    };
    say(&Said::Done { step, ended, answer });
}

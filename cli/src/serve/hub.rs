//! What the page shows: every task as it stands, and every change to one as it comes.
//!
//! A change is made and told under one lock, and so is a snapshot taken: a page that watches sees each change once, either in
//! the snapshot or after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencode_conductor::{
    Ask, ConversationEvent, Permission, Question, RequestId, SessionConversationState, SessionId, Subject,
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

/// How far a watcher may fall behind before it gets a new snapshot instead.
pub(crate) const CAPACITY: usize = 1024;
/// Tasks are kept with their conversations until the program ends.
pub(crate) const MAX_TASKS: usize = 500;

/// Where the tasks run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct About {
    pub(crate) server: String,
    pub(crate) directory: String,
}

/// A task, apart from its conversation.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Task {
    pub(crate) id: usize,
    pub(crate) prompt: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) status: Status,
    /// Milliseconds since 1970.
    pub(crate) started_at: i64,
    pub(crate) ended_at: Option<i64>,
    /// Why nothing moves, if there is a reason.
    pub(crate) note: Option<String>,
    pub(crate) permissions: Vec<Card<Permission>>,
    pub(crate) questions: Vec<Card<Questions>>,
    /// How it ended: its `type`, and what there is to know about it.
    pub(crate) outcome: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Status {
    Starting,
    Running,
    Aborting,
    Ended,
}

/// A request for a human, as the page shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Card<Subject> {
    id: RequestId,
    #[serde(rename = "sessionID")]
    session: SessionId,
    #[serde(flatten)]
    subject: Subject,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Questions {
    questions: Vec<Question>,
}

pub(crate) struct Hub {
    about: About,
    world: Mutex<World>,
    changes: broadcast::Sender<Arc<str>>,
}

#[derive(Default)]
struct World {
    /// The number of the last change.
    seq: u64,
    /// A task's id is its place, counted from 1.
    tasks: Vec<Shown>,
}

/// A task with its conversation.
#[derive(Clone, Serialize)]
struct Shown {
    #[serde(flatten)]
    task: Task,
    conversation: SessionConversationState,
}

/// What a watcher is told.
#[derive(Serialize)]
struct Numbered<'a> {
    seq: u64,
    #[serde(flatten)]
    change: Change<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Change<'a> {
    /// Everything; whatever was known before is void.
    Snapshot { now: i64, about: &'a About, tasks: &'a [Shown] },
    /// A task is new or changed, apart from its conversation.
    Task { task: &'a Task },
    /// One step of a task's conversation, to be folded.
    Conversation { task: usize, event: &'a ConversationEvent },
    /// A task's conversation as it stands, because steps were missed.
    Reset { task: usize, conversation: &'a SessionConversationState },
}

impl Hub {
    pub(crate) fn new(about: About) -> Self {
        Self { about, world: Mutex::default(), changes: broadcast::Sender::new(CAPACITY) }
    }

    /// Everything as it stands, and all changes from then on.
    fn watch(&self) -> (Arc<str>, broadcast::Receiver<Arc<str>>) {
        let world = self.world();
        let changes = self.changes.subscribe();
        // Conversations are cheap to clone, and writing them out may take a while.
        let (seq, tasks) = (world.seq, world.tasks.clone());
        drop(world);
        let snapshot = Change::Snapshot { now: now(), about: &self.about, tasks: &tasks };
        (json(seq, snapshot), changes)
    }

    /// Adds a task, if there is room for another.
    pub(crate) fn add(&self, prompt: String) -> Option<usize> {
        let mut world = self.world();
        if world.tasks.len() >= MAX_TASKS {
            return None;
        }
        let id = world.tasks.len() + 1;
        let task = Task {
            id,
            prompt,
            session: None,
            status: Status::Starting,
            started_at: now(),
            ended_at: None,
            note: None,
            permissions: Vec::new(),
            questions: Vec::new(),
            outcome: None,
        };
        world.tasks.push(Shown { task, conversation: SessionConversationState::new() });
        self.tell_task(&mut world, id);
        Some(id)
    }

    pub(crate) fn change(&self, id: usize, change: impl FnOnce(&mut Task)) {
        let mut world = self.world();
        if let Some(shown) = world.shown(id) {
            change(&mut shown.task);
            self.tell_task(&mut world, id);
        }
    }

    /// One step of a task's conversation.
    pub(crate) fn fold(&self, id: usize, event: &ConversationEvent) {
        let mut world = self.world();
        if let Some(shown) = world.shown(id) {
            shown.conversation.apply(event);
            self.tell(&mut world, Change::Conversation { task: id, event });
        }
    }

    /// Makes this a task's conversation.
    pub(crate) fn settle(&self, id: usize, conversation: &SessionConversationState) {
        let mut world = self.world();
        if let Some(shown) = world.shown(id).filter(|shown| shown.conversation != *conversation) {
            shown.conversation = conversation.clone();
            self.tell(&mut world, Change::Reset { task: id, conversation });
        }
    }

    /// Makes these the requests of a task that wait for a human.
    pub(crate) fn show_asks(&self, id: usize, asks: impl Iterator<Item = Ask>) {
        let (mut permissions, mut questions) = (Vec::new(), Vec::new());
        for Ask { id, session_id: session, subject, .. } in asks {
            match subject {
                Subject::Permission(subject) => permissions.push(Card { id, session, subject }),
                Subject::Questions { questions: asked, .. } => {
                    questions.push(Card { id, session, subject: Questions { questions: asked } });
                }
                _ => {}
            }
        }
        let mut world = self.world();
        let Some(Shown { task, .. }) = world.shown(id) else { return };
        if task.permissions != permissions || task.questions != questions {
            (task.permissions, task.questions) = (permissions, questions);
            self.tell_task(&mut world, id);
        }
    }

    fn tell_task(&self, world: &mut World, id: usize) {
        if let Some(task) = world.shown(id).map(|shown| shown.task.clone()) {
            self.tell(world, Change::Task { task: &task });
        }
    }

    fn tell(&self, world: &mut World, change: Change<'_>) {
        world.seq += 1;
        // There may be no page that watches.
        let _ = self.changes.send(json(world.seq, change));
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A thread that panicked left at worst one task's card out of date.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One page's view of the hub: a snapshot, then changes; after a gap the same again.
pub(crate) struct Watcher {
    hub: Arc<Hub>,
    closing: CancellationToken,
    changes: Option<broadcast::Receiver<Arc<str>>>,
}

impl Watcher {
    /// Watches until `closing` is cancelled.
    pub(crate) fn new(hub: Arc<Hub>, closing: CancellationToken) -> Self {
        Self { hub, closing, changes: None }
    }

    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        if let Some(changes) = &mut self.changes {
            let change = tokio::select! {
                // The last changes, too, are told before the end.
                biased;
                change = changes.recv() => change,
                () = self.closing.cancelled() => return None,
            };
            match change {
                Ok(change) => return Some(change),
                Err(RecvError::Closed) => return None,
                Err(RecvError::Lagged(_)) => {}
            }
        }
        let (snapshot, changes) = self.hub.watch();
        self.changes = Some(changes);
        Some(snapshot)
    }
}

impl World {
    fn shown(&mut self, id: usize) -> Option<&mut Shown> {
        self.tasks.get_mut(id.checked_sub(1)?)
    }
}

fn json(seq: u64, change: Change<'_>) -> Arc<str> {
    // Serialising plain data to a string cannot fail.
    serde_json::to_string(&Numbered { seq, change }).unwrap_or_default().into()
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
pub(crate) fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.ok().and_then(|now| i64::try_from(now.as_millis()).ok()).unwrap_or_default()
}

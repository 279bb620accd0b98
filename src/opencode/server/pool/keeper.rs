//! The one task that owns a pool's servers.
//!
//! It takes one request, or one change of a server, after the other, and then serves those who wait. Everything that takes time is a
//! future of its own among the `changes`, which the task itself polls: when the task is gone, so are they, and the processes with them.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{PoolOptions, PoolStatistics, ServerEnvironment, ServerLease};
use crate::{
    deadline::reached,
    opencode::server::{LaunchError, OpenCodeServer, ServerState},
};

/// What a pool's handles and leases ask for.
pub(super) enum Request {
    Get { environment: ServerEnvironment, reply: Reply },
    Release { slot: u64 },
    GaveUp,
}

type Reply = oneshot::Sender<Result<ServerLease, LaunchError>>;

type States = watch::Receiver<ServerState>;

/// What became of a server.
enum Change {
    Launched {
        slot: u64,
        result: Box<Result<OpenCodeServer, LaunchError>>,
    },
    /// It crashed, or came back.
    StateChanged {
        slot: u64,
        states: States,
    },
    /// It ended for good.
    Exited {
        slot: u64,
    },
    Ended {
        slot: u64,
    },
}

pub(super) struct Keeper {
    options: PoolOptions,
    /// Not more than the options allow.
    slots: Vec<Slot>,
    next_slot: u64,
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
    changes: FuturesUnordered<BoxFuture<'static, Change>>,
    requests: mpsc::UnboundedReceiver<Request>,
    /// For leases.
    sender: mpsc::UnboundedSender<Request>,
    totals: PoolStatistics,
    publish: watch::Sender<PoolStatistics>,
}

struct Waiting {
    environment: ServerEnvironment,
    reply: Reply,
}

/// A server, from its start to its end.
struct Slot {
    id: u64,
    environment: ServerEnvironment,
    state: State,
}

enum State {
    /// Left when it answers; the slot goes if it cannot be started.
    Starting,
    /// Left when it has no leases and its time is up or its slot is wanted; the slot goes if the server dies.
    Running { server: Arc<OpenCodeServer>, leases: usize, idle_since: Instant },
    /// The slot goes when the server has gone.
    Ending(Arc<OpenCodeServer>),
}

impl Keeper {
    pub(super) fn new(
        options: PoolOptions,
        sender: mpsc::UnboundedSender<Request>,
        requests: mpsc::UnboundedReceiver<Request>,
        publish: watch::Sender<PoolStatistics>,
    ) -> Self {
        Self {
            options,
            slots: Vec::new(),
            next_slot: 0,
            waiting: VecDeque::new(),
            changes: FuturesUnordered::new(),
            requests,
            sender,
            totals: PoolStatistics::default(),
            publish,
        }
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            self.serve();
            self.end_what_is_idle_for_too_long();
            self.publish();
            let idle_end = reached(self.next_idle_end());
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(request) = self.requests.recv() => self.take(request),
                Some(change) = self.changes.next() => self.apply(change),
                () = idle_end => {}
            }
        }
        self.end_all().await;
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Get { environment, reply } => self.waiting.push_back(Waiting { environment, reply }),
            Request::Release { slot } => {
                if let Some(Slot { state: State::Running { leases, idle_since, .. }, .. }) = self.slot(slot) {
                    *leases -= 1;
                    *idle_since = Instant::now();
                }
            }
            Request::GaveUp => {}
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Launched { slot, result } => match *result {
                Ok(server) => self.launched(slot, Arc::new(server)),
                Err(error) => self.failed(slot, error),
            },
            Change::StateChanged { slot, states } => self.watch(slot, states),
            Change::Exited { slot } => {
                if let Some(Slot { state: State::Running { .. }, .. }) = self.slot(slot) {
                    self.totals.died += 1;
                    tracing::info!(server = slot, "the server is gone");
                    self.remove(slot);
                }
            }
            Change::Ended { slot } => {
                tracing::debug!(server = slot, "the server has ended");
                self.remove(slot);
            }
        }
    }

    fn launched(&mut self, id: u64, server: Arc<OpenCodeServer>) {
        self.totals.launched += 1;
        tracing::info!(server = id, pid = server.pid(), "a server was started");
        self.watch(id, server.state.clone());
        if let Some(slot) = self.slot(id) {
            slot.state = State::Running { server, leases: 0, idle_since: Instant::now() };
        }
    }

    /// Waits for the next change of a server's state.
    fn watch(&mut self, slot: u64, mut states: States) {
        let changed = async move {
            // Without a supervisor there is no server either.
            let is_supervised = states.changed().await.is_ok();
            if !is_supervised || matches!(*states.borrow_and_update(), ServerState::Exited(_)) {
                return Change::Exited { slot };
            }
            Change::StateChanged { slot, states }
        };
        self.changes.push(changed.boxed());
    }

    /// The one who has waited longest for the server gets the error; the others are served anew.
    fn failed(&mut self, id: u64, error: LaunchError) {
        self.totals.failed += 1;
        match &error {
            // What the server wrote last is in these, and belongs in no log.
            LaunchError::Exited(exit) => {
                tracing::warn!(server = id, status = ?exit.status, "the server ended while starting");
            }
            LaunchError::NotReady { .. } => tracing::warn!(server = id, "the server does not answer"),
            error => tracing::warn!(server = id, %error, "the server could not be started"),
        }
        let Some(slot) = self.remove(id) else { return };
        let is_for_it =
            |waiting: &Waiting| waiting.environment == slot.environment && !waiting.reply.is_closed();
        if let Some(index) = self.waiting.iter().position(is_for_it)
            && let Some(waiting) = self.waiting.remove(index)
        {
            // The call may have been dropped in this moment.
            drop(waiting.reply.send(Err(error)));
        }
    }

    /// Gives a server to each who waits, in order, as far as there are servers and slots.
    fn serve(&mut self) {
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        let mut index = 0;
        while let Some(Waiting { environment, .. }) = self.waiting.get(index) {
            let is_for_it =
                |slot: &Slot| slot.environment == *environment && !matches!(slot.state, State::Ending(_));
            let Some(slot) = self.slots.iter().position(is_for_it) else {
                if self.slots.len() >= self.options.max_servers {
                    self.make_room();
                    // Those behind wait too, even for a server that runs: else its users could keep this one out for ever.
                    return;
                }
                // Servers with the same HOME share a database, and two that set it up at once both fail. So they start one at a time.
                if !self.slots.iter().any(|slot| matches!(slot.state, State::Starting)) {
                    self.start(environment.clone());
                }
                index += 1;
                continue;
            };
            match self.slots[slot].lease(&self.sender) {
                Some(lease) => {
                    if let Some(waiting) = self.waiting.remove(index) {
                        // A lease that is not wanted any more is dropped, and so released.
                        drop(waiting.reply.send(Ok(lease)));
                    }
                }
                None => index += 1,
            }
        }
    }

    fn start(&mut self, environment: ServerEnvironment) {
        let id = self.next_slot;
        self.next_slot += 1;
        tracing::debug!(server = id, "starting a server");
        let launch = OpenCodeServer::launch(environment.launch_options(&self.options.base));
        let launch = launch.map(move |result| Change::Launched { slot: id, result: Box::new(result) });
        self.changes.push(launch.boxed());
        self.slots.push(Slot { id, environment, state: State::Starting });
    }

    /// Ends the server that is idle for longest, unless one is being ended already.
    fn make_room(&mut self) {
        if self.slots.iter().any(|slot| matches!(slot.state, State::Ending(_))) {
            return;
        }
        let idle = self.slots.iter().filter_map(|slot| Some((slot.idle_since()?, slot.id)));
        if let Some((_, id)) = idle.min() {
            self.end(id);
        }
    }

    fn end(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        if let State::Running { server, .. } = &slot.state {
            tracing::info!(server = id, "ending the server, which is idle");
            let server = Arc::clone(server);
            slot.state = State::Ending(Arc::clone(&server));
            let ended = async move {
                server.end().await;
                Change::Ended { slot: id }
            };
            self.changes.push(ended.boxed());
        }
    }

    fn end_what_is_idle_for_too_long(&mut self) {
        let now = Instant::now();
        let limit = self.options.idle_shutdown;
        let is_over = |slot: &&Slot| {
            slot.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= limit)
        };
        let over: Vec<u64> = self.slots.iter().filter(is_over).map(|slot| slot.id).collect();
        for id in over {
            self.end(id);
        }
    }

    /// When the next server has been idle for too long.
    fn next_idle_end(&self) -> Option<Instant> {
        let first = self.slots.iter().filter_map(Slot::idle_since).min()?;
        // A limit that is too long for the clock is none.
        first.checked_add(self.options.idle_shutdown)
    }

    /// Refuses those who wait, and ends all servers at once.
    async fn end_all(mut self) {
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            self.take(request);
        }
        for waiting in self.waiting.drain(..) {
            drop(waiting.reply.send(Err(LaunchError::ShutDown)));
        }
        // Kills what is being started.
        self.changes.clear();
        let servers = self.slots.drain(..).filter_map(|slot| match slot.state {
            State::Starting => None,
            State::Running { server, .. } | State::Ending(server) => Some(server),
        });
        join_all(servers.map(|server| async move { server.end().await })).await;
        self.publish();
    }

    fn publish(&self) {
        let mut now = PoolStatistics { waiting: self.waiting.len(), ..self.totals };
        for slot in &self.slots {
            let count = match &slot.state {
                State::Starting => &mut now.starting,
                State::Running { leases: 0, .. } => &mut now.idle,
                State::Running { .. } => &mut now.in_use,
                State::Ending(_) => &mut now.ending,
            };
            *count += 1;
        }
        self.publish.send_if_modified(|told| std::mem::replace(told, now) != now);
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    fn remove(&mut self, id: u64) -> Option<Slot> {
        let index = self.slots.iter().position(|slot| slot.id == id)?;
        Some(self.slots.remove(index))
    }
}

impl Slot {
    /// The use of the server, if it runs. One that crashed is waited for, and one that has died is replaced when that is noticed, which is soon.
    fn lease(&mut self, requests: &mpsc::UnboundedSender<Request>) -> Option<ServerLease> {
        match &mut self.state {
            State::Running { server, leases, .. }
                if matches!(server.state(), ServerState::Running { .. }) =>
            {
                *leases += 1;
                Some(ServerLease { server: Arc::clone(server), slot: self.id, requests: requests.clone() })
            }
            State::Starting | State::Running { .. } | State::Ending(_) => None,
        }
    }

    /// Since when the server runs without a lease.
    fn idle_since(&self) -> Option<Instant> {
        match &self.state {
            State::Running { leases: 0, idle_since, .. } => Some(*idle_since),
            State::Starting | State::Running { .. } | State::Ending(_) => None,
        }
    }
}

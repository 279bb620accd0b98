//! A stand-in for an `OpenCode` server: same routes, same events in the same order, same accidents.

mod access;
mod answer;
mod catalogue;
mod clock;
mod compaction;
mod diff;
mod events;
mod faults;
mod gates;
mod input;
mod model;
mod options;
mod permissions;
mod price;
mod process;
mod prompt;
mod provider;
mod recorder;
mod routes;
mod rules;
mod run;
mod script;
mod serve;
mod shell;
mod subagent;
mod tools;
mod world;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use faults::{Fault, Injection, Route};
pub use options::{FakeOptions, Flavour};
pub use price::ModelPrice;
pub use recorder::{Log, ModelCall, RecordedEvent, RecordedRequest};
pub use script::{ProviderError, Script, ScriptedTool, Step, ToolOutcome};

use self::{events::Signal, faults::Faults, gates::Gates, recorder::Recorder, world::World};
use crate::lock::lock;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;

/// A fake `OpenCode` server on a loopback port of its own.
///
/// It keeps sessions, messages, parts and statuses as the real server does and answers prompts by playing [`Script`]s:
/// one found in the prompt itself (see [`Script::prompt`]), else the one [`on_prompt`](Self::on_prompt) returns, else a
/// short greeting. Subagents find theirs in the prompt of the `task` tool. What a client saw and sent can be read from
/// the [`Log`]; what should go wrong is said with [`inject`](Self::inject), [`hold`](Self::hold),
/// [`kill`](Self::kill) and their like. Nothing here sleeps to synchronise: use gates and
/// [`wait_for`](Self::wait_for).
///
/// Dropping it closes the port and every connection. It panics if the hook of [`on_prompt`](Self::on_prompt) has panicked.
pub struct FakeOpenCode {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Keeps the port while the server is down.
    reserved: Mutex<Option<TcpSocket>>,
}

/// A prompt that asks for a script.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Prompt {
    /// The session that was prompted.
    pub session: String,
    /// The user message.
    pub message: String,
    /// The message's text parts, joined by line breaks.
    pub text: String,
    /// The agent that was asked for.
    pub agent: String,
}

/// A point at which every turn can be held; see [`FakeOpenCode::hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Moment {
    /// After 204, before the user message is stored.
    BeforeStore,
    /// After the user message is stored, before the session is busy.
    BeforeRun,
    /// After the first of the two idles that follow an error or an abort. A prompt that arrives now is lost.
    Cleanup,
    /// After idle, before the summaries that trail a turn.
    Tail,
}

type PromptHook = Arc<dyn Fn(&Prompt) -> Script + Send + Sync>;

pub(crate) struct Shared {
    options: FakeOptions,
    recorder: Arc<Recorder>,
    gates: Gates,
    faults: Faults,
    world: Mutex<World>,
    life: Mutex<Life>,
    holds: Mutex<BTreeMap<Moment, String>>,
    hook: Mutex<Option<PromptHook>>,
    /// What the hook said when it last panicked.
    hook_panic: Mutex<Option<String>>,
    compaction: Mutex<Option<Step>>,
    call_number: AtomicUsize,
}

/// The time between start and death of the server, and all tasks of it.
#[derive(Debug, Clone, Default)]
struct Life {
    killed: CancellationToken,
    tasks: TaskTracker,
}

impl FakeOpenCode {
    /// Starts a fake with the default options.
    ///
    /// # Errors
    /// If no loopback port is free.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(FakeOptions::default()).await
    }

    /// Starts a fake.
    ///
    /// # Errors
    /// If no loopback port is free.
    #[expect(clippy::unused_async, reason = "the start of a server is awaited, also where it takes no time")]
    pub async fn start_with(options: FakeOptions) -> io::Result<Self> {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into())?.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        let recorder = Arc::new(Recorder::default());
        let shared = Arc::new(Shared {
            world: Mutex::new(World::new(Arc::clone(&recorder), &options)),
            options,
            recorder,
            gates: Gates::default(),
            faults: Faults::default(),
            life: Mutex::new(Life::default()),
            holds: Mutex::new(BTreeMap::new()),
            hook: Mutex::new(None),
            hook_panic: Mutex::new(None),
            compaction: Mutex::new(None),
            call_number: AtomicUsize::new(0),
        });
        shared.serve(listener);
        Ok(Self { shared, address, reserved: Mutex::new(None) })
    }

    /// The server's base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The directory of requests that name none.
    pub fn directory(&self) -> &str {
        &self.shared.options.directory
    }

    /// Chooses the script for prompts that carry none. Asked once per user message. The hook may call the fake.
    ///
    /// A hook that panics, as by a failed assertion, ends the run with an error, and dropping the fake panics with what the hook said: the
    /// test fails, also if what it tests puts up with errors.
    pub fn on_prompt(&self, choose: impl Fn(&Prompt) -> Script + Send + Sync + 'static) {
        *lock(&self.shared.hook) = Some(Arc::new(choose));
    }

    /// Answers compactions with this step from now on.
    pub fn set_compaction(&self, step: Step) {
        *lock(&self.shared.compaction) = Some(step);
    }

    // ── What should go wrong ────────────────────────────────────────────────────────────────────────────────────

    /// Makes the next matching request go wrong; see [`Injection`] for more than one.
    pub fn inject(&self, route: Route, fault: Fault) -> Injection {
        self.shared.faults.inject(route, fault)
    }

    /// Forgets the faults that have not struck yet.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Holds every turn at a moment until the named gate is opened.
    pub fn hold(&self, moment: Moment, gate: impl Into<String>) {
        lock(&self.shared.holds).insert(moment, gate.into());
    }

    /// Lets turns pass a moment again; those already held wait for their gate.
    pub fn release(&self, moment: Moment) {
        lock(&self.shared.holds).remove(&moment);
    }

    /// Opens a gate of a script, a fault or a held moment, for good.
    pub fn open_gate(&self, name: &str) {
        self.shared.gates.open(name);
    }

    /// How many wait at a gate now.
    pub fn waiting_at(&self, gate: &str) -> usize {
        self.shared.gates.waiting(gate)
    }

    /// Breaks every open event stream, as a network does.
    pub fn cut_streams(&self) {
        self.shared.world().bus.tell_everyone(&Signal::Cut);
    }

    /// Ends every open event stream in good order, as a proxy does.
    pub fn end_streams(&self) {
        self.shared.world().bus.tell_everyone(&Signal::End);
    }

    /// Keeps every open event stream open but sends nothing on it any more, not even heartbeats.
    pub fn silence_streams(&self) {
        self.shared.world().bus.tell_everyone(&Signal::Silence);
    }

    /// Sends an event of the caller's making to a directory's listeners.
    pub fn send_event(&self, directory: &str, kind: &str, properties: Value) {
        self.shared.world().publish(directory, kind, properties);
    }

    /// Lets a directory be missing on disk. Its sessions take prompts, and every run dies when its step has begun: the step is
    /// never completed, and an error comes after the idle.
    pub fn remove_directory(&self, directory: &str) {
        self.shared.world().missing_directories.insert(directory.to_owned());
    }

    /// Lets a directory be there again.
    pub fn restore_directory(&self, directory: &str) {
        self.shared.world().missing_directories.remove(directory);
    }

    /// Sets the server's clock ahead.
    pub fn set_clock_ahead(&self, skew: Duration) {
        self.shared.world().clock.set_skew(skew, false);
    }

    /// Sets the server's clock back.
    pub fn set_clock_behind(&self, skew: Duration) {
        self.shared.world().clock.set_skew(skew, true);
    }

    /// Kills the server as `kill -9` does: every connection breaks, runs stop where they are, connecting is refused.
    /// What was stored stays, incomplete as it is; statuses and open requests are gone.
    ///
    /// # Errors
    /// When the port cannot be kept for the next life.
    pub async fn kill(&self) -> io::Result<()> {
        *lock(&self.reserved) = Some(bind(self.address)?);
        let life = lock(&self.shared.life).clone();
        life.killed.cancel();
        life.tasks.close();
        life.tasks.wait().await;
        {
            let mut world = self.shared.world();
            world.runners.clear();
            world.jobs.clear();
            world.instances.clear();
        }
        Ok(())
    }

    /// Starts the killed server again, with what was stored.
    ///
    /// # Errors
    /// If another program has taken the port meanwhile.
    #[expect(clippy::unused_async, reason = "the start of a server is awaited, also where it takes no time")]
    pub async fn revive(&self) -> io::Result<()> {
        let reserved = lock(&self.reserved).take();
        let listener = match reserved {
            Some(socket) => socket.listen(BACKLOG)?,
            None => bind(self.address)?.listen(BACKLOG)?,
        };
        *lock(&self.shared.life) = Life::default();
        self.shared.serve(listener);
        Ok(())
    }

    /// [Kills](Self::kill) the server and starts it again.
    ///
    /// # Errors
    /// If another program has taken the port meanwhile.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill().await?;
        self.revive().await
    }

    /// Disposes of a directory's instance, as a change of its configuration does: turns are aborted, streams end.
    pub async fn dispose(&self, directory: &str) {
        self.shared.dispose(directory).await;
    }

    // ── What happened ───────────────────────────────────────────────────────────────────────────────────────────

    /// Everything that happened so far.
    pub fn log(&self) -> Log {
        self.shared.recorder.read().clone()
    }

    /// Forgets what happened so far, except for what is still open; for runs that go on for long.
    pub fn clear_log(&self) {
        self.shared.recorder.change(Log::clear);
    }

    /// The requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorder.read().requests.clone()
    }

    /// How many requests one endpoint got.
    pub fn request_count(&self, route: Route) -> usize {
        self.shared.recorder.read().count(route)
    }

    /// Waits until the log looks as wanted. The closure must not call the fake.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the fake.
    pub async fn wait_for(&self, wanted: impl FnMut(&Log) -> bool) {
        self.shared.recorder.wait_for(wanted).await;
    }

    /// Waits until something is held at the named gate.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the fake.
    pub async fn wait_at(&self, gate: &str) {
        self.wait_for(|log| log.gates_reached.iter().any(|reached| reached == gate)).await;
    }

    /// The user messages of a session that the model began to answer, in order; one that was run twice is there twice.
    pub fn prompts_run(&self, session: &str) -> Vec<String> {
        let log = self.shared.recorder.read();
        let begun = log.model_calls.iter().filter(|call| call.first && call.session == session);
        begun.map(|call| call.message.clone()).collect()
    }

    /// How often the model was called for a user message: steps and retries.
    pub fn model_calls(&self, message: &str) -> usize {
        let log = self.shared.recorder.read();
        log.model_calls.iter().filter(|call| call.message == message).count()
    }

    /// The event streams that are open now.
    pub fn open_streams(&self) -> usize {
        self.shared.recorder.read().open_streams
    }

    /// The connections that are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.recorder.read().open_connections
    }

    /// Bytes of all request and answer bodies so far.
    pub fn bytes(&self) -> (u64, u64) {
        let log = self.shared.recorder.read();
        let sum = |(read, written): (u64, u64), request: &RecordedRequest| {
            (read + request.bytes_in, written + request.bytes_out)
        };
        log.requests.iter().fold((0, 0), sum)
    }

    /// A session's messages as the server would list them; empty for an unknown session.
    pub fn messages(&self, session: &str) -> Vec<Value> {
        let world = self.shared.world();
        let messages = world.sessions.get(session).map_or(&[][..], |session| &session.messages);
        messages.iter().map(world::Message::with_parts).collect()
    }

    /// All sessions, oldest first, as the server would list them.
    pub fn sessions(&self) -> Vec<Value> {
        let world = self.shared.world();
        let info = |id: &String| world.sessions.get(id).map(|session| Value::Object(session.info.clone()));
        world.session_order.iter().filter_map(info).collect()
    }
}

/// A socket that has the address, and does not listen yet. It may have it together with another one of ours, so that the port of a server that is
/// about to be killed is never free for another program.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    #[cfg(unix)]
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Drop for FakeOpenCode {
    fn drop(&mut self) {
        self.shared.killed().cancel();
        let hook_panic = lock(&self.shared.hook_panic).take();
        if let Some(panic) = hook_panic.filter(|_| !std::thread::panicking()) {
            panic!("{panic}");
        }
    }
}

impl fmt::Debug for FakeOpenCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeOpenCode")
            .field("url", &self.url())
            .field("flavour", &self.shared.options.flavour)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn killed(&self) -> CancellationToken {
        lock(&self.life).killed.clone()
    }

    /// Runs a task of this life of the server.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Life { killed, tasks } = lock(&self.life).clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = killed.cancelled() => {}
                () = task => {}
            }
        });
    }

    fn scaled(&self, wait: Duration) -> Duration {
        wait.mul_f64(self.options.time_scale)
    }

    async fn pause_ms(&self, ms: u64) {
        tokio::time::sleep(self.scaled(Duration::from_millis(ms))).await;
    }

    async fn hold(&self, moment: Moment) {
        let gate = lock(&self.holds).get(&moment).cloned();
        if let Some(gate) = gate {
            self.pass_gate(&gate).await;
        }
    }

    async fn pass_gate(&self, gate: &str) {
        let arrived = || {
            self.recorder.change(|log| log.gates_reached.push(gate.to_owned()));
        };
        self.gates.pass(gate, arrived).await;
    }

    fn prompt_hook(&self) -> Option<PromptHook> {
        lock(&self.hook).clone()
    }

    fn compaction_script(&self) -> Option<Step> {
        lock(&self.compaction).clone()
    }

    fn next_call_number(&self) -> usize {
        self.call_number.fetch_add(1, Ordering::SeqCst)
    }

    /// The hash of the worktree, which in a fake never changes.
    #[expect(clippy::unused_self, reason = "the server asks git")]
    fn snapshot(&self) -> &'static str {
        world::PROJECT
    }

    fn set_todos(&self, session: &str, todos: &Value) {
        let mut world = self.world();
        if let Some(session) = world.sessions.get_mut(session) {
            session.todos = todos.clone();
        }
        world.publish_for(session, "todo.updated", json!({"sessionID": session, "todos": todos}));
    }

    /// Aborts a directory's turns, forgets what lives per instance and ends its streams.
    async fn dispose(self: &Arc<Self>, directory: &str) {
        let running: Vec<String> = {
            let world = self.world();
            let is_here = |id: &&String| world.directory_of(id).as_deref() == Some(directory);
            let running = world.session_order.iter().filter(|id| world.runners.contains_key(*id));
            running.filter(is_here).cloned().collect()
        };
        // All at once and parents first, so that no parent goes on with the answer of a subagent that is being stopped.
        join_all(running.iter().map(|session| self.cancel_runner(session))).await;
        let mut world = self.world();
        world.instances.remove(directory);
        world.publish(directory, "server.instance.disposed", json!({"directory": directory}));
        world.bus.tell(Some(directory), &Signal::End);
    }
}

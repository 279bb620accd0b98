//! A Claude Code for tests: an executable that speaks like it, and does what prompts say.
//!
//! The executable is a small script that hands everything to the [`FakeClaude`] inside the test, so that a test can hold a turn at a
//! gate, count what ran and break things at a given moment. It keeps plain JSON and knows none of the crate's own wire types, so that
//! it cannot share their mistakes.

mod fault;
mod play;
mod process;
mod script;
mod shim;

use std::{
    collections::{HashMap, HashSet},
    fmt, fs, io,
    io::Write,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
};

use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, tcp::OwnedWriteHalf},
    sync::watch,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use self::{
    fault::Injection,
    process::FakeProcess,
    shim::{Called, Half},
};
pub use self::{
    fault::{ClaudeFault, ClaudeMoment},
    script::{ClaudeScript, ClaudeStep, ClaudeTool},
};
use super::{ClaudeOptions, agent::uuid};
use crate::{
    lock::lock,
    time::{Millis, Timestamp},
    wall_clock,
};

/// A Claude Code for tests. Dropping it ends its processes and removes its files.
///
/// # Examples
/// ```
/// use opencode_conductor::{
///     CreateTaskSession, ManagerBuilder, PromptInput,
///     claude::ClaudeCode,
///     test_util::{ClaudeScript, FakeClaude},
/// };
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fake = FakeClaude::start().await?;
/// let manager = ManagerBuilder::new(ClaudeCode::new(fake.options())).build();
/// let create = CreateTaskSession::new("project", "task", "/project", "/project/worktree");
/// let session = manager.create_task_session(create).await?.session_id;
///
/// let prompt = ClaudeScript::text("42").prompt("What is it?");
/// let result = manager.prompt(PromptInput::new(session, prompt)).await?;
/// assert_eq!(result.answer().as_deref(), Some("42"));
/// # manager.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct FakeClaude {
    world: Arc<World>,
    _tasks: DropGuard,
}

/// What the processes of a fake share.
struct World {
    home: PathBuf,
    tasks: TaskTracker,
    log: Mutex<Log>,
    faults: Mutex<Vec<Injection>>,
    gates: watch::Sender<Gates>,
    /// The last moment that was written, so that none is written twice.
    last: AtomicI64,
    /// The last line of each session.
    parents: Mutex<HashMap<String, String>>,
}

/// What happened in a fake.
#[derive(Debug, Clone, Default)]
struct Log {
    starts: Vec<Vec<String>>,
    called: Vec<String>,
}

#[derive(Debug, Default)]
struct Gates {
    open: HashSet<String>,
    reached: HashSet<String>,
}

/// Connections whose other half has not come yet.
#[derive(Default)]
struct Halves {
    outputs: HashMap<u32, (OwnedWriteHalf, u32)>,
    inputs: HashMap<u32, Called>,
}

impl FakeClaude {
    /// Starts a fake of version 2.1.325.
    ///
    /// # Errors
    /// If its executable cannot be written, or there is no port for it.
    pub async fn start() -> io::Result<Self> {
        Self::start_as("2.1.325 (Claude Code)").await
    }

    /// Starts a fake that prints this as its version.
    ///
    /// # Errors
    /// If its executable cannot be written, or there is no port for it.
    pub async fn start_as(version: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let home = std::env::temp_dir().join(format!("fake-claude-{}", uuid()));
        fs::create_dir_all(&home)?;
        write_executable(&home.join("claude"), &shim::script(listener.local_addr()?.port(), version))?;
        let world = Arc::new(World {
            home,
            tasks: TaskTracker::new(),
            log: Mutex::default(),
            faults: Mutex::default(),
            gates: watch::Sender::default(),
            last: AtomicI64::new(0),
            parents: Mutex::default(),
        });
        let ended = CancellationToken::new();
        let (accepting, end) = (Arc::clone(&world), ended.clone());
        world.tasks.spawn(async move {
            tokio::select! { () = end.cancelled() => {}, () = accept(accepting, listener, end.clone()) => {} }
        });
        Ok(Self { world, _tasks: ended.drop_guard() })
    }

    /// The options with which [`ClaudeCode`](crate::claude::ClaudeCode) runs it. The directories of sessions need not exist.
    pub fn options(&self) -> ClaudeOptions {
        let home = &self.world.home;
        ClaudeOptions::new()
            .executable(home.join("claude"))
            .config_directory(home.join("config"))
            .start_in(home)
    }

    /// The variables by which a program of its own finds this executable and its files.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let home = &self.world.home;
        [("CLAUDE_BIN", home.join("claude")), ("CLAUDE_CONFIG_DIR", home.join("config"))]
    }

    /// How often the model began to answer a prompt.
    pub fn runs(&self, prompt: &str) -> usize {
        self.world.log().called.iter().filter(|called| *called == prompt).count()
    }

    /// The arguments of every process that was started.
    pub fn starts(&self) -> Vec<Vec<String>> {
        self.world.log().starts.clone()
    }

    /// Lets something go wrong, once, when a turn comes to this moment next.
    pub fn inject(&self, at: ClaudeMoment, fault: ClaudeFault) {
        lock(&self.world.faults).push(Injection { at, fault });
    }

    /// Waits until a turn stands at a gate.
    pub async fn wait_at(&self, gate: &str) {
        let mut gates = self.world.gates.subscribe();
        drop(gates.wait_for(|gates| gates.reached.contains(gate)).await);
    }

    /// Opens a gate; it stays open.
    pub fn open_gate(&self, gate: &str) {
        self.world.gates.send_modify(|gates| {
            gates.open.insert(gate.to_owned());
        });
    }

    /// Where the transcript of a session is.
    pub fn transcript(&self, session: &str, directory: &str) -> PathBuf {
        self.world.transcript(session, directory, None)
    }
}

impl fmt::Debug for FakeClaude {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeClaude").field("home", &self.world.home).finish_non_exhaustive()
    }
}

/// Joins the two connections of each process and runs it.
async fn accept(world: Arc<World>, listener: TcpListener, end: CancellationToken) {
    let halves = Arc::new(Mutex::new(Halves::default()));
    while let Ok((connection, _)) = listener.accept().await {
        let (world, halves, end) = (Arc::clone(&world), Arc::clone(&halves), end.clone());
        world.tasks.clone().spawn(async move {
            let run = async {
                let Ok(half) = Half::accept(connection).await else { return };
                let whole = lock(&halves).join(half);
                if let Some((called, output, reader)) = whole {
                    FakeProcess::run(world, called, output, reader).await;
                }
            };
            tokio::select! { () = end.cancelled() => {}, () = run => {} }
        });
    }
}

impl Halves {
    fn join(&mut self, half: Half) -> Option<(Called, OwnedWriteHalf, u32)> {
        let process = match half {
            Half::Output(process, output, reader) => {
                self.outputs.insert(process, (output, reader));
                process
            }
            Half::Input(process, called) => {
                self.inputs.insert(process, called);
                process
            }
        };
        if !(self.outputs.contains_key(&process) && self.inputs.contains_key(&process)) {
            return None;
        }
        let (output, reader) = self.outputs.remove(&process)?;
        Some((self.inputs.remove(&process)?, output, reader))
    }
}

/// Once no process of the fake writes any more.
impl Drop for World {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans up after tests.
        drop(fs::remove_dir_all(&self.home));
    }
}

impl World {
    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn called_for(&self, prompt: &str) {
        self.log().called.push(prompt.to_owned());
    }

    /// The next thing that goes wrong at this moment.
    fn fault_at(&self, moment: ClaudeMoment) -> Option<ClaudeFault> {
        let mut faults = lock(&self.faults);
        let place = faults.iter().position(|injection| injection.at == moment)?;
        Some(faults.remove(place).fault)
    }

    /// Takes a fault of this kind away from a moment; says whether there was one.
    fn take_fault(&self, moment: ClaudeMoment, fault: &ClaudeFault) -> bool {
        let mut faults = lock(&self.faults);
        let place = faults.iter().position(|injection| injection.at == moment && injection.fault == *fault);
        place.map(|place| faults.remove(place)).is_some()
    }

    async fn stand_at(&self, gate: &str) {
        self.gates.send_modify(|gates| {
            gates.reached.insert(gate.to_owned());
        });
        let mut gates = self.gates.subscribe();
        drop(gates.wait_for(|gates| gates.open.contains(gate)).await);
    }

    /// A moment that was not written before.
    fn now(&self) -> String {
        let now = wall_clock::now().get();
        let last = self.last.fetch_update(SeqCst, SeqCst, |last| Some(now.max(last + 1))).unwrap_or_default();
        Timestamp::from(Millis::new(now.max(last + 1))).to_string()
    }

    /// The line before a line.
    fn parent(&self, session: &str, line: Option<&str>) -> Option<String> {
        let mut parents = lock(&self.parents);
        parents.insert(session.to_owned(), line.unwrap_or_default().to_owned())
    }

    fn transcript(&self, session: &str, directory: &str, subagent: Option<&str>) -> PathBuf {
        let slug: String = directory
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
            .collect();
        let project = self.home.join("config/projects").join(slug);
        match subagent {
            None => project.join(format!("{session}.jsonl")),
            Some(agent) => project.join(session).join(format!("subagents/agent-{agent}.jsonl")),
        }
    }

    fn append(&self, path: &Path, text: &str) {
        let open = || {
            fs::create_dir_all(path.parent().unwrap_or(&self.home))?;
            fs::OpenOptions::new().append(true).create(true).open(path)
        };
        // Whoever reads the file misses what could not be written.
        if let Ok(mut file) = open() {
            drop(file.write_all(text.as_bytes()));
        }
    }

    fn describe_subagent(&self, process: &FakeProcess, agent: &str, call: &str) {
        let path =
            self.transcript(&process.session, &process.directory, Some(agent)).with_extension("meta.json");
        let meta = json!({"toolUseId": call, "agentType": "general-purpose", "spawnDepth": 1});
        self.append(&path, &meta.to_string());
    }

    /// The lines of a session's main thread.
    fn lines(&self, session: &str, directory: &str) -> Vec<Value> {
        let text = fs::read(self.transcript(session, directory, None)).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Whether there is a transcript of a session, and whether it has messages.
    fn knows(&self, session: &str, directory: &str) -> (bool, bool) {
        let is_message = |line: &Value| line["type"] == "user" || line["type"] == "assistant";
        let exists = self.transcript(session, directory, None).exists();
        (exists, self.lines(session, directory).iter().any(is_message))
    }

    /// Whether anything of the model's side follows a prompt.
    fn is_answered(&self, session: &str, directory: &str, prompt: &str) -> bool {
        let lines = self.lines(session, directory);
        let place = lines.iter().position(|line| line["uuid"] == prompt);
        place.is_some_and(|place| lines[place..].iter().any(|line| line["type"] == "assistant"))
    }

    /// What a session had cost when its last process ended.
    fn cost(&self, session: &str, directory: &str) -> f64 {
        let lines = self.lines(session, directory);
        lines.iter().rev().find_map(|line| line["totalCostUSD"].as_f64()).unwrap_or_default()
    }
}

/// Writes a script that can be run at once. A process of its own does it: what this one has open for writing, a child that another thread
/// starts holds open for a moment, and the system does not run a file that is open for writing.
fn write_executable(path: &Path, text: &str) -> io::Result<()> {
    let write = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let written = std::process::Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(text).status()?;
    if written.success() { Ok(()) } else { Err(io::Error::other("the fake's executable was not written")) }
}

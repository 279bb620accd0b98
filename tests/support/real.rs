//! A real `opencode serve`, offline: its own HOME, its own projects, a scripted model as its provider.

#![allow(dead_code, reason = "each target that includes this module uses its own part of it")]
#![expect(clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Once,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use reqwest::{Client, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// A cold server on a busy machine needs some ten seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A request sent too early is never answered, so the probe gives up quickly and asks again.
const PROBE_LIMIT: Duration = Duration::from_millis(500);

/// Servers listen from here on, below the ports that the kernel hands out.
const FIRST_PORT: u16 = 20_000;
/// The first port that the kernel gives to connections and to those that ask for any.
const EPHEMERAL_PORTS: u16 = 32_768;

/// How to start a [`RealServer`].
#[derive(Debug, Clone)]
pub(crate) struct RealOptions {
    executable: PathBuf,
    model_url: String,
    config: Value,
    env: Vec<(String, String)>,
    password: Option<String>,
    projects: usize,
}

/// A running server; dropping it kills its process group and removes its HOME.
pub(crate) struct RealServer {
    options: RealOptions,
    home: TempDir,
    client: Client,
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
    url: String,
}

impl RealOptions {
    /// One project, no password, the model at `model_url` (see `ScriptedModel::base_url`).
    pub(crate) fn new(executable: PathBuf, model_url: &str) -> Self {
        Self {
            executable,
            model_url: model_url.to_owned(),
            config: json!({}),
            env: Vec::new(),
            password: None,
            projects: 1,
        }
    }

    /// Merges this into every project's `opencode.json`, objects key by key.
    #[must_use]
    pub(crate) fn config(mut self, config: Value) -> Self {
        merge(&mut self.config, config);
        self
    }

    /// Sets an environment variable of the server; it inherits none but `PATH`.
    #[must_use]
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Demands HTTP Basic authentication as user `opencode`.
    #[must_use]
    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Makes this many project directories.
    #[must_use]
    pub(crate) fn projects(mut self, projects: usize) -> Self {
        self.projects = projects;
        self
    }

    /// Lets the projects' configuration hold in every directory, also in those that do not exist.
    #[must_use]
    pub(crate) fn configured_everywhere(self) -> Self {
        let config = self.project_config().to_string();
        self.env("OPENCODE_CONFIG_CONTENT", &config)
    }

    fn project_config(&self) -> Value {
        let mut config = json!({
            "model": "mock/m", "small_model": "mock/m", "autoupdate": false, "share": "disabled",
            "provider": {"mock": {
                "npm": "@ai-sdk/openai-compatible", "name": "Mock",
                "options": {"baseURL": self.model_url, "apiKey": "x"},
                "models": {"m": {
                    "name": "M", "reasoning": true, "tool_call": true, "attachment": true,
                    "modalities": {"input": ["text", "image"], "output": ["text"]},
                    "limit": {"context": 100_000, "output": 10_000},
                }},
            }},
        });
        merge(&mut config, self.config.clone());
        config
    }

    /// The executable inside a HOME, with nothing of the caller's own configuration.
    fn command(&self, home: &Path, directory: &Path) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
            .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
            .envs(self.password.iter().map(|password| ("OPENCODE_SERVER_PASSWORD", password)))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

impl RealServer {
    /// The executable named by `OPENCODE_BIN`, else `opencode` on the `PATH`.
    ///
    /// Without one a test cannot run: it returns, and this says on stderr how to enable it.
    pub(crate) fn find() -> Option<PathBuf> {
        let found = match std::env::var_os("OPENCODE_BIN") {
            Some(executable) => Some(PathBuf::from(executable)),
            None => std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|directory| directory.join("opencode"))
                .find(|executable| executable.is_file()),
        };
        if found.is_none() {
            let how = "no OpenCode found; set OPENCODE_BIN or put `opencode` on the PATH";
            assert!(std::env::var_os("REQUIRE_OPENCODE").is_none(), "{how}");
            say(&format!("skipped: {how}"));
        }
        found
    }

    /// The executable of another release, below the directory that `OPENCODE_RELEASES` names, where `.ci/install-opencode` puts it.
    ///
    /// Without it a test cannot run: it returns, and this says on stderr how to enable it.
    pub(crate) fn find_release(version: &str) -> Option<PathBuf> {
        let installed = Path::new(version).join("node_modules/opencode-linux-x64/bin/opencode");
        let releases = std::env::var_os("OPENCODE_RELEASES").map(PathBuf::from);
        let found = releases.map(|releases| releases.join(installed)).filter(|found| found.is_file());
        if found.is_some() {
            return found;
        }
        drop(writeln!(
            std::io::stderr(),
            "skipped: no OpenCode {version}; run `.ci/install-opencode {version}` and set OPENCODE_RELEASES=$PWD/target/opencode"
        ));
        None
    }

    /// Makes HOME and projects, starts the server and returns once it answers.
    pub(crate) async fn start(options: RealOptions) -> Self {
        let home = tempfile::Builder::new().prefix("conductor-").tempdir().expect("make a HOME");
        for index in 0..options.projects {
            make_project(&project_path(home.path(), index), &options).await;
        }
        let (process, output, url) = launch(&options, home.path(), free_port()).await;
        // A proxy of the environment must not see loopback traffic, and a connection kept from before a restart on
        // the same port would fail the next request.
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("build a client");
        Self { options, home, client, process, output, url }
    }

    /// The server's address without a trailing slash.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server's HOME, in which the projects lie.
    pub(crate) fn home(&self) -> PathBuf {
        self.home.path().canonicalize().expect("the HOME exists")
    }

    /// The n-th project directory.
    pub(crate) fn project(&self, index: usize) -> PathBuf {
        project_path(&self.home(), index)
    }

    /// A request to the server on behalf of the first project, with the password if there is one.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_in(0, method, path)
    }

    /// A request on behalf of the n-th project.
    pub(crate) fn request_in(&self, project: usize, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .query(&[("directory", self.project(project))]);
        match &self.options.password {
            Some(password) => request.basic_auth("opencode", Some(password)),
            None => request,
        }
    }

    /// Reads JSON, for the first project.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let response = self.request(Method::GET, path).timeout(START_LIMIT).send().await;
        let text = response.expect("a response").text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("GET {path}: {error}: {text}"))
    }

    /// Posts JSON, for the first project; `null` for an empty answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.request(Method::POST, path).timeout(START_LIMIT).json(body);
        let response = request.send().await.expect("a response");
        let status = response.status();
        let text = response.text().await.expect("a body");
        assert!(status.is_success(), "POST {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Runs another command of the same executable in the first project and returns what it prints.
    pub(crate) async fn run(&self, args: &[&str]) -> String {
        let mut command = self.options.command(self.home.path(), &self.project(0));
        let output = command.args(args).output().await.expect("run opencode");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Kills the server at once, as a crash would.
    pub(crate) async fn kill(&mut self) {
        kill_group(&self.process);
        self.process.wait().await.expect("the server ends");
    }

    /// Asks the server to end, as a supervisor would.
    pub(crate) async fn terminate(&mut self) {
        signal_group(&self.process, Signal::TERM);
        self.process.wait().await.expect("the server ends");
    }

    /// Lets the server hang, or go on.
    pub(crate) fn hang(&self, hangs: bool) {
        signal_group(&self.process, if hangs { Signal::STOP } else { Signal::CONT });
    }

    /// Starts it again on the same HOME and the same port, killing it first if it still runs.
    pub(crate) async fn restart(&mut self) {
        self.kill().await;
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        (self.process, self.output, self.url) = launch(&self.options, self.home.path(), port).await;
    }

    /// Starts it again on the same HOME and on another port.
    pub(crate) async fn restart_elsewhere(&mut self) {
        self.kill().await;
        (self.process, self.output, self.url) = launch(&self.options, self.home.path(), free_port()).await;
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        kill_group(&self.process);
    }
}

/// A port that stays free while its server is restarted.
///
/// Given none, the server takes 4096 if it can, which another test's server may take in between. Ports from
/// [`EPHEMERAL_PORTS`] on go to other tests' connections.
fn free_port() -> u16 {
    static N_TAKEN: AtomicU16 = AtomicU16::new(0);
    // Tests that run side by side begin at different places.
    let n_ports = EPHEMERAL_PORTS - FIRST_PORT;
    let start = u16::try_from(std::process::id() * 97 % u32::from(n_ports)).expect("a remainder");
    (0..n_ports)
        .map(|_| FIRST_PORT + (start + N_TAKEN.fetch_add(1, Ordering::Relaxed)) % n_ports)
        // Not by listening there: a child that is forked meanwhile would listen on for a moment.
        .find(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).is_err())
        .expect("a free port")
}

async fn launch(
    options: &RealOptions,
    home: &Path,
    port: u16,
) -> (Child, Lines<BufReader<ChildStdout>>, String) {
    let errors = home.join("stderr.log");
    let mut process = options
        .command(home, &project_path(home, 0))
        .args(["serve", "--hostname", "127.0.0.1", "--port", &port.to_string()])
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&errors).expect("make a log"))
        .process_group(0)
        .spawn()
        .expect("start opencode");
    let mut output = BufReader::new(process.stdout.take().expect("a piped stdout")).lines();
    let ready = async {
        let url = loop {
            let Some(line) = output.next_line().await.expect("read stdout") else {
                let said = fs::read_to_string(&errors).unwrap_or_default();
                panic!("opencode did not start on port {port}: {said}")
            };
            if let Some((_, url)) = line.split_once("listening on ") {
                break url.trim().trim_end_matches('/').to_owned();
            }
        };
        probe(&url).await;
        url
    };
    let url = tokio::time::timeout(START_LIMIT, ready).await.expect("opencode answers in time");
    (process, output, url)
}

/// Returns once the server answers anything at all; 401 is an answer.
async fn probe(url: &str) {
    let client = Client::builder().no_proxy().timeout(PROBE_LIMIT).build().expect("build a client");
    while client.get(format!("{url}/global/health")).send().await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A repository with one commit: without a commit the server counts all directories as one project.
async fn make_project(directory: &Path, options: &RealOptions) {
    fs::create_dir_all(directory).expect("make a project");
    fs::write(directory.join("notes.txt"), "one\ntwo\nthree\n").expect("write a file");
    fs::write(directory.join("opencode.json"), options.project_config().to_string())
        .expect("write the config");
    let name = directory.file_name().expect("a named project").to_string_lossy().into_owned();
    let commit = ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", &name];
    for args in [&["init", "-q"][..], &["add", "."], &commit] {
        let status = Command::new("git").args(args).current_dir(directory).status().await.expect("run git");
        assert!(status.success(), "git {args:?}: {status}");
    }
}

fn project_path(home: &Path, index: usize) -> PathBuf {
    home.join(if index == 0 { "project".to_owned() } else { format!("project-{}", index + 1) })
}

fn kill_group(process: &Child) {
    signal_group(process, Signal::KILL);
}

fn signal_group(process: &Child, signal: Signal) {
    let pid = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        // It may have ended by itself.
        let _ = kill_process_group(pid, signal);
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Says it once, and straight to the terminal: what a test prints that passes is not shown.
fn say(message: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| drop(writeln!(std::io::stderr(), "{message}")));
}

//! How to start a server.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    ffi::OsString,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    error::InvalidInput,
    opencode::client::{ApiError, ClientBuilder, OpenCodeClient},
    process::find_program,
    setters::setters,
};

type Configure = Arc<dyn Fn(ClientBuilder) -> ClientBuilder + Send + Sync>;

/// How to start an [`OpenCodeServer`](super::OpenCodeServer).
#[derive(Clone)]
#[must_use]
pub struct LaunchOptions {
    executable: Option<PathBuf>,
    pub(super) directory: Option<PathBuf>,
    inherited: Inherited,
    removed: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    pub(super) port: u16,
    pub(super) config: Option<Value>,
    pub(super) password: Option<Arc<str>>,
    pub(super) startup_timeout: Duration,
    pub(super) restart: RestartPolicy,
    configure: Option<Configure>,
}

/// Which of this process's environment variables a server gets.
#[derive(Debug, Clone)]
enum Inherited {
    All,
    Only(Vec<OsString>),
}

/// How often a crashed server is started again.
#[derive(Debug, Clone)]
pub struct RestartPolicy {
    limit: usize,
    within: Duration,
    recent: VecDeque<Instant>,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            executable: None,
            directory: None,
            inherited: Inherited::All,
            removed: Vec::new(),
            environment: Vec::new(),
            port: 0,
            config: None,
            password: None,
            startup_timeout: Duration::from_secs(60),
            restart: RestartPolicy::never(),
            configure: None,
        }
    }
}

impl LaunchOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the executable; default what `OPENCODE_BIN` names, else `opencode` on the path.
        executable(path: impl Into<PathBuf>) { executable = Some(path.into()) }
        /// Sets the directory to start in; default this process's own.
        directory(path: impl Into<PathBuf>) { directory = Some(path.into()) }
        /// Sets the port to listen on; default 0, for a free one. A server that then says that it listens anywhere else is not talked to.
        port(port: u16) { port = port }
        /// Sets configuration on top of the server's files, as in `opencode.json`; default none.
        config(config: Value) { config = Some(config) }
        /// Sets the password that clients need; default a random one.
        ///
        /// The server gets it in its environment, as it wants to. A small plugin takes it out of that again before any tool is started, so that a
        /// model that lists its environment does not see it. A tool that reads the server's own start-up environment
        /// (`/proc/<pid>/environ`) still finds it, as any process of the same user does: who has a shell has the API.
        password(password: impl Into<Arc<str>>) { password = Some(password.into()) }
        /// Sets how long the server may take until it answers; default 60 s.
        startup_timeout(timeout: Duration) { startup_timeout = timeout }
        /// Sets whether a crashed server is started again; default never.
        restart(policy: RestartPolicy) { restart = policy }
        /// Lets the server inherit none of this process's environment variables but these; default all. Most need `PATH` and `HOME`.
        env_allow(names: impl IntoIterator<Item = impl Into<OsString>>) {
            inherited = Inherited::Only(names.into_iter().map(Into::into).collect())
        }
        /// Lets the server inherit none of this process's environment variables; default all.
        env_clear() { inherited = Inherited::Only(Vec::new()) }
    }

    /// Sets an environment variable of the server, and so of every tool that a model runs on it, in addition to those that it
    /// inherits: by default all of this process's own, its keys and tokens included. See [`Self::env_allow`].
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Keeps the server from inheriting an environment variable of this process.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.removed.push(name.into());
        self
    }

    /// Changes the settings of the server's client; the address and the credentials are set.
    pub fn configure_client(
        mut self,
        configure: impl Fn(ClientBuilder) -> ClientBuilder + Send + Sync + 'static,
    ) -> Self {
        self.configure = Some(Arc::new(configure));
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidInput> {
        let invalid = |field, rule| Err(InvalidInput::new(field, rule));
        InvalidInput::check_durations(&[("startup_timeout", self.startup_timeout)])?;
        if self.directory.as_deref().is_some_and(|path| !path.is_dir()) {
            return invalid("directory", "must exist");
        }
        if self.password.as_deref().is_some_and(|password| password.is_empty() || password.contains('\0')) {
            return invalid("password", "must not be empty or contain NUL");
        }
        if self.config.as_ref().is_some_and(|config| !config.is_object()) {
            return invalid("config", "must be an object");
        }
        let plugins = self.config.as_ref().and_then(|config| config.get("plugin"));
        if plugins.is_some_and(|plugins| !plugins.is_array() && !plugins.is_null()) {
            // The one that hides the password could not be added to them.
            return invalid("config", "must have an array, or nothing, as `plugin`");
        }
        Ok(())
    }

    /// The variables that the server starts with, without those that every server gets.
    pub(super) fn variables(&self) -> BTreeMap<OsString, OsString> {
        let is_inherited = |name: &OsString| match &self.inherited {
            Inherited::All => true,
            Inherited::Only(names) => names.contains(name),
        };
        let inherited = env::vars_os().filter(|(name, _)| is_inherited(name) && !self.removed.contains(name));
        inherited.chain(self.environment.iter().cloned()).collect()
    }

    pub(super) fn program(&self) -> PathBuf {
        find_program(self.executable.as_deref(), "OPENCODE_BIN", "opencode")
    }

    pub(super) fn client(&self, url: &str, password: &Arc<str>) -> Result<OpenCodeClient, ApiError> {
        let builder =
            OpenCodeClient::builder(url).basic_auth("opencode", Arc::clone(password)).shares_files();
        match &self.configure {
            Some(configure) => configure(builder).build(),
            None => builder.build(),
        }
    }
}

impl fmt::Debug for LaunchOptions {
    /// Environment and configuration may hold keys, so only their names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        let inherited = match &self.inherited {
            Inherited::All => None,
            Inherited::Only(names) => Some(names),
        };
        f.debug_struct("LaunchOptions")
            .field("executable", &self.executable)
            .field("directory", &self.directory)
            .field("environment", &names)
            .field("inherited", &inherited)
            .field("removed", &self.removed)
            .field("port", &self.port)
            .field("startup_timeout", &self.startup_timeout)
            .field("restart", &self.restart)
            .finish_non_exhaustive()
    }
}

impl RestartPolicy {
    /// A crashed server stays down.
    pub fn never() -> Self {
        Self::up_to(0, Duration::ZERO)
    }

    /// A crashed server is started again at most `limit` times within any stretch of this length.
    pub fn up_to(limit: usize, within: Duration) -> Self {
        Self { limit, within, recent: VecDeque::new() }
    }

    /// How long to wait before the next restart; `None` if there is none.
    pub(super) fn next_pause(&mut self, now: Instant) -> Option<Duration> {
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > self.within) {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.limit {
            return None;
        }
        let n_recent = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        self.recent.push_back(now);
        // At once after the first crash, then slower: a server that dies at once will do so again.
        let pause = Duration::from_millis(250).saturating_mul(2_u32.saturating_pow(n_recent) - 1);
        Some(pause.min(Duration::from_secs(10)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn restarts_are_limited_per_stretch_of_time() {
        let start = Instant::now();
        let mut policy = RestartPolicy::up_to(3, Duration::from_secs(60));
        let mut at =
            |seconds| policy.next_pause(start + Duration::from_secs(seconds)).map(|pause| pause.as_millis());
        assert_eq!([at(0), at(1), at(2), at(3)], [Some(0), Some(250), Some(750), None]);
        assert_eq!([at(59), at(61), at(61)], [None, Some(750), None]);
        assert_eq!(RestartPolicy::never().next_pause(start), None);
    }

    #[test]
    fn a_server_inherits_what_it_is_allowed_to() {
        let names = |options: &LaunchOptions| -> Vec<String> {
            options.variables().into_keys().map(|name| name.into_string().unwrap()).collect()
        };
        let all = names(&LaunchOptions::new());
        assert!(all.iter().any(|name| name == "PATH"), "the test can tell");
        assert!(!names(&LaunchOptions::new().env_remove("PATH")).iter().any(|name| name == "PATH"));
        assert_eq!(names(&LaunchOptions::new().env_allow(["PATH", "NO_SUCH_VARIABLE"])), ["PATH"]);
        assert_eq!(names(&LaunchOptions::new().env_clear().env("KEY", "x")), ["KEY"]);
    }

    #[test]
    fn bad_options_are_refused_by_name() {
        let rows = [
            (LaunchOptions::new().directory("/no/such/directory"), "directory must exist"),
            (LaunchOptions::new().password(""), "password must not be empty or contain NUL"),
            (LaunchOptions::new().config(Value::Null), "config must be an object"),
            (
                LaunchOptions::new().config(json!({"plugin": "mine"})),
                "config must have an array, or nothing, as `plugin`",
            ),
        ];
        for (options, message) in rows {
            assert_eq!(options.check().unwrap_err().to_string(), message);
        }
    }
}

//! How to run Claude Code.

use std::{env, ffi::OsString, fmt, path::PathBuf, sync::Arc};

use crate::{process::find_program, setters::setters};

/// How to run [`ClaudeCode`](super::ClaudeCode).
#[derive(Clone, Default)]
#[must_use]
pub struct ClaudeOptions {
    executable: Option<PathBuf>,
    config: Option<PathBuf>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) arguments: Vec<OsString>,
    pub(super) start_in: Option<PathBuf>,
    pub(super) on_release: OnRelease,
}

/// What becomes of a turn that still runs when its session is let go: dropped, given up, or shut down with its manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnRelease {
    /// It goes on to its end, and its process ends then. A manager that resumes the turn waits for that.
    #[default]
    Finish,
    /// Its processes are killed. A manager that resumes the turn finds it interrupted.
    Kill,
}

impl ClaudeOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the executable; default what `CLAUDE_BIN` names, else `claude` on the path.
        executable(path: impl Into<PathBuf>) { executable = Some(path.into()) }
        /// Sets where Claude Code keeps its settings and transcripts; default what `CLAUDE_CONFIG_DIR` names, else `.claude` at home.
        config_directory(path: impl Into<PathBuf>) { config = Some(path.into()) }
        /// Starts the executable here, and not in the session's directory: for one that enters a container or another machine first.
        /// It finds the session's directory in `CONDUCTOR_DIRECTORY`.
        start_in(directory: impl Into<PathBuf>) { start_in = Some(directory.into()) }
        /// Sets what becomes of a turn that still runs when its session is let go; default [`OnRelease::Finish`].
        on_release(what: OnRelease) { on_release = what }
    }

    /// Sets an environment variable, in addition to those of this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Adds an argument, such as `--permission-mode` or its value.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn program(&self) -> PathBuf {
        find_program(self.executable.as_deref(), "CLAUDE_BIN", "claude")
    }

    /// The values of variables that hold keys, which belong in no error.
    pub(super) fn secrets(&self) -> Vec<Arc<str>> {
        let is_secret = |name: &str| ["KEY", "TOKEN", "PASSWORD"].iter().any(|ending| name.ends_with(ending));
        let given = self.environment.iter().filter(|(name, _)| name.to_str().is_some_and(is_secret));
        given.filter_map(|(_, value)| value.to_str().map(Arc::from)).collect()
    }

    /// Where Claude Code keeps its files.
    pub(super) fn config(&self) -> PathBuf {
        let set = |name: &str| {
            let given = self.environment.iter().rev().find(|(known, _)| known == name);
            given
                .map(|(_, value)| value.clone())
                .or_else(|| env::var_os(name))
                .filter(|value| !value.is_empty())
        };
        let home = || set("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from).join(".claude");
        self.config.clone().or_else(|| set("CLAUDE_CONFIG_DIR").map(PathBuf::from)).unwrap_or_else(home)
    }
}

impl fmt::Debug for ClaudeOptions {
    /// The environment may hold keys, so only its names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        f.debug_struct("ClaudeOptions")
            .field("executable", &self.executable)
            .field("config", &self.config)
            .field("environment", &names)
            .field("arguments", &self.arguments)
            .field("start_in", &self.start_in)
            .field("on_release", &self.on_release)
            .finish()
    }
}

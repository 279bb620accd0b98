//! Calls of the `git` executable that run nothing but git.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

/// What git can be configured to run, or to do on the way, in any repository.
const OFF: [&str; 9] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.pager=cat",
    "diff.external=",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    // Other programs read where a worktree is, too, and not all know what a relative path is relative to.
    "worktree.useRelativePaths=false",
];
/// What keeps git from asking another machine for anything.
const OFFLINE: [&str; 2] = ["core.sshCommand=false", "protocol.allow=never"];

/// How long a call may take. In the largest repositories a look takes some seconds, so one that takes minutes hangs.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a checkout may take. A filter may load every file from another machine, as Git LFS does.
const CHECKOUT_LIMIT: Duration = Duration::from_secs(3600);

/// Git could not do what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// The executable could not be run.
    #[error("git cannot be run")]
    NotRun(#[source] io::Error),
    /// It refused or failed; this is what it said, on one line.
    #[error("git said: {0}")]
    Refused(String),
    /// It was killed because it took too long: five minutes, or an hour for a checkout.
    #[error("git did not end within {} s", .0.as_secs())]
    TookTooLong(Duration),
}

/// How git is called.
pub(super) struct Git {
    words: Vec<OsString>,
    environment: Vec<(&'static str, &'static str)>,
    pub(super) limit: Duration,
}

impl Git {
    /// For a directory that only the caller has written to: git finds out which repository it belongs to.
    pub(super) fn found_from(directory: &Path) -> Self {
        Self::new(["-C".into(), directory.into()]).offline()
    }

    /// For a git directory.
    pub(super) fn of(git_dir: &Path) -> Self {
        Self::new(["-C".into(), git_dir.into(), option("--git-dir=", git_dir)]).offline()
    }

    /// For a directory to which no agent has written yet. The user's filters run, and what a partial clone lacks is loaded.
    pub(super) fn checking_out(git_dir: &Path, directory: &Path) -> Self {
        let (at, tree) = (option("--git-dir=", git_dir), option("--work-tree=", directory));
        Self { limit: CHECKOUT_LIMIT, ..Self::new(["-C".into(), directory.into(), at, tree]) }
    }

    /// For a look at a directory that an agent has written to. Neither its `.git` nor the configuration of the user or the machine is
    /// read, and filters that the repository configures are switched off: they may be programs in the directory.
    pub(super) async fn looking_at(git_dir: &Path, directory: &Path) -> Result<Self, GitError> {
        let alone =
            [("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_ATTR_NOSYSTEM", "1")];
        let mut git = Self::of(git_dir);
        git.environment.extend(alone);
        let listed = git.run(["config", "--null", "--name-only", "--get-regexp", r"^filter\."]).await;
        let listed = match listed {
            Ok(listed) => listed,
            // There are none.
            Err(GitError::Refused(said)) if said.is_empty() => String::new(),
            Err(error) => return Err(error),
        };
        for key in listed.split_terminator('\0') {
            let value = if key.ends_with(".required") { "false" } else { "" };
            git.words.extend(["-c".into(), format!("{key}={value}").into()]);
        }
        git.words.push(option("--work-tree=", directory));
        Ok(git)
    }

    fn new<const N: usize>(words: [OsString; N]) -> Self {
        let environment = vec![
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("LC_ALL", "C"),
        ];
        let off = OFF.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]);
        Self { words: off.chain(words).collect(), environment, limit: LIMIT }
    }

    fn offline(mut self) -> Self {
        self.words.extend(OFFLINE.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]));
        self.environment.push(("GIT_NO_LAZY_FETCH", "1"));
        self
    }

    /// What git says, or why it cannot.
    pub(super) async fn run<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<String, GitError> {
        Ok(String::from_utf8_lossy(&self.bytes(words).await?).into_owned())
    }

    /// What git says, byte for byte: names of files need not be text.
    pub(super) async fn bytes<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Vec<u8>, GitError> {
        let mut command = Command::new("git");
        // A caller may itself have been started by git, as a hook is.
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
            command.env_remove(name);
        }
        command
            .arg("--no-pager")
            .args(&self.words)
            .args(words)
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let Ok(output) = timeout(self.limit, command.output()).await else {
            return Err(GitError::TookTooLong(self.limit));
        };
        let output = output.map_err(GitError::NotRun)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(GitError::Refused(complaint.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut word = OsString::from(name);
    word.push(path);
    word
}

/// A path as git writes it.
pub(super) fn path(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    return PathBuf::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes));
    #[cfg(not(unix))]
    return PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
}

/// The path that git writes on a line of its own.
pub(super) fn path_line(bytes: &[u8]) -> PathBuf {
    path(bytes.strip_suffix(b"\n").unwrap_or(bytes))
}

//! Calls of the `git` executable that run nothing but git.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::Path,
    process::Stdio,
};

use tokio::process::Command;

/// What git can be configured to run, or to do on the way, in any repository.
const OFF: [&str; 10] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.pager=cat",
    "core.sshCommand=false",
    "diff.external=",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
];

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
}

/// How git is called.
pub(super) struct Git {
    words: Vec<OsString>,
    environment: Vec<(&'static str, &'static str)>,
}

impl Git {
    /// For a directory that only the caller has written to: git finds out which repository it belongs to.
    pub(super) fn found_from(directory: &Path) -> Self {
        Self::new(["-C".into(), directory.into()])
    }

    /// For a git directory.
    pub(super) fn of(git_dir: &Path) -> Self {
        Self::new(["-C".into(), git_dir.into(), option("--git-dir=", git_dir)])
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
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("LC_ALL", "C"),
        ];
        let off = OFF.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]);
        Self { words: off.chain(words).collect(), environment }
    }

    /// What git says, or why it cannot.
    pub(super) async fn run<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<String, GitError> {
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
        let output = command.output().await.map_err(GitError::NotRun)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
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

//! Who works with a session: one owner at a time.
//!
//! Claude Code has no lock. Two processes on one session both append to its transcript, and branch it. So each session that is used
//! here has a file of ours, which its owner holds locked for as long as it has a process; the system lets go of the lock when the
//! owner dies. The process itself may outlive its owner, since it finishes its turn first: the file names it, and the next owner
//! waits for it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::error::ClaudeError;
use crate::ids::SessionId;
#[cfg(unix)]
use crate::process::ProcessGroup;

/// How often a lock that is held, or a process that is waited for, is looked at.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Ownership of a session: no other owner works with it for as long as this is kept.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    path: PathBuf,
}

impl Claim {
    /// Claims a session, waiting so long for an owner that is about to let go.
    pub(super) async fn take(
        path: &Path,
        session: &SessionId,
        patience: Duration,
    ) -> Result<Self, ClaudeError> {
        let give_up = Instant::now() + patience;
        loop {
            if let Some(claim) =
                Self::try_take(path).map_err(|source| ClaudeError::File { path: path.to_owned(), source })?
            {
                return Ok(claim);
            }
            if Instant::now() >= give_up {
                return Err(ClaudeError::SessionInUse { session: session.clone() });
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether a session has no owner now, and its last owner left no process behind.
    pub(super) fn is_free(path: &Path, session: &SessionId) -> bool {
        let Ok(Some(mut claim)) = Self::try_take(path) else { return false };
        claim.process().is_none_or(|process| !is_running(process, session))
    }

    fn try_take(path: &Path) -> io::Result<Option<Self>> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        #[cfg(unix)]
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(Self { file, path: path.to_owned() }))
    }

    /// The process that the session's last owner started; it may have ended.
    pub(super) fn process(&mut self) -> Option<u32> {
        let mut text = String::new();
        self.file.rewind().ok()?;
        self.file.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Names the process for the next owner.
    pub(super) fn set_process(&mut self, process: Option<u32>) -> Result<(), ClaudeError> {
        let text = process.map(|process| process.to_string()).unwrap_or_default();
        let file = &mut self.file;
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|source| ClaudeError::File { path: self.path.clone(), source })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Closing the file would not do: a child that was just forked has it open, too, until it runs its program.
        #[cfg(unix)]
        let _unlocked = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// Whether a process of this session still runs.
pub(super) fn is_running(process: u32, session: &SessionId) -> bool {
    // The number may have been given to another process since, which does not have the session on its command line. One that has
    // ended and was not waited for yet has no command line any more.
    match fs::read(format!("/proc/{process}/cmdline")) {
        Ok(command) => {
            command.split(|byte| *byte == 0).any(|argument| argument == session.as_str().as_bytes())
        }
        Err(_) if Path::new("/proc/self/cmdline").exists() => false,
        Err(_) => is_alive(process),
    }
}

#[cfg(unix)]
fn is_alive(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

#[cfg(not(unix))]
fn is_alive(_: u32) -> bool {
    false
}

/// Ends a process that its owner left behind, and everything that it started.
pub(super) fn kill(process: u32, session: &SessionId) {
    if !is_running(process, session) {
        return;
    }
    #[cfg(unix)]
    ProcessGroup::of(process).kill();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_has_one_owner_and_the_next_one_finds_its_process() {
        let home = tempfile::tempdir().unwrap();
        let (path, session) = (home.path().join("a/s.lock"), SessionId::from("s"));
        let mut claim = Claim::take(&path, &session, Duration::ZERO).await.unwrap();
        assert_eq!(claim.process(), None);
        claim.set_process(Some(1234)).unwrap();
        claim.set_process(Some(7)).unwrap();
        let refused = Claim::take(&path, &session, Duration::from_millis(1)).await.unwrap_err();
        assert!(matches!(refused, ClaudeError::SessionInUse { .. }), "{refused}");
        drop(claim);
        let mut next = Claim::take(&path, &session, Duration::ZERO).await.unwrap();
        assert_eq!(next.process(), Some(7));
        assert!(!Claim::is_free(&path, &session), "it is held");
        drop(next);
        assert!(Claim::is_free(&path, &session), "process 7 is none of the session's");
    }

    #[test]
    fn a_session_is_let_go_at_once_although_a_child_has_the_file_open() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s.lock");
        let claim = Claim::try_take(&path).unwrap().unwrap();
        let _of_a_child = claim.file.try_clone().unwrap();
        drop(claim);
        assert!(Claim::is_free(&path, &"s".into()));
    }

    #[test]
    fn only_a_process_of_the_session_counts() {
        let own = std::process::id();
        assert!(!is_running(own, &"no-such-session".into()));
        let name = std::env::args().next().unwrap();
        assert!(is_running(own, &name.into()));
    }
}

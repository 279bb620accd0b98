//! A process group that is ended whole.

use std::sync::Mutex;

use crate::lock::lock;

/// The process group of a child, for as long as the child is there.
#[derive(Debug, Default)]
pub(crate) struct ProcessGroup(Mutex<Option<u32>>);

impl ProcessGroup {
    /// The id of the group and of its leader.
    pub(crate) fn id(&self) -> Option<u32> {
        *lock(&self.0)
    }

    /// Kills every process of the group at once.
    pub(crate) fn kill(&self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
    }

    /// Asks every process of the group to end.
    pub(crate) fn terminate(&self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::TERM);
    }

    /// Names the group's leader; nothing once it has ended.
    pub(crate) fn set(&self, leader: Option<u32>) {
        *lock(&self.0) = leader;
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        // The lock is held so that the group cannot be forgotten, and its number reused, in between.
        let leader = lock(&self.0);
        let pid = leader.and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid
            && let Err(error) = rustix::process::kill_process_group(pid, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "cannot signal the process group");
        }
    }
}

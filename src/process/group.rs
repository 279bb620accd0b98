//! A process group that is ended whole, with what left it.

use std::{ffi::OsString, sync::Mutex};

use tokio::process::Command;

use crate::lock::lock;

/// The variable that tells which processes were started by which child: every one inherits it. One that was itself started by such a
/// child has the marks of both.
const MARKS: &str = "CONDUCTOR_MARKS";

/// The process group of a child, for as long as the child is there.
///
/// Agents start the commands of their shell tool in groups and sessions of their own. On Linux those are found by what they have
/// inherited from the child; elsewhere they outlive it.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Mutex<Option<u32>>,
    mark: String,
}

impl Default for ProcessGroup {
    fn default() -> Self {
        Self { leader: Mutex::default(), mark: format!("{:032x}", fastrand::u128(..)) }
    }
}

impl ProcessGroup {
    /// The group of a process that another owner has started, with the mark that it got there.
    #[cfg(all(unix, feature = "claude"))]
    pub(crate) fn of(leader: u32) -> Self {
        let group = Self::default();
        group.set(Some(leader));
        let marks = marks_of(leader).unwrap_or_default();
        // What this process has as well is the mark of one that started both.
        let is_shared = |mark: &str| marks_of(std::process::id()).is_some_and(|own| own.contains(mark));
        match marks.rsplit(' ').next().filter(|mark| !mark.is_empty() && !is_shared(mark)) {
            Some(mark) => Self { mark: mark.to_owned(), ..group },
            None => group,
        }
    }

    /// Has a command start in a group of its own, and what it starts be found.
    pub(crate) fn prepare(&self, command: &mut Command) {
        #[cfg(unix)]
        command.process_group(0);
        let mut marks = std::env::var_os(MARKS).unwrap_or_default();
        if !marks.is_empty() {
            marks.push(" ");
        }
        marks.push(OsString::from(&self.mark));
        command.env(MARKS, marks);
    }

    /// The id of the group and of its leader.
    pub(crate) fn id(&self) -> Option<u32> {
        *lock(&self.leader)
    }

    /// Kills every process of the group at once, and what its leader started elsewhere.
    pub(crate) fn kill(&self) {
        #[cfg(unix)]
        if self.signal(rustix::process::Signal::KILL) {
            self.kill_marked();
        }
    }

    /// Asks every process of the group to end.
    pub(crate) fn terminate(&self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::TERM);
    }

    /// Names the group's leader; nothing once it has ended.
    pub(crate) fn set(&self, leader: Option<u32>) {
        *lock(&self.leader) = leader;
    }

    /// Signals the group; says whether there is one.
    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) -> bool {
        // The lock is held so that the group cannot be forgotten, and its number reused, in between.
        let leader = lock(&self.leader);
        let pid = leader.and_then(pid);
        if let Some(pid) = pid
            && let Err(error) = rustix::process::kill_process_group(pid, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "cannot signal the process group");
        }
        pid.is_some()
    }

    /// Kills what has the mark, until there is nothing new: one that is killed starts nothing any more, but may have done so just before.
    #[cfg(unix)]
    fn kill_marked(&self) {
        let mut killed = std::collections::BTreeSet::new();
        for _ in 0..KILL_ROUNDS {
            let is_marked =
                |id: &u32| marks_of(*id).is_some_and(|marks| marks.split(' ').any(|mark| mark == self.mark));
            let found: Vec<u32> = processes().filter(|id| !killed.contains(id)).filter(is_marked).collect();
            if found.is_empty() {
                return;
            }
            for id in found {
                killed.insert(id);
                // It may have ended meanwhile.
                let _ended =
                    pid(id).map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
            }
        }
        tracing::warn!("what a process started goes on starting others");
    }
}

/// How often what left a group is looked for: each round finds what was started during the one before.
#[cfg(unix)]
const KILL_ROUNDS: u32 = 50;

#[cfg(unix)]
fn pid(id: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(id).ok()?)
}

/// All processes, where the system lists them as Linux does.
#[cfg(unix)]
fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The marks that a process was started with. Those of other users cannot be read.
#[cfg(unix)]
fn marks_of(process: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let marks = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(MARKS.as_bytes())?.strip_prefix(b"="));
    Some(String::from_utf8_lossy(marks?).into_owned())
}

//! What a repository knows about its worktrees. Nothing inside of a worktree is read for it: an agent may have written that.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Semaphore, time::sleep};

use super::git::{self, Git, GitError};
use crate::lock::lock;

/// Where a worktree's git directory keeps the commit that it was made of. Worktrees of other programs have no such note.
pub(super) const START: &str = "conductor-start";

/// A worktree as git lists it.
pub(super) struct Entry {
    /// Absolute.
    pub(super) path: PathBuf,
    /// Why git was told not to remove it; may be empty.
    pub(super) lock: Option<String>,
}

/// How often a repository is asked for its worktrees when it cannot say, and the pause in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// One change of a repository's list of worktrees, or look at it, at a time: git fails when it finds an entry that is half made.
pub(super) fn changes(common_dir: &Path) -> Arc<Semaphore> {
    static CHANGES: Mutex<BTreeMap<PathBuf, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());
    let mut changes = lock(&CHANGES);
    Arc::clone(changes.entry(common_dir.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))))
}

/// The worktrees of a repository that have an absolute path. A git that does not know relative ones gives them as they are written,
/// and where they lead is then unknown.
pub(super) async fn listed(common_dir: &Path) -> Result<Vec<Entry>, GitError> {
    let told = list(common_dir).await?;
    let mut found: Vec<Entry> = Vec::new();
    for line in told.split(|byte| *byte == 0) {
        let (word, rest) = match line.iter().position(|byte| *byte == b' ') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        match (word, found.last_mut()) {
            (b"worktree", _) => found.push(Entry { path: git::path(rest), lock: None }),
            (b"locked", Some(entry)) => entry.lock = Some(String::from_utf8_lossy(rest).into_owned()),
            _ => {}
        }
    }
    found.retain(|entry| entry.path.is_absolute());
    Ok(found)
}

/// What git lists. Another process may be making a worktree, which takes milliseconds.
async fn list(common_dir: &Path) -> Result<Vec<u8>, GitError> {
    let (git, changes) = (Git::of(common_dir), changes(common_dir));
    let mut attempt = 1;
    loop {
        let change = changes.acquire().await;
        match git.bytes(["worktree", "list", "--porcelain", "-z"]).await {
            Err(GitError::Refused(_)) if attempt < ATTEMPTS => attempt += 1,
            told => return told,
        }
        drop(change);
        sleep(PAUSE).await;
    }
}

/// The path of the worktree that a git directory belongs to, as git would list it.
pub(super) fn registered_path(git_dir: &Path) -> Option<PathBuf> {
    let link = git::path_line(&fs::read(git_dir.join("gitdir")).ok()?);
    if link.is_absolute() {
        return Some(link.parent()?.to_owned());
    }
    // Relative to the git directory, wherever this process is. What is there last may be gone.
    let path = git_dir.join(link.parent()?);
    path.ancestors().find_map(|there| Some(there.canonicalize().ok()?.join(path.strip_prefix(there).ok()?)))
}

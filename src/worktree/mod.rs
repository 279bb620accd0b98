//! Git worktrees for agents, looked at without running anything of theirs and removed without losing anything.
//!
//! An agent that may only edit files can still make a program of its own run: it writes another git directory into the worktree's `.git`
//! file, with `core.fsmonitor` in its configuration, and waits for the next `git status` of a person or program that trusts the
//! directory. So the git directory is remembered when a worktree is made and given to every call, what git could be made to run is
//! switched off, and the caller's own configuration is left out when only something is looked at.
//!
//! Removing a worktree is final for whatever is nowhere else: changed and new files, ignored ones, commits of a detached `HEAD` that no branch
//! has. [`Worktree::remove`] refuses while there is any of it.
//!
//! Entry point: [`Worktrees`]. Needs the `git` executable.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

mod git;

pub use git::GitError;

use git::Git;
use tokio::sync::Semaphore;

/// One change at a time to a repository's list of worktrees: git fails when it finds an entry that is half made. One for all
/// repositories, since a change is short.
static CHANGES: Semaphore = Semaphore::const_new(1);
/// Where a worktree's git directory keeps the commit that it was made of.
const START: &str = "conductor-start";
/// What git leaves in a worktree's directory while something is under way that has no other place.
const UNDER_WAY: [&str; 7] = [
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "BISECT_LOG",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
];

/// The worktrees of one repository that were made here.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::worktree::{IgnoredFiles, Worktrees};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let worktrees = Worktrees::of("/srv/project").await?;
/// let worktree = worktrees.make("/srv/worktrees/task-1").await?;
/// // … an agent works in worktree.path() …
/// let work = worktree.work().await?;
/// if !work.commits.is_empty() {
///     worktree.keep_commits("task-1").await?;
/// }
/// worktree.remove(IgnoredFiles::Discard).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Worktrees {
    /// The directory that all worktrees share.
    git_dir: PathBuf,
}

/// A worktree, and where git keeps what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worktree {
    path: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    start: String,
}

/// What is in a worktree and nowhere else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Changed, new, deleted and staged files; nested repositories; files that git was told not to look at. As git spells them.
    pub files: Vec<String>,
    /// Files that `.gitignore` leaves out. Directories of nothing else are named once.
    pub ignored: Vec<String>,
    /// Commits that were made here, or checked out here, and that no branch, tag or other reference has.
    pub commits: Vec<String>,
    /// A merge, rebase or the like is under way.
    pub is_under_way: bool,
}

impl Work {
    /// Whether there is nothing, not even ignored files.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of ignored files when a worktree is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IgnoredFiles {
    /// They may be work: the worktree stays.
    Keep,
    /// They can be made again: they are removed with it.
    Discard,
}

/// A worktree could not be made, looked at or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorktreeError {
    /// Git could not do it.
    #[error("cannot {what}")]
    #[non_exhaustive]
    Git {
        /// What was tried.
        what: &'static str,
        /// What git said.
        #[source]
        source: GitError,
    },
    /// A file could not be read, written or removed.
    #[error("cannot {what} {}", path.display())]
    #[non_exhaustive]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// There is work in it that would be lost.
    #[error(
        "{} holds work: {} files, {} ignored, {} commits",
        path.display(), work.files.len(), work.ignored.len(), work.commits.len()
    )]
    #[non_exhaustive]
    HasWork {
        /// The directory of the worktree.
        path: PathBuf,
        /// What would be lost.
        work: Box<Work>,
    },
}

impl Worktrees {
    /// The worktrees of the repository that `directory` belongs to.
    ///
    /// # Errors
    /// If it belongs to none, or git cannot be run.
    pub async fn of(directory: impl AsRef<Path>) -> Result<Self, WorktreeError> {
        let git = Git::found_from(directory.as_ref());
        let said = git.run(["rev-parse", "--path-format=absolute", "--git-common-dir"]).await;
        let said = said.map_err(|source| WorktreeError::Git { what: "find the repository", source })?;
        Ok(Self { git_dir: PathBuf::from(said.trim_end_matches('\n')) })
    }

    /// Makes a worktree of the repository's current commit, on no branch.
    ///
    /// # Errors
    /// If there is no commit, or something is at `path` already.
    ///
    /// # Cancel safety
    /// A worktree that was begun may be left behind.
    pub async fn make(&self, path: impl AsRef<Path>) -> Result<Worktree, WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "make a worktree", source };
        let path = path.as_ref();
        let absolute = std::path::absolute(path).map_err(io_error("make", path))?;
        let git = Git::of(&self.git_dir);
        let start = git.run(["rev-parse", "--verify", "HEAD^{commit}"]).await.map_err(failed)?;
        let start = start.trim().to_owned();
        let at = absolute.as_os_str();
        let change = CHANGES.acquire().await;
        git.run(["worktree".as_ref(), "add".as_ref(), "--detach".as_ref(), at, start.as_ref()])
            .await
            .map_err(failed)?;
        drop(change);
        // No agent has written to it yet, so that it may still be asked for its directory.
        let path = absolute.canonicalize().map_err(io_error("find", &absolute))?;
        let git_dir =
            Git::found_from(&path).run(["rev-parse", "--absolute-git-dir"]).await.map_err(failed)?;
        let git_dir = PathBuf::from(git_dir.trim_end_matches('\n'));
        let note = git_dir.join(START);
        fs::write(&note, &start).map_err(io_error("write", &note))?;
        Ok(Worktree { path, git_dir, common_dir: self.git_dir.clone(), start })
    }

    /// The worktrees that were made here and not removed, by an earlier process too.
    ///
    /// # Errors
    /// If the repository cannot be read.
    pub fn list(&self) -> Result<Vec<Worktree>, WorktreeError> {
        let place = self.git_dir.join("worktrees");
        let entries = match fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("read", &place)(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let git_dir = entry.map_err(io_error("read", &place))?.path();
            // Worktrees of other programs have no such note.
            let (Ok(start), Ok(link)) =
                (fs::read_to_string(git_dir.join(START)), fs::read_to_string(git_dir.join("gitdir")))
            else {
                continue;
            };
            if let Some(path) = Path::new(link.trim_end_matches('\n')).parent() {
                let (path, common_dir) = (path.to_owned(), self.git_dir.clone());
                found.push(Worktree { path, git_dir, common_dir, start });
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }
}

impl Worktree {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The commit that it was made of.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// What is in it and nowhere else. Runs nothing that an agent could have put there.
    ///
    /// # Errors
    /// If it cannot be looked at.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn work(&self) -> Result<Work, WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "look at a worktree", source };
        let git = Git::looking_at(&self.git_dir, &self.path).await.map_err(failed)?;
        let flags =
            ["--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all"];
        let status = git.run(["status", "--ignored=traditional"].into_iter().chain(flags)).await;
        let mut work = Work::default();
        for entry in status.map_err(failed)?.split_terminator('\0') {
            match entry.split_at_checked(3) {
                Some(("!! ", name)) => work.ignored.push(name.to_owned()),
                Some((_, name)) => work.files.push(name.to_owned()),
                None => {}
            }
        }
        let index = git.run(["ls-files", "-v", "--stage", "-z"]).await.map_err(failed)?;
        work.files.extend(index.split_terminator('\0').filter_map(|entry| self.unlooked(entry)));
        work.commits = self.commits(&git).await.map_err(failed)?;
        work.is_under_way = UNDER_WAY.iter().any(|name| self.git_dir.join(name).exists());
        Ok(work)
    }

    /// The name of an index entry that a status does not tell about: one that git was told to take for unchanged, or a submodule
    /// with something in it, which is not looked into since it has a git directory of its own.
    fn unlooked(&self, entry: &str) -> Option<String> {
        let (head, name) = entry.split_once('\t')?;
        let mut head = head.split(' ');
        let (tag, mode) = (head.next()?, head.next()?);
        let is_hidden = tag.starts_with(|tag: char| tag == 'S' || tag.is_ascii_lowercase());
        let has_entries =
            || fs::read_dir(self.path.join(name)).is_ok_and(|mut entries| entries.next().is_some());
        (is_hidden || mode == "160000" && has_entries()).then(|| name.to_owned())
    }

    /// Commits that `HEAD` is or was at, with their ancestors, and that nothing else reaches.
    async fn commits(&self, git: &Git) -> Result<Vec<String>, GitError> {
        let mut tips = BTreeSet::from([git.run(["rev-parse", "HEAD"]).await?.trim().to_owned()]);
        let reflog = fs::read_to_string(self.git_dir.join("logs/HEAD")).unwrap_or_default();
        tips.extend(reflog.lines().filter_map(|line| Some(line.split(' ').nth(1)?.to_owned())));
        let known = format!("^{}", self.start);
        // From the shared directory: the references that are this worktree's own go with it.
        let shared = Git::of(&self.common_dir);
        let words = ["rev-list", "--ignore-missing", "--max-count=1000"].into_iter();
        let words = words.chain(tips.iter().map(String::as_str)).chain([known.as_str()]);
        let found = shared.run(words.chain(["--not", "--glob=refs/*", "HEAD", "--"])).await?;
        Ok(found.lines().map(str::to_owned).collect())
    }

    /// Keeps the commits that only this worktree has under a branch, which must not exist yet. Those that `HEAD` was at earlier, and
    /// does not reach any more, get the branch's name with a number.
    ///
    /// # Errors
    /// If there is such a branch, or git does not allow its name.
    pub async fn keep_commits(&self, branch: &str) -> Result<(), WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "keep the commits of a worktree", source };
        let git = Git::looking_at(&self.git_dir, &self.path).await.map_err(failed)?;
        let shared = Git::of(&self.common_dir);
        let mut number = 1;
        loop {
            let commits = self.commits(&git).await.map_err(failed)?;
            // The list begins with a commit that no other of it has as an ancestor.
            let Some(newest) = commits.first() else { return Ok(()) };
            let head = git.run(["rev-parse", "HEAD"]).await.map_err(failed)?;
            let is_head = commits.iter().any(|commit| commit == head.trim());
            let tip = if is_head { head.trim() } else { newest.as_str() };
            let name = if number == 1 { branch.to_owned() } else { format!("{branch}-{number}") };
            shared.run(["branch", "--no-track", "--", &name, tip]).await.map_err(failed)?;
            number += 1;
        }
    }

    /// Removes it, if that loses nothing.
    ///
    /// # Errors
    /// [`WorktreeError::HasWork`] if there is work in it; nothing was removed then.
    ///
    /// # Cancel safety
    /// It may be removed in part: it held nothing that is not elsewhere.
    pub async fn remove(&self, ignored: IgnoredFiles) -> Result<(), WorktreeError> {
        let mut work = self.work().await?;
        if ignored == IgnoredFiles::Discard {
            work.ignored.clear();
        }
        if !work.is_empty() {
            return Err(WorktreeError::HasWork { path: self.path.clone(), work: Box::new(work) });
        }
        // Not by git, which would look into it once more, by way of its `.git` file.
        let path = self.path.clone();
        let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(path)).await;
        removed
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(io_error("remove", &self.path))?;
        let _change = CHANGES.acquire().await;
        fs::remove_dir_all(&self.git_dir).map_err(io_error("remove", &self.git_dir))
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorktreeError {
    let path = path.to_owned();
    move |source| WorktreeError::Io { what, path, source }
}

#[cfg(test)]
mod tests;

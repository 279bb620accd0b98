//! Git worktrees for agents, looked at without running anything of theirs and removed without losing anything.
//!
//! An agent that may only edit files can still make a program of its own run: it writes another git directory into the worktree's `.git`
//! file, with `core.fsmonitor` in its configuration, and waits for the next `git status` of a person or program that trusts the
//! directory. So the git directory is remembered when a worktree is made and given to every call, what git could be made to run is
//! switched off, and the caller's own configuration is left out when only something is looked at.
//!
//! Removing a worktree is final for whatever is nowhere else: changed and new files, ignored ones, commits of a detached `HEAD` that no branch
//! has. [`Worktree::remove`] refuses while there is any of it. Where a worktree is, the repository says, and nothing that is in it.
//!
//! Entry point: [`Worktrees`]. Needs the `git` executable, 2.36 or later. A call of it that takes longer than five minutes, or an hour for a
//! checkout, is ended and fails.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

mod entries;
mod git;
mod look;

pub use git::GitError;
pub use look::Work;

use entries::{START, changes, listed, registered_path};
use git::Git;

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
    /// The git directory of the directory that was named: its `HEAD` is what worktrees are made of.
    git_dir: PathBuf,
    /// The directory that all worktrees share.
    common_dir: PathBuf,
}

/// A worktree, and where git keeps what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worktree {
    path: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    start: String,
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
    #[error("{} holds work: {work}", path.display())]
    #[non_exhaustive]
    HasWork {
        /// The directory of the worktree.
        path: PathBuf,
        /// What would be lost.
        work: Box<Work>,
    },
    /// Git was told not to remove it, with `git worktree lock`.
    #[error("{} is locked: {reason}", path.display())]
    #[non_exhaustive]
    Locked {
        /// The directory of the worktree.
        path: PathBuf,
        /// What was said when it was locked; may be empty.
        reason: String,
    },
    /// Something is there, but the repository does not know it as this worktree any more.
    #[error("{} is not registered as a worktree", path.display())]
    #[non_exhaustive]
    NotRegistered {
        /// The directory of the worktree.
        path: PathBuf,
    },
}

impl Worktrees {
    /// The worktrees of the repository that `directory` belongs to.
    ///
    /// Git is asked there, so it must be a directory that no agent writes to.
    ///
    /// # Errors
    /// If it belongs to none, or git cannot be run.
    pub async fn of(directory: impl AsRef<Path>) -> Result<Self, WorktreeError> {
        let git = Git::found_from(directory.as_ref());
        let failed = |source| WorktreeError::Git { what: "find the repository", source };
        let git_dir = git.bytes(["rev-parse", "--absolute-git-dir"]).await.map_err(failed)?;
        let common_dir = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
        let common_dir = git.bytes(common_dir).await.map_err(failed)?;
        Ok(Self { git_dir: git::path_line(&git_dir), common_dir: git::path_line(&common_dir) })
    }

    /// Makes a worktree of the current commit of the directory that these [were found by](Self::of), on no branch.
    ///
    /// # Errors
    /// If there is no commit, or something is at `path` already.
    ///
    /// # Cancel safety
    /// A worktree that was begun may be left behind. It is not [listed](Self::list); `git worktree remove --force` ends it.
    pub async fn make(&self, path: impl AsRef<Path>) -> Result<Worktree, WorktreeError> {
        self.make_at(path, "HEAD").await
    }

    /// Makes a worktree of a commit, on no branch. A branch, a tag or whatever else git takes for one commit names it.
    ///
    /// The checkout runs the filters that you have configured (Git LFS is one), and loads what a partial clone lacks. If one of your filters is a
    /// program inside of the repository, it is the one of this commit that runs.
    ///
    /// # Errors
    /// If there is no such commit, or something is at `path` already.
    ///
    /// # Cancel safety
    /// As of [`Self::make`].
    pub async fn make_at(&self, path: impl AsRef<Path>, revision: &str) -> Result<Worktree, WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "make a worktree", source };
        let path = path.as_ref();
        let path = std::path::absolute(path).map_err(io_error("make", path))?;
        let commit = format!("{revision}^{{commit}}");
        let start = ["rev-parse", "--verify", "--end-of-options", &commit];
        let start = Git::of(&self.git_dir).run(start).await.map_err(failed)?.trim().to_owned();
        let add = ["worktree", "add", "--detach", "--no-checkout"].map(AsRef::as_ref);
        let add = add.into_iter().chain([path.as_os_str(), start.as_ref()]);
        let changes = changes(&self.common_dir);
        let change = changes.acquire().await;
        Git::of(&self.common_dir).run(add).await.map_err(failed)?;
        drop(change);
        // No agent has written to it yet, so that it may still be asked for its directory.
        let git_dir = Git::found_from(&path).bytes(["rev-parse", "--absolute-git-dir"]).await;
        let git_dir = git::path_line(&git_dir.map_err(failed)?);
        let path = registered_path(&git_dir).ok_or(WorktreeError::NotRegistered { path })?;
        let worktree = Worktree { path, git_dir, common_dir: self.common_dir.clone(), start };
        if let Err(error) = worktree.check_out().await {
            // There is nothing in it but what git has written. Why it was not made says more than why it cannot be removed.
            if worktree.remove_files().await.is_ok() {
                drop(worktree.remove_entry().await);
            }
            return Err(error);
        }
        Ok(worktree)
    }

    /// The worktrees that were made here and not removed, by an earlier process too. One whose removal did not come to its end is among
    /// them, so that it can be [removed](Worktree::remove) again.
    ///
    /// # Errors
    /// If the repository cannot be read.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn list(&self) -> Result<Vec<Worktree>, WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "list the worktrees", source };
        let place = self.common_dir.join("worktrees");
        let entries = match fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("read", &place)(error)),
        };
        let listed = listed(&self.common_dir).await.map_err(failed)?;
        let mut found = Vec::new();
        for entry in entries {
            let git_dir = entry.map_err(io_error("read", &place))?.path();
            let Ok(start) = fs::read_to_string(git_dir.join(START)) else { continue };
            let path =
                registered_path(&git_dir).filter(|path| listed.iter().any(|entry| entry.path == *path));
            if let Some(path) = path {
                found.push(Worktree { path, git_dir, common_dir: self.common_dir.clone(), start });
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

    /// Keeps the commits that only this worktree has under a branch, which must not exist yet. Those that `HEAD` was at earlier, and
    /// does not reach any more, get the branch's name with a number.
    ///
    /// # Errors
    /// If there is such a branch, or git does not allow its name.
    pub async fn keep_commits(&self, branch: &str) -> Result<(), WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "keep the commits of a worktree", source };
        let (own, shared) = (Git::of(&self.git_dir), Git::of(&self.common_dir));
        let changes = changes(&self.common_dir);
        let mut number = 1;
        loop {
            let commits = self.commits().await.map_err(failed)?;
            // The list begins with a commit that no other of it has as an ancestor.
            let Some(newest) = commits.first() else { return Ok(()) };
            let head = own.run(["rev-parse", "HEAD"]).await.map_err(failed)?;
            let is_head = commits.iter().any(|commit| commit == head.trim());
            let tip = if is_head { head.trim() } else { newest.as_str() };
            let name = if number == 1 { branch.to_owned() } else { format!("{branch}-{number}") };
            // Git looks whether a worktree has such a branch.
            let _change = changes.acquire().await;
            shared.run(["branch", "--no-track", "--", &name, tip]).await.map_err(failed)?;
            number += 1;
        }
    }

    /// Removes it, if that loses nothing. Nobody may be working in it meanwhile.
    ///
    /// Its directory is first renamed to a hidden one beside it, `.NAME.conductor-removed`. So whatever stops a removal, what is at the
    /// worktree's own path is whole or gone, and a second call, by another process too, goes on. One that was removed already is no error.
    ///
    /// # Errors
    /// [`WorktreeError::HasWork`] if there is work in it, and [`WorktreeError::Locked`]; nothing was removed then. Should commits be made
    /// while its files are being removed, those files are gone, which were in other commits, and the commits are kept.
    ///
    /// # Cancel safety
    /// It may be removed in part: it held nothing that is not elsewhere. Call it again to remove the rest.
    pub async fn remove(&self, ignored: IgnoredFiles) -> Result<(), WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "remove a worktree", source };
        let listed = listed(&self.common_dir).await.map_err(failed)?;
        let entry = listed.into_iter().find(|entry| entry.path == self.path);
        // Its git directory may be another worktree's by now.
        let Some(entry) = entry.filter(|entry| registered_path(&self.git_dir).as_ref() == Some(&entry.path))
        else {
            if is_there(&self.path)? {
                return Err(WorktreeError::NotRegistered { path: self.path.clone() });
            }
            return remove_tree(self.aside()).await;
        };
        if let Some(reason) = entry.lock {
            return Err(WorktreeError::Locked { path: self.path.clone(), reason });
        }
        // What an earlier call has left of it.
        remove_tree(self.aside()).await?;
        self.refuse_if_work(ignored).await?;
        if is_there(&self.path)? {
            self.remove_files().await?;
            self.refuse_if_work(ignored).await?;
        }
        self.remove_entry().await
    }

    async fn refuse_if_work(&self, ignored: IgnoredFiles) -> Result<(), WorktreeError> {
        let mut work = self.work().await?;
        if ignored == IgnoredFiles::Discard {
            work.ignored.clear();
        }
        if work.is_empty() {
            return Ok(());
        }
        Err(WorktreeError::HasWork { path: self.path.clone(), work: Box::new(work) })
    }

    /// Where its directory is while it is being removed. A name for nothing else, so that what is there may go.
    fn aside(&self) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(".conductor-removed");
        self.path.with_file_name(name)
    }

    /// Removes its directory. Not by git, which would look into it once more, by way of its `.git` file.
    async fn remove_files(&self) -> Result<(), WorktreeError> {
        let aside = self.aside();
        rename(&self.path, &aside)?;
        remove_tree(aside).await
    }

    /// Has git forget it, in one step: git fails when it finds an entry that is there in part.
    async fn remove_entry(&self) -> Result<(), WorktreeError> {
        let id = self.git_dir.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.common_dir.join(format!("conductor-removed-{id}"));
        let changes = changes(&self.common_dir);
        let _change = changes.acquire().await;
        // Another process may have finished the removal, and made a worktree since whose git directory has the same name. While git makes
        // one, it is locked.
        let is_registered = registered_path(&self.git_dir).as_ref() == Some(&self.path);
        if !is_registered || is_there(&self.path)? || is_there(&self.git_dir.join("locked"))? {
            return Ok(());
        }
        remove_tree(aside.clone()).await?;
        rename(&self.git_dir, &aside)?;
        remove_tree(aside).await
    }

    /// Writes its files, which nobody else has done yet.
    async fn check_out(&self) -> Result<(), WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "check out a worktree", source };
        let git = Git::checking_out(&self.git_dir, &self.path);
        git.run(["reset", "--hard", "--quiet", "--no-recurse-submodules"]).await.map_err(failed)?;
        let looking = Git::looking_at(&self.git_dir, &self.path).await.map_err(failed)?;
        let changed = ["diff-files", "--name-only", "-z", "--ignore-submodules=all"];
        let changed = looking.bytes(changed).await.map_err(failed)?;
        // A look goes without the user's filters and settings, so that a file they have changed on its way is not what was committed. Git
        // does not compare a file that is as old as it was when git last saw it, unless it was written in the same second as the index.
        if !changed.is_empty() {
            let root = self.path.clone();
            let names = move || {
                let mut names = changed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                names.try_for_each(|name| make_older(&root.join(git::path(name))))
            };
            blocking(names).await.map_err(io_error("set the times of files in", &self.path))?;
            git.run(["update-index", "-q", "--refresh"]).await.map_err(failed)?;
        }
        let note = self.git_dir.join(START);
        fs::write(&note, &self.start).map_err(io_error("write", &note))
    }
}

/// Lets a file be older than anything that is written from now on, in whole seconds, which is what git compares.
fn make_older(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_file() {
        let before = found.modified()?.checked_sub(Duration::from_secs(2));
        fs::File::open(path)?.set_modified(before.unwrap_or(std::time::UNIX_EPOCH))?;
    }
    Ok(())
}

/// Whether something is at a path.
fn is_there(path: &Path) -> Result<bool, WorktreeError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("find", path)(error)),
    }
}

/// Renames what is at a path, if something is.
fn rename(from: &Path, to: &Path) -> Result<(), WorktreeError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("rename", from)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with all that is in it, if it is there.
async fn remove_tree(path: PathBuf) -> Result<(), WorktreeError> {
    let failed = io_error("remove", &path);
    match blocking(move || fs::remove_dir_all(path)).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorktreeError + use<> {
    let path = path.to_owned();
    move |source| WorktreeError::Io { what, path, source }
}

#[cfg(test)]
mod tests;

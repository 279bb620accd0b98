//! What is in a worktree and nowhere else.

use std::{collections::BTreeSet, fmt, fs, io, path::Path};

use super::{
    Worktree, WorktreeError,
    git::{self, Git, GitError},
    io_error, is_there,
};

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
    /// Submodules whose repositories git keeps for this worktree alone. They may hold commits, and are not looked into.
    pub submodules: Vec<String>,
    /// A merge, rebase or the like is under way.
    pub is_under_way: bool,
}

impl Work {
    /// Whether there is nothing, not even ignored files.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Work {
    /// How much there is of what, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.files.len(), "changed files"),
            (self.ignored.len(), "ignored files"),
            (self.commits.len(), "commits"),
            (self.submodules.len(), "repositories of submodules"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let mut parts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        if self.is_under_way {
            parts.push("a merge or the like under way".to_owned());
        }
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl Worktree {
    /// What is in it and nowhere else. Runs nothing that an agent could have put there.
    ///
    /// If its directory is gone, what git keeps elsewhere is left: commits, staged files, submodules.
    ///
    /// # Errors
    /// If it cannot be looked at.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn work(&self) -> Result<Work, WorktreeError> {
        let failed = |source| WorktreeError::Git { what: "look at a worktree", source };
        let mut work = Work::default();
        if is_there(&self.path)? {
            self.look_into(&mut work).await.map_err(failed)?;
        } else {
            let staged = ["diff-index", "--cached", "--diff-filter=d", "--name-only", "-z", "HEAD", "--"];
            let staged = Git::of(&self.git_dir).run(staged).await.map_err(failed)?;
            work.files.extend(staged.split_terminator('\0').map(str::to_owned));
        }
        work.commits = self.commits().await.map_err(failed)?;
        work.submodules = names_in(&self.git_dir.join("modules"))?;
        work.is_under_way = UNDER_WAY.iter().any(|name| self.git_dir.join(name).exists());
        Ok(work)
    }

    /// Looks at the files in its directory.
    async fn look_into(&self, work: &mut Work) -> Result<(), GitError> {
        let git = Git::looking_at(&self.git_dir, &self.path).await?;
        let flags =
            ["--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all"];
        let status = git.run(["status", "--ignored=traditional"].into_iter().chain(flags)).await?;
        for entry in status.split_terminator('\0') {
            match entry.split_at_checked(3) {
                Some(("!! ", name)) => work.ignored.push(name.to_owned()),
                Some((_, name)) => work.files.push(name.to_owned()),
                None => {}
            }
        }
        // Git passes over whatever has this name. It made a file; a directory is a repository of somebody's own.
        if fs::symlink_metadata(self.path.join(".git")).is_ok_and(|found| !found.is_file()) {
            work.files.push(".git".to_owned());
        }
        let index = git.bytes(["ls-files", "-v", "--stage", "-z"]).await?;
        let told: BTreeSet<String> = work.files.iter().cloned().collect();
        let unlooked = index.split(|byte| *byte == 0).filter_map(|entry| self.unlooked(entry));
        work.files.extend(unlooked.filter(|name| !told.contains(name)));
        Ok(())
    }

    /// The name of an index entry that a status does not tell about: one that git was told to take for unchanged, or to leave out and
    /// that is there nevertheless, or a submodule with something in it, which is not looked into since it has a git directory of its own.
    fn unlooked(&self, entry: &[u8]) -> Option<String> {
        let (head, name) = entry.split_at_checked(entry.iter().position(|byte| *byte == b'\t')?)?;
        let name = &name[1..];
        let path = self.path.join(git::path(name));
        let is_work = match head {
            [b'a'..=b'z', ..] => true,
            [b'S', ..] => is_anything_at(&path),
            [_, b' ', mode @ ..] => mode.starts_with(b"160000 ") && holds_anything(&path),
            _ => false,
        };
        is_work.then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Commits that `HEAD` is or was at, or that other references of this worktree alone are at, with their ancestors, and that nothing
    /// else reaches.
    pub(super) async fn commits(&self) -> Result<Vec<String>, GitError> {
        let own = Git::of(&self.git_dir);
        let references = ["--glob=refs/worktree/*", "--glob=refs/bisect/*", "--glob=refs/rewritten/*", "--"];
        let now = own.run(["rev-list", "--no-walk", "HEAD"].into_iter().chain(references)).await?;
        let earlier = own.run(["rev-list", "--walk-reflogs", "HEAD", "--"]).await?;
        let tips: BTreeSet<&str> = now.lines().chain(earlier.lines()).collect();
        let known = format!("^{}", self.start);
        // From the shared directory: the references that are this worktree's own go with it.
        let shared = Git::of(&self.common_dir);
        let words = ["rev-list", "--ignore-missing", "--max-count=1000"].into_iter();
        let words = words.chain(tips).chain([known.as_str()]);
        let found = shared.run(words.chain(["--not", "--glob=refs/*", "HEAD", "--"])).await?;
        Ok(found.lines().map(str::to_owned).collect())
    }
}

/// What is in a directory; nothing if there is none.
fn names_in(directory: &Path) -> Result<Vec<String>, WorktreeError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("read", directory)(error)),
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<Result<_, _>>().map_err(io_error("read", directory))
}

/// Whether something is at a path, as far as can be told.
fn is_anything_at(path: &Path) -> bool {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    fs::symlink_metadata(path).map_or_else(|error| !absent.contains(&error.kind()), |_| true)
}

/// Whether something is at a path that is no empty directory.
fn holds_anything(path: &Path) -> bool {
    let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    is_anything_at(path) && !is_empty
}

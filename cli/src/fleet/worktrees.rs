//! One git worktree per task, made before and tidied up after.

use std::{
    path::{Path, PathBuf},
    pin::pin,
};

use opencode_conductor::{
    error_chain,
    worktree::{self, IgnoredFiles, Worktree},
};
use opencode_conductor_cli::{failure::Failure, interrupt::Interrupts};
use tempfile::TempDir;
use tokio::process::Command;

use super::work::Task;
use crate::prompt_flags::PromptFlags;

pub(crate) struct Worktrees {
    /// Holds the worktrees, and the repository if it was made for the occasion.
    place: TempDir,
    repository: PathBuf,
    all: Vec<Worktree>,
}

impl Worktrees {
    /// Makes `count` worktrees of the repository's current commit, or none: an interrupt takes back those that were made.
    pub(crate) async fn create(
        repository: Option<&Path>,
        count: usize,
        interrupts: &mut Interrupts,
    ) -> Result<Self, Failure> {
        let place = tempfile::Builder::new().prefix("fleet-").tempdir();
        let place = place.map_err(|error| Failure::because("cannot make a temporary directory", &error))?;
        let found = interrupts.unless(find(repository, place.path())).await;
        let (repository, worktrees) = found.unwrap_or_else(|| Err(Failure::interrupted()))?;
        let mut all = Vec::new();
        for index in 0..count {
            let path = place.path().join(format!("task-{:02}", index + 1));
            let failure = match make(&worktrees, &path, interrupts).await {
                Ok(made) => {
                    all.push(made);
                    continue;
                }
                Err(failure) => failure,
            };
            remove(&all, IgnoredFiles::Discard).await;
            return Err(failure);
        }
        Ok(Self { place, repository, all })
    }

    pub(crate) fn repository(&self) -> &Path {
        &self.repository
    }

    /// A task for every worktree.
    pub(crate) fn tasks(&self, prompts: &[String], flags: &PromptFlags) -> Vec<Task> {
        let tasks = self.all.iter().zip(prompts).map(|(worktree, prompt)| Task {
            id: worktree.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            prompt: prompt.clone(),
            repository: self.repository.clone(),
            worktree: worktree.clone(),
            flags: flags.clone(),
        });
        tasks.collect()
    }

    /// Removes the worktrees in which there is no work; returns the others. A repository that was made for the occasion is among them
    /// if a task has committed to a branch, which is nowhere else.
    pub(crate) async fn remove_unchanged(self, ignored: IgnoredFiles) -> Vec<PathBuf> {
        let mut kept = remove(&self.all, ignored).await;
        if self.repository.starts_with(self.place.path()) && has_new_commits(&self.repository).await {
            kept.push(self.repository);
        }
        if !kept.is_empty() {
            // What is kept lies in it, so the directory must outlive the program.
            let _ = self.place.keep();
        }
        kept
    }
}

/// The repository to make worktrees of, which is made in `place` if there is none.
async fn find(repository: Option<&Path>, place: &Path) -> Result<(PathBuf, worktree::Worktrees), Failure> {
    let repository = match repository {
        Some(repository) => repository.to_owned(),
        None => make_repository(place).await?,
    };
    let Ok(worktrees) = worktree::Worktrees::of(&repository).await else {
        let line = format!("{} is not a git repository; run `git init` there", repository.display());
        return Err(Failure::usage(line));
    };
    if git(&repository, &["rev-parse", "--verify", "HEAD"]).await.is_err() {
        let line =
            format!("{} has no commit yet; make one, for worktrees to start from", repository.display());
        return Err(Failure::usage(line));
    }
    Ok((repository, worktrees))
}

/// Makes one worktree, unless an interrupt comes.
async fn make(
    worktrees: &worktree::Worktrees,
    path: &Path,
    interrupts: &mut Interrupts,
) -> Result<Worktree, Failure> {
    let mut making = pin!(worktrees.make(path));
    if let Some(made) = interrupts.unless(&mut making).await {
        return made.map_err(|error| Failure::usage(error_chain(&error)));
    }
    // One that is dropped half made stays in the repository, so only a second interrupt does that.
    if let Some(Ok(made)) = interrupts.unless(making).await {
        remove(&[made], IgnoredFiles::Discard).await;
    }
    Err(Failure::interrupted())
}

/// Removes worktrees; returns those that stay.
async fn remove(worktrees: &[Worktree], ignored: IgnoredFiles) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    for worktree in worktrees {
        // What cannot be looked at may hold work, too.
        if worktree.remove(ignored).await.is_err() {
            kept.push(worktree.path().to_owned());
        }
    }
    kept
}

/// Whether a repository that was made with one commit has others by now, on whatever branch.
async fn has_new_commits(repository: &Path) -> bool {
    let count = git(repository, &["rev-list", "--all", "--count"]).await;
    // What cannot be looked at may hold work, too.
    !count.is_ok_and(|count| count.trim() == "1")
}

async fn make_repository(place: &Path) -> Result<PathBuf, Failure> {
    let repository = place.join("repository");
    let made = async {
        tokio::fs::create_dir_all(&repository).await.map_err(|error| error.to_string())?;
        let readme =
            tokio::fs::write(repository.join("README.md"), "# A repository to try things on\n").await;
        readme.map_err(|error| error.to_string())?;
        git(&repository, &["init", "--quiet"]).await?;
        git(&repository, &["add", "."]).await?;
        let me =
            ["-c", "user.name=fleet", "-c", "user.email=fleet@example.org", "-c", "commit.gpgsign=false"];
        let commit = [&me[..], &["commit", "--quiet", "--message", "Start"]].concat();
        git(&repository, &commit).await
    };
    match made.await {
        Ok(_) => Ok(repository),
        Err(error) => Err(Failure::usage(format!("cannot make a git repository: {error}"))),
    }
}

/// What git says about a directory of the caller's own, or why it cannot.
async fn git(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(arguments).kill_on_drop(true);
    let output = command.output().await;
    let output = output.map_err(|error| format!("git cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(complaint.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn worktrees_that_cannot_all_be_made_leave_nothing_in_the_repository() {
        let place = tempfile::tempdir().unwrap();
        let repository = make_repository(place.path()).await.unwrap();
        // It works once.
        let filter = format!("mkdir {} && cat", place.path().join("made").display());
        git(&repository, &["config", "filter.once.smudge", &filter]).await.unwrap();
        git(&repository, &["config", "filter.once.required", "true"]).await.unwrap();
        std::fs::write(repository.join(".git/info/attributes"), "README.md filter=once\n").unwrap();
        assert!(Worktrees::create(Some(&repository), 2, &mut Interrupts::listen().unwrap()).await.is_err());
        assert!(place.path().join("made").exists(), "the first could be made");
        assert_eq!(git(&repository, &["worktree", "list"]).await.unwrap().lines().count(), 1);
    }

    #[tokio::test]
    async fn commits_on_a_branch_of_a_repository_made_for_the_occasion_are_kept() {
        let me = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
        let commit = [&me[..], &["commit", "--quiet", "--allow-empty", "--message", "work"]].concat();
        for does_commit in [false, true] {
            let mut interrupts = Interrupts::listen().unwrap();
            let worktrees = Worktrees::create(None, 1, &mut interrupts).await.unwrap();
            let (place, repository) = (worktrees.place.path().to_owned(), worktrees.repository.clone());
            let worktree = worktrees.all[0].path().to_owned();
            git(&worktree, &["switch", "--quiet", "--create", "work"]).await.unwrap();
            if does_commit {
                git(&worktree, &commit).await.unwrap();
            }
            let kept = worktrees.remove_unchanged(IgnoredFiles::Keep).await;
            assert_eq!(kept.contains(&repository), does_commit, "{kept:?}");
            assert_eq!(place.exists(), does_commit);
            if does_commit {
                git(&repository, &["rev-parse", "--verify", "work"]).await.unwrap();
                std::fs::remove_dir_all(place).unwrap();
            }
        }
    }
}

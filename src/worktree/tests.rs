use std::process::Command;

use tempfile::TempDir;

use super::*;

/// A repository with one commit, and a place for worktrees.
struct TestRepository {
    root: TempDir,
}

impl TestRepository {
    fn new() -> Self {
        let place = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(place.repository()).unwrap();
        fs::write(place.repository().join("file"), "one\n").unwrap();
        fs::write(place.repository().join(".gitignore"), "*.log\n").unwrap();
        place.git("repository", &["init", "--quiet", "--initial-branch=main"]);
        place.git("repository", &["add", "."]);
        place.commit("repository");
        place
    }

    fn repository(&self) -> PathBuf {
        self.root.path().join("repository")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn git(&self, directory: &str, words: &[&str]) -> String {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(words);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").current_dir(self.root.path().join(directory));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn commit(&self, directory: &str) {
        self.git(directory, &["commit", "--quiet", "--all", "--allow-empty", "--message=m"]);
    }

    async fn worktree(&self) -> Worktree {
        let worktrees = Worktrees::of(self.repository()).await.unwrap();
        worktrees.make(self.root.path().join("w")).await.unwrap()
    }
}

#[tokio::test]
async fn worktrees_are_made_and_removed_side_by_side() {
    let place = TestRepository::new();
    let worktrees = Worktrees::of(place.repository()).await.unwrap();
    let work = |n: usize| {
        let (worktrees, path) = (&worktrees, place.root.path().join(n.to_string()));
        async move { worktrees.make(path).await?.remove(IgnoredFiles::Keep).await }
    };
    for ended in futures_util::future::join_all((0..24).map(work)).await {
        ended.unwrap();
    }
    assert_eq!(worktrees.list().unwrap(), []);
}

/// The files that an agent with nothing but `edit` writes to have its command run by the next `git status`.
fn trap(worktree: &Path, marker: &Path) {
    let evil = worktree.join("evil");
    for directory in ["objects", "refs"] {
        fs::create_dir_all(evil.join(directory)).unwrap();
    }
    let command = format!("touch {}", marker.display());
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"{command};\"\n[filter \"evil\"]\n\tclean = \"{command}; cat\"\n"
    );
    fs::write(evil.join("config"), config).unwrap();
    fs::write(evil.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(worktree.join(".gitattributes"), "* filter=evil\n").unwrap();
    fs::write(worktree.join(".git"), format!("gitdir: {}\n", evil.display())).unwrap();
}

#[tokio::test]
async fn nothing_that_an_agent_wrote_into_a_worktree_is_run() {
    let place = TestRepository::new();
    let worktree = place.worktree().await;
    let marker = place.root.path().join("marker");
    trap(worktree.path(), &marker);
    let work = worktree.work().await.unwrap();
    assert!(work.files.iter().any(|name| name == ".gitattributes"), "{work:?}");
    let refused = worktree.remove(IgnoredFiles::Discard).await.unwrap_err();
    assert!(matches!(refused, WorktreeError::HasWork { .. }), "{refused:?}");
    for name in ["evil", ".gitattributes"] {
        let path = worktree.path().join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
    assert!(!marker.exists(), "its command was run");
    assert!(!worktree.path().exists());
    assert_eq!(Worktrees::of(place.repository()).await.unwrap().list().unwrap(), []);
    assert_eq!(place.git("repository", &["worktree", "list"]).lines().count(), 1);
}

/// Otherwise the test above could not fail.
#[tokio::test]
async fn a_plain_git_status_falls_into_the_trap() {
    let place = TestRepository::new();
    let worktree = place.worktree().await;
    let marker = place.root.path().join("marker");
    trap(worktree.path(), &marker);
    place.git("w", &["status"]);
    assert!(marker.exists());
}

#[tokio::test]
async fn programs_that_the_repository_names_are_not_run() {
    let place = TestRepository::new();
    let marker = place.root.path().join("marker");
    let command = format!("touch {}; cat", marker.display());
    let worktree = place.worktree().await;
    for (key, value) in [
        ("filter.mine.clean", command.as_str()),
        ("filter.mine.required", "true"),
        ("core.fsmonitor", &command),
        ("diff.external", &command),
    ] {
        place.git("repository", &["config", key, value]);
    }
    place.write("w/.gitattributes", "* filter=mine\n");
    place.write("w/file", "two\n");
    let work = worktree.work().await.unwrap();
    assert_eq!(work.files, ["file", ".gitattributes"]);
    assert!(!marker.exists());
}

#[tokio::test]
async fn a_worktree_with_work_in_it_is_not_removed() {
    type Happens = fn(&TestRepository);
    let cases: [(&str, Happens, Work); 9] = [
        ("changed", |p| p.write("w/file", "two\n"), Work { files: vec!["file".into()], ..Work::default() }),
        ("new", |p| p.write("w/a/b", "x"), Work { files: vec!["a/b".into()], ..Work::default() }),
        ("ignored", |p| p.write("w/a.log", "x"), Work { ignored: vec!["a.log".into()], ..Work::default() }),
        (
            "staged and gone",
            |p| {
                p.write("w/new", "x");
                p.git("w", &["add", "new"]);
                fs::remove_file(p.root.path().join("w/new")).unwrap();
            },
            Work { files: vec!["new".into()], ..Work::default() },
        ),
        (
            "hidden from git",
            |p| {
                p.write("w/file", "two\n");
                p.git("w", &["update-index", "--assume-unchanged", "file"]);
            },
            Work { files: vec!["file".into()], ..Work::default() },
        ),
        (
            "a repository inside",
            |p| {
                p.write("w/inner/file", "x");
                p.git("w/inner", &["init", "--quiet"]);
            },
            Work { files: vec!["inner/".into()], ..Work::default() },
        ),
        ("a commit", |p| p.commit("w"), Work { commits: vec![String::new()], ..Work::default() }),
        (
            "a commit that was left again",
            |p| {
                p.commit("w");
                p.git("w", &["reset", "--quiet", "--hard", "HEAD~"]);
            },
            Work { commits: vec![String::new()], ..Work::default() },
        ),
        (
            "a merge under way",
            |p| {
                let head = p.git("w", &["rev-parse", "HEAD"]);
                fs::write(p.repository().join(".git/worktrees/w/MERGE_HEAD"), head).unwrap();
            },
            Work { is_under_way: true, ..Work::default() },
        ),
    ];
    for (case, happens, expected) in cases {
        let place = TestRepository::new();
        let worktree = place.worktree().await;
        assert!(worktree.work().await.unwrap().is_empty(), "{case}");
        happens(&place);
        let mut found = worktree.work().await.unwrap();
        // Their ids differ from run to run.
        found.commits.iter_mut().for_each(String::clear);
        assert_eq!(found, expected, "{case}");
        let refused = worktree.remove(IgnoredFiles::Keep).await.unwrap_err();
        assert!(matches!(refused, WorktreeError::HasWork { .. }), "{case}: {refused:?}");
        assert!(worktree.path().exists(), "{case}");
        assert_eq!(worktree.remove(IgnoredFiles::Discard).await.is_ok(), case == "ignored", "{case}");
    }
}

#[tokio::test]
async fn commits_are_kept_under_a_branch_before_a_worktree_goes() {
    let place = TestRepository::new();
    let worktree = place.worktree().await;
    place.commit("w");
    let left = place.git("w", &["rev-parse", "HEAD"]);
    place.git("w", &["reset", "--quiet", "--hard", "HEAD~"]);
    place.write("w/file", "two\n");
    place.commit("w");
    let head = place.git("w", &["rev-parse", "HEAD"]);
    worktree.keep_commits("task").await.unwrap();
    worktree.keep_commits("task").await.unwrap();
    assert_eq!(place.git("repository", &["rev-parse", "task"]), head);
    assert_eq!(place.git("repository", &["rev-parse", "task-2"]), left);
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
    assert_eq!(place.git("repository", &["show", "task:file"]), "two\n");
    // A branch that is there already is not moved.
    let again = Worktrees::of(place.repository()).await.unwrap();
    let again = again.make(place.root.path().join("again")).await.unwrap();
    place.write("again/file", "three\n");
    place.commit("again");
    assert!(again.keep_commits("task").await.is_err());
    assert_eq!(place.git("repository", &["rev-parse", "task"]), head);
}

#[tokio::test]
async fn worktrees_are_found_again_and_those_of_others_left_alone() {
    let place = TestRepository::new();
    let worktrees = Worktrees::of(place.repository()).await.unwrap();
    assert_eq!(worktrees.list().unwrap(), []);
    let made = worktrees.make(place.root.path().join("w")).await.unwrap();
    place.git("repository", &["worktree", "add", "--quiet", "../theirs"]);
    let found = Worktrees::of(made.path()).await.unwrap().list().unwrap();
    assert_eq!(found, [made]);
}

use std::process::Command;

use tempfile::TempDir;

use super::*;

/// A repository with one commit, and a place for worktrees.
struct TestRepository {
    root: TempDir,
}

impl TestRepository {
    fn new() -> Self {
        Self::with_references("files").unwrap()
    }

    /// Nothing if git cannot keep references in this way.
    fn with_references(format: &str) -> Option<Self> {
        let place = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(place.repository()).unwrap();
        fs::write(place.repository().join("file"), "one\n").unwrap();
        fs::write(place.repository().join(".gitignore"), "*.log\n").unwrap();
        let mut init = Command::new("git");
        init.args(["init", "--quiet", "--initial-branch=main"]).current_dir(place.repository());
        init.env("GIT_DEFAULT_REF_FORMAT", format);
        assert!(init.status().unwrap().success());
        place.git("repository", &["add", "."]);
        place.commit("repository");
        let is_in_files = place.repository().join(".git/refs/heads/main").exists();
        (is_in_files == (format == "files")).then_some(place)
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

    async fn worktrees(&self) -> Worktrees {
        Worktrees::of(self.repository()).await.unwrap()
    }

    async fn worktree(&self) -> Worktree {
        self.worktrees().await.make(self.root.path().join("w")).await.unwrap()
    }

    /// Configures a filter for the files that `x.*` matches and commits one.
    fn add_filter(&self, smudge: &str, clean: &str) {
        for (key, value) in [("smudge", smudge), ("clean", clean), ("required", "true")] {
            self.git("repository", &["config", &format!("filter.mine.{key}"), value]);
        }
        self.write("repository/.gitattributes", "x.* filter=mine\n");
        self.write("repository/x.bin", "hello\n");
        self.git("repository", &["add", "."]);
        self.commit("repository");
    }
}

#[tokio::test]
async fn worktrees_are_made_and_removed_side_by_side() {
    let place = TestRepository::new();
    let worktrees = place.worktrees().await;
    let work = |n: usize| {
        let (worktrees, path) = (&worktrees, place.root.path().join(n.to_string()));
        async move {
            let worktree = worktrees.make(path).await?;
            worktrees.list().await?;
            worktree.keep_commits(&n.to_string()).await?;
            worktree.remove(IgnoredFiles::Keep).await
        }
    };
    for ended in futures_util::future::join_all((0..24).map(work)).await {
        ended.unwrap();
    }
    assert_eq!(worktrees.list().await.unwrap(), []);
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
    assert_eq!(place.worktrees().await.list().await.unwrap(), []);
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
    let cases: [(&str, Happens, Work); 15] = [
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
            "a commit that was left again, in a log that is not text",
            |p| {
                p.commit("w");
                p.git("w", &["reset", "--quiet", "--hard", "HEAD~"]);
                let log = p.repository().join(".git/worktrees/w/logs/HEAD");
                let text = fs::read_to_string(&log).unwrap().replace("t@example", "T@example");
                fs::write(
                    &log,
                    text.bytes().map(|byte| if byte == b'T' { 0xff } else { byte }).collect::<Vec<_>>(),
                )
                .unwrap();
            },
            Work { commits: vec![String::new()], ..Work::default() },
        ),
        (
            "a commit that only a reference of the worktree has",
            |p| {
                let made = p.git("w", &["commit-tree", "-m", "m", "-p", "HEAD", "HEAD^{tree}"]);
                p.git("w", &["update-ref", "refs/worktree/kept", made.trim()]);
            },
            Work { commits: vec![String::new()], ..Work::default() },
        ),
        (
            "a repository in the place of the worktree's own",
            |p| {
                fs::remove_file(p.root.path().join("w/.git")).unwrap();
                p.git("w", &["init", "--quiet"]);
                p.commit("w");
            },
            Work { files: vec![".git".into()], ..Work::default() },
        ),
        (
            "the repository of a submodule that is not checked out any more",
            |p| p.write("repository/.git/worktrees/w/modules/sub/HEAD", "ref: refs/heads/main\n"),
            Work { submodules: vec!["sub".into()], ..Work::default() },
        ),
        (
            "left out and there nevertheless",
            |p| {
                p.write("w/file", "two\n");
                p.git("w", &["update-index", "--skip-worktree", "file"]);
                p.git("w", &["config", "sparse.expectFilesOutsideOfPatterns", "true"]);
            },
            Work { files: vec!["file".into()], ..Work::default() },
        ),
        (
            "staged, and all files gone",
            |p| {
                p.write("w/file", "two\n");
                p.git("w", &["add", "file"]);
                fs::remove_dir_all(p.root.path().join("w")).unwrap();
            },
            Work { files: vec!["file".into()], ..Work::default() },
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
        assert_eq!(worktree.path().exists(), case != "staged, and all files gone", "{case}");
        assert_eq!(place.worktrees().await.list().await.unwrap(), std::slice::from_ref(&worktree), "{case}");
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
    let again = place.worktrees().await;
    let again = again.make(place.root.path().join("again")).await.unwrap();
    place.write("again/file", "three\n");
    place.commit("again");
    assert!(again.keep_commits("task").await.is_err());
    assert_eq!(place.git("repository", &["rev-parse", "task"]), head);
}

#[tokio::test]
async fn worktrees_are_found_again_and_those_of_others_left_alone() {
    let place = TestRepository::new();
    let worktrees = place.worktrees().await;
    assert_eq!(worktrees.list().await.unwrap(), []);
    let made = worktrees.make(place.root.path().join("w")).await.unwrap();
    place.git("repository", &["worktree", "add", "--quiet", "../theirs"]);
    let found = Worktrees::of(made.path()).await.unwrap().list().await.unwrap();
    assert_eq!(found, [made]);
}

#[tokio::test]
async fn commits_are_seen_wherever_git_keeps_its_references() {
    let Some(place) = TestRepository::with_references("reftable") else { return };
    let worktree = place.worktree().await;
    place.commit("w");
    place.git("w", &["reset", "--quiet", "--hard", "HEAD~"]);
    assert_eq!(worktree.work().await.unwrap().commits.len(), 1);
    assert!(worktree.remove(IgnoredFiles::Discard).await.is_err());
    worktree.keep_commits("task").await.unwrap();
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
}

#[tokio::test]
async fn what_would_be_lost_is_said() {
    let mut work = Work { is_under_way: true, ..Work::default() };
    assert_eq!(work.to_string(), "a merge or the like under way");
    work = Work { files: vec!["a".into(); 2], commits: vec!["b".into()], ..work };
    let error = WorktreeError::HasWork { path: "/w".into(), work: Box::new(work) };
    assert_eq!(error.to_string(), "/w holds work: 2 changed files, 1 commits, a merge or the like under way");
}

/// Removals that ended at each of their steps.
#[tokio::test]
async fn a_removal_that_was_cut_short_is_gone_on_with() {
    type Cut = fn(&Worktree);
    let cuts: [(&str, Cut); 4] = [
        ("its files are gone", |w| fs::remove_dir_all(w.path()).unwrap()),
        ("they are aside", |w| fs::rename(w.path(), w.aside()).unwrap()),
        ("some are aside", |w| {
            fs::rename(w.path(), w.aside()).unwrap();
            fs::remove_file(w.aside().join("file")).unwrap();
        }),
        ("its entry is gone", |w| {
            fs::remove_dir_all(w.path()).unwrap();
            fs::remove_dir_all(&w.git_dir).unwrap();
        }),
    ];
    for (case, cut) in cuts {
        let place = TestRepository::new();
        let worktrees = place.worktrees().await;
        let made = place.worktree().await;
        cut(&made);
        let found = worktrees.list().await.unwrap();
        assert_eq!(found.is_empty(), case == "its entry is gone", "{case}");
        found.first().unwrap_or(&made).remove(IgnoredFiles::Keep).await.unwrap();
        assert!(!made.aside().exists(), "{case}");
        assert_eq!(worktrees.list().await.unwrap(), [], "{case}");
        let again = place.worktree().await;
        assert!(again.path().join("file").exists(), "{case}");
        again.remove(IgnoredFiles::Keep).await.unwrap();
        again.remove(IgnoredFiles::Keep).await.unwrap();
    }
}

#[tokio::test]
async fn commits_outlive_the_files_of_their_worktree() {
    let place = TestRepository::new();
    let worktree = place.worktree().await;
    place.commit("w");
    fs::remove_dir_all(worktree.path()).unwrap();
    let refused = worktree.remove(IgnoredFiles::Discard).await.unwrap_err();
    assert!(
        matches!(&refused, WorktreeError::HasWork { work, .. } if work.commits.len() == 1),
        "{refused:?}"
    );
    worktree.keep_commits("task").await.unwrap();
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
}

#[tokio::test]
async fn only_what_is_registered_as_the_worktree_is_removed() {
    let place = TestRepository::new();
    let worktrees = place.worktrees().await;
    let gone = place.worktree().await;
    gone.remove(IgnoredFiles::Keep).await.unwrap();
    // It has the same name, and so the same git directory.
    let other = worktrees.make(place.root.path().join("elsewhere/w")).await.unwrap();
    assert_eq!(gone.git_dir, other.git_dir);
    gone.remove(IgnoredFiles::Keep).await.unwrap();
    assert_eq!(worktrees.list().await.unwrap(), std::slice::from_ref(&other));
    place.write("w/mine", "x");
    let refused = gone.remove(IgnoredFiles::Discard).await.unwrap_err();
    assert!(matches!(refused, WorktreeError::NotRegistered { .. }), "{refused:?}");
    assert!(place.root.path().join("w/mine").exists());
    other.remove(IgnoredFiles::Keep).await.unwrap();
}

/// Git writes paths that are relative to the git directory if it is told to (`worktree.useRelativePaths`). Wherever this process is, they
/// must not lead to anything else.
#[tokio::test]
async fn relative_paths_lead_to_the_worktree_or_nowhere() {
    let place = TestRepository::new();
    place.git("repository", &["config", "worktree.useRelativePaths", "true"]);
    let worktree = place.worktree().await;
    let link = worktree.git_dir.join("gitdir");
    let written = fs::read_to_string(&link).unwrap();
    assert!(Path::new(written.trim_end()).is_absolute(), "{written}");
    fs::write(&link, "../../../../w/.git\n").unwrap();
    assert_eq!(registered_path(&worktree.git_dir).as_deref(), Some(worktree.path()));
    // A git that does not know them lists what it cannot use.
    let listed = place.git("repository", &["worktree", "list", "--porcelain"]);
    let is_known = listed.contains(&format!("worktree {}\n", worktree.path().display()));
    let expected = if is_known { vec![worktree.clone()] } else { Vec::new() };
    assert_eq!(place.worktrees().await.list().await.unwrap(), expected);
    assert_eq!(worktree.remove(IgnoredFiles::Keep).await.is_ok(), is_known);
    fs::create_dir_all(worktree.path()).unwrap();
    fs::remove_dir_all(worktree.path()).unwrap();
    fs::create_dir_all(&worktree.git_dir).unwrap();
    fs::write(&link, "../../../../w/.git\n").unwrap();
    assert_eq!(registered_path(&worktree.git_dir).as_deref(), Some(worktree.path()), "its files are gone");
}

#[tokio::test]
async fn an_entry_that_another_worktree_has_by_now_is_not_removed() {
    for name in ["w", "elsewhere/w"] {
        let place = TestRepository::new();
        let old = place.worktree().await;
        // Another process finishes the removal that this one is at the end of, and makes another worktree.
        fs::remove_dir_all(old.path()).unwrap();
        place.git("repository", &["worktree", "prune"]);
        fs::create_dir_all(place.root.path().join("elsewhere")).unwrap();
        let new = place.worktrees().await.make(place.root.path().join(name)).await.unwrap();
        assert_eq!(new.git_dir, old.git_dir, "{name}");
        old.remove_entry().await.unwrap();
        assert!(new.work().await.unwrap().is_empty(), "{name}");
        new.remove(IgnoredFiles::Keep).await.unwrap();
        assert!(!new.path().exists() && !new.git_dir.exists(), "{name}");
    }
}

#[tokio::test]
async fn a_locked_worktree_is_not_removed() {
    let place = TestRepository::new();
    let worktree = place.worktree().await;
    place.git("repository", &["worktree", "lock", "--reason=not now", "../w"]);
    let refused = worktree.remove(IgnoredFiles::Discard).await.unwrap_err();
    assert!(matches!(&refused, WorktreeError::Locked { reason, .. } if reason == "not now"), "{refused:?}");
    assert!(worktree.path().join("file").exists());
    place.git("repository", &["worktree", "unlock", "../w"]);
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
}

#[tokio::test]
async fn a_worktree_of_a_sparse_checkout_is_removed() {
    let place = TestRepository::new();
    place.write("repository/in/file", "x");
    place.write("repository/out/file", "x");
    place.git("repository", &["add", "."]);
    place.commit("repository");
    place.git("repository", &["sparse-checkout", "set", "in"]);
    let worktree = place.worktree().await;
    assert!(worktree.path().join("in/file").exists() && !worktree.path().join("out/file").exists());
    assert_eq!(worktree.work().await.unwrap(), Work::default());
    place.write("w/out/file", "y");
    assert_eq!(worktree.work().await.unwrap().files, ["out/file"]);
    fs::remove_dir_all(worktree.path().join("out")).unwrap();
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
}

/// A look goes without filters, and must tell their work from an agent's nevertheless.
#[tokio::test]
async fn files_that_a_filter_wrote_are_no_work_until_they_are_changed() {
    let place = TestRepository::new();
    place.add_filter("tr a-z n-za-m", "tr a-z n-za-m");
    place.write("repository/.git/info/attributes", "file text eol=crlf\n");
    let worktree = place.worktree().await;
    assert_eq!(place.git("w", &["cat-file", "blob", "HEAD:x.bin"]), "uryyb\n");
    assert_eq!(fs::read_to_string(worktree.path().join("x.bin")).unwrap(), "hello\n");
    assert_eq!(worktree.work().await.unwrap(), Work::default());
    // As many bytes, and perhaps in the same second.
    place.write("w/x.bin", "hullo\n");
    assert_eq!(worktree.work().await.unwrap().files, ["x.bin"]);
    place.git("w", &["checkout", "--quiet", "file", "x.bin"]);
    let other = place.worktrees().await.make(place.root.path().join("other")).await.unwrap();
    other.remove(IgnoredFiles::Keep).await.unwrap();
}

#[tokio::test]
async fn a_worktree_that_cannot_be_checked_out_leaves_nothing_behind() {
    let place = TestRepository::new();
    place.add_filter("false", "cat");
    let path = place.root.path().join("w");
    let error = place.worktrees().await.make(&path).await.unwrap_err();
    assert!(matches!(error, WorktreeError::Git { what: "check out a worktree", .. }), "{error:?}");
    assert!(!path.exists());
    assert_eq!(place.git("repository", &["worktree", "list"]).lines().count(), 1);
}

/// The checkout of the one is held by its filter until the other is done.
#[tokio::test]
async fn a_slow_checkout_keeps_no_other_waiting() {
    let place = TestRepository::new();
    let [begun, goes_on] = ["begun", "goes-on"].map(|name| place.root.path().join(name));
    assert!(Command::new("mkfifo").args([&begun, &goes_on]).status().unwrap().success());
    let filter = format!("echo > {}; cat {}; cat", begun.display(), goes_on.display());
    place.add_filter(&filter, "cat");
    let worktrees = place.worktrees().await;
    let slow = worktrees.make(place.root.path().join("slow"));
    let other = async {
        blocking(move || fs::read(begun).map(drop)).await.unwrap();
        let other = worktrees.make_at(place.root.path().join("other"), "HEAD~").await.unwrap();
        other.remove(IgnoredFiles::Keep).await.unwrap();
        blocking(move || fs::write(goes_on, "")).await.unwrap();
    };
    let both = async { tokio::join!(slow, other) };
    let (slow, ()) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("they end");
    slow.unwrap().remove(IgnoredFiles::Keep).await.unwrap();
}

#[tokio::test]
async fn a_call_of_git_that_hangs_is_ended() {
    let place = TestRepository::new();
    let nobody_writes_to_it = place.root.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&nobody_writes_to_it).status().unwrap().success());
    let mut git = Git::of(&place.repository().join(".git"));
    git.limit = Duration::from_millis(100);
    let error = git.run(["hash-object".as_ref(), nobody_writes_to_it.as_os_str()]).await.unwrap_err();
    assert!(matches!(error, GitError::TookTooLong(_)), "{error:?}");
}

#[tokio::test]
async fn a_worktree_is_made_of_the_commit_that_was_meant() {
    let place = TestRepository::new();
    let rev = |name: &str| place.git("repository", &["rev-parse", name]).trim().to_owned();
    place.git("repository", &["worktree", "add", "--quiet", "-b", "feature", "../theirs"]);
    place.commit("theirs");
    let here = place.worktrees().await;
    let there = Worktrees::of(place.root.path().join("theirs")).await.unwrap();
    let at = |name: &str| place.root.path().join(name);
    assert_eq!(here.make(at("a")).await.unwrap().start(), rev("main"));
    assert_eq!(there.make(at("b")).await.unwrap().start(), rev("feature"));
    assert_eq!(here.make_at(at("c"), "feature").await.unwrap().start(), rev("feature"));
    assert_eq!(there.make_at(at("d"), "HEAD~").await.unwrap().start(), rev("main"));
    for revision in
        ["", "-f", "--all", "^main", "main..feature", "main feature", "no-such-branch", "HEAD^{tree}"]
    {
        assert!(here.make_at(at("e"), revision).await.is_err(), "{revision}");
        assert!(!at("e").exists(), "{revision}");
    }
    assert_eq!(here.list().await.unwrap(), there.list().await.unwrap());
}

#[tokio::test]
async fn what_a_partial_clone_lacks_is_loaded_for_a_checkout() {
    let place = TestRepository::new();
    place.git("repository", &["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", place.repository().display());
    place.git(".", &["clone", "--quiet", "--no-checkout", "--filter=blob:none", &url, "partial"]);
    let worktrees = Worktrees::of(place.root.path().join("partial")).await.unwrap();
    let worktree = worktrees.make(place.root.path().join("w")).await.unwrap();
    assert_eq!(fs::read_to_string(worktree.path().join("file")).unwrap(), "one\n");
    worktree.remove(IgnoredFiles::Keep).await.unwrap();
}

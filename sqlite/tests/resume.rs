//! The example `resume`: a runner that is killed with -9 in the middle of an answer, and the one that goes on.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use opencode_conductor::test_util::{FakeOpenCode, Script, Step};
use tokio::time::timeout;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn resume() -> Command {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/resume");
    assert!(path.exists(), "{} is not there: run all tests of the package", path.display());
    Command::new(path)
}

async fn ended(child: Child) -> (bool, String) {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = timeout(PATIENCE, output).await.expect("ends in time").unwrap().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn a_runner_that_was_killed_goes_on_when_it_is_started_again() {
    let fake = FakeOpenCode::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut step = Step::text("Water does not hurry.");
    step.gate_middle = Some("middle".to_owned());
    let prompt = Script::new([step]).prompt("Write a poem.");
    let start = || {
        let mut runner = resume();
        runner.args([fake.url().as_str(), "/srv/worktree"]).stdout(Stdio::piped());
        runner.env("RESUME_DATABASE", directory.path().join("turns.db")).env("RESUME_PROMPT", &prompt);
        runner.spawn().unwrap()
    };
    let mut first = start();
    timeout(PATIENCE, fake.wait_at("middle")).await.expect("the answer begins");
    // With -9.
    first.kill().unwrap();
    let (_, said) = ended(first).await;
    assert!(said.contains("runner: asks") && !said.contains("settled"), "{said}");
    fake.open_gate("middle");
    let (is_good, said) = ended(start()).await;
    assert!(is_good && said.contains("goes on with task-42, which was Started"), "{said}");
    assert!(said.contains("settled: \"Water does not hurry.\""), "{said}");
    let session = fake.sessions()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!((fake.sessions().len(), fake.prompts_run(&session).len()), (1, 1));
}

#[tokio::test]
async fn the_example_shows_it() {
    let shown = resume().current_dir(Path::new("/")).stdout(Stdio::piped()).spawn().unwrap();
    let (is_good, said) = ended(shown).await;
    assert!(is_good, "{said}");
    for words in ["kill -9", "goes on with task-42", "called for the prompt 1 time(s), and 1 session(s) made"]
    {
        assert!(said.contains(words), "{words:?} is missing in {said}");
    }
}

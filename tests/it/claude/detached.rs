//! What a process of Claude Code has started outside of its group, as it starts the commands of its shell tool.

#![cfg(target_os = "linux")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use opencode_conductor::{
    claude::{ClaudeOptions, OnRelease},
    test_util::{ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};
use rustix::process::{Pid, Signal, getpgid, kill_process};

use super::{
    real::Lab,
    stage::{input, manager, session, soon},
};
use crate::server_fake::{all_dead, is_alive};

/// What ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its owner.
    Release,
    /// An accident.
    Crash,
    /// The next owner, after the first has let go of it.
    NextOwner,
}

const ENDS: [End; 3] = [End::Release, End::Crash, End::NextOwner];

/// The process that a file names, once it does.
async fn named_in(path: &Path) -> u32 {
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if let Some(pid) = text.strip_suffix('\n') {
            return pid.parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Has a process start a tool, ends the process, and waits until the tool has ended, too. The tool writes its own id to a file.
async fn check(
    options: ClaudeOptions,
    config: &Path,
    directory: &str,
    tool: &Path,
    script: &ClaudeScript,
    end: End,
) {
    let options = options.on_release(if end == End::Release { OnRelease::Kill } else { OnRelease::Finish });
    let owner = manager(options.clone());
    let id = session(&owner, directory).await;
    let running = owner.prompt(input(&id, script)).start();
    let tool = soon(named_in(tool)).await;
    let leader = fs::read_to_string(config.join(format!("conductor/{id}.lock"))).unwrap();
    let leader = Pid::from_raw(leader.parse().unwrap()).unwrap();
    assert!(is_alive(tool), "{end:?}");
    let group = getpgid(Pid::from_raw(tool.cast_signed())).unwrap();
    assert_ne!(group, leader, "it has left the group");
    match end {
        End::Release => soon(owner.shutdown()).await,
        End::Crash => kill_process(leader, Signal::KILL).unwrap(),
        End::NextOwner => {
            soon(owner.shutdown()).await;
            let next = manager(options);
            assert!(soon(next.abort(&id)).await.unwrap().confirmed);
            soon(next.shutdown()).await;
        }
    }
    all_dead(&[tool]).await;
    drop(running);
    soon(owner.shutdown()).await;
}

#[tokio::test]
async fn what_left_the_group_of_a_process_is_ended_with_it() {
    for end in ENDS {
        let fake = FakeClaude::start().await.unwrap();
        let [(_, executable), (_, config)] = fake.environment();
        let home = tempfile::tempdir().unwrap();
        let (detaching, tool) = (home.path().join("claude"), home.path().join("tool"));
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] || setsid sh -c 'echo $$ >{}; exec sleep 1000' &\nexec {} \"$@\"\n",
            tool.display(),
            executable.display()
        );
        // Another process writes it: one that is open for writing cannot be started.
        let write = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(&detaching).arg(script).status();
        assert!(written.unwrap().success());
        let script = ClaudeScript::new([vec![ClaudeStep::Gate("gate".to_owned())]]);
        check(fake.options().executable(detaching), &config, "/project", &tool, &script, end).await;
    }
}

#[tokio::test]
async fn a_command_of_the_real_executable_is_ended_with_it() {
    let Some(lab) = Lab::find().await else { return };
    for end in ENDS {
        let tool = PathBuf::from(lab.project()).join(format!("{end:?}"));
        let command = ClaudeTool::bash(&format!("echo $$ >{}; sleep 1000", tool.display()));
        let script = ClaudeScript::new([vec![command.into()], vec![ClaudeStep::Text("done".to_owned())]]);
        let config = lab.root.path().join("config");
        check(lab.options(), &config, &lab.project(), &tool, &script, end).await;
    }
}

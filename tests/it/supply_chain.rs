//! What is installed from elsewhere is what it was when it was measured, and runs nothing while it is installed.

#![cfg(target_os = "linux")]

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use tempfile::TempDir;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The scripts that install programs, and where the executables are then.
const INSTALLED: [(&str, &str); 2] = [
    ("install-opencode", "target/opencode/1.18.33/node_modules/opencode-linux-x64/bin/opencode"),
    ("install-claude", "target/claude-code/2.1.325/node_modules/@anthropic-ai/claude-code-linux-x64/claude"),
];

/// A place with the scripts and nothing else.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join(".ci")).unwrap();
    for file in fs::read_dir(repository().join(".ci")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), place.path().join(".ci").join(file.file_name())).unwrap();
    }
    place
}

fn write_executable(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_program_that_was_replaced_is_not_used() {
    for (script, executable) in INSTALLED {
        let place = place();
        let executable = place.path().join(executable);
        write_executable(&executable, "#!/bin/sh\necho mine\n");
        let output = Command::new("bash").arg(place.path().join(".ci").join(script)).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{complaint}");
        assert!(complaint.contains("its hash was"), "{complaint}");
        assert!(!executable.exists(), "nothing finds it by its place: {complaint}");
    }
}

#[test]
fn a_program_that_cannot_be_had_is_skipped_unless_the_network_is_promised() {
    for (script, _) in INSTALLED {
        let place = place();
        write_executable(&place.path().join("bin/npm"), "#!/bin/sh\nexit 1\n");
        let path = format!("{}:{}", place.path().join("bin").display(), env::var("PATH").unwrap());
        for (promised, status) in [(None, 77), (Some("1"), 1)] {
            let mut command = Command::new("bash");
            command.arg(place.path().join(".ci").join(script)).env("PATH", &path);
            command.env_remove("REQUIRE_NETWORK").envs(promised.map(|it| ("REQUIRE_NETWORK", it)));
            let output = command.output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{complaint}");
            assert!(complaint.contains("cannot be had from the registry"), "{complaint}");
        }
    }
}

#[test]
fn npm_runs_no_scripts_of_what_it_installs() {
    let mut n_found = 0;
    for file in fs::read_dir(repository().join(".ci")).unwrap() {
        let path = file.unwrap().path();
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| line.contains("npm install ")) {
            n_found += 1;
            assert!(line.contains("--ignore-scripts"), "{}: {line}", path.display());
        }
    }
    assert!(n_found > 0, "the test can tell");
}

#[test]
fn everything_that_is_built_has_a_lock_file() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        assert!(repository().join(lock).exists(), "{lock}");
        let ignored = fs::read_to_string(repository().join(".gitignore")).unwrap();
        assert!(!ignored.lines().any(|line| line.trim_start_matches('/') == lock), "{lock} is ignored");
    }
}

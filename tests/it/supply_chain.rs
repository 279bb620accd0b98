//! What is installed from elsewhere is what it was when it was measured, and runs nothing while it is installed.

#![cfg(target_os = "linux")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_server_that_was_replaced_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join(".ci")).unwrap();
    let script = place.path().join(".ci/install-opencode");
    fs::copy(repository().join(".ci/install-opencode"), &script).unwrap();
    let version = "1.18.33";
    let home = place.path().join("target/opencode").join(version).join("node_modules/opencode-linux-x64/bin");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("opencode"), "#!/bin/sh\necho mine\n").unwrap();
    fs::set_permissions(home.join("opencode"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("bash").arg(&script).arg(version).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{complaint}");
    assert!(complaint.contains("its hash is"), "{complaint}");
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

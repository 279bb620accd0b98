//! Old releases of the server: what they do otherwise, on the real thing. Each is skipped, and says so, where it is not installed.

use opencode_conductor::{
    ManagerBuilder, PermissionPolicy,
    test_util::{Script, Step},
};
use tempfile::TempDir;

use super::{
    real::RealServer,
    real_manager::{House, abort_in_child, abort_in_text, abort_in_tool, play, scenarios},
    support::stage::{bash, task, texts},
};

/// Stands in for `rg`, which 1.0 would fetch from the internet: it needs it to list files.
const RIPGREP: &str = "#!/bin/sh\nexec find . -type f -not -path './.git/*'\n";

async fn release(version: &str) -> Option<(House, TempDir)> {
    let executable = RealServer::find_release(version)?;
    let tools = tempfile::tempdir().unwrap();
    let rg = tools.path().join("rg");
    std::fs::write(&rg, RIPGREP).unwrap();
    std::fs::set_permissions(&rg, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    Some((House::of(executable, 1, |options| options.env("PATH", &path)).await, tools))
}

async fn turns_of(version: &str) {
    let Some((house, _tools)) = release(version).await else { return };
    play(scenarios![&house; turn_with_a_permission abort_in_text abort_in_tool abort_in_child], 2).await;
}

async fn turn_with_a_permission(house: &House) {
    let allowing = |manager: ManagerBuilder| manager.permissions(PermissionPolicy::AllowOnce);
    let room = house.room_with("permission", 0, allowing).await;
    let script =
        Script::new([bash("touch asked", ""), Step::tool(task(&texts("a part"))), Step::text("done")]);
    let result = room.ask("x", &script).await;
    room.check("x", &result, "done").await;
    room.check_usable().await;
}

macro_rules! releases {
    ($($name:ident: $version:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            turns_of($version).await;
        })*
    };
}

releases! {
    turns_of_1_0_185: "1.0.185";
    turns_of_1_1_53: "1.1.53";
    turns_of_1_2_27: "1.2.27";
    turns_of_1_14_34: "1.14.34";
    turns_of_1_15_4: "1.15.4";
    turns_of_1_17_11: "1.17.11";
}

//! Asking a tool what it does has no effect.

use std::process::Command;

#[test]
fn every_tool_says_what_it_does_and_does_nothing_else() {
    let tools = [
        env!("CARGO_BIN_EXE_load"),
        env!("CARGO_BIN_EXE_performance_page"),
        env!("CARGO_BIN_EXE_record_claude"),
        env!("CARGO_BIN_EXE_record_fixtures"),
        env!("CARGO_BIN_EXE_refresh_openapi"),
        env!("CARGO_BIN_EXE_soak"),
        env!("CARGO_BIN_EXE_terminal_svg"),
    ];
    for tool in tools {
        // One that starts a server or an agent would fail.
        let mut command = Command::new(tool);
        command.arg("--help").env("OPENCODE_BIN", "/none").env("CLAUDE_BIN", "/none").env("PATH", "");
        let said = command.output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert_eq!((said.status.code(), &*stderr), (Some(0), ""), "{tool}");
        assert!(stdout.contains("Usage: "), "{tool}: {stdout}");
    }
}

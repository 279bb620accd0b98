//! A session of an old release, which wrote its files in another layout: 1.0 put the lines of subagents between those of the session, 2.0 into
//! `agent-*.jsonl` beside it.

#![expect(clippy::expect_used, reason = "a recording that cannot be made should stop the recorder")]

use std::{fs, path::Path, process::Stdio};

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::json;
use tokio::process::Command;

use crate::{anthropic::AnthropicModel, stage::copy};

/// Records a session that starts two subagents at once; returns how many lines its files have.
pub(crate) async fn record(claude: &Path, directory: &Path) -> usize {
    let base = tempfile::tempdir().expect("make a directory");
    let (home, project) = (base.path().join("home"), base.path().join("project"));
    fs::create_dir_all(&home).expect("make a home");
    fs::create_dir_all(&project).expect("make a project");
    let model = AnthropicModel::start().await;
    let status = Command::new(claude)
        .args(["-p", &script().prompt("work"), "--output-format", "stream-json", "--verbose"])
        .args(["--allowedTools", "Bash(echo:*),Task"])
        .current_dir(&project)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", &home)
        .env("ANTHROPIC_BASE_URL", model.base_url())
        .env("ANTHROPIC_API_KEY", "sk-ant-dummy")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .await
        .expect("run Claude Code");
    assert!(status.success(), "it ended with {status}");
    if directory.exists() {
        fs::remove_dir_all(directory).expect("remove the old recording");
    }
    fs::create_dir_all(directory).expect("make the recording's directory");
    let projects = home.join(".claude/projects");
    let written =
        fs::read_dir(projects).expect("a transcript").next().expect("a project").expect("a project");
    let mut lines = 0;
    for file in fs::read_dir(written.path()).expect("transcripts") {
        let file = file.expect("a transcript").path();
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let name = if name.starts_with("agent-") { name } else { "transcript.jsonl".to_owned() };
        lines += copy(&base, &model, &file, &directory.join(name));
    }
    lines
}

fn script() -> Script {
    let tool = |words: &str| {
        let echo = json!({"command": format!("echo {words}"), "description": "say it"});
        let steps = [Step::tool(ScriptedTool::new("Bash", echo)), Step::text(format!("It said {words}."))];
        let prompt = Script::new(steps).prompt("say it");
        ScriptedTool::new(
            "Task",
            json!({"description": words, "prompt": prompt, "subagent_type": "general-purpose"}),
        )
    };
    let mut both = Step::text("Two at once.");
    both.tools = vec![tool("one"), tool("two")];
    Script::new([both, Step::text("Both are done.")])
}

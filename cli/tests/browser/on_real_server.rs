//! The page in a real browser, on a real server with a scripted model.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::json;

use crate::{
    chromium::Browser,
    is,
    model::ScriptedModel,
    real::{RealOptions, RealServer},
    rig::{self, question},
};

#[tokio::test]
async fn a_real_server_is_answered_and_aborted_on_the_page() {
    let Some(executable) = RealServer::find() else { return };
    let Some(mut browser) = Browser::start().await else { return };
    let model = ScriptedModel::start().await;
    let rules = json!({"permission": {"bash": {"*": "allow", "touch *": "ask"}}});
    let server = RealServer::start(RealOptions::new(executable, model.base_url()).config(rules)).await;
    let shell = |command| ScriptedTool::new("bash", json!({"command": command, "description": "a command"}));
    let task = json!({
        "description": "Make c", "subagent_type": "general",
        "prompt": Script::new([Step::tool(shell("touch c")), Step::text("Made c.")]).prompt("make c"),
    });
    let prompts = [
        Script::new([Step::tool(shell("touch a")), Step::text("Made a.")]).prompt("make a"),
        Script::new([Step::tool(shell("touch b")), Step::text("Did not.")]).prompt("make b"),
        Script::new([Step::tool(ScriptedTool::new("task", task)), Step::text("Had c made.")])
            .prompt("have c made"),
        Script::new([Step::tool(question("Which one?", ["left", "right"])), Step::text("I see.")])
            .prompt("ask"),
        Script::new([Step::tool(shell("sleep 600"))]).prompt("wait"),
    ];
    let project = server.project(0);
    let mut command = rig::command(&project);
    let (_process, url) = rig::spawn(command.args(["--server", server.url()]).args(prompts)).await;
    browser.open(&url).await;
    for task in [1, 2, 3, 4] {
        browser.wait(&is(task, "asks")).await;
    }
    // One after the other: what has an end no longer moves what is below it.
    for (task, buttons) in [
        (1, &[".request .primary"][..]),
        (2, &[".request .danger"]),
        (3, &[".request .primary"]),
        (4, &[".option", ".request .primary"]),
    ] {
        for button in buttons {
            browser.click(&format!("#task-{task} {button}")).await;
        }
        browser.wait(&is(task, "done")).await;
    }
    assert!(project.join("a").exists() && !project.join("b").exists() && project.join("c").exists());
    browser.wait("document.querySelector('#task-3 .subagent .tool[data-status=success]')").await;
    browser
        .wait("document.querySelector('#task-4 .tool pre').textContent.includes('\"Which one?\"=\"left\"')")
        .await;
    browser.wait("document.querySelector('#task-5 .tool[data-status=running]')").await;
    browser.click("#task-5 .abort").await;
    browser.wait(&is(5, "aborted")).await;
    assert_eq!(browser.complaints, Vec::<String>::new());
}

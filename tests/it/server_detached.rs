//! A command that a real server has started in a group of its own, as it starts those of its shell tool.

#![cfg(target_os = "linux")]

use std::time::Duration;

use opencode_conductor::{
    ConversationManager, CreateTaskSession, OpenCodeServer, PermissionPolicy, PromptInput,
    test_util::{Script, Step},
};
use rustix::process::{Pid, Signal, getpgid, kill_process};
use serde_json::json;

use crate::{
    model::ScriptedModel,
    server_fake::{all_dead, is_alive},
    support::{real::Rig, soon, stage::bash},
};

#[tokio::test]
async fn a_command_of_a_real_server_is_ended_with_it() {
    let Some(rig) = Rig::find() else { return };
    let model = ScriptedModel::start().await;
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "Mock",
        "options": {"baseURL": model.base_url(), "apiKey": "x"},
        "models": {"m": {"name": "M", "tool_call": true}},
    });
    let config =
        json!({"share": "disabled", "autoupdate": false, "model": "mock/m", "provider": {"mock": provider}});
    let directory = rig.directory("one");
    for how in ["dropped", "shut down", "crashed"] {
        let server = OpenCodeServer::launch(rig.options().config(config.clone())).await.unwrap();
        let manager = ConversationManager::builder(server.client().clone())
            .permissions(PermissionPolicy::AllowOnce)
            .build();
        let create = CreateTaskSession::new("project", how, directory.as_path(), directory.as_path());
        let session = soon(manager.create_task_session(create)).await.unwrap().session_id;
        let file = directory.as_path().join(format!("tool {how}"));
        let command = bash(&format!("echo $$ >'{}'; sleep 1000", file.display()), "");
        let script = Script::new([command, Step::text("done")]);
        let running = manager.prompt(PromptInput::new(session, script.prompt("do it"))).start();
        let tool: u32 = soon(async {
            loop {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                if let Some(pid) = text.strip_suffix('\n') {
                    return pid.parse().unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let leader = Pid::from_raw(server.pid().unwrap().cast_signed()).unwrap();
        assert_ne!(getpgid(Pid::from_raw(tool.cast_signed())).unwrap(), leader, "it has left the group");
        assert!(is_alive(tool), "{how}");
        match how {
            "dropped" => drop(server),
            "shut down" => drop(soon(server.shutdown()).await),
            _ => {
                kill_process(leader, Signal::KILL).unwrap();
                soon(server.exited()).await;
            }
        }
        all_dead(&[tool]).await;
        drop(running);
        soon(manager.shutdown()).await;
    }
}

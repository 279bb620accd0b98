//! How each scenario goes: what is said, waited for and done.

use std::fs;

use base64::{Engine, prelude::BASE64_STANDARD};
use opencode_conductor::test_util::Step;
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Stage, bash, prompt, task, tool};

/// A one-pixel image.
const PIXEL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// Whether this is a running bash that has said so.
fn has_begun(part: &Value) -> bool {
    part["state"]["status"] == "running" && part["state"]["metadata"]["output"] == "begun\n"
}

/// Returns when the scenario's last turn is over, before the tail.
pub(crate) async fn play(name: &str, stage: &mut Stage) {
    // Without a title the server asks the model for one, which only one scenario wants.
    let session = if name == "plain" { json!({}) } else { json!({"title": name}) };
    stage.session(session).await;
    if without_idle(name, stage).await {
        return;
    }
    let is_played = one_script(name, stage).await
        || subagents(name, stage).await
        || other_requests(name, stage).await
        || aborts_and_errors(name, stage).await
        || compactions(name, stage).await
        || asks(name, stage).await
        || several_prompts(name, stage).await;
    assert!(is_played, "every scenario has its play");
    stage.idle().await;
}

/// Scenarios in which the model plays one script to its end. Returns false if `name` is none of them.
async fn one_script(name: &str, stage: &mut Stage) -> bool {
    match name {
        "plain" => stage.prompt("Say hello.").await,
        "tools" => {
            let file = stage.file("hello.txt");
            let steps = json!([
                {"text": "First a command.", "tools": [bash("echo hi")]},
                {"reasoning": "a file next", "tools": [tool("write", &json!({"filePath": file, "content": "hello\n"}))]},
                {"tools": [tool("read", &json!({"filePath": file}))]},
                {"tools": [tool("edit", &json!({"filePath": file, "oldString": "hello", "newString": "goodbye"}))]},
                {"text": "All done.\n"},
            ]);
            stage.script("Use some tools.", steps).await;
        }
        "parallel_tools" => {
            let file = stage.file("notes.txt");
            let tools = json!([bash("echo one"), tool("read", &json!({"filePath": file})), bash("echo two")]);
            stage.script("Three at once.", json!([{"tools": tools}, {"text": "Done."}])).await;
        }
        "tool_error" => {
            let file = stage.file("missing.txt");
            let steps = json!([
                {"tools": [tool("read", &json!({"filePath": file}))]},
                {"tools": [bash("echo oh; exit 3")]},
                {"tools": [tool("nonsense", &json!({"a": 1}))]},
                {"text": "That failed."},
            ]);
            stage.script("Fail a little.", steps).await;
        }
        "tool_attachment" => {
            let image = BASE64_STANDARD.decode(&PIXEL["data:image/png;base64,".len()..]);
            fs::write(stage.file("pixel.png"), image.unwrap_or_default()).unwrap_or_default();
            let read = tool("read", &json!({"filePath": stage.file("pixel.png")}));
            stage.script("Look.", json!([{"tools": [read]}, {"text": "A pixel."}])).await;
        }
        "retry_rate_limit" => {
            let error = json!({"status": 429, "times": 1, "headers": {"retry-after": "1"}});
            stage.script("Fail once.", json!([{"text": "Answer at last.", "error": error}])).await;
        }
        "retry_partial" => {
            let body =
                json!({"error": {"message": "Overloaded", "type": "server_error", "code": "server_error"}});
            let error = json!({"status": 200, "times": 1, "body": body});
            stage.script("Fail once.", json!([{"reasoning": "let me see", "text": "All of the answer.", "chunkMs": 20, "error": error}])).await;
        }
        "finish_unknown" => {
            stage.script("Break off.", json!([{"text": "Broken", "drop": true}, {"text": "Whole."}])).await;
        }
        "finish_length" => {
            stage.script("Talk.", json!([{"text": "Cut off here", "finish": "length"}])).await;
        }
        _ => return false,
    }
    true
}

/// Scenarios with subagents that run to their end. Returns false if `name` is none of them.
async fn subagents(name: &str, stage: &mut Stage) -> bool {
    match name {
        "subagent" => {
            let child =
                prompt("Look around.", json!([{"tools": [bash("echo child")]}, {"text": "Child is done."}]));
            let steps =
                json!([{"text": "I ask.", "tools": [task("look", &child)]}, {"text": "Parent is done."}]);
            stage.script("Ask a subagent.", steps).await;
        }
        "parallel_subagents" => {
            let child = |n: u32| {
                prompt(&format!("Child {n}."), json!([{"reasoning": "well", "text": format!("Answer {n}.")}]))
            };
            let tools = json!([task("first", &child(1)), task("second", &child(2))]);
            stage.script("Ask two.", json!([{"tools": tools}, {"text": "Both are done."}])).await;
        }
        "nested_subagents" => {
            let inner = prompt("Inner.", json!([{"text": "Inner is done."}]));
            let outer =
                prompt("Outer.", json!([{"tools": [task("inner", &inner)]}, {"text": "Outer is done."}]));
            let mut call = task("outer", &outer);
            call["args"]["subagent_type"] = json!("nester");
            stage.script("Go deep.", json!([{"tools": [call]}, {"text": "All is done."}])).await;
        }
        "child_error" => {
            let child = prompt("Fail.", json!([{"error": {"status": 400}}]));
            stage.script("Ask.", json!([{"tools": [task("fail", &child)]}, {"text": "It failed."}])).await;
        }
        "resumed_task" => {
            let first = prompt("Begin.", json!([{"text": "Begun."}]));
            stage.script("Ask.", json!([{"tools": [task("begin", &first)]}, {"text": "First done."}])).await;
            let part =
                stage.part(|part| part["tool"] == "task" && part["state"]["status"] == "completed").await;
            stage.settle().await;
            let mut call = task("go on", &prompt("Go on.", json!([{"text": "Went on."}])));
            call["args"]["task_id"] = part["state"]["metadata"]["sessionId"].clone();
            stage.script("Ask again.", json!([{"tools": [call]}, {"text": "Second done."}])).await;
        }
        "background_subagent" => {
            let child = prompt("Work.", json!([{"text": "Worked.", "gateBefore": "work"}]));
            let mut call = task("work", &child);
            call["args"]["background"] = json!(true);
            stage
                .script("Ask.", json!([{"tools": [call]}, {"text": "It works on."}, {"text": "It is done."}]))
                .await;
            stage.idle().await;
            stage.note("the gate of the child opens after the parent's first idle");
            stage.model.open_gate("work");
        }
        _ => return false,
    }
    true
}

/// Scenarios whose request is more, or other, than a text. Returns false if `name` is none of them.
async fn other_requests(name: &str, stage: &mut Stage) -> bool {
    match name {
        "subtask" => {
            let prompt = prompt("Look around.", json!([{"text": "Child is done."}]));
            let part =
                json!({"type": "subtask", "description": "look", "agent": "general", "prompt": prompt});
            stage.prompt_parts(json!([part])).await;
        }
        "shell" => {
            let body = json!({"agent": "build", "command": "echo hi", "model": {"providerID": "mock", "modelID": "m"}});
            stage.act("/session/{root}/shell", body).await;
        }
        "unknown_model" => {
            let model = json!({"providerID": "mock", "modelID": "none"});
            stage.prompt_body(json!({"model": model, "parts": [{"type": "text", "text": "Hello."}]})).await;
        }
        "attachments" => {
            let file = format!("file://{}", stage.server.project(0).join("notes.txt").display());
            let parts = json!([
                {"type": "text", "text": "Look at these."},
                {"type": "file", "mime": "text/plain", "filename": "notes.txt", "url": file},
                {"type": "file", "mime": "image/png", "filename": "pixel.png", "url": PIXEL},
            ]);
            stage.prompt_parts(parts).await;
        }
        _ => return false,
    }
    true
}

/// Scenarios in which the turn is aborted or fails. Returns false if `name` is none of them.
async fn aborts_and_errors(name: &str, stage: &mut Stage) -> bool {
    match name {
        "abort_text" => {
            stage
                .script("Talk.", json!([{"text": "one two three four five six", "gateMiddle": "never"}]))
                .await;
            stage.wait_for("message.part.delta", |properties| properties["delta"] == "two ").await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "abort_tool" => {
            stage
                .script("Wait.", json!([{"text": "Waiting.", "tools": [bash("echo begun; sleep 60")]}]))
                .await;
            stage.part(has_begun).await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "abort_subagent" => {
            let child = prompt("Wait.", json!([{"tools": [bash("echo begun; sleep 60")]}]));
            stage.script("Ask.", json!([{"tools": [task("wait", &child)]}])).await;
            stage.part(has_begun).await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "abort_retry" => {
            let error = json!({"status": 429, "headers": {"retry-after": "60"}});
            stage.script("Fail.", json!([{"error": error}])).await;
            stage.wait_for("session.status", |properties| properties["status"]["type"] == "retry").await;
            stage.act("/session/{root}/abort", json!({})).await;
        }
        "prompt_in_abort" => {
            stage.script("Wait.", json!([{"tools": [bash("echo begun; sleep 60")]}])).await;
            stage.part(has_begun).await;
            // The abort answers only when all is over, and the prompt must come before.
            let abort = stage.server.request(Method::POST, &format!("/session/{}/abort", stage.root));
            stage.note("POST /session/{root}/abort");
            let prompt = async {
                stage.idle().await;
                stage.script("Go on.", json!([{"text": "Going on."}])).await;
            };
            let (aborted, ()) = tokio::join!(abort.send(), prompt);
            drop(aborted);
        }
        "provider_error" => {
            stage.script("Fail.", json!([{"error": {"status": 400}}])).await;
            stage.idle().await;
        }
        "lost_prompt" => {
            stage.script("Fail.", json!([{"error": {"status": 400}}])).await;
            stage.wait_for("session.error", |_| true).await;
            stage.script("Lost.", json!([{"text": "Never said."}])).await;
            stage.idle().await;
        }
        _ => return false,
    }
    true
}

/// Scenarios in which the conversation is summarised. Returns false if `name` is none of them.
async fn compactions(name: &str, stage: &mut Stage) -> bool {
    match name {
        "compaction_answer" | "compaction_failed" => {
            if name == "compaction_failed" {
                stage.model.set_compaction(Step::error(400));
                stage.note("the model answers 400 to compaction");
            }
            let usage = json!({"prompt_tokens": 95000, "completion_tokens": 10, "total_tokens": 95010});
            stage.script("Fill it.", json!([{"text": "The answer.", "usage": usage}])).await;
        }
        "compaction_usage" => {
            let usage = json!({"prompt_tokens": 95000, "completion_tokens": 10, "total_tokens": 95010});
            let steps =
                json!([{"text": "A lot.", "tools": [bash("echo big")], "usage": usage}, {"text": "Done."}]);
            stage.script("Fill it.", steps).await;
        }
        "compaction_overflow" => {
            let body = json!({"error": {"message": "This model's maximum context length is 100000 tokens. However, your messages resulted in 120000 tokens.", "type": "invalid_request_error", "code": "context_length_exceeded"}});
            stage.prompt("Hello.").await;
            stage.settle().await;
            let error = json!({"status": 400, "times": 1, "body": body});
            stage.script("Too long.", json!([{"text": "Answer after all.", "error": error}])).await;
        }
        "compaction_manual" => {
            stage.prompt("Hello.").await;
            stage.settle().await;
            stage.act("/session/{root}/summarize", json!({"providerID": "mock", "modelID": "m"})).await;
            stage.quiet().await;
            stage.script("Go on.", json!([{"text": "Going on."}])).await;
        }
        _ => return false,
    }
    true
}

/// Scenarios in which a person is asked. Returns false if `name` is none of them.
async fn asks(name: &str, stage: &mut Stage) -> bool {
    match name {
        "permission_allowed" | "permission_rejected" | "permission_corrected" | "permission_child" => {
            let tools = json!([{"text": "May I?", "tools": [bash("touch asked")]}, {"text": "Done."}]);
            if name == "permission_child" {
                let child = prompt("Ask.", tools);
                stage.script("Ask.", json!([{"tools": [task("ask", &child)]}, {"text": "Done."}])).await;
            } else {
                stage.script("Ask.", tools).await;
            }
            let asked = stage.wait_for("permission.asked", |_| true).await;
            let reply = match name {
                "permission_rejected" => json!({"reply": "reject"}),
                "permission_corrected" => json!({"reply": "reject", "message": "do it without touch"}),
                _ => json!({"reply": "once"}),
            };
            stage
                .act(&format!("/permission/{}/reply", asked["id"].as_str().unwrap_or_default()), reply)
                .await;
        }
        "question_answered" | "question_rejected" => {
            let options =
                json!([{"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}]);
            let questions = json!([{"question": "Which colour?", "header": "Colour", "options": options}]);
            let steps =
                json!([{"tools": [tool("question", &json!({"questions": questions}))]}, {"text": "Done."}]);
            stage.script("Ask me.", steps).await;
            let asked = stage.wait_for("question.asked", |_| true).await;
            let id = asked["id"].as_str().unwrap_or_default();
            if name == "question_answered" {
                stage.act(&format!("/question/{id}/reply"), json!({"answers": [["red"]]})).await;
            } else {
                stage.act(&format!("/question/{id}/reject"), json!({})).await;
            }
        }
        _ => return false,
    }
    true
}

/// Scenarios of several prompts. Returns false if `name` is none of them.
async fn several_prompts(name: &str, stage: &mut Stage) -> bool {
    match name {
        "follow_up" => {
            stage
                .script(
                    "First.",
                    json!([{"text": "First answer.", "tools": [bash("echo 1")]}, {"text": "First done."}]),
                )
                .await;
            stage.settle().await;
            stage.script("Second.", json!([{"reasoning": "again", "text": "Second answer."}])).await;
        }
        "queued_prompt" => {
            stage.script("First.", json!([{"text": "First answer.", "gateMiddle": "go"}])).await;
            stage.model.wait_for_calls(2).await;
            stage.script("Second.", json!([{"text": "Second answer."}])).await;
            stage.part(|part| part["text"].as_str().is_some_and(|text| text.starts_with("Second."))).await;
            stage.model.open_gate("go");
        }
        "repeated_call_ids" => {
            let call = |command: &str| {
                let mut call = bash(command);
                call["id"] = json!("call_1");
                call
            };
            let steps =
                json!([{"tools": [call("echo one")]}, {"tools": [call("echo two")]}, {"text": "Done."}]);
            stage.script("Call twice.", steps).await;
            stage.settle().await;
            stage
                .script("And again.", json!([{"tools": [call("echo three")]}, {"text": "Done again."}]))
                .await;
        }
        "blank_text" => {
            let steps = json!([
                {"text": "a\nb\n\n  c"},
            ]);
            stage.script("Blanks.", steps).await;
            stage.settle().await;
            stage.script("More blanks.", json!([{"text": "\n", "tools": [bash("echo 1")]}, {}])).await;
        }
        "foreign_session" => {
            let root = stage.root.clone();
            let other = stage.session(json!({"title": "another"})).await;
            let parts = |words: &str, steps: Value| json!([{"type": "text", "text": prompt(words, steps)}]);
            let steps = json!([{"text": "Mine.", "tools": [bash("echo mine")]}, {"text": "Mine done.", "chunkMs": 30}]);
            stage.prompt_session(&root, parts("Mine.", steps)).await;
            let steps = json!([{"text": "Other.", "tools": [bash("echo other")]}, {"text": "Other done.", "chunkMs": 30}]);
            stage.prompt_session(&other, parts("Other.", steps)).await;
        }
        "revert" => {
            stage.script("First.", json!([{"text": "First answer."}])).await;
            stage.settle().await;
            stage
                .script(
                    "Second.",
                    json!([{"tools": [bash("echo changed > notes.txt")]}, {"text": "Second answer."}]),
                )
                .await;
            stage.settle().await;
            let messages = stage.server.get(&format!("/session/{}/message", stage.root)).await;
            let second = messages[2]["info"]["id"].clone();
            stage.act("/session/{root}/revert", json!({"messageID": second})).await;
            stage.quiet().await;
            stage.script("Third.", json!([{"text": "Third answer."}])).await;
        }
        _ => return false,
    }
    true
}

/// Scenarios that do not end with an idle session. Returns false if `name` is none of them.
async fn without_idle(name: &str, stage: &mut Stage) -> bool {
    match name {
        "unknown_agent" => {
            stage.prompt_body(json!({"agent": "none", "parts": [{"type": "text", "text": "Hello."}]})).await;
            stage.wait_for("session.error", |_| true).await;
        }
        "delete_part" => {
            stage.script("First.", json!([{"reasoning": "hm", "text": "First answer."}])).await;
            stage.settle().await;
            stage.script("Second.", json!([{"text": "Second answer."}])).await;
            stage.settle().await;
            let messages = stage.server.get(&format!("/session/{}/message", stage.root)).await;
            let path = |index: usize| {
                let id = messages[index]["info"]["id"].as_str().unwrap_or_default();
                format!("/session/{}/message/{id}", stage.root)
            };
            let parts = messages[1]["parts"].as_array().into_iter().flatten();
            let thinking =
                parts.clone().find(|part| part["type"] == "reasoning").map(|part| part["id"].clone());
            let thinking =
                format!("{}/part/{}", path(1), thinking.as_ref().and_then(Value::as_str).unwrap_or_default());
            let last = path(3);
            stage.delete(&thinking).await;
            stage.delete(&last).await;
        }
        "killed" => {
            let step = json!({"text": "Waiting.", "tools": [bash("echo begun; sleep 60")]});
            stage.script("Wait.", json!([step])).await;
            stage.part(has_begun).await;
            stage.crash_and_restart().await;
        }
        "killed_text" => {
            stage.script("Talk.", json!([{"text": "one two three four five", "gateMiddle": "never"}])).await;
            stage.wait_for("message.part.delta", |properties| properties["delta"] == "two ").await;
            stage.crash_and_restart().await;
        }
        _ => return false,
    }
    true
}

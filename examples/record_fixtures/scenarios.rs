//! What is recorded. A scenario is data for the stage and a few lines of play.

use serde_json::{Value, json};

use crate::stage::{Stage, prompt};

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Merged into `opencode.json`.
    pub(crate) config: fn() -> Value,
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Whether an unrecorded turn comes first.
    pub(crate) warm: bool,
    /// Whether `opencode export` is saved, too.
    pub(crate) export: bool,
    /// Whether old servers play it.
    pub(crate) basic: bool,
}

const PLAIN: Scenario = Scenario {
    name: "",
    about: "",
    config: || json!({}),
    env: &[],
    warm: true,
    export: false,
    basic: false,
};

const fn scenario(name: &'static str, about: &'static str) -> Scenario {
    Scenario { name, about, ..PLAIN }
}

const fn with_config(name: &'static str, about: &'static str, config: fn() -> Value) -> Scenario {
    Scenario {
        name,
        about,
        config,
        ..PLAIN
    }
}

/// In the order of `fixtures/README.md`.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        warm: false,
        export: true,
        basic: true,
        ..scenario(
            "plain",
            "Thinking and text; the first turn of a server, with a generated title.",
        )
    },
    Scenario {
        export: true,
        basic: true,
        ..scenario("tools", "bash, write, read and edit, a step each.")
    },
    scenario("parallel_tools", "Three tools in one step."),
    scenario(
        "tool_error",
        "A read that fails, a command that exits with 3, a tool that does not exist.",
    ),
    Scenario {
        export: true,
        basic: true,
        ..scenario("subagent", "One task; the child runs a tool.")
    },
    Scenario {
        export: true,
        ..scenario("parallel_subagents", "Two tasks in one step.")
    },
    with_config("nested_subagents", "A task inside a task.", nesting),
    scenario(
        "child_error",
        "The child's provider answers 400; the parent goes on.",
    ),
    scenario("abort_text", "Aborted in the middle of the text."),
    scenario("abort_tool", "Aborted while bash runs."),
    scenario(
        "abort_subagent",
        "The parent is aborted while its child runs a tool.",
    ),
    scenario("provider_error", "The provider answers 400."),
    scenario("retry_rate_limit", "The provider answers 429 once."),
    scenario(
        "retry_partial",
        "The provider fails with an error chunk after some text, then answers.",
    ),
    with_config(
        "compaction_usage",
        "The usage of a tool step fills the context: compaction, then on.",
        || json!({}),
    ),
    with_config(
        "compaction_overflow",
        "The provider says the context is too long: compaction, then a replay.",
        || json!({}),
    ),
    scenario(
        "compaction_manual",
        "POST /session/{id}/summarize between two turns.",
    ),
    with_config("permission_allowed", "bash asks, the answer is once.", asking),
    with_config(
        "permission_rejected",
        "bash asks, the answer is reject: the turn is over.",
        asking,
    ),
    with_config(
        "permission_corrected",
        "bash asks, the answer is reject with a message: the turn goes on.",
        asking,
    ),
    with_config(
        "permission_child",
        "A subagent's bash asks, the answer is once.",
        asking,
    ),
    scenario("question_answered", "The question tool, answered."),
    scenario(
        "question_rejected",
        "The question tool, dismissed: the turn is over.",
    ),
    Scenario {
        export: true,
        ..scenario(
            "attachments",
            "A text file of the project and an image as data URL.",
        )
    },
    Scenario {
        export: true,
        ..scenario("follow_up", "Two turns in one session.")
    },
    scenario(
        "queued_prompt",
        "A second prompt while the first turn streams: one run answers both.",
    ),
    scenario(
        "resumed_task",
        "A second task call goes on in the first one's child session.",
    ),
    scenario(
        "repeated_call_ids",
        "The provider uses one call id for every call of the session.",
    ),
    scenario(
        "revert",
        "The second turn is reverted; the next prompt removes its messages.",
    ),
    scenario("delete_part", "A part, then a message is deleted by its route."),
    scenario(
        "killed",
        "The server is killed in a tool and started again: messages stay unfinished.",
    ),
    scenario(
        "finish_unknown",
        "The provider's stream ends without a finish reason: the server asks again.",
    ),
    scenario("finish_length", "The provider stops for length."),
    scenario(
        "blank_text",
        "Blank deltas inside a text, a blank text beside a tool, an empty last answer.",
    ),
    scenario(
        "foreign_session",
        "Another session of the directory streams at the same time.",
    ),
    Scenario {
        env: &[("OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS", "true")],
        ..scenario(
            "background_subagent",
            "The task goes on in the background; its result starts a run by itself.",
        )
    },
];

fn nesting() -> Value {
    json!({
        "subagent_depth": 3,
        "agent": {"nester": {
            "mode": "subagent", "description": "may start tasks", "permission": {"task": "allow"},
        }},
    })
}

fn asking() -> Value {
    json!({"permission": {"bash": {"*": "allow", "touch *": "ask"}}})
}

/// A one-pixel image.
const PIXEL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

fn tool(name: &str, args: &Value) -> Value {
    json!({"name": name, "args": args})
}

fn bash(command: &str) -> Value {
    tool("bash", &json!({"command": command, "description": "a command"}))
}

fn task(description: &str, prompt: &str) -> Value {
    tool(
        "task",
        &json!({"description": description, "prompt": prompt, "subagent_type": "general"}),
    )
}

fn is_running(part: &Value, tool: &str) -> bool {
    part["tool"] == tool && part["state"]["status"] == "running"
}

#[expect(clippy::too_many_lines, reason = "one arm for each scenario reads best")]
pub(crate) async fn play(name: &str, stage: &mut Stage) {
    // Without a title the server asks the model for one, which only one scenario wants.
    stage
        .session(if name == "plain" {
            json!({})
        } else {
            json!({"title": name})
        })
        .await;
    match name {
        "plain" => stage.prompt("Say hello.").await,
        "tools" => {
            let file = stage.server.project(0).join("hello.txt").display().to_string();
            let steps = json!([
                {"text": "First a command.", "tools": [bash("echo hi")]},
                {"reasoning": "a file next", "tools": [tool("write", &json!({"filePath": file, "content": "hello\n"}))]},
                {"tools": [tool("read", &json!({"filePath": file}))]},
                {"tools": [tool("edit", &json!({"filePath": file, "oldString": "hello", "newString": "goodbye"}))]},
                {"text": "All done."},
            ]);
            stage.script("Use some tools.", steps).await;
        }
        "parallel_tools" => {
            let file = stage.server.project(0).join("notes.txt").display().to_string();
            let tools = json!([
                bash("echo one"),
                tool("read", &json!({"filePath": file})),
                bash("echo two")
            ]);
            stage
                .script("Three at once.", json!([{"tools": tools}, {"text": "Done."}]))
                .await;
        }
        "tool_error" => {
            let file = stage.server.project(0).join("missing.txt").display().to_string();
            let steps = json!([
                {"tools": [tool("read", &json!({"filePath": file}))]},
                {"tools": [bash("echo oh; exit 3")]},
                {"tools": [tool("nonsense", &json!({"a": 1}))]},
                {"text": "That failed."},
            ]);
            stage.script("Fail a little.", steps).await;
        }
        "subagent" => {
            let child = prompt(
                "Look around.",
                json!([{"tools": [bash("echo child")]}, {"text": "Child is done."}]),
            );
            let steps =
                json!([{"text": "I ask.", "tools": [task("look", &child)]}, {"text": "Parent is done."}]);
            stage.script("Ask a subagent.", steps).await;
        }
        "parallel_subagents" => {
            let child = |n: u32| {
                prompt(
                    &format!("Child {n}."),
                    json!([{"reasoning": "well", "text": format!("Answer {n}.")}]),
                )
            };
            let tools = json!([task("first", &child(1)), task("second", &child(2))]);
            stage
                .script("Ask two.", json!([{"tools": tools}, {"text": "Both are done."}]))
                .await;
        }
        "nested_subagents" => {
            let inner = prompt("Inner.", json!([{"text": "Inner is done."}]));
            let outer = prompt(
                "Outer.",
                json!([{"tools": [task("inner", &inner)]}, {"text": "Outer is done."}]),
            );
            let mut call = task("outer", &outer);
            call["args"]["subagent_type"] = json!("nester");
            stage
                .script("Go deep.", json!([{"tools": [call]}, {"text": "All is done."}]))
                .await;
        }
        "child_error" => {
            let child = prompt("Fail.", json!([{"error": {"status": 400}}]));
            stage
                .script(
                    "Ask.",
                    json!([{"tools": [task("fail", &child)]}, {"text": "It failed."}]),
                )
                .await;
        }
        "abort_text" => {
            stage
                .script(
                    "Talk.",
                    json!([{"text": "one two three four five six", "gateMiddle": "never"}]),
                )
                .await;
            stage
                .wait_for("message.part.delta", |properties| properties["delta"] == "two ")
                .await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "abort_tool" => {
            stage
                .script(
                    "Wait.",
                    json!([{"text": "Waiting.", "tools": [bash("echo begun; sleep 60")]}]),
                )
                .await;
            stage
                .part(|part| is_running(part, "bash") && part["state"]["metadata"]["output"] == "begun\n")
                .await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "abort_subagent" => {
            let child = prompt("Wait.", json!([{"tools": [bash("echo begun; sleep 60")]}]));
            stage
                .script("Ask.", json!([{"tools": [task("wait", &child)]}]))
                .await;
            stage
                .part(|part| is_running(part, "bash") && part["state"]["metadata"]["output"] == "begun\n")
                .await;
            stage.act("/session/{root}/abort", json!({})).await;
            stage.idle().await;
        }
        "provider_error" => {
            stage.script("Fail.", json!([{"error": {"status": 400}}])).await;
            stage.idle().await;
        }
        "retry_rate_limit" => {
            let error = json!({"status": 429, "times": 1, "headers": {"retry-after": "1"}});
            stage
                .script("Fail once.", json!([{"text": "Answer at last.", "error": error}]))
                .await;
        }
        "retry_partial" => {
            let body =
                json!({"error": {"message": "Overloaded", "type": "server_error", "code": "server_error"}});
            let error = json!({"status": 200, "times": 1, "body": body});
            stage.script("Fail once.", json!([{"reasoning": "let me see", "text": "All of the answer.", "chunkMs": 20, "error": error}])).await;
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
            stage.idle().await;
            stage.quiet().await;
            let error = json!({"status": 400, "times": 1, "body": body});
            stage
                .script(
                    "Too long.",
                    json!([{"text": "Answer after all.", "error": error}]),
                )
                .await;
        }
        "compaction_manual" => {
            stage.prompt("Hello.").await;
            stage.idle().await;
            stage.quiet().await;
            stage
                .act(
                    "/session/{root}/summarize",
                    json!({"providerID": "mock", "modelID": "m"}),
                )
                .await;
            stage.quiet().await;
            stage.script("Go on.", json!([{"text": "Going on."}])).await;
        }
        "permission_allowed" | "permission_rejected" | "permission_corrected" | "permission_child" => {
            let tools = json!([{"text": "May I?", "tools": [bash("touch asked")]}, {"text": "Done."}]);
            if name == "permission_child" {
                let child = prompt("Ask.", tools);
                stage
                    .script(
                        "Ask.",
                        json!([{"tools": [task("ask", &child)]}, {"text": "Done."}]),
                    )
                    .await;
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
                .act(
                    &format!("/permission/{}/reply", asked["id"].as_str().unwrap_or_default()),
                    reply,
                )
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
                stage
                    .act(&format!("/question/{id}/reply"), json!({"answers": [["red"]]}))
                    .await;
            } else {
                stage.act(&format!("/question/{id}/reject"), json!({})).await;
            }
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
        "follow_up" => {
            stage
                .script(
                    "First.",
                    json!([{"text": "First answer.", "tools": [bash("echo 1")]}, {"text": "First done."}]),
                )
                .await;
            stage.idle().await;
            stage.quiet().await;
            stage
                .script(
                    "Second.",
                    json!([{"reasoning": "again", "text": "Second answer."}]),
                )
                .await;
        }
        "queued_prompt" => {
            stage
                .script("First.", json!([{"text": "First answer.", "gateMiddle": "go"}]))
                .await;
            stage.model.wait_for_calls(2).await;
            stage.script("Second.", json!([{"text": "Second answer."}])).await;
            stage
                .part(|part| {
                    part["text"]
                        .as_str()
                        .is_some_and(|text| text.starts_with("Second."))
                })
                .await;
            stage.model.open_gate("go");
        }
        "resumed_task" => {
            let first = prompt("Begin.", json!([{"text": "Begun."}]));
            stage
                .script(
                    "Ask.",
                    json!([{"tools": [task("begin", &first)]}, {"text": "First done."}]),
                )
                .await;
            let part = stage
                .part(|part| part["tool"] == "task" && part["state"]["status"] == "completed")
                .await;
            stage.idle().await;
            stage.quiet().await;
            let mut call = task("go on", &prompt("Go on.", json!([{"text": "Went on."}])));
            call["args"]["task_id"] = part["state"]["metadata"]["sessionId"].clone();
            stage
                .script("Ask again.", json!([{"tools": [call]}, {"text": "Second done."}]))
                .await;
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
            stage.idle().await;
            stage.quiet().await;
            stage
                .script(
                    "And again.",
                    json!([{"tools": [call("echo three")]}, {"text": "Done again."}]),
                )
                .await;
        }
        "revert" => {
            stage.script("First.", json!([{"text": "First answer."}])).await;
            stage.idle().await;
            stage.quiet().await;
            stage
                .script(
                    "Second.",
                    json!([{"tools": [bash("echo changed > notes.txt")]}, {"text": "Second answer."}]),
                )
                .await;
            stage.idle().await;
            stage.quiet().await;
            let messages = stage
                .server
                .get(&format!("/session/{}/message", stage.root))
                .await;
            let second = messages[2]["info"]["id"].clone();
            stage
                .act("/session/{root}/revert", json!({"messageID": second}))
                .await;
            stage.quiet().await;
            stage.script("Third.", json!([{"text": "Third answer."}])).await;
        }
        "delete_part" => {
            stage
                .script("First.", json!([{"reasoning": "hm", "text": "First answer."}]))
                .await;
            stage.idle().await;
            stage.quiet().await;
            stage.script("Second.", json!([{"text": "Second answer."}])).await;
            stage.idle().await;
            stage.quiet().await;
            let messages = stage
                .server
                .get(&format!("/session/{}/message", stage.root))
                .await;
            let path = |index: usize| {
                let id = messages[index]["info"]["id"].as_str().unwrap_or_default();
                format!("/session/{}/message/{id}", stage.root)
            };
            let parts = messages[1]["parts"].as_array().into_iter().flatten();
            let thinking = parts
                .clone()
                .find(|part| part["type"] == "reasoning")
                .map(|part| part["id"].clone());
            let thinking = format!(
                "{}/part/{}",
                path(1),
                thinking.as_ref().and_then(Value::as_str).unwrap_or_default()
            );
            let last = path(3);
            stage.delete(&thinking).await;
            stage.delete(&last).await;
        }
        "killed" => {
            stage
                .script(
                    "Wait.",
                    json!([{"text": "Waiting.", "tools": [bash("echo begun; sleep 60")]}]),
                )
                .await;
            stage
                .part(|part| is_running(part, "bash") && part["state"]["metadata"]["output"] == "begun\n")
                .await;
            stage.crash_and_restart().await;
        }
        "finish_unknown" => {
            stage
                .script(
                    "Break off.",
                    json!([{"text": "Broken", "drop": true}, {"text": "Whole."}]),
                )
                .await;
        }
        "finish_length" => {
            stage
                .script("Talk.", json!([{"text": "Cut off here", "finish": "length"}]))
                .await;
        }
        "blank_text" => {
            let steps = json!([
                {"text": "a\nb\n\n  c"},
            ]);
            stage.script("Blanks.", steps).await;
            stage.idle().await;
            stage.quiet().await;
            stage
                .script(
                    "More blanks.",
                    json!([{"text": "\n", "tools": [bash("echo 1")]}, {}]),
                )
                .await;
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
        "background_subagent" => {
            let child = prompt("Work.", json!([{"text": "Worked.", "gateBefore": "work"}]));
            let mut call = task("work", &child);
            call["args"]["background"] = json!(true);
            stage
                .script(
                    "Ask.",
                    json!([{"tools": [call]}, {"text": "It works on."}, {"text": "It is done."}]),
                )
                .await;
            stage.idle().await;
            stage.note("the gate of the child opens after the parent's first idle");
            stage.model.open_gate("work");
        }
        _ => unreachable!("every scenario has its play"),
    }
    stage.idle().await;
}

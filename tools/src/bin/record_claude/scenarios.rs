//! What happens in each recording.

use std::time::Duration;

use opencode_conductor::test_util::{ProviderError, Script, ScriptedTool, Step};
use serde_json::{Value, json};

use crate::{
    host::Answer,
    stage::{PIXEL, Stage},
};

/// All scenarios.
pub(crate) const ALL: &[&str] = &[
    "plain",
    "thinking",
    "tools",
    "parallel_tools",
    "tool_error",
    "image_result",
    "prompt_image",
    "follow_up",
    "max_tokens",
    "refusal",
    "provider_error",
    "retried",
    "retried_in_vain",
    "cut_connection",
    "subagent",
    "subagent_background",
    "subagents_parallel",
    "subagent_nested",
    "subagent_error",
    "subagent_background_error",
    "subagent_unknown",
    "background_command",
    "permission_allowed",
    "permission_denied",
    "permission_child",
    "permission_interrupt",
    "question",
    "compaction",
    "absorbed_prompt",
    "queued_prompt",
    "interrupt_text",
    "interrupt_tool",
    "interrupt_subagent",
    "resumed",
    "forked",
    "sent_again_answered",
    "killed_text",
    "killed_tool",
    "sent_again_unanswered",
];

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "follow_up" | "compaction" | "absorbed_prompt" | "queued_prompt" => several(name, stage).await,
        "permission_allowed"
        | "permission_denied"
        | "permission_child"
        | "permission_interrupt"
        | "question" => {
            asked(name, stage).await;
        }
        "interrupt_text" | "interrupt_tool" | "interrupt_subagent" => interrupted(name, stage).await,
        "resumed"
        | "forked"
        | "sent_again_answered"
        | "killed_text"
        | "killed_tool"
        | "sent_again_unanswered" => {
            two_processes(name, stage).await;
        }
        "prompt_image" => {
            let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}});
            let text = Script::new([Step::text("A picture.")]).prompt("Look");
            stage.say(json!([{"type": "text", "text": text}, image])).await;
            stage.host.idle().await;
        }
        _ => {
            let script = one_turn(name, stage);
            stage.script("Please", &script).await;
            stage.host.idle().await;
        }
    }
}

/// What the model does in scenarios of one prompt.
fn one_turn(name: &str, stage: &Stage) -> Script {
    let read = |file: &str| tool("Read", json!({"file_path": stage.path(file)}));
    let done = || Step::text("Done.");
    Script::new(match name {
        "plain" => vec![Step::text("Hello from the model, in a few words.")],
        "thinking" => vec![thinking("Two and two.", Step::text("It is 4.\n\nReally."))],
        "tools" => {
            vec![
                thinking("First look.", with_text("Reading.", Step::tool(read("hello.txt")))),
                calls([bash("echo one")]),
                done(),
            ]
        }
        "parallel_tools" => vec![calls([bash("echo a"), read("hello.txt"), bash("echo b")]), done()],
        "tool_error" => {
            vec![
                calls([read("missing.txt")]),
                calls([bash("false")]),
                calls([tool("NoSuchTool", json!({"x": 1}))]),
                done(),
            ]
        }
        "image_result" => {
            write_pixel(stage);
            vec![calls([read("pixel.png")]), done()]
        }
        "max_tokens" => vec![finish("max_tokens", "This is cut"), Step::text("and goes on.")],
        "refusal" => vec![finish("refusal", "I cannot")],
        "provider_error" => vec![Step::error(400)],
        "retried" => vec![failing(529, 2, Step::text("In the end."))],
        "retried_in_vain" => vec![failing(529, 0, Step::text("Never."))],
        "cut_connection" => vec![cut("Cut in the mid")],
        "subagent" => {
            let inner = Script::new([
                thinking("Sub.", with_text("Looking.", Step::tool(read("hello.txt")))),
                Step::text("It says hello."),
            ]);
            vec![with_text("Asking.", calls([agent(&inner, "Look", false)])), done()]
        }
        "subagent_background" => {
            vec![calls([agent(&worker(), "Work", true)]), Step::text("Launched."), Step::text("It worked.")]
        }
        "subagents_parallel" => {
            vec![calls([agent(&worker(), "One", false), agent(&worker(), "Two", false)]), done()]
        }
        "subagent_nested" => {
            let middle =
                Script::new([calls([agent(&worker(), "Inner", false)]), Step::text("The inner one worked.")]);
            vec![calls([agent(&middle, "Outer", false)]), done()]
        }
        "subagent_error" => vec![calls([agent(&Script::new([Step::error(400)]), "Fail", false)]), done()],
        "subagent_background_error" => {
            vec![
                calls([agent(&Script::new([Step::error(400)]), "Fail", true)]),
                Step::text("Launched."),
                Step::text("It failed."),
            ]
        }
        "subagent_unknown" => {
            let input = json!({"prompt": "x", "description": "x", "subagent_type": "no-such-agent"});
            vec![calls([tool("Agent", input)]), done()]
        }
        "background_command" => {
            let input =
                json!({"command": "sleep 0.3; echo late", "description": "Late", "run_in_background": true});
            vec![calls([tool("Bash", input)]), Step::text("Started."), Step::text("It ended.")]
        }
        _ => panic!("there is no scenario {name}"),
    })
}

async fn several(name: &str, stage: &mut Stage) {
    let answer = |text: &str| Script::new([Step::text(text)]);
    match name {
        "follow_up" => {
            for text in ["First.", "Second.", "Third."] {
                stage.script("Please", &answer(text)).await;
                stage.host.result().await;
            }
        }
        "compaction" => {
            stage.script("Please", &Script::new([calls([bash("echo one")]), Step::text("Done.")])).await;
            stage.host.result().await;
            stage.say(json!([{"type": "text", "text": "/compact"}])).await;
            stage.host.result().await;
            stage.script("After it", &answer("As before.")).await;
            stage.host.result().await;
        }
        "absorbed_prompt" => {
            stage.script("Please", &Script::new([calls([bash("sleep 2")]), Step::text("Slept.")])).await;
            stage.host.tool().await;
            stage.say(json!([{"type": "text", "text": "A word in between."}])).await;
            stage.host.result().await;
        }
        _ => {
            stage.script("Please", &Script::new([slowly("Counting.")])).await;
            stage.host.delta("w3 ").await;
            stage.script("Then", &answer("Then this.")).await;
            stage.host.result().await;
            stage.host.result().await;
        }
    }
    stage.host.idle().await;
}

async fn asked(name: &str, stage: &mut Stage) {
    stage.host.answer = match name {
        "permission_denied" => Answer::Deny,
        "permission_interrupt" => Answer::DenyAndInterrupt,
        "question" => Answer::Choose("Blue"),
        _ => Answer::Allow,
    };
    let touch = Script::new([calls([bash("touch made.txt")]), Step::text("Tried.")]);
    let script = match name {
        "permission_child" => Script::new([calls([agent(&touch, "Touch", false)]), Step::text("Done.")]),
        "question" => {
            let options =
                json!([{"label": "Blue", "description": "b"}, {"label": "Red", "description": "r"}]);
            let question =
                json!({"question": "Which?", "header": "Colour", "multiSelect": false, "options": options});
            Script::new([
                calls([tool("AskUserQuestion", json!({"questions": [question]}))]),
                Step::text("Blue it is."),
            ])
        }
        _ => touch,
    };
    stage.script("Please", &script).await;
    stage.host.idle().await;
}

async fn interrupted(name: &str, stage: &mut Stage) {
    let slow = Script::new([slowly("Counting.")]);
    let script = match name {
        "interrupt_text" => slow,
        "interrupt_tool" => Script::new([calls([bash("sleep 20")]), Step::text("Slept.")]),
        _ => Script::new([calls([agent(&slow, "Slow", false)]), Step::text("Done.")]),
    };
    stage.script("Please", &script).await;
    match name {
        "interrupt_text" => stage.host.delta("w9 ").await,
        "interrupt_tool" => stage.host.tool().await,
        _ => stage.host.wait(|line| line["agent_id"].is_string()).await,
    }
    // So that what runs has begun.
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.host.interrupt().await;
    stage.host.result().await;
    stage.script("Go on", &Script::new([Step::text("Going on.")])).await;
    stage.host.result().await;
    stage.host.idle().await;
}

async fn two_processes(name: &str, stage: &mut Stage) {
    let is_killed = name.starts_with("killed") || name == "sent_again_unanswered";
    let script = match name {
        "killed_tool" => Script::new([calls([bash("sleep 20")]), Step::text("Slept.")]),
        _ if is_killed => Script::new([slowly("Counting.")]),
        _ => Script::new([calls([bash("echo one")]), Step::text("Done.")]),
    };
    stage.script("Please", &script).await;
    if is_killed {
        match name {
            "killed_tool" => stage.host.tool().await,
            _ => stage.host.delta("w9 ").await,
        }
        // What was said before this is on disk by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.host.kill().await;
    } else {
        stage.host.idle().await;
        stage.host.end().await;
    }
    if name == "forked" {
        stage.fork();
    } else {
        stage.resume(&[]);
    }
    if name.starts_with("sent_again") {
        stage.again("Please", &script).await;
        stage.host.wait(|line| line["type"] == "result" || line["state"] == "completed").await;
    }
    stage.script("Go on", &Script::new([Step::text("Going on.")])).await;
    stage.host.result().await;
    stage.host.idle().await;
}

fn write_pixel(stage: &Stage) {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(PIXEL).unwrap_or_default();
    if let Err(error) = std::fs::write(stage.path("pixel.png"), bytes) {
        panic!("write a picture: {error}");
    }
}

fn tool(name: &str, args: Value) -> ScriptedTool {
    ScriptedTool::new(name, args)
}

fn bash(command: &str) -> ScriptedTool {
    tool("Bash", json!({"command": command, "description": "Run it"}))
}

fn agent(script: &Script, description: &str, in_background: bool) -> ScriptedTool {
    tool(
        "Agent",
        json!({
            "prompt": script.prompt(description), "description": description, "subagent_type": "general-purpose",
            "run_in_background": in_background,
        }),
    )
}

fn worker() -> Script {
    Script::new([calls([bash("echo work")]), Step::text("It is done.")])
}

fn calls<const N: usize>(tools: [ScriptedTool; N]) -> Step {
    let mut step = Step::default();
    step.tools = tools.into();
    step
}

fn with_text(text: &str, mut step: Step) -> Step {
    text.clone_into(&mut step.text);
    step
}

fn thinking(thought: &str, mut step: Step) -> Step {
    thought.clone_into(&mut step.reasoning);
    step
}

fn finish(reason: &str, text: &str) -> Step {
    let mut step = Step::text(text);
    step.finish = Some(reason.to_owned());
    step
}

fn failing(status: u16, times: u32, mut step: Step) -> Step {
    let mut error = ProviderError::default();
    error.status = status;
    error.times = times;
    step.error = Some(error);
    step
}

fn cut(text: &str) -> Step {
    // With status 200 the text comes first; the second time all of it.
    failing(200, 1, Step::text(text))
}

fn slowly(text: &str) -> Step {
    let mut step = Step::text(text);
    step.words = 60;
    step.chunk_ms = 60;
    step
}

//! What the tasks are about: random turns whose ends are known beforehand.

use fastrand::Rng;
use opencode_conductor::test_util::{ProviderError, Script, ScriptedTool, Step};
use serde_json::json;

/// A turn, and what it must come to.
pub(crate) struct Plan {
    pub(crate) script: Script,
    /// The answer; nothing if the model fails.
    pub(crate) answer: Option<String>,
}

impl Plan {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut steps: Vec<Step> = (0..rng.usize(..3)).map(|_| step(rng)).collect();
        if rng.u8(..20) == 0 {
            steps.push(Step::error(400));
            return Self { script: Script::new(steps), answer: None };
        }
        let answer = format!("answer {} of many words", rng.u32(..));
        steps.push(spoken(rng, Step::text(answer.clone())));
        Self { script: Script::new(steps), answer: Some(answer) }
    }
}

/// A step that more steps follow.
fn step(rng: &mut Rng) -> Step {
    let mut step = Step::default();
    step.tools = match rng.u8(..5) {
        0 => vec![subagent(rng)],
        1 => vec![asking(rng)],
        2 => vec![bash(rng), bash(rng)],
        _ => vec![bash(rng)],
    };
    spoken(rng, step)
}

/// With thinking, pauses and trouble at the provider.
fn spoken(rng: &mut Rng, mut step: Step) -> Step {
    step.chunk_ms = rng.u64(..5);
    step.before_ms = rng.u64(..30);
    if rng.bool() {
        "let me think about this".clone_into(&mut step.reasoning);
    }
    if rng.u8(..10) == 0 {
        let mut error = ProviderError::default();
        error.status = 429;
        error.times = 1;
        error.headers = [("retry-after-ms".to_owned(), "10".to_owned())].into();
        step.error = Some(error);
    }
    step
}

fn bash(rng: &mut Rng) -> ScriptedTool {
    let command = format!("echo {}", rng.u16(..));
    ScriptedTool::new("bash", json!({"command": command, "description": "say it"})).output("said\n")
}

fn asking(rng: &mut Rng) -> ScriptedTool {
    let mut tool = bash(rng);
    tool.result.ask = Some(("bash".to_owned(), "echo *".to_owned()));
    tool
}

fn subagent(rng: &mut Rng) -> ScriptedTool {
    let script = Script::new([Step::tool(bash(rng)), spoken(rng, Step::text("a part is done"))]);
    let args =
        json!({"description": "a part", "prompt": script.prompt("do a part"), "subagent_type": "general"});
    ScriptedTool::new("task", args)
}

//! What is recorded: the list. How each one goes is in `play.rs`.

use serde_json::{Value, json};

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

/// In the order of `fixtures/README.md`.
pub(crate) const ALL: &[Scenario] = &[
    scenario("plain", "Thinking and text; the first turn of a server, with a generated title.")
        .basic()
        .cold(),
    scenario("tools", "bash, write, read and edit, a step each.").basic(),
    scenario("parallel_tools", "Three tools in one step."),
    scenario("tool_error", "A read that fails, a command that exits with 3, a tool that does not exist."),
    scenario("tool_attachment", "An image is read; the result carries it as an attachment."),
    scenario("subagent", "One task; the child runs a tool.").basic(),
    scenario("parallel_subagents", "Two tasks in one step.").exported(),
    scenario("nested_subagents", "A task inside a task.").configured(nesting),
    scenario("resumed_task", "A second task call goes on in the first one's child session."),
    scenario("subtask", "A prompt whose only part is a subtask."),
    scenario("background_subagent", "The task goes on in the background; its result starts a run by itself.")
        .with_env(&[("OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS", "true")]),
    scenario("child_error", "The child's provider answers 400; the parent goes on."),
    scenario("abort_text", "Aborted in the middle of the text."),
    scenario("abort_tool", "Aborted while bash runs."),
    scenario("abort_subagent", "The parent is aborted while its child runs a tool."),
    scenario("abort_retry", "Aborted while the server waits to try the provider again."),
    scenario(
        "prompt_in_abort",
        "A prompt sent at an abort's first idle runs before the old turn is completed.",
    ),
    scenario("lost_prompt", "A prompt sent at a provider error's session.error: stored, never answered."),
    scenario("provider_error", "The provider answers 400."),
    scenario("retry_rate_limit", "The provider answers 429 once."),
    scenario("retry_partial", "The provider fails with an error chunk after some text, then answers."),
    scenario("finish_unknown", "The provider's stream ends without a finish reason: the server asks again."),
    scenario("finish_length", "The provider stops for length."),
    scenario("blank_text", "Blank deltas inside a text, a blank text beside a tool, an empty last answer."),
    scenario("unknown_model", "The prompt names an unknown model: an error, no answer."),
    scenario("unknown_agent", "The prompt names an unknown agent: an error, no idle, no message."),
    scenario("compaction_usage", "The usage of a tool step fills the context: compaction, then on."),
    scenario(
        "compaction_answer",
        "The usage of the final answer fills the context: a second answer follows.",
    ),
    scenario(
        "compaction_failed",
        "As before, but the provider refuses to compact: an error after the answer.",
    ),
    scenario("compaction_overflow", "The provider says the context is too long: compaction, then a replay."),
    scenario("compaction_manual", "POST /session/{id}/summarize between two turns."),
    scenario("permission_allowed", "bash asks, the answer is once.").configured(asking),
    scenario("permission_rejected", "bash asks, the answer is reject: the turn is over.").configured(asking),
    scenario("permission_corrected", "bash asks, the answer is reject with a message: the turn goes on.")
        .configured(asking),
    scenario("permission_child", "A subagent's bash asks, the answer is once.").configured(asking),
    scenario("question_answered", "The question tool, answered."),
    scenario("question_rejected", "The question tool, dismissed: the turn is over."),
    scenario("attachments", "A text file of the project and an image as data URL.").exported(),
    scenario("follow_up", "Two turns in one session.").exported(),
    scenario("queued_prompt", "A second prompt while the first turn streams: one run answers both."),
    scenario("repeated_call_ids", "The provider uses one call id for every call of the session."),
    scenario("shell", "A command of the user's own, through POST /session/{id}/shell."),
    scenario("revert", "The second turn is reverted; the next prompt removes its messages."),
    scenario("delete_part", "A part, then a message is deleted by its route."),
    scenario("killed", "The server is killed in a tool and started again: messages stay unfinished."),
    scenario("killed_text", "The server is killed in a text and started again: the text is lost."),
    scenario("foreign_session", "Another session of the directory streams at the same time."),
];

const fn scenario(name: &'static str, about: &'static str) -> Scenario {
    Scenario { name, about, config: || json!({}), env: &[], warm: true, export: false, basic: false }
}

impl Scenario {
    const fn basic(mut self) -> Self {
        self.basic = true;
        self.exported()
    }

    const fn exported(mut self) -> Self {
        self.export = true;
        self
    }

    const fn cold(mut self) -> Self {
        self.warm = false;
        self
    }

    const fn configured(mut self, config: fn() -> Value) -> Self {
        self.config = config;
        self
    }

    const fn with_env(mut self, env: &'static [(&'static str, &'static str)]) -> Self {
        self.env = env;
        self
    }
}

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

//! Tool calls: they run beside the model's stream, ask humans, start subagents, and leave their state in a part.

use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Shared, options::Flavour, permissions::Refusal, subagent::TASK_CANCELLED};
use crate::test_util::{ScriptedTool, ToolOutcome};

/// The tools every session has.
const TOOLS: [&str; 12] = [
    "bash",
    "edit",
    "glob",
    "grep",
    "invalid",
    "question",
    "read",
    "skill",
    "task",
    "todowrite",
    "webfetch",
    "write",
];

/// One call of a tool.
pub(super) struct ToolCall {
    pub(super) shared: Arc<Shared>,
    pub(super) session: String,
    /// The assistant message that made the call.
    pub(super) message: Value,
    part: Value,
    pub(super) tool: ScriptedTool,
    pub(super) abort: CancellationToken,
}

/// A call as its turn sees it.
pub(super) struct RunningTool {
    message: String,
    part: String,
    abort: CancellationToken,
    end: Option<oneshot::Receiver<ToolEnd>>,
    was_refused: bool,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolEnd {
    Settled,
    /// A human said no, which ends the turn.
    Refused,
    /// The turn was aborted; the part is left to the cleaning up.
    Interrupted,
}

/// What a tool brings back.
pub(super) struct ToolResult {
    pub(super) title: String,
    pub(super) output: String,
    pub(super) metadata: Value,
}

impl RunningTool {
    pub(super) async fn join(&mut self) {
        if let Some(end) = &mut self.end {
            // A sender that is gone belonged to a killed server.
            self.was_refused = matches!(end.await, Ok(ToolEnd::Refused));
            self.end = None;
        }
    }

    pub(super) fn was_refused(&self) -> bool {
        self.was_refused
    }

    pub(super) fn abort(&self) {
        self.abort.cancel();
    }

    /// Marks a call that did not come to an end.
    pub(super) fn mark_interrupted(self, shared: &Shared) {
        let mut world = shared.world();
        let now = world.clock.now_ms();
        let Some(mut part) = world.part(&self.message, &self.part).cloned() else {
            return;
        };
        let state = &mut part["state"];
        if state["status"] != "running" && state["status"] != "pending" {
            return;
        }
        state["status"] = "error".into();
        state["error"] = "Tool execution aborted".into();
        state["metadata"]["interrupted"] = true.into();
        let start = state["time"]["start"].as_u64().unwrap_or(now);
        state["time"] = json!({"start": start, "end": now});
        world.put_part(&part);
    }
}

impl ToolCall {
    /// `part` is the pending part of the call.
    pub(super) fn new(
        shared: &Arc<Shared>,
        session: &str,
        message: &Value,
        part: Value,
        tool: ScriptedTool,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            session: session.to_owned(),
            message: message.clone(),
            part,
            tool,
            abort: CancellationToken::new(),
        }
    }

    pub(super) fn start(mut self) -> RunningTool {
        let (ended, end) = oneshot::channel();
        let running = RunningTool {
            message: self.part["messageID"].as_str().unwrap_or_default().to_owned(),
            part: self.part["id"].as_str().unwrap_or_default().to_owned(),
            abort: self.abort.clone(),
            end: Some(end),
            was_refused: false,
        };
        if let Some(problem) = self.problem() {
            self.become_invalid(&problem);
        }
        let now = self.now();
        self.part["state"] = json!({"status": "running", "input": self.tool.args, "time": {"start": now}});
        // A task shows as running only once its session exists.
        if self.tool.name != "task" {
            self.put_part();
        }
        let shared = Arc::clone(&self.shared);
        let mut run = Box::pin(self.run());
        // Each tool runs up to its first wait before the next one starts, as on the single thread of the real server.
        let begun = (&mut run).now_or_never();
        shared.spawn(async move {
            let end = match begun {
                Some(end) => end,
                None => run.await,
            };
            // The turn may have stopped waiting.
            let _ = ended.send(end);
        });
        running
    }

    /// Tells the model of its mistake by a tool for that, which does nothing that the script says of the other. Without that tool, the call
    /// fails as it is.
    fn become_invalid(&mut self, problem: &str) {
        self.tool.result = ToolOutcome::default();
        if self.is_denied("invalid") {
            self.tool.result.error = Some(self.unavailable("invalid"));
        } else {
            self.part["tool"] = "invalid".into();
            self.tool.args = json!({"tool": self.tool.name, "error": problem});
        }
        "invalid".clone_into(&mut self.tool.name);
    }

    fn is_denied(&self, tool: &str) -> bool {
        let agent = self.message["agent"].as_str().unwrap_or_default();
        self.shared.is_tool_denied(&self.session, agent, tool)
    }

    fn unavailable(&self, tool: &str) -> String {
        let known = TOOLS.iter().filter(|tool| !self.is_denied(tool)).copied().collect::<Vec<_>>().join(", ");
        format!("Model tried to call unavailable tool '{tool}'. Available tools: {known}.")
    }

    /// Why the model may not make this call at all.
    fn problem(&mut self) -> Option<String> {
        let name = self.tool.name.as_str();
        let is_custom = self.tool.result != ToolOutcome::default();
        if self.is_denied(name) || !(TOOLS.contains(&name) || is_custom) {
            return Some(self.unavailable(name));
        }
        let Value::String(text) = &self.tool.args else {
            return None;
        };
        match serde_json::from_str(text) {
            Ok(args) => {
                self.tool.args = args;
                None
            }
            Err(_) => Some(format!(
                "Invalid input for tool {name}: JSON parsing failed: Text: {text}.\nError message: JSON Parse error: \
                 Unterminated string"
            )),
        }
    }

    async fn run(mut self) -> ToolEnd {
        let abort = self.abort.clone();
        let begun = tokio::select! {
            biased;
            () = abort.cancelled() => {
                if self.part["state"]["metadata"].is_null() {
                    return ToolEnd::Interrupted;
                }
                // Only a shell has said anything by now.
                let result = self.aborted_bash();
                return self.settle(Ok(result));
            }
            begun = self.begin() => begun,
        };
        let name = self.tool.name.clone();
        let result = match (begun, name.as_str()) {
            (Err(refusal), _) => Err(refusal),
            // It ends with its subagent, which an abort stops first.
            (Ok(()), "task") => self.run_task().await,
            (Ok(()), "question") => tokio::select! {
                biased;
                () = abort.cancelled() => return ToolEnd::Interrupted,
                result = self.ask_question() => result,
            },
            (Ok(()), _) => Ok(self.plain_result()),
        };
        self.settle(result)
    }

    /// What every tool does before its own work: it asks, runs until its gate is opened, and fails if it is to.
    async fn begin(&mut self) -> Result<(), Refusal> {
        if self.tool.name == "task" {
            self.check_task()?;
        }
        self.ask_permission().await?;
        let outcome = self.tool.result.clone();
        match self.tool.name.as_str() {
            "bash" => {
                self.show_output("");
                if !outcome.output.is_empty() {
                    self.show_output(&outcome.output);
                }
            }
            "task" if outcome.gate.is_some() || outcome.error.is_some() => self.show_task(),
            _ => {}
        }
        if let Some(gate) = &outcome.gate {
            self.shared.pass_gate(gate).await;
        }
        outcome.error.map_or(Ok(()), |error| Err(Refusal::error(error)))
    }

    /// The result of a tool that only says what its script does.
    fn plain_result(&self) -> ToolResult {
        let output = self.tool.result.output.clone();
        match self.tool.name.as_str() {
            "invalid" => return invalid(&self.tool.args),
            "bash" => return self.bash_result(&output),
            "todowrite" => self.shared.set_todos(&self.session, &self.tool.args["todos"]),
            _ => {}
        }
        ToolResult {
            title: self.tool.args["filePath"].as_str().unwrap_or_default().to_owned(),
            output,
            metadata: json!({"truncated": false}),
        }
    }

    /// What the script lets the tool say, or else what it says by itself.
    pub(super) fn output_or(&self, own: String) -> String {
        let scripted = &self.tool.result.output;
        if scripted.is_empty() { own } else { scripted.clone() }
    }

    fn show_output(&mut self, output: &str) {
        self.part["state"]["metadata"] = json!({"output": output});
        self.put_part();
    }

    fn bash_result(&self, output: &str) -> ToolResult {
        let output = if output.is_empty() { "(no output)" } else { output };
        ToolResult {
            title: self.tool.args["command"].as_str().unwrap_or_default().to_owned(),
            output: output.to_owned(),
            metadata: json!({"output": output, "exit": 0, "truncated": false}),
        }
    }

    fn aborted_bash(&self) -> ToolResult {
        let shown = self.part["state"]["metadata"]["output"].as_str().unwrap_or_default();
        let mut result = self.bash_result(shown);
        let note = "<shell_metadata>\nUser aborted the command\n</shell_metadata>";
        result.output = format!("{}\n\n{note}", result.output);
        let told = if shown.is_empty() { result.output.as_str() } else { shown };
        result.metadata = json!({"output": told, "exit": null, "truncated": false});
        result
    }

    fn settle(&mut self, result: Result<ToolResult, Refusal>) -> ToolEnd {
        let now = self.now();
        let state = &mut self.part["state"];
        state["time"]["end"] = now.into();
        let end = match result {
            Ok(result) => {
                state["status"] = "completed".into();
                state["output"] = result.output.into();
                state["title"] = result.title.into();
                state["metadata"] = result.metadata;
                ToolEnd::Settled
            }
            Err(refusal) => {
                state["status"] = "error".into();
                state["error"] = refusal.message.into();
                if let Some(state) = state.as_object_mut() {
                    state.remove("title");
                    if self.shared.options.flavour == Flavour::V1_17 && state["error"] == TASK_CANCELLED {
                        state.remove("metadata");
                    }
                }
                if refusal.ends_turn { ToolEnd::Refused } else { ToolEnd::Settled }
            }
        };
        self.put_part();
        end
    }

    /// Shows the call as running with what is known of it so far.
    pub(super) fn show_running(&mut self, title: Option<&str>, metadata: Option<Value>) {
        if let Some(title) = title {
            self.part["state"]["title"] = title.into();
        }
        if let Some(metadata) = metadata {
            self.part["state"]["metadata"] = metadata;
        }
        self.put_part();
    }

    pub(super) fn call_site(&self) -> Value {
        json!({"messageID": self.part["messageID"], "callID": self.part["callID"]})
    }

    /// Shows a task as running that has no session yet. Other tools show as running from their start.
    pub(super) fn show_task(&self) {
        if self.tool.name == "task" {
            self.put_part();
        }
    }

    fn put_part(&self) {
        self.shared.world().put_part(&self.part);
    }

    fn now(&self) -> u64 {
        self.shared.world().clock.now_ms()
    }
}

fn invalid(args: &Value) -> ToolResult {
    let error = args["error"].as_str().unwrap_or_default();
    ToolResult {
        title: "Invalid Tool".to_owned(),
        output: format!("The arguments provided to the tool are invalid: {error}"),
        metadata: json!({"truncated": false}),
    }
}

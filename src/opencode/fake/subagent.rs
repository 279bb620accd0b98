//! The `task` tool: a session below the session, in the foreground or in the background.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    permissions::Refusal,
    prompt::Fate,
    tools::{ToolCall, ToolResult},
    world::Job,
};

impl ToolCall {
    pub(super) async fn run_task(&mut self) -> Result<ToolResult, Refusal> {
        let args = self.tool.args.clone();
        let text = |field: &str| args[field].as_str().unwrap_or_default().to_owned();
        let (description, agent) = (text("description"), text("subagent_type"));
        let in_background = args["background"] == true;
        if !self.shared.options.agents.contains(&agent) {
            self.show_task();
            return Err(Refusal::error(format!("Unknown agent type: {agent} is not a valid agent type")));
        }
        let child = self.child_session(&description, &agent, &text("task_id"));
        let mut metadata = json!({
            "parentSessionId": self.session, "sessionId": child,
            "model": {"modelID": self.message["modelID"], "providerID": self.message["providerID"]},
        });
        if in_background {
            metadata["background"] = true.into();
        }
        // The server writes this twice: once for the call, once for the tool.
        self.show_running(Some(&description), Some(metadata.clone()));
        self.show_running(None, None);

        let cancel = CancellationToken::new();
        let job = Job { parent: self.session.clone(), cancel: cancel.clone() };
        self.shared.world().jobs.insert(child.clone(), job);
        let body = json!({
            "agent": agent, "model": metadata["model"], "parts": [{"type": "text", "text": text("prompt")}],
        });
        let subagent = Subagent { shared: Arc::clone(&self.shared), child: child.clone(), body, cancel };
        if in_background {
            metadata["jobId"] = child.as_str().into();
            metadata["truncated"] = false.into();
            self.run_in_background(subagent, description.clone());
            return Ok(ToolResult {
                title: description,
                output: render(&child, "running", Some("Background task started"), BACKGROUND_STARTED),
                metadata,
            });
        }
        let output = self.output_or(subagent.run().await.map_err(Refusal::error)?);
        metadata["truncated"] = false.into();
        Ok(ToolResult { title: description, output: render(&child, "completed", None, &output), metadata })
    }

    /// What is wrong with the call before anybody is asked.
    pub(super) fn check_task(&self) -> Result<(), Refusal> {
        let problem = self.task_problem();
        if problem.is_some() {
            self.show_task();
        }
        problem.map_or(Ok(()), |problem| Err(Refusal::error(problem)))
    }

    fn task_problem(&self) -> Option<String> {
        let options = &self.shared.options;
        if self.tool.args["background"] == true && !options.background_subagents {
            return Some(
                "Background subagents require OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS=true".to_owned(),
            );
        }
        let depth = {
            let world = self.shared.world();
            std::iter::successors(world.sessions.get(&self.session), |session| {
                world.sessions.get(session.text("parentID"))
            })
            .count()
                - 1
        };
        let limit = options.subagent_depth;
        (depth >= limit).then(|| {
            format!("Subagent depth limit reached ({limit}). Increase \"subagent_depth\" to allow nested subagents.")
        })
    }

    /// The child of an earlier call, or a new one.
    fn child_session(&self, description: &str, agent: &str, task_id: &str) -> String {
        let mut world = self.shared.world();
        if world.sessions.contains_key(task_id) {
            return task_id.to_owned();
        }
        let parent = world.sessions.get(&self.session);
        let inherited = parent.and_then(|parent| parent.info.get("permission")?.as_array());
        let mut rules: Vec<Value> = inherited
            .into_iter()
            .flatten()
            .filter(|rule| rule["action"] == "deny" || rule["permission"] == "external_directory")
            .cloned()
            .collect();
        // The server denies subagents to-do lists and further tasks, unless their own rules mention them. Those of an agent that was added here
        // do mention tasks.
        let is_added = !["build", "explore", "general", "plan"].contains(&agent);
        for denied in ["todowrite", "task"] {
            let is_mentioned = self.shared.has_rules_about(agent, denied) || (is_added && denied == "task");
            if !is_mentioned {
                rules.push(json!({"permission": denied, "pattern": "*", "action": "deny"}));
            }
        }
        let directory = world.directory_of(&self.session).unwrap_or_default();
        let fields = Map::from_iter([
            ("parentID".to_owned(), self.session.as_str().into()),
            ("title".to_owned(), format!("{description} (@{agent} subagent)").into()),
            ("agent".to_owned(), agent.into()),
            ("permission".to_owned(), rules.into()),
        ]);
        let info = world.create_session(&directory, fields);
        info["id"].as_str().unwrap_or_default().to_owned()
    }

    /// Lets the parent go on and prompts it with the result later.
    fn run_in_background(&self, subagent: Subagent, description: String) {
        let (shared, parent) = (Arc::clone(&self.shared), self.session.clone());
        let (agent, scripted) = (self.message["agent"].clone(), self.tool.result.output.clone());
        self.shared.spawn(async move {
            let child = subagent.child.clone();
            let cancel = subagent.cancel.clone();
            let result = subagent.run().await;
            if cancel.is_cancelled() {
                return;
            }
            let text = match &result {
                Ok(output) => {
                    let output = if scripted.is_empty() { output } else { &scripted };
                    let summary = format!("Background task completed: {description}");
                    render(&child, "completed", Some(&summary), output)
                }
                Err(error) => {
                    let summary = format!("Background task failed: {description}");
                    render(&child, "error", Some(&summary), error)
                }
            };
            let body = json!({"agent": agent, "parts": [{"type": "text", "synthetic": true, "text": text}]});
            shared.prompt_in_background(parent, body, Fate::Run).await;
        });
    }
}

/// The error of a task call whose turn was aborted.
pub(super) const TASK_CANCELLED: &str = "Task cancelled";
const BACKGROUND_STARTED: &str = "The task runs in the background; its result will follow.";

struct Subagent {
    shared: Arc<Shared>,
    child: String,
    body: Value,
    cancel: CancellationToken,
}

impl Subagent {
    /// The child's last text, or why there is none.
    async fn run(self) -> Result<String, String> {
        let prompt = Box::pin(self.shared.prompt(&self.child, &self.body, Fate::Run));
        let result = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(TASK_CANCELLED.to_owned()),
            result = prompt => result,
        };
        self.shared.world().jobs.remove(&self.child);
        let failed = |message: &str| format!("Subagent failed (task_id: {}): {message}", self.child);
        let message = result.map_err(|error| failed(&error.message))?;
        if let Some(error) = message["info"]["error"]["data"]["message"].as_str() {
            return Err(failed(error));
        }
        let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        if message["info"]["finish"] == "tool-calls" {
            // Only a refusal ends a turn on tool calls.
            let refusal = parts.iter().rev().find_map(|part| part["state"]["error"].as_str());
            return Err(failed(refusal.unwrap_or_default()));
        }
        let last_text = parts.iter().rev().find(|part| part["type"] == "text");
        Ok(last_text.and_then(|part| part["text"].as_str()).unwrap_or_default().to_owned())
    }
}

fn render(child: &str, state: &str, summary: Option<&str>, text: &str) -> String {
    let tag = if state == "error" { "task_error" } else { "task_result" };
    let summary = summary.map_or_else(String::new, |summary| format!("<summary>{summary}</summary>\n"));
    format!("<task id=\"{child}\" state=\"{state}\">\n{summary}<{tag}>\n{text}\n</{tag}>\n</task>")
}

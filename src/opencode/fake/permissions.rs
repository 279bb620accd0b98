//! Asking humans: permissions by rule or by script, and the question tool.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Shared,
    tools::{ToolCall, ToolResult},
    world::{Instance, Pending},
};

/// Why a tool did not do what it was asked to.
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) ends_turn: bool,
}

impl Refusal {
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self { message: message.into(), ends_turn: false }
    }

    fn by_human(message: &str) -> Self {
        Self { message: message.to_owned(), ends_turn: true }
    }
}

impl ToolCall {
    /// Asks, if the rules say so.
    pub(super) async fn ask_permission(&self) -> Result<(), Refusal> {
        let subject = match (self.tool.name.as_str(), &self.tool.args["command"]) {
            ("bash", Value::String(command)) => command.as_str(),
            _ => "*",
        };
        let (permission, pattern) = match &self.tool.result.ask {
            Some((permission, pattern)) => (permission.as_str(), pattern.as_str()),
            None => (self.tool.name.as_str(), subject),
        };
        let agent = self.message["agent"].as_str().unwrap_or_default();
        let rules = self.shared.rules(&self.session, agent, self.tool.result.ask.as_ref());
        match evaluate(&rules, permission, pattern) {
            "deny" => {
                let relevant = rules
                    .iter()
                    .filter(|rule| matches(rule["permission"].as_str().unwrap_or_default(), permission));
                let relevant = relevant.map(spell).collect::<Vec<_>>().join(",");
                return Err(Refusal::error(format!(
                    "The user has specified a rule which prevents you from using this specific tool call. Here are \
                     some of the relevant rules [{relevant}]"
                )));
            }
            "ask" => {}
            _ => return Ok(()),
        }
        let always = match pattern.split_once(' ') {
            Some((word, _)) => format!("{word} *"),
            None => "*".to_owned(),
        };
        let metadata = match &self.tool.args["command"] {
            Value::String(command) => json!({"command": command}),
            _ => json!({}),
        };
        let info = json!({
            "permission": permission, "patterns": [pattern], "metadata": metadata, "always": [always],
        });
        permitted(self.ask("permission.asked", "per", info, |instance| &mut instance.permissions)).await
    }

    pub(super) async fn ask_question(&self) -> Result<ToolResult, Refusal> {
        let questions = self.tool.args["questions"].clone();
        let info = json!({"questions": questions});
        let reply = self.ask("question.asked", "que", info, |instance| &mut instance.questions);
        let Ok(Some(answers)) = reply.await else {
            return Err(Refusal::by_human("The user dismissed this question"));
        };
        let asked = questions.as_array().map(Vec::as_slice).unwrap_or_default();
        let told: Vec<String> = asked
            .iter()
            .enumerate()
            .map(|(index, question)| {
                let chosen: Vec<&str> =
                    answers[index].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let chosen = if chosen.is_empty() { "Unanswered".to_owned() } else { chosen.join(", ") };
                format!("\"{}\"=\"{chosen}\"", question["question"].as_str().unwrap_or_default())
            })
            .collect();
        let plural = if asked.len() == 1 { "" } else { "s" };
        Ok(ToolResult {
            title: format!("Asked {} question{plural}", asked.len()),
            output: format!(
                "User has answered your questions: {}. You can now continue with the user's answers in mind.",
                told.join(", ")
            ),
            metadata: json!({"answers": answers, "truncated": false}),
        })
    }

    /// Puts a request of this call on one of its directory's lists and tells of it.
    fn ask<T>(
        &self,
        kind: &str,
        prefix: &str,
        mut info: Value,
        list: impl FnOnce(&mut Instance) -> &mut Vec<Pending<T>>,
    ) -> oneshot::Receiver<T> {
        info["tool"] = self.call_site();
        self.shared.ask(&self.session, kind, prefix, info, list)
    }
}

/// Waits for the answer to a permission request.
async fn permitted(reply: oneshot::Receiver<Result<(), Option<String>>>) -> Result<(), Refusal> {
    match reply.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Some(message))) => Err(Refusal::error(format!(
            "The user rejected permission to use this specific tool call with the following feedback: {message}"
        ))),
        // Disposing of the instance drops the request unanswered.
        Ok(Err(None)) | Err(_) => {
            Err(Refusal::by_human("The user rejected permission to use this specific tool call."))
        }
    }
}

impl Shared {
    /// Asks whether the model may make the same call for the third time in one step, if the rules say so.
    pub(super) async fn ask_for_loop(
        &self,
        session: &str,
        agent: &str,
        tool: &str,
        input: &Value,
    ) -> Result<(), Refusal> {
        if evaluate(&self.rules(session, agent, None), "doom_loop", tool) == "allow" {
            return Ok(());
        }
        let info = json!({
            "permission": "doom_loop", "patterns": [tool], "metadata": {"tool": tool, "input": input}, "always": [tool],
        });
        permitted(self.ask(session, "permission.asked", "per", info, |instance| &mut instance.permissions))
            .await
    }

    /// Puts a request of a session on one of its directory's lists and tells of it.
    fn ask<T>(
        &self,
        session: &str,
        kind: &str,
        prefix: &str,
        mut info: Value,
        list: impl FnOnce(&mut Instance) -> &mut Vec<Pending<T>>,
    ) -> oneshot::Receiver<T> {
        let (answer, reply) = oneshot::channel();
        let mut world = self.world();
        info["id"] = world.clock.ascending(prefix).into();
        info["sessionID"] = session.into();
        let directory = world.directory_of(session).unwrap_or_default();
        list(world.instance(&directory)).push(Pending { info: info.clone(), answer });
        world.publish(&directory, kind, info);
        reply
    }

    /// All rules for a session, weakest first; the last that matches decides.
    fn rules(&self, session: &str, agent: &str, asked_by_script: Option<&(String, String)>) -> Vec<Value> {
        let mut world = self.world();
        let mut rules = vec![
            json!({"permission": "*", "pattern": "*", "action": "allow"}),
            json!({"permission": "doom_loop", "pattern": "*", "action": "ask"}),
        ];
        rules.extend(agent_rules(agent));
        rules.extend(configured_rules(&self.options.permission));
        if let Some((permission, pattern)) = asked_by_script {
            rules.push(json!({"permission": permission, "pattern": pattern, "action": "ask"}));
        }
        if let Some(session) = world.sessions.get(session) {
            rules.extend(
                session.info.get("permission").and_then(Value::as_array).into_iter().flatten().cloned(),
            );
        }
        if let Some(directory) = world.directory_of(session) {
            rules.extend(world.instance(&directory).approved.iter().cloned());
        }
        rules
    }

    /// Whether a rule takes the tool away from the session altogether.
    pub(super) fn is_tool_denied(&self, session: &str, agent: &str, tool: &str) -> bool {
        let rules = self.rules(session, agent, None);
        let last = rules.iter().rfind(|rule| matches(rule["permission"].as_str().unwrap_or_default(), tool));
        last.is_some_and(|rule| rule["pattern"] == "*" && rule["action"] == "deny")
    }

    /// Answers a permission request; false when there is none of that id in the directory.
    pub(super) fn reply_permission(
        &self,
        directory: &str,
        id: &str,
        reply: &str,
        message: Option<String>,
    ) -> bool {
        let mut world = self.world();
        let Some(request) = take_request(&mut world.instance(directory).permissions, id) else {
            return false;
        };
        let session = request.info["sessionID"].clone();
        let replied = |info: &Value, reply: &str| json!({"sessionID": session, "requestID": info["id"], "reply": reply});
        world.publish(directory, "permission.replied", replied(&request.info, reply));
        if reply == "always" {
            for pattern in request.info["always"].as_array().into_iter().flatten() {
                let rule =
                    json!({"permission": request.info["permission"], "pattern": pattern, "action": "allow"});
                world.instance(directory).approved.push(rule);
            }
        }
        // One answer closes other requests of the session too: a rejection all of them, an "always" those that it covers.
        let approved = world.instance(directory).approved.clone();
        let covered = |info: &Value| {
            let permission = info["permission"].as_str().unwrap_or_default();
            let patterns = info["patterns"].as_array().into_iter().flatten();
            patterns
                .filter_map(Value::as_str)
                .all(|pattern| evaluate(&approved, permission, pattern) == "allow")
        };
        let (settled, left) =
            std::mem::take(&mut world.instance(directory).permissions).into_iter().partition(|other| {
                other.info["sessionID"] == session
                    && (reply == "reject" || (reply == "always" && covered(&other.info)))
            });
        world.instance(directory).permissions = left;
        let answer = |message| if reply == "reject" { Err(message) } else { Ok(()) };
        // The receiver is gone if the turn was aborted.
        drop(request.answer.send(answer(message)));
        for other in settled {
            world.publish(directory, "permission.replied", replied(&other.info, reply));
            drop(other.answer.send(answer(None)));
        }
        true
    }

    /// Answers a question; `None` dismisses it. False when there is none of that id in the directory.
    pub(super) fn reply_question(&self, directory: &str, id: &str, answers: Option<Value>) -> bool {
        let mut world = self.world();
        let Some(request) = take_request(&mut world.instance(directory).questions, id) else { return false };
        let mut properties = json!({"sessionID": request.info["sessionID"], "requestID": id});
        let kind = if let Some(answers) = &answers {
            properties["answers"] = answers.clone();
            "question.replied"
        } else {
            "question.rejected"
        };
        world.publish(directory, kind, properties);
        drop(request.answer.send(answers));
        true
    }
}

/// Takes the request of this id off a list.
fn take_request<T>(pending: &mut Vec<Pending<T>>, id: &str) -> Option<Pending<T>> {
    let index = pending.iter().position(|request| request.info["id"] == id)?;
    Some(pending.remove(index))
}

/// Only the agents that talk to humans may ask them, and the built-in subagents keep no lists.
fn agent_rules(agent: &str) -> Vec<Value> {
    let denied: &[&str] = match agent {
        "build" | "plan" => &[],
        "general" | "explore" => &["question", "todowrite"],
        _ => &["question"],
    };
    let deny = |tool: &&str| json!({"permission": tool, "pattern": "*", "action": "deny"});
    denied.iter().map(deny).collect()
}

/// A rule as the server spells it.
fn spell(rule: &Value) -> String {
    let (permission, pattern, action) = (&rule["permission"], &rule["pattern"], &rule["action"]);
    if permission == "*" {
        return format!("{{\"permission\":{permission},\"action\":{action},\"pattern\":{pattern}}}");
    }
    format!("{{\"permission\":{permission},\"pattern\":{pattern},\"action\":{action}}}")
}

/// The server's `permission` configuration as rules.
fn configured_rules(config: &Value) -> Vec<Value> {
    let rule = |permission: &str, pattern: &str, action: &Value| json!({"permission": permission, "pattern": pattern, "action": action});
    match config {
        Value::String(_) => vec![rule("*", "*", config)],
        Value::Object(config) => config
            .iter()
            .flat_map(|(permission, value)| match value {
                Value::Object(patterns) => {
                    patterns.iter().map(|(pattern, action)| rule(permission, pattern, action)).collect()
                }
                action => vec![rule(permission, "*", action)],
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn evaluate<'a>(rules: &'a [Value], permission: &str, pattern: &str) -> &'a str {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let hit = rules.iter().rfind(|rule| {
        matches(text(&rule["permission"]), permission) && matches(text(&rule["pattern"]), pattern)
    });
    hit.map_or("ask", |rule| text(&rule["action"]))
}

/// A `*` stands for anything; ` *` at the end also for nothing.
fn matches(pattern: &str, text: &str) -> bool {
    if pattern.strip_suffix(" *") == Some(text) {
        return true;
    }
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|&skip| rest.is_char_boundary(skip))
                .any(|skip| matches(after, &rest[skip..]))
        }),
    }
}

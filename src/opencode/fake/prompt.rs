//! What happens to a prompt once the server has said 204.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    Moment, Shared,
    options::{Flavour, split_model},
    run::RunEnd,
    world::{Session, unknown_error},
};

/// What a test wants to become of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Run,
    /// Stored, never run.
    Lost,
}

/// Why a prompt was not answered.
#[derive(Debug)]
pub(super) struct PromptFailed {
    pub(super) message: String,
}

impl Shared {
    /// Stores the prompt and answers it; the result is the last assistant message, or the user message without a reply.
    pub(super) async fn prompt(
        self: &Arc<Self>,
        session: &str,
        body: &Value,
        fate: Fate,
    ) -> Result<Value, PromptFailed> {
        self.hold(Moment::BeforeStore).await;
        let message = self.store_prompt(session, body)?;
        let stored = || {
            let world = self.world();
            let message = world.sessions.get(session)?.message(&message)?;
            Some(message.with_parts())
        };
        if body["noReply"] == true || fate == Fate::Lost {
            return Ok(stored().unwrap_or_default());
        }
        self.hold(Moment::BeforeRun).await;
        let mut done = self.ensure_running(session);
        let end = match done.wait_for(Option::is_some).await {
            Ok(end) => end.clone(),
            Err(_killed) => None,
        };
        if let Some(RunEnd::Failed(message)) = end {
            return Err(PromptFailed { message });
        }
        Ok(self.last_assistant(session).or_else(stored).unwrap_or_default())
    }

    /// The prompt of `prompt_async`, whose failures show only as events.
    pub(super) async fn prompt_in_background(self: Arc<Self>, session: String, body: Value, fate: Fate) {
        if let Err(failed) = self.prompt(&session, &body, fate).await
            && self.options.flavour != Flavour::V1_1
        {
            let error = unknown_error(&failed.message);
            self.world().session_error(&session, &error);
        }
    }

    pub(super) fn last_assistant(&self, session: &str) -> Option<Value> {
        let world = self.world();
        let messages = &world.sessions.get(session)?.messages;
        messages.iter().rev().find(|message| message.is("assistant")).map(super::world::Message::with_parts)
    }

    fn store_prompt(&self, session: &str, body: &Value) -> Result<String, PromptFailed> {
        let agent = body["agent"].as_str().unwrap_or("build");
        if !self.options.agents.iter().any(|known| known == agent) {
            let known = self.options.agents.join(", ");
            let message = format!("Agent not found: \"{agent}\". Available agents: {known}");
            if self.options.flavour != Flavour::V1_1 {
                self.world().session_error(session, &unknown_error(&message));
            }
            return Err(PromptFailed { message: "UnknownError: UnknownError".to_owned() });
        }
        let mut world = self.world();
        let now = world.next_message_ms(session);
        let Some(current) = world.sessions.get(session) else {
            return Err(PromptFailed { message: format!("NotFoundError: Session not found: {session}") });
        };
        let model = self.choose_model(body, current);
        let session_model = json!({
            "id": model["modelID"], "providerID": model["providerID"],
            "variant": model.get("variant").unwrap_or(&"default".into()),
        });
        let is_news = current.text("agent") != agent || current.info.get("model") != Some(&session_model);
        // Sessions of old releases do not know their model.
        if is_news && self.options.flavour != Flavour::V1_1 {
            world.update_session(session, |info| {
                info.insert("agent".to_owned(), agent.into());
                info.insert("model".to_owned(), session_model);
            });
        }
        let id = match body["messageID"].as_str() {
            Some(id) => id.to_owned(),
            None => world.clock.ascending("msg"),
        };
        let mut info = json!({
            "id": id, "role": "user", "sessionID": session, "time": {"created": now}, "agent": agent, "model": model,
        });
        for field in ["system", "tools", "format"] {
            if !body[field].is_null() {
                info[field] = body[field].clone();
            }
        }
        world.put_message(session, &info);
        for part in body["parts"].as_array().into_iter().flatten() {
            let mut part = part.clone();
            if part["id"].is_null() {
                part["id"] = world.clock.ascending("prt").into();
            }
            part["messageID"] = id.as_str().into();
            part["sessionID"] = session.into();
            world.put_part(&part);
        }
        let rules = body["tools"].as_object().map(tool_rules);
        world.update_session(session, |info| {
            if let Some(rules) = rules {
                info.insert("permission".to_owned(), rules);
            }
        });
        Ok(id)
    }

    /// The prompt's model, else the session's last, else the configured one.
    fn choose_model(&self, body: &Value, session: &Session) -> Value {
        let mut model = if body["model"].is_object() {
            json!({"providerID": body["model"]["providerID"], "modelID": body["model"]["modelID"]})
        } else if let Some(last) = session.info.get("model") {
            json!({"providerID": last["providerID"], "modelID": last["id"]})
        } else if let Some(prompt) = session.messages.iter().rfind(|message| message.is("user")) {
            prompt.info["model"].clone()
        } else {
            let (provider, model) = self.default_model();
            json!({"providerID": provider, "modelID": model})
        };
        if !body["variant"].is_null() {
            model["variant"] = body["variant"].clone();
        }
        model
    }

    pub(super) fn default_model(&self) -> (&str, &str) {
        split_model(self.options.models.first().map_or("mock/m", String::as_str))
    }
}

fn tool_rules(tools: &Map<String, Value>) -> Value {
    let rule = |(tool, enabled): (&String, &Value)| {
        let action = if enabled == true { "allow" } else { "deny" };
        json!({"permission": tool, "pattern": "*", "action": action})
    };
    tools.iter().map(rule).collect()
}

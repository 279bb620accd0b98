//! A prompt in the form that Claude Code reads, and the set-up that it needs.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ClaudeError;
use crate::{
    agent::{ModelRef, PromptPart, PromptSpec},
    ids::MessageId,
};

/// A prompt as it is kept in a store: the line to the byte, and what the process must have been started with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) line: String,
    #[serde(default)]
    pub(super) setup: Setup,
}

/// What a process is started with. Another set-up needs another process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Setup {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effort: Option<String>,
}

impl Request {
    /// Writes a prompt. Model and agent stay those of the session's last process, `before`, unless others are asked for.
    pub(super) fn new(spec: &PromptSpec, prompt: &MessageId, before: Setup) -> Result<Self, ClaudeError> {
        let content = spec.parts.iter().map(content).collect::<Result<Vec<_>, _>>()?;
        let line = json!({
            "type": "user", "uuid": prompt, "message": {"role": "user", "content": content},
            "parent_tool_use_id": null, "session_id": "",
        });
        let default_model = || spec.default_model.as_ref().map(model_name);
        let setup = Setup {
            model: spec.model.as_ref().map(model_name).or(before.model).or_else(default_model),
            agent: spec.agent.clone().or(before.agent).or_else(|| spec.default_agent.clone()),
            system: spec.system.clone(),
            effort: spec.variant.clone(),
        };
        Ok(Self { line: line.to_string(), setup })
    }
}

impl Setup {
    /// The arguments that stand for it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--model", &self.model),
            ("--agent", &self.agent),
            ("--append-system-prompt", &self.system),
            ("--effort", &self.effort),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value.clone()?]));
        given.flatten().collect()
    }
}

/// Claude Code's name for a model: it has one provider, so that only what comes after it counts.
fn model_name(model: &ModelRef) -> String {
    model.model_id.clone()
}

fn content(part: &PromptPart) -> Result<Value, ClaudeError> {
    Ok(match part {
        PromptPart::Text(text) => json!({"type": "text", "text": text}),
        PromptPart::Mention(name) => json!({"type": "text", "text": format!("@agent-{name}")}),
        PromptPart::File { name, media_type, bytes } => {
            let encoded = |kind: &str| {
                let source =
                    json!({"type": "base64", "media_type": media_type, "data": STANDARD.encode(bytes)});
                json!({"type": kind, "source": source})
            };
            match (media_type.as_str(), std::str::from_utf8(bytes)) {
                (media_type, _) if media_type.starts_with("image/") => encoded("image"),
                ("application/pdf", _) => encoded("document"),
                (media_type, Ok(text)) if is_text(media_type) => {
                    json!({"type": "document", "title": name,
                        "source": {"type": "text", "media_type": "text/plain", "data": text}})
                }
                _ => return Err(ClaudeError::Attachment { media_type: media_type.clone() }),
            }
        }
    })
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") || media_type.ends_with("json") || media_type.ends_with("xml")
}

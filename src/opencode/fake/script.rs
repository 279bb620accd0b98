//! What a scripted model says, step by step.
//!
//! A script travels inside the prompt as `@@{…json…}@@`. The fake server plays it as its own model would; the scripted
//! model behind a real server reads the same text out of the conversation. One scenario thus drives both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The model's side of one prompt: the n-th model call after the prompt plays the n-th step.
///
/// Past the last step the model answers with a short closing text, unless [`Script::repeat_last`] is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Script {
    /// One entry per model call.
    pub steps: Vec<Step>,
    /// Plays the last step again and again, for turns that would never end.
    #[serde(skip_serializing_if = "is_default")]
    pub repeat_last: bool,
}

/// One answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Step {
    /// Thinking, streamed word by word before the text.
    #[serde(skip_serializing_if = "is_default")]
    pub reasoning: String,
    /// The text, streamed word by word.
    #[serde(skip_serializing_if = "is_default")]
    pub text: String,
    /// This many further words `w0 w1 …` after the text, each a chunk of its own.
    #[serde(skip_serializing_if = "is_default")]
    pub words: usize,
    /// One further chunk of this many bytes after the words.
    #[serde(skip_serializing_if = "is_default")]
    pub blob: usize,
    /// Tool calls that end the step.
    #[serde(skip_serializing_if = "is_default")]
    pub tools: Vec<ScriptedTool>,
    /// The provider's finish reason; default `tool_calls` with tools, `stop` without.
    #[serde(skip_serializing_if = "is_default")]
    pub finish: Option<String>,
    /// The provider's usage object; default 10 prompt and 5 completion tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub usage: Option<Value>,
    /// Pause between chunks in milliseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub chunk_ms: u64,
    /// Pause before the response's headers in milliseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub before_ms: u64,
    /// Waits before the response's headers until the named gate is opened.
    #[serde(skip_serializing_if = "is_default")]
    pub gate_before: Option<String>,
    /// Waits after half of the chunks until the named gate is opened.
    #[serde(skip_serializing_if = "is_default")]
    pub gate_middle: Option<String>,
    /// Cuts the connection after the last chunk of text, without a finish reason.
    #[serde(skip_serializing_if = "is_default")]
    pub drop: bool,
    /// Answers with an HTTP error instead.
    #[serde(skip_serializing_if = "is_default")]
    pub error: Option<ProviderError>,
}

/// An HTTP error of the model's provider.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ProviderError {
    /// The HTTP status. With 200 the reasoning and the text stream first and the body follows as an error chunk.
    pub status: u16,
    /// The body; default `{"error":{"message":"scripted error <status>"}}`.
    #[serde(skip_serializing_if = "is_default")]
    pub body: Option<Value>,
    /// Response headers, such as `retry-after`.
    #[serde(skip_serializing_if = "is_default")]
    pub headers: BTreeMap<String, String>,
    /// Fails only this many times for this step, then plays the rest of the step; 0 fails always.
    #[serde(skip_serializing_if = "is_default")]
    pub times: u32,
}

/// A tool call of the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ScriptedTool {
    /// The tool's name; `task` starts a subagent whose prompt may hold a script of its own.
    pub name: String,
    /// The call's arguments.
    pub args: Value,
    /// The provider's call id; default one that does not repeat.
    #[serde(skip_serializing_if = "is_default")]
    pub id: Option<String>,
    /// What the tool does on the fake. A real server runs the real tool and ignores this, so the author of a script makes both agree.
    #[serde(skip_serializing_if = "is_default")]
    pub result: ToolOutcome,
}

/// What a tool of the fake server does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// The tool's output.
    #[serde(skip_serializing_if = "is_default")]
    pub output: String,
    /// Fails with this message instead.
    #[serde(skip_serializing_if = "is_default")]
    pub error: Option<String>,
    /// Runs until the named gate is opened.
    #[serde(skip_serializing_if = "is_default")]
    pub gate: Option<String>,
    /// Asks for permission first, for this permission and pattern.
    #[serde(skip_serializing_if = "is_default")]
    pub ask: Option<(String, String)>,
}

impl Script {
    /// A script of the given steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), repeat_last: false }
    }

    /// The prompt text that carries this script after some words for a human reader.
    pub fn prompt(&self, words: &str) -> String {
        // Serialising plain data to a string cannot fail.
        format!("{words} @@{}@@", serde_json::to_string(self).unwrap_or_default())
    }

    /// The script inside a prompt, if there is a well-formed one.
    pub fn find(prompt: &str) -> Option<Self> {
        let start = prompt.find("@@{")? + 2;
        serde_json::Deserializer::from_str(&prompt[start..]).into_iter().next()?.ok()
    }
}

impl Step {
    /// A step that says `text` and stops.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A step that calls one tool.
    pub fn tool(tool: ScriptedTool) -> Self {
        Self { tools: vec![tool], ..Self::default() }
    }

    /// A step that fails with an HTTP status of the provider.
    pub fn error(status: u16) -> Self {
        Self { error: Some(ProviderError { status, ..ProviderError::default() }), ..Self::default() }
    }
}

impl ScriptedTool {
    /// A call of `name` with `args`.
    pub fn new(name: impl Into<String>, args: Value) -> Self {
        Self { name: name.into(), args, ..Self::default() }
    }

    /// Says what the fake's tool prints.
    #[must_use]
    pub fn output(mut self, output: impl Into<String>) -> Self {
        self.result.output = output.into();
        self
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_survives_its_journey_in_a_prompt() {
        let script = Script::new([
            Step::tool(ScriptedTool::new("bash", json!({"command": "echo @@ hi"})).output("@@ hi\n")),
            Step::text("done"),
        ]);
        assert_eq!(Script::find(&script.prompt("please")), Some(script));
        assert_eq!(Script::find("no script"), None);
        assert_eq!(Script::find("@@{broken"), None);
    }
}

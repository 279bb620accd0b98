//! What a scripted model says, step by step.
//!
//! A script travels inside the prompt as `@@{…json…}@@`. The fake server plays it as its own model would; the scripted
//! model behind a real server reads the same text out of the conversation. One scenario thus drives both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::setters::setters;

/// The model's side of one prompt: the n-th model call after the prompt plays the n-th step.
///
/// Past the last step the model answers with a short closing text, unless [`Script::repeat_last`] is set.
///
/// # Examples
/// ```
/// use opencode_conductor::test_util::{Script, ScriptedTool, Step};
/// use serde_json::json;
///
/// let looks_around = Script::new([
///     Step::tool(ScriptedTool::new("bash", json!({"command": "ls"})).output("Cargo.toml\n")),
///     Step::text("There is a manifest.").reasoning("So it is Rust."),
/// ]);
/// let delegates = Script::new([Step::subagent("Look around", &looks_around), Step::text("It is Rust.")]);
/// assert_eq!(Script::find(&delegates.prompt("What is this?")), Some(delegates));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[must_use]
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
#[must_use]
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
    /// What the step costs on the fake; default what its model's [`ModelPrice`](super::ModelPrice) makes of the usage.
    #[serde(skip_serializing_if = "is_default")]
    pub cost: Option<f64>,
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
#[must_use]
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
    /// Asks for permission first; see [`ScriptedTool::asks`].
    #[serde(skip_serializing_if = "is_default")]
    pub ask: Option<(String, String)>,
}

impl Script {
    /// A script of the given steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), repeat_last: false }
    }

    /// A script of one step, which says `text`.
    pub fn says(text: impl Into<String>) -> Self {
        Self::new([Step::text(text)])
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
        Self::tools([tool])
    }

    /// A step that calls several tools at once.
    pub fn tools(tools: impl IntoIterator<Item = ScriptedTool>) -> Self {
        Self { tools: tools.into_iter().collect(), ..Self::default() }
    }

    /// A step that starts a subagent, which plays `script`; see [`ScriptedTool::task`].
    pub fn subagent(description: &str, script: &Script) -> Self {
        Self::tool(ScriptedTool::task(description, script))
    }

    /// A step that fails with an HTTP status of the provider.
    pub fn error(status: u16) -> Self {
        Self { error: Some(ProviderError { status, ..ProviderError::default() }), ..Self::default() }
    }

    setters! {
        /// Thinks this before it speaks.
        reasoning(reasoning: impl Into<String>) { reasoning = reasoning.into() }
        /// Says this many further words `w0 w1 …` after its text.
        words(n_words: usize) { words = n_words }
        /// Says one further chunk of this many bytes.
        blob(n_bytes: usize) { blob = n_bytes }
        /// Ends with this finish reason of the provider.
        finish(reason: impl Into<String>) { finish = Some(reason.into()) }
        /// Reports this usage object of the provider, such as
        /// `{"prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 130}`. Of the prompt's tokens, those read from the cache and written to
        /// it are `"prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 8}`.
        usage(usage: Value) { usage = Some(usage) }
        /// Costs this much on the fake, whatever it used.
        cost(dollars: f64) { cost = Some(dollars) }
        /// Waits until the gate is opened before the model's first sign of life.
        gate_before(gate: impl Into<String>) { gate_before = Some(gate.into()) }
        /// Waits until the gate is opened in the middle of what the model says.
        gate_middle(gate: impl Into<String>) { gate_middle = Some(gate.into()) }
    }

    /// Calls a tool after what it says, beside those that it calls already.
    pub fn call(mut self, tool: ScriptedTool) -> Self {
        self.tools.push(tool);
        self
    }
}

impl ScriptedTool {
    /// A call of `name` with `args`.
    pub fn new(name: impl Into<String>, args: Value) -> Self {
        Self { name: name.into(), args, ..Self::default() }
    }

    /// A call that starts a subagent of the kind `general`, which plays `script`. What the subagent says last is the call's output.
    pub fn task(description: &str, script: &Script) -> Self {
        let prompt = script.prompt(description);
        let args = json!({"description": description, "prompt": prompt, "subagent_type": "general"});
        Self::new("task", args)
    }

    setters! {
        /// Gives the call an id of the provider's, instead of one that does not repeat.
        id(id: impl Into<String>) { id = Some(id.into()) }
        /// Lets the fake's tool print this; also `task` and `question`, after the subagent's answer or yours.
        output(output: impl Into<String>) { result.output = output.into() }
        /// Lets the fake's tool fail with this message, before it starts a subagent or asks a question.
        fails(message: impl Into<String>) { result.error = Some(message.into()) }
        /// Lets the fake's tool run until the gate is opened, before it starts a subagent or asks a question.
        gate(gate: impl Into<String>) { result.gate = Some(gate.into()) }
        /// Lets the fake's tool ask for this permission before it runs, such as `bash` for `rm *`, where a rule would allow it. One that denies it
        /// still does.
        ///
        /// As on the server, the request names what the call is about: `rm -r build`, and `rm *` as what "always" would allow. Only if
        /// the server's tool of this name would never ask for the permission, it names the pattern.
        asks(permission: impl Into<String>, pattern: impl Into<String>) {
            result.ask = Some((permission.into(), pattern.into()))
        }
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

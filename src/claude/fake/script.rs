//! What the fake plays.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How a script is found in a prompt.
const MARK: &str = "[[play ";

/// What a prompt makes the model do: its messages, one after the other. What it says and calls in one is a list of [`ClaudeStep`]s.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClaudeScript {
    /// The messages; tools run between them.
    pub messages: Vec<Vec<ClaudeStep>>,
    /// The messages of the turn that follows by itself once subagents in the background are done.
    #[serde(default)]
    pub after: Vec<Vec<ClaudeStep>>,
}

/// Something that the model does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ClaudeStep {
    /// Thinks.
    Thinking(String),
    /// Says something.
    Text(String),
    /// Calls a tool.
    Tool(ClaudeTool),
    /// Stands at a gate until it is opened.
    Gate(String),
    /// The provider refuses with a status and words.
    Error(u16, String),
    /// The executable is not logged in.
    LoggedOut,
    /// There is no such model as the one that was chosen.
    NoSuchModel,
}

/// A call of a tool, and what comes of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClaudeTool {
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub input: Value,
    /// What it returns.
    pub output: String,
    /// Permission is asked for first.
    #[serde(default)]
    pub asks: bool,
    /// The gate at which it stands while it runs.
    #[serde(default)]
    pub gate: Option<String>,
    /// It is a subagent that plays this.
    #[serde(default)]
    pub subagent: Option<ClaudeScript>,
    /// The turn goes on without waiting for the subagent.
    #[serde(default)]
    pub in_background: bool,
}

impl ClaudeScript {
    /// A script of these messages.
    pub fn new(messages: impl IntoIterator<Item = Vec<ClaudeStep>>) -> Self {
        Self { messages: messages.into_iter().collect(), after: Vec::new() }
    }

    /// One message that says this.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new([vec![ClaudeStep::Text(text.into())]])
    }

    /// The messages of the turn that follows by itself.
    #[must_use]
    pub fn after(mut self, messages: impl IntoIterator<Item = Vec<ClaudeStep>>) -> Self {
        self.after = messages.into_iter().collect();
        self
    }

    /// A prompt of one line that makes the fake play this.
    pub fn prompt(&self, words: &str) -> String {
        format!("{words} {MARK}{}]]", serde_json::to_string(self).unwrap_or_default())
    }

    /// The script in a prompt; one that repeats the prompt if there is none.
    #[must_use]
    pub fn of(prompt: &str) -> Self {
        let found = prompt
            .split_once(MARK)
            .and_then(|(_, rest)| serde_json::Deserializer::from_str(rest).into_iter().next()?.ok());
        found.unwrap_or_else(|| Self::text(format!("You said: {prompt}")))
    }
}

impl ClaudeTool {
    /// A call that returns `output` at once.
    pub fn new(name: impl Into<String>, input: Value, output: impl Into<String>) -> Self {
        Self { name: name.into(), input, output: output.into(), ..Self::default() }
    }

    /// A shell command that returns nothing.
    pub fn bash(command: &str) -> Self {
        Self::new("Bash", json!({"command": command, "description": "A command"}), "")
    }

    /// A question to the user.
    pub fn question(question: &str) -> Self {
        let options = json!([{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]);
        let questions =
            json!([{"question": question, "header": "Pick", "options": options, "multiSelect": false}]);
        Self::new("AskUserQuestion", json!({"questions": questions}), "").asks()
    }

    /// A subagent, which the turn waits for.
    pub fn subagent(script: ClaudeScript) -> Self {
        let input = json!({
            "description": "A subagent", "prompt": script.prompt("do your part"), "subagent_type": "general-purpose",
            "run_in_background": false,
        });
        Self { subagent: Some(script), ..Self::new("Agent", input, "") }
    }

    /// Permission is asked for first.
    #[must_use]
    pub fn asks(mut self) -> Self {
        self.asks = true;
        self
    }

    /// It runs until the gate is opened.
    #[must_use]
    pub fn gate(mut self, gate: impl Into<String>) -> Self {
        self.gate = Some(gate.into());
        self
    }

    /// The turn does not wait for the subagent.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self.input["run_in_background"] = true.into();
        self
    }
}

impl From<ClaudeTool> for ClaudeStep {
    fn from(tool: ClaudeTool) -> Self {
        Self::Tool(tool)
    }
}

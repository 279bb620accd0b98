//! Profiles: how an agent is set up for a kind of work.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{agent::ModelRef, ids::AgentProfileReference, setters::setters};

/// How an agent is set up for a kind of work. What is not said is left to the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[must_use]
#[non_exhaustive]
pub struct AgentProfile {
    /// What it is referred to by.
    pub reference: AgentProfileReference,
    /// What it is for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What the model is told beside every prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The model of its prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    /// Which of the program's own agents its prompts are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl AgentProfile {
    /// A profile that leaves everything to the agent.
    pub fn new(reference: impl Into<AgentProfileReference>) -> Self {
        Self { reference: reference.into(), ..Self::default() }
    }

    setters! {
        /// Says what it is for.
        description(description: impl Into<String>) { description = Some(description.into()) }
        /// Sets what the model is told beside every prompt; default nothing.
        instructions(instructions: impl Into<String>) { instructions = Some(instructions.into()) }
        /// Sets the model of its prompts; default the session's own.
        model(model: ModelRef) { model = Some(model) }
        /// Sets which of the program's own agents its prompts are for; default the session's own.
        agent(agent: impl Into<String>) { agent = Some(agent.into()) }
    }
}

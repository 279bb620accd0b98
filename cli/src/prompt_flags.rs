//! The flags that say how a prompt is run.

use std::time::Duration;

use clap::Args;
use opencode_conductor::{ModelRef, PromptInput};
use opencode_conductor_cli::values;

#[derive(Debug, Clone, Args)]
pub(crate) struct PromptFlags {
    /// The model, as provider/model [default: the server's]
    #[arg(long, value_name = "P/M")]
    model: Option<ModelRef>,
    /// The agent [default: the server's]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// How long the model may be silent [default: 45]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
}

impl PromptFlags {
    /// The prompt as the flags want it.
    pub(crate) fn apply(&self, mut input: PromptInput) -> PromptInput {
        if let Some(model) = &self.model {
            input = input.model(model.clone());
        }
        if let Some(agent) = &self.agent {
            input = input.agent(agent.as_str());
        }
        if let Some(timeout) = self.timeout {
            input = input.idle_timeout(timeout);
        }
        input
    }
}

//! The flags that say how a prompt is run.

use std::time::Duration;

use clap::Args;
use opencode_conductor::{ModelRef, PromptInput, WaitOptions};
use opencode_conductor_cli::values;

#[derive(Debug, Clone, Args)]
pub(crate) struct PromptFlags {
    /// The model, as provider/model [default: the server's]
    #[arg(long, value_name = "P/M")]
    model: Option<ModelRef>,
    /// The agent [default: the server's]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[arg(long, alias = "timeout", value_name = "SECONDS", help = idle_timeout_help())]
    #[arg(value_parser = values::seconds, allow_negative_numbers = true)]
    idle_timeout: Option<Duration>,
}

fn idle_timeout_help() -> String {
    let default = WaitOptions::default().idle_timeout.as_secs_f64();
    format!("How long the model may be silent; a task that goes on is not cut off [default: {default}]")
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
        if let Some(timeout) = self.idle_timeout {
            input = input.idle_timeout(timeout);
        }
        input
    }
}

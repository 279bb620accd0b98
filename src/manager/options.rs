//! What a manager can be told.

use super::{
    ConversationManager,
    policy::{PermissionPolicy, QuestionPolicy},
};
use crate::{
    client::OpenCodeClient,
    convert::{ConvertOptions, Thinking},
    error::InvalidInput,
    turn::WaitOptions,
    wire::ModelRef,
};

#[derive(Debug, Clone, Default)]
pub(super) struct ManagerOptions {
    pub(super) wait: WaitOptions,
    pub(super) permissions: PermissionPolicy,
    pub(super) questions: QuestionPolicy,
    pub(super) convert: ConvertOptions,
    pub(super) model: Option<ModelRef>,
    pub(super) agent: Option<String>,
}

/// Settings of a [`ConversationManager`].
#[derive(Debug)]
#[must_use]
pub struct ManagerBuilder {
    client: OpenCodeClient,
    options: ManagerOptions,
}

impl ManagerBuilder {
    pub(super) fn new(client: OpenCodeClient) -> Self {
        Self { client, options: ManagerOptions::default() }
    }

    /// Sets the limits of prompts that bring none of their own; default [`WaitOptions::default`].
    ///
    /// # Errors
    /// If a limit makes no sense.
    pub fn wait(mut self, options: WaitOptions) -> Result<Self, InvalidInput> {
        options.validate()?;
        self.options.wait = options;
        Ok(self)
    }

    /// Sets what happens when a tool needs permission; default [`PermissionPolicy::Reject`].
    pub fn permissions(mut self, policy: PermissionPolicy) -> Self {
        self.options.permissions = policy;
        self
    }

    /// Sets what happens when the model has a question; default [`QuestionPolicy::Decline`].
    pub fn questions(mut self, policy: QuestionPolicy) -> Self {
        self.options.questions = policy;
        self
    }

    /// Sets whether thinking is in conversations; default it is.
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.options.convert = self.options.convert.with_thinking(thinking);
        self
    }

    /// Sets the model of prompts that name none, in sessions that have none; default the server's.
    pub fn model(mut self, model: ModelRef) -> Self {
        self.options.model = Some(model);
        self
    }

    /// Sets the agent of prompts that name none, in sessions that have none; default the server's.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.options.agent = Some(agent.into());
        self
    }

    /// The manager.
    pub fn build(self) -> ConversationManager {
        ConversationManager::new(self.client, self.options)
    }
}

//! What a manager can be told.

use std::sync::Arc;

use super::{
    ConversationManager,
    policy::{PermissionPolicy, Policies, QuestionPolicy},
};
use crate::{
    agent::{Agent, ModelRef, WaitOptions},
    conversation::{ConvertOptions, Thinking},
    error::InvalidInput,
    setters::setters,
    store::Store,
};

#[derive(Clone, Default)]
pub(super) struct ManagerOptions {
    pub(super) wait: WaitOptions,
    pub(super) policies: Policies,
    pub(super) convert: ConvertOptions,
    pub(super) model: Option<ModelRef>,
    pub(super) agent: Option<String>,
    pub(super) store: Option<Arc<dyn Store>>,
}

/// Settings of a [`ConversationManager`].
#[must_use]
pub struct ManagerBuilder {
    agent: Arc<dyn Agent>,
    options: ManagerOptions,
}

impl ManagerBuilder {
    /// A manager of the sessions of `agent`; see [`ConversationManager::builder`] for `OpenCode`.
    pub fn new(agent: impl Agent) -> Self {
        Self { agent: Arc::new(agent), options: ManagerOptions::default() }
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

    setters! {
        /// Sets what happens when a tool needs permission; default [`PermissionPolicy::Reject`].
        permissions(policy: PermissionPolicy) { options.policies.permissions = policy }
        /// Sets what happens when the model has a question; default [`QuestionPolicy::Decline`].
        questions(policy: QuestionPolicy) { options.policies.questions = policy }
        /// Sets whether thinking is in conversations; default it is.
        thinking(thinking: Thinking) { options.convert.thinking = thinking }
        /// Sets the model of prompts that name none, in sessions that have none; default the agent's own.
        model(model: ModelRef) { options.model = Some(model) }
        /// Sets the agent of prompts that name none, in sessions that have none; default the agent's own.
        agent(agent: impl Into<String>) { options.agent = Some(agent.into()) }
        /// Sets where turns are recorded before each of their effects; default nowhere.
        ///
        /// What was recorded can be continued by another process with [`ConversationManager::resume`].
        store(store: Arc<dyn Store>) { options.store = Some(store) }
    }

    /// The manager.
    pub fn build(self) -> ConversationManager {
        ConversationManager::new(self.agent, self.options)
    }
}

impl std::fmt::Debug for ManagerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagerBuilder")
            .field("agent", &self.agent.name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ManagerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagerOptions")
            .field("wait", &self.wait)
            .field("policies", &self.policies)
            .field("model", &self.model)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

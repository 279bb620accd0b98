//! What a manager can be told.

use std::{sync::Arc, time::Duration};

use super::{
    ConversationManager,
    policy::{PermissionPolicy, Policies, QuestionPolicy},
    record::{Recording, WhenStoreFails},
};
use crate::{
    agent::{Agent, ModelRef, WaitOptions},
    conversation::{ConvertOptions, Thinking},
    error::InvalidInput,
    setters::setters,
    store::Store,
};

/// How long the store may take to answer: longer than a busy disk takes, and short enough that a task which cannot begin says so.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
pub(super) struct ManagerOptions {
    pub(super) wait: WaitOptions,
    pub(super) policies: Policies,
    pub(super) convert: ConvertOptions,
    pub(super) model: Option<ModelRef>,
    pub(super) agent: Option<String>,
    store: Option<Arc<dyn Store>>,
    when_store_fails: WhenStoreFails,
    store_timeout: Option<Duration>,
}

impl ManagerOptions {
    /// The store and how to deal with it, if there is one.
    pub(super) fn recording(&self) -> Option<Recording> {
        let (when_it_fails, patience) = (self.when_store_fails, self.store_timeout.unwrap_or(STORE_TIMEOUT));
        self.store.clone().map(|store| Recording { store, when_it_fails, patience })
    }
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
        /// Sets where the sessions of tasks are kept, and turns are recorded before each of their effects; default nowhere.
        ///
        /// Another process goes on from there with [`ConversationManager::restore`].
        store(store: Arc<dyn Store>) { options.store = Some(store) }
        /// Sets what happens to turns while the store fails; default [`WhenStoreFails::FailTurn`].
        when_store_fails(when: WhenStoreFails) { options.when_store_fails = when }
    }

    /// Sets how long the store may take to answer before it counts as failed; default 30 s.
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn store_timeout(mut self, timeout: Duration) -> Result<Self, InvalidInput> {
        InvalidInput::check_durations(&[("store_timeout", timeout)])?;
        self.options.store_timeout = Some(timeout);
        Ok(self)
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

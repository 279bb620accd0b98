//! How a fake behaves from its start; what goes wrong later is said with [`Fault`](super::Fault)s.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::price::ModelPrice;
use crate::setters::setters;

/// Which release of the server the fake imitates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flavour {
    /// 1.18.33, the release every behaviour was measured on.
    #[default]
    V1_18,
    /// 1.17.11, which leaves the session out of a task call that was cancelled.
    V1_17,
    /// 1.15.0, whose `/event` carries no message, part or session events, only deltas, statuses and requests.
    V1_15_0,
    /// 1.1: deltas travel inside part updates, events have no ids, there are no heartbeats and no page cursors, and an
    /// unknown session or agent is accepted in silence.
    V1_1,
}

impl Flavour {
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V1_18 => "1.18.33",
            Self::V1_17 => "1.17.11",
            Self::V1_15_0 => "1.15.0",
            Self::V1_1 => "1.1.65",
        }
    }
}

/// The settings of a [`FakeOpenCode`](super::FakeOpenCode).
#[derive(Debug, Clone)]
#[must_use]
pub struct FakeOptions {
    pub(super) password: Option<String>,
    pub(super) flavour: Flavour,
    pub(super) time_scale: f64,
    pub(super) heartbeat: Duration,
    pub(super) directory: String,
    pub(super) agents: Vec<String>,
    pub(super) models: Vec<String>,
    prices: BTreeMap<String, ModelPrice>,
    pub(super) context_limit: u64,
    pub(super) output_limit: u64,
    pub(super) permission: Value,
    pub(super) subagent_depth: usize,
    pub(super) background_subagents: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            password: None,
            flavour: Flavour::default(),
            time_scale: 1.0,
            heartbeat: Duration::from_secs(10),
            directory: "/fake/project".to_owned(),
            agents: owned(&["build", "explore", "general", "plan"]),
            models: owned(&["mock/m"]),
            prices: BTreeMap::new(),
            context_limit: 100_000,
            output_limit: 10_000,
            permission: json!({}),
            subagent_depth: 1,
            background_subagents: false,
        }
    }
}

impl FakeOptions {
    /// The defaults: release 1.18.33 at its own pace, without a password, in the directory `/fake/project`.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Demands HTTP Basic authentication as user `opencode`; default none.
        password(password: impl Into<String>) { password = Some(password.into()) }
        /// Imitates another release; default [`Flavour::V1_18`].
        flavour(flavour: Flavour) { flavour = flavour }
        /// Multiplies the server's own waits: between retries, for tools after an abort, before the tail of a turn.
        /// Default 1.0, the real server's pace. The pauses of a script are not scaled.
        time_scale(scale: f64) { time_scale = scale.max(0.0) }
        /// Sets how often an event stream carries `server.heartbeat`; default 10 s.
        heartbeat(interval: Duration) { heartbeat = interval }
        /// Sets the directory of requests that name none; default `/fake/project`.
        directory(directory: impl Into<String>) { directory = directory.into() }
        /// Sets the models' context and output limits in tokens; default 100,000 and 10,000. A step that uses more than their difference is
        /// compacted.
        limits(context: u64, output: u64) { context_limit = context; output_limit = output }
        /// Sets the server's `permission` configuration, such as `{"bash": {"*": "allow", "touch *": "ask"}}`; default empty, which leaves the
        /// server's own rules: it asks before it reads `.env` files and touches what is outside of the project, and allows everything else.
        ///
        /// The last rule that matches decides. Rules come in the order of the value's keys, which `serde_json` sorts (`*` first) unless its
        /// feature `preserve_order` is on.
        permission(permission: Value) { permission = permission }
        /// Sets how deep subagents may nest; default 1.
        subagent_depth(depth: usize) { subagent_depth = depth }
        /// Lets the `task` tool run in the background, as the server does behind an experimental flag; default not.
        background_subagents() { background_subagents = true }
    }

    /// Adds an agent to `build`, `explore`, `general` and `plan`.
    pub fn agent(mut self, name: impl Into<String>) -> Self {
        self.agents.push(name.into());
        self.agents.sort();
        self
    }

    /// Adds a model, as `provider/model`, to `mock/m`.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.models.push(model.into());
        self
    }

    /// Sets what a model, as `provider/model`, costs; default nothing.
    pub fn price(mut self, model: impl Into<String>, price: ModelPrice) -> Self {
        self.prices.insert(model.into(), price);
        self
    }

    pub(super) fn price_of(&self, model: &str) -> ModelPrice {
        self.prices.get(model).copied().unwrap_or_default()
    }

    /// The models that have a price, as `provider/model`.
    pub(super) fn prices(&self) -> impl Iterator<Item = (&str, &ModelPrice)> {
        self.prices.iter().map(|(model, price)| (model.as_str(), price))
    }
}

/// Provider and model of a name such as `mock/m`.
pub(super) fn split_model(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("mock", name))
}

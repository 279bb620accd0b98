//! Managed servers by their environment, started when they are asked for and ended when they are not.
//!
//! A server has one environment and one configuration for all its sessions. Tasks that need keys or settings of their own therefore need
//! a server of their own, and servers are large. So the pool shares one among all that ask for the same, and keeps their number
//! within a limit. One task, the [keeper](keeper), owns all servers and makes all decisions, one after the other.

mod keeper;

use std::{collections::BTreeMap, ffi::OsString, fmt, ops::Deref, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{LaunchError, LaunchOptions, OpenCodeServer};
use crate::setters::setters;
use keeper::{Keeper, Request};

/// Servers for tasks that need an environment or a configuration of their own; clones are the same pool.
///
/// [`get`](Self::get) gives a lease on a running server: one that runs already if there is one for the same [`ServerEnvironment`], else
/// a new one. At the limit it ends the server that is idle for longest, or waits for one. Who waits for a place is served in order,
/// and those who come later wait behind them, so that the users of one server cannot keep another environment out for ever.
///
/// Servers are started one at a time, because those that share a `HOME` cannot set up its database together. So one that is slow to start
/// keeps all others waiting that have to be started, for [`LaunchOptions::startup_timeout`] at most.
///
/// Do not wait for a second lease while you hold a first: at the limit each of two tasks can wait for the server that the other
/// holds, or behind somebody who does, and then for ever. Let go of the first, or give the pool room for all ([`PoolOptions::max_servers`]).
///
/// A server that has died is replaced when it is asked for again; with [`LaunchOptions::restart`] it comes back by itself, and who asks
/// for it meanwhile waits until it runs. The log tells of each by its number and process id, and of no environment's values.
///
/// Dropping the last clone kills the servers that have no lease; a leased one lives as long as its last lease. [`shutdown`](Self::shutdown)
/// ends them all.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{ConversationManager, LaunchOptions, PoolOptions, ServerEnvironment, ServerPool};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let base = LaunchOptions::new().env_allow(["PATH", "HOME"]);
/// let pool = ServerPool::new(PoolOptions::new(base).max_servers(8));
///
/// let environment = ServerEnvironment::new().env("OPENAI_API_KEY", "the customer's own");
/// let server = pool.get(environment).await?;
/// let manager = ConversationManager::builder(server.client().clone()).build();
/// // Run the task, and keep the lease for as long.
/// manager.shutdown().await;
/// drop(server);
///
/// pool.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerPool {
    handle: Arc<Handle>,
}

/// How a [`ServerPool`] behaves.
#[derive(Debug, Clone)]
#[must_use]
pub struct PoolOptions {
    base: LaunchOptions,
    max_servers: usize,
    idle_shutdown: Duration,
}

/// What tells one server of a [`ServerPool`] from another. Who asks for an equal one gets the same server.
///
/// What it does not say is as in the pool's [`LaunchOptions`].
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ServerEnvironment {
    directory: Option<PathBuf>,
    variables: BTreeMap<OsString, OsString>,
    config: Option<Value>,
}

/// The use of a server of a [`ServerPool`]. The server is idle when its last lease is dropped.
///
/// While it is held the pool does not end the server, unless it is shut down. The server may die nevertheless, as
/// [`OpenCodeServer::state`] says.
pub struct ServerLease {
    server: Arc<OpenCodeServer>,
    /// Which server of the pool it is.
    slot: u64,
    requests: mpsc::UnboundedSender<Request>,
}

/// What a [`ServerPool`] does at the moment, and has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Servers that are being started.
    pub starting: usize,
    /// Servers with a lease.
    pub in_use: usize,
    /// Servers that run without a lease.
    pub idle: usize,
    /// Servers that are being ended.
    pub ending: usize,
    /// Calls of [`ServerPool::get`] that have not been answered.
    pub waiting: usize,
    /// Servers that were started.
    pub launched: u64,
    /// Servers that could not be started.
    pub failed: u64,
    /// Servers that ended by themselves.
    pub died: u64,
}

struct Handle {
    requests: mpsc::UnboundedSender<Request>,
    statistics: watch::Receiver<PoolStatistics>,
    shutdown: CancellationToken,
    keeper: AbortHandle,
    tasks: TaskTracker,
}

impl ServerPool {
    /// A pool without servers.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(options: PoolOptions) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (publish, statistics) = watch::channel(PoolStatistics::default());
        let shutdown = CancellationToken::new();
        let keeper = Keeper::new(options, requests.clone(), receiver, publish);
        let tasks = TaskTracker::new();
        let keeper = tasks.spawn(keeper.run(shutdown.clone())).abort_handle();
        tasks.close();
        Self { handle: Arc::new(Handle { requests, statistics, shutdown, keeper, tasks }) }
    }

    /// Gives a running server with this environment, and starts it if there is none.
    ///
    /// # Errors
    /// If the server cannot be started, as [`LaunchError`] says. Each call starts at most one server: when the one that several
    /// calls wait for cannot be started, the first of them gets the error, and the next one tries again.
    /// [`LaunchError::ShutDown`] if the pool was shut down.
    ///
    /// # Cancel safety
    /// Dropping the call gives up its place in line. A server that is already being started becomes idle.
    pub async fn get(&self, environment: ServerEnvironment) -> Result<ServerLease, LaunchError> {
        let (reply, answer) = oneshot::channel();
        // Without a keeper the reply is dropped with the request, which is an answer.
        drop(self.handle.requests.send(Request::Get { environment, reply }));
        let _tells_when_given_up = GivesUp(&self.handle.requests);
        answer.await.unwrap_or(Err(LaunchError::ShutDown))
    }

    /// What the pool does, and has done.
    pub fn statistics(&self) -> PoolStatistics {
        *self.handle.statistics.borrow()
    }

    /// Waits until the statistics are `wanted`, or the pool has been shut down.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&PoolStatistics) -> bool) -> PoolStatistics {
        let mut statistics = self.handle.statistics.clone();
        match statistics.wait_for(|statistics| wanted(statistics)).await {
            Ok(statistics) => *statistics,
            Err(_) => self.statistics(),
        }
    }

    /// Ends all servers, leased ones too, and waits until they are gone. Calls that wait for a server get [`LaunchError::ShutDown`].
    ///
    /// # Cancel safety
    /// Dropping the call does not take the shutdown back; a second call waits for the same end.
    pub async fn shutdown(&self) {
        self.handle.shutdown.cancel();
        self.handle.tasks.wait().await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What the keeper owns goes with it: servers without a lease, and starts that are under way.
        self.keeper.abort();
    }
}

/// Tells the keeper that a call was answered or given up, because others may be waiting behind it.
struct GivesUp<'a>(&'a mpsc::UnboundedSender<Request>);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        // Without a keeper there is no line either.
        drop(self.0.send(Request::GaveUp));
    }
}

impl PoolOptions {
    /// Four servers at most, each ended when it is idle for five minutes, and all started with `base`. Each gets a free port, whatever `base` says.
    pub fn new(base: LaunchOptions) -> Self {
        Self { base: base.port(0), max_servers: 4, idle_shutdown: Duration::from_secs(300) }
    }

    setters! {
        /// Sets how many servers there may be at a time, those included that start or end; default 4, and at least one.
        max_servers(limit: usize) { max_servers = limit.max(1) }
        /// Sets how long a server may be idle before it is ended; default 5 min.
        idle_shutdown(after: Duration) { idle_shutdown = after }
    }
}

impl ServerEnvironment {
    /// Nothing but what the pool's options say.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the directory to start in; default as in the pool's options. A server serves others, too, so most need no server for each.
        directory(path: impl Into<PathBuf>) { directory = Some(path.into()) }
        /// Sets configuration on top of the pool's, as in `opencode.json`: objects are merged, and all else is replaced; default none.
        config(config: Value) { config = Some(config) }
    }

    /// Sets an environment variable of the server, and so of every tool that a model runs on it.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn launch_options(&self, base: &LaunchOptions) -> LaunchOptions {
        let mut options = base.clone();
        if let Some(directory) = &self.directory {
            options = options.directory(directory);
        }
        for (name, value) in &self.variables {
            options = options.env(name, value);
        }
        if let Some(config) = &self.config {
            let mut merged = options.config.take().unwrap_or_default();
            merge(&mut merged, config);
            options = options.config(merged);
        }
        options
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => into.clone_from(from),
    }
}

impl Deref for ServerLease {
    type Target = OpenCodeServer;

    fn deref(&self) -> &OpenCodeServer {
        &self.server
    }
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        // Without a keeper the server goes with its last lease.
        drop(self.requests.send(Request::Release { slot: self.slot }));
    }
}

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLease").field("server", &self.server).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerEnvironment {
    /// Environment and configuration may hold keys, so only names of variables are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.variables.keys().collect();
        f.debug_struct("ServerEnvironment")
            .field("directory", &self.directory)
            .field("variables", &names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_environment_adds_to_what_all_servers_have() {
        let base = LaunchOptions::new().env_clear().env("SHARED", "1").env("KEY", "base").config(
            json!({"share": "disabled", "provider": {"p": {"options": {"apiKey": "a", "baseURL": "b"}}}}),
        );
        let own = ServerEnvironment::new()
            .env("KEY", "own")
            .config(json!({"provider": {"p": {"options": {"apiKey": "c"}}}, "plugin": ["x"]}));
        let options = own.launch_options(&base);
        let variables: Vec<(OsString, OsString)> = options.variables().into_iter().collect();
        assert_eq!(variables, [("KEY".into(), "own".into()), ("SHARED".into(), "1".into())]);
        let expected = json!({"share": "disabled", "plugin": ["x"], "provider": {"p": {"options": {"apiKey": "c", "baseURL": "b"}}}});
        assert_eq!(options.config, Some(expected));
        assert_eq!(ServerEnvironment::new().launch_options(&base).config, base.config);
    }

    #[test]
    fn equal_environments_are_equal_in_any_order_and_show_no_values() {
        let one =
            ServerEnvironment::new().env("A", "geheim").env("B", "2").config(json!({"a": "geheim", "b": 2}));
        let two =
            ServerEnvironment::new().env("B", "2").env("A", "geheim").config(json!({"b": 2, "a": "geheim"}));
        assert_eq!(one, two);
        assert_ne!(one, two.env("A", "other"));
        let shown = format!("{one:?}");
        assert!(shown.contains("\"A\"") && !shown.contains("geheim"), "{shown}");
    }
}

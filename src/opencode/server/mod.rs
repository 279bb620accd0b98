//! A server of one's own: started, watched, restarted and ended.
//!
//! `opencode serve` prints its address before it can be trusted, answers nothing that is sent too early, and leaves its tools
//! running when it dies. So a launch ends only when a request was answered, the server runs in a process group of its own, and
//! that group is killed whole: when the [`OpenCodeServer`] is dropped, when it is shut down, and when the server crashed. Commands of
//! its shell tool run in groups of their own. On Linux they are found by a variable that they inherit, and killed as well.

use std::{fmt, process::ExitStatus, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    error::InvalidInput,
    opencode::client::{ApiError, OpenCodeClient},
    process::ProcessGroup,
};

mod options;
mod pool;
mod process;
mod secrets;

pub use options::{LaunchOptions, RestartPolicy};
pub use pool::{PoolOptions, PoolStatistics, ServerEnvironment, ServerLease, ServerPool};

use process::Process;
use secrets::HidePassword;

/// A running `opencode serve` that belongs to this process.
///
/// Dropping it kills the server and everything that the server started. On systems other than Linux the commands that its shell tool
/// is running may outlive it.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{ConversationManager, LaunchOptions, OpenCodeServer};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let server = OpenCodeServer::launch(LaunchOptions::new().directory("/srv/project")).await?;
/// let manager = ConversationManager::builder(server.client().clone()).build();
/// println!("{} answers", server.url());
/// manager.shutdown().await;
/// server.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct OpenCodeServer {
    client: OpenCodeClient,
    password: Arc<str>,
    state: watch::Receiver<ServerState>,
    group: Arc<ProcessGroup>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

/// How a managed server is doing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ServerState {
    /// It answers. Left by a crash or a shutdown.
    #[non_exhaustive]
    Running {
        /// Its address.
        url: String,
        /// How often it was restarted.
        restarts: u32,
    },
    /// It crashed and is being started again. Left when it answers, or when the policy allows no further attempt.
    #[non_exhaustive]
    Restarting {
        /// The last exit.
        exit: Arc<ServerExit>,
        /// How often it was restarted, this time included.
        restarts: u32,
    },
    /// It ended and will not come back.
    Exited(Arc<ServerExit>),
}

/// How a server process ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerExit {
    /// The status, if the operating system told it.
    pub status: Option<ExitStatus>,
    /// Whether it was asked to end, by a shutdown or a drop.
    pub requested: bool,
    /// The last lines that it wrote to standard error.
    pub stderr: Vec<String>,
}

/// A server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// An option is not valid.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// There is no such executable.
    #[error(
        "cannot find the executable `{executable}`: install it (npm install -g opencode-ai), or name it with \
         LaunchOptions::executable or the environment variable OPENCODE_BIN"
    )]
    #[non_exhaustive]
    NotFound {
        /// What was looked for.
        executable: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The process could not be started.
    #[error("cannot start the executable `{executable}`")]
    #[non_exhaustive]
    Spawn {
        /// The executable.
        executable: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The process ended before it answered.
    #[error("the server ended while starting: {0}")]
    Exited(ServerExit),
    /// The process runs but does not answer.
    #[error("the server did not answer within {} ms{}", after.as_millis(), quote(stderr))]
    #[non_exhaustive]
    NotReady {
        /// The time allowed.
        after: Duration,
        /// The last lines that it wrote to standard error.
        stderr: Vec<String>,
    },
    /// What has to be written for the server could not be.
    #[error("cannot prepare the start of the server")]
    NotPrepared(#[source] std::io::Error),
    /// The process says that it listens elsewhere than it was told.
    #[error(
        "the server says that it listens elsewhere than on the loopback address and port that it was told"
    )]
    Elsewhere,
    /// The pool that was asked for a server has been shut down.
    #[error("the pool of servers is shut down")]
    ShutDown,
    /// The process answers, but not as it should.
    #[error("the server refuses the client")]
    Refused(#[source] ApiError),
}

impl OpenCodeServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// As [`LaunchError`] says; whatever was started is killed.
    ///
    /// # Cancel safety
    /// Dropping the call kills whatever was started.
    pub async fn launch(options: LaunchOptions) -> Result<Self, LaunchError> {
        options.check()?;
        let password = match &options.password {
            Some(password) => Arc::clone(password),
            None => random_password()?,
        };
        let group = Arc::new(ProcessGroup::default());
        // Made before the process is started, so that dropping the launch kills whatever was started.
        let guard = KillOnDrop(Arc::clone(&group));
        let hide = HidePassword::new().map_err(LaunchError::NotPrepared)?;
        let process = Process::start(&options, &password, &hide, &group).await?;
        let client = options.client(process.url(), &password).map_err(LaunchError::Refused)?;
        let running = ServerState::Running { url: process.url().to_owned(), restarts: 0 };
        let (states, state) = watch::channel(running);
        let cancel = CancellationToken::new();
        let tasks = TaskTracker::new();
        let supervisor = Supervisor {
            policy: options.restart.clone(),
            options,
            password: Arc::clone(&password),
            hide,
            client: client.clone(),
            group: Arc::clone(&group),
            states,
            cancel: cancel.clone(),
        };
        tasks.spawn(supervisor.run(process, guard));
        Ok(Self { client, password, state, group, cancel, tasks })
    }

    /// A client of this server. It finds the server again after a restart, at whatever address.
    pub fn client(&self) -> &OpenCodeClient {
        &self.client
    }

    /// The server's address at the moment.
    pub fn url(&self) -> String {
        self.client.base_url()
    }

    /// The password that the server asks for; the user is `opencode`.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The server's process, which leads its process group; `None` while there is none.
    pub fn pid(&self) -> Option<u32> {
        self.group.id()
    }

    /// How the server is doing.
    pub fn state(&self) -> ServerState {
        self.state.borrow().clone()
    }

    /// Waits until the state is one that is `wanted`, or the last one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&ServerState) -> bool) -> ServerState {
        let mut state = self.state.clone();
        match state.wait_for(|state| wanted(state) || matches!(state, ServerState::Exited(_))).await {
            Ok(state) => state.clone(),
            // The supervisor is gone with its runtime.
            Err(_) => self.state(),
        }
    }

    /// Waits until the server has ended for good.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn exited(&self) -> Arc<ServerExit> {
        match self.wait_for(|_| false).await {
            ServerState::Exited(exit) | ServerState::Restarting { exit, .. } => exit,
            ServerState::Running { .. } => {
                Arc::new(ServerExit { status: None, requested: true, stderr: Vec::new() })
            }
        }
    }

    /// Ends the server and everything that it started, and waits until they are gone. Subscriptions of its client end too.
    ///
    /// # Cancel safety
    /// Dropping the call kills the server at once.
    pub async fn shutdown(self) -> Arc<ServerExit> {
        self.end().await
    }

    /// Ends the server for all who share it.
    async fn end(&self) -> Arc<ServerExit> {
        self.client.shutdown().await;
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.exited().await
    }
}

impl Drop for OpenCodeServer {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.group.kill();
    }
}

impl fmt::Debug for OpenCodeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCodeServer").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

impl fmt::Display for ServerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => f.write_str("unknown status")?,
        }
        f.write_str(&quote(&self.stderr))
    }
}

/// How many lines of standard error a message quotes.
const QUOTED_LINES: usize = 5;

fn quote(stderr: &[String]) -> String {
    let last = &stderr[stderr.len().saturating_sub(QUOTED_LINES)..];
    if last.is_empty() { String::new() } else { format!("; it said: {}", last.join(" / ")) }
}

fn random_password() -> Result<Arc<str>, LaunchError> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)
        .ok()
        .ok_or(InvalidInput::new("password", "must be given: there is no source of random numbers"))?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes).into())
}

struct KillOnDrop(Arc<ProcessGroup>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Watches the process and starts it again.
struct Supervisor {
    options: LaunchOptions,
    policy: RestartPolicy,
    password: Arc<str>,
    hide: HidePassword,
    client: OpenCodeClient,
    group: Arc<ProcessGroup>,
    states: watch::Sender<ServerState>,
    cancel: CancellationToken,
}

impl Supervisor {
    async fn run(mut self, mut process: Process, _guard: KillOnDrop) {
        let mut restarts = 0;
        loop {
            let exit = tokio::select! {
                exit = process.exited() => Arc::new(exit),
                () = self.cancel.cancelled() => return self.finish(Arc::new(process.stop().await)),
            };
            // What it wrote last is in the exit, and may hold secrets, so it is not logged.
            tracing::warn!(status = ?exit.status, "the server ended unexpectedly");
            process = match self.restart(exit, &mut restarts).await {
                Some(process) => process,
                None => return,
            };
        }
    }

    /// Starts the server again, as often as the policy allows.
    async fn restart(&mut self, mut exit: Arc<ServerExit>, restarts: &mut u32) -> Option<Process> {
        loop {
            let Some(pause) = self.policy.next_pause(Instant::now()) else {
                self.finish(exit);
                return None;
            };
            *restarts += 1;
            self.states
                .send_replace(ServerState::Restarting { exit: Arc::clone(&exit), restarts: *restarts });
            let start = async {
                sleep(pause).await;
                Process::start(&self.options, &self.password, &self.hide, &self.group).await
            };
            let started = tokio::select! {
                started = start => started,
                () = self.cancel.cancelled() => {
                    self.group.kill();
                    // Its number may become another program's.
                    self.group.set(None);
                    self.finish(exit);
                    return None;
                }
            };
            match started {
                Ok(process) => {
                    if let Err(error) = self.client.move_to(process.url()) {
                        tracing::error!(%error, "the restarted server has no valid address");
                    }
                    let url = process.url().to_owned();
                    self.states.send_replace(ServerState::Running { url, restarts: *restarts });
                    return Some(process);
                }
                Err(LaunchError::Exited(next)) => exit = Arc::new(next),
                // What it wrote last is in the error, and belongs in no log either.
                Err(LaunchError::NotReady { .. }) => tracing::warn!("the restarted server does not answer"),
                Err(error) => tracing::warn!(%error, "the server could not be restarted"),
            }
        }
    }

    fn finish(&self, exit: Arc<ServerExit>) {
        self.states.send_replace(ServerState::Exited(exit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[tokio::test]
    async fn a_server_that_is_cancelled_while_it_restarts_leaves_no_group_to_signal() {
        let options = LaunchOptions::new().executable("/bin/sh");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("serve"), "exec sleep 1000").unwrap();
        let group = Arc::new(ProcessGroup::default());
        let exit = Arc::new(ServerExit { status: None, requested: false, stderr: Vec::new() });
        let cancel = CancellationToken::new();
        let mut supervisor = Supervisor {
            policy: RestartPolicy::up_to(1, Duration::from_secs(60)),
            options: options.directory(directory.path()),
            password: "geheim".into(),
            hide: HidePassword::new().unwrap(),
            client: OpenCodeClient::builder("http://127.0.0.1:9").build().unwrap(),
            group: Arc::clone(&group),
            states: watch::Sender::new(ServerState::Exited(Arc::clone(&exit))),
            cancel: cancel.clone(),
        };
        let mut restarts = 0;
        let cancelling = async {
            while group.id().is_none() {
                tokio::task::yield_now().await;
            }
            cancel.cancel();
        };
        let (restarted, ()) = tokio::join!(supervisor.restart(exit, &mut restarts), cancelling);
        assert!(restarted.is_none());
        assert_eq!(group.id(), None);
    }
}

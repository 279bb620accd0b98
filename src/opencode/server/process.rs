//! One server process and its group.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use reqwest::Url;
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use super::{
    LaunchError, LaunchOptions, ServerExit,
    secrets::{self, CONFIG, HidePassword},
};
use crate::{
    opencode::client::{ApiErrorKind, OpenCodeClient},
    process::{LastLines, ProcessGroup, clean_up, read_lines},
};

/// Where a server is told to listen.
const HOST: &str = "127.0.0.1";

/// A request sent too early is never answered, so each probe is short.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PROBE_PAUSE: Duration = Duration::from_millis(50);

/// How long a server may take to end on its own. It needs none of it, but its tools may.
const STOP_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Process {
    child: Child,
    url: String,
    stderr: LastLines,
    readers: TaskTracker,
    group: Arc<ProcessGroup>,
}

impl Process {
    /// Starts a server and waits until it answers. On failure nothing is left running.
    pub(super) async fn start(
        options: &LaunchOptions,
        password: &Arc<str>,
        hide: &HidePassword,
        group: &Arc<ProcessGroup>,
    ) -> Result<Self, LaunchError> {
        let after = options.startup_timeout;
        let deadline = Instant::now() + after;
        let variables = options.variables();
        let unquotable = secrets::unquotable(password, &variables, options.config.as_ref());
        let mut child = spawn(options, password, hide, variables, group)?;
        group.set(child.id());
        let readers = TaskTracker::new();
        let stderr = LastLines::new(unquotable);
        if let Some(pipe) = child.stderr.take() {
            let lines = stderr.clone();
            readers.spawn(read_lines(pipe, move |line| lines.push(&line)));
        }
        let (announce, announced) = oneshot::channel();
        if let Some(pipe) = child.stdout.take() {
            let mut announce = Some(announce);
            readers.spawn(read_lines(pipe, move |line| {
                if let Some(url) = listening_url(&line)
                    && let Some(announce) = announce.take()
                {
                    // The start may have failed meanwhile.
                    drop(announce.send(url));
                }
            }));
        }
        readers.close();
        let mut process = Self { child, url: String::new(), stderr, readers, group: Arc::clone(group) };
        match timeout_at(deadline, process.become_ready(options, password, announced)).await {
            Ok(Ok(())) => Ok(process),
            Ok(Err(error)) => {
                process.stop().await;
                Err(error)
            }
            Err(_) => Err(LaunchError::NotReady { after, stderr: process.stop().await.stderr }),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until the process has ended, and ends what it left behind.
    pub(super) async fn exited(&mut self) -> ServerExit {
        let status = self.child.wait().await.ok();
        self.clean_up(status, false).await
    }

    /// Ends the process and its whole group.
    pub(super) async fn stop(&mut self) -> ServerExit {
        self.group.terminate();
        let status = if let Ok(status) = timeout(STOP_GRACE, self.child.wait()).await {
            status.ok()
        } else {
            self.group.kill();
            self.child.wait().await.ok()
        };
        self.clean_up(status, true).await
    }

    async fn clean_up(&mut self, status: Option<std::process::ExitStatus>, requested: bool) -> ServerExit {
        let stderr = clean_up(&self.group, &self.readers, &self.stderr).await;
        ServerExit { status, requested, stderr }
    }

    async fn become_ready(
        &mut self,
        options: &LaunchOptions,
        password: &Arc<str>,
        announced: oneshot::Receiver<String>,
    ) -> Result<(), LaunchError> {
        let url = tokio::select! {
            Ok(url) = announced => url,
            status = self.child.wait() => {
                return Err(LaunchError::Exited(self.clean_up(status.ok(), false).await));
            }
        };
        if !is_told_address(&url, options.port) {
            return Err(LaunchError::Elsewhere);
        }
        let probe = OpenCodeClient::builder(&url)
            .basic_auth("opencode", Arc::clone(password))
            .answer_timeout(PROBE_TIMEOUT)
            .read_timeout(PROBE_TIMEOUT)
            .read_attempts(1)
            .build()
            .map_err(LaunchError::Refused)?;
        let answered = async {
            loop {
                let Err(error) = probe.health().await else { return Ok(()) };
                match error.kind() {
                    _ if error.is_unauthorized() => return Err(LaunchError::Refused(error)),
                    // A server that has no such route answers it all the same.
                    ApiErrorKind::Status(_) | ApiErrorKind::NotJson { .. } => return Ok(()),
                    _ => sleep(PROBE_PAUSE).await,
                }
            }
        };
        tokio::select! {
            answered = answered => answered?,
            status = self.child.wait() => {
                return Err(LaunchError::Exited(self.clean_up(status.ok(), false).await));
            }
        }
        // Checks the caller's client options, which the probe did not use.
        options.client(&url, password).map_err(LaunchError::Refused)?;
        self.url = url;
        Ok(())
    }
}

fn spawn(
    options: &LaunchOptions,
    password: &Arc<str>,
    hide: &HidePassword,
    variables: BTreeMap<OsString, OsString>,
    group: &ProcessGroup,
) -> Result<Child, LaunchError> {
    let program = options.program();
    let mut command = Command::new(&program);
    let config =
        hide.configure(options.config.as_ref(), variables.get(OsStr::new(CONFIG)).map(OsString::as_os_str));
    command
        .args(["serve", "--hostname", HOST, "--port", &options.port.to_string()])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        // A server must not replace itself under a running turn.
        .env("OPENCODE_DISABLE_AUTOUPDATE", "1");
    if let Some(directory) = &options.directory {
        command.current_dir(directory);
    }
    command
        .envs(variables)
        .envs(config.map(|config| (CONFIG, config)))
        .env("OPENCODE_SERVER_USERNAME", "opencode")
        .env("OPENCODE_SERVER_PASSWORD", &**password);
    group.prepare(&mut command);
    command.spawn().map_err(|source| {
        let executable = program.display().to_string();
        if source.kind() == io::ErrorKind::NotFound {
            LaunchError::NotFound { executable, source }
        } else {
            LaunchError::Spawn { executable, source }
        }
    })
}

/// Whether an address is the one that a server was told to listen on. Whatever else it may say, it gets no password.
fn is_told_address(url: &str, port: u16) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let is_bare = url.username().is_empty() && url.password().is_none() && url.path() == "/";
    let is_port = url.port().is_some_and(|said| port == 0 || said == port);
    url.scheme() == "http" && url.host_str() == Some(HOST) && is_bare && is_port
}

/// The address in a line such as `opencode server listening on http://127.0.0.1:4096`.
fn listening_url(line: &str) -> Option<String> {
    let (_, address) = line.split_once("listening on ")?;
    let url = address.split_whitespace().next()?;
    url.starts_with("http").then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_that_a_server_was_told_is_talked_to() {
        for (url, port, is_told) in [
            ("http://127.0.0.1:4096", 0, true),
            ("http://127.0.0.1:4096/", 4096, true),
            ("http://127.0.0.1:4097", 4096, false),
            ("http://127.0.0.1", 0, false),
            ("https://127.0.0.1:4096", 0, false),
            ("http://10.0.0.1:4096", 0, false),
            ("http://0.0.0.0:4096", 0, false),
            ("http://localhost:4096", 0, false),
            ("http://127.0.0.1.example.org:4096", 0, false),
            ("http://example.org:4096", 4096, false),
            ("http://127.0.0.1:4096@example.org:80", 0, false),
            ("http://user@127.0.0.1:4096", 0, false),
            ("http://127.0.0.1:4096/proxy", 0, false),
            ("http://", 0, false),
        ] {
            assert_eq!(is_told_address(url, port), is_told, "{url}, {port}");
        }
    }

    #[test]
    fn the_address_is_read_from_the_line_that_announces_it() {
        let url = |line| listening_url(line);
        assert_eq!(
            url("opencode server listening on http://127.0.0.1:4096").as_deref(),
            Some("http://127.0.0.1:4096")
        );
        assert_eq!(url("INFO listening on http://[::1]:1 (pid 3)").as_deref(), Some("http://[::1]:1"));
        assert_eq!(url("listening on port 4096"), None);
        assert_eq!(url("Warning: OPENCODE_SERVER_PASSWORD is not set"), None);
    }
}

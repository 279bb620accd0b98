//! One process of Claude Code: what is written to it, what it says, and its end.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{error::ClaudeError, options::ClaudeOptions};
use crate::process::{LastLines, OUTPUT_GRACE, ProcessGroup, clean_up, read_lines};

/// The longest line that is read: a tool's result with a large image is some 10 MB.
pub(super) const MAX_LINE: usize = 64 << 20;

/// What to start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) arguments: Vec<OsString>,
    pub(super) directory: PathBuf,
}

/// A line of standard output.
pub(super) enum Line<'a> {
    /// The line, without its end.
    Whole(&'a [u8]),
    /// The line was longer than [`MAX_LINE`].
    TooLong,
}

/// A process that was started. Dropping it closes its pipes: it finishes what it does, and ends.
#[derive(Debug)]
pub(super) struct Process {
    input: Option<mpsc::UnboundedSender<String>>,
    group: Arc<ProcessGroup>,
    exit: watch::Receiver<Option<Exit>>,
    id: Option<u32>,
    /// Ends the tasks that read and write, and so closes the pipes.
    _tasks: DropGuard,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub(super) status: Option<ExitStatus>,
    pub(super) stderr: Vec<String>,
}

impl Exit {
    pub(super) fn into_error(self) -> ClaudeError {
        let status = self.status.map(|status| status.to_string());
        ClaudeError::Exited { status, stderr: self.stderr }
    }
}

impl Process {
    /// Starts a process. Its output goes to `take`, line by line, for as long as it lives.
    pub(super) fn start(
        options: &ClaudeOptions,
        launch: &Launch,
        tasks: &TaskTracker,
        take: impl FnMut(Line<'_>) + Send + 'static,
    ) -> Result<Self, ClaudeError> {
        let group = Arc::new(ProcessGroup::default());
        let mut child = spawn(options, launch, &group)?;
        let id = child.id();
        group.set(id);
        let stderr = LastLines::new(options.secrets());
        let (readers, released) = (TaskTracker::new(), CancellationToken::new());
        if let Some(pipe) = child.stderr.take() {
            let lines = stderr.clone();
            readers.spawn(until(&released, read_lines(pipe, move |line| lines.push(&line))));
        }
        if let Some(pipe) = child.stdout.take() {
            readers.spawn(until(&released, read_output(pipe, take)));
        }
        readers.close();
        let (ended, exit) = watch::channel(None);
        let (input, lines) = mpsc::unbounded_channel();
        if let Some(pipe) = child.stdin.take() {
            let writes = write_input(pipe, lines, Arc::clone(&group), exit.clone());
            tasks.spawn(until(&released, writes));
        }
        tasks.spawn(until(&released, wait(child, Arc::clone(&group), readers, stderr, ended)));
        Ok(Self { input: Some(input), group, exit, id, _tasks: released.drop_guard() })
    }

    /// The id of the process and of its group.
    pub(super) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Writes a line. A process that has ended does not read it.
    pub(super) fn write(&self, line: String) {
        if let Some(input) = &self.input {
            // The process may have ended; its exit says so.
            drop(input.send(line));
        }
    }

    /// Closes standard input: the process finishes what it does and ends.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Kills the process and everything that it started.
    pub(super) fn kill(&self) {
        self.group.kill();
    }

    /// How it ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit.borrow().clone()
    }

    /// Waits until it has ended.
    pub(super) fn exited(&self) -> impl Future<Output = Option<Exit>> + Send + use<> {
        let mut exit = self.exit.clone();
        // The sender is gone only if its runtime is.
        async move { exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone()) }
    }
}

fn spawn(options: &ClaudeOptions, launch: &Launch, group: &ProcessGroup) -> Result<Child, ClaudeError> {
    let program = options.program();
    let directory = options.start_in.as_ref().unwrap_or(&launch.directory);
    let mut command = Command::new(&program);
    command
        .args(&launch.arguments)
        .args(&options.arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // What is said at the end of all work, background agents included: without it a turn has no certain end.
        .env("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1")
        // A process must not replace itself under a running turn.
        .env("DISABLE_AUTOUPDATER", "1")
        .env("CONDUCTOR_DIRECTORY", &launch.directory)
        .envs(options.environment.iter().map(|(name, value)| (name, value)))
        .env("CLAUDE_CONFIG_DIR", options.config());
    group.prepare(&mut command);
    command.spawn().map_err(|source| start_error(&program, directory.clone(), source))
}

pub(super) fn start_error(program: &std::path::Path, directory: PathBuf, source: io::Error) -> ClaudeError {
    let executable = program.display().to_string();
    // A directory that does not exist is "not found", too.
    if source.kind() == io::ErrorKind::NotFound && directory.is_dir() {
        ClaudeError::NotFound { executable, source }
    } else {
        ClaudeError::Spawn { executable, directory, source }
    }
}

/// Does something until it is done or the process is let go.
fn until<T: Future<Output = ()> + Send>(
    released: &CancellationToken,
    task: T,
) -> impl Future<Output = ()> + Send + use<T> {
    let released = released.clone();
    async move {
        tokio::select! { () = released.cancelled() => {}, () = task => {} }
    }
}

/// Writes line by line until the sender or the process is gone.
async fn write_input(
    mut pipe: ChildStdin,
    mut lines: mpsc::UnboundedReceiver<String>,
    group: Arc<ProcessGroup>,
    mut exit: watch::Receiver<Option<Exit>>,
) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if pipe.write_all(line.as_bytes()).await.is_err() || pipe.flush().await.is_err() {
            // A process that does not listen any more is of no use, unless it is about to say why.
            let ended = exit.wait_for(Option::is_some);
            if timeout(OUTPUT_GRACE, ended).await.is_err() {
                group.kill();
            }
            return;
        }
    }
}

/// Waits for the end of a process, ends what it left behind, and tells how it ended once its last lines were read.
async fn wait(
    mut child: Child,
    group: Arc<ProcessGroup>,
    readers: TaskTracker,
    stderr: LastLines,
    ended: watch::Sender<Option<Exit>>,
) {
    let status = child.wait().await.ok();
    let stderr = clean_up(&group, &readers, &stderr).await;
    ended.send_replace(Some(Exit { status, stderr }));
}

/// Reads lines until the end. One that is too long costs no memory, and the next is read.
async fn read_output(pipe: impl AsyncRead + Unpin, mut take: impl FnMut(Line<'_>)) {
    let mut reader = BufReader::with_capacity(64 << 10, pipe);
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let Ok(chunk) = reader.fill_buf().await else { return };
        if chunk.is_empty() {
            // Half a line is what a process leaves that is killed.
            return;
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if line.len() + part.len() > MAX_LINE {
            is_too_long = true;
            line = Vec::new();
        }
        if !is_too_long {
            line.extend_from_slice(part);
        }
        let n_read = part.len() + usize::from(end.is_some());
        reader.consume(n_read);
        if end.is_some() {
            match (is_too_long, line.trim_ascii()) {
                (true, _) => take(Line::TooLong),
                (false, []) => {}
                (false, whole) => take(Line::Whole(whole)),
            }
            line.clear();
            is_too_long = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_whole_or_left_out() {
        let mut text = b"one\n\n  two \r\n".to_vec();
        text.extend(vec![b'x'; MAX_LINE + 1]);
        text.extend(b"\nthree\nhalf a li");
        let mut seen = Vec::new();
        read_output(&*text, |line| {
            seen.push(match line {
                Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                Line::TooLong => "too long".to_owned(),
            });
        })
        .await;
        assert_eq!(seen, ["one", "two", "too long", "three"]);
    }
}

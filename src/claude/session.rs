//! A session of Claude Code.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    ClaudeFiles, FileRead,
    agent::{Shared, uuid},
    claim::Claim,
    error::ClaudeError,
    live::Live,
    options::OnRelease,
    process::{Exit, Launch, Process},
    recorded::Recorded,
    request::{Request, Setup},
    rest::{Awaited, NotSent},
};
use crate::{
    agent::{
        AbortReport, AgentError, BoxFuture, Execution, IdleOutcome, OpenSession, Phase, PreparedPrompt,
        PromptSpec, TurnHost, Unprepared,
    },
    directory::Directory,
    ids::{MessageId, SessionId},
    lock::lock,
    transcript::CombinedTranscript,
    wall_clock::now,
};

/// How long a process that has nothing to do may take to end.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// The flags that make stream and transcript alike, and permissions ours to answer.
const FLAGS: [&str; 11] = [
    "-p",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--replay-user-messages",
    "--forward-subagent-text",
    "--permission-prompt-tool",
    "stdio",
];

/// A session of Claude Code.
pub(super) struct ClaudeSession {
    pub(super) id: SessionId,
    pub(super) directory: Directory,
    pub(super) shared: Arc<Shared>,
    pub(super) live: Arc<Live>,
    held: Mutex<Option<Held>>,
}

/// What the owner of a session holds.
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) process: Option<Process>,
    pub(super) setup: Setup,
}

impl ClaudeSession {
    pub(super) fn new(id: SessionId, directory: Directory, shared: Arc<Shared>, live: Live) -> Self {
        Self { id, directory, shared, live: Arc::new(live), held: Mutex::default() }
    }

    /// For short sections only, never across an await.
    pub(super) fn held(&self) -> MutexGuard<'_, Option<Held>> {
        lock(&self.held)
    }

    /// Writes a line to the process.
    pub(super) fn write(&self, line: String) {
        if let Some(process) = self.held().as_ref().and_then(|held| held.process.as_ref()) {
            process.write(line);
        }
    }

    /// Whether there is a process that has not ended.
    pub(super) fn is_listening(&self) -> bool {
        let held = self.held();
        held.as_ref().and_then(|held| held.process.as_ref()).is_some_and(|process| process.exit().is_none())
    }

    /// Waits for the end of the process, if there is one.
    pub(super) fn exited(&self) -> Option<impl Future<Output = Option<Exit>> + Send + use<>> {
        self.held().as_ref()?.process.as_ref().map(Process::exited)
    }

    /// Lets go of the session. A turn that runs goes on without its owner, unless the options say otherwise.
    pub(super) fn release(&self) {
        let Some(held) = self.held().take() else { return };
        if let Some(process) = &held.process
            && self.shared.options.on_release == OnRelease::Kill
        {
            process.kill();
        }
    }

    /// Reads the session's files and tells the conversation what they say.
    fn read(&self) -> Result<Option<ClaudeFiles>, ClaudeError> {
        let files = self.shared.files.read(&self.id, &self.directory)?;
        // A process may write its last lines a moment after it has said them.
        let read = if self.is_quiet() { FileRead::Final } else { FileRead::MayLag };
        if let Some(files) = &files {
            self.live.read(files, read);
        }
        Ok(files)
    }

    /// Whether no process works with the session, here or elsewhere.
    fn is_quiet(&self) -> bool {
        match self.held().as_ref() {
            Some(held) => held.process.as_ref().is_none_or(|process| process.exit().is_some()),
            None => Claim::is_free(&self.shared.files.lock(&self.id), &self.id),
        }
    }

    pub(super) fn look_up(&self, prompt: &MessageId) -> Result<Recorded, ClaudeError> {
        let files = self.read()?;
        Ok(files.map(|files| files.look_up(&self.id, prompt)).unwrap_or_default())
    }

    /// Makes sure that a process runs which was started with this set-up.
    pub(super) async fn start(&self, setup: &Setup) -> Result<(), ClaudeError> {
        let old = {
            let mut held = self.held();
            let Some(held) = held.as_mut() else { return Err(self.in_use()) };
            let is_fit = held.setup == *setup;
            match &held.process {
                Some(process) if is_fit && process.exit().is_none() => return Ok(()),
                _ => held.process.take(),
            }
        };
        if let Some(mut old) = old {
            old.close_input();
            let exited = old.exited();
            if timeout(CLOSE_GRACE, exited).await.is_err() {
                old.kill();
                old.exited().await;
            }
        }
        self.shared.files.end_half_line(&self.id, &self.directory)?;
        let disk = self.read()?;
        let mut arguments: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
        let resumes = disk.as_ref().is_some_and(ClaudeFiles::has_messages);
        if disk.is_some() && !resumes {
            self.shared.files.set_aside(&self.id, &self.directory)?;
        }
        arguments.push(if resumes { "--resume" } else { "--session-id" }.into());
        arguments.push(self.id.as_str().into());
        arguments.extend(setup.arguments().into_iter().map(OsString::from));
        let launch = Launch { arguments, directory: self.directory.as_path().to_owned() };
        let number = self.live.restart(disk.as_ref().and_then(ClaudeFiles::cost));
        let live = Arc::clone(&self.live);
        let process = Process::start(&self.shared.options, &launch, &self.shared.tasks, move |line| {
            live.line(number, &line);
        })?;
        let mut held = self.held();
        let Some(held) = held.as_mut() else { return Err(self.in_use()) };
        held.claim.set_process(process.id())?;
        held.setup = setup.clone();
        held.process = Some(process);
        Ok(())
    }

    pub(super) fn in_use(&self) -> ClaudeError {
        ClaudeError::SessionInUse { session: self.id.clone() }
    }

    async fn prepare(&self, spec: &PromptSpec, turn: &dyn TurnHost) -> Result<PreparedPrompt, Unprepared> {
        if !self.live.state().activity.is_at_rest() {
            self.come_to_rest(turn, turn.limits(), Awaited::Earlier).await?;
        }
        let prompt = spec.message_id.clone().unwrap_or_else(|| MessageId::new(uuid()));
        let before = self.held().as_ref().map(|held| held.setup.clone()).unwrap_or_default();
        let request = Request::new(spec, &prompt, before).map_err(NotSent::from)?;
        let request = serde_json::to_string(&request).unwrap_or_default();
        Ok(PreparedPrompt::new(self.id.clone(), prompt, spec.text(), now().into(), request))
    }

    async fn wait_for_rest(&self, turn: &dyn TurnHost) -> Result<IdleOutcome, Unprepared> {
        self.come_to_rest(turn, turn.limits(), Awaited::Own).await?;
        let files = self.read().map_err(NotSent::from)?;
        Ok(files.map_or(IdleOutcome::Rest(None), |files| files.rest()))
    }
}

impl Drop for ClaudeSession {
    fn drop(&mut self) {
        self.release();
    }
}

impl OpenSession for ClaudeSession {
    fn prepare<'a>(
        &'a self,
        prompt: &'a PromptSpec,
        turn: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Result<PreparedPrompt, Unprepared>> {
        Box::pin(self.prepare(prompt, turn))
    }

    fn execute<'a>(
        &'a self,
        prompt: &'a PreparedPrompt,
        from: Phase,
        turn: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Execution> {
        Box::pin(self.execute(prompt, from, turn))
    }

    fn wait_for_rest<'a>(&'a self, turn: &'a dyn TurnHost) -> BoxFuture<'a, Result<IdleOutcome, Unprepared>> {
        Box::pin(self.wait_for_rest(turn))
    }

    fn abort(&self) -> BoxFuture<'_, AbortReport> {
        Box::pin(self.abort())
    }

    fn load(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async move { Ok(self.read().map(drop)?) })
    }

    fn transcript(&self) -> BoxFuture<'_, Result<Option<CombinedTranscript>, AgentError>> {
        Box::pin(async move {
            let read = self.shared.files.combined(&self.id, &self.directory)?;
            // Before its first prompt it has no file.
            Ok(Some(read.unwrap_or_default()))
        })
    }
}

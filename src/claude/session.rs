//! A session of Claude Code.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ClaudeFiles, FileRead,
    activity::{Progress, Waiting},
    agent::{Shared, uuid},
    ask,
    claim::{self, Claim, LOOK_AGAIN},
    clock::{Clock, Due},
    error::ClaudeError,
    live::Live,
    options::OnRelease,
    process::{Exit, Launch, Process},
    recorded::{NOT_LOGGED_IN, Recorded},
    request::{Request, Setup},
    wait::{Wait, Waited},
    wire::TurnResult,
};
use crate::{
    agent::{
        AbortReport, AgentError, BoxFuture, Completion, Delivery, Ended, Execution, Failure, IdleOutcome,
        NativeMessages, Notice, OpenSession, Phase, PreparedPrompt, PromptSpec, Stop, StopRequest,
        TimeoutAction, TurnHost, Unprepared, WaitOptions,
    },
    directory::Directory,
    ids::{MessageId, SessionId},
    wall_clock::now,
};

/// How long an owner that is about to let go of a session is waited for.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// How long an interrupted turn may take to end before its process is killed: an abort has ten seconds in all.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// How long a process that has nothing to do may take to end.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
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
    directory: Directory,
    shared: Arc<Shared>,
    pub(super) live: Arc<Live>,
    held: Mutex<Option<Held>>,
}

/// What the owner of a session holds.
struct Held {
    claim: Claim,
    process: Option<Process>,
    setup: Setup,
}

/// Why a prompt did not come as far as its turn.
struct NotSent {
    ended: Ended,
    abort: Option<AbortReport>,
    cause: Option<AgentError>,
}

impl From<ClaudeError> for NotSent {
    fn from(error: ClaudeError) -> Self {
        Self { ended: Ended::NotDelivered, abort: None, cause: Some(error.into()) }
    }
}

impl From<NotSent> for Unprepared {
    fn from(not_sent: NotSent) -> Self {
        Self::new(not_sent.ended, not_sent.cause)
    }
}

impl ClaudeSession {
    pub(super) fn new(id: SessionId, directory: Directory, shared: Arc<Shared>, live: Live) -> Self {
        Self { id, directory, shared, live: Arc::new(live), held: Mutex::default() }
    }

    /// For short sections only, never across an await.
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line to the process.
    pub(super) fn write(&self, line: String) {
        if let Some(process) = self.held().as_ref().and_then(|held| held.process.as_ref()) {
            process.write(line);
        }
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
        let read = if self.has_exited() { FileRead::Final } else { FileRead::MayLag };
        if let Some(files) = &files {
            self.live.read(files, read);
        }
        Ok(files)
    }

    fn has_exited(&self) -> bool {
        let held = self.held();
        let process = held.as_ref().and_then(|held| held.process.as_ref());
        process.is_none_or(|process| process.exit().is_some())
    }

    fn look_up(&self, prompt: &MessageId) -> Result<Recorded, ClaudeError> {
        let files = self.read()?;
        Ok(files.map(|files| files.look_up(&self.id, prompt)).unwrap_or_default())
    }

    /// Makes sure that nobody else works with the session, and that nothing runs in it.
    async fn come_to_rest(&self, turn: &dyn TurnHost, limits: &WaitOptions) -> Result<(), NotSent> {
        let is_held = self.held().is_some();
        if !is_held {
            let path = self.shared.files.lock(&self.id);
            let mut claim = tokio::select! {
                claim = Claim::take(&path, &self.id, CLAIM_PATIENCE) => claim?,
                stop = turn.stop_requested() => return Err(stopped(stop, None)),
            };
            if let Some(process) = claim.process() {
                self.outwait(process, turn, limits).await?;
            }
            *self.held() = Some(Held { claim, process: None, setup: Setup::default() });
            return Ok(());
        }
        if self.live.state().activity.is_at_rest() {
            return Ok(());
        }
        match Wait::for_rest(self, turn, limits).wait().await {
            Waited::Rest | Waited::Exited(_) => Ok(()),
            Waited::Limit(limit) => {
                let abort = self.abort_on_limit(turn, limits).await;
                Err(NotSent { ended: Ended::Limit(limit), abort, cause: None })
            }
            Waited::Stopped(StopRequest::Abort) => Err(stopped(StopRequest::Abort, Some(self.abort().await))),
            Waited::Stopped(StopRequest::GiveUp) => Err(stopped(StopRequest::GiveUp, None)),
            Waited::Refused => {
                let abort = Some(self.abort().await);
                Err(NotSent { ended: Ended::Stopped(Stop::Refused), abort, cause: None })
            }
            Waited::NotRecorded => Err(NotSent { ended: Ended::NotRecorded, abort: None, cause: None }),
        }
    }

    /// Waits for a process whose owner is gone: it finishes its turn and ends.
    async fn outwait(&self, process: u32, turn: &dyn TurnHost, limits: &WaitOptions) -> Result<(), NotSent> {
        let mut clock = Clock::new(Instant::now(), limits);
        while claim::is_running(process, &self.id) {
            // Its file is all that shows progress, and a tool that runs shows none.
            let path = self.shared.files.transcript(&self.id, Some(&self.directory));
            let size = path.and_then(|path| path.metadata().ok()).map_or(0, |file| file.len());
            clock.observe(Instant::now(), size, Waiting::Tool, false);
            if let Some((at, Due::Limit(limit))) = clock.next(Waiting::Tool)
                && at <= Instant::now()
            {
                let abort = match limits.on_limit {
                    TimeoutAction::Abort => Some(self.end_left_behind(process).await),
                    TimeoutAction::Leave => None,
                };
                return Err(NotSent { ended: Ended::Limit(limit), abort, cause: None });
            }
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                stop = turn.stop_requested() => {
                    let abort = match stop {
                        StopRequest::Abort => Some(self.end_left_behind(process).await),
                        StopRequest::GiveUp => None,
                    };
                    return Err(stopped(stop, abort));
                }
            }
        }
        Ok(())
    }

    /// Ends a process whose owner is gone.
    async fn end_left_behind(&self, process: u32) -> AbortReport {
        claim::kill(process, &self.id);
        let ended = async {
            while claim::is_running(process, &self.id) {
                sleep(LOOK_AGAIN).await;
            }
        };
        let confirmed = timeout(CLOSE_GRACE, ended).await.is_ok();
        AbortReport::new(confirmed, vec![self.id.clone()])
    }

    /// Makes sure that a process runs which was started with this set-up.
    async fn start(&self, setup: &Setup) -> Result<(), ClaudeError> {
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
        let disk = self.read()?;
        let mut arguments: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
        let resumes = disk.as_ref().is_some_and(ClaudeFiles::has_messages);
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

    fn in_use(&self) -> ClaudeError {
        ClaudeError::SessionInUse { session: self.id.clone() }
    }

    async fn prepare(&self, spec: &PromptSpec, turn: &dyn TurnHost) -> Result<PreparedPrompt, Unprepared> {
        if !self.live.state().activity.is_at_rest() {
            let limits = turn.limits().clone().on_limit(TimeoutAction::Leave);
            self.come_to_rest(turn, &limits).await?;
        }
        let prompt = spec.message_id.clone().unwrap_or_else(|| MessageId::new(uuid()));
        let before = self.held().as_ref().map(|held| held.setup.clone()).unwrap_or_default();
        let request = Request::new(spec, &prompt, before).map_err(NotSent::from)?;
        let request = serde_json::to_string(&request).unwrap_or_default();
        Ok(PreparedPrompt::new(self.id.clone(), prompt, spec.text(), now().into(), request))
    }

    async fn execute(&self, prompt: &PreparedPrompt, from: Phase, turn: &dyn TurnHost) -> Execution {
        match self.run(prompt, from, turn).await {
            Ok(execution) => execution,
            Err(NotSent { ended, abort, cause }) => {
                let mut execution = Execution::new(ended, from.delivery());
                (execution.abort, execution.cause) = (abort, cause);
                execution
            }
        }
    }

    async fn run(
        &self,
        prompt: &PreparedPrompt,
        from: Phase,
        turn: &dyn TurnHost,
    ) -> Result<Execution, NotSent> {
        let limits = turn.limits();
        self.come_to_rest(turn, limits).await?;
        if from > Phase::Prepared {
            let recorded = self.look_up(&prompt.message_id)?;
            if let Some(execution) = known_end(recorded, from >= Phase::Accepted) {
                return Ok(execution);
            }
        }
        // A prompt that is only looked for has none.
        let request: Request = serde_json::from_str(&prompt.request).map_err(|error| {
            let cause = AgentError::new(crate::agent::AgentErrorKind::Failed, Delivery::NotSent, error);
            NotSent { ended: Ended::NotDelivered, abort: None, cause: Some(cause) }
        })?;
        let mut n_sent = 0;
        loop {
            self.start(&request.setup).await?;
            if from == Phase::Prepared && n_sent == 0 && turn.record(Phase::Submitted).await.is_err() {
                return Ok(Execution::new(Ended::NotRecorded, Delivery::NotSent));
            }
            turn.notice(Notice::submitted(prompt.message_id.clone(), n_sent > 0));
            n_sent += 1;
            self.live.state().activity.begin(prompt.message_id.clone());
            self.write(request.line.clone());
            let waited = Wait::for_prompt(self, turn, limits).wait().await;
            let Waited::Exited(exit) = waited else {
                return Ok(self.conclude(&prompt.message_id, waited, turn).await);
            };
            let (progress, has_spoken) = {
                let activity = &self.live.state().activity;
                (activity.progress, activity.has_spoken)
            };
            let recorded = self.look_up(&prompt.message_id)?;
            let is_refusal = !has_spoken && exit.status.is_some_and(|status| status.code().is_some());
            let cause = self.exit_error(exit);
            if let Some(execution) = known_end(recorded, progress >= Progress::Started) {
                let cause = Some(cause.at(Delivery::Started));
                return Ok(Execution { cause, ..execution });
            }
            // Nothing of it is on disk, and no model was called: it may be sent again.
            if is_refusal || n_sent > limits.max_kicks {
                let delivery = if progress == Progress::Sent { Delivery::NotSent } else { Delivery::Unknown };
                let cause = Some(cause.at(delivery));
                return Ok(Execution { cause, ..Execution::new(Ended::NotDelivered, delivery) });
            }
        }
    }

    /// What became of a prompt that was waited for.
    async fn conclude(&self, prompt: &MessageId, waited: Waited, turn: &dyn TurnHost) -> Execution {
        // Before an abort, which ends also what has not begun.
        let progress = self.live.state().activity.progress;
        let (ended, abort) = match waited {
            Waited::Rest => return self.at_rest(prompt, turn.limits()).await,
            Waited::Limit(limit) => (Ended::Limit(limit), self.abort_on_limit(turn, turn.limits()).await),
            Waited::Stopped(StopRequest::Abort) => (Ended::Stopped(Stop::Aborted), Some(self.abort().await)),
            Waited::Refused => (Ended::Stopped(Stop::Refused), Some(self.abort().await)),
            Waited::Stopped(StopRequest::GiveUp) | Waited::Exited(_) => (Ended::Stopped(Stop::GivenUp), None),
            Waited::NotRecorded => (Ended::NotRecorded, None),
        };
        let has_stopped = abort.as_ref().is_some_and(|abort| abort.confirmed);
        let recorded =
            if has_stopped { self.look_up(prompt).unwrap_or_default() } else { Recorded::default() };
        let mut execution = Execution::new(ended, delivery(progress));
        execution.abort = abort;
        self.describe(&mut execution, recorded);
        execution
    }

    /// What became of a prompt, now that nothing runs.
    async fn at_rest(&self, prompt: &MessageId, limits: &WaitOptions) -> Execution {
        let (result, login_failure) = {
            let activity = &self.live.state().activity;
            (activity.result.clone(), activity.login_failure.clone())
        };
        if let Some(said) = login_failure {
            let cause = Some(ClaudeError::NotLoggedIn { said }.at(Delivery::Accepted));
            return Execution { cause, ..Execution::new(Ended::Unauthorized, Delivery::Accepted) };
        }
        let recorded = self.on_disk(prompt, limits).await;
        self.end_if_stuck().await;
        let completion = match &result {
            Some(result) => completion(result),
            // It was answered before.
            None => recorded.completion.clone().unwrap_or(Completion::Interrupted),
        };
        let said = result.filter(|_| completion.is_settled()).and_then(|result| result.result);
        let mut execution = Execution::new(Ended::Completed(completion), Delivery::Started);
        self.describe(&mut execution, recorded);
        execution.answer = said.filter(|said| !said.trim().is_empty()).or(execution.answer);
        execution
    }

    /// Ends a process that has told its result, but not that it is at rest: the next prompt needs one that listens.
    async fn end_if_stuck(&self) {
        if self.live.state().activity.is_at_rest() {
            return;
        }
        let process = self.held().as_mut().and_then(|held| held.process.take());
        if let Some(process) = process {
            process.kill();
            // Killed processes end.
            drop(timeout(CLOSE_GRACE, process.exited()).await);
        }
    }

    /// Reads what is on disk about a turn that is over. Its last lines may take a moment to get there.
    async fn on_disk(&self, prompt: &MessageId, limits: &WaitOptions) -> Recorded {
        let give_up = Instant::now() + limits.settle_grace;
        loop {
            let recorded = self.look_up(prompt).unwrap_or_else(|error| {
                tracing::warn!(session = %self.id, %error, "the transcript cannot be read");
                Recorded::default()
            });
            // A turn that is over does not end in the middle.
            let is_whole = recorded.completion.as_ref().is_some_and(|end| *end != Completion::Interrupted);
            if is_whole || Instant::now() >= give_up {
                return recorded;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Adds to an execution what the stream and the files say about its turn.
    fn describe(&self, execution: &mut Execution, recorded: Recorded) {
        let mut state = self.live.state();
        let activity = &mut state.activity;
        execution.messages = NativeMessages::new(std::mem::take(&mut activity.messages));
        execution.usage = recorded.usage;
        if let Some(cost) = activity.cost {
            let usage = execution.usage.entry(self.id.clone()).or_default();
            usage.cost = (cost - activity.cost_before).max(0.0);
        }
        execution.answer = recorded.answer;
        if execution.cause.is_none() {
            execution.cause = state.malformed.take().map(|error| error.at(execution.delivery));
        }
    }

    /// Why the process ended.
    fn exit_error(&self, exit: Exit) -> ClaudeError {
        let says = |words: &str| exit.stderr.iter().any(|line| line.contains(words));
        if says("is already in use") {
            return self.in_use();
        }
        if says("No conversation found") {
            let config = self.shared.files.config.clone();
            return ClaudeError::NoSuchSession { session: self.id.clone(), config };
        }
        exit.into_error()
    }

    async fn abort_on_limit(&self, turn: &dyn TurnHost, limits: &WaitOptions) -> Option<AbortReport> {
        if limits.on_limit == TimeoutAction::Leave {
            return None;
        }
        let report = self.abort().await;
        turn.notice(Notice::Aborted(report.clone()));
        Some(report)
    }

    /// Interrupts whatever runs; kills what does not listen.
    async fn abort(&self) -> AbortReport {
        let report = |confirmed| AbortReport::new(confirmed, vec![self.id.clone()]);
        let Some(exited) = self.exited() else { return self.abort_left_behind().await };
        if self.live.state().activity.is_at_rest() {
            return report(true);
        }
        self.write(ask::interrupt(&uuid().into()));
        let mut changes = self.live.changes();
        let at_rest =
            async { while !self.live.state().activity.is_at_rest() && changes.changed().await.is_ok() {} };
        let stopped = async {
            tokio::select! { () = at_rest => {}, _ = exited => {} }
        };
        if timeout(INTERRUPT_GRACE, stopped).await.is_ok() {
            return report(true);
        }
        let exited = {
            let held = self.held();
            let process = held.as_ref().and_then(|held| held.process.as_ref());
            process.map(|process| {
                process.kill();
                process.exited()
            })
        };
        match exited {
            Some(exited) => report(timeout(CLOSE_GRACE, exited).await.is_ok()),
            None => report(true),
        }
    }

    /// Ends what an owner left behind, unless somebody has the session now.
    async fn abort_left_behind(&self) -> AbortReport {
        let nothing = AbortReport::new(true, vec![self.id.clone()]);
        if self.held().is_some() {
            return nothing;
        }
        match Claim::take(&self.shared.files.lock(&self.id), &self.id, Duration::ZERO).await {
            Ok(mut claim) => match claim.process() {
                Some(process) => self.end_left_behind(process).await,
                None => nothing,
            },
            Err(_) => AbortReport::new(false, vec![self.id.clone()]),
        }
    }

    async fn wait_for_rest(&self, turn: &dyn TurnHost) -> Result<IdleOutcome, Unprepared> {
        self.come_to_rest(turn, turn.limits()).await?;
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
}

/// The end of a prompt that is known from disk. One that the model was called for, and that has no answer there, was interrupted.
fn known_end(recorded: Recorded, is_over: bool) -> Option<Execution> {
    let completion = match recorded.completion {
        Some(Completion::Failed(failure)) if failure.name == NOT_LOGGED_IN => {
            let cause = Some(ClaudeError::NotLoggedIn { said: failure.message }.at(Delivery::Accepted));
            return Some(Execution { cause, ..Execution::new(Ended::Unauthorized, Delivery::Accepted) });
        }
        Some(completion) => completion,
        None if is_over => Completion::Interrupted,
        None => return None,
    };
    let mut execution = Execution::new(Ended::Completed(completion), Delivery::Started);
    execution.answer = recorded.answer;
    execution.usage = recorded.usage;
    Some(execution)
}

/// How a turn ended that has a result.
fn completion(result: &TurnResult) -> Completion {
    let reason = result.terminal_reason.as_deref().unwrap_or_default();
    if reason.starts_with("aborted") {
        return Completion::Aborted;
    }
    if !result.is_error {
        return Completion::Settled;
    }
    let name = if reason.is_empty() { result.subtype.as_str() } else { reason };
    let errors =
        || result.errors.iter().map(|error| error.as_str().map_or_else(|| error.to_string(), str::to_owned));
    let said = result.result.clone().filter(|said| !said.trim().is_empty());
    let mut failure = Failure::new(name, said.unwrap_or_else(|| errors().collect::<Vec<_>>().join("; ")));
    if let Some(status) = result.api_error_status {
        failure.is_retryable = status == 429 || status >= 500;
        failure.data = json!({"statusCode": status});
    }
    Completion::Failed(failure)
}

fn delivery(progress: Progress) -> Delivery {
    match progress {
        Progress::Sent => Delivery::Unknown,
        Progress::Taken => Delivery::Accepted,
        Progress::Started | Progress::Ended => Delivery::Started,
    }
}

fn stopped(request: StopRequest, abort: Option<AbortReport>) -> NotSent {
    let stop = match request {
        StopRequest::Abort => Stop::Aborted,
        StopRequest::GiveUp => Stop::GivenUp,
    };
    NotSent { ended: Ended::Stopped(stop), abort, cause: None }
}

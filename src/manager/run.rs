//! How a prompt runs, from its place in the queue to its result.

use std::{convert::Infallible, future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{Span, field::display, info, warn};

use super::{
    PromptError, PromptExecutionResult, PromptInput, SessionError, WhenBusy,
    ended::{answer, answer_aborts, pass_on},
    host::{Host, TurnState},
    inner::{Inner, check_same_directory},
    queue::{AbortCall, Permit, Place, Ticket},
    restore::{is_gone, turn_key},
    session::Session,
    updates::UpdateSender,
};
use crate::{
    agent::{
        AbortReport, Completion, Delivery, Ended, Execution, Limit, Phase, PreparedPrompt, PromptSpec,
        StopRequest, Unprepared, WaitOptions,
    },
    deadline::reached,
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
    store::TurnRecord,
};

/// How long an agent may take to stop waiting when it is told to. It has nothing to wait for then.
const GIVE_UP_GRACE: Duration = Duration::from_secs(5);

/// What is to be run.
pub(super) enum Work {
    /// A new prompt.
    Prompt(Box<PromptInput>),
    /// A turn that was begun before.
    Resume(Box<Resume>),
}

/// A turn that was begun before, by this process or an earlier one.
pub(super) struct Resume {
    pub(super) session: SessionId,
    pub(super) message: MessageId,
    /// What was recorded of it, if that was claimed already.
    pub(super) record: Option<TurnRecord>,
}

/// A session that is known already, with a place in its queue.
pub(super) struct Queued {
    pub(super) session: Arc<Session>,
    /// Nothing if the session is busy and the prompt does not want to wait.
    pub(super) ticket: Option<Ticket>,
}

/// A prompt's way through the manager.
pub(super) struct Run<'a> {
    pub(super) inner: &'a Inner,
    pub(super) work: &'a Work,
    /// Cancelled when the prompt's caller dropped it, or the manager is shut down.
    pub(super) abandoned: &'a CancellationToken,
    /// The span that it is logged in names its task.
    pub(super) is_task_named: bool,
}

/// A turn that may begin.
struct Admitted {
    permit: Permit,
    session: Arc<Session>,
    spec: PromptSpec,
}

/// Calls that want one prompt aborted, wherever it is.
pub(super) type AbortCalls = mpsc::UnboundedReceiver<AbortCall>;

/// A turn that was begun before, as far as is known.
struct Earlier {
    prompt: PreparedPrompt,
    from: Phase,
    /// The limits that it brought with it.
    limits: Option<WaitOptions>,
    /// The request was recorded, so that it can be sent again.
    is_recorded: bool,
}

/// What came of a prompt that was given to the agent.
struct Executed {
    prompt: PreparedPrompt,
    execution: Execution,
    limits: WaitOptions,
}

impl From<TurnRecord> for Earlier {
    fn from(record: TurnRecord) -> Self {
        Self { prompt: record.prompt, from: record.phase, limits: record.limits, is_recorded: true }
    }
}

impl Resume {
    pub(super) fn recorded(record: TurnRecord) -> Self {
        let (session, message) = turn_key(&record);
        Self { session, message, record: Some(record) }
    }

    pub(super) fn key(&self) -> (SessionId, MessageId) {
        (self.session.clone(), self.message.clone())
    }
}

impl Work {
    pub(super) fn session_id(&self) -> &SessionId {
        match self {
            Self::Prompt(input) => &input.session,
            Self::Resume(resume) => &resume.session,
        }
    }

    /// The task that its session belongs to, as far as is known.
    pub(super) fn task(&self, inner: &Inner) -> Option<TaskId> {
        let recorded = match self {
            Self::Prompt(_) => None,
            Self::Resume(resume) => resume.record.as_ref().and_then(|record| record.task_id.clone()),
        };
        recorded.or_else(|| inner.registry().meta(self.session_id()).and_then(|meta| meta.task_id))
    }

    /// How far it got before it was given to this manager, as far as is known.
    fn delivery(&self) -> Delivery {
        match self {
            Self::Prompt(_) => Delivery::NotSent,
            Self::Resume(resume) => {
                resume.record.as_ref().map_or(Delivery::Unknown, |record| record.phase.delivery())
            }
        }
    }

    /// Takes a place in the session's queue; nothing if it would have to wait and does not want to.
    pub(super) fn queue_up(&self, session: &Session) -> Option<Ticket> {
        if let Self::Prompt(input) = self
            && let Some(permit) = input.place.as_ref().and_then(Place::take)
        {
            return Some(Ticket::with(permit));
        }
        match self {
            Self::Prompt(input) if input.when_busy == WhenBusy::Refuse => session.queue.try_enter(),
            Self::Prompt(_) | Self::Resume(_) => Some(session.queue.enter()),
        }
    }
}

impl Run<'_> {
    /// Runs the prompt to its result, unless its caller drops it. `reader` gets the updates of its turn.
    pub(super) async fn run(
        &self,
        queued: Option<Queued>,
        reader: UpdateSender,
        aborts: AbortCalls,
    ) -> Result<PromptExecutionResult, PromptError> {
        let arrived = Instant::now();
        // Whether it is the caller's, in a handler or in what is told messages, or ours: the prompt ends, and the others go on.
        let ran = AssertUnwindSafe(self.wait_and_run(queued, reader, aborts)).catch_unwind().await;
        let result = ran.unwrap_or_else(|_panic| {
            let (session, task) = self.names();
            let result = Err(PromptError::Panicked { session, task });
            self.log(0, arrived, &result);
            result
        });
        self.inner.counters.ended(&result);
        result
    }

    async fn wait_and_run(
        &self,
        queued: Option<Queued>,
        reader: UpdateSender,
        mut aborts: AbortCalls,
    ) -> Result<PromptExecutionResult, PromptError> {
        let waiting = self.inner.counters.waiting.hold();
        let arrived = Instant::now();
        let entered = tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(self.inner.given_up(self.work.session_id(), self.work.delivery())),
            // A new prompt leaves the queue: there is nothing to abort yet.
            Some(call) = aborts.recv(), if matches!(self.work, Work::Prompt(_)) => {
                answer(vec![call], &AbortReport { confirmed: true, sessions: Vec::new() });
                Err(self.aborted())
            }
            entered = self.enter(queued) => entered,
        };
        drop(waiting);
        let admitted = match entered {
            Ok(admitted) => admitted,
            Err(error) => {
                let result = Err(error);
                self.log(0, arrived, &result);
                return result;
            }
        };
        let _running = self.inner.counters.begin();
        let began = Instant::now();
        if !self.is_task_named
            && let Some(task) = self.work.task(self.inner)
        {
            Span::current().record("task", display(task));
        }
        let session = Arc::clone(&admitted.session);
        let reading = session.conversation.read_along(reader);
        let result = self.run_turn(&admitted, &mut aborts, began).await;
        drop(reading);
        self.leave(admitted, aborts).await;
        result
    }

    /// Lets the next prompt have its turn. Calls that want this one aborted are answered before, since they do not mean the next.
    async fn leave(&self, admitted: Admitted, mut aborts: AbortCalls) {
        let Admitted { permit, session, .. } = admitted;
        aborts.close();
        while let Ok(call) = aborts.try_recv() {
            session.queue.abort(call);
        }
        if let Work::Prompt(input) = self.work
            && let Some(place) = &input.place
        {
            let calls = session.queue.take_aborts();
            if !calls.is_empty() {
                answer_aborts(&session, calls, None).await;
            }
            return place.put(permit);
        }
        pass_on(&session, permit, None).await;
    }

    /// Its session, and the task that this belongs to, as far as is known.
    fn names(&self) -> (SessionId, Option<TaskId>) {
        (self.work.session_id().clone(), self.work.task(self.inner))
    }

    /// The error of work that was aborted before it began.
    fn aborted(&self) -> PromptError {
        let (session, task) = self.names();
        let delivery = self.work.delivery();
        PromptError::Aborted { session, task, delivery, abort: None, source: None }
    }

    /// Everything before a prompt's turn: checks it, finds its session, reads its attachments and waits in the queue.
    async fn enter(&self, queued: Option<Queued>) -> Result<Admitted, PromptError> {
        let directory = match self.work {
            Work::Prompt(input) => {
                input.validate()?;
                input.directory.as_ref().map(Directory::new).transpose()?
            }
            Work::Resume(resume) => resume.record.as_ref().map(|record| record.directory.clone()),
        };
        let Queued { session, ticket } = if let Some(queued) = queued {
            check_same_directory(&queued.session, directory.as_ref())
                .map_err(|error| self.unopened(error))?;
            queued
        } else {
            let session = self.open(directory.as_ref()).await?;
            Queued { ticket: self.work.queue_up(&session), session }
        };
        let Some(ticket) = ticket else {
            return Err(PromptError::Busy { session: session.id.clone(), task: session.meta().task_id });
        };
        let mut spec = match self.work {
            Work::Prompt(input) => input.load().await?,
            Work::Resume(_) => PromptSpec::default(),
        };
        spec.default_model.clone_from(&self.inner.options.model);
        spec.default_agent.clone_from(&self.inner.options.agent);
        let Some(permit) = ticket.wait().await else {
            if let Work::Resume(resume) = self.work {
                // Nobody looks after it any more: the next prompt closes it.
                session.leave_open(resume.record.clone());
            }
            return Err(self.aborted());
        };
        Ok(Admitted { permit, session, spec })
    }

    fn unopened(&self, error: SessionError) -> PromptError {
        let (session, task) = self.names();
        PromptError::unopened(session, task, self.work.delivery(), error)
    }

    /// Takes over a session that is not known here. For a turn that was begun before it may be gone meanwhile, and the turn with it.
    async fn open(&self, directory: Option<&Directory>) -> Result<Arc<Session>, PromptError> {
        let opened = self.inner.session(self.work.session_id(), directory).await;
        let Work::Resume(resume) = self.work else {
            return opened.map_err(|error| self.unopened(error));
        };
        match opened {
            Ok(session) => {
                let task = resume.record.as_ref().and_then(|record| record.task_id.as_ref());
                if let Some(task) = task
                    && let Err(error) = self.inner.registry().assign(task, &session)
                {
                    warn!(%error, "the turn is not that of its task any more");
                }
                Ok(session)
            }
            Err(error) if is_gone(&error) => {
                let record = self.claimed(&resume.session, &resume.message).await?;
                let delivery = record.as_ref().map_or(Delivery::Unknown, |record| record.phase.delivery());
                if let Some(record) = &record {
                    self.close(record).await;
                }
                self.inner.forget(&resume.session);
                let task = record.and_then(|record| record.task_id);
                let source = match error {
                    SessionError::Agent { source, .. } => Some(source),
                    _ => None,
                };
                Err(PromptError::SessionGone { session: resume.session.clone(), task, delivery, source })
            }
            Err(error) => Err(self.unopened(error)),
        }
    }

    /// What is known of a turn that was begun before, or may have been; nothing if it is new.
    async fn earlier(&self, session: &Session) -> Result<Option<Earlier>, PromptError> {
        let message = match self.work {
            Work::Prompt(input) => match &input.message_id {
                Some(message) => message,
                None => return Ok(None),
            },
            Work::Resume(resume) => match &resume.record {
                Some(record) => return Ok(Some(record.clone().into())),
                None => &resume.message,
            },
        };
        let recorded = self.claimed(&session.id, message).await?.map(Earlier::from);
        Ok(match self.work {
            Work::Prompt(_) => recorded,
            // It can be waited for. What its request was is not known.
            Work::Resume(_) => Some(recorded.unwrap_or_else(|| {
                let meta = session.meta();
                let prompt =
                    PreparedPrompt::new(session.id.clone(), message.clone(), "", meta.created_at, "");
                Earlier { prompt, from: Phase::Accepted, limits: None, is_recorded: false }
            })),
        })
    }

    async fn claimed(
        &self,
        session: &SessionId,
        message: &MessageId,
    ) -> Result<Option<TurnRecord>, PromptError> {
        let Some(recording) = self.inner.options.recording() else { return Ok(None) };
        match recording.wait(recording.store.claim_turn(session, message)).await {
            // The agent is asked before anything is sent.
            Err(error) if recording.goes_on(&error) => {
                warn!(%error, "what is recorded of a turn could not be read");
                Ok(None)
            }
            claimed => claimed.map_err(|source| {
                let task = self.inner.registry().meta(session).and_then(|meta| meta.task_id);
                PromptError::NotClaimed { session: session.clone(), task, source }
            }),
        }
    }

    /// Writes that a turn is over which does not run here; says whether that is safe. What the model was not called for, as far as is
    /// known, is forgotten: if its prompt is sent again, it is looked for first.
    async fn close(&self, record: &TurnRecord) -> bool {
        let Some(recording) = self.inner.options.recording() else { return true };
        let (session, message) = (&record.prompt.session_id, &record.prompt.message_id);
        let over = TurnRecord { phase: Phase::Finished, ..record.clone() };
        let closing = match record.phase {
            Phase::Prepared | Phase::Submitted | Phase::Accepted => {
                recording.store.remove_turn(session, message)
            }
            Phase::Started | Phase::Finished => recording.store.put_turn(&over),
        };
        let closed = recording.wait(closing).await;
        closed.inspect_err(|error| warn!(%error, "the end of a turn could not be recorded")).is_ok()
    }

    /// A prompt's turn. Calls that want it aborted are answered before the next turn begins, which they do not mean.
    async fn run_turn(
        &self,
        admitted: &Admitted,
        aborts: &mut AbortCalls,
        began: Instant,
    ) -> Result<PromptExecutionResult, PromptError> {
        let session = &*admitted.session;
        let options = &self.inner.options;
        let policies = session.policies(&options.policies);
        let (policies, on_message) = match self.work {
            Work::Prompt(input) => (input.policies.or(&policies), input.on_message.clone()),
            Work::Resume(_) => (policies, None),
        };
        let turn = TurnState::begin(self.inner, session, &admitted.permit, policies, on_message);
        let out_of_patience = async {
            self.abandoned.cancelled().await;
            session.queue.give_up();
            sleep(GIVE_UP_GRACE).await;
        };
        // This prompt has the permit, so that it is the one which the queue aborts.
        let own_aborts = async {
            while let Some(call) = aborts.recv().await {
                session.queue.abort(call);
            }
            future::pending::<Infallible>().await
        };
        let outcome = tokio::select! {
            outcome = self.prepare_and_execute(admitted, &turn, began) => outcome,
            () = out_of_patience => {
                Err(self.inner.given_up(&session.id, turn.phase().map_or_else(|| self.work.delivery(), Phase::delivery)))
            }
            never = own_aborts => match never {},
        };
        let abort = outcome.as_ref().ok().and_then(|executed| executed.execution.abort.clone());
        let calls = session.queue.take_aborts();
        if !calls.is_empty() || self.wants_abort(&turn) {
            answer_aborts(session, calls, abort).await;
        }
        let refused = turn.take_refused();
        self.inner.counters.turns.refusals.add(refused.n_in_all);
        let result = outcome.and_then(|Executed { prompt, execution, limits }| {
            let result = self.inner.result_of(session, &limits, &prompt, execution)?;
            Ok(PromptExecutionResult { refused: refused.asks, ..result })
        });
        let result = result.map_err(|error| match error {
            PromptError::NotRecorded { session, task, source: None } => match turn.take_failure() {
                Some(failure) => PromptError::not_recorded(session, task, failure),
                None => PromptError::NotRecorded { session, task, source: None },
            },
            other => other,
        });
        if self.stays_open(&turn, &result) {
            session.leave_open(turn.turn());
        } else {
            turn.end(result.is_ok()).await;
        }
        self.log(turn.submissions(), began, &result);
        result
    }

    /// Says in the log how a turn ended, once, for a person on call.
    fn log(&self, submissions: usize, began: Instant, result: &Result<PromptExecutionResult, PromptError>) {
        let outcome = self.inner.counters.outcome(result);
        let seconds = began.elapsed().as_secs_f64();
        // Reasons by their names: the words of failures and errors may quote what the model read.
        match result {
            Ok(result) => {
                let (tokens, cost) = (result.usage.tokens.total(), result.usage.cost);
                match &result.completion {
                    Completion::Settled => info!(outcome, seconds, tokens, cost, submissions, "turn settled"),
                    // Somebody wanted that.
                    Completion::Aborted | Completion::GivenUp => {
                        info!(outcome, seconds, tokens, cost, submissions, "turn stopped");
                    }
                    other => {
                        let reason = reason_of(other);
                        warn!(outcome, reason, seconds, tokens, cost, submissions, "turn did not settle");
                    }
                }
            }
            Err(error) => {
                let (reason, delivery) = (error.name(), error.delivery());
                if error.is_wanted() {
                    info!(outcome, reason, seconds, ?delivery, submissions, "prompt stopped");
                } else {
                    warn!(outcome, reason, seconds, ?delivery, submissions, "prompt has no result");
                }
            }
        }
    }

    /// Whether a turn that is not waited for any longer can be resumed: the agent may go on with it, or a shutdown came first. One
    /// that was dropped before it was sent is not sent later.
    fn stays_open(&self, turn: &TurnState<'_>, result: &Result<PromptExecutionResult, PromptError>) -> bool {
        let was_sent = turn.phase() > Some(Phase::Prepared);
        match result {
            _ if self.wants_abort(turn) => false,
            Ok(result) => matches!(result.completion, Completion::GivenUp | Completion::Unauthorized),
            Err(PromptError::Unauthorized { .. } | PromptError::ShutDown { .. }) => true,
            Err(PromptError::GivenUp { .. }) => was_sent,
            Err(_) => false,
        }
    }

    async fn prepare_and_execute(
        &self,
        admitted: &Admitted,
        turn: &TurnState<'_>,
        began: Instant,
    ) -> Result<Executed, PromptError> {
        let session = &*admitted.session;
        let earlier = self.earlier(session).await?;
        let own_limits = match (self.work, &earlier) {
            (Work::Prompt(input), _) => input.own_limits(&self.inner.options.wait),
            (Work::Resume(_), earlier) => earlier.as_ref().and_then(|earlier| earlier.limits.clone()),
        };
        let mut limits = own_limits.clone().unwrap_or_else(|| self.inner.options.wait.clone());
        if earlier.as_ref().is_some_and(|earlier| !earlier.is_recorded) {
            // What is not recorded cannot be sent again.
            limits.max_kicks = 0;
        }
        let deadline = limits.deadline.map(|limit| began + limit);
        let mut host = Host { turn, limits: limits.clone() };
        let (prompt, from) = match earlier {
            Some(earlier) => {
                session.not_left_open(&earlier.prompt.message_id);
                if earlier.is_recorded {
                    turn.set_prompt(&earlier.prompt, own_limits, Some(earlier.from));
                }
                (earlier.prompt, earlier.from)
            }
            None => self.prepare(admitted, own_limits, &host, deadline).await?,
        };
        // The time that the preparation took is gone from the deadline.
        host.limits.deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let execution = session.agent.execute(&prompt, from, &host).await;
        Ok(Executed { prompt, execution, limits })
    }

    /// Prepares a new prompt and records it. Gives the phase that it is in then.
    async fn prepare(
        &self,
        admitted: &Admitted,
        own_limits: Option<WaitOptions>,
        host: &Host<'_>,
        deadline: Option<Instant>,
    ) -> Result<(PreparedPrompt, Phase), PromptError> {
        let (session, turn) = (&*admitted.session, host.turn);
        let prepared = tokio::select! {
            prepared = session.agent.prepare(&admitted.spec, host) => prepared,
            () = reached(deadline) => Err(Unprepared::new(Ended::Limit(Limit::Deadline), None)),
        };
        let prompt =
            prepared.map_err(|unprepared| self.inner.unprepared(session, &host.limits, unprepared))?;
        // The session is at rest, so that a turn that was given up is over.
        if let Some(left_open) = session.take_left_open()
            && !self.close(&left_open).await
        {
            session.leave_open(Some(left_open));
        }
        turn.set_prompt(&prompt, own_limits, None);
        // A prompt whose id the caller chose may have been sent before without a record: look first.
        let from = if admitted.spec.message_id.is_some() { Phase::Submitted } else { Phase::Prepared };
        let record = async {
            turn.record(Phase::Prepared).await?;
            turn.record(from).await
        };
        // A store may take its time, and nothing was sent yet. One that is only given up is recorded nevertheless: under an id of its own it may be sent
        // again.
        let aborted = async {
            if turn.stop_requested().await != StopRequest::Abort {
                future::pending::<()>().await;
            }
        };
        let recorded = tokio::select! {
            biased;
            () = aborted => return Err(self.aborted()),
            recorded = record => recorded,
        };
        let (session, task) = self.names();
        recorded.map_err(|error| PromptError::not_recorded(session, task, error))?;
        Ok((prompt, from))
    }

    fn wants_abort(&self, turn: &TurnState<'_>) -> bool {
        let aborts_on_drop = matches!(self.work, Work::Prompt(input) if input.abort_on_drop);
        aborts_on_drop && self.abandoned.is_cancelled() && turn.phase() > Some(Phase::Prepared)
    }
}

/// Which limit ran out, or what the agent calls its failure; nothing where the outcome says it all.
fn reason_of(completion: &Completion) -> Option<String> {
    match completion {
        Completion::Failed(failure) => {
            let status = failure.status_code().map(|status| format!(" {status}")).unwrap_or_default();
            Some(format!("{}{status}", failure.name))
        }
        Completion::TimedOut { limit, .. } => Some(limit.to_string()),
        _ => None,
    }
}

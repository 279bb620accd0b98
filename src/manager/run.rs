//! How a prompt runs, from its place in the queue to its result.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Span, field::display, info, warn};

use super::{
    PromptError, PromptExecutionResult, PromptInput, SessionError, WhenBusy,
    ended::answer_aborts,
    host::{Host, TurnState},
    inner::{Inner, check_same_directory},
    queue::{Permit, Ticket},
    restore::{is_gone, turn_key},
    session::Session,
    updates::UpdateSender,
};
use crate::{
    agent::{
        Completion, Delivery, Ended, Execution, Limit, Phase, PreparedPrompt, PromptSpec, Unprepared,
        WaitOptions,
    },
    deadline::reached,
    directory::Directory,
    ids::{MessageId, SessionId},
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
}

/// A turn that may begin.
struct Admitted {
    _permit: Permit,
    session: Arc<Session>,
    spec: PromptSpec,
    /// The turn if it was begun before.
    earlier: Option<Earlier>,
}

/// A turn that was begun before, as far as is known.
struct Earlier {
    prompt: PreparedPrompt,
    from: Phase,
    /// The request was recorded, so that it can be sent again.
    is_recorded: bool,
}

impl From<TurnRecord> for Earlier {
    fn from(record: TurnRecord) -> Self {
        Self { prompt: record.prompt, from: record.phase, is_recorded: true }
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

    /// Takes a place in the session's queue; nothing if it would have to wait and does not want to.
    pub(super) fn queue_up(&self, session: &Session) -> Option<Ticket> {
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
    ) -> Result<PromptExecutionResult, PromptError> {
        let result = self.wait_and_run(queued, reader).await;
        self.inner.counters.ended(&result);
        result
    }

    async fn wait_and_run(
        &self,
        queued: Option<Queued>,
        reader: UpdateSender,
    ) -> Result<PromptExecutionResult, PromptError> {
        let waiting = self.inner.counters.waiting.hold();
        let arrived = Instant::now();
        let entered = tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(self.inner.given_up(self.work.session_id(), Delivery::NotSent)),
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
        if let Some(task) = admitted.session.meta().task_id {
            Span::current().record("task", display(task));
        }
        let conversation = &admitted.session.conversation;
        let (reader, _) = conversation.add_reader(reader);
        let result = self.run_turn(&admitted, began).await;
        conversation.remove_reader(reader);
        result
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
            check_same_directory(&queued.session, directory.as_ref())?;
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
            let (session, task) = (session.id.clone(), session.meta().task_id);
            return Err(PromptError::Aborted { session, task, delivery: Delivery::NotSent, abort: None });
        };
        let earlier = self.earlier(&session).await?;
        Ok(Admitted { _permit: permit, session, spec, earlier })
    }

    /// Takes over a session that is not known here. For a turn that was begun before it may be gone meanwhile, and the turn with it.
    async fn open(&self, directory: Option<&Directory>) -> Result<Arc<Session>, PromptError> {
        let opened = self.inner.session(self.work.session_id(), directory).await;
        let Work::Resume(resume) = self.work else {
            let unopened =
                |error| PromptError::unopened(self.work.session_id(), None, Delivery::NotSent, error);
            return opened.map_err(unopened);
        };
        match opened {
            Ok(session) => {
                let task = resume.record.as_ref().and_then(|record| record.task_id.as_ref());
                if let Some(task) = task
                    && let Err(error) = self.inner.registry().assign(task, &session)
                {
                    warn!(%task, session = %session.id, %error, "the turn is not that of its task any more");
                }
                Ok(session)
            }
            Err(error) if is_gone(&error) => {
                let mut record = self.claimed(&resume.session, &resume.message).await?;
                let delivery = record.as_ref().map_or(Delivery::Unknown, |record| record.phase.delivery());
                if let Some(record) = &mut record {
                    record.phase = Phase::Finished;
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
            Err(error) => {
                let record = resume.record.as_ref();
                let delivery = record.map_or(Delivery::Unknown, |record| record.phase.delivery());
                let task = record.and_then(|record| record.task_id.clone());
                Err(PromptError::unopened(&resume.session, task, delivery, error))
            }
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
                Earlier { prompt, from: Phase::Accepted, is_recorded: false }
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
                warn!(%session, %error, "what is recorded of a turn could not be read");
                Ok(None)
            }
            claimed => claimed.map_err(|source| {
                let task = self.inner.registry().meta(session).and_then(|meta| meta.task_id);
                PromptError::NotClaimed { session: session.clone(), task, source }
            }),
        }
    }

    /// Writes that a turn is over which does not run here.
    async fn close(&self, record: &TurnRecord) {
        if let Some(recording) = self.inner.options.recording()
            && let Err(error) = recording.wait(recording.store.put_turn(record)).await
        {
            warn!(session = %record.prompt.session_id, %error, "the end of a turn could not be recorded");
        }
    }

    /// A prompt's turn. Calls that want it aborted are answered before the next turn begins, which they do not mean.
    async fn run_turn(
        &self,
        admitted: &Admitted,
        began: Instant,
    ) -> Result<PromptExecutionResult, PromptError> {
        let session = &*admitted.session;
        let options = &self.inner.options;
        let policies = session.policies(&options.policies);
        let (limits, policies, on_message) = match self.work {
            Work::Prompt(input) => {
                (input.limits(&options.wait), input.policies.or(&policies), input.on_message.clone())
            }
            Work::Resume(_) => (options.wait.clone(), policies, None),
        };
        // What is not recorded cannot be sent again.
        let is_recorded = admitted.earlier.as_ref().is_none_or(|earlier| earlier.is_recorded);
        let limits = if is_recorded { limits } else { limits.max_kicks(0) };
        let turn = TurnState::begin(self.inner, session, policies, on_message);
        let out_of_patience = async {
            self.abandoned.cancelled().await;
            session.give_up_turn();
            sleep(GIVE_UP_GRACE).await;
        };
        let outcome = tokio::select! {
            outcome = self.prepare_and_execute(admitted, &turn, limits.clone(), began) => outcome,
            () = out_of_patience => {
                Err(self.inner.given_up(&session.id, turn.phase().map_or(Delivery::NotSent, Phase::delivery)))
            }
        };
        let abort = outcome.as_ref().ok().and_then(|(_, execution)| execution.abort.clone());
        let aborts = session.end_turn();
        if !aborts.is_empty() || self.wants_abort(&turn) {
            answer_aborts(session, aborts, abort).await;
        }
        let refused = turn.take_refused();
        self.inner.counters.turns.refusals.add(refused.n_in_all);
        let result = outcome.and_then(|(prompt, execution)| {
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
            // What ended is known to the caller; that the record may still say otherwise costs one read after a restart.
            drop(turn.record(Phase::Finished).await);
        }
        self.log(turn.submissions(), began, &result);
        result
    }

    /// Says in the log how a turn ended, once, for a person on call.
    fn log(&self, submissions: usize, began: Instant, result: &Result<PromptExecutionResult, PromptError>) {
        let outcome = self.inner.counters.outcome(result);
        let seconds = began.elapsed().as_secs_f64();
        // Without the words of failures and errors: they may quote what the model read.
        match result {
            Ok(result) => {
                let (tokens, cost) = (result.usage.tokens.total(), result.usage.cost);
                if result.completion.is_settled() {
                    info!(outcome, seconds, tokens, cost, submissions, "turn settled");
                } else {
                    warn!(outcome, seconds, tokens, cost, submissions, "turn did not settle");
                }
            }
            Err(error) => {
                let delivery = error.delivery();
                warn!(outcome, seconds, ?delivery, submissions, "prompt has no result");
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
        limits: WaitOptions,
        began: Instant,
    ) -> Result<(PreparedPrompt, Execution), PromptError> {
        let session = &*admitted.session;
        let deadline = limits.deadline.map(|limit| began + limit);
        let mut host = Host { turn, limits };
        let (prompt, from) = match &admitted.earlier {
            Some(earlier) => {
                session.not_left_open(&earlier.prompt.message_id);
                if earlier.is_recorded {
                    turn.set_prompt(&earlier.prompt, Some(earlier.from));
                }
                (earlier.prompt.clone(), earlier.from)
            }
            None => self.prepare(admitted, turn, &host, deadline).await?,
        };
        // The time that the preparation took is gone from the deadline.
        host.limits.deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let execution = session.agent.execute(&prompt, from, &host).await;
        Ok((prompt, execution))
    }

    /// Prepares a new prompt and records it. Gives the phase that it is in then.
    async fn prepare(
        &self,
        admitted: &Admitted,
        turn: &TurnState<'_>,
        host: &Host<'_>,
        deadline: Option<Instant>,
    ) -> Result<(PreparedPrompt, Phase), PromptError> {
        let session = &*admitted.session;
        let prepared = tokio::select! {
            prepared = session.agent.prepare(&admitted.spec, host) => prepared,
            () = reached(deadline) => Err(Unprepared::new(Ended::Limit(Limit::Deadline), None)),
        };
        let prompt =
            prepared.map_err(|unprepared| self.inner.unprepared(session, &host.limits, unprepared))?;
        // The session is at rest, so that a turn that was given up is over.
        if let Some(mut left_open) = session.take_left_open() {
            left_open.phase = Phase::Finished;
            self.close(&left_open).await;
        }
        turn.set_prompt(&prompt, None);
        let mut from = Phase::Prepared;
        let mut recorded = turn.record(from).await;
        // A prompt whose id the caller chose may have been sent before without a record: look first.
        if recorded.is_ok() && admitted.spec.message_id.is_some() {
            from = Phase::Submitted;
            recorded = turn.record(from).await;
        }
        recorded
            .map_err(|error| PromptError::not_recorded(session.id.clone(), session.meta().task_id, error))?;
        Ok((prompt, from))
    }

    fn wants_abort(&self, turn: &TurnState<'_>) -> bool {
        let aborts_on_drop = matches!(self.work, Work::Prompt(input) if input.abort_on_drop);
        aborts_on_drop && self.abandoned.is_cancelled() && turn.phase() > Some(Phase::Prepared)
    }
}

//! How a prompt runs, from its place in the queue to its result.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    PromptError, PromptExecutionResult, PromptInput, WhenBusy,
    ended::answer_aborts,
    host::{Host, TurnState},
    inner::{Inner, check_same_directory},
    queue::{Permit, Ticket},
    session::Session,
    updates::UpdateSender,
};
use crate::{
    agent::{Delivery, Ended, Execution, Limit, Phase, PreparedPrompt, PromptSpec, Unprepared, WaitOptions},
    directory::Directory,
    ids::SessionId,
    store::TurnRecord,
};

/// How long an agent may take to stop waiting when it is told to. It has nothing to wait for then.
const GIVE_UP_GRACE: Duration = Duration::from_secs(5);

/// What is to be run.
pub(super) enum Work {
    /// A new prompt.
    Prompt(Box<PromptInput>),
    /// A recorded turn, from its phase on.
    Resume(Box<TurnRecord>),
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
}

impl Work {
    pub(super) fn session_id(&self) -> &SessionId {
        match self {
            Self::Prompt(input) => &input.session,
            Self::Resume(record) => &record.prompt.session_id,
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
        let admitted = tokio::select! {
            biased;
            () = self.abandoned.cancelled() => return Err(self.inner.given_up(self.work.session_id(), Delivery::NotSent)),
            admitted = self.enter(queued) => admitted?,
        };
        drop(waiting);
        let _running = self.inner.counters.begin();
        let began = Instant::now();
        let conversation = &admitted.session.conversation;
        let (reader, _) = conversation.add_reader(reader);
        let result = self.run_turn(&admitted, began).await;
        conversation.remove_reader(reader);
        log(&admitted.session, began, &result);
        result
    }

    /// Everything before a prompt's turn: checks it, finds its session, reads its attachments and waits in the queue.
    async fn enter(&self, queued: Option<Queued>) -> Result<Admitted, PromptError> {
        let directory = match self.work {
            Work::Prompt(input) => {
                input.validate()?;
                input.directory.as_ref().map(Directory::new).transpose()?
            }
            Work::Resume(record) => Some(record.directory.clone()),
        };
        let Queued { session, ticket } = if let Some(queued) = queued {
            check_same_directory(&queued.session, directory.as_ref())?;
            queued
        } else {
            let session = self.inner.session(self.work.session_id(), directory.as_ref()).await?;
            Queued { ticket: self.work.queue_up(&session), session }
        };
        let Some(ticket) = ticket else {
            return Err(PromptError::Busy { session: session.id.clone() });
        };
        let mut spec = match self.work {
            Work::Prompt(input) => input.load().await?,
            Work::Resume(_) => PromptSpec::default(),
        };
        spec.default_model.clone_from(&self.inner.options.model);
        spec.default_agent.clone_from(&self.inner.options.agent);
        Ok(Admitted { _permit: ticket.wait().await, session, spec })
    }

    /// A prompt's turn. Calls that want it aborted are answered before the next turn begins, which they do not mean.
    async fn run_turn(
        &self,
        admitted: &Admitted,
        began: Instant,
    ) -> Result<PromptExecutionResult, PromptError> {
        let session = &*admitted.session;
        let options = &self.inner.options;
        let (limits, on_message) = match self.work {
            Work::Prompt(input) => (input.limits(&options.wait), input.on_message.clone()),
            Work::Resume(_) => (options.wait.clone(), None),
        };
        let turn = TurnState::begin(self.inner, session, options.policies.clone(), on_message);
        let out_of_patience = async {
            self.abandoned.cancelled().await;
            session.give_up_turn();
            sleep(GIVE_UP_GRACE).await;
        };
        let outcome = tokio::select! {
            outcome = self.prepare_and_execute(admitted, &turn, limits, began) => outcome,
            () = out_of_patience => {
                Err(self.inner.given_up(&session.id, turn.phase().map_or(Delivery::NotSent, Phase::delivery)))
            }
        };
        let abort = outcome.as_ref().ok().and_then(|(_, execution)| execution.abort.clone());
        let aborts = session.end_turn();
        if !aborts.is_empty() || self.wants_abort(&turn) {
            answer_aborts(session, aborts, abort).await;
        }
        let (prompt, execution) = outcome?;
        let result = self.inner.result_of(session, &prompt, execution);
        // A turn that was given up goes on without this process, and can be resumed.
        if !self.abandoned.is_cancelled() {
            // What ended is known to the caller; that the record still says otherwise costs one read after a restart.
            drop(turn.record(Phase::Finished).await);
        }
        result
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
        let (prompt, from) = match self.work {
            Work::Resume(record) => {
                turn.set_prompt(&record.prompt, Some(record.phase));
                (record.prompt.clone(), record.phase)
            }
            Work::Prompt(_) => {
                let prepared = tokio::select! {
                    prepared = session.agent.prepare(&admitted.spec, &host) => prepared,
                    () = reached(deadline) => Err(Unprepared::new(Ended::Limit(Limit::Deadline), None)),
                };
                let prompt = prepared.map_err(|unprepared| self.inner.unprepared(session, unprepared))?;
                turn.set_prompt(&prompt, None);
                turn.record(Phase::Prepared).await.map_err(|error| PromptError::NotRecorded {
                    session: session.id.clone(),
                    source: Some(error),
                })?;
                (prompt, Phase::Prepared)
            }
        };
        // The time that the preparation took is gone from the deadline.
        host.limits.deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let execution = session.agent.execute(&prompt, from, &host).await;
        Ok((prompt, execution))
    }

    fn wants_abort(&self, turn: &TurnState<'_>) -> bool {
        let aborts_on_drop = matches!(self.work, Work::Prompt(input) if input.abort_on_drop);
        aborts_on_drop && self.abandoned.is_cancelled() && turn.phase() > Some(Phase::Prepared)
    }
}

/// Says in the log how a turn ended, once, for a person on call.
fn log(session: &Session, began: Instant, result: &Result<PromptExecutionResult, PromptError>) {
    let task = session.meta().task_id;
    let task = task.as_ref().map(tracing::field::display);
    let seconds = began.elapsed().as_secs_f64();
    match result {
        Ok(result) if result.completion.is_settled() => {
            let tokens = result.usage.tokens.total();
            info!(task, session = %session.id, seconds, tokens, cost = result.usage.cost, "turn settled");
        }
        Ok(result) => {
            let tokens = result.usage.tokens.total();
            // Without the failure's words: they may quote what the model read.
            let outcome = Ended::Completed(result.completion.clone()).name();
            warn!(task, session = %session.id, outcome, seconds, tokens, cost = result.usage.cost, "turn over");
        }
        Err(error) => {
            let delivery = error.delivery();
            warn!(task, session = %session.id, seconds, ?delivery, "prompt not run");
        }
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

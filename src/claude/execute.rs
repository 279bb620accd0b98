//! Executing a prompt: it is sent unless it was, and what became of it is told.

use std::sync::Arc;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{
    activity::Progress,
    claim::LOOK_AGAIN,
    error::ClaudeError,
    process::Exit,
    recorded::{NOT_LOGGED_IN, PromptPosition, Recorded, answer, is_refusal},
    request::Request,
    rest::{Awaited, NotSent},
    session::{CLOSE_GRACE, ClaudeSession},
    wait::{Wait, Waited},
    wire::{AssistantLine, StreamMessage, TurnResult},
};
use crate::{
    agent::{
        AgentError, AgentErrorKind, Completion, Delivery, Ended, Execution, Failure, NativeMessages, Notice,
        Phase, PreparedPrompt, Stop, StopRequest, TurnHost, WaitOptions,
    },
    ids::MessageId,
};

impl ClaudeSession {
    pub(super) async fn execute(
        &self,
        prompt: &PreparedPrompt,
        from: Phase,
        turn: &dyn TurnHost,
    ) -> Execution {
        match self.run(prompt, from, turn).await {
            Ok(execution) => execution,
            Err(NotSent { ended, abort, cause }) => {
                // A turn that was begun is not over because it cannot be looked for now.
                let is_begun = from >= Phase::Started && ended == Ended::NotDelivered;
                let ended = if is_begun { Ended::Stopped(Stop::GivenUp) } else { ended };
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
        let must_be_over = from >= Phase::Accepted;
        let rest = self.come_to_rest(turn, limits, self.awaited(prompt, from)).await;
        if from > Phase::Prepared {
            let recorded = match self.look_up(&prompt.message_id) {
                Ok(recorded) => recorded,
                Err(error) => {
                    rest?;
                    tracing::warn!(session = %self.id, %error, "the transcript cannot be read");
                    // What became of it may be found out later.
                    let cause = Some(error.at(from.delivery()));
                    return Err(NotSent { ended: Ended::Stopped(Stop::GivenUp), abort: None, cause });
                }
            };
            match rest {
                Ok(()) => {}
                // It would not be sent in any case, and the session's owner does not work on it.
                Err(in_use)
                    if must_be_over && in_use.is_in_use() && recorded.position != PromptPosition::Last => {}
                Err(not_sent) => return Err(not_sent),
            }
            if let Some(mut execution) = known_end(&recorded, must_be_over) {
                (execution.answer, execution.usage) = (recorded.answer, recorded.usage);
                return Ok(execution);
            }
        } else {
            rest?;
        }
        // A prompt that is only looked for has none.
        let request: Request = serde_json::from_str(&prompt.request).map_err(|error| {
            let cause = AgentError::new(AgentErrorKind::Failed, Delivery::NotSent, error);
            NotSent { ended: Ended::NotDelivered, abort: None, cause: Some(cause) }
        })?;
        let mut n_sent = 0;
        // What is known of it since it was sent.
        let mut sent = None;
        loop {
            if let Err(error) = self.start(&request.setup).await {
                return match sent {
                    Some(delivery) => Ok(not_delivered(error, delivery)),
                    None => Err(error.into()),
                };
            }
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
            let read = self.look_up(&prompt.message_id);
            let is_unread = read.is_err();
            let recorded = read.unwrap_or_else(|error| {
                tracing::warn!(session = %self.id, %error, "the transcript cannot be read");
                Recorded::default()
            });
            let is_refusal = !has_spoken && exit.status.is_some_and(|status| status.code().is_some());
            let cause = self.exit_error(exit);
            if let Some(mut execution) = known_end(&recorded, progress >= Progress::Started) {
                execution.cause.get_or_insert(cause.at(Delivery::Started));
                self.describe(&mut execution, recorded);
                return Ok(execution);
            }
            // Whether it is on disk is not known, so that it might run twice.
            if is_unread {
                return Ok(not_delivered(cause, Delivery::Unknown));
            }
            // Nothing of it is on disk, and no model was called: it may be sent again.
            let delivery = if progress == Progress::Sent { Delivery::NotSent } else { Delivery::Unknown };
            if is_refusal || n_sent > limits.max_kicks {
                return Ok(not_delivered(cause, delivery));
            }
            sent = Some(delivery);
        }
    }

    /// Whose turn it is that may run before a prompt is sent.
    fn awaited(&self, prompt: &PreparedPrompt, from: Phase) -> Awaited {
        let is_own = match from {
            Phase::Prepared => false,
            // One that its caller named is as far as that although it was never sent.
            Phase::Submitted => {
                let is_last = |recorded: Recorded| recorded.position == PromptPosition::Last;
                self.held().is_some() || self.look_up(&prompt.message_id).is_ok_and(is_last)
            }
            Phase::Accepted | Phase::Started | Phase::Finished => true,
        };
        if is_own { Awaited::Own } else { Awaited::Earlier }
    }

    /// What became of a prompt that was waited for.
    async fn conclude(&self, prompt: &MessageId, waited: Waited, turn: &dyn TurnHost) -> Execution {
        // Before an abort, which ends also what has not begun.
        let progress = self.live.state().activity.progress;
        let mut cause = None;
        let (ended, abort) = match waited {
            Waited::Rest => return self.at_rest(prompt, turn.limits()).await,
            Waited::Limit { limit, failure } => {
                cause = failure.map(|failure| failure.at(delivery(progress)));
                (Ended::Limit(limit), self.abort_on_limit(turn, turn.limits()).await)
            }
            Waited::Stopped(StopRequest::Abort) => (Ended::Stopped(Stop::Aborted), Some(self.abort().await)),
            Waited::Refused => (Ended::Stopped(Stop::Refused), Some(self.abort().await)),
            Waited::Stopped(StopRequest::GiveUp) | Waited::Exited(_) => (Ended::Stopped(Stop::GivenUp), None),
            Waited::NotRecorded => (Ended::NotRecorded, None),
        };
        let has_stopped = abort.as_ref().is_some_and(|abort| abort.confirmed);
        let recorded =
            if has_stopped { self.look_up(prompt).unwrap_or_default() } else { Recorded::default() };
        let mut execution = Execution::new(ended, delivery(progress));
        (execution.abort, execution.cause) = (abort, cause);
        self.describe(&mut execution, recorded);
        execution
    }

    /// What became of a prompt, now that nothing runs.
    async fn at_rest(&self, prompt: &MessageId, limits: &WaitOptions) -> Execution {
        let (result, refusal) = {
            let activity = &self.live.state().activity;
            (activity.result.clone(), activity.refusal.clone())
        };
        if let Some(refusal) = refusal {
            return refused(refusal);
        }
        let recorded = self.on_disk(prompt, limits).await;
        self.end_if_stuck().await;
        let completion = match &result {
            Some(result) => completion(result),
            // It was answered before.
            None => recorded.completion.clone().unwrap_or(Completion::Interrupted),
        };
        // A command of Claude Code itself is answered without a message of the model.
        let said = result.filter(|_| completion.is_settled()).and_then(|result| result.result);
        let mut execution = Execution::new(Ended::Completed(completion), Delivery::Started);
        self.describe(&mut execution, recorded);
        if execution.answer.is_none() {
            execution.answer = said.filter(|said| !said.trim().is_empty());
        }
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
        let last =
            said_in_main(&self.live.state().activity.messages).next_back().and_then(|line| line.uuid.clone());
        loop {
            let recorded = self.look_up(prompt).unwrap_or_else(|error| {
                tracing::warn!(session = %self.id, %error, "the transcript cannot be read");
                Recorded::default()
            });
            // A turn that is over does not end in the middle, and not before what was said last.
            let is_whole = recorded.completion.as_ref().is_some_and(|end| *end != Completion::Interrupted)
                && (last.is_none() || recorded.last_line == last);
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
        let messages = std::mem::take(&mut activity.messages);
        execution.answer = recorded.answer.or_else(|| streamed_answer(&messages));
        execution.messages = NativeMessages::new(messages);
        execution.usage = recorded.usage;
        if let Some(cost) = activity.cost {
            let usage = execution.usage.entry(self.id.clone()).or_default();
            usage.cost = (cost - activity.cost_before).max(0.0);
        }
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
}

/// A prompt that is given up before the model was called for it, as far as is known.
fn not_delivered(cause: ClaudeError, delivery: Delivery) -> Execution {
    let cause = Some(cause.at(delivery));
    Execution { cause, ..Execution::new(Ended::NotDelivered, delivery) }
}

/// The end of a prompt that is known from disk. One that the model was called for, and that has no answer there, was interrupted.
fn known_end(recorded: &Recorded, is_over: bool) -> Option<Execution> {
    let completion = match recorded.completion.clone() {
        Some(Completion::Failed(failure)) if !recorded.has_begun && is_refusal(&failure.name) => {
            return Some(refused(failure));
        }
        Some(completion) => completion,
        None if is_over => Completion::Interrupted,
        None => return None,
    };
    Some(Execution::new(Ended::Completed(completion), Delivery::Started))
}

/// A prompt for which no model could be called.
fn refused(failure: Failure) -> Execution {
    if failure.name == NOT_LOGGED_IN {
        let cause = Some(ClaudeError::NotLoggedIn { said: failure.message }.at(Delivery::Accepted));
        return Execution { cause, ..Execution::new(Ended::Unauthorized, Delivery::Accepted) };
    }
    Execution::new(Ended::NotRun { failure: Some(failure) }, Delivery::Accepted)
}

/// The answer in what was streamed, for a turn of which the files say nothing.
fn streamed_answer(messages: &[Arc<StreamMessage>]) -> Option<String> {
    answer(said_in_main(messages))
}

/// The lines of the model's side that were streamed, without those of subagents.
fn said_in_main(messages: &[Arc<StreamMessage>]) -> impl DoubleEndedIterator<Item = &AssistantLine> {
    messages.iter().filter_map(|message| match &**message {
        StreamMessage::Assistant(line) if line.parent_tool_use_id.is_none() => Some(&**line),
        _ => None,
    })
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

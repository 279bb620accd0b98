//! The smallest complete agent: sessions in memory, and a model that does what the prompt says.

use std::{
    any::Any,
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex},
};

use opencode_conductor::{
    AbortReport, Agent, AgentError, AgentErrorKind, Ask, BlockBody, BlockOrder, BoxFuture, Capabilities,
    Completion, ConversationBlock, ConversationEvent, ConversationId, ConversationSink, ConvertOptions,
    Decision, Delivery, Directory, Ended, Execution, Failure, IdleOutcome, Limit, ManagerBuilder, MessageId,
    Millis, NativeMessages, NewSession, Notice, OpenSession, Opened, Permission, Phase, PreparedPrompt,
    PromptSpec, Question, RequestId, SessionDescription, SessionId, Stop, StopRequest, Subject, TurnHost,
    Unprepared,
};
use tokio::sync::watch;

use super::{Play, World};

/// The part of the world that outlives every manager.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The prompts of each session, with what is to be played.
    sessions: Mutex<HashMap<SessionId, Vec<(MessageId, Play)>>>,
    /// The prompts that the model was called for.
    runs: Mutex<Vec<MessageId>>,
    at_gate: watch::Sender<usize>,
    gate: watch::Sender<bool>,
}

impl World for Memory {
    fn builder(&self) -> ManagerBuilder {
        ManagerBuilder::new(self.clone())
    }

    fn prompt(&self, play: &Play) -> String {
        serde_json::to_string(play).unwrap()
    }

    fn runs(&self, _: &SessionId, message: &MessageId) -> usize {
        self.0.runs.lock().unwrap().iter().filter(|run| *run == message).count()
    }

    fn at_gate(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(self.0.at_gate.subscribe().wait_for(|n| *n > 0).await.unwrap()) })
    }

    fn open_gate(&self) {
        self.0.gate.send_replace(true);
    }
}

impl Memory {
    fn opened(&self, id: SessionId, directory: Directory) -> Opened {
        let description = SessionDescription::new(id.clone(), directory, "a session", Millis::new(1).into());
        Opened::new(description, Arc::new(Session { world: self.clone(), id }))
    }
}

impl Agent for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn create<'a>(
        &'a self,
        request: &'a NewSession,
        _: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>> {
        let id = SessionId::new(format!("session-of-{}", request.task));
        self.0.sessions.lock().unwrap().entry(id.clone()).or_default();
        Box::pin(ready(Ok(self.opened(id, request.directory.clone()))))
    }

    fn open<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
        _: ConvertOptions,
        _: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>> {
        let found = self.0.sessions.lock().unwrap().contains_key(session);
        let directory = directory.cloned().unwrap_or_else(|| Directory::new("/w").unwrap());
        let opened = if found { Ok(self.opened(session.clone(), directory)) } else { Err(unknown()) };
        Box::pin(ready(opened))
    }

    fn delete<'a>(
        &'a self,
        session: &'a SessionId,
        _: Option<&'a Directory>,
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        self.0.sessions.lock().unwrap().remove(session);
        Box::pin(ready(Ok(())))
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

fn unknown() -> AgentError {
    AgentError::new(AgentErrorKind::NotFound, Delivery::Rejected, "there is no such session")
}

struct Session {
    world: Memory,
    id: SessionId,
}

impl Session {
    fn prompts(&self) -> Vec<(MessageId, Play)> {
        self.world.0.sessions.lock().unwrap().get(&self.id).cloned().unwrap_or_default()
    }

    /// Stores a prompt and calls the model, unless it is there already.
    fn submit(&self, message: &MessageId, play: &Play) {
        let mut sessions = self.world.0.sessions.lock().unwrap();
        let prompts = sessions.entry(self.id.clone()).or_default();
        if prompts.iter().all(|(known, _)| known != message) {
            prompts.push((message.clone(), play.clone()));
            self.world.0.runs.lock().unwrap().push(message.clone());
        }
    }

    fn block(&self, message: &MessageId, id: &str, body: BlockBody) -> Vec<ConversationEvent> {
        let place = self.prompts().iter().position(|(known, _)| known == message).unwrap_or_default();
        let created = Millis::new(place.try_into().unwrap());
        let order = BlockOrder::message(created, message.clone()).part(id.into());
        vec![ConversationEvent::block_upsert(ConversationId::main(), ConversationBlock::new(id, order, body))]
    }

    async fn execute(&self, prompt: &PreparedPrompt, from: Phase, turn: &dyn TurnHost) -> Execution {
        let play: Play = serde_json::from_str(&prompt.request).unwrap();
        let message = &prompt.message_id;
        let is_known = self.prompts().iter().any(|(known, _)| known == message);
        if from >= Phase::Accepted && !is_known {
            return Execution::new(Ended::Completed(Completion::Interrupted), from.delivery());
        }
        if !is_known {
            if from == Phase::Prepared && turn.record(Phase::Submitted).await.is_err() {
                return Execution::new(Ended::NotRecorded, Delivery::NotSent);
            }
            turn.notice(Notice::submitted(message.clone(), false));
            self.submit(message, &play);
        }
        if turn.record(Phase::Started).await.is_err() {
            return Execution::new(Ended::NotRecorded, Delivery::Started);
        }
        turn.emit(self.block(message, message.as_str(), BlockBody::user_message(prompt.text.as_str())));
        let mut execution = Execution::new(Ended::Completed(Completion::Settled), Delivery::Started);
        match self.play(message, &play, turn).await {
            Ok(answer) => {
                let body = BlockBody::assistant_text(answer.as_str());
                turn.emit(self.block(message, &format!("{message}-answer"), body));
                if turn.wants_messages() {
                    turn.message(&answer as &dyn Any);
                }
                execution.messages = NativeMessages::new(vec![answer.clone()]);
                execution.answer = Some(answer);
            }
            Err(Ended::Stopped(Stop::GivenUp)) => execution.ended = Ended::Stopped(Stop::GivenUp),
            Err(ended) => {
                execution.abort = Some(AbortReport::new(true, vec![self.id.clone()]));
                execution.ended = ended;
            }
        }
        execution
    }

    async fn play(&self, message: &MessageId, play: &Play, turn: &dyn TurnHost) -> Result<String, Ended> {
        let subject = match play {
            Play::Say(words) => return Ok(words.clone()),
            Play::Fail(words) => {
                return Err(Ended::Completed(Completion::Failed(Failure::new("ModelError", words))));
            }
            Play::Gate(words) => {
                self.world.0.at_gate.send_modify(|n| *n += 1);
                let mut gate = self.world.0.gate.subscribe();
                return tokio::select! {
                    _ = gate.wait_for(|is_open| *is_open) => Ok(words.clone()),
                    request = turn.stop_requested() => Err(stopped(request)),
                    () = tokio::time::sleep(turn.limits().idle_timeout) => Err(Ended::Limit(Limit::Idle)),
                };
            }
            Play::Permission(command) => Subject::Permission(Permission::new("bash", vec![command.clone()])),
            Play::Question(question) => Subject::questions(vec![Question::new(question)]),
        };
        let id = RequestId::new(format!("{message}-request"));
        let asked = turn.ask(Ask::new(id.clone(), self.id.clone(), self.id.clone(), subject));
        let decided = tokio::select! {
            decision = asked.decision => Ok(decision),
            request = turn.stop_requested() => Err(stopped(request)),
        };
        turn.notice(Notice::RequestClosed(id));
        match decided? {
            Decision::Reject(reason) => Ok(format!("not allowed: {reason}")),
            Decision::Answer(answers) => Ok(format!("answered: {}", answers.concat().join(", "))),
            Decision::FailTurn => Err(Ended::Stopped(Stop::Refused)),
            _ => Ok("allowed".to_owned()),
        }
    }
}

fn stopped(request: StopRequest) -> Ended {
    Ended::Stopped(match request {
        StopRequest::Abort => Stop::Aborted,
        _ => Stop::GivenUp,
    })
}

impl OpenSession for Session {
    fn prepare<'a>(
        &'a self,
        prompt: &'a PromptSpec,
        _: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Result<PreparedPrompt, Unprepared>> {
        let next = format!("{}-{}", self.id, self.prompts().len());
        let message = prompt.message_id.clone().unwrap_or_else(|| next.into());
        let text = prompt.text();
        // What follows the first line are the manager's own words.
        let play = text.lines().next().unwrap_or_default().to_owned();
        let prepared = PreparedPrompt::new(self.id.clone(), message, text, Millis::new(1).into(), play);
        Box::pin(ready(Ok(prepared)))
    }

    fn execute<'a>(
        &'a self,
        prompt: &'a PreparedPrompt,
        from: Phase,
        turn: &'a dyn TurnHost,
    ) -> BoxFuture<'a, Execution> {
        Box::pin(self.execute(prompt, from, turn))
    }

    fn wait_for_rest<'a>(&'a self, _: &'a dyn TurnHost) -> BoxFuture<'a, Result<IdleOutcome, Unprepared>> {
        let was_asked = !self.prompts().is_empty();
        let outcome = IdleOutcome::Rest(was_asked.then_some(Completion::Settled));
        Box::pin(ready(Ok(outcome)))
    }

    fn abort(&self) -> BoxFuture<'_, AbortReport> {
        Box::pin(ready(AbortReport::new(true, vec![self.id.clone()])))
    }

    fn load(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(ready(Ok(())))
    }
}

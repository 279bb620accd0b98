//! A session on an `OpenCode` server.

use std::{
    collections::HashSet,
    error::Error,
    sync::{Arc, Mutex, MutexGuard},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use tracing::{Instrument, error_span};

use super::{
    abort::abort_tree,
    agent::Shared,
    client::{ApiError, DirectoryClient, MessagePage, Watch},
    diff,
    driver::{Driven, Driver, Events, Prompt},
    mirror::{Observed, SessionTree, Snapshot},
    outcome,
    shared_read::DirectoryReads,
    transcript::Documents,
    turn::machine::{self, Ended as TurnEnded},
    wire::{self, Message, MessageInfo, PromptRequest},
};
use crate::{
    agent::{
        AbortReport, AgentError, AgentErrorKind, BoxFuture, Completion, ConversationSink, Delivery, Ended,
        Execution, Failure, FileChange, IdleOutcome, ModelRef, NativeMessages, OpenSession, Phase,
        PreparedPrompt, PromptPart, PromptSpec, Stop, StopRequest, TimeoutAction, TurnHost, Unprepared,
        WaitOptions,
    },
    conversation::ConvertOptions,
    directory::Directory,
    ids::{MessageId, SessionId},
    lock::lock,
    transcript::CombinedTranscript,
    wall_clock::now,
};

/// A session on an `OpenCode` server.
pub(super) struct OpenCodeSession {
    pub(super) id: SessionId,
    pub(super) directory: Directory,
    pub(super) reads: Arc<DirectoryReads>,
    shared: Arc<Shared>,
    sink: Arc<dyn ConversationSink>,
    live: Mutex<Live>,
    /// The events since a prompt was prepared, kept for its execution.
    events: Mutex<Option<Events>>,
}

/// The part of a session that changes.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Live {
    pub(super) tree: SessionTree,
    /// The model and the agent of the last step.
    model: Option<ModelRef>,
    agent: Option<String>,
    /// Everything that was said before is in the tree.
    is_whole: bool,
    /// The session is known to be at rest, so that a prompt may be sent without looking.
    is_at_rest: bool,
    /// The last that was done with it was to abort it, and the server has confirmed that.
    pub(super) was_aborted: bool,
    /// The newest message when it last was: others may have used the session since.
    pub(super) known_to: Option<MessageId>,
    /// Whether a turn runs, and how many have begun: what was read before one must not be taken for what came of it.
    is_running: bool,
    n_turns: u64,
}

impl OpenCodeSession {
    /// A session that exists, and may be doing anything.
    pub(super) fn new(
        shared: Arc<Shared>,
        id: SessionId,
        directory: Directory,
        convert: ConvertOptions,
        sink: Arc<dyn ConversationSink>,
    ) -> Self {
        let live = Live {
            tree: SessionTree::new(id.clone(), convert),
            model: None,
            agent: None,
            is_whole: false,
            is_at_rest: false,
            was_aborted: false,
            known_to: None,
            is_running: false,
            n_turns: 0,
        };
        let reads = shared.reads.of(&directory);
        Self { id, directory, reads, shared, sink, live: Mutex::new(live), events: Mutex::default() }
    }

    /// Says that the session was made here just now, and so is known whole and at rest.
    pub(super) fn just_made(self) -> Self {
        {
            let mut live = self.live();
            live.is_whole = true;
            live.is_at_rest = true;
        }
        self
    }

    pub(super) fn api(&self) -> DirectoryClient {
        self.shared.client.directory(&self.directory)
    }

    /// For short sections only, never across an await.
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    /// Lets something happen to the mirror and emits what that means for the conversation, in the same order for all callers. The
    /// events are gone from what is returned.
    pub(super) fn observe(&self, happen: impl FnOnce(&mut SessionTree) -> Observed) -> Observed {
        let mut live = self.live();
        let mut observed = happen(&mut live.tree);
        if !observed.events.is_empty() {
            self.sink.emit(std::mem::take(&mut observed.events));
        }
        observed
    }

    /// Waits until whatever runs now is over.
    async fn rest(
        &self,
        events: &mut Events,
        limits: WaitOptions,
        host: &dyn TurnHost,
    ) -> Result<TurnEnded, Unprepared> {
        let driven = Driver::new(self, host, limits, None, events).run().await;
        let Driven { cause, abort, .. } = driven;
        let ended = match driven.ended {
            // What was interrupted or never ran stays as it is: the next prompt may be sent.
            Ok(
                ended @ (TurnEnded::AtRest
                | TurnEnded::Interrupted
                | TurnEnded::Failed(_)
                | TurnEnded::NotStarted { .. }),
            ) => {
                self.live().came_to_rest();
                return Ok(ended);
            }
            Ok(TurnEnded::Limit(limit)) => Ended::Limit(limit),
            Ok(TurnEnded::SessionGone) => Ended::SessionGone,
            Ok(TurnEnded::Unauthorized) => Ended::Unauthorized,
            Ok(TurnEnded::Stopped(stop)) => Ended::Stopped(stop.into()),
            Ok(TurnEnded::NotDelivered(_)) => Ended::Stopped(Stop::GivenUp),
            Err(ended) => ended,
        };
        Err(Unprepared { abort, ..Unprepared::new(ended, cause) })
    }

    async fn prepare(&self, spec: &PromptSpec, host: &dyn TurnHost) -> Result<PreparedPrompt, Unprepared> {
        let mut events = Events::subscribe(self);
        if !self.live().is_at_rest {
            let limits = host.limits().clone().on_limit(TimeoutAction::Leave);
            self.rest(&mut events, limits, host).await?;
        }
        let watch = events.watch();
        *lock(&self.events) = Some(events);
        let model = tokio::select! {
            model = self.model(spec, watch, host.limits()) => model,
            stop = host.stop_requested() => {
                return Err(Unprepared::new(Ended::Stopped(stopped(stop)), None));
            }
        };
        // After the wait, so that its id is younger than everything in the session.
        let request = self.request(spec, model);
        let body = serde_json::to_string(&request).map_err(|error| {
            let cause = AgentError::new(AgentErrorKind::Failed, Delivery::NotSent, error);
            Unprepared::new(Ended::NotDelivered, Some(cause))
        })?;
        Ok(PreparedPrompt::new(self.id.clone(), request.message_id, spec.text(), now().into(), body))
    }

    fn request(&self, spec: &PromptSpec, model: Option<ModelRef>) -> PromptRequest {
        let mint = &self.shared.mint;
        let part_id = |n: usize| match &spec.message_id {
            // The same message is to be the same request, whichever process sends it.
            Some(message) => super::mint::part_of(message, n),
            None => mint.part(),
        };
        let parts = spec.parts.iter().enumerate().map(|(n, part)| wire_part(part_id(n), part)).collect();
        let mut live = self.live();
        live.learn();
        let newest = live.tree.messages(&self.id).next_back().map(|message| message.info.time().created);
        let message_id = spec.message_id.clone().unwrap_or_else(|| mint.message(newest));
        let mut request = PromptRequest::new(message_id, parts);
        request.model = model;
        let agent = spec.agent.clone().or_else(|| live.agent.clone());
        request.agent = agent.or_else(|| spec.default_agent.clone());
        request.system.clone_from(&spec.system);
        request.variant.clone_from(&spec.variant);
        request
    }

    /// The model that was asked for, else the session's last, else what the server would use.
    async fn model(&self, spec: &PromptSpec, watch: Watch, limits: &WaitOptions) -> Option<ModelRef> {
        let known = {
            let mut live = self.live();
            live.learn();
            spec.model.clone().or_else(|| live.model.clone()).or_else(|| spec.default_model.clone())
        };
        match known {
            Some(known) => Some(known),
            None => self.reads.model.resolve(&self.api(), watch, limits.start_timeout).await,
        }
    }

    async fn execute(&self, prompt: &PreparedPrompt, from: Phase, host: &dyn TurnHost) -> Execution {
        let kept = lock(&self.events).take();
        let mut events = kept.unwrap_or_else(|| Events::subscribe(self));
        {
            let mut live = self.live();
            live.is_at_rest = false;
            live.is_running = true;
            live.was_aborted = false;
            live.n_turns += 1;
        }
        let sent = Prompt {
            message_id: prompt.message_id.clone(),
            text: prompt.text.clone(),
            body: prompt.request.clone().into(),
            from,
        };
        let driven = Driver::new(self, host, host.limits().clone(), Some(sent), &mut events).run().await;
        self.live().is_running = false;
        self.execution_of(prompt, driven)
    }

    fn execution_of(&self, prepared: &PreparedPrompt, driven: Driven) -> Execution {
        let Driven { ended, prompt, mut delivery, is_unbroken, was_sent, abort, cause } = driven;
        let prompt = prompt.as_ref().unwrap_or(&prepared.message_id);
        let mut live = self.live();
        if matches!(ended, Ok(TurnEnded::AtRest | TurnEnded::Interrupted | TurnEnded::Failed(_))) {
            live.came_to_rest();
        }
        live.was_aborted = abort.as_ref().is_some_and(|abort| abort.confirmed);
        let mut messages: Vec<Arc<Message>> = live.tree.turn(&self.id, prompt).cloned().collect();
        // Of a prompt that no record was found of, only the server knows what it says.
        let stored = live.tree.message(&self.id, prompt).and_then(|message| message.prompt_text());
        let asked = stored.unwrap_or_else(|| prepared.text.clone());
        live.learn();
        // A turn that was found may have others behind it, whose answers and ends are not its own.
        let later = outcome::later_turn(&messages, &asked).filter(|_| !was_sent);
        let until = later.and_then(|n| messages.get(n)).map(|message| message.info.time().created);
        messages.truncate(later.unwrap_or(messages.len()));
        let usage = outcome::usage_of(&live.tree, prompt, until);
        drop(live);
        if messages.iter().any(|message| message.info.as_assistant().is_some()) {
            delivery = Delivery::Started;
        }
        let ended = match ended {
            Ok(TurnEnded::AtRest | TurnEnded::Interrupted | TurnEnded::Failed(_)) if later.is_some() => {
                Ended::Completed(outcome::completion_of_rest(&messages, is_unbroken))
            }
            Ok(TurnEnded::AtRest) => Ended::Completed(outcome::completion_of_rest(&messages, is_unbroken)),
            Ok(TurnEnded::Interrupted) => Ended::Completed(Completion::Interrupted),
            Ok(TurnEnded::Failed(error)) => Ended::Completed(Completion::Failed(Failure::from(&error))),
            Ok(TurnEnded::NotStarted { error }) => {
                self.reads.model.forget();
                Ended::not_run(error.as_ref().map(Failure::from))
            }
            Ok(TurnEnded::NotDelivered(known)) => {
                delivery = delivery.max(known);
                Ended::NotDelivered
            }
            Ok(TurnEnded::Limit(limit)) => Ended::Limit(limit),
            Ok(TurnEnded::Stopped(stop)) => Ended::Stopped(stop.into()),
            Ok(TurnEnded::SessionGone) => Ended::SessionGone,
            Ok(TurnEnded::Unauthorized) => Ended::Unauthorized,
            Err(ended) => ended,
        };
        let mut execution = Execution::new(ended, delivery);
        execution.message_id = Some(prompt.clone()).filter(|id| *id != prepared.message_id);
        execution.answer = outcome::answer(&messages);
        execution.other_prompts = outcome::other_prompts(&messages, &asked);
        execution.usage = usage;
        execution.messages = NativeMessages::serializable(messages);
        execution.abort = abort;
        execution.cause = cause;
        execution
    }

    async fn wait_for_rest(&self, host: &dyn TurnHost) -> Result<IdleOutcome, Unprepared> {
        let mut events = Events::subscribe(self);
        match self.rest(&mut events, host.limits().clone(), host).await? {
            TurnEnded::Interrupted => return Ok(IdleOutcome::Rest(Some(Completion::Interrupted))),
            TurnEnded::Failed(error) => {
                return Ok(IdleOutcome::Rest(Some(Completion::Failed(Failure::from(&error)))));
            }
            _ => {}
        }
        let live = self.live();
        let messages = live.tree.messages(&self.id);
        let mut last_turn: Vec<Arc<Message>> =
            messages.rev().take_while(|message| !is_user(message)).cloned().collect();
        last_turn.reverse();
        let was_asked = live.tree.messages(&self.id).any(|message| is_user(message));
        Ok(match (last_turn.is_empty(), was_asked) {
            (true, true) => IdleOutcome::Unanswered,
            (true, false) => IdleOutcome::Rest(None),
            (false, _) => IdleOutcome::Rest(Some(outcome::completion_of_rest(&last_turn, false))),
        })
    }

    pub(super) async fn load(&self) -> Result<(), ApiError> {
        let api = self.api();
        let n_turns = self.live().n_turns;
        let status = api.session_status().await?;
        let mut open = vec![self.id.clone()];
        let mut seen = HashSet::new();
        while let Some(id) = open.pop() {
            let list = api.messages(&id, &MessagePage::all()).await?;
            let children = api.children(&id).await?.items;
            // Nothing runs, on the server or from here, so that what is unfinished stays so.
            let is_at_rest = {
                let live = self.live();
                status.get(&id).is_idle()
                    && !live.is_running
                    && live.n_turns == n_turns
                    && list.malformed.is_empty()
            };
            self.observe(|tree| {
                let snapshot = if is_at_rest { Snapshot::Settled } else { Snapshot::Live };
                let mut observed = tree.apply_messages(&id, &list.messages, snapshot);
                if is_at_rest {
                    observed.append(tree.settle(&id));
                }
                for child in &children {
                    observed.append(tree.apply_session(child));
                }
                observed
            });
            // Not what is named twice, or belongs elsewhere: the server's list need not be a tree.
            let live = self.live();
            let own = children.into_iter().map(|child| child.id);
            open.extend(
                own.filter(|child| live.tree.parent(child) == Some(&id) && seen.insert(child.clone())),
            );
        }
        self.live().is_whole = true;
        Ok(())
    }
}

impl OpenSession for OpenCodeSession {
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
        let sessions = {
            let mut live = self.live();
            live.is_at_rest = false;
            live.tree.confirmed().cloned().collect()
        };
        // The span of a prompt, if there is one, would name the session a second time.
        let span = error_span!(parent: None, "abort", session = %self.id);
        let abort = async move {
            let report = abort_tree(&self.api(), self.id.clone(), sessions).await;
            self.live().was_aborted = report.confirmed;
            report
        };
        Box::pin(abort.instrument(span))
    }

    fn load(&self) -> BoxFuture<'_, Result<(), AgentError>> {
        Box::pin(async move { Ok(self.load().await?) })
    }

    fn diff<'a>(&'a self, prompt: &'a MessageId) -> BoxFuture<'a, Result<Vec<FileChange>, AgentError>> {
        Box::pin(async move { Ok(diff::changes(self, prompt).await?) })
    }

    fn transcript(&self) -> BoxFuture<'_, Result<Option<CombinedTranscript>, AgentError>> {
        Box::pin(async move {
            if !self.live().is_whole {
                self.load().await?;
            }
            let documents = Documents::of(&self.live().tree);
            // A long conversation takes milliseconds, in which others want to go on.
            let written = tokio::task::spawn_blocking(move || documents.write()).await;
            let written = written.map_err(Box::<dyn Error + Send + Sync>::from).and_then(|text| Ok(text?));
            let failed = |error| AgentError::new(AgentErrorKind::Failed, Delivery::NotSent, error);
            Ok(Some(written.map_err(failed)?))
        })
    }
}

impl Live {
    /// Takes in that nothing runs, and that everything up to the newest message is known.
    fn came_to_rest(&mut self) {
        self.is_at_rest = true;
        let newest = self.tree.messages(self.tree.root()).next_back();
        self.known_to = newest.map(|message| message.info.id().clone());
    }

    /// Remembers the model and agent of the last step: those of a prompt that never ran may not exist.
    fn learn(&mut self) {
        let root = self.tree.root();
        let step = self.tree.messages(root).rev().find_map(|message| {
            message.info.as_assistant().filter(|step| step.summary != Some(true) && !step.model_id.is_empty())
        });
        if let Some(step) = step {
            let (model, agent) = (ModelRef::new(&*step.provider_id, &*step.model_id), step.mode.as_deref());
            self.model = Some(model);
            self.agent = agent.map(str::to_owned).or_else(|| self.agent.take());
        }
    }
}

/// What is sent of a part, under an id of its own.
fn wire_part(id: crate::ids::PartId, part: &PromptPart) -> wire::PromptPart {
    match part {
        PromptPart::Text(text) => wire::PromptPart::Text { id, text: text.clone() },
        PromptPart::Mention(name) => wire::PromptPart::Agent { id, name: name.clone() },
        PromptPart::File { name, media_type, bytes } => wire::PromptPart::File {
            id,
            mime: media_type.clone(),
            filename: name.clone(),
            url: format!("data:{media_type};base64,{}", STANDARD.encode(bytes)),
        },
    }
}

fn is_user(message: &Message) -> bool {
    matches!(message.info, MessageInfo::User(_))
}

impl From<machine::Stop> for Stop {
    fn from(stop: machine::Stop) -> Self {
        match stop {
            machine::Stop::Aborted => Self::Aborted,
            machine::Stop::Refused => Self::Refused,
        }
    }
}

/// What a turn that was told to stop calls its end.
pub(super) fn stopped(request: StopRequest) -> Stop {
    match request {
        StopRequest::Abort => Stop::Aborted,
        StopRequest::GiveUp => Stop::GivenUp,
    }
}

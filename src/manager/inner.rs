//! What all clones of a manager share, and how a prompt runs from its place in the line to its result.

use std::{
    future::pending,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Map, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    AbortReport, Completion, ConversationSessionMeta, CreateTaskSession, PromptError, PromptExecutionResult,
    PromptInput, PromptSubmission, SessionError, WhenBusy,
    driver::{AbortWish, Driven, Driver, End, Terms, abort_tree},
    line::{Place, Turnstile},
    mint::{self, Mint},
    options::ManagerOptions,
    registry::{self, Registry, Session},
    resolve_prompt_model, result,
    stats::Counters,
    updates::Reporter,
};
use crate::{
    client::{ApiError, Directory, DirectoryClient, OpenCodeClient, SessionFilter},
    conversation::Usage,
    ids::{SessionId, TaskId},
    turn::{Delivery, Ended, Limit, TimeoutAction, WaitOptions},
    wire::{CreateSession, Message, ModelRef, PromptPart, PromptRequest, SessionInfo},
};
/// How often the making of a session is tried.
const CREATE_ATTEMPTS: u32 = 4;
/// The first pause before it is tried again; doubles each time.
const CREATE_PAUSE: Duration = Duration::from_millis(250);
/// How many calls may wait for the same turn to be aborted; more abort by themselves.
const ABORT_WISHES: usize = 16;
/// A session whose making was not confirmed is looked for among this many, the server's newest.
const MAX_CREATED: u32 = 1000;
/// Where a session's metadata says which call made it.
const TAG: &str = "conductor";

/// What all clones of a manager share.
pub(super) struct Inner {
    pub(super) client: OpenCodeClient,
    pub(super) options: ManagerOptions,
    pub(super) registry: Mutex<Registry>,
    pub(super) mint: Mint,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    pub(super) counters: Arc<Counters>,
}

impl Inner {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, session: &SessionId) -> Result<Arc<Session>, SessionError> {
        let known = self.registry().session(session).cloned();
        known.ok_or_else(|| SessionError::Unknown { session: session.clone() })
    }

    /// The session, taken over if it was made elsewhere.
    pub(super) async fn session(
        &self,
        id: &SessionId,
        directory: Option<&std::path::Path>,
    ) -> Result<Arc<Session>, SessionError> {
        if let Ok(known) = self.known(id) {
            return Ok(known);
        }
        // Old servers find a session only from a directory of its project. Where it works is for the server to say: status
        // and events of any other directory are those of strangers.
        let api = match directory {
            Some(directory) => self.client.directory(&Directory::new(directory)?),
            None => self.client.default_directory(),
        };
        let info = api.session(id).await.map_err(|source| server_error("finding", id, source))?;
        let meta = ConversationSessionMeta::of(&info, Directory::new(&info.directory)?);
        Ok(self.registry().add(Session::new(meta, self.options.convert, false)))
    }

    pub(super) async fn create_session(
        &self,
        request: &CreateTaskSession,
        title: String,
        directory: &Directory,
    ) -> Result<SessionInfo, SessionError> {
        let api = self.client.directory(directory);
        let nonce = self.mint.part().to_string();
        let tag = json!({ "task": request.task, "project": request.project, "nonce": nonce });
        let create = CreateSession {
            title: Some(title),
            metadata: Map::from_iter([(TAG.to_owned(), tag)]),
            permission: request.permissions.clone(),
            ..CreateSession::default()
        };
        let mut attempt = 0;
        // There may be a session that nobody knows the id of: it is looked for before another is made.
        let mut unclear = false;
        loop {
            attempt += 1;
            let found = if unclear { find_tagged(&api, &nonce).await } else { Ok(None) };
            let made = match found {
                Ok(Some(info)) => Ok(info),
                Ok(None) => api.create_session(&create).await,
                Err(error) => Err(error),
            };
            let error = match made {
                Ok(info) => return Ok(info),
                Err(error) => error,
            };
            unclear |= error.delivery() == Delivery::Unknown;
            let give_up = attempt == CREATE_ATTEMPTS || !(error.is_retryable() || unclear);
            if give_up {
                return Err(SessionError::Server {
                    attempt: format!("making a session for task {}", request.task),
                    source: error,
                });
            }
            sleep(CREATE_PAUSE * 2_u32.saturating_pow(attempt - 1)).await;
        }
    }

    pub(super) fn terms(&self, wait: WaitOptions) -> Terms {
        let ManagerOptions { permissions, questions, .. } = &self.options;
        let counters = Arc::clone(&self.counters);
        Terms { wait, permissions: permissions.clone(), questions: questions.clone(), counters }
    }

    /// Runs a prompt from its place in the line to its result, unless its caller loses interest.
    pub(super) async fn run(
        &self,
        input: PromptInput,
        place: Option<(Option<Place>, Arc<Session>)>,
        reporter: Reporter,
        abandoned: CancellationToken,
    ) -> Result<PromptExecutionResult, PromptError> {
        let result = self.run_in_line(input, place, reporter, abandoned).await;
        self.counters.ended(&result);
        result
    }

    async fn run_in_line(
        &self,
        input: PromptInput,
        place: Option<(Option<Place>, Arc<Session>)>,
        reporter: Reporter,
        abandoned: CancellationToken,
    ) -> Result<PromptExecutionResult, PromptError> {
        let waiting = self.counters.waiting.hold();
        let id = input.session.clone();
        let given_up = |delivery| Err(PromptError::GivenUp { session: id, delivery });
        let (_turnstile, session, parts) = tokio::select! {
            biased;
            () = abandoned.cancelled() => return given_up(Delivery::NotSent),
            turn = self.enter(&input, place) => turn?,
        };
        drop(waiting);
        let _running = self.counters.begin();
        let mut delivery = Delivery::NotSent;
        let executed = tokio::select! {
            biased;
            () = abandoned.cancelled() => None,
            result = self.execute(&input, &session, parts, reporter, &mut delivery) => Some(result),
        };
        if let Some(result) = executed {
            return result;
        }
        session.live().stop = None;
        // The next prompt waits until this is over.
        if input.abort_on_drop && delivery != Delivery::NotSent {
            self.abort(&session).await;
        }
        given_up(delivery)
    }

    /// Everything before a prompt's turn: checks it, finds its session, reads its attachments and waits in line.
    async fn enter(
        &self,
        input: &PromptInput,
        place: Option<(Option<Place>, Arc<Session>)>,
    ) -> Result<(Turnstile, Arc<Session>, Vec<PromptPart>), PromptError> {
        input.validate()?;
        let (place, session) = if let Some(known) = place {
            known
        } else {
            let session = self.session(&input.session, input.directory.as_deref()).await?;
            (line_up(&session, input), session)
        };
        let Some(place) = place else {
            return Err(PromptError::Busy { session: session.id.clone() });
        };
        let mut parts = Vec::with_capacity(input.parts.len());
        for part in &input.parts {
            parts.push(part.load(&self.mint).await?);
        }
        Ok((place.wait().await, session, parts))
    }

    /// A prompt's turn. `delivery` tells how far it got if the call is dropped.
    async fn execute(
        &self,
        input: &PromptInput,
        session: &Session,
        parts: Vec<PromptPart>,
        reporter: Reporter,
        delivery: &mut Delivery,
    ) -> Result<PromptExecutionResult, PromptError> {
        let (stopper, mut stop) = mpsc::channel(ABORT_WISHES);
        {
            let mut live = session.live();
            live.stop = Some(stopper);
            live.turns += 1;
            live.untold = false;
        }
        let result = self.submit_and_wait(input, session, parts, reporter, delivery, &mut stop).await;
        // Wishes that came too late for this turn are granted before the next one begins, which they do not mean.
        stop.close();
        if let Ok(first) = stop.try_recv() {
            let report = self.abort(session).await;
            for wish in std::iter::once(first).chain(std::iter::from_fn(|| stop.try_recv().ok())) {
                drop(wish.send(report.clone()));
            }
        }
        result
    }

    async fn submit_and_wait(
        &self,
        input: &PromptInput,
        session: &Session,
        parts: Vec<PromptPart>,
        mut reporter: Reporter,
        delivery: &mut Delivery,
        stop: &mut mpsc::Receiver<AbortWish>,
    ) -> Result<PromptExecutionResult, PromptError> {
        let api = self.client.directory(&session.directory);
        let mut subscription = api.subscribe(&session.id);
        let mut terms = self.terms(input.limits(&self.options.wait));
        let deadline = terms.wait.deadline.map(|limit| Instant::now() + limit);

        let at_rest = session.live().at_rest;
        let mut connected = None;
        if !at_rest {
            let wait = terms.wait.clone().on_limit(TimeoutAction::Leave);
            let terms = Terms { wait, ..self.terms(WaitOptions::default()) };
            let driver = Driver::new(&api, session, &terms, None, &mut subscription, &mut reporter);
            let rest = driver.run(None, stop).await;
            connected = Some(rest.stream_open);
            self.came_to_rest(session, &rest.ended)?;
        }

        // After the wait, so that its id is younger than everything in the session.
        let newest = {
            let mut live = session.live();
            learn(&mut live);
            live.tree.messages(&session.id).next_back().map(|message| message.info.time().created)
        };
        let mut request = PromptRequest::new(self.mint.message(newest), parts);
        let too_late = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        request.model = tokio::select! {
            model = self.model(&api, session, input.model.clone()) => model,
            Some(wish) = stop.recv() => {
                drop(wish.send(self.abort(session).await));
                return Err(PromptError::Aborted { session: session.id.clone(), delivery: Delivery::NotSent });
            }
            () = too_late => {
                let session = session.id.clone();
                let (limit, delivery) = (Limit::Deadline, Delivery::NotSent);
                return Err(PromptError::TimedOut { session, limit, delivery, abort: None });
            }
        };
        request.agent = input
            .agent
            .clone()
            .or_else(|| session.live().agent.clone())
            .or_else(|| self.options.agent.clone());
        request.system = input.system.clone();
        request.variant = input.variant.clone();
        session.live().at_rest = false;
        *delivery = Delivery::Unknown;
        let submission = PromptSubmission {
            session_id: session.id.clone(),
            message_id: request.message_id.clone(),
            prompt: prompt_text(&request.parts),
            submitted_at: mint::now().into(),
        };
        // What is left of it.
        terms.wait.deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let driver = Driver::new(&api, session, &terms, Some(&request), &mut subscription, &mut reporter);
        let turn = driver.run(connected, stop).await;
        self.conclude(session, submission, turn)
    }

    /// Explicit, else the session's last, else what the server would use.
    async fn model(
        &self,
        api: &DirectoryClient,
        session: &Session,
        explicit: Option<ModelRef>,
    ) -> Option<ModelRef> {
        let known = explicit.or_else(|| session.live().model.clone()).or_else(|| self.options.model.clone());
        if known.is_some() {
            return known;
        }
        let config = api.config().await.unwrap_or_default();
        let configured = resolve_prompt_model(&config, &crate::wire::ProviderList::default());
        if configured.is_some() {
            return configured;
        }
        // The server decides if even this is not to be had.
        let providers = api.providers().await.unwrap_or_default();
        resolve_prompt_model(&config, &providers)
    }

    /// What a wait for rest means for the session, and whether a prompt may follow.
    pub(super) fn came_to_rest(&self, session: &Session, ended: &End) -> Result<(), PromptError> {
        let id = session.id.clone();
        match ended {
            // What was interrupted or never ran stays as it is: the next prompt may go out.
            End::Turn(Ended::Settled | Ended::Interrupted | Ended::NotStarted { .. }) => {
                session.live().at_rest = true;
                Ok(())
            }
            End::Turn(Ended::Limit(limit)) => Err(PromptError::NotAtRest { session: id, limit: *limit }),
            End::Turn(Ended::SessionGone) => {
                self.registry().forget(&id);
                Err(PromptError::SessionGone { session: id })
            }
            End::Turn(Ended::Stopped(_)) => {
                Err(PromptError::Aborted { session: id, delivery: Delivery::NotSent })
            }
            End::Turn(Ended::NotDelivered(_)) | End::GivenUp => {
                Err(PromptError::GivenUp { session: id, delivery: Delivery::NotSent })
            }
            End::Unauthorized => Err(PromptError::Unauthorized),
        }
    }

    fn conclude(
        &self,
        session: &Session,
        submission: PromptSubmission,
        driven: Driven,
    ) -> Result<PromptExecutionResult, PromptError> {
        let Driven { ended, delivery, unbroken, abort, cause, stream_open: _ } = driven;
        let id = session.id.clone();
        let (messages, usage_by_session, conversation) = {
            let mut live = session.live();
            live.at_rest = matches!(ended, End::Turn(Ended::Settled | Ended::Interrupted));
            let after = live.tree.turn(&session.id, &submission.message_id);
            let messages: Vec<Arc<Message>> = after.cloned().collect();
            learn(&mut live);
            (messages, result::usage_of(&live.tree, &submission.message_id), live.state.clone())
        };
        let started = messages.iter().any(|message| message.info.as_assistant().is_some());
        let completion = match ended {
            End::Turn(Ended::Settled) => Completion::of_rest(&messages, unbroken),
            End::Turn(Ended::Interrupted) => Completion::Interrupted,
            // It started after all, when nobody expected it any more, and was aborted.
            End::Turn(Ended::NotStarted { .. }) if started => Completion::Aborted,
            End::Turn(Ended::NotStarted { error }) => {
                return Err(PromptError::NotStarted { session: id, error });
            }
            End::Turn(Ended::NotDelivered(delivery)) => {
                return Err(PromptError::NotDelivered { session: id, delivery, source: cause });
            }
            End::Turn(Ended::Limit(limit)) if started => Completion::TimedOut { limit, abort },
            End::Turn(Ended::Limit(limit)) => {
                return Err(PromptError::TimedOut { session: id, limit, delivery, abort });
            }
            End::Turn(Ended::Stopped(stop)) if started => Completion::of_stop(stop),
            End::Turn(Ended::Stopped(_)) => return Err(PromptError::Aborted { session: id, delivery }),
            End::Turn(Ended::SessionGone) => {
                self.registry().forget(&id);
                return Err(PromptError::SessionGone { session: id });
            }
            End::Unauthorized => return Err(PromptError::Unauthorized),
            End::GivenUp => return Err(PromptError::GivenUp { session: id, delivery }),
        };
        let mut usage = Usage::default();
        for of_session in usage_by_session.values() {
            usage += *of_session;
        }
        Ok(PromptExecutionResult { submission, messages, completion, usage, usage_by_session, conversation })
    }

    pub(super) async fn abort(&self, session: &Session) -> AbortReport {
        let sessions = session.live().tree.sessions().cloned().collect();
        abort_tree(&self.client.directory(&session.directory), session.id.clone(), sessions).await
    }
}

/// Takes a place in a session's line; nothing if it would have to wait and does not want to.
pub(super) fn line_up(session: &Session, input: &PromptInput) -> Option<Place> {
    match input.when_busy {
        WhenBusy::Queue => Some(session.line.enter()),
        WhenBusy::Refuse => session.line.try_enter(),
    }
}

/// Remembers the model and agent of the last step: those of a prompt that never ran may not exist.
fn learn(live: &mut registry::Live) {
    let root = live.tree.root();
    let step = live.tree.messages(root).rev().find_map(|message| {
        message.info.as_assistant().filter(|step| step.summary != Some(true) && !step.model_id.is_empty())
    });
    if let Some(step) = step {
        let (model, agent) = (ModelRef::new(&step.provider_id, &step.model_id), step.mode.clone());
        live.model = Some(model);
        live.agent = agent.or_else(|| live.agent.take());
    }
}

fn prompt_text(parts: &[PromptPart]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        PromptPart::Text { text, .. } => Some(text.as_str()),
        PromptPart::File { .. } | PromptPart::Agent { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

async fn find_tagged(api: &DirectoryClient, nonce: &str) -> Result<Option<SessionInfo>, ApiError> {
    // The newest come first.
    let filter =
        SessionFilter { limit: NonZeroU32::new(MAX_CREATED), roots: true, ..SessionFilter::default() };
    let sessions = api.sessions(&filter).await?.items;
    let tagged = |session: &SessionInfo| {
        session
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get(TAG)?.get("nonce"))
            .is_some_and(|tag| tag == nonce)
    };
    Ok(sessions.into_iter().find(tagged))
}

pub(super) fn server_error(attempt: &str, session: &SessionId, source: ApiError) -> SessionError {
    SessionError::Server { attempt: format!("{attempt} session {session}"), source }
}

/// Keeps a task to one call while its session is being made.
pub(super) struct Reservation<'a> {
    inner: &'a Inner,
    task: &'a TaskId,
}

impl<'a> Reservation<'a> {
    pub(super) fn new(inner: &'a Inner, request: &'a CreateTaskSession) -> Result<Self, SessionError> {
        inner.registry().reserve(&request.task, request.replace)?;
        Ok(Self { inner, task: &request.task })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.inner.registry().release(self.task);
    }
}

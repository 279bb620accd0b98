//! What the server does with a prompt: it stores it, runs it, fails, crashes, and is aborted.

use std::collections::VecDeque;

use super::{
    plan::{Beat, Doing, Plan, Planner, ROOT, What},
    steps::{assistant, failure, user},
    *,
};
use crate::{
    ids::PartId,
    opencode::wire::{
        AssistantMessage, EventPayload, MessageInfo, PermissionRequest, QuestionRequest, SessionInfo,
        SessionTime, ToolStatus,
    },
};

/// What only the server knows.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Server {
    pub(super) plan: Plan,
    /// The beats of a named case, one run after the other; after them the plan's.
    pub(super) script: VecDeque<Vec<Beat>>,
    pub(super) alive: bool,
    /// Counts the restarts.
    pub(super) life: u32,
    pub(super) crashed: bool,
    /// Another client aborted the session, or disposed of its directory.
    pub(super) interfered: bool,
    /// An error of the turn before was reported in this one.
    pub(super) has_late_error: bool,
    pub(super) deleted: bool,
    /// The root, then its descendants.
    pub(super) sessions: Vec<Session>,
    /// The subagents of the runs before this one; those of this one come after them.
    n_old_children: usize,
    pub(super) permissions: Vec<PermissionRequest>,
    pub(super) questions: Vec<QuestionRequest>,
    /// The request that the run waits for.
    pub(super) blocked_on: Option<RequestId>,
    pub(super) run: u32,
    /// When the prompt was last stored.
    pub(super) stored_at: Duration,
    pub(super) beats: VecDeque<Beat>,
    pub(super) running: bool,
    /// Prompts that arrive before this are stored and not run.
    pub(super) cleanup_until: Option<Duration>,
    pub(super) start_pending: bool,
    /// A prompt was stored when the run had nothing more to say: it is run next.
    pub(super) is_queued: bool,
    pub(super) model_called: bool,
    /// Runs that called the model.
    pub(super) runs_begun: u32,
    pub(super) reruns_of_good: u32,
    pub(super) last_run_failed: bool,
    pub(super) last_run_good: bool,
    pub(super) last_progress: Duration,
    /// The last run came to its end then, and left something to be noticed.
    pub(super) over_at: Option<Duration>,
    next_id: u32,
}

pub(super) struct Session {
    pub(super) info: SessionInfo,
    pub(super) doing: Doing,
    /// As the server stores them: text that is being streamed is not in them.
    pub(super) messages: Vec<Message>,
    /// The text part that is being streamed, and what was streamed.
    pub(super) streaming: Option<(PartId, String)>,
}

impl Session {
    pub(super) fn new(id: &str, parent_id: Option<SessionId>, now: Millis) -> Self {
        let time = SessionTime { created: now, updated: now, ..SessionTime::default() };
        let info = SessionInfo { id: id.into(), parent_id, time, ..SessionInfo::default() };
        Self { info, doing: Doing::Idle, messages: Vec::new(), streaming: None }
    }

    pub(super) fn step_mut(&mut self) -> Option<&mut Message> {
        self.messages.iter_mut().rev().find(|message| message.info.as_assistant().is_some())
    }

    pub(super) fn steps(&self) -> impl DoubleEndedIterator<Item = &AssistantMessage> {
        self.messages.iter().filter_map(|message| message.info.as_assistant())
    }

    fn is_in_a_step(&self) -> bool {
        self.steps().next_back().is_some_and(|step| step.time.completed.is_none())
    }
}

impl Server {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            script: VecDeque::new(),
            alive: true,
            life: 0,
            crashed: false,
            interfered: false,
            has_late_error: false,
            deleted: false,
            sessions: vec![Session::new(ROOT_ID, None, Millis::new(0))],
            n_old_children: 0,
            permissions: Vec::new(),
            questions: Vec::new(),
            blocked_on: None,
            run: 0,
            stored_at: Duration::ZERO,
            beats: VecDeque::new(),
            running: false,
            cleanup_until: None,
            start_pending: false,
            is_queued: false,
            model_called: false,
            runs_begun: 0,
            reruns_of_good: 0,
            last_run_failed: false,
            last_run_good: false,
            last_progress: Duration::ZERO,
            over_at: None,
            next_id: 10,
        }
    }

    /// The steps of the turn, without those of the turn before.
    pub(super) fn steps(&self) -> impl DoubleEndedIterator<Item = &AssistantMessage> {
        self.sessions[ROOT].steps().filter(|step| step.id.as_str() != OLD_STEP)
    }

    pub(super) fn prompt(&self) -> Option<&Message> {
        self.sessions[ROOT].messages.iter().find(|message| message.info.id().as_str() == PROMPT)
    }

    pub(super) fn is_child_busy(&self) -> bool {
        self.sessions[1..].iter().any(|child| child.doing.is_running())
    }

    /// Whether the run will still change a message.
    pub(super) fn has_more_to_say(&self) -> bool {
        let changes = |beat: &Beat| {
            !matches!(
                beat.what,
                What::Status(_) | What::SilentStatus(_) | What::Error { .. } | What::Die | What::End
            )
        };
        self.running && (self.blocked_on.is_some() || self.beats.iter().any(changes))
    }

    /// The session that a beat means.
    pub(super) fn index(&self, session: usize) -> usize {
        if session == ROOT { ROOT } else { self.n_old_children + session }
    }

    pub(super) fn id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}_{:06}", self.next_id)
    }
}

impl World {
    pub(super) fn millis(&self) -> Millis {
        Millis::new(i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX))
    }

    /// A turn that was answered before, or failed and is not done with its cleanup.
    pub(super) fn add_history(&mut self, is_complete: bool) {
        let early = Millis::new(1);
        let prompt = user(OLD_PROMPT, ROOT_ID, early);
        let mut step = assistant(OLD_STEP, ROOT_ID, OLD_PROMPT, Millis::new(2));
        step.time.completed = is_complete.then_some(Millis::new(3));
        let step = Message::new(MessageInfo::Assistant(Box::new(step)), Vec::new());
        self.server.sessions[ROOT].messages.extend([prompt, step]);
    }

    /// The cleanup of the turn before is over.
    pub(super) fn complete_history(&mut self) {
        let messages = &mut self.server.sessions[ROOT].messages;
        let old = messages.iter_mut().find(|message| message.info.id().as_str() == OLD_STEP);
        if let Some(MessageInfo::Assistant(step)) = old.map(|message| &mut message.info) {
            step.time.completed = Some(Millis::new(4));
            step.error = Some(failure("UnknownError"));
            let info = MessageInfo::Assistant(step.clone());
            self.emit(EventPayload::MessageUpdated(info));
        }
        self.emit_status(ROOT, Doing::Idle);
    }

    pub(super) fn submission_arrives(&mut self, client: u32, answer: Option<Delivery>) {
        let after = self.latency();
        let answer = match answer {
            Some(_) if !self.server.alive => {
                Some(Scheduled::Answered { client, delivery: Delivery::NotSent })
            }
            Some(_) if self.server.deleted => Some(Scheduled::Gone { client }),
            Some(delivery) => Some(Scheduled::Answered { client, delivery }),
            None => None,
        };
        if let Some(answer) = answer {
            self.at(after, answer);
        }
        if self.server.alive && !self.server.deleted {
            let slowest = if self.client.submissions > 1 { 50 } else { self.wire.slowest_store };
            let slow = self.between(0, slowest);
            self.at(slow, Scheduled::Store { life: self.server.life });
        }
    }

    pub(super) fn store(&mut self) {
        if self.server.plan == Plan::UnknownAgent {
            return self.emit_error(ROOT, "UnknownError");
        }
        self.server.stored_at = self.now;
        let prompt = user(PROMPT, ROOT_ID, self.millis());
        let messages = &mut self.server.sessions[ROOT].messages;
        messages.retain(|message| message.info.id().as_str() != PROMPT);
        messages.push(prompt.clone());
        self.emit_prompt(prompt);
        // During the cleanup after an error a prompt is stored and never run.
        let is_lost = self.server.cleanup_until.is_some_and(|until| self.now < until);
        if is_lost || self.server.start_pending || self.server.plan == Plan::NeverRuns {
            return;
        }
        if self.server.running {
            self.server.is_queued |= !self.server.has_more_to_say();
            return;
        }
        self.start_soon();
    }

    fn start_soon(&mut self) {
        self.server.start_pending = true;
        let after = self.between(0, 50);
        self.at(after, Scheduled::Start);
    }

    pub(super) fn start(&mut self) {
        self.server.start_pending = false;
        if !self.server.alive || self.server.running {
            return;
        }
        self.server.run += 1;
        self.server.running = true;
        if self.server.last_run_good && self.server.runs_begun > 0 {
            // Nothing is left to do: busy, then idle, and the model is not called.
            let beats =
                [(MILLI, What::Status(Doing::Busy)), (MILLI, What::Status(Doing::Idle)), (MILLI, What::End)];
            self.server.beats = plan::root(beats).collect();
        } else {
            self.server.model_called = false;
            self.server.over_at = None;
            // A new run has subagents of its own.
            self.server.n_old_children = self.server.sessions.len() - 1;
            let scripted = self.server.script.pop_front();
            let planner = Planner { rng: &mut self.rng, beats: Vec::new() };
            self.server.beats = scripted.unwrap_or_else(|| planner.plan(self.server.plan)).into();
        }
        self.next_beat();
    }

    pub(super) fn next_beat(&mut self) {
        if let Some(beat) = self.server.beats.front() {
            let (after, run) = (beat.after, self.server.run);
            self.at(after, Scheduled::Beat { run });
        }
    }

    pub(super) fn beat(&mut self) {
        let Some(beat) = self.server.beats.pop_front() else { return };
        let session = self.server.index(beat.session);
        self.do_beat(session, beat.what);
        if self.server.blocked_on.is_none() {
            self.next_beat();
        }
    }

    fn do_beat(&mut self, session: usize, what: What) {
        match what {
            What::Status(doing) => {
                self.server.sessions[session].doing = doing;
                self.emit_status(session, doing);
            }
            What::SilentStatus(doing) => self.server.sessions[session].doing = doing,
            What::Step => self.step(session),
            What::ExtraPrompt => {
                let id = self.server.id("msg");
                let prompt = user(&id, self.session_id(session).as_str(), self.millis());
                self.server.sessions[session].messages.push(prompt.clone());
                self.emit_prompt(prompt);
            }
            What::Text => self.text(session),
            What::Tool { running } => {
                self.end_text(session);
                let status = if running { ToolStatus::Running } else { ToolStatus::Completed };
                self.change_tool(session, "bash", None, status);
            }
            What::Spawn { child } => self.spawn(session, child),
            What::TaskDone { child, background } => {
                let child = self.session_id(self.server.index(child));
                self.change_task(session, &child, ToolStatus::Completed, background);
            }
            What::Complete => self.complete(session),
            What::Error { aborted } => {
                self.server.last_run_failed |= session == ROOT;
                self.emit_error(session, if aborted { "MessageAbortedError" } else { "UnknownError" });
            }
            What::Ask => self.ask(session),
            What::Cleanup => self.server.cleanup_until = Some(Duration::MAX),
            What::Die => {
                self.server.running = false;
                self.server.last_run_failed = true;
                self.server.over_at.get_or_insert(self.now);
            }
            What::End => self.end(),
        }
    }

    fn end(&mut self) {
        let server = &mut self.server;
        server.running = false;
        server.cleanup_until = None;
        let complete = server.steps().all(|step| step.time.completed.is_some());
        let any = server.steps().next().is_some();
        server.last_run_good = complete && any && !server.last_run_failed;
        if complete && any {
            server.over_at.get_or_insert(self.now);
        }
        if std::mem::take(&mut server.is_queued) {
            self.start_soon();
        }
    }

    pub(super) fn session_id(&self, session: usize) -> SessionId {
        self.server.sessions[session].info.id.clone()
    }

    pub(super) fn crash(&mut self) {
        // A server that dies after the work is done leaves nothing to judge by.
        if self.server.over_at.is_some() || !self.server.alive {
            return;
        }
        let server = &mut self.server;
        server.alive = false;
        server.crashed = true;
        server.life += 1;
        server.run += 1;
        server.running = false;
        server.start_pending = false;
        server.is_queued = false;
        server.cleanup_until = None;
        server.last_run_failed = true;
        for session in &mut server.sessions {
            session.doing = Doing::Idle;
            session.streaming = None;
        }
        server.blocked_on = None;
        server.permissions.clear();
        server.questions.clear();
        let away = self.between(100, 15_000);
        self.at(away, Scheduled::Restart);
        self.cut();
    }

    pub(super) fn interfere(&mut self) {
        if self.server.over_at.is_none() {
            self.server.interfered = true;
            self.server.start_pending = false;
            self.server.is_queued = false;
            self.abort_run();
        }
    }

    pub(super) fn abort_run(&mut self) {
        if !self.server.alive || !self.server.running {
            return;
        }
        // What was asked stays listed.
        self.server.blocked_on = None;
        self.server.run += 1;
        let children = self.server.index(1)..self.server.sessions.len();
        for session in children.rev().chain([ROOT]) {
            if self.server.sessions[session].is_in_a_step() {
                self.do_beat(session, What::Error { aborted: true });
                self.do_beat(session, What::Status(Doing::Idle));
                self.do_beat(session, What::Complete);
            }
            if session == ROOT || self.server.sessions[session].doing != Doing::Idle {
                self.do_beat(session, What::Status(Doing::Idle));
            }
        }
        self.do_beat(ROOT, What::End);
    }

    fn emit_prompt(&mut self, prompt: Message) {
        self.emit(EventPayload::MessageUpdated(prompt.info));
        for part in prompt.parts {
            self.emit(EventPayload::PartUpdated { part, delta: None });
        }
    }

    fn emit_status(&mut self, session: usize, doing: Doing) {
        let session_id = self.session_id(session);
        let status = doing.status();
        self.emit(EventPayload::SessionStatus { session_id: session_id.clone(), status });
        if doing == Doing::Idle && self.wire.idle_events {
            self.emit(EventPayload::SessionIdle { session_id });
        }
    }

    pub(super) fn emit_error(&mut self, session: usize, name: &str) {
        let session_id = Some(self.session_id(session));
        self.emit(EventPayload::SessionError { session_id, error: Some(failure(name)) });
    }
}

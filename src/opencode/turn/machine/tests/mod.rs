//! The machine in single situations. Messages, events and lists are real; the server is what each test says.

use std::time::Duration;

use super::*;
use crate::{
    conversation::ConvertOptions,
    ids::{PartId, RequestId, SessionId},
    opencode::wire::{
        AssistantMessage, EventPayload, Message, MessageError, MessageInfo, MessageTime, Part, PartBody,
        PartDelta, PermissionRequest, ServerEvent, SessionInfo, SessionStatus, StatusMap, StepStartPart,
        TextPart, ToolPart, ToolReference, ToolState, ToolStatus, UserMessage,
    },
    time::Millis,
};

mod delivery;
mod ends;
mod hostile;
mod limits;
mod requests;
mod resume;

const SECOND: Duration = Duration::from_secs(1);
const ROOT: &str = "ses_root";
const CHILD: &str = "ses_child";
const PROMPT: &str = "msg_00";
const TEXT: &str = "do it";

/// As [`Action`], without the ids of reads.
#[derive(Debug, Clone, PartialEq)]
enum Done {
    Submit,
    Read(Scope),
    Ask(RequestId),
    Closed(RequestId),
    Abort,
    Finish(Ended),
}

/// A turn, its clock, what it asked for, and what the server has stored.
struct Bench {
    turn: Turn,
    tree: SessionTree,
    now: Duration,
    /// What the lists of the server show, by session.
    stored: Vec<(SessionId, Vec<Message>)>,
    pending: Vec<PermissionRequest>,
    /// The stream carries what happens.
    heard: bool,
    read: Option<Read>,
    done: Vec<Done>,
    recorded: Vec<Delivery>,
}

impl Bench {
    fn of(goal: Goal, options: WaitOptions) -> Self {
        let now = Duration::from_secs(1000);
        Self {
            turn: Turn::new(goal, options, now),
            tree: SessionTree::new(ROOT.into(), ConvertOptions::default()),
            now,
            stored: vec![(ROOT.into(), Vec::new())],
            pending: Vec::new(),
            heard: true,
            read: None,
            done: Vec::new(),
            recorded: Vec::new(),
        }
    }

    /// A turn that an earlier client recorded so much of.
    fn from(from: Delivery) -> Self {
        Self::of(Goal::Answer { prompt: PROMPT.into(), text: TEXT.to_owned(), from }, WaitOptions::default())
    }

    fn new() -> Self {
        Self::from(Delivery::NotSent)
    }

    fn with(options: WaitOptions) -> Self {
        let goal = Goal::Answer { prompt: PROMPT.into(), text: TEXT.to_owned(), from: Delivery::NotSent };
        Self::of(goal, options).into_accepted()
    }

    fn rest() -> Self {
        Self::of(Goal::Rest, WaitOptions::default())
    }

    /// A turn whose prompt the server has accepted, on an open stream.
    fn accepted() -> Self {
        Self::new().into_accepted()
    }

    fn into_accepted(mut self) -> Self {
        assert_eq!(self.input(Input::StreamOpened), [Done::Submit]);
        assert_eq!(self.input(Input::Submitted(Delivery::Accepted)), []);
        self
    }

    /// A turn whose first step runs.
    fn running() -> Self {
        Self::accepted().into_running()
    }

    fn into_running(mut self) -> Self {
        self.busy();
        self.store_prompt();
        self.step(1);
        self
    }

    fn input(&mut self, input: Input<'_>) -> Vec<Done> {
        self.turn.handle(self.now, &mut self.tree, input);
        self.advance()
    }

    fn advance(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        self.tree.check_lone_calls();
        for action in self.turn.advance(self.now, &mut self.tree).actions {
            done.push(match action {
                Action::Record(delivery) => {
                    self.recorded.push(delivery);
                    continue;
                }
                Action::Submit => Done::Submit,
                Action::Read(read) => {
                    assert_eq!(self.read.replace(read), None, "one read at a time");
                    Done::Read(read.scope)
                }
                Action::Ask(request) => Done::Ask(request.id().clone()),
                Action::Closed(request) => Done::Closed(request),
                Action::Abort => {
                    self.read = None;
                    Done::Abort
                }
                Action::Finish(ended) => Done::Finish(ended),
            });
        }
        self.done.extend(done.clone());
        done
    }

    /// Gives an event, unless the stream does not carry it.
    fn event(&mut self, payload: EventPayload) -> Vec<Done> {
        if !self.heard {
            return Vec::new();
        }
        self.input(Input::Event(ServerEvent::new(payload).into()))
    }

    /// Lets things happen that the stream does not tell of.
    fn unheard<T>(&mut self, happen: impl FnOnce(&mut Self) -> T) -> T {
        self.heard = false;
        let result = happen(self);
        self.heard = true;
        result
    }

    fn status_of(&mut self, session: &str, status: SessionStatus) -> Vec<Done> {
        self.event(EventPayload::SessionStatus { session_id: session.into(), status })
    }

    fn busy(&mut self) -> Vec<Done> {
        self.status_of(ROOT, SessionStatus::Busy)
    }

    fn idle(&mut self) -> Vec<Done> {
        self.status_of(ROOT, SessionStatus::Idle)
    }

    fn error(&mut self, name: &str) -> Vec<Done> {
        let session_id = Some(ROOT.into());
        self.event(EventPayload::SessionError { session_id, error: Some(error(name)) })
    }

    fn created(&self) -> Millis {
        Millis::new(i64::try_from(self.now.as_millis()).unwrap())
    }

    fn messages_of(&mut self, session: &str) -> &mut Vec<Message> {
        let known = self.stored.iter().position(|(id, _)| id.as_str() == session);
        let at = known.unwrap_or_else(|| {
            self.stored.push((session.into(), Vec::new()));
            self.stored.len() - 1
        });
        &mut self.stored[at].1
    }

    /// Stores a message, or another version of it, and says so.
    fn store(&mut self, session: &str, info: MessageInfo) -> Vec<Done> {
        let messages = self.messages_of(session);
        match messages.iter_mut().find(|message| message.info.id() == info.id()) {
            Some(message) => message.info = info.clone(),
            None => messages.push(Message::new(info.clone(), Vec::new())),
        }
        self.event(EventPayload::MessageUpdated(info))
    }

    fn store_user(&mut self, id: &str) -> Vec<Done> {
        let time = MessageTime { created: self.created(), ..MessageTime::default() };
        let user = UserMessage { id: id.into(), session_id: ROOT.into(), time, ..UserMessage::default() };
        self.store(ROOT, MessageInfo::User(user))
    }

    fn store_prompt(&mut self) -> Vec<Done> {
        self.store_user(PROMPT)
    }

    fn step(&mut self, number: u32) -> Vec<Done> {
        self.step_of(ROOT, number, None)
    }

    fn complete(&mut self, number: u32) -> Vec<Done> {
        let completed = Some(self.created());
        self.step_of(ROOT, number, completed)
    }

    fn step_of(&mut self, session: &str, number: u32, completed: Option<Millis>) -> Vec<Done> {
        let id = message_id(number);
        let old = self.messages_of(session).iter().find(|message| message.info.id().as_str() == id);
        let created = old.map(|message| message.info.time().created);
        let created = created.unwrap_or_else(|| self.created());
        let step = AssistantMessage {
            id: id.as_str().into(),
            session_id: session.into(),
            parent_id: Some(PROMPT.into()),
            time: MessageTime { created, completed, ..MessageTime::default() },
            ..AssistantMessage::default()
        };
        self.store(session, MessageInfo::Assistant(Box::new(step)))
    }

    /// Makes a step and completes it.
    fn answer(&mut self, number: u32) -> Vec<Done> {
        self.step(number);
        self.complete(number)
    }

    fn tool(&mut self, number: u32, call: &str, status: ToolStatus) -> Vec<Done> {
        let state = ToolState { status, ..ToolState::default() };
        let tool = ToolPart { tool: "bash".to_owned(), call_id: call.into(), state, ..ToolPart::default() };
        self.part(number, call, PartBody::Tool(Box::new(tool)))
    }

    /// A task call that starts the child; in the background it is over at once.
    fn task(&mut self, number: u32, status: ToolStatus, background: bool) -> Vec<Done> {
        let metadata = [("sessionId".to_owned(), CHILD.into()), ("background".to_owned(), background.into())];
        let state =
            ToolState { status, metadata: Some(metadata.into_iter().collect()), ..ToolState::default() };
        let tool = ToolPart { tool: "task".to_owned(), state, ..ToolPart::default() };
        self.part(number, "task", PartBody::Tool(Box::new(tool)))
    }

    fn part(&mut self, number: u32, id: &str, body: PartBody) -> Vec<Done> {
        let part = Part::new(PartId::new(id), ROOT.into(), message_id(number).as_str().into(), body);
        let messages = self.messages_of(ROOT);
        let message = messages.iter_mut().find(|message| *message.info.id() == part.message_id).unwrap();
        message.parts.retain(|old| old.id != part.id);
        message.parts.push(part.clone());
        self.event(EventPayload::PartUpdated { part, delta: None })
    }

    fn text(&mut self, number: u32) -> Vec<Done> {
        let message = message_id(number).as_str().into();
        self.event(EventPayload::PartDelta(PartDelta::new(ROOT.into(), message, "prt_text".into(), "word ")))
    }

    fn child(&mut self) -> Vec<Done> {
        self.messages_of(CHILD);
        let info = SessionInfo { id: CHILD.into(), parent_id: Some(ROOT.into()), ..SessionInfo::default() };
        self.event(EventPayload::SessionCreated(info))
    }

    /// A permission that a call of a step needs.
    fn asks(&mut self, session: &str, id: &str, number: u32) -> Vec<Done> {
        let tool =
            ToolReference { message_id: message_id(number).as_str().into(), ..ToolReference::default() };
        let request = PermissionRequest {
            id: id.into(),
            session_id: session.into(),
            tool: Some(tool),
            ..PermissionRequest::default()
        };
        self.pending.push(request.clone());
        self.event(EventPayload::PermissionAsked(request))
    }

    /// Makes the read that was asked for, of a session that does this.
    fn read(&mut self, root: SessionStatus) -> Vec<Done> {
        self.read_of([(ROOT, root)])
    }

    fn read_of<const N: usize>(&mut self, statuses: [(&str, SessionStatus); N]) -> Vec<Done> {
        self.now += Duration::from_millis(1);
        let Some(Read { id, scope }) = self.read.take() else { panic!("no read was asked for") };
        let list = |messages: &Vec<Message>| Messages { messages: messages.clone(), is_sound: true };
        let mut reading = Reading::default();
        if scope.status {
            let statuses = statuses.into_iter().filter(|(_, status)| !status.is_idle());
            reading.status = Some(StatusMap::new(statuses.map(|(id, status)| (id.into(), status))));
        }
        reading.messages = scope.messages.then(|| list(&self.stored[0].1));
        if scope.tree {
            for (child, messages) in &self.stored[1..] {
                let info =
                    SessionInfo { id: child.clone(), parent_id: Some(ROOT.into()), ..SessionInfo::default() };
                reading.children.push(info);
                reading.of_children.push((child.clone(), list(messages)));
            }
        }
        if scope.requests {
            reading.permissions = Some(self.pending.clone());
            reading.questions = Some(Vec::new());
        }
        self.input(Input::ReadDone(id, reading))
    }

    fn read_fails(&mut self) -> Vec<Done> {
        let Some(Read { id, .. }) = self.read.take() else { panic!("no read was asked for") };
        self.input(Input::ReadFailed(id))
    }

    /// The server finishes what it has begun, unheard.
    fn finish_steps(&mut self) {
        let completed = Some(self.created());
        for message in self.stored.iter_mut().flat_map(|(_, messages)| messages) {
            if let MessageInfo::Assistant(step) = &mut message.info {
                step.time.completed = step.time.completed.or(completed);
            }
        }
    }

    /// The abort that was asked for is done, and what it left behind is read.
    fn abort_done(&mut self) -> Vec<Done> {
        self.finish_steps();
        let last = self.input(Input::AbortDone { confirmed: true });
        assert!(matches!(last[..], [Done::Read(Scope { messages: true, status: false, .. })]), "{last:?}");
        self.read(SessionStatus::Idle)
    }

    /// Lets time pass until the machine asks for something, for at most `limit`.
    fn wait(&mut self, limit: Duration) -> Vec<Done> {
        let until = self.now + limit;
        while let Some(at) = self.turn.next_wakeup() {
            if at > until {
                break;
            }
            // A wake-up in the past that changes nothing would be a busy loop.
            self.now = at.max(self.now + Duration::from_nanos(1));
            let done = self.advance();
            if !done.is_empty() {
                return done;
            }
        }
        self.now = until;
        Vec::new()
    }

    /// Lets time pass, and reads a session that does this whenever that is asked for, until something else is.
    fn wait_reading(&mut self, status: &SessionStatus) -> Vec<Done> {
        loop {
            let done = if self.read.is_some() { self.read(status.clone()) } else { self.wait(1000 * SECOND) };
            assert_ne!((done.is_empty(), self.turn.next_wakeup()), (true, None), "nothing will ever happen");
            if done.iter().any(|done| !matches!(done, Done::Read(_))) {
                return done;
            }
        }
    }
}

fn message_id(number: u32) -> String {
    format!("msg_{number:02}")
}

fn read(messages: bool, status: bool, tree: bool) -> Done {
    Done::Read(Scope { messages, status, tree, requests: tree })
}

fn finish(ended: Ended) -> [Done; 1] {
    [Done::Finish(ended)]
}

fn error(name: &str) -> MessageError {
    MessageError { name: name.into(), ..MessageError::default() }
}

fn retry() -> SessionStatus {
    SessionStatus::Retry { attempt: 1, message: "Overloaded".to_owned(), next: Millis::default() }
}

fn unrecognised() -> SessionStatus {
    SessionStatus::from_json(r#"{"type":"completed"}"#).unwrap()
}

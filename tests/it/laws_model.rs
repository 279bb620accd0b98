//! A model of a server: random programs, run into event logs, with the lists the server would show at every moment.
//!
//! A program is made of operations on handles; running it mints ids and times and writes the events. What the server has
//! stored follows from the events themselves ([`Store`]), because it announces exactly what it stores. Deltas are the
//! exception: they are announced and not stored.

use std::collections::BTreeMap;

use opencode_conductor::{
    MessageId, Millis, SessionId,
    wire::{
        AssistantMessage, CompactionPart, EventPayload, Extra, FilePart, Message, MessageError, MessageInfo,
        Part, PartBody, PartDelta, PartTime, ReasoningPart, ServerEvent, SessionInfo, SessionStatus,
        StepFinishPart, StepStartPart, TextPart, ToolPart, ToolStatus, UserMessage,
    },
};
use serde_json::json;

use crate::laws_program::{After, End, Prompt, Session, Step, Tool, ToolEnd, Turn};

/// Numbers from a seed, for choices that need no shrinking.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// How the server streams.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dialect {
    /// `message.part.delta`, and lists without the text until it ends.
    Deltas,
    /// The whole text so far in every `message.part.updated`.
    Wholes,
}

/// What a run of a program said, and in the end has.
pub(crate) struct Run {
    pub(crate) root: SessionId,
    pub(crate) log: Vec<ServerEvent>,
    /// Whether the server died on a session.
    pub(crate) is_interrupted: bool,
}

/// Runs a program. `interleave` decides how what runs at once is mixed, `chunks` how text is cut.
pub(crate) fn run(program: &Session, dialect: Dialect, interleave: u64, chunks: u64) -> Run {
    let mut server = Server {
        dialect,
        chunks: Dice::new(chunks),
        dice: Dice::new(interleave),
        clock: 1_000_000,
        counter: 0,
        is_interrupted: false,
    };
    let mut log = Vec::new();
    let root = server.create_session(None, "root", &mut log);
    log.extend(server.session(&root, program));
    Run { root, log: log.into_iter().map(ServerEvent::new).collect(), is_interrupted: server.is_interrupted }
}

/// What one of several things that run at once says.
type Strand = Vec<EventPayload>;

struct Server {
    dialect: Dialect,
    chunks: Dice,
    dice: Dice,
    clock: i64,
    counter: u64,
    is_interrupted: bool,
}

/// What happened in one turn, for what may happen to it afterwards.
#[derive(Default)]
struct Said {
    messages: Vec<MessageId>,
    parts: Vec<Part>,
    tools: Vec<Part>,
    /// The first session that was started, to be resumed.
    children: Vec<SessionId>,
    /// What runs in the background.
    background: Vec<(SessionId, Strand)>,
}

impl Server {
    fn now(&mut self) -> Millis {
        // Often the same millisecond, so that ids have to settle the order.
        self.clock += i64::from(!self.dice.one_in(3));
        Millis::new(self.clock)
    }

    fn id<I: From<String>>(&mut self, prefix: &str) -> I {
        self.counter += 1;
        format!("{prefix}_{:08}", self.counter).into()
    }

    fn create_session(&mut self, parent: Option<&SessionId>, title: &str, out: &mut Strand) -> SessionId {
        let mut info = SessionInfo::default();
        info.id = self.id("ses");
        info.parent_id = parent.cloned();
        title.clone_into(&mut info.title);
        info.time.created = self.now();
        info.time.updated = info.time.created;
        let id = info.id.clone();
        out.push(EventPayload::SessionCreated(info));
        id
    }

    /// Mixes strands that run at once, keeping the order of each.
    fn mix(&mut self, strands: Vec<Strand>) -> Strand {
        let mut strands: Vec<_> = strands.into_iter().map(Vec::into_iter).collect();
        let mut mixed = Vec::new();
        while !strands.is_empty() {
            let at = self.dice.below(strands.len());
            match strands[at].next() {
                Some(event) => mixed.push(event),
                None => drop(strands.remove(at)),
            }
        }
        mixed
    }

    /// Mixes background strands into what was said, none before its session was created.
    fn overlap(&mut self, out: Strand, mut waiting: Vec<(SessionId, Strand)>) -> Strand {
        let mut mixed = Vec::new();
        let mut running: Vec<std::vec::IntoIter<EventPayload>> = Vec::new();
        for event in out {
            if let EventPayload::SessionCreated(info) = &event
                && let Some(at) = waiting.iter().position(|(session, _)| *session == info.id)
            {
                running.push(waiting.remove(at).1.into_iter());
            }
            mixed.push(event);
            for strand in &mut running {
                mixed.extend(strand.by_ref().take(self.dice.below(3)));
            }
        }
        mixed.extend(running.into_iter().flatten());
        mixed.extend(waiting.into_iter().flat_map(|(_, strand)| strand));
        mixed
    }

    fn session(&mut self, session: &SessionId, program: &Session) -> Strand {
        let mut out = Vec::new();
        let mut children = Vec::new();
        for turn in &program.turns {
            let mut said = Said { children: std::mem::take(&mut children), ..Said::default() };
            let mut strand = Vec::new();
            let is_over = self.turn(session, turn, &mut said, &mut strand);
            out.extend(self.overlap(strand, said.background));
            children = said.children;
            if !is_over {
                self.is_interrupted = true;
                break;
            }
        }
        out
    }

    /// Plays a turn; says whether it came to an end.
    fn turn(&mut self, session: &SessionId, turn: &Turn, said: &mut Said, out: &mut Strand) -> bool {
        let mut user = self.user(session, &turn.prompt, out);
        said.messages.push(user.id.clone());
        out.push(status(session, SessionStatus::Busy));
        for (index, step) in turn.steps.iter().enumerate() {
            let is_last = index + 1 == turn.steps.len();
            let end = if is_last { turn.end } else { End::Idle };
            self.step(session, step, end, said, out);
            if end == End::Crash {
                return false;
            }
        }
        if turn.end == End::Compaction {
            self.compaction(session, out);
        }
        out.extend([status(session, SessionStatus::Idle), idle(session)]);
        // The tail.
        user.extra.insert("summary".to_owned(), json!({"diffs": []}));
        out.push(message_updated(MessageInfo::User(user.clone())));
        self.after(session, turn.after, user, said, out);
        true
    }

    fn after(
        &mut self,
        session: &SessionId,
        after: After,
        mut user: UserMessage,
        said: &mut Said,
        out: &mut Strand,
    ) {
        let session_id = session.clone();
        match after {
            After::Nothing => {}
            After::RemoveLastMessage => {
                let message_id = said.messages.pop().unwrap();
                out.push(EventPayload::MessageRemoved { session_id, message_id });
            }
            After::RemovePart => {
                if let Some(Part { id: part_id, message_id, .. }) = said.parts.pop() {
                    out.push(EventPayload::PartRemoved { session_id, message_id, part_id });
                }
            }
            After::Resubmit => {
                user.time.created = self.now();
                out.push(message_updated(MessageInfo::User(user)));
            }
            After::PruneTools => {
                for mut part in std::mem::take(&mut said.tools) {
                    if let PartBody::Tool(tool) = &mut part.body {
                        tool.state.time.get_or_insert_default().compacted = Some(self.now());
                    }
                    out.push(part_updated(&part));
                }
            }
            After::Orphan => {
                let child = self.create_session(Some(session), "made by hand", out);
                let step = Step {
                    failed: Vec::new(),
                    thinking: None,
                    text: Some("by hand".into()),
                    tools: Vec::new(),
                };
                let turn =
                    Turn { prompt: Prompt::Text, steps: vec![step], end: End::Idle, after: After::Nothing };
                out.extend(self.session(&child, &Session { turns: vec![turn] }));
            }
        }
    }

    fn user(&mut self, session: &SessionId, prompt: &Prompt, out: &mut Strand) -> UserMessage {
        let mut user = UserMessage::default();
        user.id = self.id("msg");
        user.session_id = session.clone();
        user.time.created = self.now();
        out.push(message_updated(MessageInfo::User(user.clone())));
        let bodies = match prompt {
            Prompt::Text => vec![words("do it", None)],
            Prompt::TextAndFile => {
                let mut file = FilePart::default();
                file.url = String::from("data:image/png;base64,AAAA");
                vec![words("see", None), PartBody::File(file), words("file read", Some(true))]
            }
            Prompt::Synthetic => vec![words("go on", Some(true))],
            Prompt::Blank => vec![words(" ", None)],
        };
        for body in bodies {
            out.push(part_updated(&self.part(session, &user.id, body)));
        }
        user
    }

    fn part(&mut self, session: &SessionId, message: &MessageId, body: PartBody) -> Part {
        Part::new(self.id("prt"), session.clone(), message.clone(), body)
    }

    fn compaction(&mut self, session: &SessionId, out: &mut Strand) {
        let mut user = UserMessage::default();
        user.id = self.id("msg");
        user.session_id = session.clone();
        user.time.created = self.now();
        let body = PartBody::Compaction(CompactionPart::default());
        let part = self.part(session, &user.id, body);
        out.extend([message_updated(MessageInfo::User(user)), part_updated(&part)]);
        let mut step = self.assistant(session, out);
        step.summary = Some(true);
        self.text(&step, Kind::Text, "what happened", Cut::No, out);
        self.complete(&mut step, None, out);
    }

    fn assistant(&mut self, session: &SessionId, out: &mut Strand) -> AssistantMessage {
        let mut step = AssistantMessage::default();
        step.id = self.id("msg");
        step.session_id = session.clone();
        step.time.created = self.now();
        (step.provider_id, step.model_id) = ("p".into(), "m".into());
        out.push(message_updated(MessageInfo::Assistant(Box::new(step.clone()))));
        step
    }

    fn complete(&mut self, step: &mut AssistantMessage, error: Option<&str>, out: &mut Strand) {
        if let Some(name) = error {
            let mut error = MessageError::default();
            name.clone_into(&mut error.name);
            step.error = Some(error);
        } else {
            step.finish = Some("stop".into());
            (step.tokens.input, step.tokens.output, step.tokens.cache.read) = (3, 2, 4);
            step.cost = 0.1;
            out.push(message_updated(MessageInfo::Assistant(Box::new(step.clone()))));
        }
        step.time.completed = Some(self.now());
        out.push(message_updated(MessageInfo::Assistant(Box::new(step.clone()))));
    }

    /// Streams a text.
    fn text(&mut self, step: &AssistantMessage, kind: Kind, text: &str, cut: Cut, out: &mut Strand) -> Part {
        let mut time = PartTime::default();
        time.start = self.now();
        let mut part = self.part(&step.session_id, &step.id, kind.body("", &time));
        out.push(part_updated(&part));
        let mut sent = 0;
        while sent < text.len() {
            let rest = &text[sent..];
            let n_chars = 1 + self.chunks.below(rest.chars().count().min(4));
            let chunk = &rest[..rest.char_indices().nth(n_chars).map_or(rest.len(), |(at, _)| at)];
            sent += chunk.len();
            match self.dialect {
                Dialect::Deltas => {
                    let (session, message) = (step.session_id.clone(), step.id.clone());
                    out.push(EventPayload::PartDelta(PartDelta::new(
                        session,
                        message,
                        part.id.clone(),
                        chunk,
                    )));
                }
                Dialect::Wholes => {
                    part.body = kind.body(&text[..sent], &time);
                    out.push(EventPayload::PartUpdated { part: part.clone(), delta: Some(chunk.to_owned()) });
                }
            }
        }
        if cut == Cut::No {
            time.end = Some(self.now());
            part.body = kind.body(text.trim_end(), &time);
            out.push(part_updated(&part));
        }
        part
    }

    fn step(&mut self, session: &SessionId, step: &Step, end: End, said: &mut Said, out: &mut Strand) {
        let mut message = self.assistant(session, out);
        said.messages.push(message.id.clone());
        for failed in &step.failed {
            out.push(part_updated(&self.part(
                session,
                &message.id,
                PartBody::StepStart(StepStartPart::default()),
            )));
            self.text(&message, Kind::Text, failed, Cut::Yes, out);
            let next = Millis::default();
            let retry = SessionStatus::Retry { attempt: 1, message: "overloaded".to_owned(), next };
            out.extend([status(session, retry), status(session, SessionStatus::Busy)]);
        }
        for (kind, text) in [(Kind::Thinking, &step.thinking), (Kind::Text, &step.text)] {
            if let Some(text) = text {
                // A crash leaves the text without an end; an abort ends it.
                let cut = if end == End::Crash && kind == Kind::Text { Cut::Yes } else { Cut::No };
                let part = self.text(&message, kind, text, cut, out);
                said.parts.push(part);
            }
        }
        let is_broken = matches!(end, End::Abort | End::Crash);
        let mut strands = Vec::new();
        for tool in &step.tools {
            strands.push(self.tool(&message, tool, is_broken, said));
        }
        out.extend(self.mix(strands));
        match end {
            End::Crash => {}
            End::Error | End::Abort => {
                out.extend([status(session, SessionStatus::Idle), idle(session)]);
                let error = if end == End::Error { "APIError" } else { "MessageAbortedError" };
                self.complete(&mut message, Some(error), out);
            }
            End::Idle | End::Compaction => {
                let finish = PartBody::StepFinish(StepFinishPart::default());
                out.push(part_updated(&self.part(session, &message.id, finish)));
                self.complete(&mut message, None, out);
            }
        }
    }

    fn tool(&mut self, message: &AssistantMessage, tool: &Tool, is_broken: bool, said: &mut Said) -> Strand {
        let session = &message.session_id;
        let mut out = Vec::new();
        let mut call = ToolPart::default();
        // Call ids repeat on purpose.
        call.call_id = "call_1".into();
        call.tool = String::from(if matches!(tool, Tool::Plain(_)) { "bash" } else { "task" });
        let mut part = self.part(session, &message.id, PartBody::Tool(Box::new(call.clone())));
        said.parts.push(part.clone());
        out.push(part_updated(&part));
        let mut update = |call: &ToolPart, out: &mut Strand| {
            part.body = PartBody::Tool(Box::new(call.clone()));
            out.push(part_updated(&part));
        };
        call.state.status = ToolStatus::Running;
        call.state.input =
            json!({"description": "look", "prompt": "look around", "subagent_type": "general"}).into();
        call.state.time.get_or_insert_default().start = self.now();
        let named = |child: &SessionId| Some(Extra::from_iter([("sessionId".to_owned(), json!(child))]));
        let mut end = match tool {
            Tool::Plain(end) | Tool::Task { end, .. } => *end,
            Tool::Background(_) | Tool::Resume | Tool::Misnamed => ToolEnd::Completed,
        };
        if is_broken && end == ToolEnd::Completed {
            end = ToolEnd::Failed;
        }
        let mut forgotten = None;
        match tool {
            Tool::Plain(_) => {
                update(&call, &mut out);
                call.state.metadata = Some(Extra::from_iter([("output".to_owned(), json!("so far"))]));
                update(&call, &mut out);
            }
            Tool::Task { child, forgets_child, .. } => {
                let id = self.create_session(Some(session), "look (@general subagent)", &mut out);
                said.children.push(id.clone());
                call.state.metadata = named(&id);
                update(&call, &mut out);
                out.extend(self.session(&id, child));
                forgotten = forgets_child.then_some(id);
            }
            Tool::Background(child) => {
                let id = self.create_session(Some(session), "work (@general subagent)", &mut out);
                call.state.metadata = named(&id);
                call.state.metadata.get_or_insert_default().insert("background".to_owned(), json!(true));
                update(&call, &mut out);
                let strand = self.session(&id, child);
                said.background.push((id, strand));
            }
            Tool::Misnamed => {
                "invalid".clone_into(&mut call.tool);
                update(&call, &mut out);
            }
            Tool::Resume => {
                call.state.metadata = said.children.first().and_then(named);
                update(&call, &mut out);
            }
        }
        call.state.time.get_or_insert_default().end = Some(self.now());
        match end {
            ToolEnd::Completed => {
                call.state.status = ToolStatus::Completed;
                call.state.output = Some("<task_result>\nfound\n</task_result>".to_owned());
            }
            ToolEnd::Failed => {
                call.state.status = ToolStatus::Error;
                call.state.error = Some("it broke".to_owned());
                if let Some(child) = forgotten {
                    call.state.error = Some(format!("Subagent failed (task_id: {child}): it broke"));
                    call.state.metadata = None;
                }
            }
            ToolEnd::Stuck => return out,
        }
        update(&call, &mut out);
        said.tools.push(part);
        out
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

impl Kind {
    fn body(self, text: &str, time: &PartTime) -> PartBody {
        match self {
            Self::Text => {
                let mut part = TextPart::default();
                text.clone_into(&mut part.text);
                part.time = Some(time.clone());
                PartBody::Text(part)
            }
            Self::Thinking => {
                let mut part = ReasoningPart::default();
                text.clone_into(&mut part.text);
                part.time = Some(time.clone());
                PartBody::Reasoning(part)
            }
        }
    }
}

/// Whether a text is broken off before its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Yes,
    No,
}

fn words(text: &str, synthetic: Option<bool>) -> PartBody {
    let mut part = TextPart::default();
    text.clone_into(&mut part.text);
    part.synthetic = synthetic;
    PartBody::Text(part)
}

fn message_updated(info: MessageInfo) -> EventPayload {
    EventPayload::MessageUpdated(info)
}

fn part_updated(part: &Part) -> EventPayload {
    EventPayload::PartUpdated { part: part.clone(), delta: None }
}

fn status(session: &SessionId, status: SessionStatus) -> EventPayload {
    EventPayload::SessionStatus { session_id: session.clone(), status }
}

fn idle(session: &SessionId) -> EventPayload {
    EventPayload::SessionIdle { session_id: session.clone() }
}

/// What the server has stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) sessions: Vec<SessionInfo>,
    messages: BTreeMap<SessionId, BTreeMap<MessageId, Message>>,
}

impl Store {
    /// What is stored after these events.
    pub(crate) fn after(log: &[ServerEvent]) -> Self {
        let mut store = Self::default();
        for event in log {
            store.apply(event);
        }
        store
    }

    fn apply(&mut self, event: &ServerEvent) {
        match &event.payload {
            EventPayload::SessionCreated(info) => self.sessions.push(info.clone()),
            EventPayload::MessageUpdated(info) => {
                let messages = self.messages.entry(info.session_id().clone()).or_default();
                let parts = messages.remove(info.id()).map_or_else(Vec::new, |message| message.parts);
                messages.insert(info.id().clone(), Message::new(info.clone(), parts));
            }
            EventPayload::PartUpdated { part, .. } => {
                let messages = self.messages.entry(part.session_id.clone()).or_default();
                if let Some(message) = messages.get_mut(&part.message_id) {
                    message.parts.retain(|old| old.id != part.id);
                    message.parts.push(part.clone());
                    message.parts.sort_by(|one, two| one.id.cmp(&two.id));
                }
            }
            EventPayload::MessageRemoved { session_id, message_id } => {
                self.messages.entry(session_id.clone()).or_default().remove(message_id);
            }
            EventPayload::PartRemoved { session_id, message_id, part_id } => {
                let messages = self.messages.entry(session_id.clone()).or_default();
                if let Some(message) = messages.get_mut(message_id) {
                    message.parts.retain(|part| part.id != *part_id);
                }
            }
            _ => {}
        }
    }

    /// `GET /session/{id}/message`.
    pub(crate) fn list(&self, session: &SessionId) -> Vec<Message> {
        let mut messages: Vec<Message> =
            self.messages.get(session).into_iter().flat_map(BTreeMap::values).cloned().collect();
        messages.sort_by(|one, two| {
            (one.info.time().created, one.info.id()).cmp(&(two.info.time().created, two.info.id()))
        });
        messages
    }
}

//! A model of a server: random programs, run into event logs, with the lists the server would show at every moment.
//!
//! A program is made of operations on handles; running it mints ids and times and writes the events. What the server has
//! stored follows from the events themselves ([`Store`]), because it announces exactly what it stores. Deltas are the
//! exception: they are announced and not stored.

use std::collections::BTreeMap;

use opencode_conductor::{
    MessageId, SessionId,
    wire::{EventPayload, Message, ServerEvent, SessionInfo},
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A session's life.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) turns: Vec<Turn>,
}

#[derive(Debug, Clone)]
pub(crate) struct Turn {
    prompt: Prompt,
    steps: Vec<Step>,
    end: End,
    after: After,
}

#[derive(Debug, Clone)]
enum Prompt {
    Text,
    TextAndFile,
    Synthetic,
    Blank,
}

#[derive(Debug, Clone)]
struct Step {
    /// Texts of attempts that the provider broke off.
    failed: Vec<String>,
    thinking: Option<String>,
    text: Option<String>,
    tools: Vec<Tool>,
}

#[derive(Debug, Clone)]
enum Tool {
    Plain(ToolEnd),
    Task {
        child: Session,
        end: ToolEnd,
        forgets_child: bool,
    },
    Background(Session),
    /// Resumes the first child that the session had, if any.
    Resume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolEnd {
    Completed,
    Failed,
    /// It never ends: the server left it running.
    Stuck,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Idle,
    /// An error, announced by two idles of which the first comes too early.
    Error,
    Abort,
    Compaction,
    /// The server dies in the last step.
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum After {
    Nothing,
    RemoveLastMessage,
    RemovePart,
    Resubmit,
    PruneTools,
    Orphan,
}

fn words() -> impl Strategy<Value = String> {
    const TEXTS: &[&str] =
        &["", " \n", "a", "b c", "é", "one two three", "\nx\n\n  y\n", "a longer text, in words "];
    prop::sample::select(TEXTS).prop_map(str::to_owned)
}

fn tool_end() -> impl Strategy<Value = ToolEnd> {
    prop_oneof![6 => Just(ToolEnd::Completed), 2 => Just(ToolEnd::Failed), 1 => Just(ToolEnd::Stuck)]
}

fn step(tool: impl Strategy<Value = Tool>) -> impl Strategy<Value = Step> {
    (
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(words(), 1..3)],
        prop::option::of(words()),
        prop::option::of(words()),
        prop::collection::vec(tool, 0..3),
    )
        .prop_map(|(failed, thinking, text, tools)| Step { failed, thinking, text, tools })
}

fn turn(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Turn> {
    let prompt = prop_oneof![
        4 => Just(Prompt::Text),
        1 => Just(Prompt::TextAndFile),
        1 => Just(Prompt::Synthetic),
        1 => Just(Prompt::Blank)
    ];
    let end = prop_oneof![
        6 => Just(End::Idle),
        1 => Just(End::Error),
        1 => Just(End::Abort),
        1 => Just(End::Compaction),
        1 => Just(End::Crash)
    ];
    let after = prop_oneof![
        6 => Just(After::Nothing),
        1 => Just(After::RemoveLastMessage),
        1 => Just(After::RemovePart),
        1 => Just(After::Resubmit),
        1 => Just(After::PruneTools),
        1 => Just(After::Orphan)
    ];
    (prompt, prop::collection::vec(step, 0..3), end, after).prop_map(|(prompt, steps, end, after)| Turn {
        prompt,
        steps,
        end,
        after,
    })
}

/// Sessions with subagents up to three levels deep.
pub(crate) fn session() -> impl Strategy<Value = Session> {
    let leaf = || {
        let tool = tool_end().prop_map(Tool::Plain);
        prop::collection::vec(turn(step(tool)), 1..2).prop_map(|turns| Session { turns })
    };
    leaf().prop_recursive(2, 12, 2, |child| {
        let task = (child.clone(), tool_end(), any::<bool>())
            .prop_map(|(child, end, forgets_child)| Tool::Task { child, end, forgets_child });
        let tool = prop_oneof![
            3 => tool_end().prop_map(Tool::Plain),
            3 => task,
            1 => child.prop_map(Tool::Background),
            1 => Just(Tool::Resume),
        ];
        prop::collection::vec(turn(step(tool)), 1..3).prop_map(|turns| Session { turns })
    })
}

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
    /// Sessions whose server died on them.
    pub(crate) interrupted: bool,
}

/// Runs a program. `interleave` decides how what runs at once is mixed, `chunks` how text is cut.
pub(crate) fn run(program: &Session, dialect: Dialect, interleave: u64, chunks: u64) -> Run {
    let mut server = Server {
        dialect,
        chunks: Dice::new(chunks),
        dice: Dice::new(interleave),
        clock: 1_000_000,
        counter: 0,
        log: Vec::new(),
        crashed: false,
    };
    let root = server.create_session(None, "root");
    let done = server.session(&root, program);
    let log = server.write(done);
    Run { root: SessionId::new(root), log, interrupted: server.crashed }
}

/// An event still to be written, in the order of one strand of what runs at once.
type Strand = Vec<Value>;

struct Server {
    dialect: Dialect,
    chunks: Dice,
    dice: Dice,
    clock: i64,
    counter: u64,
    log: Vec<Value>,
    crashed: bool,
}

impl Server {
    fn now(&mut self) -> i64 {
        // Often the same millisecond, so that ids have to settle the order.
        self.clock += i64::from(!self.dice.one_in(3));
        self.clock
    }

    fn id(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}_{:08}", self.counter)
    }

    fn create_session(&mut self, parent: Option<&str>, title: &str) -> String {
        let (id, now) = (self.id("ses"), self.now());
        let mut info = json!({"id": id, "title": title, "time": {"created": now, "updated": now}});
        if let Some(parent) = parent {
            info["parentID"] = json!(parent);
        }
        self.log.push(json!({"type": "session.created", "properties": {"info": info}}));
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

    fn write(&mut self, strand: Strand) -> Vec<ServerEvent> {
        let events = std::mem::take(&mut self.log).into_iter().chain(strand);
        events.map(|event| ServerEvent::from_json(&event.to_string()).unwrap()).collect()
    }

    fn session(&mut self, session: &str, program: &Session) -> Strand {
        let mut said = Vec::new();
        let mut children = Vec::new();
        for turn in &program.turns {
            if self.turn(session, turn, &mut children, &mut said) == End::Crash {
                break;
            }
        }
        said
    }

    fn turn(&mut self, session: &str, turn: &Turn, children: &mut Vec<String>, said: &mut Strand) -> End {
        let mut user = self.user(session, &turn.prompt, said);
        said.push(status(session, "busy"));
        let mut messages = vec![user["id"].as_str().unwrap().to_owned()];
        let mut parts = Vec::new();
        let mut tools = Vec::new();
        let mut background = Vec::new();
        for (index, step) in turn.steps.iter().enumerate() {
            let is_last = index + 1 == turn.steps.len();
            let end = if is_last { turn.end } else { End::Idle };
            let mut run = StepRun { message: Value::Null, parts: Vec::new(), tools: Vec::new() };
            let ended = self.step(session, step, end, children, &mut run, &mut background, said);
            messages.push(run.message["id"].as_str().unwrap().to_owned());
            parts.extend(run.parts);
            tools.extend(run.tools);
            if ended == End::Crash {
                self.crashed = true;
                return End::Crash;
            }
        }
        if turn.end == End::Compaction {
            self.compaction(session, said);
        }
        if turn.end == End::Error {
            said.push(json!({"type": "session.error", "properties":
                {"sessionID": session, "error": {"name": "APIError", "data": {"message": "no"}}}}));
        }
        said.extend([status(session, "idle"), idle(session)]);
        // The tail.
        user["summary"] = json!({"diffs": []});
        said.push(json!({"type": "message.updated", "properties": {"info": user}}));
        match turn.after {
            After::Nothing => {}
            After::RemoveLastMessage => {
                let message = messages.pop().unwrap();
                said.push(json!({"type": "message.removed", "properties": {"sessionID": session, "messageID": message}}));
            }
            After::RemovePart => {
                if let Some((message, part)) = parts.pop() {
                    said.push(json!({"type": "message.part.removed", "properties":
                        {"sessionID": session, "messageID": message, "partID": part}}));
                }
            }
            After::Resubmit => {
                user["time"]["created"] = json!(self.now());
                said.push(json!({"type": "message.updated", "properties": {"info": user}}));
            }
            After::PruneTools => {
                for mut tool in tools {
                    tool["state"]["time"]["compacted"] = json!(self.now());
                    said.push(part_updated(&tool));
                }
            }
            After::Orphan => {
                let child = self.child(session, "made by hand", said);
                let leaf = Turn {
                    prompt: Prompt::Text,
                    steps: vec![Step {
                        failed: Vec::new(),
                        thinking: None,
                        text: Some("by hand".into()),
                        tools: Vec::new(),
                    }],
                    end: End::Idle,
                    after: After::Nothing,
                };
                said.extend(self.session(&child, &Session { turns: vec![leaf] }));
            }
        }
        if !background.is_empty() {
            let rest = std::mem::take(said);
            background.insert(0, rest);
            // What runs in the background overlaps with everything after its start; here, with all that was said.
            let from = background.remove(0);
            *said = self.overlap(from, background);
        }
        turn.end
    }

    /// Mixes background strands into what was said, none before it was started.
    fn overlap(&mut self, said: Strand, background: Vec<Strand>) -> Strand {
        let mut mixed = Vec::new();
        let mut waiting: Vec<_> = background;
        let mut running: Vec<std::vec::IntoIter<Value>> = Vec::new();
        for event in said {
            let created = event["type"] == "session.created";
            let session = event["properties"]["info"]["id"].clone();
            mixed.push(event);
            if created && let Some(at) = waiting.iter().position(|strand| strand_session(strand) == session) {
                running.push(waiting.remove(at).into_iter());
            }
            for strand in &mut running {
                mixed.extend(strand.by_ref().take(self.dice.below(3)));
            }
        }
        mixed.extend(running.into_iter().flatten());
        mixed.extend(waiting.into_iter().flatten());
        mixed
    }

    fn child(&mut self, parent: &str, title: &str, said: &mut Strand) -> String {
        let before = self.log.len();
        let child = self.create_session(Some(parent), title);
        said.extend(self.log.drain(before..));
        child
    }

    fn user(&mut self, session: &str, prompt: &Prompt, said: &mut Strand) -> Value {
        let (id, now) = (self.id("msg"), self.now());
        let info = json!({"id": id, "sessionID": session, "role": "user", "time": {"created": now},
            "agent": "build", "model": {"providerID": "p", "modelID": "m"}});
        said.push(json!({"type": "message.updated", "properties": {"info": info}}));
        let text = |text: &str| json!({"type": "text", "text": text});
        let file = json!({"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,AAAA"});
        let parts = match prompt {
            Prompt::Text => vec![text("do it")],
            Prompt::TextAndFile => {
                vec![text("see"), file, json!({"type": "text", "text": "file read", "synthetic": true})]
            }
            Prompt::Synthetic => vec![json!({"type": "text", "text": "go on", "synthetic": true})],
            Prompt::Blank => vec![text(" ")],
        };
        for part in parts {
            let part = self.part(session, &info, part);
            said.push(part_updated(&part));
        }
        info
    }

    fn part(&mut self, session: &str, message: &Value, mut part: Value) -> Value {
        part["id"] = json!(self.id("prt"));
        part["sessionID"] = json!(session);
        part["messageID"] = message["id"].clone();
        part
    }

    fn compaction(&mut self, session: &str, said: &mut Strand) {
        let (id, now) = (self.id("msg"), self.now());
        let info = json!({"id": id, "sessionID": session, "role": "user", "time": {"created": now}});
        said.push(json!({"type": "message.updated", "properties": {"info": info}}));
        let part = self.part(session, &info, json!({"type": "compaction", "auto": true}));
        said.push(part_updated(&part));
        let mut step = self.assistant(session, said);
        step["summary"] = json!(true);
        self.text(session, &step, "text", "what happened", Some(()), said);
        self.complete(&mut step, None, said);
    }

    fn assistant(&mut self, session: &str, said: &mut Strand) -> Value {
        let (id, now) = (self.id("msg"), self.now());
        let info = json!({"id": id, "sessionID": session, "role": "assistant", "time": {"created": now},
            "providerID": "p", "modelID": "m", "cost": 0,
            "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}});
        said.push(json!({"type": "message.updated", "properties": {"info": info}}));
        info
    }

    fn complete(&mut self, step: &mut Value, error: Option<&str>, said: &mut Strand) {
        if let Some(name) = error {
            step["error"] = json!({"name": name, "data": {"message": "it broke"}});
        } else {
            step["finish"] = json!("stop");
            step["tokens"] =
                json!({"input": 3, "output": 2, "reasoning": 1, "cache": {"read": 4, "write": 5}});
            step["cost"] = json!(0.1);
            said.push(json!({"type": "message.updated", "properties": {"info": step}}));
        }
        step["time"]["completed"] = json!(self.now());
        said.push(json!({"type": "message.updated", "properties": {"info": step}}));
    }

    /// Streams a text; without `end` it is broken off.
    fn text(
        &mut self,
        session: &str,
        message: &Value,
        kind: &str,
        text: &str,
        end: Option<()>,
        said: &mut Strand,
    ) -> Value {
        let start = self.now();
        let mut part =
            self.part(session, message, json!({"type": kind, "text": "", "time": {"start": start}}));
        said.push(part_updated(&part));
        let mut rest = text;
        let mut so_far = String::new();
        while !rest.is_empty() {
            let chars = rest.chars().count();
            let take = 1 + self.chunks.below(chars.min(4));
            let at = rest.char_indices().nth(take).map_or(rest.len(), |(at, _)| at);
            let (chunk, later) = rest.split_at(at);
            rest = later;
            so_far.push_str(chunk);
            match self.dialect {
                Dialect::Deltas => said.push(json!({"type": "message.part.delta", "properties": {
                    "sessionID": session, "messageID": message["id"], "partID": part["id"], "field": "text", "delta": chunk}})),
                Dialect::Wholes => {
                    part["text"] = json!(so_far);
                    said.push(json!({"type": "message.part.updated", "properties": {"part": part, "delta": chunk}}));
                }
            }
        }
        if end.is_some() {
            part["text"] = json!(text.trim_end());
            part["time"]["end"] = json!(self.now());
            said.push(part_updated(&part));
        }
        part
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one step")]
    fn step(
        &mut self,
        session: &str,
        step: &Step,
        end: End,
        children: &mut Vec<String>,
        run: &mut StepRun,
        background: &mut Vec<Strand>,
        said: &mut Strand,
    ) -> End {
        let mut message = self.assistant(session, said);
        run.message = message.clone();
        for failed in &step.failed {
            let start = self.part(session, &message, json!({"type": "step-start"}));
            said.push(part_updated(&start));
            self.text(session, &message, "text", failed, None, said);
            said.push(json!({"type": "session.status", "properties": {"sessionID": session,
                "status": {"type": "retry", "attempt": 1, "message": "overloaded", "next": 1}}}));
            said.push(status(session, "busy"));
        }
        let start = self.part(session, &message, json!({"type": "step-start"}));
        said.push(part_updated(&start));
        let broken = matches!(end, End::Abort | End::Crash);
        for (kind, text) in [("reasoning", &step.thinking), ("text", &step.text)] {
            if let Some(text) = text {
                // A crash leaves the text without an end; an abort ends it.
                let is_cut = end == End::Crash && kind == "text";
                let part = self.text(session, &message, kind, text, (!is_cut).then_some(()), said);
                run.parts.push((message["id"].clone(), part["id"].clone()));
            }
        }
        let strands: Vec<Strand> = step
            .tools
            .iter()
            .map(|tool| self.tool(session, &message, tool, broken, children, run, background))
            .collect();
        let mixed = self.mix(strands);
        said.extend(mixed);
        match end {
            End::Crash => return End::Crash,
            End::Error | End::Abort => {
                said.extend([status(session, "idle"), idle(session)]);
                let error = if end == End::Error { "APIError" } else { "MessageAbortedError" };
                self.complete(&mut message, Some(error), said);
            }
            End::Idle | End::Compaction => {
                let finish = self.part(
                    session,
                    &message,
                    json!({"type": "step-finish", "reason": "stop", "cost": 0.1,
                    "tokens": {"input": 3, "output": 2, "reasoning": 1, "cache": {"read": 4, "write": 5}}}),
                );
                said.push(part_updated(&finish));
                self.complete(&mut message, None, said);
            }
        }
        end
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one step")]
    fn tool(
        &mut self,
        session: &str,
        message: &Value,
        tool: &Tool,
        broken: bool,
        children: &mut Vec<String>,
        run: &mut StepRun,
        background: &mut Vec<Strand>,
    ) -> Strand {
        let mut said = Vec::new();
        let name = if matches!(tool, Tool::Plain(_)) { "bash" } else { "task" };
        // Call ids repeat on purpose.
        let mut part = self.part(
            session,
            message,
            json!({"type": "tool", "callID": "call_1", "tool": name,
            "state": {"status": "pending", "input": {}, "raw": ""}}),
        );
        run.parts.push((message["id"].clone(), part["id"].clone()));
        said.push(part_updated(&part));
        let start = self.now();
        part["state"] = json!({"status": "running", "time": {"start": start},
            "input": {"description": "look", "prompt": "look around", "subagent_type": "general"}});
        let mut end = match tool {
            Tool::Plain(end) | Tool::Task { end, .. } => *end,
            Tool::Background(_) | Tool::Resume => ToolEnd::Completed,
        };
        if broken && end == ToolEnd::Completed {
            end = ToolEnd::Failed;
        }
        let mut forgets = false;
        match tool {
            Tool::Plain(_) => {
                said.push(part_updated(&part));
                part["state"]["metadata"] = json!({"output": "so far"});
                said.push(part_updated(&part));
            }
            Tool::Task { child, forgets_child, .. } => {
                let id = self.child(session, "look (@general subagent)", &mut said);
                children.push(id.clone());
                part["state"]["metadata"] = json!({"sessionId": id});
                said.push(part_updated(&part));
                said.extend(self.session(&id, child));
                forgets = *forgets_child;
            }
            Tool::Background(child) => {
                let id = self.child(session, "work (@general subagent)", &mut said);
                part["state"]["metadata"] = json!({"sessionId": id, "background": true});
                said.push(part_updated(&part));
                background.push(self.session(&id, child));
            }
            Tool::Resume => {
                if let Some(id) = children.first().cloned() {
                    part["state"]["metadata"] = json!({"sessionId": id});
                }
                said.push(part_updated(&part));
            }
        }
        let now = self.now();
        part["state"]["time"]["end"] = json!(now);
        match end {
            ToolEnd::Completed => {
                part["state"]["status"] = json!("completed");
                part["state"]["output"] = json!("<task_result>\nfound\n</task_result>");
                part["state"]["title"] = json!("look");
            }
            ToolEnd::Failed => {
                let child = part["state"]["metadata"]["sessionId"].as_str().map(str::to_owned);
                part["state"]["status"] = json!("error");
                part["state"]["error"] = json!(child.filter(|_| forgets).map_or_else(
                    || "it broke".to_owned(),
                    |child| format!("Subagent failed (task_id: {child}): it broke"),
                ));
                if forgets {
                    part["state"].as_object_mut().unwrap().remove("metadata");
                }
            }
            ToolEnd::Stuck => return said,
        }
        said.push(part_updated(&part));
        run.tools.push(part);
        said
    }
}

struct StepRun {
    message: Value,
    parts: Vec<(Value, Value)>,
    tools: Vec<Value>,
}

fn strand_session(strand: &Strand) -> Value {
    strand.first().map_or(Value::Null, |event| event["properties"]["info"]["sessionID"].clone())
}

fn part_updated(part: &Value) -> Value {
    json!({"type": "message.part.updated", "properties": {"part": part}})
}

fn status(session: &str, status: &str) -> Value {
    json!({"type": "session.status", "properties": {"sessionID": session, "status": {"type": status}}})
}

fn idle(session: &str) -> Value {
    json!({"type": "session.idle", "properties": {"sessionID": session}})
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

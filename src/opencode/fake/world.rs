//! The server's memory: sessions, messages, parts and statuses, and the events that tell of their changes.
//!
//! Everything is plain JSON, so that the fake shares no types, and hence no mistakes, with the client.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    events::{Bus, Event, GlobalEvent, Signal, frame},
    options::{FakeOptions, Flavour},
    price::number,
    recorder::{RecordedEvent, Recorder},
    rules::Rule,
    run::Runner,
};
use crate::test_util::Script;

/// The id of the one project that all directories belong to.
pub(super) const PROJECT: &str = "fa4e0000c0de0000fa4e0000c0de0000fa4e0000";

/// What 1.15.0 does not send on `/event`.
const UNSENT_BY_1_15_0: [&str; 7] = [
    "message.updated",
    "message.removed",
    "message.part.updated",
    "message.part.removed",
    "session.created",
    "session.updated",
    "session.deleted",
];

#[derive(Debug)]
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) bus: Bus,
    pub(super) sessions: HashMap<String, Session>,
    /// Session ids, oldest first.
    pub(super) session_order: Vec<String>,
    /// Which session holds a message: ids are global to the server.
    pub(super) message_home: HashMap<String, String>,
    pub(super) runners: HashMap<String, Runner>,
    pub(super) next_runner: u64,
    pub(super) instances: BTreeMap<String, Instance>,
    /// Directories that do not exist on disk: every run in them dies once its step has begun.
    pub(super) missing_directories: HashSet<String>,
    /// What the model will say, by user message; chosen once per message.
    pub(super) scripts: HashMap<String, Option<Arc<Script>>>,
    /// How often a step with a limited number of failures has failed, by session, prompt and step.
    pub(super) failures: HashMap<(String, String, usize), u32>,
    /// Subagents at work, by child session.
    pub(super) jobs: BTreeMap<String, Job>,
    recorder: Arc<Recorder>,
    flavour: Flavour,
    project: String,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: Map<String, Value>,
    pub(super) directory: String,
    pub(super) messages: Vec<Message>,
    /// The latest time of any message so far.
    latest_ms: u64,
    pub(super) todos: Value,
}

#[derive(Debug)]
pub(super) struct Message {
    /// When the row was first written; `info.time.created` moves when the message is posted again, this does not.
    pub(super) row_ms: u64,
    pub(super) info: Value,
    /// In order of part ids.
    pub(super) parts: Vec<Value>,
}

/// What lives per directory, until it is disposed of.
#[derive(Debug, Default)]
pub(super) struct Instance {
    pub(super) statuses: BTreeMap<String, Value>,
    pub(super) permissions: Vec<Pending<PermissionReply>>,
    pub(super) questions: Vec<Pending<QuestionReply>>,
    /// Rules that were allowed for good.
    pub(super) approved: Vec<Rule>,
}

/// A request that waits for a human.
#[derive(Debug)]
pub(super) struct Pending<T> {
    pub(super) info: Value,
    pub(super) answer: oneshot::Sender<T>,
}

/// Allowed, or rejected, perhaps with words for the model.
pub(super) type PermissionReply = Result<(), Option<String>>;

/// The answers, or nothing if the question was dismissed.
pub(super) type QuestionReply = Option<Value>;

/// A subagent at work.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) parent: String,
    pub(super) cancel: CancellationToken,
}

impl Session {
    pub(super) fn text(&self, field: &str) -> &str {
        self.info.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn message(&self, id: &str) -> Option<&Message> {
        self.messages.iter().find(|message| message.id() == id)
    }
}

impl Message {
    pub(super) fn id(&self) -> &str {
        self.info["id"].as_str().unwrap_or_default()
    }

    pub(super) fn is(&self, role: &str) -> bool {
        self.info["role"] == role
    }

    pub(super) fn with_parts(&self) -> Value {
        json!({"info": self.info, "parts": self.parts})
    }

    /// The order in which the server looks for the newest message.
    pub(super) fn age_key(&self) -> (u64, &str) {
        (self.info["time"]["created"].as_u64().unwrap_or(0), self.id())
    }

    fn row_key(&self) -> (u64, &str) {
        (self.row_ms, self.id())
    }
}

impl World {
    pub(super) fn new(recorder: Arc<Recorder>, options: &FakeOptions) -> Self {
        Self {
            project: options.directory.clone(),
            clock: Clock::default(),
            bus: Bus::default(),
            sessions: HashMap::new(),
            session_order: Vec::new(),
            message_home: HashMap::new(),
            runners: HashMap::new(),
            next_runner: 0,
            instances: BTreeMap::new(),
            missing_directories: HashSet::new(),
            scripts: HashMap::new(),
            failures: HashMap::new(),
            jobs: BTreeMap::new(),
            recorder,
            flavour: options.flavour,
        }
    }

    /// Where a directory lies below the project's, if it does.
    fn path_in_project<'d>(&self, directory: &'d str) -> Option<&'d str> {
        directory.strip_prefix(&self.project)?.strip_prefix('/')
    }

    /// The directory of the project that another belongs to, by itself or as one below.
    pub(super) fn root_of<'d>(&'d self, directory: &'d str) -> &'d str {
        if self.path_in_project(directory).is_some() { &self.project } else { directory }
    }

    pub(super) fn directory_of(&self, session: &str) -> Option<String> {
        self.sessions.get(session).map(|session| session.directory.clone())
    }

    pub(super) fn instance(&mut self, directory: &str) -> &mut Instance {
        self.instances.entry(directory.to_owned()).or_default()
    }

    /// Sends an event to everyone who listens to the directory.
    pub(super) fn publish(&mut self, directory: &str, kind: &str, properties: Value) {
        let Value::Object(mut properties) = properties else { return };
        let session = properties.get("sessionID").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_about_a_thing =
            ["info", "part"].iter().any(|thing| properties.get(*thing).is_some_and(Value::is_object));
        if self.flavour == Flavour::V1_1 && is_about_a_thing {
            properties.remove("sessionID");
            properties.remove("time");
        }
        let id = (self.flavour != Flavour::V1_1).then(|| self.clock.ascending("evt"));
        let event = Event { id, kind, properties: &properties };
        if !(self.flavour == Flavour::V1_15_0 && UNSENT_BY_1_15_0.contains(&kind)) {
            self.bus.tell(Some(directory), &Signal::Frame(frame(&event)));
        }
        if self.bus.has_global() {
            let global = GlobalEvent { directory: Some(directory), project: Some(PROJECT), payload: &event };
            self.bus.tell(None, &Signal::Frame(frame(&global)));
        }
        self.recorder.change(|log| {
            if kind == "message.part.delta" {
                log.deltas += 1;
            } else {
                log.events.push(RecordedEvent {
                    kind: kind.to_owned(),
                    session,
                    properties: properties.into(),
                });
            }
        });
    }

    pub(super) fn publish_for(&mut self, session: &str, kind: &str, properties: Value) {
        if let Some(directory) = self.directory_of(session) {
            self.publish(&directory, kind, properties);
        }
    }

    pub(super) fn create_session(&mut self, directory: &str, fields: Map<String, Value>) -> Value {
        let id = self.clock.descending("ses");
        let now = self.clock.now_ms();
        let mut info = json!({
            "id": id, "slug": slug(), "version": self.flavour.version(), "projectID": PROJECT,
            "directory": directory, "path": self.path_in_project(directory).unwrap_or_default(), "cost": 0, "tokens": no_tokens(),
            "time": {"created": now, "updated": now},
        });
        if let Some(info) = info.as_object_mut() {
            info.extend(fields);
            self.trim_to_flavour(info);
            info.entry("title").or_insert_with(|| format!("New session - {}", iso(now)).into());
        }
        self.session_order.push(id.clone());
        let session = Session {
            info: info.as_object().cloned().unwrap_or_default(),
            directory: directory.to_owned(),
            messages: Vec::new(),
            latest_ms: 0,
            todos: json!([]),
        };
        self.sessions.insert(id.clone(), session);
        self.publish(directory, "session.created", json!({"sessionID": id, "info": info}));
        if self.flavour == Flavour::V1_1 {
            self.publish(directory, "session.updated", json!({"sessionID": id, "info": info}));
        }
        info
    }

    /// Takes out what sessions of old releases do not say.
    fn trim_to_flavour(&self, info: &mut Map<String, Value>) {
        if self.flavour == Flavour::V1_1 {
            info.retain(|field, _| {
                !["path", "cost", "tokens", "agent", "model", "metadata"].contains(&field.as_str())
            });
        }
    }

    /// Changes a session's fields and says so.
    pub(super) fn update_session(&mut self, session: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let now = self.clock.now_ms();
        let Some(found) = self.sessions.get_mut(session) else {
            return;
        };
        change(&mut found.info);
        if let Some(time) = found.info.get_mut("time") {
            time["updated"] = now.into();
        }
        let info = Value::Object(found.info.clone());
        self.publish_for(session, "session.updated", json!({"sessionID": session, "info": info}));
    }

    /// The time of a session's next message. The real server needs longer than a clock's tick from one to the next;
    /// here the order must not be left to the ids.
    pub(super) fn next_message_ms(&self, session: &str) -> u64 {
        let latest = self.sessions.get(session).map_or(0, |session| session.latest_ms);
        self.clock.now_ms().max(latest + 1)
    }

    /// Writes a message, new or known, and says so.
    pub(super) fn put_message(&mut self, session: &str, info: &Value) {
        let row_ms = self.next_message_ms(session);
        let id = info["id"].as_str().unwrap_or_default().to_owned();
        let home = self.message_home.entry(id.clone()).or_insert_with(|| session.to_owned()).clone();
        let Some(found) = self.sessions.get_mut(&home) else {
            return;
        };
        found.latest_ms = found.latest_ms.max(info["time"]["created"].as_u64().unwrap_or(0));
        if let Some(message) = found.messages.iter_mut().rev().find(|message| message.id() == id) {
            message.info = info.clone();
            message.info["sessionID"] = home.into();
        } else {
            found.latest_ms = found.latest_ms.max(row_ms);
            let message = Message { row_ms, info: info.clone(), parts: Vec::new() };
            let place = found.messages.partition_point(|other| other.row_key() < message.row_key());
            found.messages.insert(place, message);
        }
        self.publish_for(session, "message.updated", json!({"sessionID": session, "info": info}));
    }

    /// Writes a user message that the server itself makes, for the agent and model of `user`; returns its id and time.
    pub(super) fn put_own_prompt(&mut self, session: &str, user: &Value) -> (String, u64) {
        let id = self.clock.ascending("msg");
        let now = self.next_message_ms(session);
        let info = json!({
            "id": id, "role": "user", "sessionID": session, "time": {"created": now},
            "agent": user["agent"], "model": user["model"],
        });
        self.put_message(session, &info);
        (id, now)
    }

    /// Writes a part, new or known, and says so.
    pub(super) fn put_part(&mut self, part: &Value) {
        self.store_part(part);
        self.publish_part(part);
    }

    fn publish_part(&mut self, part: &Value) {
        let session = part["sessionID"].as_str().unwrap_or_default();
        let is_first_of_stream =
            part["text"] == "" && part["time"]["end"].is_null() && !part["time"].is_null();
        if self.flavour == Flavour::V1_1 && is_first_of_stream {
            // Old releases send the part with its first delta.
            return;
        }
        let properties = json!({"sessionID": session, "part": part, "time": self.clock.now_ms()});
        self.publish_for(session, "message.part.updated", properties);
    }

    fn store_part(&mut self, part: &Value) {
        let message_id = part["messageID"].as_str().unwrap_or_default();
        let Some(message) =
            self.message_home.get(message_id).and_then(|home| self.sessions.get_mut(home)).and_then(
                |session| session.messages.iter_mut().rev().find(|message| message.id() == message_id),
            )
        else {
            return;
        };
        let id = part["id"].as_str();
        match message.parts.binary_search_by(|other| other["id"].as_str().cmp(&id)) {
            Ok(place) => message.parts[place] = part.clone(),
            Err(place) => message.parts.insert(place, part.clone()),
        }
    }

    /// Tells of text that was added to a part, which is stored only once the part is complete; old releases store it
    /// at once.
    pub(super) fn publish_delta(&mut self, part: &Value, delta: &str) {
        let session = part["sessionID"].as_str().unwrap_or_default();
        if self.flavour == Flavour::V1_1 {
            self.store_part(part);
            let properties = json!({"sessionID": session, "part": part, "delta": delta});
            self.publish_for(session, "message.part.updated", properties);
            return;
        }
        let properties = json!({
            "sessionID": session, "messageID": part["messageID"], "partID": part["id"], "field": "text", "delta": delta,
        });
        self.publish_for(session, "message.part.delta", properties);
    }

    /// The newest state of a stored part.
    pub(super) fn part(&self, message: &str, part: &str) -> Option<&Value> {
        let home = self.message_home.get(message)?;
        let message = self.sessions.get(home)?.message(message)?;
        message.parts.iter().find(|other| other["id"] == part)
    }

    pub(super) fn set_busy(&mut self, session: &str) {
        self.set_status(session, &json!({"type": "busy"}));
    }

    pub(super) fn set_idle(&mut self, session: &str, fallback_directory: &str) {
        let directory = self.directory_of(session).unwrap_or_else(|| fallback_directory.to_owned());
        self.publish(&directory, "session.status", json!({"sessionID": session, "status": {"type": "idle"}}));
        self.instance(&directory).statuses.remove(session);
        self.publish(&directory, "session.idle", json!({"sessionID": session}));
    }

    pub(super) fn set_status(&mut self, session: &str, status: &Value) {
        let Some(directory) = self.directory_of(session) else {
            return;
        };
        self.instance(&directory).statuses.insert(session.to_owned(), status.clone());
        self.publish(&directory, "session.status", json!({"sessionID": session, "status": status}));
    }

    pub(super) fn session_error(&mut self, session: &str, error: &Value) {
        self.publish_for(session, "session.error", json!({"sessionID": session, "error": error}));
    }

    /// Adds what a step used to its session's account.
    pub(super) fn add_usage(&mut self, session: &str, tokens: &Value, cost: f64) {
        let Some(session) = self.sessions.get_mut(session) else { return };
        if let Some(total) = session.info.get_mut("cost") {
            *total = number(total.as_f64().unwrap_or(0.0) + cost);
        }
        let Some(total) = session.info.get_mut("tokens") else { return };
        let add = |total: &mut Value, used: &Value| {
            *total = (total.as_u64().unwrap_or(0) + used.as_u64().unwrap_or(0)).into();
        };
        for field in ["input", "output", "reasoning"] {
            add(&mut total[field], &tokens[field]);
        }
        add(&mut total["cache"]["read"], &tokens["cache"]["read"]);
    }

    /// All sessions below one, children first.
    pub(super) fn descendants(&self, session: &str) -> Vec<String> {
        let mut found = vec![session.to_owned()];
        let mut next = 0;
        while next < found.len() {
            let parent = found[next].clone();
            let children = self
                .session_order
                .iter()
                .filter(|id| self.sessions.get(*id).is_some_and(|child| child.text("parentID") == parent));
            found.extend(children.cloned());
            next += 1;
        }
        found.remove(0);
        found.reverse();
        found
    }
}

pub(super) fn no_tokens() -> Value {
    json!({"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}})
}

/// The server's error object.
pub(super) fn unknown_error(message: &str) -> Value {
    json!({"name": "UnknownError", "data": {"message": message}})
}

fn slug() -> String {
    const FIRST: [&str; 6] = ["brave", "calm", "eager", "lucky", "quiet", "witty"];
    const SECOND: [&str; 6] = ["comet", "falcon", "harbor", "lagoon", "meadow", "otter"];
    format!("{}-{}", FIRST[fastrand::usize(..6)], SECOND[fastrand::usize(..6)])
}

fn iso(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(String::new, |time| format!("{time:.3}"))
}

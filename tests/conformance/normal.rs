//! Makes the records of two servers comparable: ids become names, times and hashes go, and what may happen in either
//! order is kept apart.
//!
//! Within a session the order of statuses, errors, messages and new parts is one lane. What one part goes through is a
//! lane of its own, since tools run beside the model's stream; so are the requests to humans.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// What comes at any time, if at all: the summaries of changed files and the server's housekeeping.
const UNORDERED: [&str; 12] = [
    "session.updated",
    "session.diff",
    "server.connected",
    "server.heartbeat",
    "plugin.added",
    "catalog.updated",
    "integration.updated",
    "reference.updated",
    "project.directories.updated",
    "project.updated",
    "file.watcher.updated",
    "file.edited",
];

pub(crate) struct Record {
    notes: Vec<(String, Value)>,
    /// What stands for itself on one server only, and its name.
    replaced: Vec<(String, String)>,
    /// Sessions by order of appearance.
    sessions: Vec<String>,
    ignored: BTreeSet<String>,
    keeps_events: bool,
    lists: Vec<(String, Value)>,
    names: BTreeMap<String, String>,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            notes: Vec::new(),
            replaced: Vec::new(),
            sessions: Vec::new(),
            ignored: BTreeSet::new(),
            keeps_events: true,
            lists: Vec::new(),
            names: BTreeMap::new(),
        }
    }

    pub(crate) fn note(&mut self, label: &str, value: Value) {
        self.notes.push((label.to_owned(), value));
    }

    /// Writes `name` for `text` wherever it occurs; what is said first goes first.
    pub(crate) fn replace(&mut self, text: String, name: &str) {
        self.replaced.push((text, name.to_owned()));
    }

    pub(crate) fn forget_events(&mut self) {
        self.keeps_events = false;
    }

    pub(crate) fn ignore(&mut self, session: &str) {
        self.ignored.insert(session.to_owned());
    }

    pub(crate) fn name_session(&mut self, session: &str) {
        if !self.ignored.contains(session) && !self.sessions.iter().any(|known| known == session) {
            self.sessions.push(session.to_owned());
            self.names.insert(session.to_owned(), format!("S{}", self.sessions.len()));
        }
    }

    pub(crate) fn sessions_of(&mut self, events: &[Value]) -> Vec<String> {
        for event in events.iter().filter(|event| event["type"] == "session.created") {
            self.name_session(event["properties"]["info"]["id"].as_str().unwrap_or_default());
        }
        self.sessions.clone()
    }

    pub(crate) fn messages(&mut self, session: &str, list: Value) {
        self.lists.push((session.to_owned(), list));
    }

    pub(crate) fn finish(mut self, events: &[Value]) -> Value {
        self.name_all(events);
        let mut lanes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for event in events {
            self.sort_in(event, &mut lanes);
        }
        let lanes: Map<String, Value> =
            lanes.into_iter().map(|(name, lane)| (name, collapse(lane))).collect();
        let notes: Vec<Value> =
            self.notes.iter().map(|(label, value)| json!({label: self.clean(value)})).collect();
        let lists: Map<String, Value> =
            self.lists.iter().map(|(session, list)| (self.rename(session), self.clean(list))).collect();
        if self.keeps_events {
            json!({"notes": notes, "events": lanes, "messages": lists})
        } else {
            json!({"notes": notes})
        }
    }

    /// Names messages by their order in the session, parts by their order in the message.
    fn name_all(&mut self, events: &[Value]) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut name = |names: &mut BTreeMap<String, String>, id: &Value, parent: &Value, letter: &str| {
            let (Some(id), Some(parent)) = (id.as_str(), parent.as_str()) else {
                return;
            };
            let Some(parent) = names.get(parent).cloned() else {
                return;
            };
            if !names.contains_key(id) {
                let count = counts.entry(format!("{parent}{letter}")).or_default();
                *count += 1;
                names.insert(id.to_owned(), format!("{parent}.{letter}{count}"));
            }
        };
        for event in events {
            let properties = &event["properties"];
            match event["type"].as_str() {
                Some("message.updated") => {
                    name(&mut self.names, &properties["info"]["id"], &properties["info"]["sessionID"], "m");
                }
                Some("message.part.updated") => {
                    let part = &properties["part"];
                    name(&mut self.names, &part["id"], &part["messageID"], "p");
                }
                Some("permission.asked") => {
                    name(&mut self.names, &properties["id"], &properties["sessionID"], "per");
                }
                Some("question.asked") => {
                    name(&mut self.names, &properties["id"], &properties["sessionID"], "que");
                }
                _ => {}
            }
        }
        for (session, list) in &self.lists {
            for message in list.as_array().into_iter().flatten() {
                name(&mut self.names, &message["info"]["id"], &session.as_str().into(), "m");
                for part in message["parts"].as_array().into_iter().flatten() {
                    name(&mut self.names, &part["id"], &message["info"]["id"], "p");
                }
            }
        }
    }

    fn sort_in(&self, event: &Value, lanes: &mut BTreeMap<String, Vec<Value>>) {
        let kind = event["type"].as_str().unwrap_or_default();
        let properties = &event["properties"];
        let session = properties["sessionID"].as_str().unwrap_or_default();
        // Other scenarios may still have a word to say on the same stream.
        let is_ours = session.is_empty() || session == "ses_nope" || self.names.contains_key(session);
        if UNORDERED.contains(&kind) || !is_ours {
            return;
        }
        let session = self.rename(session);
        let mut push = |lane: String, value: Value| lanes.entry(lane).or_default().push(value);
        match kind {
            "message.part.updated" => {
                let part = self.clean(&properties["part"]);
                let name = part["id"].as_str().unwrap_or_default().to_owned();
                push(name.clone(), part_state(&part));
                push(session, json!({"part": name, "type": part["type"]}));
            }
            "message.part.delta" => {
                let name = self.rename(properties["partID"].as_str().unwrap_or_default());
                push(name, json!({"delta": properties["delta"]}));
            }
            "message.updated" => {
                let info = &properties["info"];
                // The summary of changed files comes at any time.
                if info["role"] == "assistant" || info["summary"].is_null() {
                    push(session, message_state(&self.clean(info)));
                }
            }
            "session.created" => {
                let info = self.clean(&properties["info"]);
                push(session, json!({"created": info}));
            }
            "session.status" => push(session, json!({"status": self.clean(&properties["status"])})),
            _ if kind.starts_with("permission.") || kind.starts_with("question.") => {
                push(format!("{session} requests"), json!({kind: self.clean(properties)}));
            }
            _ => push(session, json!({kind: self.clean(properties)})),
        }
    }

    fn rename(&self, id: &str) -> String {
        self.names.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// Names for ids, placeholders for what never is the same twice.
    fn clean(&self, value: &Value) -> Value {
        match value {
            Value::Object(object)
                if object.get("metadata").is_some_and(|data| data["compaction_continue"] == true) =>
            {
                let mut part = object.clone();
                part.remove("metadata");
                part.insert("text".to_owned(), "<advice to continue>".into());
                self.clean(&part.into())
            }
            Value::Object(object) => {
                let kept = object.iter().filter(|(key, value)| !is_incomparable(key, value));
                kept.map(|(key, value)| (self.clean_text(key), self.clean_field(key, value))).collect()
            }
            Value::Array(array) => array.iter().map(|value| self.clean(value)).collect(),
            Value::String(text) => self.clean_text(text).into(),
            Value::Number(number) if number.as_u64().is_some_and(|number| number > 1_600_000_000_000) => {
                "T".into()
            }
            _ => value.clone(),
        }
    }

    fn clean_field(&self, key: &str, value: &Value) -> Value {
        match key {
            "slug" | "version" | "ref" | "callID" | "snapshot" | "hash" | "projectID" | "project" => {
                format!("<{key}>").into()
            }
            "title" if value.as_str().is_some_and(|title| title.starts_with("New session - ")) => {
                "<default title>".into()
            }
            // What follows the first line is a stack trace.
            "message" => self.clean_text(first_line(value)).into(),
            "text" | "output" => match value {
                Value::String(text) => self.clean_text(&without_advice(text)).into(),
                // A number of tokens.
                _ => self.clean(value),
            },
            _ => self.clean(value),
        }
    }

    fn clean_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (place, name) in &self.replaced {
            text = text.replace(place.as_str(), name);
        }
        for (id, name) in &self.names {
            if text.contains(id.as_str()) {
                text = text.replace(id.as_str(), name);
            }
        }
        text
    }
}

/// The server's advice to the model is its own; what matters is that it is there.
fn without_advice(text: &str) -> String {
    let (start, end) = ("<summary>Background task started</summary>\n<task_result>\n", "\n</task_result>");
    match text.split_once(start).and_then(|(head, rest)| Some((head, rest.rsplit_once(end)?))) {
        Some((head, (_, tail))) => format!("{head}{start}<advice>{end}{tail}"),
        None => text.to_owned(),
    }
}

fn first_line(value: &Value) -> &str {
    value.as_str().and_then(|text| text.lines().next()).unwrap_or_default()
}

/// Headers and addresses of the provider; summaries of changed files; absent things.
fn is_incomparable(key: &str, value: &Value) -> bool {
    match key {
        "responseHeaders" | "url" => true,
        "summary" => value.is_object(),
        _ => false,
    }
}

/// What counts about a part at one moment.
fn part_state(part: &Value) -> Value {
    if part["type"] == "tool" {
        let state = &part["state"];
        return match state["status"].as_str() {
            Some("pending" | "running") => json!({"status": state["status"]}),
            _ => json!({"tool": part["tool"], "state": state}),
        };
    }
    let mut part = part.clone();
    if let Some(part) = part.as_object_mut() {
        for key in ["id", "messageID", "sessionID"] {
            part.remove(key);
        }
    }
    part
}

/// What counts about a message at one moment.
fn message_state(info: &Value) -> Value {
    let mut state = json!({"message": info["id"], "role": info["role"]});
    for key in ["parentID", "finish", "error", "summary", "mode"] {
        if !info[key].is_null() {
            state[key] = info[key].clone();
        }
    }
    if !info["time"]["completed"].is_null() {
        state["completed"] = true.into();
    }
    state
}

/// Joins deltas, and drops what repeats the entry before it: progress is told as often as the server likes.
fn collapse(lane: Vec<Value>) -> Value {
    let mut out: Vec<Value> = Vec::new();
    let mut parts = BTreeSet::new();
    for entry in lane {
        if let Some(part) = entry["part"].as_str()
            && !parts.insert(part.to_owned())
        {
            // Only a part's first appearance has its place among the session's events.
            continue;
        }
        match out.last_mut() {
            Some(last) if last.get("delta").is_some() && entry.get("delta").is_some() => {
                let joined = format!(
                    "{}{}",
                    last["delta"].as_str().unwrap_or_default(),
                    entry["delta"].as_str().unwrap_or_default()
                );
                last["delta"] = joined.into();
            }
            Some(last) if *last == entry && last.get("status").is_some_and(Value::is_string) => {}
            _ => out.push(entry),
        }
    }
    out.into()
}

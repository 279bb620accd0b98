//! Every recorded session folds to the same state from its event log as from its message lists.

use std::{
    fs,
    path::{Path, PathBuf},
};

use opencode_conductor::{
    OpenCodeOptions, SessionConversationState, Transcript, parse_opencode,
    wire::{Decoded, Message, SessionInfo},
};
use serde_json::Value;

/// One recording.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) events: String,
    /// Root first.
    pub(crate) lists: Vec<String>,
    pub(crate) sessions: Vec<SessionInfo>,
    pub(crate) sessions_json: Vec<Value>,
    pub(crate) export: Option<String>,
}

pub(crate) fn fixtures() -> Vec<Fixture> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut dirs: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("events.sse").exists())
        .collect();
    dirs.sort();
    assert!(dirs.len() >= 15, "only {} fixtures", dirs.len());
    dirs.iter().map(|dir| Fixture::read(dir)).collect()
}

impl Fixture {
    fn read(dir: &Path) -> Self {
        let read = |path: PathBuf| {
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let mut lists: Vec<PathBuf> =
            fs::read_dir(dir.join("messages")).unwrap().map(|entry| entry.unwrap().path()).collect();
        lists.sort();
        let sessions_json = read(dir.join("sessions.json"));
        let sessions = Decoded::from_json("session", &sessions_json).unwrap();
        assert!(sessions.malformed.is_empty());
        Self {
            name: dir.file_name().unwrap().to_string_lossy().into_owned(),
            events: read(dir.join("events.sse")),
            lists: lists.into_iter().map(read).collect(),
            sessions: sessions.items,
            sessions_json: serde_json::from_str(&sessions_json).unwrap(),
            export: fs::read_to_string(dir.join("export.json")).ok(),
        }
    }

    pub(crate) fn load(&self, documents: &[&str]) -> Transcript {
        let options = OpenCodeOptions::default().session(self.sessions[0].id.clone());
        let transcript =
            parse_opencode(documents, &options).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!(transcript.malformed.is_empty(), "{}: {:?}", self.name, transcript.malformed);
        transcript
    }

    /// From the event log alone.
    pub(crate) fn streamed(&self) -> SessionConversationState {
        self.load(&[&self.events]).state
    }

    /// From the message lists alone.
    pub(crate) fn listed(&self) -> SessionConversationState {
        self.load(&self.lists()).state
    }

    /// From the log, and then the lists, as a client does that reads again in the end.
    fn reread(&self) -> SessionConversationState {
        let documents: Vec<&str> = [self.events.as_str()].into_iter().chain(self.lists()).collect();
        self.load(&documents).state
    }

    fn lists(&self) -> Vec<&str> {
        self.lists.iter().map(String::as_str).collect()
    }

    /// Whether the log says everything: the server announced all that it stored, and came to an end. One that was killed
    /// did not, nor one that gave up silently, nor 1.15.0, which streams no messages.
    fn is_told_by_its_log(&self) -> bool {
        let messages = self.lists.iter().flat_map(|list| Message::list_from_json(list).unwrap().items);
        messages.into_iter().all(|message| {
            let is_complete = message.info.as_assistant().is_none_or(|step| step.time.completed.is_some());
            is_complete && self.events.contains(r#""type":"message.updated""#)
        })
    }
}

#[test]
fn a_streamed_session_equals_its_transcript() {
    let mut untold = Vec::new();
    for fixture in fixtures() {
        let listed = fixture.listed();
        if fixture.is_told_by_its_log() {
            assert_same(&fixture.name, &fixture.streamed(), &listed);
        } else {
            untold.push(fixture.name.clone());
        }
        assert_same(&fixture.name, &fixture.reread(), &listed);
    }
    let expected =
        ["killed", "killed_text", "v1.0.152-silent", "v1.15.0-plain", "v1.15.0-subagent", "v1.15.0-tools"];
    assert_eq!(untold, expected);
}

#[test]
fn an_export_equals_the_list_of_its_session() {
    let mut n_exports = 0;
    for fixture in fixtures() {
        if let Some(export) = &fixture.export {
            let root = fixture.load(&[&fixture.lists[0]]).state;
            assert_same(&fixture.name, &fixture.load(&[export]).state, &root);
            n_exports += 1;
        }
    }
    assert!(n_exports > 1);
}

#[test]
fn the_order_in_which_children_are_given_does_not_matter() {
    for fixture in fixtures().iter().filter(|fixture| fixture.lists.len() > 2) {
        let mut lists = fixture.lists();
        lists[1..].reverse();
        assert_same(&fixture.name, &fixture.load(&lists).state, &fixture.listed());
    }
}

#[test]
fn a_log_delivered_twice_changes_nothing() {
    for fixture in fixtures().iter().filter(|fixture| fixture.is_told_by_its_log()) {
        let doubled: Vec<&str> = fixture.events.lines().flat_map(|line| [line, line]).collect();
        let doubled = doubled.join("\n");
        assert_same(&fixture.name, &fixture.load(&[&doubled]).state, &fixture.listed());
    }
}

#[track_caller]
fn assert_same(name: &str, one: &SessionConversationState, two: &SessionConversationState) {
    let json = |state| serde_json::to_string_pretty(state).unwrap();
    if one != two {
        assert_eq!(json(one), json(two), "{name}");
        panic!("{name}: the states differ in nothing that shows");
    }
    assert_eq!(serde_json::from_str::<SessionConversationState>(&json(one)).unwrap(), *one, "{name}");
}

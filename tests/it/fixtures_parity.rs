//! Every recorded session folds to the same state from its event log as from its message lists.

use std::{
    fs,
    path::{Path, PathBuf},
};

use opencode_conductor::{
    OpenCodeOptions, SessionConversationState, Transcript, parse_opencode, wire::Decoded, wire::SessionInfo,
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
        let options = OpenCodeOptions::default().with_session(self.sessions[0].id.clone());
        let transcript =
            parse_opencode(documents, &options).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!(transcript.malformed.is_empty(), "{}: {:?}", self.name, transcript.malformed);
        transcript
    }

    /// What the stream gives, and where it cannot know the end, the stream and then the lists.
    pub(crate) fn streamed(&self) -> SessionConversationState {
        let mut documents = vec![self.events.as_str()];
        if NEEDS_A_READ.iter().any(|name| self.name.starts_with(name)) {
            documents.extend(self.lists.iter().map(String::as_str));
        }
        self.load(&documents).state
    }

    pub(crate) fn listed(&self) -> SessionConversationState {
        let documents: Vec<&str> = self.lists.iter().map(String::as_str).collect();
        self.load(&documents).state
    }
}

/// Recordings whose stream does not tell the end: the server died and lost what it had streamed, or sends no messages at all.
/// What a client reads after it closes the gap.
const NEEDS_A_READ: [&str; 2] = ["killed", "v1.15.0-"];

#[test]
fn a_streamed_session_equals_its_transcript() {
    let mut failed = Vec::new();
    for fixture in fixtures() {
        let (streamed, listed) = (fixture.streamed(), fixture.listed());
        if streamed != listed {
            failed.push(fixture.name.clone());
            let dir = std::env::temp_dir().join("parity").join(&fixture.name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("streamed.json"), serde_json::to_string_pretty(&streamed).unwrap()).unwrap();
            fs::write(dir.join("listed.json"), serde_json::to_string_pretty(&listed).unwrap()).unwrap();
        }
    }
    assert!(failed.is_empty(), "streamed and listed differ: {failed:?}");
}

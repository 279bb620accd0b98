//! Where a session's files are, and what they hold.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{ClaudeFiles, SubagentFile, error::ClaudeError, wire::TranscriptLine};
use crate::{directory::Directory, ids::SessionId, time::Timestamp};

/// Our files beside Claude Code's: one that describes a session, one that its owner holds locked.
const OURS: &str = "conductor";

/// Claude Code's files, and ours beside them.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) config: PathBuf,
}

/// What is known of a session besides its transcript: the latter begins with the first prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionFile {
    pub(super) directory: Directory,
    pub(super) title: String,
    pub(super) created_at: Timestamp,
}

impl Files {
    pub(super) fn new(config: PathBuf) -> Self {
        Self { config }
    }

    pub(super) fn lock(&self, session: &SessionId) -> PathBuf {
        self.config.join(OURS).join(format!("{session}.lock"))
    }

    fn description(&self, session: &SessionId) -> PathBuf {
        self.config.join(OURS).join(format!("{session}.json"))
    }

    /// Describes a new session.
    pub(super) fn describe(&self, session: &SessionId, content: &SessionFile) -> Result<(), ClaudeError> {
        let path = self.description(session);
        let json = serde_json::to_vec(content).unwrap_or_default();
        // Whole or not at all, since others may read it at any time.
        let part = path.with_extension("new");
        let made = fs::create_dir_all(self.config.join(OURS));
        let written = made.and_then(|()| fs::write(&part, json)).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| ClaudeError::File { path, source })
    }

    /// Finds out where a session works: from our own file, else from its transcript.
    pub(super) fn described(
        &self,
        session: &SessionId,
        directory: Option<&Directory>,
    ) -> Result<Option<SessionFile>, ClaudeError> {
        if let Some(json) = read_if_there(&self.description(session))?
            && let Ok(found) = serde_json::from_slice(&json)
        {
            return Ok(Some(found));
        }
        let Some(path) = self.transcript(session, directory) else { return Ok(None) };
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice::<Placed>(line).ok()).find_map(|line| {
            let title = format!("session {session}");
            Some(SessionFile { directory: Directory::new(line.cwd).ok()?, title, created_at: line.timestamp })
        }))
    }

    /// The file of a session's main thread, if there is one.
    pub(super) fn transcript(&self, session: &SessionId, directory: Option<&Directory>) -> Option<PathBuf> {
        let projects = self.config.join("projects");
        let name = format!("{session}.jsonl");
        if let Some(directory) = directory {
            let path = projects.join(project_slug(directory)).join(&name);
            if path.is_file() {
                return Some(path);
            }
        }
        // Long names are cut, and links resolved, in ways of its own.
        let found = fs::read_dir(projects).ok()?.filter_map(Result::ok).map(|entry| entry.path().join(&name));
        found.into_iter().find(|path| path.is_file())
    }

    /// Reads a session's transcript; nothing if it has none yet.
    pub(super) fn read(
        &self,
        session: &SessionId,
        directory: &Directory,
    ) -> Result<Option<ClaudeFiles>, ClaudeError> {
        let Some(path) = self.transcript(session, Some(directory)) else { return Ok(None) };
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let entries = fs::read_dir(path.with_extension("").join("subagents"));
        let entries = entries.into_iter().flatten().filter_map(Result::ok);
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let mut subagents = Vec::new();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let Some(id) = name.strip_prefix("agent-") else { continue };
            let Some(text) = read_if_there(path)? else { continue };
            let meta = read_if_there(&path.with_extension("meta.json"))?;
            subagents.push((id.to_owned(), text, meta));
        }
        let subagents: Vec<SubagentFile<'_>> = subagents
            .iter()
            .map(|(id, text, meta)| {
                let file = SubagentFile::new(id, whole_lines(text));
                meta.as_deref().map_or(file, |meta| file.with_meta(meta))
            })
            .collect();
        let (files, malformed) = ClaudeFiles::decode(whole_lines(&text), &subagents);
        if let Some(error) = malformed.first() {
            tracing::warn!(%session, %error, n = malformed.len(), "lines of the transcript cannot be read");
        }
        Ok(Some(files))
    }

    /// Deletes everything of a session.
    pub(super) fn delete(
        &self,
        session: &SessionId,
        directory: Option<&Directory>,
    ) -> Result<(), ClaudeError> {
        if let Some(transcript) = self.transcript(session, directory) {
            let beside = transcript.with_extension("");
            if beside.is_dir() {
                fs::remove_dir_all(&beside).map_err(|source| ClaudeError::File { path: beside, source })?;
            }
            remove(&transcript)?;
        }
        remove(&self.description(session))?;
        remove(&self.lock(session))
    }
}

impl ClaudeFiles {
    /// Whether there is a conversation that can be resumed.
    pub(super) fn has_messages(&self) -> bool {
        let is_message =
            |line: &TranscriptLine| matches!(line, TranscriptLine::User(_) | TranscriptLine::Assistant(_));
        self.main.iter().any(is_message)
    }

    /// What the session had cost when its last process ended.
    pub(super) fn cost(&self) -> Option<f64> {
        let cost = |line: &TranscriptLine| match line {
            TranscriptLine::CostState { total } => Some(*total),
            _ => None,
        };
        self.main.iter().rev().find_map(cost)
    }
}

/// A file without its last line if that has no end: it is still being written.
fn whole_lines(text: &[u8]) -> &[u8] {
    text.iter().rposition(|byte| *byte == b'\n').map_or(&[], |end| &text[..end])
}

/// A line that says where its session works.
#[derive(Deserialize)]
struct Placed {
    cwd: PathBuf,
    timestamp: Timestamp,
}

/// The name under which Claude Code keeps a directory's sessions.
fn project_slug(directory: &Directory) -> String {
    let path = directory.as_path().canonicalize().unwrap_or_else(|_| directory.as_path().to_owned());
    let letters = path.to_string_lossy().into_owned();
    letters.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, ClaudeError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ClaudeError::File { path: path.to_owned(), source }),
    }
}

fn remove(path: &Path) -> Result<(), ClaudeError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ClaudeError::File { path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

//! Where a session's files are, and what they hold.

use std::{
    fs,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{ClaudeFiles, SubagentFile, error::ClaudeError, wire::TranscriptLine};
use crate::{
    agent::MadeFor,
    directory::Directory,
    ids::{SessionId, TaskId},
    time::Timestamp,
    transcript::CombinedTranscript,
    wall_clock::now,
};

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
    /// What it was made for, where it was made here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
}

/// What is in a session's files.
struct Texts {
    main: Vec<u8>,
    subagents: Vec<Text>,
}

/// What is in the files of a subagent.
struct Text {
    id: String,
    lines: Vec<u8>,
    meta: Option<Vec<u8>>,
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
            let directory = Directory::new(line.cwd).ok()?;
            Some(SessionFile { directory, title, created_at: line.timestamp, task: None, tag: None })
        }))
    }

    /// Finds the newest session that was made for this, in this directory.
    pub(super) fn find(&self, wanted: &MadeFor, directory: &Directory) -> Option<SessionId> {
        let entries = fs::read_dir(self.config.join(OURS)).into_iter().flatten().filter_map(Result::ok);
        let described = entries.filter_map(|entry| {
            let path = entry.path();
            let id = path.file_name()?.to_str()?.strip_suffix(".json")?;
            // One that cannot be read was not made by this version.
            let file: SessionFile = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            Some((SessionId::new(id), file))
        });
        let is_wanted = |file: &SessionFile| match wanted {
            MadeFor::Task(task) => file.task.as_ref() == Some(task),
            MadeFor::Call(tag) => file.tag.as_ref() == Some(tag),
        };
        let found = described.filter(|(_, file)| file.directory == *directory && is_wanted(file));
        found.max_by_key(|(_, file)| file.created_at).map(|(id, _)| id)
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
        let Some(Texts { main, subagents }) = self.texts(session, directory)? else { return Ok(None) };
        let subagents: Vec<SubagentFile<'_>> = subagents
            .iter()
            .map(|Text { id, lines, meta }| {
                let file = SubagentFile::new(id, whole_lines(lines));
                meta.as_deref().map_or(file, |meta| file.meta(meta))
            })
            .collect();
        let (files, malformed) = ClaudeFiles::decode(whole_lines(&main), &subagents);
        if let Some(error) = malformed.first() {
            tracing::warn!(%session, %error, n = malformed.len(), "lines of the transcript cannot be read");
        }
        Ok(Some(files))
    }

    /// A session's transcript as it is, and those of its subagents; nothing if it has none yet.
    pub(super) fn combined(
        &self,
        session: &SessionId,
        directory: &Directory,
    ) -> Result<Option<CombinedTranscript>, ClaudeError> {
        let Some(Texts { main, subagents }) = self.texts(session, directory)? else { return Ok(None) };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut combined = CombinedTranscript::new(text(whole_lines(&main)));
        for Text { id, lines, meta } in subagents {
            let meta = meta.as_deref().map(text);
            combined = combined.subagent(id, text(whole_lines(&lines)), meta);
        }
        Ok(Some(combined))
    }

    fn texts(&self, session: &SessionId, directory: &Directory) -> Result<Option<Texts>, ClaudeError> {
        let Some(path) = self.transcript(session, Some(directory)) else { return Ok(None) };
        let Some(main) = read_if_there(&path)? else { return Ok(None) };
        let mut subagents = Vec::new();
        for path in &subagent_paths(&path) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let Some(id) = name.strip_prefix("agent-") else { continue };
            let Some(lines) = read_if_there(path)? else { continue };
            let meta = read_if_there(&path.with_extension("meta.json"))?;
            subagents.push(Text { id: id.to_owned(), lines, meta });
        }
        Ok(Some(Texts { main, subagents }))
    }

    /// How much is in the transcripts of a session and its subagents; nothing if there are none.
    pub(super) fn size(&self, session: &SessionId, directory: &Directory) -> u64 {
        let Some(main) = self.transcript(session, Some(directory)) else { return 0 };
        let paths = subagent_paths(&main).into_iter().chain([main]);
        paths.filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum()
    }

    /// Ends the half line that a killed process may have left, so that what the next one writes does not become part of it. Only for
    /// a session that nothing works with.
    pub(super) fn end_half_line(
        &self,
        session: &SessionId,
        directory: &Directory,
    ) -> Result<(), ClaudeError> {
        let Some(path) = self.transcript(session, Some(directory)) else { return Ok(()) };
        let end = || {
            let mut file = fs::OpenOptions::new().read(true).append(true).open(&path)?;
            let mut last = [b'\n'];
            if file.seek(io::SeekFrom::End(0))? > 0 {
                file.seek(io::SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last == [b'\n'] { Ok(()) } else { file.write_all(b"\n") }
        };
        end().map_err(|source| ClaudeError::File { path: path.clone(), source })
    }

    /// Takes a transcript without messages out of the way. A process leaves it that is killed before it has written one, and the executable
    /// neither begins nor resumes a session that has such a file. Only for a session that nothing works with.
    pub(super) fn set_aside(&self, session: &SessionId, directory: &Directory) -> Result<(), ClaudeError> {
        let Some(path) = self.transcript(session, Some(directory)) else { return Ok(()) };
        let aside = path.with_extension(format!("{}.aside", now().get()));
        fs::rename(&path, aside).map_err(|source| ClaudeError::File { path, source })
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

/// The transcripts of the subagents of a session, in the order of their names.
fn subagent_paths(main: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(main.with_extension("").join("subagents"));
    let paths = entries.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")).collect();
    paths.sort();
    paths
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

//! Claude Code as an agent of the manager.

use std::{
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use tokio::{process::Command, sync::OnceCell, time::timeout};
use tokio_util::task::TaskTracker;

use super::{
    claim::{self, Claim},
    error::ClaudeError,
    files::{Files, SessionFile},
    live::Live,
    options::ClaudeOptions,
    process::start_error,
    session::ClaudeSession,
    version::Version,
    wire::StreamMessage,
};
use crate::{
    agent::{
        Agent, AgentError, BoxFuture, Capabilities, ConversationSink, MadeFor, NativeMessages, NewSession,
        Opened, SessionDescription,
    },
    conversation::ConvertOptions,
    directory::Directory,
    error::InvalidInput,
    ids::SessionId,
    lock::lock,
    transcript::Architecture,
    wall_clock::now,
};

/// How long the executable may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(30);
/// How long an owner that is about to let go of a session is waited for before it is deleted.
const DELETE_PATIENCE: Duration = Duration::from_secs(5);

/// Claude Code, run as one process per session.
///
/// What becomes of a turn whose owner lets go of it, or dies, is told at [`OnRelease`](super::OnRelease).
#[derive(Debug)]
pub struct ClaudeCode {
    shared: Arc<Shared>,
}

/// What the sessions of one agent share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: ClaudeOptions,
    pub(super) files: Files,
    pub(super) tasks: TaskTracker,
    version: OnceCell<Version>,
    /// All sessions that are open. One that is opened twice is here twice, until the manager drops one of them.
    sessions: Mutex<Vec<Weak<ClaudeSession>>>,
}

impl ClaudeCode {
    /// Claude Code, run like this. Nothing is started yet.
    pub fn new(options: ClaudeOptions) -> Self {
        let files = Files::new(options.config());
        let (version, sessions) = (OnceCell::new(), Mutex::default());
        Self { shared: Arc::new(Shared { options, files, tasks: TaskTracker::new(), version, sessions }) }
    }

    /// The version of the executable, asked for once.
    ///
    /// # Errors
    /// If there is no executable, or it is too old.
    ///
    /// # Cancel safety
    /// Dropping it ends the process that was asked.
    pub async fn version(&self) -> Result<Version, ClaudeError> {
        self.shared.version.get_or_try_init(|| ask_version(&self.shared.options)).await.copied()
    }

    fn opened(
        &self,
        id: &SessionId,
        file: SessionFile,
        convert: ConvertOptions,
        sink: Arc<dyn ConversationSink>,
    ) -> Opened {
        let live = Live::new(convert, sink);
        let shared = Arc::clone(&self.shared);
        let session = Arc::new(ClaudeSession::new(id.clone(), file.directory.clone(), shared, live));
        let mut sessions = self.shared.sessions();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        drop(sessions);
        let description = SessionDescription::new(id.clone(), file.directory, file.title, file.created_at);
        Opened::new(description, session)
    }
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<ClaudeSession>>> {
        lock(&self.sessions)
    }

    /// The sessions that are open.
    fn open_sessions(&self) -> Vec<Arc<ClaudeSession>> {
        self.sessions().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Agent for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn architecture(&self) -> Architecture {
        Architecture::ClaudeCode
    }

    fn check_session_id(&self, session: &SessionId) -> Result<(), InvalidInput> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        // It becomes the name of a file.
        if !session.as_str().is_empty() && session.as_str().bytes().all(is_plain) {
            return Ok(());
        }
        Err(InvalidInput::new("session id", "must hold only letters, digits, `-` and `_`"))
    }

    fn create<'a>(
        &'a self,
        request: &'a NewSession,
        sink: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>> {
        Box::pin(async move {
            self.version().await?;
            let id = SessionId::new(uuid());
            let file = SessionFile {
                directory: request.directory.clone(),
                title: request.title.clone(),
                created_at: now().into(),
                task: Some(request.task.clone()),
                tag: request.tag.clone(),
            };
            self.shared.files.describe(&id, &file)?;
            Ok(self.opened(&id, file, request.convert, sink))
        })
    }

    fn open<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
        convert: ConvertOptions,
        sink: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>> {
        Box::pin(async move {
            self.version().await?;
            let Some(file) = self.shared.files.described(session, directory)? else {
                let config = self.shared.files.config.clone();
                return Err(ClaudeError::NoSuchSession { session: session.clone(), config }.into());
            };
            Ok(self.opened(session, file, convert, sink))
        })
    }

    fn find<'a>(
        &'a self,
        wanted: &'a MadeFor,
        directory: &'a Directory,
    ) -> BoxFuture<'a, Result<Option<SessionId>, AgentError>> {
        Box::pin(std::future::ready(Ok(self.shared.files.find(wanted, directory))))
    }

    fn delete<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(async move {
            for own in self.shared.open_sessions().into_iter().filter(|own| own.id == *session) {
                own.release();
            }
            let files = &self.shared.files;
            let mut claim = Claim::take(&files.lock(session), session, DELETE_PATIENCE).await?;
            if let Some(process) = claim.process() {
                claim::kill(process, session);
            }
            Ok(files.delete(session, directory)?)
        })
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for session in self.shared.open_sessions() {
                session.release();
            }
            self.shared.tasks.close();
            self.shared.tasks.wait().await;
        })
    }
}

impl NativeMessages {
    /// The turn's lines, if Claude Code is the agent; none otherwise.
    pub fn claude(&self) -> &[Arc<StreamMessage>] {
        self.of()
    }
}

async fn ask_version(options: &ClaudeOptions) -> Result<Version, ClaudeError> {
    let program = options.program();
    let mut command = Command::new(&program);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    command.envs(options.environment.iter().map(|(name, value)| (name, value)));
    let executable = program.display().to_string();
    let asked = timeout(VERSION_PATIENCE, command.output()).await;
    let said = match asked {
        Ok(Ok(output)) => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        Ok(Err(source)) => return Err(start_error(&program, std::path::PathBuf::from("."), source)),
        Err(_) => format!("nothing within {VERSION_PATIENCE:?}"),
    };
    match Version::printed(&said) {
        Some(found) if found < Version::OLDEST => Err(ClaudeError::TooOld { found, needed: Version::OLDEST }),
        Some(found) => Ok(found),
        None => Err(ClaudeError::NoVersion { executable, said: said.chars().take(200).collect() }),
    }
}

/// A random id as Claude Code wants them.
pub(super) fn uuid() -> String {
    let bits = (fastrand::u128(..) & !(0xf << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let id = uuid();
        assert_eq!((id.len(), &id[14..15]), (36, "4"), "{id}");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
        assert_ne!(id, uuid());
    }
}

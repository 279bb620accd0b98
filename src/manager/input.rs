//! What callers say, checked before anything is sent.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};

use super::mint::Mint;
use crate::{
    client::Directory,
    error::InvalidInput,
    ids::{ProjectId, SessionId, TaskId},
    time::Timestamp,
    turn::WaitOptions,
    wire::{Message, ModelRef, PermissionRule, PromptPart},
};

/// Longer titles are cut by every view that shows them.
const MAX_TITLE_CHARS: usize = 200;
/// Attachments travel inside the request, a third larger than they are.
const MAX_ATTACHMENT_BYTES: usize = 32 << 20;

/// A session to be made for a task.
#[derive(Debug, Clone)]
#[must_use]
pub struct CreateTaskSession {
    pub(super) project: ProjectId,
    pub(super) task: TaskId,
    pub(super) project_directory: PathBuf,
    pub(super) worktree: PathBuf,
    pub(super) title: Option<String>,
    pub(super) created_at: Option<Timestamp>,
    pub(super) permissions: Vec<PermissionRule>,
    pub(super) replace: bool,
}

impl CreateTaskSession {
    /// A session for `task` of `project`, working in `worktree`, a checkout of `project_directory`.
    pub fn new(
        project: impl Into<ProjectId>,
        task: impl Into<TaskId>,
        project_directory: impl Into<PathBuf>,
        worktree: impl Into<PathBuf>,
    ) -> Self {
        Self {
            project: project.into(),
            task: task.into(),
            project_directory: project_directory.into(),
            worktree: worktree.into(),
            title: None,
            created_at: None,
            permissions: Vec::new(),
            replace: false,
        }
    }

    /// Sets the title; default the task's id. With a title the server asks no model for one.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets when the task's session counts as created; default when the server made it.
    pub fn created_at(mut self, moment: Timestamp) -> Self {
        self.created_at = Some(moment);
        self
    }

    /// Sets what the session's tools may do, in addition to the server's configuration; default nothing.
    pub fn permissions(mut self, rules: impl IntoIterator<Item = PermissionRule>) -> Self {
        self.permissions = rules.into_iter().collect();
        self
    }

    /// Takes the place of the task's session if it has one, which is then forgotten but not deleted; default an error.
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    pub(super) fn checked_title(&self) -> Result<String, InvalidInput> {
        let title = self.title.as_deref().unwrap_or(self.task.as_str());
        let visible = |word: &str| word.chars().filter(|c| !c.is_control()).collect::<String>();
        let words = title.split_whitespace().map(visible).filter(|word| !word.is_empty());
        let title = words.collect::<Vec<_>>().join(" ");
        if title.is_empty() {
            return Err(InvalidInput::new("title", "must not be empty"));
        }
        Ok(title.chars().take(MAX_TITLE_CHARS).collect())
    }
}

/// What to do with a prompt for a session that has one in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenBusy {
    /// It waits for its turn, first come, first served.
    #[default]
    Queue,
    /// It is refused.
    Refuse,
}

pub(super) type OnMessage = Arc<dyn Fn(&Arc<Message>) + Send + Sync>;

/// A prompt.
#[derive(Clone)]
#[must_use]
pub struct PromptInput {
    pub(super) session: SessionId,
    pub(super) parts: Vec<InputPart>,
    pub(super) directory: Option<PathBuf>,
    pub(super) agent: Option<String>,
    pub(super) model: Option<ModelRef>,
    pub(super) system: Option<String>,
    pub(super) variant: Option<String>,
    pub(super) wait: Option<WaitOptions>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) on_message: Option<OnMessage>,
    pub(super) when_busy: WhenBusy,
    pub(super) abort_on_drop: bool,
}

#[derive(Clone)]
pub(super) enum InputPart {
    Text(String),
    File { path: PathBuf, media_type: String },
    Bytes { name: String, media_type: String, bytes: Arc<[u8]> },
    Agent(String),
}

impl PromptInput {
    /// Asks `text` of a session.
    pub fn new(session: impl Into<SessionId>, text: impl Into<String>) -> Self {
        Self {
            session: session.into(),
            parts: vec![InputPart::Text(text.into())],
            directory: None,
            agent: None,
            model: None,
            system: None,
            variant: None,
            wait: None,
            idle_timeout: None,
            on_message: None,
            when_busy: WhenBusy::Queue,
            abort_on_drop: false,
        }
    }

    /// Attaches a file, which is read before anything is sent.
    pub fn file(mut self, path: impl Into<PathBuf>, media_type: impl Into<String>) -> Self {
        self.parts.push(InputPart::File { path: path.into(), media_type: media_type.into() });
        self
    }

    /// Attaches bytes under a name.
    pub fn bytes(
        mut self,
        name: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Self {
        self.parts.push(InputPart::Bytes {
            name: name.into(),
            media_type: media_type.into(),
            bytes: bytes.into(),
        });
        self
    }

    /// Mentions an agent, as `@name` in a terminal does.
    pub fn mention(mut self, agent: impl Into<String>) -> Self {
        self.parts.push(InputPart::Agent(agent.into()));
        self
    }

    /// Says where the session works, for a session that this manager did not make; default is to ask the server.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the agent; default the session's last, then the server's.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Sets the model; default the session's last, then the server's.
    pub fn model(mut self, model: ModelRef) -> Self {
        self.model = Some(model);
        self
    }

    /// Adds to the system prompt.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// Sets the model's variant, such as an effort.
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// Sets the silence allowed while the model is expected to speak, and no other limit; default as the manager has it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets all limits; default as the manager has them.
    pub fn wait(mut self, options: WaitOptions) -> Self {
        self.wait = Some(options);
        self
    }

    /// Calls `observer` with every message of the turn each time that it changes.
    ///
    /// It runs on the turn's own task: it must be quick, and must not block.
    pub fn on_message(mut self, observer: impl Fn(&Arc<Message>) + Send + Sync + 'static) -> Self {
        self.on_message = Some(Arc::new(observer));
        self
    }

    /// Sets what happens if the session has a prompt in flight; default it waits for its turn.
    pub fn when_busy(mut self, when_busy: WhenBusy) -> Self {
        self.when_busy = when_busy;
        self
    }

    /// Aborts the session if the caller loses interest; default is to leave the server's run alone.
    pub fn abort_on_drop(mut self) -> Self {
        self.abort_on_drop = true;
        self
    }

    /// Everything that is wrong with it and can be known without a server.
    pub(super) fn validate(&self) -> Result<(), InvalidInput> {
        check_session(&self.session)?;
        for part in &self.parts {
            match part {
                InputPart::Text(text) if text.trim().is_empty() => {
                    return Err(InvalidInput::new("prompt", "must not be empty"));
                }
                InputPart::File { media_type, .. } | InputPart::Bytes { media_type, .. }
                    if !media_type.contains('/') =>
                {
                    return Err(InvalidInput::new("media type", "must be like image/png"));
                }
                InputPart::Bytes { bytes, .. } if bytes.len() > MAX_ATTACHMENT_BYTES => {
                    return Err(TOO_LARGE);
                }
                InputPart::Agent(name) if name.trim().is_empty() => {
                    return Err(InvalidInput::new("agent", "must not be empty"));
                }
                InputPart::Text(_)
                | InputPart::File { .. }
                | InputPart::Bytes { .. }
                | InputPart::Agent(_) => {}
            }
        }
        let blank = |value: &Option<String>| value.as_deref().is_some_and(|value| value.trim().is_empty());
        for (field, value) in [("agent", &self.agent), ("system", &self.system), ("variant", &self.variant)] {
            if blank(value) {
                return Err(InvalidInput::new(field, "must not be empty"));
            }
        }
        if let Some(directory) = &self.directory {
            Directory::new(directory)?;
        }
        if let Some(model) = &self.model
            && (model.provider_id.trim().is_empty() || model.model_id.trim().is_empty())
        {
            return Err(InvalidInput::new("model", "must name a provider and a model"));
        }
        self.limits(&WaitOptions::default()).validate()
    }

    /// Its own limits, and for the rest the manager's.
    pub(super) fn limits(&self, manager: &WaitOptions) -> WaitOptions {
        let limits = self.wait.as_ref().unwrap_or(manager).clone();
        match self.idle_timeout {
            Some(timeout) => limits.idle_timeout(timeout),
            None => limits,
        }
    }
}

const TOO_LARGE: InvalidInput = InvalidInput::new("attachment", "must not be larger than 32 MiB");

pub(super) fn check_session(session: &SessionId) -> Result<(), InvalidInput> {
    let id = session.as_str();
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if id.starts_with("ses") && plain {
        return Ok(());
    }
    Err(InvalidInput::new("session id", "must start with `ses` and hold only letters, digits and `_`"))
}

pub(super) fn check_task(task: &TaskId) -> Result<(), InvalidInput> {
    check_id("task id", task.as_str())
}

pub(super) fn check_id(field: &'static str, id: &str) -> Result<(), InvalidInput> {
    if id.trim().is_empty() {
        return Err(InvalidInput::new(field, "must not be empty"));
    }
    if id.chars().any(char::is_control) {
        return Err(InvalidInput::new(field, "must not contain control characters"));
    }
    Ok(())
}

/// A directory that is called otherwise where it comes from.
pub(super) fn check_directory(field: &'static str, path: &Path) -> Result<Directory, InvalidInput> {
    Directory::new(path).map_err(|error| InvalidInput { field, ..error })
}

/// An attachment that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the attachment {}", path.display())]
#[non_exhaustive]
pub struct AttachmentError {
    /// The file.
    pub path: PathBuf,
    source: std::io::Error,
}

impl InputPart {
    /// Turns it into what is sent, under an id of its own.
    pub(super) async fn load(&self, mint: &Mint) -> Result<PromptPart, LoadError> {
        let id = mint.part();
        Ok(match self {
            Self::Text(text) => PromptPart::Text { id, text: text.clone() },
            Self::Agent(name) => PromptPart::Agent { id, name: name.clone() },
            Self::Bytes { name, media_type, bytes } => PromptPart::File {
                id,
                mime: media_type.clone(),
                filename: Some(name.clone()),
                url: data_url(media_type, bytes),
            },
            Self::File { path, media_type } => {
                let bytes = read(path).await?;
                let filename = path.file_name().map(|name| name.to_string_lossy().into_owned());
                PromptPart::File { id, mime: media_type.clone(), filename, url: data_url(media_type, &bytes) }
            }
        })
    }
}

/// Why a part could not be turned into what is sent.
pub(super) enum LoadError {
    Invalid(InvalidInput),
    Unreadable(AttachmentError),
}

async fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |source| LoadError::Unreadable(AttachmentError { path: path.to_owned(), source });
    let length = tokio::fs::metadata(path).await.map_err(unreadable)?.len();
    if usize::try_from(length).is_ok_and(|length| length > MAX_ATTACHMENT_BYTES) {
        return Err(LoadError::Invalid(TOO_LARGE));
    }
    tokio::fs::read(path).await.map_err(unreadable)
}

fn data_url(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}

impl fmt::Debug for PromptInput {
    /// Without the prompt: it belongs in no log above trace level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptInput")
            .field("session", &self.session)
            .field("n_parts", &self.parts.len())
            .field("agent", &self.agent)
            .field("model", &self.model)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

//! What callers say, checked before anything is sent.

use std::{
    any::Any,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value};
use tokio::io::AsyncReadExt;

use super::{
    PromptError,
    policy::{OwnPolicies, PermissionPolicy, QuestionPolicy},
    queue::Place,
};
use crate::{
    agent::{ModelRef, NewSession, PromptPart, PromptSpec, WaitOptions},
    conversation::ConvertOptions,
    directory::Directory,
    error::InvalidInput,
    ids::{MessageId, ProjectId, SessionId, TaskId},
    setters::setters,
    time::Timestamp,
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
    pub(crate) settings: Map<String, Value>,
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
            project: project.into().trimmed(),
            task: task.into().trimmed(),
            project_directory: project_directory.into(),
            worktree: worktree.into(),
            title: None,
            created_at: None,
            settings: Map::new(),
            replace: false,
        }
    }

    setters! {
        /// Sets the title; default the task's id. With a title the server asks no model for one.
        title(title: impl Into<String>) { title = Some(title.into()) }
        /// Sets when the task's session counts as created; default when the server made it.
        created_at(moment: Timestamp) { created_at = Some(moment) }
        /// Takes the place of the task's session if it has one, which is then forgotten but not deleted; default an error.
        replace() { replace = true }
    }

    /// Checks everything that can be checked without the agent.
    pub(super) fn check(&self, convert: ConvertOptions) -> Result<NewSession, InvalidInput> {
        InvalidInput::check_id("task id", self.task.as_str())?;
        InvalidInput::check_id("project id", self.project.as_str())?;
        let title = self.checked_title()?;
        check_directory("project directory", &self.project_directory)?;
        let directory = check_directory("worktree", &self.worktree)?;
        let mut session = NewSession::new(self.task.clone(), self.project.clone(), directory, title);
        session.convert = convert;
        session.settings.clone_from(&self.settings);
        Ok(session)
    }

    fn checked_title(&self) -> Result<String, InvalidInput> {
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

/// Gets messages in the agent's own form.
pub(crate) type OnMessage = Arc<dyn Fn(&dyn Any) + Send + Sync>;

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
    pub(super) policies: OwnPolicies,
    pub(crate) on_message: Option<OnMessage>,
    pub(super) message_id: Option<MessageId>,
    pub(super) when_busy: WhenBusy,
    pub(super) abort_on_drop: bool,
    /// The place in the queue that it has together with the prompts before and after it, if it belongs to several.
    pub(super) place: Option<Place>,
}

#[derive(Clone)]
pub(super) enum InputPart {
    Ready(PromptPart),
    /// A file that is yet to be read.
    File {
        path: PathBuf,
        media_type: String,
    },
}

impl PromptInput {
    /// Asks `text` of a session.
    pub fn new(session: impl Into<SessionId>, text: impl Into<String>) -> Self {
        Self {
            session: session.into().trimmed(),
            parts: vec![InputPart::text(text)],
            directory: None,
            agent: None,
            model: None,
            system: None,
            variant: None,
            wait: None,
            idle_timeout: None,
            policies: OwnPolicies::default(),
            on_message: None,
            message_id: None,
            when_busy: WhenBusy::Queue,
            abort_on_drop: false,
            place: None,
        }
    }

    /// Attaches a regular file of at most 32 MiB, which is read before anything is sent.
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
        let (name, media_type, bytes) = (Some(name.into()), media_type.into(), bytes.into());
        self.parts.push(InputPart::Ready(PromptPart::File { name, media_type, bytes }));
        self
    }

    /// Mentions an agent, as `@name` in a terminal does.
    pub fn mention(mut self, agent: impl Into<String>) -> Self {
        self.parts.push(InputPart::Ready(PromptPart::Mention(agent.into())));
        self
    }

    setters! {
        /// Says where the session works, for a session that this manager did not make; default is to ask the agent.
        directory(directory: impl Into<PathBuf>) { directory = Some(directory.into()) }
        /// Sets the agent; default the session's last, then the agent's own.
        agent(agent: impl Into<String>) { agent = Some(agent.into()) }
        /// Sets the model; default the session's last, then the agent's own.
        model(model: ModelRef) { model = Some(model) }
        /// Adds to the system prompt.
        system(text: impl Into<String>) { system = Some(text.into()) }
        /// Sets the model's variant, such as an effort.
        variant(variant: impl Into<String>) { variant = Some(variant.into()) }
        /// Sets the silence allowed while the model is expected to speak, and no other limit; default as the manager has it. A store keeps it, as it
        /// keeps what [`wait`](Self::wait) sets.
        idle_timeout(limit: Duration) { idle_timeout = Some(limit) }
        /// Sets who decides when a tool needs permission during this turn; default as the session or the manager has it.
        ///
        /// Not kept in a store: a turn that another process goes on with has that manager's.
        permissions(policy: PermissionPolicy) { policies.permissions = Some(policy) }
        /// Sets who answers when the model has a question during this turn; default as the session or the manager has it.
        ///
        /// Not kept in a store: a turn that another process goes on with has that manager's.
        questions(policy: QuestionPolicy) { policies.questions = Some(policy) }
        /// Sets all limits; default as the manager has them.
        ///
        /// A store keeps them: another process that goes on with the turn has the same, and a deadline begins anew there.
        wait(options: WaitOptions) { wait = Some(options) }
        /// Sets the id of the message that the prompt becomes; default one that the agent makes.
        ///
        /// For callers who keep prompts in a store of their own: the same prompt under the same id runs once. `OpenCode` before 1.18.16 takes ids for
        /// the order of messages, and only those that it or the manager made are in it.
        message_id(id: impl Into<MessageId>) { message_id = Some(id.into()) }
        /// Sets what happens if the session has a prompt in flight; default it waits for its turn.
        when_busy(when_busy: WhenBusy) { when_busy = when_busy }
        /// Aborts the session if the caller drops the prompt; default is to leave the agent's run alone.
        abort_on_drop() { abort_on_drop = true }
    }

    /// Checks everything that can be checked without the agent.
    pub(super) fn validate(&self) -> Result<(), InvalidInput> {
        for part in &self.parts {
            part.validate()?;
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
        self.own_limits(&WaitOptions::default()).map_or(Ok(()), |limits| limits.validate())
    }

    /// Its own limits, with the manager's for the rest; nothing if it has none of its own.
    pub(super) fn own_limits(&self, manager: &WaitOptions) -> Option<WaitOptions> {
        match (&self.wait, self.idle_timeout) {
            (None, None) => None,
            (Some(limits), None) => Some(limits.clone()),
            (limits, Some(timeout)) => Some(limits.as_ref().unwrap_or(manager).clone().idle_timeout(timeout)),
        }
    }
}

const TOO_LARGE: InvalidInput = InvalidInput::new("attachment", "must not be larger than 32 MiB");

/// Checks a directory, which an error calls by the name of its field.
pub(super) fn check_directory(field: &'static str, path: &Path) -> Result<Directory, InvalidInput> {
    Directory::new(path).map_err(|error| InvalidInput { field, ..error })
}

/// An attachment that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the attachment {}", path.display())]
#[non_exhaustive]
pub struct AttachmentError {
    /// The file that could not be read.
    pub path: PathBuf,
    source: std::io::Error,
}

impl PromptInput {
    /// Reads the attachments and puts together what is asked.
    pub(super) async fn load(&self) -> Result<PromptSpec, PromptError> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            parts.push(part.load().await?);
        }
        Ok(PromptSpec {
            parts,
            message_id: self.message_id.clone(),
            model: self.model.clone(),
            agent: self.agent.clone(),
            system: self.system.clone(),
            variant: self.variant.clone(),
            ..PromptSpec::default()
        })
    }
}

impl InputPart {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Ready(PromptPart::Text(text.into()))
    }

    fn validate(&self) -> Result<(), InvalidInput> {
        match self {
            Self::Ready(PromptPart::Text(text)) if text.trim().is_empty() => {
                Err(InvalidInput::new("prompt", "must not be empty"))
            }
            Self::Ready(PromptPart::Mention(name)) if name.trim().is_empty() => {
                Err(InvalidInput::new("agent", "must not be empty"))
            }
            Self::Ready(PromptPart::File { media_type, .. }) | Self::File { media_type, .. }
                if !media_type.contains('/') =>
            {
                Err(InvalidInput::new("media type", "must be like image/png"))
            }
            Self::Ready(PromptPart::File { bytes, .. }) if bytes.len() > MAX_ATTACHMENT_BYTES => {
                Err(TOO_LARGE)
            }
            Self::Ready(_) | Self::File { .. } => Ok(()),
        }
    }

    async fn load(&self) -> Result<PromptPart, PromptError> {
        Ok(match self {
            Self::Ready(part) => part.clone(),
            Self::File { path, media_type } => PromptPart::File {
                name: path.file_name().map(|name| name.to_string_lossy().into_owned()),
                media_type: media_type.clone(),
                bytes: read(path).await?.into(),
            },
        })
    }
}

/// Reads a regular file of at most [`MAX_ATTACHMENT_BYTES`], whatever it says about its length and whatever is at `path` a moment later.
async fn read(path: &Path) -> Result<Vec<u8>, PromptError> {
    let unreadable = |source| AttachmentError { path: path.to_owned(), source };
    let mut options = tokio::fs::OpenOptions::new();
    options.read(true);
    // Opening a pipe without a writer would block.
    #[cfg(unix)]
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).await.map_err(unreadable)?;
    if !file.metadata().await.map_err(unreadable)?.is_file() {
        let refused = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(unreadable(refused).into());
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_ATTACHMENT_BYTES).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).await.map_err(unreadable)?;
    if bytes.len() > MAX_ATTACHMENT_BYTES {
        return Err(TOO_LARGE.into());
    }
    Ok(bytes)
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

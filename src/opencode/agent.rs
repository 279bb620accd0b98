//! `OpenCode` as an agent of the manager.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use super::{
    client::{ApiError, DirectoryClient, OpenCodeClient, SessionFilter},
    mint::Mint,
    session::OpenCodeSession,
    shared_read::AllReads,
    wire::{CreateSession, Extra, SessionInfo},
};
use crate::{
    agent::{
        Agent, AgentError, AgentErrorKind, BoxFuture, Capabilities, ConversationSink, Delivery, MadeFor,
        NewSession, Opened, SessionDescription,
    },
    backoff::Backoff,
    conversation::ConvertOptions,
    directory::Directory,
    error::InvalidInput,
    ids::SessionId,
    transcript::Architecture,
};

/// How often the making of a session is tried.
const CREATE_ATTEMPTS: u32 = 4;
/// The first pause before it is tried again, and the longest.
const CREATE_PAUSE: Duration = Duration::from_millis(250);
const MAX_CREATE_PAUSE: Duration = Duration::from_secs(2);
/// A session whose making was not confirmed is looked for among this many, the server's newest.
const MAX_CREATED: u32 = 1000;
/// Where a session's metadata says which call made it.
const TAG: &str = "conductor";
/// The name under which a new session's settings hold its permission rules.
pub(super) const PERMISSION_RULES: &str = "permission";

/// `OpenCode`, spoken to through a client.
#[derive(Debug)]
pub struct OpenCode {
    shared: Arc<Shared>,
}

/// What the sessions of one server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: OpenCodeClient,
    pub(super) mint: Mint,
    pub(super) reads: AllReads,
}

impl OpenCode {
    /// The server that `client` talks to. Its events have connections of their own, which end with [`Agent::shutdown`] and leave those of `client` alone:
    /// others may use it as well.
    pub fn new(client: OpenCodeClient) -> Self {
        let client = client.with_own_feeds();
        let shared = Shared { client, mint: Mint::default(), reads: AllReads::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The client underneath: to the same server, with the subscriptions of this agent.
    pub fn client(&self) -> &OpenCodeClient {
        &self.shared.client
    }

    /// The calls of a directory; without one, of whichever directory a session is in.
    fn api(&self, directory: Option<&Directory>) -> DirectoryClient {
        let client = self.client();
        directory.map_or_else(|| client.default_directory(), |directory| client.directory(directory))
    }

    async fn create_session(&self, request: &NewSession) -> Result<SessionInfo, ApiError> {
        let client = &self.shared.client;
        if client.shares_files() && !is_directory(&request.directory).await {
            let error = InvalidInput::new("worktree directory", "must exist");
            return Err(ApiError::new("create a session", error));
        }
        let api = client.directory(&request.directory);
        let nonce = request.tag.clone().unwrap_or_else(|| self.shared.mint.part().to_string());
        let tag = json!({ "task": request.task, "project": request.project, "nonce": nonce });
        let rules = request.settings.get(PERMISSION_RULES).cloned();
        let create = CreateSession {
            title: Some(request.title.clone()),
            metadata: Extra::from_iter([(TAG.to_owned(), tag)]),
            permission: rules.and_then(|rules| serde_json::from_value(rules).ok()).unwrap_or_default(),
            ..CreateSession::default()
        };
        let mut attempt = 0;
        let mut backoff = Backoff::new(CREATE_PAUSE, MAX_CREATE_PAUSE);
        // There may be a session whose id is not known here: it is looked for before another is made.
        let mut is_unclear = false;
        loop {
            attempt += 1;
            let found = if is_unclear { find_tagged(&api, "nonce", &nonce).await } else { Ok(None) };
            let made = match found {
                Ok(Some(info)) => Ok(info),
                Ok(None) => api.create_session(&create).await,
                Err(error) => Err(error),
            };
            let error = match made {
                Ok(info) => return Ok(info),
                Err(error) => error,
            };
            is_unclear |= error.delivery() == Delivery::Unknown;
            if attempt == CREATE_ATTEMPTS || !(error.is_retryable() || is_unclear) {
                return Err(error);
            }
            sleep(backoff.next_pause()).await;
        }
    }
}

impl Agent for OpenCode {
    fn name(&self) -> &'static str {
        "opencode"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn architecture(&self) -> Architecture {
        Architecture::OpenCode
    }

    fn check_session_id(&self, session: &SessionId) -> Result<(), InvalidInput> {
        let id = session.as_str();
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if id.starts_with("ses") && is_plain {
            return Ok(());
        }
        Err(InvalidInput::new("session id", "must start with `ses` and hold only letters, digits and `_`"))
    }

    fn create<'a>(
        &'a self,
        request: &'a NewSession,
        sink: Arc<dyn ConversationSink>,
    ) -> BoxFuture<'a, Result<Opened, AgentError>> {
        Box::pin(async move {
            let info = self.create_session(request).await?;
            self.shared.mint.server_said(info.time.created);
            let directory = request.directory.clone();
            let description = describe(&info, directory.clone());
            let shared = Arc::clone(&self.shared);
            let session = OpenCodeSession::new(shared, info.id, directory, request.convert, sink);
            Ok(Opened::new(description, Arc::new(session.just_made())))
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
            // Old servers find a session only from a directory of its project. Where it works is for the server to say: status
            // and events of any other directory are those of strangers.
            let info = self.api(directory).session(session).await?;
            let directory = Directory::new(&info.directory)
                .map_err(|error| AgentError::new(AgentErrorKind::Failed, Delivery::NotSent, error))?;
            let description = describe(&info, directory.clone());
            let session = OpenCodeSession::new(Arc::clone(&self.shared), info.id, directory, convert, sink);
            Ok(Opened::new(description, Arc::new(session)))
        })
    }

    fn find<'a>(
        &'a self,
        wanted: &'a MadeFor,
        directory: &'a Directory,
    ) -> BoxFuture<'a, Result<Option<SessionId>, AgentError>> {
        Box::pin(async move {
            let (field, value) = match wanted {
                MadeFor::Task(task) => ("task", task.as_str()),
                MadeFor::Call(tag) => ("nonce", tag.as_str()),
            };
            let found = find_tagged(&self.shared.client.directory(directory), field, value).await?;
            Ok(found.map(|info| info.id))
        })
    }

    fn delete<'a>(
        &'a self,
        session: &'a SessionId,
        directory: Option<&'a Directory>,
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(async move {
            match self.api(directory).delete_session(session).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.client.shutdown())
    }
}

fn describe(info: &SessionInfo, directory: Directory) -> SessionDescription {
    let created_at = info.time.created.into();
    let mut description =
        SessionDescription::new(info.id.clone(), directory, info.title.as_str(), created_at);
    description.updated_at = info.time.updated.into();
    description
}

async fn is_directory(directory: &Directory) -> bool {
    tokio::fs::metadata(directory.as_path()).await.is_ok_and(|found| found.is_dir())
}

/// The newest session whose tag says this.
async fn find_tagged(
    api: &DirectoryClient,
    field: &str,
    value: &str,
) -> Result<Option<SessionInfo>, ApiError> {
    // The newest come first.
    let filter =
        SessionFilter { limit: NonZeroU32::new(MAX_CREATED), roots: true, ..SessionFilter::default() };
    let sessions = api.sessions(&filter).await?.items;
    let is_tagged = |session: &SessionInfo| {
        session
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get(TAG)?.get(field))
            .is_some_and(|tag| tag == value)
    };
    Ok(sessions.into_iter().find(is_tagged))
}

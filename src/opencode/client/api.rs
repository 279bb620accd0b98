//! The server's routes as typed calls.

use std::{fmt, num::NonZeroU32};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    ApiError, ApiErrorKind, Directory, OpenCodeClient,
    call::{Call, Method, Operation},
    http::Answer,
};
use crate::{
    error::InvalidInput,
    ids::{MessageId, RequestId, SessionId},
    opencode::wire::{
        self, ConfigInfo, CreateSession, DecodeError, Decoded, FileDiff, Message, PermissionReply,
        PermissionRequest, PromptPart, PromptRequest, ProviderList, QuestionAnswer, QuestionRequest,
        SessionInfo, StatusMap, UpdateSession,
    },
};

/// The routes, each named once; a test looks every one of them up in the server's own `OpenAPI` document.
pub(super) mod routes {
    use super::{Method, Operation};

    macro_rules! routes {
        ($($name:ident = $method:ident $path:literal, $what:literal;)*) => {
            $(pub(in crate::opencode::client) const $name: Operation =
                Operation { name: $what, method: Method::$method, path: $path };)*
            #[cfg(test)]
            pub(in crate::opencode::client) const ALL: &[Operation] = &[$($name,)*];
        };
    }

    routes! {
        HEALTH = Get "/global/health", "read the server's health";
        EVENTS = Get "/event", "open the event stream";
        CREATE_SESSION = Post "/session", "create a session";
        LIST_SESSIONS = Get "/session", "list sessions";
        SESSION_STATUS = Get "/session/status", "read the status of sessions";
        GET_SESSION = Get "/session/{sessionID}", "read a session";
        UPDATE_SESSION = Patch "/session/{sessionID}", "update a session";
        DELETE_SESSION = Delete "/session/{sessionID}", "delete a session";
        CHILDREN = Get "/session/{sessionID}/children", "list a session's children";
        ABORT = Post "/session/{sessionID}/abort", "abort a session";
        DIFF = Get "/session/{sessionID}/diff", "read what a turn changed";
        MESSAGES = Get "/session/{sessionID}/message", "list messages";
        PROMPT_ASYNC = Post "/session/{sessionID}/prompt_async", "submit a prompt";
        PERMISSIONS = Get "/permission", "list permission requests";
        REPLY_PERMISSION = Post "/permission/{requestID}/reply", "answer a permission request";
        REPLY_PERMISSION_OLD = Post "/session/{sessionID}/permissions/{permissionID}", "answer a permission request";
        QUESTIONS = Get "/question", "list questions";
        REPLY_QUESTION = Post "/question/{requestID}/reply", "answer a question";
        CONFIG = Get "/config", "read the configuration";
        PROVIDERS = Get "/config/providers", "list providers";
        DISPOSE = Post "/instance/dispose", "dispose of a directory's instance";
    }
}

/// The calls that concern one directory of a server, and the sessions in it.
///
/// Cheap to clone. Every request names the directory: recent servers find a session's directory by themselves, but status,
/// permissions, questions and events are per directory in all versions, and old servers need it for every call.
///
/// All calls can be cancelled by dropping them; a request with an effect may then have been delivered or not. Reads are
/// repeated where that may help, requests with an effect never are: on an error [`ApiError::delivery`] tells what is known.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{Directory, OpenCodeClient, wire::CreateSession};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = OpenCodeClient::new("http://127.0.0.1:4096")?;
/// let directory = client.directory(&Directory::new("/srv/project")?);
/// let session = directory.create_session(&CreateSession::default()).await?;
/// println!("{} is {:?}", session.id, directory.session_status().await?.get(&session.id));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DirectoryClient {
    pub(super) client: OpenCodeClient,
    pub(super) directory: Option<Directory>,
}

/// Which messages to list; the default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessagePage {
    /// At most this many of the newest, or of those before the cursor.
    pub limit: Option<NonZeroU32>,
    /// Only those older than what an earlier page ended with; works with a limit only.
    pub before: Option<Cursor>,
}

/// Where a page of messages ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(String);

/// A page of messages.
#[derive(Debug)]
#[non_exhaustive]
pub struct MessageList {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Where the next, older page begins. Servers before 1.3 never say.
    pub next: Option<Cursor>,
    /// Whether the page certainly reaches back to the session's first message.
    pub complete: bool,
    /// What could not be decoded.
    pub malformed: Vec<DecodeError>,
}

/// Which sessions to list; the default is what the server thinks fit, at most 100.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionFilter {
    /// At most this many.
    pub limit: Option<NonZeroU32>,
    /// Only those whose title contains this.
    pub search: Option<String>,
    /// Only those without a parent.
    pub roots: bool,
}

impl MessagePage {
    /// All messages.
    pub fn all() -> Self {
        Self::default()
    }

    /// The newest `limit` messages; 0 counts as 1.
    pub fn newest(limit: u32) -> Self {
        Self { limit: Some(NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN)), before: None }
    }

    /// Those before `cursor` instead.
    #[must_use]
    pub fn before(mut self, cursor: Cursor) -> Self {
        self.before = Some(cursor);
        self
    }
}

impl DirectoryClient {
    /// Counts what a turn left out because there was too much of it.
    pub(crate) fn count_dropped(&self, n_dropped: u64) {
        self.client.http().counters.dropped.add(usize::try_from(n_dropped).unwrap_or(usize::MAX));
    }

    /// The server that the directory is on.
    pub fn client(&self) -> &OpenCodeClient {
        &self.client
    }

    /// The directory; `None` stands for the one that the server was started in.
    pub fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// Creates a session. The server chooses the id, so after an unclear failure there may be a session without an owner:
    /// put something into the metadata to find it by.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn create_session(&self, session: &CreateSession) -> Result<SessionInfo, ApiError> {
        self.write(routes::CREATE_SESSION, |call| call.json(session)).await
    }

    /// Reads a session.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn session(&self, session: &SessionId) -> Result<SessionInfo, ApiError> {
        self.read(routes::GET_SESSION, |call| of(call, session)).await
    }

    /// Lists sessions of the directory's project, last changed first.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn sessions(&self, filter: &SessionFilter) -> Result<Decoded<SessionInfo>, ApiError> {
        let SessionFilter { limit, search, roots } = filter;
        self.list(routes::LIST_SESSIONS, |mut call| {
            if let Some(limit) = limit {
                call = call.query("limit", limit.to_string());
            }
            if let Some(search) = search {
                call = call.query("search", search.as_str());
            }
            if *roots { call.query("roots", "true") } else { call }
        })
        .await
    }

    /// Changes a session's title or metadata.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn update_session(
        &self,
        session: &SessionId,
        change: &UpdateSession,
    ) -> Result<SessionInfo, ApiError> {
        self.write(routes::UPDATE_SESSION, |call| of(call, session).json(change)).await
    }

    /// Deletes a session and its messages.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn delete_session(&self, session: &SessionId) -> Result<(), ApiError> {
        self.act(routes::DELETE_SESSION, |call| of(call, session)).await
    }

    /// Lists a session's direct children.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn children(&self, session: &SessionId) -> Result<Decoded<SessionInfo>, ApiError> {
        self.list(routes::CHILDREN, |call| of(call, session)).await
    }

    /// Reads what the turn of a prompt has changed in files.
    ///
    /// The server can leave `prompt` out of the request, but recent ones then answer with an empty list.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn diff(&self, session: &SessionId, prompt: &MessageId) -> Result<Decoded<FileDiff>, ApiError> {
        self.list(routes::DIFF, |call| of(call, session).query("messageID", prompt.as_str())).await
    }

    /// Lists messages of a session. Text that is being streamed is not in them yet.
    ///
    /// # Errors
    /// As [`ApiError`] says; one malformed message is no error but reported in the list.
    pub async fn messages(&self, session: &SessionId, page: &MessagePage) -> Result<MessageList, ApiError> {
        let MessagePage { limit, before } = page;
        let operation = routes::MESSAGES;
        let mut call = of(self.call(operation), session);
        if let Some(limit) = limit {
            call = call.query("limit", limit.to_string());
        }
        if let Some(cursor) = before {
            let rule = InvalidInput::new("page", "must have a limit where it has a cursor");
            call = call.query("before", cursor.0.as_str()).check(limit.map(drop).ok_or(rule));
        }
        let answer = self.client.http().read(&call).await?;
        let decoded = decode(operation, &answer, Message::list_from_json)?;
        let next = answer.header("x-next-cursor").map(|cursor| Cursor(cursor.to_owned()));
        let n_found = decoded.items.len() + decoded.malformed.len();
        // A full page without a cursor may come from a server that knows no cursors.
        let full = limit.is_some_and(|limit| n_found >= limit.get() as usize);
        Ok(MessageList {
            messages: decoded.items,
            complete: next.is_none() && !full,
            next,
            malformed: decoded.malformed,
        })
    }

    /// Submits a prompt. Success means that the server understood the request and knows the session, nothing more: the
    /// prompt may still be lost, fail, or never start.
    ///
    /// # Errors
    /// As [`ApiError`] says; an empty prompt is refused.
    pub async fn prompt_async(&self, session: &SessionId, prompt: &PromptRequest) -> Result<(), ApiError> {
        self.submit_call(of(self.call(routes::PROMPT_ASYNC), session).check(not_empty(prompt)).json(prompt))
            .await
    }

    /// As [`Self::prompt_async`], with the request as it was prepared, to the byte.
    pub(crate) async fn submit(&self, session: &SessionId, prompt: Bytes) -> Result<(), ApiError> {
        self.submit_call(of(self.call(routes::PROMPT_ASYNC), session).body(prompt)).await
    }

    async fn submit_call(&self, call: Call) -> Result<(), ApiError> {
        let answer = self.client.http().send(&call).await?;
        if answer.status == 204 {
            return Ok(());
        }
        // A route that does not exist answers 200 with a page.
        answer.json(routes::PROMPT_ASYNC.name).map(drop)
    }

    /// Aborts what a session does; its children's runs are aborted with it. The server answers when all is recorded, and
    /// also for sessions that are idle or unknown.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn abort(&self, session: &SessionId) -> Result<(), ApiError> {
        self.act(routes::ABORT, |call| of(call, session)).await
    }

    /// Reads which sessions of the directory are busy or retrying.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn session_status(&self) -> Result<StatusMap, ApiError> {
        self.read(routes::SESSION_STATUS, |call| call).await
    }

    /// Lists unanswered permission requests of the directory. Those of aborted runs may still be among them.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn permissions(&self) -> Result<Decoded<PermissionRequest>, ApiError> {
        self.list(routes::PERMISSIONS, |call| call).await
    }

    /// Answers a permission request.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn reply_permission(
        &self,
        request: &RequestId,
        reply: PermissionReply,
    ) -> Result<(), ApiError> {
        let body = json!({ "reply": reply });
        self.act(routes::REPLY_PERMISSION, |call| call.id("requestID", request.as_str()).json(&body)).await
    }

    /// Rejects a permission request with words for the model, which then goes on.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn reject_permission(&self, request: &RequestId, message: &str) -> Result<(), ApiError> {
        let body = json!({ "reply": PermissionReply::Reject, "message": message });
        self.act(routes::REPLY_PERMISSION, |call| call.id("requestID", request.as_str()).json(&body)).await
    }

    /// Answers a permission request by the route that servers before 1.1 have; newer ones have it too.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn reply_permission_by_old_route(
        &self,
        session: &SessionId,
        request: &RequestId,
        reply: PermissionReply,
    ) -> Result<(), ApiError> {
        let body = json!({ "response": reply });
        self.act(routes::REPLY_PERMISSION_OLD, |call| {
            of(call, session).id("permissionID", request.as_str()).json(&body)
        })
        .await
    }

    /// Lists unanswered questions of the directory.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn questions(&self) -> Result<Decoded<QuestionRequest>, ApiError> {
        self.list(routes::QUESTIONS, |call| call).await
    }

    /// Answers a request's questions, in their order.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn reply_question(
        &self,
        request: &RequestId,
        answers: &[QuestionAnswer],
    ) -> Result<(), ApiError> {
        let body = json!({ "answers": answers });
        self.act(routes::REPLY_QUESTION, |call| call.id("requestID", request.as_str()).json(&body)).await
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn config(&self) -> Result<ConfigInfo, ApiError> {
        self.read(routes::CONFIG, |call| call).await
    }

    /// Lists the providers that can be used, their models and default models.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn providers(&self) -> Result<ProviderList, ApiError> {
        self.read(routes::PROVIDERS, |call| call).await
    }

    /// Makes the server forget the directory's state and read its configuration anew. Running turns are aborted and the
    /// event stream ends.
    ///
    /// # Errors
    /// As [`ApiError`] says.
    pub async fn dispose(&self) -> Result<(), ApiError> {
        self.act(routes::DISPOSE, |call| call).await
    }

    pub(super) fn call(&self, operation: Operation) -> Call {
        operation.call().directory(self.directory.as_ref())
    }

    async fn read<T: DeserializeOwned>(
        &self,
        operation: Operation,
        fill: impl FnOnce(Call) -> Call,
    ) -> Result<T, ApiError> {
        let answer = self.client.http().read(&fill(self.call(operation))).await?;
        decode(operation, &answer, |json| wire::from_json(operation.name, json))
    }

    async fn list<T: DeserializeOwned>(
        &self,
        operation: Operation,
        fill: impl FnOnce(Call) -> Call,
    ) -> Result<Decoded<T>, ApiError> {
        let answer = self.client.http().read(&fill(self.call(operation))).await?;
        decode(operation, &answer, |json| Decoded::from_json(operation.name, json))
    }

    async fn write<T: DeserializeOwned>(
        &self,
        operation: Operation,
        fill: impl FnOnce(Call) -> Call,
    ) -> Result<T, ApiError> {
        let answer = self.client.http().send(&fill(self.call(operation))).await?;
        decode(operation, &answer, |json| wire::from_json(operation.name, json))
    }

    /// Sends a request whose answer says no more than its status.
    async fn act(&self, operation: Operation, fill: impl FnOnce(Call) -> Call) -> Result<(), ApiError> {
        let answer = self.client.http().send(&fill(self.call(operation))).await?;
        if answer.status == 204 {
            return Ok(());
        }
        decode(operation, &answer, |json| wire::from_json::<Value>(operation.name, json)).map(drop)
    }
}

impl Cursor {
    /// A cursor kept from an earlier [`MessageList`].
    pub fn new(cursor: impl Into<String>) -> Self {
        Self(cursor.into())
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn decode<T>(
    operation: Operation,
    answer: &Answer,
    decode: impl FnOnce(&str) -> Result<T, DecodeError>,
) -> Result<T, ApiError> {
    let json = answer.json(operation.name)?;
    decode(&json).map_err(|error| ApiError::new(operation.name, ApiErrorKind::Decode(error)))
}

fn of(call: Call, session: &SessionId) -> Call {
    call.id("sessionID", session.as_str())
}

/// The server would accept a prompt that says nothing, and call the model with it.
fn not_empty(prompt: &PromptRequest) -> Result<(), InvalidInput> {
    let says_something = prompt.parts.iter().any(|part| match part {
        PromptPart::Text { text, .. } => !text.trim().is_empty(),
        PromptPart::File { .. } | PromptPart::Agent { .. } => true,
    });
    says_something.then_some(()).ok_or(InvalidInput::new("prompt", "must not be empty"))
}

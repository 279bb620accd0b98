//! Calls of the manager that only make sense with `OpenCode`.

use std::{any::Any, sync::Arc};

use super::{
    agent::{OpenCode, PERMISSION_RULES},
    check::CheckError,
    client::{ApiError, MessageList, MessagePage, OpenCodeClient, Subscription},
    session::OpenCodeSession,
    wire::{Message, PermissionRule},
};
use crate::{
    agent::{AgentError, NativeMessages, OpenSession},
    ids::SessionId,
    manager::{ConversationManager, CreateTaskSession, ManagerBuilder, PromptInput, SessionError},
};

impl ConversationManager {
    /// Connects to the server at `url`: a manager with all defaults, after a [`check`](Self::check) that the server is there.
    ///
    /// A service that may start before its server takes [`builder`](Self::builder), which makes no request.
    ///
    /// # Errors
    /// As [`CheckError`] says: `url` is not an HTTP URL, no server answers there, it wants a password, or it is another kind of server.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::ConversationManager;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = ConversationManager::connect("http://127.0.0.1:4096").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, CheckError> {
        let client = OpenCodeClient::new(url).map_err(CheckError::Invalid)?;
        let manager = Self::builder(client).build();
        manager.check().await?;
        Ok(manager)
    }

    /// A manager of the server that `client` talks to, with settings of one's own.
    ///
    /// Makes no request: a server that is not there, or wants a password, is noticed by the first call that needs it, or by
    /// [`check`](Self::check).
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{ConversationManager, OpenCodeClient, PermissionPolicy};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = OpenCodeClient::builder("http://127.0.0.1:4096").basic_auth("opencode", "secret").build()?;
    /// let manager = ConversationManager::builder(client).permissions(PermissionPolicy::AllowOnce).build();
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: OpenCodeClient) -> ManagerBuilder {
        ManagerBuilder::new(OpenCode::new(client))
    }

    /// The client underneath, for what the manager does not do; nothing if the manager is of another agent.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(client) = manager.client() {
    ///     println!("{} requests so far", client.statistics().requests);
    ///     println!("OpenCode {}", client.health().await?.version);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn client(&self) -> Option<&OpenCodeClient> {
        let agent: &dyn Any = self.agent();
        agent.downcast_ref::<OpenCode>().map(OpenCode::client)
    }

    /// All messages of a session, oldest first, as the server has them, and what could not be decoded of them.
    ///
    /// # Errors
    /// If the session cannot be found, the server cannot be asked, or the agent is another one.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let list = manager.list_conversation_messages(&session).await?;
    /// println!("{} messages cannot be understood", list.malformed.len());
    /// for message in list.messages {
    ///     println!("{}: {} parts", message.info.id(), message.parts.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_conversation_messages(&self, session: &SessionId) -> Result<MessageList, SessionError> {
        let open = self.find_session(session).await?;
        let listed = self.of_opencode(session, &open)?.api().messages(session, &MessagePage::all()).await;
        let failed = |error: ApiError| failed("listing the messages of", session, error.into());
        listed.map_err(failed)
    }

    /// The events of a session and its descendants, from when it says `Connected`; ends when dropped.
    ///
    /// # Errors
    /// If the manager does not know the session, or the agent is another one.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::FeedSignal;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = manager.subscribe_to_events(&session)?;
    /// loop {
    ///     match events.next().await {
    ///         FeedSignal::Event(event) => println!("{event:?}"),
    ///         FeedSignal::Resync { reason, .. } => println!("read everything again: {reason}"),
    ///         FeedSignal::Gone { .. } => break,
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe_to_events(&self, session: &SessionId) -> Result<Subscription, SessionError> {
        let open = self.open_session(session)?;
        Ok(self.of_opencode(session, &open)?.api().subscribe(session))
    }

    fn of_opencode<'a>(
        &self,
        id: &SessionId,
        session: &'a Arc<dyn OpenSession>,
    ) -> Result<&'a OpenCodeSession, SessionError> {
        let session: &dyn Any = &**session;
        session.downcast_ref().ok_or_else(|| {
            failed("a call for OpenCode on", id, AgentError::unsupported(self.agent().name(), "do that"))
        })
    }
}

impl CreateTaskSession {
    /// Sets what the session's tools may do, in addition to the server's configuration; default nothing.
    pub fn permissions(mut self, rules: impl IntoIterator<Item = PermissionRule>) -> Self {
        let rules = rules.into_iter().filter_map(|rule| serde_json::to_value(rule).ok());
        self.settings.insert(PERMISSION_RULES.to_owned(), rules.collect());
        self
    }
}

impl PromptInput {
    /// Calls `observer` with every message of the turn each time that it changes.
    ///
    /// It runs on the turn's own task: it must be quick, and must not block.
    pub fn on_message(mut self, observer: impl Fn(&Arc<Message>) + Send + Sync + 'static) -> Self {
        self.on_message = Some(Arc::new(move |message: &dyn Any| {
            if let Some(message) = message.downcast_ref() {
                observer(message);
            }
        }));
        self
    }
}

impl NativeMessages {
    /// `OpenCode`'s messages; none if they are of another agent.
    pub fn opencode(&self) -> &[Arc<Message>] {
        self.of()
    }
}

fn failed(attempt: &str, session: &SessionId, source: AgentError) -> SessionError {
    SessionError::Agent { attempt: format!("{attempt} session {session}"), source }
}

//! What is known of sessions, what they say and what they may do.

use super::{
    ConversationManager, PermissionPolicy, QuestionPolicy, SessionError, Updates, inner::agent_error,
    updates::UpdateSender,
};
use crate::{
    agent::FileChange,
    conversation::SessionConversationState,
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
    session::ConversationSessionMeta,
};

impl ConversationManager {
    /// The session of a task.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::TaskId;
    ///
    /// # fn example(manager: opencode_conductor::ConversationManager) {
    /// if let Some(session) = manager.task_session_id(&TaskId::from("task-42")) {
    ///     println!("task-42 has session {session}");
    /// }
    /// # }
    /// ```
    pub fn task_session_id(&self, task: &TaskId) -> Option<SessionId> {
        self.inner.registry().task(task).cloned()
    }

    /// The directory that a session works in.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// let directory = manager.session_directory(&session);
    /// println!("{:?}", directory.map(|directory| directory.as_path().to_owned()));
    /// # }
    /// ```
    pub fn session_directory(&self, session: &SessionId) -> Option<Directory> {
        self.inner.registry().meta(session).map(|meta| meta.directory)
    }

    /// What is known of a session.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// if let Some(meta) = manager.session(&session) {
    ///     println!("{} since {}", meta.title, meta.created_at);
    /// }
    /// # }
    /// ```
    pub fn session(&self, session: &SessionId) -> Option<ConversationSessionMeta> {
        self.inner.registry().meta(session)
    }

    /// What is known of all sessions, the oldest first: those that were made or taken over here, and those that a store brought back.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(manager: opencode_conductor::ConversationManager) {
    /// for meta in manager.sessions() {
    ///     println!("{:?} in {}: {}", meta.task_id, meta.directory, manager.is_running(&meta.session_id));
    /// }
    /// # }
    /// ```
    pub fn sessions(&self) -> Vec<ConversationSessionMeta> {
        self.inner.registry().all()
    }

    /// Whether a prompt of a session is in flight here.
    pub fn is_running(&self, session: &SessionId) -> bool {
        self.inner.registry().session(session).is_some_and(|session| session.queue.is_taken())
    }

    /// The conversation of a session as far as this manager has seen it; cheap.
    ///
    /// For a session that was taken over, [`load_conversation`](Self::load_conversation) brings what was before.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::markdown::{self, MarkdownOptions};
    ///
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) {
    /// if let Some(state) = manager.conversation(&session) {
    ///     println!("{}", markdown::render(&state, &MarkdownOptions::default()));
    /// }
    /// # }
    /// ```
    pub fn conversation(&self, session: &SessionId) -> Option<SessionConversationState> {
        self.inner.registry().session(session).map(|session| session.conversation.state())
    }

    /// Reads the whole conversation of a session and its descendants from the agent.
    ///
    /// # Errors
    /// If the session cannot be found, or the agent cannot be asked.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let state = manager.load_conversation(&session).await?;
    /// println!("{}", serde_json::to_string(&state)?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn load_conversation(
        &self,
        session: &SessionId,
    ) -> Result<SessionConversationState, SessionError> {
        let session = self.inner.session(session, None).await?;
        let loaded = session.agent.load().await;
        loaded.map_err(|source| agent_error("loading the conversation of", &session.id, source))?;
        Ok(session.conversation.state())
    }

    /// The conversation of a session as it is now, and every update from now on.
    ///
    /// Any number of readers may watch a session, each at its own pace: one that is too slow misses updates and is given the state
    /// instead ([`Update::Missed`](super::Update::Missed)). The updates end when the session is forgotten.
    ///
    /// # Errors
    /// If the manager has not opened the session. One that an earlier process knew is opened by its next prompt, and by
    /// [`load_conversation`](Self::load_conversation).
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::Update;
    ///
    /// # async fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut state, mut updates) = manager.watch(&session)?;
    /// while let Some(update) = updates.next().await {
    ///     match update {
    ///         Update::Conversation(event) => state.apply(&event),
    ///         Update::Missed(now) => state = *now,
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, session: &SessionId) -> Result<(SessionConversationState, Updates), SessionError> {
        let session = self.inner.known(session)?;
        let (reader, updates) = UpdateSender::new();
        let (_, state) = session.conversation.add_reader(reader);
        Ok((state, updates))
    }

    /// What the turn of a prompt did to files, with patches.
    ///
    /// `OpenCode` compares the files of the session's project before and after the turn, so that what others changed meanwhile is in it too. It knows
    /// nothing, and the list is empty, where there is no git repository or its configuration says `"snapshot": false`. A file that was changed before and
    /// after a long history was summarised is in the list twice. After a turn that was cut off the changes may take the server a second, and are waited for.
    ///
    /// # Errors
    /// If the session cannot be found, or the agent cannot be asked, or does not know: not every agent does.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(manager: opencode_conductor::ConversationManager, result: opencode_conductor::PromptExecutionResult) -> Result<(), Box<dyn std::error::Error>> {
    /// let submission = &result.submission;
    /// for change in manager.diff(&submission.session_id, &submission.message_id).await? {
    ///     println!("{:?} {}: +{} -{}", change.kind, change.path, change.additions, change.deletions);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn diff(
        &self,
        session: &SessionId,
        prompt: &MessageId,
    ) -> Result<Vec<FileChange>, SessionError> {
        let session = self.inner.session(session, None).await?;
        let changes = session.agent.diff(prompt).await;
        changes.map_err(|source| agent_error("reading what was changed in", &session.id, source))
    }

    /// Sets who decides when a tool of a session needs permission, from its next turn on; default as the manager has it. A prompt's own
    /// policy goes first.
    ///
    /// Not kept in a store: another process has to set it again.
    ///
    /// # Errors
    /// If the manager has not opened the session. One that an earlier process knew is opened by its next prompt, and by
    /// [`load_conversation`](Self::load_conversation).
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::PermissionPolicy;
    ///
    /// # fn example(manager: opencode_conductor::ConversationManager, session: opencode_conductor::SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// manager.set_permissions(&session, PermissionPolicy::AllowOnce)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_permissions(&self, session: &SessionId, policy: PermissionPolicy) -> Result<(), SessionError> {
        self.inner.known(session)?.change_policies(|own| own.permissions = Some(policy));
        Ok(())
    }

    /// As [`Self::set_permissions`], for the questions of the model.
    ///
    /// # Errors
    /// If the manager has not opened the session. One that an earlier process knew is opened by its next prompt, and by
    /// [`load_conversation`](Self::load_conversation).
    pub fn set_questions(&self, session: &SessionId, policy: QuestionPolicy) -> Result<(), SessionError> {
        self.inner.known(session)?.change_policies(|own| own.questions = Some(policy));
        Ok(())
    }
}

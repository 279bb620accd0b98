//! A prompt, before and while it runs.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll},
};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    ConversationManager, PromptExecutionResult,
    error::{JsonAnswerError, PromptError, SessionError},
    input::PromptInput,
    json::{self, JsonAnswer},
    queue::AbortCall,
    run::Work,
    updates::Updates,
};
use crate::{
    agent::{AbortReport, Delivery},
    ids::SessionId,
};

/// A prompt that has not been sent yet: await it, [`start`](Prompt::start) it to watch it, or ask for [`json`](Prompt::json).
#[derive(Debug)]
#[must_use = "a prompt is sent when it is awaited or started"]
pub struct Prompt {
    manager: ConversationManager,
    input: PromptInput,
}

impl Prompt {
    pub(super) fn new(manager: ConversationManager, input: PromptInput) -> Self {
        Self { manager, input }
    }

    /// Takes a place in the session's line and runs it in the background.
    ///
    /// Prompts of one session run in the order in which they were started, once the manager knows the session: the first ones for a
    /// session that it has to look up stand in line when it has been found. Must be called inside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use futures_util::StreamExt;
    /// use opencode_conductor::{ConversationEvent, ConversationManager, PromptInput, SessionId, Update};
    ///
    /// # async fn example(manager: ConversationManager, session: SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut running = manager.prompt(PromptInput::new(session, "Tidy up.")).start();
    /// if let Some(mut updates) = running.updates() {
    ///     while let Some(update) = updates.next().await {
    ///         if let Update::Conversation(ConversationEvent::BlockDelta { delta, .. }) = update {
    ///             print!("{delta}");
    ///         }
    ///     }
    /// }
    /// let result = running.await?.settled()?;
    /// # drop(result);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> RunningPrompt {
        self.manager.start(Work::Prompt(Box::new(self.input)))
    }

    /// Asks for an answer that is JSON of the given schema, and decodes it.
    ///
    /// The schema goes into the prompt in words; no agent has a reliable way of its own. An answer that cannot be
    /// decoded as a `T` is sent back with the reason, at most `re_asks` times. Beyond that **the schema is not checked**: what it demands and
    /// `T` does not, such as a range, is yours to look at. With the feature `schemars` the schema can be that of `T` (`json_as`).
    ///
    /// No other prompt of the session comes between the attempts, each of which has the limits of the prompt for itself. A
    /// [`message_id`](PromptInput::message_id) is that of the first.
    ///
    /// What happens meanwhile can be [watched](ConversationManager::watch), as in any session.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{ConversationManager, PromptInput, SessionId};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Verdict {
    ///     safe: bool,
    ///     reason: String,
    /// }
    ///
    /// # async fn example(manager: ConversationManager, session: SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let schema = serde_json::json!({
    ///     "type": "object",
    ///     "properties": {"safe": {"type": "boolean"}, "reason": {"type": "string"}},
    ///     "required": ["safe", "reason"],
    /// });
    /// let prompt = manager.prompt(PromptInput::new(session, "Is this change safe?"));
    /// let answer = prompt.json::<Verdict>(&schema, 2).await?;
    /// println!("{}: {}", answer.value.safe, answer.value.reason);
    /// println!("{} tokens", answer.usage.tokens.total());
    /// # Ok(())
    /// # }
    /// ```
    /// # Errors
    /// If the turn fails, or no answer has the asked shape; the raw answer is in the error.
    ///
    /// # Cancel safety
    /// As for awaiting the prompt: dropping it leaves the agent's run alone.
    pub async fn json<T: DeserializeOwned>(
        self,
        schema: &Value,
        re_asks: u32,
    ) -> Result<JsonAnswer<T>, JsonAnswerError> {
        json::ask(&self.manager, self.input, schema, re_asks).await
    }

    /// As [`json`](Self::json), with the schema that `T` describes.
    ///
    /// # Examples
    /// ```no_run
    /// use opencode_conductor::{ConversationManager, PromptInput, SessionId};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Verdict {
    ///     /// Whether the change can be merged as it is.
    ///     safe: bool,
    ///     reason: String,
    /// }
    ///
    /// # async fn example(manager: ConversationManager, session: SessionId) -> Result<(), Box<dyn std::error::Error>> {
    /// let prompt = manager.prompt(PromptInput::new(session, "Is this change safe?"));
    /// let verdict = prompt.json_as::<Verdict>(2).await?.value;
    /// println!("{}: {}", verdict.safe, verdict.reason);
    /// # Ok(())
    /// # }
    /// ```
    /// # Errors
    /// As for [`json`](Self::json).
    ///
    /// # Cancel safety
    /// As for [`json`](Self::json).
    #[cfg(feature = "schemars")]
    pub async fn json_as<T: DeserializeOwned + schemars::JsonSchema>(
        self,
        re_asks: u32,
    ) -> Result<JsonAnswer<T>, JsonAnswerError> {
        self.json(&schemars::schema_for!(T).to_value(), re_asks).await
    }
}

impl IntoFuture for Prompt {
    type Output = Result<PromptExecutionResult, PromptError>;
    type IntoFuture = RunningPrompt;

    fn into_future(self) -> RunningPrompt {
        self.start()
    }
}

/// A prompt that runs in the background: a future of its result, and a source of updates.
///
/// # Cancel safety
/// Dropping it ends the waiting. The agent's run is left alone unless
/// [`abort_on_drop`](PromptInput::abort_on_drop) was asked for.
pub struct RunningPrompt {
    manager: ConversationManager,
    session: SessionId,
    result: oneshot::Receiver<Result<PromptExecutionResult, PromptError>>,
    updates: Option<Updates>,
    aborts: mpsc::UnboundedSender<AbortCall>,
    _cancel: DropGuard,
}

impl RunningPrompt {
    pub(super) fn new(
        manager: ConversationManager,
        session: SessionId,
        result: oneshot::Receiver<Result<PromptExecutionResult, PromptError>>,
        updates: Updates,
        aborts: mpsc::UnboundedSender<AbortCall>,
        cancel: CancellationToken,
    ) -> Self {
        Self { manager, session, result, updates: Some(updates), aborts, _cancel: cancel.drop_guard() }
    }

    /// The session that it is for.
    pub fn session_id(&self) -> &SessionId {
        &self.session
    }

    /// Aborts this prompt, wherever it is, and no other one. One that waits for its turn is not sent; one that runs is aborted with its
    /// session, as [`ConversationManager::abort`] does it, and ends with what there is of it.
    ///
    /// # Errors
    /// If the prompt is over and its session cannot be found.
    ///
    /// # Cancel safety
    /// Dropping it does not take the abort back.
    pub async fn abort(&self) -> Result<AbortReport, SessionError> {
        let (call, report) = oneshot::channel();
        if self.aborts.send(call).is_ok()
            && let Ok(report) = report.await
        {
            return Ok(report);
        }
        // It is over. What another prompt does in the session is none of its business.
        if self.manager.is_running(&self.session) {
            return Ok(AbortReport { confirmed: true, sessions: Vec::new() });
        }
        self.manager.abort(&self.session).await
    }

    /// Everything that happens, from the start; can be taken once, before the prompt is awaited.
    ///
    /// It ends with the turn. A reader that is too slow misses some and is told so.
    pub fn updates(&mut self) -> Option<Updates> {
        self.updates.take()
    }
}

impl Future for RunningPrompt {
    type Output = Result<PromptExecutionResult, PromptError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Once the result is awaited, the updates cannot be taken any more.
        self.updates = None;
        let given_up = |session: &SessionId| PromptError::GivenUp {
            session: session.clone(),
            task: None,
            delivery: Delivery::Unknown,
        };
        Pin::new(&mut self.result)
            .poll(context)
            .map(|sent| sent.unwrap_or_else(|_closed| Err(given_up(&self.session))))
    }
}

impl fmt::Debug for RunningPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningPrompt").field("session", &self.session).finish_non_exhaustive()
    }
}

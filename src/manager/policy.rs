//! Who answers when a tool needs permission or the model has a question.

use std::{
    fmt,
    future::{Future, ready},
    sync::Arc,
};

use futures_util::{FutureExt, future::BoxFuture};

use crate::wire::{PermissionRequest, QuestionAnswer, QuestionRequest};

/// What the model is told when nobody is there to answer.
const NOBODY: &str =
    "No one is available to answer. Decide for yourself, go on, and say in your answer what you assumed.";
/// What the model is told when a permission is refused by default.
const REFUSED: &str =
    "This is not allowed here, and no one can be asked. Find another way, or say what you could not do.";

type Handler<Request, Decision> = Arc<dyn Fn(Request) -> BoxFuture<'static, Decision> + Send + Sync>;

/// What happens when a tool anywhere in the session's tree needs permission.
///
/// The server would wait for ever. The default rejects with a message, which the model reads and works around.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{ConversationManager, OpenCodeClient, PermissionDecision, PermissionPolicy};
///
/// # async fn ask_somebody(_: &str) -> bool { true }
/// # fn example(client: OpenCodeClient) {
/// let policy = PermissionPolicy::ask(|request| async move {
///     if ask_somebody(&request.permission).await {
///         PermissionDecision::AllowOnce
///     } else {
///         PermissionDecision::Reject("Not today.".to_owned())
///     }
/// });
/// let manager = ConversationManager::builder(client).permissions(policy).build();
/// # drop(manager);
/// # }
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum PermissionPolicy {
    /// Rejects with a message; the model goes on.
    #[default]
    Reject,
    /// Allows each call as it comes.
    AllowOnce,
    /// Allows the call and all like it, in all sessions of the directory, until the server forgets.
    AllowAlways,
    /// Ends the turn.
    FailTurn,
    /// Asks the caller; the turn's clocks stand still meanwhile. See [`PermissionPolicy::ask`].
    Ask(PermissionHandler),
}

/// An answer to a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionDecision {
    /// This call may run.
    AllowOnce,
    /// This call and all like it may run.
    AllowAlways,
    /// It may not; the model reads why and goes on.
    Reject(String),
    /// It may not, and the turn is over.
    FailTurn,
}

/// What happens when the model has a question.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum QuestionPolicy {
    /// Answers that nobody is there and that the model shall decide and say what it assumed.
    #[default]
    Decline,
    /// Ends the turn.
    FailTurn,
    /// Asks the caller; the turn's clocks stand still meanwhile. See [`QuestionPolicy::ask`].
    Ask(QuestionHandler),
}

/// An answer to the model's questions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuestionDecision {
    /// One answer per question: labels of its options, or words of one's own.
    Answer(Vec<QuestionAnswer>),
    /// Nobody is there; the model shall decide.
    Decline,
    /// The turn is over.
    FailTurn,
}

/// An async function that answers permission requests.
#[derive(Clone)]
pub struct PermissionHandler(Handler<PermissionRequest, PermissionDecision>);

/// An async function that answers questions.
#[derive(Clone)]
pub struct QuestionHandler(Handler<QuestionRequest, QuestionDecision>);

impl PermissionPolicy {
    /// Asks `handler`, which may take its time.
    pub fn ask<F, Answer>(handler: F) -> Self
    where
        F: Fn(PermissionRequest) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = PermissionDecision> + Send + 'static,
    {
        Self::Ask(PermissionHandler(Arc::new(move |request| handler(request).boxed())))
    }

    pub(super) fn decide(&self, request: PermissionRequest) -> Verdict<PermissionDecision> {
        Verdict::now(match self {
            Self::Reject => PermissionDecision::Reject(REFUSED.to_owned()),
            Self::AllowOnce => PermissionDecision::AllowOnce,
            Self::AllowAlways => PermissionDecision::AllowAlways,
            Self::FailTurn => PermissionDecision::FailTurn,
            Self::Ask(handler) => return Verdict { human: true, decision: (handler.0)(request) },
        })
    }
}

impl QuestionPolicy {
    /// Asks `handler`, which may take its time.
    pub fn ask<F, Answer>(handler: F) -> Self
    where
        F: Fn(QuestionRequest) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = QuestionDecision> + Send + 'static,
    {
        Self::Ask(QuestionHandler(Arc::new(move |request| handler(request).boxed())))
    }

    pub(super) fn decide(&self, request: QuestionRequest) -> Verdict<QuestionDecision> {
        Verdict::now(match self {
            Self::Decline => QuestionDecision::Decline,
            Self::FailTurn => QuestionDecision::FailTurn,
            Self::Ask(handler) => return Verdict { human: true, decision: (handler.0)(request) },
        })
    }
}

/// What a policy says about a request, at once or when somebody has been asked.
pub(super) struct Verdict<Decision> {
    pub(super) human: bool,
    pub(super) decision: BoxFuture<'static, Decision>,
}

impl<Decision: Send + 'static> Verdict<Decision> {
    fn now(decision: Decision) -> Self {
        Self { human: false, decision: ready(decision).boxed() }
    }
}

/// The answers that leave every question to the model.
pub(super) fn declined(request: &QuestionRequest) -> Vec<QuestionAnswer> {
    request.questions.iter().map(|_| vec![NOBODY.to_owned()]).collect()
}

macro_rules! debug_by_name {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

debug_by_name! { PermissionHandler QuestionHandler }

impl fmt::Debug for PermissionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reject => "Reject",
            Self::AllowOnce => "AllowOnce",
            Self::AllowAlways => "AllowAlways",
            Self::FailTurn => "FailTurn",
            Self::Ask(_) => "Ask",
        })
    }
}

impl fmt::Debug for QuestionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decline => "Decline",
            Self::FailTurn => "FailTurn",
            Self::Ask(_) => "Ask",
        })
    }
}

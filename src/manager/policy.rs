//! Who decides when a tool needs permission or the model has a question.

use std::{fmt, future::Future, sync::Arc};

use crate::agent::{Ask, Asked, BoxFuture, Decision, Subject};

/// What happens when a tool anywhere in the session's tree needs permission.
///
/// The agent would wait for ever. The default rejects with a message, which the model reads and works around.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{ConversationManager, Decision, OpenCodeClient, PermissionPolicy};
///
/// # async fn ask_a_person(_: &str) -> bool { true }
/// # fn example(client: OpenCodeClient) {
/// let policy = PermissionPolicy::ask(|ask| async move {
///     let permission = ask.permission().map_or("", |permission| permission.permission.as_str());
///     if ask_a_person(permission).await {
///         Decision::AllowOnce
///     } else {
///         Decision::Reject("Not today.".to_owned())
///     }
/// });
/// let manager = ConversationManager::builder(client).permissions(policy).build();
/// # drop(manager);
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum PermissionPolicy {
    /// Rejects with a message; the model goes on.
    #[default]
    Reject,
    /// Allows each call as it comes.
    AllowOnce,
    /// Allows the call and all like it, in all sessions of the directory, until the agent forgets.
    AllowAlways,
    /// Ends the turn.
    FailTurn,
    /// Asks the caller; the turn's clocks stand still meanwhile. See [`PermissionPolicy::ask`].
    Ask(AskHandler),
}

/// What happens when the model has a question.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum QuestionPolicy {
    /// Answers that no one is there and that the model shall decide and say what it assumed.
    #[default]
    Decline,
    /// Ends the turn.
    FailTurn,
    /// Asks the caller; the turn's clocks stand still meanwhile. See [`QuestionPolicy::ask`].
    Ask(AskHandler),
}

/// An async function that decides.
#[derive(Clone)]
pub struct AskHandler(Arc<dyn Fn(Ask) -> BoxFuture<'static, Decision> + Send + Sync>);

impl AskHandler {
    /// Lets `decide` decide, which may take its time.
    pub fn new<F, Decided>(decide: F) -> Self
    where
        F: Fn(Ask) -> Decided + Send + Sync + 'static,
        Decided: Future<Output = Decision> + Send + 'static,
    {
        Self(Arc::new(move |ask| Box::pin(decide(ask))))
    }
}

impl PermissionPolicy {
    /// Asks `decide`, which may take its time.
    pub fn ask<F, Decided>(decide: F) -> Self
    where
        F: Fn(Ask) -> Decided + Send + Sync + 'static,
        Decided: Future<Output = Decision> + Send + 'static,
    {
        Self::Ask(AskHandler::new(decide))
    }
}

impl QuestionPolicy {
    /// Asks `decide`, which may take its time. [`Decision::Reject`] leaves the questions to the model, with the given words.
    pub fn ask<F, Decided>(decide: F) -> Self
    where
        F: Fn(Ask) -> Decided + Send + Sync + 'static,
        Decided: Future<Output = Decision> + Send + 'static,
    {
        Self::Ask(AskHandler::new(decide))
    }
}

/// The policies in force for a turn.
#[derive(Debug, Clone, Default)]
pub(super) struct Policies {
    pub(super) permissions: PermissionPolicy,
    pub(super) questions: QuestionPolicy,
}

/// Policies of a session, or of a prompt, which go before those of the manager.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnPolicies {
    pub(super) permissions: Option<PermissionPolicy>,
    pub(super) questions: Option<QuestionPolicy>,
}

impl OwnPolicies {
    /// These, and for the rest `others`.
    pub(super) fn or(&self, others: &Policies) -> Policies {
        Policies {
            permissions: self.permissions.as_ref().unwrap_or(&others.permissions).clone(),
            questions: self.questions.as_ref().unwrap_or(&others.questions).clone(),
        }
    }
}

impl Policies {
    /// What the policy decides, which a handler's decision may have to be [made to fit](Ask::fit).
    pub(super) fn decide(&self, ask: Ask) -> Asked {
        let handler = match &ask.subject {
            Subject::Permission(_) => match &self.permissions {
                PermissionPolicy::Reject => return Asked::at_once(ask.decline()),
                PermissionPolicy::AllowOnce => return Asked::at_once(Decision::AllowOnce),
                PermissionPolicy::AllowAlways => return Asked::at_once(Decision::AllowAlways),
                PermissionPolicy::FailTurn => return Asked::at_once(Decision::FailTurn),
                PermissionPolicy::Ask(handler) => handler,
            },
            Subject::Questions { .. } => match &self.questions {
                QuestionPolicy::Decline => return Asked::at_once(ask.decline()),
                QuestionPolicy::FailTurn => return Asked::at_once(Decision::FailTurn),
                QuestionPolicy::Ask(handler) => handler,
            },
        };
        Asked::of_a_person((handler.0)(ask))
    }
}

impl fmt::Debug for AskHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskHandler")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::agent::{Permission, Question};

    fn ask(subject: Subject) -> Ask {
        Ask::new("req_1".into(), "ses_1".into(), "ses_1".into(), subject)
    }

    fn decided(policies: &Policies, subject: Subject) -> (bool, Decision) {
        let ask = ask(subject);
        let asked = policies.decide(ask.clone());
        (asked.is_human, ask.fit(asked.decision.now_or_never().unwrap()))
    }

    #[test]
    fn a_decision_that_does_not_fit_is_the_careful_choice() {
        let permission = || Subject::Permission(Permission::new("bash", vec!["ls".to_owned()]));
        let questions = || Subject::questions(vec![Question::new("a?"), Question::new("b?")]);
        let handlers = |decision: Decision| {
            let handler = AskHandler::new(move |_| std::future::ready(decision.clone()));
            Policies {
                permissions: PermissionPolicy::Ask(handler.clone()),
                questions: QuestionPolicy::Ask(handler),
            }
        };
        let (rejected, left_to_model) = (ask(permission()).decline(), ask(questions()).decline());
        let answer = Decision::Answer(vec![vec!["x".to_owned()]]);
        assert_eq!(decided(&handlers(answer.clone()), permission()), (true, rejected.clone()));
        assert_eq!(decided(&handlers(answer.clone()), questions()), (true, answer));
        assert_eq!(decided(&handlers(Decision::AllowOnce), questions()), (true, left_to_model.clone()));
        assert_eq!(
            decided(&handlers(Decision::Reject("Later.".to_owned())), questions()),
            (true, Decision::Answer(vec![vec!["Later.".to_owned()]; 2]))
        );
        assert_eq!(decided(&Policies::default(), permission()), (false, rejected));
        assert_eq!(decided(&Policies::default(), questions()), (false, left_to_model));
    }
}

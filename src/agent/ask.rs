//! What an agent wants to know before it goes on, and what it is told.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::BoxFuture;
use crate::error::InvalidInput;
use crate::ids::{CallId, MessageId, RequestId, SessionId, TaskId};

/// What the model is told when no one can answer its question.
const DECIDE_YOURSELF: &str =
    "No one is available to answer. Decide for yourself, go on, and say in your answer what you assumed.";
/// What the model is told when a tool may not run and no one can be asked.
const NOT_ALLOWED: &str =
    "This is not allowed here, and no one can be asked. Find another way, or say what you could not do.";

/// Something that an agent wants to know before it goes on: whether a tool may run, or what the user wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Ask {
    /// The agent's name for the request.
    pub id: RequestId,
    /// The session that asks: the root, or one of its subagents.
    pub session_id: SessionId,
    /// The session that the prompt was sent to.
    pub root: SessionId,
    /// The task that the root session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The sessions from the root down to the one that asks; the root alone if it asks itself.
    #[serde(default)]
    pub path: Vec<SessionId>,
    /// What it is about.
    pub subject: Subject,
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[non_exhaustive]
pub enum Subject {
    /// A tool needs permission.
    Permission(Permission),
    /// The model has questions.
    #[non_exhaustive]
    Questions {
        /// The questions, to be answered together.
        questions: Vec<Question>,
    },
}

/// What a tool wants to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Permission {
    /// The kind of permission, such as `bash` or `edit`.
    pub permission: String,
    /// What it is wanted for, such as the commands.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// What [`Decision::AllowAlways`] would allow from then on.
    #[serde(default)]
    pub always: Vec<String>,
    /// What else the agent says about it.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// The message that holds the tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The provider's name of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

/// A question of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Question {
    /// The question in full.
    pub question: String,
    /// The question in a word or two.
    #[serde(default)]
    pub header: String,
    /// The answers to choose from.
    #[serde(default)]
    pub options: Vec<QuestionOption>,
    /// Whether more than one may be chosen.
    #[serde(default)]
    pub multiple: bool,
}

/// An answer to choose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QuestionOption {
    /// The words that stand for the answer.
    pub label: String,
    /// What it means.
    #[serde(default)]
    pub description: String,
}

/// The answers to one question: the labels chosen, or words of one's own.
pub type QuestionAnswer = Vec<String>;

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "camelCase")]
#[non_exhaustive]
pub enum Decision {
    /// This call may run.
    AllowOnce,
    /// This call and all like it may run.
    AllowAlways,
    /// The tool may not run, or the question stays unanswered. The model reads why and goes on.
    Reject(String),
    /// One answer per question.
    Answer(Vec<QuestionAnswer>),
    /// The turn is over.
    FailTurn,
}

/// A decision that is made, or being made.
#[non_exhaustive]
pub struct Asked {
    /// A person is being asked, so that the turn's clocks stand still until the decision is there.
    pub is_human: bool,
    /// The decision.
    pub decision: BoxFuture<'static, Decision>,
}

impl Ask {
    /// A session below `root` wants to know something. The manager adds the task.
    pub fn new(id: RequestId, session_id: SessionId, root: SessionId, subject: Subject) -> Self {
        let path =
            if session_id == root { vec![root.clone()] } else { vec![root.clone(), session_id.clone()] };
        Self { id, session_id, root, task: None, path, subject }
    }

    /// The careful decision where no one can be asked: the tool may not run, the model answers its questions itself.
    pub fn decline(&self) -> Decision {
        match &self.subject {
            Subject::Permission(_) => Decision::Reject(NOT_ALLOWED.to_owned()),
            Subject::Questions { .. } => self.answer_all(DECIDE_YOURSELF),
        }
    }

    /// Makes a decision fit what is asked: words for the model are the answer to all questions, and what makes no sense becomes the
    /// careful choice.
    pub fn fit(&self, decision: Decision) -> Decision {
        match (&self.subject, decision) {
            (Subject::Permission(_), Decision::Answer(_))
            | (Subject::Questions { .. }, Decision::AllowOnce | Decision::AllowAlways) => self.decline(),
            (Subject::Questions { .. }, Decision::Reject(reason)) => self.answer_all(&reason),
            (_, decision) => decision,
        }
    }

    /// Whether a decision fits what is asked, for those who would rather be told than have it [made to fit](Self::fit).
    ///
    /// # Errors
    /// If a permission is answered like a question, or a question like a permission; if there is not one answer per question, or more
    /// than one choice where one is to be made.
    pub fn check(&self, decision: &Decision) -> Result<(), InvalidInput> {
        let rule = match (&self.subject, decision) {
            (Subject::Permission(_), Decision::Answer(_)) => {
                "must allow or reject: a permission is asked for"
            }
            (Subject::Questions { .. }, Decision::AllowOnce | Decision::AllowAlways) => {
                "must answer: a question is asked"
            }
            (Subject::Questions { questions }, Decision::Answer(answers)) => {
                let is_one_too_many =
                    |(question, answer): (&Question, &QuestionAnswer)| !question.multiple && answer.len() > 1;
                if answers.len() != questions.len() {
                    "must have one answer per question"
                } else if questions.iter().zip(answers).any(is_one_too_many) {
                    "must choose one answer where only one may be chosen"
                } else {
                    return Ok(());
                }
            }
            (Subject::Permission(_), Decision::AllowOnce | Decision::AllowAlways)
            | (_, Decision::Reject(_) | Decision::FailTurn) => return Ok(()),
        };
        Err(InvalidInput::new("decision", rule))
    }

    fn answer_all(&self, words: &str) -> Decision {
        Decision::Answer(self.questions().iter().map(|_| vec![words.to_owned()]).collect())
    }

    /// What a tool wants to do, if that is what is asked.
    pub fn permission(&self) -> Option<&Permission> {
        match &self.subject {
            Subject::Permission(permission) => Some(permission),
            Subject::Questions { .. } => None,
        }
    }

    /// The model's questions; none if a permission is asked for.
    pub fn questions(&self) -> &[Question] {
        match &self.subject {
            Subject::Permission(_) => &[],
            Subject::Questions { questions } => questions,
        }
    }
}

impl Permission {
    /// A permission of this kind, wanted for these patterns.
    pub fn new(permission: impl Into<String>, patterns: Vec<String>) -> Self {
        Self { permission: permission.into(), patterns, ..Self::default() }
    }
}

impl Question {
    /// A question without answers to choose from.
    pub fn new(question: impl Into<String>) -> Self {
        Self { question: question.into(), ..Self::default() }
    }
}

impl QuestionOption {
    /// An answer to choose.
    pub fn new(label: impl Into<String>, description: impl Into<String>) -> Self {
        Self { label: label.into(), description: description.into() }
    }
}

impl Subject {
    /// These questions.
    pub fn questions(questions: Vec<Question>) -> Self {
        Self::Questions { questions }
    }
}

impl Asked {
    /// A decision that needs no one.
    pub fn at_once(decision: Decision) -> Self {
        Self { is_human: false, decision: Box::pin(std::future::ready(decision)) }
    }

    /// A decision that a person makes.
    pub fn of_a_person(decision: BoxFuture<'static, Decision>) -> Self {
        Self { is_human: true, decision }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("is_human", &self.is_human).finish_non_exhaustive()
    }
}

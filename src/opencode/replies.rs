//! Gets decisions about permissions and questions to the server.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use tracing::debug;

use super::{
    client::{ApiError, DirectoryClient},
    reading::is_missing,
    turn::machine::Request,
    wire::{self, PermissionReply},
};
use crate::{
    agent::{Ask, Decision, Delivery, Permission, Question, QuestionOption, Subject},
    backoff::Backoff,
    ids::{RequestId, SessionId},
};

/// The first pause before an answer is tried again, and the longest: an open request holds the whole turn.
const REPLY_PAUSE: Duration = Duration::from_millis(250);
const MAX_REPLY_PAUSE: Duration = Duration::from_secs(5);

/// A decision that the server has yet to take.
pub(super) struct Reply {
    api: DirectoryClient,
    session: SessionId,
    pub(super) request: RequestId,
    answer: Answer,
    has_failed: bool,
    backoff: Backoff,
}

enum Answer {
    Permission(PermissionReply),
    Rejection(String),
    Questions(Vec<Vec<String>>),
}

impl Reply {
    /// What the server is to be told; nothing if the turn is to fail. The abort answers the request then: a rejection would end the
    /// turn, too, and the two ends could not be told apart.
    pub(super) fn new(
        api: DirectoryClient,
        session: SessionId,
        request: RequestId,
        decision: Decision,
    ) -> Option<Self> {
        let answer = match decision {
            Decision::AllowOnce => Answer::Permission(PermissionReply::Once),
            Decision::AllowAlways => Answer::Permission(PermissionReply::Always),
            Decision::Reject(reason) => Answer::Rejection(reason),
            Decision::Answer(answers) => Answer::Questions(answers),
            Decision::FailTurn => return None,
        };
        let backoff = Backoff::new(REPLY_PAUSE, MAX_REPLY_PAUSE);
        Some(Self { api, session, request, answer, has_failed: false, backoff })
    }

    /// Tells the server, after a pause if that has failed before.
    pub(super) async fn send(&mut self) -> Result<(), ApiError> {
        if self.has_failed {
            sleep(self.backoff.next_pause()).await;
        }
        let sent = self.send_at_once().await;
        self.has_failed = sent.is_err();
        sent
    }

    async fn send_at_once(&self) -> Result<(), ApiError> {
        let (api, request) = (&self.api, &self.request);
        let sent = match &self.answer {
            Answer::Permission(reply) => {
                self.or_by_old_route(api.reply_permission(request, *reply).await, *reply).await
            }
            Answer::Rejection(reason) => {
                let sent = api.reject_permission(request, reason).await;
                self.or_by_old_route(sent, PermissionReply::Reject).await
            }
            Answer::Questions(answers) => api.reply_question(request, answers).await,
        };
        match sent {
            // One that was answered already needs no answer.
            Err(error) if error.is_not_found() => {
                debug!(%request, "the request is closed already");
                Ok(())
            }
            sent => sent,
        }
    }

    /// Servers before 1.1 know only the old route, and answer unknown ones with a page.
    async fn or_by_old_route(
        &self,
        sent: Result<(), ApiError>,
        reply: PermissionReply,
    ) -> Result<(), ApiError> {
        let Err(error) = sent else { return Ok(()) };
        let is_known = error.is_not_found() || error.is_unauthorized();
        let is_refused = error.delivery() == Delivery::Rejected && !is_known;
        if is_refused || is_missing(&self.api, &error).await {
            return self.api.reply_permission_by_old_route(&self.session, &self.request, reply).await;
        }
        Err(error)
    }
}

/// What a request of a session below `root` wants to know; `path` leads from there to the session.
pub(super) fn ask(request: Request, root: SessionId, path: Vec<SessionId>) -> Ask {
    let (id, session) = (request.id().clone(), request.session().clone());
    let subject = match request {
        Request::Permission(request) => {
            let mut permission = Permission::new(request.permission, request.patterns);
            permission.always = request.always;
            permission.metadata = request.metadata.to_map();
            if let Some(tool) = request.tool {
                permission.message_id = Some(tool.message_id);
                permission.call_id = Some(tool.call_id);
            }
            Subject::Permission(permission)
        }
        Request::Question(request) => {
            Subject::questions(request.questions.into_iter().map(question).collect())
        }
    };
    let mut ask = Ask::new(id, session, root, subject);
    ask.path = path;
    ask
}

fn question(asked: wire::Question) -> Question {
    let mut question = Question::new(asked.question);
    question.header = asked.header;
    question.multiple = asked.extra.get("multiple").and_then(Value::as_bool).unwrap_or(false);
    let options = asked.options.into_iter();
    question.options = options.map(|option| QuestionOption::new(option.label, option.description)).collect();
    question
}

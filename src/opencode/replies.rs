//! Gets decisions about permissions and questions to the server.

use std::{future::Future, time::Duration};

use serde_json::Value;
use tokio::time::sleep;
use tracing::{debug, warn};

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

/// Whether the turn goes on after a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    FailTurn,
}

/// Tells the server what was decided about a request.
pub(super) async fn reply(
    api: &DirectoryClient,
    session: &SessionId,
    request: &RequestId,
    decision: Decision,
) -> Verdict {
    match decision {
        Decision::AllowOnce => reply_permission(api, session, request, PermissionReply::Once, None).await,
        Decision::AllowAlways => reply_permission(api, session, request, PermissionReply::Always, None).await,
        Decision::Reject(reason) => {
            reply_permission(api, session, request, PermissionReply::Reject, Some(&reason)).await;
        }
        Decision::Answer(answers) => persist(request, || api.reply_question(request, &answers)).await,
        // The abort answers it. A rejection would end the turn, too, and the two ends could not be told apart.
        Decision::FailTurn => return Verdict::FailTurn,
    }
    Verdict::GoOn
}

async fn reply_permission(
    api: &DirectoryClient,
    session: &SessionId,
    request: &RequestId,
    reply: PermissionReply,
    reason: Option<&str>,
) {
    persist(request, || async {
        let replied = match reason {
            Some(reason) => api.reject_permission(request, reason).await,
            None => api.reply_permission(request, reply).await,
        };
        let Err(error) = replied else { return Ok(()) };
        // Servers before 1.1 know only the old route, and answer unknown ones with a page.
        let is_refused = error.delivery() == Delivery::Rejected && !error.is_not_found();
        if is_refused || is_missing(api, &error).await {
            return api.reply_permission_by_old_route(session, request, reply).await;
        }
        Err(error)
    })
    .await;
}

/// Tries an answer until it arrives, for as long as the turn waits for it. A request that was answered already needs none.
async fn persist<Replied>(request: &RequestId, mut reply: impl FnMut() -> Replied)
where
    Replied: Future<Output = Result<(), ApiError>>,
{
    let mut backoff = Backoff::new(REPLY_PAUSE, MAX_REPLY_PAUSE);
    loop {
        match reply().await {
            Ok(()) => return,
            Err(error) if error.is_not_found() => return debug!(%request, "the request is closed already"),
            Err(error) => warn!(%request, %error, "the request could not be answered yet"),
        }
        sleep(backoff.next_pause()).await;
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

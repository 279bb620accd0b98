//! Gets decisions about permissions and questions to the server.

use std::{future::Future, time::Duration};

use tokio::time::sleep;
use tracing::{debug, warn};

use super::policy::{PermissionDecision, QuestionDecision};
use crate::{
    client::{ApiError, DirectoryClient},
    ids::{RequestId, SessionId},
    turn::Delivery,
    wire::PermissionReply,
};

/// How often an answer to a request is tried.
const REPLY_ATTEMPTS: u32 = 5;
/// The pause before an answer is tried again.
const REPLY_PAUSE: Duration = Duration::from_millis(500);

/// A request that has been dealt with.
pub(super) struct Answered {
    pub(super) request: RequestId,
    /// Whether somebody was asked, so that the clocks stood still.
    pub(super) human: bool,
    /// Whether the turn is to end because of it.
    pub(super) fail: bool,
}

/// Answers a permission request as decided.
pub(super) async fn answer_permission(
    api: &DirectoryClient,
    session: SessionId,
    request: RequestId,
    human: bool,
    decision: impl Future<Output = PermissionDecision>,
) -> Answered {
    let (reply, message) = match decision.await {
        PermissionDecision::AllowOnce => (PermissionReply::Once, None),
        PermissionDecision::AllowAlways => (PermissionReply::Always, None),
        PermissionDecision::Reject(message) => (PermissionReply::Reject, Some(message)),
        // The abort answers it. A rejection would end the turn, too, and nobody could tell the two ends apart.
        PermissionDecision::FailTurn => return Answered { request, human, fail: true },
    };
    persist(&request, || async {
        let answered = match &message {
            Some(message) => api.reject_permission(&request, message).await,
            None => api.reply_permission(&request, reply).await,
        };
        match answered {
            // Servers before 1.1 know only the old route, and answer unknown ones with a page.
            Err(error) if error.delivery() == Delivery::Rejected && !error.is_not_found() => {
                api.reply_permission_by_old_route(&session, &request, reply).await
            }
            other => other,
        }
    })
    .await;
    Answered { request, human, fail: false }
}

/// Answers a question as decided; declining it answers with `declined`.
pub(super) async fn answer_question(
    api: &DirectoryClient,
    request: RequestId,
    declined: Vec<Vec<String>>,
    human: bool,
    decision: impl Future<Output = QuestionDecision>,
) -> Answered {
    let answers = match decision.await {
        QuestionDecision::Answer(answers) => answers,
        QuestionDecision::Decline => declined,
        QuestionDecision::FailTurn => return Answered { request, human, fail: true },
    };
    persist(&request, || api.reply_question(&request, &answers)).await;
    Answered { request, human, fail: false }
}

/// Tries an answer until it arrives; one that was answered already is no failure.
async fn persist<Answer>(request: &RequestId, mut answer: impl FnMut() -> Answer)
where
    Answer: Future<Output = Result<(), ApiError>>,
{
    for attempt in 1..=REPLY_ATTEMPTS {
        match answer().await {
            Ok(()) => return,
            Err(error) if error.is_not_found() => return debug!(%request, "the request is closed already"),
            Err(error) if attempt == REPLY_ATTEMPTS || !error.is_retryable() => {
                return warn!(%request, %error, "the request could not be answered");
            }
            Err(_) => sleep(REPLY_PAUSE).await,
        }
    }
}

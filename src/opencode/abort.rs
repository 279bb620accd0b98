//! Aborts a session and sees to it that it has stopped.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::client::DirectoryClient;
use crate::{agent::AbortReport, ids::SessionId};

/// How long an abort may take, confirmation included. The server needs 0.1 to 0.4 s.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before the server is asked again whether everything has stopped.
const ABORT_PAUSE: Duration = Duration::from_millis(200);

/// Aborts a session and its descendants and looks whether they have stopped. The caller's span names the session in the log.
pub(super) async fn abort_tree(
    api: &DirectoryClient,
    root: SessionId,
    sessions: Vec<SessionId>,
) -> AbortReport {
    let stop = async {
        // The server aborts the descendants that it waits for itself, and not those in the background.
        let mut aborted = api.abort(&root).await.is_ok();
        loop {
            let Ok(status) = api.session_status().await else { break false };
            let busy: Vec<&SessionId> = sessions.iter().filter(|id| !status.get(id).is_idle()).collect();
            if busy.is_empty() {
                break aborted;
            }
            for session in busy {
                aborted |= api.abort(session).await.is_ok();
            }
            sleep(ABORT_PAUSE).await;
        }
    };
    let confirmed = timeout(ABORT_TIMEOUT, stop).await.unwrap_or(false);
    if !confirmed {
        warn!("the abort could not be confirmed");
    }
    AbortReport::new(confirmed, sessions)
}

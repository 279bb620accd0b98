//! Which files a turn changed, as the server stores it.
//!
//! The server compares the files before and after the steps that answer a user message, and keeps the difference with that message. It
//! does so in the background, so that a turn which was cut off is at rest some time before its last changes are stored. And when it has
//! summarised a long history it asks the model to continue in a user message of its own, with which it keeps what was changed from there on.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    client::ApiError,
    mirror::SessionTree,
    outcome,
    session::OpenCodeSession,
    wire::{Message, MessageInfo, PartBody},
};
use crate::{agent::FileChange, backoff::Backoff, ids::MessageId};

/// How long changes are waited for that the turn's steps tell of. They were there within a second of an abort. A file that is as it was
/// before is told of by a step and never stored, so this is also what it costs to ask for those.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// A user message of a turn, and the files that the steps which answer it changed, with their whole paths.
#[derive(Debug, PartialEq)]
struct Asked {
    message: MessageId,
    files: Vec<String>,
}

/// What the turn of `prompt` did to files, in order. A file that was changed before and after the server summarised the history is there twice.
pub(super) async fn changes(
    session: &OpenCodeSession,
    prompt: &MessageId,
) -> Result<Vec<FileChange>, ApiError> {
    let asked = |session: &OpenCodeSession| asked_in_turn(&session.live().tree, prompt);
    let mut turn = asked(session);
    if turn.is_empty() {
        session.load().await?;
        turn = asked(session);
    }
    if turn.is_empty() {
        turn.push(Asked { message: prompt.clone(), files: Vec::new() });
    }
    let end = Instant::now() + PATIENCE;
    let mut changes = Vec::new();
    for asked in turn {
        let mut backoff = Backoff::new(PAUSE, MAX_PAUSE);
        loop {
            let stored = session.api().diff(&session.id, &asked.message).await?;
            for malformed in &stored.malformed {
                tracing::warn!(error = %malformed, "a changed file could not be decoded");
            }
            let is_stored = |path: &String| stored.items.iter().any(|diff| is_at(path, &diff.file));
            if asked.files.iter().all(is_stored) || Instant::now() >= end {
                changes.extend(stored.items.into_iter().map(outcome::file_change));
                break;
            }
            sleep(backoff.next_pause()).await;
        }
    }
    Ok(changes)
}

/// Whether a whole path is that of a file which is named from somewhere above it.
fn is_at(path: &str, file: &str) -> bool {
    path.strip_suffix(file).is_some_and(|above| above.is_empty() || above.ends_with('/'))
}

/// The user messages that belong to a turn; none if the prompt is not known.
fn asked_in_turn(tree: &SessionTree, prompt: &MessageId) -> Vec<Asked> {
    let root = tree.root();
    let Some(asked) = tree.message(root, prompt) else { return Vec::new() };
    let asked = asked.prompt_text().unwrap_or_default();
    let mut turn = vec![Asked { message: prompt.clone(), files: Vec::new() }];
    let mut before: Option<&Message> = None;
    for message in tree.turn(root, prompt) {
        match &message.info {
            MessageInfo::User(_) => {
                // The server asks for a summary, then repeats the prompt or asks the model to continue. Anything else is the next
                // prompt.
                if message.prompt_text().is_some() && !outcome::is_copy(message, before, &asked) {
                    break;
                }
                turn.push(Asked { message: message.info.id().clone(), files: Vec::new() });
            }
            MessageInfo::Assistant(step) => {
                let of = turn.iter_mut().find(|asked| step.parent_id.as_ref() == Some(&asked.message));
                if let Some(of) = of {
                    of.files.extend(patched(message));
                }
            }
            MessageInfo::Unknown(_) => {}
        }
        before = Some(message);
    }
    turn
}

fn patched(message: &Message) -> impl Iterator<Item = String> {
    message.parts.iter().flat_map(|part| match &part.body {
        PartBody::Patch(patch) => patch.files.clone(),
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_a_path_from_above() {
        for (path, file, expected) in [
            ("/srv/project/src/a.rs", "src/a.rs", true),
            ("/srv/project/src/a.rs", "a.rs", true),
            ("/srv/project/src/a.rs", "/srv/project/src/a.rs", true),
            ("/srv/project/src/aa.rs", "a.rs", false),
            ("/srv/project/a.rs", "b.rs", false),
        ] {
            assert_eq!(is_at(path, file), expected, "{path} {file}");
        }
    }
}

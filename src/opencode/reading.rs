//! Reading a session back to a message, and what else a gap makes necessary.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    ids::{MessageId, SessionId},
    opencode::{
        client::{ApiError, ApiErrorKind, Cursor, DirectoryClient, MessagePage},
        shared_read::DirectoryReads,
        turn::machine::{Messages, Reading, Scope},
        wire::{Message, MessageInfo, StatusMap},
    },
};

/// The first page has what is expected, since all else is of earlier turns and may be large; further pages grow from this.
const MIN_PAGE: usize = 2;
/// Each page is this many times as long as the one before.
const GROWTH: usize = 4;
/// The server's pages are cut at this many messages.
const MAX_PAGE: usize = 100;

/// How far back to read.
#[derive(Debug, Clone)]
pub(super) enum Back {
    /// To this message, and on to the one up to which the session was known before, since others may have used it meanwhile. Where
    /// nothing was known, only loading the session reads what was before the prompt: it may be long.
    To(MessageId, Option<MessageId>),
    /// To the newest prompt.
    ToPrompt,
}

pub(super) struct SessionReader {
    pub(super) api: DirectoryClient,
    /// What others in the directory read as well.
    pub(super) reads: Arc<DirectoryReads>,
    pub(super) root: SessionId,
    pub(super) back: Back,
    /// How many messages are known after the prompt.
    pub(super) expected: usize,
    pub(super) known_children: BTreeSet<SessionId>,
}

impl SessionReader {
    /// The status is read first: a session that is idle *before* its messages are read, and whose messages are complete, is
    /// at rest.
    pub(super) async fn read(self, scope: Scope) -> Result<Reading, ApiError> {
        let mut reading = Reading::default();
        if scope.status {
            let status = self.reads.status.get(self.api.session_status()).await;
            reading.status = unless_unknown(status)?.map(|status| StatusMap::clone(&status));
        }
        if scope.messages {
            reading.messages = Some(self.messages().await?);
        }
        if scope.tree {
            self.tree(&mut reading).await?;
        }
        if scope.requests {
            let permissions = self.reads.permissions.get(self.api.permissions()).await;
            let permissions = unless_missing(&self.api, permissions).await?;
            reading.permissions = permissions.map(|list| list.items.clone());
            let questions = self.reads.questions.get(self.api.questions()).await;
            let questions = unless_missing(&self.api, questions).await?;
            reading.questions = questions.map(|list| list.items.clone());
        }
        Ok(reading)
    }

    async fn messages(&self) -> Result<Messages, ApiError> {
        let mut found = false;
        self.back(&self.root, self.expected.max(MIN_PAGE), |page| {
            found |= page.iter().any(|message| self.is_target(message));
            found && self.leads_back(page)
        })
        .await
    }

    /// Reads a session backwards, page by page, until one is `enough`. What is too large to be read at once is read in smaller pieces.
    async fn back(
        &self,
        session: &SessionId,
        mut n_messages: usize,
        mut enough: impl FnMut(&[Message]) -> bool,
    ) -> Result<Messages, ApiError> {
        let (mut largest, mut before) = (MAX_PAGE, None);
        let mut newest_first: Vec<Vec<Message>> = Vec::new();
        let mut is_sound = true;
        loop {
            n_messages = n_messages.min(largest);
            let list = match self.api.messages(session, &page(n_messages, before.clone())).await {
                Err(error) if is_too_large(&error) && n_messages > 1 => {
                    n_messages /= 2;
                    largest = n_messages;
                    continue;
                }
                list => list?,
            };
            is_sound &= list.malformed.is_empty();
            let is_enough = enough(&list.messages);
            newest_first.push(list.messages);
            match list.next {
                Some(cursor) if !is_enough => {
                    n_messages = n_messages.saturating_mul(GROWTH);
                    before = Some(cursor);
                }
                // The server knows no cursors: read everything.
                None if !is_enough && !list.complete => return self.all(session).await,
                Some(_) | None => break,
            }
        }
        Ok(Messages { messages: newest_first.into_iter().rev().flatten().collect(), is_sound })
    }

    async fn all(&self, session: &SessionId) -> Result<Messages, ApiError> {
        let list = self.api.messages(session, &MessagePage::all()).await?;
        Ok(Messages { is_sound: list.malformed.is_empty(), messages: list.messages })
    }

    fn is_target(&self, message: &Message) -> bool {
        match &self.back {
            Back::To(id, _) => message.info.id() == id,
            Back::ToPrompt => matches!(message.info, MessageInfo::User(_)),
        }
    }

    /// Whether a page that begins behind the target goes back far enough. The oldest message of a turn may stand before its prompt;
    /// see `SessionTree::turn`.
    fn leads_back(&self, page: &[Message]) -> bool {
        match &self.back {
            Back::To(_, Some(known)) => page.iter().any(|message| message.info.id() == known),
            Back::To(_, None) | Back::ToPrompt => true,
        }
    }

    async fn tree(&self, reading: &mut Reading) -> Result<(), ApiError> {
        let mut open = vec![self.root.clone()];
        let mut seen = BTreeSet::from([self.root.clone()]);
        while let Some(parent) = open.pop() {
            let children = unless_unknown(self.api.children(&parent).await)?;
            reading.lacks_children |= children.is_none();
            for child in children.into_iter().flat_map(|children| children.items) {
                if seen.insert(child.id.clone()) {
                    open.push(child.id.clone());
                    reading.children.push(child);
                }
            }
        }
        seen.remove(&self.root);
        for child in seen.into_iter().chain(self.known_children.iter().cloned()).collect::<BTreeSet<_>>() {
            let messages = match self.all(&child).await {
                Err(error) if is_too_large(&error) => self.back(&child, MAX_PAGE / 2, |_| false).await,
                messages => messages,
            };
            if let Some(messages) = unless_unknown(messages)? {
                reading.of_children.push((child, messages));
            }
        }
        Ok(())
    }
}

/// What was read; nothing if the server does not know what was asked for: a descendant that was deleted, or a route, for which it
/// may have a page.
fn unless_unknown<T>(read: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    let is_unknown = |error: &ApiError| {
        let refused = error.status().is_some_and(|status| status < 500);
        refused && !error.is_unauthorized() && !error.is_retryable()
    };
    match read {
        Err(error) if is_unknown(&error) => Ok(None),
        read => read.map(Some),
    }
}

/// As [`unless_unknown`], for a route that servers before 1.1 do not have.
async fn unless_missing<T>(api: &DirectoryClient, read: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match read {
        Err(error) if is_missing(api, &error).await => Ok(None),
        read => unless_unknown(read),
    }
}

/// Whether a route failed because the server is older than that. Servers before 1.1 pass what they do not know on to the internet, and
/// say 500 where there is none; then they say so of their health, too.
pub(super) async fn is_missing(api: &DirectoryClient, error: &ApiError) -> bool {
    let is_500 = |error: &ApiError| error.status() == Some(500);
    is_500(error) && api.client().health().await.is_err_and(|error| is_500(&error))
}

fn is_too_large(error: &ApiError) -> bool {
    matches!(error.kind(), ApiErrorKind::TooLarge { .. })
}

fn page(n_messages: usize, before: Option<Cursor>) -> MessagePage {
    let page = MessagePage::newest(u32::try_from(n_messages).unwrap_or(u32::MAX));
    MessagePage { before, ..page }
}

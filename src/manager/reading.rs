//! Reading a session back to a message, and what else a gap makes necessary.

use std::collections::BTreeSet;

use crate::{
    client::{ApiError, DirectoryClient, MessagePage},
    ids::{MessageId, SessionId},
    turn::Read,
    wire::{Message, MessageInfo, PermissionRequest, QuestionRequest, SessionInfo, StatusMap},
};

/// A page beyond the messages that are expected, so that one read is enough most of the time.
const SPARE_MESSAGES: usize = 4;
/// The server's pages are cut at this many messages.
const MAX_PAGE: usize = 100;

/// How far back to read.
#[derive(Debug, Clone)]
pub(super) enum Back {
    /// To this message.
    To(MessageId),
    /// To the newest prompt.
    ToPrompt,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) messages: Option<Messages>,
    pub(super) status: Option<StatusMap>,
    pub(super) children: Vec<SessionInfo>,
    pub(super) of_children: Vec<(SessionId, Messages)>,
    pub(super) permissions: Vec<PermissionRequest>,
    pub(super) questions: Vec<QuestionRequest>,
}

/// A run of a session's newest messages, oldest first.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) messages: Vec<Message>,
    /// Nothing in it was malformed, so that what is not in it is not there.
    pub(super) sound: bool,
}

pub(super) struct Reader {
    pub(super) api: DirectoryClient,
    pub(super) root: SessionId,
    pub(super) back: Back,
    /// How many messages are known after the prompt.
    pub(super) expected: usize,
    pub(super) known_children: BTreeSet<SessionId>,
}

impl Reader {
    /// The status is read first: a session that is idle *before* its messages are read, and whose messages are complete, is
    /// at rest.
    pub(super) async fn read(self, read: Read) -> Result<Reading, ApiError> {
        let mut reading = Reading::default();
        if read.status {
            reading.status = Some(self.api.session_status().await?);
        }
        if read.messages {
            reading.messages = Some(self.messages().await?);
        }
        if read.tree {
            self.tree(&mut reading).await?;
        }
        Ok(reading)
    }

    async fn messages(&self) -> Result<Messages, ApiError> {
        let mut page = page(self.expected + SPARE_MESSAGES);
        let mut newest_first: Vec<Vec<Message>> = Vec::new();
        let mut sound = true;
        let mut found = false;
        loop {
            let list = self.api.messages(&self.root, &page).await?;
            sound &= list.malformed.is_empty();
            found |= list.messages.iter().any(|message| self.is_target(message));
            let enough = found && !list.messages.first().is_some_and(|oldest| self.belongs(oldest));
            newest_first.push(list.messages);
            match list.next {
                Some(cursor) if !enough => page = self::page(MAX_PAGE).before(cursor),
                None if !enough && !list.complete => {
                    // The server knows no cursors: read everything.
                    let list = self.api.messages(&self.root, &MessagePage::all()).await?;
                    return Ok(Messages { sound: list.malformed.is_empty(), messages: list.messages });
                }
                Some(_) | None => break,
            }
        }
        Ok(Messages { messages: newest_first.into_iter().rev().flatten().collect(), sound })
    }

    fn is_target(&self, message: &Message) -> bool {
        match &self.back {
            Back::To(id) => message.info.id() == id,
            Back::ToPrompt => matches!(message.info, MessageInfo::User(_)),
        }
    }

    /// Whether a message answers the target, though it may stand before it; see `SessionTree::turn`.
    fn belongs(&self, message: &Message) -> bool {
        let parent = message.info.as_assistant().and_then(|step| step.parent_id.as_ref());
        matches!((&self.back, parent), (Back::To(id), Some(parent)) if id == parent)
    }

    async fn tree(&self, reading: &mut Reading) -> Result<(), ApiError> {
        let mut open = vec![self.root.clone()];
        let mut seen = BTreeSet::from([self.root.clone()]);
        while let Some(parent) = open.pop() {
            for child in self.api.children(&parent).await?.items {
                if seen.insert(child.id.clone()) {
                    open.push(child.id.clone());
                    reading.children.push(child);
                }
            }
        }
        seen.remove(&self.root);
        for child in seen.into_iter().chain(self.known_children.iter().cloned()).collect::<BTreeSet<_>>() {
            let list = self.api.messages(&child, &MessagePage::all()).await?;
            let messages = Messages { sound: list.malformed.is_empty(), messages: list.messages };
            reading.of_children.push((child, messages));
        }
        reading.permissions = self.api.permissions().await?.items;
        reading.questions = match self.api.questions().await {
            Ok(questions) => questions.items,
            // Servers before 1.1 know no questions and answer with a page.
            Err(error) if error.status().is_some_and(|status| status < 500) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(())
    }
}

fn page(n_messages: usize) -> MessagePage {
    MessagePage::newest(u32::try_from(n_messages.min(MAX_PAGE)).unwrap_or(u32::MAX))
}

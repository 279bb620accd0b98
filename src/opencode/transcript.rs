//! `OpenCode`'s transcripts.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize, de::IgnoredAny};

use crate::{
    conversation::{ConversationEvent, ConvertOptions, SessionConversationState},
    ids::SessionId,
    opencode::{
        mirror::{Observed, SessionTree, Snapshot},
        wire::{EventPayload, Message, PartBody, ServerEvent, SessionExport, SessionInfo},
    },
    setters::setters,
    transcript::{CombinedTranscript, Malformed, Transcript, TranscriptError},
};

/// How a transcript is to be read.
#[derive(Debug, Clone, Default)]
#[must_use]
#[non_exhaustive]
pub struct OpenCodeOptions {
    /// Which format the documents have; found out by default.
    pub format: OpenCodeFormat,
    /// The session at the top; by default the first without a parent.
    pub session: Option<SessionId>,
    /// What the conversation shows.
    pub convert: ConvertOptions,
}

impl OpenCodeOptions {
    setters! {
        /// Sets the documents' format; by default each is looked at.
        format(format: OpenCodeFormat) { format = format }
        /// Sets the session at the top; by default the first without a parent.
        session(session: SessionId) { session = Some(session) }
        /// Sets what the conversation shows; by default everything.
        convert(convert: ConvertOptions) { convert = convert }
    }
}

/// The formats of `OpenCode`'s transcripts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenCodeFormat {
    /// Whichever it is.
    #[default]
    Auto,
    /// The server's events: one JSON object per line, or raw SSE, in which whatever stands before `data:` is ignored.
    Events,
    /// `GET /session/{id}/message`: an array of `{info, parts}`.
    Messages,
    /// `opencode export`: `{info, messages}`, here also with `children`, each of the same form.
    Export,
}

/// Loads a transcript from one or more documents: the root's first, then those of its subagents.
///
/// Lists and exports are taken as the truth about sessions at rest. An event log is folded as far as it goes, so one that was
/// cut off shows a turn that still runs.
///
/// # Errors
/// If a document as a whole is not what it should be, or the session asked for is not there; what is malformed inside is
/// reported beside the result.
pub fn parse_opencode(documents: &[&str], options: &OpenCodeOptions) -> Result<Transcript, TranscriptError> {
    parse_opencode_events(documents, options, |_| {})
}

/// As [`parse_opencode`], and hands out each conversation event before it is folded: what a client that watched the session
/// would have been sent.
///
/// # Errors
/// As [`parse_opencode`].
pub fn parse_opencode_events(
    documents: &[&str],
    options: &OpenCodeOptions,
    on_event: impl FnMut(&ConversationEvent),
) -> Result<Transcript, TranscriptError> {
    let mut loaded = Loaded::default();
    for (document, text) in documents.iter().enumerate() {
        loaded.read(document, text, options.format)?;
    }
    let root = match &options.session {
        Some(session) if loaded.sessions.contains(session) || loaded.has_empty_list => Some(session.clone()),
        Some(session) => return Err(TranscriptError::UnknownSession(session.clone())),
        None => loaded.root(),
    };
    let state = root.as_ref().map(|root| loaded.fold(root, options.convert, on_event)).unwrap_or_default();
    Ok(Transcript { state, root, malformed: loaded.malformed })
}

/// What is in a tree: the messages of the root, and the descriptions and messages of the sessions below it.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Vec<Arc<Message>>,
    below: Vec<Document>,
}

#[derive(Debug, Serialize)]
struct Document {
    info: SessionInfo,
    messages: Vec<Arc<Message>>,
}

impl Documents {
    /// Takes out what is to be written. Cheap, since messages are shared.
    pub(crate) fn of(tree: &SessionTree) -> Self {
        let messages = |session: &SessionId| tree.messages(session).cloned().collect();
        let below = tree.confirmed().filter(|session| *session != tree.root());
        let below = below
            .filter_map(|session| Some(Document { info: tree.info(session)?, messages: messages(session) }));
        Self { root: messages(tree.root()), below: below.collect() }
    }

    /// Writes a message list of the root, and an export of each session below it.
    pub(crate) fn write(&self) -> serde_json::Result<CombinedTranscript> {
        let mut combined = CombinedTranscript::new(serde_json::to_string(&self.root)?);
        for document in &self.below {
            let text = serde_json::to_string(document)?;
            combined = combined.subagent(document.info.id.as_str(), text, None);
        }
        Ok(combined)
    }
}

impl SessionTree {
    /// The messages of the root and of its confirmed descendants as documents, from which [`parse_opencode`] loads the same conversation.
    ///
    /// A document says nothing of what runs. What does when it is written is taken for at rest when it is loaded.
    pub fn transcript(&self) -> CombinedTranscript {
        // Writing plain data to a string cannot fail.
        Documents::of(self).write().unwrap_or_default()
    }
}

/// What the documents contain.
#[derive(Default)]
struct Loaded {
    events: Vec<ServerEvent>,
    lists: Vec<(SessionId, Vec<Message>)>,
    infos: Vec<SessionInfo>,
    /// In the order they were met.
    order: Vec<SessionId>,
    sessions: HashSet<SessionId>,
    parents: HashMap<SessionId, SessionId>,
    malformed: Vec<Malformed>,
    /// Of whichever session: the list does not say.
    has_empty_list: bool,
}

impl Loaded {
    fn read(&mut self, document: usize, text: &str, format: OpenCodeFormat) -> Result<(), TranscriptError> {
        let text = text.trim_start_matches('\u{feff}');
        let format = match format {
            OpenCodeFormat::Auto => recognise(text).ok_or(TranscriptError::Unrecognised { document })?,
            OpenCodeFormat::Events | OpenCodeFormat::Messages | OpenCodeFormat::Export => format,
        };
        let whole = |source| TranscriptError::Malformed { document, source };
        let mut malformed = |line, error| self.malformed.push(Malformed { document, line, error });
        match format {
            OpenCodeFormat::Events => {
                let mut events = Vec::new();
                let mut first_error = None;
                for (line, event) in event_lines(text) {
                    match ServerEvent::from_json(event) {
                        Ok(event) => events.push(event),
                        Err(error) if events.is_empty() && first_error.is_none() => {
                            first_error = Some((line, error));
                        }
                        Err(error) => malformed(Some(line), error),
                    }
                }
                match first_error {
                    // Not one line is an event, so the document is no event log.
                    Some((_, error)) if events.is_empty() => return Err(whole(error)),
                    Some((line, error)) => malformed(Some(line), error),
                    None if events.is_empty() => return Err(TranscriptError::Unrecognised { document }),
                    None => {}
                }
                self.events_read(events);
            }
            OpenCodeFormat::Messages => {
                let mut list = Message::list_from_json(text).map_err(whole)?;
                if list.items.is_empty() && !list.malformed.is_empty() {
                    // Not one element is a message, so the document is no message list.
                    return Err(whole(list.malformed.swap_remove(0)));
                }
                for error in list.malformed {
                    malformed(None, error);
                }
                self.export_read(SessionExport::new(list.items), None);
            }
            OpenCodeFormat::Export | OpenCodeFormat::Auto => {
                let (export, errors) = SessionExport::from_json(text).map_err(whole)?;
                for error in errors {
                    malformed(None, error);
                }
                self.export_read(export, None);
            }
        }
        Ok(())
    }

    fn events_read(&mut self, events: Vec<ServerEvent>) {
        for event in &events {
            match &event.payload {
                EventPayload::SessionCreated(info) | EventPayload::SessionUpdated(info) => {
                    self.meet(&info.id, info.parent_id.as_ref());
                }
                EventPayload::PartUpdated { part, .. } => {
                    self.meet(&part.session_id, None);
                    if let PartBody::Tool(tool) = &part.body
                        && let Some(child) = tool.child_session()
                    {
                        self.meet(&child, Some(&part.session_id));
                    }
                }
                payload => {
                    if let Some(session) = payload.session_id() {
                        self.meet(&session.clone(), None);
                    }
                }
            }
        }
        self.events.extend(events);
    }

    fn export_read(&mut self, export: SessionExport, parent: Option<&SessionId>) {
        let SessionExport { info, messages, children } = export;
        let id = info
            .as_ref()
            .map(|info| &info.id)
            .or_else(|| messages.first().map(|message| message.info.session_id()));
        let Some(id) = id.cloned() else {
            self.has_empty_list = true;
            return;
        };
        let parent = parent.or_else(|| info.as_ref()?.parent_id.as_ref()).cloned();
        self.meet(&id, parent.as_ref());
        // A child inside its parent's document may come without a description.
        let info = info.or_else(|| {
            Some(SessionInfo { id: id.clone(), parent_id: Some(parent?), ..SessionInfo::default() })
        });
        self.infos.extend(info);
        self.lists.push((id.clone(), messages));
        for child in children {
            self.export_read(child, Some(&id));
        }
    }

    fn meet(&mut self, session: &SessionId, parent: Option<&SessionId>) {
        if self.sessions.insert(session.clone()) {
            self.order.push(session.clone());
        }
        if let Some(parent) = parent {
            self.parents.insert(session.clone(), parent.clone());
        }
    }

    /// The first session without a parent, or at least without a parent that is here.
    fn root(&self) -> Option<SessionId> {
        let orphan = self.order.iter().find(|session| !self.parents.contains_key(*session));
        orphan
            .or_else(|| {
                self.order.iter().find(|session| {
                    !self.parents.get(*session).is_some_and(|parent| self.sessions.contains(parent))
                })
            })
            .cloned()
    }

    fn fold(
        &mut self,
        root: &SessionId,
        convert: ConvertOptions,
        mut on_event: impl FnMut(&ConversationEvent),
    ) -> SessionConversationState {
        let mut tree = SessionTree::new(root.clone(), convert);
        let mut state = SessionConversationState::new();
        let mut fold = |observed: Observed| {
            for event in &observed.events {
                on_event(event);
                state.apply(event);
            }
        };
        for event in &self.events {
            fold(tree.apply_event(event));
        }
        // Parents before children: a session is only let in once something of the tree names it.
        let mut infos: Vec<_> = std::mem::take(&mut self.infos);
        let mut lists: Vec<_> = std::mem::take(&mut self.lists);
        loop {
            let waiting = (infos.len(), lists.len());
            infos.retain(|info| {
                let observed = tree.apply_session(info);
                fold(observed);
                !tree.contains(&info.id)
            });
            lists.retain(|(session, messages)| {
                let is_waiting = !tree.contains(session);
                if !is_waiting {
                    // A document that holds a session's messages beside the root's says that the session belongs to it.
                    if let Some(parent) = tree.parent(session).cloned() {
                        fold(tree.apply_session(&child_of(session, &parent)));
                    }
                    fold(tree.apply_messages(session, messages, Snapshot::Complete));
                    fold(tree.settle(session));
                }
                is_waiting
            });
            if waiting != (infos.len(), lists.len()) {
                continue;
            }
            // A list that nothing names, given after the root's: its session is taken for a child of the root.
            let stranger =
                lists.iter().map(|(session, _)| session).find(|session| !self.parents.contains_key(*session));
            let Some(stranger) = stranger else { break };
            let info = child_of(stranger, root);
            fold(tree.apply_session(&info));
            if !tree.contains(&info.id) {
                break;
            }
        }
        state
    }
}

fn child_of(session: &SessionId, parent: &SessionId) -> SessionInfo {
    SessionInfo { id: session.clone(), parent_id: Some(parent.clone()), ..SessionInfo::default() }
}

/// Looks at how a document begins.
fn recognise(text: &str) -> Option<OpenCodeFormat> {
    #[derive(Deserialize)]
    struct Export {
        #[expect(dead_code, reason = "only its presence matters")]
        messages: IgnoredAny,
    }
    let text = text.trim_start();
    if text.starts_with('[') {
        return Some(OpenCodeFormat::Messages);
    }
    if text.starts_with('{') && serde_json::from_str::<Export>(text).is_ok() {
        return Some(OpenCodeFormat::Export);
    }
    event_lines(text).next().map(|_| OpenCodeFormat::Events)
}

/// The JSON of each event, with its line number.
fn event_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = line.trim();
        let json = if line.starts_with('{') { line } else { line.split_once("data:")?.1.trim() };
        (!json.is_empty()).then_some((index + 1, json))
    })
}

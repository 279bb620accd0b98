//! The mirror of one session and its descendants.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{Effects, Observed, Origin, Snapshot, message::MessageLog, session::SessionLog};
use crate::{
    conversation::ConvertOptions,
    ids::{ConversationId, MessageId, PartId, SessionId},
    opencode::wire::{EventPayload, Message, MessageInfo, Part, PartDelta, ServerEvent, SessionInfo},
};

mod claims;

/// Deleted sessions whose late events must not bring them back.
const MAX_DELETED: usize = 256;
/// Sessions of one tree. A task that runs for weeks starts some thousands of subagents.
const MAX_SESSIONS: usize = 32_768;
/// Messages of one tree, which a turn's limit of steps keeps far away.
const MAX_MESSAGES: usize = if cfg!(test) { 1 << 15 } else { 1 << 20 };
/// How deep sessions may be nested. Servers allow one level unless they are configured otherwise.
const MAX_DEPTH: usize = 64;

/// A mirror of the messages of one session and all sessions below it, which only moves forward.
///
/// Feed it whatever is observed, in any order and any number of times, and fold the events it gives. Sessions that do not
/// belong to the tree are ignored.
///
/// A child session shows in the thread of the task call that names it; of several such calls (a task that was resumed) the
/// first. Until one is known the child shows under its own id, and moves when its owner becomes known.
///
/// Which session a task call names is the model's word, and it may name a session of another task. So a session that is only
/// named shows in the tree, and no more: what it does is no progress of the tree, and what it used is not counted. Only a session that
/// the server itself calls the child of one of the tree is [confirmed](Self::is_confirmed), and only for those may anything be
/// answered or aborted.
///
/// Sessions beyond 32,768, levels beyond 64 and messages beyond 1,048,576 are not let in, and counted as [dropped](Self::n_dropped).
///
/// # Examples
/// ```
/// use opencode_conductor::{SessionConversationState, SessionTree, ConvertOptions, wire::ServerEvent};
///
/// let mut tree = SessionTree::new("ses_1".into(), ConvertOptions::default());
/// let mut state = SessionConversationState::new();
/// for json in [
///     r#"{"type": "message.updated", "properties": {"info": {
///         "id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1}}}}"#,
///     r#"{"type": "message.part.updated", "properties": {"part": {
///         "id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": "text", "text": "Hello"}}}"#,
/// ] {
///     let observed = tree.apply_event(ServerEvent::from_json(json)?);
///     state.extend(&observed.events);
/// }
/// assert_eq!(state.blocks().len(), 1);
/// # Ok::<(), opencode_conductor::wire::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct SessionTree {
    root: SessionId,
    pub(super) options: ConvertOptions,
    /// Boxed, because most trees are one session, and a map has room for many.
    pub(super) sessions: BTreeMap<SessionId, Box<SessionLog>>,
    deleted: VecDeque<SessionId>,
    /// The sessions of which more is to be seen: few of many.
    restless: BTreeSet<SessionId>,
    /// The sessions with calls that run and do not merely wait for a confirmed session.
    calling: BTreeSet<SessionId>,
    /// The calls that name a session: whose they are, and the message.
    namers: BTreeMap<SessionId, BTreeMap<(SessionId, PartId), MessageId>>,
    n_confirmed: usize,
    n_messages: usize,
    n_dropped: u64,
}

impl SessionTree {
    /// The tree below `root`, of which nothing is known yet.
    pub fn new(root: SessionId, options: ConvertOptions) -> Self {
        // Of its own, because all trees would count their references to a shared name in one place.
        let log = SessionLog::new(root.clone(), None, ConversationId::new("main"));
        let sessions = BTreeMap::from([(root.clone(), Box::new(log))]);
        Self {
            restless: BTreeSet::from([root.clone()]),
            root,
            options,
            sessions,
            deleted: VecDeque::new(),
            calling: BTreeSet::new(),
            namers: BTreeMap::new(),
            n_confirmed: 1,
            n_messages: 0,
            n_dropped: 0,
        }
    }

    /// The session at the top.
    pub fn root(&self) -> &SessionId {
        &self.root
    }

    /// Takes in an event of the server's stream. Of an event that is given away nothing is copied but streamed text.
    pub fn apply_event<'e>(&mut self, event: impl Into<Cow<'e, ServerEvent>>) -> Observed {
        match event.into() {
            Cow::Borrowed(event) => match &event.payload {
                EventPayload::MessageUpdated(info) => self.apply_info(Cow::Borrowed(info)),
                EventPayload::PartUpdated { part, .. } => self.apply_part(Cow::Borrowed(part)),
                EventPayload::PartDelta(delta) => self.apply_delta(Cow::Borrowed(delta)),
                other => self.apply_other(other),
            },
            Cow::Owned(event) => match event.payload {
                EventPayload::MessageUpdated(info) => self.apply_info(Cow::Owned(info)),
                EventPayload::PartUpdated { part, .. } => self.apply_part(Cow::Owned(part)),
                EventPayload::PartDelta(delta) => self.apply_delta(Cow::Owned(delta)),
                other => self.apply_other(&other),
            },
        }
    }

    fn apply_info(&mut self, info: Cow<'_, MessageInfo>) -> Observed {
        let (session, options) = (info.session_id().clone(), self.options);
        self.step(&session, |session, effects| {
            session.see_message_info(info, Origin::Event, options, effects);
        })
    }

    fn apply_part(&mut self, part: Cow<'_, Part>) -> Observed {
        let (session, options) = (part.session_id.clone(), self.options);
        self.step(&session, |session, effects| {
            session.see_part(part, false, Origin::Event, options, effects);
        })
    }

    fn apply_delta(&mut self, delta: Cow<'_, PartDelta>) -> Observed {
        if !matches!(&*delta.field, "text" | "") {
            return Observed::default();
        }
        let (session, options) = (delta.session_id.clone(), self.options);
        self.step(&session, |session, effects| session.see_delta(delta, options, effects))
    }

    fn apply_other(&mut self, payload: &EventPayload) -> Observed {
        let options = self.options;
        match payload {
            EventPayload::MessageRemoved { session_id, message_id } => {
                self.step(session_id, |session, effects| session.remove_message(message_id, effects))
            }
            EventPayload::PartRemoved { session_id, message_id, part_id } => {
                self.step(session_id, |session, effects| {
                    session.remove_part(message_id, part_id, options, effects);
                })
            }
            EventPayload::SessionCreated(info) | EventPayload::SessionUpdated(info) => {
                self.apply_session(info)
            }
            EventPayload::SessionDeleted(info) => self.delete_session(&info.id),
            EventPayload::SessionStatus { session_id, status } => {
                self.step(session_id, |session, effects| session.see_status(status.is_idle(), effects))
            }
            EventPayload::SessionIdle { session_id } => {
                self.step(session_id, |session, effects| session.see_status(true, effects))
            }
            EventPayload::MessageUpdated(_)
            | EventPayload::PartUpdated { .. }
            | EventPayload::PartDelta(_)
            | EventPayload::SessionError { .. }
            | EventPayload::SessionCompacted { .. }
            | EventPayload::PermissionAsked(_)
            | EventPayload::PermissionReplied { .. }
            | EventPayload::QuestionAsked(_)
            | EventPayload::QuestionClosed { .. }
            | EventPayload::ServerConnected
            | EventPayload::ServerHeartbeat
            | EventPayload::InstanceDisposed { .. }
            | EventPayload::Environment(_)
            | EventPayload::Unknown { .. } => Observed::default(),
        }
    }

    /// Takes in a list of a session's messages, oldest first, as the server lists them; in full or only the newest.
    pub fn apply_messages(
        &mut self,
        session: &SessionId,
        messages: &[Message],
        snapshot: Snapshot,
    ) -> Observed {
        let options = self.options;
        self.step(session, |session, effects| session.see_list(messages, snapshot, options, effects))
    }

    /// Takes in what the server says about a session; if its parent belongs to the tree, so does it.
    pub fn apply_session(&mut self, info: &SessionInfo) -> Observed {
        let mut effects = Effects::default();
        if info.id == self.root {
            return effects.out;
        }
        let parent = info.parent_id.as_ref().filter(|parent| self.sessions.contains_key(*parent));
        if let Some(parent) = parent {
            self.told_parent(&info.id, parent, &mut effects);
        }
        let mut observed = effects.out;
        observed.append(self.step(&info.id, |session, _| session.see_info(info)));
        observed
    }

    /// The server says whose child a session is. Its first word counts: parents do not change.
    fn told_parent(&mut self, id: &SessionId, parent: &SessionId, effects: &mut Effects) {
        match self.sessions.get(id) {
            Some(log) if log.is_told => return,
            Some(log) if log.parent.as_ref() == Some(parent) => {}
            // A task call of another session has named it, which does not make it that session's child.
            Some(_) if self.is_confirmed(parent) => {
                self.clear_thread(id, effects);
                self.forget(id);
                self.adopt(id, parent, effects);
            }
            Some(_) => return,
            None if self.deleted.contains(id) => return,
            None => self.adopt(id, parent, effects),
        }
        if let Some(log) = self.sessions.get_mut(id) {
            log.is_told = true;
        }
        if self.is_confirmed(parent) {
            self.confirm(id, effects);
        }
    }

    /// Counts a session, and those below it of which the server says so, as the root's own.
    fn confirm(&mut self, id: &SessionId, effects: &mut Effects) {
        let mut open = vec![id.clone()];
        while let Some(id) = open.pop() {
            let Some(log) = self.sessions.get_mut(&id) else { continue };
            if log.is_told && !log.is_confirmed {
                log.is_confirmed = true;
                self.n_confirmed += 1;
                log.show_usage(self.options, effects);
                open.extend(log.children.iter().cloned());
                self.attend_namers(&id, true);
            }
        }
    }

    /// Takes in that a session is at rest, although the server left something unfinished, as after a crash or an abort.
    pub fn settle(&mut self, session: &SessionId) -> Observed {
        self.step(session, SessionLog::rest)
    }

    /// Whether a session shows in the tree.
    pub fn contains(&self, session: &SessionId) -> bool {
        self.sessions.contains_key(session)
    }

    /// Whether the server itself says that a session descends from the root, or is it. Of one that a task call merely names, or whose
    /// parent is such a one, it does not.
    pub fn is_confirmed(&self, session: &SessionId) -> bool {
        self.sessions.get(session).is_some_and(|log| log.is_confirmed)
    }

    /// The sessions that are confirmed, the root among them: those that may be answered for, aborted and counted.
    pub fn confirmed(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.iter().filter(|(_, log)| log.is_confirmed).map(|(session, _)| session)
    }

    /// How many times a session or a message was not let in, because there were too many or it was nested too deeply.
    pub fn n_dropped(&self) -> u64 {
        self.n_dropped
    }

    /// The sessions that show in the tree, the root among them.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.keys()
    }

    /// The sessions that show below the root, of all depths.
    pub fn children(&self) -> impl Iterator<Item = &SessionId> {
        self.sessions.keys().filter(|session| **session != self.root)
    }

    /// The session whose subagent this one is; nothing for the root and for sessions outside the tree.
    pub fn parent(&self, session: &SessionId) -> Option<&SessionId> {
        self.sessions.get(session)?.parent.as_ref()
    }

    /// The sessions from the root down to `session`; `session` alone if it is not in the tree.
    #[cfg(feature = "client")]
    pub(crate) fn path(&self, session: &SessionId) -> Vec<SessionId> {
        let above = std::iter::successors(Some(session), |session| self.parent(session));
        let mut path: Vec<SessionId> = above.take(self.sessions.len().max(1)).cloned().collect();
        path.reverse();
        path
    }

    /// The thread that a session shows in.
    pub fn conversation(&self, session: &SessionId) -> Option<&ConversationId> {
        self.sessions.get(session).map(|log| &log.conversation)
    }

    /// What is known of a session, as the server would say it; nothing if it is not in the tree.
    pub(crate) fn info(&self, session: &SessionId) -> Option<SessionInfo> {
        self.sessions.get(session).map(|log| log.info())
    }

    /// A session's messages in order, each as it is now, with what was streamed.
    pub fn messages(&self, session: &SessionId) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        self.logs(session).filter_map(MessageLog::view)
    }

    /// The messages of the turn that `prompt` began, in order, without the prompt: everything that stands after it, and
    /// after the first step that answers it. The two differ when the prompt was submitted again while its turn ran, since
    /// that moves it behind what was said already.
    pub fn turn(
        &self,
        session: &SessionId,
        prompt: &MessageId,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        self.turn_logs(session, prompt).filter_map(MessageLog::view)
    }

    /// One message as it is now.
    pub fn message(&self, session: &SessionId, message: &MessageId) -> Option<&Arc<Message>> {
        self.log(session, message)?.view()
    }

    /// As [`Self::messages`], for a look without a copy.
    pub(crate) fn logs(&self, session: &SessionId) -> impl DoubleEndedIterator<Item = &MessageLog> {
        self.sessions.get(session).into_iter().flat_map(|log| log.messages())
    }

    /// As [`Self::turn`], for a look without a copy.
    pub(crate) fn turn_logs(
        &self,
        session: &SessionId,
        prompt: &MessageId,
    ) -> impl DoubleEndedIterator<Item = &MessageLog> {
        self.sessions.get(session).into_iter().flat_map(|log| log.turn(prompt))
    }

    /// As [`Self::message`], for a look without a copy.
    pub(crate) fn log(&self, session: &SessionId, message: &MessageId) -> Option<&MessageLog> {
        self.sessions.get(session)?.message(message)
    }

    /// Whether what a session did has been seen to its end.
    pub fn is_at_rest(&self, session: &SessionId) -> bool {
        self.sessions.get(session).is_some_and(|log| log.is_at_rest())
    }

    /// Whether a session has a step that is not complete.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn has_incomplete_step(&self, session: &SessionId) -> bool {
        self.sessions.get(session).is_some_and(|log| log.has_incomplete_step())
    }

    /// The tool calls of the whole tree that have not come to an end, in steps that have not either.
    pub fn running_tools(&self) -> impl Iterator<Item = &Part> {
        self.sessions.values().flat_map(|log| log.running_tools())
    }

    /// Whether a call runs anywhere that does not merely wait for a confirmed session.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn has_lone_call(&self) -> bool {
        !self.calling.is_empty()
    }

    /// Panics unless what is kept count of is what counting gives.
    #[cfg(test)]
    pub(crate) fn check_lone_calls(&self) {
        use crate::opencode::wire::PartBody;
        let is_ours = |child: SessionId| self.is_confirmed(&child);
        let is_lone = |part: &Part| match &part.body {
            PartBody::Tool(tool) => !tool.child_session().is_some_and(is_ours),
            _ => false,
        };
        assert_eq!(self.has_lone_call(), self.running_tools().any(is_lone));
    }

    /// Whether a session shows that is not confirmed.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.n_confirmed < self.sessions.len()
    }

    /// Whether more is to be seen of what a confirmed session below the root did.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn has_restless_descendant(&self) -> bool {
        self.restless.iter().any(|session| *session != self.root && self.is_confirmed(session))
    }

    /// Lets something happen in a session, and sees to what that means for the others.
    fn step(&mut self, id: &SessionId, happen: impl FnOnce(&mut SessionLog, &mut Effects)) -> Observed {
        let mut effects = Effects::default();
        let Some(session) = self.sessions.get_mut(id) else { return effects.out };
        let (n_before, was_at_rest) = (session.n_messages(), session.is_at_rest());
        let had_lone_call = session.has_lone_call();
        session.room = MAX_MESSAGES.saturating_sub(self.n_messages);
        happen(session, &mut effects);
        self.n_messages = self.n_messages + session.n_messages() - n_before;
        self.n_dropped += effects.n_dropped;
        if session.is_at_rest() != was_at_rest {
            mark(&mut self.restless, id, was_at_rest);
        }
        if session.has_lone_call() != had_lone_call {
            mark(&mut self.calling, id, !had_lone_call);
        }
        if !session.is_confirmed {
            effects.out.progress = false;
            effects.out.output = false;
            effects.withhold_usage();
        }
        let is_news = session.is_at_rest() && (!was_at_rest || !effects.nameless.is_empty());
        for (prompt, call) in effects.nameless.drain(..) {
            session.nameless.insert(prompt, call);
        }
        if session.speaks_for_itself() {
            self.announce(id, &mut effects);
        }
        self.settle_claims(id, &mut effects);
        if is_news {
            self.match_child(id, &mut effects);
            self.match_children(id, &mut effects);
        }
        effects.out
    }

    fn announce(&mut self, id: &SessionId, effects: &mut Effects) {
        let Some(parent) = self.parent_conversation(id) else { return };
        if let Some(session) = self.sessions.get_mut(id) {
            session.announce(&parent, effects);
        }
    }

    /// Lets a session show below another, if there is room.
    fn adopt(&mut self, child: &SessionId, parent: &SessionId, effects: &mut Effects) {
        let depth = std::iter::successors(Some(parent), |session| self.parent(session)).count();
        if depth > MAX_DEPTH || self.sessions.len() >= MAX_SESSIONS {
            self.n_dropped += 1;
            return;
        }
        let conversation = ConversationId::new(child.as_str());
        let log = SessionLog::new(child.clone(), Some(parent.clone()), conversation);
        self.sessions.insert(child.clone(), Box::new(log));
        self.restless.insert(child.clone());
        if let Some(parent) = self.sessions.get_mut(parent) {
            parent.children.insert(child.clone());
        }
        effects.out.new_sessions.push(child.clone());
    }

    fn delete_session(&mut self, id: &SessionId) -> Observed {
        let mut effects = Effects::default();
        if *id == self.root || !self.sessions.contains_key(id) {
            return effects.out;
        }
        self.clear_thread(id, &mut effects);
        for id in self.forget(id) {
            self.deleted.push_back(id);
            if self.deleted.len() > MAX_DELETED {
                self.deleted.pop_front();
            }
        }
        effects.out
    }

    /// Takes a session and all below it out of the tree.
    fn forget(&mut self, id: &SessionId) -> Vec<SessionId> {
        let parent = self.parent(id).cloned();
        if let Some(parent) = parent.and_then(|parent| self.sessions.get_mut(&parent)) {
            parent.children.remove(id);
        }
        let gone = self.subtree(id);
        for id in &gone {
            if let Some(log) = self.sessions.remove(id) {
                self.n_messages -= log.n_messages();
                self.n_confirmed -= usize::from(log.is_confirmed);
                for (child, part) in log.named() {
                    self.named(id, child, part, None);
                }
            }
            self.restless.remove(id);
            self.calling.remove(id);
            self.attend_namers(id, false);
        }
        gone
    }

    /// A session and all below it, parents before children.
    fn subtree(&self, id: &SessionId) -> Vec<SessionId> {
        let mut found = vec![id.clone()];
        let mut at = 0;
        while at < found.len() {
            let children = self.sessions.get(&found[at]).into_iter().flat_map(|log| &log.children);
            found.extend(children.cloned());
            at += 1;
        }
        found
    }

    fn parent_conversation(&self, id: &SessionId) -> Option<ConversationId> {
        let parent = self.sessions.get(id)?.parent.as_ref()?;
        Some(self.sessions.get(parent)?.conversation.clone())
    }
}

/// Puts an id into a set, or takes it out.
fn mark(set: &mut BTreeSet<SessionId>, id: &SessionId, is_in: bool) {
    if !is_in {
        set.remove(id);
    } else if !set.contains(id) {
        set.insert(id.clone());
    }
}

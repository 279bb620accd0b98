//! One session in the mirror: its messages in order, and whether it is at rest.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{Effects, Origin, Owner, Snapshot, message::MessageLog, nameless::NamelessCalls};
use crate::{
    conversation::{BlockOrder, ConversationEvent, ConvertOptions},
    ids::{ConversationId, IdMap, MessageId, PartId, SessionId},
    opencode::{
        convert::{Converter, Rest},
        wire::{Message, MessageInfo, Part, PartBody, PartDelta, SessionInfo},
    },
    time::Millis,
};

mod announce;
mod calls;

/// Messages of which only parts were seen. The server sends a message before its parts, so more than a few mean that the
/// stream was joined in the middle, and the next list brings them.
const MAX_EARLY_MESSAGES: usize = 64;

/// Removed messages and parts that a stale list must not bring back.
const MAX_REMOVED: usize = 1024;

#[derive(Debug)]
pub(super) struct SessionLog {
    id: SessionId,
    /// The session whose subagent this one is; nothing for the root.
    pub(super) parent: Option<SessionId>,
    /// The sessions whose parent this one is.
    pub(super) children: BTreeSet<SessionId>,
    /// The server said who its parent is; else only a task call of the parent names it.
    pub(super) is_told: bool,
    /// The server said so of all its ancestors, too.
    pub(super) is_confirmed: bool,
    /// The thread that this session shows in.
    pub(super) conversation: ConversationId,
    /// The task parts of the parent that named this session.
    pub(super) owners: BTreeMap<PartId, Owner>,
    /// Its task calls that failed and name no session.
    pub(super) nameless: NamelessCalls,
    about: Option<About>,
    /// Boxed, because a map has room for more than there are, and moves them as it grows.
    messages: IdMap<MessageId, Box<MessageLog>>,
    order: BTreeSet<(Millis, MessageId)>,
    /// Where the first step stands that answers a prompt.
    first_steps: IdMap<MessageId, (Millis, MessageId)>,
    /// Messages of which only parts were seen, oldest first.
    early: VecDeque<MessageId>,
    /// Calls that run in steps that may go on, and that do not merely wait for a session of the tree's own.
    lone_calls: BTreeSet<(MessageId, PartId)>,
    /// Steps that are not complete.
    incomplete: BTreeSet<MessageId>,
    /// Messages that came after the last turn was over.
    active: BTreeSet<MessageId>,
    /// The server said that nothing runs, and nothing new was seen to run since.
    idle: bool,
    removed: VecDeque<Removed>,
    /// How many more messages the tree has room for.
    pub(super) room: usize,
    /// What was last emitted about this session as a subagent that no task part says.
    announced: Vec<ConversationEvent>,
}

/// What of a session's description shows if no task part names it.
#[derive(Debug, Default)]
struct About {
    title: String,
    agent: Option<Arc<str>>,
    created: Millis,
    updated: Millis,
}

#[derive(Debug, PartialEq, Eq)]
enum Removed {
    Message(MessageId),
    Part(PartId),
}

/// A [`Removed`] that is only looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thing<'a> {
    Message(&'a MessageId),
    Part(&'a PartId),
}

impl Removed {
    fn thing(&self) -> Thing<'_> {
        match self {
            Self::Message(id) => Thing::Message(id),
            Self::Part(id) => Thing::Part(id),
        }
    }
}

impl SessionLog {
    pub(super) fn new(id: SessionId, parent: Option<SessionId>, conversation: ConversationId) -> Self {
        Self {
            id,
            children: BTreeSet::new(),
            is_told: parent.is_none(),
            is_confirmed: parent.is_none(),
            parent,
            conversation,
            owners: BTreeMap::new(),
            nameless: NamelessCalls::default(),
            about: None,
            messages: IdMap::default(),
            order: BTreeSet::new(),
            first_steps: IdMap::default(),
            early: VecDeque::new(),
            lone_calls: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            active: BTreeSet::new(),
            idle: false,
            removed: VecDeque::new(),
            room: 0,
            announced: Vec::new(),
        }
    }

    /// The messages in order.
    pub(super) fn messages(&self) -> impl DoubleEndedIterator<Item = &MessageLog> {
        self.order.iter().filter_map(|(_, id)| self.messages.get(id).map(Box::as_ref))
    }

    /// The messages of the turn that a prompt began, in order, without the prompt; see [`SessionTree::turn`](crate::opencode::mirror::SessionTree::turn).
    pub(super) fn turn(&self, prompt: &MessageId) -> impl DoubleEndedIterator<Item = &MessageLog> {
        let from = self.place(prompt).into_iter().chain(self.first_steps.get(prompt).cloned()).min();
        let range = from.into_iter().flat_map(|from| self.order.range(from..));
        range.filter(move |(_, id)| id != prompt).filter_map(|(_, id)| self.messages.get(id).map(Box::as_ref))
    }

    pub(super) fn message(&self, id: &MessageId) -> Option<&MessageLog> {
        self.messages.get(id).map(Box::as_ref).filter(|log| log.info.is_some())
    }

    /// How many messages are kept, with those of which only parts were seen.
    pub(super) fn n_messages(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn has_messages(&self) -> bool {
        !self.order.is_empty()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.has_messages() && self.active.is_empty()
    }

    #[cfg(any(test, feature = "client"))]
    pub(super) fn has_incomplete_step(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// What was last shown of a part.
    pub(super) fn shown(&self, part: &PartId) -> Vec<ConversationEvent> {
        self.messages
            .values()
            .map(|log| log.shown(part))
            .find(|shown| !shown.is_empty())
            .unwrap_or_default()
            .to_vec()
    }

    pub(super) fn see_info(&mut self, info: &SessionInfo) {
        let SessionInfo { title, agent, time, .. } = info;
        if self.about.as_ref().is_none_or(|old| old.updated <= time.updated) {
            let about = self.about.get_or_insert_default();
            about.title.clone_from(title);
            about.agent.clone_from(agent);
            (about.created, about.updated) = (time.created, time.updated);
        }
    }

    /// What is known of it, as the server would say it.
    pub(super) fn info(&self) -> SessionInfo {
        let mut info =
            SessionInfo { id: self.id.clone(), parent_id: self.parent.clone(), ..SessionInfo::default() };
        if let Some(About { title, agent, created, updated }) = &self.about {
            (info.title, info.agent) = (title.clone(), agent.clone());
            (info.time.created, info.time.updated) = (*created, *updated);
        }
        info
    }

    /// The text of the first prompt.
    pub(super) fn first_prompt(&self) -> Option<&str> {
        let prompt = self.messages().find(|log| log.step().is_none())?;
        prompt.parts().find_map(|part| match &part.body {
            PartBody::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
    }

    /// When the session was made, as far as that is known.
    pub(super) fn created(&self) -> Millis {
        let about = self.about.as_ref().map(|about| about.created);
        let created = about.filter(|created| *created != Millis::default());
        created.or_else(|| Some(self.order.first()?.0)).unwrap_or_default()
    }

    /// The call at `call`, which does not say so, started `child`.
    pub(super) fn name_child(
        &mut self,
        call: &BlockOrder,
        child: &SessionId,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        if let Some(log) = self.messages.get_mut(&call.message) {
            log.name_child(&call.part, child, converter(&self.conversation, options, log), effects);
        }
    }

    pub(super) fn see_status(&mut self, is_idle: bool, effects: &mut Effects) {
        self.idle = is_idle;
        self.rest_if_idle(effects);
    }

    pub(super) fn see_message_info(
        &mut self,
        info: Cow<'_, MessageInfo>,
        source: Origin,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        let id = info.id().clone();
        if !self.admits(Thing::Message(&id), source) || !self.has_room(&id, effects) {
            return;
        }
        let created = info.time().created;
        let log = self.messages.entry(id.clone()).or_default();
        let old_created = log.info.as_ref().map(|info| info.time().created);
        if !log.merge_info(info, source, converter(&self.conversation, options, log), effects) {
            return;
        }
        let id = &id;
        let is_incomplete = log.is_incomplete();
        let is_step = log.step().is_some();
        let is_moved = old_created != Some(created);
        let prompt = log.step().filter(|_| is_moved).and_then(|step| step.parent_id.clone());
        let was_open = self.is_open(id);
        if is_moved {
            let place = (created, id.clone());
            if let Some(old_created) = old_created {
                self.order.remove(&(old_created, id.clone()));
            } else {
                self.early.retain(|early| early != id);
                self.active.insert(id.clone());
                // A new step runs, so the last thing the server said about the session no longer holds.
                self.idle &= !is_incomplete;
            }
            if let Some(prompt) = prompt {
                let first = self.first_steps.entry(prompt).or_insert_with(|| place.clone());
                *first = place.clone().min(first.clone());
            }
            self.order.insert(place);
        }
        if !is_incomplete {
            self.incomplete.remove(id);
        } else if !self.incomplete.contains(id) {
            self.incomplete.insert(id.clone());
        }
        if was_open != self.is_open(id) {
            self.count_calls(id);
        }
        self.changed(id, effects);
        // A new prompt is not at rest: it is about to be answered.
        if is_step {
            self.rest_if_idle(effects);
        }
    }

    /// `is_user` says that it is known to be a part of a prompt, even if the prompt was not seen yet.
    pub(super) fn see_part(
        &mut self,
        part: Cow<'_, Part>,
        is_user: bool,
        source: Origin,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        let (id, part_id) = (&part.message_id.clone(), &part.id.clone());
        let is_call = matches!(part.body, PartBody::Tool(_));
        if !self.admits(Thing::Message(id), source) || !self.admits(Thing::Part(&part.id), source) {
            return;
        }
        let Some((conversation, log)) = self.log(id, effects) else { return };
        let converter = converter(conversation, options, log);
        if log.merge_part(part, is_user, source, converter, effects) && log.info.is_some() {
            if is_call || self.has_lone_call() {
                self.attend(id, part_id, false);
            }
            self.changed(id, effects);
        }
    }

    pub(super) fn see_delta(
        &mut self,
        delta: Cow<'_, PartDelta>,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        let id = &delta.message_id.clone();
        let Some((conversation, log)) = self.log(id, effects) else { return };
        if log.merge_delta(delta, converter(conversation, options, log), effects) && log.info.is_some() {
            self.changed(id, effects);
        }
    }

    pub(super) fn see_list(
        &mut self,
        messages: &[Message],
        snapshot: Snapshot,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        let source = Origin::List(snapshot);
        if source.is_truth() {
            self.remove_unlisted(messages, snapshot, options, effects);
        }
        for message in messages {
            // Parts first: a message that is complete must not meet parts that have not caught up.
            let is_user = matches!(message.info, MessageInfo::User(_));
            for part in &message.parts {
                self.see_part(Cow::Borrowed(part), is_user, source, options, effects);
            }
            self.see_message_info(Cow::Borrowed(&message.info), source, options, effects);
        }
        if source.is_truth() {
            self.see_status(true, effects);
        }
    }

    /// Removes what a list that is the truth covers and does not have.
    fn remove_unlisted(
        &mut self,
        messages: &[Message],
        snapshot: Snapshot,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        let listed: HashMap<&MessageId, &Message> =
            messages.iter().map(|message| (message.info.id(), message)).collect();
        let first =
            messages.iter().map(|message| (message.info.time().created, message.info.id().clone())).min();
        let covered: Vec<MessageId> = match &first {
            Some(first) if snapshot != Snapshot::Complete => {
                self.order.range(first..).map(|(_, id)| id.clone()).collect()
            }
            Some(_) | None => self.order.iter().map(|(_, id)| id.clone()).collect(),
        };
        // Where a message stands of which only parts were seen is not known until it is listed.
        let early = self.early.iter().filter(|id| snapshot == Snapshot::Complete || listed.contains_key(id));
        let covered: Vec<MessageId> = covered.into_iter().chain(early.cloned()).collect();
        for id in covered {
            let Some(message) = listed.get(&id) else {
                self.drop_message(&id, effects);
                continue;
            };
            let kept: BTreeSet<&PartId> = message.parts.iter().map(|part| &part.id).collect();
            let Some(log) = self.messages.get_mut(&id) else { continue };
            let gone: Vec<PartId> = log.parts.keys().filter(|part| !kept.contains(part)).cloned().collect();
            for part in &gone {
                log.remove_part(part, converter(&self.conversation, options, log), effects);
                self.lone_calls.remove(&(id.clone(), part.clone()));
            }
            if !gone.is_empty() {
                self.changed(&id, effects);
            }
        }
    }

    pub(super) fn remove_message(&mut self, id: &MessageId, effects: &mut Effects) {
        self.remember_removed(Removed::Message(id.clone()));
        self.drop_message(id, effects);
    }

    pub(super) fn remove_part(
        &mut self,
        id: &MessageId,
        part: &PartId,
        options: ConvertOptions,
        effects: &mut Effects,
    ) {
        self.remember_removed(Removed::Part(part.clone()));
        self.lone_calls.remove(&(id.clone(), part.clone()));
        let Some(log) = self.messages.get_mut(id) else { return };
        if log.remove_part(part, converter(&self.conversation, options, log), effects) && log.info.is_some() {
            self.changed(id, effects);
        }
    }

    /// The turn is over, however it ended: what is unfinished stays so.
    pub(super) fn rest(&mut self, effects: &mut Effects) {
        self.idle = true;
        if self.active.is_empty() {
            return;
        }
        self.lone_calls.clear();
        for id in std::mem::take(&mut self.active) {
            if let Some(log) = self.messages.get_mut(&id) {
                log.at_rest = true;
            }
        }
        let conversation_id = self.conversation.clone();
        effects.out.events.push(ConversationEvent::SessionIdle { conversation_id });
    }

    /// A first idle comes while the step that failed is still open, and means nothing until that is complete.
    fn rest_if_idle(&mut self, effects: &mut Effects) {
        if self.idle && self.incomplete.is_empty() {
            self.rest(effects);
        }
    }

    /// Emits everything again under another thread.
    pub(super) fn show_again(
        &mut self,
        options: ConvertOptions,
        parent: &ConversationId,
        effects: &mut Effects,
    ) {
        self.announced.clear();
        self.announce(parent, effects);
        for (_, id) in &self.order {
            if let Some(log) = self.messages.get_mut(id) {
                log.show_again(converter(&self.conversation, options, log), effects);
            }
        }
    }

    /// Emits what the messages used, which is not told of a session that is not confirmed.
    pub(super) fn show_usage(&self, options: ConvertOptions, effects: &mut Effects) {
        for (_, id) in &self.order {
            if let Some(log) = self.messages.get(id) {
                log.show_usage(converter(&self.conversation, options, log), effects);
            }
        }
    }

    fn place(&self, id: &MessageId) -> Option<(Millis, MessageId)> {
        let info = self.messages.get(id)?.info.as_ref()?;
        Some((info.time().created, id.clone()))
    }

    /// Whether a message is known, or there is room for one more, which is then taken.
    fn has_room(&mut self, id: &MessageId, effects: &mut Effects) -> bool {
        if self.messages.contains_key(id) {
            return true;
        }
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        effects.n_dropped += u64::from(!has_room);
        has_room
    }

    /// The log of a message, made if only now something of it is seen and there is room; with the thread, to convert it for.
    fn log(&mut self, id: &MessageId, effects: &mut Effects) -> Option<(&ConversationId, &mut MessageLog)> {
        if !self.messages.contains_key(id) {
            if !self.has_room(id, effects) {
                return None;
            }
            self.messages.insert(id.clone(), Box::default());
            self.early.push_back(id.clone());
            if self.early.len() > MAX_EARLY_MESSAGES
                && let Some(oldest) = self.early.pop_front()
            {
                self.messages.remove(&oldest);
            }
        }
        Some((&self.conversation, self.messages.get_mut(id)?))
    }

    fn drop_message(&mut self, id: &MessageId, effects: &mut Effects) {
        let place = self.place(id);
        let Some(log) = self.messages.remove(id) else { return };
        log.retract(effects);
        self.early.retain(|early| early != id);
        self.incomplete.remove(id);
        self.active.remove(id);
        self.count_calls(id);
        if let Some(place) = place {
            self.order.remove(&place);
            self.changed(id, effects);
            self.rest_if_idle(effects);
        }
    }

    /// Whether something may be taken in: a list may be older than a removal, an event is not.
    fn admits(&mut self, thing: Thing<'_>, source: Origin) -> bool {
        let Some(at) = self.removed.iter().position(|removed| removed.thing() == thing) else { return true };
        let is_news = source != Origin::List(Snapshot::Live);
        if is_news {
            self.removed.remove(at);
        }
        is_news
    }

    fn remember_removed(&mut self, thing: Removed) {
        if !self.removed.contains(&thing) {
            self.removed.push_back(thing);
            if self.removed.len() > MAX_REMOVED {
                self.removed.pop_front();
            }
        }
    }

    fn changed(&self, message: &MessageId, effects: &mut Effects) {
        effects.out.changed.reserve_exact(1);
        effects.out.changed.push((self.id.clone(), message.clone()));
    }
}

fn converter<'a>(
    conversation: &'a ConversationId,
    options: ConvertOptions,
    log: &MessageLog,
) -> Converter<'a> {
    let rest = if log.at_rest { Rest::AtRest } else { Rest::MayChange };
    Converter { conversation, options, rest }
}

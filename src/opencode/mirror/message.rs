//! One message in the mirror: its parts, how far each got, and what was shown of them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, OnceLock},
};

use super::{
    Claim, Effects, Origin, Owner,
    emit::emit,
    nameless::prompt_of_failed_task,
    progress::{
        child, is_beginning, is_older, progress_of_step, progress_of_tool, rank, shows_as_whole,
        shows_in_parts, text, text_mut,
    },
};
use crate::{
    conversation::{BlockOrder, ConversationEvent},
    ids::{BlockId, PartId, SessionId},
    opencode::{
        convert::Converter,
        wire::{AssistantMessage, Message, MessageInfo, Part, PartBody, PartDelta},
    },
};

/// Text for parts of one message that were not seen: far more than streams between two polls.
const MAX_EARLY_BYTES: usize = 1 << 18;

/// A message of which at least a part was seen.
#[derive(Debug, Default)]
pub(crate) struct MessageLog {
    /// How many of its calls sent a subagent to the background.
    n_background: usize,
    /// Absent while only parts were seen.
    pub(crate) info: Option<MessageInfo>,
    /// Boxed, because a map of few parts has room for many.
    pub(super) parts: BTreeMap<PartId, Box<PartLog>>,
    /// Text for parts that were not seen yet; nothing for one that became too long to keep.
    early: BTreeMap<PartId, Option<String>>,
    /// The turn was over when this message was last looked at, so what is unfinished stays so.
    pub(super) at_rest: bool,
    /// What was last emitted for the message as a whole.
    whole: Vec<ConversationEvent>,
    /// Built when asked for, dropped on every change.
    view: OnceLock<Arc<Message>>,
}

#[derive(Debug)]
pub(super) struct PartLog {
    /// The part; its text includes what was streamed.
    part: Part,
    /// How much of the text the server has stored. What was streamed beyond it is lost if the part never ends.
    stored: usize,
    /// The session that this call started; kept if a later state no longer names it.
    child: Option<SessionId>,
    /// What was last emitted, not counting deltas.
    shown: Vec<ConversationEvent>,
    /// Whether deltas were emitted since.
    grown: bool,
}

/// What became of a part that was merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merged {
    Nothing,
    /// Only its text grew, from this length.
    Grown(usize),
    Changed {
        progress: bool,
    },
}

impl MessageLog {
    /// The message with its parts, as it is now. Copies all its text after every change, so code that only looks at it uses
    /// [`Self::info`](field@Self::info) and [`Self::parts`].
    pub(super) fn view(&self) -> Option<&Arc<Message>> {
        let info = self.info.as_ref()?;
        Some(self.view.get_or_init(|| {
            let parts = self.parts.values().map(|log| log.part.clone()).collect();
            Arc::new(Message::new(info.clone(), parts))
        }))
    }

    #[cfg(test)]
    pub(crate) fn has_view(&self) -> bool {
        self.view.get().is_some()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> + Clone {
        self.parts.values().map(|log| &log.part)
    }

    /// The calls that have not come to an end.
    pub(super) fn running_tools(&self) -> impl Iterator<Item = &Part> {
        self.parts().filter(|part| is_running_tool(part))
    }

    /// The sessions that its calls name, each with the call.
    pub(super) fn named(&self) -> impl Iterator<Item = (&SessionId, &PartId)> {
        self.parts.iter().filter_map(|(part, log)| Some((log.child.as_ref()?, part)))
    }

    /// Whether a part is a call that has not come to an end.
    pub(super) fn is_running_tool(&self, part: &PartId) -> bool {
        self.parts.get(part).is_some_and(|log| is_running_tool(&log.part))
    }

    /// How many of its calls sent a subagent to the background.
    #[cfg(any(test, feature = "client"))]
    pub(crate) fn n_background(&self) -> usize {
        self.n_background
    }

    /// The step that this message is, if it is one.
    pub(crate) fn step(&self) -> Option<&AssistantMessage> {
        self.info.as_ref().and_then(MessageInfo::as_assistant)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.step().is_some_and(|step| step.time.completed.is_none())
    }

    fn is_completed(&self) -> bool {
        self.step().is_some_and(|step| step.time.completed.is_some())
    }

    pub(crate) fn is_user(&self) -> bool {
        matches!(self.info, Some(MessageInfo::User(_)))
    }

    /// Takes a message's info unless it is older than what is known; says whether it was news.
    pub(super) fn merge_info(
        &mut self,
        info: Cow<'_, MessageInfo>,
        source: Origin,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) -> bool {
        let old = match &self.info {
            Some(old) if *old == *info => return false,
            Some(old) if !source.is_truth() && is_older(&info, old) => return false,
            old => old.as_ref(),
        };
        let is_further = info.as_assistant().is_some_and(|new| {
            old.and_then(MessageInfo::as_assistant)
                .is_none_or(|old| progress_of_step(old) < progress_of_step(new))
        });
        effects.out.progress |= is_further;
        effects.out.output |= is_further;
        let parts_differ = old.is_none_or(|old| shows_in_parts(old) != shows_in_parts(&info));
        let is_shown = !parts_differ && old.is_some_and(|old| shows_as_whole(old) == shows_as_whole(&info));
        let was_completed = self.is_completed();
        self.info = Some(info.into_owned());
        self.view = OnceLock::new();
        let is_completed = self.is_completed();
        if is_completed {
            self.early.clear();
            self.parts.values_mut().for_each(|log| log.forget_streamed());
        }
        let ended = was_completed != is_completed;
        if ended || !is_shown {
            self.show(|log| parts_differ || (ended && log.is_unfinished()), converter, effects);
        }
        true
    }

    /// Takes a part unless it is older than what is known; says whether it was news.
    pub(super) fn merge_part(
        &mut self,
        part: Cow<'_, Part>,
        is_user: bool,
        source: Origin,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) -> bool {
        let is_completed = self.is_completed();
        let is_user = is_user || self.is_user();
        let early = self.early.remove(&part.id).flatten();
        let mut was_background = false;
        let (log, merged) = match self.parts.entry(part.id.clone()) {
            Entry::Occupied(entry) => {
                let log = entry.into_mut();
                was_background = log.is_background();
                let merged = log.merge(part, source, is_user);
                (log, merged)
            }
            Entry::Vacant(entry) => {
                let mut log = Box::new(PartLog::new(part.into_owned()));
                if let Some(early) = early.filter(|_| !is_completed && !source.is_truth()) {
                    log.join(&early);
                }
                (entry.insert(log), Merged::Changed { progress: true })
            }
        };
        if merged == Merged::Nothing {
            return false;
        }
        if is_completed {
            log.forget_streamed();
        }
        self.view = OnceLock::new();
        self.n_background =
            self.n_background + usize::from(log.is_background()) - usize::from(was_background);
        let Some(info) = &self.info else { return true };
        match merged {
            Merged::Grown(from) if !is_completed => {
                effects.out.progress |= !is_user;
                effects.out.output |= !is_user;
                let grown = text(&log.part).map(|text| text.text[from..].to_owned());
                log.show_growth(grown.unwrap_or_default(), info, converter, effects);
            }
            Merged::Grown(_) => log.show(info, converter, effects),
            Merged::Changed { progress } => {
                effects.out.progress |= progress && !is_user;
                effects.out.output |= progress && !is_user && !is_beginning(&log.part);
                log.show(info, converter, effects);
            }
            Merged::Nothing => {}
        }
        if is_user {
            self.show_whole(converter, effects);
        }
        true
    }

    /// Adds streamed text to a part; says whether that was news. Text for an unknown part is kept, within bounds.
    pub(super) fn merge_delta(
        &mut self,
        delta: Cow<'_, PartDelta>,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) -> bool {
        let PartDelta { part_id: part, delta: text, .. } = &*delta;
        if text.is_empty() || self.is_completed() || self.is_user() {
            return false;
        }
        let Some(log) = self.parts.get_mut(part) else {
            // Some servers send no parts but only what is added to them: that is progress too.
            effects.out.progress = true;
            effects.out.output = true;
            let kept: usize = self.early.values().flatten().map(String::len).sum();
            let early = self.early.entry(part.clone()).or_insert_with(|| Some(String::new()));
            match early {
                Some(early) if kept + text.len() <= MAX_EARLY_BYTES => early.push_str(text),
                // There is no room for more: a text with a hole would be wrong, so the part is awaited instead.
                Some(_) | None => *early = None,
            }
            return false;
        };
        if !log.append(text) {
            return false;
        }
        self.view = OnceLock::new();
        if let Some(info) = &self.info {
            effects.out.progress = true;
            effects.out.output = true;
            let delta = match delta {
                Cow::Borrowed(delta) => delta.delta.clone(),
                Cow::Owned(delta) => delta.delta,
            };
            log.show_growth(delta, info, converter, effects);
        }
        true
    }

    /// Removes a part; says whether there was one.
    pub(super) fn remove_part(
        &mut self,
        part: &PartId,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) -> bool {
        self.early.remove(part);
        let Some(log) = self.parts.remove(part) else { return false };
        self.view = OnceLock::new();
        self.n_background -= usize::from(log.is_background());
        log.retract(effects);
        if self.is_user() {
            self.show_whole(converter, effects);
        }
        true
    }

    /// The call in `part`, which does not say so, started `child`.
    pub(super) fn name_child(
        &mut self,
        part: &PartId,
        child: &SessionId,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) {
        let (Some(info), Some(log)) = (&self.info, self.parts.get_mut(part)) else { return };
        if log.child.is_none() {
            log.child = Some(child.clone());
            log.show(info, converter, effects);
        }
    }

    /// Takes back everything that was shown of this message.
    pub(super) fn retract(mut self, effects: &mut Effects) {
        for log in std::mem::take(&mut self.parts).into_values() {
            log.retract(effects);
        }
        emit(&mut self.whole, false, Vec::new(), effects);
    }

    /// Emits what differs from what was shown of the message and of these parts, in the order of the thread, for clients that do
    /// not look at a block's place: a prompt comes before its parts, a step's error after them.
    fn show(
        &mut self,
        may_differ: impl Fn(&PartLog) -> bool,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) {
        let is_step = self.step().is_some();
        if !is_step {
            self.show_whole(converter, effects);
        }
        let Some(info) = &self.info else { return };
        for log in self.parts.values_mut().filter(|log| may_differ(log)) {
            log.show(info, converter, effects);
        }
        if is_step {
            self.show_whole(converter, effects);
        }
    }

    /// Emits everything, as if nothing had been shown.
    pub(super) fn show_again(&mut self, converter: Converter<'_>, effects: &mut Effects) {
        self.whole.clear();
        for log in self.parts.values_mut() {
            log.shown.clear();
        }
        self.show(|_| true, converter, effects);
    }

    fn show_whole(&mut self, converter: Converter<'_>, effects: &mut Effects) {
        if let Some(info) = &self.info {
            let events = converter.whole(info, self.parts());
            emit(&mut self.whole, false, events, effects);
        }
    }

    /// Emits what the message used.
    pub(super) fn show_usage(&self, converter: Converter<'_>, effects: &mut Effects) {
        let events = self.info.iter().flat_map(|info| converter.whole(info, self.parts()));
        let usage = events.filter(|event| matches!(event, ConversationEvent::MetadataUpdate { .. }));
        effects.out.events.extend(usage);
    }

    /// What was last shown of a part.
    pub(super) fn shown(&self, part: &PartId) -> &[ConversationEvent] {
        self.parts.get(part).map_or(&[], |log| &log.shown)
    }
}

fn is_running_tool(part: &Part) -> bool {
    matches!(&part.body, PartBody::Tool(tool) if !tool.state.status.is_final())
}

impl PartLog {
    fn is_background(&self) -> bool {
        matches!(&self.part.body, PartBody::Tool(tool) if tool.is_background_task())
    }

    /// Whether it has no end of its own, so that the end of its message shows in its block.
    fn is_unfinished(&self) -> bool {
        is_running_tool(&self.part) || text(&self.part).is_some_and(|text| text.end.is_none())
    }

    fn new(part: Part) -> Self {
        let stored = text(&part).map_or(0, |text| text.text.len());
        let child = child(&part);
        Self { part, stored, child, shown: Vec::new(), grown: false }
    }

    fn merge(&mut self, part: Cow<'_, Part>, source: Origin, is_user: bool) -> Merged {
        if self.part == *part {
            if let Some(text) = text(&part) {
                self.stored = text.text.len();
            }
            return Merged::Nothing;
        }
        let progress = match (&self.part.body, &part.body) {
            (PartBody::Tool(old), PartBody::Tool(new)) => {
                let is_undone = old.state.status.is_final() && !new.state.status.is_final();
                if is_undone || (!source.is_truth() && progress_of_tool(new) < progress_of_tool(old)) {
                    return Merged::Nothing;
                }
                rank(&old.state.status) < rank(&new.state.status) || !new.state.status.is_final()
            }
            _ if source.is_truth() || is_user => false,
            _ => match (text(&self.part), text(&part)) {
                (Some(old), Some(new)) if old.kind == new.kind => match (old.end, new.end) {
                    (Some(_), None) => return Merged::Nothing,
                    (Some(old), Some(new)) if new < old => return Merged::Nothing,
                    (None, None) => return self.merge_unfinished(part),
                    (Some(_), Some(_)) => false,
                    (None, Some(_)) => true,
                },
                _ => false,
            },
        };
        self.replace(part);
        Merged::Changed { progress }
    }

    /// Merges a text that still streams: it may only become longer.
    fn merge_unfinished(&mut self, part: Cow<'_, Part>) -> Merged {
        let (Some(old), Some(new)) = (text(&self.part), text(&part)) else { return Merged::Nothing };
        let (old_text, new_text) = (old.text, new.text);
        if old_text.starts_with(new_text) {
            // The server has stored a beginning of what was streamed.
            self.stored = self.stored.max(new_text.len());
            return Merged::Nothing;
        }
        if new_text.len() < old_text.len() {
            return Merged::Nothing;
        }
        let grown = new_text.starts_with(old_text).then_some(old_text.len());
        let only_text = old.start == new.start;
        self.replace(part);
        match grown {
            Some(from) if only_text => Merged::Grown(from),
            Some(_) | None => Merged::Changed { progress: true },
        }
    }

    fn replace(&mut self, part: Cow<'_, Part>) {
        self.child = child(&part).or(self.child.take());
        self.stored = text(&part).map_or(0, |text| text.text.len());
        self.part = part.into_owned();
    }

    /// Puts text that was streamed before the part was seen behind it, unless the part already has some.
    fn join(&mut self, early: &str) {
        if text(&self.part).is_some_and(|text| text.text.is_empty() && text.end.is_none()) {
            self.append(early);
        }
    }

    /// Adds streamed text; says whether it could. A finished text does not grow.
    fn append(&mut self, delta: &str) -> bool {
        let is_over = text(&self.part).is_none_or(|text| text.end.is_some());
        match text_mut(&mut self.part) {
            Some(text) if !is_over => text.push_str(delta),
            Some(_) | None => return false,
        }
        true
    }

    /// The message is complete: a text without an end is what a failed attempt left behind, and counts as far as the server
    /// stored it.
    fn forget_streamed(&mut self) {
        if text(&self.part).is_some_and(|text| text.end.is_none()) {
            let stored = self.stored;
            if let Some(text) = text_mut(&mut self.part) {
                text.truncate(stored);
            }
        }
    }

    fn show_growth(
        &mut self,
        delta: String,
        info: &MessageInfo,
        converter: Converter<'_>,
        effects: &mut Effects,
    ) {
        if self.shown.is_empty() {
            // Blank so far, or left out.
            return self.show(info, converter, effects);
        }
        effects.out.events.reserve_exact(1);
        effects.out.events.push(ConversationEvent::BlockDelta {
            conversation_id: converter.conversation.clone(),
            block_id: BlockId::from(&self.part.id),
            delta,
        });
        self.grown = true;
    }

    fn show(&mut self, info: &MessageInfo, converter: Converter<'_>, effects: &mut Effects) {
        let events = converter.part(info, &self.part, self.child.as_ref());
        emit(&mut self.shown, self.grown, events, effects);
        self.grown = false;
        let PartBody::Tool(tool) = &self.part.body else { return };
        let order = || BlockOrder::message(info.time().created, info.id().clone()).part(self.part.id.clone());
        if let Some(child) = &self.child {
            effects.claims.push(Claim {
                child: child.clone(),
                part: self.part.id.clone(),
                owner: Some(Owner { order: order(), is_background: tool.is_background_task() }),
            });
        } else if let Some(prompt) = prompt_of_failed_task(tool) {
            effects.nameless.push((prompt.to_owned(), order()));
        }
    }

    fn retract(mut self, effects: &mut Effects) {
        emit(&mut self.shown, false, Vec::new(), effects);
        if let Some(child) = self.child {
            effects.claims.push(Claim { child, part: self.part.id, owner: None });
        }
    }
}

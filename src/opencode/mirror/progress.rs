//! How far things got, so that what is older can be told from what is newer. The server numbers nothing.

use std::{cmp::Ordering, mem::discriminant};

use crate::{
    conversation::TokenUsage,
    ids::SessionId,
    opencode::wire::{AssistantMessage, Extra, MessageInfo, Part, PartBody, PartTime, ToolPart, ToolStatus},
    time::Millis,
};

/// The streamed text of a part.
pub(super) struct Streamed<'a> {
    pub(super) kind: u8,
    pub(super) text: &'a str,
    pub(super) start: Option<Millis>,
    pub(super) end: Option<Millis>,
}

pub(super) fn text(part: &Part) -> Option<Streamed<'_>> {
    let (kind, text, time): (_, _, Option<&PartTime>) = match &part.body {
        PartBody::Text(text) => (0, &text.text, text.time.as_ref()),
        PartBody::Reasoning(thinking) => (1, &thinking.text, thinking.time.as_ref()),
        _ => return None,
    };
    Some(Streamed { kind, text, start: time.map(|time| time.start), end: time.and_then(|time| time.end) })
}

pub(super) fn text_mut(part: &mut Part) -> Option<&mut String> {
    match &mut part.body {
        PartBody::Text(text) => Some(&mut text.text),
        PartBody::Reasoning(thinking) => Some(&mut thinking.text),
        _ => None,
    }
}

/// Whether a part says no more than that a model call began, or is to be tried again.
pub(super) fn is_beginning(part: &Part) -> bool {
    match &part.body {
        PartBody::StepStart(_) | PartBody::Snapshot(_) | PartBody::Retry(_) => true,
        _ => text(part).is_some_and(|text| text.text.is_empty()),
    }
}

pub(super) fn child(part: &Part) -> Option<SessionId> {
    match &part.body {
        PartBody::Tool(tool) => tool.child_session(),
        _ => None,
    }
}

pub(super) fn rank(status: &ToolStatus) -> u8 {
    match status {
        ToolStatus::Pending => 0,
        ToolStatus::Running | ToolStatus::Unknown(_) => 1,
        ToolStatus::Completed | ToolStatus::Error => 2,
    }
}

/// How far a call got. Where two states are equally far the later arrival wins, which only matters while it runs.
pub(super) fn progress_of_tool(tool: &ToolPart) -> impl PartialOrd {
    let state = &tool.state;
    let time = state.time.as_ref();
    let moment = time.map(|time| time.end.unwrap_or(time.start));
    let is_compacted = time.is_some_and(|time| time.compacted.is_some());
    (rank(&state.status), moment, is_compacted, Count(state.metadata.as_ref()))
}

/// How many fields there are; they are only counted if nothing else tells two things apart.
struct Count<'a>(Option<&'a Extra>);

impl Count<'_> {
    fn get(&self) -> usize {
        self.0.map_or(0, Extra::count)
    }
}

impl PartialEq for Count<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl PartialOrd for Count<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.get().partial_cmp(&other.get())
    }
}

/// How far a step got.
pub(super) fn progress_of_step(step: &AssistantMessage) -> impl PartialOrd + use<> {
    let tokens = TokenUsage::from(&step.tokens).total();
    (step.time.completed.is_some(), step.error.is_some(), step.finish.is_some(), tokens)
}

/// Whether `new` was written before `old`.
pub(super) fn is_older(new: &MessageInfo, old: &MessageInfo) -> bool {
    match (new, old) {
        (MessageInfo::Assistant(new), MessageInfo::Assistant(old)) => {
            progress_of_step(new) < progress_of_step(old)
        }
        // Submitting a prompt again moves it; the server adds to a prompt (its summary) and takes nothing away.
        (MessageInfo::User(new), MessageInfo::User(old)) => {
            (new.time.created, Count(Some(&new.extra))) < (old.time.created, Count(Some(&old.extra)))
        }
        _ => false,
    }
}

/// What of a message shows in the events of the message as a whole.
pub(super) fn shows_as_whole(info: &MessageInfo) -> impl PartialEq + '_ {
    let step = info
        .as_assistant()
        .map(|step| (&step.model_id, &step.provider_id, step.cost, &step.tokens, &step.error));
    (discriminant(info), info.time(), step)
}

/// What of a message shows in the blocks of its parts. Whether it is complete shows only in those that have no end of their own.
pub(super) fn shows_in_parts(info: &MessageInfo) -> impl PartialEq + '_ {
    let step = info.as_assistant().map(|step| (&step.model_id, &step.provider_id, step.summary));
    (info.time().created, step)
}

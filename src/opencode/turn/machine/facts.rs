//! What the merged messages of a session say about a turn.

use crate::{
    ids::{MessageId, SessionId},
    opencode::mirror::{MessageLog, SessionTree},
    time::Millis,
};

/// What the merged messages say about a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Facts {
    /// The prompt's user message exists; for a wait without a prompt: any user message does.
    pub(super) exists: bool,
    /// No user message is newer than the prompt's. Submitting an older one again would run it again.
    pub(super) newest: bool,
    /// When the turn began, by the server's clock; nothing before the prompt is seen.
    pub(super) began: Option<Millis>,
    /// When the newest prompt in the session was made, whichever client sent it.
    pub(super) last_prompt: Option<Millis>,
    /// Assistant messages after it, summaries included.
    pub(super) steps: usize,
    /// How many of them are not completed.
    pub(super) incomplete: usize,
    /// How many the descendant has made since the turn began that is at work and has made most.
    pub(super) descendant_steps: usize,
    /// A tool runs somewhere in the tree, other than one that merely waits for a subagent of the tree's own.
    pub(super) tool_running: bool,
    /// What a descendant did has not been seen to its end, as where the stream carried none or only a part of it.
    pub(super) descendant_open: bool,
    /// The session will run again by itself: a subagent was sent to the background and its result has not come back, the server
    /// has put in a prompt of its own, or a late submission put this one behind its failed answer.
    pub(super) runs_again: bool,
}

impl Facts {
    /// What the merged messages say about the turn of `prompt`, or about whatever came last.
    pub(super) fn of<'a>(
        tree: &SessionTree,
        prompt: Option<&MessageId>,
        active: impl Iterator<Item = &'a SessionId>,
    ) -> Self {
        let root = tree.root();
        let mut facts = Self::default();
        let mut n_prompts = 0;
        let mut n_background = 0;
        let mut count = |log: &MessageLog| {
            if let Some(step) = log.step() {
                facts.steps += 1;
                facts.incomplete += usize::from(step.time.completed.is_none());
                n_background += log.n_background();
            }
            n_prompts += usize::from(log.is_user());
        };
        if let Some(prompt) = prompt {
            tree.turn_logs(root, prompt).for_each(&mut count);
            facts.exists = tree.log(root, prompt).is_some();
        } else {
            tree.logs(root).rev().take_while(|log| !log.is_user()).for_each(&mut count);
            facts.exists = tree.logs(root).any(MessageLog::is_user);
        }
        facts.newest = n_prompts == 0;
        let prompts = tree.logs(root).rev().filter(|log| log.is_user());
        let infos = prompts.filter_map(|log| log.info.as_ref());
        facts.last_prompt = infos.map(|info| info.time().created).next();
        facts.began = match prompt {
            Some(prompt) => {
                // A prompt that was submitted again stands behind what was said already.
                let first = tree.turn_logs(root, prompt).next();
                let logs = tree.log(root, prompt).into_iter().chain(first);
                logs.filter_map(|log| log.info.as_ref()).map(|info| info.time().created).min()
            }
            None => facts.last_prompt,
        };
        if let Some(began) = facts.began {
            let n_steps = active.map(|session| n_steps_since(tree, session, began));
            facts.descendant_steps = n_steps.max().unwrap_or(0);
        }
        facts.descendant_open = tree.has_restless_descendant();
        // The result of each subagent in the background comes back as a prompt of the server's own.
        let asked = tree.logs(root).next_back().is_some_and(MessageLog::is_user);
        let moved = prompt.is_some_and(|prompt| moved(tree, prompt));
        facts.runs_again = n_background > n_prompts || moved || (asked && n_prompts > 0);
        // A subagent that is seen speaks for itself.
        facts.tool_running = tree.has_lone_call();
        facts
    }
}

/// How many steps a session has made since then, summaries included.
fn n_steps_since(tree: &SessionTree, session: &SessionId, since: Millis) -> usize {
    let is_old = |log: &MessageLog| log.info.as_ref().is_some_and(|info| info.time().created < since);
    tree.logs(session).rev().take_while(|log| !is_old(log)).filter(|log| log.step().is_some()).count()
}

/// Whether the prompt stands behind a last step that failed: it was submitted twice, and the server got to one of the
/// two only after that. It will run again.
fn moved(tree: &SessionTree, prompt: &MessageId) -> bool {
    let root = tree.root();
    let last = tree.turn_logs(root, prompt).filter_map(MessageLog::step).next_back();
    let prompt = tree.log(root, prompt).and_then(|log| log.info.as_ref());
    last.zip(prompt)
        .is_some_and(|(last, prompt)| last.error.is_some() && last.time.created < prompt.time().created)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::{conversation::ConvertOptions, opencode::wire::ServerEvent};

    /// Otherwise a text that is streamed in n pieces costs n² bytes.
    #[test]
    fn a_look_at_a_turn_copies_none_of_its_text() {
        let mut tree = SessionTree::new("ses_1".into(), ConvertOptions::default());
        for (kind, properties) in [
            (
                "message.updated",
                r#"{"info":{"id":"msg_1","sessionID":"ses_1","role":"user","time":{"created":1}}}"#,
            ),
            (
                "message.updated",
                r#"{"info":{"id":"msg_2","sessionID":"ses_1","role":"assistant","parentID":"msg_1","time":{"created":2}}}"#,
            ),
            (
                "message.part.updated",
                r#"{"part":{"id":"prt_1","messageID":"msg_2","sessionID":"ses_1","type":"text","text":"","time":{"start":2}}}"#,
            ),
            (
                "message.part.delta",
                r#"{"sessionID":"ses_1","messageID":"msg_2","partID":"prt_1","field":"text","delta":"Hello"}"#,
            ),
        ] {
            let event = format!(r#"{{"type":"{kind}","properties":{properties}}}"#);
            tree.apply_event(ServerEvent::from_json(&event).unwrap());
        }
        let (root, prompt) = (tree.root(), MessageId::new("msg_1"));
        let seen = Facts::of(&tree, Some(&prompt), iter::empty());
        assert!(seen.exists && seen.newest, "{seen:?}");
        assert_eq!((seen.steps, seen.incomplete), (1, 1));
        assert_eq!(Facts::of(&tree, None, iter::empty()).steps, 1);
        assert!(!tree.logs(root).any(MessageLog::has_view));
        assert_eq!(tree.turn(root, &prompt).count(), 1);
        assert!(tree.logs(root).any(MessageLog::has_view), "the test can tell");
    }
}

//! What the merged messages of a session say to the turn machine.

use crate::{
    ids::MessageId,
    observe::SessionTree,
    turn::{Facts, TreeStatus},
    wire::{Message, MessageInfo, Part, PartBody, StatusMap},
};

/// What the merged messages say about the turn of `prompt`, or about whatever came last.
pub(super) fn facts(tree: &SessionTree, prompt: Option<&MessageId>) -> Facts {
    let root = tree.root();
    let mut facts = Facts::default();
    let mut n_prompts = 0;
    let mut n_background = 0;
    let mut count = |message: &Message| match &message.info {
        MessageInfo::Assistant(step) => {
            facts.steps += 1;
            facts.incomplete += usize::from(step.time.completed.is_none());
            let background =
                |part: &Part| matches!(&part.body, PartBody::Tool(tool) if tool.is_background_task());
            n_background += message.parts.iter().filter(|part| background(part)).count();
        }
        MessageInfo::User(_) => n_prompts += 1,
        MessageInfo::Unknown(_) => {}
    };
    if let Some(prompt) = prompt {
        tree.turn(root, prompt).for_each(|message| count(message));
        facts.exists = tree.message(root, prompt).is_some();
    } else {
        let is_prompt = |message: &Message| matches!(message.info, MessageInfo::User(_));
        tree.messages(root)
            .rev()
            .take_while(|message| !is_prompt(message))
            .for_each(|message| count(message));
        facts.exists = tree.messages(root).any(|message| is_prompt(message));
    }
    facts.newest = n_prompts == 0;
    facts.descendant_open = tree.children().any(|child| !tree.is_at_rest(child));
    // The result of each subagent in the background comes back as a prompt of the server's own.
    let asked = tree.messages(root).next_back().is_some_and(|last| matches!(last.info, MessageInfo::User(_)));
    let moved = prompt.is_some_and(|prompt| moved(tree, prompt));
    facts.runs_again = n_background > n_prompts || moved || (asked && n_prompts > 0);
    facts.tool_running = tree.running_tools().any(|part| match &part.body {
        // A subagent that is seen speaks for itself.
        PartBody::Tool(tool) => tool.child_session().is_none_or(|child| !tree.contains(&child)),
        _ => false,
    });
    facts
}

/// Whether the prompt stands behind a last step that failed: it was submitted twice, and the server got to one of the
/// two only after that. It will run again.
fn moved(tree: &SessionTree, prompt: &MessageId) -> bool {
    let root = tree.root();
    let last = tree.turn(root, prompt).filter_map(|message| message.info.as_assistant()).next_back();
    let prompt = tree.message(root, prompt);
    last.zip(prompt)
        .is_some_and(|(last, prompt)| last.error.is_some() && last.time.created < prompt.info.time().created)
}

/// What the server says about the sessions of a tree.
pub(super) fn tree_status(tree: &SessionTree, status: &StatusMap) -> TreeStatus {
    let busy = tree.children().filter(|child| !status.get(child).is_idle()).cloned().collect();
    TreeStatus::new(status.get(tree.root()).into(), busy)
}

//! How often the model was called.

use std::collections::BTreeSet;

use opencode_conductor::{PromptExecutionResult, claude::wire::StreamMessage};

/// How many messages of the model a turn has, without those of subagents.
pub fn count(result: &PromptExecutionResult) -> usize {
    let messages = result.messages.opencode().iter();
    let n_opencode = messages.filter(|message| message.info.as_assistant().is_some()).count();
    // Claude Code tells a message in several lines.
    let lines = result.messages.claude().iter();
    let ids: BTreeSet<_> = lines
        .filter_map(|line| match &**line {
            StreamMessage::Assistant(line) if line.parent_tool_use_id.is_none() && !line.is_error() => {
                Some(&line.message.id)
            }
            _ => None,
        })
        .collect();
    n_opencode + ids.len()
}

//! What a turn's messages say about its end.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    mirror::SessionTree,
    wire::{
        AssistantMessage, FileDiff, Message, MessageError, MessageInfo, Part, PartBody, PartTime, ToolStatus,
    },
};
use crate::{
    agent::{ChangeKind, Completion, Failure, FileChange},
    conversation::Usage,
    ids::{MessageId, SessionId},
    time::Millis,
};

/// Reads the end of a session at rest off its last messages. `is_unbroken`: the server cannot have died meanwhile.
pub(super) fn completion_of_rest(messages: &[Arc<Message>], is_unbroken: bool) -> Completion {
    let Some((last, parts)) = steps(messages).next_back() else { return Completion::Aborted };
    let calls = has_call(parts);
    let answered = !calls && last.finish.as_deref().is_some_and(|finish| finish != "unknown");
    // A summary that was in the way of the answer; one that came after it is no loss.
    let summary = messages.iter().filter_map(|message| message.info.as_assistant()).next_back();
    if let Some(error) =
        summary.filter(|last| last.summary == Some(true)).and_then(|last| last.error.as_ref())
        && last.error.is_none()
        && !answered
    {
        return if error.is_aborted() { Completion::Aborted } else { Completion::Failed(error.into()) };
    }
    match (&last.error, last.finish.as_deref()) {
        (Some(error), _) if error.is_aborted() => Completion::Aborted,
        // Some rejections, as of the request to go on in a loop, fail the turn even if the model was told why.
        (Some(error), _) if error.message().contains("rejected permission") => Completion::Rejected,
        (Some(error), _) => Completion::Failed(error.into()),
        // An abort while the server waited for the provider leaves neither a reason nor an error.
        (None, None) => Completion::Aborted,
        // Whatever the reason given, the server goes on after calls. With more steps to come, nothing brings a session to
        // rest but a rejection, an abort between two steps, or the death of the server.
        (None, Some(finish)) if calls || matches!(finish, "tool-calls" | "unknown") => {
            if parts.iter().any(is_rejected) {
                Completion::Rejected
            } else if is_unbroken {
                Completion::Aborted
            } else {
                Completion::Interrupted
            }
        }
        (None, Some(_)) => Completion::Settled,
    }
}

impl From<&MessageError> for Failure {
    fn from(error: &MessageError) -> Self {
        let mut failure = Self::new(error.name.as_str(), error.message());
        failure.is_retryable =
            error.data.get("isRetryable").and_then(serde_json::Value::as_bool).unwrap_or(false);
        failure.data = error.data.clone();
        failure
    }
}

/// What a turn did to a file.
#[cfg_attr(not(feature = "client"), expect(dead_code, reason = "the turn has no use for it"))]
pub(super) fn file_change(diff: FileDiff) -> FileChange {
    let kind = match diff.status.as_str() {
        "added" => ChangeKind::Added,
        // Servers that do not say have only the content before and after.
        "modified" | "" => ChangeKind::Modified,
        "deleted" => ChangeKind::Deleted,
        other => ChangeKind::Other(other.to_owned()),
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of lines; the cast saturates"
    )]
    let (additions, deletions) = (diff.additions as u64, diff.deletions as u64);
    let mut change = FileChange::new(diff.file, kind, diff.patch);
    (change.additions, change.deletions) = (additions, deletions);
    change
}

/// Whether a tool was not allowed to run, or its question not answered, which ends a turn. With feedback for the model it does
/// not.
fn is_rejected(part: &Part) -> bool {
    let PartBody::Tool(tool) = &part.body else { return false };
    let error = tool.state.error.as_deref().unwrap_or_default();
    tool.state.status == ToolStatus::Error
        && (error.contains("dismissed this question")
            || error.contains("rejected permission") && !error.contains("feedback"))
}

/// The model's steps, without summaries.
fn steps(messages: &[Arc<Message>]) -> impl DoubleEndedIterator<Item = (&AssistantMessage, &[Part])> {
    let step =
        |message: &'_ Message| message.info.as_assistant().is_some_and(|step| step.summary != Some(true));
    let steps = messages.iter().filter(move |message| step(message));
    steps.filter_map(|message| Some((message.info.as_assistant()?, message.parts.as_slice())))
}

/// The text of the final answer.
pub(super) fn answer(messages: &[Arc<Message>]) -> Option<String> {
    let continues = |id: &MessageId| {
        let asked = messages.iter().position(|message| message.info.id() == id);
        asked.is_some_and(|n| is_continuation(&messages[n], preceding(messages, n)))
    };
    let spoken: Vec<(bool, String)> = steps(messages)
        .filter(|(step, parts)| step.finish.as_deref() != Some("tool-calls") && !has_call(parts))
        .filter_map(|(step, parts)| {
            let text = text_of(step, parts);
            (!text.trim().is_empty()).then(|| (step.parent_id.as_ref().is_some_and(continues), text))
        })
        .collect();
    let own = spoken.iter().rev().find(|(continuation, _)| !continuation);
    own.or(spoken.last()).map(|(_, text)| text.clone())
}

/// The prompts among a turn's messages that neither the caller nor the server made: `text` is the caller's, which the server copies
/// under another id when it has summarised the history.
pub(super) fn other_prompts(messages: &[Arc<Message>], text: &str) -> Vec<MessageId> {
    let is_other = |message: &&Arc<Message>| message.prompt_text().is_some_and(|other| other != text);
    messages.iter().filter(is_other).map(|message| message.info.id().clone()).collect()
}

/// Where, among the messages after a prompt that says `asked`, those of a later turn begin: at the first prompt that comes when the
/// model is not in the middle of its steps. One that came between two steps was answered in the same turn, and a copy that the server
/// made is no other prompt.
pub(super) fn later_turn<'a>(
    messages: impl IntoIterator<Item = &'a Arc<Message>>,
    asked: &str,
) -> Option<usize> {
    let mut before: Vec<Arc<Message>> = Vec::new();
    for message in messages {
        let is_prompt =
            message.prompt_text().is_some() && !is_copy(message, before.last().map(Arc::as_ref), asked);
        if is_prompt && completion_of_rest(&before, false) != Completion::Interrupted {
            return Some(before.len());
        }
        before.push(Arc::clone(message));
    }
    None
}

/// Whether a message is the server's copy of the prompt that says `asked`: directly after a summary of the history the server asks the
/// same again, under another id.
pub(super) fn is_copy(message: &Message, before: Option<&Message>, asked: &str) -> bool {
    before.is_some_and(is_summary) && message.prompt_text().as_deref() == Some(asked)
}

fn preceding(messages: &[Arc<Message>], n: usize) -> Option<&Message> {
    n.checked_sub(1).map(|before| &*messages[before])
}

fn is_summary(message: &Message) -> bool {
    message.info.as_assistant().is_some_and(|step| step.summary == Some(true))
}

/// Whether the server asks here for the model to continue: directly after a summary. What it puts in elsewhere, as the result of a
/// subagent in the background, is for the model to answer.
fn is_continuation(message: &Message, before: Option<&Message>) -> bool {
    before.is_some_and(is_summary)
        && matches!(message.info, MessageInfo::User(_))
        && message.parts.iter().all(|part| match &part.body {
            PartBody::Text(text) => text.synthetic == Some(true),
            _ => false,
        })
        && !message.parts.is_empty()
}

fn has_call(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part.body, PartBody::Tool(_)))
}

/// What a step says. Attempts that failed leave unfinished texts behind in a step that is complete; old servers store them.
fn text_of(step: &AssistantMessage, parts: &[Part]) -> String {
    let is_complete = step.time.completed.is_some();
    let is_left_behind = |time: &PartTime| is_complete && time.end.is_none();
    let texts = parts.iter().filter_map(|part| match &part.body {
        PartBody::Text(text) if text.synthetic == Some(true) || text.ignored == Some(true) => None,
        PartBody::Text(text) if text.time.as_ref().is_some_and(is_left_behind) => None,
        PartBody::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// What a turn used: everything after the prompt and before `until`, if that is given, and what its descendants did meanwhile. Sessions that
/// a task call merely names count elsewhere.
#[cfg_attr(not(feature = "client"), expect(dead_code, reason = "the turn has no use for it"))]
pub(super) fn usage_of(
    tree: &SessionTree,
    prompt: &MessageId,
    until: Option<Millis>,
) -> BTreeMap<SessionId, Usage> {
    let root = tree.root();
    let since = tree.message(root, prompt).map(|message| message.info.time().created);
    let is_before = |message: &Message| until.is_none_or(|until| message.info.time().created < until);
    let mut by_session = BTreeMap::new();
    let mut add = |session: &SessionId, message: &Message| {
        if let Some(step) = message.info.as_assistant() {
            let usage: &mut Usage = by_session.entry(session.clone()).or_default();
            *usage += Usage { tokens: (&step.tokens).into(), cost: step.cost };
        }
    };
    for message in tree.turn(root, prompt).filter(|message| is_before(message)) {
        add(root, message);
    }
    for child in tree.confirmed().filter(|session| *session != root) {
        let since = |message: &&Arc<Message>| Some(message.info.time().created) >= since;
        for message in tree.messages(child).filter(since).filter(|message| is_before(message)) {
            add(child, message);
        }
    }
    by_session
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// The messages of a recorded session from its `n`-th on.
    fn recorded(fixture: &str, n: usize) -> Vec<Arc<Message>> {
        let path = format!("{}/fixtures/{fixture}/messages/00-root.json", env!("CARGO_MANIFEST_DIR"));
        let messages: Vec<Message> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        messages.into_iter().skip(n).map(Arc::new).collect()
    }

    #[test]
    fn a_copy_of_the_prompt_after_a_summary_begins_no_later_turn() {
        let session = recorded("compaction_overflow", 2);
        let (prompt, turn) = session.split_first().unwrap();
        let asked = prompt.prompt_text().unwrap();
        assert_eq!(later_turn(turn, &asked), None);
        assert_eq!(completion_of_rest(turn, false), Completion::Settled);
        assert_eq!(other_prompts(turn, &asked), []);
        // The same words anywhere else, or other words there, are another prompt.
        let again = [turn, &[Arc::clone(prompt)]].concat();
        assert_eq!(later_turn(&again, &asked), Some(turn.len()));
        assert_eq!(later_turn(turn, "something else"), Some(3));
    }

    #[test]
    fn the_answer_is_the_last_one_that_the_server_did_not_ask_for_itself() {
        for (fixture, n, expected) in [
            // What a subagent in the background brought back makes the model speak again.
            ("background_subagent", 1, "It is done."),
            ("compaction_overflow", 3, "Answer after all."),
            // A summary that came after the answer does so too, and that is nothing that was asked for.
            ("compaction_answer", 1, "The answer."),
            // One that came before is all that there is.
            ("compaction_usage", 1, "Hello from the scripted model."),
        ] {
            assert_eq!(answer(&recorded(fixture, n)).as_deref(), Some(expected), "{fixture}");
        }
        // Old servers give another reason for the end of a step that calls tools.
        let mut turn = recorded("compaction_usage", 1);
        if let MessageInfo::Assistant(step) = &mut Arc::make_mut(&mut turn[0]).info {
            step.finish = Some("stop".into());
        }
        assert_eq!(answer(&turn).as_deref(), Some("Hello from the scripted model."));
    }

    #[test]
    fn the_end_of_a_session_at_rest_is_read_off_its_last_step() {
        use Completion::*;
        let rejected = "The user rejected permission to use this specific tool call.";
        let corrected =
            "The user rejected permission to use this specific tool call with the following feedback: no";
        let cases = [
            // A step that called tools is no end, whatever reason it gives.
            ("tool-calls", "completed", "", true, Aborted),
            ("tool-calls", "completed", "", false, Interrupted),
            ("stop", "completed", "", true, Aborted),
            ("stop", "completed", "", false, Interrupted),
            ("tool-calls", "error", rejected, true, Rejected),
            ("tool-calls", "error", rejected, false, Rejected),
            ("stop", "error", rejected, true, Rejected),
            ("tool-calls", "error", "The user dismissed this question", true, Rejected),
            // A tool that fails by itself, or is told what to do instead, ends nothing.
            ("tool-calls", "error", corrected, false, Interrupted),
            ("tool-calls", "error", "File not found: /x", false, Interrupted),
            ("tool-calls", "error", "File not found: /x", true, Aborted),
        ];
        for (finish, status, error, unbroken, expected) in cases {
            let message = json!({
                "info": {"id": "msg_2", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1",
                    "time": {"created": 1, "completed": 2}, "modelID": "m", "providerID": "p", "cost": 0,
                    "finish": finish, "tokens": {"input": 1, "output": 1}},
                "parts": [{"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_2", "type": "tool",
                    "tool": "bash", "callID": "c", "state": {"status": status, "input": {}, "output": "x",
                        "title": "", "metadata": {}, "error": error, "time": {"start": 1, "end": 2}}}]});
            let messages = [Arc::new(serde_json::from_value(message).unwrap())];
            let completion = completion_of_rest(&messages, unbroken);
            assert_eq!(completion, expected, "{finish}, {status}, {error:?}, {unbroken}");
        }
    }
}

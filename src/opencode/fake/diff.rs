//! Which files a turn changed, as far as its `write` calls say. Nothing is on disk.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::world::{Message, Session};

/// What the calls of the turn of `prompt` did to files. The patch of a file that was there before replaces all of its lines, where the
/// real server writes the shortest.
pub(super) fn changes(session: &Session, prompt: &str) -> Value {
    let is_of_turn = |message: &&Message| message.info["parentID"] == prompt;
    let files = |messages: &mut dyn Iterator<Item = &Message>| -> BTreeMap<String, String> {
        messages.flat_map(|message| &message.parts).filter_map(written).collect()
    };
    let before = files(&mut session.messages.iter().take_while(|message| !is_of_turn(message)));
    let after = files(&mut session.messages.iter().filter(is_of_turn));
    let changed = after.iter().filter(|(path, content)| before.get(*path) != Some(*content));
    changed
        .map(|(path, content)| {
            change(&session.directory, path, before.get(path).map(String::as_str), content)
        })
        .collect()
}

/// What the session has last written to a file, as its calls name it.
pub(super) fn last_written(session: &Session, path: &str) -> Option<String> {
    let parts = session.messages.iter().rev().flat_map(|message| message.parts.iter().rev());
    parts.filter_map(written).find(|(file, _)| file == path).map(|(_, content)| content)
}

/// The patch that an edit shows before it is made; it replaces all lines.
pub(super) fn patch(file: &str, before: &str, after: &str) -> String {
    let mut patch = header(file, "", before, after);
    for (sign, text) in [("-", before), ("+", after)] {
        patch.push_str(&lines(sign, text));
        if !text.is_empty() && !text.ends_with('\n') {
            patch.push_str("\\ No newline at end of file\n");
        }
    }
    patch
}

/// The path and the content of a `write` call that has been made.
fn written(part: &Value) -> Option<(String, String)> {
    let state = &part["state"];
    let is_done = part["tool"] == "write" && state["status"] == "completed";
    let input = is_done.then_some(&state["input"])?;
    Some((input["filePath"].as_str()?.to_owned(), input["content"].as_str()?.to_owned()))
}

fn change(directory: &str, file: &str, before: Option<&str>, content: &str) -> Value {
    let file = file.strip_prefix(directory).map_or(file, |relative| relative.trim_start_matches('/'));
    let old = before.unwrap_or_default();
    let patch = [header(file, "\t", old, content), lines("-", old), lines("+", content)].concat();
    let status = if before.is_some() { "modified" } else { "added" };
    json!({"file": file, "patch": patch, "additions": content.lines().count(), "deletions": old.lines().count(), "status": status})
}

fn header(file: &str, after_name: &str, before: &str, after: &str) -> String {
    let range = |text: &str| format!("{},{}", usize::from(!text.is_empty()), text.lines().count());
    let (old, new) = (range(before), range(after));
    format!(
        "Index: {file}\n{}\n--- {file}{after_name}\n+++ {file}{after_name}\n@@ -{old} +{new} @@\n",
        "=".repeat(67)
    )
}

fn lines(sign: &str, text: &str) -> String {
    text.lines().flat_map(|line| [sign, line, "\n"]).collect()
}

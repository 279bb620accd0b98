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

/// The path and the content of a `write` call that has been made.
fn written(part: &Value) -> Option<(String, String)> {
    let state = &part["state"];
    let is_done = part["tool"] == "write" && state["status"] == "completed";
    let input = is_done.then_some(&state["input"])?;
    Some((input["filePath"].as_str()?.to_owned(), input["content"].as_str()?.to_owned()))
}

fn change(directory: &str, file: &str, before: Option<&str>, content: &str) -> Value {
    let file = file.strip_prefix(directory).map_or(file, |relative| relative.trim_start_matches('/'));
    let old: Vec<&str> = before.unwrap_or_default().lines().collect();
    let new: Vec<&str> = content.lines().collect();
    let range = |lines: &[&str]| format!("{},{}", usize::from(!lines.is_empty()), lines.len());
    let mut patch = format!(
        "Index: {file}\n{}\n--- {file}\t\n+++ {file}\t\n@@ -{} +{} @@\n",
        "=".repeat(67),
        range(&old),
        range(&new),
    );
    for (sign, lines) in [("-", &old), ("+", &new)] {
        for line in lines {
            patch.extend([sign, line, "\n"]);
        }
    }
    let status = if before.is_some() { "modified" } else { "added" };
    json!({"file": file, "patch": patch, "additions": new.len(), "deletions": old.len(), "status": status})
}

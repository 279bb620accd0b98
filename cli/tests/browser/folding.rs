//! The page folds conversation events exactly as the library does.

use std::{
    env, fs,
    io::ErrorKind,
    path::Path,
    process::{Command, Stdio},
};

use opencode_conductor::{
    ConversationEvent, ConvertOptions, SessionConversationState, SessionId, SessionTree, Snapshot,
    wire::{Message, ServerEvent},
};
use serde_json::{Value, json};

use crate::{chromium::Browser, rig::Dashboard};

/// The conversation events of a recording, as streamed and then from the lists that were read at the end.
fn recorded(fixture: &Path) -> Vec<ConversationEvent> {
    let sessions: Value =
        serde_json::from_str(&fs::read_to_string(fixture.join("sessions.json")).unwrap()).unwrap();
    let root = SessionId::new(sessions[0]["id"].as_str().unwrap());
    let mut tree = SessionTree::new(root, ConvertOptions::default());
    let mut events = Vec::new();
    let log = fs::read_to_string(fixture.join("events.sse")).unwrap();
    for line in log.lines().filter_map(|line| line.strip_prefix("data: ")) {
        events.extend(tree.apply_event(ServerEvent::from_json(line).unwrap()).events);
    }
    let mut lists: Vec<_> =
        fs::read_dir(fixture.join("messages")).unwrap().map(|entry| entry.unwrap().path()).collect();
    lists.sort();
    for list in lists {
        let messages = Message::list_from_json(&fs::read_to_string(list).unwrap()).unwrap().items;
        let Some(session) = messages.first().map(|message| message.info.session_id().clone()) else {
            continue;
        };
        events.extend(tree.apply_messages(&session, &messages, Snapshot::Complete).events);
        events.extend(tree.settle(&session).events);
    }
    events
}

/// Ways in which the same events may come: as they are, and out of order with some missing and some twice.
fn disturbed(events: &[ConversationEvent], seed: u64) -> Vec<ConversationEvent> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut events: Vec<_> = events.to_vec();
    if seed == 0 {
        return events;
    }
    events.retain(|_| dice.u8(..8) > 0);
    let again: Vec<_> = events.iter().filter(|_| dice.u8(..6) == 0).cloned().collect();
    events.extend(again);
    // Sometimes near its place, sometimes anywhere.
    for from in 0..events.len() {
        let to = if dice.bool() { dice.usize(..events.len()) } else { (from + 3).min(events.len() - 1) };
        events.swap(from, to);
    }
    // The recordings cost nothing; sums of such fractions show in which order they were added.
    for event in &mut events {
        if let ConversationEvent::MetadataUpdate { usage: Some(usage), .. } = event {
            usage.cost = f64::from(dice.u16(..)) / 1e5;
        }
    }
    // Other writers do not say where a block stands, and may call an end what is none.
    for event in &mut events {
        let mut json = serde_json::to_value(&*event).unwrap();
        match dice.u8(..16) {
            0 => drop(json.as_object_mut().unwrap().remove("order")),
            1 if json["block"].is_object() => drop(json["block"].as_object_mut().unwrap().remove("order")),
            2 if json["type"] == "subagent:completed" => json["status"] = json!("running"),
            _ => continue,
        }
        *event = serde_json::from_value(json).unwrap();
    }
    // What a server has removed it can remove at any time, and what it has said it can say of another thread.
    for _ in 0..events.len() / 10 {
        let event = dice.choice(&events).unwrap();
        let block = match event {
            ConversationEvent::BlockUpsert { block, .. } => block.id.as_str(),
            ConversationEvent::SubagentSpawned(spawned) => spawned.tool_use_id.as_str(),
            _ => "unknown",
        };
        let removed =
            json!({"type": "block:removed", "conversationId": event.conversation_id(), "blockId": block});
        events.insert(dice.usize(..events.len()), serde_json::from_value(removed).unwrap());
        let mut moved = serde_json::to_value(dice.choice(&events).unwrap()).unwrap();
        moved["conversationId"] = json!(dice.choice(&events).unwrap().conversation_id());
        events.insert(dice.usize(..events.len()), serde_json::from_value(moved).unwrap());
    }
    events
}

/// The states along the way, some ten of them.
fn states(events: &[ConversationEvent], every: usize) -> Vec<Value> {
    let mut state = SessionConversationState::new();
    let mut states = Vec::new();
    for (index, event) in events.iter().enumerate() {
        state.apply(event);
        if (index + 1) % every == 0 || index + 1 == events.len() {
            states.push(serde_json::to_value(&state).unwrap());
        }
    }
    states
}

/// A script that folds events with a page's `Conversation` and gives the JSON of the states along the way.
fn script(events: &[ConversationEvent], every: usize) -> String {
    format!(
        "(({{Conversation}}) => {{
            let [conversation, states] = [new Conversation(), []];
            {}.forEach((event, index, events) => {{
                conversation.apply(event);
                if ((index + 1) % {every} === 0 || index + 1 === events.length) {{
                    const json = JSON.stringify(conversation);
                    states.push(json);
                    // A page that is loaded here must go on alike.
                    conversation = Conversation.from(JSON.parse(json));
                }}
            }});
            return states;
        }})",
        json!(events)
    )
}

/// Every recording, as it was and disturbed.
fn streams() -> Vec<(String, Vec<ConversationEvent>)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut paths: Vec<_> = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.join("events.sse").exists());
    paths.sort();
    assert!(paths.len() >= 15, "only {} recordings", paths.len());
    let mut streams = Vec::new();
    for path in paths {
        let recorded = recorded(&path);
        for seed in 0..6 {
            streams.push((format!("{} with seed {seed}", path.display()), disturbed(&recorded, seed)));
        }
    }
    streams
}

/// Compares the states that a page's code gave with the library's.
#[track_caller]
fn compare(name: &str, events: &[ConversationEvent], every: usize, folded: &Value) {
    let texts = folded.as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    let folded: Vec<Value> = texts.map(|text| serde_json::from_str(text).unwrap()).collect();
    let expected = states(events, every);
    assert_eq!(folded.len(), expected.len());
    for (index, (folded, expected)) in folded.iter().zip(&expected).enumerate() {
        assert_eq!(folded, expected, "{name}, state {index}");
    }
}

fn every(events: &[ConversationEvent]) -> usize {
    events.len() / 10 + 1
}

#[tokio::test]
async fn the_page_folds_as_the_library_does() {
    let Some(mut browser) = Browser::start().await else { return };
    let dashboard = Dashboard::start([]).await;
    browser.open(&dashboard.entry).await;
    for (name, events) in streams() {
        let fold = format!("import('/fold.js').then({})", script(&events, every(&events)));
        let folded = browser.eval(&fold).await;
        compare(&name, &events, every(&events), &folded);
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The same code without a browser, where there is none but node.
#[test]
fn the_pages_code_folds_as_the_library_does() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve/page/fold.js");
    let page = json!(fs::read_to_string(page).unwrap());
    let streams = streams();
    let scripts: Vec<String> = streams.iter().map(|(_, events)| script(events, every(events))).collect();
    let program = format!(
        "const page = await import('data:text/javascript,' + encodeURIComponent({page}));
        const scripts = [{}];
        console.log(JSON.stringify(scripts.map((script) => script(page))));",
        scripts.join(",\n")
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fold.mjs");
    fs::write(&file, program).unwrap();
    let output = match Command::new("node").arg(file).stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound && env::var_os("REQUIRE_NODE").is_none() => {
            eprintln!("SKIPPED: there is no `node` here, so the page's code was not compared");
            return;
        }
        Err(error) => panic!("node: {error}"),
    };
    assert!(output.status.success(), "node failed, see above");
    let folded: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(folded.len(), streams.len());
    for ((name, events), folded) in streams.iter().zip(&folded) {
        compare(name, events, every(events), folded);
    }
}

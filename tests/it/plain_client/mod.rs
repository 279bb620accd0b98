//! A client that knows nothing of what this crate adds to the basic events folds them to the same conversation.

use std::{
    collections::BTreeMap,
    env, io,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use opencode_conductor::{
    ConversationEvent, OpenCodeOptions, SessionConversationState, parse_opencode_events,
};
use serde_json::{Value, json};

use crate::{
    fixtures_parity::{Fixture, fixtures},
    laws_model::Dice,
};

/// The states that the plain client folds streams of events to; nothing, and a word about it, if there is no node.
fn folded_plainly(streams: &[Vec<Value>]) -> Option<Vec<Value>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plain_client/fold.mjs");
    let node = Command::new("node").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut node = match node {
        Ok(node) => node,
        Err(error) if error.kind() == io::ErrorKind::NotFound && env::var_os("REQUIRE_NODE").is_none() => {
            eprintln!("SKIPPED: there is no `node` here, so the plain client in JavaScript was not compared");
            return None;
        }
        Err(error) => panic!("node: {error}"),
    };
    let mut input = node.stdin.take().unwrap();
    input.write_all(json!(streams).to_string().as_bytes()).unwrap();
    drop(input);
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "the plain client failed, see above");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The events of a recording's log, and the library's state after them.
pub(crate) fn streamed(fixture: &Fixture) -> (Vec<ConversationEvent>, SessionConversationState) {
    parsed(fixture, &[&fixture.events])
}

/// The same of its message lists.
fn loaded(fixture: &Fixture) -> (Vec<ConversationEvent>, SessionConversationState) {
    parsed(fixture, &fixture.lists.iter().map(String::as_str).collect::<Vec<_>>())
}

fn parsed(fixture: &Fixture, documents: &[&str]) -> (Vec<ConversationEvent>, SessionConversationState) {
    let options = OpenCodeOptions::default().session(fixture.sessions[0].id.clone());
    let mut events = Vec::new();
    let transcript = parse_opencode_events(documents, &options, |event| events.push(event.clone())).unwrap();
    (events, transcript.state)
}

/// Takes away what a plain client does not know: subagents' blocks are its own work, and so are the records of their threads.
fn plain(state: &Value) -> Value {
    let block = |block: &Value| {
        let mut block = block.clone();
        if block["type"] == "subagent" {
            let fields = block.as_object_mut().unwrap();
            fields.retain(|name, _| !["order", "metadata", "subagentStatus"].contains(&name.as_str()));
        }
        block
    };
    let blocks = |blocks: &Value| blocks.as_array().unwrap().iter().map(block).collect::<Vec<_>>();
    // A list by the order of announcement there, by id here.
    let subagents: BTreeMap<&str, Value> = state["subagents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|subagent| {
            let mut known = subagent.clone();
            known["blocks"] = json!(blocks(&subagent["blocks"]));
            let added = ["parentId", "name", "description", "metadata"];
            known.as_object_mut().unwrap().retain(|name, _| !added.contains(&name.as_str()));
            (subagent["toolUseId"].as_str().unwrap(), known)
        })
        .collect();
    json!({"blocks": blocks(&state["blocks"]), "subagents": subagents})
}

/// Each thread's blocks by id, as texts.
fn threads(state: &Value) -> BTreeMap<String, BTreeMap<String, String>> {
    let blocks = |blocks: &Value| {
        let blocks = blocks.as_array().unwrap().iter();
        blocks.map(|block| (block["id"].as_str().unwrap().to_owned(), block.to_string())).collect()
    };
    let below = state["subagents"].as_object().unwrap();
    let below = below.iter().map(|(id, subagent)| (id.clone(), blocks(&subagent["blocks"])));
    below.chain([("main".to_owned(), blocks(&state["blocks"]))]).collect()
}

/// The ids of a thread's blocks in their order, without those that are not among `known`.
fn sequence<'a>(blocks: &'a Value, known: &BTreeMap<String, String>) -> Vec<&'a str> {
    let ids = blocks.as_array().into_iter().flatten().map(|block| block["id"].as_str().unwrap());
    ids.filter(|id| known.contains_key(*id)).collect()
}

/// What of the library's state a plain client has otherwise; nothing if it has the same.
#[track_caller]
fn difference(name: &str, ours: &Value, theirs: &Value) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (our_threads, their_threads) = (threads(ours), threads(theirs));
    let mut is_in_order = true;
    for (thread, blocks) in &our_threads {
        for (id, block) in blocks {
            let theirs = their_threads.get(thread).and_then(|blocks| blocks.get(id));
            assert_eq!(theirs, Some(block), "{name}: block {id} of {thread}");
        }
        let of = |state: &Value| match thread.as_str() {
            "main" => state["blocks"].clone(),
            id => state["subagents"][id]["blocks"].clone(),
        };
        is_in_order &= sequence(&of(ours), blocks) == sequence(&of(theirs), blocks);
    }
    for (id, subagent) in ours["subagents"].as_object().unwrap() {
        let record = |subagent: &Value| {
            let mut record = subagent.clone();
            record["blocks"].take();
            record
        };
        assert_eq!(record(&theirs["subagents"][id]), record(subagent), "{name}: subagent {id}");
    }
    let n_blocks = |threads: &BTreeMap<_, BTreeMap<_, _>>| threads.values().map(BTreeMap::len).sum::<usize>();
    let mut said = Vec::new();
    if !is_in_order {
        said.push("has what came late at the end".to_owned());
    }
    match n_blocks(&their_threads) - n_blocks(&our_threads) {
        0 => {}
        n => said.push(format!("keeps {n} blocks that were removed")),
    }
    match their_threads.len() - our_threads.len() {
        0 => {}
        n => said.push(format!("keeps {n} thread that was removed")),
    }
    assert!(!said.is_empty(), "{name}: the states differ in something else");
    Some(said.join(", "))
}

/// Folds recordings both ways, and says where the outcomes differ.
#[track_caller]
fn check(parse: impl Fn(&Fixture) -> (Vec<ConversationEvent>, SessionConversationState), expected: &Expect) {
    let recordings: Vec<_> = fixtures().into_iter().map(|fixture| (parse(&fixture), fixture.name)).collect();
    let streams: Vec<Vec<Value>> = recordings
        .iter()
        .map(|((events, _), _)| events.iter().map(|event| serde_json::to_value(event).unwrap()).collect())
        .collect();
    let Some(states) = folded_plainly(&streams) else { return };
    assert_eq!(states.len(), recordings.len());
    let mut differences = String::new();
    for (((_, ours), name), theirs) in recordings.iter().zip(&states) {
        let ours = plain(&serde_json::to_value(ours).unwrap());
        if let Some(difference) = difference(name, &ours, &plain(theirs)) {
            differences.extend([name, ": ", &difference, "\n"]);
        }
    }
    expected.assert_eq(&differences);
}

#[test]
fn a_plain_client_folds_every_recording_to_the_same_conversation() {
    // It cannot take anything back, and puts last what comes last.
    check(
        streamed,
        &expect![[r#"
        delete_part: keeps 2 blocks that were removed
        lost_prompt: has what came late at the end
        parallel_tools: has what came late at the end
        prompt_in_abort: has what came late at the end
        queued_prompt: has what came late at the end
        retry_partial: keeps 1 blocks that were removed
        revert: keeps 4 blocks that were removed
        v1.0.152-subagent: keeps 3 blocks that were removed, keeps 1 thread that was removed
        v1.1.65-subagent: keeps 5 blocks that were removed, keeps 1 thread that was removed
        v1.2.15-subagent: keeps 5 blocks that were removed, keeps 1 thread that was removed
        v1.3.2-subagent: keeps 5 blocks that were removed, keeps 1 thread that was removed
    "#]],
    );
}

#[test]
fn a_plain_client_folds_every_transcript_to_the_same_conversation() {
    check(loaded, &expect![""]);
}

/// Streams as other writers make them: nothing that this crate adds, and nothing that it understands differently.
struct Writer {
    dice: Dice,
    events: Vec<Value>,
    /// Each thread with the blocks that were written to it; subagents that were only written to are not announced.
    threads: Vec<(String, Vec<(String, &'static str)>)>,
    running: Vec<String>,
    n_ids: usize,
}

impl Writer {
    fn stream(seed: u64) -> Vec<Value> {
        let threads = vec![("main".to_owned(), Vec::new())];
        let mut writer =
            Self { dice: Dice::new(seed), events: Vec::new(), threads, running: Vec::new(), n_ids: 0 };
        for _ in 0..40 {
            writer.write();
        }
        writer.events
    }

    fn id(&mut self, kind: &str) -> String {
        self.n_ids += 1;
        format!("{kind}-{}", self.n_ids)
    }

    fn write(&mut self) {
        let at = self.dice.below(self.threads.len());
        let thread = self.threads[at].0.clone();
        match self.dice.below(12) {
            0..=3 => {
                let id = self.id("block");
                self.upsert(at, &id);
            }
            4 | 5 if !self.threads[at].1.is_empty() => {
                let n_blocks = self.threads[at].1.len();
                let id = self.threads[at].1[self.dice.below(n_blocks)].0.clone();
                self.upsert(at, &id);
            }
            6 | 7 => {
                let streamed = |(_, kind): &&(String, &str)| matches!(*kind, "assistant_text" | "thinking");
                let block =
                    self.threads[at].1.iter().rfind(streamed).map_or("unknown", |(id, _)| id.as_str());
                let delta = ["", " ", "more", "\n"][self.dice.below(4)];
                self.events.push(json!({"type": "block:delta", "conversationId": thread, "blockId": block, "delta": delta}));
            }
            8 => {
                // Sometimes a thread is written to before it is announced.
                let call = self.id("call");
                if self.dice.one_in(3) {
                    self.threads.push((call.clone(), Vec::new()));
                    let id = self.id("block");
                    self.upsert(self.threads.len() - 1, &id);
                }
                let context = json!({"conversationId": thread, "timestamp": "2026-01-31T12:00:00.000Z"});
                let spawned = json!({"type": "subagent:spawned", "toolUseId": call, "prompt": "Look.",
                    "subagentType": "explore", "description": "look", "context": context});
                // And sometimes it is announced twice.
                let n_times = 1 + usize::from(self.dice.one_in(4));
                self.events.extend(std::iter::repeat_n(spawned, n_times));
                if !self.threads.iter().any(|(id, _)| *id == call) {
                    self.threads.push((call.clone(), Vec::new()));
                }
                self.running.push(call);
            }
            9 if !self.running.is_empty() => {
                let call = self.running.remove(self.dice.below(self.running.len()));
                let status = ["completed", "error"][self.dice.below(2)];
                let agent = self.id("agent");
                self.events.push(json!({"type": "subagent:completed", "toolUseId": call, "agentId": agent,
                    "status": status, "output": "found", "durationMs": self.dice.below(1000)}));
                if self.dice.one_in(2) {
                    // From now on it is called by its agent.
                    let at = self.threads.iter().position(|(id, _)| *id == call).unwrap();
                    self.threads[at].0 = agent;
                }
            }
            10 => self.events.push(json!({"type": "session:idle", "conversationId": thread})),
            _ => {}
        }
    }

    fn upsert(&mut self, at: usize, id: &str) {
        let (kind, fields) = [
            ("user_message", json!({"content": "Hi"})),
            ("assistant_text", json!({"content": "Hel"})),
            ("thinking", json!({"content": "hm", "summary": ["kept", 1]})),
            ("tool_use", json!({"toolUseId": id, "name": "Read", "input": {"file": "a"}})),
            ("tool_result", json!({"toolUseId": id, "output": {"lines": [1, 2]}, "isError": false})),
            ("system", json!({"subtype": "status", "message": "Ready"})),
            ("skill_load", json!({"skill": "review", "body": null})),
        ][self.dice.below(7)]
        .clone();
        let (thread, blocks) = &mut self.threads[at];
        let status = ["pending", "complete", "error"][self.dice.below(3)];
        let mut block = json!({"id": id, "type": kind, "timestamp": "2026-01-31T12:00:00.000Z", "status": status,
            "conversationId": thread});
        block.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.events.push(json!({"type": "block:upsert", "conversationId": thread, "block": block}));
        match blocks.iter_mut().find(|(known, _)| known == id) {
            Some(known) => known.1 = kind,
            None => blocks.push((id.to_owned(), kind)),
        }
    }
}

/// Whether everything in `theirs` is in `ours` too; ours may have more fields.
fn covers(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            theirs.iter().all(|(name, value)| match ours.get(name) {
                // A block's thread is named by its call here, however the event named it.
                Some(_) if name == "conversationId" => true,
                Some(ours) => covers(ours, value),
                None => false,
            })
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| covers(ours, theirs))
        }
        (ours, theirs) => ours == theirs,
    }
}

#[test]
fn the_library_folds_the_streams_of_other_writers_as_a_plain_client_does() {
    let streams: Vec<Vec<Value>> = (0..400).map(Writer::stream).collect();
    let Some(states) = folded_plainly(&streams) else { return };
    for (seed, (events, theirs)) in streams.iter().zip(&states).enumerate() {
        let mut state = SessionConversationState::new();
        for event in events {
            state.apply(&serde_json::from_value(event.clone()).unwrap());
        }
        let (ours, theirs) = (plain(&serde_json::to_value(&state).unwrap()), plain(theirs));
        assert!(covers(&ours, &theirs), "seed {seed}:\n{ours:#}\n--- the plain client\n{theirs:#}");
        assert_eq!(
            ours["subagents"].as_object().unwrap().len(),
            theirs["subagents"].as_object().unwrap().len()
        );
    }
}

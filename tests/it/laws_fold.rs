//! The laws of folding: whatever way a session is observed, the state is the one that loading its transcript gives.
//!
//! `PROPTEST_CASES` sets the number of cases per law; `.cargo/config.toml` has a small one, to keep `cargo test` quick.

use std::collections::{HashMap, HashSet};

use opencode_conductor::{
    Architecture, BlockStatus, Change, ConversationEvent, ConvertOptions, Observed, SessionConversationState,
    SessionId, SessionTree, Snapshot, parse_transcript, reduce_with_changes,
    wire::{EventPayload, ServerEvent, SessionExport},
};
use proptest::{prelude::*, test_runner::Config};

use crate::{
    laws_model::{Dialect, Dice, Run, Store, run},
    laws_program::{Session, session},
};

/// Observes and folds.
struct Client {
    tree: SessionTree,
    state: SessionConversationState,
    /// Whether each step is checked for what must hold at all times, which costs far more than the step.
    is_checked: bool,
}

impl Client {
    fn new(root: &SessionId) -> Self {
        let tree = SessionTree::new(root.clone(), ConvertOptions::default());
        Self { tree, state: SessionConversationState::new(), is_checked: false }
    }

    fn see(&mut self, event: &ServerEvent) -> Observed {
        let observed = self.tree.apply_event(event);
        self.fold(&observed);
        observed
    }

    fn poll(&mut self, store: &Store, snapshot: Snapshot) -> Observed {
        let mut all = Observed::default();
        for info in &store.sessions {
            all.append(self.tree.apply_session(info));
        }
        for info in &store.sessions {
            all.append(self.tree.apply_messages(&info.id, &store.list(&info.id), snapshot));
        }
        self.fold(&all);
        all
    }

    /// What a caller does in the end: read everything once more, and take it for the truth.
    fn finish(&mut self, store: &Store) {
        self.poll(store, Snapshot::Complete);
        for info in &store.sessions {
            let observed = self.tree.settle(&info.id);
            self.fold(&observed);
        }
    }

    fn fold(&mut self, observed: &Observed) {
        if !self.is_checked {
            self.state.extend(&observed.events);
            return;
        }
        for event in &observed.events {
            let (next, changes) = reduce_with_changes(&self.state, event);
            check_changes(&self.state, &next, &changes, event);
            self.state = next;
        }
    }
}

/// The changes name everything that differs, and nothing finished became unfinished.
fn check_changes(
    old: &SessionConversationState,
    new: &SessionConversationState,
    changes: &[Change],
    event: &ConversationEvent,
) {
    let blocks = |state: &SessionConversationState| -> HashMap<_, _> {
        let main = state.blocks().iter().cloned();
        let below = state.subagents().flat_map(|subagent| subagent.blocks.iter().cloned());
        main.chain(below).map(|block| ((block.conversation_id.clone(), block.id.clone()), block)).collect()
    };
    let (old, new) = (blocks(old), blocks(new));
    let mut named = HashSet::new();
    for change in changes {
        if let Change::Block { conversation_id, block_id, .. }
        | Change::BlockRemoved { conversation_id, block_id, .. } = change
        {
            named.insert((conversation_id, block_id));
        }
    }
    let with_thread = changes.iter().any(|change| matches!(change, Change::SubagentRemoved { .. }));
    for (key, block) in &new {
        let before = old.get(key);
        let is_named = named.contains(&(&key.0, &key.1));
        assert_eq!(before != Some(block), is_named, "{key:?} after {event:?}");
        if let Some(before) = before {
            assert!(
                before.status == BlockStatus::Pending || block.status != BlockStatus::Pending,
                "{key:?} became unfinished by {event:?}"
            );
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        assert!(with_thread || named.contains(&(&key.0, &key.1)), "{key:?} vanished after {event:?}");
    }
}

/// The state that loading the final lists gives.
fn loaded(root: &SessionId, store: &Store) -> SessionConversationState {
    let mut client = Client::new(root);
    client.finish(store);
    client.state
}

/// The same, by way of a file.
fn transcript(root: &SessionId, store: &Store) -> SessionConversationState {
    fn export(store: &Store, id: &SessionId) -> SessionExport {
        let info = store.sessions.iter().find(|info| info.id == *id).unwrap().clone();
        let children = store.sessions.iter().filter(|info| info.parent_id.as_ref() == Some(id));
        let children = children.map(|child| export(store, &child.id)).collect();
        SessionExport::new(store.list(id)).info(info).children(children)
    }
    let json = serde_json::to_string(&export(store, root)).unwrap();
    let transcript = parse_transcript(Architecture::OpenCode, &json).unwrap();
    assert!(transcript.malformed.is_empty(), "{:?}", transcript.malformed);
    transcript.state
}

#[track_caller]
fn assert_same(one: &SessionConversationState, two: &SessionConversationState) -> Result<(), TestCaseError> {
    if one != two {
        let lines = |state| {
            serde_json::to_string_pretty(state).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let (one, two) = (lines(one), lines(two));
        let same = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
        let from = same.saturating_sub(20);
        let part = |lines: &[String]| lines[from.min(lines.len())..(same + 10).min(lines.len())].join("\n");
        prop_assert!(false, "differ from line {same}:\n{}\n--- expected\n{}", part(&one), part(&two));
    }
    Ok(())
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Deltas), Just(Dialect::Wholes)]
}

pub(crate) fn config() -> Config {
    Config { failure_persistence: None, ..Config::default() }
}

/// A program and how it is run.
pub(crate) fn world() -> impl Strategy<Value = (Session, Dialect, u64)> {
    (session(), dialect(), any::<u64>())
}

fn run_world((program, dialect, seed): &(Session, Dialect, u64)) -> (Run, Store) {
    let run = run(program, *dialect, *seed, *seed);
    let store = Store::after(&run.log);
    (run, store)
}

/// The conversation events of a run whose log arrives in another order and is read again in the end.
pub(crate) fn observed_in_any_order(world: &(Session, Dialect, u64), seed: u64) -> Vec<ConversationEvent> {
    let (run, store) = run_world(world);
    let mut client = Client::new(&run.root);
    let mut events = Vec::new();
    for event in &reordered(&run.log, &mut Dice::new(seed)) {
        events.extend(client.see(event).events);
    }
    events.extend(client.poll(&store, Snapshot::Complete).events);
    for info in &store.sessions {
        events.extend(client.tree.settle(&info.id).events);
    }
    events
}

/// Whatever the server sends of one session stays in order; how sessions are mixed is free, but a session is announced after
/// its parent. Within a session a message may come after its first parts, and a part after its first deltas.
fn reordered(log: &[ServerEvent], dice: &mut Dice) -> Vec<ServerEvent> {
    let mut strands: Vec<(SessionId, Vec<ServerEvent>)> = Vec::new();
    let mut parents: HashMap<SessionId, SessionId> = HashMap::new();
    for event in log {
        let Some(session) = event.payload.session_id() else { continue };
        if let EventPayload::SessionCreated(info) = &event.payload
            && let Some(parent) = &info.parent_id
        {
            parents.insert(info.id.clone(), parent.clone());
        }
        match strands.iter_mut().find(|(id, _)| id == session) {
            Some((_, strand)) => strand.push(event.clone()),
            None => strands.push((session.clone(), vec![event.clone()])),
        }
    }
    for (_, strand) in &mut strands {
        delay_firsts(strand, dice);
    }
    let mut strands: Vec<_> = strands.into_iter().map(|(id, strand)| (id, strand.into_iter())).collect();
    let mut announced = HashSet::new();
    let mut mixed = Vec::new();
    while !strands.is_empty() {
        let ready: Vec<usize> = (0..strands.len())
            .filter(|at| parents.get(&strands[*at].0).is_none_or(|parent| announced.contains(parent)))
            .collect();
        let at = ready[dice.below(ready.len())];
        announced.insert(strands[at].0.clone());
        match strands[at].1.next() {
            Some(event) => mixed.push(event),
            None => drop(strands.remove(at)),
        }
    }
    mixed
}

/// Lets the first sight of a message or part come a little later than what belongs to it.
fn delay_firsts(strand: &mut [ServerEvent], dice: &mut Dice) {
    let mut at = 0;
    while at + 1 < strand.len() {
        let may_swap = match (&strand[at].payload, &strand[at + 1].payload) {
            (EventPayload::MessageUpdated(info), EventPayload::PartUpdated { part, .. }) => *info.id() == part.message_id,
            (EventPayload::PartUpdated { part, .. }, EventPayload::PartDelta(delta)) => {
                part.id == delta.part_id && !strand[..at].iter().any(|event| {
                    matches!(&event.payload, EventPayload::PartDelta(earlier) if earlier.part_id == part.id)
                })
            }
            _ => false,
        };
        if may_swap && dice.one_in(2) {
            strand.swap(at, at + 1);
        }
        at += 1;
    }
}

/// The same text in other pieces.
fn rechunked(log: &[ServerEvent], dice: &mut Dice) -> Vec<ServerEvent> {
    let mut chunked: Vec<ServerEvent> = Vec::new();
    for event in log {
        let EventPayload::PartDelta(delta) = &event.payload else {
            chunked.push(event.clone());
            continue;
        };
        if let Some(EventPayload::PartDelta(last)) = chunked.last_mut().map(|event| &mut event.payload)
            && last.part_id == delta.part_id
            && dice.one_in(2)
        {
            last.delta.push_str(&delta.delta);
            continue;
        }
        let chars = delta.delta.char_indices().map(|(at, _)| at);
        let at = chars.collect::<Vec<_>>()[dice.below(delta.delta.chars().count())];
        for piece in [&delta.delta[..at], &delta.delta[at..]] {
            let mut delta = delta.clone();
            piece.clone_into(&mut delta.delta);
            let mut event = event.clone();
            event.payload = EventPayload::PartDelta(delta);
            chunked.push(event);
        }
    }
    chunked
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn streaming_gives_the_transcript(world in world()) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        for event in &run.log {
            client.see(event);
        }
        if run.is_interrupted {
            client.finish(&store);
        }
        assert_same(&client.state, &transcript(&run.root, &store))?;
        assert_same(&client.state, &loaded(&run.root, &store))?;
        // The mirror is the server's own view, too.
        for session in client.tree.sessions() {
            let mirror: Vec<_> = client.tree.messages(session).map(|message| (**message).clone()).collect();
            prop_assert_eq!(mirror, store.list(session));
        }
        let json = serde_json::to_string(&client.state).unwrap();
        assert_same(&client.state, &serde_json::from_str(&json).unwrap())?;
    }

    #[test]
    fn every_step_says_what_it_changed(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        client.is_checked = true;
        for event in &reordered(&run.log, &mut Dice::new(seed)) {
            client.see(event);
        }
        client.finish(&store);
    }

    #[test]
    fn chunking_does_not_matter(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        for event in &rechunked(&run.log, &mut Dice::new(seed)) {
            client.see(event);
        }
        if run.is_interrupted {
            client.finish(&store);
        }
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn duplication_does_not_matter(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut dice = Dice::new(seed);
        let mut client = Client::new(&run.root);
        for at in 0..run.log.len() {
            client.see(&run.log[at]);
            if dice.one_in(4) {
                // A stretch is delivered again, in order.
                let from = at.saturating_sub(dice.below(6));
                for event in &run.log[from..=at] {
                    client.see(event);
                }
            }
        }
        if run.is_interrupted {
            client.finish(&store);
        }
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn reordering_does_not_matter(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        for event in &reordered(&run.log, &mut Dice::new(seed)) {
            client.see(event);
        }
        if run.is_interrupted {
            client.finish(&store);
        }
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn lists_of_any_age_undo_nothing(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut dice = Dice::new(seed);
        let mut client = Client::new(&run.root);
        for (at, event) in run.log.iter().enumerate() {
            if dice.one_in(6) {
                // Mostly older than the stream, sometimes ahead of it.
                let age = if dice.one_in(4) { dice.below(run.log.len() + 1) } else { dice.below(at + 1) };
                client.poll(&Store::after(&run.log[..age]), Snapshot::Live);
            }
            client.see(event);
        }
        client.finish(&store);
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn polling_alone_gives_the_transcript(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut dice = Dice::new(seed);
        let mut client = Client::new(&run.root);
        let mut at = 0;
        while at < run.log.len() {
            client.poll(&Store::after(&run.log[..at]), Snapshot::Live);
            at += 1 + dice.below(20);
        }
        client.finish(&store);
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn a_gap_is_closed_by_a_list(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut dice = Dice::new(seed);
        let mut client = Client::new(&run.root);
        let lost = dice.below(run.log.len() + 1);
        let found = lost + dice.below(run.log.len() + 1 - lost);
        for event in &run.log[..lost] {
            client.see(event);
        }
        client.poll(&Store::after(&run.log[..found]), Snapshot::Live);
        for event in &run.log[found..] {
            client.see(event);
        }
        client.finish(&store);
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn resuming_from_a_list_gives_the_transcript(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let from = Dice::new(seed).below(run.log.len() + 1);
        let mut client = Client::new(&run.root);
        client.poll(&Store::after(&run.log[..from]), Snapshot::Live);
        for event in &run.log[from..] {
            client.see(event);
        }
        client.finish(&store);
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }

    #[test]
    fn what_is_over_stays_as_it_is(world in world(), seed: u64) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        for event in &run.log {
            client.see(event);
        }
        client.finish(&store);
        let end = client.state.clone();
        let mut dice = Dice::new(seed);
        for _ in 0..3 {
            let age = dice.below(run.log.len() + 1);
            let observed = client.poll(&Store::after(&run.log[..age]), Snapshot::Live);
            prop_assert!(!observed.progress);
            assert_same(&client.state, &end)?;
        }
        prop_assert!(client.poll(&store, Snapshot::Settled).is_empty());
        assert_same(&client.state, &end)?;
    }

    #[test]
    fn unrelated_sessions_leave_no_trace(world in world(), other in world()) {
        let (run, store) = run_world(&world);
        let mut client = Client::new(&run.root);
        let foreign = run_world(&other).0.log.into_iter().map(|event| rename(&event));
        for (event, foreign) in run.log.iter().zip(foreign.chain(std::iter::repeat(ServerEvent::from_json(r#"{"type":"server.heartbeat"}"#).unwrap()))) {
            prop_assert!(client.see(&foreign).is_empty());
            client.see(event);
        }
        if run.is_interrupted {
            client.finish(&store);
        }
        assert_same(&client.state, &loaded(&run.root, &store))?;
    }
}

/// The same event in a session of another tree.
fn rename(event: &ServerEvent) -> ServerEvent {
    let mut event = event.clone();
    let rename = |id: &mut SessionId| *id = SessionId::new(format!("{id}-other"));
    match &mut event.payload {
        EventPayload::SessionCreated(info) => {
            rename(&mut info.id);
            info.parent_id.iter_mut().for_each(rename);
        }
        EventPayload::PartUpdated { part, .. } => rename(&mut part.session_id),
        EventPayload::PartDelta(delta) => rename(&mut delta.session_id),
        EventPayload::SessionIdle { session_id } | EventPayload::SessionStatus { session_id, .. } => {
            rename(session_id);
        }
        _ => event.payload = EventPayload::ServerHeartbeat,
    }
    event
}

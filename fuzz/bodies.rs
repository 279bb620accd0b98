//! What must hold of any input: the bodies of the fuzz targets. The tests run them too, on the recordings and on every input
//! that once broke one of them.

use std::{
    collections::{HashMap, HashSet},
    mem::{Discriminant, discriminant},
    str,
};

use opencode_conductor::{
    Architecture, ConvertOptions, MessageId, Observed, OpenCodeFormat, OpenCodeOptions, PartId,
    SessionConversationState, SessionId, SessionTree, Snapshot, Transcript, TranscriptError,
    claude::{
        ClaudeFiles, FileRead, SessionMirror, SubagentFile,
        wire::{StreamMessage, TranscriptLine},
    },
    markdown::{self, MarkdownOptions},
    message_signature, parse_claude, parse_opencode, parse_transcript,
    wire::{EventPayload, Message, MessageInfo, Part, PartBody, ServerEvent},
};
use serde_json::Value;

#[cfg(feature = "client")]
#[path = "../src/opencode/client/sse.rs"]
mod decoder;

/// The first byte is the limit of an event's size, as a power of two; the second how long the chunks are; the rest is the stream.
#[cfg(feature = "client")]
pub fn sse(input: &[u8]) {
    let [limit, size, stream @ ..] = input else { return };
    let limit = 1_usize << (limit % 20);
    let whole = sse_events(limit, [stream]);
    assert_eq!(sse_events(limit, stream.chunks(usize::from(*size).max(1))), whole, "in chunks of {size}");
    assert_eq!(sse_events(limit, stream.chunks(1)), whole, "byte by byte");
    // A replacement character takes three bytes where an invalid one took one.
    assert!(whole.iter().flatten().all(|event| event.len() <= 3 * limit), "the limit holds");
    if whole.iter().all(Option::is_some) && stream.len() <= limit {
        let events: Vec<String> = whole.into_iter().flatten().collect();
        assert_eq!(events, sse_by_the_book(stream));
    }
}

#[cfg(feature = "client")]
fn sse_events<'a>(limit: usize, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Option<String>> {
    let limit = std::num::NonZeroUsize::new(limit).expect("a power of two");
    let mut decoder = decoder::EventDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        let mut chunk = chunk;
        while let Some(event) = decoder.next(&mut chunk) {
            if let Err(error) = &event {
                assert_eq!(error.limit, limit.get());
            }
            events.push(event.ok().map(std::borrow::Cow::into_owned));
        }
        assert!(chunk.is_empty(), "all of it is taken");
    }
    events
}

/// The events as the standard words it, with everything in memory.
#[cfg(feature = "client")]
fn sse_by_the_book(stream: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut events, mut data) = (Vec::new(), None::<String>);
    // What follows the last line end is no line yet.
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if line.is_empty() {
            events.extend(data.take());
        } else if name == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => data.extend(["\n", value]),
                None => data = Some(value.to_owned()),
            }
        }
    }
    events
}

/// The JSON of one event.
pub fn event(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Ok(event) = ServerEvent::from_json(text) else { return };
    let Ok(value) = serde_json::from_str::<Value>(text) else { return };
    let again = ServerEvent::from_json(&value.to_string()).expect("the same JSON in another spelling");
    assert_eq!(again, event, "spelling does not matter");
    if let EventPayload::Unknown { kind, properties } = &event.payload {
        let bare = if value["type"].is_string() { &value } else { &value["payload"] };
        assert_eq!(bare["type"], kind.as_str(), "the unknown is kept");
        assert!(bare.get("properties").is_none_or(|kept| kept == properties), "the unknown is kept");
    }
    let root = event.payload.session_id().cloned().unwrap_or_default();
    let mut tree = SessionTree::new(root, ConvertOptions::default());
    let mut state = SessionConversationState::new();
    see_event(&mut tree, &mut state, &event);
    check_state(&state);
}

/// The JSON of a list of messages.
pub fn messages(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Ok(list) = Message::list_from_json(text) else { return };
    for error in &list.malformed {
        assert!(error.path().starts_with('['), "an error names its place: {error}");
    }
    let json = serde_json::to_string(&list.items).expect("messages can be written");
    let again = Message::list_from_json(&json).expect("and read again");
    assert!(again.malformed.is_empty(), "{:?}", again.malformed);
    assert_eq!(again.items, list.items);
    for (one, two) in list.items.iter().zip(&again.items) {
        assert_eq!(message_signature(one), message_signature(two));
    }
    let Some(first) = list.items.first() else { return };
    let root = first.info.session_id().clone();
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    check_state(&state_of(&tree.apply_messages(&root, &list.items, Snapshot::Live)));
    if !Names::default().admit_list(&root, &list.items) {
        return;
    }
    let load = |snapshots: &[Snapshot]| {
        let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
        let mut state = SessionConversationState::new();
        for snapshot in snapshots {
            see_list(&mut tree, &mut state, &root, &list.items, *snapshot);
        }
        state.extend(&tree.settle(&root).events);
        state
    };
    let loaded = load(&[Snapshot::Complete]);
    assert_same(&load(&[Snapshot::Live, Snapshot::Complete]), &loaded);
    assert_same(&load(&[Snapshot::Complete, Snapshot::Live, Snapshot::Settled]), &loaded);
    check_state(&loaded);
}

/// A file: a message list, an export, or a log of events.
pub fn transcript(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let summary = |result: Result<Transcript, TranscriptError>| match result {
        Ok(Transcript { state, root, malformed, .. }) => {
            let malformed: Vec<String> = malformed.iter().map(ToString::to_string).collect();
            Ok((state, root, malformed))
        }
        Err(error) => Err(error.to_string()),
    };
    let loaded = summary(parse_transcript(Architecture::OpenCode, text));
    assert_eq!(summary(parse_transcript(Architecture::OpenCode, text)), loaded, "two loads are equal");
    if let Ok((state, root, _)) = &loaded {
        check_state(state);
        assert!(
            root.is_some() || *state == SessionConversationState::new(),
            "without a root nothing is said"
        );
    }
    for format in [OpenCodeFormat::Events, OpenCodeFormat::Messages, OpenCodeFormat::Export] {
        let options = OpenCodeOptions::default().format(format);
        if let Ok(transcript) = parse_opencode(&[text], &options) {
            check_state(&transcript.state);
        }
    }
}

/// A session as it is observed: the root's id, then a line for each event or list of messages, in any order.
pub fn fold(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let mut lines = text.lines();
    let Some(root) = lines.next().map(SessionId::new) else { return };
    let lines: Vec<Line> = lines.filter_map(Line::read).collect();

    // Whatever it says, it can be folded.
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for line in &lines {
        match line {
            Line::Event(event) => state.extend(&tree.apply_event(&**event).events),
            Line::List(list, _) => state.extend(&tree.apply_messages(&root, list, Snapshot::Complete).events),
        }
    }
    check_state(&state);

    // And if a server could have said it, it can be repeated and stored at any time.
    let mut names = Names::default();
    let mut tree = SessionTree::new(root.clone(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for (index, line) in lines.iter().enumerate() {
        match line {
            Line::Event(event) if names.admit_event(event) => see_event(&mut tree, &mut state, event),
            Line::List(list, is_whole) => {
                let session = list.first().map_or(&root, |message| message.info.session_id());
                if names.admit_list(session, list) {
                    // What could not be decoded is not gone.
                    let kind = if *is_whole { index % 3 } else { 0 };
                    let snapshot = [Snapshot::Live, Snapshot::Settled, Snapshot::Complete][kind];
                    see_list(&mut tree, &mut state, session, list, snapshot);
                }
            }
            Line::Event(_) => {}
        }
        if index % 16 == 0 {
            state = check_state(&state);
        }
    }
    let sessions: Vec<SessionId> = tree.sessions().cloned().collect();
    for session in &sessions {
        state.extend(&tree.settle(session).events);
        assert!(tree.settle(session).events.is_empty(), "a session comes to rest once");
    }
    check_state(&state);
}

/// A line of Claude Code: of its stream, and of a transcript.
pub fn claude_line(input: &[u8]) {
    let streamed = format!("{:?}", StreamMessage::from_bytes(input));
    assert_eq!(format!("{:?}", StreamMessage::from_bytes(input)), streamed);
    let written = TranscriptLine::from_bytes(input);
    if let (Ok(TranscriptLine::Unknown(line)), Ok(text)) = (&written, str::from_utf8(input)) {
        assert_eq!(&*line.json, text, "what is not known is kept");
    }
    if let Ok(message) = StreamMessage::from_bytes(input) {
        let mut state = SessionConversationState::new();
        let mut mirror = SessionMirror::new(ConvertOptions::default());
        for _ in 0..2 {
            state.extend(&mirror.stream(&message));
        }
        check_state(&state);
    }
}

/// A session of Claude Code: lines of its stream and of its transcript, in any order.
pub fn claude_session(input: &[u8]) {
    let mut mirror = SessionMirror::new(ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(message) = StreamMessage::from_bytes(line) {
            state.extend(&mirror.stream(&message));
        }
    }
    check_state(&state);
    let half = input.len() / 2;
    let (files, _) = ClaudeFiles::decode(&input[..half], &[SubagentFile::new("agent-a", &input[half..])]);
    state.extend(&mirror.files(&files, FileRead::MayLag));
    check_state(&state);
    state.extend(&mirror.files(&files, FileRead::Final));
    check_state(&state);
    let load = || {
        parse_claude(input, &[], ConvertOptions::default(), |_| {}).ok().map(|transcript| transcript.state)
    };
    let loaded = load();
    assert_eq!(load(), loaded, "two loads are equal");
    if let Some(state) = &loaded {
        check_state(state);
    }
}

enum Line {
    Event(Box<ServerEvent>),
    /// And whether all of it could be decoded.
    List(Vec<Message>, bool),
}

impl Line {
    fn read(line: &str) -> Option<Self> {
        if let Ok(event) = ServerEvent::from_json(line) {
            return Some(Self::Event(Box::new(event)));
        }
        let list = Message::list_from_json(line).ok()?;
        Some(Self::List(list.items, list.malformed.is_empty()))
    }
}

/// What is known by its id. The server's ids are unique, say what they name, and never come to name something else.
#[derive(Default)]
struct Names {
    messages: HashMap<MessageId, (SessionId, Discriminant<MessageInfo>)>,
    parts: HashMap<PartId, (MessageId, SessionId, Discriminant<PartBody>)>,
}

impl Names {
    /// Whether a server could have said it.
    fn admit_event(&mut self, event: &ServerEvent) -> bool {
        match &event.payload {
            EventPayload::MessageUpdated(info) => self.admit_info(info),
            EventPayload::PartUpdated { part, .. } => self.admit_part(part),
            _ => true,
        }
    }

    /// Whether a server could have listed it.
    fn admit_list(&mut self, session: &SessionId, messages: &[Message]) -> bool {
        let mut once = HashSet::new();
        messages.iter().all(|message| {
            let id = message.info.id();
            let is_ours = |part: &Part| part.message_id == *id;
            once.insert(id.as_str())
                && message.info.session_id() == session
                && self.admit_info(&message.info)
                && message
                    .parts
                    .iter()
                    .all(|part| once.insert(part.id.as_str()) && is_ours(part) && self.admit_part(part))
        })
    }

    fn admit_info(&mut self, info: &MessageInfo) -> bool {
        let name = (info.session_id().clone(), discriminant(info));
        let is_known = info.session_id().as_str().starts_with("ses") && info.id().as_str().starts_with("msg");
        is_known && *self.messages.entry(info.id().clone()).or_insert_with(|| name.clone()) == name
    }

    fn admit_part(&mut self, part: &Part) -> bool {
        let name = (part.message_id.clone(), part.session_id.clone(), discriminant(&part.body));
        let is_known = part.session_id.as_str().starts_with("ses")
            && part.message_id.as_str().starts_with("msg")
            && part.id.as_str().starts_with("prt")
            && self.messages.get(&part.message_id).is_none_or(|(session, _)| *session == part.session_id);
        is_known && *self.parts.entry(part.id.clone()).or_insert_with(|| name.clone()) == name
    }
}

fn state_of(observed: &Observed) -> SessionConversationState {
    let mut state = SessionConversationState::new();
    state.extend(&observed.events);
    state
}

/// Takes in an event, and then once more, which changes nothing unless it adds to a text.
fn see_event(tree: &mut SessionTree, state: &mut SessionConversationState, event: &ServerEvent) {
    state.extend(&tree.apply_event(event).events);
    if !matches!(event.payload, EventPayload::PartDelta(_)) {
        check_repeated(&tree.apply_event(event), state);
    }
}

/// Takes in a list, and then once more, which changes nothing.
fn see_list(
    tree: &mut SessionTree,
    state: &mut SessionConversationState,
    session: &SessionId,
    messages: &[Message],
    snapshot: Snapshot,
) {
    state.extend(&tree.apply_messages(session, messages, snapshot).events);
    check_repeated(&tree.apply_messages(session, messages, snapshot), state);
}

fn check_repeated(observed: &Observed, state: &SessionConversationState) {
    assert!(!observed.progress, "a repetition is no progress");
    let mut after = state.clone();
    after.extend(&observed.events);
    assert_same(&after, state);
}

/// Writes, reads and renders a state; gives what was read.
fn check_state(state: &SessionConversationState) -> SessionConversationState {
    let json = serde_json::to_string(state).expect("a state can be written");
    let read: SessionConversationState = serde_json::from_str(&json).expect("and read again");
    assert_same(&read, state);
    let options = MarkdownOptions::default();
    assert_eq!(markdown::render(&read, &options), markdown::render(state, &options));
    read
}

fn assert_same(one: &SessionConversationState, two: &SessionConversationState) {
    if one != two {
        let text = |state| serde_json::to_string_pretty(state).expect("a state can be written");
        panic!("the states differ:\n{}\n--- and\n{}", text(one), text(two));
    }
}

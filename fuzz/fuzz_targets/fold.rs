//! Any lines as the events of a session, and any line as its messages: merged, folded, written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use opencode_conductor::{
    Architecture, SessionConversationState, SessionTree, Snapshot,
    convert::ConvertOptions,
    markdown::{self, MarkdownOptions},
    parse_transcript,
    wire::{Message, ServerEvent},
};

fuzz_target!(|text: &str| {
    let mut tree = SessionTree::new("ses_1".into(), ConvertOptions::default());
    let mut state = SessionConversationState::new();
    for (index, line) in text.lines().enumerate() {
        if let Ok(event) = ServerEvent::from_json(line) {
            state.extend(&tree.apply_event(&event).events);
        }
        if let Ok(list) = Message::list_from_json(line) {
            let snapshot = [Snapshot::Live, Snapshot::Settled, Snapshot::Complete][index % 3];
            state.extend(&tree.apply_messages(&"ses_1".into(), &list.items, snapshot).events);
        }
    }
    state.extend(&tree.settle(&"ses_1".into()).events);
    let json = serde_json::to_string(&state).expect("a state can be written");
    let read: SessionConversationState = serde_json::from_str(&json).expect("and read again");
    assert_eq!(read, state);
    drop(markdown::render(&state, &MarkdownOptions::default()));
    drop(parse_transcript(Architecture::OpenCode, text));
});

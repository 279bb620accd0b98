//! What holds of Claude Code's sessions however their lines come.

use std::sync::LazyLock;

use opencode_conductor::{
    SessionConversationState,
    claude::{FileRead, SessionMirror, wire::StreamMessage},
};
use proptest::{prelude::*, sample::Index};

use crate::claude_parity::{Recording, recordings};

/// Those whose stream and files say the same, read once for all cases.
static EQUAL: LazyLock<Vec<Recording>> =
    LazyLock::new(|| recordings().into_iter().filter(Recording::is_equal).collect());

/// A mirror, and the state that its events fold to.
#[derive(Default)]
struct Watched {
    mirror: SessionMirror,
    state: SessionConversationState,
}

impl Watched {
    fn stream(&mut self, message: &StreamMessage) {
        self.state.extend(&self.mirror.stream(message));
    }

    fn files(&mut self, recording: &Recording, part: f64) {
        self.state.extend(&self.mirror.files(&recording.files(part), FileRead::MayLag));
    }
}

/// Whether a line may come twice: pieces may not.
fn is_whole(message: &StreamMessage) -> bool {
    !matches!(message, StreamMessage::Partial(_))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_may_be_read_in_pieces(which: Index, parts in prop::collection::vec(0.0..1.0_f64, 0..4)) {
        let recording = which.get(&EQUAL);
        let mut watched = Watched::default();
        for part in parts {
            watched.files(recording, part);
        }
        watched.state.extend(&watched.mirror.files(&recording.files(1.0), FileRead::Final));
        prop_assert_eq!(watched.state, recording.loaded(), "{}", recording.name);
    }

    #[test]
    fn a_line_may_come_twice(which: Index, repeated in prop::collection::vec((any::<Index>(), any::<Index>()), 1..6)) {
        let recording = which.get(&EQUAL);
        let messages = recording.messages();
        let mut watched = Watched::default();
        for (at, message) in messages.iter().enumerate() {
            watched.stream(message);
            for (from, to) in &repeated {
                let (from, to) = (from.index(messages.len()), to.index(messages.len()));
                if to == at && from <= at && is_whole(&messages[from]) {
                    watched.stream(&messages[from]);
                }
            }
        }
        prop_assert_eq!(watched.state, recording.streamed(), "{}", recording.name);
    }

    #[test]
    fn a_session_that_is_resumed_may_begin_with_what_is_known(which: Index, until in 0.0..1.0_f64) {
        let recording = which.get(&EQUAL);
        let mut watched = Watched::default();
        watched.files(recording, until);
        for message in recording.messages() {
            watched.stream(&message);
        }
        watched.files(recording, 1.0);
        prop_assert_eq!(watched.state, recording.loaded(), "{}", recording.name);
    }

    #[test]
    fn a_file_may_be_read_at_any_time(which: Index, reads in prop::collection::vec((any::<Index>(), 0.0..=1.0_f64), 1..4)) {
        let recording = which.get(&EQUAL);
        let messages = recording.messages();
        let mut watched = Watched::default();
        for (at, message) in messages.iter().enumerate() {
            watched.stream(message);
            for (when, part) in &reads {
                if when.index(messages.len()) == at {
                    watched.files(recording, *part);
                }
            }
        }
        watched.files(recording, 1.0);
        prop_assert_eq!(watched.state, recording.loaded(), "{}", recording.name);
    }
}

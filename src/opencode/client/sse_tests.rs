use super::*;

const LIMIT: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

/// Decodes chunks; an event that was too large shows as `None`.
fn decode<'a>(limit: NonZeroUsize, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Option<String>> {
    let mut decoder = EventDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        let mut chunk = chunk;
        while let Some(event) = decoder.next(&mut chunk) {
            events.push(event.ok().map(Cow::into_owned));
        }
        assert!(chunk.is_empty());
    }
    events
}

fn some(events: &[&str]) -> Vec<Option<String>> {
    events.iter().map(|event| Some((*event).to_owned())).collect()
}

#[test]
fn line_ends_comments_marks_and_multiple_lines_are_understood() {
    let rows: &[(&[u8], &[&str])] = &[
        (b"data: a\n\n", &["a"]),
        (b"data:a\n\n", &["a"]),
        (b"data: a\r\rdata: b\r\r", &["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
        (b"\xef\xbb\xbfdata: a\n\n", &["a"]),
        (b": hello\n\ndata: a\n: in between\ndata: b\n\n", &["a\nb"]),
        (b"event: x\nid: 7\nretry: 10\nunknown: 1\ndata: a\n\n", &["a"]),
        (b"data: {\"text\":\"caf\xc3\xa9\"}\n\n", &["{\"text\":\"caf\u{e9}\"}"]),
        (b"data: a\xffb\n\ndata: c\n\n", &["a\u{fffd}b", "c"]),
        (b"data\n\ndata: a\n\n", &["", "a"]),
        (b"data: unfinished\n", &[]),
    ];
    for (bytes, expected) in rows {
        assert_eq!(decode(LIMIT, [*bytes]), some(expected), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn any_cut_gives_the_same_events() {
    let bytes = "\u{feff}data: caf\u{e9} \u{1f980}\r\n\r\n: c\r\ndata: x\ndata: y\n\ndata: z\r\r".as_bytes();
    let whole = decode(LIMIT, [bytes]);
    assert_eq!(whole, some(&["caf\u{e9} \u{1f980}", "x\ny", "z"]));
    for cut in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(cut);
        assert_eq!(decode(LIMIT, [head, tail]), whole, "cut at {cut}");
    }
    assert_eq!(decode(LIMIT, bytes.chunks(1)), whole);
}

#[test]
fn an_event_over_the_limit_is_reported_and_the_next_one_arrives() {
    let limit = NonZeroUsize::new(8).unwrap();
    let bytes = b"data: 12345678\n\ndata: 123456789\ndata: more\n\ndata: 1234\ndata: 5678\n\ndata: ok\n\n";
    let expected = [Some("12345678".to_owned()), None, None, Some("ok".to_owned())];
    assert_eq!(decode(limit, [bytes.as_slice()]), expected);
    assert_eq!(decode(limit, bytes.chunks(1)), expected);
    assert_eq!(decode(limit, bytes.chunks(5)), expected);
}

#[test]
fn a_large_event_leaves_no_large_buffers_behind() {
    let limit = NonZeroUsize::new(16 << 20).unwrap();
    let mut decoder = EventDecoder::new(limit);
    let text = format!("data: {}\r\n\r\ndata: small\r\n\r\n", "x".repeat(8 << 20));
    let mut bytes = text.as_bytes();
    assert_eq!(decoder.next(&mut bytes).unwrap().unwrap().len(), 8 << 20);
    let small = decoder.next(&mut bytes).unwrap().unwrap().into_owned();
    assert_eq!(small, "small");
    assert!(small.capacity() <= KEEP_CAPACITY, "{}", small.capacity());
}

#[test]
fn an_event_that_stands_whole_in_a_chunk_is_not_copied() {
    let mut decoder = EventDecoder::new(LIMIT);
    let mut chunk = b"data: a\n\ndata: b\n\ndata: c\ndata: d\n\ndata: e\n\ndata: f".as_slice();
    let mut events = Vec::new();
    while let Some(event) = decoder.next(&mut chunk) {
        let event = event.unwrap();
        events.push((matches!(event, Cow::Borrowed(_)), event.into_owned()));
    }
    let expected = [(false, "a"), (true, "b"), (false, "c\nd"), (true, "e")];
    assert_eq!(events, expected.map(|(borrowed, event)| (borrowed, event.to_owned())));
}

proptest::proptest! {
    #[test]
    fn any_bytes_in_any_chunks_give_the_same_events(
        bytes in proptest::collection::vec(proptest::prelude::prop_oneof![
            4 => proptest::sample::select(b"data: \r\n".to_vec()),
            1 => proptest::num::u8::ANY,
        ], 0..200),
        size in 1_usize..20,
    ) {
        let limit = NonZeroUsize::new(16).unwrap();
        proptest::prop_assert_eq!(decode(limit, bytes.chunks(size)), decode(limit, [bytes.as_slice()]));
    }
}

//! Any text as an event: a typed error at worst.

#![no_main]

use libfuzzer_sys::fuzz_target;
use opencode_conductor::wire::{Message, ServerEvent};

fuzz_target!(|text: &str| {
    drop(ServerEvent::from_json(text));
    drop(Message::list_from_json(text));
});

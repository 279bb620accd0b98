//! A fingerprint of a message, to tell polled snapshots apart.

use std::io;

use crate::opencode::wire::Message;

/// A fixed-size fingerprint of a message: two snapshots that differ in anything a caller can see have different ones.
///
/// It is the 64-bit FNV-1a hash of the message's JSON as this crate writes it: role, times, finish, error, usage, and
/// every part with its id, kind, tool state and text, unknown fields included. The same in every process and on every
/// machine.
pub fn message_signature(message: &Message) -> u64 {
    let mut hash = Fnv1a(0xcbf2_9ce4_8422_2325);
    match serde_json::to_writer(&mut hash, message) {
        Ok(()) => hash.0,
        // Neither the writer nor these types can fail.
        Err(_) => 0,
    }
}

struct Fnv1a(u64);

impl io::Write for Fnv1a {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! Ids that the client chooses.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::{
    ids::{MessageId, PartId},
    time::Millis,
    wall_clock::now,
};

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Makes ids as the server makes them: 48 bits of time and counter in hex, then 14 random characters.
///
/// Servers up to 1.18.14 order messages by id. There an id from before the last answer is silently ignored, and one from the
/// future makes the model run until the clock has caught up. So ids follow the *server's* clock and never go back.
#[derive(Debug, Default)]
pub(super) struct Mint {
    /// The last value of the 48 bits, before they are cut to 48.
    last: AtomicI64,
    /// How far the server's clock is ahead of ours, in milliseconds.
    ahead: AtomicI64,
}

impl Mint {
    /// Learns the server's clock from a moment that it just reported.
    pub(super) fn server_said(&self, moment: Millis) {
        self.ahead.store(moment.get().saturating_sub(now().get()), Relaxed);
    }

    /// An id for a message that comes after everything that was created at `last`.
    pub(super) fn message(&self, last: Option<Millis>) -> MessageId {
        // What is known of the server's clock is always a little late, but never later than what the server wrote.
        let earliest = last.map_or(i64::MIN, |last| last.get().saturating_add(1));
        MessageId::from(self.id("msg", earliest))
    }

    pub(super) fn part(&self) -> PartId {
        PartId::from(self.id("prt", i64::MIN))
    }

    fn id(&self, prefix: &str, earliest: i64) -> String {
        let moment = now().get().saturating_add(self.ahead.load(Relaxed)).max(earliest);
        // A clock beyond all reason must not leave the counter without room.
        let moment = moment.clamp(0, i64::MAX >> 13) * 4096;
        let next = |last: i64| Some(moment.max(last + 1));
        let last = self.last.fetch_update(Relaxed, Relaxed, next).unwrap_or_default();
        let value = moment.max(last + 1) & 0xffff_ffff_ffff;
        let tail: String = (0..14).map(|_| char::from(BASE62[fastrand::usize(..BASE62.len())])).collect();
        format!("{prefix}_{value:012x}{tail}")
    }
}

/// The id of the n-th part of a message whose id the caller chose.
pub(super) fn part_of(message: &MessageId, n: usize) -> PartId {
    let name = message.as_str();
    PartId::from(format!("prt_{}{n:03}", name.strip_prefix("msg_").unwrap_or(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_and_look_like_the_servers() {
        let mint = Mint::default();
        let ids: Vec<MessageId> = (0..10_000).map(|_| mint.message(None)).collect();
        assert!(ids.is_sorted_by(|a, b| a.as_str()[..16] < b.as_str()[..16]), "strictly ascending");
        assert!(ids.iter().all(|id| id.as_str().len() == 30 && id.as_str().starts_with("msg_")));
        assert!(mint.part().as_str().starts_with("prt_"));
    }

    #[test]
    fn ids_follow_the_servers_clock() {
        let mint = Mint::default();
        let first = mint.message(None);
        mint.server_said(Millis::new(now().get() + 1_000_000));
        let hex = |id: &MessageId| i64::from_str_radix(&id.as_str()[4..16], 16).unwrap();
        let ahead = (hex(&mint.message(None)) - hex(&first)).rem_euclid(1 << 48) / 4096;
        assert!((999_000..1_100_000).contains(&ahead), "{ahead}");
        let answer = Millis::new(now().get() + 5_000_000);
        let ahead = (hex(&mint.message(Some(answer))) - hex(&first)).rem_euclid(1 << 48) / 4096;
        assert!((4_999_000..5_100_000).contains(&ahead), "younger than the last answer: {ahead}");
    }

    #[test]
    fn an_absurd_clock_of_the_server_does_no_harm() {
        let mint = Mint::default();
        mint.server_said(Millis::new(i64::MAX));
        mint.part();
        let (one, two) = (mint.message(None), mint.message(None));
        assert!(one.as_str()[..16] < two.as_str()[..16], "{one} {two}");
    }
}

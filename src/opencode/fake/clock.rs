//! Time and ids as the server makes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BASE62: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The server's clock, which a test may set wrong, and the ids made from it.
#[derive(Debug, Default)]
pub(super) struct Clock {
    skew_ms: i64,
    last_ms: u64,
    counter: u64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a fake of another machine has a clock of its own")]
    pub(super) fn now_ms(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        now.saturating_add_signed(self.skew_ms)
    }

    pub(super) fn set_skew(&mut self, skew: Duration, behind: bool) {
        let ms = i64::try_from(skew.as_millis()).unwrap_or(i64::MAX);
        self.skew_ms = if behind { -ms } else { ms };
    }

    /// An id that sorts by time: 48 bits of time and a counter, then chance.
    pub(super) fn ascending(&mut self, prefix: &str) -> String {
        let now = self.now_ms();
        if now == self.last_ms {
            self.counter += 1;
        } else {
            self.last_ms = now;
            self.counter = 1;
        }
        let stamp = now.wrapping_mul(4096).wrapping_add(self.counter);
        format!("{prefix}_{:012x}{}", stamp & 0xffff_ffff_ffff, random_tail())
    }

    /// An id that sorts against time, as the server gives sessions.
    pub(super) fn descending(&mut self, prefix: &str) -> String {
        let now = self.now_ms();
        let stamp = !now.wrapping_mul(4096).wrapping_add(1);
        format!("{prefix}_{:012x}{}", stamp & 0xffff_ffff_ffff, random_tail())
    }
}

fn random_tail() -> String {
    (0..14).map(|_| char::from(BASE62[fastrand::usize(..BASE62.len())])).collect()
}

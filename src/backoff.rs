//! Pauses that grow.

use std::time::Duration;

/// Doubling pauses with jitter, between half of the nominal length and all of it.
///
/// Half is kept so that a storm really slows down; the other half is random so that many clients do not return at once.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    base: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, failures: 0 }
    }

    /// The next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        self.pause(fastrand::f64())
    }

    /// The next pause; `random` is between 0 and 1.
    fn pause(&mut self, random: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let nominal = self.base.saturating_mul(factor).min(self.max);
        self.failures = self.failures.saturating_add(1);
        nominal.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Starts again from the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
        let mut pauses = |random: f64, count: usize| -> Vec<u128> {
            (0..count).map(|_| backoff.pause(random).as_millis()).collect()
        };
        assert_eq!(pauses(1.0, 6), [200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(pauses(0.0, 40).last(), Some(&1500));
        backoff.reset();
        assert_eq!(backoff.pause(0.5).as_millis(), 150);
    }
}

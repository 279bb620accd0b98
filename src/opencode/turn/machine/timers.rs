//! The moments at which a turn wants to be woken.

use std::time::Duration;

/// What a turn may wait for that only time brings. Each is set where its wait begins, and stopped where that is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// The event stream was given time enough to open.
    StreamPatience,
    /// The pause before an unclear or undelivered submission is repeated is over.
    Resubmit,
    /// What is about to be concluded has lasted for its grace.
    Confirm,
    /// A limit runs out.
    Limit,
    /// The read that looks for unheard progress once a limit has run out was given time enough.
    LastLook,
    /// The stream is open and has been silent.
    Silence,
    /// The pause between two reads is over.
    ReadPause,
    /// The read that closes an aborted turn was given time enough.
    LastRead,
}

impl Timer {
    const ALL: [Self; 8] = [
        Self::StreamPatience,
        Self::Resubmit,
        Self::Confirm,
        Self::Limit,
        Self::LastLook,
        Self::Silence,
        Self::ReadPause,
        Self::LastRead,
    ];
}

/// When each timer fires.
#[derive(Debug, Default)]
pub(super) struct TimerTable {
    at: [Option<Duration>; Timer::ALL.len()],
}

impl TimerTable {
    /// Lets a timer fire at a moment, and no longer at another.
    pub(super) fn set(&mut self, timer: Timer, at: Duration) {
        self.at[timer as usize] = Some(at);
    }

    /// Lets a timer not fire.
    pub(super) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = None;
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    /// Whether a timer has yet to fire.
    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize].is_some()
    }

    /// The moment of the timer that fires first.
    pub(super) fn next(&self) -> Option<Duration> {
        self.at.iter().flatten().min().copied()
    }

    /// A timer that fires by now; it is stopped.
    pub(super) fn pop_expired(&mut self, now: Duration) -> Option<Timer> {
        let expired = |timer: &Timer| self.at[*timer as usize].is_some_and(|at| at <= now);
        let timer = Timer::ALL.into_iter().find(expired)?;
        self.stop(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_and_not_before_its_moment() {
        let second = Duration::from_secs;
        let mut timers = TimerTable::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Limit, second(9));
        timers.set(Timer::Silence, second(5));
        timers.set(Timer::Silence, second(7));
        assert_eq!(timers.next(), Some(second(7)));
        assert_eq!(timers.pop_expired(second(6)), None);
        assert_eq!(timers.pop_expired(second(7)), Some(Timer::Silence));
        assert_eq!(timers.pop_expired(second(7)), None);
        assert!(timers.is_set(Timer::Limit) && !timers.is_set(Timer::Silence));
        timers.stop(Timer::Limit);
        assert_eq!(timers.pop_expired(second(99)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn every_timer_has_a_place_of_its_own() {
        for (index, timer) in Timer::ALL.into_iter().enumerate() {
            assert_eq!(timer as usize, index);
        }
    }
}

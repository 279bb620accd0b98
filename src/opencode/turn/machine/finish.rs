//! How a turn runs out of time, is aborted, and ends.

use std::time::Duration;

use super::{Action, Ended, Goal, Limit, Scope, Stage, TimeoutAction, Timer, Turn};
use crate::opencode::mirror::SessionTree;

/// How long a last look for progress may take once a limit has run out.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// How long the reads that close an aborted turn may take.
const LAST_READ: Duration = Duration::from_secs(5);
/// The pause between them. Servers before 1.18 write down the end of what was aborted up to 0.6 s after they have said that nothing
/// runs, and that of a subagent later still.
const LAST_READ_PAUSE: Duration = Duration::from_millis(200);

/// A limit that has run out. The turn ends when a last read has looked for progress that was not heard of, or at
/// [`Timer::LastLook`].
#[derive(Debug)]
pub(super) struct Overdue {
    pub(super) limit: Limit,
    pub(super) since: Duration,
    pub(super) has_looked: bool,
}

/// What becomes of messages that a turn leaves unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// Nothing: the server has confirmed that nothing runs.
    Final,
    /// The run may go on.
    MayChange,
}

impl Turn {
    /// Keeps the timer of the limit in force, and ends the turn when that has run out; but not before a read has looked for
    /// progress that was not heard of.
    pub(super) fn check_limit(&mut self, now: Duration) {
        if self.is_ending() {
            return;
        }
        let Some((limit, at)) = self.limits.in_force(&self.options, &self.facts) else {
            self.timers.stop(Timer::Limit);
            return self.timers.stop(Timer::LastLook);
        };
        let overdue = match &mut self.stage {
            Stage::Waiting(waiting) => Some(&mut waiting.overdue),
            _ => None,
        };
        if now < at {
            self.timers.set(Timer::Limit, at);
            self.timers.stop(Timer::LastLook);
            if let Some(overdue) = overdue {
                *overdue = None;
            }
            return;
        }
        self.timers.stop(Timer::Limit);
        match overdue {
            // There is nothing to look for before the server has the prompt, and nothing to hope for after a deadline.
            None => self.run_out(now, limit),
            Some(_) if limit == Limit::Deadline => self.run_out(now, limit),
            Some(Some(overdue)) if overdue.limit == limit => {
                if overdue.has_looked {
                    self.run_out(now, limit);
                }
            }
            Some(overdue) => {
                *overdue = Some(Overdue { limit, since: now, has_looked: false });
                self.timers.set(Timer::LastLook, now + LAST_LOOK);
                self.reads.want(Scope::ALL);
            }
        }
    }

    pub(super) fn run_out(&mut self, now: Duration, limit: Limit) {
        let ended = Ended::Limit(limit);
        match self.options.on_limit {
            TimeoutAction::Abort => self.abort(ended),
            TimeoutAction::Leave if self.is_untouched() => self.finish(ended),
            TimeoutAction::Leave => self.close(now, ended, Leftovers::MayChange),
        }
    }

    pub(super) fn abort(&mut self, ended: Ended) {
        if self.is_ending() {
            return;
        }
        if self.is_untouched() {
            return self.finish(ended);
        }
        self.timers.stop_all();
        self.reads.reset();
        self.stage = Stage::Aborting { ended };
        self.step.actions.push(Action::Abort);
    }

    /// Whether the turn's end is decided.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Aborting { .. } | Stage::Closing { .. } | Stage::Finished)
    }

    /// Whether the server cannot have anything of this turn.
    fn is_untouched(&self) -> bool {
        self.goal != Goal::Rest && self.submissions.is_unsent()
    }

    /// Reads what the turn has left behind, as far as that can be read, before it ends.
    pub(super) fn close(&mut self, now: Duration, ended: Ended, leftovers: Leftovers) {
        self.timers.stop_all();
        self.timers.set(Timer::LastRead, now + LAST_READ);
        self.reads.reset();
        self.reads.want(Scope::MESSAGES.with_tree(self.facts.descendant_open));
        self.stage = Stage::Closing { ended, leftovers, is_read: false };
    }

    /// Takes in that what a turn has left behind was read. What an abort ended is read until it has its end.
    pub(super) fn closing_read(&mut self, now: Duration, scope: Scope) {
        let Stage::Closing { leftovers, is_read, .. } = &mut self.stage else { return };
        if *leftovers == Leftovers::Final && (self.facts.incomplete > 0 || self.facts.descendant_open) {
            self.timers.set(Timer::ReadPause, now + LAST_READ_PAUSE);
            self.reads.want(scope.with_tree(self.facts.descendant_open));
        } else {
            *is_read = true;
        }
    }

    /// Takes in that nothing of the tree runs any more, whatever it left unfinished.
    pub(super) fn settle(&mut self, tree: &mut SessionTree) {
        let sessions: Vec<_> = tree.confirmed().cloned().collect();
        for session in sessions {
            self.step.observed.append(tree.settle(&session));
        }
    }

    pub(super) fn finish(&mut self, ended: Ended) {
        if !matches!(self.stage, Stage::Finished) {
            self.timers.stop_all();
            self.stage = Stage::Finished;
            self.step.actions.push(Action::Finish(ended));
        }
    }
}

//! What an idle session means.

use std::time::Duration;

use super::{
    Activity, Delivery, Ended, Goal, Limit, Scope, Stage, Timer, Turn, WaitOptions, Waiting,
    reads::ReadUnderWay, submit,
};
use crate::opencode::{mirror::SessionTree, outcome, wire::MessageError};

/// After an idle or an error without an answer the prompt is probably lost, but a run may also just be starting. Doubles with
/// each kick.
const LOST_GRACE: Duration = Duration::from_millis(500);

/// What a session that does not run seems to have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conclusion {
    /// Every message after the prompt is complete: done.
    Settled {
        /// The root is expected to run again by itself, or its status does not tell whether it runs.
        must_last: bool,
    },
    /// A message is not complete: the server died meanwhile.
    Interrupted,
    /// A message is not complete, and an error came after the idle: the run died, and the server did not.
    Failed,
    /// There is no message after the prompt: submit again, or give up.
    NotStarted,
    /// An earlier client saw more than there is.
    Vanished,
    /// Every message is complete, but a descendant runs by its last word: nothing is concluded, but what it does is read.
    DescendantRuns,
}

/// A conclusion that is not drawn before it has lasted for its grace, and a read that began after that has confirmed it.
#[derive(Debug)]
pub(super) struct Candidate {
    conclusion: Conclusion,
    since: Duration,
    grace: Duration,
    /// How often the turn had got further then.
    n_progress: u64,
    due: Option<Due>,
    is_confirmed: bool,
}

/// The grace is over.
#[derive(Debug)]
struct Due {
    since: Duration,
    /// What has to be read.
    scope: Scope,
}

impl Candidate {
    /// Whether a read began late enough to confirm it.
    pub(super) fn was_due(&self, read: &ReadUnderWay) -> bool {
        self.due.as_ref().is_some_and(|due| read.began >= due.since)
    }

    /// Whether it says that nothing of the turn changes any more.
    pub(super) fn is_at_rest(&self) -> bool {
        match self.conclusion {
            Conclusion::Settled { .. } | Conclusion::Interrupted | Conclusion::Failed => true,
            Conclusion::NotStarted | Conclusion::Vanished | Conclusion::DescendantRuns => false,
        }
    }

    /// Whether it stands for this conclusion. One that must last stands for one that need not, but not the other way round.
    fn stands_for(&self, conclusion: Conclusion) -> bool {
        let weaker = Conclusion::Settled { must_last: false };
        self.conclusion == conclusion
            || matches!(self.conclusion, Conclusion::Settled { .. }) && conclusion == weaker
    }
}

impl Turn {
    pub(super) fn wait(&mut self, now: Duration, tree: &mut SessionTree) {
        if self.is_looping(tree) {
            return self.run_out(now, Limit::Steps);
        }
        self.update_candidate(now, tree);
        let Stage::Waiting(Waiting { candidate: Some(candidate), .. }) = &self.stage else { return };
        if candidate.is_confirmed {
            self.conclude(now, tree, candidate.conclusion);
        }
    }

    /// Whether a session of the tree goes on after more steps than it may make in this turn. One at rest does not, and what runs
    /// after a turn that was found may be another turn, which is none of its business.
    fn is_looping(&self, tree: &SessionTree) -> bool {
        let max_steps = self.options.max_steps;
        let is_root_looping = self.facts.steps > max_steps && self.statuses.root() != Activity::Idle;
        let is_looping = is_root_looping || self.facts.descendant_steps > max_steps;
        is_looping && !self.has_later_turn(tree)
    }

    /// Whether another turn has begun since the one of a prompt that was not sent here.
    fn has_later_turn(&self, tree: &SessionTree) -> bool {
        let Some(prompt) = self.prompt().filter(|_| self.submissions.is_found()) else { return false };
        let root = tree.root();
        let asked = tree.message(root, prompt).and_then(|message| message.prompt_text());
        outcome::later_turn(tree.turn(root, prompt), &asked.unwrap_or_default()).is_some()
    }

    pub(super) fn drop_candidate(&mut self) {
        if let Stage::Waiting(waiting) = &mut self.stage {
            waiting.candidate = None;
            self.timers.stop(Timer::Confirm);
        }
    }

    fn update_candidate(&mut self, now: Duration, tree: &SessionTree) {
        let Some(conclusion) = self.seems(tree) else { return self.drop_candidate() };
        let grace = self.grace(conclusion);
        let n_progress = self.limits.n_progress();
        let is_unclear = self.statuses.root() == Activity::Unrecognised;
        let Stage::Waiting(waiting) = &mut self.stage else { return };
        waiting.in_background |= conclusion == Conclusion::DescendantRuns;
        // Where the status does not tell that it runs, progress does.
        let still_stands = |candidate: &Candidate| {
            candidate.stands_for(conclusion) && !(is_unclear && candidate.n_progress != n_progress)
        };
        match &mut waiting.candidate {
            Some(candidate) if still_stands(candidate) => {
                // An error or an idle makes a prompt that has not started more likely to be lost.
                if candidate.due.is_none() && candidate.conclusion == conclusion && candidate.grace != grace {
                    candidate.grace = grace;
                    self.timers.set(Timer::Confirm, candidate.since + grace);
                }
            }
            other => {
                *other = Some(Candidate {
                    conclusion,
                    since: now,
                    grace,
                    n_progress,
                    due: None,
                    is_confirmed: false,
                });
                self.timers.set(Timer::Confirm, now + grace);
            }
        }
    }

    /// What the session seems to have come to, if it does not run.
    fn seems(&self, tree: &SessionTree) -> Option<Conclusion> {
        let Stage::Waiting(waiting) = &self.stage else { return None };
        let root = self.statuses.root();
        if root.is_running() {
            return None;
        }
        if self.saw_more_before() {
            return Some(Conclusion::Vanished);
        }
        if self.facts.incomplete > 0 {
            return match root {
                Activity::Idle if self.since_submission.fatal_error.is_some() => Some(Conclusion::Failed),
                // A server that lives finishes what it began, for as long as git takes on a large repository; one that died
                // never does.
                Activity::Idle if !self.is_unbroken() => Some(Conclusion::Interrupted),
                _ => None,
            };
        }
        let nothing_asked = self.goal == Goal::Rest && !self.facts.exists;
        if self.facts.steps == 0 && !nothing_asked {
            return Some(Conclusion::NotStarted);
        }
        if self.statuses.is_descendant_running(tree) {
            return Some(Conclusion::DescendantRuns);
        }
        let is_unclear = root == Activity::Unrecognised;
        let must_last = waiting.in_background || self.facts.runs_again || is_unclear;
        Some(Conclusion::Settled { must_last })
    }

    /// Whether an earlier client saw more of the prompt than there is, so that submitting it again could run it twice.
    fn saw_more_before(&self) -> bool {
        match self.goal {
            Goal::Answer { from: Delivery::Started, .. } => !self.facts.exists || self.facts.steps == 0,
            Goal::Answer { from: Delivery::Accepted, .. } => !self.facts.exists,
            Goal::Answer { .. } | Goal::Rest => false,
        }
    }

    fn grace(&self, conclusion: Conclusion) -> Duration {
        let WaitOptions { start_timeout, settle_grace, .. } = self.options;
        let n_kicks = self.submissions.n_kicks;
        match conclusion {
            Conclusion::Settled { must_last: false } | Conclusion::DescendantRuns => Duration::ZERO,
            Conclusion::Settled { must_last: true } | Conclusion::Interrupted | Conclusion::Failed => {
                settle_grace
            }
            // A server that has accepted a prompt may need as long to store it as to start it.
            Conclusion::Vanished => start_timeout.max(settle_grace),
            Conclusion::NotStarted if self.since_submission.stopped => {
                start_timeout.min(LOST_GRACE.saturating_mul(2_u32.saturating_pow(n_kicks)))
            }
            // A busy server may need long to begin; submitting again does not make it faster.
            Conclusion::NotStarted => start_timeout.saturating_mul(1 << n_kicks.min(2)),
        }
    }

    /// The grace of the candidate is over: a read has to confirm it.
    pub(super) fn candidate_lasted(&mut self, now: Duration) {
        let ran = self.since_submission.ran && self.is_stream_open();
        let is_unclear = self.statuses.is_descendant_unclear();
        let Stage::Waiting(Waiting { candidate: Some(candidate), .. }) = &mut self.stage else { return };
        let tree = self.facts.descendant_open;
        let scope = match candidate.conclusion {
            // An idle after a busy of this very run needs no second opinion.
            Conclusion::Settled { must_last: false } if ran => Scope::MESSAGES.with_tree(tree),
            Conclusion::Settled { .. } | Conclusion::Interrupted | Conclusion::Failed => {
                Scope::SESSION.with_tree(tree)
            }
            Conclusion::NotStarted | Conclusion::Vanished => Scope::SESSION,
            Conclusion::DescendantRuns => Scope::STATUS.with_tree(is_unclear),
        };
        candidate.due = Some(Due { since: now, scope });
        self.reads.want(scope);
    }

    /// Whether only the messages of a descendant can tell that the turn is over.
    pub(super) fn is_held_by_messages(&self) -> bool {
        let Stage::Waiting(Waiting { candidate: Some(candidate), .. }) = &self.stage else { return false };
        candidate.conclusion == Conclusion::DescendantRuns && self.statuses.is_descendant_unclear()
    }

    /// Takes in that a read was made: it confirms what still seems so after it, if it began late enough.
    pub(super) fn confirm(&mut self, now: Duration, tree: &SessionTree, read: &ReadUnderWay) {
        self.update_candidate(now, tree);
        let n_status_changes = self.statuses.n_changes();
        let Stage::Waiting(Waiting { candidate: Some(candidate), .. }) = &mut self.stage else { return };
        let Some(due) = candidate.due.as_ref().filter(|due| read.scope.covers(due.scope)) else { return };
        let is_tree_unknown = self.facts.descendant_open || self.reads.wants_tree();
        if is_tree_unknown && candidate.is_at_rest() && !read.scope.tree {
            // The read has shown a descendant, or what a call says is one, of which nothing is known yet.
            self.reads.want(due.scope.with_tree(true));
        } else if candidate.conclusion == Conclusion::DescendantRuns
            && read.mark.n_status_changes != n_status_changes
        {
            // The status that was read is older than what was heard since.
            self.reads.want(due.scope);
        } else {
            candidate.is_confirmed |= candidate.was_due(read);
        }
    }

    fn conclude(&mut self, now: Duration, tree: &mut SessionTree, conclusion: Conclusion) {
        match conclusion {
            Conclusion::DescendantRuns => {}
            Conclusion::Settled { .. } => self.finish(Ended::AtRest),
            Conclusion::Interrupted | Conclusion::Vanished => {
                self.settle(tree);
                self.finish(Ended::Interrupted);
            }
            Conclusion::Failed => {
                self.settle(tree);
                let error = self.since_submission.fatal_error.take();
                self.finish(error.map_or(Ended::Interrupted, Ended::Failed));
            }
            Conclusion::NotStarted => self.not_started(now, tree),
        }
    }

    fn not_started(&mut self, now: Duration, tree: &SessionTree) {
        if let Some(other) = self.renamed(tree) {
            return self.attach(now, tree, other);
        }
        let error = self.since_submission.error.clone();
        let is_aborted = error.as_ref().is_some_and(MessageError::is_aborted);
        // One error may be a late word of the turn before; an error after each of two submissions is not.
        let failed_again = error.is_some() && self.submissions.n_failed > 1;
        // With a newer prompt in the session, submitting this one again would run it out of order.
        let is_stale = self.facts.exists && !self.facts.newest;
        let max_kicks = self.options.max_kicks;
        let enough = self.submissions.n_kicks >= max_kicks
            || self.submissions.n_sent > max_kicks.saturating_add(submit::MAX_RESUBMITS)
            || self.submissions.is_renamed;
        let ended = Ended::NotStarted { error };
        if self.goal == Goal::Rest || is_aborted || failed_again || is_stale {
            self.finish(ended);
        } else if enough {
            // The prompt may still start, so the session is aborted.
            self.abort(ended);
        } else {
            self.submissions.n_kicks += 1;
            self.limits.restart(now);
            self.drop_candidate();
            self.submit();
        }
    }
}

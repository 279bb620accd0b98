//! What must hold at the end of every schedule.

use super::{plan::ROOT, *};

impl World {
    pub(super) fn judge(&self) {
        let server = &self.server;
        let Some(ended) = &self.client.ended else { return };
        let context = || {
            let messages: Vec<String> = server.sessions[ROOT]
                .messages
                .iter()
                .map(|message| format!("{:?} {:?}", message.info.id(), message.info.time()))
                .collect();
            format!("seed {}, {:?} ended {ended:?} at {:?}: {messages:#?}", self.seed, server.plan, self.now)
        };
        let is_rest = self.client.goal == Goal::Rest;
        match ended {
            Ended::AtRest => {
                // A run that has only its idle left to say has said everything. A good run is not repeated: a late submission
                // makes the session busy for a moment, and nothing else. And what was stored after the last look was not seen.
                let unseen = server.stored_at > self.client.listed_at;
                let over = !server.has_more_to_say() || server.last_run_good || unseen;
                assert!(over, "still running: {}", context());
                let is_asked = server.prompt().is_some();
                assert!(is_asked || is_rest, "no prompt: {}", context());
                assert!(server.steps().next().is_some() || !is_asked, "no answer: {}", context());
                let complete = server.steps().all(|step| step.time.completed.is_some());
                assert!(complete, "incomplete: {}", context());
                assert!(!server.is_child_busy(), "a subagent still works: {}", context());
                if !is_rest {
                    self.judge_mirror(&context);
                }
            }
            Ended::Interrupted => {
                // A run that died of an error which was not heard of looks like one whose server died, and so does a prompt
                // that was accepted and not stored because its agent does not exist.
                let looks_so = matches!(server.plan, Plan::FailsAfterIdle | Plan::UnknownAgent);
                assert!(server.crashed || looks_so, "nothing interrupted it: {}", context());
                assert!(!server.running, "still running: {}", context());
            }
            Ended::Failed(error) => {
                assert_eq!(server.plan, Plan::FailsAfterIdle, "{error:?} was not the end: {}", context());
                assert!(!server.running, "still running: {}", context());
            }
            Ended::NotStarted { .. } => {
                let never = matches!(server.plan, Plan::UnknownModel | Plan::UnknownAgent | Plan::NeverRuns);
                // What another client submitted is not submitted again, if it was lost or its server died.
                let is_lost = server.steps().next().is_none() || server.crashed;
                let excused = never || !server.running && (server.interfered || is_rest && is_lost);
                assert!(excused, "lost a prompt: {}", context());
            }
            Ended::NotDelivered(_) => {
                let given_up = server.running && self.wire.fails == 0;
                assert!(!given_up, "gave up a prompt that runs: {}", context());
            }
            Ended::Limit(limit) => self.judge_limit(*limit, &context),
            Ended::SessionGone => assert!(server.deleted, "it is there: {}", context()),
            Ended::Unauthorized => panic!("no one refuses the credentials: {}", context()),
            Ended::Stopped(stop) => {
                let refused = *stop == Stop::Refused && self.client.policy == client::Policy::Fail;
                assert!(refused, "not asked for: {}", context());
            }
        }
        assert_eq!(server.reruns_of_good, 0, "ran twice: {}", context());
        let most = 10 * (self.client.number + 1);
        assert!(self.client.submissions <= most, "{} submissions: {}", self.client.submissions, context());
    }

    /// Whether a run that died of an error may look like one that cleans up: its error was lost on a stream that did not break, a
    /// late error of the turn before looked like the one that a cleanup begins with, or another run came after it.
    pub(super) fn may_miss_failure(&self) -> bool {
        let is_unheard =
            self.wire.n_overflows > 0 || self.server.has_late_error || self.server.runs_begun > 1;
        self.server.plan == Plan::FailsAfterIdle && is_unheard
    }

    fn judge_limit(&self, limit: Limit, context: &impl Fn() -> String) {
        let silence = self.client.silence.unwrap_or_default();
        let live = match limit {
            Limit::Idle => silence < 359 * SECOND,
            Limit::Contact => !self.server.crashed,
            Limit::Tool => silence < 599 * SECOND,
            Limit::Retry | Limit::Deadline => true,
            Limit::Steps => self.server.plan != Plan::Endless,
        };
        let blind = self.server.crashed || !self.wire.message_events;
        assert!(!live || blind, "cut off a live turn: {}", context());
        let expected = match self.server.plan {
            Plan::Silent | Plan::Endless => true,
            _ => self.may_miss_failure(),
        };
        assert!(expected || blind, "unexpected limit: {}", context());
    }

    /// What the client has seen of the turn is what the server has of it, word for word.
    fn judge_mirror(&self, context: &impl Fn() -> String) {
        let of_turn =
            |message: &&Message| !matches!(message.info.id().as_str(), OLD_PROMPT | OLD_STEP | PROMPT);
        let mut truth: Vec<&Message> = self.server.sessions[ROOT].messages.iter().filter(of_turn).collect();
        truth.sort_by_key(|message| (message.info.time().created, message.info.id()));
        let seen: Vec<&Message> =
            self.client.tree.turn(&ROOT_ID.into(), &PROMPT.into()).map(|message| &**message).collect();
        assert_eq!(seen, truth, "seen otherwise: {}", context());
    }
}

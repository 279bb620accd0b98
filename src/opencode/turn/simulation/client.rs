//! Who drives the machine, in place of the manager.

use super::*;

impl World {
    fn facts(&self) -> Facts {
        let mut facts = Facts { newest: true, ..Facts::default() };
        let Some(prompt) = self.view.get(&PROMPT) else { return facts };
        facts.exists = true;
        let (mut n_prompts, mut n_background) = (0, 0);
        let first = self.view.values().filter(|message| message.answers).map(|step| step.created).min();
        let from = first.map_or(prompt.created, |first| first.min(prompt.created));
        for message in self.view.values().filter(|message| message.created >= from && message.id != PROMPT) {
            if message.user {
                n_prompts += 1;
            } else {
                facts.steps += 1;
                facts.incomplete += usize::from(!message.completed);
                facts.tool_running |= message.tool == Some(true) && !message.completed;
                n_background += usize::from(message.background);
            }
        }
        facts.newest = n_prompts == 0;
        // Stored again behind what failed, it will run again.
        let steps = self.view.values().filter(|message| !message.user);
        let last_step = steps.max_by_key(|step| step.created);
        let moved = last_step.is_some_and(|step| step.failed && step.created < prompt.created);
        let last = self.view.values().max_by_key(|message| message.created);
        let asked = facts.steps > 0 && last.is_some_and(|last| last.user && last.id != PROMPT);
        facts.runs_again = n_background > n_prompts || moved || asked;
        facts
    }

    pub(super) fn input(&mut self, input: Input) {
        let facts = self.facts();
        self.tell(&input);
        self.tell(&facts);
        for action in self.turn.handle(self.now, input, facts) {
            self.tell(&action);
            match action {
                Action::Submit => self.submit(),
                Action::Read(read) => {
                    let after = self.latency();
                    let fails = self.fails;
                    let happens =
                        if self.chance(fails) { Happens::ReadFails } else { Happens::ReadStatus { read } };
                    self.at(after, happens);
                }
                Action::Abort => {
                    self.silence = Some(self.now.saturating_sub(self.last_progress));
                    let after = self.latency();
                    self.at(after, Happens::AbortArrives);
                }
                Action::Finish(ended) => self.ended = Some(ended),
            }
        }
        if let Some(at) = self.turn.next_wakeup(self.now)
            && self.wake_at.is_none_or(|scheduled| at < scheduled)
        {
            self.wake_at = Some(at);
            self.at(at.saturating_sub(self.now) + Duration::from_nanos(1), Happens::Wake);
        }
    }

    fn tell(&self, what: &impl std::fmt::Debug) {
        if self.told {
            eprintln!("{:>12?} {:?}: {what:?}", self.now, self.activity);
        }
    }

    fn submit(&mut self) {
        self.submissions += 1;
        let after = self.latency();
        let fails = self.fails;
        if !self.chance(fails) {
            return self.at(after, Happens::SubmissionArrives { answer: None });
        }
        match self.rng.u8(..3) {
            0 => self.at(after, Happens::Answered(Delivery::NotSent)),
            // Lost on the way there, or an error without effect: nobody can tell.
            1 => self.at(after, Happens::Answered(Delivery::Unknown)),
            _ => self.at(after, Happens::SubmissionArrives { answer: Some(Delivery::Unknown) }),
        }
    }
}

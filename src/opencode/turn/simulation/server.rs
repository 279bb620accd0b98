//! What the server does with a prompt: it stores it, runs it, fails, crashes, and is aborted.

use super::*;

impl World {
    pub(super) fn submission_arrives(&mut self, answer: Option<Delivery>) {
        if !self.alive {
            let after = self.latency();
            return self.at(after, Happens::Answered(Delivery::NotSent));
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        let slow = self.between(0, if self.submissions > 1 { 50 } else { 2600 });
        let life = self.life;
        self.at(slow, Happens::Store { life });
        let after = self.latency();
        self.at(after, Happens::Answered(answer.unwrap_or(Delivery::Accepted)));
    }

    pub(super) fn store(&mut self) {
        if self.plan == Plan::UnknownAgent {
            return self.note(Note::Error { aborted: false });
        }
        self.stored = true;
        self.messages.retain(|message| message.id != PROMPT);
        let prompt = Msg {
            id: PROMPT,
            user: true,
            created: self.now,
            completed: true,
            tool: None,
            answers: false,
            background: false,
            failed: false,
        };
        self.messages.push(prompt);
        self.note(Note::Message(prompt));
        // During the cleanup after an error a prompt is stored and never run.
        let is_lost = self.cleanup_until.is_some_and(|until| self.now < until);
        if !is_lost && !self.running && !self.start_pending && self.plan != Plan::NeverRuns {
            self.start_pending = true;
            let after = self.between(0, 50);
            self.at(after, Happens::Start);
        }
    }

    pub(super) fn start(&mut self) {
        self.start_pending = false;
        if !self.alive || self.running {
            return;
        }
        self.run += 1;
        self.running = true;
        let answered = self.last_run_good && self.messages.iter().any(|message| !message.user);
        if answered {
            // Nothing is left to do: busy, then idle, and the model is not called.
            self.beats = [
                (MILLI, Beat::Status(Activity::Busy)),
                (MILLI, Beat::Status(Activity::Idle)),
                (MILLI, Beat::End),
            ]
            .into();
        } else {
            self.model_called = false;
            self.settled_at = None;
            self.beats = self.beats_of_plan().into();
        }
        self.next_beat();
    }

    fn beats_of_plan(&mut self) -> Vec<(Duration, Beat)> {
        use Beat::*;
        let mut beats = vec![(self.between(0, 20), Status(Activity::Busy))];
        let idle = Status(Activity::Idle);
        let quick = |world: &mut Self| world.between(0, 200);
        match self.plan {
            Plan::UnknownModel => {
                beats.extend([(MILLI, Error { aborted: false }), (MILLI, idle), (MILLI, End)]);
                let late = self.between(0, 100);
                beats.push((late, Error { aborted: false }));
                return beats;
            }
            Plan::Silent => beats.push((quick(self), Step)),
            Plan::Endless => {
                for _ in 0..400 {
                    beats.extend([(self.between(1, 700), Step), (MILLI, Complete)]);
                }
            }
            Plan::ProviderError => {
                beats.push((quick(self), Step));
                self.text(&mut beats);
                beats.extend([(quick(self), Error { aborted: false }), (MILLI, idle), (MILLI, Cleanup)]);
                beats.extend([(self.between(1, 3000), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::RetryThenAnswer => {
                beats.push((quick(self), Step));
                for attempt in 0..self.rng.u32(1..=5) {
                    beats.push((self.between(0, 20_000), Status(Activity::Retry)));
                    beats.push((self.between(2000, 2000 << attempt), Status(Activity::Busy)));
                }
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Compaction => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Error { aborted: false }),
                    (MILLI, Complete),
                ]);
                beats.extend([(quick(self), ExtraPrompt), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (quick(self), ExtraPrompt), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Background => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Child(Activity::Busy)),
                    (quick(self), Complete),
                ]);
                beats.push((MILLI, idle));
                for _ in 0..self.rng.u8(..4) {
                    beats.push((self.between(0, 40_000), ChildText));
                }
                beats.extend([(quick(self), Child(Activity::Idle)), (self.between(0, 2000), ExtraPrompt)]);
                beats.extend([(MILLI, Status(Activity::Busy)), (quick(self), Step)]);
                self.text(&mut beats);
                beats.extend([(quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::Answer | Plan::Rejected | Plan::SlowTool => {
                let n_steps = self.rng.u8(1..=4);
                for step in 0..n_steps {
                    beats.push((self.between(0, 2000), Step));
                    self.text(&mut beats);
                    if step + 1 < n_steps || self.plan == Plan::SlowTool {
                        let longest = if self.plan == Plan::SlowTool { 500_000 } else { 20_000 };
                        beats.push((quick(self), Tool { running: true }));
                        beats.push((self.between(0, longest), Tool { running: false }));
                    }
                    beats.push((quick(self), Complete));
                }
                beats.extend([(MILLI, idle), (MILLI, End)]);
            }
            Plan::Permission => {
                beats.extend([
                    (quick(self), Step),
                    (quick(self), Tool { running: true }),
                    (quick(self), Ask),
                ]);
                beats.extend([(quick(self), Tool { running: false }), (quick(self), Complete)]);
                beats.extend([(quick(self), Step), (quick(self), Complete), (MILLI, idle), (MILLI, End)]);
            }
            Plan::UnknownAgent | Plan::NeverRuns => {}
        }
        beats
    }

    fn text(&mut self, beats: &mut Vec<(Duration, Beat)>) {
        for _ in 0..self.rng.u8(..6) {
            let pause = if self.chance(90) { self.between(0, 300) } else { self.between(0, 35_000) };
            beats.push((pause, Beat::Text));
        }
    }

    pub(super) fn next_beat(&mut self) {
        if let Some((after, _)) = self.beats.front() {
            let (after, run) = (*after, self.run);
            self.at(after, Happens::Beat { run });
        }
    }

    pub(super) fn beat(&mut self) {
        let Some((_, beat)) = self.beats.pop_front() else { return };
        self.do_beat(beat);
        if !self.asking {
            self.next_beat();
        }
    }

    fn do_beat(&mut self, beat: Beat) {
        match beat {
            Beat::Status(activity) => {
                self.activity = activity;
                self.note(Note::Status(activity));
            }
            Beat::Step => {
                if !std::mem::replace(&mut self.model_called, true) {
                    self.runs_begun += 1;
                    self.reruns_of_good += u32::from(self.runs_begun > 1 && !self.last_run_failed);
                    self.last_run_failed = false;
                }
                let answers = self
                    .messages
                    .iter()
                    .rev()
                    .find(|message| message.user)
                    .is_some_and(|user| user.id == PROMPT);
                let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX) + 10;
                self.messages.push(Msg {
                    id,
                    user: false,
                    created: self.now,
                    completed: false,
                    tool: None,
                    answers,
                    background: false,
                    failed: false,
                });
                self.change(|_| {});
            }
            Beat::ExtraPrompt => {
                let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX) + 10;
                let extra = Msg {
                    id,
                    user: true,
                    created: self.now,
                    completed: true,
                    tool: None,
                    answers: false,
                    background: false,
                    failed: false,
                };
                self.messages.push(extra);
                self.note(Note::Message(extra));
            }
            Beat::Text | Beat::ChildText => {
                self.last_progress = self.now;
                self.note(Note::Delta);
            }
            Beat::Tool { running } => self.change(|step| step.tool = Some(running)),
            Beat::Complete => {
                let failed = self.last_run_failed;
                self.change(|step| {
                    *step = Msg { completed: true, failed, tool: step.tool.map(|_| false), ..*step };
                });
            }
            Beat::Error { aborted } => {
                self.last_run_failed = true;
                self.note(Note::Error { aborted });
            }
            Beat::Ask => {
                self.asking = true;
                self.note(Note::Asked);
            }
            Beat::Cleanup => self.cleanup_until = Some(Duration::MAX),
            Beat::Child(activity) => {
                self.child_busy = activity != Activity::Idle;
                if self.child_busy {
                    self.change(|step| step.background = true);
                }
                self.note(Note::Child(activity));
            }
            Beat::End => {
                self.running = false;
                self.cleanup_until = None;
                let complete =
                    self.messages.iter().filter(|message| !message.user).all(|message| message.completed);
                let any = self.messages.iter().any(|message| !message.user);
                self.last_run_good = complete && any && !matches!(self.plan, Plan::ProviderError);
                if complete && any {
                    self.settled_at.get_or_insert(self.now);
                }
            }
        }
    }

    /// Changes the newest step and says so.
    fn change(&mut self, change: impl FnOnce(&mut Msg)) {
        self.last_progress = self.now;
        if let Some(step) = self.messages.iter_mut().rev().find(|message| !message.user) {
            change(step);
            let step = *step;
            self.note(Note::Message(step));
        }
    }

    pub(super) fn crash(&mut self) {
        // A server that dies after the work is done leaves nothing to judge by.
        if self.settled_at.is_some() || !self.alive {
            return;
        }
        self.alive = false;
        self.crashed = true;
        self.life += 1;
        self.run += 1;
        self.running = false;
        self.start_pending = false;
        self.cleanup_until = None;
        self.last_run_failed = true;
        self.activity = Activity::Idle;
        self.child_busy = false;
        self.asking = false;
        let away = self.between(100, 15_000);
        self.at(away, Happens::Restart);
        self.cut();
    }

    pub(super) fn interfere(&mut self) {
        if self.settled_at.is_none() {
            self.interfered = true;
            self.start_pending = false;
            self.abort_run();
        }
    }

    pub(super) fn abort_run(&mut self) {
        self.asking = false;
        if self.alive && self.running {
            self.run += 1;
            let incomplete = self.messages.iter().any(|message| !message.user && !message.completed);
            if incomplete {
                self.do_beat(Beat::Error { aborted: true });
                self.do_beat(Beat::Status(Activity::Idle));
                self.do_beat(Beat::Complete);
            }
            self.child_busy = false;
            self.do_beat(Beat::Status(Activity::Idle));
            self.do_beat(Beat::End);
        }
    }
}

//! What of the truth reaches the client: events that get lost, and reads that take time.

use super::*;

impl World {
    pub(super) fn note(&mut self, note: Note) {
        // Events keep their order: all of one connection take equally long.
        let connection = self.connection;
        self.at(5 * MILLI, Happens::Notes { connection, note });
        if self.chance(2) {
            self.at(5 * MILLI, Happens::Notes { connection, note });
        }
    }

    pub(super) fn cut(&mut self) {
        if self.stream_open {
            self.stream_open = false;
            self.input(Input::StreamLost);
            let after = self.between(50, 15_000);
            self.at(after, Happens::Reopen);
        }
    }

    pub(super) fn reopen(&mut self) {
        if !self.alive {
            return self.at(500 * MILLI, Happens::Reopen);
        }
        let is_of_turn_before = |until: &Duration| *until > self.now && *until != Duration::MAX;
        if let Some(until) = self.cleanup_until.filter(is_of_turn_before) {
            // The rest of the turn before: its second idle arrives once its cleanup is over.
            let rest = until.saturating_sub(self.now);
            self.connection += 1;
            self.stream_open = true;
            let connection = self.connection;
            self.at(rest, Happens::Notes { connection, note: Note::Status(Activity::Idle) });
            self.input(Input::StreamOpened);
            return;
        }
        self.connection += 1;
        self.stream_open = true;
        self.input(Input::StreamOpened);
    }

    pub(super) fn hear(&mut self, note: Note) {
        match note {
            Note::Status(activity) => {
                self.input(Input::Status { descendant: None, activity });
            }
            Note::Message(message) if self.message_events => {
                let progress = self.merge(message) && !message.user;
                self.input(Input::Observed { progress });
            }
            Note::Message(_) => {}
            Note::Delta => self.input(Input::Observed { progress: true }),
            Note::Error { aborted } => {
                let name = if aborted { "MessageAbortedError" } else { "UnknownError" };
                self.input(Input::SessionError(MessageError {
                    name: name.into(),
                    ..MessageError::default()
                }));
            }
            Note::Asked => self.ask(),
            Note::Gone => self.input(Input::SessionGone),
            Note::Child(activity) => {
                self.input(Input::Status { descendant: Some("ses_child".into()), activity });
            }
        }
    }

    /// A human is asked, and takes up to twenty minutes.
    fn ask(&mut self) {
        self.input(Input::HumanAsked("per_1".into()));
        let after = self.between(0, 1_200_000);
        self.at(after, Happens::HumanAnswers);
    }

    /// Merges forward only, as the observer does.
    fn merge(&mut self, new: Msg) -> bool {
        let old = self.view.get(&new.id).copied();
        let Some(old) = old else { return self.view.insert(new.id, new).is_none() };
        let tool = match (old.tool, new.tool) {
            (Some(false), _) => Some(false),
            (old, new) => new.or(old),
        };
        let merged = Msg {
            completed: old.completed || new.completed,
            tool,
            created: old.created.max(new.created),
            background: old.background || new.background,
            failed: old.failed || new.failed,
            ..new
        };
        self.view.insert(new.id, merged);
        merged != old
    }

    pub(super) fn read_status(&mut self, read: Read) {
        if !self.alive {
            return self.input(Input::ReadFailed);
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        if read.tree && self.asking {
            self.ask();
        }
        let busy = self.child_busy.then(|| "ses_child".into());
        let status = TreeStatus::new(self.activity, BTreeSet::from_iter(busy));
        let status = read.status.then_some(status);
        if read.messages {
            let after = self.latency();
            self.at(after, Happens::ReadMessages { status });
        } else {
            self.input(Input::ReadDone { status, progress: false });
        }
    }

    pub(super) fn read_messages(&mut self, status: Option<TreeStatus>) {
        if !self.alive {
            return self.input(Input::ReadFailed);
        }
        if self.deleted {
            return self.input(Input::SessionGone);
        }
        let mut progress = false;
        for message in self.messages.clone() {
            progress |= self.merge(message) && !message.user;
        }
        self.input(Input::ReadDone { status, progress });
    }
}

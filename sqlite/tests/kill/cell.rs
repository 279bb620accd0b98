//! One kill: a child that is killed at a point, the one that comes after it, and what the two have said.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::child::{ORDER, Order, Said};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A child process and what it says.
pub(crate) struct Process {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(order: &Order) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ORDER, serde_json::to_string(order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// The next thing that it says; nothing if it has ended.
    pub(crate) async fn next(&mut self) -> Option<Said> {
        let line =
            timeout(PATIENCE, self.said.next_line()).await.expect("the child says something").unwrap()?;
        Some(serde_json::from_str(&line).unwrap())
    }

    pub(crate) async fn go_on(&mut self) {
        // It may be gone.
        drop(self.child.stdin.as_mut().unwrap().write_all(b"go\n").await);
    }

    /// `kill -9`.
    pub(crate) async fn kill(&mut self) {
        self.child.start_kill().unwrap();
        self.child.wait().await.unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) async fn has_ended_well(&mut self) -> bool {
        timeout(PATIENCE, self.child.wait()).await.expect("the child ends").unwrap().success()
    }
}

/// What was said about one task by all its processes.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) sent: BTreeMap<usize, opencode_conductor::MessageId>,
    /// How each prompt ended, and its answer.
    pub(crate) done: Vec<(usize, String, Option<String>)>,
    pub(crate) asked: Vec<Option<String>>,
    pub(crate) state: Option<(opencode_conductor::SessionId, serde_json::Value)>,
}

impl Heard {
    /// Takes in something that was said; whether it is that the child stands at its point.
    pub(crate) fn hear(&mut self, said: Said) -> bool {
        match said {
            Said::At => return true,
            Said::Sent(step, message) => drop(self.sent.insert(step, message)),
            Said::Asked(task) => self.asked.push(task),
            Said::Done { step, ended, answer } => self.done.push((step, ended, answer)),
            Said::State(session, state) => self.state = Some((session, state)),
        }
        false
    }

    /// What the next process is told.
    pub(crate) fn follow_up(&self, order: &Order) -> Order {
        let done = self.done.iter().map(|(step, ..)| *step).collect();
        Order { point: None, done, sent: self.sent.clone(), ..order.clone() }
    }

    /// Lets the next process do the rest.
    pub(crate) async fn finish(&mut self, order: &Order) {
        let mut process = Process::start(&self.follow_up(order));
        while let Some(said) = process.next().await {
            self.hear(said);
        }
        assert!(process.has_ended_well().await, "the second process failed: {self:?}");
    }
}

//! The fault matrix: what goes wrong, times where a turn is when it does.
//!
//! Each cell drives a manager to one phase of a turn, makes one thing go wrong there, and holds the outcome against what was
//! promised: [`rows`](fake_rows::rows) is the table of promises. Whatever the outcome, the model has run the prompt once (or
//! never, and the caller was told so), the conversation is the one that the server has stored, the session takes the next
//! prompt, and nothing is left open.

#![cfg(feature = "test-util")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]
#![expect(clippy::print_stdout, reason = "the matrix is there to be read")]
#![expect(clippy::await_holding_invalid_type, reason = "one matrix, and one blow, at a time")]

mod fake_cell;
mod fake_rows;
mod human;
mod matrix;
mod real_cell;

#[path = "../support/model.rs"]
mod model;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/real.rs"]
mod real;
#[path = "../it/support/secrets.rs"]
mod secrets;
#[path = "../it/support/stage.rs"]
#[expect(dead_code, reason = "shared with the other tests, which use more of it")]
mod stage;

use std::{path::PathBuf, time::Duration};

use crate::{matrix::Matrix, real::RealServer};

/// Fails the test instead of hanging, or if what comes of it shows a secret.
async fn soon<T: std::fmt::Debug>(future: impl Future<Output = T>) -> T {
    let value = tokio::time::timeout(Duration::from_secs(180), future).await.expect("happens in time");
    secrets::check(&value);
    value
}

/// One test for both, because what is left open is counted for the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_in_every_phase_ends_as_promised() {
    on_the_fake().await;
    if let Some(executable) = RealServer::find() {
        on_a_real_server(executable).await;
    }
}

async fn on_the_fake() {
    let before = Left::now();
    let mut matrix = Matrix::new("the fake", 64, Duration::from_secs(60));
    for row in fake_rows::rows() {
        matrix.start(&row, |case, phase| fake_cell::play(row.strike.clone(), case, phase));
    }
    matrix.finish().await;
    matrix.print();
    before.check().await;
    matrix.check(120);
}

async fn on_a_real_server(executable: PathBuf) {
    let before = Left::now();
    // On a busy machine a server alone takes a minute to start.
    let mut matrix = Matrix::new("a real server", 64, Duration::from_secs(400));
    let stand = real_cell::Stand::start(executable).await;
    for row in real_cell::rows() {
        let blow = stand.blow(row.strike, row.promises().count()).await;
        matrix.start(&row, |case, phase| real_cell::play(blow.clone(), case, phase));
        matrix.finish().await;
        blow.end().await;
    }
    drop(stand);
    matrix.print();
    before.check().await;
    matrix.check(25);
}

/// What must be gone in the end.
struct Left {
    tasks: usize,
    files: usize,
}

impl Left {
    fn now() -> Self {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        // There is nothing to count where the system does not tell.
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self { tasks, files }
    }

    /// Fails unless there are no more tasks and open files than before; those that end take a moment.
    async fn check(&self) {
        let gone = async {
            let mut look = tokio::time::interval(Duration::from_millis(20));
            while Self::now().tasks > self.tasks || Self::now().files > self.files {
                look.tick().await;
            }
        };
        let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
        let Self { tasks, files } = Self::now();
        assert!(gone.is_ok(), "{tasks} tasks and {files} files instead of {} and {}", self.tasks, self.files);
    }
}

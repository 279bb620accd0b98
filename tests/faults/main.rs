//! The fault matrix: what goes wrong, times where a turn is when it does.
//!
//! Each cell drives a manager to one phase of a turn, makes one thing go wrong there, and holds the outcome against what was
//! promised: [`rows`](fake_rows::rows) is the table of promises. Whatever the outcome, the model has run the prompt once (or
//! never, and the caller was told so), the conversation is the one that the server has stored, the session takes the next
//! prompt, and nothing is left open.

#![cfg(feature = "test-util")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]
#![expect(clippy::print_stdout, reason = "the matrix is there to be read")]

mod fake_cell;
mod fake_rows;
mod matrix;

#[path = "../it/support/stage.rs"]
#[expect(dead_code, reason = "shared with the other tests, which use more of it")]
mod stage;

use std::time::Duration;

/// Fails the test instead of hanging.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("happens in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_fake_every_fault_in_every_phase_ends_as_promised() {
    let tasks = tokio::runtime::Handle::current().metrics();
    let (n_tasks, n_files) = (tasks.num_alive_tasks(), matrix::open_files());
    let matrix = matrix::Matrix::run("the fake", fake_rows::rows(), 64, fake_cell::play).await;
    let all_gone = async {
        while tasks.num_alive_tasks() > n_tasks || matrix::open_files() > n_files {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(20), all_gone).await;
    matrix.print();
    assert!(gone.is_ok(), "{} tasks, {} files are left", tasks.num_alive_tasks(), matrix::open_files());
    matrix.check(120);
}

//! Processes that are killed with -9 wherever it hurts, and the ones that come after them.
//!
//! `cargo test -p opencode-conductor-sqlite --test kill` prints the table; `KILL_REPEATS` says how often each point is tried. The rows on a
//! real server need `OPENCODE_BIN`. This program is also its own child: see [`child`].

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]
#![expect(clippy::print_stdout, reason = "the table is the result")]

mod cell;
mod child;
mod fake_stage;
#[path = "../../../tests/support/model.rs"]
mod model;
mod pair;
#[path = "../../../tests/support/real.rs"]
mod real;
mod real_stage;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(order) = std::env::var(child::ORDER) {
        runtime.block_on(child::run(&order));
        return ExitCode::SUCCESS;
    }
    let repeats = std::env::var("KILL_REPEATS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let is_good = runtime.block_on(async {
        let mut is_good = true;
        for name in ["fake", "wrong", "pair", "real"].into_iter().filter(|name| name.contains(&*filter)) {
            is_good &= match name {
                "fake" => fake_stage::table(repeats).await,
                "wrong" => fake_stage::table_of_a_wrong_store().await,
                "pair" => pair::table().await,
                _ => real_stage::table(repeats).await,
            };
        }
        is_good
    });
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

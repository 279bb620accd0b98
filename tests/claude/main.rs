//! Claude Code as an agent: faults, bad input, and what the fake and the real executable have in common.

#![cfg(all(unix, feature = "claude", feature = "test-util"))]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]

mod anthropic;
mod errors;
mod faults;
mod real;
mod real_errors;
mod resume;
mod stage;

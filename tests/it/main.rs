//! Behaviour, one module each, in one binary so that it links once.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]

mod core_observe;
mod core_wire;
mod fixtures_parity;
mod laws_fold;
mod laws_model;

//! What the examples share: where they run, how they fail, and how they print.

#![cfg(feature = "fake")]

pub mod backend;
pub mod demo;
pub mod failure;
pub mod flags;
pub mod interrupt;
pub mod json;
pub mod logging;
pub mod output;
pub mod style;

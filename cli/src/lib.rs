//! What the examples share: where they run, how they fail, and how they print.

#[cfg(feature = "fake")]
pub mod backend;
#[cfg(feature = "fake")]
pub mod demo;
#[cfg(feature = "fake")]
pub mod failure;
#[cfg(feature = "fake")]
pub mod flags;
#[cfg(feature = "fake")]
pub mod interrupt;
#[cfg(feature = "fake")]
pub mod json;
#[cfg(feature = "fake")]
pub mod logging;
pub mod output;
#[cfg(feature = "fake")]
pub mod steps;
pub mod style;

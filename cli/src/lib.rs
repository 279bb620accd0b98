//! What the commands of `conductor` share with each other, and with the programs that measure and record: where tasks run, how a program
//! fails, and how it prints. It is there for these programs alone, and promises nothing to others.

// The workspace without its default features is the core alone, in which no task can run.
#![cfg(feature = "fake")]

pub mod backend;
pub mod command_line;
pub mod demo;
pub mod ending;
pub mod failure;
pub mod interrupt;
pub mod logging;
pub mod output;
pub mod refused;
pub mod steps;
pub mod style;
pub mod values;

//! Failures that end a program with one clear line.

use std::{error::Error, fmt, process::ExitCode};

use opencode_conductor::error_chain;
use serde_json::json;

use crate::output::{complain, print_json};

/// Why a program ends early: one line for a person, and the exit status.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// 1 if the task failed, 2 if it could not even be tried.
    pub status: u8,
    /// What is wrong and what to do about it.
    pub line: String,
}

impl Failure {
    /// The input, or the surroundings, do not let the task be tried.
    pub fn usage(line: impl Into<String>) -> Self {
        Self { status: 2, line: line.into() }
    }

    /// The task was tried and failed.
    pub fn task(line: impl Into<String>) -> Self {
        Self { status: 1, line: line.into() }
    }

    /// The program was told to end before there was a task to abort.
    pub fn interrupted() -> Self {
        Self::task("interrupted before anything was tried")
    }

    /// Prints it as the JSON object that a program was to print, which there is nothing else to say in. It is still to be returned.
    #[must_use]
    pub fn printed_as_json(self) -> Self {
        let report = json!({"completion": {"type": "noSession", "message": self.line}});
        // A reader that is gone is told by the exit status of what it reads from.
        let _ = print_json(&format!("{report:#}\n"));
        self
    }

    /// As [`Failure::usage`], with an error and its causes as the reason.
    pub fn because(what: impl fmt::Display, error: &(dyn Error + 'static)) -> Self {
        Self::usage(format!("{what}: {}", error_chain(error)))
    }
}

/// What lies at the bottom of an error.
pub fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// The exit status of a program that ended like this; says why on standard error.
pub fn exit(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        complain(&format!("{program}: {}", failure.line));
        ExitCode::from(failure.status)
    })
}

//! The command line of a program: a mistake in it gets one line, as every other failure does.

use std::{error::Error, process::ExitCode};

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::failure::{self, Failure};

/// What was typed, as `A` describes it.
///
/// # Errors
/// If there is nothing more to do for the program than to exit with this status: help was asked for and is printed, or what was typed is a
/// mistake and the complaint is printed.
pub fn parse<A: Parser>(program: &str) -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        let shown = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => ExitCode::from(2),
            _ => return failure::exit(program, Err(Failure::usage(mistake(&error)))),
        };
        // A reader that has seen enough is no failure.
        let _ = error.print();
        shown
    })
}

/// A mistake on one line, and how to do better.
fn mistake(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let list = |kind| match error.get(kind) {
        Some(ContextValue::Strings(texts)) => texts.as_slice(),
        _ => &[],
    };
    let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    // `--tasks <N>` without what it takes.
    let flag = argument.split(' ').next().unwrap_or_default().trim_matches(['<', '>']);
    let what = match error.kind() {
        ErrorKind::ValueValidation => {
            let advice = error.source().map(ToString::to_string).unwrap_or_default();
            return format!("{flag} {value}: {advice}");
        }
        ErrorKind::InvalidValue if !value.is_empty() => {
            return format!("{flag} {value}: choose {}", either(list(ContextKind::ValidValue)));
        }
        ErrorKind::InvalidValue => format!("missing argument for option '{flag}'"),
        ErrorKind::UnknownArgument if argument.starts_with('-') => format!("invalid option '{argument}'"),
        ErrorKind::UnknownArgument => {
            format!("'{argument}' is a word too many; if it is part of the prompt, put it in quotes")
        }
        ErrorKind::InvalidSubcommand => {
            format!("there is no command '{}'", text(ContextKind::InvalidSubcommand))
        }
        // `<FILE>...`
        ErrorKind::MissingRequiredArgument => {
            let names = list(ContextKind::InvalidArg).iter();
            let names: Vec<_> = names.map(|name| name.trim_matches(['<', '>', '.']).to_lowercase()).collect();
            format!("no {} given", either(&names))
        }
        _ => {
            let said = error.to_string();
            said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    let meant = match text(ContextKind::SuggestedArg) {
        "" => either(list(ContextKind::SuggestedSubcommand)),
        flag => flag.to_owned(),
    };
    match meant.as_str() {
        "" => format!("{what}; --help tells what there is"),
        meant => format!("{what}; did you mean {meant}?"),
    }
}

/// `a, b or c`.
fn either(choices: &[String]) -> String {
    match choices {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

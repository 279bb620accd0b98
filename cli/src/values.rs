//! Values of flags, checked before anything is done.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use lexopt::{Arg, Parser};
use opencode_conductor::wire::ModelRef;

use crate::failure::Failure;

/// What was typed, as text; bytes that are none are replaced.
pub fn text(value: OsString) -> String {
    value.into_string().unwrap_or_else(|bytes| bytes.to_string_lossy().into_owned())
}

/// Something that was typed.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else")]
pub enum Word {
    /// The name of a long flag; `-h` is `help`.
    Flag(String),
    /// Anything else.
    Value(String),
}

/// The next thing that was typed.
///
/// # Errors
/// If no example has such a short flag.
pub fn next(parser: &mut Parser) -> Result<Option<Word>, Failure> {
    Ok(match parser.next()? {
        Some(Arg::Long(name)) => Some(Word::Flag(name.to_owned())),
        Some(Arg::Short('h')) => Some(Word::Flag("help".to_owned())),
        Some(Arg::Value(value)) => Some(Word::Value(text(value))),
        Some(short @ Arg::Short(_)) => return Err(short.unexpected().into()),
        None => None,
    })
}

/// A directory that exists, as an absolute path.
///
/// # Errors
/// If there is no such directory.
pub fn existing_directory(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().ok().filter(|path| path.is_dir()).ok_or_else(|| {
        Failure::usage(format!("--directory {}: there is no such directory; make it first", path.display()))
    })
}

/// A model, written as `provider/model`.
///
/// # Errors
/// If it is written otherwise.
pub fn model(value: &str) -> Result<ModelRef, Failure> {
    match value.split_once('/') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
            Ok(ModelRef::new(provider, model))
        }
        _ => Err(Failure::usage(format!("--model {value}: name it as provider/model"))),
    }
}

/// A number of seconds.
///
/// # Errors
/// If it is no number above 0.
pub fn seconds(flag: &str, value: &str) -> Result<Duration, Failure> {
    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| Failure::usage(format!("{flag} {value}: give a number of seconds above 0")))
}

/// A count within limits.
///
/// # Errors
/// If it is no number within them.
pub fn count(flag: &str, value: &str, max: usize) -> Result<usize, Failure> {
    value
        .parse()
        .ok()
        .filter(|count| (1..=max).contains(count))
        .ok_or_else(|| Failure::usage(format!("{flag} {value}: give a number from 1 to {max}")))
}

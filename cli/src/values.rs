//! Values of flags, checked before anything is done. Each error is what to do instead; [`command_line`](crate::command_line) puts the
//! flag and its value before it.

use std::{path::PathBuf, time::Duration};

use clap::builder::{PathBufValueParser, TypedValueParser};

/// A directory that exists, as an absolute path.
pub fn existing_directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let found = path.canonicalize().ok().filter(|path| path.is_dir());
        found.ok_or("there is no such directory; make it first")
    })
}

/// A number of seconds.
///
/// # Errors
/// If it is no number above 0.
pub fn seconds(value: &str) -> Result<Duration, &'static str> {
    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|timeout| !timeout.is_zero()).ok_or("give a number of seconds above 0")
}

/// A count from 1 to `max`.
pub fn count(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |value| {
        let count = value.parse().ok().filter(|count| (1..=max).contains(count));
        count.ok_or_else(|| format!("give a number from 1 to {max}"))
    }
}

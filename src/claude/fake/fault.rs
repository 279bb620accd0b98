//! What goes wrong in the fake, and when.

use std::time::Duration;

/// Where a turn is when something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClaudeMoment {
    /// The process was started, and has read nothing.
    Start,
    /// The prompt was read; the model was not called.
    Taken,
    /// The model was called, and has said nothing.
    Started,
    /// The model is in the middle of a text.
    Streaming,
    /// A tool runs.
    Tool,
    /// A permission was asked for, and not answered.
    Ask,
    /// A subagent runs.
    Subagent,
    /// The result was said; that the session is at rest was not.
    Result,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaudeFault {
    /// The process and all that it started are killed.
    Kill,
    /// The process is stopped, as by a debugger: it neither ends nor goes on.
    Stop,
    /// It says nothing any more, but listens.
    Hang,
    /// It writes a line that is not JSON, and goes on.
    Garbage,
    /// It writes these bytes as a line, and goes on.
    Line(Vec<u8>),
    /// It writes half a line and is killed.
    HalfLine,
    /// It ends with this status, having written this to standard error.
    Exit(u8, String),
    /// It closes its standard input, and goes on.
    CloseInput,
    /// It pauses for so long, and goes on.
    Slow(Duration),
    /// From here on its files get their lines only so long after they were due.
    Lag(Duration),
}

/// A fault that happens once.
#[derive(Debug, Clone)]
pub(super) struct Injection {
    pub(super) at: ClaudeMoment,
    pub(super) fault: ClaudeFault,
}

//! Where is my turn? The wait loop without I/O.
//!
//! `OpenCode` never says "your prompt is answered". It says idle before a run has started, twice after an error, once too early
//! after an abort, and for ever after a crash; it stores prompts that it then does not run; and its events may be missing.
//! So the end of a turn is not an event but a conclusion, drawn by [`Turn`] from everything that is known: inputs go in, actions
//! come out, time is passed in. The manager performs the actions and is the only one to read a clock.
//!
//! The reasoning has one shape throughout. While the session is idle, it is idle *in one of three ways*: settled,
//! incomplete, or not started. Each way must last for its grace and then be confirmed by a read that began after that, before
//! anything is concluded from it: done, interrupted, or submit the identical prompt again.

mod facts;
mod limits;
mod machine;
mod protocol;

pub use facts::Facts;
pub use limits::{Limit, TimeoutAction, WaitOptions};
pub use machine::Turn;
pub use protocol::{Action, Activity, Delivery, Ended, Goal, Input, Read, Stop, TreeStatus};

#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod simulation;

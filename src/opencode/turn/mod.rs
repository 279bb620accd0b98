//! Where is my turn? The wait loop without I/O.
//!
//! `OpenCode` never says "your prompt is answered". It says idle before a run has started, twice after an error, once too early
//! after an abort, and for ever after a crash; it stores prompts that it then does not run; and its events may be missing.
//! So the end of a turn is not an event but a conclusion, drawn by `Turn` from everything that is known: what happened goes in,
//! what is to be done comes out, time is passed in. The driver performs what is to be done, and tells it the time.
//!
//! The reasoning has one shape throughout. While the session does not run, its messages say what it seems to have come to:
//! settled, interrupted, failed, or not started. That must last for its grace and then be confirmed by a read that began after the
//! grace, before anything is concluded from it: done, interrupted, failed, or submit the identical prompt again.

pub(crate) mod machine;

use crate::agent::{Delivery, Limit, TimeoutAction, WaitOptions};

#[cfg(test)]
mod simulation;

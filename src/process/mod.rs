//! Child processes: their groups, and what they write.
//!
//! An agent's process starts others (tools, language servers, itself again) and leaves them running when it dies. So each runs in a
//! group of its own that is ended whole, and what it writes is read line by line within bounds.

mod group;
mod lines;

pub(crate) use group::ProcessGroup;
pub(crate) use lines::{LastLines, read_lines};

//! Child processes: where their programs are, their groups, and what they write.
//!
//! An agent's process starts others (tools, language servers, itself again) and leaves them running when it dies. So each runs in a
//! group of its own that is ended whole, with what left the group, and what it writes is read line by line within bounds.

mod group;
mod lines;
mod program;

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub(crate) use group::ProcessGroup;
pub(crate) use lines::{LastLines, read_lines};
pub(crate) use program::find_program;

/// How long the last lines may take to arrive after a process has ended: what it started may keep the pipe open.
pub(crate) const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Ends what a process left behind that has ended. Returns the last lines that it wrote to standard error.
pub(crate) async fn clean_up(group: &ProcessGroup, readers: &TaskTracker, stderr: &LastLines) -> Vec<String> {
    group.kill();
    group.set(None);
    // A process that left the group on purpose may keep the pipes open.
    let _complete = timeout(OUTPUT_GRACE, readers.wait()).await;
    stderr.all()
}

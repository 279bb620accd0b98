//! What the merged messages say about a turn.

/// What the merged messages say about a turn; see [`Turn::handle`](super::Turn::handle).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Facts {
    /// The prompt's user message exists; for a wait without a prompt: any user message does.
    pub exists: bool,
    /// No user message is newer than the prompt's. Submitting an older one again would run it again.
    pub newest: bool,
    /// Assistant messages after it, summaries included.
    pub steps: usize,
    /// How many of them are not completed.
    pub incomplete: usize,
    /// A tool runs somewhere in the tree, other than one that merely waits for a subagent whose messages are seen.
    pub tool_running: bool,
    /// What a descendant did has not been seen to its end, as where the stream carried none or only a part of it.
    pub descendant_open: bool,
    /// The session will run again by itself: a subagent was sent to the background and its result has not come back, the server
    /// has put in a prompt of its own, or a late submission put this one behind its failed answer.
    pub runs_again: bool,
}

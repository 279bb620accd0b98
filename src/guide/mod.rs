//! The guide: what to know, in the order in which one needs it.
//!
//! 1. [Concepts](concepts): tasks, sessions, turns and conversations, and what the alternatives are for.
//! 2. [Writing a runner](runner): from a task to its result, with everything that can come between.
//! 3. [Permissions and questions](permissions): who answers, and what happens meanwhile.
//! 4. [Timeouts](timeouts): which silence is allowed for how long.
//! 5. [Restart](restart): what happens to prompts when your process ends, and how the next one goes on.
//! 6. [Sessions](sessions): a session as one handle, what is saved of it, and how it is found again.
//! 7. [Testing with the fake](testing): your runner's tests without a server, a model or a network.
//! 8. [Mocking the server](mocking): what a turn calls, for tests that have a mock server of their own.
//! 9. [Operating it](operating): logs, figures, tuning, what happens when, and what to do when something is wrong.
//! 10. [Other agents](agents): how to put another program behind the manager.
//! 11. [Claude Code's transcripts](claude_transcripts): its streams and files as conversations, and what of them is equal.
//! 12. [Coming from TypeScript](typescript): the calls and hooks of the original, and what is different on purpose.
//!
//! There is no code here. The code in these pages is compiled with the tests.

pub mod concepts {
    #![doc = include_str!("concepts.md")]
}

pub mod runner {
    #![doc = include_str!("runner.md")]
}

pub mod permissions {
    #![doc = include_str!("permissions.md")]
}

pub mod timeouts {
    #![doc = include_str!("timeouts.md")]
}

pub mod restart {
    #![doc = include_str!("restart.md")]
}

pub mod sessions {
    #![doc = include_str!("sessions.md")]
}

pub mod testing {
    #![cfg_attr(feature = "test-util", doc = include_str!("testing.md"))]
    #![cfg_attr(not(feature = "test-util"), doc = "Switch on the feature `test-util` to see this page.")]
}

pub mod mocking {
    #![doc = include_str!("mocking.md")]
}

pub mod operating {
    #![doc = include_str!("operating.md")]
}

pub mod agents {
    #![doc = include_str!("agents.md")]
}

pub mod claude_transcripts {
    #![doc = include_str!("claude_transcripts.md")]
}

pub mod typescript {
    #![doc = include_str!("typescript.md")]
}

//! The contract between the manager and an agent.
//!
//! Waiting for `OpenCode` *is* `OpenCode`: it has an idle that must not be believed, a status map, a prompt that is stored and not
//! run. A process that is spoken to over stdio has none of these. So the contract is cut above the turn, not over a client: an
//! [`Agent`] opens sessions, and an [`OpenSession`] prepares a prompt, executes it to its end, aborts and loads. How it finds out
//! that a turn is over is its own business. What is the same for every agent (order of prompts, policies, updates, limits, statistics,
//! results) is the manager's.
//!
//! A prompt is *prepared* before it is executed: [`PreparedPrompt`] holds every id and the exact request, can be written and read
//! again, and is recorded together with its [`Phase`] before the effect that the phase names. Another process can go on from there.
//!
//! Nothing here performs I/O. The crate's own agent is [`OpenCode`](crate::OpenCode); the smallest complete one is the agent in memory
//! that the tests of the manager use.

mod ask;
mod change;
mod error;
mod limits;
mod outcome;
mod prompt;
mod session;

pub use ask::{Ask, Asked, Decision, Permission, Question, QuestionAnswer, QuestionOption, Subject};
pub use change::{ChangeKind, FileChange};
pub use error::{AgentError, AgentErrorKind};
pub use limits::{Allowed, Limit, TimeoutAction, WaitOptions};
#[cfg(feature = "client")]
pub(crate) use outcome::UNCONFIRMED;
pub use outcome::{
    AbortReport, Completion, Delivery, Ended, Execution, Failure, IdleOutcome, NativeMessages, Stop,
};
pub use prompt::{ModelRef, Phase, PreparedPrompt, PromptPart, PromptSpec};
pub use session::{
    Agent, AgentStatus, BoxFuture, Capabilities, ConversationSink, MadeFor, NewSession, Notice, OpenSession,
    Opened, SessionDescription, StopRequest, TurnHost, Unprepared,
};

//! Everything needed to test a runner without a server or a model.
//!
//! A runner of yours, and its test:
//!
//! ```
//! use opencode_conductor::{
//!     ConversationManager, CreateTaskSession, PromptInput,
//!     test_util::{FakeOpenCode, Script, Step},
//! };
//!
//! /// Returns the answer, tried at most twice.
//! async fn solve(manager: &ConversationManager, task: &str, prompt: &str) -> Option<String> {
//!     let create = CreateTaskSession::new("project", task, "/project", "/project/worktree");
//!     let session = manager.create_task_session(create).await.ok()?.session_id;
//!     for _ in 0..2 {
//!         let input = PromptInput::new(session.clone(), prompt);
//!         if let Ok(result) = manager.prompt(input).await.ok()?.settled() {
//!             return result.answer();
//!         }
//!     }
//!     None
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The provider refuses the first prompt and answers the second.
//! let fake = FakeOpenCode::start().await?;
//! let n_prompts = std::sync::atomic::AtomicUsize::new(0);
//! fake.on_prompt(move |_| match n_prompts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
//!     0 => Script::new([Step::error(400)]),
//!     _ => Script::new([Step::text("42")]),
//! });
//! let manager = ConversationManager::connect(&fake.url()).await?;
//!
//! assert_eq!(solve(&manager, "task", "What is it?").await.as_deref(), Some("42"));
//! let session = manager.task_session_id(&"task".into()).expect("it was made");
//! assert_eq!(fake.prompts_run(session.as_str()).len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! More in the [guide](crate::guide::testing).

#[cfg(all(unix, feature = "claude"))]
pub use crate::claude::fake::{ClaudeFault, ClaudeMoment, ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude};
pub use crate::opencode::fake::{
    FakeOpenCode, FakeOptions, Fault, Flavour, Injection, Log, ModelCall, ModelPrice, Moment, Prompt,
    ProviderError, RecordedEvent, RecordedRequest, Route, Script, ScriptedTool, Step, ToolOutcome,
};
pub use crate::store::tapped::{Effect, StoreCall, TappedStore};

/// What every [`Store`](crate::Store) has to do, as a suite for your own.
pub mod store_suite {
    pub use crate::store::suite::{StoreUnderTest, run};
}

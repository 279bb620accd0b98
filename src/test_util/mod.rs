//! Everything needed to test a runner without a server or a model.

mod script;

pub use script::{ProviderError, Script, ScriptedTool, Step, ToolOutcome};

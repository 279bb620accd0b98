//! Everything needed to test a runner without a server or a model.

mod fake;
mod script;

pub use fake::{
    FakeOpenCode, FakeOptions, Fault, Flavour, Injection, Log, ModelCall, Moment, Prompt, RecordedEvent,
    RecordedRequest, Route,
};
pub use script::{ProviderError, Script, ScriptedTool, Step, ToolOutcome};

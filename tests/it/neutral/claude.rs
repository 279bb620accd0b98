//! Claude Code, on the fake executable.

use opencode_conductor::{
    BoxFuture, ManagerBuilder, MessageId, SessionId,
    claude::ClaudeCode,
    test_util::{ClaudeScript, ClaudeStep, ClaudeTool, FakeClaude},
};

use super::{Play, World};

pub(crate) struct ClaudeWorld(FakeClaude);

impl ClaudeWorld {
    pub(crate) async fn new() -> Self {
        Self(FakeClaude::start().await.unwrap())
    }
}

impl World for ClaudeWorld {
    fn builder(&self) -> ManagerBuilder {
        ManagerBuilder::new(ClaudeCode::new(self.0.options()))
    }

    fn prompt(&self, play: &Play) -> String {
        let text = |words: &str| ClaudeStep::Text(words.to_owned());
        let script = match play {
            Play::Say(words) => ClaudeScript::text(words),
            Play::Gate(words) => ClaudeScript::new([vec![ClaudeStep::Gate("gate".to_owned()), text(words)]]),
            Play::Permission(command) => {
                let tool = ClaudeTool::bash(command).asks();
                ClaudeScript::new([vec![tool.into()], vec![text("allowed, or not")]])
            }
            Play::Question(question) => {
                let tool = ClaudeTool::question(question);
                ClaudeScript::new([vec![tool.into()], vec![text("answered")]])
            }
            Play::Fail(words) => ClaudeScript::new([vec![ClaudeStep::Error(400, words.clone())]]),
        };
        script.prompt("do it")
    }

    fn runs(&self, _: &SessionId, message: &MessageId) -> usize {
        self.0.runs(message.as_str())
    }

    fn at_gate(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.wait_at("gate"))
    }

    fn open_gate(&self) {
        self.0.open_gate("gate");
    }
}

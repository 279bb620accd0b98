//! `OpenCode`, on the fake server.

use opencode_conductor::{
    BoxFuture, ConversationManager, ManagerBuilder, MessageId, SessionId,
    test_util::{FakeOpenCode, Script, ScriptedTool, Step},
};
use serde_json::json;

use super::{Play, World};
use crate::support::stage::{asking_tool, client, gated_text, quick, texts};

pub(crate) struct OpenCodeWorld(FakeOpenCode);

impl OpenCodeWorld {
    pub(crate) async fn new() -> Self {
        Self(FakeOpenCode::start_with(quick()).await.unwrap())
    }
}

impl World for OpenCodeWorld {
    fn builder(&self) -> ManagerBuilder {
        ConversationManager::builder(client(&self.0))
    }

    fn prompt(&self, play: &Play) -> String {
        let script = match play {
            Play::Say(words) => texts(words),
            Play::Gate(words) => gated_text("gate", words),
            Play::Permission(command) => {
                Script::new([Step::tool(asking_tool(command)), Step::text("allowed")])
            }
            Play::Question(question) => {
                let questions = json!({"questions": [{"question": question, "header": "q", "options": []}]});
                Script::new([Step::tool(ScriptedTool::new("question", questions)), Step::text("answered")])
            }
            Play::Fail(_) => Script::new([Step::error(400)]),
        };
        script.prompt("do it")
    }

    fn runs(&self, session: &SessionId, message: &MessageId) -> usize {
        let runs = self.0.prompts_run(session.as_str());
        runs.iter().filter(|run| *run == message.as_str()).count()
    }

    fn at_gate(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.wait_at("gate"))
    }

    fn open_gate(&self) {
        self.0.open_gate("gate");
    }
}

//! A manager with one session on a fake server, and what must be true of every result.

use std::{collections::BTreeMap, time::Duration};

use opencode_conductor::{
    ConversationManager, CreateTaskSession, FeedOptions, ManagerBuilder, OpenCodeClient, OpenCodeOptions,
    PromptError, PromptExecutionResult, PromptInput, RunningPrompt, SessionConversationState, SessionId,
    WaitOptions, message_signature, parse_opencode,
    test_util::{FakeOpenCode, FakeOptions, Route, Script, ScriptedTool, Step},
    wire::Message,
};
use serde_json::{Value, json};

use super::{
    secrets::{self, PASSWORD, checked},
    soon,
};

/// Where the sessions work.
pub(crate) const WORKTREE: &str = "/project/worktree";

pub(crate) struct Stage {
    pub(crate) fake: FakeOpenCode,
    pub(crate) manager: ConversationManager,
    pub(crate) session: SessionId,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::of(quick()).await
    }

    pub(crate) async fn of(options: FakeOptions) -> Self {
        Self::with(options, |manager| manager).await
    }

    pub(crate) async fn with(
        options: FakeOptions,
        settings: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
    ) -> Self {
        let fake = FakeOpenCode::start_with(options).await.unwrap();
        let manager = settings(ConversationManager::builder(client(&fake))).build();
        secrets::check(&manager);
        let session = create(&manager, "task").await;
        Self { fake, manager, session }
    }

    pub(crate) fn input(&self, script: &Script) -> PromptInput {
        PromptInput::new(self.session.clone(), script.prompt("do it"))
    }

    pub(crate) async fn ask(&self, script: &Script) -> Result<PromptExecutionResult, PromptError> {
        self.send(self.input(script)).await
    }

    pub(crate) async fn send(&self, input: PromptInput) -> Result<PromptExecutionResult, PromptError> {
        checked(soon(self.manager.prompt(input).into_future()).await)
    }

    /// As [`Self::ask`], without a look for secrets, which takes seconds for an answer of megabytes.
    pub(crate) async fn ask_unwatched(&self, script: &Script) -> Result<PromptExecutionResult, PromptError> {
        let mut result = None;
        soon(async { result = Some(self.manager.prompt(self.input(script)).into_future().await) }).await;
        result.expect("it has ended")
    }

    pub(crate) fn start(&self, script: &Script) -> RunningPrompt {
        self.manager.prompt(self.input(script)).start()
    }

    /// The prompts that the model began to answer.
    pub(crate) fn prompts_run(&self) -> Vec<String> {
        self.fake.prompts_run(self.session.as_str())
    }

    pub(crate) fn requests(&self, route: Route) -> usize {
        self.fake.request_count(route)
    }

    /// Whether the server says that nothing runs.
    pub(crate) async fn is_idle(&self) -> bool {
        let directory = self.manager.session_directory(&self.session).unwrap();
        let status = self.manager.client().unwrap().directory(&directory).session_status().await.unwrap();
        status.get(&self.session).is_idle()
    }

    /// What must be true of every result: the prompt ran once, and what is reported is what the server has.
    pub(crate) fn check(&self, case: &str, result: &PromptExecutionResult) {
        let prompt = result.submission.message_id.as_str();
        let runs = self.prompts_run().into_iter().filter(|message| message == prompt).count();
        assert_eq!(runs, 1, "{case}: the prompt runs once");
        let listed = self.fake.messages(self.session.as_str());
        let own: Vec<&Value> = listed.iter().filter(|message| message["info"]["id"] == prompt).collect();
        assert_eq!(own.len(), 1, "{case}: the prompt is stored once");
        let texts = own[0]["parts"].as_array().unwrap().iter().filter(|part| part["type"] == "text");
        assert_eq!(texts.count(), 1, "{case}: with its text once");
        // The turn's messages as the server has them, each once, up to the next prompt of this test.
        let place = listed.iter().position(|message| message["info"]["id"] == prompt).unwrap();
        let expected: Vec<Message> = listed[place + 1..]
            .iter()
            .take(result.messages.opencode().len())
            .map(|message| serde_json::from_value(message.clone()).unwrap())
            .collect();
        let ids = |messages: &[Message]| -> Vec<String> {
            messages.iter().map(|message| message.info.id().to_string()).collect()
        };
        let found: Vec<Message> =
            result.messages.opencode().iter().map(|message| (**message).clone()).collect();
        assert_eq!(ids(&found), ids(&expected), "{case}: messages in order, each once");
        for (found, expected) in found.iter().zip(&expected) {
            if found.info.as_assistant().is_some() {
                let differs = message_signature(found) != message_signature(expected);
                assert!(!differs, "{case}: {found:#?}\nis not\n{expected:#?}");
            }
        }
    }

    /// That what was observed equals what a fresh load of the stored session gives.
    pub(crate) fn check_conversation(&self, case: &str, state: &SessionConversationState) {
        let loaded = transcript(&self.fake, &self.session);
        if *state != loaded {
            let text = |state: &SessionConversationState| serde_json::to_string_pretty(state).unwrap();
            panic!("{case}: observed\n{}\nloaded\n{}", text(state), text(&loaded));
        }
    }
}

/// A fake whose own waits are short, and whose subagents may ask questions.
pub(crate) fn quick() -> FakeOptions {
    FakeOptions::new().password(PASSWORD).time_scale(0.02).permission(json!({"question": "allow"}))
}

/// A client that reconnects quickly.
pub(crate) fn client(fake: &FakeOpenCode) -> OpenCodeClient {
    secrets::client(&fake.url()).feed(feed()).build().unwrap()
}

pub(crate) fn feed() -> FeedOptions {
    FeedOptions::new().backoff(ms(20), ms(100))
}

pub(crate) async fn create(manager: &ConversationManager, task: &str) -> SessionId {
    let request = CreateTaskSession::new("project", task, "/project", WORKTREE);
    checked(manager.create_task_session(request).await).unwrap().session_id
}

/// Limits that run out quickly where a test waits for them to.
pub(crate) fn waits() -> WaitOptions {
    WaitOptions::default().start_timeout(ms(300)).settle_grace(ms(300))
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The session and its descendants as they are stored, loaded as a transcript.
pub(crate) fn transcript(fake: &FakeOpenCode, root: &SessionId) -> SessionConversationState {
    let sessions = fake.sessions();
    let parents: BTreeMap<&str, &str> = sessions
        .iter()
        .filter_map(|session| Some((session["id"].as_str()?, session["parentID"].as_str()?)))
        .collect();
    let is_ours = |session: &Value| {
        let mut id = session["id"].as_str().unwrap();
        loop {
            match parents.get(id) {
                _ if id == root.as_str() => return true,
                Some(parent) => id = parent,
                None => return false,
            }
        }
    };
    let documents: Vec<String> = sessions
        .iter()
        .filter(|session| is_ours(session))
        .map(|session| {
            let messages = fake.messages(session["id"].as_str().unwrap());
            json!({"info": session, "messages": messages}).to_string()
        })
        .collect();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    let options = OpenCodeOptions::default().session(root.clone());
    parse_opencode(&documents, &options).unwrap().state
}

/// A step that runs a command, which prints `output`.
pub(crate) fn bash(command: &str, output: &str) -> Step {
    Step::tool(bash_tool(command, output))
}

pub(crate) fn bash_tool(command: &str, output: &str) -> ScriptedTool {
    ScriptedTool::new("bash", json!({"command": command, "description": "run it"})).output(output)
}

/// A call that starts a subagent with a script of its own.
pub(crate) fn task(script: &Script) -> ScriptedTool {
    let args =
        json!({"description": "a part", "prompt": script.prompt("do a part"), "subagent_type": "general"});
    ScriptedTool::new("task", args)
}

/// A call that waits at a gate.
pub(crate) fn gated_tool(gate: &str) -> ScriptedTool {
    bash_tool("sleep", "slept\n").gate(gate)
}

/// A call that asks for permission first.
pub(crate) fn asking_tool(command: &str) -> ScriptedTool {
    bash_tool(command, "done\n").asks("bash", command)
}

pub(crate) fn texts(text: &str) -> Script {
    Script::says(text)
}

/// Says `text`, with a stop at a gate in the middle of it.
pub(crate) fn gated_text(gate: &str, text: &str) -> Script {
    let step = Step::text(text).gate_middle(gate);
    Script::new([step])
}

/// A value with something changed about it.
pub(crate) fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

//! The manager on a real server with a scripted model: every behaviour that breaks a naive waiter.
//!
//! Scenarios share servers and run a few at a time; each has a session of its own, and words of its own in its prompts, by
//! which the model's calls are counted.

use std::{
    fmt::Write as _,
    panic::AssertUnwindSafe,
    path::PathBuf,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, future::join_all, stream};
use opencode_conductor::{
    AgentStatus, BlockBody, Completion, ConversationEvent, ConversationManager, CreateTaskSession, Decision,
    Directory, IdleOutcome, Limit, ManagerBuilder, Method, ModelRef, PermissionPolicy, PromptError,
    PromptExecutionResult, PromptInput, QuestionPolicy, RawRequest, RunStatus, RunningPrompt, SessionId,
    TaskId, Update, Updates, WaitOptions,
    test_util::{ProviderError, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

use super::{
    model::{CallKind, ScriptedModel},
    proxy::Proxy,
    real::{RealOptions, RealServer},
    support::{
        secrets::{self, PASSWORD, checked},
        stage::{bash, bash_tool, ms, task, texts, with},
    },
};

/// No scenario takes longer, on a machine with much else to do.
const SCENARIO_LIMIT: Duration = Duration::from_secs(400);

pub(crate) struct House {
    pub(crate) server: RealServer,
    pub(crate) model: ScriptedModel,
}

impl House {
    /// `None` without a server on this machine.
    pub(crate) async fn open(projects: usize) -> Option<Self> {
        Some(Self::of(RealServer::find()?, projects, Self::newest).await)
    }

    /// What only new releases understand.
    pub(crate) fn newest(options: RealOptions) -> RealOptions {
        let nester = json!({"mode": "all", "description": "d", "permission": {"task": "allow"}});
        options
            .config(json!({"subagent_depth": 3, "agent": {"nester": nester}}))
            .env("OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS", "true")
    }

    /// A server of any release.
    pub(crate) async fn of(
        executable: PathBuf,
        projects: usize,
        settings: impl FnOnce(RealOptions) -> RealOptions,
    ) -> Self {
        let model = ScriptedModel::start().await;
        let config = json!({"permission": {"bash": {"*": "allow", "touch *": "ask"}}});
        let options = RealOptions::new(executable, model.base_url())
            .projects(projects)
            .password(PASSWORD)
            .config(config);
        Self { server: RealServer::start(settings(options)).await, model }
    }

    pub(crate) async fn room(&self, name: &'static str) -> Room<'_> {
        self.room_with(name, 0, |manager| manager).await
    }

    pub(crate) async fn room_with(
        &self,
        name: &'static str,
        project: usize,
        settings: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
    ) -> Room<'_> {
        self.room_at(name, project, self.server.url(), settings).await
    }

    pub(crate) async fn room_at(
        &self,
        name: &'static str,
        project: usize,
        url: &str,
        settings: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
    ) -> Room<'_> {
        let client = secrets::client(url).build().unwrap();
        let manager = settings(ConversationManager::builder(client)).build();
        let directory = self.server.project(project);
        let request = CreateTaskSession::new("project", TaskId::from(name), &directory, &directory);
        let session = manager.create_task_session(request).await.unwrap().session_id;
        let directory = Directory::new(directory).unwrap();
        Room { house: self, name, manager, session, directory }
    }
}

/// A session of its own for a scenario.
pub(crate) struct Room<'a> {
    pub(crate) house: &'a House,
    pub(crate) name: &'static str,
    pub(crate) manager: ConversationManager,
    pub(crate) session: SessionId,
    pub(crate) directory: Directory,
}

impl Room<'_> {
    /// A prompt that is told apart from all others by the room's name and `word`.
    pub(crate) fn input(&self, word: &str, script: &Script) -> PromptInput {
        PromptInput::new(self.session.clone(), script.prompt(&self.words(word)))
    }

    pub(crate) fn words(&self, word: &str) -> String {
        format!("[{}: {word}]", self.name)
    }

    pub(crate) async fn ask(&self, word: &str, script: &Script) -> PromptExecutionResult {
        checked(self.manager.prompt(self.input(word, script)).await).unwrap()
    }

    pub(crate) fn start(&self, word: &str, script: &Script) -> (RunningPrompt, Updates) {
        self.start_with(self.input(word, script))
    }

    pub(crate) fn start_with(&self, input: PromptInput) -> (RunningPrompt, Updates) {
        let mut running = self.manager.prompt(input).start();
        let updates = running.updates().unwrap();
        (running, updates)
    }

    /// How often the model was asked to begin with a prompt.
    pub(crate) fn runs(&self, word: &str) -> usize {
        self.house.model.runs_of(&self.words(word))
    }

    /// That the turn settled with this answer, ran once, and is known as it is stored.
    pub(crate) async fn check(&self, word: &str, result: &PromptExecutionResult, answer: &str) {
        assert_eq!(result.completion, Completion::Settled);
        assert_eq!(result.answer().as_deref(), Some(answer));
        assert_eq!(self.runs(word), 1, "it ran once");
        self.check_conversation(result).await;
    }

    pub(crate) async fn check_conversation(&self, result: &PromptExecutionResult) {
        let fresh = secrets::connect(self.house.server.url());
        let loaded = fresh.load_conversation(&self.session).await.unwrap();
        if result.conversation != loaded {
            let text = |state| serde_json::to_string_pretty(state).unwrap();
            panic!("conversation: observed\n{}\nloaded\n{}\n", text(&result.conversation), text(&loaded));
        }
    }

    pub(crate) async fn is_idle(&self) -> bool {
        let api = self.manager.client().unwrap().directory(&self.directory);
        api.session_status().await.unwrap().get(&self.session).is_idle()
    }

    /// That the session can be used after whatever happened to it.
    pub(crate) async fn check_usable(&self) {
        let result = self.ask("afterwards", &texts("still here")).await;
        self.check("afterwards", &result, "still here").await;
    }
}

/// Waits until an update is as wanted.
pub(crate) async fn until(updates: &mut Updates, wanted: impl Fn(&Update) -> bool) {
    loop {
        let update = updates.next().await.expect("the turn still runs");
        if wanted(&update) {
            return;
        }
    }
}

/// The model has begun to speak, in the root or in a subagent.
pub(crate) fn is_text(update: &Update) -> bool {
    let Update::Conversation(event) = update else { return false };
    let event = serde_json::to_value(event).unwrap();
    event["type"] == "block:delta" || event["block"]["type"] == "assistant_text"
}

fn is_retry(update: &Update) -> bool {
    matches!(update, Update::Status(AgentStatus::Retrying { .. }))
}

/// A tool runs.
pub(crate) fn is_running_tool(update: &Update) -> bool {
    let Update::Conversation(ConversationEvent::BlockUpsert { block, .. }) = update else { return false };
    matches!(block.body, BlockBody::ToolUse { tool_status: RunStatus::Running, .. })
}

pub(crate) fn slow_tool() -> ScriptedTool {
    bash_tool("echo started; sleep 100", "started\n")
}

pub(crate) fn gated(gate: &str, text: &str) -> Script {
    Script::new([Step::text(text).gate_middle(gate)])
}

fn failing(status: u16, times: u32, retry_after_ms: &str) -> Step {
    let error = with(ProviderError::default(), |it| {
        it.status = status;
        it.times = times;
        it.headers = [("retry-after-ms".to_owned(), retry_after_ms.to_owned())].into();
    });
    with(Step::text("recovered"), |it| it.error = Some(error))
}

pub(crate) type Scenario<'a> = (&'static str, BoxFuture<'a, ()>);

/// Names each scenario by its function.
macro_rules! scenarios {
    ($house:expr; $($name:ident)*) => {
        vec![$((stringify!($name), Box::pin($name($house)) as futures_util::future::BoxFuture<'_, ()>)),*]
    };
}

pub(crate) use scenarios;

/// Plays scenarios, so many at once, and reports all that fail.
pub(crate) async fn play(scenarios: Vec<Scenario<'_>>, at_once: usize) {
    let played = stream::iter(scenarios).map(|(name, scenario)| async move {
        let began = now();
        let guarded = AssertUnwindSafe(tokio::time::timeout(SCENARIO_LIMIT, scenario)).catch_unwind();
        let outcome = guarded.await;
        eprintln!("{name}: {:.1} s", began.elapsed().as_secs_f32());
        match outcome {
            Ok(Ok(())) => None,
            Ok(Err(_)) => Some(format!("{name}: did not end")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
                Some(format!("{name}: {}", text.unwrap_or_default()))
            }
        }
    });
    let failed: Vec<String> =
        played.buffer_unordered(at_once).filter_map(async |failed| failed).collect().await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[expect(clippy::disallowed_methods, reason = "to tell how long a scenario takes")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_on_a_real_server() {
    let Some(house) = House::open(4).await else { return };
    let scenarios = scenarios![&house;
        normal_turn follow_ups_after_errors prompt_while_busy
        abort_in_text abort_in_tool abort_in_child abort_in_retry
        permissions_of_the_root permissions_of_a_child permission_for_good questions
        parallel_subagents nested_subagents background_subagent
        provider_refuses provider_recovers retry_budget silent_provider endless_steps
        compaction stream_cut configuration_changes unknown_agent_and_model
        kicked_while_it_starts attached_after_a_restart_of_the_runner
    ];
    play(scenarios, 4).await;
}

async fn normal_turn(house: &House) {
    let room = house.room("normal").await;
    let script = Script::new([
        with(bash("echo hi", "hi\n"), |it| it.reasoning.push_str("let me see")),
        with(Step::text("All done."), |it| it.reasoning.push_str("fine")),
    ]);
    let result = room.ask("first", &script).await;
    room.check("first", &result, "All done.").await;
    assert_eq!(result.messages.opencode().len(), 2);
    let next = room.ask("second", &texts("And again.")).await;
    room.check("second", &next, "And again.").await;
    assert_eq!(next.messages.opencode().len(), 1);
}

/// The case that loses 30 of 30 prompts of a client that sends them when the server says idle.
async fn follow_ups_after_errors(house: &House) {
    let names = ["errors 1", "errors 2", "errors 3", "errors 4", "errors 5", "errors 6"];
    let rooms = join_all(names.map(|name| house.room(name))).await;
    join_all(rooms.iter().map(|room| async move {
        for round in 0..5 {
            let (bad, good) = (format!("bad {round}"), format!("good {round}"));
            let (first, _) = room.start(&bad, &Script::new([Step::error(400)]));
            let (second, _) = room.start(&good, &texts("fine"));
            let first = first.await.unwrap();
            assert!(matches!(first.completion, Completion::Failed(_)), "{bad}: {:?}", first.completion);
            let second = second.await.unwrap();
            assert_eq!(second.completion, Completion::Settled, "{good}");
            assert_eq!(second.answer().as_deref(), Some("fine"), "{good}");
            assert_eq!(room.runs(&good), 1, "{good}: answered exactly once");
            assert_eq!(room.runs(&bad), 1, "{bad}: tried exactly once");
        }
    }))
    .await;
}

async fn prompt_while_busy(house: &House) {
    let room = house.room("busy").await;
    let (first, mut updates) = room.start("first", &gated("busy", "one two three four"));
    let (second, _) = room.start("second", &texts("second answer"));
    until(&mut updates, is_text).await;
    assert_eq!(room.runs("second"), 0);
    let listed = room.manager.list_conversation_messages(&room.session).await.unwrap().messages;
    assert_eq!(listed.len(), 2, "the second prompt waits here and not on the server");
    house.model.open_gate("busy");
    let first = first.await.unwrap();
    assert_eq!(first.answer().as_deref(), Some("one two three four"));
    assert_eq!(first.messages.opencode().len(), 1);
    let second = second.await.unwrap();
    room.check("second", &second, "second answer").await;
}

pub(crate) async fn abort_and_check(room: &Room<'_>, running: RunningPrompt) {
    let report = room.manager.abort(&room.session).await.unwrap();
    assert!(report.confirmed);
    let result = running.await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    assert!(room.is_idle().await);
    room.check_conversation(&result).await;
    room.check_usable().await;
}

pub(crate) async fn abort_in_text(house: &House) {
    let room = house.room("abort text").await;
    let (running, mut updates) = room.start("x", &gated("abort text", "one two three four"));
    until(&mut updates, is_text).await;
    abort_and_check(&room, running).await;
    house.model.open_gate("abort text");
}

pub(crate) async fn abort_in_child(house: &House) {
    let room = house.room("abort child").await;
    let child = task(&gated("abort child", "one two three four"));
    let (running, mut updates) = room.start("x", &Script::new([Step::tool(child), Step::text("never")]));
    until(&mut updates, is_text).await;
    abort_and_check(&room, running).await;
    house.model.open_gate("abort child");
}

pub(crate) async fn abort_in_tool(house: &House) {
    let room = house.room("abort tool").await;
    let (running, mut updates) =
        room.start("x", &Script::new([Step::tool(slow_tool()), Step::text("never")]));
    until(&mut updates, is_running_tool).await;
    abort_and_check(&room, running).await;
}

async fn abort_in_retry(house: &House) {
    let room = house.room("abort retry").await;
    let (running, mut updates) = room.start("x", &Script::new([failing(429, 0, "3600000")]));
    until(&mut updates, is_retry).await;
    abort_and_check(&room, running).await;
}

/// What the tool named `tool` of the turn's own messages came to.
pub(crate) fn outcomes(result: &PromptExecutionResult) -> String {
    let mut text = String::new();
    for message in result.messages.opencode() {
        for part in &message.parts {
            let part = serde_json::to_value(part).unwrap();
            if part["type"] == "tool" {
                let state = &part["state"];
                write!(text, "{} {} {};", state["status"], state["output"], state["error"]).unwrap();
            }
        }
    }
    text
}

async fn permissions(house: &House, rooms: [&'static str; 3], in_child: bool) {
    let policies = [PermissionPolicy::AllowOnce, PermissionPolicy::Reject, PermissionPolicy::FailTurn];
    for (name, policy) in rooms.into_iter().zip(policies) {
        let expected = format!("{policy:?}");
        let room = house.room_with(name, 0, |manager| manager.permissions(policy)).await;
        let own = Script::new([bash("touch asked", ""), Step::text("done")]);
        let script = if in_child { Script::new([Step::tool(task(&own)), Step::text("done")]) } else { own };
        let result = room.ask("x", &script).await;
        match expected.as_str() {
            "FailTurn" => assert_eq!(result.completion, Completion::Refused, "{name}"),
            _ => room.check("x", &result, "done").await,
        }
        assert!(room.is_idle().await, "{name}");
        if !in_child {
            let outcomes = outcomes(&result);
            match expected.as_str() {
                "AllowOnce" => assert!(outcomes.contains("completed"), "{name}: {outcomes}"),
                "Reject" => assert!(outcomes.contains("not allowed here"), "{name}: {outcomes}"),
                _ => {}
            }
        }
        room.check_conversation(&result).await;
        room.check_usable().await;
    }
}

async fn permissions_of_the_root(house: &House) {
    permissions(house, ["once", "reject", "fail"], false).await;
}

async fn permissions_of_a_child(house: &House) {
    permissions(house, ["child once", "child reject", "child fail"], true).await;
}

async fn permission_for_good(house: &House) {
    // In a directory of its own, as it holds for all sessions there.
    let always = |manager: ManagerBuilder| manager.permissions(PermissionPolicy::AllowAlways);
    let room = house.room_with("always", 1, always).await;
    let script = Script::new([bash("touch a", ""), bash("touch b", ""), Step::text("done")]);
    let (running, updates) = room.start("x", &script);
    let (result, updates) = tokio::join!(running, updates.collect::<Vec<_>>());
    room.check("x", &result.unwrap(), "done").await;
    let asked = updates.iter().filter(|update| matches!(update, Update::Asked(_))).count();
    assert_eq!(asked, 1, "asked once");
}

async fn questions(house: &House) {
    let question = json!([{"question": "Which one?", "header": "Choice", "options": [
        {"label": "left", "description": "the left one"}, {"label": "right", "description": "the right one"},
    ]}]);
    let script = Script::new([
        Step::tool(ScriptedTool::new("question", json!({"questions": question}))),
        Step::text("done"),
    ]);
    let room = house.room("question declined").await;
    let result = room.ask("x", &script).await;
    room.check("x", &result, "done").await;
    assert!(outcomes(&result).contains("No one is available"), "{}", outcomes(&result));
    let answer = QuestionPolicy::ask(|_| async { Decision::Answer(vec![vec!["left".to_owned()]]) });
    let room = house.room_with("question answered", 0, |manager| manager.questions(answer)).await;
    let result = room.ask("x", &script).await;
    room.check("x", &result, "done").await;
    assert!(outcomes(&result).contains("left"), "{}", outcomes(&result));
    let fail = |manager: ManagerBuilder| manager.questions(QuestionPolicy::FailTurn);
    let room = house.room_with("question refused", 0, fail).await;
    let result = room.ask("x", &script).await;
    assert_eq!(result.completion, Completion::Refused);
    room.check_usable().await;
}

async fn parallel_subagents(house: &House) {
    let room = house.room("parallel").await;
    let both = with(Step::default(), |it| it.tools = vec![task(&texts("part a")), task(&texts("part b"))]);
    let result = room.ask("x", &Script::new([both, Step::text("both done")])).await;
    room.check("x", &result, "both done").await;
    assert_eq!(result.conversation.subagents().count(), 2);
    assert_eq!(result.usage_by_session.len(), 3, "the subagents' usage is counted");
}

async fn nested_subagents(house: &House) {
    let room = house.room("nested").await;
    let middle = Script::new([Step::tool(task(&texts("leaf says"))), Step::text("middle says")]);
    let mut outer = task(&middle);
    outer.args["subagent_type"] = "nester".into();
    let result = room.ask("x", &Script::new([Step::tool(outer), Step::text("done")])).await;
    room.check("x", &result, "done").await;
    assert_eq!(result.conversation.subagents().count(), 2);
    assert_eq!(result.usage_by_session.len(), 3);
}

async fn background_subagent(house: &House) {
    let room = house.room("background").await;
    let mut background = task(&gated("background", "found it all"));
    background.args["background"] = true.into();
    let script = Script::new([Step::tool(background), Step::text("It works in the background.")]);
    let (running, mut updates) = room.start("x", &script);
    until(&mut updates, |update| matches!(update, Update::Status(AgentStatus::Idle))).await;
    house.model.open_gate("background");
    let result = running.await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let steps =
        result.messages.opencode().iter().filter(|message| message.info.as_assistant().is_some()).count();
    assert!(steps >= 3, "the subagent's result was taken in: {steps} steps");
    room.check_conversation(&result).await;
    room.check_usable().await;
}

async fn provider_refuses(house: &House) {
    let room = house.room("refuses").await;
    for status in [400, 401, 404] {
        let word = format!("status {status}");
        let result = room.ask(&word, &Script::new([bash("echo hi", "hi\n"), Step::error(status)])).await;
        let Completion::Failed(error) = &result.completion else {
            panic!("{status}: {:?}", result.completion)
        };
        assert_eq!(error.status_code(), Some(status));
        assert!(!result.completion.is_retryable());
        assert_eq!(room.runs(&word), 1);
        room.check_conversation(&result).await;
    }
    room.check_usable().await;
}

async fn provider_recovers(house: &House) {
    let room = house.room("recovers").await;
    for status in [429, 500] {
        let word = format!("status {status}");
        let result = room.ask(&word, &Script::new([failing(status, 2, "50")])).await;
        assert_eq!(result.completion, Completion::Settled);
        assert_eq!(result.answer().as_deref(), Some("recovered"));
        assert_eq!(room.runs(&word), 3, "twice in vain");
        room.check_conversation(&result).await;
    }
}

/// That a limit ended the turn and left nothing running.
async fn check_timed_out(room: &Room<'_>, result: &PromptExecutionResult, expected: Limit) {
    let Completion::TimedOut { limit, abort: Some(abort), .. } = &result.completion else {
        panic!("{:?}", result.completion)
    };
    assert_eq!(*limit, expected);
    assert!(abort.confirmed);
    assert!(room.is_idle().await);
    room.check_conversation(result).await;
    room.check_usable().await;
}

async fn retry_budget(house: &House) {
    let room = house.room("budget").await;
    let wait = WaitOptions::default().retry_budget(ms(3000));
    let input = room.input("x", &Script::new([failing(500, 0, "500")])).wait(wait);
    let result = room.manager.prompt(input).await.unwrap();
    // The server itself may give up first.
    if !matches!(result.completion, Completion::Failed(_)) {
        check_timed_out(&room, &result, Limit::Retry).await;
    }
    let room = house.room("budget, long pause").await;
    let wait = WaitOptions::default().retry_budget(ms(2000));
    let input = room.input("x", &Script::new([failing(429, 0, "3600000")])).wait(wait);
    let result = room.manager.prompt(input).await.unwrap();
    check_timed_out(&room, &result, Limit::Retry).await;
}

async fn silent_provider(house: &House) {
    let room = house.room("silent").await;
    room.ask("warm", &texts("warm")).await;
    let silent = [
        ("headers", Script::new([Step::default().gate_before("silent")])),
        ("stream", gated("silent", "one two three four")),
    ];
    for (word, script) in silent {
        let input = room.input(word, &script).wait(WaitOptions::default().idle_timeout(ms(5000)));
        let result = room.manager.prompt(input).await.unwrap();
        let Completion::TimedOut { limit: Limit::Idle, abort: Some(abort), .. } = &result.completion else {
            panic!("{word}: {:?}", result.completion)
        };
        assert!(abort.confirmed, "{word}");
        assert!(room.is_idle().await, "{word}");
    }
    house.model.open_gate("silent");
    room.check_usable().await;
}

async fn endless_steps(house: &House) {
    let room = house.room("endless").await;
    let mut script = Script::new([with(Step::default(), |it| it.drop = true)]);
    script.repeat_last = true;
    let input = room.input("x", &script).wait(WaitOptions::default().max_steps(5));
    let result = room.manager.prompt(input).await.unwrap();
    assert!(result.messages.opencode().len() > 5);
    check_timed_out(&room, &result, Limit::Steps).await;
    let calls = || {
        let calls = house.model.calls();
        calls.iter().filter(|call| call.prompt.contains("[endless: x]")).count()
    };
    let before = calls();
    room.ask("later", &texts("later")).await;
    assert_eq!(calls(), before, "it is over");
}

async fn compaction(house: &House) {
    let room = house.room("compaction").await;
    let usage = json!({"prompt_tokens": 95_000, "completion_tokens": 5, "total_tokens": 95_005});
    let full = with(Step::text("the long answer"), |it| it.usage = Some(usage));
    let result = room.ask("x", &Script::new([full, Step::text("going on")])).await;
    assert_eq!(result.completion, Completion::Settled);
    assert_eq!(result.answer().as_deref(), Some("the long answer"), "and not what came after the summary");
    let compactions = house.model.calls().iter().filter(|call| call.kind == CallKind::Compaction).count();
    assert!(compactions >= 1);
    assert!(result.messages.opencode().len() >= 4, "{}", result.messages.opencode().len());
    room.check_conversation(&result).await;
    room.check_usable().await;
}

async fn stream_cut(house: &House) {
    let proxy = Proxy::start(house.server.url()).await;
    let room = house.room_at("cut", 0, &proxy.url(), |manager| manager).await;
    let (running, mut updates) = room.start("x", &gated("cut", "one two three four five six"));
    until(&mut updates, is_text).await;
    for _ in 0..3 {
        proxy.cut();
        until(&mut updates, |update| matches!(update, Update::StreamLost)).await;
        until(&mut updates, |update| matches!(update, Update::StreamRestored)).await;
    }
    house.model.open_gate("cut");
    let result = running.await.unwrap();
    room.check("x", &result, "one two three four five six").await;
}

async fn configuration_changes(house: &House) {
    let room = house.room_with("configuration", 2, |manager| manager).await;
    let (running, mut updates) = room.start("x", &gated("configuration", "one two three four"));
    until(&mut updates, is_text).await;
    let request = RawRequest::new(Method::Patch, "/config")
        .directory(&room.directory)
        .json(json!({"username": "somebody else"}));
    let answer = room.manager.client().unwrap().raw(request).await.unwrap();
    assert_eq!(answer.status, 200);
    let result = running.await.unwrap();
    assert_eq!(result.completion, Completion::Aborted);
    room.check_conversation(&result).await;
    house.model.open_gate("configuration");
    room.check_usable().await;
}

async fn unknown_agent_and_model(house: &House) {
    let room = house.room("unknown").await;
    let inputs = [
        ("agent", room.input("agent", &texts("never")).agent("nobody"), "nobody"),
        ("model", room.input("model", &texts("never")).model(ModelRef::new("mock", "missing")), "missing"),
    ];
    for (word, input, named) in inputs {
        let error = room.manager.prompt(input).await.unwrap_err();
        let PromptError::NotStarted { error: Some(said), .. } = &error else { panic!("{word}: {error:?}") };
        assert!(said.message.contains(named), "{word}: {said:?}");
        assert_eq!(room.runs(word), 0);
        let result = room.ask(&format!("after {word}"), &texts("fine")).await;
        room.check(&format!("after {word}"), &result, "fine").await;
    }
}

/// A directory that the server has not opened yet needs seconds to begin; the impatient manager's kicks change nothing.
async fn kicked_while_it_starts(house: &House) {
    let room = house.room_with("impatient", 3, |manager| manager).await;
    let wait = WaitOptions::default().start_timeout(ms(30)).max_kicks(50);
    for round in 0..5 {
        let word = format!("round {round}");
        let script = Script::new([bash("echo hi", "hi\n"), Step::text("once")]);
        let result = room.manager.prompt(room.input(&word, &script).wait(wait.clone())).await.unwrap();
        room.check(&word, &result, "once").await;
        assert_eq!(result.messages.opencode().len(), 2);
    }
}

async fn attached_after_a_restart_of_the_runner(house: &House) {
    let room = house.room("attached").await;
    let (running, mut updates) = room.start("x", &gated("attached", "one two three four"));
    until(&mut updates, is_text).await;
    drop(running);
    let fresh = secrets::connect(house.server.url());
    let meta = fresh.adopt_session("attached", &room.session).await.unwrap();
    assert_eq!(meta.directory, room.directory);
    let waiting = fresh.wait_for_session_idle(&room.session, WaitOptions::default());
    let open = async {
        // The wait has begun when the manager asks for the status; there is no signal for that.
        house.model.open_gate("attached");
    };
    let (idle, ()) = tokio::join!(Box::pin(waiting), open);
    assert_eq!(idle.unwrap(), IdleOutcome::Rest(Some(Completion::Settled)));
    assert_eq!(room.runs("x"), 1);
    let input = room.input("y", &texts("and on"));
    let result = fresh.prompt(input).await.unwrap();
    room.check("y", &result, "and on").await;
}

/// What is cut, and the update that says when.
type Case = (&'static str, Script, fn(&Update) -> bool);

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_that_dies() {
    let Some(mut house) = House::open(1).await else { return };
    let cases: [Case; 3] = [
        ("dies in text", gated("dies", "one two three four"), is_text),
        ("dies in tool", Script::new([Step::tool(slow_tool()), Step::text("never")]), is_running_tool),
        ("dies in child", Script::new([Step::tool(task(&gated("dies", "one two three four")))]), is_text),
    ];
    let mut rooms = Vec::new();
    let mut turns = Vec::new();
    for (name, script, is_far) in cases {
        let room = house.room(name).await;
        let (running, mut updates) = room.start("x", &script);
        tokio::time::timeout(SCENARIO_LIMIT, until(&mut updates, is_far)).await.unwrap();
        turns.push((name, running));
        rooms.push((room.name, room.manager, room.session, room.directory));
    }
    house.server.restart().await;
    for (name, running) in turns {
        let result = tokio::time::timeout(SCENARIO_LIMIT, running).await.unwrap().unwrap();
        assert_eq!(result.completion, Completion::Interrupted, "{name}");
        assert!(!result.messages.opencode().is_empty(), "{name}");
    }
    house.model.open_gate("dies");
    for (name, manager, session, directory) in rooms {
        let room = Room { house: &house, name, manager, session, directory };
        assert_eq!(room.runs("x"), 1, "{name}: nothing ran again by itself");
        let result = room.ask("resumed", &texts("resumed")).await;
        room.check("resumed", &result, "resumed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_tasks_in_five_directories() {
    let Some(house) = House::open(5).await else { return };
    // On a small machine fifty turns at once make the server silent for long; what matters is that all end well.
    let patience = Duration::from_secs(240);
    let client = secrets::client(house.server.url()).answer_timeout(patience).build().unwrap();
    let wait =
        WaitOptions::default().idle_timeout(patience).start_timeout(patience / 4).settle_grace(patience / 4);
    let manager = ConversationManager::builder(client).wait(wait).unwrap().build();
    let tasks = (0..50).map(|n| {
        let (manager, house) = (manager.clone(), &house);
        async move {
            let directory = house.server.project(n % 5);
            let request = CreateTaskSession::new("project", format!("task {n}"), &directory, &directory);
            let session = manager.create_task_session(request).await.unwrap().session_id;
            let words = format!("[task {n}]");
            let script = Script::new([bash("echo hi", "hi\n"), Step::text(format!("answer {n}"))]);
            let input = PromptInput::new(session.clone(), script.prompt(&words));
            let result = manager.prompt(input).await.unwrap_or_else(|error| panic!("{n}: {error:?}"));
            assert_eq!(result.completion, Completion::Settled, "{n}");
            assert_eq!(result.answer(), Some(format!("answer {n}")));
            assert_eq!(result.messages.opencode().len(), 2, "{n}");
            assert_eq!(house.model.runs_of(&words), 1, "{n}: ran once");
            let loaded = manager.load_conversation(&session).await.unwrap();
            assert_eq!(result.conversation, loaded, "{n}");
        }
    });
    tokio::time::timeout(4 * SCENARIO_LIMIT, join_all(tasks)).await.expect("all end in time");
    assert!(
        manager.client().unwrap().statistics().requests < 50 * 30,
        "{:?}",
        manager.client().unwrap().statistics()
    );
    let _: Value = house.server.get("/session").await;
    manager.shutdown().await;
}

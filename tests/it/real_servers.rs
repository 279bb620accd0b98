//! What real servers do that one would not expect, and what the manager makes of it.

use opencode_conductor::{
    AgentErrorKind, Completion, ConversationManager, CreateTaskSession, Delivery, Directory, Limit,
    ManagerBuilder, PermissionPolicy, PromptError, PromptInput, Update, WaitOptions,
    test_util::{Script, Step},
    wire::{PromptPart, PromptRequest},
};
use serde_json::{Value, json};

use super::{
    proxy::Proxy,
    real::RealServer,
    real_manager::{House, Room, gated, is_text, outcomes, play, scenarios, until},
    support::{
        secrets,
        stage::{bash, bash_tool, ms, task, texts, with},
    },
};

/// A plugin whose hook throws where a prompt asks for it.
const PLUGIN: &str = r#"export const Throws = async () => ({
    "experimental.chat.messages.transform": async (_, output) => {
        if (JSON.stringify(output.messages).includes("the plugin throws")) throw new Error("thrown by a plugin")
    },
})"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_and_what_it_does_unexpectedly() {
    let Some(executable) = RealServer::find() else { return };
    let house = House::of(executable, 2, |options| House::newest(options).configured_everywhere()).await;
    let scenarios = scenarios![&house;
        directory_that_is_not_there plugin_that_throws stalled_stream
        models_are_asked_for_once merged_with_another_prompt used_by_others_in_between
        loop_that_is_not_allowed
    ];
    play(scenarios, 3).await;
}

/// That the turn failed with words of the server, and did not wait for a limit.
fn check_failed(result: &opencode_conductor::PromptExecutionResult, words: &str) {
    let Completion::Failed(failure) = &result.completion else { panic!("{:?}", result.completion) };
    assert!(failure.message.contains(words), "{failure:?}");
    assert!(!result.completion.is_retryable());
    assert_eq!(result.answer(), None);
}

/// The server makes the session and takes the prompt, and every run dies when its step has begun.
async fn directory_that_is_not_there(house: &House) {
    let nowhere = house.server.home().join("nowhere");
    let local = secrets::client(house.server.url()).shares_files().build().unwrap();
    let local = ConversationManager::builder(local).build();
    let request = || CreateTaskSession::new("project", "nowhere", &nowhere, &nowhere);
    let refused = local.create_task_session(request()).await.unwrap_err();
    assert!(format!("{:?}", std::error::Error::source(&refused)).contains("must exist"), "{refused:?}");

    let manager = secrets::connect(house.server.url());
    let session = manager.create_task_session(request()).await.unwrap().session_id;
    let directory = Directory::new(&nowhere).unwrap();
    let room = Room { house, name: "nowhere", manager, session, directory };
    let result = room.ask("x", &texts("never")).await;
    check_failed(&result, "NotFound");
    assert_eq!(room.runs("x"), 0, "the model was not called");
    // The server goes on failing there when the directory is made, until it is started again.
    room.check_conversation(&result).await;
}

async fn plugin_that_throws(house: &House) {
    let plugins = house.server.project(1).join(".opencode/plugin");
    std::fs::create_dir_all(&plugins).unwrap();
    std::fs::write(plugins.join("throws.js"), PLUGIN).unwrap();
    let room = house.room_with("plugin", 1, |manager| manager).await;
    let result = room.ask("the plugin throws", &texts("never")).await;
    check_failed(&result, "thrown by a plugin");
    room.check_conversation(&result).await;
    assert_eq!(room.runs("the plugin throws"), 0, "the model was not called");
}

/// A proxy stalls the stream before the first heartbeat, and with it the request that the tool waits for.
async fn stalled_stream(house: &House) {
    let proxy = Proxy::start(house.server.url()).await;
    let allowing = |manager: ManagerBuilder| manager.permissions(PermissionPolicy::AllowOnce);
    let room = house.room_at("stalled", 0, &proxy.url(), allowing).await;
    let step = with(Step::default(), |it| {
        it.gate_before = Some("stalled".to_owned());
        it.tools = vec![bash_tool("touch stalled", "")];
    });
    let (running, mut updates) = room.start("x", &Script::new([step, Step::text("done")]));
    until(&mut updates, |update| matches!(update, Update::Status(status) if !status.is_idle())).await;
    proxy.stall_streams();
    house.model.open_gate("stalled");
    let result = running.await.unwrap();
    room.check("x", &result, "done").await;
}

/// The first turn of another session in the same directory asks for no more than a later one.
async fn models_are_asked_for_once(house: &House) {
    let room = house.room("models").await;
    let requests = || room.manager.client().unwrap().statistics().requests;
    let ask = async |session, word: &str| {
        let before = requests();
        let input = PromptInput::new(session, texts("fine").prompt(&room.words(word)));
        assert_eq!(room.manager.prompt(input).await.unwrap().completion, Completion::Settled);
        requests() - before
    };
    ask(room.session.clone(), "first").await;
    let later = ask(room.session.clone(), "later").await;
    let other = CreateTaskSession::new(
        "project",
        "models, other",
        room.directory.as_path(),
        room.directory.as_path(),
    );
    let other = room.manager.create_task_session(other).await.unwrap().session_id;
    let of_other = ask(other, "other").await;
    assert!(of_other <= later + 1, "{of_other} requests instead of {later}");
}

fn foreign(room: &Room<'_>, id: &str, script: &Script) -> PromptRequest {
    let text = script.prompt(&room.words(id));
    let (message, part) = (format!("msg_{id}"), format!("prt_{id}"));
    let parts = vec![PromptPart::Text { id: part.as_str().into(), text }];
    PromptRequest::new(message.as_str().into(), parts)
}

async fn merged_with_another_prompt(house: &House) {
    let room = house.room("merged").await;
    let (running, mut updates) = room.start("mine", &gated("merged", "one two three four"));
    until(&mut updates, is_text).await;
    let theirs = foreign(&room, "fffmerged", &texts("theirs"));
    let api = secrets::connect(house.server.url());
    api.client().unwrap().directory(&room.directory).prompt_async(&room.session, &theirs).await.unwrap();
    house.model.open_gate("merged");
    let result = running.await.unwrap();
    assert_eq!(result.completion, Completion::Settled);
    let others: Vec<&str> = result.other_prompts.iter().map(opencode_conductor::MessageId::as_str).collect();
    assert_eq!(others, ["msg_fffmerged"]);
    room.check_conversation(&result).await;
    room.check_usable().await;
}

/// A turn, a shell command and a revert by another client between two prompts.
async fn used_by_others_in_between(house: &House) {
    let room = house.room("others").await;
    room.ask("first", &texts("one")).await;
    let theirs = secrets::connect(house.server.url());
    let script =
        Script::new([Step::tool(task(&texts("a part"))), bash("echo hi", "hi\n"), Step::text("theirs")]);
    let input = PromptInput::new(room.session.clone(), script.prompt(&room.words("their turn")));
    assert_eq!(theirs.prompt(input).await.unwrap().completion, Completion::Settled);
    let result = room.ask("second", &texts("two")).await;
    room.check("second", &result, "two").await;
    assert!(result.other_prompts.is_empty());

    let session = &room.session;
    let shell = json!({"agent": "build", "command": "echo by hand"});
    let _: Value = house.server.post(&format!("/session/{session}/shell"), &shell).await;
    let result = room.ask("third", &texts("three")).await;
    room.check("third", &result, "three").await;

    let reverted = json!({"messageID": result.submission.message_id});
    let _: Value = house.server.post(&format!("/session/{session}/revert"), &reverted).await;
    let result = room.ask("fourth", &texts("four")).await;
    room.check("fourth", &result, "four").await;
    theirs.shutdown().await;
}

/// The server asks before it lets a model go on in a loop; not to allow that fails the turn, whatever the model is told.
async fn loop_that_is_not_allowed(house: &House) {
    let rejecting = |manager: ManagerBuilder| manager.permissions(PermissionPolicy::Reject);
    let room = house.room_with("loop", 0, rejecting).await;
    let same = with(Step::default(), |it| it.tools = vec![bash_tool("echo again", "again\n"); 3]);
    let result = room.ask("x", &Script::new([same, Step::text("never")])).await;
    assert_eq!(result.completion, Completion::Rejected, "{}", outcomes(&result));
    room.check_conversation(&result).await;
    room.check_usable().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_that_hangs_or_is_down_is_not_waited_for() {
    let Some(mut house) = House::open(1).await else { return };
    let room = house.room("down").await;
    room.ask("before", &texts("here")).await;
    let (manager, session, directory) = (room.manager.clone(), room.session.clone(), room.directory.clone());

    // It hangs: a session whose first prompt would ask it for its configuration, under a deadline.
    let fresh = secrets::connect(house.server.url());
    fresh.adopt_session("hangs", &session).await.unwrap();
    let other = CreateTaskSession::new("project", "hangs", directory.as_path(), directory.as_path());
    let other = manager.create_task_session(other).await.unwrap().session_id;
    house.server.hang(true);
    let wait = WaitOptions::default().deadline(ms(3000));
    for (manager, session) in [(&manager, &other), (&fresh, &session)] {
        let input =
            PromptInput::new(session.clone(), texts("never").prompt("[down: hangs]")).wait(wait.clone());
        let began = tokio::time::Instant::now();
        let error = manager.prompt(input).await.unwrap_err();
        assert!(matches!(error, PromptError::TimedOut { limit: Limit::Deadline, .. }), "{error:?}");
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }
    house.server.hang(false);

    // It is down.
    house.server.kill().await;
    for manager in [&manager, &fresh] {
        let input = PromptInput::new(session.clone(), texts("never").prompt("[down: down]"));
        let error = manager.prompt(input).await.unwrap_err();
        let PromptError::NotDelivered { delivery: Delivery::NotSent, source: Some(source), .. } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(source.kind(), AgentErrorKind::Unreachable, "{error:?}");
    }
    assert_eq!(house.model.runs_of("[down: down]"), 0);
}

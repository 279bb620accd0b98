//! What every store has to do.

#![expect(clippy::unwrap_used, reason = "a store that fails should stop the suite")]

use futures_util::future::join_all;
use serde_json::json;

use super::{Store, StoreErrorKind, TaskClaim, TurnRecord};
use crate::{
    agent::{BoxFuture, Phase, PreparedPrompt, SessionDescription},
    directory::Directory,
    ids::{MessageId, SessionId, TaskId},
    session::{
        AgentProfile, ConversationSessionMeta, SavedSessionData, SessionListData, SessionStatus,
        WorkspaceFile,
    },
    time::Millis,
    transcript::{Architecture, CombinedTranscript},
};

/// A store that the suite may fill. What it holds is empty at first.
pub trait StoreUnderTest: Send + Sync {
    /// A handle of its own, as another process would have it, to what all handles share. Dropping the handle is the end of that process.
    fn open(&self) -> BoxFuture<'_, Box<dyn Store>>;
}

/// Holds a store to what [`Store`] says. `fresh` makes an empty one; it is called once for each case.
///
/// # Panics
/// At the first case that does not hold; the message says what was expected.
///
/// # Examples
/// ```
/// use opencode_conductor::{
///     BoxFuture, MemoryStore, Store,
///     test_util::store_suite::{StoreUnderTest, run},
/// };
///
/// struct Memory(MemoryStore);
///
/// impl StoreUnderTest for Memory {
///     fn open(&self) -> BoxFuture<'_, Box<dyn Store>> {
///         let handle: Box<dyn Store> = Box::new(self.0.another_handle());
///         Box::pin(std::future::ready(handle))
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() {
/// run(|| Memory(MemoryStore::default())).await;
/// # }
/// ```
pub async fn run<S: StoreUnderTest>(fresh: impl Fn() -> S) {
    a_task_is_claimed_by_one_handle(&fresh()).await;
    a_session_is_kept_until_it_is_removed(&fresh()).await;
    a_task_has_one_session(&fresh()).await;
    a_record_is_kept_to_the_byte(&fresh()).await;
    a_phase_never_goes_back(&fresh()).await;
    a_session_has_one_open_turn(&fresh()).await;
    a_turn_that_was_not_run_is_forgotten(&fresh()).await;
    an_open_turn_belongs_to_one_living_handle(&fresh()).await;
    what_is_released_cannot_be_written(&fresh()).await;
    two_handles_write_at_once(&fresh()).await;
    what_is_saved_is_kept_to_the_byte(&fresh()).await;
    what_is_saved_replaces_what_was(&fresh()).await;
    saved_sessions_are_listed_by_their_last_change(&fresh()).await;
}

fn session(id: &str, task: Option<&str>) -> ConversationSessionMeta {
    let directory = Directory::new(format!("/srv/{id}")).unwrap();
    let described =
        SessionDescription::new(id.into(), directory, format!("Title of {id} ü"), Millis::new(1).into());
    let mut meta = ConversationSessionMeta::from(described);
    meta.task_id = task.map(TaskId::from);
    meta
}

fn turn(session: &str, message: &str, phase: Phase) -> TurnRecord {
    let request = format!("{{\"messageID\": \"{message}\",\n \"text\": \"a\u{0}\\u0000 \u{1F980}\"}}");
    let prompt =
        PreparedPrompt::new(session.into(), message.into(), "do it\n", Millis::new(2).into(), request);
    TurnRecord::new(Some("task".into()), Directory::new("/work").unwrap(), prompt, phase)
}

async fn put(store: &dyn Store, session: &str, message: &str, phase: Phase) -> Result<(), StoreErrorKind> {
    store.put_turn(&turn(session, message, phase)).await.map_err(|error| error.kind().clone())
}

async fn open_turns(store: &dyn Store) -> Vec<String> {
    let turns = store.claim_turns().await.unwrap();
    turns.iter().map(|turn| format!("{} {:?}", turn.prompt.message_id, turn.phase)).collect()
}

async fn a_task_is_claimed_by_one_handle(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    let task = TaskId::from("task");
    let unclear = TaskClaim::unclear("tag-1");
    assert_eq!(one.claim_task(&task, "tag-1").await.unwrap(), TaskClaim::New);
    let refused = other.claim_task(&task, "tag-2").await.unwrap_err();
    assert_eq!(refused.kind(), &StoreErrorKind::Taken, "another handle has the task");
    other.release_task(&task).await.unwrap();
    assert!(other.claim_task(&task, "tag-2").await.is_err(), "what is another's cannot be released");
    let again = one.claim_task(&task, "tag-3").await.unwrap();
    assert_eq!(again, unclear, "an earlier call may have made a session");
    one.release_task(&task).await.unwrap();
    assert_eq!(other.claim_task(&task, "tag-4").await.unwrap(), unclear, "it was released");
    assert!(one.claim_task(&task, "tag-5").await.is_err(), "it is the other's now");
    drop(other);
    assert_eq!(one.claim_task(&task, "tag-6").await.unwrap(), unclear, "its owner is gone");
    one.put_session(&session("ses_1", Some("task"))).await.unwrap();
    let third = shared.open().await;
    assert_eq!(third.claim_task(&task, "tag-7").await.unwrap(), TaskClaim::Session("ses_1".into()));
}

async fn a_session_is_kept_until_it_is_removed(shared: &dyn StoreUnderTest) {
    let one = shared.open().await;
    assert_eq!(one.sessions().await.unwrap(), []);
    let mut second = session("ses_2", None);
    let first = session("ses_1", Some("task"));
    one.put_session(&second).await.unwrap();
    one.put_session(&first).await.unwrap();
    "renamed".clone_into(&mut second.title);
    one.put_session(&second).await.unwrap();
    put(&*one, "ses_1", "msg_over", Phase::Finished).await.unwrap();
    drop(one);
    let other = shared.open().await;
    assert_eq!(other.sessions().await.unwrap(), [first, second.clone()], "they outlive a handle, by id");
    other.remove_session(&"ses_1".into()).await.unwrap();
    other.remove_session(&"ses_1".into()).await.unwrap();
    assert_eq!(other.sessions().await.unwrap(), [second]);
    assert_eq!(
        other.claim_task(&"task".into(), "tag").await.unwrap(),
        TaskClaim::New,
        "the task is free again"
    );
    assert_eq!(other.claim_turn(&"ses_1".into(), &"msg_over".into()).await.unwrap(), None);
}

async fn a_task_has_one_session(shared: &dyn StoreUnderTest) {
    let store = shared.open().await;
    store.put_session(&session("ses_1", Some("task"))).await.unwrap();
    store.put_session(&session("ses_2", Some("task"))).await.unwrap();
    assert_eq!(store.sessions().await.unwrap(), [session("ses_2", Some("task"))], "the first is forgotten");
    assert_eq!(store.claim_task(&"task".into(), "tag").await.unwrap(), TaskClaim::Session("ses_2".into()));
}

async fn a_record_is_kept_to_the_byte(shared: &dyn StoreUnderTest) {
    let store = shared.open().await;
    let mut long = turn("ses_2", "msg_2", Phase::Prepared);
    long.prompt.request = "a long attachment ".repeat(200_000);
    for record in [turn("ses_1", "msg_1", Phase::Submitted), long] {
        store.put_turn(&record).await.unwrap();
        let (session, message) = (&record.prompt.session_id, &record.prompt.message_id);
        assert_eq!(store.claim_turn(session, message).await.unwrap().as_ref(), Some(&record));
    }
    assert_eq!(store.claim_turn(&"ses_1".into(), &"msg_2".into()).await.unwrap(), None);
}

async fn a_phase_never_goes_back(shared: &dyn StoreUnderTest) {
    let store = shared.open().await;
    for phase in [Phase::Prepared, Phase::Started, Phase::Submitted] {
        put(&*store, "ses_1", "msg_1", phase).await.unwrap();
    }
    assert_eq!(open_turns(&*store).await, ["msg_1 Started"]);
    for phase in [Phase::Finished, Phase::Accepted] {
        put(&*store, "ses_1", "msg_1", phase).await.unwrap();
        assert_eq!(open_turns(&*store).await, [""; 0], "what is over stays over");
    }
    let over = store.claim_turn(&"ses_1".into(), &"msg_1".into()).await.unwrap();
    assert_eq!(over, Some(turn("ses_1", "msg_1", Phase::Finished)));
}

async fn a_session_has_one_open_turn(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    put(&*one, "ses_1", "msg_1", Phase::Submitted).await.unwrap();
    let open = StoreErrorKind::turn_open("msg_1".into());
    for store in [&one, &other] {
        assert_eq!(put(&**store, "ses_1", "msg_2", Phase::Prepared).await, Err(open.clone()));
        assert_eq!(put(&**store, "ses_1", "msg_2", Phase::Started).await, Err(open.clone()));
    }
    put(&*other, "ses_2", "msg_1", Phase::Prepared).await.unwrap();
    put(&*one, "ses_1", "msg_1", Phase::Finished).await.unwrap();
    put(&*other, "ses_1", "msg_2", Phase::Prepared).await.unwrap();
    assert_eq!(open_turns(&*other).await, ["msg_2 Prepared", "msg_1 Prepared"], "by session");
}

async fn a_turn_that_was_not_run_is_forgotten(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    let session = SessionId::from("ses_1");
    put(&*one, "ses_1", "msg_1", Phase::Submitted).await.unwrap();
    other.remove_turn(&session, &"msg_1".into()).await.unwrap();
    assert_eq!(open_turns(&*one).await, ["msg_1 Submitted"], "it belongs to another");
    one.remove_turn(&session, &"msg_1".into()).await.unwrap();
    one.remove_turn(&session, &"msg_unknown".into()).await.unwrap();
    assert_eq!(one.claim_turn(&session, &"msg_1".into()).await.unwrap(), None);
    put(&*other, "ses_1", "msg_2", Phase::Prepared).await.unwrap();
    put(&*other, "ses_1", "msg_2", Phase::Finished).await.unwrap();
    other.remove_turn(&session, &"msg_2".into()).await.unwrap();
    let over = other.claim_turn(&session, &"msg_2".into()).await.unwrap();
    assert_eq!(over, Some(turn("ses_1", "msg_2", Phase::Finished)), "it is over");
    put(&*other, "ses_1", "msg_1", Phase::Prepared).await.unwrap();
    assert_eq!(open_turns(&*other).await, ["msg_1 Prepared"], "it may be written again, by anybody");
}

async fn an_open_turn_belongs_to_one_living_handle(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    let (session, message) = (SessionId::from("ses_1"), MessageId::from("msg_1"));
    put(&*one, "ses_1", "msg_1", Phase::Submitted).await.unwrap();
    assert_eq!(open_turns(&*other).await, [""; 0], "its owner lives");
    let refused = other.claim_turn(&session, &message).await.unwrap_err();
    assert_eq!(refused.kind(), &StoreErrorKind::Taken);
    assert_eq!(put(&*other, "ses_1", "msg_1", Phase::Started).await, Err(StoreErrorKind::Taken));
    assert_eq!(open_turns(&*one).await, ["msg_1 Submitted"], "what is one's own can be claimed again");
    drop(one);
    assert_eq!(
        put(&*other, "ses_1", "msg_1", Phase::Started).await,
        Err(StoreErrorKind::Taken),
        "claim it first"
    );
    assert_eq!(open_turns(&*other).await, ["msg_1 Submitted"], "its owner is gone");
    put(&*other, "ses_1", "msg_1", Phase::Started).await.unwrap();
    let third = shared.open().await;
    assert_eq!(open_turns(&*third).await, [""; 0]);
    drop(other);
    let claimed = third.claim_turn(&session, &message).await.unwrap();
    assert_eq!(claimed, Some(turn("ses_1", "msg_1", Phase::Started)));
    put(&*third, "ses_1", "msg_1", Phase::Finished).await.unwrap();
    let fourth = shared.open().await;
    let over = fourth.claim_turn(&session, &message).await.unwrap();
    assert_eq!(over, Some(turn("ses_1", "msg_1", Phase::Finished)), "what is over may be read by all");
}

async fn what_is_released_cannot_be_written(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    put(&*one, "ses_1", "msg_1", Phase::Submitted).await.unwrap();
    one.release().await.unwrap();
    assert_eq!(put(&*one, "ses_1", "msg_1", Phase::Started).await, Err(StoreErrorKind::Taken));
    assert_eq!(open_turns(&*other).await, ["msg_1 Submitted"]);
    assert_eq!(put(&*one, "ses_1", "msg_1", Phase::Finished).await, Err(StoreErrorKind::Taken));
    assert_eq!(open_turns(&*one).await, [""; 0]);
    put(&*other, "ses_1", "msg_1", Phase::Finished).await.unwrap();
}

async fn two_handles_write_at_once(shared: &dyn StoreUnderTest) {
    let handles = [shared.open().await, shared.open().await];
    let names: Vec<String> = (0..50).map(|n| format!("ses_{n}")).collect();
    // Both want every session, under names of their own: one of them gets it.
    let handles = &handles;
    let writes = names.iter().map(|name| async move {
        let first = put(&*handles[0], name, "msg_0", Phase::Prepared);
        let second = put(&*handles[1], name, "msg_1", Phase::Prepared);
        let (first, second) = futures_util::join!(first, second);
        assert!(first.is_ok() != second.is_ok(), "{name}: {first:?}, {second:?}");
        usize::from(second.is_ok())
    });
    let owners = join_all(writes).await;
    for (n, handle) in handles.iter().enumerate() {
        let expected = owners.iter().filter(|owner| **owner == n).count();
        assert_eq!(handle.claim_turns().await.unwrap().len(), expected);
    }
}

fn saved(session: &str, main: &str) -> SavedSessionData {
    let mut listed = SessionListData::new(session.into(), Architecture::OpenCode);
    listed.agent_profile_reference = "code-assistant".into();
    listed.created_at = Some(Millis::new(1));
    let mut data = SavedSessionData::new(listed);
    data.refresh(CombinedTranscript::new(main));
    data
}

async fn what_is_saved_is_kept_to_the_byte(shared: &dyn StoreUnderTest) {
    let store = shared.open().await;
    let mut full = saved("ses_1", &"a long transcript \u{1F980}\0\n".repeat(40_000));
    full.refresh(full.transcript().subagent("sub_1", "ü".repeat(100_000), Some("meta".into())));
    let empty = CombinedTranscript::new("").subagent("sub_2", "", None);
    full.subagents.extend({
        let mut other = saved("ses_1", "");
        other.refresh(empty);
        other.subagents
    });
    full.subagents[1].raw_transcript = None;
    full.listed.architecture = Architecture::Other("gemini-cli".to_owned());
    full.listed.status = SessionStatus::Other("archived".to_owned());
    full.workspace_files.push(WorkspaceFile::new("src/lib.rs", "fn main() {}\n"));
    full.agent_profile = Some(AgentProfile::new("code-assistant").instructions("Be brief."));
    full.extra.insert("custom".to_owned(), json!({"kept": [1, null]}));
    let bare = SavedSessionData::new(SessionListData::new("ses_2".into(), Architecture::Conversation));
    for data in [&full, &bare, &saved("ses_3", "")] {
        store.put_saved(data).await.unwrap();
    }
    drop(store);
    let other = shared.open().await;
    for data in [full, bare, saved("ses_3", "")] {
        let id = data.listed.session_id.clone();
        assert_eq!(other.saved(&id).await.unwrap(), Some(data), "it outlives a handle");
    }
    assert_eq!(other.saved(&"ses_4".into()).await.unwrap(), None);
}

async fn what_is_saved_replaces_what_was(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    let long = "0123456789".repeat(30_000);
    let with_subagent = |main: &str| {
        let mut data = saved("ses_1", main);
        data.refresh(data.transcript().subagent("sub_1", main, None));
        data
    };
    let grown = format!("{long}and more");
    let changed = long.replacen('5', "five", 1);
    // It grows, changes at its beginning, becomes shorter, and loses a subagent.
    let versions = [
        saved("ses_1", &long),
        with_subagent(&grown),
        with_subagent(&changed),
        with_subagent("short"),
        saved("ses_1", "short"),
    ];
    for data in versions {
        one.put_saved(&data).await.unwrap();
        assert_eq!(other.saved(&"ses_1".into()).await.unwrap(), Some(data));
    }
    one.put_session(&session("ses_1", None)).await.unwrap();
    other.remove_session(&"ses_1".into()).await.unwrap();
    assert!(one.saved(&"ses_1".into()).await.unwrap().is_some(), "what is forgotten stays saved");
    other.remove_saved(&"ses_1".into()).await.unwrap();
    other.remove_saved(&"ses_1".into()).await.unwrap();
    assert_eq!(one.saved(&"ses_1".into()).await.unwrap(), None);
    assert_eq!(one.saved_sessions().await.unwrap(), []);
    let mut again = saved("ses_1", "");
    again.refresh(CombinedTranscript::new("").subagent("sub_1", "", None));
    one.put_saved(&again).await.unwrap();
    assert_eq!(other.saved(&"ses_1".into()).await.unwrap(), Some(again), "nothing of the old is left");
}

async fn saved_sessions_are_listed_by_their_last_change(shared: &dyn StoreUnderTest) {
    let (one, other) = (shared.open().await, shared.open().await);
    let mut listed = Vec::new();
    for (id, changed) in [("ses_b", Some(5)), ("ses_d", None), ("ses_c", Some(7)), ("ses_a", Some(5))] {
        let mut data = saved(id, "a transcript");
        data.listed.last_activity = changed.map(Millis::new);
        one.put_saved(&data).await.unwrap();
        listed.push(data.listed);
    }
    let [b, d, c, a] = listed.try_into().unwrap();
    assert_eq!(other.saved_sessions().await.unwrap(), [c, a, b, d]);
}

//! The store on its own: the conformance suite, and databases that are not as they should be.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test rig should stop the test")]

use std::{fs, path::Path, time::Duration};

use futures_util::future::join_all;
use opencode_conductor::{
    Architecture, BoxFuture, CombinedTranscript, Directory, Millis, Phase, PreparedPrompt, SavedSessionData,
    SessionListData, Store, StoreErrorKind, TurnRecord,
    test_util::store_suite::{self, StoreUnderTest},
};
use opencode_conductor_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

struct InDirectory(TempDir);

impl StoreUnderTest for InDirectory {
    fn open(&self) -> BoxFuture<'_, Box<dyn Store>> {
        Box::pin(async {
            let store: Box<dyn Store> = Box::new(SqliteStore::open(self.0.path().join("db")).await.unwrap());
            store
        })
    }
}

#[tokio::test]
async fn it_does_what_every_store_does() {
    store_suite::run(|| InDirectory(tempfile::tempdir().unwrap())).await;
}

fn turn(session: &str, message: &str, request: String) -> TurnRecord {
    let prompt = PreparedPrompt::new(session.into(), message.into(), "text", Millis::new(1).into(), request);
    TurnRecord::new(None, Directory::new("/w").unwrap(), prompt, Phase::Prepared)
}

async fn kind_of_opening(path: &Path) -> StoreErrorKind {
    let options = SqliteOptions::new().busy_timeout(Duration::from_millis(20));
    let error = options.open(path).await.expect_err("it cannot be opened");
    assert!(error.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
    error.kind().clone()
}

#[tokio::test]
async fn a_database_that_cannot_be_used_says_why_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);

    fs::write(at("garbage"), "this is not a database, and longer than a header of one is: ".repeat(20))
        .unwrap();
    assert_eq!(kind_of_opening(&at("garbage")).await, StoreErrorKind::Corrupt);

    let foreign = Connection::open(at("foreign")).unwrap();
    foreign.execute_batch("CREATE TABLE invoices (id INTEGER)").unwrap();
    drop(foreign);
    assert_eq!(kind_of_opening(&at("foreign")).await, StoreErrorKind::Corrupt);

    drop(SqliteStore::open(at("newer")).await.unwrap());
    let newer = Connection::open(at("newer")).unwrap();
    newer.pragma_update(None, "user_version", 999).unwrap();
    drop(newer);
    let kind = kind_of_opening(&at("newer")).await;
    assert!(matches!(kind, StoreErrorKind::Newer { found: 999, supported: 2, .. }), "{kind:?}");
    let untouched = Connection::open(at("newer")).unwrap();
    let version: i64 = untouched.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 999);

    drop(SqliteStore::open(at("locked")).await.unwrap());
    let locking = Connection::open(at("locked")).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(kind_of_opening(&at("locked")).await, StoreErrorKind::Locked);
    locking.execute_batch("ROLLBACK").unwrap();
    SqliteStore::open(at("locked")).await.expect("it is free again");

    assert_eq!(kind_of_opening(&at("no-such-directory/db")).await, StoreErrorKind::Failed);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_and_not_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    for n in 0..200 {
        store.put_turn(&turn(&format!("ses_{n}"), "msg", "long ".repeat(200))).await.unwrap();
    }
    drop(store);
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40_000].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let store = SqliteStore::open(&path).await.expect("the header is sound");
    let error = store.claim_turns().await.unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn a_locked_store_is_an_error_and_then_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let options = SqliteOptions::new().busy_timeout(Duration::from_millis(20));
    let store = options.open(&path).await.unwrap();
    let locking = Connection::open(&path).unwrap();
    locking.execute_batch("BEGIN IMMEDIATE").unwrap();
    let record = turn("ses_1", "msg_1", String::new());
    let error = store.put_turn(&record).await.unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Locked);
    assert!(error.is_retryable());
    locking.execute_batch("ROLLBACK").unwrap();
    store.put_turn(&record).await.unwrap();
    assert_eq!(store.claim_turns().await.unwrap(), [record]);
}

#[tokio::test]
async fn a_full_store_keeps_what_it_has_and_writes_nothing_by_halves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteOptions::new().max_bytes(200_000).open(&path).await.unwrap();
    let small = turn("ses_small", "msg", String::new());
    store.put_turn(&small).await.unwrap();
    let error = store.put_turn(&turn("ses_large", "msg", "x".repeat(1_000_000))).await.unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Full, "{error:?}");
    let started = TurnRecord::new(None, small.directory.clone(), small.prompt.clone(), Phase::Started);
    store.put_turn(&started).await.expect("a phase needs no room");
    drop(store);
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.claim_turns().await.unwrap(), [started], "and nothing of the large one");
}

/// On a file system of its own that has no more room, where one may be made.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_then_the_store_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=700k none \"$FULL_DISK\" || exit 77; exec \"$0\" --exact fills_a_disk --nocapture";
    let mut child = std::process::Command::new("unshare");
    child.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let output = match child.env("FULL_DISK", directory.path()).output() {
        Ok(output) if output.status.success() => output,
        refused => return eprintln!("SKIPPED: no file system can be mounted here: {refused:?}"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("filled: Full, then works again"), "{said}");
}

/// The child of the test above; does nothing on its own.
#[tokio::test]
async fn fills_a_disk() {
    let Some(place) = std::env::var_os("FULL_DISK") else { return };
    let path = Path::new(&place).join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    let small = turn("ses_small", "msg", String::new());
    store.put_turn(&small).await.unwrap();
    let error = store.put_saved(&saved("ses_large", 2_000_000)).await.unwrap_err();
    let kind = error.kind().clone();
    assert!(error.is_retryable(), "{error:?}");
    drop(store);
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.claim_turns().await.unwrap(), std::slice::from_ref(&small), "what was there is kept");
    assert_eq!(store.saved(&"ses_large".into()).await.unwrap(), None, "and nothing is there by halves");
    let started = TurnRecord::new(None, small.directory.clone(), small.prompt.clone(), Phase::Started);
    store.put_turn(&started).await.unwrap();
    store.put_saved(&saved("ses_small", 10)).await.unwrap();
    println!("filled: {kind:?}, then works again");
}

/// Permissions do not hold for root, so that a process of another user looks.
#[cfg(unix)]
#[test]
fn a_store_that_cannot_be_written_says_so() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { drop(SqliteStore::open(&path).await.unwrap()) });
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "opens_read_only_store", "--nocapture"]).env("READ_ONLY_STORE", &path);
    if rustix::process::geteuid().is_root() {
        child.uid(65534).gid(65534);
    }
    let output = child.output();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("opened: ReadOnly"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The child of the test above; does nothing on its own.
#[tokio::test]
async fn opens_read_only_store() {
    if let Some(path) = std::env::var_os("READ_ONLY_STORE") {
        println!("opened: {:?}", kind_of_opening(Path::new(&path)).await);
    }
}

#[tokio::test]
async fn turns_that_have_been_over_for_long_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    let (over, open) = (turn("ses_1", "msg_over", String::new()), turn("ses_1", "msg_open", String::new()));
    let over = TurnRecord::new(None, over.directory, over.prompt, Phase::Finished);
    store.put_turn(&over).await.unwrap();
    store.put_turn(&open).await.unwrap();
    let old = Connection::open(&path).unwrap();
    old.execute_batch("UPDATE turns SET changed_at = unixepoch() - 100000").unwrap();
    assert_eq!(store.claim_turns().await.unwrap().len(), 1);
    let known = store.claim_turn(&"ses_1".into(), &"msg_over".into()).await.unwrap();
    assert!(known.is_some(), "it is young enough");
    drop(store);
    let store = SqliteOptions::new().keep_finished(Duration::from_secs(1000)).open(&path).await.unwrap();
    assert_eq!(store.claim_turn(&"ses_1".into(), &"msg_over".into()).await.unwrap(), None);
    assert_eq!(store.claim_turns().await.unwrap(), [open], "what is open stays, however old");
}

#[tokio::test]
#[cfg(unix)]
async fn a_living_owner_is_known_by_whatever_name_the_file_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (directory.path().join("db"), directory.path().join("elsewhere"));
    let store = SqliteStore::open(&path).await.unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&path, elsewhere.join("link")).unwrap();
    store.put_turn(&turn("ses_1", "msg_1", String::new())).await.unwrap();
    for name in [elsewhere.join("link"), elsewhere.join("../db")] {
        let other = SqliteStore::open(&name).await.unwrap();
        assert_eq!(other.claim_turns().await.unwrap(), [], "{}", name.display());
    }
}

fn saved(session: &str, n_bytes: usize) -> SavedSessionData {
    let mut data = SavedSessionData::new(SessionListData::new(session.into(), Architecture::OpenCode));
    data.refresh(CombinedTranscript::new("x".repeat(n_bytes)));
    data
}

async fn ids(store: &SqliteStore) -> Vec<String> {
    store.saved_sessions().await.unwrap().iter().map(|session| session.session_id.to_string()).collect()
}

#[tokio::test]
async fn what_was_saved_long_ago_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    for session in ["ses_new", "ses_old", "ses_works"] {
        store.put_saved(&saved(session, 200_000)).await.unwrap();
    }
    store.put_turn(&turn("ses_works", "msg", String::new())).await.unwrap();
    let old = Connection::open(&path).unwrap();
    old.execute_batch("UPDATE saved SET saved_at = saved_at - 100000000 WHERE session != 'ses_new'").unwrap();
    store.claim_turns().await.unwrap();
    assert_eq!(ids(&store).await.len(), 3, "they are young enough");
    drop(store);
    let store = SqliteOptions::new().keep_saved(Duration::from_secs(1000)).open(&path).await.unwrap();
    assert_eq!(ids(&store).await, ["ses_new", "ses_works"], "what works stays, however old");
    let n_pieces: i64 =
        old.query_row("SELECT count(DISTINCT session) FROM pieces", [], |row| row.get(0)).unwrap();
    assert_eq!(n_pieces, 2, "its pieces are gone, too");
}

#[tokio::test]
async fn what_is_too_much_is_removed_oldest_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteOptions::new().max_saved_bytes(350_000).open(&path).await.unwrap();
    let clock = Connection::open(&path).unwrap();
    // Each is older than the one after it.
    let age = || clock.execute_batch("UPDATE saved SET saved_at = saved_at - 1000").unwrap();
    store.put_turn(&turn("ses_0", "msg", String::new())).await.unwrap();
    for n in 0..5 {
        age();
        store.put_saved(&saved(&format!("ses_{n}"), 100_000)).await.unwrap();
    }
    assert_eq!(ids(&store).await, ["ses_0", "ses_2", "ses_3", "ses_4"], "the first one works");
    age();
    store.put_saved(&saved("ses_large", 1_000_000)).await.unwrap();
    assert_eq!(ids(&store).await, ["ses_0", "ses_large"], "the newest stays, however large");
}

#[tokio::test]
async fn only_what_is_new_of_a_transcript_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    let wal = || fs::metadata(directory.path().join("db-wal")).unwrap().len();
    let mut data = saved("ses_1", 3_000_000);
    store.put_saved(&data).await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    data.raw_transcript.as_mut().unwrap().push_str("one more message");
    store.put_saved(&data).await.unwrap();
    assert!(wal() < 300_000, "{} bytes were written", wal());
    assert_eq!(store.saved(&"ses_1".into()).await.unwrap(), Some(data));
}

#[tokio::test]
async fn calls_that_wait_for_each_other_fail_on_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteOptions::new().max_bytes(400_000).open(&path).await.unwrap();
    // More than are written at once, and every tenth is refused because its session has an open turn.
    let records: Vec<TurnRecord> = (0..300)
        .map(|n| turn(&format!("ses_{}", n - n % 10 / 9), &format!("msg_{n}"), String::new()))
        .collect();
    let written = join_all(records.iter().map(|record| store.put_turn(record))).await;
    for (n, written) in written.iter().enumerate() {
        assert_eq!(written.is_err(), n % 10 == 9, "{n}: {written:?}");
    }
    assert_eq!(store.claim_turns().await.unwrap().len(), 270);
    // One for which there is no room takes nothing away from what was written before, and leaves nothing behind.
    let (early, large) = (saved("ses_early", 10), saved("ses_large", 2_000_000));
    let listing = store.saved_sessions();
    let (early, large, listed) = tokio::join!(store.put_saved(&early), store.put_saved(&large), listing);
    assert_eq!(*large.unwrap_err().kind(), StoreErrorKind::Full);
    let told: Vec<&str> = early.is_ok().then_some("ses_early").into_iter().collect();
    drop((listed, store));
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(ids(&store).await, told, "what was told is so");
    store.put_saved(&saved("ses_early", 10)).await.unwrap();
}

#[tokio::test]
async fn a_database_of_the_first_version_is_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = SqliteStore::open(&path).await.unwrap();
    let record = turn("ses_1", "msg_1", "to the byte".to_owned());
    store.put_turn(&record).await.unwrap();
    drop(store);
    let old = Connection::open(&path).unwrap();
    old.execute_batch("DROP TABLE saved; DROP TABLE pieces; PRAGMA user_version = 1").unwrap();
    drop(old);
    // Both at once: one of them migrates.
    let (one, other) = tokio::join!(SqliteStore::open(&path), SqliteStore::open(&path));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.claim_turns().await.unwrap(), [record], "what was there is kept");
    one.put_saved(&saved("ses_1", 10)).await.unwrap();
    assert_eq!(ids(&other).await, ["ses_1"]);
}

#[tokio::test]
async fn the_locks_of_the_dead_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let locks = || {
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().contains("-runner-")).count()
    };
    fs::write(directory.path().join("db-runner-dead"), "").unwrap();
    let one = SqliteStore::open(&path).await.unwrap();
    let other = SqliteStore::open(&path).await.unwrap();
    assert_eq!(locks(), 2);
    drop((one, other));
    assert_eq!(locks(), 0);
}

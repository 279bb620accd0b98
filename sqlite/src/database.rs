//! The statements. Everything that reads and then writes is one transaction that begins by locking the database.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    error::Error,
    path::Path,
    time::Duration,
};

use opencode_conductor::{
    ConversationSessionMeta, MessageId, Phase, SessionId, StoreError, StoreErrorKind, TaskClaim, TaskId,
    TurnRecord,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, TransactionBehavior, named_params, params};

use crate::{
    Call,
    options::SqliteOptions,
    owner::Owner,
    saved::{self, Retention},
    schema::{self, APPLICATION_ID},
};

/// An open database, used by one thread.
pub(crate) struct Database {
    pub(crate) connection: Connection,
    owner: Owner,
    keep_finished: Duration,
    pub(crate) keep_saved: Retention,
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: StoreErrorKind,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn into_error(self, attempt: String) -> StoreError {
        let error = StoreError::new(attempt, self.kind);
        match self.source {
            Some(source) => error.because(source),
            None => error,
        }
    }
}

impl Failure {
    /// The same failure, told to one more caller.
    pub(crate) fn again(&self) -> Self {
        let source = self.source.as_ref().map(|source| source.to_string().into());
        Self { kind: self.kind.clone(), source }
    }
}

impl From<StoreErrorKind> for Failure {
    fn from(kind: StoreErrorKind) -> Self {
        Self { kind, source: None }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let kind = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreErrorKind::Corrupt,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreErrorKind::ReadOnly,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreErrorKind::Locked,
            Some(ErrorCode::DiskFull) => StoreErrorKind::Full,
            _ => StoreErrorKind::Failed,
        };
        Self { kind, source: Some(error.into()) }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self { kind: StoreErrorKind::Corrupt, source: Some(error.into()) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                StoreErrorKind::ReadOnly
            }
            std::io::ErrorKind::StorageFull => StoreErrorKind::Full,
            _ => StoreErrorKind::Failed,
        };
        Self { kind, source: Some(error.into()) }
    }
}

impl Database {
    pub(crate) fn open(path: &Path, options: &SqliteOptions) -> Result<Self, Failure> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(options.busy_timeout)?;
        // Before anything is written: a newer program may need another way to write.
        check_version(&connection)?;
        use_wal(&connection, options.busy_timeout)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        if let Some(bytes) = options.max_bytes {
            let page_size: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
            connection.query_row(
                &format!("PRAGMA max_page_count = {}", bytes / u64::from(page_size)),
                [],
                |_| Ok(()),
            )?;
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version = check_version(&transaction)?;
        schema::migrate(&transaction, version)?;
        // Whatever name the file was given by: handles look for each other beside it.
        let owner = Owner::new(&path.canonicalize()?)?;
        owner.sweep()?;
        let (keep_finished, keep_saved) = (options.keep_finished, options.keep_saved);
        prune(&transaction, keep_finished)?;
        saved::prune(&transaction, keep_saved)?;
        transaction.commit()?;
        Ok(Self { connection, owner, keep_finished, keep_saved })
    }

    /// Does what many calls want in one transaction, in which each of them may fail on its own, and tells them when it is on disk.
    pub(crate) fn together(&mut self, calls: Vec<Call>) {
        let is_alone = calls.len() == 1;
        // A call that only reads need not wait for another program that writes.
        if is_alone || self.connection.execute_batch("BEGIN IMMEDIATE").is_err() {
            return calls.into_iter().for_each(|call| call(self)(Ok(())));
        }
        let mut answers = Vec::with_capacity(calls.len());
        let mut calls = calls.into_iter();
        // A disk that is full ends the transaction with all that was done in it.
        while !self.connection.is_autocommit()
            && let Some(call) = calls.next()
        {
            answers.push(call(self));
        }
        let committed = if self.connection.is_autocommit() {
            Err(Failure::from(StoreErrorKind::Full))
        } else {
            self.connection.execute_batch("COMMIT").map_err(Failure::from)
        };
        if !self.connection.is_autocommit() {
            // It could not be committed, and the next call begins with nothing of it.
            drop(self.connection.execute_batch("ROLLBACK"));
        }
        for answer in answers {
            answer(committed.as_ref().copied());
        }
        calls.for_each(|call| call(self)(Ok(())));
    }

    /// One change, all of it or nothing.
    pub(crate) fn write<T>(
        &mut self,
        work: impl FnOnce(&Connection, &Owner) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.connection.is_autocommit() {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction, &self.owner)?;
            transaction.commit()?;
            return Ok(done);
        }
        let part = self.connection.savepoint()?;
        let done = work(&part, &self.owner)?;
        part.commit()?;
        Ok(done)
    }

    pub(crate) fn claim_task(&mut self, task: &TaskId, tag: &str) -> Result<TaskClaim, Failure> {
        self.write(|transaction, owner| {
            let known = transaction
                .query_row("SELECT session, tag, owner FROM tasks WHERE task = ?", [task.as_str()], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()?;
            let known: Option<(Option<String>, String, Option<String>)> = known;
            let claim = match known {
                Some((Some(session), ..)) => return Ok(TaskClaim::Session(session.into())),
                Some((None, _, Some(other))) if owner.is_another(&other) => {
                    return Err(StoreErrorKind::Taken.into());
                }
                Some((None, tag, _)) => TaskClaim::unclear(tag),
                None => TaskClaim::New,
            };
            transaction.execute(
                "INSERT INTO tasks (task, tag, owner) VALUES (:task, :tag, :owner)
                 ON CONFLICT (task) DO UPDATE SET owner = :owner",
                named_params! {":task": task.as_str(), ":tag": tag, ":owner": owner.id()},
            )?;
            Ok(claim)
        })
    }

    pub(crate) fn release_task(&mut self, task: &TaskId) -> Result<(), Failure> {
        let release = "UPDATE tasks SET owner = NULL WHERE task = ? AND owner = ?";
        self.connection.execute(release, [task.as_str(), self.owner.id()])?;
        Ok(())
    }

    pub(crate) fn put_session(&mut self, session: &ConversationSessionMeta) -> Result<(), Failure> {
        let id = session.session_id.as_str();
        let meta = serde_json::to_string(session)?;
        self.write(|transaction, _| {
            if let Some(task) = &session.task_id {
                let before: Option<Option<String>> = transaction
                    .query_row("SELECT session FROM tasks WHERE task = ?", [task.as_str()], |row| row.get(0))
                    .optional()?;
                if let Some(replaced) = before.flatten().filter(|before| before != id) {
                    remove_session(transaction, &replaced)?;
                }
                transaction.execute(
                    "INSERT INTO tasks (task, session, tag) VALUES (:task, :session, '')
                     ON CONFLICT (task) DO UPDATE SET session = :session, owner = NULL",
                    named_params! {":task": task.as_str(), ":session": id},
                )?;
            }
            transaction.execute(
                "INSERT INTO sessions (session, meta) VALUES (:session, :meta)
                 ON CONFLICT (session) DO UPDATE SET meta = :meta",
                named_params! {":session": id, ":meta": meta},
            )?;
            Ok(())
        })
    }

    pub(crate) fn remove_session(&mut self, session: &SessionId) -> Result<(), Failure> {
        self.write(|transaction, _| remove_session(transaction, session.as_str()))
    }

    pub(crate) fn sessions(&mut self) -> Result<Vec<ConversationSessionMeta>, Failure> {
        let mut statement = self.connection.prepare_cached("SELECT meta FROM sessions ORDER BY session")?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.map(|meta| Ok(serde_json::from_str(&meta?)?)).collect()
    }

    pub(crate) fn put_turn(&mut self, record: &TurnRecord) -> Result<(), Failure> {
        let (session, message) = (record.prompt.session_id.as_str(), record.prompt.message_id.as_str());
        self.write(|transaction, owner| {
            if let Some((phase, known)) = Stored::phase(transaction, session, message)? {
                if phase != Phase::Finished && known.as_deref() != Some(owner.id()) {
                    return Err(StoreErrorKind::Taken.into());
                }
                if record.phase > phase {
                    set_phase(transaction, record)?;
                }
                return Ok(());
            }
            if record.is_open() {
                let open: Option<String> = transaction
                    .query_row("SELECT message FROM turns WHERE session = ? AND is_open", [session], |row| {
                        row.get(0)
                    })
                    .optional()?;
                if let Some(open) = open {
                    return Err(StoreErrorKind::turn_open(open.into()).into());
                }
            }
            transaction.execute(
                "INSERT INTO turns (session, message, phase, is_open, owner, record) VALUES (?, ?, ?, ?, ?, ?)",
                params![
                    session,
                    message,
                    phase_name(record.phase)?,
                    record.is_open(),
                    owner.id(),
                    serde_json::to_string(record)?
                ],
            )?;
            Ok(())
        })
    }

    pub(crate) fn remove_turn(&mut self, session: &SessionId, message: &MessageId) -> Result<(), Failure> {
        self.write(|transaction, owner| {
            transaction.execute(
                "DELETE FROM turns WHERE session = ? AND message = ? AND is_open AND owner = ?",
                [session.as_str(), message.as_str(), owner.id()],
            )?;
            Ok(())
        })
    }

    pub(crate) fn claim_turn(
        &mut self,
        session: &SessionId,
        message: &MessageId,
    ) -> Result<Option<TurnRecord>, Failure> {
        self.write(|transaction, owner| {
            let Some(known) = Stored::read(transaction, session.as_str(), message.as_str())? else {
                return Ok(None);
            };
            if known.record.is_open() {
                if known.owner.is_some_and(|known| owner.is_another(&known)) {
                    return Err(StoreErrorKind::Taken.into());
                }
                transaction.execute(
                    "UPDATE turns SET owner = ? WHERE session = ? AND message = ?",
                    [owner.id(), session.as_str(), message.as_str()],
                )?;
            }
            Ok(Some(known.record))
        })
    }

    pub(crate) fn claim_turns(&mut self) -> Result<Vec<TurnRecord>, Failure> {
        let (keep_finished, keep_saved) = (self.keep_finished, self.keep_saved);
        self.write(|transaction, owner| {
            let mut statement = transaction.prepare_cached(
                "SELECT record, phase, owner FROM turns WHERE is_open ORDER BY session, message",
            )?;
            let open = statement.query_map([], Stored::columns)?;
            let mut claimed = Vec::new();
            let mut living = BTreeMap::new();
            for columns in open {
                let turn = Stored::parse(columns?)?;
                let is_anothers = match turn.owner {
                    Some(other) => match living.entry(other) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => {
                            let is_another = owner.is_another(new.key());
                            *new.insert(is_another)
                        }
                    },
                    None => false,
                };
                if !is_anothers {
                    claimed.push(turn.record);
                }
            }
            let mut claim =
                transaction.prepare_cached("UPDATE turns SET owner = ? WHERE session = ? AND message = ?")?;
            for record in &claimed {
                let prompt = &record.prompt;
                claim.execute([owner.id(), prompt.session_id.as_str(), prompt.message_id.as_str()])?;
            }
            prune(transaction, keep_finished)?;
            saved::prune(transaction, keep_saved)?;
            owner.sweep()?;
            Ok(claimed)
        })
    }

    pub(crate) fn release(&mut self) -> Result<(), Failure> {
        self.write(|transaction, owner| {
            transaction.execute("UPDATE turns SET owner = NULL WHERE is_open AND owner = ?", [owner.id()])?;
            transaction.execute("UPDATE tasks SET owner = NULL WHERE owner = ?", [owner.id()])?;
            Ok(())
        })
    }
}

/// A turn as it is stored.
struct Stored {
    record: TurnRecord,
    owner: Option<String>,
}

type Columns = (String, String, Option<String>);

impl Stored {
    fn read(transaction: &Connection, session: &str, message: &str) -> Result<Option<Self>, Failure> {
        let mut statement = transaction
            .prepare_cached("SELECT record, phase, owner FROM turns WHERE session = ? AND message = ?")?;
        statement.query_row([session, message], Self::columns).optional()?.map(Self::parse).transpose()
    }

    /// How far a turn got, and whose it is, without the prompt.
    fn phase(
        transaction: &Connection,
        session: &str,
        message: &str,
    ) -> Result<Option<(Phase, Option<String>)>, Failure> {
        let mut statement =
            transaction.prepare_cached("SELECT phase, owner FROM turns WHERE session = ? AND message = ?")?;
        let known: Option<(String, Option<String>)> =
            statement.query_row([session, message], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        known.map(|(phase, owner)| Ok((serde_json::from_value(phase.into())?, owner))).transpose()
    }

    fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    }

    fn parse((record, phase, owner): Columns) -> Result<Self, Failure> {
        let mut record: TurnRecord = serde_json::from_str(&record)?;
        record.phase = serde_json::from_value(phase.into())?;
        Ok(Self { record, owner })
    }
}

/// The version of what is stored; nothing is 0. Refuses what another program wrote, or a newer version of this one.
fn check_version(connection: &Connection) -> Result<u32, Failure> {
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    let (version, application) = (pragma("user_version")?, pragma("application_id")?);
    let n_tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (n_tables > 0 || version != 0 || application != 0) {
        let source = Some("the file belongs to another program".into());
        return Err(Failure { kind: StoreErrorKind::Corrupt, source });
    }
    match u32::try_from(version) {
        Ok(version) if version <= schema::VERSION => Ok(version),
        Ok(version) => Err(StoreErrorKind::newer(version, schema::VERSION).into()),
        Err(_) => Err(StoreErrorKind::Corrupt.into()),
    }
}

/// Switches the write-ahead log on. While another process does the same to a new file SQLite does not wait, so this does.
fn use_wal(connection: &Connection, patience: Duration) -> Result<(), Failure> {
    const PAUSE: Duration = Duration::from_millis(10);
    let mut waited = Duration::ZERO;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && waited < patience => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            switched => return Ok(switched?),
        }
    }
}

fn set_phase(transaction: &Connection, record: &TurnRecord) -> Result<(), Failure> {
    let mut statement = transaction.prepare_cached(
        "UPDATE turns SET phase = ?, is_open = ?, changed_at = unixepoch() WHERE session = ? AND message = ?",
    )?;
    statement.execute(params![
        phase_name(record.phase)?,
        record.is_open(),
        record.prompt.session_id.as_str(),
        record.prompt.message_id.as_str()
    ])?;
    Ok(())
}

fn remove_session(transaction: &Connection, session: &str) -> Result<(), Failure> {
    for statement in [
        "DELETE FROM sessions WHERE session = ?",
        "DELETE FROM tasks WHERE session = ?",
        "DELETE FROM turns WHERE session = ? AND NOT is_open",
    ] {
        transaction.execute(statement, [session])?;
    }
    Ok(())
}

/// Removes turns that have been over for long.
fn prune(transaction: &Connection, age: Duration) -> rusqlite::Result<()> {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX / 2);
    let old = "DELETE FROM turns WHERE NOT is_open AND changed_at < unixepoch() - ?";
    transaction.execute(old, [seconds]).map(drop)
}

/// A phase as JSON writes it.
fn phase_name(phase: Phase) -> Result<String, Failure> {
    match serde_json::to_value(phase)? {
        serde_json::Value::String(name) => Ok(name),
        _ => Err(StoreErrorKind::Failed.into()),
    }
}

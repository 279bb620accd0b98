//! The form of the database, and how an older one becomes the present one.

use rusqlite::Connection;

/// Marks a file as a store: `oCtS` as a number.
pub(crate) const APPLICATION_ID: i64 = 0x6f43_7453;

/// One step per version. A step that was published is never changed.
const STEPS: &[&str] = &[TURNS, SAVED];

const TURNS: &str = "
    CREATE TABLE tasks (
        task TEXT PRIMARY KEY,
        session TEXT,
        tag TEXT NOT NULL,
        owner TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX task_of_session ON tasks (session);
    CREATE INDEX task_of_owner ON tasks (owner) WHERE owner IS NOT NULL;

    CREATE TABLE sessions (
        session TEXT PRIMARY KEY,
        meta TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE turns (
        session TEXT NOT NULL,
        message TEXT NOT NULL,
        phase TEXT NOT NULL,
        is_open INTEGER NOT NULL,
        owner TEXT,
        record TEXT NOT NULL,
        changed_at INTEGER NOT NULL DEFAULT (unixepoch()),
        PRIMARY KEY (session, message)
    ) STRICT;
    CREATE UNIQUE INDEX one_open_turn ON turns (session) WHERE is_open;
    CREATE INDEX finished_turns ON turns (changed_at) WHERE NOT is_open;
";

const SAVED: &str = "
    CREATE TABLE saved (
        session TEXT PRIMARY KEY,
        listed TEXT NOT NULL,
        rest TEXT NOT NULL,
        last_activity INTEGER,
        bytes INTEGER NOT NULL,
        saved_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
    ) STRICT;
    CREATE INDEX saved_by_activity ON saved (last_activity DESC, session);
    CREATE INDEX saved_by_age ON saved (saved_at DESC, session, bytes);

    CREATE TABLE pieces (
        session TEXT NOT NULL,
        document INTEGER NOT NULL,
        piece INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (session, document, piece)
    ) STRICT;
";

/// The version that this program writes.
#[expect(clippy::cast_possible_truncation, reason = "there are few versions")]
pub(crate) const VERSION: u32 = STEPS.len() as u32;

/// Brings a database of an older version up to date, in one transaction with what follows.
pub(crate) fn migrate(transaction: &Connection, from: u32) -> rusqlite::Result<()> {
    for step in STEPS.iter().skip(from as usize) {
        transaction.execute_batch(step)?;
    }
    if from < VERSION {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    Ok(())
}

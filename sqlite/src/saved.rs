//! What is saved of sessions.
//!
//! A transcript is kept in pieces. It grows at its end, so that a session that is saved again and again writes only what is new.

use std::{mem, time::Duration};

use opencode_conductor::{SavedSessionData, SessionId, SessionListData, StoreErrorKind};
use rusqlite::{Connection, OptionalExtension, named_params, params};

use crate::database::{Database, Failure};

/// Large enough that a row is worth its while, small enough that the last one, which changes with every write, costs little.
const PIECE: usize = 64 * 1024;

/// How long and how much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) age: Duration,
    pub(crate) bytes: Option<u64>,
}

impl Database {
    pub(crate) fn put_saved(&mut self, mut data: SavedSessionData) -> Result<(), Failure> {
        let documents: Vec<Option<String>> = documents(&mut data).map(|text| text.map(mem::take)).collect();
        let session = data.listed.session_id.as_str();
        let listed = serde_json::to_string(&data.listed)?;
        let rest = serde_json::to_string(&data)?;
        let n_bytes = documents.iter().flatten().map(String::len).sum::<usize>() + rest.len();
        let retention = self.keep_saved;
        self.write(|transaction, _| {
            transaction.execute(
                "INSERT INTO saved (session, listed, rest, last_activity, bytes)
                 VALUES (:session, :listed, :rest, :last_activity, :bytes)
                 ON CONFLICT (session) DO UPDATE SET listed = :listed, rest = :rest,
                     last_activity = :last_activity, bytes = :bytes, saved_at = excluded.saved_at",
                named_params! {
                    ":session": session, ":listed": listed, ":rest": rest,
                    ":last_activity": data.listed.last_activity.map(opencode_conductor::Millis::get),
                    ":bytes": i64::try_from(n_bytes).unwrap_or(i64::MAX),
                },
            )?;
            let mut put = transaction.prepare_cached(
                "INSERT INTO pieces (session, document, piece, body) VALUES (?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET body = excluded.body WHERE body != excluded.body",
            )?;
            let mut cut = transaction
                .prepare_cached("DELETE FROM pieces WHERE session = ? AND document = ? AND piece >= ?")?;
            let mut n_documents = 0_i64;
            for text in &documents {
                let mut n_pieces = 0_i64;
                for body in text.as_deref().unwrap_or_default().as_bytes().chunks(PIECE) {
                    put.execute(params![session, n_documents, n_pieces, body])?;
                    n_pieces += 1;
                }
                cut.execute(params![session, n_documents, n_pieces])?;
                n_documents += 1;
            }
            let rest = "DELETE FROM pieces WHERE session = ? AND document >= ?";
            transaction.execute(rest, params![session, n_documents])?;
            if retention.bytes.is_some() {
                prune(transaction, retention)?;
            }
            Ok(())
        })
    }

    pub(crate) fn saved(&mut self, session: &SessionId) -> Result<Option<SavedSessionData>, Failure> {
        // One transaction, so that what is read was saved at once. It may be a part of another.
        let transaction = self.connection.savepoint()?;
        let rest: Option<String> = transaction
            .query_row("SELECT rest FROM saved WHERE session = ?", [session.as_str()], |row| row.get(0))
            .optional()?;
        let Some(rest) = rest else { return Ok(None) };
        let mut data: SavedSessionData = serde_json::from_str(&rest)?;
        let mut statement = transaction
            .prepare_cached("SELECT body FROM pieces WHERE session = ? AND document = ? ORDER BY piece")?;
        for (document, text) in (0_i64..).zip(documents(&mut data)) {
            let Some(text) = text else { continue };
            let mut bytes = Vec::new();
            let mut rows = statement.query(params![session.as_str(), document])?;
            while let Some(row) = rows.next()? {
                bytes.extend_from_slice(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?);
            }
            *text = String::from_utf8(bytes).map_err(|_not_text| Failure::from(StoreErrorKind::Corrupt))?;
        }
        Ok(Some(data))
    }

    pub(crate) fn remove_saved(&mut self, session: &SessionId) -> Result<(), Failure> {
        self.write(|transaction, _| remove(transaction, session.as_str()))
    }

    pub(crate) fn saved_sessions(&mut self) -> Result<Vec<SessionListData>, Failure> {
        // What never changed is last in SQLite's order, too.
        let list = "SELECT listed FROM saved ORDER BY last_activity DESC, session";
        let mut statement = self.connection.prepare_cached(list)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.map(|listed| Ok(serde_json::from_str(&listed?)?)).collect()
    }
}

/// The session's transcript, then its subagents', each if there is one.
fn documents(data: &mut SavedSessionData) -> impl Iterator<Item = Option<&mut String>> {
    let subagents = data.subagents.iter_mut().map(|subagent| subagent.raw_transcript.as_mut());
    std::iter::once(data.raw_transcript.as_mut()).chain(subagents)
}

fn remove(transaction: &Connection, session: &str) -> Result<(), Failure> {
    for statement in ["DELETE FROM saved WHERE session = ?", "DELETE FROM pieces WHERE session = ?"] {
        transaction.execute(statement, [session])?;
    }
    Ok(())
}

/// Removes what was saved long ago, and the oldest of what is too much. However
/// large, what was saved last stays, and so does what was saved of a session with an open turn.
pub(crate) fn prune(transaction: &Connection, keep: Retention) -> Result<(), Failure> {
    let age = i64::try_from(keep.age.as_millis()).unwrap_or(i64::MAX / 2);
    let bytes = keep.bytes.map_or(i64::MAX, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let mut statement = transaction.prepare_cached(
        "SELECT session FROM (
             SELECT session, saved_at, sum(bytes) OVER newest AS total, row_number() OVER newest AS place
             FROM saved WINDOW newest AS (ORDER BY saved_at DESC, session)
         )
         WHERE (saved_at < unixepoch() * 1000 - :age OR total > :bytes AND place > 1)
           AND session NOT IN (SELECT session FROM turns WHERE is_open)",
    )?;
    let old = statement.query_map(named_params! {":age": age, ":bytes": bytes}, |row| row.get(0))?;
    let old: Vec<String> = old.collect::<Result<_, _>>()?;
    for session in old {
        remove(transaction, &session)?;
    }
    Ok(())
}

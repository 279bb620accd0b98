//! Identifiers as types of their own, so that a session can never be passed where a message is meant.
//!
//! An id is an immutable shared string: cloning one costs a reference count, and every event, block and map key
//! that names the same thing can share its bytes. Ids that are read from JSON do: a server names the same few over and over.

use std::{
    borrow::Borrow,
    cell::RefCell,
    collections::HashMap,
    convert::Infallible,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    str::FromStr,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::json::cursor::{Cursor, Scan};

macro_rules! string_id {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(SharedStr).map(Self)
            }
        }

        impl Scan for $name {
            fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
                cursor.string().map(|id| Self(shared(&id)))
            }
        }

        impl $name {
            /// Wraps a string as it is; nothing is checked here.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                Self(id.into())
            }

            /// The id without white space around it.
            #[must_use]
            pub fn trimmed(self) -> Self {
                let trimmed = self.0.trim();
                if trimmed.len() == self.0.len() { self } else { Self(trimmed.into()) }
            }

            /// The id as the server writes it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(id.into())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id.into())
            }
        }

        impl FromStr for $name {
            type Err = Infallible;

            fn from_str(id: &str) -> Result<Self, Infallible> {
                Ok(Self(id.into()))
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

/// A map by ids, for those that are looked up with every event.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Mixes eight bytes at a time. The standard hasher withstands keys that are chosen to collide, and costs several times as much;
/// a server that wants to harm its client has simpler ways.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        match bytes.last_chunk() {
            Some(last) if !rest.is_empty() => self.write_u64(u64::from_le_bytes(*last)),
            Some(_) | None => rest.iter().for_each(|byte| self.write_u8(*byte)),
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        // The map takes its bits from both ends, and multiplying mixes upwards only.
        self.0 ^ (self.0 >> 32)
    }
}

/// How many a thread remembers. A session's events name its own id, those of a message and a few parts, and its model, provider and agent.
const RECENT: usize = 128;
/// Longer ones are not remembered.
const MAX_RECENT_BYTES: usize = 64;

/// An id, or another string that is written over and over. One that this thread has read lately shares its bytes.
pub(crate) fn shared(id: &str) -> Arc<str> {
    thread_local! {
        static LAST: RefCell<[Option<Arc<str>>; RECENT]> = const { RefCell::new([const { None }; RECENT]) };
    }
    if id.len() > MAX_RECENT_BYTES {
        return id.into();
    }
    let mut hasher = IdHasher::default();
    // An id ends in random letters. A model ends as its name with the provider does, and is shorter.
    hasher.write_usize(id.len());
    match id.as_bytes().last_chunk() {
        Some(end) => hasher.write_u64(u64::from_le_bytes(*end)),
        None => hasher.write(id.as_bytes()),
    }
    let known = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let slot = last.get_mut(usize::try_from(hasher.finish() % RECENT as u64).ok()?)?;
        if slot.as_ref().is_none_or(|known| **known != *id) {
            *slot = Some(id.into());
        }
        slot.clone()
    });
    known.ok().flatten().unwrap_or_else(|| id.into())
}

/// Reads a string that is written over and over, as [`shared`] keeps it.
pub(crate) fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    deserializer.deserialize_str(SharedStr)
}

/// As [`read_shared`], for one that may be absent or `null`.
pub(crate) fn read_shared_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Arc<str>>, D::Error> {
    #[derive(Deserialize)]
    struct Shared(#[serde(deserialize_with = "read_shared")] Arc<str>);
    Ok(Option::deserialize(deserializer)?.map(|Shared(text)| text))
}

/// Reads a string straight into shared memory; serde's own way for `Arc<str>` allocates twice.
struct SharedStr;

impl de::Visitor<'_> for SharedStr {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, id: &str) -> Result<Arc<str>, E> {
        Ok(shared(id))
    }
}

string_id! {
    /// A session on the server (`ses_…`).
    SessionId;
    /// A message in a session (`msg_…`).
    MessageId;
    /// A part of a message (`prt_…`).
    PartId;
    /// A tool call as the model's provider named it; may repeat within one session.
    CallId;
    /// A pending permission request or question (`per_…`, `que_…`).
    RequestId;
    /// A task of the embedding service.
    TaskId;
    /// A project of the embedding service.
    ProjectId;
    /// A block of a conversation.
    BlockId;
    /// What ties a tool's use, its result and a subagent's thread together; unique in a conversation tree.
    ToolUseId;
    /// The agent behind a subagent's thread, as its own system names it; for `OpenCode` the child's session.
    AgentId;
    /// A thread of a conversation: `main`, or the [`ToolUseId`] of the subagent whose thread it is.
    ConversationId;
    /// A profile of the embedding service, by which an agent is set up.
    AgentProfileReference;
}

impl ConversationId {
    /// The thread of the root session.
    pub fn main() -> Self {
        static MAIN: LazyLock<ConversationId> = LazyLock::new(|| ConversationId::new("main"));
        MAIN.clone()
    }

    /// Whether this is the root session's thread.
    pub fn is_main(&self) -> bool {
        self.as_str() == "main"
    }
}

impl From<&ToolUseId> for ConversationId {
    fn from(id: &ToolUseId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&ConversationId> for ToolUseId {
    fn from(id: &ConversationId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&BlockId> for ConversationId {
    fn from(id: &BlockId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&SessionId> for AgentId {
    fn from(id: &SessionId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&SessionId> for ToolUseId {
    fn from(id: &SessionId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&PartId> for ToolUseId {
    fn from(id: &PartId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&PartId> for BlockId {
    fn from(id: &PartId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&MessageId> for BlockId {
    fn from(id: &MessageId) -> Self {
        Self(id.0.clone())
    }
}

impl From<&ToolUseId> for BlockId {
    fn from(id: &ToolUseId) -> Self {
        Self(id.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_strings_in_json() {
        let id: SessionId = serde_json::from_str(r#""ses_1""#).unwrap();
        assert_eq!(id, SessionId::new("ses_1"));
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""ses_1""#);
        assert_eq!(format!("{id} {id:?}"), r#"ses_1 "ses_1""#);
    }

    #[test]
    fn ids_that_are_read_again_share_their_bytes() {
        let read = |id: &str| serde_json::from_str::<PartId>(&format!("{id:?}")).unwrap();
        let first = read("prt_1e2687a67001fd6AphSCQqJ4YE");
        assert!(Arc::ptr_eq(&first.0, &read("prt_1e2687a67001fd6AphSCQqJ4YE").0));
        for count in 0..10_000 {
            let other = format!("prt_1e2687a67001fd6AphSCQq{count:04}");
            assert_eq!(read(&other).as_str(), other);
        }
        for unusual in ["", "x", "1234567", &"y".repeat(100)] {
            assert_eq!(read(unusual).as_str(), unusual);
        }
        assert_eq!(first, read("prt_1e2687a67001fd6AphSCQqJ4YE"));
    }
}

//! Text that grows cheaply while its old versions stay valid.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Pieces shorter than this are always joined: copying them costs less than one more allocation.
const SMALL_PIECE_BYTES: usize = 256;

/// The text of a block, which reads like one string.
///
/// A model streams a long answer as thousands of small additions, and a caller may keep the state after each of them. A plain
/// `String` would be copied whole every time. This keeps pieces whose sizes halve from the front to the back, so that old
/// versions share all but the last few, and n additions copy each byte about log n times.
#[derive(Clone, Default)]
pub struct BlockText(Option<Arc<Piece>>);

/// The last piece of a text, and all before it.
#[derive(Clone)]
struct Piece {
    before: BlockText,
    text: String,
    /// Bytes up to the end of this piece.
    len: usize,
}

impl BlockText {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |piece| piece.len)
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is nothing but white space.
    pub fn is_blank(&self) -> bool {
        self.chunks().all(|chunk| chunk.trim().is_empty())
    }

    /// The text in pieces, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &str> {
        let mut chunks = Vec::new();
        let mut at = self;
        while let Some(piece) = &at.0 {
            chunks.push(piece.text.as_str());
            at = &piece.before;
        }
        chunks.into_iter().rev()
    }

    /// The whole text, borrowed if it is in one piece.
    pub fn as_str(&self) -> Cow<'_, str> {
        match &self.0 {
            None => Cow::Borrowed(""),
            Some(piece) if piece.before.is_empty() => Cow::Borrowed(&piece.text),
            Some(_) => Cow::Owned(self.to_string()),
        }
    }

    /// Adds `addition` at the end; clones of this text made earlier do not change.
    pub fn push_str(&mut self, addition: &str) {
        if addition.is_empty() {
            return;
        }
        if let Some(piece) = self.0.as_mut().and_then(Arc::get_mut) {
            // No other state shares this piece, so it can grow in place.
            piece.text.push_str(addition);
            piece.len += addition.len();
            return;
        }
        let len = self.len() + addition.len();
        let mut joined = Vec::new();
        let mut joined_len = addition.len();
        while let Some(piece) = &self.0 {
            if piece.text.len() > joined_len.max(SMALL_PIECE_BYTES) {
                break;
            }
            joined_len += piece.text.len();
            let piece = piece.clone();
            self.0.clone_from(&piece.before.0);
            joined.push(piece);
        }
        let mut text = String::with_capacity(joined_len);
        text.extend(joined.iter().rev().map(|piece| piece.text.as_str()));
        text.push_str(addition);
        self.0 = Some(Arc::new(Piece { before: Self(self.0.take()), text, len }));
    }
}

impl From<String> for BlockText {
    fn from(text: String) -> Self {
        if text.is_empty() {
            return Self(None);
        }
        let len = text.len();
        Self(Some(Arc::new(Piece { before: Self(None), text, len })))
    }
}

impl From<&str> for BlockText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl PartialEq for BlockText {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(two)) => {
                Arc::ptr_eq(one, two) || (one.len == two.len && self.as_str() == other.as_str())
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl Eq for BlockText {}

impl PartialEq<str> for BlockText {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for BlockText {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for BlockText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chunks().try_for_each(|chunk| f.write_str(chunk))
    }
}

impl fmt::Debug for BlockText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.as_str(), f)
    }
}

impl Serialize for BlockText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.as_str())
    }
}

impl<'de> Deserialize<'de> for BlockText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_keep_their_text_while_new_ones_grow() {
        let mut text = BlockText::default();
        let mut expected = String::new();
        let mut versions = Vec::new();
        for n in 0..3_000 {
            let addition = format!("w{n} ");
            text.push_str(&addition);
            expected.push_str(&addition);
            versions.push((text.clone(), expected.len()));
        }
        for (version, len) in &versions {
            assert_eq!(*version, expected[..*len]);
        }
        assert_eq!(text, BlockText::from(expected));
    }

    #[test]
    fn versions_share_their_pieces() {
        let mut text = BlockText::from("x".repeat(1 << 20));
        let mut versions = Vec::new();
        for _ in 0..10_000 {
            versions.push(text.clone());
            text.push_str("some words ");
            assert!(text.chunks().count() <= 16, "{} pieces", text.chunks().count());
        }
        // The large piece is the same memory in all versions.
        let first = |text: &BlockText| text.chunks().next().map(str::as_ptr);
        assert!(versions.iter().all(|version| first(version) == first(&text)));
    }

    #[test]
    fn white_space_is_content_but_blank() {
        let mut text = BlockText::default();
        text.push_str("\n");
        text.push_str("");
        assert!(text.is_blank() && !text.is_empty());
        text.push_str(" a");
        assert_eq!((text.to_string().as_str(), text.is_blank()), ("\n a", false));
        assert_eq!(serde_json::to_string(&text).unwrap(), r#""\n a""#);
        assert_eq!(serde_json::from_str::<BlockText>(r#""\n a""#).unwrap(), text);
    }
}

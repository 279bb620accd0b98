//! What a tool or a subagent returned.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BlockText;

/// What a tool or a subagent returned: mostly text, but other writers of blocks put any JSON value there.
///
/// # Examples
/// ```
/// use opencode_conductor::BlockOutput;
/// use serde_json::json;
///
/// assert_eq!(BlockOutput::from("found").as_str(), "found");
/// let structured = BlockOutput::from(json!({"found": 2}));
/// assert_eq!((&*structured.as_str(), structured.as_json()), (r#"{"found":2}"#, Some(&json!({"found": 2}))));
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Value")]
pub struct BlockOutput(Kind);

#[derive(Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Kind {
    Text(BlockText),
    /// Anything but a string.
    Json(Arc<Value>),
}

impl BlockOutput {
    /// The output as text: as it is, or else as JSON; nothing for `null`.
    pub fn as_str(&self) -> Cow<'_, str> {
        match &self.0 {
            Kind::Text(text) => text.as_str(),
            Kind::Json(value) if value.is_null() => Cow::Borrowed(""),
            Kind::Json(value) => Cow::Owned(value.to_string()),
        }
    }

    /// The value, if the output is not text.
    pub fn as_json(&self) -> Option<&Value> {
        match &self.0 {
            Kind::Text(_) => None,
            Kind::Json(value) => Some(value),
        }
    }

    /// Whether there is nothing to show.
    pub fn is_blank(&self) -> bool {
        match &self.0 {
            Kind::Text(text) => text.is_blank(),
            Kind::Json(value) => value.is_null(),
        }
    }
}

impl Default for BlockOutput {
    /// No text.
    fn default() -> Self {
        Self(Kind::Text(BlockText::default()))
    }
}

impl From<BlockText> for BlockOutput {
    fn from(text: BlockText) -> Self {
        Self(Kind::Text(text))
    }
}

impl From<&str> for BlockOutput {
    fn from(text: &str) -> Self {
        Self(Kind::Text(text.into()))
    }
}

impl From<String> for BlockOutput {
    fn from(text: String) -> Self {
        Self(Kind::Text(text.into()))
    }
}

impl From<Value> for BlockOutput {
    fn from(value: Value) -> Self {
        if let Value::String(text) = value {
            return text.into();
        }
        Self(Kind::Json(Arc::new(value)))
    }
}

impl PartialEq<str> for BlockOutput {
    fn eq(&self, other: &str) -> bool {
        matches!(&self.0, Kind::Text(text) if text == other)
    }
}

impl PartialEq<&str> for BlockOutput {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl fmt::Display for BlockOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str())
    }
}

impl fmt::Debug for BlockOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Text(text) => text.fmt(f),
            Kind::Json(value) => fmt::Display::fmt(value, f),
        }
    }
}

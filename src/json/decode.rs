//! Decoding with a place: which element, which field, what was wrong.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, DeserializeSeed},
};
use serde_json::value::RawValue;

/// How much of the offending text an error keeps.
const SNIPPET_BYTES: usize = 200;

/// A known thing that did not have its known shape.
///
/// The snippet is left out of `Display` and `Debug`, because it may hold a prompt or a tool's output.
#[derive(thiserror::Error)]
#[error("malformed {what} at `{path}`")]
pub struct DecodeError {
    what: String,
    path: String,
    snippet: String,
    source: serde_json::Error,
}

impl DecodeError {
    /// An error that the JSON itself does not show.
    pub(crate) fn custom(what: &'static str, at: JsonPath<'_>, json: &str, reason: &str) -> Self {
        locate(what, at, ".", json, serde::de::Error::custom(reason))
    }

    /// What was being decoded: `message`, `part`, `message.updated` …
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Where in the document, as in `[3].parts[0].state.time`; `.` is the document itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The beginning of the offending text.
    pub fn snippet(&self) -> &str {
        &self.snippet
    }
}

impl fmt::Debug for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, snippet: _, source } = self;
        f.debug_struct("DecodeError")
            .field("what", what)
            .field("path", path)
            .field("source", source)
            .finish_non_exhaustive()
    }
}

/// The good elements of a list, and what was wrong with the others.
#[derive(Debug)]
#[non_exhaustive]
pub struct Decoded<T> {
    /// The elements that could be decoded, in order.
    pub items: Vec<T>,
    /// One error per element, or part of an element, that could not.
    pub malformed: Vec<DecodeError>,
}

impl<T> Default for Decoded<T> {
    fn default() -> Self {
        Self { items: Vec::new(), malformed: Vec::new() }
    }
}

/// Where a piece of JSON stands in its document.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JsonPath<'a> {
    Root,
    Field(&'a JsonPath<'a>, &'static str),
    Index(&'a JsonPath<'a>, usize),
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(JsonPath::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Decodes the object `json`, which stands at `at`.
pub(crate) fn decode<'de, T: Deserialize<'de>>(
    what: &str,
    at: JsonPath<'_>,
    json: &'de str,
) -> Result<T, DecodeError> {
    decode_any(what, at, json).map(|Object(value)| value)
}

/// A struct that is written as an object. Serde would take an array too, for its fields in order.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// Reads a struct that is written as an object.
pub(crate) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// Decodes `json`, which stands at `at`.
pub(crate) fn decode_any<'de, T: Deserialize<'de>>(
    what: &str,
    at: JsonPath<'_>,
    json: &'de str,
) -> Result<T, DecodeError> {
    decode_seed(what, at, json, PhantomData)
}

/// Decodes `json`, which stands at `at`, with `seed`. Only a failure pays for finding its path.
pub(crate) fn decode_seed<'de, S: DeserializeSeed<'de> + Clone>(
    what: &str,
    at: JsonPath<'_>,
    json: &'de str,
    seed: S,
) -> Result<S::Value, DecodeError> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value = seed.clone().deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| {
        let mut track = serde_path_to_error::Track::new();
        let mut deserializer = serde_json::Deserializer::from_str(json);
        match seed.deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track)) {
            // The value alone can be read, so the error is in what follows it.
            Ok(_) => locate(what, at, ".", json, error),
            Err(error) => locate(what, at, &track.path().to_string(), json, error),
        }
    })
}

fn locate(what: &str, at: JsonPath<'_>, path: &str, json: &str, source: serde_json::Error) -> DecodeError {
    let outer = at.to_string();
    let path = match (outer.as_str(), path) {
        ("", path) => path.to_owned(),
        (_, ".") => outer,
        (_, path) if path.starts_with('[') => format!("{outer}{path}"),
        (_, path) => format!("{outer}.{path}"),
    };
    let end = (0..=json.len().min(SNIPPET_BYTES)).rev().find(|&at| json.is_char_boundary(at));
    DecodeError {
        what: what.to_owned(),
        path,
        snippet: json[..end.unwrap_or(0)].to_owned(),
        source: without_value(source),
    }
}

/// Serde quotes the string it did not expect, which may be a prompt or a tool's output.
fn without_value(error: serde_json::Error) -> serde_json::Error {
    let text = error.to_string();
    match (text.find("string \""), text.rfind("\", expected ")) {
        (Some(start), Some(end)) if start < end => {
            serde::de::Error::custom(format_args!("{}string{}", &text[..start], &text[end + 1..]))
        }
        (_, _) => error,
    }
}

/// Decodes each element on its own with `element`.
pub(crate) fn decode_list<T>(
    what: &'static str,
    at: JsonPath<'_>,
    json: &str,
    mut element: impl FnMut(JsonPath<'_>, &str, &mut Vec<DecodeError>) -> Result<T, DecodeError>,
) -> Result<Decoded<T>, DecodeError> {
    let raw: Vec<&RawValue> = decode_any(what, at, json)?;
    let mut decoded = Decoded { items: Vec::with_capacity(raw.len()), malformed: Vec::new() };
    for (index, raw) in raw.into_iter().enumerate() {
        match element(JsonPath::Index(&at, index), raw.get(), &mut decoded.malformed) {
            Ok(item) => decoded.items.push(item),
            Err(error) => decoded.malformed.push(error),
        }
    }
    Ok(decoded)
}

impl<T: DeserializeOwned> Decoded<T> {
    /// Decodes a JSON array element by element.
    ///
    /// # Errors
    /// If `json` is not an array.
    pub fn from_json(what: &'static str, json: &str) -> Result<Self, DecodeError> {
        decode_list(what, JsonPath::Root, json, |at, raw, _| decode_any(what, at, raw))
    }
}

/// Decodes one document.
#[cfg(feature = "client")]
pub(crate) fn from_json<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, DecodeError> {
    decode_any(what, JsonPath::Root, json)
}

/// Implements `Deserialize` through a type's own `from_json`, for use inside other JSON documents.
macro_rules! deserialize_by_from_json {
    ($($name:ty),*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <Box<serde_json::value::RawValue>>::deserialize(deserializer)?;
                Self::from_json(raw.get()).map_err(|error| {
                    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    serde::de::Error::custom(format_args!("{error}: {source}"))
                })
            }
        }
    )*};
}
pub(crate) use deserialize_by_from_json;

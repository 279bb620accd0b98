//! Reading JSON objects that others have written.
//!
//! Fields are taken one by one under any of their names. What does not fit the meaning that a field has here is kept aside,
//! and so is what was not taken: nothing that carries content is dropped because it is written otherwise.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{BlockText, Metadata};

/// The fields of an object that were not taken yet.
///
/// A list, not a map: there are about ten, each is looked for once, and building a map takes longer than all of that.
pub(super) struct Fields {
    rest: Vec<(String, Value)>,
    /// Values that are not what their field means here.
    misfits: Map<String, Value>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor;
        impl<'de> Visitor<'de> for FieldVisitor {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut rest = Vec::with_capacity(12);
                while let Some(field) = map.next_entry()? {
                    rest.push(field);
                }
                Ok(Fields { rest, misfits: Map::new() })
            }
        }
        deserializer.deserialize_map(FieldVisitor)
    }
}

impl Fields {
    pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }

    /// Whether a field is there and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.rest.iter().any(|(known, value)| known == name && !value.is_null())
    }

    /// Adds a field.
    pub(super) fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.rest.push((name.to_owned(), value.into()));
    }

    /// Takes any value, `null` among them. Of a field that was written twice the last value counts.
    pub(super) fn value(&mut self, name: &str) -> Option<Value> {
        let mut taken = None;
        while let Some(at) = self.rest.iter().rposition(|(known, _)| known == name) {
            let (_, value) = self.rest.swap_remove(at);
            taken.get_or_insert(value);
        }
        taken
    }

    /// Takes a field that has to be there and to be what is meant.
    pub(super) fn required<T: DeserializeOwned, E: Error>(&mut self, name: &'static str) -> Result<T, E> {
        self.optional(name)?.ok_or_else(|| E::missing_field(name))
    }

    /// Takes a field that may be absent or null, and otherwise has to be what is meant.
    pub(super) fn optional<T: DeserializeOwned, E: Error>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, E> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                T::deserialize(value).map(Some).map_err(|error| E::custom(format_args!("`{name}`: {error}")))
            }
        }
    }

    /// Takes the first of these fields that is there.
    pub(super) fn first_of<T: DeserializeOwned, E: Error>(
        &mut self,
        names: &[&'static str],
    ) -> Result<Option<T>, E> {
        for name in names {
            if let Some(value) = self.optional(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Takes a field if it is what is meant by it here; keeps it as a misfit if it is not.
    pub(super) fn if_fits<T: DeserializeOwned>(&mut self, name: &'static str) -> Option<T> {
        let value = self.value(name).filter(|value| !value.is_null())?;
        let taken = T::deserialize(&value).ok();
        if taken.is_none() {
            self.misfits.insert(name.to_owned(), value);
        }
        taken
    }

    /// Takes any value of the first of these fields that is there.
    pub(super) fn first_value(&mut self, names: &[&'static str]) -> Option<Value> {
        names.iter().find_map(|name| self.value(name))
    }

    /// Takes the text in the first of these fields that is there. A list of parts becomes their texts, one per line, and is
    /// kept beside them.
    pub(super) fn text(&mut self, names: &[&'static str]) -> BlockText {
        for name in names {
            match self.value(name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => return text.into(),
                Some(value) => {
                    let text = flat_text(&value);
                    self.misfits.insert((*name).to_owned(), value);
                    return text.into();
                }
            }
        }
        BlockText::default()
    }

    /// Takes a duration: whole milliseconds, whatever fraction or sign the number has.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "fractions of a millisecond are noise; the cast saturates"
    )]
    pub(super) fn millis(&mut self, name: &'static str) -> Option<u64> {
        let value = self.value(name).filter(|value| !value.is_null())?;
        let millis = value.as_u64().or_else(|| value.as_f64().map(|millis| millis as u64));
        if millis.is_none() {
            self.keep(name, value);
        }
        millis
    }

    /// Takes the metadata, together with what did not fit.
    pub(super) fn metadata(&mut self) -> Metadata {
        let mut metadata = match self.value("metadata") {
            Some(Value::Object(metadata)) => metadata,
            other => {
                if let Some(other) = other.filter(|other| !other.is_null()) {
                    self.keep("metadata", other);
                }
                if self.misfits.is_empty() {
                    return None;
                }
                Map::new()
            }
        };
        for (name, value) in std::mem::take(&mut self.misfits) {
            metadata.entry(name).or_insert(value);
        }
        Some(Arc::new(metadata))
    }

    /// Takes the metadata, together with all that was not taken.
    pub(super) fn metadata_and_rest(mut self) -> Metadata {
        let metadata = self.value("metadata");
        self.misfits.extend(std::mem::take(&mut self.rest));
        self.rest.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
        self.metadata()
    }

    /// Keeps a value that its field cannot hold.
    pub(super) fn keep(&mut self, name: &'static str, value: impl Into<Value>) {
        self.misfits.insert(name.to_owned(), value.into());
    }

    /// What was not taken.
    pub(super) fn rest(self) -> Metadata {
        (!self.rest.is_empty()).then(|| Arc::new(self.rest.into_iter().collect()))
    }
}

/// The words in a value: its strings, and the `text` of its objects.
fn flat_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(flat_text).filter(|text| !text.is_empty());
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Object(part) => part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

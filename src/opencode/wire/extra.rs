//! Fields that this version does not know: kept as text, and read only if they are asked for.
//!
//! The server says much more than an orchestrator needs, so what it says is not built up in memory on the chance that a caller
//! looks at it. A struct declared with [`wire_struct`] gets its own fields from serde's derived code and leaves the others here.

use std::{
    borrow::Cow,
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock, OnceLock},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        self, DeserializeSeed, Error as _, IntoDeserializer, MapAccess, Unexpected,
        value::BorrowedStrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Map, Value, value::RawValue};

use crate::json::{
    cursor::{Cursor, Scan},
    tagged::Text,
};

/// Fields that this version does not know, as they came: a map of JSON values.
///
/// The map is built when it is first looked at. A value that [`Value`] has no room for (a number beyond all bounds, half a
/// surrogate pair) is in it as the text that the server wrote.
#[derive(Clone, Default)]
pub struct Extra(Option<Arc<Lazy>>);

#[derive(Clone, Default)]
struct Lazy {
    /// An object in JSON; empty if the map did not come from JSON, or was changed.
    json: String,
    /// How many fields were found in it; nothing if they were not counted.
    n_fields: Option<usize>,
    map: OnceLock<Map<String, Value>>,
}

impl Extra {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none() || (**self).is_empty()
    }

    /// How many fields there are, without a look at them if they were counted when they were read.
    pub(crate) fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |lazy| lazy.n_fields.unwrap_or_else(|| self.len()))
    }

    /// The fields as a map of the caller's own.
    pub(crate) fn to_map(&self) -> Map<String, Value> {
        self.0
            .as_ref()
            .map(|lazy| lazy.map.get().cloned().unwrap_or_else(|| read(&lazy.json)))
            .unwrap_or_default()
    }
}

impl Deref for Extra {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Map<String, Value> {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.0.as_ref().map_or(&EMPTY, |lazy| lazy.map.get_or_init(|| read(&lazy.json)))
    }
}

impl DerefMut for Extra {
    fn deref_mut(&mut self) -> &mut Map<String, Value> {
        let lazy = Arc::make_mut(self.0.get_or_insert_default());
        let json = std::mem::take(&mut lazy.json);
        lazy.n_fields = None;
        lazy.map.get_or_init(|| read(&json));
        lazy.map.get_mut().unwrap_or_else(|| unreachable!("it was just built"))
    }
}

impl PartialEq for Extra {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(two)) if Arc::ptr_eq(one, two) => true,
            (Some(one), Some(two)) if !one.json.is_empty() && one.json == two.json => true,
            (Some(one), Some(two)) if one.n_fields.is_some_and(|n| two.n_fields.is_some_and(|m| n != m)) => {
                false
            }
            (Some(one), None) | (None, Some(one)) if one.n_fields.is_some() => false,
            (_, _) => **self == **other,
        }
    }
}

impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl From<Map<String, Value>> for Extra {
    fn from(map: Map<String, Value>) -> Self {
        Self((!map.is_empty()).then(|| Arc::new(Lazy { map: map.into(), ..Lazy::default() })))
    }
}

impl FromIterator<(String, Value)> for Extra {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Self {
        Map::from_iter(fields).into()
    }
}

impl<'a> IntoIterator for &'a Extra {
    type Item = (&'a String, &'a Value);
    type IntoIter = serde_json::map::Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Serialize for Extra {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Raw(json) = Raw::deserialize(deserializer)?;
        match json.as_bytes() {
            [b'{', .., b'}'] => Ok(Self::from_json(json.into_owned())),
            _ => Err(D::Error::invalid_type(Unexpected::Other("another value"), &"an object")),
        }
    }
}

impl Extra {
    fn from_json(json: String) -> Self {
        Self((json != "{}").then(|| Arc::new(Lazy { json, ..Lazy::default() })))
    }
}

/// Reads an object of which only the shape was looked at so far.
fn read(json: &str) -> Map<String, Value> {
    let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into());
    serde_json::from_str(json)
        .or_else(|_| {
            let fields: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(json)?;
            Ok::<_, serde_json::Error>(fields.into_iter().map(|(name, raw)| (name, value(raw))).collect())
        })
        .unwrap_or_default()
}

/// By this name `serde_json` gives the text of a value, as to its own `RawValue`, which is either borrowed or not. Other
/// deserializers do not know the name and give the value.
const RAW: &str = "$serde_json::private::RawValue";

/// Any value as its JSON, which is borrowed if it can be.
struct Raw<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut fields = Map::new();
                while let Some(Text(name)) = map.next_key()? {
                    if name == RAW {
                        return map.next_value().map(|Text(json)| Raw(json));
                    }
                    fields.insert(name.into_owned(), map.next_value()?);
                }
                Ok(Raw(Value::from(fields).to_string().into()))
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, other: D) -> Result<Raw<'de>, D::Error> {
                Ok(Raw(Value::deserialize(other)?.to_string().into()))
            }
        }
        deserializer.deserialize_newtype_struct(RAW, Visitor)
    }
}

/// Reads a `T`, of which serde knows the fields, and what is beside them.
pub(super) fn with_extra<'de, T, D>(deserializer: D) -> Result<(T, Extra), D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut json = String::new();
    let known = T::deserialize(Beside { deserializer, json: &mut json })?;
    if !json.is_empty() {
        json.push('}');
    }
    Ok((known, Extra((!json.is_empty()).then(|| Arc::new(Lazy { json, ..Lazy::default() })))))
}

/// Gives a struct its fields and writes the others to `json`.
struct Beside<'x, D> {
    deserializer: D,
    json: &'x mut String,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Beside<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.deserializer.deserialize_any(visitor)
    }

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.deserializer.deserialize_map(BesideFields { fields, json: self.json, inner: visitor })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The visitor of a struct, or its map, without what is not in `fields`.
struct BesideFields<'x, T> {
    fields: &'static [&'static str],
    json: &'x mut String,
    inner: T,
}

impl<'de, V: de::Visitor<'de>> de::Visitor<'de> for BesideFields<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(BesideFields { fields: self.fields, json: self.json, inner: map })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for BesideFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let key = Key { fields: self.fields, seed, of: PhantomData };
            match self.inner.next_key_seed(key)? {
                None => return Ok(None),
                Some(Name::Known(known)) => return Ok(Some(known)),
                Some(Name::Unknown(name, unused)) => {
                    let Raw(value) = self.inner.next_value()?;
                    self.json.push(if self.json.is_empty() { '{' } else { ',' });
                    if name.bytes().any(|byte| matches!(byte, b'"' | b'\\' | ..=0x1f)) {
                        self.json.push_str(&Value::from(name).to_string());
                    } else {
                        self.json.extend(["\"", &*name, "\""]);
                    }
                    self.json.push(':');
                    self.json.push_str(&value);
                    seed = unused;
                }
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// Reads a field's name with `seed` if it is one of `fields`.
struct Key<'de, K> {
    fields: &'static [&'static str],
    seed: K,
    of: PhantomData<&'de ()>,
}

enum Name<'de, K, V> {
    Known(V),
    /// The name, and the seed that was not needed.
    Unknown(Cow<'de, str>, K),
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'de, K> {
    type Value = Name<'de, K, K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> de::Visitor<'de> for Key<'de, K> {
    type Value = Name<'de, K, K::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Self::Value, E> {
        if self.fields.contains(&name) {
            self.seed.deserialize(BorrowedStrDeserializer::new(name)).map(Name::Known)
        } else {
            Ok(Name::Unknown(Cow::Borrowed(name), self.seed))
        }
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        if self.fields.contains(&name) {
            self.seed.deserialize(name.into_deserializer()).map(Name::Known)
        } else {
            Ok(Name::Unknown(Cow::Owned(name.to_owned()), self.seed))
        }
    }
}

/// Declares structs that keep the fields they do not know. A field `name: T` has to be there, `name: T = default` may be absent,
/// and `name?: T` is an `Option<T>` that is written only if there is one. `name as "json"` is called otherwise in JSON; more names
/// than one are read, and the first is written.
macro_rules! wire_struct {
    ($($(#[$meta:meta])* $name:ident {
        $(
            $(#[$field_meta:meta])*
            $field:ident $(as $json:literal $(| $alias:literal)*)? $(?: $optional:ty)? $(: $ty:ty $(= $default:ident)?)?,
        )*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
        #[non_exhaustive]
        pub struct $name {
            $(
                $(#[$field_meta])*
                $(#[serde(rename = $json)])?
                $(#[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$optional>,)?
                $($(#[serde($default)])? pub $field: $ty,)?
            )*
            /// Fields that this version does not know.
            #[serde(flatten)]
            pub extra: $crate::opencode::wire::Extra,
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Known {
                    $(
                        $(#[$field_meta])*
                        $(#[serde(rename = $json $(, alias = $alias)*)])?
                        $(#[serde(default)] $field: Option<$optional>,)?
                        $($(#[serde($default)])? $field: $ty,)?
                    )*
                }
                let (Known { $($field),* }, extra) = $crate::opencode::wire::extra::with_extra(deserializer)?;
                Ok(Self { $($field,)* extra })
            }
        }

        impl $crate::json::cursor::Scan for $name {
            fn scan(cursor: &mut $crate::json::cursor::Cursor<'_>) -> Option<Self> {
                Self::scan_beside(cursor, |_| Some(false))
            }
        }

        impl $name {
            /// Reads an object of which `other` may read further fields; it says whether it did.
            pub(super) fn scan_beside<'a>(
                cursor: &mut $crate::json::cursor::Cursor<'a>,
                mut other: impl FnMut(&mut $crate::json::cursor::Cursor<'a>) -> Option<bool>,
            ) -> Option<Self> {
                $(let mut $field = None;)*
                let mut extra = $crate::opencode::wire::extra::ExtraFields::default();
                cursor.fields(|cursor| {
                    if other(cursor)? {
                        return Some(());
                    }
                    $(if $crate::opencode::wire::extra::is_named!(cursor, $field $($json $($alias)*)?) {
                        return cursor.once(&mut $field);
                    })*
                    extra.push(cursor.whole_field()?)
                })?;
                Some(Self {
                    $($field: $crate::opencode::wire::extra::scanned!($field $(, $optional)? $($(, $default)?)?),)*
                    extra: extra.into(),
                })
            }
        }
    )*};
}
pub(super) use wire_struct;

/// Whether one of the names of a field in JSON comes next.
macro_rules! is_named {
    ($cursor:ident, $field:ident) => {
        $cursor.is_named($crate::json::cursor::field_name!(stringify!($field)))
    };
    ($cursor:ident, $field:ident $($json:literal)+) => {
        $($cursor.is_named($crate::json::cursor::field_name!($json)))||+
    };
}
pub(super) use is_named;

/// What was read of a field that has to be there, or that need not be.
macro_rules! scanned {
    ($field:ident) => {
        $field?
    };
    ($field:ident, $($may_be_absent:tt)+) => {
        $field.unwrap_or_default()
    };
}
pub(super) use scanned;

/// Fields that are kept as they are written. There is room for more than the server sends so far.
#[derive(Default)]
pub(super) struct ExtraFields<'a> {
    fields: [&'a str; 12],
    len: usize,
}

impl<'a> ExtraFields<'a> {
    #[inline]
    pub(super) fn push(&mut self, field: &'a str) -> Option<()> {
        *self.fields.get_mut(self.len)? = field;
        self.len += 1;
        Some(())
    }
}

impl From<ExtraFields<'_>> for Extra {
    #[inline]
    fn from(ExtraFields { fields, len }: ExtraFields<'_>) -> Self {
        if len == 0 {
            return Self::default();
        }
        let mut json =
            String::with_capacity(fields[..len].iter().map(|field| field.len() + 1).sum::<usize>() + 1);
        for field in &fields[..len] {
            json.push(if json.is_empty() { '{' } else { ',' });
            json.push_str(field);
        }
        json.push('}');
        Self(Some(Arc::new(Lazy { json, n_fields: Some(len), ..Lazy::default() })))
    }
}

impl Scan for Extra {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.skip().filter(|json| json.starts_with('{')).map(|json| Self::from_json(json.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::opencode::wire::{SessionInfo, TextPart};

    const INFO: &str =
        r#"{"slug":"a","id":"ses_1","n\u0065w":{"x":[1, 2]},"title":"t","time":{"created":1,"more":true}}"#;

    #[test]
    fn unknown_fields_are_kept_from_whatever_they_are_read() {
        let value: Value = serde_json::from_str(INFO).unwrap();
        let info: SessionInfo = serde_json::from_str(INFO).unwrap();
        assert_eq!(Value::from(info.extra.to_map()), json!({"slug": "a", "new": {"x": [1, 2]}}));
        assert_eq!(info.time.extra["more"], true);
        for same in [
            serde_json::from_value(value.clone()).unwrap(),
            SessionInfo::deserialize(&value).unwrap(),
            serde_json::from_reader(INFO.as_bytes()).unwrap(),
        ] {
            assert_eq!(info, same);
        }
        let mut expected = value;
        expected["directory"] = "".into();
        expected["version"] = "".into();
        expected["time"]["updated"] = 0.into();
        assert_eq!(serde_json::to_value(&info).unwrap(), expected);
    }

    #[test]
    fn nothing_is_read_before_it_is_asked_for() {
        let part: TextPart = serde_json::from_str(r#"{"text":"","metadata":{"a":1},"new":2}"#).unwrap();
        let is_read = |extra: &Extra| extra.0.as_ref().is_some_and(|lazy| lazy.map.get().is_some());
        let metadata = part.metadata.as_ref().unwrap();
        assert_eq!(part, part.clone());
        assert!(!is_read(metadata) && !is_read(&part.extra));
        assert_eq!((&metadata["a"], &part.extra["new"]), (&json!(1), &json!(2)));
        assert!(is_read(metadata) && is_read(&part.extra));
        let Raw(text) = serde_json::from_str("[1]").unwrap();
        assert!(matches!(text, Cow::Borrowed("[1]")), "it is borrowed where it can be");
    }

    #[test]
    fn equal_fields_are_equal_however_they_are_written() {
        let read = |json: &str| serde_json::from_str::<Extra>(json).unwrap();
        assert_eq!(read(r#"{"a":1,"b":2}"#), read(r#"{ "b": 2, "a": 1 }"#));
        assert_eq!(read(r#"{"a":1}"#), Extra::from_iter([("a".to_owned(), json!(1))]));
        assert_ne!(read(r#"{"a":1}"#), read(r#"{"a":2}"#));
        assert_eq!((read("{}"), read("{ }")), (Extra::new(), Extra::new()));
        let mut changed = read(r#"{"a":1}"#);
        changed.insert("b".to_owned(), json!(2));
        assert_eq!(changed, read(r#"{"a":1,"b":2}"#));
        for no_object in ["1", "[]", "null", r#""{}""#] {
            assert!(serde_json::from_str::<Extra>(no_object).is_err(), "{no_object}");
        }
    }

    #[test]
    fn what_no_value_can_hold_is_kept_as_text() {
        let extra: Extra = serde_json::from_str(r#"{"good":1,"huge":1e999,"half":"\ud800"}"#).unwrap();
        let expected = json!({"good": 1, "huge": "1e999", "half": r#""\ud800""#});
        assert_eq!(serde_json::to_value(&extra).unwrap(), expected);
        let again: Extra = serde_json::from_str(&expected.to_string()).unwrap();
        assert_eq!(again, extra);
    }
}

//! Objects told apart by a tag (`type`, `role`), read in one go.
//!
//! Serde's own ways either copy the whole object before they look at its tag, or try one shape after the other. Here the
//! tag decides as soon as it is met; only the fields before it are put aside, unread. That leaves errors without a path,
//! so a failure is looked at again with the tag known from the start.

use std::{borrow::Cow, fmt, marker::PhantomData, vec};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, Error as _, IntoDeserializer, MapAccess},
};
use serde_json::value::RawValue;

use super::decode::{DecodeError, JsonPath, decode_seed};

/// How many names a head may have.
const MAX_HEAD: usize = 4;

/// An object told apart by a tag.
pub(crate) trait Tagged: Sized {
    /// What errors call it.
    const WHAT: &'static str;
    /// The tag, and other strings that `read` takes from the [`Fields`] by name.
    const HEAD: &'static [&'static str];

    /// Reads the object; `fields` are those that are not in the head.
    fn read<'de, A: MapAccess<'de>>(tag: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error>;

    /// Decodes `json`, which stands at `at`.
    fn decode(at: JsonPath<'_>, json: &str) -> Result<Self, DecodeError> {
        if let Ok(OneGo(value)) = serde_json::from_str(json) {
            return Ok(value);
        }
        let Tag(tag, _) = decode_seed(Self::WHAT, at, json, TaggedSeed::<Tag<Self>>::default())?;
        decode_seed(Self::WHAT, at, json, TaggedSeed::<Self> { tag: Some(&tag), of: PhantomData })
    }
}

/// A tagged object as part of something that is read in one go. Its errors do not say where they are.
pub(crate) struct OneGo<T>(pub(crate) T);

impl<'de, T: Tagged> Deserialize<'de> for OneGo<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TaggedSeed::default().deserialize(deserializer).map(OneGo)
    }
}

/// The tag of an object, without the rest.
struct Tag<T>(String, PhantomData<T>);

impl<T: Tagged> Tagged for Tag<T> {
    const WHAT: &'static str = T::WHAT;
    const HEAD: &'static [&'static str] = &[T::HEAD[0]];

    fn read<'de, A: MapAccess<'de>>(tag: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        while fields.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {}
        Ok(Self(tag.to_owned(), PhantomData))
    }
}

struct TaggedSeed<'t, T> {
    /// The tag, if it is known already.
    tag: Option<&'t str>,
    of: PhantomData<T>,
}

impl<T> Default for TaggedSeed<'_, T> {
    fn default() -> Self {
        Self { tag: None, of: PhantomData }
    }
}

impl<T> Clone for TaggedSeed<'_, T> {
    fn clone(&self) -> Self {
        Self { tag: self.tag, of: PhantomData }
    }
}

impl<'de, T: Tagged> DeserializeSeed<'de> for TaggedSeed<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Tagged> de::Visitor<'de> for TaggedSeed<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let mut fields = Fields {
            map,
            names: T::HEAD,
            head: [const { None }; MAX_HEAD],
            early: Vec::new().into_iter(),
            early_value: None,
        };
        if let Some(tag) = self.tag {
            return T::read(tag, &mut fields);
        }
        let tag = fields.find_tag()?;
        T::read(&tag, &mut fields)
    }
}

/// The fields of a tagged object, except those of its head.
pub(crate) struct Fields<'de, A> {
    map: A,
    names: &'static [&'static str],
    /// What was met of the head so far.
    head: [Option<Cow<'de, str>>; MAX_HEAD],
    /// Those that came before the tag.
    early: vec::IntoIter<(Cow<'de, str>, &'de RawValue)>,
    early_value: Option<&'de RawValue>,
}

impl<'de, A: MapAccess<'de>> Fields<'de, A> {
    /// A field of the head, if there is one; to be asked for when all other fields have been read.
    pub(crate) fn head(&mut self, name: &str) -> Option<Cow<'de, str>> {
        let at = self.names.iter().position(|known| *known == name)?;
        self.head[at].take()
    }

    fn find_tag(&mut self) -> Result<Cow<'de, str>, A::Error> {
        let mut early = Vec::new();
        loop {
            let key = Key { names: self.names, seed: PhantomData::<Text<'de>> };
            match self.map.next_key_seed(key)? {
                Some(Name::Head(at, _)) => self.keep(at)?,
                Some(Name::Other(Text(name))) => early.push((name, self.map.next_value()?)),
                None => return Err(A::Error::missing_field(self.names[0])),
            }
            if let Some(tag) = &self.head[0] {
                self.early = early.into_iter();
                return Ok(tag.clone());
            }
        }
    }

    fn keep(&mut self, at: usize) -> Result<(), A::Error> {
        let Text(value) = self.map.next_value()?;
        match self.head[at].replace(value) {
            Some(_) => Err(A::Error::duplicate_field(self.names[at])),
            None => Ok(()),
        }
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, A::Error> {
        if let Some((name, value)) = self.early.next() {
            self.early_value = Some(value);
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
        loop {
            match self.map.next_key_seed(Key { names: self.names, seed })? {
                Some(Name::Head(at, unused)) => {
                    self.keep(at)?;
                    seed = unused;
                }
                Some(Name::Other(name)) => return Ok(Some(name)),
                None => return Ok(None),
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.early_value.take() {
            Some(value) => seed.deserialize(value).map_err(A::Error::custom),
            None => self.map.next_value_seed(seed),
        }
    }
}

/// A string that is borrowed if it can be.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Reads a field's name with `seed` unless it is one of `names`.
struct Key<K> {
    names: &'static [&'static str],
    seed: K,
}

enum Name<K, V> {
    /// The name with this number, and the seed that was not needed.
    Head(usize, K),
    Other(V),
}

impl<K> Key<K> {
    fn find<'de, E: de::Error>(
        self,
        name: &str,
        key: impl Deserializer<'de, Error = E>,
    ) -> Result<Name<K, K::Value>, E>
    where
        K: DeserializeSeed<'de>,
    {
        match self.names.iter().position(|known| *known == name) {
            Some(at) => Ok(Name::Head(at, self.seed)),
            None => self.seed.deserialize(key).map(Name::Other),
        }
    }
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<K> {
    type Value = Name<K, K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> de::Visitor<'de> for Key<K> {
    type Value = Name<K, K::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Self::Value, E> {
        self.find(name, de::value::BorrowedStrDeserializer::new(name))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        self.find(name, name.into_deserializer())
    }
}

#[cfg(test)]
mod tests {
    use crate::opencode::wire::{EventPayload, Part, ServerEvent};

    #[test]
    fn the_place_of_the_tag_does_not_matter() {
        let first = r#"{"type":"text","id":"prt_1","sessionID":"ses_1","messageID":"msg_1","text":"a\nb","new":{"x":[1]}}"#;
        let part = Part::from_json(first).unwrap();
        for same in [
            r#"{"id":"prt_1","text":"a\nb","type":"text","new":{"x":[1]},"messageID":"msg_1","sessionID":"ses_1"}"#,
            r#"{"text":"a\nb","n\u0065w":{"x":[1]},"messageID":"msg_1","sessionID":"ses_1","id":"prt_1","type":"text"}"#,
            r#"{"new":{"x":[1]},"t\u0065xt":"a\nb","id":"p\u0072t_1","messageID":"msg_1","typ\u0065":"t\u0065xt","sessionID":"ses_1"}"#,
        ] {
            assert_eq!(Part::from_json(same).unwrap(), part, "{same}");
        }
        let unknown = r#"{"new":1,"type":"new","id":"prt_1","messageID":"msg_1","sessionID":"ses_1"}"#;
        let again = serde_json::to_value(Part::from_json(unknown).unwrap()).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(unknown).unwrap());
    }

    #[test]
    fn errors_have_a_path_wherever_the_tag_stands() {
        let ids = r#""id":"prt_1","sessionID":"ses_1","messageID":"msg_1""#;
        let rows = [
            (format!(r#"{{"type":"text","text":5,{ids}}}"#), "text"),
            (format!(r#"{{"text":5,{ids},"type":"text"}}"#), "text"),
            (format!(r#"{{"time":{{"start":"x"}},"text":"",{ids},"type":"text"}}"#), "time.start"),
            (r#"{"id":1,"sessionID":"ses_1","messageID":"msg_1","type":"text","text":""}"#.to_owned(), "id"),
            (r#"{"id":"prt_1","sessionID":"ses_1","type":"text","text":""}"#.to_owned(), "."),
            (format!(r#"{{"type":5,{ids}}}"#), "type"),
            (format!(r#"{{"text":"",{ids}}}"#), "."),
            (format!(r#"{{"type":"text","text":"",{ids},"type":"text"}}"#), "."),
            (format!(r#"{{"type":"text","text":"",{ids},"id":"prt_1"}}"#), "."),
            (r#"["text","prt_1","ses_1","msg_1",""]"#.to_owned(), "."),
        ];
        for (part, path) in rows {
            assert_eq!(Part::from_json(&part).unwrap_err().path(), path, "{part}");
            let event = format!(r#"{{"properties":{{"part":{part}}},"type":"message.part.updated"}}"#);
            let inside = if path == "." { String::new() } else { format!(".{path}") };
            let error = ServerEvent::from_json(&event).unwrap_err();
            assert_eq!(
                (error.what(), error.path()),
                ("part", &*format!("properties.part{inside}")),
                "{event}"
            );
        }
    }

    #[test]
    fn an_unusual_envelope_is_read_step_by_step() {
        let idle = |json: &str| {
            let event = ServerEvent::from_json(json).unwrap();
            assert!(matches!(event.payload, EventPayload::SessionIdle { .. }), "{event:?}");
            (event.id, event.directory)
        };
        let some = |text: &str| Some(text.to_owned());
        let plain = r#"{"id":"evt_1","type":"session.idle","properties":{"sessionID":"ses_1"}}"#;
        assert_eq!(idle(plain), (some("evt_1"), None));
        assert_eq!(idle(&format!(r#"{{"directory":"/d","payload":{plain}}}"#)), (some("evt_1"), some("/d")));
        assert_eq!(idle(&plain.replace(r#""evt_1""#, "null")), (None, None));
        assert_eq!(idle(&plain.replace(r#""id""#, r#""directory""#)), (None, some("evt_1")));

        let twice = plain.replace(r#""id":"evt_1""#, r#""properties":{}"#);
        assert_eq!(ServerEvent::from_json(&twice).unwrap_err().path(), ".");
        for nothing in [r#"{"type":"new"}"#, r#"{"type":"new","properties":null}"#] {
            let EventPayload::Unknown { properties, .. } = ServerEvent::from_json(nothing).unwrap().payload
            else {
                panic!("{nothing} is known");
            };
            assert_eq!(properties, serde_json::json!({}));
        }
    }
}

//! The short way through JSON: from front to back, straight from the text into a struct.
//!
//! A general decoder asks for every name and value through several layers, each of which moves what it gets. The server
//! writes the same shapes over and over, without white space. A [`Cursor`] reads those, and gives up at whatever is unusual or wrong. The
//! general decoder then reads the same text from its beginning, so that it alone decides what is malformed, and says where.
//! What a cursor does read it reads as the general decoder would.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::{ids::shared, time::Millis};

/// How deep a value may be nested that is skipped or read as a [`Value`].
const MAX_DEPTH: u8 = 32;

/// What can be read by a [`Cursor`].
pub(crate) trait Scan: Sized {
    /// Reads a value; nothing if it has to be left to the general decoder.
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self>;
}

/// A place in JSON text. Every method that returns nothing leaves it at no place in particular.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// The first fields of an object were read, and [`Cursor::fields`] goes on behind them.
    is_inside: bool,
}

/// The name of a field as it stands in JSON, with the colon.
macro_rules! field_name {
    ($name:expr) => {
        concat!("\"", $name, "\":")
    };
}
pub(crate) use field_name;

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, is_inside: false }
    }

    /// Whether everything was read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Reads an object, each of its fields with `field`, which has to read the name and the value.
    #[inline]
    pub(crate) fn fields(&mut self, mut field: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if std::mem::take(&mut self.is_inside) {
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        } else {
            self.expect(b'{')?;
            if self.peek()? == b'}' {
                return self.expect(b'}');
            }
        }
        loop {
            field(self)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Reads an array, each of its elements with `element`.
    pub(crate) fn elements(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            return self.expect(b']');
        }
        loop {
            element(self)?;
            match self.next()? {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Where the value of a field stands, if the object that comes next has one of this name. The object stays to be read.
    #[cfg(feature = "client")]
    #[expect(clippy::option_option, reason = "an object without the field is not one that cannot be read")]
    pub(crate) fn field(mut self, wanted: &str) -> Option<Option<Self>> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            return Some(None);
        }
        loop {
            if self.name()? == wanted {
                return Some(Some(self));
            }
            self.skip()?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(None),
                _ => return None,
            }
        }
    }

    /// Reads an object up to its tag, the string in the field of this name (see [`field_name`]), as far as `head` reads the fields before it; the
    /// others stay to be read by [`Self::fields`], and then so does the tag. Also says whether the tag was read.
    pub(crate) fn tag(
        &mut self,
        name: &str,
        mut head: impl FnMut(&mut Self) -> Option<bool>,
    ) -> Option<(&'a str, bool)> {
        let (mut ahead, mut is_read) = (*self, true);
        ahead.expect(b'{')?;
        loop {
            let tag = if ahead.is_named(name) { Some(ahead.plain()?) } else { None };
            if tag.is_none() {
                is_read = is_read && head(&mut ahead)?;
                if !is_read {
                    ahead.skip_field()?;
                }
            }
            if is_read {
                *self = Self { is_inside: true, ..ahead };
            }
            if let Some(tag) = tag {
                return Some((tag, is_read));
            }
            ahead.expect(b',')?;
        }
    }

    /// Reads the value of a field for the first time; a second one is an error, which is not said here.
    #[inline]
    pub(crate) fn once<T: Scan>(&mut self, slot: &mut Option<T>) -> Option<()> {
        if slot.is_some() {
            return None;
        }
        *slot = Some(T::scan(self)?);
        Some(())
    }

    /// Goes behind the name of a field and its colon, written as [`field_name`] writes them, if that is what comes next. To compare
    /// with the few names that there may be costs less than to look for the end of the name.
    #[inline]
    pub(crate) fn is_named(&mut self, name: &str) -> bool {
        self.word(name).is_some()
    }

    /// Reads the name of a field and the colon.
    fn name(&mut self) -> Option<&'a str> {
        let name = self.plain()?;
        self.expect(b':')?;
        Some(name)
    }

    /// Skips a field: its name and its value.
    pub(crate) fn skip_field(&mut self) -> Option<()> {
        self.name()?;
        self.skip_nested(MAX_DEPTH)
    }

    /// Skips a field and returns it: name, colon and value.
    pub(crate) fn whole_field(&mut self) -> Option<&'a str> {
        let start = self.at;
        self.skip_field()?;
        self.text.get(start..self.at)
    }

    /// Skips a value and returns it.
    pub(crate) fn skip(&mut self) -> Option<&'a str> {
        let start = self.at;
        self.skip_nested(MAX_DEPTH)?;
        self.text.get(start..self.at)
    }

    fn skip_nested(&mut self, depth: u8) -> Option<()> {
        let below = depth.checked_sub(1)?;
        match self.peek()? {
            b'"' => self.plain().or_else(|| self.escaped()).map(drop),
            b'{' => self.fields(|cursor| cursor.name().and_then(|_| cursor.skip_nested(below))),
            b'[' => self.elements(|cursor| cursor.skip_nested(below)),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number().map(drop),
        }
    }

    /// Reads a string, which is borrowed if it is written as it is.
    #[inline]
    pub(crate) fn string(&mut self) -> Option<Cow<'a, str>> {
        match self.plain() {
            Some(text) => Some(Cow::Borrowed(text)),
            None => unescape(self.escaped()?).map(Cow::Owned),
        }
    }

    /// Reads a string that is written as it is; any other stays to be read.
    pub(crate) fn plain(&mut self) -> Option<&'a str> {
        if self.peek()? != b'"' {
            return None;
        }
        let start = self.at + 1;
        let end = start + ordinary(self.text.as_bytes().get(start..)?);
        if *self.text.as_bytes().get(end)? != b'"' {
            return None;
        }
        self.at = end + 1;
        self.text.get(start..end)
    }

    /// Reads a string as it is written, with known escapes.
    fn escaped(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            self.at += ordinary(self.text.as_bytes().get(self.at..)?);
            match (self.next()?, self.peek()) {
                (b'"', _) => return self.text.get(start..self.at - 1),
                (b'\\', Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => self.at += 1,
                (b'\\', Some(b'u')) => {
                    let digits = self.text.as_bytes().get(self.at + 1..self.at + 5)?;
                    self.at += 5;
                    digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                }
                (_, _) => return None,
            }
        }
    }

    /// Reads a number as it is written.
    fn number(&mut self) -> Option<&'a str> {
        let start = self.at;
        if self.integer().is_some() {
            return self.text.get(start..self.at);
        }
        let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = self.text.as_bytes().get(start..)?.iter().take_while(is_part).count();
        self.at = start + length;
        let number = self.text.get(start..self.at)?;
        serde_json::from_str::<IgnoredAny>(number).is_ok().then_some(number)
    }

    /// Reads a number without sign, fraction and exponent, of at most as many digits as always fit.
    fn integer(&mut self) -> Option<u64> {
        let (start, first) = (self.at, self.peek()?);
        let mut value: u64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        let is_plain = match self.at - start {
            1 => true,
            2..=19 => first != b'0',
            _ => false,
        };
        (is_plain && !matches!(self.peek(), Some(b'.' | b'e' | b'E'))).then_some(value)
    }

    /// Goes behind `expected`, if that comes next.
    #[inline]
    pub(crate) fn word(&mut self, expected: &str) -> Option<()> {
        let is_next = self.text.as_bytes().get(self.at..)?.starts_with(expected.as_bytes());
        is_next.then(|| self.at += expected.len())
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// How many bytes there are before the first that ends a string, begins an escape, or may not be in a string.
#[inline]
fn ordinary(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk() {
        let word = u64::from_le_bytes(*word);
        // The first byte of which the highest bit becomes set is the first that is one of those. Behind it a borrow may have set
        // others. With its second bit flipped a quotation mark is 0x20, which comes right after what may not be in a string.
        let quote_or_control = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
        let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
        let found = (quote_or_control | backslash) & !word & HIGHS;
        if found != 0 {
            return bytes.len() - rest.len() + found.trailing_zeros() as usize / 8;
        }
        rest = behind;
    }
    bytes.len() - rest.len() + ordinary_at_end(rest)
}

/// As [`ordinary`], for the last bytes of a text.
#[cold]
#[inline(never)]
fn ordinary_at_end(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | ..0x20)).count()
}

/// What a string means that has known escapes in it; half a surrogate pair, and a pair in halves, is left to the general decoder.
fn unescape(mut text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    while let Some((before, escape)) = text.split_once('\\') {
        plain.push_str(before);
        let (byte, after) = (escape.as_bytes().first()?, escape.get(1..)?);
        text = after;
        plain.push(match byte {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                text = after.get(4..)?;
                char::from_u32(u32::from_str_radix(after.get(..4)?, 16).ok()?)?
            }
            other => char::from(*other),
        });
    }
    plain.push_str(text);
    Some(plain)
}

impl Scan for bool {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.peek()? == b't' {
            cursor.word("true").map(|()| true)
        } else {
            cursor.word("false").map(|()| false)
        }
    }
}

impl Scan for u64 {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.integer()
    }
}

impl Scan for u32 {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.integer()?.try_into().ok()
    }
}

impl Scan for i64 {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.integer()?.try_into().ok()
    }
}

impl Scan for Millis {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        i64::scan(cursor).map(Self::new)
    }
}

impl Scan for f64 {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        match cursor.number()? {
            "0" => Some(0.0),
            number => serde_json::from_str(number).ok(),
        }
    }
}

impl Scan for String {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.string().map(Cow::into_owned)
    }
}

impl Scan for Arc<str> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.string().map(|text| shared(&text))
    }
}

impl Scan for Value {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        serde_json::from_str(cursor.skip()?).ok()
    }
}

impl<T: DeserializeOwned> Scan for BTreeMap<String, T> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        serde_json::from_str(cursor.skip()?).ok()
    }
}

impl<T: Scan> Scan for Option<T> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.peek()? == b'n' { cursor.word("null").map(|()| None) } else { T::scan(cursor).map(Some) }
    }
}

impl<T: Scan> Scan for Vec<T> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut items = Self::new();
        cursor.elements(|cursor| {
            items.push(T::scan(cursor)?);
            Some(())
        })?;
        Some(items)
    }
}

impl<T: Scan> Scan for Arc<T> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        T::scan(cursor).map(Self::new)
    }
}

impl<T: Scan> Scan for Box<T> {
    fn scan(cursor: &mut Cursor<'_>) -> Option<Self> {
        T::scan(cursor).map(Self::new)
    }
}

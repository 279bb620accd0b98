//! Reading JSON that others write: with a place for what is malformed, told apart by a tag, and with numbers of any kind.

pub(crate) mod cursor;
pub(crate) mod decode;
pub(crate) mod number;
pub(crate) mod tagged;

#[cfg(feature = "client")]
pub(crate) use decode::from_json;
pub use decode::{DecodeError, Decoded};

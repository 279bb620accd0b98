//! Sessions as programs around this crate see them.

mod stream_view;

pub use stream_view::{StreamEvent, StreamUsage, reduce_to_stream};

//! Sessions as programs around this crate see them.

mod meta;
mod stream_view;

pub use meta::ConversationSessionMeta;
pub use stream_view::{StreamEvent, StreamUsage, reduce_to_stream};

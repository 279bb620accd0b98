//! Sessions as programs around this crate see them.

mod data;
mod meta;
mod profile;
mod stream_view;

pub use data::{
    RuntimeSessionData, SavedSessionData, SavedSubagent, SessionListData, SessionStatus, WorkspaceFile,
};
pub use meta::ConversationSessionMeta;
pub use profile::AgentProfile;
#[cfg(feature = "client")]
pub(crate) use stream_view::stream_between;
pub use stream_view::{StreamEvent, StreamUsage, reduce_to_stream};

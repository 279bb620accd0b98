//! What happens around the sessions of a directory: files, branches, terminals, tools.

use serde::{Deserialize, Deserializer};

use super::extra::wire_struct;
use crate::{
    ids::{MessageId, SessionId},
    json::{
        cursor::{Cursor, field_name},
        decode::Object,
    },
};

wire_struct! {
    /// Something that the model means to do.
    Todo {
        /// What.
        content: String,
        /// `pending`, `in_progress`, `completed` or `cancelled`.
        status: String = default,
        /// `high`, `medium` or `low`.
        priority: String = default,
    }

    /// What a session has changed in a file.
    FileDiff {
        /// The file.
        file: String = default,
        /// The change as a unified diff; not from servers before 1.14.
        patch: String = default,
        /// `added`, `modified` or `deleted`; not from servers before 1.14.
        status: String = default,
        /// Lines that were added.
        additions: f64 = default,
        /// Lines that were deleted.
        deletions: f64 = default,
    }

    /// A terminal that the server runs.
    Terminal {
        /// Its id.
        id: String,
        /// Its title.
        title: String = default,
        /// `running` or `exited`.
        status: String = default,
    }
}

/// Declares the events, and what each is called by the server.
macro_rules! environment_events {
    ($($(#[$doc:meta])* $kind:literal => $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty = $wire:literal,)*
    })*) => {
        /// What happened around the sessions of a directory.
        ///
        /// A subscription of a whole directory ([`subscribe_all`](crate::DirectoryClient::subscribe_all)) gets all of them, one of a session
        /// those that name it. `WorktreeReady` and `WorktreeFailed` are only on the server's global stream.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum EnvironmentEvent {
            $($(#[$doc])* #[doc = concat!("The server calls it `", $kind, "`.")] $name {
                $($(#[$field_doc])* $field: $ty,)*
            },)*
        }

        impl EnvironmentEvent {
            /// Whether the server's name for an event is one of these.
            pub(super) fn knows(kind: &str) -> bool {
                matches!(kind, $($kind)|*)
            }

            /// Reads the properties of an event of type `kind`, if it is one of these.
            pub(super) fn scan(kind: &str, cursor: &mut Cursor<'_>) -> Option<Self> {
                match kind {
                    $($kind => {
                        $(let mut $field = None;)*
                        cursor.fields(|cursor| {
                            $(if cursor.is_named(field_name!($wire)) {
                                return cursor.once(&mut $field);
                            })*
                            cursor.skip_field()
                        })?;
                        Some(Self::$name { $($field: $field?),* })
                    })*
                    _ => None,
                }
            }

            /// Reads the properties of an event of type `kind`, which is one of these.
            pub(super) fn read<'de, D: Deserializer<'de>>(kind: &str, properties: D) -> Result<Self, D::Error> {
                match kind {
                    $($kind => {
                        #[derive(Deserialize)]
                        struct Fields {
                            $(#[serde(rename = $wire)] $field: $ty,)*
                        }
                        let Object(Fields { $($field),* }) = Object::deserialize(properties)?;
                        Ok(Self::$name { $($field),* })
                    })*
                    _ => Err(serde::de::Error::custom("not an event of the environment")),
                }
            }
        }
    };
}

environment_events! {
    /// The model changed a file.
    "file.edited" => FileEdited {
        /// The file.
        file: String = "file",
    }
    /// A file changed, by the agent or by another program.
    "file.watcher.updated" => FileChanged {
        /// The file.
        file: String = "file",
        /// What happened to it: `add`, `change` or `unlink`.
        event: String = "event",
    }
    /// The directory is on another branch.
    "vcs.branch.updated" => BranchChanged {
        /// The branch; nothing if it is on none.
        branch: Option<String> = "branch",
    }
    /// A worktree that the server made can be used.
    "worktree.ready" => WorktreeReady {
        /// Its name.
        name: String = "name",
        /// Its branch.
        branch: Option<String> = "branch",
    }
    /// A worktree could not be made.
    "worktree.failed" => WorktreeFailed {
        /// What git said, or the server about it.
        message: String = "message",
    }
    /// The model changed its list of things to do.
    "todo.updated" => TodosChanged {
        /// The session whose list it is.
        session_id: SessionId = "sessionID",
        /// The list as it is now.
        todos: Vec<Todo> = "todos",
    }
    /// What a session has changed in files is known anew.
    "session.diff" => DiffChanged {
        /// The session whose work it is.
        session_id: SessionId = "sessionID",
        /// The changes.
        diff: Vec<FileDiff> = "diff",
    }
    /// A command was given to a session.
    "command.executed" => CommandExecuted {
        /// The command.
        name: String = "name",
        /// The session that got it.
        session_id: SessionId = "sessionID",
        /// What it was given.
        arguments: String = "arguments",
        /// The message that it became.
        message_id: MessageId = "messageID",
    }
    /// A terminal was opened.
    "pty.created" => TerminalOpened {
        /// The terminal.
        info: Terminal = "info",
    }
    /// A terminal changed.
    "pty.updated" => TerminalChanged {
        /// The terminal as it is now.
        info: Terminal = "info",
    }
    /// What a terminal ran has ended.
    "pty.exited" => TerminalExited {
        /// The terminal.
        id: String = "id",
        /// How it ended.
        exit_code: i64 = "exitCode",
    }
    /// A terminal was closed.
    "pty.deleted" => TerminalClosed {
        /// The terminal.
        id: String = "id",
    }
    /// An MCP server offers other tools than before.
    "mcp.tools.changed" => McpToolsChanged {
        /// The MCP server.
        server: String = "server",
    }
    /// An MCP server wants a person to log in, and no browser could be opened.
    "mcp.browser.open.failed" => McpBrowserFailed {
        /// The MCP server.
        server: String = "mcpName",
        /// Where to log in.
        url: String = "url",
    }
    /// The state of the language servers changed.
    "lsp.updated" => LanguageServersChanged {}
    /// A language server has something to say about a file; old releases tell.
    "lsp.client.diagnostics" => Diagnostics {
        /// The language server.
        server: String = "serverID",
        /// The file.
        path: String = "path",
    }
    /// The server knows something new about the project.
    "project.updated" => ProjectChanged {
        /// The project.
        id: String = "id",
        /// Its main directory.
        worktree: String = "worktree",
    }
}

impl EnvironmentEvent {
    /// The session it concerns.
    pub fn session_id(&self) -> Option<&SessionId> {
        match self {
            Self::TodosChanged { session_id, .. }
            | Self::DiffChanged { session_id, .. }
            | Self::CommandExecuted { session_id, .. } => Some(session_id),
            _ => None,
        }
    }
}

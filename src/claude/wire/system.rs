//! What Claude Code says about itself: `system` lines of the stream.

use std::sync::Arc;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::Unknown;
use crate::{
    ids::{AgentId, MessageId, SessionId, ToolUseId},
    json::tagged::{Fields, Tagged},
};

/// What Claude Code says about itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SystemMessage {
    /// A turn begins; so once per turn.
    Init(Box<SessionInit>),
    /// It waits for the provider (`requesting`), summarises (`compacting`), or neither.
    #[non_exhaustive]
    Status {
        /// What it does.
        status: Option<Box<str>>,
    },
    /// The session began to work, waits for the host, or is at rest.
    #[non_exhaustive]
    SessionStateChanged {
        /// What it does now.
        state: SessionState,
    },
    /// A request to the provider failed and is sent again.
    ApiRetry(ApiRetry),
    /// What was said before is summarised in the user line that follows.
    CompactBoundary(CompactBoundary),
    /// A subagent or a command in the background began.
    TaskStarted(TaskStarted),
    /// A task did something.
    TaskProgress(TaskStarted),
    /// A task's status changed.
    #[non_exhaustive]
    TaskUpdated {
        /// The task; of a subagent its agent id.
        task_id: AgentId,
    },
    /// A task ended.
    TaskNotification(TaskNotification),
    /// Other tasks run in the background than before.
    #[non_exhaustive]
    BackgroundTasksChanged {
        /// Those that run.
        tasks: Vec<BackgroundTask>,
    },
    /// How much the model has thought so far.
    #[non_exhaustive]
    ThinkingTokens {
        /// An estimate.
        estimated_tokens: u64,
    },
    /// A tool was not allowed to run, and no permission was asked for.
    PermissionDenied(PermissionDenied),
    /// A remark for people.
    Informational(Informational),
    /// The model refused, and no other answers for it.
    ModelRefusal,
    /// Something that is not known.
    Unknown(Unknown),
}

/// How a session is set up, as a turn begins.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct SessionInit {
    /// The session.
    pub session_id: SessionId,
    /// Where it works.
    #[serde(default)]
    pub cwd: String,
    /// The model.
    #[serde(default)]
    pub model: String,
    /// What may run without permission.
    #[serde(default, rename = "permissionMode")]
    pub permission_mode: Option<String>,
    /// The version of Claude Code.
    #[serde(default)]
    pub claude_code_version: Option<String>,
    /// The tools that the model has.
    #[serde(default)]
    pub tools: Vec<String>,
    /// The agents that it can start.
    #[serde(default)]
    pub agents: Vec<String>,
    /// The skills that it has.
    #[serde(default)]
    pub skills: Vec<String>,
    /// The MCP servers, and whether they are connected.
    #[serde(default)]
    pub mcp_servers: Vec<Value>,
}

/// What a session does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionState {
    /// It works.
    Running,
    /// It waits for the host.
    RequiresAction,
    /// It is at rest, and nothing runs in the background.
    Idle,
    /// Something that is not known.
    #[serde(untagged)]
    Unknown(String),
}

/// A request to the provider that failed and is sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct ApiRetry {
    /// Its id; another one in the stream than in the transcript.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// Which attempt failed, from 1.
    #[serde(alias = "retryAttempt")]
    pub attempt: u32,
    /// How many times it is sent again.
    #[serde(default, alias = "maxRetries")]
    pub max_retries: Option<u32>,
    /// How long is waited.
    #[serde(default, alias = "retryInMs", deserialize_with = "crate::json::number::count")]
    pub retry_delay_ms: u64,
    /// The HTTP status of the answer, if there was one.
    #[serde(default)]
    pub error_status: Option<u16>,
    /// What went wrong: a word such as `overloaded` in the stream, the provider's own in the transcript.
    #[serde(default, deserialize_with = "words")]
    pub error: Option<Box<str>>,
}

/// A text; nothing if it is anything else.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_str().map(Box::from))
}

/// The place from which on a session goes on with a summary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct CompactBoundary {
    /// Its id.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// Why, and how much it saved.
    #[serde(default, alias = "compactMetadata")]
    pub compact_metadata: CompactMetadata,
}

/// Why a session was summarised, and how much that saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct CompactMetadata {
    /// `manual` or `auto`.
    #[serde(default)]
    pub trigger: Option<Arc<str>>,
    /// How many tokens it had.
    #[serde(default, alias = "preTokens")]
    pub pre_tokens: Option<u64>,
    /// How many tokens it has now.
    #[serde(default, alias = "postTokens")]
    pub post_tokens: Option<u64>,
}

/// A subagent or a command in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TaskStarted {
    /// The task; of a subagent its agent id.
    pub task_id: AgentId,
    /// The call that started it.
    #[serde(default)]
    pub tool_use_id: Option<ToolUseId>,
    /// `local_agent` for a subagent, `local_bash` for a command.
    #[serde(default)]
    pub task_type: Option<String>,
    /// What for, in a few words.
    #[serde(default)]
    pub description: Option<String>,
    /// Whether the turn goes on without waiting for it.
    #[serde(default)]
    pub is_backgrounded: Option<bool>,
}

/// A task that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TaskNotification {
    /// The task; of a subagent its agent id.
    pub task_id: AgentId,
    /// Which run of it: it may be sent another message.
    #[serde(default)]
    pub run_id: Option<Box<str>>,
    /// The call that started it.
    #[serde(default)]
    pub tool_use_id: Option<ToolUseId>,
    /// `completed`, `failed` or `stopped`.
    #[serde(default)]
    pub status: Box<str>,
    /// What it answered, or why it failed.
    #[serde(default)]
    pub summary: Option<String>,
    /// What it used.
    #[serde(default)]
    pub usage: Option<TaskUsage>,
}

/// What a task used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TaskUsage {
    /// How long it ran.
    #[serde(default)]
    pub duration_ms: Option<u64>,
}

/// A task that runs in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct BackgroundTask {
    /// The task; of a subagent its agent id.
    pub task_id: AgentId,
    /// `local_agent` for a subagent, `local_bash` for a command.
    #[serde(default)]
    pub task_type: Option<String>,
}

/// A tool that was not allowed to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PermissionDenied {
    /// The tool.
    #[serde(default)]
    pub tool_name: String,
    /// The call.
    #[serde(default)]
    pub tool_use_id: Option<ToolUseId>,
    /// Why not.
    #[serde(default)]
    pub message: String,
}

/// A remark for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Informational {
    /// Its id.
    #[serde(default)]
    pub uuid: Option<MessageId>,
    /// The remark.
    #[serde(default)]
    pub content: String,
    /// How grave it is.
    #[serde(default)]
    pub level: Option<Arc<str>>,
}

impl Tagged for SystemMessage {
    const WHAT: &'static str = "system message";
    const HEAD: &'static [&'static str] = &["subtype"];

    fn read<'de, A: MapAccess<'de>>(kind: &str, fields: &mut Fields<'de, A>) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct Status {
            #[serde(default)]
            status: Option<Box<str>>,
        }
        #[derive(Deserialize)]
        struct State {
            state: SessionState,
        }
        #[derive(Deserialize)]
        struct Updated {
            task_id: AgentId,
        }
        #[derive(Deserialize)]
        struct Tasks {
            #[serde(default)]
            tasks: Vec<BackgroundTask>,
        }
        #[derive(Deserialize)]
        struct Thought {
            #[serde(default)]
            estimated_tokens: u64,
        }
        let fields = MapAccessDeserializer::new(fields);
        Ok(match kind {
            "init" => Self::Init(Deserialize::deserialize(fields)?),
            "status" => Self::Status { status: Status::deserialize(fields)?.status },
            "session_state_changed" => Self::SessionStateChanged { state: State::deserialize(fields)?.state },
            "api_retry" => Self::ApiRetry(Deserialize::deserialize(fields)?),
            "compact_boundary" => Self::CompactBoundary(Deserialize::deserialize(fields)?),
            "task_started" => Self::TaskStarted(Deserialize::deserialize(fields)?),
            "task_progress" => Self::TaskProgress(Deserialize::deserialize(fields)?),
            "task_updated" => Self::TaskUpdated { task_id: Updated::deserialize(fields)?.task_id },
            "task_notification" => Self::TaskNotification(Deserialize::deserialize(fields)?),
            "background_tasks_changed" => {
                Self::BackgroundTasksChanged { tasks: Tasks::deserialize(fields)?.tasks }
            }
            "thinking_tokens" => {
                Self::ThinkingTokens { estimated_tokens: Thought::deserialize(fields)?.estimated_tokens }
            }
            "permission_denied" => Self::PermissionDenied(Deserialize::deserialize(fields)?),
            "informational" => Self::Informational(Deserialize::deserialize(fields)?),
            "model_refusal_no_fallback" => {
                IgnoredAny::deserialize(fields)?;
                Self::ModelRefusal
            }
            _ => {
                IgnoredAny::deserialize(fields)?;
                Self::Unknown(Unknown { kind: format!("system/{kind}").into(), json: "".into() })
            }
        })
    }
}

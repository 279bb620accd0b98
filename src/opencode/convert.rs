//! `OpenCode`'s messages and parts as conversation events.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    conversation::{
        BlockBody, BlockOrder, BlockStatus, BlockText, ContentPart, ConversationBlock, ConversationEvent,
        ConvertOptions, Metadata, RunStatus, SubagentCompleted, SubagentSpawned, Thinking, Usage,
    },
    ids::{BlockId, ConversationId, SessionId, ToolUseId, shared},
    opencode::wire::{
        AssistantMessage, Extra, MessageError, MessageInfo, Part, PartBody, PartTime, TextPart, ToolPart,
        ToolState, ToolStatus, UserMessage,
    },
    time::Timestamp,
};

/// Whether a message may still change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    MayChange,
    /// The turn is over: what is unfinished remains so, and shows as complete.
    AtRest,
}

/// Converts messages of one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Converter<'a> {
    pub(crate) conversation: &'a ConversationId,
    pub(crate) options: ConvertOptions,
    pub(crate) rest: Rest,
}

impl Converter<'_> {
    /// What belongs to the message as a whole: a prompt's block, or a step's error and usage.
    pub(crate) fn whole<'p>(
        &self,
        info: &MessageInfo,
        parts: impl Iterator<Item = &'p Part> + Clone,
    ) -> Vec<ConversationEvent> {
        match info {
            MessageInfo::User(user) => self.prompt(info, user, parts).into_iter().collect(),
            MessageInfo::Assistant(step) => {
                let mut events = vec![self.usage(step)];
                events.extend(step.error.as_ref().map(|error| self.error(info, error)));
                events
            }
            MessageInfo::Unknown(_) => Vec::new(),
        }
    }

    /// What one part shows by itself; `child` is the session it started, where that is known better than from the part.
    pub(crate) fn part(
        &self,
        info: &MessageInfo,
        part: &Part,
        child: Option<&SessionId>,
    ) -> Vec<ConversationEvent> {
        let order = place(info).part(part.id.clone());
        let step = info.as_assistant();
        match (&part.body, step) {
            (PartBody::Text(text), Some(step)) => {
                let body = |content| BlockBody::AssistantText { content, model: model(step) };
                let block = self.text(step, order, &text.text, text.time.as_ref(), body);
                let metadata = text_metadata(step, text);
                block.map(|block| self.upsert(ConversationBlock { metadata, ..block })).into_iter().collect()
            }
            (PartBody::Reasoning(thinking), Some(step)) => {
                if self.options.thinking == Thinking::Omit {
                    return Vec::new();
                }
                let body = |content| BlockBody::Thinking { content, model: model(step) };
                let block = self.text(step, order, &thinking.text, thinking.time.as_ref(), body);
                block.map(|block| self.upsert(block)).into_iter().collect()
            }
            (PartBody::Tool(tool), Some(_)) if tool.is_task() => self.task(order, tool, child),
            (PartBody::Tool(tool), Some(_)) => self.tool(order, tool),
            (PartBody::Compaction(compaction), _) => {
                let mut metadata = Map::new();
                metadata.insert("auto".into(), json!(compaction.auto));
                if let Some(overflow) = compaction.overflow {
                    metadata.insert("overflow".into(), json!(overflow));
                }
                let content = "The conversation so far was summarised.".into();
                vec![self.system(order, "compaction", content, metadata)]
            }
            (PartBody::Retry(retry), _) => {
                let content = format!("Attempt {} failed: {}", retry.attempt, retry.error.message());
                let mut metadata = error_metadata(&retry.error);
                metadata.insert("attempt".into(), json!(retry.attempt));
                vec![self.system(order, "retry", content, metadata)]
            }
            (
                PartBody::Text(_)
                | PartBody::Reasoning(_)
                | PartBody::Tool(_)
                | PartBody::File(_)
                | PartBody::StepStart(_)
                | PartBody::StepFinish(_)
                | PartBody::Snapshot(_)
                | PartBody::Patch(_)
                | PartBody::Agent(_)
                | PartBody::Subtask(_)
                | PartBody::Unknown(_),
                _,
            ) => Vec::new(),
        }
    }

    fn prompt<'p>(
        &self,
        info: &MessageInfo,
        user: &UserMessage,
        parts: impl Iterator<Item = &'p Part> + Clone,
    ) -> Option<ConversationEvent> {
        let mut typed = Vec::new();
        let mut synthetic = Vec::new();
        let mut content_parts = Vec::new();
        for part in parts {
            match &part.body {
                PartBody::Text(text) if text.ignored == Some(true) => {}
                PartBody::Text(text) if text.synthetic == Some(true) => synthetic.push(text.text.as_str()),
                PartBody::Text(text) => typed.push(text.text.as_str()),
                PartBody::File(file) => {
                    content_parts.push(file_part(&file.mime, file.filename.as_deref(), &file.url));
                }
                PartBody::Agent(agent) => {
                    content_parts.push(ContentPart::Agent { name: agent.name.as_str().into() });
                }
                PartBody::Subtask(subtask) => content_parts.push(ContentPart::Subtask {
                    agent: subtask.agent.as_str().into(),
                    description: subtask.description.as_str().into(),
                    prompt: subtask.prompt.as_str().into(),
                }),
                PartBody::Reasoning(_)
                | PartBody::Tool(_)
                | PartBody::StepStart(_)
                | PartBody::StepFinish(_)
                | PartBody::Snapshot(_)
                | PartBody::Patch(_)
                | PartBody::Compaction(_)
                | PartBody::Retry(_)
                | PartBody::Unknown(_) => {}
            }
        }
        // What the server adds to a prompt (the files it names, reminders) is not the user's; a message of nothing else is
        // the server's own.
        let is_synthetic = typed.is_empty() && !synthetic.is_empty();
        let content = if is_synthetic { synthetic } else { typed }.join("\n");
        if content.trim().is_empty() && content_parts.is_empty() {
            return None;
        }
        let metadata =
            is_synthetic.then(|| Arc::new(Map::from_iter([("synthetic".to_owned(), json!(true))])));
        let body = BlockBody::UserMessage { content: content.into(), parts: content_parts };
        let block = ConversationBlock::new(BlockId::from(&user.id), place(info), body);
        Some(self.upsert(ConversationBlock { metadata, ..block }))
    }

    /// Blank text shows nothing: it is what failed attempts leave behind.
    fn text(
        &self,
        step: &AssistantMessage,
        order: BlockOrder,
        text: &str,
        time: Option<&PartTime>,
        body: impl FnOnce(BlockText) -> BlockBody,
    ) -> Option<ConversationBlock> {
        if text.trim().is_empty() {
            return None;
        }
        let is_over = time.is_some_and(|time| time.end.is_some()) || step.time.completed.is_some();
        let mut block = ConversationBlock::new(BlockId::from(&order.part), order, body(text.into()));
        if let Some(time) = time {
            block.timestamp = time.start.into();
        }
        if !is_over {
            block.status = self.unfinished();
        }
        Some(block)
    }

    fn tool(&self, order: BlockOrder, tool: &ToolPart) -> Vec<ConversationEvent> {
        let ToolPart { state, .. } = tool;
        let tool_use_id = ToolUseId::from(&order.part);
        let tool_status = run_status(&state.status);
        let id = BlockId::from(&order.part);
        let result_order = order.result();
        let mut call = ConversationBlock::new(
            id,
            order,
            BlockBody::ToolUse {
                tool_use_id: tool_use_id.clone(),
                name: shared(&tool.tool),
                title: state.title.as_deref().filter(|title| !title.is_empty()).map(Arc::from),
                input: Arc::clone(&state.input),
                tool_status,
            },
        );
        call.timestamp = started(state, call.timestamp);
        call.status = match tool_status.block_status() {
            BlockStatus::Pending => self.unfinished(),
            status @ (BlockStatus::Complete | BlockStatus::Error) => status,
        };
        call.metadata = Some(Arc::new(Map::from_iter([("callId".to_owned(), json!(tool.call_id))])));
        let call_began = call.timestamp;
        let mut events = vec![self.upsert(call)];
        if tool_status.is_final() {
            let is_error = tool_status == RunStatus::Error;
            let attachments = state.attachments.iter().flatten();
            let mut result = ConversationBlock::new(
                format!("result-{tool_use_id}"),
                result_order,
                BlockBody::ToolResult {
                    output: outcome(state).into(),
                    is_error,
                    duration_ms: duration(state),
                    parts: attachments.map(attachment).collect(),
                    tool_use_id,
                },
            );
            result.timestamp =
                state.time.as_ref().and_then(|time| time.end).map_or(call_began, Timestamp::from);
            result.status = tool_status.block_status();
            result.metadata = tool_metadata(state);
            events.push(self.upsert(result));
        }
        events
    }

    fn task(&self, order: BlockOrder, tool: &ToolPart, child: Option<&SessionId>) -> Vec<ConversationEvent> {
        let ToolPart { state, .. } = tool;
        let input =
            |field: &str| state.input.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let tool_use_id = ToolUseId::from(&order.part);
        let timestamp = started(state, order.created.into());
        let status = run_status(&state.status);
        let child = child.cloned().or_else(|| tool.child_session());
        let spawned = SubagentSpawned {
            conversation_id: self.conversation.clone(),
            tool_use_id: tool_use_id.clone(),
            agent_id: child.as_ref().map(Into::into),
            subagent_type: input("subagent_type").unwrap_or_default().into(),
            description: input("description").or(state.title.as_deref()).map(Arc::from),
            prompt: input("prompt").unwrap_or_default().into(),
            status: status.min(RunStatus::Running),
            order: Some(order.clone()),
            timestamp: Some(timestamp),
            metadata: other_arguments(&state.input),
        };
        if status == RunStatus::Pending {
            // It has not begun, and its arguments are still being written. A client that takes the first word on a subagent
            // for all there is to know must not get it before they are there.
            return vec![self.upsert(spawned.block())];
        }
        let agent_id = spawned.agent_id.clone();
        let mut events = vec![ConversationEvent::SubagentSpawned(spawned)];
        // A subagent in the background is not done when its call is.
        if status.is_final() && !tool.is_background_task() {
            events.push(ConversationEvent::SubagentCompleted(SubagentCompleted {
                conversation_id: self.conversation.clone(),
                tool_use_id,
                agent_id,
                status,
                output: Some(task_result(outcome(state)).into()),
                duration_ms: duration(state),
                order: Some(order),
                timestamp: Some(timestamp),
                metadata: None,
            }));
        }
        events
    }

    fn usage(&self, step: &AssistantMessage) -> ConversationEvent {
        ConversationEvent::MetadataUpdate {
            conversation_id: self.conversation.clone(),
            message_id: step.id.clone(),
            created: step.time.created,
            model: model(step),
            usage: Some(Usage { tokens: (&step.tokens).into(), cost: step.cost }),
        }
    }

    fn error(&self, info: &MessageInfo, error: &MessageError) -> ConversationEvent {
        let body = BlockBody::Error { content: error.message().into() };
        let mut block = ConversationBlock::new(format!("error-{}", info.id()), place(info).trailing(), body);
        if let Some(completed) = info.time().completed {
            block.timestamp = completed.into();
        }
        block.status = BlockStatus::Error;
        block.metadata = Some(Arc::new(error_metadata(error)));
        self.upsert(block)
    }

    fn system(
        &self,
        order: BlockOrder,
        subtype: &str,
        content: String,
        metadata: Map<String, Value>,
    ) -> ConversationEvent {
        let id = BlockId::from(&order.part);
        let body = BlockBody::System { subtype: Some(subtype.into()), content: content.into() };
        let block = ConversationBlock::new(id, order, body);
        self.upsert(ConversationBlock { metadata: Some(Arc::new(metadata)), ..block })
    }

    fn upsert(&self, block: ConversationBlock) -> ConversationEvent {
        let conversation_id = self.conversation.clone();
        let block = ConversationBlock { conversation_id: conversation_id.clone(), ..block };
        ConversationEvent::BlockUpsert { conversation_id, block: Arc::new(block) }
    }

    fn unfinished(&self) -> BlockStatus {
        match self.rest {
            Rest::MayChange => BlockStatus::Pending,
            Rest::AtRest => BlockStatus::Complete,
        }
    }
}

/// Where a message stands in its thread.
fn place(info: &MessageInfo) -> BlockOrder {
    BlockOrder::message(info.time().created, info.id().clone())
}

fn model(step: &AssistantMessage) -> Option<Arc<str>> {
    let AssistantMessage { provider_id, model_id, .. } = step;
    match (&**provider_id, &**model_id) {
        (_, "") => None,
        ("", model) => Some(shared(model)),
        (provider, model) => Some(shared(&[provider, "/", model].concat())),
    }
}

fn run_status(status: &ToolStatus) -> RunStatus {
    match status {
        ToolStatus::Pending => RunStatus::Pending,
        ToolStatus::Running | ToolStatus::Unknown(_) => RunStatus::Running,
        ToolStatus::Completed => RunStatus::Success,
        ToolStatus::Error => RunStatus::Error,
    }
}

fn started(state: &ToolState, otherwise: Timestamp) -> Timestamp {
    state.time.as_ref().map_or(otherwise, |time| time.start.into())
}

fn duration(state: &ToolState) -> Option<u64> {
    let time = state.time.as_ref()?;
    Some(time.end?.since(time.start))
}

/// What a finished call returned, or why it failed.
fn outcome(state: &ToolState) -> &str {
    let text = if state.status == ToolStatus::Error { &state.error } else { &state.output };
    text.as_deref().unwrap_or_default()
}

/// A subagent's answer without what the server wraps around it for the model.
pub(super) fn task_result(output: &str) -> &str {
    if let Some((_, result)) = output.split_once("<task_result>") {
        return result.split_once("</task_result>").map_or(result, |(result, _)| result).trim();
    }
    // Servers before 1.1 put the wrapping after the answer.
    output.split_once("<task_metadata>").map_or(output, |(answer, _)| answer).trim()
}

fn text_metadata(step: &AssistantMessage, text: &TextPart) -> Metadata {
    let mut metadata = Map::new();
    if step.summary == Some(true) {
        metadata.insert("summary".into(), json!(true));
    }
    if text.synthetic == Some(true) {
        metadata.insert("synthetic".into(), json!(true));
    }
    (!metadata.is_empty()).then(|| Arc::new(metadata))
}

/// The tool's own details, without its output, which the result has.
fn tool_metadata(state: &ToolState) -> Metadata {
    let mut metadata = state.metadata.as_ref().map(Extra::to_map).unwrap_or_default();
    metadata.remove("output");
    (!metadata.is_empty()).then(|| Arc::new(metadata))
}

/// What a subagent was given besides what every subagent is given.
fn other_arguments(input: &Value) -> Metadata {
    let is_told = |name: &str, value: &Value| {
        value.is_string() && matches!(name, "description" | "prompt" | "subagent_type")
    };
    let others = match input {
        Value::Object(arguments) => {
            let others = arguments.iter().filter(|(name, value)| !is_told(name, value));
            let others: Map<_, _> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
            (!others.is_empty()).then(|| Value::from(others))
        }
        Value::Null => None,
        other => Some(other.clone()),
    };
    others.map(|others| Arc::new(Map::from_iter([("input".to_owned(), others)])))
}

fn error_metadata(error: &MessageError) -> Map<String, Value> {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(error.name));
    if let Some(code) = error.status_code() {
        metadata.insert("statusCode".into(), json!(code));
    }
    metadata
}

fn attachment(file: &Value) -> ContentPart {
    let field = |name| file.get(name).and_then(Value::as_str);
    file_part(field("mime").unwrap_or_default(), field("filename"), field("url").unwrap_or_default())
}

/// A file without its bytes: those in a `data:` URL are only counted.
fn file_part(media_type: &str, filename: Option<&str>, url: &str) -> ContentPart {
    let size = url.strip_prefix("data:").map(|data| {
        let (head, body) = data.split_once(',').unwrap_or((data, ""));
        let bytes = if head.ends_with(";base64") {
            body.trim_end_matches('=').len() * 3 / 4
        } else {
            body.len() - 2 * body.matches('%').count().min(body.len() / 3)
        };
        bytes as u64
    });
    ContentPart::File {
        media_type: media_type.into(),
        filename: filename.map(Arc::from),
        url: (size.is_none() && !url.is_empty()).then(|| url.into()),
        size,
    }
}

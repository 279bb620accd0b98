//! What a process is doing, as far as it said.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    recorded::{failure, is_left_out, is_refusal},
    wire::{
        ApiRetry, AssistantLine, ContentBlock, ControlRequest, LifecycleState, PartialEvent, SessionState,
        StreamMessage, SystemMessage, TurnResult, UserLine,
    },
};
use crate::{
    agent::Failure,
    ids::{AgentId, MessageId, RequestId, ToolUseId},
};

/// What a process is doing, and how far the prompt got that it was sent last.
///
/// Folds the lines of standard output; knows no time.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Whether it works; processes begin at rest.
    is_busy: bool,
    prompt: Option<MessageId>,
    /// How far the prompt got.
    pub(super) progress: Progress,
    /// The last result since the prompt was sent: of its own turn, or of one that followed from it.
    pub(super) result: Option<Box<TurnResult>>,
    /// What the session had cost when the prompt was sent, and now.
    pub(super) cost_before: f64,
    pub(super) cost: Option<f64>,
    /// Why no model could be called for the prompt.
    pub(super) refusal: Option<Failure>,
    /// The model's messages since the prompt was sent, in the main thread.
    n_steps: usize,
    step: Option<MessageId>,
    /// Calls without a result, of all threads.
    tools: BTreeSet<ToolUseId>,
    /// What runs in the background.
    tasks: BTreeSet<AgentId>,
    /// The request to the provider that is about to be repeated.
    retry: Option<ApiRetry>,
    /// Requests that the process waits for an answer to, the oldest first. They outlast the wait that saw them first.
    requests: Vec<Arc<ControlRequest>>,
    /// Lines of the turn that its caller may want to see, and how many of them [`Activity::see`] has returned.
    pub(super) messages: Vec<Arc<StreamMessage>>,
    n_seen: usize,
    /// How often something happened that brings the turn forward.
    n_events: u64,
    /// Any line came.
    pub(super) has_spoken: bool,
}

/// How far a prompt got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// It was not seen yet.
    #[default]
    Sent,
    /// The process has it.
    Taken,
    /// The model answers.
    Started,
    /// Its turn is over; others may follow from it.
    Ended,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nothing: the turn and what follows from it are over.
    Rest,
    /// The process, to say that it is at rest.
    Confirmation,
    /// A tool, or a subagent. Pieces of a subagent's messages are not streamed, so that its model may be silent for as long as it
    /// writes a block.
    Tool,
    /// The provider, which failed.
    Retry,
    /// The model.
    Model,
}

/// What a process does now, and what of its turn was not seen before.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) waiting: Waiting,
    pub(super) progress: Progress,
    pub(super) n_events: u64,
    pub(super) n_steps: usize,
    pub(super) retry: Option<ApiRetry>,
    /// All requests that are open.
    pub(super) requests: Vec<Arc<ControlRequest>>,
    /// The lines since the last [`Activity::see`].
    pub(super) messages: Vec<Arc<StreamMessage>>,
}

impl Activity {
    /// Returns what the process does now, and the lines since the last call.
    pub(super) fn see(&mut self) -> Seen {
        let messages = self.messages.get(self.n_seen..).unwrap_or_default().to_vec();
        self.n_seen = self.messages.len();
        Seen {
            waiting: self.waiting(),
            progress: self.progress,
            n_events: self.n_events,
            n_steps: self.n_steps,
            retry: self.retry.clone(),
            requests: self.requests.clone(),
            messages,
        }
    }

    /// The process is about to be sent a prompt.
    pub(super) fn begin(&mut self, prompt: MessageId) {
        let known = std::mem::take(self);
        *self = Self {
            is_busy: true,
            prompt: Some(prompt),
            cost_before: known.cost.unwrap_or(known.cost_before),
            tasks: known.tasks,
            requests: known.requests,
            n_events: known.n_events + 1,
            has_spoken: known.has_spoken,
            ..Self::default()
        };
    }

    /// A new process was started, which does nothing yet. It counts on from what the last one wrote when it ended.
    pub(super) fn restart(&mut self, cost: Option<f64>) {
        let n_events = self.n_events + 1;
        *self = Self { n_events, cost_before: cost.unwrap_or_default(), ..Self::default() };
    }

    /// A request is about to be answered; says whether the process still waits for that.
    pub(super) fn answer(&mut self, request: &RequestId) -> bool {
        let n_open = self.requests.len();
        self.requests.retain(|open| open.request_id != *request);
        self.requests.len() < n_open
    }

    /// Whether nothing is at work, as far as is known.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_busy
    }

    /// What is waited for now.
    pub(super) fn waiting(&self) -> Waiting {
        let is_quiet = self.tasks.is_empty() && self.tools.is_empty();
        match self.progress {
            _ if !self.is_busy => Waiting::Rest,
            Progress::Ended if is_quiet => Waiting::Confirmation,
            _ if self.retry.is_some() => Waiting::Retry,
            _ if !is_quiet => Waiting::Tool,
            _ => Waiting::Model,
        }
    }

    /// Takes in a line.
    pub(super) fn take(&mut self, line: &Arc<StreamMessage>) {
        self.has_spoken = true;
        match &**line {
            StreamMessage::User(user) => self.user(user),
            StreamMessage::Assistant(assistant) => self.assistant(assistant),
            StreamMessage::Partial(partial) => {
                self.happened();
                if let (PartialEvent::MessageStart(message), None) =
                    (&partial.event, &partial.parent_tool_use_id)
                {
                    self.step(&message.id);
                }
            }
            StreamMessage::Result(result) => self.result(result),
            StreamMessage::System(system) => self.system(system),
            StreamMessage::CommandLifecycle(command) => {
                if Some(&command.command_uuid) == self.prompt.as_ref() {
                    self.reached(match command.state {
                        LifecycleState::Completed | LifecycleState::Cancelled => Progress::Ended,
                        _ => Progress::Taken,
                    });
                }
            }
            StreamMessage::ControlRequest(request) => {
                self.happened();
                self.requests.push(Arc::new(request.clone()));
            }
            StreamMessage::ControlCancelRequest { request_id } => {
                self.happened();
                self.answer(request_id);
            }
            StreamMessage::ControlResponse(_) | StreamMessage::Unknown(_) => {}
        }
        if matches!(&**line, StreamMessage::User(_) | StreamMessage::Assistant(_) | StreamMessage::Result(_))
            && self.prompt.is_some()
        {
            self.messages.push(Arc::clone(line));
        }
    }

    fn user(&mut self, line: &UserLine) {
        self.happened();
        if line.uuid.is_some() && line.uuid == self.prompt {
            // A replay without a time confirms a prompt that was answered before: nothing will run.
            self.reached(if line.timestamp.is_some() { Progress::Taken } else { Progress::Ended });
        }
        for block in line.message.content.blocks() {
            if let ContentBlock::ToolResult { tool_use_id, .. } = block {
                self.tools.remove(tool_use_id);
            }
        }
    }

    fn assistant(&mut self, line: &AssistantLine) {
        self.happened();
        if line.parent_tool_use_id.is_none() {
            if self.n_steps == 0 && line.error.as_deref().is_some_and(is_refusal) {
                self.refusal = Some(failure(line));
            } else if !is_left_out(line) {
                self.step(&line.message.id);
            }
        }
        for block in &line.message.content {
            if let ContentBlock::ToolUse { id, .. } = block {
                self.tools.insert(id.clone());
            }
        }
    }

    fn result(&mut self, result: &TurnResult) {
        self.happened();
        // A turn that is over has no open calls; those of subagents in the background are tasks.
        self.tools.clear();
        self.cost = result.total_cost_usd.or(self.cost);
        let Some(prompt) = &self.prompt else { return };
        let is_own =
            result.user_message_uuid.as_ref() == Some(prompt) || result.user_message_uuids.contains(prompt);
        if is_own {
            self.reached(Progress::Ended);
        }
        if is_own || self.progress == Progress::Ended {
            self.result = Some(Box::new(result.clone()));
        }
    }

    fn system(&mut self, line: &SystemMessage) {
        match line {
            SystemMessage::SessionStateChanged { state } => match state {
                // What is said before the prompt was seen is about what was before it.
                SessionState::Idle if self.prompt.is_none() || self.progress == Progress::Ended => {
                    self.is_busy = false;
                    self.tools.clear();
                    self.requests.clear();
                    self.retry = None;
                }
                SessionState::Running | SessionState::RequiresAction => self.is_busy = true,
                SessionState::Idle | SessionState::Unknown(_) => {}
            },
            SystemMessage::ApiRetry(retry) => self.retry = Some(retry.clone()),
            SystemMessage::BackgroundTasksChanged { tasks } => {
                self.happened();
                // A command in the background is not waited for: the process is at rest beside it.
                let agents = tasks.iter().filter(|task| task.task_type.as_deref() != Some("local_bash"));
                self.tasks = agents.map(|task| task.task_id.clone()).collect();
            }
            SystemMessage::TaskStarted(_)
            | SystemMessage::TaskProgress(_)
            | SystemMessage::TaskUpdated { .. }
            | SystemMessage::TaskNotification(_)
            | SystemMessage::CompactBoundary(_)
            | SystemMessage::ThinkingTokens { .. }
            | SystemMessage::Init(_) => self.happened(),
            SystemMessage::Status { .. }
            | SystemMessage::PermissionDenied(_)
            | SystemMessage::Informational(_)
            | SystemMessage::ModelRefusal
            | SystemMessage::Unknown(_) => {}
        }
    }

    fn happened(&mut self) {
        self.n_events += 1;
        self.retry = None;
    }

    fn reached(&mut self, progress: Progress) {
        self.progress = self.progress.max(progress);
    }

    fn step(&mut self, message: &MessageId) {
        if self.prompt.is_none() {
            return;
        }
        if self.step.as_ref() != Some(message) {
            self.step = Some(message.clone());
            self.n_steps += 1;
        }
        self.reached(Progress::Started);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn take(activity: &mut Activity, line: &Value) {
        let line = StreamMessage::from_bytes(line.to_string().as_bytes()).unwrap();
        activity.take(&Arc::new(line));
    }

    fn calls(parent: Option<&str>, id: &str, tool: &str) -> Value {
        let call = json!({"type": "tool_use", "id": id, "name": tool, "input": {}});
        json!({"type": "assistant", "parent_tool_use_id": parent, "uuid": format!("line-{id}"),
            "message": {"id": format!("msg-{id}"), "model": "m", "content": [call]}})
    }

    fn gives(parent: Option<&str>, id: &str) -> Value {
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": "done"});
        json!({"type": "user", "parent_tool_use_id": parent, "message": {"role": "user", "content": [result]}})
    }

    fn asks(request: &str) -> Value {
        let body = json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": {}});
        json!({"type": "control_request", "request_id": request, "request": body})
    }

    fn state(state: &str) -> Value {
        json!({"type": "system", "subtype": "session_state_changed", "state": state})
    }

    #[test]
    fn a_subagent_is_waited_for_like_a_tool_also_while_its_model_is_silent() {
        let mut activity = Activity::default();
        activity.begin("prompt".into());
        assert_eq!(activity.waiting(), Waiting::Model);
        let rows = [
            (calls(None, "agent", "Agent"), Waiting::Tool),
            (calls(Some("agent"), "bash", "Bash"), Waiting::Tool),
            // The subagent's model is at work, and nothing tells of that.
            (gives(Some("agent"), "bash"), Waiting::Tool),
            (gives(None, "agent"), Waiting::Model),
        ];
        for (line, waiting) in rows {
            take(&mut activity, &line);
            assert_eq!(activity.waiting(), waiting, "after {line}");
        }
    }

    #[test]
    fn a_request_is_open_until_it_is_answered_or_withdrawn_or_the_process_is_at_rest() {
        let mut activity = Activity::default();
        let open = |activity: &mut Activity| -> Vec<String> {
            activity.see().requests.iter().map(|request| request.request_id.to_string()).collect()
        };
        for request in ["r1", "r2", "r3"] {
            take(&mut activity, &asks(request));
        }
        assert_eq!(open(&mut activity), ["r1", "r2", "r3"]);
        activity.begin("prompt".into());
        assert_eq!(open(&mut activity), ["r1", "r2", "r3"], "whoever looks next sees them, too");
        assert!(activity.answer(&"r1".into()) && !activity.answer(&"r1".into()), "the first answer counts");
        take(&mut activity, &json!({"type": "control_cancel_request", "request_id": "r2"}));
        assert_eq!(open(&mut activity), ["r3"]);
        activity.reached(Progress::Ended);
        take(&mut activity, &state("idle"));
        assert_eq!(open(&mut activity), [""; 0]);
    }
}

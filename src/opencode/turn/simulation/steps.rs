//! What a run writes: steps, their text and calls, subagents, and requests.

use super::{plan::ROOT, server::Session, *};
use crate::{
    ids::{CallId, PartId},
    opencode::wire::{
        AssistantMessage, EventPayload, Extra, MessageError, MessageInfo, MessageTime, Part, PartBody,
        PartDelta, PartTime, PermissionRequest, QuestionRequest, TextPart, ToolPart, ToolReference,
        ToolState, ToolStatus, UserMessage,
    },
};

impl World {
    pub(super) fn step(&mut self, session: usize) {
        let server = &mut self.server;
        if session == ROOT && !std::mem::replace(&mut server.model_called, true) {
            server.runs_begun += 1;
            server.reruns_of_good += u32::from(server.runs_begun > 1 && !server.last_run_failed);
        }
        server.last_run_failed &= session != ROOT;
        let is_user = |message: &&Message| matches!(message.info, MessageInfo::User(_));
        let messages = &server.sessions[session].messages;
        let parent = messages.iter().rev().find(is_user).map(|message| message.info.id().clone());
        let parent = parent.unwrap_or_default();
        let id = server.id("msg");
        let step = assistant(&id, self.session_id(session).as_str(), parent.as_str(), self.millis());
        let info = MessageInfo::Assistant(Box::new(step));
        self.server.sessions[session].messages.push(Message::new(info.clone(), Vec::new()));
        self.server.last_progress = self.now;
        self.emit(EventPayload::MessageUpdated(info));
    }

    /// A word of the newest step, in a part of its own if none is being streamed.
    pub(super) fn text(&mut self, session: usize) {
        self.server.last_progress = self.now;
        if self.server.sessions[session].streaming.is_none() {
            let id = PartId::from(self.server.id("prt"));
            let time = PartTime { start: self.millis(), ..PartTime::default() };
            let text = TextPart { time: Some(time), ..TextPart::default() };
            if !self.put_part(session, id.clone(), PartBody::Text(text)) {
                return;
            }
            self.server.sessions[session].streaming = Some((id, String::new()));
        }
        let state = &mut self.server.sessions[session];
        let Some(message) = state.step_mut().map(|message| message.info.id().clone()) else { return };
        let Some((part, text)) = &mut state.streaming else { return };
        text.push_str("word ");
        let delta = PartDelta::new(state.info.id.clone(), message, part.clone(), "word ");
        self.emit(EventPayload::PartDelta(delta));
    }

    pub(super) fn end_text(&mut self, session: usize) {
        let Some((id, text)) = self.server.sessions[session].streaming.take() else { return };
        let end = self.millis();
        let time = PartTime { start: end, end: Some(end), ..PartTime::default() };
        let text = TextPart { text, time: Some(time), ..TextPart::default() };
        self.put_part(session, id, PartBody::Text(text));
    }

    pub(super) fn change_task(
        &mut self,
        session: usize,
        child: &SessionId,
        status: ToolStatus,
        background: bool,
    ) {
        let metadata = Extra::from_iter([
            ("sessionId".to_owned(), child.as_str().into()),
            ("background".to_owned(), background.into()),
        ]);
        self.change_tool(session, child.as_str(), Some(metadata), status);
    }

    /// Starts a call of the newest step, or brings it forward.
    pub(super) fn change_tool(
        &mut self,
        session: usize,
        call: &str,
        metadata: Option<Extra>,
        status: ToolStatus,
    ) {
        self.server.last_progress = self.now;
        let is_call = |part: &&Part| {
            matches!(&part.body, PartBody::Tool(tool)
                if tool.call_id.as_str() == call && !tool.state.status.is_final())
        };
        let steps = self.server.sessions[session].messages.iter().rev();
        let old = steps.flat_map(|message| &message.parts).find(is_call).map(|part| part.id.clone());
        let id = old.unwrap_or_else(|| PartId::from(self.server.id("prt")));
        let tool = if metadata.is_some() { "task" } else { "bash" };
        let state = ToolState { status, metadata, ..ToolState::default() };
        let call_id = CallId::new(call);
        let tool = ToolPart { call_id, tool: tool.to_owned(), state, ..ToolPart::default() };
        self.put_part(session, id, PartBody::Tool(Box::new(tool)));
    }

    /// Stores a part of the newest step and says so; false if there is none.
    pub(super) fn put_part(&mut self, session: usize, id: PartId, body: PartBody) -> bool {
        let state = &mut self.server.sessions[session];
        let session_id = state.info.id.clone();
        let Some(step) = state.step_mut() else { return false };
        let part = Part::new(id, session_id, step.info.id().clone(), body);
        match step.parts.iter_mut().find(|old| old.id == part.id) {
            Some(old) => old.clone_from(&part),
            None => step.parts.push(part.clone()),
        }
        self.emit(EventPayload::PartUpdated { part, delta: None });
        true
    }

    pub(super) fn spawn(&mut self, parent: usize, child: usize) {
        let id = format!("ses_child_{}_{child}", self.server.run);
        let parent_id = Some(self.session_id(parent));
        let state = Session::new(&id, parent_id, self.millis());
        let info = state.info.clone();
        assert_eq!(
            self.server.sessions.len(),
            self.server.index(child),
            "subagents are numbered as they start"
        );
        self.server.sessions.push(state);
        self.emit(EventPayload::SessionCreated(info));
        self.change_task(parent, &id.into(), ToolStatus::Running, false);
    }

    pub(super) fn complete(&mut self, session: usize) {
        self.end_text(session);
        let failed = session == ROOT && self.server.last_run_failed;
        if session == ROOT {
            // Whatever is left of a cleanup loses no prompt.
            self.server.cleanup_until = None;
        }
        self.server.last_progress = self.now;
        let now = self.millis();
        let Some(message) = self.server.sessions[session].step_mut() else { return };
        let open = message.parts.iter_mut().filter_map(|part| match &mut part.body {
            PartBody::Tool(tool) if !tool.state.status.is_final() => Some(tool),
            _ => None,
        });
        for tool in open {
            tool.state.status = ToolStatus::Error;
        }
        if let MessageInfo::Assistant(step) = &mut message.info {
            step.time.completed = Some(now);
            step.error = failed.then(|| failure("UnknownError"));
        }
        let message = message.clone();
        for part in message.parts {
            if matches!(part.body, PartBody::Tool(_)) {
                self.emit(EventPayload::PartUpdated { part, delta: None });
            }
        }
        self.emit(EventPayload::MessageUpdated(message.info));
    }

    pub(super) fn ask(&mut self, session: usize) {
        let session_id = self.session_id(session);
        let Some(step) = self.server.sessions[session].step_mut() else { return };
        let tool = ToolReference { message_id: step.info.id().clone(), ..ToolReference::default() };
        let id = RequestId::from(self.server.id("req"));
        self.server.blocked_on = Some(id.clone());
        if self.chance(70) {
            let permission = PermissionRequest {
                id: id.clone(),
                session_id,
                tool: Some(tool),
                ..PermissionRequest::default()
            };
            self.server.permissions.push(permission.clone());
            self.emit(EventPayload::PermissionAsked(permission));
        } else {
            let question = QuestionRequest {
                id: id.clone(),
                session_id,
                tool: Some(tool),
                ..QuestionRequest::default()
            };
            self.server.questions.push(question.clone());
            self.emit(EventPayload::QuestionAsked(question));
        }
        if self.chance(self.wire.foreign_answers) {
            let after = self.between(0, 60_000);
            self.at(after, Scheduled::Reply { request: id });
        }
    }

    /// A request is answered: by this client or by another.
    pub(super) fn reply(&mut self, request: &RequestId) {
        if !self.server.alive {
            return;
        }
        let permission = self.server.permissions.iter().position(|open| open.id == *request);
        let question = self.server.questions.iter().position(|open| open.id == *request);
        if let Some(index) = permission {
            let session_id = self.server.permissions.remove(index).session_id;
            self.emit(EventPayload::PermissionReplied {
                session_id,
                request_id: request.clone(),
                reply: None,
            });
        } else if let Some(index) = question {
            let session_id = self.server.questions.remove(index).session_id;
            self.emit(EventPayload::QuestionClosed {
                session_id,
                request_id: request.clone(),
                answers: None,
            });
        }
        if self.server.blocked_on.as_ref() == Some(request) {
            self.server.blocked_on = None;
            self.server.last_progress = self.now;
            self.next_beat();
        }
    }
}

pub(super) fn failure(name: &str) -> MessageError {
    MessageError { name: name.into(), ..MessageError::default() }
}

pub(super) fn user(id: &str, session: &str, created: Millis) -> Message {
    let (id, session_id) = (MessageId::new(id), SessionId::new(session));
    let text = PartBody::Text(TextPart { text: "Do it.".to_owned(), ..TextPart::default() });
    let part = Part::new(PartId::from(format!("prt_of_{id}")), session_id.clone(), id.clone(), text);
    let time = MessageTime { created, ..MessageTime::default() };
    let info = UserMessage { id, session_id, time, ..UserMessage::default() };
    Message::new(MessageInfo::User(info), vec![part])
}

pub(super) fn assistant(id: &str, session: &str, parent: &str, created: Millis) -> AssistantMessage {
    AssistantMessage {
        id: id.into(),
        session_id: session.into(),
        parent_id: Some(parent.into()),
        time: MessageTime { created, ..MessageTime::default() },
        ..AssistantMessage::default()
    }
}

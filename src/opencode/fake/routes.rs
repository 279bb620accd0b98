//! The endpoints.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::{
    Fault, Route, Shared,
    answer::Answer,
    diff, events, input,
    options::Flavour,
    prompt::Fate,
    serve::Call,
    world::{Message, World},
};

impl Route {
    /// Which endpoint a request is for.
    pub(super) fn of(method: &Method, segments: &[String]) -> Self {
        let path: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (method.as_str(), path.as_slice()) {
            ("POST", ["session"]) => Self::CreateSession,
            ("GET", ["session"]) => Self::ListSessions,
            ("GET", ["session", "status"]) => Self::Status,
            ("GET", ["session", _]) => Self::GetSession,
            ("PATCH", ["session", _]) => Self::UpdateSession,
            ("DELETE", ["session", _]) => Self::DeleteSession,
            ("GET", ["session", _, "children"]) => Self::Children,
            ("GET", ["session", _, "message"]) => Self::ListMessages,
            ("POST", ["session", _, "message"]) => Self::PromptSync,
            ("GET", ["session", _, "message", _]) => Self::GetMessage,
            ("POST", ["session", _, "prompt_async"]) => Self::PromptAsync,
            ("POST", ["session", _, "abort"]) => Self::Abort,
            ("POST", ["session", _, "summarize"]) => Self::Summarize,
            ("POST", ["session", _, "fork"]) => Self::Fork,
            ("GET", ["session", _, "todo" | "diff"]) => Self::SessionDetail,
            ("GET", ["permission"]) => Self::ListPermissions,
            ("POST", ["permission", _, "reply"] | ["session", _, "permissions", _]) => Self::ReplyPermission,
            ("GET", ["question"]) => Self::ListQuestions,
            ("POST", ["question", _, "reply" | "reject"]) => Self::ReplyQuestion,
            (
                "GET",
                ["config" | "agent" | "path" | "doc"] | ["config", "providers"] | ["project", "current"],
            ) => Self::Config,
            ("PATCH", ["config"]) => Self::UpdateConfig,
            ("POST", ["instance" | "global", "dispose"]) => Self::Dispose,
            ("GET", ["global", "health"]) => Self::Health,
            ("GET", ["event"]) => Self::Event,
            ("GET", ["global", "event"]) => Self::GlobalEvent,
            _ => Self::Unknown,
        }
    }
}

impl Shared {
    /// Serves a request.
    pub(super) async fn route(self: &Arc<Self>, route: Route, call: Call) -> Answer {
        match self.try_route(route, &call).await {
            Ok(answer) | Err(answer) => answer,
        }
    }

    async fn try_route(self: &Arc<Self>, route: Route, call: &Call) -> Result<Answer, Answer> {
        let directory = self.directory_of_call(call);
        match route {
            Route::CreateSession => self.create_session(call, &directory),
            Route::ListSessions => Ok(self.list_sessions(call, &directory)),
            Route::GetSession => {
                let session = self.known_session(call)?;
                Ok(Answer::json(&self.session_info(&session)))
            }
            Route::UpdateSession => self.update_session(call),
            Route::DeleteSession => self.delete_session(call),
            Route::Children => {
                let session = self.known_session(call)?;
                let world = self.world();
                let children = sessions_where(&world, |child| child.text("parentID") == session);
                Ok(Answer::json(&children))
            }
            Route::Status => {
                let mut world = self.world();
                Ok(Answer::json(&json!(world.instance(&directory).statuses)))
            }
            Route::ListMessages => self.list_messages(call),
            Route::GetMessage => self.get_message(call),
            Route::PromptAsync => self.prompt_async(call),
            Route::PromptSync => self.prompt_sync(call).await,
            Route::Abort => {
                let session = input::session_id(call)?;
                let (shared, of) = (Arc::clone(self), session.to_owned());
                let cancel = async move { shared.cancel(&of).await };
                match call.fault {
                    Some(Fault::AnswerFirst) => self.spawn(cancel),
                    _ => cancel.await,
                }
                Ok(Answer::json(&true.into()))
            }
            Route::Summarize => self.summarize(call).await,
            Route::Fork => self.fork(call),
            Route::SessionDetail => self.session_detail(call),
            Route::ListPermissions => {
                let mut world = self.world();
                let list = world.instance(&directory).permissions.iter().map(|request| request.info.clone());
                Ok(Answer::json(&list.collect()))
            }
            Route::ReplyPermission => self.answer_permission(call, &directory),
            Route::ListQuestions => {
                let mut world = self.world();
                let list = world.instance(&directory).questions.iter().map(|request| request.info.clone());
                Ok(Answer::json(&list.collect()))
            }
            Route::ReplyQuestion => self.answer_question(call, &directory),
            Route::Config => Ok(self.describe(call, &directory)),
            Route::UpdateConfig => {
                input::json_body(call)?;
                self.dispose(&directory).await;
                Ok(Answer::json(&self.config()))
            }
            Route::Dispose => {
                self.dispose_by_route(call, &directory).await;
                Ok(Answer::json(&true.into()))
            }
            Route::Health => {
                let version = self.options.flavour.version();
                Ok(Answer::json(&json!({"healthy": true, "version": version})))
            }
            Route::Event => {
                Ok(Answer::stream(events::body(self, Some(directory), call.fault.clone(), call.index)))
            }
            Route::GlobalEvent => {
                Ok(Answer::stream(events::body(self, None, call.fault.clone(), call.index)))
            }
            Route::Unknown | Route::Any => Ok(Answer::html()),
        }
    }

    /// `?directory=` before the header before the default; both are decoded once more than usual.
    fn directory_of_call(&self, call: &Call) -> String {
        let named = call
            .query("directory")
            .or_else(|| call.header("x-opencode-directory"))
            .filter(|directory| !directory.is_empty());
        input::normal_directory(named.unwrap_or(&self.options.directory))
    }

    fn known_session(&self, call: &Call) -> Result<String, Answer> {
        let session = input::session_id(call)?;
        if self.world().sessions.contains_key(session) {
            Ok(session.to_owned())
        } else {
            Err(Answer::session_not_found(session))
        }
    }

    fn session_info(&self, session: &str) -> Value {
        let world = self.world();
        world.sessions.get(session).map(|session| session.info.clone().into()).unwrap_or_default()
    }

    fn create_session(&self, call: &Call, directory: &str) -> Result<Answer, Answer> {
        let body: Value = if call.body.is_empty() {
            json!({})
        } else {
            serde_json::from_slice(&call.body).map_err(|_unread| Answer::bare_bad_request())?
        };
        let is_text = |field: &str| body[field].is_null() || body[field].is_string();
        if !body.is_object() || !is_text("title") || !is_text("parentID") || !is_text("agent") {
            return Err(Answer::bare_bad_request());
        }
        let mut fields = Map::new();
        for field in ["title", "parentID", "agent", "model", "permission", "metadata"] {
            if !body[field].is_null() {
                fields.insert(field.to_owned(), body[field].clone());
            }
        }
        Ok(Answer::json(&self.world().create_session(directory, fields)))
    }

    fn list_sessions(&self, call: &Call, directory: &str) -> Answer {
        let limit = call.query("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
        let world = self.world();
        let mut sessions = sessions_where(&world, |session| session.directory == directory);
        if let Some(sessions) = sessions.as_array_mut() {
            sessions.reverse();
            sessions.truncate(limit);
        }
        Answer::json(&sessions)
    }

    fn update_session(&self, call: &Call) -> Result<Answer, Answer> {
        let session = self.known_session(call)?;
        let body = input::json_body(call)?;
        self.world().update_session(&session, |info| {
            for field in ["title", "permission", "metadata"] {
                if !body[field].is_null() {
                    info.insert(field.to_owned(), body[field].clone());
                }
            }
        });
        Ok(Answer::json(&self.session_info(&session)))
    }

    fn delete_session(&self, call: &Call) -> Result<Answer, Answer> {
        let session = self.known_session(call)?;
        let mut doomed = self.world().descendants(&session);
        doomed.push(session);
        let mut world = self.world();
        for session in doomed {
            if let Some(gone) = world.sessions.remove(&session) {
                world.session_order.retain(|id| *id != session);
                world.failures.retain(|(home, _, _), _| *home != session);
                for message in &gone.messages {
                    world.message_home.remove(message.id());
                    world.scripts.remove(message.id());
                }
                let info = Value::Object(gone.info);
                world.publish(
                    &gone.directory,
                    "session.deleted",
                    json!({"sessionID": session, "info": info}),
                );
            }
        }
        Ok(Answer::json(&true.into()))
    }

    fn list_messages(&self, call: &Call) -> Result<Answer, Answer> {
        let page = input::Page::of(call)?;
        let session = self.known_session(call)?;
        let world = self.world();
        let all = world.sessions.get(&session).map_or(&[][..], |session| &session.messages);
        let end = match &page.before {
            Some((time, id)) => {
                all.partition_point(|message| (message.row_ms, message.id()) < (*time, id.as_str()))
            }
            None => all.len(),
        };
        let start = match page.limit {
            0 => 0,
            limit => end.saturating_sub(limit),
        };
        let list: Value = all[start..end].iter().map(Message::with_parts).collect();
        let answer = Answer::json(&list);
        if start == 0 || self.options.flavour == Flavour::V1_1 {
            return Ok(answer);
        }
        let first = &all[start];
        let cursor =
            URL_SAFE_NO_PAD.encode(format!("{{\"id\":\"{}\",\"time\":{}}}", first.id(), first.row_ms));
        let host = call.header("host").unwrap_or("localhost");
        let link = format!(
            "<http://{host}/session/{session}/message?limit={}&before={cursor}>; rel=\"next\"",
            page.limit
        );
        Ok(answer
            .header("access-control-expose-headers", "Link, X-Next-Cursor")
            .header("link", link)
            .header("x-next-cursor", cursor))
    }

    fn get_message(&self, call: &Call) -> Result<Answer, Answer> {
        let id = call.segments[3].as_str();
        if !id.starts_with("msg") {
            let message =
                format!("Expected a string starting with \"msg\", got \"{id}\"\n  at [\"messageID\"]");
            return Err(Answer::bad_request("Params", &message));
        }
        let session = self.known_session(call)?;
        let world = self.world();
        let message = world.sessions.get(&session).and_then(|session| session.message(id));
        message
            .map(|message| Answer::json(&message.with_parts()))
            .ok_or_else(|| Answer::not_found(&format!("Message not found: {id}")))
    }

    fn prompt_async(self: &Arc<Self>, call: &Call) -> Result<Answer, Answer> {
        let session = input::session_id(call)?.to_owned();
        let mut body = input::prompt(call)?;
        if !self.world().sessions.contains_key(&session) {
            return match self.options.flavour {
                Flavour::V1_1 => Ok(Answer::empty(204)),
                Flavour::V1_15_0 | Flavour::V1_17 | Flavour::V1_18 => {
                    Err(Answer::session_not_found(&session))
                }
            };
        }
        let fate = match call.fault {
            Some(Fault::ForgetPrompt) => return Ok(Answer::empty(204)),
            Some(Fault::LosePrompt) => Fate::Lost,
            Some(Fault::RenamePrompt) => {
                body["messageID"].take();
                for part in body["parts"].as_array_mut().into_iter().flatten() {
                    part["id"].take();
                }
                Fate::Run
            }
            _ => Fate::Run,
        };
        self.spawn(Arc::clone(self).prompt_in_background(session, body, fate));
        Ok(Answer::empty(204))
    }

    /// Blocks until the run ends. The run itself does not depend on the caller.
    async fn prompt_sync(self: &Arc<Self>, call: &Call) -> Result<Answer, Answer> {
        let session = input::session_id(call)?.to_owned();
        let body = input::prompt(call)?;
        self.known_session(call)?;
        let (done, result) = tokio::sync::oneshot::channel();
        let shared = Arc::clone(self);
        self.spawn(async move {
            // A caller that is gone does not hear the end.
            drop(done.send(shared.prompt(&session, &body, Fate::Run).await));
        });
        match result.await {
            Ok(Ok(message)) => Ok(Answer::json(&message)),
            Ok(Err(_)) | Err(_) => Err(Answer::server_error()),
        }
    }

    async fn summarize(self: &Arc<Self>, call: &Call) -> Result<Answer, Answer> {
        let body = input::json_body(call)?;
        for field in ["providerID", "modelID"] {
            if !body[field].is_string() {
                return Err(Answer::bad_request("Payload", &format!("Missing key\n  at [\"{field}\"]")));
            }
        }
        let session = self.known_session(call)?;
        let user = json!({
            "agent": "build", "model": {"providerID": body["providerID"], "modelID": body["modelID"]},
        });
        self.request_compaction(&session, &user, body["auto"] == true, None);
        let mut done = self.ensure_running(&session);
        drop(done.wait_for(Option::is_some).await);
        Ok(Answer::json(&true.into()))
    }

    fn fork(&self, call: &Call) -> Result<Answer, Answer> {
        let session = self.known_session(call)?;
        let body = input::optional_body(call)?;
        let mut world = self.world();
        let Some(original) = world.sessions.get(&session) else {
            return Err(Answer::session_not_found(&session));
        };
        let (directory, title) = (original.directory.clone(), original.text("title").to_owned());
        let until = body["messageID"].as_str();
        let copies: Vec<(Value, Vec<Value>)> = original
            .messages
            .iter()
            .take_while(|message| until.is_none_or(|until| message.id() < until))
            .map(|message| (message.info.clone(), message.parts.clone()))
            .collect();
        let fields = Map::from_iter([("title".to_owned(), format!("{title} (fork #1)").into())]);
        let info = world.create_session(&directory, fields);
        let id = info["id"].as_str().unwrap_or_default().to_owned();
        let mut renamed = Map::new();
        for (mut info, parts) in copies {
            let message = world.clock.ascending("msg");
            renamed.insert(info["id"].as_str().unwrap_or_default().to_owned(), message.as_str().into());
            info["id"] = message.as_str().into();
            info["sessionID"] = id.as_str().into();
            if let Some(parent) = info["parentID"].as_str().and_then(|parent| renamed.get(parent)) {
                info["parentID"] = parent.clone();
            }
            world.put_message(&id, &info);
            for mut part in parts {
                part["id"] = world.clock.ascending("prt").into();
                part["messageID"] = message.as_str().into();
                part["sessionID"] = id.as_str().into();
                world.put_part(&part);
            }
        }
        Ok(Answer::json(&info))
    }

    fn session_detail(&self, call: &Call) -> Result<Answer, Answer> {
        let session = self.known_session(call)?;
        let world = self.world();
        let session = world.sessions.get(&session);
        let detail = match call.segments[2].as_str() {
            "todo" => session.map(|session| session.todos.clone()),
            _ => session.zip(call.query("messageID")).map(|(session, prompt)| diff::changes(session, prompt)),
        };
        Ok(Answer::json(&detail.unwrap_or_else(|| json!([]))))
    }

    fn answer_permission(&self, call: &Call, directory: &str) -> Result<Answer, Answer> {
        let is_old_route = call.segments[0] == "session";
        let (id, field) = if is_old_route { (3, "response") } else { (1, "reply") };
        let id = call.segments[id].as_str();
        let body = input::json_body(call)?;
        let reply = body[field].as_str().unwrap_or_default();
        if !["once", "always", "reject"].contains(&reply) {
            let got = &body[field];
            let message =
                format!("Expected \"once\" | \"always\" | \"reject\", got {got}\n  at [\"{field}\"]");
            return Err(Answer::bad_request("Payload", &message));
        }
        let directory = if is_old_route {
            let session = &call.segments[1];
            self.world().directory_of(session).ok_or_else(|| Answer::session_not_found(session))?
        } else {
            directory.to_owned()
        };
        let message = body["message"].as_str().map(str::to_owned);
        if self.reply_permission(&directory, id, reply, message) {
            Ok(Answer::json(&true.into()))
        } else {
            Err(request_not_found("Permission", id))
        }
    }

    fn answer_question(&self, call: &Call, directory: &str) -> Result<Answer, Answer> {
        let id = call.segments[1].as_str();
        let answers = if call.segments[2] == "reply" {
            let body = input::json_body(call)?;
            if !body["answers"].is_array() {
                return Err(Answer::bad_request("Payload", "Missing key\n  at [\"answers\"]"));
            }
            Some(body["answers"].clone())
        } else {
            None
        };
        if self.reply_question(directory, id, answers) {
            Ok(Answer::json(&true.into()))
        } else {
            Err(request_not_found("Question", id))
        }
    }

    async fn dispose_by_route(self: &Arc<Self>, call: &Call, directory: &str) {
        if call.segments[0] == "instance" {
            self.dispose(directory).await;
            return;
        }
        let directories: Vec<String> = self.world().instances.keys().cloned().collect();
        for directory in directories {
            self.dispose(&directory).await;
        }
    }
}

fn sessions_where(world: &World, is_wanted: impl Fn(&super::world::Session) -> bool) -> Value {
    let all = world.session_order.iter().filter_map(|id| world.sessions.get(id));
    all.filter(|session| is_wanted(session)).map(|session| Value::Object(session.info.clone())).collect()
}

fn request_not_found(what: &str, id: &str) -> Answer {
    Answer::with_status(
        404,
        &json!({
            "_tag": format!("{what}NotFoundError"), "requestID": id,
            "message": format!("{what} request not found: {id}"),
        }),
    )
}

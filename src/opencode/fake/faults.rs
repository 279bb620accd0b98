//! What can go wrong between a client and the server, said in one word per fault.

use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// An endpoint of the server, to aim a [`Fault`] at and to find requests by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Route {
    /// `POST /session`
    CreateSession,
    /// `GET /session`
    ListSessions,
    /// `GET /session/{id}`
    GetSession,
    /// `PATCH /session/{id}`
    UpdateSession,
    /// `DELETE /session/{id}`
    DeleteSession,
    /// `GET /session/{id}/children`
    Children,
    /// `GET /session/status`
    Status,
    /// `GET /session/{id}/message`
    ListMessages,
    /// `GET /session/{id}/message/{message}`
    GetMessage,
    /// `POST /session/{id}/prompt_async`
    PromptAsync,
    /// `POST /session/{id}/message`
    PromptSync,
    /// `POST /session/{id}/abort`
    Abort,
    /// `POST /session/{id}/summarize`
    Summarize,
    /// `POST /session/{id}/fork`
    Fork,
    /// `GET /session/{id}/todo` and `GET /session/{id}/diff`
    SessionDetail,
    /// `GET /permission`
    ListPermissions,
    /// `POST /permission/{id}/reply` and the older `POST /session/{id}/permissions/{id}`
    ReplyPermission,
    /// `GET /question`
    ListQuestions,
    /// `POST /question/{id}/reply` and `POST /question/{id}/reject`
    ReplyQuestion,
    /// `GET /config`, `GET /config/providers`, `GET /agent`, `GET /path`, `GET /project/current`, `GET /doc`
    Config,
    /// `PATCH /config`
    UpdateConfig,
    /// `POST /instance/dispose` and `POST /global/dispose`
    Dispose,
    /// `GET /global/health`
    Health,
    /// `GET /event`
    Event,
    /// `GET /global/event`
    GlobalEvent,
    /// Anything else, which the server answers with its web page.
    Unknown,
    /// Every endpoint; only for [`FakeOpenCode::inject`](super::FakeOpenCode::inject).
    Any,
}

/// One thing that goes wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing happens until the named gate is opened; then the request is served.
    DelayUntil(String),
    /// The request takes effect, but the answer waits until the named gate is opened.
    HoldAnswerUntil(String),
    /// The connection is closed and the request has no effect.
    DropBeforeEffect,
    /// The request takes effect, then the connection is closed without an answer.
    DropAfterEffect,
    /// The request is never answered and has no effect, as before the server is ready.
    Hang,
    /// Answers with this status and the server's error object; no effect.
    Status(u16),
    /// The request takes effect, and this status is answered as by a proxy that gave up.
    StatusAfterEffect(u16),
    /// An abort is answered at once, and what it ends has its end later, as before release 1.18.
    AnswerFirst,
    /// The answer's body ends after this many bytes and the connection is closed.
    TruncateBody(usize),
    /// Answers `200 text/html`, as the server does on unknown routes; no effect.
    Html,
    /// A prompt is answered 204 and stored, and never run.
    LosePrompt,
    /// A prompt is answered 204 and leaves no trace.
    ForgetPrompt,
    /// A prompt gets ids of the server's own, as behind a proxy that ignores those of its clients.
    RenamePrompt,
    /// An event stream is cut off after this many events, `server.connected` included.
    CutAfterEvents(usize),
    /// An event stream is cut off after this many bytes, wherever that is.
    CutAfterBytes(usize),
    /// An event stream ends in good order after this many events.
    EndAfterEvents(usize),
    /// An event stream stays open but sends nothing, not even heartbeats, after this many events.
    SilenceAfterEvents(usize),
    /// Every event arrives twice.
    DuplicateEvents,
    /// Neighbouring events arrive in the opposite order.
    ReorderEvents,
}

/// The faults in waiting, in the order they were injected.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<PlannedFault>>);

#[derive(Debug)]
struct PlannedFault {
    route: Route,
    fault: Fault,
    aim: Arc<Mutex<Aim>>,
}

/// Which of the matching requests a fault strikes.
#[derive(Debug)]
struct Aim {
    skip: usize,
    left: usize,
    only: Option<String>,
}

/// An injected fault; strikes once unless told otherwise.
#[derive(Debug)]
pub struct Injection(Arc<Mutex<Aim>>);

#[expect(clippy::return_self_not_must_use, reason = "setters on something that already works")]
impl Injection {
    /// Strikes the next `times` matching requests.
    pub fn times(self, times: usize) -> Self {
        lock(&self.0).left = times;
        self
    }

    /// Strikes every matching request until [`FakeOpenCode::clear_faults`](super::FakeOpenCode::clear_faults).
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// Lets this many matching requests pass first.
    pub fn after(self, requests: usize) -> Self {
        lock(&self.0).skip = requests;
        self
    }

    /// Strikes only requests whose path or query contains this text, such as a session id.
    pub fn only(self, text: impl Into<String>) -> Self {
        lock(&self.0).only = Some(text.into());
        self
    }

    /// How many more requests it would strike.
    pub fn left(&self) -> usize {
        lock(&self.0).left
    }
}

impl Faults {
    pub(super) fn inject(&self, route: Route, fault: Fault) -> Injection {
        let aim = Arc::new(Mutex::new(Aim { skip: 0, left: 1, only: None }));
        lock(&self.0).push(PlannedFault { route, fault, aim: Arc::clone(&aim) });
        Injection(aim)
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// The first fault in waiting that strikes this request; it is used up by that.
    pub(super) fn strike(&self, route: Route, target: &str) -> Option<Fault> {
        let mut waiting = lock(&self.0);
        waiting.retain(|planned| lock(&planned.aim).left > 0);
        let hit = waiting.iter().find(|planned| {
            (planned.route == route || planned.route == Route::Any)
                && lock(&planned.aim).only.as_ref().is_none_or(|text| target.contains(text))
        })?;
        let mut aim = lock(&hit.aim);
        if aim.skip > 0 {
            aim.skip -= 1;
            return None;
        }
        if aim.left != usize::MAX {
            aim.left -= 1;
        }
        Some(hit.fault.clone())
    }
}

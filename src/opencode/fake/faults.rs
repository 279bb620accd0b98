//! What can go wrong between a client and the server, said in one word per fault.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

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
    /// The answer's body ends after this many bytes and the connection is closed.
    TruncateBody(usize),
    /// Answers `200 text/html`, as the server does on unknown routes; no effect.
    Html,
    /// A prompt is answered 204 and stored, and never run.
    LosePrompt,
    /// A prompt is answered 204 and leaves no trace.
    ForgetPrompt,
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
pub(super) struct Faults {
    waiting: Mutex<Vec<Arc<Planned>>>,
}

#[derive(Debug)]
struct Planned {
    route: Route,
    fault: Fault,
    skip: AtomicUsize,
    left: AtomicUsize,
    only: Mutex<Option<String>>,
}

/// An injected fault; strikes once unless told otherwise.
#[derive(Debug)]
pub struct Injection {
    planned: Arc<Planned>,
}

impl Injection {
    /// Strikes the next `times` matching requests.
    #[expect(clippy::return_self_not_must_use, reason = "a setter on something that already works")]
    pub fn times(self, times: usize) -> Self {
        self.planned.left.store(times, Ordering::SeqCst);
        self
    }

    /// Strikes every matching request until [`FakeOpenCode::clear_faults`](super::FakeOpenCode::clear_faults).
    #[expect(clippy::return_self_not_must_use, reason = "a setter on something that already works")]
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// Lets this many matching requests pass first.
    #[expect(clippy::return_self_not_must_use, reason = "a setter on something that already works")]
    pub fn after(self, requests: usize) -> Self {
        self.planned.skip.store(requests, Ordering::SeqCst);
        self
    }

    /// Strikes only requests whose path or query contains this text, such as a session id.
    #[expect(clippy::return_self_not_must_use, reason = "a setter on something that already works")]
    pub fn only(self, text: impl Into<String>) -> Self {
        *self.planned.only.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.into());
        self
    }

    /// How many more requests it would strike.
    pub fn left(&self) -> usize {
        self.planned.left.load(Ordering::SeqCst)
    }
}

impl Faults {
    pub(super) fn inject(&self, route: Route, fault: Fault) -> Injection {
        let planned = Arc::new(Planned {
            route,
            fault,
            skip: AtomicUsize::new(0),
            left: AtomicUsize::new(1),
            only: Mutex::new(None),
        });
        self.lock().push(Arc::clone(&planned));
        Injection { planned }
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// The first fault in waiting that strikes this request; it is used up by that.
    pub(super) fn strike(&self, route: Route, target: &str) -> Option<Fault> {
        let mut waiting = self.lock();
        waiting.retain(|planned| planned.left.load(Ordering::SeqCst) > 0);
        let hit = waiting.iter().find(|planned| {
            let only = planned.only.lock().unwrap_or_else(PoisonError::into_inner);
            (planned.route == route || planned.route == Route::Any)
                && only.as_ref().is_none_or(|text| target.contains(text))
        })?;
        if hit.skip.load(Ordering::SeqCst) > 0 {
            hit.skip.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        if hit.left.load(Ordering::SeqCst) != usize::MAX {
            hit.left.fetch_sub(1, Ordering::SeqCst);
        }
        Some(hit.fault.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Planned>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

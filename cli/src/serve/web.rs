//! The page, its events, and what can be done on it.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::stream;
use opencode_conductor::{AnswerError, ApprovalDesk, Ask, Decision, QuestionAnswer};
use opencode_conductor_cli::failure::Failure;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    hub::{Hub, Watcher},
    work::Runner,
};

/// How soon a page that lost its events asks again.
const RETRY: Duration = Duration::from_millis(500);

/// Nothing but what is served here may run, load or be sent to, and no site may put the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How many pages may watch at once. Each may have a snapshot of everything on its way.
const MAX_WATCHERS: usize = 32;

/// What a page has to show to be let in: the person who started the program has it in the address that was printed. Other users of this machine, and
/// programs that an agent runs on it, reach the port but do not know it.
#[derive(Clone)]
pub(crate) struct Key {
    token: Arc<str>,
    /// The cookie's name; browsers share cookies among the ports of a machine.
    cookie: Arc<str>,
}

impl Key {
    pub(crate) fn new(port: u16) -> Result<Self, Failure> {
        let mut bytes = [0; 24];
        let random = getrandom::fill(&mut bytes);
        random.map_err(|error| Failure::usage(format!("there are no random numbers: {error}")))?;
        let token = BASE64_URL_SAFE_NO_PAD.encode(bytes).into();
        Ok(Self { token, cookie: format!("conductor-{port}").into() })
    }

    /// The page's address with the key in it.
    pub(crate) fn address(&self, address: SocketAddr) -> String {
        format!("http://{address}/?token={}", self.token)
    }

    fn is_in_query(&self, query: Option<&str>) -> bool {
        query.is_some_and(|query| query.split('&').any(|field| self.is(field.strip_prefix("token="))))
    }

    fn is_in_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        cookies.any(|(name, value)| name == &*self.cookie && self.is(Some(value)))
    }

    /// Compares in a time that does not tell how much was right.
    fn is(&self, said: Option<&str>) -> bool {
        let Some(said) = said else { return false };
        let differs =
            said.bytes().zip(self.token.bytes()).fold(0, |differs, (one, other)| differs | (one ^ other));
        said.len() == self.token.len() && differs == 0
    }

    /// Gives the browser a cookie that no script sees and that goes along with no request of another page, in exchange for the address.
    fn exchange(&self) -> Response {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie, self.token);
        (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())])
            .into_response()
    }
}

#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) hub: Arc<Hub>,
    pub(crate) runner: Runner,
    pub(crate) desk: ApprovalDesk,
    /// Once cancelled, the events end.
    pub(crate) closing: CancellationToken,
    pub(crate) watchers: Arc<AtomicUsize>,
}

pub(crate) fn router(site: Site, key: Key) -> Router {
    let files = [
        ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
        ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
        ("/app.js", "text/javascript; charset=utf-8", include_str!("page/app.js")),
        ("/view.js", "text/javascript; charset=utf-8", include_str!("page/view.js")),
        ("/fold.js", "text/javascript; charset=utf-8", include_str!("page/fold.js")),
        ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ];
    let pages = files.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }))
    });
    pages
        .route("/events", get(events))
        .route("/tasks", post(start))
        .route("/tasks/{id}/abort", post(abort))
        .route("/permissions/{id}", post(decide_permission))
        .route("/questions/{id}", post(decide_question))
        .layer(middleware::from_fn_with_state(key, guard))
        .with_state(site)
}

/// Lets in only what comes from this page on this machine, and has the key.
///
/// Any page in the same browser can send requests here. Its name, or that of the host it thinks it talks to, gives it away: the
/// first stops a foreign page's button that would grant a permission, the second a foreign name that was made to lead here.
async fn guard(State(key): State<Key>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_at_door = request.method() == Method::GET && request.uri().path() == "/";
    let refused = if !host(headers).is_some_and(is_this_machine) {
        Some("this page answers to localhost, 127.0.0.1 and [::1] only")
    } else if request.method() != Method::GET && is_foreign(headers) {
        Some("only this page's own buttons may do that")
    } else {
        None
    };
    let mut response = match refused {
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
        None if is_at_door && key.is_in_query(request.uri().query()) => key.exchange(),
        None if key.is_in_cookie(headers) => next.run(request).await,
        None => (StatusCode::UNAUTHORIZED, "open the address that the program has printed").into_response(),
    };
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST)?.to_str().ok()
}

/// Whether a `Host` names this machine; whatever the port, since a tunnel may bring another one along.
fn is_this_machine(host: &str) -> bool {
    let Ok(host) = host.parse::<Authority>() else { return false };
    let address = host.host().trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.host() == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Whether another page sent it. Browsers say so; other programs are not what this is against.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let own = host(headers).map(|host| format!("http://{host}"));
    let other_origin = text(header::ORIGIN).is_some_and(|origin| Some(origin) != own.as_deref());
    let other_site = text(header::HeaderName::from_static("sec-fetch-site"));
    other_origin || other_site.is_some_and(|site| site != "same-origin")
}

/// Counts one watching page against [`MAX_WATCHERS`] until it is dropped.
struct WatcherSlot(Arc<AtomicUsize>);

impl WatcherSlot {
    fn take(watchers: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Self(Arc::clone(watchers));
        (watchers.fetch_add(1, Relaxed) < MAX_WATCHERS).then_some(slot)
    }
}

impl Drop for WatcherSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

async fn events(State(site): State<Site>) -> Response {
    let Some(slot) = WatcherSlot::take(&site.watchers) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages watch").into_response();
    };
    let watcher = (Watcher::new(site.hub, site.closing), slot);
    let stream = stream::unfold(watcher, |(mut watcher, slot)| async move {
        let text = watcher.next().await?;
        let event = Event::default().data(&*text).retry(RETRY);
        Some((Ok::<_, Infallible>(event), (watcher, slot)))
    });
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

#[derive(Deserialize)]
struct NewTask {
    prompt: String,
}

async fn start(State(site): State<Site>, Json(task): Json<NewTask>) -> Response {
    if task.prompt.trim().is_empty() {
        return (StatusCode::BAD_REQUEST, "the prompt is empty").into_response();
    }
    if site.closing.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the program is about to end").into_response();
    }
    match site.runner.start(task.prompt) {
        Some(id) => (StatusCode::CREATED, Json(json!({"id": id}))).into_response(),
        None => (StatusCode::TOO_MANY_REQUESTS, "there are too many tasks; start the program again")
            .into_response(),
    }
}

async fn abort(State(site): State<Site>, Path(id): Path<usize>) -> Response {
    if site.runner.abort(id) {
        StatusCode::ACCEPTED.into_response()
    } else {
        (StatusCode::NOT_FOUND, "this task does not run any more").into_response()
    }
}

#[derive(Deserialize)]
#[serde(tag = "reply", rename_all = "lowercase")]
enum Permission {
    Once,
    Always,
    Reject {
        #[serde(default)]
        message: String,
    },
}

async fn decide_permission(
    State(site): State<Site>,
    Path(id): Path<String>,
    Json(reply): Json<Permission>,
) -> Response {
    let decision = match reply {
        Permission::Once => Decision::AllowOnce,
        Permission::Always => Decision::AllowAlways,
        Permission::Reject { message } if message.trim().is_empty() => {
            Decision::Reject("The user does not want this.".to_owned())
        }
        Permission::Reject { message } => Decision::Reject(message),
    };
    answer(&site.desk, &id, |_| decision)
}

#[derive(Deserialize)]
struct Answers {
    /// One per question; nothing leaves them to the model.
    answers: Option<Vec<QuestionAnswer>>,
}

async fn decide_question(
    State(site): State<Site>,
    Path(id): Path<String>,
    Json(reply): Json<Answers>,
) -> Response {
    answer(&site.desk, &id, |ask| reply.answers.map_or_else(|| ask.decline(), Decision::Answer))
}

/// Answers the request with this id, which is all that the page says of it.
fn answer(desk: &ApprovalDesk, id: &str, decide: impl FnOnce(&Ask) -> Decision) -> Response {
    let gone = || (StatusCode::NOT_FOUND, "no task waits for this answer any more").into_response();
    let Some(ask) = desk.pending().into_iter().find(|ask| ask.id.as_str() == id) else { return gone() };
    match desk.answer(&ask.root, &ask.id, decide(&ask)) {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(AnswerError::NotPending { .. }) => gone(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

//! The page, its events, and what can be done on it.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

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
use futures_util::stream;
use opencode_conductor::{Decision, QuestionAnswer};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    ask::Desk,
    hub::{Hub, Watcher},
    work::Runner,
};

/// How soon a page that lost its events asks again.
const RETRY: Duration = Duration::from_millis(500);

/// Nothing but what is served here may run, load or be sent to, and no site may put the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) hub: Arc<Hub>,
    pub(crate) runner: Runner,
    pub(crate) desk: Arc<Desk>,
    /// Once cancelled, the events end.
    pub(crate) closing: CancellationToken,
}

pub(crate) fn router(site: Site) -> Router {
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
        .layer(middleware::from_fn(guard))
        .with_state(site)
}

/// Lets in only what comes from this page on this machine.
///
/// Any page in the same browser can send requests here. Its name, or that of the host it thinks it talks to, gives it away: the
/// first stops a foreign page's button that would grant a permission, the second a foreign name that was made to lead here.
async fn guard(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let refused = if !host(headers).is_some_and(is_this_machine) {
        Some("this page answers to localhost, 127.0.0.1 and [::1] only")
    } else if request.method() != Method::GET && is_foreign(headers) {
        Some("only this page's own buttons may do that")
    } else {
        None
    };
    let mut response = match refused {
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
        None => next.run(request).await,
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

async fn events(State(site): State<Site>) -> impl IntoResponse {
    let stream = stream::unfold(Watcher::new(site.hub, site.closing), |mut watcher| async move {
        let text = watcher.next().await?;
        let event = Event::default().data(&*text).retry(RETRY);
        Some((Ok::<_, Infallible>(event), watcher))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
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
    let id = site.runner.start(task.prompt);
    (StatusCode::CREATED, Json(json!({"id": id}))).into_response()
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
    decided(site.desk.decide(&id, decision))
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
    decided(match reply.answers {
        Some(answers) => site.desk.decide(&id, Decision::Answer(answers)),
        None => site.desk.decline(&id),
    })
}

fn decided(was_waited_for: bool) -> Response {
    if was_waited_for {
        StatusCode::NO_CONTENT.into_response()
    } else {
        (StatusCode::NOT_FOUND, "nobody waits for this answer any more").into_response()
    }
}

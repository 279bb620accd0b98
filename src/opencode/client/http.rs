//! Requests sent and answers read: one place for time limits, size limits, repetition and errors.

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use reqwest::{
    Response, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ApiError, ApiErrorKind, ServerAnswer,
    call::Call,
    options::{HttpOptions, RetryOptions},
    stats::Counters,
};
use crate::{backoff::Backoff, lock::lock};

/// An answer with a good status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Where the server is; a managed server that was restarted moves.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint(Arc<RwLock<Url>>);

pub(crate) struct Http {
    client: reqwest::Client,
    endpoint: Endpoint,
    /// What every request has: the credentials, and the caller's own.
    headers: HeaderMap,
    options: HttpOptions,
    /// When a connection was last refused or broke, after which the server may be about to start again.
    disturbed: Arc<Mutex<Option<Instant>>>,
    pub(crate) counters: Arc<Counters>,
}

/// A server opens its port half a second or more before it serves, and never answers what comes in between. So for this long after a
/// connection was refused or broke, ...
const RESTART: Duration = Duration::from_secs(10);
/// ... an answer is not waited for any longer than this; it is asked for again soon enough.
const RESTART_PATIENCE: Duration = Duration::from_secs(3);

/// How many connections wait for their next use.
const IDLE_CONNECTIONS: usize = 32;

impl Http {
    pub(crate) fn new(
        endpoint: Endpoint,
        headers: HeaderMap,
        options: HttpOptions,
    ) -> Result<Self, ApiError> {
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            // `Http::read` repeats what changes nothing; nothing else may be repeated.
            .retry(reqwest::retry::never())
            .connect_timeout(options.connect_timeout)
            // The server keeps idle connections longer than 70 s, so ours are never closed under a request.
            .pool_idle_timeout(Duration::from_secs(45))
            // A thousand turns that begin at once open a thousand connections, most of which are not used again.
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            // Old servers send no heartbeats, so only this finds a dead peer of a silent event stream.
            .tcp_keepalive(Duration::from_secs(20));
        if endpoint.is_loopback() {
            builder = builder.no_proxy();
        }
        let client = builder
            .build()
            .map_err(|error| ApiError::new("set up the client", ApiErrorKind::Connect(Box::new(error))))?;
        Ok(Self::with(client, endpoint, headers, options))
    }

    /// Requests through a client of the caller's.
    pub(crate) fn with(
        client: reqwest::Client,
        endpoint: Endpoint,
        headers: HeaderMap,
        options: HttpOptions,
    ) -> Self {
        Self { client, endpoint, headers, options, disturbed: Arc::default(), counters: Arc::default() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request once and takes any answer.
    pub(crate) async fn exchange(&self, call: &Call) -> Result<Answer, ApiError> {
        let response = self.open(call, "application/json").await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = self.body(call, response).await?;
        self.counters.bytes_received.add(body.len());
        Ok(Answer { status, headers, body })
    }

    /// Sends a request once.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, ApiError> {
        let answer = self.exchange(call).await?;
        if (200..300).contains(&answer.status) {
            Ok(answer)
        } else {
            let kind = refusal(answer.status, &answer.headers, &answer.body);
            Err(ApiError::new(call.operation, kind))
        }
    }

    /// Sends a request that changes nothing, again where that may help.
    pub(crate) async fn read(&self, call: &Call) -> Result<Answer, ApiError> {
        let RetryOptions { attempts, base, max } = self.options.retry;
        let mut backoff = Backoff::new(base, max);
        for _ in 1..attempts {
            let error = match self.send(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let asked = error.retry_after().unwrap_or_default();
            if !error.is_retryable() || asked > max {
                return Err(error);
            }
            let pause = backoff.next_pause().max(asked);
            tracing::debug!(operation = call.operation, %error, ?pause, "read failed, trying again");
            self.counters.retries.increment();
            sleep(pause).await;
        }
        self.send(call).await
    }

    /// Opens a stream of events; the caller watches for silence.
    pub(crate) async fn stream(
        &self,
        call: &Call,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let operation = call.operation;
        let response = self.open(call, "text/event-stream").await?;
        let status = response.status().as_u16();
        if status != 200 {
            let headers = response.headers().clone();
            let body = self.body(call, response).await?;
            return Err(ApiError::new(operation, refusal(status, &headers, &body)));
        }
        let content_type = content_type(response.headers());
        if content_type.as_deref().is_none_or(|found| !found.starts_with("text/event-stream")) {
            let html = content_type.as_deref().is_some_and(|found| found.starts_with("text/html"));
            return Err(ApiError::new(operation, ApiErrorKind::NotJson { status, content_type, html }));
        }
        let (counters, disturbed) = (Arc::clone(&self.counters), Arc::clone(&self.disturbed));
        let chunks = stream::unfold(Some(response), async |response| {
            let mut response = response?;
            match response.chunk().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(response))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(Box::pin(chunks.map(move |chunk| match chunk {
            Ok(chunk) => {
                counters.feed_bytes.add(chunk.len());
                Ok(chunk)
            }
            Err(error) => {
                note(&disturbed);
                Err(broken(operation, error))
            }
        })))
    }

    /// How long to wait for the head of an answer.
    fn patience(&self) -> Duration {
        let disturbed = *lock(&self.disturbed);
        let longest = self.options.answer_timeout;
        if disturbed.is_some_and(|at| at.elapsed() < RESTART) {
            longest.min(RESTART_PATIENCE)
        } else {
            longest
        }
    }

    /// Sends a request and waits for the head of its answer.
    async fn open(&self, call: &Call, accept: &'static str) -> Result<Response, ApiError> {
        let path = call.path.as_ref().map_err(|error| ApiError::new(call.operation, *error))?;
        let url = self.endpoint.url(path, &call.query);
        let mut request = self
            .client
            .request(call.method.into(), url)
            .headers(self.headers.clone())
            .header(ACCEPT, HeaderValue::from_static(accept));
        if let Some(body) = &call.body {
            self.counters.bytes_sent.add(body.len());
            request =
                request.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(body.clone());
        }
        self.counters.requests.increment();
        let after = self.patience();
        match timeout(after, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                note(&self.disturbed);
                Err(broken(call.operation, error))
            }
            Err(_) => Err(ApiError::new(call.operation, ApiErrorKind::Timeout { after, answered: false })),
        }
    }

    async fn body(&self, call: &Call, mut response: Response) -> Result<Bytes, ApiError> {
        let HttpOptions { read_timeout, body_limit, .. } = self.options;
        let fail = |kind| Err(ApiError::new(call.operation, kind));
        let too_large = || fail(ApiErrorKind::TooLarge { limit: body_limit });
        if response.content_length().is_some_and(|length| length > body_limit as u64) {
            return too_large();
        }
        let mut body = BytesMut::new();
        loop {
            match timeout(read_timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) if body.len() + chunk.len() > body_limit => return too_large(),
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Ok(Ok(None)) => return Ok(body.freeze()),
                Ok(Err(error)) => return Err(broken(call.operation, error)),
                Err(_) => return fail(ApiErrorKind::Timeout { after: read_timeout, answered: true }),
            }
        }
    }
}

impl Answer {
    /// The body, if it says that it is JSON. Invalid UTF-8 is replaced, so that one bad byte costs one character.
    pub(crate) fn json(&self, operation: &'static str) -> Result<Cow<'_, str>, ApiError> {
        let content_type = content_type(&self.headers);
        let is = |kind: &str| content_type.as_deref().is_some_and(|found| found.starts_with(kind));
        if is("application/json") {
            return Ok(String::from_utf8_lossy(&self.body));
        }
        let html = is("text/html");
        Err(ApiError::new(operation, ApiErrorKind::NotJson { status: self.status, content_type, html }))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Endpoint {
    pub(crate) fn new(base: Url) -> Self {
        Self(Arc::new(RwLock::new(base)))
    }

    pub(crate) fn get(&self) -> Url {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, base: Url) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = base;
    }

    fn url(&self, path: &str, query: &[(Cow<'static, str>, String)]) -> Url {
        let mut url = self.get();
        // The path is encoded already, and `set_path` leaves escapes alone.
        let path = format!("{}{}", url.path(), path.trim_start_matches('/'));
        url.set_path(&path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    fn is_loopback(&self) -> bool {
        is_loopback(&self.get())
    }
}

/// Whether an address is this machine's own, in any of its spellings.
fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host.trim_end_matches('.') == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("base", &self.endpoint.get().as_str())
            .field("authenticated", &self.headers.contains_key(AUTHORIZATION))
            .finish_non_exhaustive()
    }
}

fn note(disturbed: &Mutex<Option<Instant>>) {
    *lock(disturbed) = Some(Instant::now());
}

fn broken(operation: &'static str, error: reqwest::Error) -> ApiError {
    let error = error.without_url();
    let connect = error.is_connect() || error.is_builder();
    let error = Box::new(error);
    ApiError::new(operation, if connect { ApiErrorKind::Connect(error) } else { ApiErrorKind::Broken(error) })
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase())
}

/// How much of a refusal in plain text is quoted.
const QUOTE_CHARS: usize = 300;

/// Reads the server's words from any of its error shapes: `{name, data: {message, ref}}`, `{_tag, message}`, text.
fn refusal(status: u16, headers: &HeaderMap, body: &[u8]) -> ApiErrorKind {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&value["name"]).or_else(|| text(&value["_tag"]));
    let plain = || {
        let is_text = content_type(headers).is_some_and(|found| found.starts_with("text/plain"));
        let words = String::from_utf8_lossy(body);
        (is_text && !words.trim().is_empty()).then(|| words.trim().chars().take(QUOTE_CHARS).collect())
    };
    let message = text(&value["data"]["message"]).or_else(|| text(&value["message"])).or_else(plain);
    let reference = text(&value["data"]["ref"])
        .or_else(|| headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned));
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let retry_after = seconds.map(Duration::from_secs);
    ApiErrorKind::Status(ServerAnswer { status, name, message, reference, retry_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_itself_is_known_by_all_its_names() {
        for (url, expected) in [
            ("http://localhost", true),
            ("http://localhost.:4096", true),
            ("http://LOCALHOST.", true),
            ("http://127.0.0.2", true),
            ("http://2130706433", true),
            ("http://[::1]:1", true),
            ("http://localhost.example.org", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }
}

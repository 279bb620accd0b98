//! What a client can be told, and the defaults.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{
    Url,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};

use super::{
    ApiError, OpenCodeClient,
    http::{Endpoint, Http},
};
use crate::{error::InvalidInput, setters::setters};

/// Settings for an [`OpenCodeClient`], from [`OpenCodeClient::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ClientBuilder {
    base_url: BaseUrl,
    credentials: Option<Credentials>,
    headers: Vec<Header>,
    http_client: Option<OwnClient>,
    http: HttpOptions,
    feed: FeedOptions,
    shares_files: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct HttpOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) body_limit: usize,
    pub(crate) retry: RetryOptions,
}

/// How often a read is tried, and how long to wait in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetryOptions {
    pub(crate) attempts: u32,
    pub(crate) base: Duration,
    pub(crate) max: Duration,
}

/// How the event feed behaves.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct FeedOptions {
    pub(crate) ready_timeout: Duration,
    pub(crate) silence: Duration,
    pub(crate) backoff: Duration,
    pub(crate) max_backoff: Duration,
    pub(crate) calm: Duration,
    pub(crate) linger: Duration,
    pub(crate) event_limit: NonZeroUsize,
    pub(crate) queue_events: usize,
    pub(crate) queue_bytes: usize,
}

/// The address, kept as text until `build` checks it; it may hold a password until then.
#[derive(Clone)]
struct BaseUrl(String);

/// A header that every request has. Its value may be a secret.
#[derive(Clone)]
struct Header {
    name: String,
    value: String,
}

/// A client of the caller's making, whose own headers may be secrets.
#[derive(Clone)]
struct OwnClient(reqwest::Client);

/// User and password, which only the server gets to see.
#[derive(Clone)]
pub(crate) struct Credentials {
    user: String,
    password: Arc<str>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            // A server that opens a directory for the first time answers no request for seconds at a time.
            answer_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(30),
            body_limit: 64 << 20,
            retry: RetryOptions {
                attempts: 3,
                base: Duration::from_millis(100),
                max: Duration::from_secs(5),
            },
        }
    }
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            ready_timeout: Duration::from_secs(30),
            // Three heartbeats of ten seconds, and some patience. Servers before 1.2 send none, and cannot be told apart before the first
            // one: to open a stream anew that was merely quiet costs little, and one that stalled from its start is found.
            silence: Duration::from_secs(35),
            backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            calm: Duration::from_secs(60),
            linger: Duration::from_secs(2),
            event_limit: NonZeroUsize::new(16 << 20).unwrap_or(NonZeroUsize::MAX),
            queue_events: 65_536,
            queue_bytes: 32 << 20,
        }
    }
}

impl ClientBuilder {
    pub(super) fn new(base_url: &str) -> Self {
        Self {
            base_url: BaseUrl(base_url.to_owned()),
            credentials: None,
            headers: Vec::new(),
            http_client: None,
            http: HttpOptions::default(),
            feed: FeedOptions::default(),
            shares_files: false,
        }
    }

    /// Sends HTTP Basic credentials with every request (none by default). The server's default user is `opencode`.
    pub fn basic_auth(mut self, user: impl Into<String>, password: impl Into<Arc<str>>) -> Self {
        self.credentials = Some(Credentials { user: user.into(), password: password.into() });
        self
    }

    /// Sends a header with every request, the event stream's included (none by default), as proxies and gateways want it. A second value for
    /// the same name replaces the first. Values are not shown by `Debug`, errors or logs.
    ///
    /// # Examples
    /// ```
    /// use opencode_conductor::OpenCodeClient;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = OpenCodeClient::builder("http://127.0.0.1:4096").header("x-gateway-token", "secret").build()?;
    /// assert!(OpenCodeClient::builder("http://127.0.0.1:4096").header("two words", "x").build().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Header { name: name.into(), value: value.into() });
        self
    }

    /// Sends all requests with a `reqwest` client of your own, for what has no setting here: certificates and roots, proxies, a resolver, a
    /// connection to somewhere else.
    ///
    /// What that client decides is then yours, and [`connect_timeout`](Self::connect_timeout) has no effect. The client that is made without it
    /// speaks HTTP/1.1, uses no proxy to a loopback address, and does not hold idle connections for longer than the server does (45 s).
    /// Three settings matter:
    ///
    /// * `redirect(Policy::none())` and `retry(never())`: a prompt must not be sent twice behind the back of this crate.
    /// * No `timeout`, which would end the event stream. The limits set here hold for each request all the same.
    /// * A `connect_timeout`, or a server that is not there is waited for until the [`answer_timeout`](Self::answer_timeout).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use opencode_conductor::OpenCodeClient;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let http = reqwest::Client::builder()
    ///     .redirect(reqwest::redirect::Policy::none())
    ///     .retry(reqwest::retry::never())
    ///     .connect_timeout(Duration::from_secs(5))
    ///     .build()?;
    /// let client = OpenCodeClient::builder("http://opencode.internal:4096").http_client(http).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn http_client(mut self, client: reqwest::Client) -> Self {
        self.http_client = Some(OwnClient(client));
        self
    }

    setters! {
        /// Sets how long to wait for a connection; default 5 s.
        connect_timeout(timeout: Duration) { http.connect_timeout = timeout }
        /// Sets how long the server may take to begin an answer; default 30 s.
        answer_timeout(timeout: Duration) { http.answer_timeout = timeout }
        /// Sets how long an answer may pause once it has begun; default 30 s.
        read_timeout(timeout: Duration) { http.read_timeout = timeout }
        /// Sets how many bytes an answer may have; default 64 MiB. The event feed has limits of its own.
        body_limit(bytes: usize) { http.body_limit = bytes }
        /// Sets how often a read is attempted before its error is returned; default 3 times. Requests with an effect are never repeated.
        read_attempts(attempts: u32) { http.retry.attempts = attempts.max(1) }
        /// Sets the pause after the first failed read, which doubles up to `max`, with jitter; default 100 ms up to 5 s. If the server asks
        /// for a longer pause than `max`, the error is returned at once.
        read_backoff(base: Duration, max: Duration) { http.retry.base = base; http.retry.max = max }
        /// Sets how the event feed behaves; default [`FeedOptions::default`].
        feed(options: FeedOptions) { feed = options }
        /// Says that the server sees the same files as this program; default it does not, unless it is a managed server. A session is then
        /// refused where there is no directory; the server itself would make it, and every turn of it would fail.
        shares_files() { shares_files = true }
    }

    /// Checks the settings. No request is made.
    ///
    /// # Errors
    /// If the address is not a plain `http` or `https` URL, or the credentials or headers cannot be sent.
    pub fn build(self) -> Result<OpenCodeClient, ApiError> {
        let invalid = |error: InvalidInput| ApiError::new("set up the client", error);
        self.check_durations().map_err(invalid)?;
        let base = parse_base_url(&self.base_url.0).map_err(invalid)?;
        if base.scheme() == "https" && !cfg!(feature = "rustls") && self.http_client.is_none() {
            let rule = "can only be https with the feature `rustls`, or a client of your own";
            return Err(invalid(InvalidInput::new("base url", rule)));
        }
        let headers = self.all_headers().map_err(invalid)?;
        let endpoint = Endpoint::new(base);
        let http = match self.http_client {
            Some(OwnClient(client)) => Http::with(client, endpoint, headers, self.http),
            None => Http::new(endpoint, headers, self.http)?,
        };
        Ok(OpenCodeClient::assemble(http, self.feed, self.shares_files))
    }

    fn all_headers(&self) -> Result<HeaderMap, InvalidInput> {
        let mut headers = HeaderMap::new();
        for Header { name, value } in &self.headers {
            let name = HeaderName::try_from(name.as_str()).ok();
            let name = name.ok_or(InvalidInput::new("header", "must have the name of an HTTP header"))?;
            if [header::ACCEPT, header::CONTENT_TYPE, header::CONTENT_LENGTH, header::HOST].contains(&name) {
                return Err(InvalidInput::new("header", "must not be one that the client sets itself"));
            }
            let value = HeaderValue::try_from(value.as_str()).ok();
            let mut value = value.ok_or(InvalidInput::new("header", "must have a value that HTTP allows"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some(credentials) = &self.credentials
            && headers.insert(header::AUTHORIZATION, credentials.header()?).is_some()
        {
            return Err(InvalidInput::new("header", "must not be `authorization` beside `basic_auth`"));
        }
        Ok(headers)
    }

    fn check_durations(&self) -> Result<(), InvalidInput> {
        let (http, feed) = (&self.http, &self.feed);
        InvalidInput::check_durations(&[
            ("connect_timeout", http.connect_timeout),
            ("answer_timeout", http.answer_timeout),
            ("read_timeout", http.read_timeout),
            ("ready_timeout", feed.ready_timeout),
            ("silence", feed.silence),
            ("backoff", feed.backoff),
            ("max_backoff", feed.max_backoff),
        ])
    }
}

impl FeedOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets how long a connection may take until the server says that it is open; default 30 s.
        ready_timeout(timeout: Duration) { ready_timeout = timeout }
        /// Sets how long the stream may be silent before it counts as dead; default 35 s. Servers from 1.2 send a heartbeat every 10 s; the
        /// stream of an older one is opened anew when nothing happens for so long.
        silence(limit: Duration) { silence = limit }
        /// Sets the pause before the first reconnect, which doubles up to `max`, with jitter; default 200 ms up to 10 s.
        backoff(base: Duration, max: Duration) { backoff = base; max_backoff = max }
        /// Sets how long a connection has to last for the pauses to start again from the first; default 60 s.
        calm(stretch: Duration) { calm = stretch }
        /// Sets how long a connection is kept after its last subscriber has gone, as the next one often comes soon; default 2 s.
        linger(linger: Duration) { linger = linger }
        /// Sets how many bytes one event may have; default 16 MiB. A larger one is skipped, and subscribers are told to resync.
        event_limit(bytes: NonZeroUsize) { event_limit = bytes }
        /// Sets how much may wait for a slow subscriber before it is told to resync instead; default 65,536 events and 32 MiB.
        queue(events: usize, bytes: usize) { queue_events = events.max(1); queue_bytes = bytes }
    }
}

/// The address with a path that ends in a slash, so that routes can be appended.
pub(super) fn parse_base_url(text: &str) -> Result<Url, InvalidInput> {
    let invalid = |rule| InvalidInput::new("base url", rule);
    let mut url = Url::parse(text).ok().ok_or(invalid("must be a valid URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid("must start with http:// or https:// and name a host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("must not contain credentials: give them to `basic_auth`"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("must not have a query or a fragment"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

impl Credentials {
    pub(crate) fn header(&self) -> Result<HeaderValue, InvalidInput> {
        if self.user.contains(':') {
            return Err(InvalidInput::new("user", "must not contain a colon"));
        }
        let text = format!("{}:{}", self.user, self.password);
        let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(text)))
            .ok()
            .ok_or(InvalidInput::new("password", "must fit into an HTTP header"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match parse_base_url(&self.0) {
            Ok(url) => write!(f, "{url}"),
            Err(error) => write!(f, "({error})"),
        }
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnClient").finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

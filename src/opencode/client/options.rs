//! What a client can be told, and the defaults.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Url, header::HeaderValue};

use super::{ApiError, OpenCodeClient, http::Endpoint};
use crate::{error::InvalidInput, setters::setters};

/// Settings for an [`OpenCodeClient`], from [`OpenCodeClient::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ClientBuilder {
    base_url: BaseUrl,
    credentials: Option<Credentials>,
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

    setters! {
        /// How long to wait for a connection (5 s).
        connect_timeout(timeout: Duration) { http.connect_timeout = timeout }
        /// How long the server may take to begin an answer (30 s).
        answer_timeout(timeout: Duration) { http.answer_timeout = timeout }
        /// How long an answer may pause once it has begun (30 s).
        read_timeout(timeout: Duration) { http.read_timeout = timeout }
        /// How many bytes an answer may have (64 MiB); the event feed has limits of its own.
        body_limit(bytes: usize) { http.body_limit = bytes }
        /// How often a read is attempted before its error is returned (3 times); requests with an effect are never repeated.
        read_attempts(attempts: u32) { http.retry.attempts = attempts.max(1) }
    }

    /// The pause after the first failed read (100 ms), which doubles up to `max` (5 s), with jitter. A server that asks for
    /// a longer pause than `max` gets none: the error is returned.
    pub fn read_backoff(mut self, base: Duration, max: Duration) -> Self {
        self.http.retry.base = base;
        self.http.retry.max = max;
        self
    }

    setters! {
        /// How the event feed behaves.
        feed(options: FeedOptions) { feed = options }
    }

    /// Says that the server sees the same files as this program (not assumed by default, but of a managed server). A session is then
    /// refused where there is no directory; the server itself would make it, and every turn of it would fail.
    pub fn shares_files(mut self) -> Self {
        self.shares_files = true;
        self
    }

    /// Checks the settings. No request is made.
    ///
    /// # Errors
    /// If the address is not a plain `http` or `https` URL, or the credentials cannot be sent.
    pub fn build(self) -> Result<OpenCodeClient, ApiError> {
        let invalid = |error: InvalidInput| ApiError::new("set up the client", error);
        self.check_durations().map_err(invalid)?;
        let base = parse_base_url(&self.base_url.0).map_err(invalid)?;
        let auth = self.credentials.as_ref().map(Credentials::header).transpose().map_err(invalid)?;
        OpenCodeClient::assemble(Endpoint::new(base), auth, self.http, self.feed, self.shares_files)
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
        /// How long a connection may take until the server says that it is open (30 s).
        ready_timeout(timeout: Duration) { ready_timeout = timeout }
        /// How long the stream may be silent before it counts as dead (35 s). Servers from 1.2 send a heartbeat every 10 s; the stream of
        /// an older one is opened anew when nothing happens for so long.
        silence(limit: Duration) { silence = limit }
    }

    /// The pause before the first reconnect (200 ms), which doubles up to `max` (10 s), with jitter.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.backoff = base;
        self.max_backoff = max;
        self
    }

    setters! {
        /// How long a connection has to last for the pauses to start again from the first (60 s).
        calm(stretch: Duration) { calm = stretch }
        /// How long a connection is kept after its last subscriber has gone (2 s), as the next one often comes soon.
        linger(linger: Duration) { linger = linger }
        /// How many bytes one event may have (16 MiB); a larger one is skipped and subscribers are told to resync.
        event_limit(bytes: NonZeroUsize) { event_limit = bytes }
    }

    /// How much may wait for a slow subscriber (65,536 events, 32 MiB) before it is told to resync instead.
    pub fn queue(mut self, events: usize, bytes: usize) -> Self {
        self.queue_events = events.max(1);
        self.queue_bytes = bytes;
        self
    }
}

/// The address with a path that ends in a slash, so that routes can be appended.
pub(super) fn parse_base_url(text: &str) -> Result<Url, InvalidInput> {
    let invalid = |rule| InvalidInput::new("base url", rule);
    let mut url = Url::parse(text).ok().ok_or(invalid("must be a valid URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid("must start with http:// or https:// and name a host"));
    }
    if url.scheme() == "https" && !cfg!(feature = "rustls") {
        return Err(invalid("can only be https with the feature `rustls`"));
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

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

//! The client of an `OpenCode` server: requests, and the events of each directory.
//!
//! [`OpenCodeClient`] is the handle; [`OpenCodeClient::directory`] gives the calls, and
//! [`DirectoryClient::subscribe`] the events, of one directory.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use reqwest::header::HeaderValue;
use serde_json::Value;

mod api;
mod call;
mod error;
mod feed;
mod http;
mod options;
mod sse;
mod stats;

pub use api::{Cursor, DirectoryClient, MessageList, MessagePage, SessionFilter};
pub use call::Method;
pub use error::{ApiError, ApiErrorKind, ServerAnswer};
pub use feed::{FeedLoss, FeedSignal, GoneReason, ResyncReason, Subscription};
pub use options::{ClientBuilder, FeedOptions};
pub use stats::ClientStatistics;

use api::routes;
use call::Call;
pub(super) use feed::Watch;

use feed::Feeds;
use http::Http;

use crate::{
    directory::Directory,
    error::InvalidInput,
    opencode::wire::{self, Health},
};

/// A handle on one server; clones share its connections.
///
/// Dropping the last clone, and the last [`Subscription`], ends its background tasks; [`OpenCodeClient::shutdown`] also
/// waits for them.
///
/// # Examples
/// ```no_run
/// use opencode_conductor::{Method, OpenCodeClient, RawRequest};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = OpenCodeClient::builder("https://opencode.example").basic_auth("opencode", "secret");
/// let client = builder.build()?;
/// println!("OpenCode {}", client.health().await?.version);
/// // Routes without a call of their own.
/// let answer = client.raw(RawRequest::new(Method::Get, "/path")).await?;
/// println!("{}", answer.json()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OpenCodeClient {
    shared: Arc<Shared>,
}

struct Shared {
    http: Arc<Http>,
    feeds: Feeds,
    shares_files: bool,
}

/// A request to any route.
#[derive(Debug, Clone)]
#[must_use]
pub struct RawRequest {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Value>,
}

/// The answer to a [`RawRequest`], whatever its status.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RawAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers, names in lower case; values that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl OpenCodeClient {
    /// A client with default settings and without credentials.
    ///
    /// # Errors
    /// If the address is not a plain `http` or `https` URL.
    pub fn new(base_url: &str) -> Result<Self, ApiError> {
        Self::builder(base_url).build()
    }

    /// Settings to make a client from; `base_url` is such as `http://127.0.0.1:4096`.
    pub fn builder(base_url: &str) -> ClientBuilder {
        ClientBuilder::new(base_url)
    }

    fn assemble(http: Http, feed: FeedOptions, shares_files: bool) -> Self {
        let feeds = Feeds::new(feed, Arc::clone(&http.counters));
        Self { shared: Arc::new(Shared { http: Arc::new(http), feeds, shares_files }) }
    }

    /// The same server, with subscriptions that end apart from those of this client.
    pub(crate) fn with_own_feeds(self) -> Self {
        let Shared { http, feeds, shares_files } = &*self.shared;
        let shared = Shared { http: Arc::clone(http), feeds: feeds.another(), shares_files: *shares_files };
        Self { shared: Arc::new(shared) }
    }

    /// Whether the server sees the same files as this program.
    pub(crate) fn shares_files(&self) -> bool {
        self.shared.shares_files
    }

    /// The calls and events of a directory.
    pub fn directory(&self, directory: &Directory) -> DirectoryClient {
        DirectoryClient { client: self.clone(), directory: Some(directory.clone()) }
    }

    /// The calls of the directory that the server was started in, or of whichever directory a session is in.
    pub fn default_directory(&self) -> DirectoryClient {
        DirectoryClient { client: self.clone(), directory: None }
    }

    /// Reads whether the server is well, and its version.
    ///
    /// # Errors
    /// As [`ApiError`] says; servers before 1.1 have no such route.
    pub async fn health(&self) -> Result<Health, ApiError> {
        let answer = self.http().read(&routes::HEALTH.call()).await?;
        api::decode(routes::HEALTH, &answer, |json| wire::from_json(routes::HEALTH.name, json))
    }

    /// Sends a request to a route that has no method here, once, and returns the answer whatever its status.
    ///
    /// # Errors
    /// As [`ApiError`] says, but never for a status.
    ///
    /// # Cancel safety
    /// The request may have been delivered when the call is dropped.
    pub async fn raw(&self, request: RawRequest) -> Result<RawAnswer, ApiError> {
        let mut call = Call::raw("send a request", request.method, &request.path);
        for (name, value) in request.query {
            call = call.query(name, value);
        }
        if let Some(body) = request.body {
            call = call.json(&body);
        }
        let answer = self.http().exchange(&call).await?;
        let text = |value: &HeaderValue| value.to_str().map(str::to_owned).ok();
        let headers = answer.headers.iter();
        Ok(RawAnswer {
            status: answer.status,
            headers: headers.filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect(),
            body: answer.body,
        })
    }

    /// What was done and seen since the client was made.
    pub fn statistics(&self) -> ClientStatistics {
        self.http().counters.snapshot()
    }

    /// The server's address.
    pub fn base_url(&self) -> String {
        self.http().endpoint().get().to_string()
    }

    /// Ends all subscriptions and waits for the background tasks. Requests still work; new subscriptions end at once.
    ///
    /// # Cancel safety
    /// Dropping the call does not take the shutdown back; a second call waits for the same end.
    pub async fn shutdown(&self) {
        self.shared.feeds.shutdown().await;
    }

    fn http(&self) -> &Arc<Http> {
        &self.shared.http
    }

    fn feeds(&self) -> &Feeds {
        &self.shared.feeds
    }

    /// Sends further requests to another address: a managed server was restarted.
    pub(crate) fn move_to(&self, base_url: &str) -> Result<(), InvalidInput> {
        self.http().endpoint().set(options::parse_base_url(base_url)?);
        Ok(())
    }
}

impl RawRequest {
    /// A request; the path starts with a slash and has no query.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), query: Vec::new(), body: None }
    }

    /// Adds a query parameter, not encoded.
    pub fn query(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Adds the directory, encoded as the server wants it.
    pub fn directory(self, directory: &Directory) -> Self {
        self.query("directory", call::directory_value(directory))
    }

    /// Adds a JSON body.
    pub fn json(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }
}

impl RawAnswer {
    /// The body as JSON.
    ///
    /// # Errors
    /// If it is not.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for OpenCodeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCodeClient").field("http", self.http()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod openapi_tests;

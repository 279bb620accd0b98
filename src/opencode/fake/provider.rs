//! How the server sees a failing provider.

use std::time::Duration;

use serde_json::{Value, json};

use super::options::Flavour;
use crate::test_util::ProviderError;

/// A failed attempt to get an answer from the model.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    error: ProviderError,
    body: Value,
}

/// What makes the server try again.
const TRANSIENT: [&str; 20] = [
    "429",
    "500",
    "502",
    "503",
    "504",
    "524",
    "rate limit",
    "rate_limit",
    "too many requests",
    "overloaded",
    "service unavailable",
    "internal error",
    "internal server error",
    "server error",
    "server_error",
    "fetch failed",
    "network error",
    "connection error",
    "econnreset",
    "resource exhausted",
];
/// What makes the server compact the session instead.
const OVERFLOW: [&str; 4] =
    ["maximum context length", "prompt is too long", "context_length_exceeded", "context window"];

impl Failure {
    pub(super) fn new(error: &ProviderError) -> Self {
        let default = || json!({"error": {"message": format!("scripted error {}", error.status)}});
        Self { error: error.clone(), body: error.body.clone().unwrap_or_else(default) }
    }

    /// An HTTP error comes instead of a stream; with status 200 it comes at the stream's end.
    pub(super) fn comes_first(&self) -> bool {
        self.error.status != 200
    }

    pub(super) fn is_overflow(&self) -> bool {
        let body = self.body.to_string().to_lowercase();
        self.error.status == 413 || OVERFLOW.iter().any(|words| body.contains(words))
    }

    /// Whether the server asks again. Old releases take an error inside a stream as final.
    pub(super) fn is_retried_by(&self, flavour: Flavour) -> bool {
        if flavour == Flavour::V1_1 && !self.comes_first() {
            return false;
        }
        let body = self.body.to_string().to_lowercase();
        self.is_retryable_status() || TRANSIENT.iter().any(|words| body.contains(words))
    }

    fn is_retryable_status(&self) -> bool {
        matches!(self.error.status, 408 | 409 | 429 | 500..)
    }

    pub(super) fn retry_message(&self) -> String {
        let message = self.message();
        if self.comes_first() && message.contains("Overloaded") {
            return "Provider is overloaded".to_owned();
        }
        message
    }

    fn message(&self) -> String {
        if !self.comes_first() {
            return self.error_chunk();
        }
        match self.body["error"]["message"].as_str() {
            Some(message) => message.to_owned(),
            None => self.body.to_string(),
        }
    }

    /// The error inside a stream, with its fields in the order the server gives them.
    fn error_chunk(&self) -> String {
        let error = &self.body["error"];
        let fields =
            ["message", "type", "param", "code"].into_iter().filter(|field| !error[*field].is_null());
        let fields: Vec<String> = fields.map(|field| format!("\"{field}\":{}", error[field])).collect();
        format!("{{{}}}", fields.join(","))
    }

    /// What the provider asks for, else twice as long every time.
    pub(super) fn retry_delay(&self, attempt: u32) -> Duration {
        let header = |name: &str| self.error.headers.get(name)?.parse::<f64>().ok();
        if let Some(ms) = header("retry-after-ms") {
            return Duration::from_secs_f64(ms.max(0.0) / 1000.0);
        }
        if let Some(seconds) = header("retry-after") {
            return Duration::from_secs_f64(seconds.max(0.0));
        }
        let base = 2.0 * f64::from(2_u32.pow(attempt.saturating_sub(1)));
        Duration::from_secs_f64(base * (1.0 + 0.25 * fastrand::f64()))
    }

    pub(super) fn to_json(&self) -> Value {
        let message = self.message();
        if self.is_overflow() {
            return json!({"name": "ContextOverflowError", "data": {"message": message, "responseBody": self.body.to_string()}});
        }
        if !self.comes_first() {
            return json!({"name": "UnknownError", "data": {"message": message}});
        }
        let mut headers = json!({"content-type": "application/json"});
        for (name, value) in &self.error.headers {
            headers[name] = value.as_str().into();
        }
        json!({"name": "APIError", "data": {
            "message": message, "statusCode": self.error.status, "isRetryable": self.is_retryable_status(),
            "responseHeaders": headers, "responseBody": self.body.to_string(),
            "metadata": {"url": "http://127.0.0.1/v1/chat/completions"},
        }})
    }
}

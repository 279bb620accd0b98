//! The server's answers and the shapes of its errors.

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use hyper::StatusCode;
use serde_json::{Value, json};

/// An answer before it is sent, so that a fault can still spoil it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: AnswerBody,
}

#[derive(Debug)]
pub(super) enum AnswerBody {
    Whole(Bytes),
    Stream(Body),
}

impl Answer {
    pub(super) fn json(value: &Value) -> Self {
        Self::with_status(200, value)
    }

    pub(super) fn with_status(status: u16, value: &Value) -> Self {
        Self {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            body: AnswerBody::Whole(Bytes::from(value.to_string())),
        }
    }

    pub(super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: AnswerBody::Whole(Bytes::new()) }
    }

    pub(super) fn stream(body: Body) -> Self {
        Self {
            status: 200,
            headers: vec![
                ("content-type", "text/event-stream".to_owned()),
                ("cache-control", "no-cache".to_owned()),
            ],
            body: AnswerBody::Stream(body),
        }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The web page that answers every unknown route.
    pub(super) fn html() -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "text/html".to_owned())],
            body: AnswerBody::Whole(Bytes::from_static(
                b"<!doctype html>\n<html lang=\"en\"><title>OpenCode</title></html>\n",
            )),
        }
    }

    pub(super) fn unsupported(content_type: &str) -> Self {
        Self {
            status: 415,
            headers: vec![("content-type", "text/plain".to_owned())],
            body: AnswerBody::Whole(Bytes::from(format!("Unsupported content-type: {content_type}"))),
        }
    }

    pub(super) fn unauthorized() -> Self {
        Self::empty(401).header("www-authenticate", "Basic realm=\"Secure Area\"")
    }

    pub(super) fn session_not_found(session: &str) -> Self {
        Self::not_found(&format!("Session not found: {session}"))
    }

    pub(super) fn not_found(message: &str) -> Self {
        Self::with_status(404, &json!({"name": "NotFoundError", "data": {"message": message}}))
    }

    pub(super) fn server_error() -> Self {
        let reference = format!("err_{:08x}", fastrand::u32(..));
        let message = "Unexpected server error. Check server logs for details.";
        Self::with_status(
            500,
            &json!({"name": "UnknownError", "data": {"message": message, "ref": reference}}),
        )
    }

    pub(super) fn bad_request(kind: &str, message: &str) -> Self {
        Self::with_status(400, &json!({"name": "BadRequest", "data": {"message": message, "kind": kind}}))
    }

    /// The shorter shape, of routes that check their input by hand.
    pub(super) fn bare_bad_request() -> Self {
        Self::with_status(400, &json!({"_tag": "BadRequest"}))
    }

    /// Bytes of a body that is known in whole.
    pub(super) fn len(&self) -> u64 {
        match &self.body {
            AnswerBody::Whole(bytes) => bytes.len() as u64,
            AnswerBody::Stream(_) => 0,
        }
    }

    pub(super) fn into_response(self) -> Response {
        let body = match self.body {
            AnswerBody::Whole(bytes) => Body::from(bytes),
            AnswerBody::Stream(body) => body,
        };
        let mut response = Response::new(body);
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in self.headers {
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

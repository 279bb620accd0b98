//! The server's front: connections, authentication, faults, the record of requests.

use std::{fmt, io, sync::Arc};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use base64::Engine;
use futures_util::{StreamExt, stream};
use hyper::{body::Incoming, header::HeaderMap, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Fault, RecordedRequest, Route, Shared,
    answer::{Answer, AnswerBody},
};

/// A request as the routes see it.
#[derive(Debug)]
pub(super) struct Call {
    /// The path's segments, decoded.
    pub(super) segments: Vec<String>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Its place in the record.
    pub(super) index: usize,
    /// What should go wrong while it is served.
    pub(super) fault: Option<Fault>,
}

impl Call {
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Refuses connections once it is dropped, also while a child process has a copy of the socket: one that was just forked, and has not begun
/// its program yet, has copies of all of them, and connections to it would be taken and broken instead of refused.
#[derive(Debug)]
struct Listening(TcpListener);

impl Drop for Listening {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Ok(copy) = std::os::fd::AsFd::as_fd(&self.0).try_clone_to_owned() {
            // Where a socket that listens cannot be shut down, it is closed at least.
            drop(std::net::TcpStream::from(copy).shutdown(std::net::Shutdown::Both));
        }
    }
}

/// The connection breaks instead of an answer.
#[derive(Debug)]
struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropped by the test")
    }
}

impl std::error::Error for Dropped {}

impl Shared {
    /// Accepts connections for as long as this life lasts.
    pub(super) fn serve(self: &Arc<Self>, listener: TcpListener) {
        let (shared, listening) = (Arc::clone(self), Listening(listener));
        self.spawn(async move {
            loop {
                if let Ok((socket, _)) = listening.0.accept().await {
                    shared.connect(socket);
                }
            }
        });
    }

    fn connect(self: &Arc<Self>, socket: TcpStream) {
        // A small write must not wait for the acknowledgement of the one before. If this fails, the fake is only slower.
        drop(socket.set_nodelay(true));
        let open = Open::new(self);
        let shared = Arc::clone(self);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let shared = Arc::clone(&shared);
            async move { shared.handle(request).await }
        });
        self.spawn(async move {
            let _open = open;
            let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            // A client that goes away is nothing to report.
            drop(connection.await);
        });
    }

    async fn handle(self: &Arc<Self>, request: hyper::Request<Incoming>) -> Result<Response, Dropped> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let raw_query = parts.uri.query().unwrap_or_default().to_owned();
        let segments: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect();
        let route = Route::of(&parts.method, &segments);
        let index = self.recorder.change(|log| {
            log.push_request(RecordedRequest {
                method: parts.method.to_string(),
                path: path.clone(),
                query: raw_query.clone(),
                route,
                status: None,
                bytes_in: 0,
                bytes_out: 0,
            })
        });
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.map_err(|_unread| Dropped)?;
        self.note(index, |request| request.bytes_in = body.len() as u64);
        let mut call = Call {
            segments,
            query: parse_query(&raw_query),
            headers: parts.headers,
            body,
            index,
            fault: None,
        };
        if !self.is_allowed(&call) {
            return Ok(self.send(index, Answer::unauthorized()));
        }
        call.fault = self.faults.strike(route, &format!("{path}?{raw_query}"));
        let fault = call.fault.clone();
        match &fault {
            Some(Fault::DelayUntil(gate)) => self.pass_gate(gate).await,
            Some(Fault::DropBeforeEffect) => return Err(Dropped),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Status(status)) => {
                let mut answer = Answer::server_error();
                answer.status = *status;
                return Ok(self.send(index, answer));
            }
            Some(Fault::Html) => return Ok(self.send(index, Answer::html())),
            _ => {}
        }
        let mut answer = self.route(route, call).await;
        match fault {
            Some(Fault::HoldAnswerUntil(gate)) => self.pass_gate(&gate).await,
            Some(Fault::DropAfterEffect) => return Err(Dropped),
            Some(Fault::StatusAfterEffect(status)) => {
                answer = Answer::empty(status);
            }
            Some(Fault::TruncateBody(limit)) => answer = truncate(answer, limit),
            _ => {}
        }
        Ok(self.send(index, answer))
    }

    fn send(&self, index: usize, answer: Answer) -> Response {
        let (status, bytes) = (answer.status, answer.len());
        self.note(index, |request| {
            request.status = Some(status);
            request.bytes_out += bytes;
        });
        answer.into_response()
    }

    fn note(&self, index: usize, note: impl FnOnce(&mut RecordedRequest)) {
        self.recorder.change(|log| {
            if let Some(request) = log.request_mut(index) {
                note(request);
            }
        });
    }

    fn is_allowed(&self, call: &Call) -> bool {
        let Some(password) = &self.options.password else {
            return true;
        };
        let wanted = base64::engine::general_purpose::STANDARD.encode(format!("opencode:{password}"));
        let basic = call.header("authorization").and_then(|value| value.strip_prefix("Basic "));
        basic == Some(&wanted) || call.query("auth_token") == Some(&wanted)
    }
}

/// Announces the whole body and breaks off before its end.
fn truncate(answer: Answer, limit: usize) -> Answer {
    let AnswerBody::Whole(bytes) = &answer.body else {
        return answer;
    };
    let length = bytes.len();
    let start = bytes.slice(..limit.min(length));
    let broken = || io::Error::new(io::ErrorKind::ConnectionReset, "truncated by the test");
    let breaking = async move {
        // Lets the connection write out what came before, which it would drop with the error.
        tokio::task::yield_now().await;
        Err(broken())
    };
    let chunks = stream::iter([Ok(start)]).chain(stream::once(breaking));
    Answer { body: AnswerBody::Stream(Body::from_stream(chunks)), ..answer }
        .header("content-length", length.to_string())
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

/// Counts a connection for as long as it lives.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.recorder.change(|log| {
            log.connections += 1;
            log.open_connections += 1;
        });
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.recorder.change(|log| log.open_connections -= 1);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_listens_any_more_although_a_child_has_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _of_a_child = std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned().unwrap();
        let listening = Listening(listener);
        TcpStream::connect(address).await.unwrap();
        drop(listening);
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}

//! A server whose every byte the test decides: connections are taken, answered and cut by the test itself.

use opencode_conductor::{Directory, DirectoryClient, FeedOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{secrets, soon};

pub(crate) struct LiveServer {
    listener: TcpListener,
}

/// A request whose answer is up to the test.
pub(crate) struct Connection {
    stream: TcpStream,
    /// The request line and the headers.
    pub(crate) head: String,
}

impl LiveServer {
    pub(crate) async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// A client of this server in the directory `/d`.
    pub(crate) fn client(&self, options: FeedOptions) -> DirectoryClient {
        let client = secrets::client(&self.url()).feed(options).build().unwrap();
        client.directory(&Directory::new("/d").unwrap())
    }

    /// The next connection, once its request is complete.
    pub(crate) async fn accept(&self) -> Connection {
        let (mut stream, _) = soon(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(stream.read_u8()).await.unwrap());
        }
        Connection { stream, head: String::from_utf8(head).unwrap() }
    }

    /// The next connection as an event stream that is open.
    pub(crate) async fn accept_events(&self) -> Connection {
        let mut connection = self.accept().await;
        connection.begin_events().await;
        connection.event(r#"{"type":"server.connected","properties":{}}"#).await;
        connection
    }
}

impl Connection {
    /// Answers with the head of an event stream.
    pub(crate) async fn begin_events(&mut self) {
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await;
    }

    pub(crate) async fn event(&mut self, json: &str) {
        self.chunk(format!("data: {json}\n\n").as_bytes()).await;
    }

    pub(crate) async fn idle(&mut self, session: &str) {
        self.event(&idle(session)).await;
    }

    /// Sends bytes of the stream as one HTTP chunk.
    pub(crate) async fn chunk(&mut self, bytes: &[u8]) {
        let mut frame = format!("{:x}\r\n", bytes.len()).into_bytes();
        frame.extend_from_slice(bytes);
        frame.extend_from_slice(b"\r\n");
        self.write(&frame).await;
    }

    /// Ends the stream as a server does that has nothing more to say.
    pub(crate) async fn finish(mut self) {
        self.write(b"0\r\n\r\n").await;
    }

    /// Answers in full and closes.
    pub(crate) async fn answer(mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        self.write(text.as_bytes()).await;
    }

    /// Waits until the client has closed, and fails if it says anything before.
    pub(crate) async fn closed(mut self) {
        let mut buffer = [0; 64];
        let end = soon(self.stream.read(&mut buffer)).await;
        assert!(matches!(end, Ok(0) | Err(_)), "the client said more");
    }

    /// Reads, and ignores, whatever the client says until it closes.
    pub(crate) async fn gone(&mut self) {
        let mut buffer = [0; 4096];
        while soon(self.stream.read(&mut buffer)).await.is_ok_and(|count| count > 0) {}
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        soon(self.stream.write_all(bytes)).await.unwrap();
    }
}

/// An event that a session has become idle.
pub(crate) fn idle(session: &str) -> String {
    format!(r#"{{"type":"session.idle","properties":{{"sessionID":"{session}"}}}}"#)
}

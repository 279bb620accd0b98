//! The password is nowhere but on the wire: not in errors, not in `Debug`, not in logs, not even at trace level.

use std::{
    fmt::Debug,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use opencode_conductor::{
    Directory, FeedOptions, LaunchOptions, MessagePage, Method, OpenCodeClient, OpenCodeServer, RawRequest,
    SessionId,
};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};

use crate::support::{
    live::LiveServer,
    secrets::{ENCODED, PASSWORD},
    soon,
};

/// Everything that was ever shown.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    fn debug(&self, value: &impl Debug) {
        self.0.lock().unwrap().extend(format!("{value:?}\n{value:#?}\n").into_bytes());
    }

    /// An error with all its causes.
    fn error(&self, error: &(dyn std::error::Error + 'static)) {
        self.debug(&error);
        let mut cause = Some(error);
        while let Some(error) = cause {
            self.debug(&error.to_string());
            cause = error.source();
        }
    }
}

impl io::Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_password_is_never_shown() {
    let shown = Shown::default();
    let writer = shown.clone();
    let logs = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let _guard = tracing::subscriber::set_default(logs);
    let session = SessionId::new("ses_1");

    // Every kind of failure of a request.
    let api = MockServer::start().await;
    let html = ResponseTemplate::new(200).set_body_raw("<html>", "text/html");
    Mock::given(path("/session/ses_1/children")).respond_with(html).mount(&api).await;
    let shape = ResponseTemplate::new(200).set_body_raw("[{}]", "application/json");
    Mock::given(path("/session/ses_1")).respond_with(shape.clone()).mount(&api).await;
    Mock::given(path("/session/ses_1/message")).respond_with(shape).mount(&api).await;
    let large = ResponseTemplate::new(200).set_body_raw("x".repeat(20_000), "application/json");
    Mock::given(path("/config")).respond_with(large).mount(&api).await;
    Mock::given(path("/global/health")).respond_with(ResponseTemplate::new(401)).mount(&api).await;
    let builder = OpenCodeClient::builder(&api.uri()).basic_auth("opencode", PASSWORD).body_limit(10_000);
    shown.debug(&builder);
    let client = builder.build().unwrap();
    let directory = client.directory(&Directory::new("/d").unwrap());
    shown.debug(&client);
    shown.debug(&directory);
    shown.error(&client.health().await.unwrap_err());
    shown.error(&directory.children(&session).await.unwrap_err());
    shown.error(&directory.session(&session).await.unwrap_err());
    shown.error(&directory.config().await.unwrap_err());
    shown.error(&directory.abort(&SessionId::new("")).await.unwrap_err());
    shown.error(&directory.session_status().await.unwrap_err());
    shown.debug(&directory.messages(&session, &MessagePage::all()).await.unwrap());
    shown.debug(&client.raw(RawRequest::new(Method::Get, "/global/health")).await.unwrap());
    shown.debug(&client.statistics());
    let received = api.received_requests().await.unwrap();
    assert!(
        received
            .iter()
            .all(|request| request.headers["authorization"] == format!("Basic {ENCODED}").as_str())
    );

    // Transport failures, and the feed through a loss.
    let live = LiveServer::start().await;
    let builder = OpenCodeClient::builder(&live.url()).basic_auth("opencode", PASSWORD);
    let feed = FeedOptions::new().backoff(Duration::from_millis(1), Duration::from_millis(1));
    let client = builder.feed(feed).read_attempts(1).build().unwrap();
    let (broken, ()) = tokio::join!(soon(client.health()), async { drop(live.accept().await) });
    shown.error(&broken.unwrap_err());
    let mut subscription = client.default_directory().subscribe_all();
    drop(live.accept_events().await);
    live.accept().await.answer("403 Forbidden", "", "").await;
    for _ in 0..3 {
        shown.debug(&soon(subscription.next()).await);
    }
    shown.debug(&subscription);
    // Where no server is.
    let nobody = OpenCodeClient::builder("http://127.0.0.1:1").basic_auth("opencode", PASSWORD);
    shown.error(&nobody.read_attempts(1).build().unwrap().health().await.unwrap_err());

    // Addresses that hold it.
    for url in [
        format!("http://opencode:{PASSWORD}@127.0.0.1"),
        format!("http://127.0.0.1?t={PASSWORD}"),
        format!("{PASSWORD}:"),
    ] {
        shown.debug(&OpenCodeClient::builder(&url));
        shown.error(&OpenCodeClient::new(&url).unwrap_err());
    }

    // A managed server that tells it, and then fails.
    let script = tempfile::tempdir().unwrap();
    std::fs::write(script.path().join("serve"), "echo $OPENCODE_SERVER_PASSWORD >&2; exit 1").unwrap();
    let options = LaunchOptions::new()
        .executable("/bin/sh")
        .directory(script.path())
        .env("KEY", PASSWORD)
        .config(serde_json::json!({"key": PASSWORD}))
        .password(PASSWORD);
    shown.debug(&options);
    shown.error(&soon(OpenCodeServer::launch(options)).await.unwrap_err());

    let shown = String::from_utf8_lossy(&shown.0.lock().unwrap()).into_owned();
    for (text, what) in
        [("[password]", "the server's words"), ("event stream lost", "logs"), ("403", "errors")]
    {
        assert!(shown.contains(text), "{what} are among what is searched");
    }
    for secret in [PASSWORD, ENCODED] {
        let found = shown.lines().find(|line| line.contains(secret));
        assert_eq!(found, None);
    }
}

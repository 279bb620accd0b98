//! Requests, answers and errors, one at a time.

use std::{error::Error as _, time::Duration};

use opencode_conductor::{
    ApiError, ApiErrorKind, CheckError, ConversationManager, Cursor, Delivery, Directory, DirectoryClient,
    FeedOptions, MessageId, MessagePage, Method, OpenCodeClient, PartId, RawRequest, RequestId,
    SessionFilter, SessionId,
    wire::{CreateSession, PermissionReply, PromptPart, PromptRequest, SessionStatus, UpdateSession},
};
use serde_json::{Value, json};
use wiremock::{
    Mock, MockServer, Request, ResponseTemplate,
    matchers::{any, body_json, method, path, query_param},
};

use crate::support::{live::LiveServer, secrets, soon};

/// Where no server is: a port that was free a moment ago may be another test's by now, and this one is given to none.
const NOBODY: &str = "http://127.0.0.1:1";

fn directory(path: &str) -> Directory {
    Directory::new(path).unwrap()
}

fn session() -> SessionId {
    SessionId::new("ses_1")
}

fn prompt(text: &str) -> PromptRequest {
    let part = PromptPart::Text { id: PartId::new("prt_1"), text: text.to_owned() };
    PromptRequest::new(MessageId::new("msg_1"), vec![part])
}

fn client(server: &MockServer) -> DirectoryClient {
    let builder = secrets::client(&server.uri())
        .answer_timeout(Duration::from_secs(20))
        .read_backoff(Duration::from_millis(1), Duration::from_secs(2));
    builder.build().unwrap().directory(&directory("/a b/100%/\u{e9}"))
}

async fn answering(response: ResponseTemplate) -> (MockServer, DirectoryClient) {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(response).mount(&server).await;
    let client = client(&server);
    (server, client)
}

fn ok(body: Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

/// What was sent, in short: method, path, query without the directory, body.
fn sent(request: &Request) -> String {
    let query: Vec<_> = request
        .url
        .query_pairs()
        .filter(|(name, _)| name != "directory")
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let body = String::from_utf8_lossy(&request.body);
    format!("{} {} {} {body}", request.method, request.url.path(), query.join("&")).trim_end().to_owned()
}

#[tokio::test]
async fn every_call_uses_its_route_names_the_directory_and_authenticates() {
    let (server, client) = answering(ok(json!([]))).await;
    let (session, request) = (session(), RequestId::new("per_1"));
    let mut create = CreateSession::default();
    create.title = Some("T".to_owned());
    let mut update = UpdateSession::default();
    update.title = Some("U".to_owned());
    let mut filter = SessionFilter::default();
    filter.roots = true;
    filter.search = Some("x y".to_owned());
    let before = MessagePage::newest(5).before(Cursor::new("abc="));

    // Whether the empty list is a good answer to each does not matter here.
    drop(client.create_session(&create).await);
    drop(client.session(&session).await);
    drop(client.sessions(&filter).await);
    drop(client.update_session(&session, &update).await);
    drop(client.delete_session(&session).await);
    drop(client.children(&session).await);
    drop(client.messages(&session, &MessagePage::all()).await);
    drop(client.messages(&session, &before).await);
    drop(client.prompt_async(&session, &prompt("hi")).await);
    drop(client.abort(&session).await);
    drop(client.session_status().await);
    drop(client.permissions().await);
    drop(client.reply_permission(&request, PermissionReply::Once).await);
    drop(client.reject_permission(&request, "no").await);
    drop(client.reply_permission_by_old_route(&session, &request, PermissionReply::Always).await);
    drop(client.questions().await);
    drop(client.reply_question(&request, &[vec!["pg".to_owned()]]).await);
    drop(client.config().await);
    drop(client.providers().await);
    drop(client.dispose().await);

    let requests = server.received_requests().await.unwrap();
    let text = requests.iter().map(sent).collect::<Vec<_>>().join("\n");
    expect_test::expect![[r#"
        POST /session  {"title":"T"}
        GET /session/ses_1
        GET /session search=x y&roots=true
        PATCH /session/ses_1  {"title":"U"}
        DELETE /session/ses_1
        GET /session/ses_1/children
        GET /session/ses_1/message
        GET /session/ses_1/message limit=5&before=abc=
        POST /session/ses_1/prompt_async  {"messageID":"msg_1","parts":[{"type":"text","id":"prt_1","text":"hi"}]}
        POST /session/ses_1/abort
        GET /session/status
        GET /permission
        POST /permission/per_1/reply  {"reply":"once"}
        POST /permission/per_1/reply  {"message":"no","reply":"reject"}
        POST /session/ses_1/permissions/per_1  {"response":"always"}
        GET /question
        POST /question/per_1/reply  {"answers":[["pg"]]}
        GET /config
        GET /config/providers
        POST /instance/dispose"#]]
    .assert_eq(&text);
    for request in &requests {
        let named: Vec<_> = request.url.query_pairs().filter(|(name, _)| name == "directory").collect();
        // Decoded once; the server decodes percent signs once more.
        assert_eq!(named, [("directory".into(), "/a b/100%25/\u{e9}".into())], "{}", request.url);
        assert_eq!(request.headers["authorization"], format!("Basic {}", secrets::ENCODED).as_str());
        assert_eq!(request.headers["accept"], "application/json");
        let has_type = request.headers.get("content-type").is_some_and(|kind| kind == "application/json");
        assert_eq!(has_type, !request.body.is_empty());
    }
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let (server, client) = answering(ok(json!({}))).await;
    let empty = PromptRequest::new(MessageId::new("msg_1"), Vec::new());
    let no_limit = MessagePage::all().before(Cursor::new("x"));
    let refused: Vec<(ApiError, &str)> = vec![
        (
            client.session(&SessionId::new("")).await.unwrap_err(),
            "cannot read a session: sessionID must not be empty",
        ),
        (
            client.abort(&SessionId::new("ses_\n")).await.unwrap_err(),
            "cannot abort a session: sessionID must not contain control characters",
        ),
        (
            client.abort(&SessionId::new("x")).await.unwrap_err(),
            "cannot abort a session: sessionID must start with `ses`",
        ),
        (
            client.abort(&SessionId::new("..")).await.unwrap_err(),
            "cannot abort a session: sessionID must not be a relative path",
        ),
        (
            client.prompt_async(&session(), &empty).await.unwrap_err(),
            "cannot submit a prompt: prompt must not be empty",
        ),
        (
            client.prompt_async(&session(), &prompt(" \n")).await.unwrap_err(),
            "cannot submit a prompt: prompt must not be empty",
        ),
        (
            client.messages(&session(), &no_limit).await.unwrap_err(),
            "cannot list messages: page must have a limit where it has a cursor",
        ),
        (
            client.client().raw(RawRequest::new(Method::Get, "doc")).await.unwrap_err(),
            "cannot send a request: path must start with a slash and have no query",
        ),
    ];
    for (error, message) in refused {
        assert_eq!(error.to_string(), message);
        assert_eq!((error.delivery(), error.is_retryable()), (Delivery::NotSent, false));
    }
    assert!(server.received_requests().await.unwrap().is_empty());
    assert_eq!(client.client().statistics().requests, 0);
}

#[test]
fn bad_addresses_are_refused_without_being_repeated() {
    for (url, rule) in [
        ("", "must be a valid URL"),
        ("127.0.0.1:4096", "must be a valid URL"),
        ("ftp://127.0.0.1", "must start with http:// or https:// and name a host"),
        ("http://opencode:geheim@127.0.0.1", "must not contain credentials: give them to `basic_auth`"),
        ("http://127.0.0.1/?auth_token=geheim", "must not have a query or a fragment"),
    ] {
        let error = OpenCodeClient::new(url).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot set up the client: base url {rule}"), "{url}");
        let builder = format!("{:?}", OpenCodeClient::builder(url));
        assert!(!builder.contains("geheim"), "{builder}");
    }
    let error = OpenCodeClient::builder("http://127.0.0.1").basic_auth("a:b", "c").build().unwrap_err();
    assert_eq!(error.to_string(), "cannot set up the client: user must not contain a colon");
}

#[tokio::test]
async fn the_callers_headers_go_with_every_request_and_are_never_shown() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(401)).mount(&server).await;
    let builder = OpenCodeClient::builder(&server.uri())
        .header("X-Gateway", "replaced")
        .header("x-gateway", secrets::PASSWORD)
        .header("authorization", format!("Bearer {}", secrets::ENCODED));
    secrets::check(&builder);
    let client = builder.build().unwrap();
    secrets::check(&client);
    secrets::checked(client.health().await).unwrap_err();
    secrets::checked(client.default_directory().prompt_async(&session(), &prompt("x")).await).unwrap_err();
    let mut events = client.default_directory().subscribe_all();
    soon(events.next()).await;
    let requests = server.received_requests().await.unwrap();
    let paths: Vec<&str> = requests.iter().map(|request| request.url.path()).collect();
    assert_eq!(paths, ["/global/health", "/session/ses_1/prompt_async", "/event"]);
    for request in &requests {
        assert_eq!(request.headers.get_all("x-gateway").iter().collect::<Vec<_>>(), [secrets::PASSWORD]);
        assert_eq!(request.headers["authorization"], format!("Bearer {}", secrets::ENCODED));
    }
}

#[test]
fn bad_headers_are_refused_without_being_repeated() {
    let name = "header must have the name of an HTTP header";
    let value = "header must have a value that HTTP allows";
    let own = "header must not be one that the client sets itself";
    for (header, with, rule) in [
        ("two words", "geheim", name),
        ("", "geheim", name),
        ("x-a", "geheim\r\nx-b: 1", value),
        ("Content-Type", "text/plain", own),
        ("accept", "*/*", own),
    ] {
        let builder = OpenCodeClient::builder("http://127.0.0.1").header(header, with);
        let error = builder.build().unwrap_err();
        assert_eq!(error.to_string(), format!("cannot set up the client: {rule}"), "{header}");
        assert!(!format!("{error:?}").contains("geheim"), "{error:?}");
    }
    let both = OpenCodeClient::builder("http://127.0.0.1").basic_auth("a", "b").header("authorization", "c");
    let error = both.build().unwrap_err().to_string();
    assert_eq!(error, "cannot set up the client: header must not be `authorization` beside `basic_auth`");
}

#[tokio::test]
async fn a_client_of_ones_own_sends_the_requests() {
    let server = MockServer::start().await;
    let health = json!({"healthy": true, "version": "1.2.3"});
    Mock::given(path("/global/health")).respond_with(ok(health)).mount(&server).await;
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert("x-own", secrets::PASSWORD.parse().unwrap());
    let own = reqwest::Client::builder().no_proxy().default_headers(headers).build().unwrap();
    let builder = secrets::client(&server.uri()).http_client(own.clone());
    secrets::check(&builder);
    let client = builder.build().unwrap();
    secrets::check(&client);
    client.health().await.unwrap();
    assert_eq!(client.statistics().requests, 1);
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests[0].headers["x-own"], secrets::PASSWORD);
    assert_eq!(requests[0].headers["authorization"], format!("Basic {}", secrets::ENCODED));
    // It may know how to speak TLS even if this crate does not.
    OpenCodeClient::builder("https://opencode.example").http_client(own).build().unwrap();
}

#[tokio::test]
async fn a_check_says_what_is_wrong() {
    let page = ResponseTemplate::new(200).set_body_raw("<!doctype html>", "text/html");
    let healthy = ok(json!({"healthy": true, "version": "1.2.3"}));
    let checked = async |health: ResponseTemplate, status: ResponseTemplate| {
        let server = MockServer::start().await;
        Mock::given(path("/global/health")).respond_with(health).mount(&server).await;
        Mock::given(path("/session/status")).respond_with(status).mount(&server).await;
        let manager = secrets::connect(&server.uri());
        let result = secrets::checked(soon(manager.check()).await);
        result.map_err(|error| (error.to_string().replace(&server.uri(), "URL"), error))
    };
    assert_eq!(checked(healthy, page.clone()).await.unwrap().as_deref(), Some("1.2.3"));
    // Before 1.1.
    for no_route in [page.clone(), ResponseTemplate::new(500)] {
        assert_eq!(checked(no_route, ok(json!({}))).await.unwrap(), None);
    }
    for status in [401, 403] {
        let refusal = ResponseTemplate::new(status);
        let (message, error) = checked(refusal.clone(), refusal).await.unwrap_err();
        assert!(matches!(error, CheckError::Unauthorized { .. }), "{error:?}");
        assert!(message.starts_with("the server at URL/ refuses the credentials"), "{message}");
        assert!(message.ends_with("give it to ClientBuilder::basic_auth"), "{message}");
        assert!(!error.is_retryable());
    }
    for other in [page, ok(json!({"hello": "world"})), ResponseTemplate::new(418)] {
        let (_, error) = checked(other.clone(), other).await.unwrap_err();
        assert!(matches!(error, CheckError::NotOpenCode { .. }), "{error:?}");
    }
    let error = secrets::connect(NOBODY).check().await.unwrap_err();
    assert!(matches!(error, CheckError::Unreachable { .. }), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(
        error.to_string(),
        "cannot reach a server at http://127.0.0.1:1/: does `opencode serve` run there, and is the address right?"
    );
    assert_eq!(
        error.source().unwrap().to_string(),
        "cannot read the server's health: cannot connect to the server"
    );
}

#[tokio::test]
async fn to_connect_is_to_ask_the_server() {
    secrets::watch_logs();
    let server = MockServer::start().await;
    let health = ok(json!({"healthy": true, "version": "1.2.3"}));
    Mock::given(path("/global/health")).respond_with(health).mount(&server).await;
    let manager = soon(ConversationManager::connect(&server.uri())).await.unwrap();
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    assert_eq!(manager.client().unwrap().statistics().requests, 1);

    server.reset().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(401)).mount(&server).await;
    let error = soon(ConversationManager::connect(&server.uri())).await.unwrap_err();
    assert!(matches!(error, CheckError::Unauthorized { .. }), "{error:?}");

    let address = format!("ftp://opencode:{}@localhost", secrets::PASSWORD);
    for address in ["nowhere", "http://", &address] {
        let error = secrets::checked(ConversationManager::connect(address).await).unwrap_err();
        assert!(matches!(error, CheckError::Invalid(_)), "{error:?}");
        assert!(!error.is_retryable());
        assert!(opencode_conductor::error_chain(&error).contains("base url must"), "{error:?}");
    }
}

#[tokio::test]
async fn ids_cannot_leave_their_place_in_the_path_and_a_base_path_is_kept() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ok(json!({"id": "ses_1"}))).mount(&server).await;
    let client = secrets::client(&format!("{}/proxy", server.uri())).build().unwrap().default_directory();
    client.session(&SessionId::new("ses_/../a?b#c%2F d")).await.unwrap();
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests[0].url.path(), "/proxy/session/ses_%2F..%2Fa%3Fb%23c%252F%20d");
    assert_eq!(requests[0].url.query(), None);
}

#[tokio::test]
async fn a_refusal_keeps_the_servers_own_words() {
    let rows = [
        (
            404,
            json!({"name":"NotFoundError","data":{"message":"Session not found: ses_1"}}),
            "cannot abort a session: the server answered 404 NotFoundError: Session not found: ses_1",
            Delivery::Rejected,
        ),
        (
            500,
            json!({"name":"UnknownError","data":{"message":"Unexpected","ref":"err_7"}}),
            "cannot abort a session: the server answered 500 UnknownError: Unexpected (err_7)",
            Delivery::Unknown,
        ),
        (
            404,
            json!({"_tag":"PermissionNotFoundError","message":"gone"}),
            "cannot abort a session: the server answered 404 PermissionNotFoundError: gone",
            Delivery::Rejected,
        ),
        (400, json!([1]), "cannot abort a session: the server answered 400", Delivery::Rejected),
        (408, json!({}), "cannot abort a session: the server answered 408", Delivery::Unknown),
        (302, json!({}), "cannot abort a session: the server answered 302", Delivery::Unknown),
    ];
    for (status, body, message, delivery) in rows {
        let (_server, client) = answering(ResponseTemplate::new(status).set_body_json(body)).await;
        let error = client.abort(&session()).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.delivery()), (message, delivery));
        assert_eq!((error.status(), error.operation()), (Some(status), "abort a session"));
        assert_eq!(error.is_retryable(), matches!(status, 408 | 500), "{status}");
    }
    let text = ResponseTemplate::new(415).set_body_string("Unsupported");
    let (_server, client) = answering(text).await;
    let error = client.abort(&session()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot abort a session: the server answered 415: Unsupported");
}

#[tokio::test]
async fn a_page_instead_of_json_is_recognised() {
    let page = ResponseTemplate::new(200).set_body_raw("<!doctype html>", "text/html;charset=UTF-8");
    let (_server, client) = answering(page).await;
    let read = client.session(&session()).await.unwrap_err();
    let act = client.abort(&session()).await.unwrap_err();
    let submit = client.prompt_async(&session(), &prompt("hi")).await.unwrap_err();
    for error in [read, act, submit] {
        assert!(matches!(error.kind(), ApiErrorKind::NotJson { status: 200, html: true, .. }), "{error:?}");
        assert!(
            error.to_string().ends_with("with text/html;charset=utf-8, not JSON: it has no such route"),
            "{error}"
        );
        assert_eq!(error.delivery(), Delivery::Rejected);
    }
}

#[tokio::test]
async fn json_of_another_shape_is_an_error_that_names_the_place() {
    let (_server, client) = answering(ok(json!({"id": 7}))).await;
    let error = client.session(&session()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read a session: the answer cannot be understood");
    assert_eq!(error.source().unwrap().to_string(), "malformed read a session at `id`");
    assert_eq!(error.delivery(), Delivery::Unknown);
}

#[tokio::test]
async fn an_answer_has_a_size_limit() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ok(json!({"id": "x".repeat(2000)}))).mount(&server).await;
    let client = secrets::client(&server.uri()).body_limit(1000).build().unwrap().default_directory();
    let error = client.session(&session()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read a session: the answer is larger than 1000 bytes");

    // Without a length the limit holds while reading.
    let live = LiveServer::start().await;
    let client = secrets::client(&live.url()).body_limit(1000).build().unwrap().default_directory();
    let id = session();
    let (error, ()) = tokio::join!(soon(client.session(&id)), async {
        let mut connection = live.accept().await;
        connection
            .write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        connection.chunk(&[b' '; 999]).await;
        connection.chunk(b"  ").await;
        connection.closed().await;
    });
    assert!(matches!(error.unwrap_err().kind(), ApiErrorKind::TooLarge { limit: 1000, .. }));
}

#[tokio::test]
async fn reads_are_repeated_as_the_server_asks_and_effects_are_not() {
    let server = MockServer::start().await;
    let failing = ResponseTemplate::new(503).insert_header("retry-after", "0");
    Mock::given(method("GET")).respond_with(failing.clone()).up_to_n_times(2).mount(&server).await;
    Mock::given(method("GET")).respond_with(ok(json!({"ses_1": {"type": "busy"}}))).mount(&server).await;
    Mock::given(method("POST")).respond_with(failing).mount(&server).await;
    let client = client(&server);
    let status = client.session_status().await.unwrap();
    assert_eq!(*status.get(&session()), SessionStatus::Busy);
    assert_eq!(client.abort(&session()).await.unwrap_err().status(), Some(503));
    assert_eq!(
        client.prompt_async(&session(), &prompt("hi")).await.unwrap_err().delivery(),
        Delivery::Unknown
    );
    assert_eq!(server.received_requests().await.unwrap().len(), 5);
    let statistics = client.client().statistics();
    assert_eq!((statistics.requests, statistics.retries), (5, 2));
}

#[tokio::test]
async fn a_read_gives_up_after_its_attempts_or_when_told_to_wait_too_long() {
    let (server, client) = answering(ResponseTemplate::new(500)).await;
    assert_eq!(client.session_status().await.unwrap_err().status(), Some(500));
    assert_eq!(server.received_requests().await.unwrap().len(), 3);
    let patient = ResponseTemplate::new(429).insert_header("retry-after", "3600");
    let (server, client) = answering(patient).await;
    let error = client.session_status().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    let (server, client) = answering(ResponseTemplate::new(404)).await;
    assert!(client.session_status().await.unwrap_err().is_not_found());
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn it_is_known_whether_a_prompt_may_have_arrived() {
    let submit = async |url: &str, serve: &dyn AsyncServe| {
        let builder = secrets::client(url)
            .answer_timeout(Duration::from_millis(100))
            .read_timeout(Duration::from_millis(100));
        let client = builder.build().unwrap().default_directory();
        let (id, prompt) = (session(), prompt("hi"));
        let (result, ()) = tokio::join!(soon(client.prompt_async(&id, &prompt)), serve.serve());
        result.unwrap_err()
    };
    let error = submit(NOBODY, &Nothing).await;
    assert_eq!((error.delivery(), error.is_retryable()), (Delivery::NotSent, true));
    assert!(matches!(error.kind(), ApiErrorKind::Connect(_)) && error.source().is_some(), "{error:?}");

    for how in [How::Mute, How::Reset, How::Truncate, How::Stall] {
        let server = LiveServer::start().await;
        let error = submit(&server.url(), &(&server, how)).await;
        assert_eq!((error.delivery(), error.is_retryable()), (Delivery::Unknown, true), "{how:?} {error:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum How {
    Mute,
    Reset,
    Truncate,
    Stall,
}

struct Nothing;

trait AsyncServe {
    fn serve(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>>;
}

impl AsyncServe for Nothing {
    fn serve(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(std::future::ready(()))
    }
}

impl AsyncServe for (&LiveServer, How) {
    fn serve(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            let mut connection = self.0.accept().await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\ntr";
            match self.1 {
                How::Reset => {}
                How::Mute => connection.gone().await,
                How::Truncate => connection.write(head).await,
                How::Stall => {
                    connection.write(head).await;
                    connection.gone().await;
                }
            }
        })
    }
}

#[tokio::test]
async fn lists_survive_a_bad_element_and_pages_lead_to_older_ones() {
    let server = MockServer::start().await;
    let message = |id: &str| json!({"info": {"id": id, "sessionID": "ses_1", "role": "user", "time": {"created": 1}}, "parts": []});
    let older = ok(json!([message("msg_1")]));
    Mock::given(query_param("before", "older")).respond_with(older).mount(&server).await;
    let newest = ok(json!([message("msg_2"), {"info": {"role": "user"}}, message("msg_3")]));
    Mock::given(path("/session/ses_1/message"))
        .respond_with(newest.insert_header("X-Next-Cursor", "older"))
        .mount(&server)
        .await;
    let client = client(&server);
    let ids = |list: &opencode_conductor::MessageList| -> Vec<String> {
        list.messages.iter().map(|message| message.info.id().to_string()).collect()
    };
    let list = client.messages(&session(), &MessagePage::newest(3)).await.unwrap();
    assert_eq!((ids(&list), list.complete), (vec!["msg_2".to_owned(), "msg_3".to_owned()], false));
    assert_eq!(list.malformed.len(), 1);
    assert_eq!(list.malformed[0].path(), "[1].info");
    let page = MessagePage::newest(3).before(list.next.unwrap());
    let list = client.messages(&session(), &page).await.unwrap();
    assert_eq!((ids(&list), list.complete, list.next), (vec!["msg_1".to_owned()], true, None));
    // Full without a cursor: an old server may have more.
    let page = MessagePage::newest(1).before(Cursor::new("older"));
    assert!(!client.messages(&session(), &page).await.unwrap().complete);
}

#[tokio::test]
async fn a_prompt_is_accepted_with_204_only_bytes_are_counted_and_raw_reaches_the_rest() {
    let server = MockServer::start().await;
    Mock::given(path("/session/ses_1/prompt_async"))
        .respond_with(ResponseTemplate::new(204))
        .expect(1)
        .mount(&server)
        .await;
    let response =
        ResponseTemplate::new(418).insert_header("X-Tea", "yes").set_body_json(json!({"tea": true}));
    Mock::given(path("/other"))
        .and(query_param("a b", "c"))
        .and(body_json(json!([1])))
        .respond_with(response)
        .mount(&server)
        .await;
    let client = client(&server);
    client.prompt_async(&session(), &prompt("hi")).await.unwrap();
    let request = RawRequest::new(Method::Put, "/other").query("a b", "c").json(json!([1]));
    let answer = client.client().raw(request).await.unwrap();
    assert_eq!((answer.status, answer.header("x-tea")), (418, Some("yes")));
    assert_eq!(answer.json().unwrap(), json!({"tea": true}));
    let statistics = client.client().statistics();
    let sent = serde_json::to_vec(&prompt("hi")).unwrap().len() as u64 + 3;
    assert_eq!((statistics.bytes_sent, statistics.bytes_received), (sent, answer.body.len() as u64));
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<OpenCodeClient>();
    check::<DirectoryClient>();
    check::<opencode_conductor::Subscription>();
    check::<opencode_conductor::OpenCodeServer>();
    check::<opencode_conductor::ServerPool>();
    check::<opencode_conductor::ServerLease>();
    check::<ApiError>();
    check::<FeedOptions>();
}

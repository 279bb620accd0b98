//! The event feed over real sockets, against a server that misbehaves on purpose.

use std::{num::NonZeroUsize, time::Duration};

use futures_util::StreamExt;
use opencode_conductor::{
    Directory, FeedLoss, FeedOptions, FeedSignal, GoneReason, ResyncReason, SessionId, Subscription,
    wire::EventPayload,
};

use crate::support::{
    live::{LiveServer, idle},
    secrets, soon,
};

fn session(id: &str) -> SessionId {
    SessionId::new(id)
}

/// Options whose pauses do not slow the tests down.
fn quick() -> FeedOptions {
    FeedOptions::new().backoff(Duration::from_millis(1), Duration::from_millis(5)).linger(Duration::ZERO)
}

/// The next signal in short: an event by its kind and session.
async fn next(subscription: &mut Subscription) -> String {
    match soon(subscription.next()).await {
        FeedSignal::Connected => "connected".to_owned(),
        FeedSignal::Event(event) => match &event.payload {
            EventPayload::SessionIdle { session_id } => format!("idle {session_id}"),
            EventPayload::SessionCreated(info) => format!("created {}", info.id),
            EventPayload::PartDelta(delta) => format!("delta {}", delta.delta),
            EventPayload::PartUpdated { part, .. } => format!("part {}", part.id),
            EventPayload::SessionError { session_id, .. } => format!("error {session_id:?}"),
            EventPayload::Unknown { kind, .. } => format!("unknown {kind}"),
            EventPayload::InstanceDisposed { .. } => "disposed".to_owned(),
            other => format!("{other:?}"),
        },
        FeedSignal::Lost { reason, .. } => format!("lost: {reason}"),
        FeedSignal::Resync { reason: ResyncReason::Reconnected(loss), .. } => format!("resync after: {loss}"),
        FeedSignal::Resync { reason, .. } => format!("resync: {reason}"),
        FeedSignal::Gone { reason, .. } => format!("gone: {reason}"),
        other => format!("{other:?}"),
    }
}

fn delta(session: &str, text: &str) -> String {
    let text = serde_json::to_string(text).unwrap();
    format!(
        r#"{{"type":"message.part.delta","properties":{{"sessionID":"{session}","messageID":"msg_1","partID":"prt_1","field":"text","delta":{text}}}}}"#
    )
}

#[tokio::test]
async fn a_subscriber_gets_its_own_sessions_and_others_are_not_even_decoded() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut all = client.subscribe_all();
    let mut connection = server.accept_events().await;
    assert!(connection.head.starts_with("GET /event?directory=%2Fd HTTP/1.1\r\n"), "{}", connection.head);
    drop(all.next().await);
    drop(all);
    connection.idle("ses_2").await;
    connection.event(r#"{"type":"file.watcher.updated","properties":{"file":"a"}}"#).await;
    connection
        .event(r#"{"type":"session.error","properties":{"error":{"name":"UnknownError","data":{}}}}"#)
        .await;
    connection.event(r#"{"type":"new.thing","properties":{"sessionID":"ses_1"}}"#).await;
    connection.idle("ses_1").await;
    for expected in ["connected", "error None", "unknown new.thing", "idle ses_1"] {
        assert_eq!(next(&mut subscription).await, expected);
    }
    let statistics = subscription_statistics(&client);
    assert_eq!(statistics, (6, 3, 1, 0), "events, decoded, unknown, malformed");
}

fn subscription_statistics(client: &opencode_conductor::DirectoryClient) -> (u64, u64, u64, u64) {
    let all = client.client().statistics();
    (all.events, all.events_decoded, all.events_unknown, all.events_malformed)
}

#[tokio::test]
async fn descendants_are_followed_as_they_appear() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    let created = |id: &str, parent: &str| {
        format!(
            r#"{{"type":"session.created","properties":{{"info":{{"id":"{id}","parentID":"{parent}"}}}}}}"#
        )
    };
    connection.idle("ses_child").await;
    connection.event(&created("ses_stranger", "ses_other")).await;
    connection.event(&created("ses_child", "ses_1")).await;
    connection.event(&created("ses_grandchild", "ses_child")).await;
    connection
        .event(
            r#"{"type":"message.part.updated","properties":{"part":{"id":"prt_9","sessionID":"ses_1","messageID":"msg_1",
               "type":"tool","callID":"c","tool":"task","state":{"status":"running","input":{},"time":{"start":1},
               "metadata":{"sessionId":"ses_task"}}}}}"#
                .replace('\n', "")
                .as_str(),
        )
        .await;
    for id in ["ses_stranger", "ses_child", "ses_grandchild", "ses_task", "ses_late"] {
        connection.idle(id).await;
    }
    connection.idle("ses_1").await;
    for expected in [
        "connected",
        "created ses_child",
        "created ses_grandchild",
        "part prt_9",
        "idle ses_child",
        "idle ses_grandchild",
        "idle ses_task",
        "idle ses_1",
    ] {
        assert_eq!(next(&mut subscription).await, expected);
    }
    subscription.follow(&session("ses_late"));
    connection.idle("ses_late").await;
    assert_eq!(next(&mut subscription).await, "idle ses_late");
}

#[tokio::test]
async fn every_end_of_a_connection_gives_one_loss_and_one_resync() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));

    let mut connection = server.accept_events().await;
    connection.chunk(b"data: {\"type\":\"session.idle\",\"prop").await;
    assert_eq!(next(&mut subscription).await, "connected");
    drop(connection); // in the middle of an event, and of the transfer encoding

    assert_eq!(next(&mut subscription).await, "lost: the event stream failed");
    // Several attempts fail within the same gap.
    server.accept().await.answer("503 Service Unavailable", "retry-after: 0\r\n", "").await;
    drop(server.accept().await);
    server.accept().await.answer("200 OK", "content-type: text/html\r\n", "<html>").await;
    let mut connection = server.accept_events().await;
    connection.idle("ses_1").await;
    assert_eq!(next(&mut subscription).await, "resync after: the event stream failed");
    assert_eq!(next(&mut subscription).await, "idle ses_1");

    connection.finish().await;
    assert_eq!(next(&mut subscription).await, "lost: the server ended the event stream");
    let mut connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "resync after: the server ended the event stream");

    connection.event(r#"{"type":"server.instance.disposed","properties":{"directory":"/d"}}"#).await;
    assert_eq!(next(&mut subscription).await, "disposed");
    assert_eq!(next(&mut subscription).await, "lost: the server disposed of the directory's instance");
    let mut next_connection = server.accept_events().await;
    connection.closed().await;
    assert_eq!(
        next(&mut subscription).await,
        "resync after: the server disposed of the directory's instance"
    );
    next_connection.idle("ses_1").await;
    assert_eq!(next(&mut subscription).await, "idle ses_1");
    let statistics = client.client().statistics();
    assert_eq!((statistics.reconnects, statistics.resyncs), (3, 3));
}

#[tokio::test]
async fn a_socket_that_went_silent_is_given_up() {
    let server = LiveServer::start().await;
    let client = server.client(quick().silence(Duration::from_millis(100)));
    let mut subscription = client.subscribe(&session("ses_1"));
    let half_open = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "connected");
    assert_eq!(next(&mut subscription).await, "lost: the event stream was silent for 100 ms");
    let _connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "resync after: the event stream was silent for 100 ms");
    half_open.closed().await;
}

#[tokio::test]
async fn refused_credentials_end_a_subscription_and_the_next_one_tries_again() {
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let server = LiveServer::start().await;
        let client = server.client(quick());
        let mut subscription = client.subscribe(&session("ses_1"));
        server.accept().await.answer(status, "", "").await;
        for _ in 0..2 {
            let signal = soon(subscription.next()).await;
            let FeedSignal::Gone { reason: GoneReason::Unauthorized(error), .. } = signal else {
                panic!("{signal:?}")
            };
            assert_eq!(error.status(), status[..3].parse().ok());
        }
        let mut subscription = client.subscribe(&session("ses_1"));
        let _connection = server.accept_events().await;
        assert_eq!(next(&mut subscription).await, "connected");
    }
}

#[tokio::test]
async fn a_server_that_is_not_ready_yet_is_tried_until_it_is() {
    let server = LiveServer::start().await;
    let client = server.client(quick().ready_timeout(Duration::from_millis(500)));
    let mut subscription = client.subscribe(&session("ses_1"));
    server.accept().await.answer("503 Service Unavailable", "", "").await;
    let signal = soon(subscription.next()).await;
    let FeedSignal::Lost { reason: FeedLoss::Failed(error), .. } = signal else { panic!("{signal:?}") };
    assert_eq!(error.status(), Some(503));
    let mute = server.accept().await; // never answered
    let mut says_nothing = server.accept().await;
    says_nothing.begin_events().await;
    says_nothing.idle("ses_1").await; // not before "connected"
    let _connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "connected");
    mute.closed().await;
    says_nothing.closed().await;
}

#[tokio::test]
async fn a_slow_subscriber_is_told_once_and_a_quick_one_misses_nothing() {
    let server = LiveServer::start().await;
    let client = server.client(quick().queue(10, 1 << 20));
    let mut slow = client.subscribe(&session("ses_1"));
    let mut quick = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    assert_eq!(next(&mut quick).await, "connected");
    for count in 0..25 {
        connection.event(&delta("ses_1", &count.to_string())).await;
        assert_eq!(next(&mut quick).await, format!("delta {count}"));
    }
    assert_eq!(next(&mut slow).await, "connected");
    assert_eq!(next(&mut slow).await, "resync: the subscriber did not keep up with the events");
    for count in 20..25 {
        assert_eq!(next(&mut slow).await, format!("delta {count}"));
    }
    connection.idle("ses_1").await;
    assert_eq!(next(&mut slow).await, "idle ses_1");
}

#[tokio::test]
async fn waiting_events_are_bounded_in_bytes_too() {
    let server = LiveServer::start().await;
    let client = server.client(quick().queue(1000, 3_000));
    let mut slow = client.subscribe(&session("ses_1"));
    let mut witness = client.subscribe(&session("ses_2"));
    let mut connection = server.accept_events().await;
    for _ in 0..3 {
        connection.event(&delta("ses_1", &"x".repeat(1_000))).await;
    }
    connection.event(&delta("ses_1", &"y".repeat(5_000))).await; // larger than the bound, but alone
    connection.idle("ses_2").await;
    assert_eq!(next(&mut witness).await, "connected");
    assert_eq!(next(&mut witness).await, "idle ses_2");
    assert_eq!(next(&mut slow).await, "connected");
    assert_eq!(next(&mut slow).await, "resync: the subscriber did not keep up with the events");
    assert_eq!(next(&mut slow).await, format!("delta {}", "y".repeat(5_000)));
}

#[tokio::test]
async fn one_event_of_8_mib_arrives_whole() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    let text = "x".repeat(8 << 20);
    let event = delta("ses_1", &text);
    tokio::join!(connection.event(&event), async {
        assert_eq!(next(&mut subscription).await, "connected");
        assert_eq!(next(&mut subscription).await.len(), "delta ".len() + text.len());
    });
}

#[tokio::test]
async fn fifty_thousand_events_in_one_chunk_arrive_in_order() {
    const COUNT: usize = 50_000;
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    let events: String = (0..COUNT)
        .flat_map(|count| ["data: ".into(), delta("ses_1", &count.to_string()), "\n\n".into()])
        .collect();
    tokio::join!(connection.chunk(events.as_bytes()), async {
        assert_eq!(next(&mut subscription).await, "connected");
        for count in 0..COUNT {
            assert_eq!(next(&mut subscription).await, format!("delta {count}"));
        }
    });
    assert_eq!(client.client().statistics().resyncs, 0);
}

#[tokio::test]
async fn bad_events_cost_a_resync_and_the_stream_goes_on() {
    let server = LiveServer::start().await;
    let client = server.client(quick().event_limit(NonZeroUsize::new(1_000).unwrap()));
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "connected");

    connection.chunk(b"data: {\"type\":\"message.part.delta\",\"properties\":{\"sessionID\":\"ses_1\",\"messageID\":\"msg_1\",\"partID\":\"prt_1\",\"delta\":\"a\xffb\"}}\n\n").await;
    assert_eq!(next(&mut subscription).await, "delta a\u{fffd}b");

    connection.event(&delta("ses_9", &"x".repeat(2_000))).await;
    assert_eq!(next(&mut subscription).await, "resync: an event was larger than 1000 bytes");

    connection.event(r#"{"type":"session.idle","properties":{"sessionID":"ses_1"#).await;
    assert_eq!(next(&mut subscription).await, "resync: an event could not be decoded");

    connection.event(r#"{"type":"session.status","properties":{"sessionID":"ses_9","status":7}}"#).await; // without a subscriber
    connection.event(r#"{"type":"session.status","properties":{"sessionID":"ses_1","status":7}}"#).await;
    assert_eq!(next(&mut subscription).await, "resync: an event could not be decoded");

    connection.idle("ses_1").await;
    assert_eq!(next(&mut subscription).await, "idle ses_1");
    assert_eq!(client.client().statistics().events_malformed, 3);
}

#[tokio::test]
async fn an_event_may_be_cut_at_every_byte() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let mut connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "connected");
    let text = "caf\u{e9} \u{1f980}";
    let bytes = format!("data: {}\r\n\r\n", delta("ses_1", text)).into_bytes();
    for cut in 1..bytes.len() {
        let (head, tail) = bytes.split_at(cut);
        connection.chunk(head).await;
        connection.chunk(tail).await;
        assert_eq!(next(&mut subscription).await, format!("delta {text}"), "cut at {cut}");
    }
}

#[tokio::test]
async fn all_subscribers_of_a_directory_share_a_connection_that_closes_after_the_last() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscriptions: Vec<_> =
        (0..20).map(|count| client.subscribe(&session(&format!("ses_{count}")))).collect();
    let mut connection = server.accept_events().await;
    for subscription in &mut subscriptions {
        assert_eq!(next(subscription).await, "connected");
    }
    let mut late = client.subscribe(&session("ses_3"));
    assert_eq!(next(&mut late).await, "connected", "at once, as the connection is open");
    connection.idle("ses_3").await;
    assert_eq!(next(&mut late).await, "idle ses_3");
    assert_eq!(next(&mut subscriptions[3]).await, "idle ses_3");
    assert_eq!(client.client().statistics().requests, 1);

    let elsewhere = client.client().directory(&Directory::new("/e f/100%").unwrap());
    let mut other = elsewhere.subscribe_all();
    let other_connection = server.accept_events().await;
    assert!(
        other_connection.head.starts_with("GET /event?directory=%2Fe+f%2F100%2525 HTTP/1.1\r\n"),
        "{}",
        other_connection.head
    );
    assert_eq!(next(&mut other).await, "connected");

    drop(subscriptions);
    drop(late);
    connection.closed().await;
    drop(other);
    other_connection.closed().await;
}

#[tokio::test]
async fn shutdown_ends_and_joins_everything() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let mut subscription = client.subscribe(&session("ses_1"));
    let connection = server.accept_events().await;
    assert_eq!(next(&mut subscription).await, "connected");
    soon(client.client().shutdown()).await;
    assert_eq!(next(&mut subscription).await, "gone: the client was shut down");
    connection.closed().await;
    let mut late = client.subscribe_all();
    assert_eq!(next(&mut late).await, "gone: the client was shut down");
    soon(client.client().shutdown()).await;
}

#[tokio::test]
async fn a_subscription_keeps_its_client_alive_and_its_end_closes_the_connection() {
    let server = LiveServer::start().await;
    let mut subscription = {
        let client = secrets::client(&server.url()).feed(quick()).build().unwrap();
        client.default_directory().subscribe(&session("ses_1"))
    };
    let mut connection = server.accept_events().await;
    assert!(connection.head.starts_with("GET /event HTTP/1.1\r\n"), "{}", connection.head);
    connection.chunk(format!("data: {}\n\n", idle("ses_1")).as_bytes()).await;
    assert_eq!(next(&mut subscription).await, "connected");
    assert_eq!(next(&mut subscription).await, "idle ses_1");
    drop(subscription);
    connection.closed().await;
}

#[tokio::test]
async fn a_subscription_is_a_stream_that_ends_with_the_feed() {
    let server = LiveServer::start().await;
    let client = server.client(quick());
    let subscription = client.subscribe(&session("ses_1"));
    server.accept().await.answer("401 Unauthorized", "", "").await;
    let signals: Vec<FeedSignal> = soon(subscription.collect()).await;
    assert!(matches!(signals[..], [FeedSignal::Gone { .. }]), "{signals:?}");
}

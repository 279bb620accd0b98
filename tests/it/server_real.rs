//! The client and the managed server against a real `opencode`.

use std::time::Duration;

use futures_util::future::join_all;
use opencode_conductor::{
    DirectoryClient, FeedLoss, FeedSignal, MessagePage, Method, OpenCodeClient, OpenCodeServer, RawRequest,
    RestartPolicy, ResyncReason, ServerState, SessionFilter, Subscription,
    wire::{CreateSession, EventPayload, SessionInfo, UpdateSession},
};

use crate::support::{
    real::{Rig, patient},
    soon,
};

async fn create(client: &DirectoryClient, title: &str) -> SessionInfo {
    let mut session = CreateSession::default();
    session.title = Some(title.to_owned());
    client.create_session(&session).await.unwrap()
}

async fn rename(client: &DirectoryClient, session: &SessionInfo, title: &str) -> SessionInfo {
    let mut change = UpdateSession::default();
    change.title = Some(title.to_owned());
    client.update_session(&session.id, &change).await.unwrap()
}

async fn connected(subscription: &mut Subscription) {
    let signal = soon(subscription.next()).await;
    assert!(matches!(signal, FeedSignal::Connected), "{signal:?}");
}

/// Waits for an event with this title; no loss or resync may come before.
async fn saw_title(subscription: &mut Subscription, title: &str) {
    loop {
        let signal = soon(subscription.next()).await;
        let FeedSignal::Event(event) = &signal else { panic!("{signal:?} while waiting for {title}") };
        if let EventPayload::SessionUpdated(info) = &event.payload
            && info.title == title
        {
            return;
        }
    }
}

async fn until_resync(subscription: &mut Subscription) -> (FeedLoss, ResyncReason) {
    let mut loss = None;
    loop {
        match soon(subscription.next()).await {
            FeedSignal::Event(_) => {}
            FeedSignal::Lost { reason, .. } => assert!(loss.replace(reason).is_none(), "one loss per gap"),
            FeedSignal::Resync { reason, .. } => return (loss.unwrap(), reason),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_real_server_does_what_the_client_says() {
    let Some(rig) = Rig::find() else { return };
    let server = OpenCodeServer::launch(rig.options()).await.unwrap();
    let (one, two) = (rig.directory("one"), rig.directory("two \u{e9} 100%"));
    let (here, there) = (server.client().directory(&one), server.client().directory(&two));

    // The first requests, many at once and in directories that are cold.
    let early = (0..20).map(|_| async { (here.session_status().await, there.session_status().await) });
    for (first, second) in join_all(early).await {
        first.unwrap();
        second.unwrap();
    }

    let health = server.client().health().await.unwrap();
    assert!(health.healthy && !health.version.is_empty());
    println!("opencode {}", health.version);

    let wrong = OpenCodeClient::builder(&server.url()).basic_auth("opencode", "wrong").build().unwrap();
    assert_eq!(wrong.health().await.unwrap_err().status(), Some(401));
    let mut refused = wrong.directory(&one).subscribe_all();
    assert!(matches!(soon(refused.next()).await, FeedSignal::Gone { .. }));

    // A session's life.
    let session = create(&here, "first").await;
    assert_eq!((session.title.as_str(), session.directory.as_str()), ("first", one.as_str()));
    assert_eq!(rename(&here, &session, "second").await.title, "second");
    assert_eq!(here.session(&session.id).await.unwrap().title, "second");
    let list = here.messages(&session.id, &MessagePage::newest(5)).await.unwrap();
    assert!(list.messages.is_empty() && list.complete && list.malformed.is_empty());
    let mut child = CreateSession::default();
    child.parent_id = Some(session.id.clone());
    child.title = Some("child".to_owned());
    let child = here.create_session(&child).await.unwrap();
    let children = here.children(&session.id).await.unwrap();
    assert_eq!(children.items.iter().map(|child| &child.id).collect::<Vec<_>>(), [&child.id]);
    assert!(here.session_status().await.unwrap().iter().next().is_none());
    let diff = RawRequest::new(Method::Get, format!("/session/{}/diff", session.id)).directory(&one);
    assert_eq!(server.client().raw(diff).await.unwrap().json().unwrap(), serde_json::json!([]));
    assert!(here.permissions().await.unwrap().items.is_empty());
    assert!(here.questions().await.unwrap().items.is_empty());
    assert_eq!(here.config().await.unwrap().model.as_deref(), Some("mock/m"));
    let providers = here.providers().await.unwrap();
    assert!(
        providers.providers.iter().any(|provider| provider.id == "mock" && provider.models.contains_key("m"))
    );
    here.abort(&session.id).await.unwrap();
    here.delete_session(&child.id).await.unwrap();
    let gone = here.session(&child.id).await.unwrap_err();
    assert!(gone.is_not_found(), "{gone:?}");
    assert!(gone.answer().unwrap().name.is_some());

    // Two directories know nothing of each other, whatever their names contain.
    let other = create(&there, "elsewhere").await;
    assert_eq!(other.directory, two.as_str());
    let (mut near, mut far) = (here.subscribe_all(), there.subscribe_all());
    connected(&mut near).await;
    connected(&mut far).await;
    rename(&there, &other, "only there").await;
    saw_title(&mut far, "only there").await;
    rename(&here, &session, "only here").await;
    let next = soon(near.next()).await;
    let FeedSignal::Event(event) = &next else { panic!("{next:?}") };
    assert_eq!(event.payload.session_id(), Some(&session.id), "nothing of the other directory came before");
    let listed = here.sessions(&SessionFilter::default()).await.unwrap();
    assert!(listed.items.iter().any(|found| found.id == session.id) && listed.malformed.is_empty());

    // Twenty subscribers, one connection.
    let before = server.client().statistics().requests;
    let mut twenty: Vec<_> = (0..20).map(|_| here.subscribe(&session.id)).collect();
    for subscription in &mut twenty {
        connected(subscription).await;
    }
    assert_eq!(server.client().statistics().requests, before);
    rename(&here, &session, "for all").await;
    for subscription in &mut twenty {
        saw_title(subscription, "for all").await;
    }

    // The server gives up the directory: every subscriber is told once, and sees what comes after.
    here.dispose().await.unwrap();
    for subscription in &mut twenty {
        let (loss, reason) = until_resync(subscription).await;
        assert!(matches!(loss, FeedLoss::Disposed | FeedLoss::Closed), "{loss:?}");
        assert!(matches!(reason, ResyncReason::Reconnected(_)), "{reason:?}");
    }
    rename(&here, &session, "after").await;
    for subscription in &mut twenty {
        saw_title(subscription, "after").await;
    }
    let statistics = server.client().statistics();
    println!("{statistics:?}");
    assert_eq!((statistics.reconnects, statistics.events_malformed), (1, 0));
    assert!(soon(server.shutdown()).await.requested);
}

#[cfg(unix)]
#[tokio::test]
async fn a_killed_server_is_reported_restarted_and_found_again() {
    let Some(rig) = Rig::find() else { return };
    let options = rig.options().restart(RestartPolicy::up_to(1, Duration::from_secs(3600))).configure_client(
        |client| {
            patient(client)
                .read_attempts(200)
                .read_backoff(Duration::from_millis(200), Duration::from_secs(1))
        },
    );
    let server = OpenCodeServer::launch(options).await.unwrap();
    let here = server.client().directory(&rig.directory("one"));
    let session = create(&here, "before").await;
    let mut subscription = here.subscribe(&session.id);
    connected(&mut subscription).await;

    let kill = || {
        let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    kill();
    // Asked while there is no server, and while it starts: all are answered in the end.
    let asked = join_all((0..10).map(|_| here.session(&session.id)));
    let restarted = server.wait_for(|state| matches!(state, ServerState::Running { restarts: 1, .. }));
    let (answers, state) = soon(futures_util::future::join(asked, restarted)).await;
    assert!(matches!(state, ServerState::Running { restarts: 1, .. }), "{state:?}");
    for answer in answers {
        assert_eq!(answer.unwrap().title, "before", "sessions outlive the process");
    }
    until_resync(&mut subscription).await;
    rename(&here, &session, "after").await;
    saw_title(&mut subscription, "after").await;

    kill();
    let exit = soon(server.exited()).await;
    assert!(!exit.requested);
    assert!(exit.to_string().starts_with("signal: 9"), "{exit}");
    soon(server.shutdown()).await;
}

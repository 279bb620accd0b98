//! A pool of managed servers, with a shell script in the place of `opencode`.

#![cfg(target_os = "linux")]

use std::{fs, time::Duration};

use opencode_conductor::{
    LaunchError, LaunchOptions, Method, PoolOptions, RawRequest, RestartPolicy, ServerEnvironment,
    ServerLease, ServerPool, ServerState,
};
use serde_json::json;
use tempfile::TempDir;
use wiremock::MockServer;

use crate::{
    server_fake::{SERVE, all_dead, fake, healthy, is_alive, pids},
    support::{live::LiveServer, real::Rig, sink::Sink, soon},
};

/// Servers that write their names down when they start. `bad` does not start.
struct Ground {
    directory: TempDir,
    options: LaunchOptions,
    _api: MockServer,
}

impl Ground {
    async fn new() -> Self {
        let api = healthy().await;
        let names =
            r#"echo "$NAME" >> "$FAKE_DIR/names"; [ "$NAME" = bad ] && { echo "is bad" >&2; exit 3; }"#;
        let (directory, options) = fake(&format!("{names}\n{SERVE}"));
        fs::write(directory.path().join("url"), api.uri()).unwrap();
        Self { directory, options, _api: api }
    }

    fn pool(&self, max_servers: usize) -> ServerPool {
        ServerPool::new(PoolOptions::new(self.options.clone()).max_servers(max_servers))
    }

    /// What was started so far.
    fn names(&self) -> Vec<String> {
        let names = fs::read_to_string(self.directory.path().join("names")).unwrap_or_default();
        names.lines().map(str::to_owned).collect()
    }
}

fn named(name: &str) -> ServerEnvironment {
    ServerEnvironment::new().env("NAME", name)
}

fn kill(server: &ServerLease) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn get(pool: &ServerPool, name: &str) -> ServerLease {
    soon(pool.get(named(name))).await.unwrap()
}

/// Lets a call take its place as the n-th in line.
async fn stands_in_line(
    pool: &ServerPool,
    call: &mut (impl Future<Output = Result<ServerLease, LaunchError>> + Unpin),
    n_waiting: usize,
) {
    tokio::select! {
        _ = call => panic!("there is no place"),
        _ = soon(pool.wait_for(|now| now.waiting == n_waiting)) => {}
    }
}

#[tokio::test]
async fn who_asks_for_the_same_gets_the_same_server() {
    let ground = Ground::new().await;
    let pool = ground.pool(4);
    let (one, two) = tokio::join!(get(&pool, "a"), get(&pool, "a"));
    let (three, other) = (get(&pool, "a").await, get(&pool, "b").await);
    assert_eq!((one.pid(), one.pid()), (two.pid(), three.pid()));
    assert_ne!(one.pid(), other.pid());
    assert_eq!(one.client().health().await.unwrap().version, "1.2.3");
    assert_eq!(ground.names(), ["a", "b"]);
    let statistics = pool.statistics();
    assert_eq!((statistics.in_use, statistics.idle, statistics.launched), (2, 0, 2));
    // It is idle only when the last one has let go of it.
    drop((one, three));
    drop(other);
    assert_eq!(soon(pool.wait_for(|now| now.idle == 1)).await.in_use, 1);
    drop(two);
    soon(pool.wait_for(|now| now.idle == 2)).await;
    // An idle one is used again.
    let again = get(&pool, "a").await;
    assert!(is_alive(again.pid().unwrap()));
    assert_eq!(ground.names(), ["a", "b"]);
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn at_the_limit_requests_are_served_in_order() {
    let ground = Ground::new().await;
    let pool = ground.pool(1);
    let first = get(&pool, "a").await;
    let mut second = Box::pin(pool.get(named("b")));
    stands_in_line(&pool, &mut second, 1).await;
    let mut third = Box::pin(pool.get(named("c")));
    stands_in_line(&pool, &mut third, 2).await;
    // Its server runs, but the two before it would wait for ever if the server were always in use.
    let mut fourth = Box::pin(pool.get(named("a")));
    stands_in_line(&pool, &mut fourth, 3).await;
    assert_eq!(ground.names(), ["a"]);
    drop(first);
    drop(soon(second).await.unwrap());
    drop(soon(third).await.unwrap());
    drop(soon(fourth).await.unwrap());
    assert_eq!(ground.names(), ["a", "b", "c", "a"]);
    soon(pool.shutdown()).await;
    all_dead(&pids(ground.directory.path())).await;
}

#[tokio::test]
async fn the_server_that_is_idle_for_longest_makes_room() {
    let ground = Ground::new().await;
    let pool = ground.pool(2);
    let (a, b) = (get(&pool, "a").await, get(&pool, "b").await);
    let (pid_a, pid_b) = (a.pid().unwrap(), b.pid().unwrap());
    drop(b);
    soon(pool.wait_for(|now| now.idle == 1)).await;
    drop(a);
    soon(pool.wait_for(|now| now.idle == 2)).await;
    let c = get(&pool, "c").await;
    all_dead(&[pid_b]).await;
    assert!(is_alive(pid_a));
    assert_eq!(get(&pool, "a").await.pid(), Some(pid_a));
    drop(c);
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_server_that_is_idle_for_too_long_is_ended() {
    let ground = Ground::new().await;
    let options = PoolOptions::new(ground.options.clone()).idle_shutdown(Duration::from_millis(50));
    let pool = ServerPool::new(options);
    drop(get(&pool, "a").await);
    let gone = soon(pool.wait_for(|now| now.launched == 1 && now.idle + now.in_use + now.ending == 0)).await;
    assert_eq!(gone.died, 0);
    all_dead(&pids(ground.directory.path())).await;
    // Not even one without any patience is taken from those who asked for it.
    let options = PoolOptions::new(ground.options.clone()).idle_shutdown(Duration::ZERO);
    let impatient = ServerPool::new(options);
    assert!(is_alive(get(&impatient, "b").await.pid().unwrap()));
}

#[tokio::test]
async fn a_server_that_died_is_replaced() {
    let ground = Ground::new().await;
    let pool = ground.pool(1);
    let dead = get(&pool, "a").await;
    kill(&dead);
    soon(dead.exited()).await;
    let alive = get(&pool, "a").await;
    assert!(is_alive(alive.pid().unwrap()));
    assert_eq!(ground.names(), ["a", "a"]);
    // The lease on the dead one has nothing to do with it any more.
    drop(dead);
    let other = get(&pool, "a").await;
    let statistics = pool.statistics();
    assert_eq!((statistics.in_use, statistics.died, statistics.launched), (1, 1, 2));
    assert_eq!(other.pid(), alive.pid());
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_server_that_is_being_restarted_is_waited_for() {
    let api = LiveServer::start().await;
    let healthy = async || {
        let body = r#"{"healthy":true,"version":"1"}"#;
        api.accept().await.answer("200 OK", "content-type: application/json\r\n", body).await;
    };
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.url()).unwrap();
    let options = options.restart(RestartPolicy::up_to(1, Duration::from_secs(600)));
    let pool = ServerPool::new(PoolOptions::new(options));
    let (held, ()) = tokio::join!(get(&pool, "a"), healthy());
    kill(&held);
    soon(held.wait_for(|state| matches!(state, ServerState::Restarting { .. }))).await;
    let mut call = Box::pin(pool.get(named("a")));
    stands_in_line(&pool, &mut call, 1).await;
    let (lease, ()) = tokio::join!(soon(call), healthy());
    let lease = lease.unwrap();
    assert!(matches!(lease.state(), ServerState::Running { restarts: 1, .. }), "{:?}", lease.state());
    assert_eq!(pool.statistics().launched, 1);
    // The second time it stays down, and another is started.
    kill(&held);
    soon(held.exited()).await;
    let (_other, ()) = tokio::join!(get(&pool, "a"), healthy());
    assert_eq!((pool.statistics().launched, pool.statistics().died), (2, 1));
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn the_log_tells_what_becomes_of_servers_and_no_secrets() {
    let sink = Sink::default();
    // With one subscriber alone, whoever comes first to a line decides for all threads whether it is logged, even one without any.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let subscriber =
        tracing_subscriber::fmt().with_writer(sink.clone()).with_max_level(tracing::Level::DEBUG);
    let _logging = tracing::subscriber::set_default(subscriber.with_ansi(false).finish());
    let ground = Ground::new().await;
    let pool = ground.pool(1);
    let dead = soon(pool.get(named("a").env("SOME_API_KEY", "sk-very-long-key"))).await.unwrap();
    let pid = dead.pid().unwrap();
    kill(&dead);
    soon(pool.wait_for(|now| now.died == 1)).await;
    drop(get(&pool, "b").await);
    soon(pool.get(named("bad"))).await.unwrap_err();
    soon(pool.shutdown()).await;
    let text = sink.text();
    for line in [
        format!("a server was started server=0 pid={pid}"),
        "the server is gone server=0".to_owned(),
        "ending the server, which is idle server=1".to_owned(),
        "the server has ended server=1".to_owned(),
        "the server ended while starting server=2 status=Some(ExitStatus(unix_wait_status(768)))".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("very-long") && !text.contains("is bad"), "{text}");
}

#[tokio::test]
async fn a_server_that_does_not_start_is_the_error_of_each_who_asked() {
    let ground = Ground::new().await;
    let pool = ground.pool(1);
    let (one, two) = tokio::join!(soon(pool.get(named("bad"))), soon(pool.get(named("bad"))));
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(matches!(error, LaunchError::Exited(_)), "{error:?}");
        assert!(error.to_string().ends_with("it said: is bad"), "{error}");
    }
    assert_eq!(ground.names(), ["bad", "bad"]);
    assert_eq!(pool.statistics().failed, 2);
    // The place is free again.
    get(&pool, "good").await;
    let invalid = pool.get(ServerEnvironment::new().directory("/no/such/directory"));
    assert!(matches!(soon(invalid).await, Err(LaunchError::Invalid(_))));
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_its_place_in_line_to_the_next() {
    let ground = Ground::new().await;
    let pool = ground.pool(1);
    let held = get(&pool, "a").await;
    let mut given_up = Box::pin(pool.get(named("b")));
    stands_in_line(&pool, &mut given_up, 1).await;
    let mut behind = Box::pin(pool.get(named("a")));
    stands_in_line(&pool, &mut behind, 2).await;
    drop(given_up);
    assert_eq!(soon(behind).await.unwrap().pid(), held.pid());
    assert_eq!(ground.names(), ["a"]);
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_server_whose_only_caller_has_gone_becomes_idle() {
    let api = LiveServer::start().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.url()).unwrap();
    let pool = ServerPool::new(PoolOptions::new(options));
    let mut call = Box::pin(pool.get(named("a")));
    let probe = tokio::select! {
        _ = &mut call => panic!("it has not answered"),
        probe = api.accept() => probe,
    };
    drop(call);
    probe.answer("200 OK", "content-type: application/json\r\n", r#"{"healthy":true,"version":"1"}"#).await;
    soon(pool.wait_for(|now| now.idle == 1)).await;
    assert_eq!(get(&pool, "a").await.pid(), Some(pids(directory.path())[1]));
    assert_eq!(pool.statistics().launched, 1);
    soon(pool.shutdown()).await;
}

/// Real servers that share a HOME fail if they set up its database at the same time.
#[tokio::test]
async fn servers_are_started_one_at_a_time() {
    let api = LiveServer::start().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.url()).unwrap();
    let pool = ServerPool::new(PoolOptions::new(options));
    let answers = async {
        for n_waiting in [2, 1] {
            let probe = api.accept().await;
            let now = soon(pool.wait_for(|now| now.waiting == n_waiting)).await;
            assert_eq!(now.starting, 1);
            let healthy = r#"{"healthy":true,"version":"1"}"#;
            probe.answer("200 OK", "content-type: application/json\r\n", healthy).await;
        }
    };
    let (one, two, ()) = tokio::join!(get(&pool, "a"), get(&pool, "b"), answers);
    assert_ne!(one.pid(), two.pid());
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_shutdown_ends_everything() {
    let ground = Ground::new().await;
    let pool = ground.pool(2);
    let (held, idle) = (get(&pool, "a").await, get(&pool, "b").await);
    drop(idle);
    soon(pool.wait_for(|now| now.idle == 1)).await;
    let also_held = get(&pool, "b").await;
    let mut waiting = Box::pin(pool.get(named("c")));
    stands_in_line(&pool, &mut waiting, 1).await;
    let ((), refused) = tokio::join!(soon(pool.shutdown()), soon(waiting));
    assert!(matches!(refused, Err(LaunchError::ShutDown)), "{refused:?}");
    assert!(matches!(soon(pool.get(named("a"))).await, Err(LaunchError::ShutDown)));
    assert!(soon(held.exited()).await.requested && soon(also_held.exited()).await.requested);
    all_dead(&pids(ground.directory.path())).await;
    let statistics = pool.statistics();
    assert_eq!((statistics.in_use, statistics.idle, statistics.waiting), (0, 0, 0));
    soon(pool.shutdown()).await;
}

#[tokio::test]
async fn a_dropped_pool_leaves_only_what_is_leased() {
    let ground = Ground::new().await;
    let pool = ground.pool(2);
    let (held, idle) = (get(&pool, "a").await, get(&pool, "b").await);
    let (kept, gone) = (held.pid().unwrap(), idle.pid().unwrap());
    drop(idle);
    soon(pool.wait_for(|now| now.idle == 1)).await;
    drop(pool.clone());
    drop(pool);
    all_dead(&[gone]).await;
    assert!(is_alive(kept));
    held.client().health().await.unwrap();
    drop(held);
    all_dead(&pids(ground.directory.path())).await;
}

#[tokio::test]
async fn real_servers_have_the_configuration_that_was_asked_for() {
    let Some(rig) = Rig::find() else { return };
    let pool = ServerPool::new(PoolOptions::new(rig.options()).max_servers(2));
    let configured = |name: &str| ServerEnvironment::new().config(json!({"username": name}));
    let (anna, bert) = tokio::join!(pool.get(configured("anna")), pool.get(configured("bert")));
    let (anna, bert) = (anna.unwrap(), bert.unwrap());
    assert_ne!(anna.url(), bert.url());
    for (server, name) in [(&anna, "anna"), (&bert, "bert")] {
        let answer = server.client().raw(RawRequest::new(Method::Get, "/config")).await.unwrap();
        assert_eq!(answer.json().unwrap()["username"], name);
    }
    let same = pool.get(configured("anna")).await.unwrap();
    assert_eq!(same.pid(), anna.pid());
    drop(bert);
    let carl = pool.get(configured("carl")).await.unwrap();
    assert_eq!(pool.statistics().launched, 3);
    assert_eq!(carl.client().health().await.unwrap().version, anna.client().health().await.unwrap().version);
    pool.shutdown().await;
    assert!(anna.exited().await.requested && carl.exited().await.requested);
}

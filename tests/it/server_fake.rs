//! The managed server with a shell script in the place of `opencode`, so that it can be made to fail.

#![cfg(target_os = "linux")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use opencode_conductor::{LaunchError, LaunchOptions, OpenCodeServer, RestartPolicy, ServerState};
use serde_json::json;
use tempfile::TempDir;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{header, path},
};

use crate::support::{live::LiveServer, soon};

/// A directory with a script named `serve`: what `/bin/sh serve --hostname …` runs.
pub(crate) fn fake(script: &str) -> (TempDir, LaunchOptions) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("serve"), script).unwrap();
    let options = LaunchOptions::new()
        .executable("/bin/sh")
        .directory(directory.path())
        .env("FAKE_DIR", directory.path())
        .password("geheim");
    (directory, options)
}

/// Announces the address in the file `url`, leaves a tool running, and waits for ever.
pub(crate) const SERVE: &str = r#"
    echo "$*" > "$FAKE_DIR/args"
    echo "$PWD|$OPENCODE_SERVER_USERNAME|$OPENCODE_SERVER_PASSWORD|$OPENCODE_CONFIG_CONTENT" > "$FAKE_DIR/env"
    sleep 1000 &
    echo "$! $$" >> "$FAKE_DIR/pids"
    echo "starting with password geheim" >&2
    echo "opencode server listening on $(cat "$FAKE_DIR/url")"
    wait
"#;

pub(crate) async fn healthy() -> MockServer {
    let server = MockServer::start().await;
    Mock::given(path("/global/health"))
        .and(header("authorization", "Basic b3BlbmNvZGU6Z2VoZWlt"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"healthy": true, "version": "1.2.3"})))
        .mount(&server)
        .await;
    server
}

/// The processes that the script has started so far.
pub(crate) fn pids(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("pids")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process runs; one that only waits to be buried does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until all are gone: they have been killed when this is called, but dying takes a moment.
pub(crate) async fn all_dead(pids: &[u32]) {
    soon(async {
        while pids.iter().copied().any(is_alive) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_is_launched_as_asked_and_shut_down_with_all_it_started() {
    let api = healthy().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let server = soon(OpenCodeServer::launch(options.config(json!({"share": "disabled"})))).await.unwrap();
    assert_eq!(server.client().health().await.unwrap().version, "1.2.3");
    assert_eq!(server.url(), format!("{}/", api.uri()));
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(read("args"), "--hostname 127.0.0.1 --port 0\n");
    let path = directory.path().canonicalize().unwrap();
    let env = read("env");
    let (given, config) = env.rsplit_once('|').unwrap();
    assert_eq!(given, format!("{}|opencode|geheim", path.display()));
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    assert_eq!(config["share"], "disabled");
    // The plugin that keeps the password from tools.
    let [plugin] = config["plugin"].as_array().unwrap().as_slice() else { panic!("{config}") };
    let plugin = PathBuf::from(plugin.as_str().unwrap().strip_prefix("file://").unwrap());
    assert!(fs::read_to_string(&plugin).unwrap().contains("delete process.env.OPENCODE_SERVER_PASSWORD"));
    let pids = pids(directory.path());
    assert_eq!(server.pid(), Some(pids[1]));
    assert!(pids.iter().copied().all(is_alive));
    let exit = soon(server.shutdown()).await;
    assert!(exit.requested);
    assert_eq!(exit.stderr, ["starting with password [password]"]);
    all_dead(&pids).await;
    assert!(!plugin.exists(), "nothing is left behind");
}

/// Whatever a server prints, the password goes nowhere but to the address that it was told.
#[tokio::test]
async fn a_server_that_names_another_address_than_it_was_told_is_not_talked_to() {
    let api = healthy().await;
    let port = api.address().port();
    for (url, told) in [
        ("http://192.0.2.1:4096".to_owned(), 0),
        (format!("http://localhost:{port}"), 0),
        (format!("http://127.0.0.1:{port}@example.org:80"), 0),
        (api.uri(), if port == 1 { 2 } else { 1 }),
    ] {
        let (directory, options) = fake(SERVE);
        fs::write(directory.path().join("url"), &url).unwrap();
        let error = soon(OpenCodeServer::launch(options.port(told))).await.unwrap_err();
        assert!(matches!(error, LaunchError::Elsewhere), "{url}: {error:?}");
        all_dead(&pids(directory.path())).await;
    }
    assert!(api.received_requests().await.unwrap().is_empty());
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let server = soon(OpenCodeServer::launch(options.port(port))).await.unwrap();
    assert_eq!(
        fs::read_to_string(directory.path().join("args")).unwrap(),
        format!("--hostname 127.0.0.1 --port {port}\n")
    );
    soon(server.shutdown()).await;
}

#[tokio::test]
async fn a_server_gets_only_the_variables_that_it_may_have() {
    let api = healthy().await;
    let listing = r#"env > "$FAKE_DIR/variables"; "#;
    let (directory, options) = fake(&format!("{listing}{SERVE}"));
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let server = soon(OpenCodeServer::launch(options.env_allow(["PATH"]))).await.unwrap();
    let variables = fs::read_to_string(directory.path().join("variables")).unwrap();
    let names: std::collections::BTreeSet<&str> =
        variables.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let expected = [
        "CONDUCTOR_MARKS",
        "FAKE_DIR",
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_SERVER_PASSWORD",
        "OPENCODE_SERVER_USERNAME",
        "PATH",
        "PWD",
    ];
    let shells_own = ["_", "SHLVL", "OLDPWD"];
    assert_eq!(names.into_iter().filter(|name| !shells_own.contains(name)).collect::<Vec<_>>(), expected);
    soon(server.shutdown()).await;
}

/// Keys that a server was given and repeats are in no error, and in no log.
#[tokio::test]
async fn what_a_server_says_is_quoted_without_its_keys() {
    let (_directory, options) = fake(r#"echo "bad key $SOME_API_KEY, $OPENCODE_CONFIG_CONTENT" >&2; exit 3"#);
    let options = options
        .env("SOME_API_KEY", "sk-very-long-key")
        .config(json!({"provider": {"p": {"options": {"apiKey": "another-long-key"}}}}));
    let error = soon(OpenCodeServer::launch(options)).await.unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("bad key [password]"), "{shown}");
    assert!(!shown.contains("very-long") && !shown.contains("another-long"), "{shown}");
}

#[tokio::test]
async fn dropping_a_server_or_its_launch_kills_the_whole_group() {
    let api = healthy().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let server = soon(OpenCodeServer::launch(options)).await.unwrap();
    let processes = pids(directory.path());
    let leader = PathBuf::from(format!("/proc/{}", server.pid().unwrap()));
    drop(server);
    all_dead(&processes).await;
    // Not even a zombie stays.
    soon(async {
        while leader.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;

    let mute = LiveServer::start().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), mute.url()).unwrap();
    let launch = OpenCodeServer::launch(options);
    tokio::select! {
        _ = launch => panic!("no server answers"),
        _probe = mute.accept() => {}
    }
    all_dead(&pids(directory.path())).await;
}

/// As the agents start the commands of their shell tool: in a session, and so a group, of their own.
const DETACHED: &str = r#"setsid sh -c 'echo $$ > "$FAKE_DIR/tool"; exec sleep 1000' & while [ ! -s "$FAKE_DIR/tool" ]; do :; done; "#;

#[tokio::test]
async fn what_left_the_group_of_a_server_is_ended_with_it() {
    let api = healthy().await;
    for how in ["dropped", "shut down", "crashed"] {
        let (directory, options) = fake(&format!("{DETACHED}{SERVE}"));
        fs::write(directory.path().join("url"), api.uri()).unwrap();
        let server = soon(OpenCodeServer::launch(options)).await.unwrap();
        let tool = fs::read_to_string(directory.path().join("tool")).unwrap().trim().parse().unwrap();
        assert!(is_alive(tool), "{how}");
        let leader = rustix::process::Pid::from_raw(server.pid().unwrap().cast_signed()).unwrap();
        match how {
            "dropped" => drop(server),
            "shut down" => drop(soon(server.shutdown()).await),
            _ => {
                rustix::process::kill_process(leader, rustix::process::Signal::KILL).unwrap();
                soon(server.exited()).await;
            }
        }
        all_dead(&[tool]).await;
    }
}

#[tokio::test]
async fn a_server_that_fails_to_start_says_why() {
    let launch = async |script: &str| {
        let (directory, options) = fake(script);
        let error = soon(OpenCodeServer::launch(options)).await.unwrap_err();
        drop(directory);
        error
    };
    let error = launch("echo one >&2; echo 'port taken' >&2; exit 3").await;
    assert!(
        matches!(&error, LaunchError::Exited(exit) if exit.status.unwrap().code() == Some(3)),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "the server ended while starting: exit status: 3; it said: one / port taken"
    );

    let error = launch("echo 'listening on port 80'; exit 0").await;
    assert_eq!(error.to_string(), "the server ended while starting: exit status: 0");

    let error =
        OpenCodeServer::launch(LaunchOptions::new().executable("/no/such/opencode")).await.unwrap_err();
    assert!(matches!(error, LaunchError::NotFound { .. }));
    assert!(error.to_string().contains("npm install -g opencode-ai"), "{error}");

    let error = OpenCodeServer::launch(LaunchOptions::new().executable("/etc/passwd")).await.unwrap_err();
    assert!(matches!(error, LaunchError::Spawn { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_refuses_or_never_answers_is_killed() {
    let api = MockServer::start().await;
    Mock::given(path("/global/health")).respond_with(ResponseTemplate::new(401)).mount(&api).await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let error = soon(OpenCodeServer::launch(options)).await.unwrap_err();
    assert!(matches!(&error, LaunchError::Refused(error) if error.status() == Some(401)), "{error:?}");
    all_dead(&pids(directory.path())).await;

    let mute = LiveServer::start().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), mute.url()).unwrap();
    let error =
        soon(OpenCodeServer::launch(options.startup_timeout(Duration::from_secs(1)))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server did not answer within 1000 ms; it said: starting with password [password]"
    );
    all_dead(&pids(directory.path())).await;
}

#[tokio::test]
async fn a_request_that_was_too_early_is_not_waited_for() {
    let api = LiveServer::start().await;
    let (directory, options) = fake(SERVE);
    fs::write(directory.path().join("url"), api.url()).unwrap();
    let (server, ()) = tokio::join!(soon(OpenCodeServer::launch(options)), async {
        let too_early = api.accept().await; // never answered
        let body = r#"{"healthy":true,"version":"1"}"#;
        api.accept().await.answer("200 OK", "content-type: application/json\r\n", body).await;
        too_early.closed().await;
    });
    server.unwrap();
}

#[tokio::test]
async fn a_crashed_server_is_restarted_within_limits_and_its_client_finds_it() {
    let (first, second) = (healthy().await, healthy().await);
    let (directory, options) = fake(SERVE);
    let set_url = |url: &str| fs::write(directory.path().join("url"), url).unwrap();
    set_url(&first.uri());
    let options = options.restart(RestartPolicy::up_to(1, Duration::from_secs(600)));
    let server = soon(OpenCodeServer::launch(options)).await.unwrap();
    let client = server.client().clone();
    set_url(&second.uri());
    let crash = || {
        let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    crash();
    let state =
        soon(server.wait_for(|state| matches!(state, ServerState::Running { restarts: 1, .. }))).await;
    assert!(
        matches!(&state, ServerState::Running { url, restarts: 1, .. } if *url == second.uri()),
        "{state:?}"
    );
    assert_eq!(client.base_url(), format!("{}/", second.uri()));
    client.health().await.unwrap();
    let pids = pids(directory.path());
    all_dead(&pids[..2]).await; // the first server left nothing behind

    crash();
    let exit = soon(server.exited()).await;
    assert!(!exit.requested);
    assert_eq!(exit.to_string(), "signal: 9 (SIGKILL); it said: starting with password [password]");
    assert!(matches!(server.state(), ServerState::Exited(_)));
    all_dead(&pids).await;
    assert_eq!(server.pid(), None);
}

#[tokio::test]
async fn a_server_that_keeps_crashing_is_given_up() {
    let api = healthy().await;
    let (directory, options) = fake(&format!(
        r#"[ -e "$FAKE_DIR/again" ] && {{ echo broken >&2; exit 7; }}
           touch "$FAKE_DIR/again"
           {SERVE}"#
    ));
    fs::write(directory.path().join("url"), api.uri()).unwrap();
    let options = options.restart(RestartPolicy::up_to(2, Duration::from_secs(600)));
    let server = soon(OpenCodeServer::launch(options)).await.unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let exit = soon(server.exited()).await;
    assert_eq!(exit.status.unwrap().code(), Some(7));
    assert_eq!(exit.stderr, ["broken"]);
    soon(server.shutdown()).await;
}

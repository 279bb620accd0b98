//! The dashboard's page in a real browser.
//!
//! Needs Chromium (`.ci/install-browser`); without it these tests say that they were skipped, or fail if `REQUIRE_BROWSER` is set.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken test should stop")]

mod chromium;
mod folding;
#[path = "../../src/serve/hub.rs"]
#[expect(dead_code, reason = "tasks are run by the program only")]
mod hub;
#[path = "../../../tests/support/model.rs"]
mod model;
mod on_real_server;
mod pictures;
#[path = "../../../tests/support/proxy.rs"]
mod proxy;
#[path = "../../../tests/support/real.rs"]
mod real;
mod rig;
mod watching;

use std::{future::IntoFuture, time::Duration};

use axum::{Router, routing::get};
use opencode_conductor::test_util::{Route, Script, ScriptedTool, Step};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};

use crate::{
    chromium::Browser,
    proxy::Proxy,
    rig::{Dashboard, asking, question},
};

/// The state of a task's card.
fn is(task: usize, state: &str) -> String {
    format!("document.querySelector('#task-{task}')?.dataset.state === '{state}'")
}

/// Whether a task's card shows a text.
fn shows(task: usize, text: &str) -> String {
    format!("document.querySelector('#task-{task}')?.textContent.includes({})", json!(text))
}

/// A step that stops half-way through its text until the gate is opened.
fn halting(text: &str, gate: &str) -> Step {
    Step::text(text).gate_middle(gate)
}

#[tokio::test]
async fn a_turn_is_watched_from_its_first_word_to_its_end() {
    let Some(mut browser) = Browser::start().await else { return };
    let step = halting("One two three four five six seven eight", "middle").reasoning("Counting is easy.");
    let task = json!({
        "description": "Count on", "subagent_type": "general",
        "prompt": Script::new([Step::text("Nine and ten.")]).prompt("count on"),
    });
    let read = ScriptedTool::new("read", json!({"filePath": "numbers.txt"})).output("1 2 3");
    let script = Script::new([Step::tool(read), Step::tool(ScriptedTool::new("task", task)), step]);
    let dashboard = Dashboard::start([("count", script)]).await;
    browser.open(&dashboard.entry).await;
    browser.wait(&shows(1, "One two")).await;
    browser.wait(&is(1, "busy")).await;
    assert_eq!(browser.eval(&shows(1, "eight")).await, false);
    browser.wait("document.querySelector('.text[data-status=pending]')").await;

    dashboard.fake.open_gate("middle");
    browser.wait(&is(1, "done")).await;
    browser.wait(&shows(1, "seven eight")).await;
    let shown = browser.eval("document.querySelector('#task-1').innerText").await;
    for words in [
        "done",
        "Thinking",
        "Counting is easy.",
        "read",
        "numbers.txt",
        "@general",
        "Count on",
        "Nine and ten.",
        "tokens",
        "· $0",
    ] {
        assert!(shown.as_str().unwrap().contains(words), "{words:?} is missing in {shown}");
    }
    assert_eq!(browser.eval("document.querySelectorAll('.tool[data-status=success]').length").await, 1);
    assert_eq!(browser.eval("document.querySelector('.abort').hidden").await, true);

    // What the page has folded is what the server has.
    let folded =
        browser.eval("import('/app.js').then(({tasks}) => JSON.parse(JSON.stringify(tasks.get(1))))").await;
    let loaded = dashboard.loaded(folded["task"]["session"].as_str().unwrap()).await;
    assert_eq!(folded["conversation"], serde_json::to_value(&loaded).unwrap());
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn permissions_are_granted_and_denied() {
    let Some(mut browser) = Browser::start().await else { return };
    let script = |command| Script::new([Step::tool(asking(command)), Step::text("Went on.")]);
    let dashboard = Dashboard::start([("make a", script("touch a")), ("make b", script("touch b"))]).await;
    browser.open(&dashboard.entry).await;
    for task in [1, 2] {
        browser.wait(&is(task, "asks")).await;
    }
    assert_eq!(browser.eval("document.title").await, "(2) Tasks");
    browser.click("#task-1 .request .primary").await;
    browser.wait(&is(1, "done")).await;
    browser.wait("document.querySelector('#task-1 .tool[data-status=success]')").await;
    assert_eq!(browser.eval("document.activeElement.id").await, "task-1", "the focus is not lost");
    assert_eq!(browser.eval(&shows(1, "did touch a")).await, true);
    assert_eq!(browser.eval(&is(2, "asks")).await, true, "the other task's request is another one");

    browser.click("#task-2 .request .danger").await;
    browser.wait(&is(2, "done")).await;
    browser.wait("document.querySelector('#task-2 .tool[data-status=error]')").await;
    assert_eq!(browser.eval(&shows(2, "did touch b")).await, false);
    assert_eq!(browser.eval(&shows(2, "Went on.")).await, true);
    assert_eq!(browser.eval("document.querySelectorAll('.request').length").await, 0);
    assert_eq!(browser.eval("document.title").await, "Tasks");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn always_answers_for_what_it_covers() {
    let Some(mut browser) = Browser::start().await else { return };
    let step = Step::tools([asking("git add a"), asking("git add b")]);
    let dashboard = Dashboard::start([("commit", Script::new([step, halting("Done.", "end")]))]).await;
    browser.open(&dashboard.entry).await;
    browser.wait("document.querySelectorAll('.request').length === 2").await;
    browser.click(".request button:nth-child(2)").await;
    // While the turn still runs.
    browser.wait("document.querySelectorAll('.request').length === 0").await;
    dashboard.fake.open_gate("end");
    browser.wait(&is(1, "done")).await;
    assert_eq!(browser.eval("document.querySelectorAll('.tool[data-status=success]').length").await, 2);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn questions_are_answered() {
    let Some(mut browser) = Browser::start().await else { return };
    let ask = || Step::tool(question("Which one?", ["left", "right"]));
    let script = || Script::new([ask(), Step::text("I see.")]);
    let dashboard =
        Dashboard::start([("ask", script()), ("ask again", script()), ("ask more", script())]).await;
    browser.open(&dashboard.entry).await;
    for task in [1, 2, 3] {
        browser.wait(&is(task, "asks")).await;
    }
    browser.click("#task-1 .request .primary").await;
    browser.wait(&shows(1, "Choose an answer")).await;
    browser.click("#task-1 .option:nth-of-type(2)").await;
    browser.click("#task-1 .request .primary").await;
    browser.wait(&is(1, "done")).await;
    assert_eq!(browser.eval(&shows(1, "\"Which one?\"=\"right\"")).await, true);

    browser.click("#task-2 .request input[type=text]").await;
    browser.type_text("straight on").await;
    browser.press_enter().await;
    browser.wait(&is(2, "done")).await;
    assert_eq!(browser.eval(&shows(2, "\"Which one?\"=\"straight on\"")).await, true);

    browser.click("#task-3 .request button[type=button]").await;
    browser.wait(&is(3, "done")).await;
    assert_eq!(browser.eval(&shows(3, "No one is available")).await, true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn a_reload_shows_the_same_and_goes_on() {
    let Some(mut browser) = Browser::start().await else { return };
    let script =
        || Script::new([Step::tool(asking("touch a")), halting("One two three four five six", "middle")]);
    let dashboard = Dashboard::start([("count", script()), ("count too", script())]).await;
    browser.open(&dashboard.entry).await;
    browser.wait(&is(2, "asks")).await;
    browser.wait(&is(1, "asks")).await;
    browser.click("#task-1 .request .primary").await;
    browser.wait(&shows(1, "One two")).await;
    let shown = "[...document.querySelectorAll('.card')].map((card) => [card.dataset.state, \
                 ...[...card.querySelectorAll('h2, .requests, .thread')].map((part) => part.innerText)])";
    let before = browser.eval(shown).await;
    browser.reload().await;
    browser.wait(&shows(1, "One two")).await;
    assert_eq!(browser.eval(shown).await, before);
    dashboard.fake.open_gate("middle");
    browser.wait(&is(1, "done")).await;
    browser.wait(&shows(1, "One two three four five six")).await;
    browser.click("#task-2 .request .primary").await;
    browser.wait(&is(2, "done")).await;
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn a_lost_connection_is_made_up_for() {
    let Some(mut browser) = Browser::start().await else { return };
    let script = Script::new([halting("One two three four five six", "middle")]);
    let dashboard = Dashboard::start([("count", script)]).await;
    let network = Proxy::start(&dashboard.url).await;
    browser.open(&format!("{}/?token={}", network.url(), dashboard.token())).await;
    browser.wait(&shows(1, "One two")).await;
    browser.wait("document.querySelector('#connection').dataset.state === 'live'").await;
    network.go_dark();
    browser.wait("document.querySelector('#connection').dataset.state === 'reconnecting'").await;
    // Meanwhile the turn ends.
    dashboard.fake.open_gate("middle");
    let session = dashboard.fake.sessions()[0]["id"].as_str().unwrap().to_owned();
    let idle = dashboard.fake.wait_for(|log| log.events_of(&session, "session.idle") > 0);
    timeout(Duration::from_secs(30), idle).await.unwrap();
    assert_eq!(browser.eval(&is(1, "busy")).await, true);
    network.light_up();
    browser.wait(&is(1, "done")).await;
    browser.wait("document.querySelector('#connection').dataset.state === 'live'").await;
    let text = browser.eval("document.querySelector('.text').textContent").await;
    assert_eq!(text, "One two three four five six", "nothing is lost and nothing doubled");
}

#[tokio::test]
async fn the_program_ends_while_somebody_watches() {
    let Some(mut browser) = Browser::start().await else { return };
    let script = Script::new([halting("One two three four five six", "never")]);
    let mut dashboard = Dashboard::start([("count", script)]).await;
    browser.open(&dashboard.entry).await;
    browser.wait(&shows(1, "One two")).await;
    let process = Pid::from_raw(dashboard.process.id().unwrap().cast_signed()).unwrap();
    kill_process(process, Signal::INT).unwrap();
    browser.wait(&is(1, "aborted")).await;
    browser.wait("document.querySelector('#connection').dataset.state === 'reconnecting'").await;
    let ended = timeout(Duration::from_secs(30), dashboard.process.wait()).await.unwrap();
    assert_eq!(ended.unwrap().code(), Some(0));
    browser.click("#prompt").await;
    browser.type_text("more").await;
    browser.press_enter().await;
    browser.wait("document.querySelector('#new-failure').textContent.includes('cannot be reached')").await;
    assert_eq!(
        browser.eval("document.querySelector('#prompt').value").await,
        "more",
        "nothing typed is lost"
    );
}

#[tokio::test]
async fn a_task_is_started_and_aborted_on_the_page() {
    let Some(mut browser) = Browser::start().await else { return };
    let dashboard = Dashboard::start([]).await;
    browser.open(&dashboard.entry).await;
    browser.wait("!document.querySelector('#empty').hidden").await;
    let prompt = Script::new([halting("One two three four five six", "never")]).prompt("count");
    browser.click("#prompt").await;
    browser.type_text(&prompt).await;
    browser.press_enter().await;
    // The page shows the prompt, too, which has the same words.
    dashboard.fake.wait_at("never").await;
    browser.wait(&shows(1, "One two")).await;
    assert_eq!(browser.eval("document.querySelector('#empty').hidden").await, true);
    assert_eq!(browser.eval("document.querySelector('#prompt').value").await, "");
    browser.click("#task-1 .abort").await;
    browser.wait(&is(1, "aborted")).await;
    assert_eq!(dashboard.fake.request_count(Route::Abort), 1);
    assert_eq!(browser.eval("document.querySelector('.abort').hidden").await, true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn hostile_text_is_only_text() {
    let Some(mut browser) = Browser::start().await else { return };
    let evil = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>";
    let long = "x".repeat(600);
    let mut ask = asking(&format!("echo {evil} {long}"));
    ask.result.output = format!("{evil}\n{long}");
    let mut first = Step::tool(ask);
    first.text = format!("{evil} {long}");
    first.reasoning = evil.to_owned();
    let second = Step::tool(question(evil, [evil, &long]));
    let prompt = format!("{evil} {long}");
    let dashboard = Dashboard::start([(&prompt, Script::new([first, second, Step::text("Done.")]))]).await;
    browser.resize(390, 844).await;
    browser.open(&dashboard.entry).await;
    let fits = "document.documentElement.scrollWidth <= innerWidth";
    browser.wait("document.querySelector('.request button.danger')").await;
    assert_eq!(browser.eval(&shows(1, evil)).await, true);
    assert_eq!(browser.eval(fits).await, true, "no line is wider than a phone");
    browser.click(".request .primary").await;
    browser.wait("document.querySelector('.option')").await;
    assert_eq!(browser.eval(fits).await, true, "no line is wider than a phone");
    browser.eval("document.querySelectorAll('details').forEach((details) => details.open = true)").await;
    assert_eq!(browser.eval(fits).await, true, "no line is wider than a phone");
    browser.click(".option").await;
    browser.click(".request .primary").await;
    browser.wait(&is(1, "done")).await;
    assert_eq!(browser.eval("window.hacked").await, Value::Null);
    assert_eq!(browser.eval("document.querySelectorAll('main img, main script').length").await, 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[tokio::test]
async fn the_page_follows_the_preferred_colours() {
    let Some(mut browser) = Browser::start().await else { return };
    let dashboard = Dashboard::start([]).await;
    browser.open(&dashboard.entry).await;
    let mut lightness = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        let colours = "['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name].match(/\\d+/g)\
                       .reduce((sum, value) => sum + Number(value), 0))";
        let colours = browser.eval(colours).await;
        lightness.push((colours[0].as_u64().unwrap(), colours[1].as_u64().unwrap()));
    }
    let [(light_text, light_page), (dark_text, dark_page)] = lightness[..] else { panic!() };
    assert!(light_text + 300 < light_page && dark_page + 300 < dark_text, "{lightness:?}");
}

#[tokio::test]
async fn foreign_pages_can_do_nothing() {
    let Some(mut browser) = Browser::start().await else { return };
    let dashboard = Dashboard::start([("do it", Script::new([Step::tool(asking("touch a"))]))]).await;
    browser.open(&dashboard.entry).await;
    browser.wait(&is(1, "asks")).await;
    let request = browser.eval("document.querySelector('.request').dataset.request").await;
    let (url, request) = (&dashboard.url, request.as_str().unwrap());

    // Another page in the same browser.
    let foreign = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let elsewhere = format!("http://{}", foreign.local_addr().unwrap());
    let mut servers = JoinSet::new();
    servers.spawn(axum::serve(foreign, Router::new().route("/", get(|| async { "" }))).into_future());
    browser.open(&elsewhere).await;
    let post = |path: &str, body: &str| {
        format!(
            "fetch('{url}{path}', {{method: 'POST', mode: 'no-cors', body: {}}}).then(() => true)",
            json!(body)
        )
    };
    for (path, body) in [
        ("/tasks/1/abort".to_owned(), "{}"),
        (format!("/permissions/{request}"), r#"{"reply":"once"}"#),
        ("/tasks".to_owned(), r#"{"prompt":"evil"}"#),
    ] {
        assert_eq!(browser.eval(&post(&path, body)).await, true);
    }

    browser.open(url).await;
    browser.wait(&is(1, "asks")).await;
    assert_eq!(browser.eval("document.querySelectorAll('.card').length").await, 1);
}

#[tokio::test]
async fn foreign_origins_and_names_are_refused() {
    let dashboard = Dashboard::start([]).await;
    let url = dashboard.url.as_str();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let rows: [(&[(&str, &str)], u16); 6] = [
        (&[("origin", "http://evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("origin", "http://localhost:1")], 403),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("host", "evil.example")], 403),
        // Allowed, so that it is the empty prompt that is complained about.
        (&[("origin", url), ("sec-fetch-site", "same-origin")], 400),
    ];
    for (headers, status) in rows {
        let sent = client.post(format!("{url}/tasks")).header("cookie", dashboard.cookie());
        let mut sent = sent.json(&json!({"prompt": " "}));
        for (name, value) in headers {
            sent = sent.header(*name, *value);
        }
        assert_eq!(sent.send().await.unwrap().status(), status, "{headers:?}");
    }
    let hosts = [
        ("localhost:4747", 200),
        ("127.0.0.1", 200),
        ("[::1]:4747", 200),
        // A name that was made to lead here: its page could read what this one can.
        ("evil.example:4747", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:1@evil.example", 403),
        ("10.0.0.1", 403),
    ];
    for (host, status) in hosts {
        let sent = client.get(format!("{url}/events")).header("cookie", dashboard.cookie());
        let got = sent.header("host", host).send().await.unwrap();
        assert_eq!(got.status(), status, "{host}");
        let policy = got.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}

/// Any user of this machine reaches the port, and so does any program that an agent runs.
#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let dashboard = Dashboard::start([("do it", Script::new([Step::tool(asking("touch a"))]))]).await;
    let (url, port) = (dashboard.url.as_str(), dashboard.url.rsplit(':').next().unwrap());
    let no_redirect = reqwest::redirect::Policy::none();
    let client = reqwest::Client::builder().no_proxy().redirect(no_redirect).build().unwrap();
    let paths = ["/", "/app.js", "/style.css", "/events", "/nowhere", "/?token=", "/?token=wrong"];
    for path in paths.map(str::to_owned).into_iter().chain([format!("/events?token={}", dashboard.token())]) {
        for cookie in [String::new(), format!("conductor-{port}="), format!("conductor-{port}=wrong")] {
            let got = client.get(format!("{url}{path}")).header("cookie", &cookie).send().await.unwrap();
            assert_eq!(got.status(), 401, "{path}, {cookie:?}");
        }
    }
    for (path, body) in [
        ("/tasks", json!({"prompt": "evil"})),
        ("/tasks/1/abort", json!({})),
        ("/permissions/per_1", json!({"reply": "always"})),
        ("/questions/que_1", json!({"answers": null})),
    ] {
        let got = client.post(format!("{url}{path}")).json(&body).send().await.unwrap();
        assert_eq!(got.status(), 401, "{path}");
    }
    let let_in = client.get(&dashboard.entry).send().await.unwrap();
    assert_eq!(let_in.status(), 303);
    assert_eq!(let_in.headers()["location"], "/", "the token does not stay in the address");
    let cookie = let_in.headers()["set-cookie"].to_str().unwrap();
    assert_eq!(cookie, format!("{}; HttpOnly; SameSite=Strict; Path=/", dashboard.cookie()));
    let got = client.get(url).header("cookie", dashboard.cookie()).send().await.unwrap();
    assert_eq!(got.status(), 200);
    let decided = client.post(format!("{url}/permissions/per%2F..%2Fx")).header("cookie", dashboard.cookie());
    assert_eq!(decided.json(&json!({"reply": "once"})).send().await.unwrap().status(), 404);
}

/// What a person approves on the page is what will run, whatever it looks like.
#[tokio::test]
async fn a_person_sees_in_full_what_would_run_and_what_always_allows() {
    let Some(mut browser) = Browser::start().await else { return };
    let command = "touch a && \u{202e}rm -rf\u{200b} ~/\n  # the second line";
    let dashboard = Dashboard::start([("do it", Script::new([Step::tool(asking(command))]))]).await;
    browser.open(&dashboard.entry).await;
    browser.wait(&is(1, "asks")).await;
    let card =
        |part: &str| format!("[...document.querySelectorAll('.request {part}')].map((it) => it.textContent)");
    let shown = browser.eval(&card(".command")).await;
    assert_eq!(shown, json!(["touch a && <U+202E>rm -rf<U+200B> ~/\n  # the second line"]));
    // The patterns, and below the buttons what "always" grants.
    let patterns = json!(["touch a", "<U+202E>rm -rf<U+200B> ~/", "touch *", "<U+202E>rm *"]);
    assert_eq!(browser.eval(&card(".pattern")).await, patterns);
    let words = browser.eval("document.querySelector('.request').innerText").await;
    assert!(words.as_str().unwrap().contains("“Always” allows from now on, in all tasks:"), "{words}");
}

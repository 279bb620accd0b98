//! A headless Chromium, driven over its debugging pipe: no driver program, no port, no library.

use std::{
    env,
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::Once,
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// How long anything on a page may take before something is wrong with it.
const PATIENCE: Duration = Duration::from_secs(120);

const FLAGS: [&str; 12] = [
    "--headless",
    // It shows our own page only, and root can have no other.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
    "about:blank",
];

/// A browser with one page; dropping it ends it.
pub(crate) struct Browser {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    page: String,
    n_sent: u64,
    /// Exceptions, errors on the console, and what the content security policy stopped.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

/// The executable; nothing, and a word about it, if there is none.
pub(crate) fn find() -> Option<PathBuf> {
    static SAID: Once = Once::new();
    let named = env::var_os("CHROMIUM").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = |name| env::split_paths(&path).map(move |dir| dir.join(name)).find(|file| file.is_file());
    let found =
        named.or_else(|| ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(on_path));
    if found.is_none() {
        let hint = "no browser: install one with .ci/install-browser, or name it in CHROMIUM";
        assert!(env::var_os("REQUIRE_BROWSER").is_none(), "{hint}");
        // Once, and straight to the terminal: what a test prints that passes is not shown.
        SAID.call_once(|| drop(writeln!(std::io::stderr(), "skipped: {hint}")));
    }
    found
}

/// Ends all processes of the browser: they write to its profile for as long as they are there.
impl Drop for Browser {
    fn drop(&mut self) {
        let Some(group) = self.process.id().map(|id| format!("-{id}")) else { return };
        let signal = |signal| {
            let mut kill = process::Command::new("kill");
            kill.args([signal, "--", &group]).stderr(Stdio::null()).status().is_ok_and(|it| it.success())
        };
        signal("-KILL");
        for _ in 0..1000 {
            if !matches!(self.process.try_wait(), Ok(None)) && !signal("-0") {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Browser {
    pub(crate) async fn start() -> Option<Self> {
        let executable = find()?;
        let profile = TempDir::new().unwrap();
        let mut profile_flag = OsStr::new("--user-data-dir=").to_owned();
        profile_flag.push(profile.path());
        // The pipe is its file descriptors 3 and 4.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 1>&2"#])
            .arg(executable)
            .arg(profile_flag)
            .args(FLAGS)
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut browser = Self {
            process,
            input,
            output,
            page: String::new(),
            n_sent: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let page = browser.call("Target.attachToTarget", attach).await;
        page["sessionId"].as_str().unwrap().clone_into(&mut browser.page);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser.resize(1280, 900).await;
        Some(browser)
    }

    pub(crate) async fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url})).await;
        self.event("Page.loadEventFired").await;
    }

    pub(crate) async fn reload(&mut self) {
        self.call("Page.reload", json!({})).await;
        self.event("Page.loadEventFired").await;
    }

    pub(crate) async fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Prefers `light` or `dark`.
    pub(crate) async fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// What an expression, or a promise, comes to.
    pub(crate) async fn eval(&mut self, expression: &str) -> Value {
        let arguments = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", arguments).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer:#}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true, looking whenever the page has changed.
    pub(crate) async fn wait(&mut self, condition: &str) {
        let wait = format!(
            "new Promise((resolve) => {{
                const check = () => {{ if ({condition}) {{ observer.disconnect(); resolve(true); }} }};
                const observer = new MutationObserver(check);
                observer.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
                check();
                setTimeout(() => {{ observer.disconnect(); resolve(false); }}, {});
            }})",
            PATIENCE.as_millis() / 2
        );
        if self.eval(&wait).await != true {
            let page = self.eval("document.body.innerText").await;
            panic!("{condition} did not come true; the page shows:\n{}", page.as_str().unwrap_or_default());
        }
    }

    /// Clicks what lies where a person would see the element. Looking and clicking are one step of the page's, since anything that
    /// arrives between the two may move what lies there.
    pub(crate) async fn click(&mut self, selector: &str) {
        let selector = json!(selector);
        let clicked = self
            .eval(&format!(
                "(() => {{
                    const element = document.querySelector({selector});
                    element.scrollIntoView({{block: 'center', behavior: 'instant'}});
                    const box = element.getBoundingClientRect();
                    const seen = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
                    if (!element.contains(seen)) return false;
                    element.focus({{preventScroll: true}});
                    seen.click();
                    return true;
                }})()"
            ))
            .await;
        assert!(clicked == true, "{selector} is covered by something");
    }

    /// Types into whatever has the focus.
    pub(crate) async fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    pub(crate) async fn press_enter(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"});
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Writes what the page shows to a file.
    pub(crate) async fn picture(&mut self, path: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    async fn call(&mut self, method: &str, arguments: Value) -> Value {
        self.n_sent += 1;
        let mut command = json!({"id": self.n_sent, "method": method, "params": arguments});
        if !self.page.is_empty() {
            command["sessionId"] = json!(self.page);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).await.unwrap();
        let mut answer = self.read_until(method, |message, sent| message["id"] == sent).await;
        assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        answer["result"].take()
    }

    async fn event(&mut self, method: &str) {
        self.read_until(method, |message, _| message["method"] == method).await;
    }

    async fn read_until(&mut self, what: &str, is_it: impl Fn(&Value, u64) -> bool) -> Value {
        let reading = async {
            loop {
                let mut bytes = Vec::new();
                let n = self.output.read_until(0, &mut bytes).await.unwrap();
                assert!(n > 0, "the browser ended while {what} was waited for");
                bytes.pop();
                let message: Value = serde_json::from_slice(&bytes).unwrap();
                match message["method"].as_str() {
                    Some("Runtime.exceptionThrown") => {
                        self.complaints.push(message["params"]["exceptionDetails"].to_string());
                    }
                    Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                        self.complaints.push(message["params"]["entry"].to_string());
                    }
                    _ => {}
                }
                if is_it(&message, self.n_sent) {
                    return message;
                }
            }
        };
        timeout(PATIENCE, reading).await.unwrap_or_else(|_late| panic!("{what} takes too long"))
    }
}

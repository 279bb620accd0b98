//! The pictures of the page in `docs/`; `docs/make-pictures` makes them again.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{chromium::Browser, is, rig};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Stands for everything that decides what the pictures show: the page, and the demonstration on it.
fn fingerprint() -> String {
    let sources = ["index.html", "style.css", "app.js", "view.js", "fold.js", "icon.svg"]
        .map(|name| format!("src/serve/page/{name}"));
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for source in sources.iter().map(String::as_str).chain(["src/demo.rs"]) {
        for byte in fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(source)).unwrap() {
            // FNV-1a.
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}\n")
}

#[test]
fn the_pictures_are_of_this_page() {
    let pictured = fs::read_to_string(docs().join("dashboard.fingerprint")).unwrap();
    assert_eq!(
        pictured,
        fingerprint(),
        "the page has changed: run docs/make-pictures and look at docs/dashboard*.png"
    );
    for name in ["dashboard.png", "dashboard-dark.png", "dashboard-phone.png"] {
        let size = fs::metadata(docs().join(name)).unwrap().len();
        assert!((10_000..250_000).contains(&size), "{name}: {size} bytes");
    }
}

/// The demonstration at a moment when every kind of thing is to be seen.
#[tokio::test]
#[ignore = "writes to docs/"]
async fn pictures() {
    let Some(mut browser) = Browser::start().await else { return };
    let place = TempDir::new().unwrap();
    let project = place.path().join("my-project");
    fs::create_dir(&project).unwrap();
    browser.resize(1080, 1396).await;
    let (_process, url) = rig::spawn(&mut rig::command(&project)).await;
    browser.open(&url).await;
    browser.wait(&is(2, "asks")).await;
    browser.wait(&is(3, "asks")).await;
    browser.wait(&is(4, "done")).await;
    browser
        .wait(
            "document.querySelector('#task-1 .text[data-status=pending]')?.textContent.includes('the check')",
        )
        .await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        let name = if scheme == "light" { "dashboard.png" } else { "dashboard-dark.png" };
        browser.picture(&docs().join(name)).await;
    }
    browser.prefer("light").await;
    browser.resize(390, 844).await;
    browser.eval("document.querySelector('#task-2').scrollIntoView({behavior: 'instant'})").await;
    browser.picture(&docs().join("dashboard-phone.png")).await;
    fs::write(docs().join("dashboard.fingerprint"), fingerprint()).unwrap();
}

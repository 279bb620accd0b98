//! The pictures of the page in `docs/`; `docs/make-pictures` makes them again.

use std::path::Path;

use tempfile::TempDir;

use crate::{chromium::Browser, is, rig, shows};

/// The demonstration at a moment when every kind of thing is to be seen.
#[tokio::test]
#[ignore = "writes to docs/"]
async fn pictures() {
    let Some(mut browser) = Browser::start().await else { return };
    let place = TempDir::new().unwrap();
    let (_process, url) = rig::spawn(&mut rig::command(&place)).await;
    browser.open(&url).await;
    // The path of a temporary directory means nothing to anybody.
    browser.wait(&is(2, "asks")).await;
    browser.wait(&is(3, "asks")).await;
    browser.wait(&is(4, "done")).await;
    browser.wait(&shows(1, "running 4 tests")).await;
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    browser.prefer("light").await;
    browser.resize(1360, 1000).await;
    browser.picture(&docs.join("dashboard.png")).await;
    browser.prefer("dark").await;
    browser.picture(&docs.join("dashboard-dark.png")).await;
    browser.prefer("light").await;
    browser.resize(390, 844).await;
    browser.eval("document.querySelector('#task-2').scrollIntoView({behavior: 'instant'})").await;
    browser.picture(&docs.join("dashboard-phone.png")).await;
}

//! A real server, if there is one.

use std::{io::Write, path::PathBuf, time::Duration};

use opencode_conductor::{ClientBuilder, Directory, LaunchOptions};
use serde_json::json;
use tempfile::TempDir;

use super::secrets::PASSWORD;

/// A HOME and two projects for a server of one's own.
pub(crate) struct Rig {
    pub(crate) root: TempDir,
}

impl Rig {
    /// `None`, with words on how to change that, if there is no executable.
    pub(crate) fn find() -> Option<Self> {
        let named = std::env::var_os("OPENCODE_BIN").filter(|path| !path.is_empty()).map(PathBuf::from);
        let on_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|entry| entry.join("opencode")).find(|path| path.is_file())
        };
        if named.or_else(on_path).is_none() {
            // Straight to the terminal: what a test prints that passes is not shown.
            let how =
                "skipped: set OPENCODE_BIN to the opencode executable to run the tests of a managed server";
            assert!(std::env::var_os("REQUIRE_OPENCODE").is_none(), "{how}");
            drop(writeln!(std::io::stderr(), "{how}"));
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        for name in ["home", "one", "two \u{e9} 100%"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        Some(Self { root })
    }

    pub(crate) fn directory(&self, name: &str) -> Directory {
        Directory::new(self.root.path().canonicalize().unwrap().join(name)).unwrap()
    }

    /// Options for a server that needs nothing from outside.
    pub(crate) fn options(&self) -> LaunchOptions {
        let home = self.root.path().join("home");
        LaunchOptions::new()
            .password(PASSWORD)
            .directory(self.root.path().join("one"))
            .env("HOME", &home)
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_STATE_HOME", home.join("state"))
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
            .config(
                json!({"share": "disabled", "autoupdate": false, "model": "mock/m", "provider": {"mock": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "Mock",
                    "options": {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "x"},
                    "models": {"m": {"name": "M"}},
                }}}),
            )
            .configure_client(patient)
    }
}

/// A server that shares its machine with much else may need a minute for its first answer.
pub(crate) fn patient(client: ClientBuilder) -> ClientBuilder {
    let patience = Duration::from_secs(120);
    client.answer_timeout(patience).read_timeout(patience)
}

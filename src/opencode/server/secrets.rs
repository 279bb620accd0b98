//! What only the server is to read: its password and the keys in its environment and configuration.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// Takes the password out of the server's environment, which every tool inherits. The server has read it by then.
const PLUGIN: &str = "\
export const HideServerPassword = async () => {
  delete process.env.OPENCODE_SERVER_PASSWORD
  return {}
}
";

/// The name of the variable that holds configuration.
pub(super) const CONFIG: &str = "OPENCODE_CONFIG_CONTENT";

/// The plugin, in a directory that only this user can read, and that goes when this is dropped.
#[derive(Debug)]
pub(super) struct HidePassword {
    directory: PathBuf,
}

impl HidePassword {
    pub(super) fn new() -> io::Result<Self> {
        let mut bytes = [0; 12];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("opencode-conductor-{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let directory = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory)?;
        let plugin = Self { directory };
        fs::write(plugin.file(), PLUGIN)?;
        Ok(plugin)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("hide-server-password.js")
    }

    /// What is configured, else what the variable says, with the plugin in it. A variable that cannot be read is left as it is.
    pub(super) fn configure(&self, config: Option<&Value>, variable: Option<&OsStr>) -> Option<String> {
        let mut config = match (config, variable) {
            (Some(config), _) => Some(config.clone()),
            (None, Some(text)) => parse(text),
            (None, None) => Some(json!({})),
        };
        let fields = config.as_mut().and_then(Value::as_object_mut);
        let plugins = fields.map(|fields| fields.entry("plugin").or_insert(Value::Null));
        match plugins {
            Some(Value::Array(plugins)) => plugins.push(file_url(&self.file()).into()),
            Some(none @ Value::Null) => *none = json!([file_url(&self.file())]),
            _ => tracing::warn!("the plugin that hides the server's password cannot be added to {CONFIG}"),
        }
        Some(config?.to_string())
    }
}

impl Drop for HidePassword {
    fn drop(&mut self) {
        // What is left of it holds no secret.
        let _removed = fs::remove_dir_all(&self.directory);
    }
}

fn file_url(path: &Path) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');
    let text = path.to_string_lossy();
    format!("file://{}", percent_encoding::utf8_percent_encode(&text, KEPT))
}

/// Values that must not be quoted: the password, and whatever is called a key, token, secret or password in the environment or the
/// configuration, line by line, as they are quoted. Short values would hide half of what is said.
pub(super) fn unquotable<'a>(
    password: &Arc<str>,
    variables: impl IntoIterator<Item = (&'a OsString, &'a OsString)>,
    config: Option<&Value>,
) -> Vec<Arc<str>> {
    let mut found = vec![Arc::clone(password)];
    for (name, value) in variables {
        if let (Some(name), Some(value)) = (name.to_str(), value.to_str()) {
            add_secret(name, value, &mut found);
        }
        if name == CONFIG
            && let Some(config) = parse(value)
        {
            add_secrets_in(&config, &mut found);
        }
    }
    if let Some(config) = config {
        add_secrets_in(config, &mut found);
    }
    found
}

fn add_secrets_in(config: &Value, found: &mut Vec<Arc<str>>) {
    match config {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) => add_secret(name, text, found),
                    None => add_secrets_in(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_secrets_in(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn add_secret(name: &str, value: &str, found: &mut Vec<Arc<str>>) {
    let name = name.to_ascii_lowercase();
    if ["key", "token", "secret", "passw", "auth", "credential"].iter().any(|word| name.contains(word)) {
        found.extend(value.lines().map(str::trim).filter(|line| line.len() >= 8).map(Arc::from));
    }
}

fn parse(variable: &OsStr) -> Option<Value> {
    serde_json::from_str(variable.to_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_wherever_they_stand() {
        let variables = [
            ("OPENAI_API_KEY", "sk-12345678"),
            ("PATH", "/usr/bin:/bin"),
            ("KEY", "short"),
            ("PRIVATE_KEY", "-----BEGIN-----\nMIIEvQIBADANBg\r\nkqhkiG9w0B=\n-----END-----\n"),
            (CONFIG, r#"{"provider": {"q": [{"apiKey": "inherited-key"}]}}"#),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let config = json!({"provider": {"p": {"options": {"apiKey": "geheim-geheim", "baseURL": "http://127.0.0.1"}}}});
        let found = unquotable(
            &"password".into(),
            variables.iter().map(|(name, value)| (name, value)),
            Some(&config),
        );
        let lines = ["-----BEGIN-----", "MIIEvQIBADANBg", "kqhkiG9w0B=", "-----END-----"];
        let expected =
            [&["password", "sk-12345678"], &lines[..], &["inherited-key", "geheim-geheim"]].concat();
        assert_eq!(found.iter().map(|secret| &**secret).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_plugin_is_added_to_what_is_configured() {
        let hide = HidePassword::new().unwrap();
        let url = file_url(&hide.file());
        let configured = |config: Option<Value>, variable: Option<&str>| {
            let text = hide.configure(config.as_ref(), variable.map(OsStr::new))?;
            Some(serde_json::from_str::<Value>(&text).unwrap())
        };
        assert_eq!(configured(None, None), Some(json!({"plugin": [url]})));
        let own = json!({"plugin": ["mine"], "share": "disabled"});
        assert_eq!(configured(Some(own), None), Some(json!({"plugin": ["mine", url], "share": "disabled"})));
        assert_eq!(configured(None, Some(r#"{"a": 1}"#)), Some(json!({"a": 1, "plugin": [url]})));
        assert_eq!(configured(None, Some("{ // a comment\n}")), None, "it is left as it is");
        assert_eq!(configured(Some(json!({"plugin": null})), None), Some(json!({"plugin": [url]})));
        let odd = json!({"plugin": "mine", "permission": "deny"});
        assert_eq!(configured(Some(odd.clone()), None), Some(odd.clone()), "nothing of it is lost");
        assert_eq!(configured(None, Some(&odd.to_string())), Some(odd));
        let directory = hide.directory.clone();
        assert!(directory.exists());
        drop(hide);
        assert!(!directory.exists());
    }
}

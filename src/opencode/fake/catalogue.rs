//! What the server says of itself: its configuration, models, agents and paths.

use serde_json::{Map, Value, json};

use super::{Shared, answer::Answer, options::split_model, serve::Call};

impl Shared {
    pub(super) fn describe(&self, call: &Call, directory: &str) -> Answer {
        let path: Vec<&str> = call.segments.iter().map(String::as_str).collect();
        let value = match path.as_slice() {
            ["config"] => self.config(),
            ["config", "providers"] => self.providers(),
            ["agent"] => {
                let agent = |name: &String| {
                    let mode = if name == "general" || name == "explore" { "subagent" } else { "primary" };
                    json!({"name": name, "mode": mode, "native": true, "permission": [], "options": {}})
                };
                self.options.agents.iter().map(agent).collect()
            }
            ["path"] => json!({
                "home": "/fake/home", "state": "/fake/home/.local/state/opencode",
                "config": "/fake/home/.config/opencode", "worktree": directory, "directory": directory,
            }),
            ["project", "current"] => json!({
                "id": super::world::PROJECT, "worktree": directory, "vcs": "git",
                "time": {"created": 0, "updated": 0}, "sandboxes": [],
            }),
            _ => json!({"openapi": "3.1.0", "info": {"title": "opencode", "version": "1.0.0"}, "paths": {}}),
        };
        Answer::json(&value)
    }

    pub(super) fn config(&self) -> Value {
        let (provider, model) = self.default_model();
        json!({
            "model": format!("{provider}/{model}"), "small_model": format!("{provider}/{model}"),
            "autoupdate": false, "share": "disabled", "permission": self.options.permission,
            "provider": self.priced_models(),
        })
    }

    /// The models with a price, as they are configured.
    fn priced_models(&self) -> Value {
        let mut providers = json!({});
        for (name, price) in self.options.prices() {
            let (provider, model) = split_model(name);
            providers[provider]["models"][model]["cost"] = price.configured();
        }
        providers
    }

    fn providers(&self) -> Value {
        let mut providers: Map<String, Value> = Map::new();
        let mut defaults = Map::new();
        for name in &self.options.models {
            let (provider, model) = split_model(name);
            let entry = providers.entry(provider).or_insert_with(|| {
                json!({"id": provider, "name": provider, "source": "config", "env": [], "options": {}, "models": {}})
            });
            let limit = json!({"context": self.options.context_limit, "output": self.options.output_limit});
            let cost = self.options.price_of(name).listed();
            entry["models"][model] = json!({
                "id": model, "providerID": provider, "name": model, "limit": limit, "cost": cost,
            });
            defaults.entry(provider).or_insert_with(|| model.into());
        }
        json!({"providers": providers.into_iter().map(|(_, provider)| provider).collect::<Vec<_>>(), "default": defaults})
    }
}

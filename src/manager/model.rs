//! Which model a prompt is for, when nobody says so.

use crate::wire::{ConfigInfo, ModelRef, ProviderList};

/// The model that a server would use: the configured one, else the default of the first provider whose default exists.
///
/// The configured model is believed as it is, since a server knows models that it does not list. Prompts name their model
/// every time, because the server remembers the last one of a session even if it does not exist.
pub fn resolve_prompt_model(config: &ConfigInfo, providers: &ProviderList) -> Option<ModelRef> {
    let configured = config.model.as_deref().and_then(parse);
    let default = || {
        providers.providers.iter().find_map(|provider| {
            let model = providers.default.get(&provider.id)?;
            provider.models.contains_key(model).then(|| ModelRef::new(&provider.id, model))
        })
    };
    configured.or_else(default)
}

/// `provider/model`, where the model may hold further slashes.
fn parse(text: &str) -> Option<ModelRef> {
    let (provider, model) = text.trim().split_once('/')?;
    (!provider.is_empty() && !model.is_empty()).then(|| ModelRef::new(provider, model))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_are_resolved_in_order() {
        let check = |config: serde_json::Value, expected: Option<&str>| {
            let providers = json!({
                "providers": [
                    {"id": "gone", "models": {"other": {}}},
                    {"id": "openrouter", "models": {"meta/llama": {}}},
                ],
                "default": {"gone": "missing", "openrouter": "meta/llama"},
            });
            let config: ConfigInfo = serde_json::from_value(config).unwrap();
            let providers: ProviderList = serde_json::from_value(providers).unwrap();
            let model = resolve_prompt_model(&config, &providers).map(|model| model.to_string());
            assert_eq!(model.as_deref(), expected);
        };
        check(json!({"model": "mock/m"}), Some("mock/m"));
        check(json!({"model": "openrouter/meta/llama-4"}), Some("openrouter/meta/llama-4"));
        check(json!({"model": "nonsense"}), Some("openrouter/meta/llama"));
        check(json!({"model": "/m"}), Some("openrouter/meta/llama"));
        check(json!({}), Some("openrouter/meta/llama"));
        let nothing = resolve_prompt_model(&ConfigInfo::default(), &ProviderList::default());
        assert_eq!(nothing, None);
    }
}

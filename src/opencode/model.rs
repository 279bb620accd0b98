//! Which model a prompt is for, when the caller does not say.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::OnceCell, time::timeout};

use super::{
    client::{DirectoryClient, Watch},
    wire::{ConfigInfo, ProviderList},
};
use crate::{agent::ModelRef, lock::lock};

/// The default model of a directory, asked for once per connection of its events: a server that comes back may have another one.
#[derive(Debug, Default)]
pub(super) struct DefaultModel(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    /// Over the connection since before the server was asked.
    watch: Watch,
    model: Arc<OnceCell<Option<ModelRef>>>,
}

impl DefaultModel {
    /// The model that the server would use in `api`'s directory, whose connection `watch` is over; nothing if it does not say so in
    /// time, so that it decides.
    pub(super) async fn resolve(
        &self,
        api: &DirectoryClient,
        watch: Watch,
        patience: Duration,
    ) -> Option<ModelRef> {
        let cell = {
            let mut known = lock(&self.0);
            let current = known.take().filter(|known| known.watch.is_unbroken());
            let current = known.insert(current.unwrap_or_else(|| Known { watch, model: Arc::default() }));
            Arc::clone(&current.model)
        };
        let resolved = timeout(patience, cell.get_or_try_init(|| ask(api))).await;
        resolved.ok()?.ok()?.clone()
    }

    /// Asks again next time: the model may not exist.
    pub(super) fn forget(&self) {
        *lock(&self.0) = None;
    }
}

/// Asks the server for what its default depends on. An error is not kept.
async fn ask(api: &DirectoryClient) -> Result<Option<ModelRef>, super::client::ApiError> {
    let config = api.config().await?;
    let configured = resolve_prompt_model(&config, &ProviderList::default());
    if configured.is_some() {
        return Ok(configured);
    }
    let providers = api.providers().await?;
    Ok(resolve_prompt_model(&config, &providers))
}

/// The model that a server would use: the configured one, else the default of the first provider whose default exists.
///
/// The configured model is believed as it is, since a server knows models that it does not list. Prompts name their model
/// every time, because the server remembers the last one of a session even if it does not exist.
pub fn resolve_prompt_model(config: &ConfigInfo, providers: &ProviderList) -> Option<ModelRef> {
    let configured = config.model.as_deref().and_then(|model| model.parse().ok());
    let default = || {
        providers.providers.iter().find_map(|provider| {
            let model = providers.default.get(&provider.id)?;
            provider.models.contains_key(model).then(|| ModelRef::new(&provider.id, model))
        })
    };
    configured.or_else(default)
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

//! The model behind the fake: which step of which script answers a session now.

use std::{
    any::Any,
    collections::hash_map::Entry,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Prompt, Shared,
    world::{Message, Session, World},
};
use crate::{
    lock::lock,
    test_util::{Script, Step},
};

/// A step, and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) step: Step,
    pub(super) index: usize,
    /// The prompt that holds the script.
    pub(super) prompt: String,
}

impl Shared {
    /// The newest user message with a script drives; the step is the number of answers after it. An error is the panic of the
    /// [`on_prompt`](super::FakeOpenCode::on_prompt) hook.
    pub(super) fn plan_step(&self, session: &str) -> Result<Planned, String> {
        loop {
            let prompt = match self.world().plan_step(session) {
                Plan::Ready(planned) => return Ok(*planned),
                Plan::Unscripted(prompt) => prompt,
            };
            // Without the lock on the world, because the hook may use the fake.
            let hook = self.prompt_hook();
            let script = hook.map(|hook| catch_unwind(AssertUnwindSafe(|| hook(&prompt)))).transpose();
            let script = script.map_err(|panic| {
                let message = format!("the hook of on_prompt panicked: {}", said(panic.as_ref()));
                *lock(&self.hook_panic) = Some(message.clone());
                message
            })?;
            self.world().scripts.insert(prompt.message, script.map(Arc::new));
        }
    }
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// What is known of the next step.
enum Plan {
    Ready(Box<Planned>),
    /// The hook has to choose the script of this prompt first.
    Unscripted(Prompt),
}

impl World {
    fn plan_step(&mut self, session: &str) -> Plan {
        let history = self.sessions.get(session).map(model_view).unwrap_or_default();
        let mut answers = 0;
        for message in history.iter().rev() {
            if message.is("assistant") {
                answers += usize::from(is_seen_by_model(message));
                continue;
            }
            let script = match self.scripts.entry(message.id().to_owned()) {
                Entry::Occupied(chosen) => chosen.into_mut(),
                Entry::Vacant(undecided) => {
                    let text = text_of(message);
                    let script = Script::find(&text);
                    if script.is_none() && !is_synthetic(message) {
                        return Plan::Unscripted(Prompt {
                            session: session.to_owned(),
                            message: message.id().to_owned(),
                            text,
                            agent: message.info["agent"].as_str().unwrap_or_default().to_owned(),
                        });
                    }
                    undecided.insert(script.map(Arc::new))
                }
            };
            if let Some(script) = script {
                return Plan::Ready(Box::new(Planned {
                    step: pick_step(script, answers),
                    index: answers,
                    prompt: text_of(message),
                }));
            }
        }
        let mut step = Step::text("Hello from the scripted model.");
        "thinking hard about it".clone_into(&mut step.reasoning);
        Plan::Ready(Box::new(Planned { step, index: 0, prompt: String::new() }))
    }

    /// Whether a step with a limited number of failures fails this time.
    pub(super) fn fails_again(&mut self, session: &str, planned: &Planned) -> bool {
        let Some(error) = &planned.step.error else {
            return false;
        };
        let failures =
            self.failures.entry((session.to_owned(), planned.prompt.clone(), planned.index)).or_default();
        *failures += 1;
        error.times == 0 || *failures <= error.times
    }
}

/// Whether the server wrote the message itself.
fn is_synthetic(message: &Message) -> bool {
    message.parts.iter().all(|part| part["synthetic"] == true || part["type"] == "compaction")
}

fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter(|part| part["type"] == "text");
    let texts: Vec<&str> = texts.filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

fn pick_step(script: &Script, index: usize) -> Step {
    let last = script.steps.last().filter(|_| script.repeat_last);
    script.steps.get(index).or(last).cloned().unwrap_or_else(|| Step::text("(script over) done."))
}

/// The messages as the server sends them to the model: from the last completed compaction on, its tail after it.
fn model_view(session: &Session) -> Vec<&Message> {
    let all: Vec<&Message> = session.messages.iter().collect();
    let is_summary = |message: &Message| {
        message.info["summary"] == true
            && !message.info["finish"].is_null()
            && message.info["error"].is_null()
    };
    let Some(summary) = all.iter().rposition(|message| is_summary(message)) else {
        return all;
    };
    let Some(start) = all.iter().position(|message| message.info["id"] == all[summary].info["parentID"])
    else {
        return all;
    };
    let tail_id = all[start].parts.iter().find_map(|part| part["tail_start_id"].as_str());
    let tail = tail_id.and_then(|id| all.iter().position(|message| message.id() == id));
    let mut view = all[start..=summary].to_vec();
    if let Some(tail) = tail.filter(|&tail| tail < start) {
        view.extend_from_slice(&all[tail..start]);
    }
    view.extend_from_slice(&all[summary + 1..]);
    view
}

/// Answers without content and failed ones are left out of what the model sees.
fn is_seen_by_model(message: &Message) -> bool {
    let says = |part: &Value| ["text", "reasoning", "tool"].iter().any(|kind| part["type"] == *kind);
    let has_content = message.parts.iter().any(says);
    let error = &message.info["error"];
    has_content && (error.is_null() || error["name"] == "MessageAbortedError")
}

/// The chunks in which a text arrives: words with the space after them, line breaks alone.
pub(super) fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', '\n'])
        .flat_map(|word| match word.strip_suffix('\n') {
            Some(rest) if !rest.is_empty() => [Some(rest), Some("\n")],
            _ => [Some(word), None],
        })
        .flatten()
}

/// The server's token counts from the provider's usage object.
pub(super) fn tokens(usage: Option<&Value>) -> Value {
    let Some(usage) = usage else {
        return super::world::no_tokens();
    };
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let prompt = &usage["prompt_tokens_details"];
    let (cached, written) = (count(&prompt["cached_tokens"]), count(&prompt["cache_write_tokens"]));
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
    serde_json::json!({
        "total": count(&usage["total_tokens"]),
        "input": count(&usage["prompt_tokens"]).saturating_sub(cached + written),
        "output": count(&usage["completion_tokens"]).saturating_sub(reasoning),
        "reasoning": reasoning,
        "cache": {"read": cached, "write": written},
    })
}

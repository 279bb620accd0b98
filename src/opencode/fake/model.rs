//! The model behind the fake: which step of which script answers a session now.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Prompt, Shared,
    world::{Message, Session, World},
};
use crate::test_util::{Script, Step};

/// A step, and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) step: Step,
    pub(super) index: usize,
    /// The prompt that holds the script.
    pub(super) prompt: String,
}

impl Shared {
    /// The newest user message with a script drives; the step is the number of answers after it.
    pub(super) fn plan_step(&self, session: &str) -> Planned {
        let mut world = self.world();
        let world = &mut *world;
        let history = world.sessions.get(session).map(model_view).unwrap_or_default();
        let mut answers = 0;
        for message in history.iter().rev() {
            if message.is("assistant") {
                answers += usize::from(is_seen_by_model(message));
                continue;
            }
            let script = world
                .scripts
                .entry(message.id().to_owned())
                .or_insert_with(|| self.choose_script(session, message));
            if let Some(script) = script {
                return Planned {
                    step: pick_step(script, answers),
                    index: answers,
                    prompt: text_of(message),
                };
            }
        }
        let mut step = Step::text("Hello from the scripted model.");
        "thinking hard about it".clone_into(&mut step.reasoning);
        Planned { step, index: 0, prompt: String::new() }
    }

    fn choose_script(&self, session: &str, message: &Message) -> Option<Arc<Script>> {
        let is_synthetic =
            message.parts.iter().all(|part| part["synthetic"] == true || part["type"] == "compaction");
        let prompt = Prompt {
            session: session.to_owned(),
            message: message.id().to_owned(),
            text: text_of(message),
            agent: message.info["agent"].as_str().unwrap_or_default().to_owned(),
        };
        if let Some(script) = Script::find(&prompt.text) {
            return Some(Arc::new(script));
        }
        if is_synthetic {
            return None;
        }
        self.prompt_hook().map(|hook| Arc::new(hook(&prompt)))
    }
}

impl World {
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
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
    serde_json::json!({
        "total": count(&usage["total_tokens"]),
        "input": count(&usage["prompt_tokens"]).saturating_sub(cached),
        "output": count(&usage["completion_tokens"]).saturating_sub(reasoning),
        "reasoning": reasoning,
        "cache": {"read": cached, "write": 0},
    })
}

//! One call of the model: its stream, its tools, its failures and the cleaning up after it.

use std::{sync::Arc, time::Duration};

use super::{
    Moment, Shared,
    model::{Planned, tokens, words_of},
    permissions::Refusal,
    price::{ModelPrice, number},
    provider::Failure,
    recorder::ModelCall,
    run::Stop,
    tools::{RunningTool, ToolCall},
    world::unknown_error,
};
use crate::test_util::{ScriptedTool, Step};
use serde_json::{Map, Value, json};

/// How long the server waits for tools after an abort.
const TOOL_GRACE_MS: u64 = 250;
/// How often a step may make the same call until the server asks.
const LOOP_LENGTH: usize = 3;
/// How often the server asks a failing provider again.
const MAX_RETRIES: u32 = 5;

/// What the loop does after a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue,
    Stop,
    Compact {
        overflow: bool,
    },
    /// The step stays as it is, and the loop ends with this exception.
    Die(String),
}

/// Why an attempt at a step came to nothing.
enum StepError {
    Provider(Failure),
    /// The model may not go on with what it does over and over.
    LoopRejected(Refusal),
}

/// A step of the script while it is played, from the first request to the cleaning up.
pub(super) struct StepRun<'a> {
    shared: &'a Arc<Shared>,
    session: &'a str,
    stop: &'a Stop,
    pub(super) info: Value,
    /// The text or thinking that the model is saying.
    growing: Option<Value>,
    tools: Vec<RunningTool>,
    is_blocked: bool,
    is_full: bool,
    has_finished_step: bool,
}

impl<'a> StepRun<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, session: &'a str, stop: &'a Stop, info: Value) -> Self {
        Self {
            shared,
            session,
            stop,
            info,
            growing: None,
            tools: Vec::new(),
            is_blocked: false,
            is_full: false,
            has_finished_step: false,
        }
    }

    pub(super) fn has_finished_step(&self) -> bool {
        self.has_finished_step
    }

    /// Answers a user message with the next step of its script.
    pub(super) async fn answer(&mut self, user: &str, first: bool) -> Verdict {
        let planned = match self.shared.plan_step(self.session) {
            Ok(planned) => planned,
            Err(panic) => return Verdict::Die(panic),
        };
        let call = ModelCall {
            session: self.session.to_owned(),
            message: user.to_owned(),
            step: planned.index,
            first,
        };
        self.run(&planned, Some(call)).await
    }

    /// Sums up the session.
    pub(super) async fn summarize(&mut self) -> Verdict {
        let planned = Planned { step: self.shared.compaction_step(), index: 0, prompt: String::new() };
        self.run(&planned, None).await
    }

    /// An abort came before the model was asked.
    pub(super) fn finalize_unstarted(&mut self) {
        self.info["error"] = aborted();
        self.complete();
        self.put_message();
    }

    async fn run(&mut self, planned: &Planned, mut record: Option<ModelCall>) -> Verdict {
        let mut retries = 0;
        let abort = &self.stop.now;
        loop {
            self.shared.world().set_busy(self.session);
            if let Some(call) = &mut record {
                self.shared.recorder.change(|log| log.model_calls.push(call.clone()));
                call.first = false;
            }
            let result = tokio::select! {
                biased;
                () = abort.cancelled() => {
                    self.halt(aborted());
                    break;
                }
                result = self.attempt(planned) => result,
            };
            let failure = match result {
                Ok(()) => break,
                Err(StepError::LoopRejected(refusal)) => {
                    self.halt(unknown_error(&refusal.message));
                    break;
                }
                Err(StepError::Provider(failure)) => failure,
            };
            if failure.is_overflow() {
                self.shared.world().session_error(self.session, &failure.to_json());
                self.is_full = true;
                break;
            }
            if retries == MAX_RETRIES || !failure.is_retried_by(self.shared.options.flavour) {
                self.halt(failure.to_json());
                break;
            }
            retries += 1;
            let wait = self.shared.scaled(failure.retry_delay(retries));
            self.announce_retry(&failure, retries, wait);
            tokio::select! {
                biased;
                // Leaves neither an error nor a session.error.
                () = abort.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.clean_up().await;
        if self.is_full {
            return Verdict::Compact { overflow: self.info["finish"].is_null() };
        }
        if self.is_blocked || !self.info["error"].is_null() {
            return Verdict::Stop;
        }
        Verdict::Continue
    }

    fn announce_retry(&self, failure: &Failure, attempt: u32, wait: Duration) {
        let mut world = self.shared.world();
        let next = world.clock.now_ms() + u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let status =
            json!({"type": "retry", "attempt": attempt, "message": failure.retry_message(), "next": next});
        world.set_status(self.session, &status);
    }

    async fn attempt(&mut self, planned: &Planned) -> Result<(), StepError> {
        let step = &planned.step;
        self.growing = None;
        tokio::time::sleep(Duration::from_millis(step.before_ms)).await;
        if let Some(gate) = &step.gate_before {
            self.shared.pass_gate(gate).await;
        }
        let fails = self.shared.world().fails_again(self.session, planned);
        let failure = step.error.as_ref().filter(|_| fails).map(Failure::new);
        if let Some(failure) = failure.as_ref().filter(|failure| failure.comes_first()) {
            return Err(StepError::Provider(failure.clone()));
        }
        self.put_new_part("step-start", json!({"snapshot": self.shared.snapshot()}));
        self.stream(step).await;
        if let Some(failure) = failure {
            return Err(StepError::Provider(failure));
        }
        if self.growing.as_ref().is_some_and(|part| part["type"] == "reasoning") {
            self.end_growing();
        }
        if !step.drop {
            self.start_tools(step).await.map_err(StepError::LoopRejected)?;
        }
        self.end_growing();
        self.join_tools().await;
        if self.stop.is_coming.is_cancelled() {
            // The tools ended because the turn is being aborted, subagents first; there is no next step.
            std::future::pending::<()>().await;
        }
        self.finish_step(step);
        Ok(())
    }

    async fn stream(&mut self, step: &Step) {
        let extra: Vec<String> = (0..step.words)
            .map(|n| format!("w{n} "))
            .chain((step.blob > 0).then(|| "x".repeat(step.blob)))
            .collect();
        let n_chunks = words_of(&step.reasoning).count() + words_of(&step.text).count() + extra.len();
        // The first chunk of the real stream has no text, so the middle comes one word earlier.
        let middle = n_chunks.div_ceil(2).saturating_sub(1);
        let reasoning = words_of(&step.reasoning).map(|word| ("reasoning", word));
        let text = words_of(&step.text).chain(extra.iter().map(String::as_str));
        let mut n_sent = 0;
        for (kind, word) in reasoning.chain(text.map(|word| ("text", word))) {
            if n_sent == middle {
                self.pass_middle(step).await;
            }
            n_sent += 1;
            if step.chunk_ms > 0 {
                tokio::time::sleep(Duration::from_millis(step.chunk_ms)).await;
            } else if n_sent % 16 == 0 {
                tokio::task::yield_now().await;
            }
            self.grow(kind, word);
        }
        if n_chunks == 0 {
            self.pass_middle(step).await;
        }
    }

    async fn pass_middle(&self, step: &Step) {
        if let Some(gate) = &step.gate_middle {
            self.shared.pass_gate(gate).await;
        }
    }

    /// Adds a word to the part of this kind; one of another kind ends.
    fn grow(&mut self, kind: &str, word: &str) {
        if self.growing.as_ref().is_some_and(|part| part["type"] != kind) {
            self.end_growing();
        }
        let mut part = match self.growing.take() {
            Some(part) => part,
            None => self.put_new_part(kind, json!({"text": "", "time": {"start": self.now()}})),
        };
        if let Value::String(text) = &mut part["text"] {
            text.push_str(word);
        }
        self.shared.world().publish_delta(&part, word);
        self.growing = Some(part);
    }

    fn end_growing(&mut self) {
        if let Some(mut part) = self.growing.take() {
            part["time"]["end"] = self.now().into();
            self.shared.world().put_part(&part);
        }
    }

    async fn start_tools(&mut self, step: &Step) -> Result<(), Refusal> {
        for (index, tool) in step.tools.iter().enumerate() {
            let call_id =
                tool.id.clone().unwrap_or_else(|| format!("call_{}_{index}", self.shared.next_call_number()));
            let state = json!({"status": "pending", "input": {}, "raw": ""});
            let part =
                self.put_new_part("tool", json!({"tool": tool.name, "callID": call_id, "state": state}));
            let call = ToolCall::new(self.shared, self.session, &self.info, part, tool.clone());
            self.tools.push(call.start());
            let last = &step.tools[(index + 1).saturating_sub(LOOP_LENGTH)..=index];
            let is_same = |other: &ScriptedTool| (&other.name, &other.args) == (&tool.name, &tool.args);
            if last.len() == LOOP_LENGTH && last.iter().all(is_same) {
                let agent = self.info["agent"].as_str().unwrap_or_default();
                self.shared.ask_for_loop(self.session, agent, &tool.name, &tool.args).await?;
            }
        }
        Ok(())
    }

    /// Waits for the tools; one that a human refused blocks the turn.
    async fn join_tools(&mut self) {
        for tool in &mut self.tools {
            tool.join().await;
            self.is_blocked |= tool.was_refused();
        }
        self.tools.clear();
    }

    fn finish_step(&mut self, step: &Step) {
        let default_usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
        let usage = (!step.drop).then(|| step.usage.as_ref().unwrap_or(&default_usage));
        let tokens = tokens(usage);
        let cost = step.cost.unwrap_or_else(|| self.price().cost(&tokens));
        let finish = finish_reason(step);
        self.info["finish"] = finish.into();
        self.info["tokens"] = tokens.clone();
        self.info["cost"] = number(cost);
        self.put_new_part(
            "step-finish",
            json!({
                "reason": finish, "snapshot": self.shared.snapshot(), "tokens": tokens, "cost": number(cost),
            }),
        );
        self.put_message();
        self.shared.world().add_usage(self.session, &tokens, cost);
        self.has_finished_step = true;
        self.is_full = self.info["summary"] != true && self.shared.overflows(&tokens);
        if finish == "content-filter" {
            self.info["error"] = json!({
                "name": "ContentFilterError",
                "data": {"message": "The response was blocked by the provider's content filter"},
            });
        }
    }

    fn price(&self) -> ModelPrice {
        let name = |field: &str| self.info[field].as_str().unwrap_or_default();
        self.shared.options.price_of(&format!("{}/{}", name("providerID"), name("modelID")))
    }

    /// Gives the turn up: the first of the two idles.
    fn halt(&mut self, error: Value) {
        let mut world = self.shared.world();
        world.session_error(self.session, &error);
        world.set_idle(self.session, &self.shared.options.directory);
        drop(world);
        self.info["error"] = error;
    }

    async fn clean_up(&mut self) {
        if !self.has_finished_step {
            self.shared.hold(Moment::Cleanup).await;
            self.shared.pause_ms(20).await;
        }
        self.end_growing();
        self.stop_tools().await;
        self.complete();
        self.put_message();
        if self.info["finish"] == "content-filter" {
            self.put_message();
            self.shared.world().session_error(self.session, &self.info["error"]);
        }
    }

    async fn stop_tools(&mut self) {
        for tool in &self.tools {
            tool.abort();
        }
        let grace = self.shared.scaled(Duration::from_millis(TOOL_GRACE_MS));
        let all = async {
            for tool in &mut self.tools {
                tool.join().await;
            }
        };
        drop(tokio::time::timeout(grace, all).await);
        for tool in self.tools.drain(..) {
            tool.mark_interrupted(self.shared);
        }
    }

    fn complete(&mut self) {
        self.info["time"]["completed"] = self.now().into();
    }

    pub(super) fn put_message(&self) {
        self.shared.world().put_message(self.session, &self.info);
    }

    fn put_new_part(&self, kind: &str, fields: Value) -> Value {
        let mut world = self.shared.world();
        let mut part = Map::from_iter([
            ("id".to_owned(), world.clock.ascending("prt").into()),
            ("messageID".to_owned(), self.info["id"].clone()),
            ("sessionID".to_owned(), self.session.into()),
            ("type".to_owned(), kind.into()),
        ]);
        if let Value::Object(fields) = fields {
            part.extend(fields);
        }
        let part = Value::Object(part);
        world.put_part(&part);
        part
    }

    fn now(&self) -> u64 {
        self.shared.world().clock.now_ms()
    }
}

fn aborted() -> Value {
    json!({"name": "MessageAbortedError", "data": {"message": "Aborted"}})
}

/// The server's word for the provider's finish reason.
fn finish_reason(step: &Step) -> &'static str {
    let default = if step.tools.is_empty() { "stop" } else { "tool_calls" };
    match step.finish.as_deref().unwrap_or(default) {
        _ if step.drop => "unknown",
        "stop" => "stop",
        "length" => "length",
        "content_filter" => "content-filter",
        "tool_calls" | "function_call" => "tool-calls",
        _ => "unknown",
    }
}

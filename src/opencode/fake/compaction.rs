//! Compaction: the session is summed up when it grows too large for the model, and the turn goes on elsewhere.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Shared,
    process::{StepRun, Verdict},
};
use crate::test_util::Step;

const CONTINUE: &str = "Go on if there is more to do, else say so.";
const OVERFLOWED: &str = "The last request was too large, so the conversation was compacted. ";

impl Shared {
    /// Whether an answer used more tokens than the model leaves room for.
    pub(super) fn overflows(&self, tokens: &Value) -> bool {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let total = match count(&tokens["total"]) {
            0 => {
                let cache = &tokens["cache"];
                let read = count(&tokens["input"]) + count(&cache["read"]) + count(&cache["write"]);
                read + count(&tokens["output"])
            }
            total => total,
        };
        let room = self.options.context_limit.saturating_sub(self.options.output_limit);
        self.options.context_limit > 0 && total >= room
    }

    pub(super) fn compaction_step(&self) -> Step {
        let step = self.compaction_script();
        step.unwrap_or_else(|| Step::text("SUMMARY: the conversation so far."))
    }

    /// Writes the user message that makes the loop compact next.
    pub(super) fn request_compaction(&self, session: &str, user: &Value, auto: bool, overflow: Option<bool>) {
        let mut world = self.world();
        let (id, _) = world.put_own_prompt(session, user);
        let mut part = json!({
            "id": world.clock.ascending("prt"), "messageID": id, "sessionID": session, "type": "compaction", "auto": auto,
        });
        if let Some(overflow) = overflow {
            part["overflow"] = overflow.into();
        }
        world.put_part(&part);
    }

    /// Goes on after the summary: with the prompt again, or with a nudge.
    pub(super) fn after_compaction(
        self: &Arc<Self>,
        session: &str,
        user: &Value,
        part: &Value,
        call: &StepRun<'_>,
        verdict: &Verdict,
    ) -> Verdict {
        if *verdict != Verdict::Continue {
            return Verdict::Stop;
        }
        if part["auto"] == true {
            let overflow = part["overflow"] == true;
            match self.replayed_prompt(session, user).filter(|_| overflow) {
                Some((original, parts)) => self.replay(session, &original, parts),
                None => self.nudge(session, user, overflow),
            }
        }
        if !call.info["error"].is_null() {
            return Verdict::Stop;
        }
        self.world().publish_for(session, "session.compacted", json!({"sessionID": session}));
        Verdict::Continue
    }

    /// The prompt that did not fit, if there was anything before it to leave out.
    fn replayed_prompt(&self, session: &str, compaction: &Value) -> Option<(Value, Vec<Value>)> {
        let world = self.world();
        let messages = &world.sessions.get(session)?.messages;
        let end = messages.iter().position(|message| message.info["id"] == compaction["id"])?;
        let is_prompt = |message: &super::world::Message| {
            message.is("user") && !message.parts.iter().any(|part| part["type"] == "compaction")
        };
        let prompt = messages[..end].iter().rposition(is_prompt)?;
        messages[..prompt]
            .iter()
            .any(is_prompt)
            .then(|| (messages[prompt].info.clone(), messages[prompt].parts.clone()))
    }

    fn replay(&self, session: &str, original: &Value, parts: Vec<Value>) {
        let mut world = self.world();
        let id = world.clock.ascending("msg");
        let now = world.next_message_ms(session);
        let mut info = original.clone();
        info["id"] = id.as_str().into();
        info["time"] = json!({"created": now});
        if let Some(info) = info.as_object_mut() {
            info.remove("summary");
        }
        world.put_message(session, &info);
        for mut part in parts {
            part["id"] = world.clock.ascending("prt").into();
            part["messageID"] = id.as_str().into();
            world.put_part(&part);
        }
    }

    fn nudge(&self, session: &str, user: &Value, overflow: bool) {
        let mut world = self.world();
        let (id, now) = world.put_own_prompt(session, user);
        let text = if overflow { format!("{OVERFLOWED}{CONTINUE}") } else { CONTINUE.to_owned() };
        let part = json!({
            "id": world.clock.ascending("prt"), "messageID": id, "sessionID": session, "type": "text",
            "metadata": {"compaction_continue": true}, "synthetic": true, "text": text,
            "time": {"start": now, "end": now},
        });
        world.put_part(&part);
    }
}

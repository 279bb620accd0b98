//! What messages used and cost, kept per message so that nothing is counted twice.

use std::{iter::Sum, ops::AddAssign, sync::Arc};

use imbl::OrdMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};

use crate::{ids::MessageId, time::Millis};

/// Tokens and money.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Usage {
    /// Tokens by kind.
    #[serde(default)]
    pub tokens: TokenUsage,
    /// Cost in the provider's currency.
    #[serde(default, serialize_with = "write_number")]
    pub cost: f64,
}

/// Tokens by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TokenUsage {
    /// Read by the model, without the cached ones.
    #[serde(default)]
    pub input: u64,
    /// Written by the model.
    #[serde(default)]
    pub output: u64,
    /// Thought by the model.
    #[serde(default)]
    pub reasoning: u64,
    /// Read from the provider's cache.
    #[serde(default)]
    pub cache_read: u64,
    /// Written to the provider's cache.
    #[serde(default)]
    pub cache_write: u64,
}

impl TokenUsage {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        [self.input, self.output, self.reasoning, self.cache_read, self.cache_write]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let (sum, tokens) = (&mut self.tokens, other.tokens);
        sum.input = sum.input.saturating_add(tokens.input);
        sum.output = sum.output.saturating_add(tokens.output);
        sum.reasoning = sum.reasoning.saturating_add(tokens.reasoning);
        sum.cache_read = sum.cache_read.saturating_add(tokens.cache_read);
        sum.cache_write = sum.cache_write.saturating_add(tokens.cache_write);
        self.cost += other.cost;
    }
}

/// What one message used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MessageUsage {
    /// The message that used it.
    pub message_id: MessageId,
    /// When it was created.
    pub created: Millis,
    /// The model that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// What it used.
    pub usage: Usage,
}

/// What a thread used, message by message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConversationMetadata(OrdMap<MessageId, MessageUsage>);

impl ConversationMetadata {
    /// What the thread used in all; subagents have their own.
    ///
    /// Added up anew each time and always in the same order, since adding and subtracting costs as they come would leave
    /// differences in the last digits.
    pub fn usage(&self) -> Usage {
        self.0.values().map(|message| message.usage).sum()
    }

    /// The model of the thread's last message.
    pub fn model(&self) -> Option<&Arc<str>> {
        let last = self.0.values().max_by_key(|message| (message.created, &message.message_id))?;
        last.model.as_ref()
    }

    /// What each message used, by message id.
    pub fn messages(&self) -> impl Iterator<Item = &MessageUsage> {
        self.0.values()
    }

    pub(super) fn set(&mut self, message: MessageUsage) -> bool {
        if self.0.get(&message.message_id) == Some(&message) {
            return false;
        }
        self.0.insert(message.message_id.clone(), message);
        true
    }

    pub(super) fn remove(&mut self, message: &MessageId) -> bool {
        self.0.remove(message).is_some()
    }
}

impl Serialize for ConversationMetadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("ConversationMetadata", 3)?;
        match self.model() {
            Some(model) => object.serialize_field("model", model)?,
            None => object.skip_field("model")?,
        }
        object.serialize_field("usage", &self.usage())?;
        object.serialize_field("messages", &self.messages().collect::<Vec<_>>())?;
        object.end()
    }
}

impl<'de> Deserialize<'de> for ConversationMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Stored {
            #[serde(default)]
            messages: Vec<MessageUsage>,
        }
        let Stored { messages } = Stored::deserialize(deserializer)?;
        Ok(Self(messages.into_iter().map(|message| (message.message_id.clone(), message)).collect()))
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, usage| {
            sum += usage;
            sum
        })
    }
}

/// Writes a number without a fraction as an integer.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn write_number<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    /// From here on a float can no longer tell neighbouring integers apart.
    const MAX_SAFE: f64 = 9_007_199_254_740_991.0;
    if number.fract() == 0.0 && number.abs() <= MAX_SAFE {
        #[expect(clippy::cast_possible_truncation, reason = "checked to be a small integer")]
        return serializer.serialize_i64(*number as i64);
    }
    serializer.serialize_f64(*number)
}

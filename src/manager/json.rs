//! Answers of a given shape, asked for in words.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    ConversationManager,
    error::JsonAnswerError,
    input::{InputPart, PromptInput},
    result::PromptExecutionResult,
};
use crate::conversation::Usage;

/// An answer of the asked shape, and the turn that gave it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JsonAnswer<T> {
    /// The answer, decoded.
    pub value: T,
    /// The turn of the last attempt.
    pub result: PromptExecutionResult,
    /// How often the model was asked.
    pub attempts: u32,
    /// What all attempts used and cost together.
    pub usage: Usage,
}

pub(super) async fn ask<T: DeserializeOwned>(
    manager: &ConversationManager,
    mut input: PromptInput,
    schema: &Value,
    re_asks: u32,
) -> Result<JsonAnswer<T>, JsonAnswerError> {
    input.parts.push(InputPart::text(format!(
        "Answer with one JSON value in a ```json code block, and nothing else. It must match this JSON Schema:\n{schema}"
    )));
    let (mut attempts, mut usage) = (0, Usage::default());
    loop {
        attempts += 1;
        let result = manager.prompt(input.clone()).await?.settled()?;
        usage += result.usage;
        let answer = result.answer().unwrap_or_default();
        let source = match extract(&answer) {
            Ok(value) => return Ok(JsonAnswer { value, result, attempts, usage }),
            Err(error) => error,
        };
        if attempts > re_asks {
            return Err(JsonAnswerError::Shape { attempts, answer, usage, source });
        }
        input.parts = vec![InputPart::text(format!(
            "That answer cannot be used: {source}. Answer again with one JSON value in a ```json code block that matches \
             this JSON Schema, and nothing else:\n{schema}"
        ))];
    }
}

/// The last JSON value in an answer that has the asked shape; else what is wrong with the likeliest one.
fn extract<T: DeserializeOwned>(answer: &str) -> Result<T, serde_json::Error> {
    let mut wrong = None;
    for candidate in candidates(answer) {
        match serde_json::from_str(candidate) {
            Ok(value) => return Ok(value),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    Err(wrong.unwrap_or_else(|| serde::de::Error::custom("there is no JSON in it")))
}

/// Where JSON may stand, the likeliest first: the last code block, the whole answer, from the first bracket to the last.
fn candidates(answer: &str) -> impl Iterator<Item = &str> {
    let mut blocks: Vec<&str> = answer.split("```").skip(1).step_by(2).map(without_language).collect();
    blocks.reverse();
    let bracketed = answer.find(['{', '[']).zip(answer.rfind(['}', ']']));
    let bracketed = bracketed.and_then(|(start, end)| answer.get(start..=end));
    let whole = Some(answer.trim()).filter(|_| blocks.is_empty());
    blocks.into_iter().chain(bracketed).chain(whole).filter(|candidate| !candidate.is_empty())
}

fn without_language(block: &str) -> &str {
    let (first, rest) = block.split_once('\n').unwrap_or(("", block));
    let names_language = first.trim().chars().all(|c| c.is_ascii_alphanumeric());
    if names_language { rest.trim() } else { block.trim() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_in_what_models_say() {
        let check = |answer: &str, expected: Option<Value>| {
            let found = extract::<serde_json::Map<String, Value>>(answer).ok().map(Value::Object);
            assert_eq!(found, expected, "{answer}");
        };
        check(r#"{"a":1}"#, Some(json!({"a": 1})));
        check("```json\n{\"a\":1}\n```", Some(json!({"a": 1})));
        check("Draft:\n```json\n{\"a\":0}\n```\nBetter:\n```\n{\"a\":1}\n```\nDone.", Some(json!({"a": 1})));
        check("```{\"a\":1}```", Some(json!({"a": 1})));
        check("The answer is {\"a\": {\"b\": [1, 2]}}, I think.", Some(json!({"a": {"b": [1, 2]}})));
        check("```json\n[1]\n```", None);
        check("no idea", None);
        check("", None);
        check("}{", None);
        check("über ```json\n{\"ü\": \"€\"}", Some(json!({"ü": "€"})));
    }

    #[test]
    fn the_reason_is_that_of_the_likeliest_candidate() {
        #[derive(Debug, serde::Deserialize)]
        struct Shape {
            #[serde(rename = "n")]
            _n: u32,
        }
        let error = extract::<Shape>("see {x}\n```json\n{\"n\": \"one\"}\n```").unwrap_err();
        assert!(error.to_string().contains("invalid type: string \"one\""), "{error}");
    }
}

//! Answers of a given shape, asked for in words.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::{
    ConversationManager,
    error::JsonAnswerError,
    input::{InputPart, PromptInput},
    queue::Place,
    result::PromptExecutionResult,
};
use crate::{agent::Ask, conversation::Usage};

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
    /// What the agent asked for and did not get, in all attempts.
    pub refused: Vec<Ask>,
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
    // No other prompt may come between an answer and what is said about it.
    input.place = Some(Place::default());
    let (mut attempts, mut usage, mut refused) = (0, Usage::default(), Vec::new());
    loop {
        attempts += 1;
        let result = match manager.prompt(input.clone()).await {
            Ok(result) => result,
            Err(source) => return Err(JsonAnswerError::Prompt { attempts, usage, source }),
        };
        usage += result.usage;
        refused.extend(result.refused.iter().cloned());
        let result = match result.settled() {
            Ok(result) => result,
            Err(source) => return Err(JsonAnswerError::Turn { attempts, usage, source }),
        };
        let answer = result.answer().unwrap_or_default();
        let source = match extract(&answer) {
            Ok(value) => return Ok(JsonAnswer { value, result, attempts, usage, refused }),
            Err(error) => error,
        };
        if attempts > re_asks {
            return Err(JsonAnswerError::Shape { attempts, answer, usage, source });
        }
        // The id that the caller chose is that of the first message.
        input.message_id = None;
        input.parts = vec![InputPart::text(format!(
            "That answer cannot be used: {source}. Answer again with one JSON value in a ```json code block that matches \
             this JSON Schema, and nothing else:\n{schema}"
        ))];
    }
}

/// The last JSON value in an answer that has the asked shape; else what is wrong with the likeliest one.
fn extract<T: DeserializeOwned>(answer: &str) -> Result<T, serde_json::Error> {
    let whole = answer.trim();
    // What is JSON from end to end is the answer. What looks like a code block is inside its strings then.
    if serde_json::from_str::<IgnoredAny>(whole).is_ok() {
        return serde_json::from_str(whole);
    }
    let mut wrong: Option<serde_json::Error> = None;
    // Code blocks first, and of those and of the others the last one.
    for candidate in json_values(answer).into_iter().chain(code_blocks(answer)).rev() {
        match serde_json::from_str(candidate) {
            Ok(value) => return Ok(value),
            // What is JSON of another shape says more than what is no JSON.
            Err(error) if wrong.as_ref().is_none_or(|wrong| error.is_data() && !wrong.is_data()) => {
                wrong = Some(error);
            }
            Err(_) => {}
        }
    }
    Err(wrong.unwrap_or_else(|| serde::de::Error::custom("there is no JSON in it")))
}

/// What stands between lines that begin with a fence, in order. The last block may have no end.
fn code_blocks(answer: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let (mut begin, mut at) = (None, 0);
    for line in answer.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        match begin {
            None if is_fence => begin = Some(at + line.len()),
            Some(first) if is_fence => {
                blocks.push(&answer[first..at]);
                begin = None;
            }
            None | Some(_) => {}
        }
        at += line.len();
    }
    blocks.extend(begin.map(|first| &answer[first..]));
    blocks
}

/// The objects and arrays that stand in a text, in order, without those inside others.
fn json_values(text: &str) -> Vec<&str> {
    let mut values = Vec::new();
    let mut at = 0;
    while let Some(bracket) = text[at..].find(['{', '[']) {
        let rest = &text[at + bracket..];
        let mut found = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        at += bracket;
        if let Some(Ok(_)) = found.next() {
            values.push(&rest[..found.byte_offset()]);
            at += found.byte_offset();
        } else {
            at += 1;
        }
    }
    values
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
        check("As noted [1]: {\"a\": 1} (see [docs]).", Some(json!({"a": 1})));
        check("first {\"a\": 0} then {\"a\": 1}", Some(json!({"a": 1})));
        check("3 things: {\"a\": 1}", Some(json!({"a": 1})));
        check(
            "Set {x}.\n```json\n{\"a\": \"use ```x``` here\"}\n```\n",
            Some(json!({"a": "use ```x``` here"})),
        );
        check("```json\n{\"a\": 1}\n```\nRun it:\n```sh\nmake {all}\n```\n", Some(json!({"a": 1})));
        check("[{\"a\": 1}]", None);
        check("It is [{\"a\": 1}].", None);
    }

    #[test]
    fn what_stands_in_a_string_is_not_the_answer() {
        let findings = r#"[{"t": "return ```[]``` here"}]"#;
        assert_eq!(extract::<Vec<Value>>(findings).unwrap(), [json!({"t": "return ```[]``` here"})]);
        assert_eq!(extract::<Value>(r#""see [1] there""#).unwrap(), json!("see [1] there"));
        assert_eq!(extract::<String>("```json\n\"yes\"\n```").unwrap(), "yes");
    }

    #[test]
    fn the_reason_is_that_of_the_likeliest_candidate() {
        #[derive(Debug, serde::Deserialize)]
        struct Shape {
            #[serde(rename = "n")]
            _n: u32,
        }
        for answer in
            ["see {x}\n```json\n{\"n\": \"one\"}\n```", "```json\n{\"n\": \"one\"}\n```\n```sh\nls\n```"]
        {
            let error = extract::<Shape>(answer).unwrap_err();
            assert!(error.to_string().contains("invalid type: string \"one\""), "{error}");
        }
    }
}

//! What the fake's models cost, counted as the real server counts.

use serde_json::{Value, json};

use crate::setters::setters;

/// What a model costs, in dollars per million tokens, as `cost` of a model in `OpenCode`'s configuration.
///
/// The server charges thinking like output.
///
/// # Examples
/// ```
/// use opencode_conductor::test_util::{FakeOptions, ModelPrice};
///
/// let price = ModelPrice::new(3.0, 15.0).cache_read(0.3).cache_write(3.75);
/// let options = FakeOptions::new().price("mock/m", price);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[must_use]
pub struct ModelPrice {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

impl ModelPrice {
    /// The prices of what the model reads and of what it writes. The cache costs nothing.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, ..Self::default() }
    }

    setters! {
        /// What a million tokens cost that are read from the cache (nothing by default).
        cache_read(price: f64) { cache_read = price }
        /// What a million tokens cost that are written to the cache (nothing by default).
        cache_write(price: f64) { cache_write = price }
    }

    /// What a step costs that used these tokens.
    pub(super) fn cost(&self, tokens: &Value) -> f64 {
        let count = |value: &Value| value.as_f64().unwrap_or(0.0);
        let millionths = count(&tokens["input"]) * self.input
            + (count(&tokens["output"]) + count(&tokens["reasoning"])) * self.output
            + count(&tokens["cache"]["read"]) * self.cache_read
            + count(&tokens["cache"]["write"]) * self.cache_write;
        // The server counts in decimals. One division of whole numbers gives the float that is nearest to its result.
        (millionths * 1e6).round() / 1e12
    }

    /// As in the configuration.
    pub(super) fn configured(&self) -> Value {
        json!({
            "input": number(self.input), "output": number(self.output),
            "cache_read": number(self.cache_read), "cache_write": number(self.cache_write),
        })
    }

    /// As in the list of providers.
    pub(super) fn listed(&self) -> Value {
        let cache = json!({"read": number(self.cache_read), "write": number(self.cache_write)});
        json!({"input": number(self.input), "output": number(self.output), "cache": cache})
    }
}

/// A number as JavaScript writes it: nothing is 0 and not 0.0.
pub(super) fn number(value: f64) -> Value {
    // An integer's own text is the only one that reads as an integer.
    format!("{value}").parse::<i64>().map_or_else(|_| value.into(), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(input: u64, output: u64, reasoning: u64, read: u64, write: u64) -> Value {
        json!({"input": input, "output": output, "reasoning": reasoning, "cache": {"read": read, "write": write}})
    }

    #[test]
    fn a_step_costs_what_the_real_server_says() {
        let price = ModelPrice::new(3.0, 15.0).cache_read(0.3).cache_write(3.75);
        for (tokens, expected) in [
            // As a real server has counted them.
            (tokens(60, 20, 10, 40, 0), 0.000_642),
            (tokens(1_234_567, 891, 0, 0, 0), 3.717_066),
            (tokens(3, 1, 0, 0, 0), 0.000_024),
            (tokens(0, 0, 0, 0, 8), 0.000_03),
            (tokens(0, 0, 0, 0, 0), 0.0),
        ] {
            assert_eq!(number(price.cost(&tokens)), number(expected), "{tokens}");
        }
        // As floats this is 0.30000000000000004.
        let price = ModelPrice::new(0.1, 0.2);
        assert_eq!(number(price.cost(&tokens(1_000_000, 1_000_000, 0, 0, 0))), json!(0.3));
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        assert_eq!(number(0.0).to_string(), "0");
        assert_eq!(number(15.0).to_string(), "15");
        assert_eq!(number(0.3).to_string(), "0.3");
    }
}

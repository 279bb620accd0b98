//! Permission rules: where they come from, and which of them decides.

use std::fmt;

use serde_json::Value;

/// Tools that change files. The server has one permission for all of them.
const EDIT_TOOLS: [&str; 3] = ["apply_patch", "edit", "write"];

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Ask,
    Deny,
}

/// What may be done with what, where `*` in both stands for anything.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) permission: String,
    pattern: String,
    action: Action,
    /// It was configured as one word for all patterns, and the server spells it with the action first.
    is_short: bool,
}

impl Rule {
    pub(super) fn new(permission: &str, pattern: &str, action: Action) -> Self {
        Self { permission: permission.to_owned(), pattern: pattern.to_owned(), action, is_short: false }
    }

    fn short(permission: &str, action: Action) -> Self {
        Self { is_short: true, ..Self::new(permission, "*", action) }
    }

    /// A rule of a session.
    pub(super) fn of_session(rule: &Value) -> Self {
        let text = |field: &str| rule[field].as_str().unwrap_or_default();
        Self::new(text("permission"), text("pattern"), action(&rule["action"]))
    }

    /// Whether the rule is about a permission.
    pub(super) fn concerns(&self, permission: &str) -> bool {
        matches(&self.permission, permission)
    }
}

/// As in the server's errors.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (permission, pattern) =
            (Value::from(self.permission.as_str()), Value::from(self.pattern.as_str()));
        let action = match self.action {
            Action::Allow => "allow",
            Action::Ask => "ask",
            Action::Deny => "deny",
        };
        if self.is_short {
            write!(f, "{{\"permission\":{permission},\"action\":\"{action}\",\"pattern\":{pattern}}}")
        } else {
            write!(f, "{{\"permission\":{permission},\"pattern\":{pattern},\"action\":\"{action}\"}}")
        }
    }
}

fn action(word: &Value) -> Action {
    match word.as_str() {
        Some("allow") => Action::Allow,
        Some("deny") => Action::Deny,
        _ => Action::Ask,
    }
}

/// What the last matching rule says, if any matches.
pub(super) fn decide(rules: &[Rule], permission: &str, pattern: &str) -> Option<Action> {
    let last = rules.iter().rfind(|rule| rule.concerns(permission) && matches(&rule.pattern, pattern));
    last.map(|rule| rule.action)
}

/// Whether the rules take a tool away altogether.
pub(super) fn takes_away(rules: &[Rule], tool: &str) -> bool {
    let permission = if EDIT_TOOLS.contains(&tool) { "edit" } else { tool };
    let last = rules.iter().rfind(|rule| rule.concerns(permission));
    last.is_some_and(|rule| rule.pattern == "*" && rule.action == Action::Deny)
}

/// An agent's rules, weakest first: those of all agents, its own, and the configured ones.
pub(super) fn of_agent(agent: &str, configuration: &Value, home: &str) -> Vec<Rule> {
    use Action::{Allow, Ask, Deny};
    let data = format!("{home}/.local/share/opencode");
    let kept_output = Rule::new("external_directory", &format!("{data}/tool-output/*"), Allow);
    let temporary = Rule::new("external_directory", &format!("{home}/opencode/*"), Allow);
    let elsewhere = Rule::new("external_directory", "*", Ask);
    let mut rules = vec![
        Rule::short("*", Allow),
        Rule::short("doom_loop", Ask),
        elsewhere.clone(),
        kept_output.clone(),
        temporary.clone(),
        Rule::short("question", Deny),
        Rule::new("read", "*", Allow),
        Rule::new("read", "*.env", Ask),
        Rule::new("read", "*.env.*", Ask),
        Rule::new("read", "*.env.example", Allow),
    ];
    match agent {
        "build" => rules.push(Rule::short("question", Allow)),
        "plan" => rules.extend([
            Rule::short("question", Allow),
            Rule::new("task", "general", Deny),
            Rule::new("external_directory", &format!("{data}/plans/*"), Allow),
            Rule::new("edit", "*", Deny),
            Rule::new("edit", ".opencode/plans/*.md", Allow),
            Rule::new("edit", "../.local/share/opencode/plans/*.md", Allow),
        ]),
        "general" => rules.push(Rule::short("todowrite", Deny)),
        "explore" => {
            let allowed = ["grep", "glob", "list", "bash", "webfetch", "websearch", "read"];
            rules.push(Rule::short("*", Deny));
            rules.extend(allowed.map(|permission| Rule::short(permission, Allow)));
            rules.extend([elsewhere, kept_output.clone(), temporary]);
        }
        _ => {}
    }
    rules.extend(configured(configuration, home));
    rules.push(kept_output);
    rules
}

/// The server's `permission` configuration as rules.
fn configured(configuration: &Value, home: &str) -> Vec<Rule> {
    let of = |(permission, value): (&String, &Value)| match value {
        Value::Object(patterns) => {
            let rule = |(pattern, word): (&String, &Value)| {
                Rule::new(permission, &with_home(pattern, home), action(word))
            };
            patterns.iter().map(rule).collect()
        }
        word => vec![Rule::short(permission, action(word))],
    };
    match configuration {
        Value::String(_) => vec![Rule::short("*", action(configuration))],
        Value::Object(permissions) => permissions.iter().flat_map(of).collect(),
        _ => Vec::new(),
    }
}

fn with_home(pattern: &str, home: &str) -> String {
    let rest = pattern.strip_prefix("$HOME").or_else(|| pattern.strip_prefix('~'));
    match rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => format!("{home}{rest}"),
        None => pattern.to_owned(),
    }
}

/// A `*` stands for anything, a `?` for any one character, and ` *` at the end also for nothing.
fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let or_nothing = pattern.strip_suffix(" *").is_some_and(|pattern| matches_all(pattern, &text));
    or_nothing || matches_all(pattern, &text)
}

fn matches_all(pattern: &str, text: &[char]) -> bool {
    // The prefixes of the text, by length, that the pattern so far matches.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for wanted in pattern.chars() {
        if wanted == '*' {
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            for length in (1..reached.len()).rev() {
                reached[length] = reached[length - 1] && (wanted == '?' || wanted == text[length - 1]);
            }
            reached[0] = false;
        }
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_on_the_server() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("touch *", "touch", true),
            ("touch *", "touch a b", true),
            ("touch *", "touching", false),
            ("secrets/*", "secrets/deep/x", true),
            ("secrets/*", "secrets", false),
            ("a?.txt", "ab.txt", true),
            ("a?.txt", "a.txt", false),
            ("*.env.*", "deep/.env.local", true),
            ("*.env", ".environment", false),
            ("git * --force *", "git push --force", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
    }
}

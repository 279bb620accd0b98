//! What the fake server plays when it has no other script: a small piece of work, with everything a real one has.

use std::{sync::Arc, time::Duration};

use opencode_conductor::test_util::{FakeOpenCode, Prompt, Script, ScriptedTool, Step};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// What is asked if nothing else is.
pub const PROMPT: &str = "parse_amount accepts negative amounts. Make it refuse them, and check its callers.";

/// What several tasks ask if nothing else is asked.
pub const PROMPTS: [&str; 6] = [
    PROMPT,
    "Replace the hand-written date parsing by the one of the standard library.",
    "The import job holds the lock while it reads files. Make it let go.",
    "Add a test for invoices without lines.",
    "Explain in the README how rounding works, and check that it is true.",
    "Find out why the nightly build is slow, and fix the worst offender.",
];

/// What the tasks of a watched run ask: the second needs a permission, the third has a question.
pub const WATCHED: [&str; 4] = [
    PROMPT,
    "Remove the old export format, and the files that only it needs.",
    "Give invoices a currency. There are some 40,000 without one.",
    "Say in the README how to run a single test.",
];

/// A fake server that plays demonstrations; ends when dropped.
#[derive(Debug)]
pub struct Demo {
    _tasks: JoinSet<()>,
}

impl Demo {
    /// Answers every prompt that brings no script of its own.
    pub fn play_on(fake: FakeOpenCode) -> Self {
        fake.on_prompt(|prompt| {
            let mut script = match prompt.text.as_str() {
                _ if prompt.agent == "explore" => search(prompt),
                text if text == WATCHED[1] => clean_up(prompt),
                text if text == WATCHED[2] => decide(prompt),
                text if text == WATCHED[3] => explain(prompt),
                _ => repair(prompt),
            };
            for step in &mut script.steps {
                step.chunk_ms = pace(&prompt.text);
            }
            script
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(let_tools_take_their_time(Arc::new(fake)));
        Self { _tasks: tasks }
    }
}

/// A tool of the fake runs until its gate opens; here the gate's name says when that is.
async fn let_tools_take_their_time(fake: Arc<FakeOpenCode>) {
    let mut openers = JoinSet::new();
    let mut seen = 0;
    loop {
        fake.wait_for(|log| log.gates_reached.len() > seen).await;
        let gates = fake.log().gates_reached;
        for gate in gates.into_iter().skip(seen) {
            seen += 1;
            let ms = gate.split_once("ms#").and_then(|(ms, _)| ms.parse().ok()).unwrap_or(0);
            let fake = Arc::clone(&fake);
            openers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                fake.open_gate(&gate);
            });
        }
    }
}

/// The root's work.
fn repair(prompt: &Prompt) -> Script {
    let quick = |name, args| tool(prompt, name, args, 40);
    let think =
        "Amounts are parsed in one place. Before I change what it accepts I want to know who relies on it.";
    let task = json!({
        "description": "Find callers of parse_amount", "subagent_type": "explore",
        "prompt": "Which code calls parse_amount, and does any of it pass negative amounts on purpose?",
    });
    let edit =
        json!({"filePath": "src/amount.rs", "oldString": "text.parse()", "newString": "text.parse()?"});
    let mut failing = quick("edit", edit);
    failing.result.error = Some("oldString not found in content".to_owned());
    let test = tool(prompt, "bash", json!({"command": "cargo test amount"}), 1600).output(TESTS);
    let mut looking = Step::tool(quick("read", json!({"filePath": "src/amount.rs"})).output(AMOUNT_RS));
    looking
        .tools
        .push(quick("grep", json!({"pattern": "parse_amount", "path": "src"})).output("Found 3 matches"));
    Script::new([
        say(looking, think, "I will look at the parser first.", 900),
        say(Step::tool(ScriptedTool::new("task", task)), "", "Now its callers.", 400),
        say(Step::tool(failing), "", "", 200),
        say(
            Step::tool(
                quick(
                    "edit",
                    json!({"filePath": "src/amount.rs", "oldString": ".parse()", "newString": ".parse()?"}),
                )
                .output("Edit applied successfully."),
            ),
            "The file has changed since I read it; I will match less of it.",
            "",
            500,
        ),
        say(Step::tool(test), "", "", 300),
        say(Step::default(), "", ANSWER, 2100),
    ])
}

/// Work that needs a permission.
fn clean_up(prompt: &Prompt) -> Script {
    let look = tool(prompt, "grep", json!({"pattern": "export_v1", "path": "."}), 90)
        .output("src/export_v1.rs:1\nsrc/lib.rs:14\ntests/export_v1.rs:3\n");
    let command = "git rm -r src/export_v1.rs tests/export_v1.rs";
    let mut remove = tool(prompt, "bash", json!({"command": command}), 300)
        .output("rm 'src/export_v1.rs'\nrm 'tests/export_v1.rs'\n");
    remove.result.ask = Some(("bash".to_owned(), command.to_owned()));
    let test = tool(prompt, "bash", json!({"command": "cargo test"}), 1200).output("31 passed; 0 failed\n");
    let answer = "The old export format is gone, and with it src/export_v1.rs and its test. \
                  Nothing else used them; all 31 tests pass.";
    Script::new([
        say(Step::tool(look), "Two files carry the name, and one line of lib.rs.", "", 300),
        say(
            Step::tool(remove),
            "",
            "Nothing outside these two files uses the old format. I will remove them.",
            500,
        ),
        say(Step::tool(test), "", "Now the tests.", 200),
        say(Step::default(), "", answer, 700),
    ])
}

/// Work that needs a decision.
fn decide(prompt: &Prompt) -> Script {
    let look = tool(prompt, "read", json!({"filePath": "src/invoice.rs"}), 60)
        .output("pub struct Invoice {\n    pub lines: Vec<Line>,\n}\n");
    let question = json!({"questions": [{
        "header": "Currency",
        "question": "Which currency do the invoices get that have none?",
        "options": [
            {"label": "EUR", "description": "What all customers so far have paid in"},
            {"label": "Ask the customer", "description": "Leave it empty, and ask at the next invoice"},
        ],
    }]});
    let edit = json!({"filePath": "src/invoice.rs", "oldString": "lines", "newString": "currency"});
    let edit = tool(prompt, "edit", edit, 60).output("Edit applied successfully.");
    let answer =
        "Invoices have a currency now. The migration follows your answer, and runs in one transaction.";
    Script::new([
        say(Step::tool(look), "The type is simple. What to do with old data is not mine to decide.", "", 400),
        say(
            Step::tool(ScriptedTool::new("question", question)),
            "",
            "One thing before I change the table.",
            200,
        ),
        say(Step::tool(edit), "", "", 300),
        say(Step::default(), "", answer, 900),
    ])
}

/// Work that is quickly done.
fn explain(prompt: &Prompt) -> Script {
    let look = tool(prompt, "grep", json!({"pattern": "cargo test", "path": "README.md"}), 50)
        .output("README.md:31: cargo test\n");
    let edit = json!({"filePath": "README.md", "oldString": "cargo test", "newString": "cargo test NAME"});
    let edit = tool(prompt, "edit", edit, 60).output("Edit applied successfully.");
    let answer = "The section on tests now says how to run one by its name, and where its output goes.";
    Script::new([
        say(Step::tool(look), "There is a section on tests; one more sentence belongs there.", "", 200),
        say(Step::tool(edit), "", "", 200),
        say(Step::default(), "", answer, 300),
    ])
}

/// The subagent's work.
fn search(prompt: &Prompt) -> Script {
    let grep = tool(prompt, "grep", json!({"pattern": "parse_amount\\(", "path": "."}), 120)
        .output("src/invoice.rs:41\nsrc/refund.rs:17\nsrc/import.rs:88\n");
    let read = tool(prompt, "read", json!({"filePath": "src/refund.rs"}), 60)
        .output("17: parse_amount(text)?.abs()");
    Script::new([
        say(Step::tool(grep), "Three files at most, so reading them all is cheapest.", "", 350),
        say(Step::tool(read), "", "", 200),
        say(
            Step::default(),
            "",
            "Three callers. Only src/refund.rs takes negative amounts, and it drops the sign at once.",
            800,
        ),
    ])
}

/// Lets a step think and speak before it calls its tools, having read so many tokens.
fn say(mut step: Step, thinking: &str, text: &str, read: u64) -> Step {
    let (thought, written) = (thinking.len() / 5, 20 + (thinking.len() + text.len()) / 4);
    step.usage = Some(json!({
        "prompt_tokens": 4_000 + read, "completion_tokens": written,
        "prompt_tokens_details": {"cached_tokens": 3_500},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }));
    thinking.clone_into(&mut step.reasoning);
    text.clone_into(&mut step.text);
    step.before_ms = 150;
    step
}

/// Different tasks take different times, the same ones each time.
fn pace(prompt: &str) -> u64 {
    let sum: usize = prompt.bytes().map(usize::from).sum();
    if prompt == PROMPT { 25 } else { [25, 10, 18, 32][sum % 4] }
}

fn tool(prompt: &Prompt, name: &str, args: Value, ms: u64) -> ScriptedTool {
    let mut tool = ScriptedTool::new(name, args);
    // One gate per call: an open gate stays open.
    let call = format!("{ms}ms#{}-{name}-{}", prompt.message, tool.args);
    tool.result.gate = Some(call);
    tool
}

const AMOUNT_RS: &str =
    "pub fn parse_amount(text: &str) -> Result<i64, ParseError> {\n    text.trim().parse()\n}\n";

const TESTS: &str = "running 4 tests\ntest amount::accepts_zero ... ok\ntest amount::accepts_cents ... ok\n\
                     test amount::refuses_words ... ok\ntest amount::refuses_negative ... ok\n\n\
                     test result: ok. 4 passed; 0 failed\n";

const ANSWER: &str = "parse_amount now refuses negative amounts with ParseError::Negative.\n\n\
                      - src/amount.rs: the check, and a test for it\n\
                      - src/refund.rs: the only caller that passed them on; it now takes the sign off first\n\n\
                      All four tests of the module pass.";

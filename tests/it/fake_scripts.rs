//! Scripts of the fake as a runner's tests write them: what they cost, and what their tools do.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use opencode_conductor::{
    ConversationManager, ManagerBuilder, PermissionPolicy, PromptInput, QuestionPolicy, Usage,
    test_util::{FakeOpenCode, ModelPrice, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

use crate::support::{
    soon,
    stage::{Stage, client, create, quick},
};

fn usage(prompt: u64, completion: u64) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

fn bash(command: &str) -> ScriptedTool {
    ScriptedTool::new("bash", json!({"command": command}))
}

/// Costs as text, so that the last digit counts.
fn cost(usage: Usage) -> String {
    usage.cost.to_string()
}

#[tokio::test]
async fn a_turn_costs_what_its_steps_and_its_subagents_cost() {
    let price = ModelPrice::new(3.0, 15.0);
    let stage = Stage::of(quick().price("mock/m", price)).await;
    let child = Script::new([Step::text("found").usage(usage(1000, 100))]);
    let script =
        Script::new([Step::subagent("Look", &child).usage(usage(2000, 10)), Step::text("done").cost(0.25)]);
    let result = stage.ask(&script).await.unwrap().settled().unwrap();
    let of = |is_root: bool| {
        let mine =
            result.usage_by_session.iter().filter(|(session, _)| (**session == stage.session) == is_root);
        mine.map(|(_, usage)| *usage).sum::<Usage>()
    };
    assert_eq!(cost(of(true)), "0.25615");
    assert_eq!(cost(of(false)), "0.0045");
    assert_eq!(cost(result.usage), "0.26065");
    let again = stage.ask(&Script::new([Step::text("more").usage(usage(10_000, 0))])).await.unwrap();
    assert_eq!(cost(again.usage), "0.03");
    let session =
        stage.fake.sessions().into_iter().find(|found| found["id"] == stage.session.as_str()).unwrap();
    assert_eq!(session["cost"], json!(0.25615 + 0.03));
}

#[tokio::test]
async fn what_is_written_to_the_cache_costs_its_own_price() {
    let price = ModelPrice::new(3.0, 15.0).cache_read(0.3).cache_write(3.75);
    let stage = Stage::of(quick().price("mock/m", price)).await;
    let mut usage = usage(1000, 100);
    usage["prompt_tokens_details"] = json!({"cached_tokens": 200, "cache_write_tokens": 400});
    let result = stage.ask(&Script::new([Step::text("done").usage(usage)])).await.unwrap();
    assert_eq!(result.usage.tokens.input, 400);
    assert_eq!(result.usage.tokens.cache_read, 200);
    assert_eq!(result.usage.tokens.cache_write, 400);
    assert_eq!(cost(result.usage), "0.00426");
}

#[tokio::test]
async fn a_model_without_a_price_is_free() {
    let stage = Stage::of(quick().model("mock/other").price("mock/other", ModelPrice::new(1.0, 1.0))).await;
    let script = Script::new([Step::text("done").usage(usage(1000, 1000))]);
    assert_eq!(cost(stage.ask(&script).await.unwrap().usage), "0");
    let other = stage.input(&script).model("mock/other".parse().unwrap());
    assert_eq!(cost(stage.send(other).await.unwrap().usage), "0.002");
}

#[tokio::test]
async fn tools_do_what_their_script_says() {
    let stage = Stage::with(quick(), |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
    let both = [bash("ls").output("here\n").id("call_mine"), bash("false").fails("it broke")];
    let script = Script::new([
        Step::tools(both),
        Step::text("And now")
            .reasoning("It must go.")
            .call(bash("rm x").asks("bash", "rm *").gate("removing")),
        Step::text("gone"),
    ]);
    let running = stage.start(&script);
    soon(stage.fake.wait_at("removing")).await;
    stage.fake.open_gate("removing");
    let result = soon(running.into_future()).await.unwrap().settled().unwrap();
    assert_eq!(result.answer().as_deref(), Some("gone"));
    let asked: Vec<Value> = stage
        .fake
        .log()
        .events
        .iter()
        .filter(|event| event.kind == "permission.asked")
        .map(|event| event.properties["patterns"].clone())
        .collect();
    assert_eq!(asked, [json!(["rm x"])]);
    let messages = stage.fake.messages(stage.session.as_str());
    let parts = messages.iter().flat_map(|message| message["parts"].as_array().unwrap());
    let tools: Vec<(&Value, &Value)> = parts
        .filter(|part| part["type"] == "tool")
        .map(|part| (&part["state"]["output"], &part["state"]["error"]))
        .collect();
    let (here, broke, nothing) = (json!("here\n"), json!("it broke"), json!("(no output)"));
    assert_eq!(tools, [(&here, &Value::Null), (&Value::Null, &broke), (&nothing, &Value::Null)]);
    let ids: Vec<&Value> = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap())
        .map(|part| &part["callID"])
        .filter(|id| **id == "call_mine")
        .collect();
    assert_eq!(ids.len(), 1);
}

/// Output and error of each tool call of a session.
fn tool_results(stage: &Stage) -> Vec<Value> {
    let messages = stage.fake.messages(stage.session.as_str());
    let parts = messages.iter().flat_map(|message| message["parts"].as_array().unwrap());
    let tools = parts.filter(|part| part["type"] == "tool");
    tools.map(|part| json!([part["state"]["output"], part["state"]["error"]])).collect()
}

/// Kind and patterns of each permission that was asked for.
fn asked(stage: &Stage) -> Vec<Value> {
    let log = stage.fake.log();
    let asked = log.events.iter().filter(|event| event.kind == "permission.asked");
    asked.map(|event| json!([event.properties["permission"], event.properties["patterns"]])).collect()
}

#[tokio::test]
async fn subagents_and_questions_do_what_their_script_says() {
    let policy = |manager: ManagerBuilder| {
        manager.permissions(PermissionPolicy::AllowOnce).questions(QuestionPolicy::Decline)
    };
    let child = Script::says("found");
    let question = || {
        let options = json!([{"label": "yes", "description": ""}]);
        let questions = json!([{"question": "sure?", "header": "h", "options": options}]);
        ScriptedTool::new("question", json!({"questions": questions}))
    };
    for (tool, permission, asks_humans) in
        [(ScriptedTool::task("Look", &child), "task", 1), (question(), "question", 1)]
    {
        let stage = Stage::with(quick(), policy).await;
        let n_started = |stage: &Stage| {
            let log = stage.fake.log();
            let is_start = |kind: &str, child: &Value| {
                kind == "question.asked" || (kind == "session.created" && child["parentID"].is_string())
            };
            log.events.iter().filter(|event| is_start(&event.kind, &event.properties["info"])).count()
        };
        let fails = tool.clone().fails("it broke").gate("failing");
        let says = tool.asks(permission, "some *").gate("working").output("as scripted");
        let script = Script::new([Step::tool(fails), Step::tool(says), Step::text("done")]);
        let running = stage.start(&script);
        soon(stage.fake.wait_at("failing")).await;
        stage.fake.open_gate("failing");
        soon(stage.fake.wait_at("working")).await;
        assert_eq!(n_started(&stage), 0, "{permission}: nothing begins before the gate");
        stage.fake.open_gate("working");
        soon(running.into_future()).await.unwrap().settled().unwrap();
        assert_eq!(n_started(&stage), asks_humans, "{permission}");
        let subject = if permission == "task" { "general" } else { "some *" };
        assert_eq!(asked(&stage), [json!([permission, [subject]])]);
        let results = tool_results(&stage);
        assert_eq!(results[0], json!([null, "it broke"]), "{permission}");
        assert!(results[1][0].as_str().unwrap().contains("as scripted"), "{results:?}");
    }
}

#[tokio::test]
async fn an_aborted_subagent_does_not_begin_behind_its_gate() {
    let stage = Stage::new().await;
    let look = ScriptedTool::task("Look", &Script::says("found")).gate("held");
    let running = stage.start(&Script::new([Step::tool(look)]));
    soon(stage.fake.wait_at("held")).await;
    soon(stage.manager.abort(&stage.session)).await.unwrap();
    drop(soon(running.into_future()).await);
    stage.fake.open_gate("held");
    soon(stage.ask(&Script::says("next"))).await.unwrap().settled().unwrap();
    assert_eq!(tool_results(&stage), [json!([null, "Tool execution aborted"])]);
    assert_eq!(stage.fake.sessions().len(), 1);
}

#[tokio::test]
async fn permissions_are_those_of_the_server() {
    let write = |path: &str| ScriptedTool::new("write", json!({"filePath": path, "content": "x"}));
    let read = |path: &str| ScriptedTool::new("read", json!({"filePath": path}));
    let ask = |permission: &str, pattern: &str| vec![json!([permission, [pattern]])];
    let secrets = json!({"edit": {"*": "allow", "secrets/*": "deny"}});
    for (case, rules, tool, requests, denial) in [
        (
            "a script's pattern",
            json!({}),
            bash("rm -r build").asks("bash", "rm *"),
            ask("bash", "rm -r build"),
            None,
        ),
        ("a denied path", secrets.clone(), write("secrets/x"), vec![], Some("prevents you")),
        ("an allowed path", secrets.clone(), write("open/x"), vec![], None),
        (
            "an absolute path",
            secrets.clone(),
            write("/project/worktree/secrets/x"),
            vec![],
            Some("prevents you"),
        ),
        ("denied edits", json!({"edit": "deny"}), write("x"), vec![], Some("unavailable tool 'write'")),
        ("no rule for writes", json!({"write": "deny"}), write("x"), vec![], None),
        ("a script that asks", secrets, write("x").asks("edit", "*"), ask("edit", "x"), None),
        (
            "a script against a denial",
            json!({"bash": {"*": "allow", "rm *": "deny"}}),
            bash("rm x").asks("bash", "rm *"),
            vec![],
            Some("prevents you"),
        ),
        ("secrets", json!({}), read("deep/.env"), ask("read", "deep/.env"), None),
        ("no secrets", json!({}), read(".env.example"), vec![], None),
        ("elsewhere", json!({}), read("/elsewhere/x"), ask("external_directory", "/elsewhere/*"), None),
        (
            "a tool of another's",
            json!({"mine": "ask"}),
            ScriptedTool::new("mine", json!({})).output("x"),
            ask("mine", "*"),
            None,
        ),
    ] {
        let options = quick().permission(rules);
        let stage = Stage::with(options, |manager| manager.permissions(PermissionPolicy::AllowOnce)).await;
        let script = Script::new([Step::tool(tool), Step::text("done")]);
        soon(stage.ask(&script)).await.unwrap().settled().unwrap();
        assert_eq!(asked(&stage), requests, "{case}");
        let result = tool_results(&stage)[0].to_string();
        let denied = ["prevents you", "unavailable tool"].iter().any(|words| result.contains(words));
        assert_eq!(denied, denial.is_some(), "{case}: {result}");
        assert!(denial.is_none_or(|words| result.contains(words)), "{case}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_for_prompts_may_use_the_fake() {
    let fake = Arc::new(FakeOpenCode::start_with(quick()).await.unwrap());
    let manager = ConversationManager::builder(client(&fake)).build();
    let session = create(&manager, "task").await;
    let (seen, hook_fake) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&fake));
    let noted = Arc::clone(&seen);
    fake.on_prompt(move |prompt| {
        let fake = hook_fake.upgrade().unwrap();
        fake.cut_streams();
        fake.send_event(fake.directory(), "of.the.hook", json!({}));
        noted.lock().unwrap().push((prompt.text.clone(), fake.messages(&prompt.session).len()));
        Script::says("chosen")
    });
    let prompt = PromptInput::new(session, "Which?");
    let result = soon(manager.prompt(prompt).into_future()).await.unwrap().settled().unwrap();
    assert_eq!(result.answer().as_deref(), Some("chosen"));
    // The prompt and the step that the script is chosen for.
    assert_eq!(*seen.lock().unwrap(), [("Which?".to_owned(), 2)]);
}

#[tokio::test]
async fn a_hook_that_panics_ends_the_run_and_fails_the_test() {
    let stage = Stage::new().await;
    stage.fake.on_prompt(|prompt| {
        assert_eq!(prompt.text, "expected", "not what the runner should say");
        Script::says("never said")
    });
    let wrong = PromptInput::new(stage.session.clone(), "unexpected");
    let failed = stage.send(wrong).await.map(|result| result.completion);
    assert!(format!("{failed:?}").contains("not what the runner should say"), "{failed:?}");
    assert!(stage.is_idle().await);
    let panic = catch_unwind(AssertUnwindSafe(|| drop(stage.fake))).unwrap_err();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("not what the runner should say"), "{said}");
}

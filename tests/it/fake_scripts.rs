//! Scripts of the fake as a runner's tests write them: what they cost, and what their tools do.

use opencode_conductor::{
    PermissionPolicy, Usage,
    test_util::{ModelPrice, Script, ScriptedTool, Step},
};
use serde_json::{Value, json};

use crate::support::{
    soon,
    stage::{Stage, quick},
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
    assert_eq!(asked, [json!(["rm *"])]);
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

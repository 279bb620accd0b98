//! What tools ask for before they run, and which rules decide.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use serde_json::{Value, json};

use crate::stage::{Stage, bash, calls, task};

fn rule(permission: &str, pattern: &str, action: &str) -> Value {
    json!({"permission": permission, "pattern": pattern, "action": action})
}

fn tool(name: &str, args: Value) -> ScriptedTool {
    ScriptedTool::new(name, args)
}

fn write(path: &str) -> ScriptedTool {
    tool("write", json!({"filePath": path, "content": "hello\n"}))
}

/// The requests that a call makes, which are granted one after the other; what it would do over the network or with another program is not.
async fn requests_of(stage: &mut Stage<'_>, session: &str, call: ScriptedTool) -> Vec<Value> {
    let of_session = |seen: &[Value], kind: &str| -> Vec<Value> {
        let is = |event: &&Value| event["type"] == kind && event["properties"]["sessionID"] == session;
        seen.iter().filter(is).map(|event| event["properties"].clone()).collect()
    };
    let (mut n_asked, n_idles) =
        (of_session(&stage.events.seen(), "permission.asked").len(), stage.idles(session));
    stage.prompt(session, &Script::new([Step::tool(call), Step::text("done")])).await;
    let mut requests = Vec::new();
    loop {
        let has_news = |seen: &[Value]| {
            of_session(seen, "permission.asked").len() > n_asked
                || of_session(seen, "session.idle").len() > n_idles
        };
        stage.events.wait("a request or the end", has_news).await;
        let asked = of_session(&stage.events.seen(), "permission.asked");
        let Some(request) = asked.get(n_asked) else { return requests };
        n_asked += 1;
        let runs = ["glob", "grep", "skill", "webfetch"].iter().all(|kind| request["permission"] != *kind);
        let answer =
            if runs { json!({"reply": "once"}) } else { json!({"reply": "reject", "message": "not here"}) };
        let path = format!("/permission/{}/reply", request["id"].as_str().expect("an id"));
        stage.post(&path, &answer).await;
        requests.push(json!({
            "permission": request["permission"], "patterns": request["patterns"], "always": request["always"],
            "metadata": request["metadata"],
        }));
    }
}

pub(crate) async fn what_tools_ask_for(stage: &mut Stage<'_>) {
    let session = stage.session_with(json!({"permission": [rule("*", "*", "ask")]})).await;
    let directory = stage.target.directory(0);
    let home = stage.home();
    let edit = json!({"filePath": format!("{directory}/notes.txt"), "oldString": "one", "newString": "uno"});
    let todos = json!([{"content": "a", "status": "pending", "priority": "high"}]);
    let cases = [
        ("one command", bash("touch asked", "")),
        ("a name of two words", bash("git status --short", "")),
        ("a name of three words", bash("npm run build", "")),
        ("without arguments", bash("true", "")),
        ("several commands", bash("echo a && git status | wc -l; true", "")),
        ("an assignment, a redirection", bash("A=1 touch b > /dev/null 2>&1", "")),
        ("a loop, a group", bash("for i in 1 2; do touch $i; done; (touch w)", "")),
        ("a substitution, quotes", bash("echo $(touch sub) \"x;y | z\" # touch c", "")),
        ("a directory of the project", bash("cd . && ls", "")),
        ("a file outside", bash("cat ../nothing/f.txt", "")),
        ("a file at home", bash("touch ~/elsewhere", "")),
        ("a pattern of files", bash("cat /etc/*.none", "")),
        ("an unwatched command", bash("ls /etc/hostname", "")),
        (
            "another place",
            tool("bash", json!({"command": "true", "description": "d", "workdir": home.clone()})),
        ),
        ("read", tool("read", json!({"filePath": format!("{directory}/notes.txt")}))),
        ("read outside", tool("read", json!({"filePath": format!("{home}/nothing/f.txt")}))),
        ("edit", tool("edit", edit)),
        ("write", write(&format!("{directory}/deep/new.txt"))),
        ("write a relative path", write("rel.txt")),
        ("write outside", write(&format!("{home}/outside/g.txt"))),
        ("write by dots", write(&format!("{directory}/../outside/h.txt"))),
        ("glob", tool("glob", json!({"pattern": "*.txt", "path": directory.clone()}))),
        ("grep", tool("grep", json!({"pattern": "one", "include": "*.txt"}))),
        ("webfetch", tool("webfetch", json!({"url": "http://127.0.0.1:9/x", "format": "text"}))),
        ("todowrite", tool("todowrite", json!({"todos": todos}))),
        ("task", task("look", "general", [Step::text("found")])),
        ("task of nobody", task("look", "nobody", [])),
    ];
    for (label, call) in cases {
        let mut requests = requests_of(stage, &session, call).await;
        for request in requests.iter_mut().filter(|_| label == "edit") {
            // The fake has no files to show the lines around it.
            let diff = request["metadata"]["diff"].as_str().map(|diff| diff.contains("-one\n+uno\n"));
            request["metadata"]["diff"] = json!(diff);
        }
        stage.note(label, requests);
    }
    stage.forget_turns();
}

pub(crate) async fn asks_without_rules(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let home = stage.home();
    for (label, call) in [
        (".env", tool("read", json!({"filePath": ".env"}))),
        (".env.local", tool("read", json!({"filePath": "deep/.env.local"}))),
        (".env.example", tool("read", json!({"filePath": ".env.example"}))),
        ("notes.txt", tool("read", json!({"filePath": "notes.txt"}))),
        ("write .env", write(".env")),
        ("outside", tool("read", json!({"filePath": format!("{home}/nothing/f.txt")}))),
        (
            "kept output",
            tool("read", json!({"filePath": format!("{home}/.local/share/opencode/tool-output/tool_1")})),
        ),
        ("a file of a command outside", bash("cat ../nothing/f.txt", "")),
    ] {
        let requests = requests_of(stage, &session, call).await;
        stage.note(label, requests);
    }
    stage.forget_turns();
}

pub(crate) async fn rules_of_paths(stage: &mut Stage<'_>) {
    let rules = [
        rule("edit", "*", "allow"),
        rule("edit", "secrets/*", "deny"),
        rule("edit", "a?.txt", "ask"),
        rule("write", "*", "deny"),
    ];
    let session = stage.session_with(json!({"permission": rules})).await;
    for path in ["ab.txt", "abc.txt"] {
        let requests = requests_of(stage, &session, write(path)).await;
        stage.note(path, requests);
    }
    let refused = [write("secrets/x"), write("secrets/deep/../y")];
    let other = stage.session_with(json!({"permission": rules})).await;
    stage.turn(&other, [calls(refused), Step::text("done")]).await;
    note_tools(stage, &other).await;
    stage.home();
    let outside = stage.session_with(json!({"permission": [rule("external_directory", "*", "deny")]})).await;
    stage.turn(&outside, [Step::tool(write("../outside/i.txt")), Step::text("done")]).await;
    note_tools(stage, &outside).await;
    stage.forget_turns();
}

pub(crate) async fn denied_edits(stage: &mut Stage<'_>) {
    let session = stage.session_with(json!({"permission": [rule("edit", "*", "deny")]})).await;
    stage.turn(&session, [Step::tool(write("x.txt")), Step::text("done")]).await;
}

pub(crate) async fn one_tool_allowed(stage: &mut Stage<'_>) {
    let rules = [rule("*", "*", "deny"), rule("bash", "*", "allow")];
    let session = stage.session_with(json!({"permission": rules})).await;
    stage.turn(&session, [Step::tool(write("x.txt")), Step::text("done")]).await;
}

pub(crate) async fn one_denied_command_denies_all(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    stage.turn(&session, [Step::tool(bash("echo a && rm x", "")), Step::text("done")]).await;
}

pub(crate) async fn plan_does_not_edit(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let mut body =
        stage.prompt_body(&Script::new([Step::tool(write("x.txt")), Step::text("done")]).prompt("do"));
    body["agent"] = "plan".into();
    stage.post_prompt(&session, &body).await;
    stage.idle(&session, 1).await;
    note_tools(stage, &session).await;
    stage.forget_turns();
}

pub(crate) async fn explorer_does_not_edit(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let explores = task("look", "explore", [Step::tool(write("x.txt")), Step::text("found")]);
    stage.turn(&session, [Step::tool(explores), Step::text("done")]).await;
}

pub(crate) async fn asks_for_a_task(stage: &mut Stage<'_>) {
    let session = stage.session_with(json!({"permission": [rule("task", "*", "ask")]})).await;
    let look = task("look", "general", [Step::text("never said")]);
    stage.prompt(&session, &Script::new([Step::tool(look), Step::text("never said")])).await;
    let is =
        |kind: &str, properties: &Value| kind == "permission.asked" && properties["sessionID"] == session;
    let asked = stage.find("a request", is).await;
    stage.tool_running(&session).await;
    let path = format!("/permission/{}/reply", asked["id"].as_str().expect("an id"));
    stage.post(&path, &json!({"reply": "reject"})).await;
    stage.idle(&session, 1).await;
}

pub(crate) async fn denied_task(stage: &mut Stage<'_>) {
    let rules = [rule("task", "*", "allow"), rule("task", "gen*", "deny")];
    let session = stage.session_with(json!({"permission": rules})).await;
    let look = task("look", "general", [Step::text("never said")]);
    stage.turn(&session, [Step::tool(look), Step::text("done")]).await;
}

/// Notes how the calls of a session ended.
async fn note_tools(stage: &mut Stage<'_>, session: &str) {
    let messages = stage.get(&format!("/session/{session}/message")).await.json();
    let parts = messages.as_array().into_iter().flatten().filter_map(|message| message["parts"].as_array());
    let tools: Vec<Value> = parts
        .flatten()
        .filter(|part| part["type"] == "tool")
        .map(|part| json!({"tool": part["tool"], "status": part["state"]["status"], "error": part["state"]["error"]}))
        .collect();
    stage.note("calls", tools);
}

//! Answers: status codes, shapes, pages, authentication.

use opencode_conductor::test_util::{Script, ScriptedTool, Step};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{stage::Stage, target::send};

async fn note(stage: &mut Stage<'_>, label: &str, request: RequestBuilder) {
    let answer = send(request).await;
    stage.note_answer(label, &answer);
}

fn raw(stage: &Stage<'_>, path: &str, content_type: &str, body: &'static str) -> RequestBuilder {
    let request = stage.target.request(Method::POST, path);
    request.header("content-type", content_type).body(body)
}

pub(crate) async fn prompt_answers(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let path = format!("/session/{session}/prompt_async");
    let parts = json!({"parts": [{"type": "text", "text": "x"}]});
    for (label, path) in [
        ("unknown session", "/session/ses_nope/prompt_async"),
        ("session id without its prefix", "/session/nope/prompt_async"),
    ] {
        note(stage, label, stage.target.request(Method::POST, path).json(&parts)).await;
    }
    for (label, content_type, body) in [
        ("malformed JSON", "application/json", "{\"par"),
        ("empty body", "application/json", ""),
        ("not an object", "application/json", "[]"),
        ("wrong content type", "text/plain", "{\"parts\":[]}"),
    ] {
        note(stage, label, raw(stage, &path, content_type, body)).await;
    }
    for (label, body) in [
        ("no parts", json!({})),
        ("unknown kind of part", json!({"parts": [{"type": "zzz"}]})),
        ("text part without text", json!({"parts": [{"type": "text"}]})),
        ("message id without its prefix", json!({"messageID": "xx", "parts": []})),
        ("part id without its prefix", json!({"parts": [{"type": "text", "text": "a", "id": "x"}]})),
    ] {
        note(stage, label, stage.target.request(Method::POST, &path).json(&body)).await;
    }
}

pub(crate) async fn session_routes(stage: &mut Stage<'_>) {
    let full = json!({
        "title": "T", "metadata": {"task": "1"}, "agent": "build", "id": "ses_mine",
        "permission": [{"permission": "*", "pattern": "*", "action": "allow"}],
    });
    let session = stage.session_with(full).await;
    let info = stage.get(&format!("/session/{session}")).await;
    stage.note_answer("created with everything", &info);
    let child = stage.session_with(json!({"title": "child", "parentID": session})).await;
    for (label, path) in [
        ("unknown session", "/session/ses_nope".to_owned()),
        ("session id without its prefix", "/session/nope".to_owned()),
        ("children", format!("/session/{session}/children")),
        ("no children", format!("/session/{child}/children")),
        ("children of an unknown session", "/session/ses_nope/children".to_owned()),
        ("todos", format!("/session/{session}/todo")),
        ("changes", format!("/session/{session}/diff")),
        ("messages", format!("/session/{session}/message")),
        ("messages of an unknown session", "/session/ses_nope/message".to_owned()),
        ("unknown message", format!("/session/{session}/message/msg_nope")),
        ("message id without its prefix", format!("/session/{session}/message/nope")),
        ("statuses", "/session/status".to_owned()),
        ("health", "/global/health".to_owned()),
    ] {
        let answer = stage.get(&path).await;
        stage.note_answer(label, &answer);
    }
    let rename = json!({"title": "new"});
    for (label, session) in [("renamed", session.as_str()), ("rename an unknown session", "ses_nope")] {
        let request = stage.target.request(Method::PATCH, &format!("/session/{session}"));
        note(stage, label, request.json(&rename)).await;
    }
    note(stage, "bad title", stage.target.request(Method::POST, "/session").json(&json!({"title": 5}))).await;
    note(stage, "malformed session", raw(stage, "/session", "application/json", "{")).await;
    let list = stage.get("/session?limit=2").await.json();
    let titles: Vec<&Value> =
        list.as_array().expect("a list").iter().map(|session| &session["title"]).collect();
    stage.note("newest sessions", json!(titles));
}

pub(crate) async fn message_pages(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    for n in 0..5 {
        let mut body = stage.prompt_body(&format!("message {n}"));
        body["noReply"] = true.into();
        stage.post_prompt(&session, &body).await;
        stage.stored(&body).await;
    }
    let list = format!("/session/{session}/message");
    let mut page = stage.get(&format!("{list}?limit=2")).await;
    for label in ["newest page", "middle page", "oldest page"] {
        let texts: Vec<Value> = page
            .json()
            .as_array()
            .expect("a list")
            .iter()
            .map(|message| message["parts"][0]["text"].clone())
            .collect();
        let cursor = page.header("x-next-cursor").map(str::to_owned);
        let link = page.header("link").map(str::to_owned);
        let links =
            link.is_some_and(|link| cursor.as_ref().is_some_and(|cursor| link.contains(cursor.as_str())));
        stage.note(label, json!({"texts": texts, "more": cursor.is_some(), "linked": links}));
        let Some(cursor) = cursor else { break };
        page = stage.get(&format!("{list}?limit=2&before={cursor}")).await;
        if label == "newest page" {
            let answer = stage.get(&format!("{list}?before={cursor}")).await;
            stage.note_answer("cursor without limit", &answer);
        }
    }
    for query in ["limit=0", "limit=5", "limit=100"] {
        let answer = stage.get(&format!("{list}?{query}")).await;
        let count = answer.json().as_array().map(Vec::len);
        stage.note(query, json!([count, answer.header("x-next-cursor").is_some()]));
    }
    for query in ["limit=-1", "limit=abc", "limit=2&before=msg_x"] {
        let answer = stage.get(&format!("{list}?{query}")).await;
        stage.note_answer(query, &answer);
    }
    let id = stage.get(&format!("{list}?limit=1")).await.json()[0]["info"]["id"].clone();
    let one = stage.get(&format!("{list}/{}", id.as_str().expect("an id"))).await;
    stage.note_answer("one message", &one);
}

pub(crate) async fn unknown_routes(stage: &mut Stage<'_>) {
    for (method, path) in [(Method::GET, "/nonesuch"), (Method::POST, "/nonesuch"), (Method::PUT, "/session")]
    {
        let label = format!("{method} {path}");
        note(stage, &label, stage.target.request(method, path).json(&json!({}))).await;
    }
}

pub(crate) async fn request_routes(stage: &mut Stage<'_>) {
    for (label, path, body) in [
        ("unknown permission", "/permission/per_nope/reply", json!({"reply": "once"})),
        ("bad reply", "/permission/per_nope/reply", json!({"reply": "maybe"})),
        ("unknown question", "/question/que_nope/reply", json!({"answers": [["a"]]})),
        ("reject an unknown question", "/question/que_nope/reject", json!({})),
    ] {
        let answer = stage.post(path, &body).await;
        stage.note_answer(label, &answer);
    }
    let session = stage.session().await;
    let path = format!("/session/{session}/permissions/per_nope");
    let answer = stage.post(&path, &json!({"response": "once"})).await;
    stage.note_answer("unknown permission by the old route", &answer);
    let permissions = stage.get("/permission").await;
    stage.note_answer("no permissions", &permissions);
}

pub(crate) async fn authentication(stage: &mut Stage<'_>) {
    let client = reqwest::Client::builder().no_proxy().build().expect("build a client");
    let url = stage.target.url();
    for path in ["/global/health", "/event", "/session", "/nonesuch", "/doc"] {
        let answer = send(client.get(format!("{url}{path}"))).await;
        stage.note_answer(path, &answer);
        stage.note("challenge", answer.header("www-authenticate"));
    }
    let health = || client.get(format!("{url}/global/health"));
    for (label, request) in [
        ("wrong password", health().basic_auth("opencode", Some("wrong"))),
        ("wrong user", health().basic_auth("someone", Some("secret"))),
        ("bearer", health().bearer_auth("secret")),
        // opencode:secret
        ("token in the query", client.get(format!("{url}/global/health?auth_token=b3BlbmNvZGU6c2VjcmV0"))),
        ("right", health().basic_auth("opencode", Some("secret"))),
    ] {
        note(stage, label, request).await;
    }
    let session = stage.session().await;
    stage.prompt(&session, &Script::new([Step::text("hello")])).await;
    stage.idle(&session, 1).await;
}

/// What a turn did to files is told for its prompt, and for nothing else.
pub(crate) async fn changed_files(stage: &mut Stage<'_>) {
    let session = stage.session().await;
    let file = format!("{}/fresh.txt", stage.target.directory(0));
    let write =
        |content: &str| Step::tool(ScriptedTool::new("write", json!({"filePath": file, "content": content})));
    let first = stage.turn(&session, [write("one\ntwo\n"), Step::text("done")]).await;
    let second = stage.turn(&session, [write("three\n"), Step::text("done")]).await;
    let third = stage.turn(&session, [Step::text("nothing")]).await;
    for (label, prompt) in [("added", &first), ("modified", &second), ("nothing", &third)] {
        let prompt = prompt["messageID"].as_str().expect("an id");
        let answer = stage.get(&format!("/session/{session}/diff?messageID={prompt}")).await;
        stage.note_answer(label, &answer);
    }
    let answer = stage.get(&format!("/session/{session}/diff")).await;
    stage.note_answer("without a prompt", &answer);
    // What the tool says about itself is of no interest here.
    stage.forget_turns();
    note(stage, "deleted", stage.target.request(Method::DELETE, &format!("/session/{session}"))).await;
}

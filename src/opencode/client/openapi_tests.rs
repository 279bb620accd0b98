//! Compares what this crate says and understands with the server's own `OpenAPI` document.
//!
//! `fixtures/openapi.json` is a trimmed copy, written by `tools/src/bin/refresh_openapi.rs`. What we use and the document
//! lacks is a failure; what the document has and we do not use is listed, so that a refresh shows what is new.

use std::{collections::BTreeSet, fmt::Debug, fmt::Write};

use expect_test::expect;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    api::routes,
    call::{Method, Operation},
};
use crate::{
    ids::{MessageId, PartId, SessionId},
    opencode::wire::{self, *},
};

struct Document(Value);

impl Document {
    fn load() -> Self {
        Self(serde_json::from_str(include_str!("../../../fixtures/openapi.json")).unwrap())
    }

    fn schema(&self, name: &str) -> &Value {
        let schema = &self.0["components"]["schemas"][name];
        assert!(!schema.is_null(), "no schema {name}");
        schema
    }

    /// Follows a reference, if it is one.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some(name) => self.resolve(self.schema(name)),
            None => schema,
        }
    }

    /// The alternatives of a schema; itself, if it has none.
    fn variants<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        match schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
            Some(variants) => variants.iter().flat_map(|variant| self.variants(variant)).collect(),
            None => vec![schema],
        }
    }

    /// A value with every field that the schema knows.
    fn sample(&self, schema: &Value, depth: usize) -> Value {
        let schema = self.variants(schema)[0];
        if let Some(value) = schema.get("const").or_else(|| schema["enum"].get(0)) {
            return value.clone();
        }
        let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
        match kind {
            Some("string") => json!("x"),
            Some("number" | "integer") => json!(1),
            Some("boolean") => json!(true),
            Some("array") if depth > 0 => json!([self.sample(&schema["items"], depth - 1)]),
            Some("array") => json!([]),
            Some("object") => {
                let fields = schema["properties"].as_object().into_iter().flatten();
                fields
                    .map(|(name, field)| (name.clone(), self.sample(field, depth.saturating_sub(1))))
                    .collect()
            }
            _ => Value::Null,
        }
    }

    /// What is wrong with a value; every field that we send has to be known.
    fn objections(&self, schema: &Value, value: &Value) -> Vec<String> {
        let all: Vec<Vec<String>> =
            self.variants(schema).into_iter().map(|variant| self.objections_to(variant, value)).collect();
        if all.iter().any(Vec::is_empty) { Vec::new() } else { all.concat() }
    }

    fn objections_to(&self, schema: &Value, value: &Value) -> Vec<String> {
        if let Some(values) = schema["enum"].as_array() {
            return if values.contains(value) {
                Vec::new()
            } else {
                vec![format!("{value} is not in {values:?}")]
            };
        }
        let fits = match (schema["type"].as_str(), value) {
            (Some("string"), Value::String(_))
            | (Some("number" | "integer"), Value::Number(_))
            | (Some("boolean"), Value::Bool(_))
            | (None, _) => return Vec::new(),
            (Some("array"), Value::Array(items)) => {
                return items.iter().flat_map(|item| self.objections(&schema["items"], item)).collect();
            }
            (Some("object"), Value::Object(fields)) => fields,
            (kind, value) => return vec![format!("{value} is not {kind:?}")],
        };
        let missing = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let missing =
            missing.filter(|name| !fits.contains_key(*name)).map(|name| format!("{name} is missing"));
        let wrong = fits.iter().flat_map(|(name, value)| match schema["properties"].get(name) {
            Some(field) => self.objections(field, value),
            None if schema["properties"].is_null() => Vec::new(),
            None => vec![format!("{name} is unknown")],
        });
        missing.chain(wrong).collect()
    }

    fn operation(&self, method: Method, path: &str) -> &Value {
        &self.0["paths"][path][format!("{method:?}").to_lowercase()]
    }

    fn body(&self, operation: Operation) -> &Value {
        &self.operation(operation.method, operation.path)["requestBody"]["content"]["application/json"]["schema"]
    }
}

#[test]
fn every_route_and_parameter_exists() {
    let document = Document::load();
    for route in routes::ALL {
        let operation = document.operation(route.method, route.path);
        assert!(operation.is_object(), "{:?} {} is gone", route.method, route.path);
        let parameters: BTreeSet<&str> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        let mut used = vec!["directory"];
        match *route {
            routes::HEALTH => used.clear(),
            routes::MESSAGES => used.extend(["limit", "before"]),
            routes::LIST_SESSIONS => used.extend(["limit", "search", "roots"]),
            _ => {}
        }
        used.extend(route.path.split(['{', '}']).skip(1).step_by(2));
        for name in used {
            assert!(parameters.contains(name), "{} has no parameter {name}", route.path);
        }
    }
}

#[test]
fn every_body_that_is_sent_is_known() {
    fn check(document: &Document, operation: Operation, body: &impl Serialize) {
        let body = serde_json::to_value(body).unwrap();
        let objections = document.objections(document.body(operation), &body);
        assert!(objections.is_empty(), "{}: {objections:?}", operation.path);
    }
    let document = Document::load();
    let id = || PartId::new("prt_1");
    let mut prompt = PromptRequest::new(
        MessageId::new("msg_1"),
        vec![
            PromptPart::Text { id: id(), text: "x".into() },
            PromptPart::File { id: id(), mime: "x".into(), filename: Some("x".into()), url: "x".into() },
            PromptPart::Agent { id: id(), name: "x".into() },
        ],
    );
    prompt.model = Some(ModelRef::new("x", "x"));
    prompt.agent = Some("x".into());
    prompt.system = Some("x".into());
    prompt.variant = Some("x".into());
    let metadata: Extra = [("x".to_owned(), json!(1))].into_iter().collect();
    let actions = [PermissionAction::Allow, PermissionAction::Deny, PermissionAction::Ask];
    let create = CreateSession {
        parent_id: Some(SessionId::new("ses_1")),
        title: Some("x".into()),
        metadata: metadata.clone(),
        permission: actions.map(|action| PermissionRule::new("x", "x", action)).into(),
    };
    let update = UpdateSession { title: Some("x".into()), metadata: Some(metadata) };
    check(&document, routes::PROMPT_ASYNC, &prompt);
    check(&document, routes::CREATE_SESSION, &create);
    check(&document, routes::UPDATE_SESSION, &update);
    for reply in [PermissionReply::Once, PermissionReply::Always, PermissionReply::Reject] {
        check(&document, routes::REPLY_PERMISSION, &json!({ "reply": reply, "message": "x" }));
        check(&document, routes::REPLY_PERMISSION_OLD, &json!({ "response": reply }));
    }
    let answers: Vec<QuestionAnswer> = vec![vec!["x".to_owned()]];
    check(&document, routes::REPLY_QUESTION, &json!({ "answers": answers }));
    let wrong = document.objections(document.body(routes::REPLY_PERMISSION), &json!({ "reply": "perhaps" }));
    assert!(!wrong.is_empty(), "the check can fail");
}

/// The fields of a type, by their Rust names; `extra` holds what is unknown.
fn fields_of<T: Default + Debug>() -> BTreeSet<String> {
    let text = format!("{:#?}", T::default());
    let fields = text.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    let names = fields.filter_map(|line| line.trim().split_once(':')).map(|(name, _)| name.to_owned());
    names.filter(|name| name != "extra").collect()
}

/// Decodes a sample of each schema. Fails if a field of the type is in none of them; returns the fields that are new.
fn compare<T: Default + Debug + DeserializeOwned>(
    document: &Document,
    schemas: &[&Value],
    head: &[&str],
    extra: impl Fn(&T) -> &Extra,
) -> BTreeSet<String> {
    let (mut known, mut new) = (BTreeSet::new(), BTreeSet::new());
    for schema in schemas.iter().flat_map(|schema| document.variants(schema)) {
        let mut sample: Map<String, Value> = serde_json::from_value(document.sample(schema, 9)).unwrap();
        sample.retain(|name, _| !head.contains(&name.as_str()));
        let value: T = serde_json::from_value(Value::Object(sample.clone())).unwrap();
        let (unknown, used): (Vec<_>, Vec<_>) =
            sample.into_iter().partition(|(name, _)| extra(&value).contains_key(name));
        known.extend(used.into_iter().map(|(name, _)| name));
        new.extend(unknown.into_iter().map(|(name, _)| name));
    }
    let fields = fields_of::<T>();
    assert_eq!(known.len(), fields.len(), "{}: {fields:?} but {known:?}", std::any::type_name::<T>());
    new
}

#[test]
fn every_field_that_is_read_exists_and_new_ones_are_listed() {
    let document = Document::load();
    let mut report = String::new();
    macro_rules! compare_all {
        ($($type:ident = $($schema:literal)|+ $(. $field:literal)* $(- $head:expr)?;)*) => {$(
            let schemas = [$(document.schema($schema),)+];
            $(let schemas = schemas.map(|schema| document.resolve(&document.resolve(schema)["properties"][$field]));)*
            let head: &[&str] = [$($head,)? &[]][0];
            let new = compare(&document, &schemas, head, |value: &wire::$type| &value.extra);
            if !new.is_empty() {
                writeln!(report, "{}: {}", stringify!($type), Vec::from_iter(new).join(" ")).unwrap();
            }
        )*};
    }
    let part = &["id", "sessionID", "messageID", "type"][..];
    let role = &["role"][..];
    compare_all! {
        SessionInfo = "Session";
        SessionTime = "Session"."time";
        SessionModel = "Session"."model";
        UserMessage = "UserMessage" - role;
        AssistantMessage = "AssistantMessage" - role;
        MessageTime = "AssistantMessage"."time";
        Tokens = "AssistantMessage"."tokens";
        TokenCache = "AssistantMessage"."tokens"."cache";
        MessageError = "APIError" | "MessageAbortedError" | "ContextOverflowError";
        TextPart = "TextPart" - part;
        ReasoningPart = "ReasoningPart" - part;
        PartTime = "ReasoningPart"."time";
        ToolPart = "ToolPart" - part;
        ToolState = "ToolStatePending" | "ToolStateRunning" | "ToolStateCompleted" | "ToolStateError";
        ToolTime = "ToolStateCompleted"."time";
        FilePart = "FilePart" - part;
        StepStartPart = "StepStartPart" - part;
        StepFinishPart = "StepFinishPart" - part;
        SnapshotPart = "SnapshotPart" - part;
        PatchPart = "PatchPart" - part;
        AgentPart = "AgentPart" - part;
        SubtaskPart = "SubtaskPart" - part;
        CompactionPart = "CompactionPart" - part;
        RetryPart = "RetryPart" - part;
        PermissionRequest = "PermissionRequest";
        QuestionRequest = "QuestionRequest";
        Question = "QuestionInfo";
        QuestionOption = "QuestionOption";
        ToolReference = "QuestionTool";
        ConfigInfo = "Config";
        ProviderInfo = "Provider";
        ModelInfo = "Model";
    }
    let answer = |operation: Operation| {
        let operation = document.operation(operation.method, operation.path);
        document.resolve(&operation["responses"]["200"]["content"]["application/json"]["schema"])
    };
    let health = compare(&document, &[answer(routes::HEALTH)], &[], |value: &Health| &value.extra);
    let providers =
        compare(&document, &[answer(routes::PROVIDERS)], &[], |value: &ProviderList| &value.extra);
    assert!(health.is_empty() && providers.is_empty());
    expect![[r"
        SessionInfo: cost path permission projectID revert share slug summary tokens workspaceID
        SessionTime: archived compacting
        SessionModel: variant
        UserMessage: format summary system tools
        AssistantMessage: agent path structured variant
        CompactionPart: tail_start_id
        RetryPart: time
        Question: custom multiple
        ProviderInfo: env key options source
        ModelInfo: api capabilities cost family headers limit options providerID release_date status variants
    "]]
    .assert_eq(&report);
}

/// The first enum value of a field: what a union is told apart by.
fn tag<'a>(schema: &'a Value, field: &str) -> &'a str {
    schema["properties"][field]["enum"][0].as_str().unwrap_or_default()
}

#[test]
fn every_kind_of_event_that_is_understood_exists_and_new_ones_are_listed() {
    let document = Document::load();
    let mut unknown = Vec::new();
    let mut known = Vec::new();
    for schema in document.variants(document.schema("Event")) {
        let kind = tag(schema, "type");
        let event = ServerEvent::from_json(&document.sample(schema, 9).to_string());
        match event.unwrap_or_else(|error| panic!("{kind}: {error:?}")).payload {
            EventPayload::Unknown { .. } => unknown.push(kind),
            _ => known.push(kind),
        }
    }
    known.sort_unstable();
    unknown.retain(|kind| !kind.starts_with("session.next."));
    unknown.sort_unstable();
    expect![[r"
        command.executed
        file.edited
        file.watcher.updated
        lsp.updated
        mcp.browser.open.failed
        mcp.tools.changed
        message.part.delta
        message.part.removed
        message.part.updated
        message.removed
        message.updated
        permission.asked
        permission.replied
        project.updated
        pty.created
        pty.deleted
        pty.exited
        pty.updated
        question.asked
        question.rejected
        question.replied
        server.connected
        server.instance.disposed
        session.compacted
        session.created
        session.deleted
        session.diff
        session.error
        session.idle
        session.status
        session.updated
        todo.updated
        vcs.branch.updated
        worktree.failed
        worktree.ready"]]
    .assert_eq(&known.join("\n"));
    expect![[r"
        catalog.updated
        global.disposed
        installation.update-available
        installation.updated
        integration.connection.updated
        integration.updated
        models-dev.refreshed
        permission.v2.asked
        permission.v2.replied
        plugin.added
        project.directories.updated
        question.v2.asked
        question.v2.rejected
        question.v2.replied
        reference.updated
        tui.command.execute
        tui.prompt.append
        tui.session.select
        tui.toast.show
        workspace.failed
        workspace.ready
        workspace.status"]]
    .assert_eq(&unknown.join("\n"));
}

#[test]
fn every_kind_of_part_message_and_status_is_understood() {
    let document = Document::load();
    for schema in document.variants(document.schema("Part")) {
        let part = Part::from_json(&document.sample(schema, 9).to_string()).unwrap();
        assert!(!matches!(part.body, PartBody::Unknown(_)), "{part:?}");
    }
    for schema in document.variants(document.schema("Message")) {
        let message = MessageInfo::from_json(&document.sample(schema, 9).to_string()).unwrap();
        assert!(!matches!(message, MessageInfo::Unknown(_)), "{message:?}");
    }
    for schema in document.variants(document.schema("SessionStatus")) {
        let status = SessionStatus::from_json(&document.sample(schema, 9).to_string()).unwrap();
        assert!(!matches!(status, SessionStatus::Unknown(_)), "{status:?}");
    }
    for schema in document.variants(document.schema("ToolState")) {
        let state: ToolState = serde_json::from_value(document.sample(schema, 9)).unwrap();
        assert!(!matches!(state.status, ToolStatus::Unknown(_)), "{state:?}");
    }
}

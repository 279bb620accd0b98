//! Writes the part of a server's own `OpenAPI` document that this crate relies on to `fixtures/openapi.json`:
//! `OPENCODE_BIN=… cargo run -p opencode-conductor-tools --bin refresh_openapi`.
//!
//! A test compares the routes and types of this crate with it. After a refresh its failures and its changed lists tell what
//! is gone and what is new.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    process::ExitCode,
};

use clap::Parser;
use opencode_conductor::{LaunchOptions, Method, OpenCodeServer, RawRequest};
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
};
use serde_json::{Map, Value, json};

/// Routes that are kept: all that start like this.
const ROUTES: [&str; 8] = [
    "/session",
    "/permission",
    "/question",
    "/config",
    "/agent",
    "/event",
    "/global/health",
    "/instance/dispose",
];

/// Events of which more than the name is kept.
const EVENTS: [&str; 14] = [
    "message.",
    "session.",
    "permission.",
    "question.",
    "server.",
    "command.",
    "file.",
    "lsp.",
    "mcp.",
    "project.updated",
    "pty.",
    "todo.",
    "vcs.",
    "worktree.",
];
const NOT_EVENTS: [&str; 3] = ["session.next.", "permission.v2.", "question.v2."];

/// Large schemas of which a few fields are kept.
const FIELDS: [(&str, &[&str]); 1] = [("Config", &["default_agent", "model"])];

/// What says nothing about the shape.
const WORDS: [&str; 8] =
    ["deprecated", "description", "examples", "operationId", "security", "summary", "tags", "x-codeSamples"];

/// Writes what this crate relies on of a server's own description of its API to fixtures/openapi.json. Starts the server that `OPENCODE_BIN`
/// names, or the `opencode` on the PATH.
#[derive(Debug, Parser)]
#[command(name = "refresh_openapi")]
struct Arguments {}

#[tokio::main]
async fn main() -> ExitCode {
    match command_line::parse("refresh_openapi") {
        Ok(Arguments {}) => {
            let refreshed = refresh().await.map(|()| ExitCode::SUCCESS);
            failure::exit(
                "refresh_openapi",
                refreshed.map_err(|error| Failure::because("not refreshed", &*error)),
            )
        }
        Err(status) => status,
    }
}

async fn refresh() -> Result<(), Box<dyn Error>> {
    let server = OpenCodeServer::launch(LaunchOptions::new()).await?;
    let document = server.client().raw(RawRequest::new(Method::Get, "/doc")).await?.json()?;
    let version = server.client().health().await?.version;
    server.shutdown().await;

    let trimmed = trim(document, &version);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/openapi.json");
    fs::write(path, serde_json::to_string_pretty(&trimmed)? + "\n")?;
    println!("wrote {path} from {version}");
    Ok(())
}

fn trim(mut document: Value, version: &str) -> Value {
    drop_words(&mut document, false);
    let mut paths = Map::new();
    for (path, mut operations) in object(document["paths"].take()) {
        if !ROUTES.iter().any(|route| path == *route || path.starts_with(&format!("{route}/"))) {
            continue;
        }
        for operation in operations.as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(responses) = operation["responses"].as_object_mut() {
                responses.retain(|status, _| status.starts_with('2'));
            }
        }
        paths.insert(path, operations);
    }
    let mut schemas = object(document["components"]["schemas"].take());
    for (name, fields) in FIELDS {
        if let Some(properties) =
            schemas.get_mut(name).and_then(|schema| schema["properties"].as_object_mut())
        {
            properties.retain(|field, _| fields.contains(&field.as_str()));
        }
    }
    let event_schemas: Vec<String> = references(&schemas["Event"]).into_iter().collect();
    for name in event_schemas {
        let kind = schemas[&name]["properties"]["type"].clone();
        let text = kind["enum"][0].as_str().unwrap_or_default();
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
        if !starts(&EVENTS) || starts(&NOT_EVENTS) {
            schemas.insert(name, json!({ "type": "object", "properties": { "type": kind } }));
        }
    }
    let mut kept = BTreeMap::new();
    let mut wanted: Vec<String> = references(&Value::Object(paths.clone())).into_iter().collect();
    while let Some(name) = wanted.pop() {
        if let Some(schema) = schemas.get(&name)
            && !kept.contains_key(&name)
        {
            wanted.extend(references(schema));
            kept.insert(name, schema.clone());
        }
    }
    json!({
        "openapi": document["openapi"],
        "info": { "title": "the part of OpenCode's API that this crate relies on", "version": version },
        "paths": paths,
        "components": { "schemas": kept },
    })
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(object) = value { object } else { Map::new() }
}

/// Removes prose. Under `properties` every key is a field's name and stays.
fn drop_words(value: &mut Value, names: bool) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| names || !WORDS.contains(&key.as_str()));
            for (key, value) in object {
                drop_words(value, key == "properties" && !names);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_words(item, false)),
        _ => {}
    }
}

/// The schemas that are named in a schema.
fn references(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(object) => {
            let named = object.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            object.values().flat_map(references).chain(named.map(str::to_owned)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => BTreeSet::new(),
    }
}

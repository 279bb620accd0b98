//! Permissions and questions: the same request in Claude Code, two kinds of decision for the manager.

use serde_json::{Map, Value, json};

use super::{
    SessionMirror,
    wire::{ControlRequest, HostRequest, ToolPermission},
};
use crate::{
    agent::{Ask, Decision, Permission, Question, QuestionOption, Subject},
    ids::{AgentId, CallId, RequestId, SessionId},
};

/// The tool by which the model asks the user.
const QUESTION_TOOL: &str = "AskUserQuestion";

/// What a request wants to know; nothing if it is not understood. The mirror says which subagents are above the one that asks.
pub(super) fn ask(request: &ControlRequest, root: &SessionId, mirror: &SessionMirror) -> Option<Ask> {
    let HostRequest::CanUseTool(tool) = &request.request else { return None };
    let session = |agent: &AgentId| SessionId::new(agent.as_str());
    let asker = tool.agent_id.as_ref().map_or_else(|| root.clone(), session);
    let subject = if tool.tool_name == QUESTION_TOOL {
        Subject::questions(questions(&tool.input))
    } else {
        Subject::Permission(permission(tool))
    };
    let mut ask = Ask::new(request.request_id.clone(), asker, root.clone(), subject);
    if let Some(agent) = &tool.agent_id {
        ask.path.splice(1..1, mirror.above(agent).iter().map(session));
    }
    Some(ask)
}

fn permission(tool: &ToolPermission) -> Permission {
    let argument = |name: &str| tool.input.get(name).and_then(Value::as_str).map(str::to_owned);
    let wanted = ["command", "file_path", "notebook_path", "path", "url", "query", "skill"];
    let pattern = wanted.into_iter().find_map(argument).or_else(|| tool.description.clone());
    let mut permission = Permission::new(tool.tool_name.as_str(), pattern.into_iter().collect());
    permission.always = tool.permission_suggestions.iter().flat_map(rules).collect();
    permission.metadata = Map::from_iter([("input".to_owned(), tool.input.clone())]);
    if let Some(description) = &tool.description {
        permission.metadata.insert("description".to_owned(), description.as_str().into());
    }
    permission.call_id = tool.tool_use_id.as_ref().map(|call| CallId::new(call.as_str()));
    permission
}

/// What a suggestion would allow, in words such as `Bash(touch x)`.
fn rules(suggestion: &Value) -> Vec<String> {
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let list = |name: &str| suggestion.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let rules = list("rules").into_iter().filter_map(|rule| {
        let tool = text(&rule, "toolName")?;
        Some(text(&rule, "ruleContent").map_or_else(|| tool.clone(), |content| format!("{tool}({content})")))
    });
    let directories = list("directories").into_iter().filter_map(|path| path.as_str().map(str::to_owned));
    rules.chain(directories).chain(text(suggestion, "mode")).collect()
}

fn questions(input: &Value) -> Vec<Question> {
    let text = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
    };
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let question = |value: &Value| {
        let mut question = Question::new(text(value, "question"));
        question.header = text(value, "header");
        question.multiple = value.get("multiSelect").and_then(Value::as_bool).unwrap_or(false);
        let option = |value: &Value| QuestionOption::new(text(value, "label"), text(value, "description"));
        question.options = list(value, "options").iter().map(option).collect();
        question
    };
    list(input, "questions").iter().map(question).collect()
}

/// The line that answers a request.
pub(super) fn answer(request: &ControlRequest, ask: &Ask, decision: &Decision) -> String {
    let HostRequest::CanUseTool(tool) = &request.request else { return refuse(&request.request_id) };
    let response = match decision {
        Decision::AllowOnce => json!({"behavior": "allow", "updatedInput": tool.input}),
        Decision::AllowAlways => json!({
            "behavior": "allow", "updatedInput": tool.input, "updatedPermissions": tool.permission_suggestions,
        }),
        Decision::Reject(reason) => json!({"behavior": "deny", "message": reason}),
        Decision::FailTurn => {
            json!({"behavior": "deny", "message": "The policy in force ends the turn here.", "interrupt": true})
        }
        Decision::Answer(answers) => {
            let named = ask.questions().iter().zip(answers);
            let answers: Map<String, Value> = named
                .map(|(question, answer)| (question.question.clone(), answer.join(", ").into()))
                .collect();
            let mut input = tool.input.as_object().cloned().unwrap_or_default();
            input.insert("answers".to_owned(), answers.into());
            json!({"behavior": "allow", "updatedInput": input})
        }
    };
    respond(&json!({"subtype": "success", "request_id": request.request_id, "response": response}))
}

/// The line that answers a request which is not understood.
pub(super) fn refuse(request: &RequestId) -> String {
    respond(
        &json!({"subtype": "error", "request_id": request, "error": "this host does not know such requests"}),
    )
}

/// The line that interrupts the running turn.
pub(super) fn interrupt(request: &RequestId) -> String {
    json!({"type": "control_request", "request_id": request, "request": {"subtype": "interrupt"}}).to_string()
}

fn respond(response: &Value) -> String {
    json!({"type": "control_response", "response": response}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tool: Value) -> ControlRequest {
        let mut body = tool;
        body["subtype"] = "can_use_tool".into();
        serde_json::from_str(&json!({"request_id": "r1", "request": body}).to_string()).unwrap()
    }

    fn response(line: &str) -> Value {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["type"], &line["response"]["request_id"]),
            (&json!("control_response"), &json!("r1"))
        );
        line["response"]["response"].clone()
    }

    #[test]
    fn permissions_are_asked_and_answered() {
        let request = request(json!({
            "tool_name": "Bash", "input": {"command": "touch x"}, "description": "Make", "agent_id": "a1",
            "tool_use_id": "toolu_1",
            "permission_suggestions": [{"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch x"}]},
                {"type": "setMode", "mode": "acceptEdits"}],
        }));
        let ask = ask(&request, &"s".into(), &SessionMirror::default()).unwrap();
        let wanted = ask.permission().unwrap();
        assert_eq!((wanted.permission.as_str(), wanted.patterns.join(" ")), ("Bash", "touch x".to_owned()));
        assert_eq!(wanted.always, ["Bash(touch x)", "acceptEdits"]);
        assert_eq!((ask.session_id.as_str(), ask.root.as_str(), ask.path.len()), ("a1", "s", 2));
        let answered = |decision| response(&answer(&request, &ask, &decision));
        assert_eq!(
            answered(Decision::AllowOnce),
            json!({"behavior": "allow", "updatedInput": {"command": "touch x"}})
        );
        assert_eq!(answered(Decision::AllowAlways)["updatedPermissions"].as_array().unwrap().len(), 2);
        assert_eq!(answered(Decision::Reject("no".to_owned())), json!({"behavior": "deny", "message": "no"}));
        assert_eq!(answered(Decision::FailTurn)["interrupt"], true);
    }

    #[test]
    fn questions_are_asked_and_answered() {
        let asked = json!([{"question": "Which?", "header": "Pick", "multiSelect": true,
            "options": [{"label": "A", "description": "a"}, {"label": "B"}]}]);
        let request = request(json!({"tool_name": "AskUserQuestion", "input": {"questions": asked}}));
        let ask = ask(&request, &"s".into(), &SessionMirror::default()).unwrap();
        let [question] = ask.questions() else { panic!("one question") };
        assert_eq!((question.question.as_str(), question.options.len()), ("Which?", 2));
        assert!(question.multiple);
        let decision = Decision::Answer(vec![vec!["A".to_owned(), "B".to_owned()]]);
        let answered = response(&answer(&request, &ask, &decision));
        assert_eq!(answered["updatedInput"], json!({"questions": asked, "answers": {"Which?": "A, B"}}));
    }
}

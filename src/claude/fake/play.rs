//! How the fake plays a script: the lines that it prints and writes, in the order of Claude Code 2.1.325.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    fault::ClaudeMoment,
    process::{FakeProcess, Halt},
    script::{ClaudeScript, ClaudeStep, ClaudeTool},
    shim::End,
};
use crate::claude::agent::uuid;

const MODEL: &str = "claude-fake-1";
/// What a message costs: every one the same.
const COST: f64 = 0.01;

/// A turn that is being played.
struct Turn<'a> {
    process: &'a FakeProcess,
    /// The prompt; nothing for a turn that begins by itself.
    prompt: Option<&'a str>,
    last_text: String,
    /// Subagents that go on after the turn.
    background: Vec<(String, String, ClaudeScript)>,
    is_called: bool,
    /// What the provider answered instead of a message.
    failure: Option<(u16, String)>,
}

/// Whose messages are played.
#[derive(Clone, Copy)]
struct Thread<'a> {
    /// The subagent, and the call that started it.
    subagent: Option<(&'a str, &'a str)>,
}

/// Serves prompts until standard input is at its end.
pub(super) async fn serve(
    process: &FakeProcess,
    is_resumed: bool,
    mut prompts: mpsc::UnboundedReceiver<Value>,
) -> Halt {
    let exit = |status, words: String| Halt::End(End::Exit(status, words));
    let session = &process.session;
    let (exists, has_messages) = process.world.knows(session, &process.directory);
    match (is_resumed, exists, has_messages) {
        (true, _, false) => {
            let words = format!("No conversation found with session ID: {session}");
            process.say(json!({"type": "result", "subtype": "error_during_execution", "is_error": true,
                "num_turns": 0, "total_cost_usd": 0, "errors": [words]}));
            return exit(1, format!("{words}\n"));
        }
        (false, true, _) => return exit(1, format!("Error: Session ID {session} is already in use.\n")),
        (true, _, true) | (false, false, _) => {}
    }
    if let Err(halt) = process.at(ClaudeMoment::Start).await {
        return halt;
    }
    let mut status = 0;
    while let Some(prompt) = prompts.recv().await {
        if prompt.is_null() {
            break;
        }
        match take_prompt(process, &prompt).await {
            Ok(has_failed) => status = u8::from(has_failed),
            Err(halt) => return halt,
        }
    }
    let spent = json!({"type": "cost-state", "sessionId": session, "totalCostUSD": process.cost()});
    process.write(None, &[spent]);
    exit(status, String::new())
}

/// Answers a prompt; says whether that failed.
async fn take_prompt(process: &FakeProcess, line: &Value) -> Result<bool, Halt> {
    let id = line["uuid"].as_str().unwrap_or_default();
    if process.world.is_answered(&process.session, &process.directory, id) {
        let mut replay = line.clone();
        replay["isReplay"] = true.into();
        process.say(replay);
        process.say(json!({"type": "system", "subtype": "session_state_changed", "state": "idle"}));
        return Ok(false);
    }
    process.begin_turn();
    let script = ClaudeScript::of(line["message"]["content"][0]["text"].as_str().unwrap_or_default());
    process.say(json!({"type": "system", "subtype": "session_state_changed", "state": "running"}));
    for state in ["queued", "started"] {
        process.say(json!({"type": "command_lifecycle", "command_uuid": id, "state": state}));
    }
    let mut turn = Turn::new(process, Some(id));
    turn.begin();
    let mut replay = line.clone();
    replay["isReplay"] = true.into();
    let played = match process.at(ClaudeMoment::Taken).await {
        Ok(()) => {
            replay["timestamp"] = process.world.now().into();
            turn.take(replay);
            turn.play(&script.messages).await
        }
        Err(halt) => Err(halt),
    };
    let has_failed = turn.end(played).await?;
    let state = if has_failed { "cancelled" } else { "completed" };
    process.say(json!({"type": "command_lifecycle", "command_uuid": id, "state": state}));
    for (agent, call, script) in std::mem::take(&mut turn.background) {
        turn.follow_up(&agent, &call, &script).await?;
    }
    if !script.after.is_empty() {
        let mut after = Turn::new(process, None);
        after.begin();
        let played = after.play(&script.after).await;
        after.end(played).await?;
    }
    process.say(json!({"type": "system", "subtype": "session_state_changed", "state": "idle"}));
    Ok(has_failed)
}

impl<'a> Turn<'a> {
    fn new(process: &'a FakeProcess, prompt: Option<&'a str>) -> Self {
        let (last_text, background) = (String::new(), Vec::new());
        Self { process, prompt, last_text, background, is_called: false, failure: None }
    }

    fn begin(&self) {
        let process = self.process;
        process.say(json!({"type": "system", "subtype": "init", "cwd": process.directory, "model": MODEL,
            "permissionMode": "default", "claude_code_version": "2.1.325", "tools": ["Bash", "Agent"]}));
        process.say(json!({"type": "system", "subtype": "status", "status": "requesting"}));
    }

    /// The prompt becomes part of the conversation.
    fn take(&self, replay: Value) {
        let line = json!({"type": "user", "message": replay["message"], "uuid": replay["uuid"],
            "timestamp": replay["timestamp"]});
        self.process.say(replay);
        self.write(Thread { subagent: None }, vec![line]);
    }

    fn write(&self, thread: Thread<'_>, mut lines: Vec<Value>) {
        let process = self.process;
        for line in &mut lines {
            line["sessionId"] = process.session.as_str().into();
            line["cwd"] = process.directory.as_str().into();
            line["version"] = "2.1.325".into();
            line["parentUuid"] = process.world.parent(&process.session, line["uuid"].as_str()).into();
            line["isSidechain"] = thread.subagent.is_some().into();
            if let Some((agent, _)) = thread.subagent {
                line["agentId"] = agent.into();
            }
        }
        process.write(thread.subagent.map(|(agent, _)| agent), &lines);
    }

    async fn play(&mut self, messages: &[Vec<ClaudeStep>]) -> Result<(), Halt> {
        for message in messages {
            self.message(Thread { subagent: None }, message).await?;
        }
        Ok(())
    }

    /// One message of the model, and the tools that it calls.
    async fn message(&mut self, thread: Thread<'_>, steps: &[ClaudeStep]) -> Result<(), Halt> {
        let id = format!("msg_{}", uuid().replace('-', ""));
        let process = self.process;
        if thread.subagent.is_none() && !self.is_called {
            self.is_called = true;
            if let Some(prompt) = self.prompt {
                process.world.called_for(prompt);
            }
        }
        let calls = steps.iter().any(|step| matches!(step, ClaudeStep::Tool(_)));
        let stop = if calls { "tool_use" } else { "end_turn" };
        let is_message = !matches!(
            steps.first(),
            Some(ClaudeStep::Error(..) | ClaudeStep::LoggedOut | ClaudeStep::NoSuchModel)
        );
        if is_message {
            self.event(thread, &json!({"type": "message_start", "message": {"id": id, "type": "message",
                "role": "assistant", "model": MODEL, "content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}}));
            process.at(ClaudeMoment::Started).await?;
        }
        let mut lines = Vec::new();
        let mut tools = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let block = match step {
                ClaudeStep::Gate(gate) => {
                    process.stand_at(gate).await?;
                    continue;
                }
                ClaudeStep::Error(status, words) => {
                    self.fail(thread, *status, words, "unknown");
                    return Ok(());
                }
                ClaudeStep::LoggedOut => {
                    self.fail(thread, 0, "Not logged in · Please run /login", "authentication_failed");
                    return Ok(());
                }
                ClaudeStep::NoSuchModel => {
                    let words = "There's an issue with the selected model. It may not exist or you may not have access to it. Run \
                                 --model to pick a different model.";
                    self.fail(thread, 0, words, "model_not_found");
                    return Ok(());
                }
                ClaudeStep::Thinking(text) => {
                    json!({"type": "thinking", "thinking": text, "signature": "c2ln"})
                }
                ClaudeStep::Text(text) => json!({"type": "text", "text": text}),
                ClaudeStep::Tool(tool) => {
                    let call = format!("toolu_{}", uuid().replace('-', ""));
                    tools.push((call.clone(), tool));
                    json!({"type": "tool_use", "id": call, "name": tool.name, "input": tool.input})
                }
            };
            self.block(thread, index, step, &block).await?;
            let line = self.assistant(thread, &id, &block, index);
            process.say(line.0);
            lines.push(line.1);
            self.event(thread, &json!({"type": "content_block_stop", "index": index}));
        }
        let usage = json!({"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 0});
        for line in &mut lines {
            line["message"]["usage"] = usage.clone();
            line["message"]["stop_reason"] = stop.into();
        }
        if is_message {
            self.event(
                thread,
                &json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}),
            );
            self.event(thread, &json!({"type": "message_stop"}));
            process.spend(COST);
        }
        self.write(thread, lines);
        for (call, tool) in tools {
            Box::pin(self.tool(thread, &call, tool)).await?;
        }
        Ok(())
    }

    /// A block while it is written.
    async fn block(
        &mut self,
        thread: Thread<'_>,
        index: usize,
        step: &ClaudeStep,
        block: &Value,
    ) -> Result<(), Halt> {
        let (empty, kind, field, text) = match step {
            ClaudeStep::Thinking(text) => {
                (json!({"type": "thinking", "thinking": ""}), "thinking_delta", "thinking", text)
            }
            ClaudeStep::Text(text) => (json!({"type": "text", "text": ""}), "text_delta", "text", text),
            _ => {
                let mut empty = block.clone();
                empty["input"] = json!({});
                self.event(
                    thread,
                    &json!({"type": "content_block_start", "index": index, "content_block": empty}),
                );
                return Ok(());
            }
        };
        self.event(thread, &json!({"type": "content_block_start", "index": index, "content_block": empty}));
        let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
        let (first, rest) = text.split_at(half);
        self.event(
            thread,
            &json!({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: first}}),
        );
        self.process.at(ClaudeMoment::Streaming).await?;
        self.process.unless_interrupted(std::future::ready(())).await?;
        self.event(
            thread,
            &json!({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: rest}}),
        );
        if thread.subagent.is_none() && kind == "text_delta" {
            self.last_text.clone_from(text);
        }
        Ok(())
    }

    /// A piece of a message; those of subagents are not told.
    fn event(&self, thread: Thread<'_>, event: &Value) {
        if thread.subagent.is_none() {
            self.process.say(json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
        }
    }

    /// A line of the model's side, as it is printed and as it is written.
    fn assistant(&self, thread: Thread<'_>, id: &str, block: &Value, index: usize) -> (Value, Value) {
        let message = json!({"id": id, "type": "message", "role": "assistant", "model": MODEL, "content": [block],
            "stop_reason": null, "usage": {"input_tokens": 10, "output_tokens": 1}});
        let written = json!({"type": "assistant", "message": message, "uuid": uuid(),
            "timestamp": self.process.world.now(), "apiBlockIndex": index});
        (printed(thread, &written), written)
    }

    /// A line of the user's side that the turn brings.
    fn user(&self, thread: Thread<'_>, content: &Value, result: Value) {
        let mut written = json!({"type": "user", "message": {"role": "user", "content": content}, "uuid": uuid(),
            "timestamp": self.process.world.now()});
        let mut said = printed(thread, &written);
        if !result.is_null() {
            written["toolUseResult"] = result.clone();
            said["tool_use_result"] = result;
        }
        self.process.say(said);
        self.write(thread, vec![written]);
    }

    fn fail(&mut self, thread: Thread<'_>, status: u16, words: &str, error: &str) {
        let words = if status == 0 { words.to_owned() } else { format!("API Error: {status} {words}") };
        let block = json!({"type": "text", "text": words});
        let (mut said, mut written) = self.assistant(thread, &uuid(), &block, 0);
        for line in [&mut said, &mut written] {
            line["message"]["model"] = "<synthetic>".into();
            line["message"]["stop_reason"] = "stop_sequence".into();
            line["error"] = error.into();
        }
        written["isApiErrorMessage"] = true.into();
        self.process.say(said);
        self.write(thread, vec![written]);
        self.failure = Some((status, words));
    }

    async fn tool(&mut self, thread: Thread<'_>, call: &str, tool: &ClaudeTool) -> Result<(), Halt> {
        let process = self.process;
        let mut output = tool.output.clone();
        let mut is_error = false;
        if tool.asks {
            match self.ask(thread, call, tool).await? {
                Ok(words) => output = words.unwrap_or(output),
                Err(words) => (output, is_error) = (words, true),
            }
        }
        let mut result = json!({"stdout": output, "stderr": "", "interrupted": false});
        if let (Some(script), false) = (&tool.subagent, is_error) {
            let agent = format!("a{}", &uuid().replace('-', "")[..16]);
            self.started(&agent, call, tool);
            let status = if tool.in_background { "async_launched" } else { "completed" };
            result = json!({"agentId": agent, "status": status, "prompt": tool.input["prompt"]});
            if tool.in_background {
                output = format!("Async agent launched successfully. agentId: {agent}");
                self.background.push((agent, call.to_owned(), script.clone()));
            } else {
                output = self.subagent(&agent, call, script).await?;
                self.notified(&agent, call, &output);
            }
        } else if !is_error {
            process.at(ClaudeMoment::Tool).await?;
            if let Some(gate) = &tool.gate {
                process.stand_at(gate).await?;
            }
        }
        let block =
            json!([{"type": "tool_result", "tool_use_id": call, "content": output, "is_error": is_error}]);
        self.user(thread, &block, result);
        Ok(())
    }

    /// Asks for permission: what the tool is told besides, or why it may not run.
    async fn ask(
        &self,
        thread: Thread<'_>,
        call: &str,
        tool: &ClaudeTool,
    ) -> Result<Result<Option<String>, String>, Halt> {
        let process = self.process;
        let request = uuid();
        let state = |state| json!({"type": "system", "subtype": "session_state_changed", "state": state});
        process.say(state("requires_action"));
        let mut body = json!({"subtype": "can_use_tool", "tool_name": tool.name, "display_name": tool.name,
            "input": tool.input, "tool_use_id": call, "permission_suggestions": [{"type": "addRules",
                "rules": [{"toolName": tool.name}], "behavior": "allow", "destination": "session"}]});
        if let Some((agent, _)) = thread.subagent {
            body["agent_id"] = agent.into();
        }
        process.close_input_at(ClaudeMoment::Ask).await;
        process.say(json!({"type": "control_request", "request_id": request, "request": body}));
        process.at(ClaudeMoment::Ask).await?;
        let answer = process.unless_interrupted(process.answer(&request)).await;
        let answer = match answer {
            Err(halt) => {
                process.say(json!({"type": "control_cancel_request", "request_id": request}));
                return Err(halt);
            }
            Ok(None) => return Ok(Err("Tool permission stream closed before response received".to_owned())),
            Ok(Some(answer)) => answer,
        };
        process.say(state("running"));
        if answer["behavior"] == "allow" {
            let answers = &answer["updatedInput"]["answers"];
            return Ok(Ok(answers
                .is_object()
                .then(|| format!("Your questions have been answered: {answers}"))));
        }
        if answer["interrupt"] == true {
            return Err(Halt::Interrupted);
        }
        Ok(Err(answer["message"].as_str().unwrap_or_default().to_owned()))
    }

    fn started(&self, agent: &str, call: &str, tool: &ClaudeTool) {
        if tool.in_background {
            self.process.say(json!({"type": "system", "subtype": "background_tasks_changed",
                "tasks": [{"task_id": agent, "task_type": "local_agent"}]}));
        }
        self.process.say(json!({"type": "system", "subtype": "task_started", "task_id": agent, "tool_use_id": call,
            "task_type": "local_agent", "is_backgrounded": tool.in_background, "prompt": tool.input["prompt"]}));
        self.process.world.describe_subagent(self.process, agent, call);
    }

    fn notified(&self, agent: &str, call: &str, summary: &str) {
        self.process.say(json!({"type": "system", "subtype": "task_notification", "task_id": agent,
            "tool_use_id": call, "status": "completed", "summary": summary}));
    }

    /// Plays a subagent; what it said last is its answer.
    async fn subagent(&mut self, agent: &str, call: &str, script: &ClaudeScript) -> Result<String, Halt> {
        let thread = Thread { subagent: Some((agent, call)) };
        let prompt = json!([{"type": "text", "text": script.prompt("do your part")}]);
        self.user(thread, &prompt, Value::Null);
        self.process.at(ClaudeMoment::Subagent).await?;
        let mut answer = String::new();
        for message in &script.messages {
            Box::pin(self.message(thread, message)).await?;
            for step in message {
                if let ClaudeStep::Text(text) = step {
                    answer.clone_from(text);
                }
            }
        }
        Ok(answer)
    }

    /// A subagent in the background, once the turn is over.
    async fn follow_up(&mut self, agent: &str, call: &str, script: &ClaudeScript) -> Result<(), Halt> {
        let answer = match self.subagent(agent, call, script).await {
            Ok(answer) => answer,
            Err(Halt::Interrupted) => String::new(),
            Err(halt) => return Err(halt),
        };
        self.notified(agent, call, &answer);
        self.process.say(json!({"type": "system", "subtype": "background_tasks_changed", "tasks": []}));
        Ok(())
    }

    /// The result of a turn; says whether it failed.
    async fn end(&mut self, played: Result<(), Halt>) -> Result<bool, Halt> {
        let main = Thread { subagent: None };
        let interrupted = match played {
            Ok(()) => false,
            Err(Halt::Interrupted) => true,
            Err(halt) => return Err(halt),
        };
        let failure = self.failure.take();
        let mut result = json!({"type": "result", "subtype": "success", "is_error": failure.is_some(), "num_turns": 1,
            "result": self.last_text, "terminal_reason": "completed", "permission_denials": [],
            "total_cost_usd": self.process.cost(),
            "usage": {"input_tokens": 10, "output_tokens": 20}});
        if interrupted {
            let words = json!([{"type": "text", "text": "[Request interrupted by user]"}]);
            self.user(main, &words, Value::Null);
            result["subtype"] = "error_during_execution".into();
            result["is_error"] = true.into();
            result["terminal_reason"] = "aborted_streaming".into();
            result["errors"] = json!(["interrupted"]);
        } else if let Some((status, words)) = &failure {
            result["result"] = words.as_str().into();
            result["terminal_reason"] = "api_error".into();
            result["api_error_status"] = if *status == 0 { Value::Null } else { (*status).into() };
        }
        if let Some(prompt) = self.prompt {
            result["user_message_uuid"] = prompt.into();
            result["user_message_uuids"] = json!([prompt]);
        }
        self.process.say(result);
        self.process.at(ClaudeMoment::Result).await?;
        Ok(interrupted || failure.is_some())
    }
}

/// A line as it is printed: with the call whose subagent's it is.
fn printed(thread: Thread<'_>, written: &Value) -> Value {
    let mut said = written.clone();
    if let Some(fields) = said.as_object_mut() {
        fields.remove("apiBlockIndex");
    }
    said["parent_tool_use_id"] = thread.subagent.map(|(_, call)| call).into();
    if let Some((agent, _)) = thread.subagent {
        said["agent_id"] = agent.into();
    }
    said
}

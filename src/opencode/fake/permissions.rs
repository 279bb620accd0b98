//! Asking humans: permissions by rule or by script, and the question tool.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Shared,
    access::{Access, Place},
    diff,
    rules::{self, Action, Rule, decide},
    tools::{ToolCall, ToolResult},
    world::{Instance, Pending},
};

/// Why a tool did not do what it was asked to.
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) ends_turn: bool,
}

impl Refusal {
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self { message: message.into(), ends_turn: false }
    }

    fn by_human(message: &str) -> Self {
        Self { message: message.to_owned(), ends_turn: true }
    }
}

/// The rules for a session, without those that were allowed for good.
struct Rules {
    agent: Vec<Rule>,
    session: Vec<Rule>,
}

impl Rules {
    /// Weakest first.
    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.agent.iter().chain(&self.session)
    }
}

impl ToolCall {
    /// Asks for what the call needs, as far as the rules say so.
    pub(super) async fn ask_permission(&self) -> Result<(), Refusal> {
        for access in self.needed() {
            self.ask_for(&access).await?;
        }
        Ok(())
    }

    /// What the call needs: what the script asks for beside what the server's tool does.
    fn needed(&self) -> Vec<Access> {
        let world = self.shared.world();
        let directory = world.directory_of(&self.session).unwrap_or_default();
        let place =
            Place { directory: &directory, root: world.root_of(&directory), home: self.shared.home() };
        let written = |path: &str| diff::last_written(world.sessions.get(&self.session)?, path);
        let mut needed = place.needed_by(&self.tool, written);
        if let Some((permission, pattern)) = &self.tool.result.ask
            && !needed.iter().any(|access| access.permission == *permission)
        {
            needed.insert(0, Access::new(permission, pattern, pattern, json!({})));
        }
        needed
    }

    async fn ask_for(&self, access: &Access) -> Result<(), Refusal> {
        let agent = self.message["agent"].as_str().unwrap_or_default();
        let Access { permission, patterns, always, metadata } = access;
        let is_asked_by_script = self.tool.result.ask.as_ref().is_some_and(|(asked, _)| asked == permission);
        let rules = self.shared.rules(&self.session, agent);
        let approved = self.shared.approved(&self.session);
        let decision = |pattern: &String| {
            let decided = |rules: &[Rule]| decide(rules, permission, pattern);
            decided(&approved).or_else(|| decided(&rules.session)).unwrap_or_else(|| {
                match decided(&rules.agent) {
                    Some(Action::Allow) if is_asked_by_script => Action::Ask,
                    decided => decided.unwrap_or(Action::Ask),
                }
            })
        };
        let decisions: Vec<Action> = patterns.iter().map(decision).collect();
        if decisions.contains(&Action::Deny) {
            self.show_task();
            let relevant = rules.all().filter(|rule| rule.concerns(permission)).map(Rule::to_string);
            let relevant = relevant.collect::<Vec<_>>().join(",");
            return Err(Refusal::error(format!(
                "The user has specified a rule which prevents you from using this specific tool call. Here are some of \
                 the relevant rules [{relevant}]"
            )));
        }
        if !decisions.contains(&Action::Ask) {
            return Ok(());
        }
        let info = json!({
            "permission": permission, "patterns": patterns, "metadata": metadata, "always": always,
        });
        permitted(self.ask("permission.asked", "per", info, |instance| &mut instance.permissions)).await
    }

    pub(super) async fn ask_question(&self) -> Result<ToolResult, Refusal> {
        let questions = self.tool.args["questions"].clone();
        let info = json!({"questions": questions});
        let reply = self.ask("question.asked", "que", info, |instance| &mut instance.questions);
        let Ok(Some(answers)) = reply.await else {
            return Err(Refusal::by_human("The user dismissed this question"));
        };
        let asked = questions.as_array().map(Vec::as_slice).unwrap_or_default();
        let told: Vec<String> = asked
            .iter()
            .enumerate()
            .map(|(index, question)| {
                let chosen: Vec<&str> =
                    answers[index].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let chosen = if chosen.is_empty() { "Unanswered".to_owned() } else { chosen.join(", ") };
                format!("\"{}\"=\"{chosen}\"", question["question"].as_str().unwrap_or_default())
            })
            .collect();
        let plural = if asked.len() == 1 { "" } else { "s" };
        Ok(ToolResult {
            title: format!("Asked {} question{plural}", asked.len()),
            output: self.output_or(format!(
                "User has answered your questions: {}. You can now continue with the user's answers in mind.",
                told.join(", ")
            )),
            metadata: json!({"answers": answers, "truncated": false}),
        })
    }

    /// Puts a request of this call on one of its directory's lists and tells of it.
    fn ask<T>(
        &self,
        kind: &str,
        prefix: &str,
        mut info: Value,
        list: impl FnOnce(&mut Instance) -> &mut Vec<Pending<T>>,
    ) -> oneshot::Receiver<T> {
        info["tool"] = self.call_site();
        let reply = self.shared.ask(&self.session, kind, prefix, info, list);
        self.show_task();
        reply
    }
}

/// Waits for the answer to a permission request.
async fn permitted(reply: oneshot::Receiver<Result<(), Option<String>>>) -> Result<(), Refusal> {
    match reply.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Some(message))) => Err(Refusal::error(format!(
            "The user rejected permission to use this specific tool call with the following feedback: {message}"
        ))),
        // Disposing of the instance drops the request unanswered.
        Ok(Err(None)) | Err(_) => {
            Err(Refusal::by_human("The user rejected permission to use this specific tool call."))
        }
    }
}

impl Shared {
    /// Asks whether the model may make the same call for the third time in one step, if the rules say so.
    pub(super) async fn ask_for_loop(
        &self,
        session: &str,
        agent: &str,
        tool: &str,
        input: &Value,
    ) -> Result<(), Refusal> {
        let (rules, approved) = (self.rules(session, agent), self.approved(session));
        let layers = [&approved, &rules.session, &rules.agent];
        if layers.iter().find_map(|rules| decide(rules, "doom_loop", tool)) == Some(Action::Allow) {
            return Ok(());
        }
        let info = json!({
            "permission": "doom_loop", "patterns": [tool], "metadata": {"tool": tool, "input": input}, "always": [tool],
        });
        permitted(self.ask(session, "permission.asked", "per", info, |instance| &mut instance.permissions))
            .await
    }

    /// Puts a request of a session on one of its directory's lists and tells of it.
    fn ask<T>(
        &self,
        session: &str,
        kind: &str,
        prefix: &str,
        mut info: Value,
        list: impl FnOnce(&mut Instance) -> &mut Vec<Pending<T>>,
    ) -> oneshot::Receiver<T> {
        let (answer, reply) = oneshot::channel();
        let mut world = self.world();
        info["id"] = world.clock.ascending(prefix).into();
        info["sessionID"] = session.into();
        let directory = world.directory_of(session).unwrap_or_default();
        list(world.instance(&directory)).push(Pending { info: info.clone(), answer });
        world.publish(&directory, kind, info);
        reply
    }

    /// The rules for an agent at work in a session.
    fn rules(&self, session: &str, agent: &str) -> Rules {
        let world = self.world();
        let rules =
            world.sessions.get(session).and_then(|session| session.info.get("permission")?.as_array());
        Rules {
            agent: rules::of_agent(agent, &self.options.permission, self.home()),
            session: rules.into_iter().flatten().map(Rule::of_session).collect(),
        }
    }

    /// What was allowed for good in a session's directory.
    fn approved(&self, session: &str) -> Vec<Rule> {
        let mut world = self.world();
        let directory = world.directory_of(session);
        directory.map(|directory| world.instance(&directory).approved.clone()).unwrap_or_default()
    }

    /// Whether an agent has rules about a permission by its name.
    pub(super) fn has_rules_about(&self, agent: &str, permission: &str) -> bool {
        let rules = rules::of_agent(agent, &self.options.permission, self.home());
        rules.iter().any(|rule| rule.permission == permission)
    }

    /// Whether a rule takes the tool away from the session altogether.
    pub(super) fn is_tool_denied(&self, session: &str, agent: &str, tool: &str) -> bool {
        let rules = self.rules(session, agent);
        rules::takes_away(&rules.all().cloned().collect::<Vec<_>>(), tool)
    }

    /// Where the server keeps its own files: the directory that its project is in.
    pub(super) fn home(&self) -> &str {
        self.options.directory.rsplit_once('/').map_or("", |(home, _)| home)
    }

    /// Answers a permission request; false when there is none of that id in the directory.
    pub(super) fn reply_permission(
        &self,
        directory: &str,
        id: &str,
        reply: &str,
        message: Option<String>,
    ) -> bool {
        let mut world = self.world();
        let Some(request) = take_request(&mut world.instance(directory).permissions, id) else {
            return false;
        };
        let session = request.info["sessionID"].clone();
        let replied = |info: &Value, reply: &str| json!({"sessionID": session, "requestID": info["id"], "reply": reply});
        world.publish(directory, "permission.replied", replied(&request.info, reply));
        if reply == "always" {
            let permission = request.info["permission"].as_str().unwrap_or_default();
            let patterns = request.info["always"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let rules = patterns.map(|pattern| Rule::new(permission, pattern, Action::Allow));
            world.instance(directory).approved.extend(rules);
        }
        // One answer closes other requests of the session too: a rejection all of them, an "always" those that it covers.
        let approved = world.instance(directory).approved.clone();
        let covered = |info: &Value| {
            let permission = info["permission"].as_str().unwrap_or_default();
            let patterns = info["patterns"].as_array().into_iter().flatten();
            patterns
                .filter_map(Value::as_str)
                .all(|pattern| decide(&approved, permission, pattern) == Some(Action::Allow))
        };
        let (settled, left) =
            std::mem::take(&mut world.instance(directory).permissions).into_iter().partition(|other| {
                other.info["sessionID"] == session
                    && (reply == "reject" || (reply == "always" && covered(&other.info)))
            });
        world.instance(directory).permissions = left;
        let answer = |message| if reply == "reject" { Err(message) } else { Ok(()) };
        // The receiver is gone if the turn was aborted.
        drop(request.answer.send(answer(message)));
        for other in settled {
            world.publish(directory, "permission.replied", replied(&other.info, reply));
            drop(other.answer.send(answer(None)));
        }
        true
    }

    /// Answers a question; `None` dismisses it. False when there is none of that id in the directory.
    pub(super) fn reply_question(&self, directory: &str, id: &str, answers: Option<Value>) -> bool {
        let mut world = self.world();
        let Some(request) = take_request(&mut world.instance(directory).questions, id) else { return false };
        let mut properties = json!({"sessionID": request.info["sessionID"], "requestID": id});
        let kind = if let Some(answers) = &answers {
            properties["answers"] = answers.clone();
            "question.replied"
        } else {
            "question.rejected"
        };
        world.publish(directory, kind, properties);
        drop(request.answer.send(answers));
        true
    }
}

/// Takes the request of this id off a list.
fn take_request<T>(pending: &mut Vec<Pending<T>>, id: &str) -> Option<Pending<T>> {
    let index = pending.iter().position(|request| request.info["id"] == id)?;
    Some(pending.remove(index))
}

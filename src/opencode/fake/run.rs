//! The loop that answers a session's newest prompt, step by step, until nothing is left to answer.
//!
//! One loop per session: a prompt that arrives while it runs is only stored, and the loop finds it at its next step.
//! After an error it does not look again, which is how the real server loses prompts.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Moment, Shared,
    process::{StepRun, Verdict},
    world::{Message, World, no_tokens, unknown_error},
};

/// A loop at work.
#[derive(Debug)]
pub(super) struct Runner {
    id: u64,
    stop: Stop,
    done: Done,
}

/// How a loop is told to stop.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop {
    /// An abort has begun, subagents first.
    pub(super) is_coming: CancellationToken,
    pub(super) now: CancellationToken,
}

pub(super) type Done = watch::Receiver<Option<RunEnd>>;

/// How a loop ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RunEnd {
    Finished,
    Cancelled,
    /// By an exception, with its message.
    Failed(String),
}

/// What a session needs next.
enum Next {
    Exit,
    NoUser,
    Compact { user: Value, part: Value },
    CompactFirst { user: Value },
    Answer { user: Value },
}

impl Shared {
    /// Starts the session's loop, or joins the one that runs.
    pub(super) fn ensure_running(self: &Arc<Self>, session: &str) -> Done {
        let mut world = self.world();
        if let Some(runner) = world.runners.get(session) {
            return runner.done.clone();
        }
        world.next_runner += 1;
        let id = world.next_runner;
        let (ended, done) = watch::channel(None);
        let stop = Stop::default();
        let runner = Runner { id, stop: stop.clone(), done: done.clone() };
        world.runners.insert(session.to_owned(), runner);
        drop(world);
        let (shared, session) = (Arc::clone(self), session.to_owned());
        self.spawn(async move {
            let mut run =
                Run { shared: &shared, session: &session, id, stop: &stop, tail: None, answering: None };
            let end = run.until_done().await;
            run.finish(&mut shared.world());
            let tail = run.tail.take();
            ended.send_replace(Some(end));
            if let Some(user) = tail {
                shared.tail(&session, &user).await;
            }
        });
        done
    }

    /// Aborts a session with its subagents; returns once everything is written.
    pub(super) async fn cancel(self: &Arc<Self>, session: &str) {
        if let Some(runner) = self.world().runners.get(session) {
            runner.stop.is_coming.cancel();
        }
        self.cancel_jobs(session).await;
        self.cancel_runner(session).await;
    }

    pub(super) async fn cancel_runner(self: &Arc<Self>, session: &str) {
        let runner = self.world().runners.remove(session);
        if let Some(mut runner) = runner {
            runner.stop.now.cancel();
            // Only killing the server drops the sender without a result.
            drop(runner.done.wait_for(Option::is_some).await);
        }
        let mut world = self.world();
        if !world.runners.contains_key(session) {
            world.set_idle(session, &self.options.directory);
        }
    }

    async fn cancel_jobs(self: &Arc<Self>, session: &str) {
        let jobs: Vec<String> = {
            let world = self.world();
            let mine = world.jobs.iter().filter(|(child, job)| *child == session || job.parent == session);
            mine.map(|(child, _)| child.clone()).collect()
        };
        for child in jobs {
            let job = self.world().jobs.remove(&child);
            if let Some(job) = job {
                job.cancel.cancel();
                if child == session {
                    self.cancel_runner(&child).await;
                } else {
                    Box::pin(self.cancel(&child)).await;
                }
            }
        }
    }

    /// What the server still says about a turn after it went idle.
    async fn tail(&self, session: &str, user: &str) {
        self.hold(Moment::Tail).await;
        self.pause_ms(10).await;
        self.summarize_changes(session, user);
    }

    /// The summary of changed files, of which a fake has none.
    fn summarize_changes(&self, session: &str, user: &str) {
        let mut world = self.world();
        world.update_session(session, |info| {
            info.insert("summary".to_owned(), json!({"additions": 0, "deletions": 0, "files": 0}));
        });
        world.publish_for(session, "session.diff", json!({"sessionID": session, "diff": []}));
        let info = world
            .sessions
            .get(session)
            .and_then(|session| session.message(user))
            .map(|message| message.info.clone());
        if let Some(mut info) = info {
            info["summary"] = json!({"diffs": []});
            world.put_message(session, &info);
        }
    }

    /// Names a session that has no title yet, some time after its first prompt.
    async fn make_title(&self, session: &str) {
        self.pause_ms(200).await;
        self.world().update_session(session, |info| {
            info.insert("title".to_owned(), "A generated title".into());
        });
    }
}

struct Run<'a> {
    shared: &'a Arc<Shared>,
    session: &'a str,
    id: u64,
    stop: &'a Stop,
    /// The user message whose changes are summed up after idle.
    tail: Option<String>,
    answering: Option<String>,
}

impl Run<'_> {
    async fn until_done(&mut self) -> RunEnd {
        let mut is_first_step = true;
        loop {
            let next = {
                let mut world = self.shared.world();
                world.set_busy(self.session);
                let next = self.next(&world);
                if matches!(next, Next::Exit) {
                    // Under the same lock as the look, so that no prompt comes in between.
                    self.finish(&mut world);
                }
                next
            };
            let user = match &next {
                Next::Exit => return RunEnd::Finished,
                Next::NoUser => {
                    return RunEnd::Failed(
                        "Error: No user message found in stream. This should never happen.".to_owned(),
                    );
                }
                Next::Answer { user } | Next::Compact { user, .. } | Next::CompactFirst { user } => {
                    user.clone()
                }
            };
            if std::mem::take(&mut is_first_step) {
                self.start_title();
            }
            if let Some(end) = self.check_model(&user).or_else(|| self.check_directory(&user)) {
                return end;
            }
            let verdict = match next {
                Next::Compact { part, .. } => self.compact(&user, &part).await,
                Next::CompactFirst { .. } => {
                    self.shared.request_compaction(self.session, &user, true, None);
                    Verdict::Continue
                }
                Next::Exit | Next::NoUser | Next::Answer { .. } => self.answer(&user).await,
            };
            if self.stop.now.is_cancelled() {
                return RunEnd::Cancelled;
            }
            match verdict {
                Verdict::Continue => {}
                Verdict::Stop => return RunEnd::Finished,
                Verdict::Die(exception) => return RunEnd::Failed(exception),
                Verdict::Compact { overflow } => {
                    self.shared.request_compaction(self.session, &user, true, Some(overflow));
                }
            }
        }
    }

    /// Goes idle, unless an abort already took the loop's place.
    fn finish(&self, world: &mut World) {
        if world.runners.get(self.session).is_some_and(|runner| runner.id == self.id) {
            world.runners.remove(self.session);
            world.set_idle(self.session, &self.shared.options.directory);
        }
    }

    fn next(&self, world: &World) -> Next {
        let messages = world.sessions.get(self.session).map_or(&[][..], |session| &session.messages);
        let newest = |is: &dyn Fn(&&Message) -> bool| {
            messages.iter().filter(is).max_by_key(|message| message.age_key())
        };
        let Some(user) = newest(&|message| message.is("user")) else {
            return Next::NoUser;
        };
        let assistant = newest(&|message| message.is("assistant"));
        if assistant.is_some_and(|assistant| is_final_for(assistant, user)) {
            return Next::Exit;
        }
        let finished = newest(&|message| message.is("assistant") && !message.info["finish"].is_null());
        let is_open =
            |message: &&Message| finished.is_none_or(|finished| message.age_key() > finished.age_key());
        let compaction = messages
            .iter()
            .filter(is_open)
            .flat_map(|message| &message.parts)
            .rfind(|part| part["type"] == "compaction");
        let user_info = user.info.clone();
        if let Some(part) = compaction {
            return Next::Compact { user: user_info, part: part.clone() };
        }
        let is_full = |message: &Message| {
            message.info["summary"] != true && self.shared.overflows(&message.info["tokens"])
        };
        if finished.is_some_and(is_full) {
            return Next::CompactFirst { user: user_info };
        }
        Next::Answer { user: user_info }
    }

    fn start_title(&self) {
        let untitled = {
            let world = self.shared.world();
            world.sessions.get(self.session).is_some_and(|session| {
                session.text("title").starts_with("New session - ")
                    && session.text("parentID").is_empty()
                    && session.messages.iter().filter(|message| message.is("user")).count() == 1
            })
        };
        if untitled {
            let (shared, session) = (Arc::clone(self.shared), self.session.to_owned());
            self.shared.spawn(async move { shared.make_title(&session).await });
        }
    }

    fn check_model(&self, user: &Value) -> Option<RunEnd> {
        let (provider, model) = (&user["model"]["providerID"], &user["model"]["modelID"]);
        let name =
            format!("{}/{}", provider.as_str().unwrap_or_default(), model.as_str().unwrap_or_default());
        if self.shared.options.models.contains(&name) {
            return None;
        }
        let message = format!("Model not found: {name}.");
        self.shared.world().session_error(self.session, &unknown_error(&message));
        Some(RunEnd::Failed(format!("ProviderModelNotFoundError: {message}")))
    }

    /// A directory that is not there ends the run when its step has been stored.
    fn check_directory(&self, user: &Value) -> Option<RunEnd> {
        let directory = {
            let world = self.shared.world();
            world
                .directory_of(self.session)
                .filter(|directory| world.missing_directories.contains(directory))?
        };
        self.new_assistant(user, &user["agent"], false);
        Some(RunEnd::Failed(format!("PlatformError: NotFound: FileSystem.realPath ({directory})")))
    }

    async fn answer(&mut self, user: &Value) -> Verdict {
        let info = self.new_assistant(user, &user["agent"], false);
        let user_id = user["id"].as_str().unwrap_or_default().to_owned();
        let mut call = StepRun::new(self.shared, self.session, self.stop, info);
        // The real server takes a snapshot of the files here; an abort meanwhile leaves no session.error.
        tokio::select! {
            biased;
            () = self.stop.now.cancelled() => {
                call.finalize_unstarted();
                return Verdict::Stop;
            }
            () = self.shared.pause_ms(2) => {}
        }
        let summarized = match &self.answering {
            None => Some(user_id.clone()),
            Some(_) => self.tail.take(),
        };
        if let Some(summarized) = summarized {
            self.shared.summarize_changes(self.session, &summarized);
        }
        let first = self.answering.as_deref() != Some(&user_id);
        self.answering = Some(user_id.clone());
        let verdict = call.answer(&user_id, first).await;
        if call.has_finished_step() {
            self.tail = Some(user_id);
        }
        verdict
    }

    pub(super) fn new_assistant(&self, user: &Value, agent: &Value, summary: bool) -> Value {
        let mut world = self.shared.world();
        let directory = world.directory_of(self.session).unwrap_or_default();
        let mut info = json!({
            "id": world.clock.ascending("msg"), "parentID": user["id"], "role": "assistant",
            "mode": agent, "agent": agent, "path": {"cwd": directory, "root": world.root_of(&directory)},
            "cost": 0, "tokens": no_tokens(),
            "modelID": user["model"]["modelID"], "providerID": user["model"]["providerID"],
            "time": {"created": world.next_message_ms(self.session)}, "sessionID": self.session,
        });
        if !user["model"]["variant"].is_null() {
            info["variant"] = user["model"]["variant"].clone();
        }
        if summary {
            info["summary"] = true.into();
        }
        world.put_message(self.session, &info);
        info
    }

    async fn compact(&mut self, user: &Value, part: &Value) -> Verdict {
        let info = self.new_assistant(user, &"compaction".into(), true);
        let mut call = StepRun::new(self.shared, self.session, self.stop, info);
        let verdict = call.summarize().await;
        self.shared.after_compaction(self.session, user, part, &call, &verdict)
    }
}

/// Whether the loop has nothing more to say: a final answer to the newest user message, without tool calls.
fn is_final_for(assistant: &Message, user: &Message) -> bool {
    let finish = &assistant.info["finish"];
    let is_orphan =
        |part: &Value| part["state"]["status"] == "error" && part["state"]["metadata"]["interrupted"] == true;
    let has_tool_calls = assistant.parts.iter().any(|part| part["type"] == "tool" && !is_orphan(part));
    let is_open = finish.is_null() || finish == "tool-calls" || finish == "unknown";
    !is_open && !has_tool_calls && assistant.info["parentID"] == user.info["id"]
}

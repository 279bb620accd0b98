//! The cells on a real server: its turns are brought to all phases at once, and one blow strikes them all.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use opencode_conductor::{
    BlockBody, Completion, ConversationEvent, ConversationManager, CreateTaskSession, Directory, FeedOptions,
    OpenCodeClient, OpenCodeOptions, PromptInput, RunStatus, SessionConversationState, SessionId, Update,
    Updates, WaitOptions, parse_opencode,
    test_util::{Script, ScriptedTool, Step},
};
use serde_json::{Value, json};
use tokio::sync::{Barrier, Mutex};

use crate::{
    human::Human,
    matrix::{Phase, Row, Seen, letter},
    model::ScriptedModel,
    proxy::Proxy,
    real::{RealOptions, RealServer},
    soon,
};

const ANSWER: &str = "one two three four";

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Strike {
    /// `kill -9`, and back at once.
    Kill,
    /// `SIGTERM`, and back at once.
    Terminate,
    /// `kill -9`, and slowly back while the manager tries to reach it.
    SlowStart,
    /// Every TCP connection is cut.
    Cut,
    /// Every TCP connection is cut, and new ones too until the manager has noticed.
    Darkness,
    Dispose,
    /// Another client aborts the session.
    Abort,
    /// Another client deletes it.
    Delete,
}

/// The promises.
pub(crate) fn rows() -> Vec<Row<Strike>> {
    let row = |fault, strike, promise| Row { fault, strike, promise };
    vec![
        row("kill -9, back at once", Strike::Kill, "S . . I I I I I . ."),
        row("SIGTERM, back at once", Strike::Terminate, "S . . I I I I I . ."),
        row("kill -9, slow start", Strike::SlowStart, "S . . I I I I I . ."),
        row("connections cut", Strike::Cut, "S . . S S S S S . ."),
        row("network down for a while", Strike::Darkness, "S . . S S S S S . ."),
        // With a permission pending the server was seen to abort the step or to reject the request, so that cell says nothing.
        row("instance disposed", Strike::Dispose, "S . . A A A A . . ."),
        row("aborted by another client", Strike::Abort, "S . . A A A A A . ."),
        row("session deleted", Strike::Delete, "g . . G G G G G . ."),
    ]
}

/// What all rows share.
pub(crate) struct Stand {
    model: Arc<ScriptedModel>,
    server: Arc<Mutex<RealServer>>,
    proxy: Arc<Proxy>,
    rows: AtomicUsize,
}

/// One row: the turns meet before the blow and after it.
#[derive(Clone)]
pub(crate) struct Blow {
    strike: Strike,
    number: usize,
    model: Arc<ScriptedModel>,
    server: Arc<Mutex<RealServer>>,
    proxy: Arc<Proxy>,
    project: PathBuf,
    manager: ConversationManager,
    human: Arc<Human>,
    meeting: Arc<Barrier>,
}

impl Stand {
    pub(crate) async fn start(executable: PathBuf) -> Self {
        let model = ScriptedModel::start().await;
        let options = RealOptions::new(executable, model.base_url())
            .config(json!({"permission": {"bash": {"*": "allow", "touch *": "ask"}}}));
        let server = RealServer::start(options).await;
        let proxy = Proxy::start(server.url()).await;
        Self {
            model: Arc::new(model),
            server: Arc::new(Mutex::new(server)),
            proxy: Arc::new(proxy),
            rows: AtomicUsize::new(0),
        }
    }

    /// A manager of its own for a row of so many cells.
    pub(crate) async fn blow(&self, strike: Strike, n_cells: usize) -> Blow {
        let human = Human::new();
        // A request that arrives while the server starts is never answered.
        let client = OpenCodeClient::builder(&self.proxy.url())
            .answer_timeout(Duration::from_secs(4))
            .feed(FeedOptions::new().backoff(Duration::from_millis(50), Duration::from_millis(500)))
            .build()
            .unwrap();
        Blow {
            strike,
            number: self.rows.fetch_add(1, Ordering::SeqCst),
            model: Arc::clone(&self.model),
            server: Arc::clone(&self.server),
            proxy: Arc::clone(&self.proxy),
            project: self.server.lock().await.project(0),
            manager: ConversationManager::builder(client)
                .permissions(human.policy())
                .wait(WaitOptions::default().settle_grace(Duration::from_secs(3)))
                .unwrap()
                .build(),
            human,
            meeting: Arc::new(Barrier::new(n_cells)),
        }
    }
}

/// Plays a cell and checks all that must hold whatever its outcome.
pub(crate) async fn play(blow: Blow, case: String, phase: Phase) -> Seen {
    let request =
        CreateTaskSession::new("project", format!("{case} {}", blow.number), &blow.project, &blow.project);
    let session = blow.manager.create_task_session(request).await.unwrap().session_id;
    let words = format!("cell-{}-{phase:?}", blow.number);
    let start = || {
        let input = PromptInput::new(session.clone(), blow.script(phase).prompt(&words));
        blow.manager.prompt(input).start()
    };
    let mut started = None;
    if phase != Phase::BeforeSubmit {
        let mut running = start();
        let updates = running.updates().unwrap();
        soon(blow.reach(phase, &words, updates)).await;
        started = Some(running);
    }
    let leads = blow.meeting.wait().await.is_leader();
    blow.strike(&session, leads).await;
    if matches!(blow.strike, Strike::Dispose) && phase != Phase::BeforeSubmit {
        soon(blow.stopped(&session)).await;
    }
    blow.meeting.wait().await;
    let running = started.unwrap_or_else(start);
    blow.let_go(leads);
    if leads {
        blow.relieve().await;
    }
    let outcome = running.await;
    let runs = blow.model.runs_of(&words);
    let is_gone = matches!(letter(&outcome), 'g' | 'G');
    if let Ok(result) = &outcome
        && !is_gone
    {
        if result.completion == Completion::Settled {
            assert_eq!(result.answer().as_deref(), Some(ANSWER), "{case}");
        }
        let loaded = blow.transcript(&session).await;
        let text = |state: &SessionConversationState| serde_json::to_string_pretty(state).unwrap();
        assert_eq!(text(&result.conversation), text(&loaded), "{case}: observed, and loaded");
    }
    if !is_gone {
        let next = Script::new([Step::text("next")]).prompt("go on");
        let next = blow.manager.prompt(PromptInput::new(session.clone(), next)).await;
        let next = next.unwrap_or_else(|error| panic!("{case}, next: {error:?}"));
        assert_eq!(next.completion, Completion::Settled, "{case}: the session takes the next prompt");
    }
    Seen { letter: letter(&outcome), runs }
}

impl Blow {
    fn gate(&self) -> String {
        format!("phase-{}", self.number)
    }

    fn script(&self, phase: Phase) -> Script {
        let tool =
            |command: &str| ScriptedTool::new("bash", json!({"command": command, "description": "run it"}));
        let gated = |text: &str| {
            let mut step = Step::text(text);
            step.gate_middle = Some(self.gate());
            step
        };
        let answer = Step::text(ANSWER);
        match phase {
            Phase::Started => {
                let mut step = answer;
                step.gate_before = Some(self.gate());
                Script::new([step])
            }
            Phase::Streaming => Script::new([gated(ANSWER)]),
            Phase::Tool => {
                let wait = format!("until [ -e {} ]; do sleep 0.1; done", self.gate());
                Script::new([Step::tool(tool(&wait)), answer])
            }
            Phase::Subagent => {
                let prompt = Script::new([gated("a part of it")]).prompt(&self.part());
                let args = json!({"description": "a part", "prompt": prompt, "subagent_type": "general"});
                Script::new([Step::tool(ScriptedTool::new("task", args)), answer])
            }
            Phase::Permission => Script::new([Step::tool(tool("touch it")), answer]),
            _ => Script::new([answer]),
        }
    }

    /// The words of the subagent's prompt.
    fn part(&self) -> String {
        format!("part-{}", self.number)
    }

    async fn reach(&self, phase: Phase, words: &str, mut updates: Updates) {
        match phase {
            Phase::Started => self.model.wait_for_runs(words, 1).await,
            Phase::Streaming => until(&mut updates, speaks).await,
            Phase::Tool => until(&mut updates, runs_a_tool).await,
            // The parent's prompt contains the child's.
            Phase::Subagent => self.model.wait_for_runs(&self.part(), 2).await,
            Phase::Permission => self.human.is_asked().await,
            _ => unreachable!("not a phase of a real turn"),
        }
    }

    /// Strikes this session, or, by the one who leads, the server.
    async fn strike(&self, session: &SessionId, leads: bool) {
        let directory = Directory::new(&self.project).unwrap();
        let url = self.server.lock().await.url().to_owned();
        let other = OpenCodeClient::new(&url).unwrap().directory(&directory);
        match self.strike {
            Strike::Abort => other.abort(session).await.unwrap(),
            Strike::Delete => other.delete_session(session).await.unwrap(),
            _ if !leads => {}
            Strike::Kill => self.server.lock().await.restart().await,
            Strike::Terminate => {
                let mut server = self.server.lock().await;
                server.terminate().await;
                server.restart().await;
            }
            Strike::SlowStart => self.server.lock().await.kill().await,
            Strike::Cut => self.proxy.cut(),
            Strike::Darkness => self.proxy.go_dark(),
            Strike::Dispose => other.dispose().await.unwrap(),
        }
    }

    /// Waits until the session's turn is over. The server may answer before it has disposed of everything, and a turn that is
    /// let go too early would just finish.
    async fn stopped(&self, session: &SessionId) {
        let mut look = tokio::time::interval(Duration::from_millis(100));
        loop {
            look.tick().await;
            let messages = self.server.lock().await.get(&format!("/session/{session}/message")).await;
            let last = messages.as_array().and_then(|messages| messages.last());
            if last.is_some_and(|last| last["info"]["time"]["completed"].is_number()) {
                return;
            }
        }
    }

    fn let_go(&self, leads: bool) {
        if leads {
            self.model.open_gate(&self.gate());
            std::fs::write(self.project.join(self.gate()), "").unwrap();
        }
        self.human.may_answer();
    }

    async fn relieve(&self) {
        match self.strike {
            Strike::SlowStart => self.server.lock().await.restart().await,
            Strike::Darkness => {
                soon(self.proxy.wait_until_refused(3)).await;
                self.proxy.light_up();
            }
            _ => {}
        }
    }

    /// The session and its children as the server has them, loaded as a transcript.
    async fn transcript(&self, session: &SessionId) -> SessionConversationState {
        let server = self.server.lock().await;
        let mut infos = vec![server.get(&format!("/session/{session}")).await];
        let children = server.get(&format!("/session/{session}/children")).await;
        infos.extend(children.as_array().cloned().unwrap_or_default());
        let mut documents = Vec::new();
        for info in infos {
            let id = info["id"].as_str().unwrap();
            let messages: Value = server.get(&format!("/session/{id}/message")).await;
            documents.push(json!({"info": info, "messages": messages}).to_string());
        }
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let options = OpenCodeOptions::default().session(session.clone());
        parse_opencode(&documents, &options).unwrap().state
    }

    /// Ends the row; nothing may be left connected.
    pub(crate) async fn end(self) {
        soon(self.manager.shutdown()).await;
        drop(self.manager);
        soon(self.proxy.wait_until_unused()).await;
    }
}

async fn until(updates: &mut Updates, wanted: impl Fn(&Update) -> bool) {
    while let Some(update) = updates.next().await {
        if wanted(&update) {
            return;
        }
    }
    panic!("the turn was over too early");
}

fn speaks(update: &Update) -> bool {
    let Update::Conversation(ConversationEvent::BlockUpsert { block, .. }) = update else { return false };
    serde_json::to_value(block).unwrap()["type"] == "assistant_text"
}

fn runs_a_tool(update: &Update) -> bool {
    let Update::Conversation(ConversationEvent::BlockUpsert { block, .. }) = update else { return false };
    matches!(block.body, BlockBody::ToolUse { tool_status: RunStatus::Running, .. })
}

//! A server under test: the fake, or the real one with a scripted model behind it.

use std::{path::PathBuf, time::Duration};

use opencode_conductor::test_util::{FakeOpenCode, FakeOptions, ModelPrice, Moment, Step};
use reqwest::{Client, Method, RequestBuilder, header::HeaderMap};
use serde_json::{Value, json};

use crate::{
    model::ScriptedModel,
    real::{RealOptions, RealServer},
};

/// Nothing in a scenario takes longer on its own.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What the scenarios need from a server's configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) password: Option<&'static str>,
    pub(crate) background_subagents: bool,
    /// The model costs something.
    pub(crate) priced: bool,
}

pub(crate) struct Target {
    server: Server,
    client: Client,
    setup: Setup,
}

enum Server {
    Fake(FakeOpenCode),
    Real(Box<RealServer>, ScriptedModel),
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {} {}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// What all bash commands of the scenarios are allowed to do.
fn permission() -> Value {
    json!({"bash": {"*": "allow", "touch *": "ask", "rm *": "deny"}})
}

impl Target {
    pub(crate) async fn fake(setup: Setup) -> Self {
        let mut options = FakeOptions::new()
            .heartbeat(Duration::from_secs(1))
            .permission(permission())
            .agent("nester")
            .subagent_depth(3);
        if let Some(password) = setup.password {
            options = options.password(password);
        }
        if setup.background_subagents {
            options = options.background_subagents();
        }
        if setup.priced {
            let price = ModelPrice::new(3.0, 15.0).cache_read(0.3).cache_write(3.75);
            options = options.price("mock/m", price);
        }
        let fake = FakeOpenCode::start_with(options).await.expect("start the fake");
        Self::new(Server::Fake(fake), setup)
    }

    pub(crate) async fn real(executable: PathBuf, setup: Setup) -> Self {
        let model = ScriptedModel::start().await;
        let nester = json!({"mode": "all", "description": "d", "permission": {"task": "allow"}});
        let mut options = RealOptions::new(executable, model.base_url())
            .projects(2)
            .config(json!({"permission": permission(), "subagent_depth": 3, "agent": {"nester": nester}}));
        if let Some(password) = setup.password {
            options = options.password(password);
        }
        if setup.background_subagents {
            options = options.env("OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS", "true");
        }
        if setup.priced {
            let cost = json!({"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75});
            options = options.config(json!({"provider": {"mock": {"models": {"m": {"cost": cost}}}}}));
        }
        let server = RealServer::start(options).await;
        Self::new(Server::Real(Box::new(server), model), setup)
    }

    fn new(server: Server, setup: Setup) -> Self {
        // A connection kept from before a restart would fail the next request.
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("build a client");
        Self { server, client, setup }
    }

    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Fake(fake) => fake.url(),
            Server::Real(server, _) => server.url().to_owned(),
        }
    }

    /// The n-th project's directory.
    pub(crate) fn directory(&self, project: usize) -> String {
        match &self.server {
            Server::Fake(fake) if project == 0 => fake.directory().to_owned(),
            Server::Fake(fake) => format!("{}-{}", fake.directory(), project + 1),
            Server::Real(server, _) => server.project(project).to_string_lossy().into_owned(),
        }
    }

    /// The directory in which the projects and the server's own files are.
    pub(crate) fn home(&self) -> String {
        match &self.server {
            Server::Fake(fake) => {
                let (home, _) = fake.directory().rsplit_once('/').expect("an absolute directory");
                home.to_owned()
            }
            Server::Real(server, _) => server.home().to_string_lossy().into_owned(),
        }
    }

    /// A directory that is not there.
    pub(crate) fn missing_directory(&self) -> String {
        match &self.server {
            Server::Fake(fake) => {
                let missing = format!("{}/missing", fake.directory());
                fake.remove_directory(&missing);
                missing
            }
            Server::Real(server, _) => server.project(0).join("missing").to_string_lossy().into_owned(),
        }
    }

    pub(crate) fn open_gate(&self, gate: &str) {
        match &self.server {
            Server::Fake(fake) => fake.open_gate(gate),
            Server::Real(server, model) => {
                model.open_gate(gate);
                // The real tool waits for a file of that name.
                std::fs::write(server.home().join(gate), "").expect("open a gate");
            }
        }
    }

    /// Lets a run that failed not clean up on the fake until [`Self::let_clean_up`]: on the real server that takes longer than a
    /// prompt takes to arrive, also if both are slow.
    pub(crate) fn hold_cleanup(&self) {
        if let Server::Fake(fake) = &self.server {
            fake.hold(Moment::Cleanup, "cleanup");
        }
    }

    pub(crate) fn let_clean_up(&self) {
        if let Server::Fake(fake) = &self.server {
            fake.release(Moment::Cleanup);
            fake.open_gate("cleanup");
        }
    }

    /// A shell command that waits for a gate, and its counterpart in the fake.
    pub(crate) fn gate_command(&self, gate: &str) -> String {
        match &self.server {
            Server::Fake(_) => format!("wait {gate}"),
            Server::Real(server, _) => {
                let file = server.home().join(gate);
                format!("while [ ! -e {} ]; do sleep 0.05; done", file.display())
            }
        }
    }

    pub(crate) fn set_compaction(&self, step: Step) {
        match &self.server {
            Server::Fake(fake) => fake.set_compaction(step),
            Server::Real(_, model) => model.set_compaction(step),
        }
    }

    pub(crate) async fn restart(&mut self) {
        match &mut self.server {
            Server::Fake(fake) => fake.restart().await.expect("restart the fake"),
            Server::Real(server, _) => server.restart().await,
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url()));
        match self.setup.password {
            Some(password) => request.basic_auth("opencode", Some(password)),
            None => request,
        }
    }
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let response = request.timeout(LIMIT).send().await.expect("an answer");
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.text().await.expect("a whole body"),
    }
}

//! Where a program's tasks run: on a fake server inside it, on a server that it starts, on one that is there, or on Claude Code.

use std::{env, path::Path};

use clap::{ArgAction, Args, ValueEnum, ValueHint};
use opencode_conductor::{
    ApiErrorKind, ClientStatistics, ConversationManager, LaunchOptions, ManagerBuilder, OpenCodeClient,
    OpenCodeServer, RestartPolicy,
    claude::{ClaudeCode, ClaudeOptions},
    error_chain,
    test_util::{FakeOpenCode, FakeOptions},
};

use crate::{
    demo,
    failure::{Failure, root_cause},
};

/// Which server was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// A fake one inside this program: no installation, no network, no model.
    Fake,
    /// A real one, started for this program and ended with it.
    Managed,
    /// One that runs already.
    Url(String),
    /// None: Claude Code, one process per task.
    Claude,
}

/// The flags that choose a server. Without any it is a fake one inside the program.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server [default: a fake one inside this program]")]
#[non_exhaustive]
pub struct ServerFlags {
    /// Start a real `opencode` for this run (found by `OPENCODE_BIN` or on the PATH)
    #[arg(long)]
    managed: bool,
    // A list, since two of them are a mistake and not a change of mind.
    /// Use a server that is running, such as `http://127.0.0.1:4096`
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, action = ArgAction::Append)]
    server: Vec<String>,
    /// Take the server's password from this variable [default: `OPENCODE_SERVER_PASSWORD`]
    #[arg(long, value_name = "VAR")]
    password_env: Option<String>,
    /// Who does the work; a real `claude` (found by `CLAUDE_BIN` or on the PATH) needs no server
    #[arg(long, value_name = "KIND", value_enum, default_value_t = AgentKind::Opencode)]
    agent_kind: AgentKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AgentKind {
    Opencode,
    Claude,
}

/// What tasks run on, for as long as this is kept.
#[derive(Debug)]
pub struct Backend {
    /// None if Claude Code is the agent.
    client: Option<OpenCodeClient>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Fake { _demo: demo::Demo },
    Managed(Box<OpenCodeServer>),
    Elsewhere,
    Claude,
}

impl ServerFlags {
    /// The server that the flags choose.
    ///
    /// # Errors
    /// If they choose several.
    pub fn choice(&self) -> Result<Choice, Failure> {
        match (self.managed, self.server.as_slice(), self.agent_kind) {
            (false, [], AgentKind::Opencode) => Ok(Choice::Fake),
            (true, [], AgentKind::Opencode) => Ok(Choice::Managed),
            (false, [url], AgentKind::Opencode) => Ok(Choice::Url(url.clone())),
            (false, [], AgentKind::Claude) => Ok(Choice::Claude),
            _ => Err(Failure::usage(
                "choose one server: --managed or --server URL, once; --agent-kind claude needs none",
            )),
        }
    }

    fn password(&self) -> Result<Option<String>, Failure> {
        match &self.password_env {
            Some(name) => env::var(name).map(Some).map_err(|_error| {
                Failure::usage(format!("the variable {name} of --password-env is not set"))
            }),
            None => Ok(env::var("OPENCODE_SERVER_PASSWORD").ok().filter(|password| !password.is_empty())),
        }
    }
}

impl Backend {
    /// Starts or finds the server, and makes sure that it answers.
    ///
    /// # Errors
    /// If it cannot be had, with what to do about it.
    pub async fn start(flags: &ServerFlags, directory: &Path) -> Result<Self, Failure> {
        let password = flags.password()?;
        match flags.choice()? {
            Choice::Fake => Self::fake(directory).await,
            Choice::Managed => Self::managed(directory).await,
            Choice::Url(url) => Self::elsewhere(&url, password).await,
            Choice::Claude => Self::claude().await,
        }
    }

    async fn claude() -> Result<Self, Failure> {
        let version = ClaudeCode::new(ClaudeOptions::new()).version().await;
        version.map_err(|error| Failure::because("no agent", &error))?;
        Ok(Self { client: None, kind: Kind::Claude })
    }

    async fn fake(directory: &Path) -> Result<Self, Failure> {
        let options = FakeOptions::new().directory(directory.to_string_lossy());
        let fake = FakeOpenCode::start_with(options).await;
        let fake = fake.map_err(|error| Failure::because("cannot start the fake server", &error))?;
        let client = OpenCodeClient::new(&fake.url());
        let client = client.map_err(|error| Failure::because("cannot reach the fake server", &error))?;
        Ok(Self { client: Some(client), kind: Kind::Fake { _demo: demo::Demo::play_on(fake) } })
    }

    async fn managed(directory: &Path) -> Result<Self, Failure> {
        let restart = RestartPolicy::up_to(3, std::time::Duration::from_secs(600));
        let options = LaunchOptions::new().directory(directory).restart(restart);
        let server = OpenCodeServer::launch(options).await;
        let server = server.map_err(|error| Failure::because("no server", &error))?;
        Ok(Self { client: Some(server.client().clone()), kind: Kind::Managed(Box::new(server)) })
    }

    async fn elsewhere(url: &str, password: Option<String>) -> Result<Self, Failure> {
        let has_password = password.is_some();
        let mut builder = OpenCodeClient::builder(url);
        if let Some(password) = password {
            builder = builder.basic_auth("opencode", password);
        }
        let client =
            builder.build().map_err(|error| Failure::usage(format!("--server: {}", error_chain(&error))))?;
        match client.health().await {
            Err(error) if error.is_unauthorized() => Err(Failure::usage(if has_password {
                format!("{url} refuses the password; is it the server's OPENCODE_SERVER_PASSWORD?")
            } else {
                format!("{url} wants a password; name the variable that holds it with --password-env")
            })),
            Err(error)
                if matches!(
                    error.kind(),
                    ApiErrorKind::Connect(_) | ApiErrorKind::Timeout { .. } | ApiErrorKind::Broken(_)
                ) =>
            {
                Err(Failure::usage(format!(
                    "no server at {url} ({}); start one with `opencode serve`, or use --managed",
                    root_cause(&error)
                )))
            }
            // Releases before 1.1 have no such route, and do without.
            Ok(_) | Err(_) => Ok(Self { client: Some(client), kind: Kind::Elsewhere }),
        }
    }

    /// A manager of tasks that run on it.
    pub fn manager(&self) -> ManagerBuilder {
        match &self.client {
            Some(client) => ConversationManager::builder(client.clone()),
            None => ManagerBuilder::new(ClaudeCode::new(ClaudeOptions::new())),
        }
    }

    /// What was sent to the server so far; nothing where there is none.
    pub fn statistics(&self) -> Option<ClientStatistics> {
        self.client.as_ref().map(OpenCodeClient::statistics)
    }

    /// The server in a word or two.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Fake { .. } => "fake server, scripted answer",
            Kind::Managed(_) => "managed server",
            Kind::Elsewhere => "server",
            Kind::Claude => "Claude Code",
        }
    }

    /// Ends what was started, and waits for it.
    pub async fn stop(self) {
        if let Kind::Managed(server) = self.kind {
            server.shutdown().await;
        }
    }
}

//! Measures what turns cost: C tasks at once, K events each, on sessions with M old messages.
//!
//! ```sh
//! cargo run --release -p opencode-conductor-tools --bin load -- --tasks 100 --events 500 --history 100
//! cargo run --release -p opencode-conductor-tools --bin load -- --server http://127.0.0.1:4096 --tasks 10 --json
//! ```
//!
//! Without `--server` the tasks run on a fake server in another process, so that its work is not counted. With it they run
//! on anything that speaks the protocol: make a session, list its messages, take a prompt, send events. The number of
//! events and the moment at which all tasks wait are then the server's affair, unless it plays the script in the prompt.
//!
//! With `--rounds` every task has several turns, all tasks at once in each round: a percentile of ten turns says little.

mod process;

use std::{
    process::{ExitCode, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use futures_util::{StreamExt, TryStreamExt, stream};
use opencode_conductor::{
    ClientStatistics, ConversationManager, CreateTaskSession, Directory, Method, OpenCodeClient, PromptInput,
    RawRequest, RunningPrompt, SessionId, WaitOptions, error_chain,
    test_util::{FakeOpenCode, Script, Step},
};
use opencode_conductor_cli::{
    command_line,
    failure::{self, Failure},
    values,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    runtime::Builder,
};

use crate::process::Usage;

/// How many requests are under way while sessions are prepared.
const PREPARATIONS: usize = 16;

/// Measures what turns cost
#[derive(Debug, Parser)]
#[command(name = "load", args_override_self = true)]
struct Arguments {
    /// Tasks at once
    #[arg(long, value_name = "C", default_value = "100", value_parser = values::count(10_000))]
    tasks: usize,
    /// Streamed words per turn, on servers that play scripts
    #[arg(long, value_name = "K", default_value = "500", value_parser = values::count(1_000_000))]
    events: usize,
    /// Old messages per session
    #[arg(long, value_name = "M", default_value = "100", value_parser = values::count(100_000))]
    history: usize,
    /// Turns of each task, one after the other
    #[arg(long, value_name = "R", default_value = "1", value_parser = values::count(10_000))]
    rounds: usize,
    /// Directories that the tasks are spread over
    #[arg(long, value_name = "D", default_value = "1", value_parser = values::count(1_000))]
    directories: usize,
    /// Measure on this server instead of a fake one in another process
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let is_server = std::env::args().nth(1).as_deref() == Some("--serve");
    // The real server has one thread, too.
    let mut runtime = if is_server { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let result = match runtime.enable_all().build() {
        Ok(runtime) if is_server => runtime.block_on(serve()),
        Ok(runtime) => match command_line::parse("load") {
            Ok(arguments) => runtime.block_on(run(&arguments)),
            Err(status) => return status,
        },
        Err(error) => Err(Failure::because("cannot start the runtime", &error)),
    };
    failure::exit("load", result)
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let server = Server::start(arguments.server.as_deref()).await?;
    let report = measure(arguments, server).await?;
    // At once, so that a reader who has seen enough does no harm.
    print!("{}", if arguments.json { format!("{report:#}\n") } else { table(&report) });
    let complete = report["turns"]["settled"] == json!(arguments.tasks * arguments.rounds);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A server to measure on.
struct Server {
    url: String,
    /// The fake's process, which opens a gate when it reads its name.
    fake: Option<(Child, ChildStdin)>,
}

impl Server {
    async fn start(url: Option<&str>) -> Result<Self, Failure> {
        if let Some(url) = url {
            return Ok(Self { url: url.to_owned(), fake: None });
        }
        let failed = |error: &(dyn std::error::Error + 'static)| {
            Failure::because("cannot start the fake server's process", error)
        };
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut command = Command::new(program);
        command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::usage("cannot talk to the fake server's process"));
        };
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).await.map_err(|error| failed(&error))?;
        Ok(Self { url: url.trim().to_owned(), fake: Some((child, stdin)) })
    }

    async fn open_gate(&mut self, gate: &str) {
        if let Some((_, stdin)) = &mut self.fake {
            // If the process is gone, so are the turns, and they will say so.
            drop(stdin.write_all(format!("{gate}\n").as_bytes()).await);
            drop(stdin.flush().await);
        }
    }
}

/// The other process: a fake server that lives until its input ends.
#[expect(clippy::print_stdout, reason = "this is how the first process learns the address")]
async fn serve() -> Result<ExitCode, Failure> {
    let fake = FakeOpenCode::start().await;
    let fake = fake.map_err(|error| Failure::because("cannot start the fake server", &error))?;
    println!("{}", fake.url());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(gate)) = lines.next_line().await {
        fake.open_gate(&gate);
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(arguments: &Arguments, mut server: Server) -> Result<Value, Failure> {
    let client = OpenCodeClient::new(&server.url).map_err(|error| Failure::usage(error_chain(&error)))?;
    // Waiting at the gate is silence, and not what is measured.
    let wait = WaitOptions::default().idle_timeout(Duration::from_secs(600));
    let manager = ConversationManager::builder(client.clone())
        .wait(wait)
        .map_err(|error| Failure::usage(error_chain(&error)))?;
    let manager = manager.build();
    let sessions = prepare(&manager, &client, arguments).await?;

    let at_rest = Usage::now();
    let before = client.statistics();
    let mut turns = Turns::default();
    for round in 0..arguments.rounds {
        // All turns wait here until the memory of waiting has been measured.
        let gate = format!("round {round}");
        let mut step = Step::text("Go");
        step.words = arguments.events;
        step.gate_before = Some(gate.clone());
        let prompt = Script::new([step]).prompt("load");
        let running = sessions
            .iter()
            .map(|session| manager.prompt(PromptInput::new(session.clone(), prompt.clone())).start())
            .collect();
        if server.fake.is_some() {
            wait_until_busy(&server.url, arguments, sessions.len()).await?;
        }
        let waiting = Usage::now();
        turns.waiting.get_or_insert(waiting);
        server.open_gate(&gate).await;
        turns.take(running).await;
        turns.cpu += Usage::now().cpu.saturating_sub(waiting.cpu);
    }
    let after = client.statistics();
    let end = Usage::now();
    manager.shutdown().await;
    Ok(report(arguments, [before, after], [at_rest, end], turns))
}

/// Makes the sessions and their history.
async fn prepare(
    manager: &ConversationManager,
    client: &OpenCodeClient,
    arguments: &Arguments,
) -> Result<Vec<SessionId>, Failure> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| Failure::because("cannot prepare the sessions", error);
    let session = |task: usize| async move {
        let directory = format!("/load/{}", task % arguments.directories);
        let create = CreateTaskSession::new("load", format!("task-{task}"), &directory, &directory);
        let meta = manager.create_task_session(create).await.map_err(|error| failed(&error))?;
        let directory = Directory::new(&directory).map_err(|error| failed(&error))?;
        for old in 0..arguments.history {
            let body = json!({
                "noReply": true,
                "parts": [{"type": "text", "text": format!("An old message of the usual length, number {old}.")}],
            });
            let path = format!("/session/{}/prompt_async", meta.session_id);
            let request = RawRequest::new(Method::Post, path).directory(&directory).json(body);
            client.raw(request).await.map_err(|error| failed(&error))?;
        }
        Ok::<_, Failure>(meta.session_id)
    };
    stream::iter((0..arguments.tasks).map(session)).buffered(PREPARATIONS).try_collect().await
}

/// Waits until every turn waits for the model, which is behind the gate. By a client of its own, whose requests do not count.
async fn wait_until_busy(url: &str, arguments: &Arguments, n_sessions: usize) -> Result<(), Failure> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| Failure::because("cannot watch the sessions", error);
    let client = OpenCodeClient::new(url).map_err(|error| failed(&error))?;
    loop {
        let mut n_busy = 0;
        for directory in 0..arguments.directories {
            let directory = Directory::new(format!("/load/{directory}")).map_err(|error| failed(&error))?;
            let status =
                client.directory(&directory).session_status().await.map_err(|error| failed(&error))?;
            n_busy += status.iter().count();
        }
        if n_busy == n_sessions {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What came of the turns.
#[derive(Default)]
struct Turns {
    settled: usize,
    /// Of their final messages.
    message_bytes: usize,
    /// Milliseconds from the server's end of a turn to its result.
    delays: Vec<u64>,
    elapsed: Duration,
    cpu: Duration,
    /// While the turns of the first round waited.
    waiting: Option<Usage>,
}

impl Turns {
    /// Waits for the turns of one round.
    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    async fn take(&mut self, running: Vec<RunningPrompt>) {
        let started = Instant::now();
        let mut turns = stream::iter(running).buffer_unordered(usize::MAX);
        while let Some(ended) = turns.next().await {
            let returned = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let Ok(result) = ended else { continue };
            self.settled += usize::from(result.completion.is_settled());
            self.message_bytes +=
                serde_json::to_vec(&result.messages.opencode()).map_or(0, |json| json.len());
            let completed =
                result.messages.opencode().iter().rev().find_map(|message| message.info.time().completed);
            if let Some(completed) = completed.and_then(|completed| u128::try_from(completed.get()).ok()) {
                self.delays.push(u64::try_from(returned.saturating_sub(completed)).unwrap_or(u64::MAX));
            }
        }
        self.elapsed += started.elapsed();
    }
}

#[expect(clippy::cast_precision_loss, reason = "these are figures for people")]
fn report(
    arguments: &Arguments,
    [before, after]: [ClientStatistics; 2],
    [at_rest, end]: [Usage; 2],
    turns: Turns,
) -> Value {
    let Turns { settled, message_bytes, mut delays, elapsed, cpu, waiting } = turns;
    let waiting = waiting.unwrap_or_default();
    let n_turns = (arguments.tasks * arguments.rounds) as f64;
    let event_bytes = (after.feed_bytes - before.feed_bytes) as f64;
    let read_bytes = (after.bytes_received - before.bytes_received) as f64 + event_bytes;
    // Every event once, and every final message once.
    let floor_bytes = event_bytes + message_bytes as f64;
    let events = (after.events - before.events).max(1);
    delays.sort_unstable();
    let percentile = |percent: usize| {
        delays.get((delays.len() * percent / 100).min(delays.len().saturating_sub(1))).copied()
    };
    json!({
        "tasks": arguments.tasks,
        "events": arguments.events,
        "history": arguments.history,
        "rounds": arguments.rounds,
        "directories": arguments.directories,
        "turns": {"settled": settled, "seconds": elapsed.as_secs_f64()},
        "perTurn": {
            "requests": (after.requests - before.requests) as f64 / n_turns,
            "bytesRead": read_bytes / n_turns,
            "floorBytes": floor_bytes / n_turns,
            "waitingBytes": waiting.resident_bytes.saturating_sub(at_rest.resident_bytes) as f64 / arguments.tasks as f64,
        },
        "idleToResultMs": {"p50": percentile(50), "p99": percentile(99), "max": delays.last()},
        "eventsReceived": events,
        "cpuMicrosPerEvent": cpu.as_secs_f64() * 1e6 / events as f64,
        "peakBytes": end.peak_bytes,
        "sockets": waiting.sockets,
        "reconnects": after.reconnects - before.reconnects,
        "resyncs": after.resyncs - before.resyncs,
    })
}

fn table(report: &Value) -> String {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let rows = [
        (
            "turns settled",
            format!(
                "{} of {} in {:.2} s",
                report["turns"]["settled"],
                number("/tasks") * number("/rounds"),
                number("/turns/seconds")
            ),
        ),
        ("requests per turn", format!("{:.2}", number("/perTurn/requests"))),
        (
            "bytes read per turn",
            format!("{:.0} (at least {:.0})", number("/perTurn/bytesRead"), number("/perTurn/floorBytes")),
        ),
        (
            "idle to result",
            format!("p50 {} ms, p99 {} ms", report["idleToResultMs"]["p50"], report["idleToResultMs"]["p99"]),
        ),
        ("CPU per event", format!("{:.2} µs", number("/cpuMicrosPerEvent"))),
        ("memory per waiting turn", format!("{:.1} KiB", number("/perTurn/waitingBytes") / 1024.0)),
        ("peak memory", format!("{:.1} MiB", number("/peakBytes") / 1024.0 / 1024.0)),
        ("open sockets", report["sockets"].to_string()),
        ("reconnects, resyncs", format!("{}, {}", report["reconnects"], report["resyncs"])),
    ];
    rows.map(|(name, value)| format!("{name:<26}{value}\n")).concat()
}

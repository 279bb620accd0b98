//! A process of the fake: what it was sent, what it prints, and what goes wrong with it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, Interest},
    net::{tcp::OwnedWriteHalf, unix::pipe},
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    World,
    fault::{ClaudeFault, ClaudeMoment},
    play,
    shim::{Called, End},
};
use crate::{claude::agent::uuid, lock::lock};

/// What a process does when it cannot go on as it should.
#[derive(Debug)]
pub(super) enum Halt {
    /// It was interrupted.
    Interrupted,
    /// It was killed from outside.
    Gone,
    /// It ends.
    End(End),
}

/// A process of the fake.
pub(super) struct FakeProcess {
    pub(super) world: Arc<World>,
    pub(super) session: String,
    pub(super) directory: String,
    reader: u32,
    output: mpsc::UnboundedSender<Vec<u8>>,
    answers: Mutex<HashMap<String, Value>>,
    answered: Notify,
    /// Cancelled when the running turn is to end.
    interrupt: Mutex<CancellationToken>,
    /// Its standard input is at its end.
    pub(super) is_at_end: watch::Sender<bool>,
    lag: Mutex<Option<Duration>>,
    /// What is to be written to which file, and when.
    lagging: mpsc::UnboundedSender<(Instant, PathBuf, String)>,
    /// What the session has cost.
    cost: Mutex<f64>,
}

impl FakeProcess {
    /// Runs a process from its start to its end.
    pub(super) async fn run(world: Arc<World>, called: Called, output: OwnedWriteHalf, reader: u32) {
        let Called { directory, arguments, mut input, exit } = called;
        let (lines, printed) = mpsc::unbounded_channel();
        let printing = world.tasks.spawn(print(output, printed));
        let value = |flag: &str| {
            let place = arguments.iter().position(|argument| argument == flag)?;
            arguments.get(place + 1).cloned()
        };
        let resumed = value("--resume");
        let session = resumed.clone().or_else(|| value("--session-id")).unwrap_or_else(uuid);
        let (lagging, late) = mpsc::unbounded_channel();
        world.tasks.spawn(write_late(Arc::clone(&world), late));
        let cost = Mutex::new(world.cost(&session, &directory));
        let process = Arc::new(Self {
            world,
            cost,
            lagging,
            session,
            directory,
            reader,
            output: lines,
            answers: Mutex::default(),
            answered: Notify::new(),
            interrupt: Mutex::default(),
            is_at_end: watch::Sender::new(false),
            lag: Mutex::default(),
        });
        process.world.log().starts.push(arguments.clone());
        let (prompts, waiting) = mpsc::unbounded_channel();
        let listener = Arc::clone(&process);
        // Ends when the process is gone; what was sent until then is read.
        let listening = async move {
            let mut line = Vec::new();
            loop {
                line.clear();
                match input.read_until(b'\n', &mut line).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                if let Ok(message) = serde_json::from_slice::<Value>(&line) {
                    listener.hear(&message, &prompts);
                }
            }
        };
        let playing = play::serve(&process, resumed.is_some(), waiting);
        let halt = tokio::select! {
            () = listening => Halt::Gone,
            halt = playing => halt,
        };
        if let Halt::End(end) = halt {
            drop(process);
            // Everything that was said is printed first.
            drop(printing.await);
            end.tell(exit).await;
        }
    }

    fn hear(&self, message: &Value, prompts: &mpsc::UnboundedSender<Value>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match message["type"].as_str() {
            Some("user") => drop(prompts.send(message.clone())),
            Some("control_response") => {
                self.say(message.clone());
                let (request, answer) =
                    (text(&message["response"]["request_id"]), &message["response"]["response"]);
                lock(&self.answers).insert(request, answer.clone());
                self.answered.notify_waiters();
            }
            Some("control_request") if message["request"]["subtype"] == "interrupt" => {
                let response = json!({"subtype": "success", "request_id": message["request_id"],
                    "response": {"still_queued": []}});
                self.say(json!({"type": "control_response", "response": response}));
                lock(&self.interrupt).cancel();
            }
            Some("eof") => {
                self.is_at_end.send_replace(true);
                self.answered.notify_waiters();
                // Nothing else comes, which ends the wait for prompts.
                drop(prompts.send(Value::Null));
            }
            _ => {}
        }
    }

    /// Prints a line.
    pub(super) fn say(&self, mut line: Value) {
        if let Some(fields) = line.as_object_mut() {
            fields.entry("session_id").or_insert_with(|| self.session.as_str().into());
            fields.entry("uuid").or_insert_with(|| uuid().into());
        }
        // The reader may be gone.
        drop(self.output.send(format!("{line}\n").into_bytes()));
    }

    /// Writes a line to the transcript of the session or of one of its subagents.
    pub(super) fn write(&self, subagent: Option<&str>, lines: &[Value]) {
        let lag = *lock(&self.lag);
        let path = self.world.transcript(&self.session, &self.directory, subagent);
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        let text = lines.join("\n") + "\n";
        match lag {
            None => self.world.append(&path, &text),
            Some(lag) => drop(self.lagging.send((Instant::now() + lag, path, text))),
        }
    }

    pub(super) fn spend(&self, cost: f64) {
        *lock(&self.cost) += cost;
    }

    pub(super) fn cost(&self) -> f64 {
        *lock(&self.cost)
    }

    /// A turn begins, which an interrupt ends.
    pub(super) fn begin_turn(&self) {
        *lock(&self.interrupt) = CancellationToken::new();
    }

    /// Waits for something, unless the turn is interrupted meanwhile.
    pub(super) async fn unless_interrupted<T>(&self, future: impl Future<Output = T>) -> Result<T, Halt> {
        let interrupt = lock(&self.interrupt).clone();
        tokio::select! {
            biased;
            () = interrupt.cancelled() => Err(Halt::Interrupted),
            value = future => Ok(value),
        }
    }

    /// The answer to a request; nothing once standard input is at its end.
    pub(super) async fn answer(&self, request: &str) -> Option<Value> {
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if let Some(answer) = lock(&self.answers).remove(request) {
                return Some(answer);
            }
            if *self.is_at_end.borrow() {
                return None;
            }
            answered.await;
        }
    }

    /// Stands at a gate until it is opened. It is reached once the host has read everything that was said before: the host
    /// answers a request that it does not know.
    pub(super) async fn stand_at(&self, gate: &str) -> Result<(), Halt> {
        let request = uuid();
        let asked = json!({"subtype": "fake_gate", "gate": gate});
        self.say(json!({"type": "control_request", "request_id": request, "request": asked}));
        self.unless_interrupted(async {
            self.answer(&request).await;
            self.world.stand_at(gate).await;
        })
        .await
    }

    /// Comes to a place in a turn where something may go wrong.
    pub(super) async fn at(&self, moment: ClaudeMoment) -> Result<(), Halt> {
        while let Some(fault) = self.world.fault_at(moment) {
            match fault {
                ClaudeFault::Kill => return Err(Halt::End(End::Killed)),
                ClaudeFault::Stop => return Err(Halt::End(End::Stopped)),
                ClaudeFault::Hang => return self.unless_interrupted(std::future::pending()).await,
                ClaudeFault::Garbage => drop(self.output.send(b"this is { no line of mine\n".to_vec())),
                ClaudeFault::Line(mut line) => {
                    line.push(b'\n');
                    drop(self.output.send(line));
                }
                ClaudeFault::HalfLine => {
                    drop(self.output.send(b"{\"type\":\"assistant\",\"message\":{\"id\":".to_vec()));
                    return Err(Halt::End(End::Killed));
                }
                ClaudeFault::Exit(status, stderr) => {
                    return Err(Halt::End(End::Exit(status, stderr)));
                }
                ClaudeFault::CloseInput => close_input(self.reader).await,
                ClaudeFault::Slow(pause) => sleep(pause).await,
                ClaudeFault::Lag(lag) => {
                    *lock(&self.lag) = Some(lag);
                }
            }
        }
        Ok(())
    }

    /// Closes standard input if it is to be closed at this moment: before a request whose answer must not be read.
    pub(super) async fn close_input_at(&self, moment: ClaudeMoment) {
        if self.world.take_fault(moment, &ClaudeFault::CloseInput) {
            close_input(self.reader).await;
        }
    }
}

/// Closes standard input: whatever was written to it and not read is lost, and nothing can be written any more.
async fn close_input(reader: u32) {
    let Some(pid) = i32::try_from(reader).ok().and_then(Pid::from_raw) else { return };
    // Children that were forked while the pipe was made have it until they run their program. Its other end knows when the last is gone.
    let other_end = pipe::OpenOptions::new().open_sender(format!("/proc/{reader}/fd/5"));
    let _ended = kill_process(pid, Signal::KILL);
    match other_end {
        Ok(other_end) => drop(other_end.ready(Interest::ERROR).await),
        // There is no /proc, or the reader has ended before.
        Err(_) => {
            while test_kill_process(pid).is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// Writes what lags, in order and when it is due; what is due after the end of the process, too.
async fn write_late(world: Arc<World>, mut late: mpsc::UnboundedReceiver<(Instant, PathBuf, String)>) {
    while let Some((due, path, text)) = late.recv().await {
        sleep_until(due).await;
        world.append(&path, &text);
    }
}

/// Prints lines until there will be no more.
async fn print(mut output: OwnedWriteHalf, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if output.write_all(&line).await.is_err() {
            return;
        }
    }
    drop(output.shutdown().await);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        cell::Cell,
        io::{ErrorKind, Write},
        process::Stdio,
    };

    use tokio::{io::BufReader, process::Command};

    use super::*;

    #[tokio::test]
    async fn input_is_closed_once_no_child_has_it_any_more() {
        let (read, mut write) = std::io::pipe().unwrap();
        let of_a_child = read.try_clone().unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", "exec 5<&0; echo ready; read -r line <&5"]).stdin(read).stdout(Stdio::piped());
        let mut reader = command.spawn().unwrap();
        drop(command);
        let id = reader.id().unwrap();
        BufReader::new(reader.stdout.take().unwrap()).read_line(&mut String::new()).await.unwrap();
        let is_last_gone = Cell::new(false);
        let last = async {
            reader.wait().await.unwrap();
            // Time for whoever takes the reader for the last.
            sleep(Duration::from_millis(50)).await;
            is_last_gone.set(true);
            drop(of_a_child);
        };
        let closing = async {
            close_input(id).await;
            assert!(is_last_gone.get(), "a child still has it");
        };
        tokio::join!(last, closing);
        assert_eq!(write.write_all(b"lost").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

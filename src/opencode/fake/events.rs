//! The event streams: who listens, and how frames get to them.

use std::{collections::VecDeque, io, sync::Arc};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use tokio::{sync::mpsc, time::Instant};

use super::{Fault, Shared, options::Flavour};
use crate::deadline::reached;

/// What a listener is told.
#[derive(Debug, Clone)]
pub(super) enum Signal {
    /// One event, framed.
    Frame(Bytes),
    /// The stream ends in good order.
    End,
    /// The connection breaks.
    Cut,
    /// Nothing more is sent, yet the stream stays open.
    Silence,
}

/// One open event stream.
#[derive(Debug)]
pub(super) struct Listener {
    id: u64,
    /// `None` listens to all directories.
    directory: Option<String>,
    sender: mpsc::UnboundedSender<Signal>,
}

/// All open event streams.
#[derive(Debug, Default)]
pub(super) struct Bus {
    listeners: Vec<Listener>,
    next_id: u64,
}

impl Bus {
    pub(super) fn listen(&mut self, directory: Option<String>) -> (u64, mpsc::UnboundedReceiver<Signal>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.next_id += 1;
        self.listeners.push(Listener { id: self.next_id, directory, sender });
        (self.next_id, receiver)
    }

    pub(super) fn forget(&mut self, id: u64) {
        self.listeners.retain(|listener| listener.id != id);
    }

    /// Tells the listeners of one directory; `None` stands for those of all directories.
    pub(super) fn tell(&self, directory: Option<&str>, signal: &Signal) {
        self.tell_those(|listener| listener.directory.as_deref() == directory, signal);
    }

    pub(super) fn has_global(&self) -> bool {
        self.listeners.iter().any(|listener| listener.directory.is_none())
    }

    /// Breaks, ends or silences every stream.
    pub(super) fn tell_everyone(&self, signal: &Signal) {
        self.tell_those(|_| true, signal);
    }

    fn tell_those(&self, is_meant: impl Fn(&Listener) -> bool, signal: &Signal) {
        for listener in self.listeners.iter().filter(|listener| is_meant(listener)) {
            // A listener that is gone is forgotten when its body is dropped.
            drop(listener.sender.send(signal.clone()));
        }
    }
}

/// An event, with its fields in the order in which the server writes them.
#[derive(Serialize)]
pub(super) struct Event<'a> {
    /// Old releases give none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    #[serde(serialize_with = "in_order")]
    pub(super) properties: &'a Map<String, Value>,
}

/// An event as `/global/event` sends it.
#[derive(Serialize)]
pub(super) struct GlobalEvent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) project: Option<&'a str>,
    pub(super) payload: &'a Event<'a>,
}

/// The properties whose order differs from that of the alphabet.
const ORDER: [&str; 7] = ["sessionID", "info", "part", "messageID", "partID", "field", "delta"];

fn in_order<S: Serializer>(properties: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut properties: Vec<_> = properties.iter().collect();
    let place = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
    properties.sort_by_key(|(name, _)| place(name));
    serializer.collect_map(properties)
}

pub(super) fn frame(payload: &impl Serialize) -> Bytes {
    let mut frame = b"data: ".to_vec();
    // Writing plain values into memory does not fail.
    drop(serde_json::to_writer(&mut frame, payload));
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// The body of `/event` (with a directory) or `/global/event` (without).
pub(super) fn body(
    shared: &Arc<Shared>,
    directory: Option<String>,
    fault: Option<Fault>,
    request: usize,
) -> Body {
    let flavour = shared.options.flavour;
    let global = directory.is_none();
    let (id, receiver) = shared.world().bus.listen(directory);
    shared.recorder.change(|log| log.open_streams += 1);
    let server_frame = move |shared: &Shared, kind: &str| {
        let id = (flavour != Flavour::V1_1).then(|| shared.world().clock.ascending("evt"));
        let event = Event { id, kind, properties: &Map::new() };
        if global {
            frame(&GlobalEvent { directory: None, project: None, payload: &event })
        } else {
            frame(&event)
        }
    };
    let mut wire = Wire::new(fault);
    wire.event(server_frame(shared, "server.connected"));
    let heartbeat = (flavour != Flavour::V1_1).then_some(shared.options.heartbeat);
    let guard = Guard { shared: Arc::clone(shared), id, request };
    let state = (guard, receiver, wire, heartbeat.map(|every| Instant::now() + every));
    Body::from_stream(stream::unfold(state, move |(guard, mut receiver, mut wire, mut beat)| async move {
        let killed = guard.shared.killed();
        let mut batch = Vec::new();
        loop {
            if let Some(chunk) = wire.take() {
                if chunk.is_err() {
                    // Lets the connection write out what came before, which it would drop with the error.
                    tokio::task::yield_now().await;
                }
                guard.count(&chunk);
                return Some((chunk, (guard, receiver, wire, beat)));
            }
            if wire.finished {
                return None;
            }
            tokio::select! {
                biased;
                () = killed.cancelled() => wire.signal(Signal::Cut),
                n_signals = receiver.recv_many(&mut batch, 256) => {
                    if n_signals == 0 {
                        wire.signal(Signal::End);
                    }
                    for signal in batch.drain(..) {
                        wire.signal(signal);
                    }
                }
                () = reached(beat) => {
                    wire.event(server_frame(&guard.shared, "server.heartbeat"));
                    beat = heartbeat.map(|every| Instant::now() + every);
                }
            }
        }
    }))
}

/// Leaves the bus when the connection is gone.
struct Guard {
    shared: Arc<Shared>,
    id: u64,
    request: usize,
}

impl Guard {
    fn count(&self, chunk: &Result<Bytes, io::Error>) {
        if let Ok(bytes) = chunk {
            let sent = bytes.len() as u64;
            self.shared.recorder.change(|log| {
                if let Some(request) = log.request_mut(self.request) {
                    request.bytes_out += sent;
                }
            });
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.world().bus.forget(self.id);
        self.shared.recorder.change(|log| log.open_streams -= 1);
    }
}

/// Turns signals into chunks of the body, with the stream's fault in between.
struct Wire {
    fault: Option<Fault>,
    out: BytesMut,
    ready: VecDeque<Result<Bytes, io::Error>>,
    held: Option<Bytes>,
    events: usize,
    bytes: usize,
    silent: bool,
    finished: bool,
}

impl Wire {
    fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            out: BytesMut::new(),
            ready: VecDeque::new(),
            held: None,
            events: 0,
            bytes: 0,
            silent: false,
            finished: false,
        }
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::Frame(frame) => self.event(frame),
            Signal::End => self.end(),
            Signal::Cut => self.cut(),
            Signal::Silence => self.silent = true,
        }
    }

    fn event(&mut self, frame: Bytes) {
        match self.fault {
            Some(Fault::DuplicateEvents) => {
                self.send(&frame);
                self.send(&frame);
            }
            Some(Fault::ReorderEvents) if self.events > 0 => match self.held.take() {
                None => self.held = Some(frame),
                Some(held) => {
                    self.send(&frame);
                    self.send(&held);
                }
            },
            _ => self.send(&frame),
        }
    }

    fn send(&mut self, frame: &[u8]) {
        if self.silent || self.finished {
            return;
        }
        let room = match self.fault {
            Some(Fault::CutAfterBytes(limit)) => limit.saturating_sub(self.bytes).min(frame.len()),
            _ => frame.len(),
        };
        self.out.extend_from_slice(&frame[..room]);
        self.bytes += room;
        self.events += 1;
        match self.fault {
            Some(Fault::CutAfterEvents(limit)) if self.events >= limit => self.cut(),
            Some(Fault::CutAfterBytes(limit)) if self.bytes >= limit => self.cut(),
            Some(Fault::EndAfterEvents(limit)) if self.events >= limit => self.end(),
            Some(Fault::SilenceAfterEvents(limit)) if self.events >= limit => self.silent = true,
            _ => {}
        }
    }

    fn end(&mut self) {
        if !self.finished {
            if let Some(held) = self.held.take() {
                self.send(&held);
            }
            self.flush();
            self.finished = true;
        }
    }

    fn cut(&mut self) {
        if !self.finished {
            self.flush();
            let reset = io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test");
            self.ready.push_back(Err(reset));
            self.finished = true;
        }
    }

    fn flush(&mut self) {
        if !self.out.is_empty() {
            self.ready.push_back(Ok(self.out.split().freeze()));
        }
    }

    fn take(&mut self) -> Option<Result<Bytes, io::Error>> {
        if !self.finished {
            self.flush();
        }
        self.ready.pop_front()
    }
}

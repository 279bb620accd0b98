//! Ctrl-C, and the other ways to tell a program to end.

use std::{fs, future::Future};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Every Ctrl-C from now on, none lost between two looks. The program no longer ends by itself.
///
/// SIGTERM and SIGHUP count as Ctrl-C: what was started is in process groups of its own, and would outlive a program that just dies.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// None if the caller wants the program to outlive its terminal, as `nohup` does.
    hang_up: Option<Signal>,
}

impl Interrupts {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the operating system does not let it.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error: std::io::Error| Failure::because("cannot listen for Ctrl-C", &error))
        };
        let hang_up = SignalKind::hangup();
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: if is_ignored(hang_up) { None } else { Some(listen(hang_up)?) },
        })
    }

    /// Waits for the next.
    ///
    /// # Cancel safety
    /// None is lost.
    pub async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        // They end only with the runtime.
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hang_up => {}
        }
    }

    /// What `work` comes to; nothing if an interrupt comes first, which drops it.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.next() => None,
            done = work => Some(done),
        }
    }
}

/// Whether the program was started with a signal ignored. Only Linux tells.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (kind.as_raw_value() - 1) & 1 == 1
}

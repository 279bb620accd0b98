//! Ctrl-C.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Every Ctrl-C from now on, none lost between two looks. The program no longer ends by itself.
#[derive(Debug)]
pub struct Interrupts(Signal);

impl Interrupts {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the operating system does not let it.
    pub fn listen() -> Result<Self, Failure> {
        signal(SignalKind::interrupt())
            .map(Self)
            .map_err(|error| Failure::because("cannot listen for Ctrl-C", &error))
    }

    /// Waits for the next.
    ///
    /// # Cancel safety
    /// None is lost.
    pub async fn next(&mut self) {
        // It ends only with the runtime.
        let _: Option<()> = self.0.recv().await;
    }
}

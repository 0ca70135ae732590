//! Shutdown of a process: on SIGTERM from the kubelet, SIGINT from a terminal, or a failed part of the process.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A flag on which many tasks wait, and which is set once. Clones share it.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

impl Shutdown {
    /// A flag that is unset until [`Shutdown::trigger`].
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// A flag that the first SIGTERM or SIGINT sets. It needs a running tokio runtime.
    ///
    /// # Errors
    /// If the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::new();
        let flag = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("shutting down");
            flag.trigger();
        });
        Ok(shutdown)
    }

    /// Sets the flag. A second call has no effect.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the flag is set, at once if it is already.
    pub async fn wait(&self) {
        // It fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|raised| *raised).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

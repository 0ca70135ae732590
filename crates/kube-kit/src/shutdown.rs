//! The wish to end: SIGTERM from the kubelet, SIGINT from a terminal, or a failed part of the process.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A flag that many tasks wait on and that goes up once. Clones share it.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

impl Shutdown {
    /// A flag that is down until [`Shutdown::trigger`].
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// A flag that goes up at the first SIGTERM or SIGINT. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the signal handlers can't be installed.
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

    /// Raises the flag. Raising it twice does nothing.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the flag is up, at once if it is already.
    pub async fn wait(&self) {
        // An error would mean that every sender is gone, and `self` is one.
        let _ = self.0.subscribe().wait_for(|raised| *raised).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

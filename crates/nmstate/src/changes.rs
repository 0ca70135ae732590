//! Events of possible changes of the host, from the kernel and NetworkManager.
//!
//! ```text
//! rtnetlink: links, addresses, routes ──┐
//! NetworkManager: signals on the bus ───┴──> something changed
//!                 its name on the bus ─────> it started: failed changes are retried
//! ```
//!
//! Neighbour events are ignored: they are frequent, and reports do not include neighbours.

mod bus;
mod kernel;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use linux::backoff::Backoff;
use tokio::sync::{Notify, watch};

pub use bus::{Bus, Event};
pub use kernel::Kernel;

use crate::engine::Backend;

/// Back-off before a listener is opened again. The return of the bus causes no event, and an attempt is cheap.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// A listener that worked for longer than this is reopened after the first delay.
const STABLE: Duration = Duration::from_secs(60);

/// Notifies `changed` of each possible change of the host, in the network namespace of the calling thread, and counts
/// in `starts` each possible start of NetworkManager. Never returns: a listener that fails is opened again.
pub async fn follow(changed: Arc<Notify>, starts: Arc<watch::Sender<u64>>, backend: Backend) {
    let kernel = listen("the kernel", &changed, async || {
        // The socket opens synchronously, in the namespace of this thread.
        let mut kernel = Kernel::open()?;
        changed.notify_one();
        loop {
            kernel.changed().await?;
            changed.notify_one();
        }
    });
    let bus = async {
        if backend == Backend::NetworkManager {
            listen("NetworkManager", &changed, async || {
                let mut bus = Bus::open(None).await?;
                // NetworkManager may have started together with its bus.
                let mut event = Event::Started;
                loop {
                    if event == Event::Started {
                        starts.send_modify(|count| *count += 1);
                    }
                    changed.notify_one();
                    event = bus.changed().await?;
                }
            })
            .await;
        }
    };
    tokio::join!(kernel, bus);
}

/// Reopens a listener when it ends; something may have changed meanwhile.
async fn listen<F>(source: &str, changed: &Notify, mut attempt: impl FnMut() -> F)
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut backoff = BACKOFF;
    let mut last_error = String::new();
    loop {
        let began = tokio::time::Instant::now();
        let ended = attempt().await;
        if began.elapsed() > STABLE {
            backoff.reset();
            last_error.clear();
        }
        let pause = backoff.next_delay();
        if let Err(error) = ended {
            let error = format!("{error:#}");
            // A repeated error is logged only at debug level.
            if error == last_error {
                tracing::debug!(source, error, retry = ?pause, "cannot listen for changes");
            } else {
                tracing::warn!(source, error, retry = ?pause, "cannot listen for changes");
                last_error = error;
            }
        }
        changed.notify_one();
        tokio::time::sleep(pause).await;
    }
}

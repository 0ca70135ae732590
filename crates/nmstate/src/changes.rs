//! What may have changed on the host, told by those who know: the kernel and `NetworkManager`.
//!
//! ```text
//! rtnetlink: links, addresses, routes ──┐
//! NetworkManager: signals on the bus ───┴──> something changed
//!                 its name on the bus ─────> it started: what failed without it is tried again
//! ```
//!
//! Neighbours are left out: they come and go all the time, and no report has them.

mod bus;
mod kernel;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

pub use bus::{Bus, News};
pub use kernel::Kernel;

use crate::engine::Backend;

/// Pauses before another attempt to listen: the first, and the longest. A bus that is back announces nothing,
/// and a question costs next to nothing.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// A listener that worked for longer than this begins anew with the shortest pause.
const STABLE: Duration = Duration::from_secs(60);

/// Tells `changed` whenever something on the host may have changed, in the network namespace of the calling thread, and
/// counts in `starts` whenever `NetworkManager` may have started. Never returns: a listener that fails is opened again.
pub async fn follow(changed: Arc<Notify>, starts: Arc<watch::Sender<u64>>, backend: Backend) {
    let kernel = listen("the kernel", &changed, async || {
        // What is done for one namespace alone, and at once.
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
                // It may have come back with its bus.
                let mut news = News::Started;
                loop {
                    if news == News::Started {
                        starts.send_modify(|count| *count += 1);
                    }
                    changed.notify_one();
                    news = bus.changed().await?;
                }
            })
            .await;
        }
    };
    tokio::join!(kernel, bus);
}

/// Listens again when listening ends; what happened in between may have changed something.
async fn listen<F>(whom: &str, changed: &Notify, mut attempt: impl FnMut() -> F)
where
    F: Future<Output = anyhow::Result<()>>,
{
    let (shortest, longest) = PAUSES;
    let mut pause = shortest;
    let mut told = String::new();
    loop {
        let began = tokio::time::Instant::now();
        if let Err(error) = attempt().await {
            let error = format!("{error:#}");
            // The same again at each attempt says nothing new.
            if error == told {
                tracing::debug!(whom, error, retry = ?pause, "cannot listen for changes");
            } else {
                tracing::warn!(whom, error, retry = ?pause, "cannot listen for changes");
                told = error;
            }
        }
        changed.notify_one();
        if began.elapsed() > STABLE {
            pause = shortest;
            told.clear();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

//! What may have changed on the host, told by those who know: the kernel and `NetworkManager`.
//!
//! ```text
//! rtnetlink: links, addresses, routes ──┐
//! NetworkManager: signals on the bus ───┴──> something changed
//! ```
//!
//! Neighbours are left out: they come and go all the time, and no report has them.

mod bus;
mod kernel;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use bus::Bus;
pub use kernel::Kernel;

use crate::engine::Backend;

/// Pauses before another attempt to listen: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Tells `changed` whenever something on the host may have changed, in the network namespace of the calling thread.
/// Ends never: what can't be listened to is tried again.
pub async fn follow(changed: Arc<Notify>, backend: Backend) {
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
                changed.notify_one();
                loop {
                    bus.changed().await?;
                    changed.notify_one();
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
    loop {
        let began = tokio::time::Instant::now();
        if let Err(error) = attempt().await {
            tracing::warn!(whom, error = %format!("{error:#}"), retry = ?pause, "cannot listen for changes");
        }
        changed.notify_one();
        if began.elapsed() > longest {
            pause = shortest;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

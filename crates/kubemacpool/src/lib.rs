//! `weft kubemacpool`: allocates MAC addresses of virtual machines and of pods' secondary networks without collisions
//! (`docs/behaviour/kubemacpool.md`).
//!
//! ```text
//! API server ── AdmissionReview ──> server, reviews: pods, machines ──> patch
//!     │                                 │ Draft
//!     ├── pods, virtual machines ──> Pool: pending, stored <── healing
//!     ├── instances, pods ─────────> collisions ──> events, metrics
//!     ├── namespaces, webhook configuration ──> which namespaces are managed
//!     └── ConfigMap ───────────────> range
//! ```
//!
//! One process has one [`state::State`] behind one lock. `watches` feed it; the webhooks read and write it. The
//! program polls only discovery, every few minutes while KubeVirt is not installed. In its other mode it manages the
//! webhooks' [`certificates`].

mod annotation;
pub mod certificates;
pub mod cli;
pub mod collisions;
mod decide;
mod healing;
mod kubevirt;
mod machines;
pub mod manager;
mod messages;
pub mod metrics;
mod names;
mod namespaces;
pub mod notices;
mod pods;
pub mod pool;
pub mod range;
mod range_config;
mod reviews;
pub mod server;
pub mod settings;
pub mod state;
mod timestamp;
mod watches;

pub use settings::Args;

use anyhow::Context as _;
use kube_kit::metrics::Requests;
use kube_kit::serve::DRAIN;
use kube_kit::shutdown::Shutdown;
use kube_kit::{client, process};

use manager::Manager;
use settings::Settings;

/// Runs the manager, or the certificate manager if the environment selects it, until SIGTERM or SIGINT.
///
/// # Errors
/// If flags or environment are invalid, an address is taken, or the client of the cluster cannot be created. Errors of
/// the API server are retried.
pub async fn run(args: Args) -> anyhow::Result<()> {
    process::end_on_panic();
    let environment = |name: &str| std::env::var(name).ok();
    let connect =
        |requests| client::counted_client_from(names::COMPONENT, args.kubeconfig.as_deref(), requests);
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    if certificates::is_wanted(environment) {
        let settings = certificates::Settings::read(environment)?;
        certificates::run(&settings, connect(&Requests::default()).await?, &shutdown).await;
        return Ok(());
    }
    let settings = Settings::read(&args, environment)?;
    let several = args.replicas > 1;
    let manager = Manager::new(settings)?;
    let client = connect(manager.requests()).await?;
    let running = manager.start(client).await?;
    shutdown.wait().await;
    if several {
        tokio::time::sleep(DRAIN).await;
    }
    running.stop().await;
    Ok(())
}

//! `weft kubemacpool`: addresses of virtual machines and of pods' networks, without collisions
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
//! One process, one [`state::State`] behind one lock. [`watches`] feed it; the webhooks read and write it. The program asks
//! for KubeVirt every few minutes where there was none, and polls nothing else. In its other mode it keeps the webhooks'
//! [`certificates`].

pub mod annotation;
pub mod certificates;
pub mod cli;
pub mod collisions;
pub mod decide;
pub mod healing;
pub mod kubevirt;
pub mod mac;
pub mod machines;
pub mod manager;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod namespaces;
pub mod notices;
pub mod pods;
pub mod pool;
pub mod range;
pub mod range_config;
pub mod reviews;
pub mod server;
pub mod settings;
pub mod state;
pub mod timestamp;
pub mod watches;

pub use settings::Args;

use std::time::Duration;

use anyhow::Context as _;
use kube_kit::metrics::Requests;
use kube_kit::shutdown::Shutdown;
use kube_kit::{client, process};

use manager::Manager;
use settings::Settings;

/// How long one of several managers is still asked when it is to end, until everybody knows that.
const STILL_ASKED: Duration = Duration::from_secs(2);

/// Runs the manager, or the certificate manager when the environment asks for it, until SIGTERM or SIGINT.
///
/// # Errors
/// When flags or environment make no sense, an address can't be listened on, or there is no way to the cluster. A
/// failing API server is no error: it is tried again.
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
        tokio::time::sleep(STILL_ASKED).await;
    }
    running.stop().await;
    Ok(())
}

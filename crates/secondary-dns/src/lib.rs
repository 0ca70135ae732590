//! `weft secondary-dns`: DNS names for virtual machines on secondary networks (`docs/behaviour/secondary-dns.md`).
//!
//! ```text
//! API server ── instances ──> monitor ──> model ──> publish: zone files ─────────> auto ──┐
//!                                          │                                              ▼
//!                                          └── all in one ──────────────────────────────> zone: found in lower case
//!                                                                                         │
//! resolver ── UDP, TCP ──> server ──────────> answer <────────────────────────────────────┘
//! ```
//!
//! The program has three modes: `monitor` writes zone files, `serve` answers from the files of a Corefile, and
//! `all-in-one` does both without reading files.

pub mod answer;
mod auto;
mod claims;
pub mod cli;
pub mod configuration;
pub mod corefile;
mod http;
mod launchers;
mod messages;
pub mod metrics;
pub mod model;
pub mod monitor;
mod names;
mod publish;
pub mod query_log;
pub mod serve;
pub mod server;
pub mod settings;
pub mod vmi;
pub mod zone;

pub use settings::{Args, Mode};

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use hickory_proto::rr::Name;
use kube_kit::serve::Readiness;
use kube_kit::shutdown::Shutdown;
use kube_kit::{client, process};

use answer::{Block, SharedZones, Site};
use configuration::Configuration;
use http::Purpose;
use metrics::Metrics;
use monitor::{Monitor, Places};
use query_log::QueryLog;
use server::{Desk, Limits, Server};
use settings::Settings;

/// Runs the mode of arguments and environment until SIGTERM or SIGINT.
///
/// # Errors
/// If a setting is invalid, a port is taken, or the configuration of the client is missing. A failing API server is no
/// error: the program retries.
pub async fn run(args: Args) -> anyhow::Result<()> {
    process::end_on_panic();
    let environment = |name: &str| std::env::var(name).ok();
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let mode = args.mode(environment);
    let Args {
        mode: _,
        conf,
        all_in_one: _,
        kubeconfig,
        zones,
        config,
        zap: _,
    } = args;
    if mode == Mode::Serve {
        let corefile = conf.unwrap_or_else(|| PathBuf::from(names::COREFILE));
        return serve::run(&corefile, &shutdown).await;
    }
    let configuration = Configuration::read(config);
    let settings = Settings::read(configuration.lookup(&environment))?;
    let metrics = Metrics::default();
    let connect = client::counted_client_from(names::COMPONENT, kubeconfig.as_deref(), metrics.requests());
    let client = connect.await?;
    let readiness = Readiness::new();
    if mode == Mode::Monitor {
        let places = Places {
            memory: None,
            directory: Some(zones),
        };
        let _probes = http::monitor(names::MONITOR_PORT, &readiness, &metrics).await?;
        let monitor = Monitor::new(settings, places, readiness, metrics);
        tokio::select! {
            () = monitor::run(monitor, client, configuration, environment) => {}
            () = shutdown.wait() => {}
        }
        return Ok(());
    }
    let memory = SharedZones::default();
    let places = Places {
        memory: Some(Arc::clone(&memory)),
        directory: is_writable(&zones).then_some(zones),
    };
    metrics.describe(vec![Arc::clone(&memory)]);
    let _probes = http::monitor(names::MONITOR_PORT, &readiness, &metrics).await?;
    let mut probes = Vec::new();
    for (purpose, port) in [
        (Purpose::Health, names::HEALTH_PORT),
        (Purpose::Ready, names::READY_PORT),
    ] {
        let router = http::router(purpose, &readiness, &metrics);
        probes.push(kube_kit::serve::Server::on_port(port, router).await?);
    }
    // The server knows the names of zones before the first query, and the zones are not loaded yet.
    let monitor = Monitor::new(settings, places, readiness, metrics.clone());
    let desk = Desk {
        site: Arc::new(Mutex::new(everything(memory))),
        metrics,
        log: QueryLog::to_stdout().context("cannot start the query log")?,
    };
    let server = Server::start(names::DNS_PORT, &desk, Limits::default())?;
    tokio::select! {
        () = monitor::run(monitor, client, configuration, environment) => {}
        () = shutdown.wait() => {}
    }
    server.stop().await;
    Ok(())
}

/// All zones of any name. Queries are not logged.
pub fn everything(zones: SharedZones) -> Site {
    Site(vec![Block {
        below: Name::root(),
        zones,
        log: false,
    }])
}

/// Whether a writable directory for zone files exists: in `all-in-one`, only administrators read the files.
fn is_writable(directory: &Path) -> bool {
    use rustix::fs::{Access, access};
    directory.is_dir() && access(directory, Access::WRITE_OK).is_ok()
}

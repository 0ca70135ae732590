//! `weft check-endpoints`: connects to the endpoints of the checks whose source is its own pod, once a minute, and writes
//! what came of it into their statuses (cluster-network §13.4).
//!
//! ```text
//! checks ──> one prober each ── result ──> Pending ──> writers ──> status of the check
//!                                             ▲           │
//!                                             └── again ──┴──> events on the node of the pod
//! ```
//!
//! Each result is written at once. While the API server is away, results wait; an outage is never among those that are
//! dropped for want of room.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::connectivity_check::PodNetworkConnectivityCheck as Check;
use kube::{Api, Client};
use kube_kit::serve::{self, Bind, Certified, Limits, NoServer, Readiness};
use kube_kit::shutdown::Shutdown;
use kube_kit::tls::Profile;
use kube_kit::watch::{self, Change, DeserializeGuard, Options};
use kube_kit::{auth, client, process};
use tokio::task::JoinSet;

use crate::metrics::Metrics;
use crate::names;

mod probe;
mod write;

use probe::{Prober, Wanted};
use write::Writer;

/// How long the last results may take to be written when the end is wished for: less than a pod's grace period.
const GRACE: Duration = Duration::from_secs(10);
/// How many statuses are written at a time.
const WRITERS: usize = 4;
/// How often it is looked whether withheld events are to be summed up.
const SUMMARY: Duration = Duration::from_mins(1);

/// Flags of the program.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Where metrics and probes are served, over TLS
    #[arg(long, value_name = "ADDRESS", default_value = ":17698")]
    listen: String,
    /// Lowest version of TLS by its name in Go [default: that of TLS 1.2]
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    tls_min_version: String,
    /// Ciphers below TLS 1.3 by their names in Go, with commas between [default: all that are sound]
    #[arg(long, value_name = "CIPHERS", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

const ENVIRONMENT: &str = "\
POD_NAME and POD_NAMESPACE name the pod of the program: it makes the checks of
that namespace that have the pod as their source.";

/// Which checks are made, and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The pod of the program.
    pub pod: String,
    /// Its namespace, and that of the checks.
    pub namespace: String,
    /// How often an endpoint is checked.
    pub interval: Duration,
}

/// Makes checks until SIGTERM or SIGINT.
///
/// # Errors
/// When the environment does not name the pod, the address can't be listened on, or there is no way to the cluster. A
/// failing API server is no error: it is tried again.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        listen,
        tls_min_version,
        tls_cipher_suites,
        kubeconfig,
    } = args;
    process::end_on_panic();
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let bind: Bind = listen
        .parse()
        .with_context(|| format!("--listen {listen:?} is no address"))?;
    let settings = Settings {
        pod: variable(names::POD_NAME)?,
        namespace: variable(names::POD_NAMESPACE)?,
        interval: names::INTERVAL,
    };
    let metrics = Metrics::new(&settings.namespace);
    let requests = &metrics.requests;
    let client = client::counted_client_from(names::CHECK_ENDPOINTS, kubeconfig.as_deref(), requests).await?;
    let ready = Readiness::new();
    let figures = auth::guarded(metrics.router(), client.clone(), "/metrics");
    let certified = Certified {
        certificates: Some(names::SERVING_CERTIFICATE.into()),
        names: vec![names::SOURCE.to_owned()],
        profile: Profile::read(&tls_min_version, &tls_cipher_suites),
        http2: true,
        authorities: None,
        limits: Limits::default(),
    };
    let router = figures.merge(serve::probes(ready.clone()));
    let server = certified.serve(&bind, router, &Readiness::new()).await?;
    let server = server.ok_or(NoServer::Nowhere)?;
    tracing::info!(address = %server.address(), pod = settings.pod, "checking endpoints");
    check(client, settings, metrics, &ready, &shutdown).await;
    server.stop().await;
    Ok(())
}

fn variable(name: &str) -> anyhow::Result<String> {
    env::var(name)
        .ok()
        .filter(|value| !value.is_empty())
        .with_context(|| format!("the environment variable {name} is not set"))
}

/// Makes checks until the end is wished for; then writes what is not written yet.
pub async fn check(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    ready: &Readiness,
    shutdown: &Shutdown,
) {
    let checks: Api<DeserializeGuard<Check>> = Api::namespaced(client.clone(), &settings.namespace);
    let key = |metadata: &kube::core::ObjectMeta| metadata.name.clone().unwrap_or_default();
    let mut watch = watch::start(checks, &Options::all(), key, Wanted::of);
    let store = watch.store();
    let writer = Arc::new(Writer::new(client.clone(), &settings));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (writer, shutdown) = (Arc::clone(&writer), shutdown.clone());
        writers.spawn(async move { writer.run(&shutdown).await });
    }
    let prober = Arc::new(Prober::new(client, &settings, metrics, Arc::clone(&writer)));
    let mut probers = Probers::default();
    let mut summary = tokio::time::interval(SUMMARY);
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            _ = summary.tick() => writer.sum_up().await,
            change = watch.next() => match change {
                Some(Change::Applied(name)) => match store.get(&name) {
                    Some(wanted) if wanted.source_pod == settings.pod => probers.start(&prober, name, wanted),
                    _ => probers.stop(&prober, &name),
                },
                Some(Change::Deleted(name)) => probers.stop(&prober, &name),
                Some(Change::Synced) => ready.set(true),
                Some(Change::Invalid(..)) => {}
                // The watch never ends by itself.
                None => break,
            },
        }
    }
    drop(probers);
    // A write that is under way is finished: cut off, it would be made again, and its results be there twice.
    let finish = async {
        while writers.join_next().await.is_some() {}
        writer.flush().await;
    };
    if tokio::time::timeout(GRACE, finish).await.is_err() {
        tracing::warn!(results = writer.waiting(), "results could not be written in time");
    }
}

/// What runs for each check; a task ends when it is dropped.
#[derive(Default)]
struct Probers(HashMap<String, (Wanted, JoinSet<()>)>);

impl Probers {
    /// Probes an endpoint from now on, if it is not probed already.
    fn start(&mut self, prober: &Arc<Prober>, name: String, wanted: Wanted) {
        if self.0.get(&name).is_some_and(|(known, _)| *known == wanted) {
            return;
        }
        self.stop(prober, &name);
        let mut task = JoinSet::new();
        let (prober, check, endpoint) = (Arc::clone(prober), name.clone(), wanted.clone());
        task.spawn(async move { prober.run(&check, &endpoint).await });
        self.0.insert(name, (wanted, task));
    }

    fn stop(&mut self, prober: &Prober, name: &str) {
        if self.0.remove(name).is_some() {
            prober.forget(name);
        }
    }
}

/// Counts by reason.
type Counts = BTreeMap<&'static str, u64>;

//! `weft check-endpoints`: connects once a minute, and when `weft network check` requests it, to the endpoints of the
//! checks whose source is its own pod, and writes the results into their statuses (cluster-network §13.4).
//!
//! ```text
//! checks ──> one prober each ── result ──> Pending ──> writers ──> status of the check
//!                                             ▲           │
//!                                             └── retry ──┴──> events on the node of the pod
//! ```
//!
//! The writers write each result at once. While the API server is unreachable, results are pending. If pending results
//! are dropped for lack of space, each outage keeps at least one.

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
use program::terminal;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::metrics::Metrics;
use crate::names;

pub(crate) mod once;
mod probe;
mod schedule;
mod write;

use probe::{Observed, Prober};
use write::Writer;

/// Deadline for the last results after SIGTERM, shorter than the grace period of a pod.
const GRACE: Duration = Duration::from_secs(10);
/// Number of concurrent writers.
const WRITERS: usize = 4;
/// Interval between tests whether a summary of withheld events is due.
const SUMMARY: Duration = Duration::from_mins(1);

/// Flags of the program.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Address of metrics and probes, which are served over TLS
    #[arg(long, value_name = "ADDRESS", default_value = ":17698")]
    listen: String,
    /// Lowest version of TLS, by its Go name [default: `VersionTLS12`]
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    tls_min_version: String,
    /// Cipher suites below TLS 1.3, by their Go names, separated by commas [default: all secure suites]
    #[arg(long, value_name = "CIPHERS", value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    /// Kubeconfig file, for use outside of a pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Connect to this endpoint once, print the result as a line of JSON, and exit; for several endpoints, repeat it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) once: Vec<String>,
}

const ENVIRONMENT: &str = "\
POD_NAME and POD_NAMESPACE name the pod of the program. The program runs the
checks of that namespace that have the pod as their source.

With --once, the program needs neither these variables nor an API server.";

/// Settings of the program.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the program's own pod.
    pub pod: String,
    /// The namespace of the pod and of the checks.
    pub namespace: String,
    /// Interval between two checks of an endpoint.
    pub interval: Duration,
}

/// Runs checks until SIGTERM or SIGINT.
///
/// # Errors
/// If the environment does not name the pod, the listen address is in use, or the configuration of the client is
/// missing. A failing API server is no error: the program retries.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        listen,
        tls_min_version,
        tls_cipher_suites,
        kubeconfig,
        once: endpoints,
    } = args;
    process::end_on_panic();
    if !endpoints.is_empty() {
        return Ok(terminal::print(&once::check(&endpoints).await?)?);
    }
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let bind: Bind = listen
        .parse()
        .with_context(|| format!("--listen {listen:?} is not an address"))?;
    let settings = Settings {
        pod: variable(names::POD_NAME)?,
        namespace: variable(names::POD_NAMESPACE)?,
        interval: names::INTERVAL,
    };
    let metrics = Metrics::new(&settings.namespace);
    let requests = &metrics.requests;
    let client = client::counted_client_from(names::CHECK_ENDPOINTS, kubeconfig.as_deref(), requests).await?;
    let ready = Readiness::new();
    let metrics_router = auth::guarded(metrics.router(), client.clone(), "/metrics");
    let certified = Certified {
        certificates: Some(names::SERVING_CERTIFICATE.into()),
        names: vec![names::SOURCE.to_owned()],
        profile: Profile::read(&tls_min_version, &tls_cipher_suites),
        http2: true,
        authorities: None,
        limits: Limits::default(),
    };
    let router = metrics_router.merge(serve::probes(ready.clone()));
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

/// Runs checks until shutdown, and then writes the pending results.
pub async fn check(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    ready: &Readiness,
    shutdown: &Shutdown,
) {
    let checks: Api<DeserializeGuard<Check>> = Api::namespaced(client.clone(), &settings.namespace);
    let key = |metadata: &kube::core::ObjectMeta| metadata.name.clone().unwrap_or_default();
    let mut watch = watch::start(checks, &Options::all(), key, Observed::of);
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
                    Some(check) if check.wanted.source_pod == settings.pod => {
                        probers.observe(&prober, name, check);
                    }
                    _ => probers.stop(&prober, &name),
                },
                Some(Change::Deleted(name)) => probers.stop(&prober, &name),
                Some(Change::Synced) => ready.set(true),
                Some(Change::Invalid(..)) => {}
                // The watch ends only with the process.
                None => break,
            },
        }
    }
    drop(probers);
    // Running writes may finish, because only they publish the events of their results.
    let finish = async {
        while writers.join_next().await.is_some() {}
        writer.flush().await;
    };
    if tokio::time::timeout(GRACE, finish).await.is_err() {
        tracing::warn!(
            results = writer.waiting(),
            "cannot write all results before the deadline"
        );
    }
}

/// The tasks of the checks. A task ends when it is dropped.
#[derive(Default)]
struct Probers(HashMap<String, Probed>);

/// A check that a task runs.
struct Probed {
    check: Observed,
    /// Requests to run the check.
    requests: Arc<Notify>,
    _task: JoinSet<()>,
}

impl Probers {
    /// Starts to probe the endpoint of a check, or, if it is probed already, passes on a request.
    fn observe(&mut self, prober: &Arc<Prober>, name: String, check: Observed) {
        if let Some(probed) = self.0.get_mut(&name)
            && probed.check.wanted == check.wanted
        {
            if check.is_requested_since(&probed.check) {
                probed.requests.notify_one();
            }
            probed.check = check;
            return;
        }
        self.stop(prober, &name);
        let requests = Arc::new(Notify::new());
        let mut task = JoinSet::new();
        // The first probe is immediate, and serves a request that was made before.
        let (prober, own, wanted) = (Arc::clone(prober), name.clone(), check.wanted.clone());
        let requested = Arc::clone(&requests);
        task.spawn(async move { prober.run(&own, &wanted, requested).await });
        let probed = Probed {
            check,
            requests,
            _task: task,
        };
        self.0.insert(name, probed);
    }

    fn stop(&mut self, prober: &Prober, name: &str) {
        if self.0.remove(name).is_some() {
            prober.forget(name);
        }
    }
}

/// Counts by reason.
type Counts = BTreeMap<&'static str, u64>;

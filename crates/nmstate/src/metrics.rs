//! Metrics of all nodes, policies and enactments (nmstate §9).
//!
//! ```text
//! NodeNetworkState, policies, enactments ──> counts: the counted parts of each object ──> Snapshot
//!                                                                                            │
//! Prometheus ── HTTPS /metrics ──────────────────────────────────────────────────────> SnapshotCollector
//! ```
//!
//! Metrics are counted at each scrape, so that deleted objects leave no series. A kind that is not listed yet has no
//! metrics, rather than zeros.

mod counts;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use kube::{Api, Client, Resource};
use kube_kit::metrics::{Process, Requests};
use kube_kit::serve::{self, Bind, Certified, Limits, Readiness, Serving};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{self, DeserializeGuard, Options, Store, Watch};
use kube_kit::{auth, client, tls};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::names::{self, env};
use crate::{Args, settings, tls_profile};
use counts::{EnactmentCounts, PolicyCounts, ReportCounts, Snapshot};
use wire::{NodeNetworkConfigurationPolicy, NodeNetworkState};

#[cfg(test)]
mod tests;

/// Page size of the first list of node states: one may exceed a megabyte.
const STATES: u32 = 4;
/// Page size of the first lists of policies and enactments.
const POLICIES: u32 = 25;

/// A metric family.
#[derive(Clone, Copy, Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
}

const FEATURES: Family = Family {
    name: "kubernetes_nmstate_features_applied",
    help: "Number of nmstate features applied labeled by its name",
};
const INTERFACES: Family = Family {
    name: "kubernetes_nmstate_network_interfaces",
    help: "Number of network interfaces labeled by its type",
};
const ROUTES: Family = Family {
    name: "kubernetes_nmstate_routes",
    help: "Number of network routes labeled by node, IP stack and type (static/dynamic)",
};
const POLICY_STATUS: Family = Family {
    name: "kubernetes_nmstate_policies_status",
    help: "Number of NodeNetworkConfigurationPolicies labeled by their status condition",
};
const ENACTMENT_STATUS: Family = Family {
    name: "kubernetes_nmstate_enactments_status",
    help: "Number of NodeNetworkConfigurationEnactments labeled by node and status condition",
};

/// The metric families as JSON: an array of objects with `name`, `help` and `type`; 1 is a gauge, as in Prometheus'
/// data model.
pub fn families() -> String {
    const GAUGE: u8 = 1;
    let families = [FEATURES, INTERFACES, ROUTES, POLICY_STATUS, ENACTMENT_STATUS];
    let families = families.map(|Family { name, help }| json!({ "name": name, "help": help, "type": GAUGE }));
    json!(families).to_string()
}

/// Settings of the metrics server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on.
    pub bind: Bind,
    /// Directory of `tls.crt` and `tls.key`; `None` for a self-signed certificate.
    pub certificates: Option<PathBuf>,
    /// Namespace of the pod.
    pub namespace: String,
    /// TLS versions, ciphers and groups.
    pub profile: tls::Profile,
    /// Whether a client needs the right to `get` the path.
    pub guarded: bool,
}

impl Settings {
    /// Reads the settings through `variable`.
    ///
    /// # Errors
    /// If the address is invalid, or the TLS profile cannot be used.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let bind = given(env::METRICS_BIND_ADDRESS);
        let openshift = variable(env::IS_OPENSHIFT);
        let certificates = Path::new(names::METRICS_CERTIFICATES);
        let guarded = openshift.as_deref() == Some("true");
        Ok(Self {
            bind: bind.as_deref().unwrap_or(names::METRICS_ADDRESS).parse()?,
            certificates: guarded.then(|| certificates.to_owned()),
            namespace: given(env::POD_NAMESPACE).unwrap_or_default(),
            profile: tls_profile::of_servers(openshift.as_deref(), names::TLS_PROFILE)?,
            guarded,
        })
    }
}

/// Runs until SIGTERM.
///
/// # Errors
/// If a setting is invalid, the address is taken, or the client of the cluster cannot be created.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let settings = Settings::read(settings::variable)?;
    let requests = Requests::default();
    let client = client::counted_client_from(names::COMPONENT, args.kubeconfig.as_deref(), &requests).await?;
    let running = Running::start(settings, client, &requests).await?;
    shutdown.wait().await;
    running.stop().await;
    Ok(())
}

/// The watches and the server. They run until they are stopped or dropped.
#[derive(Debug)]
pub struct Running {
    serving: Option<Serving>,
    _reports: Watch<String, ReportCounts>,
    _policies: Watch<String, PolicyCounts>,
    _enactments: Watch<String, EnactmentCounts>,
}

impl Running {
    /// Starts both. `requests` are the metrics of the client.
    ///
    /// # Errors
    /// If the address is taken, or TLS cannot be set up.
    pub async fn start(settings: Settings, client: Client, requests: &Requests) -> anyhow::Result<Self> {
        let reports = follow(&client, STATES, |state: NodeNetworkState| {
            ReportCounts::of(&state)
        });
        let policies = follow(&client, POLICIES, |policy: NodeNetworkConfigurationPolicy| {
            PolicyCounts::of(&policy)
        });
        let enactments = follow(&client, POLICIES, EnactmentCounts::of);
        let (states, all, each) = (reports.store(), policies.store(), enactments.store());
        let source: Source = Arc::new(move || Snapshot {
            reports: listed(&states, |store| {
                let keys = store.keys().into_iter();
                keys.filter_map(|node| Some((node.clone(), store.get(&node)?)))
                    .collect()
            }),
            policies: listed(&all, Store::values),
            enactments: listed(&each, Store::values),
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(SnapshotCollector(source)));
        requests.register(&mut registry);
        Process.register(&mut registry);
        let mut router = serve::metrics(registry.into());
        if settings.guarded {
            router = auth::guarded(router, client, names::METRICS_PATH);
        }
        let server = Certified {
            certificates: settings.certificates,
            names: tls::service_names(names::METRICS_SERVICE, &settings.namespace),
            profile: settings.profile,
            http2: false,
            authorities: None,
            limits: Limits::default(),
        };
        let serving = server.serve(&settings.bind, router, &Readiness::new()).await;
        Ok(Self {
            serving: serving.context("the metrics")?,
            _reports: reports,
            _policies: policies,
            _enactments: enactments,
        })
    }

    /// Address of the server, unless it is disabled.
    pub fn address(&self) -> Option<SocketAddr> {
        self.serving.as_ref().map(Serving::address)
    }

    /// Closes the listener, and waits for the current requests.
    pub async fn stop(self) {
        if let Some(serving) = self.serving {
            serving.stop().await;
        }
    }
}

/// Watches all objects of a kind, and keeps their projections.
fn follow<K, T>(client: &Client, page: u32, project: impl FnMut(K) -> T + Send + 'static) -> Watch<String, T>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    T: Send + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let options = Options::all().page(page);
    watch::start(
        api,
        &options,
        |metadata| metadata.name.clone().unwrap_or_default(),
        project,
    )
    .quiet()
}

/// The content of a store, once all objects are listed.
fn listed<T, R>(store: &Store<String, T>, read: impl FnOnce(&Store<String, T>) -> R) -> Option<R> {
    store.is_synced().then(|| read(store))
}

/// Takes a snapshot; called at each scrape.
type Source = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// Counts a snapshot at each scrape.
struct SnapshotCollector(Source);

impl fmt::Debug for SnapshotCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SnapshotCollector")
    }
}

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Snapshot {
            reports,
            policies,
            enactments,
        } = (self.0)();
        if let Some(enactments) = enactments {
            let features = counts::features(&enactments).into_iter();
            let features = features.map(|name| ([("name", name)], 1));
            family(&mut encoder, FEATURES, features)?;
            let statuses = counts::enactments(&enactments).into_iter();
            let statuses =
                statuses.map(|((node, status), count)| ([("node", node), ("status", status)], count));
            family(&mut encoder, ENACTMENT_STATUS, statuses)?;
        }
        if let Some(policies) = policies {
            let statuses = counts::policies(&policies).into_iter();
            let statuses = statuses.map(|(status, count)| ([("status", status)], count));
            family(&mut encoder, POLICY_STATUS, statuses)?;
        }
        if let Some(reports) = reports {
            let interfaces = reports.iter().flat_map(|(node, report)| {
                let types = report.interfaces.iter();
                types.map(move |(kind, count)| ([("node", node.as_str()), ("type", &**kind)], *count))
            });
            family(&mut encoder, INTERFACES, interfaces)?;
            let routes = reports.iter().flat_map(|(node, report)| {
                let counts = report.routes.iter();
                counts.map(move |((stack, kind), count)| {
                    let labels = [("ip_stack", *stack), ("node", node.as_str()), ("type", *kind)];
                    (labels, *count)
                })
            });
            family(&mut encoder, ROUTES, routes)?;
        }
        Ok(())
    }
}

/// Encodes a family with its series. Labels are in the order of their names.
fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    Family { name, help }: Family,
    series: impl Iterator<Item = (L, u32)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

//! Metrics of all nodes, policies and enactments (nmstate §9).
//!
//! ```text
//! NodeNetworkState, policies, enactments ──> watches: of each object what counts ──> Figures
//!                                                                                       │
//! Prometheus ── HTTPS /metrics ──────────────────────────────────────────────────> Collector
//! ```
//!
//! Whatever is told is counted when somebody asks: so there are never figures of what is gone. What has not been listed
//! yet is not told, rather than told as nothing.

pub mod figures;
pub mod wire;

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
use figures::{Enactment, Figures, Policy, Report};
use wire::{NodeNetworkConfigurationPolicy, NodeNetworkState};

#[cfg(test)]
mod tests;

/// States of nodes that are asked for at a time by the first list: one may have more than a megabyte.
const STATES: u32 = 4;
/// Policies or enactments that are asked for at a time.
const POLICIES: u32 = 25;

/// A figure: its name, and what it means.
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

/// The metric families as JSON: an array of objects with `name`, `help` and `type`, which for gauges is 1, as
/// Prometheus' own model numbers them.
pub fn families() -> String {
    const GAUGE: u8 = 1;
    let families = [FEATURES, INTERFACES, ROUTES, POLICY_STATUS, ENACTMENT_STATUS];
    let families = families.map(|Family { name, help }| json!({ "name": name, "help": help, "type": GAUGE }));
    json!(families).to_string()
}

/// Where, as whom and to whom to serve.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub bind: Bind,
    /// Directory with `tls.crt` and `tls.key`; `None`: the certificate is one of its own.
    pub certificates: Option<PathBuf>,
    /// The namespace that it runs in.
    pub namespace: String,
    /// Versions, ciphers and groups.
    pub profile: tls::Profile,
    /// Whether only those are answered who may `get` the path.
    pub guarded: bool,
}

impl Settings {
    /// Reads the environment through `variable`.
    ///
    /// # Errors
    /// When the address is none, or on OpenShift the TLS profile can't be used.
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
/// When a variable makes no sense, it can't listen, or there is no way to the cluster.
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

/// Watches and their server, which run until they are stopped or dropped.
#[derive(Debug)]
pub struct Running {
    serving: Option<Serving>,
    _reports: Watch<String, Report>,
    _policies: Watch<String, Policy>,
    _enactments: Watch<String, Enactment>,
}

impl Running {
    /// Starts both. `requests` are those of the client, and told too.
    ///
    /// # Errors
    /// When it can't listen, or TLS can't be set up.
    pub async fn start(settings: Settings, client: Client, requests: &Requests) -> anyhow::Result<Self> {
        let reports = follow(&client, STATES, |state: NodeNetworkState| Report::of(&state));
        let policies = follow(&client, POLICIES, |policy: NodeNetworkConfigurationPolicy| {
            Policy::of(&policy)
        });
        let enactments = follow(&client, POLICIES, Enactment::of);
        let (states, all, each) = (reports.store(), policies.store(), enactments.store());
        let source: Source = Arc::new(move || Figures {
            reports: known(&states, |store| {
                let keys = store.keys().into_iter();
                keys.filter_map(|node| Some((node.clone(), store.get(&node)?)))
                    .collect()
            }),
            policies: known(&all, Store::values),
            enactments: known(&each, Store::values),
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Told(source)));
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

    /// Where the metrics are, if anywhere.
    pub fn address(&self) -> Option<SocketAddr> {
        self.serving.as_ref().map(Serving::address)
    }

    /// Takes no more connections, and ends when the requests under way are answered.
    pub async fn stop(self) {
        if let Some(serving) = self.serving {
            serving.stop().await;
        }
    }
}

/// Follows all objects of a kind. Of each stays what is made of it.
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

/// What a store says, once all objects were listed.
fn known<T, R>(store: &Store<String, T>, read: impl FnOnce(&Store<String, T>) -> R) -> Option<R> {
    store.is_synced().then(|| read(store))
}

/// Tells how things are; called at each scrape.
type Source = Arc<dyn Fn() -> Figures + Send + Sync>;

/// The figures, counted whenever somebody asks.
struct Told(Source);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Figures {
            reports,
            policies,
            enactments,
        } = (self.0)();
        if let Some(enactments) = enactments {
            let features = figures::features(&enactments).into_iter();
            let features = features.map(|name| ([("name", name)], 1));
            family(&mut encoder, FEATURES, features)?;
            let statuses = figures::enactments(&enactments).into_iter();
            let statuses =
                statuses.map(|((node, status), count)| ([("node", node), ("status", status)], count));
            family(&mut encoder, ENACTMENT_STATUS, statuses)?;
        }
        if let Some(policies) = policies {
            let statuses = figures::policies(&policies).into_iter();
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

/// Tells a figure with all its series. Labels are in the order of their names.
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

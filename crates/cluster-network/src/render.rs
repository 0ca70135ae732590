//! Renders the objects of a configuration: embedded YAML files, and steps that complete them. A step fails if the file
//! lacks its target (§7-§14).

mod cloud_network;
mod console_plugin;
mod dashboards;
mod egress_router;
mod frr;
mod hosted;
mod iptables_alerter;
mod network_metrics;
mod node_identity;
mod objects;
pub(crate) mod observability;
mod ovn;
mod parts;

use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use kube_kit::object::ObjectId;
use serde_json::{Value, json};

use crate::{
    additional_networks, defaults, facts::Facts, kube_proxy::Proxy, messages, names, settings::Settings,
};

pub use egress_router::{Owner as EgressRouterOwner, egress_router};
pub use objects::Error;
pub(crate) use parts::hash;

/// Input of the rendering.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The configuration, with its defaults.
    pub spec: &'a NetworkSpec,
    /// Connectivity checks, from the cluster configuration.
    pub diagnostics: &'a NetworkDiagnostics,
    /// The cluster.
    pub facts: &'a Facts,
    /// The operator's own settings.
    pub settings: &'a Settings,
}

/// A part of the network: objects that are rendered, kept and pruned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Attaches pods to additional networks.
    Multus,
    /// Metrics about the networks of pods.
    NetworkMetrics,
    /// Webhook that validates definitions of networks.
    AdmissionController,
    /// Network policies for additional networks.
    MultiNetworkPolicy,
    /// The network that all pods are in.
    DefaultNetwork,
    /// kube-proxy, which implements services.
    KubeProxy,
    /// Definitions of the additional networks.
    AdditionalNetworks,
    /// Connectivity checks.
    Diagnostics,
    /// Role for all users.
    PublicRole,
    /// Dashboards of OpenShift's web console.
    Dashboards,
    /// Gives each node of OVN-Kubernetes its own user.
    NodeIdentity,
    /// Policy that protects service blocks from changes.
    ServiceCidrs,
    /// Discovery of the operator's metrics by Prometheus.
    OperatorMetrics,
    /// Reports pods that use iptables.
    IptablesAlerter,
    /// FRR, which exchanges routes with routers outside of the cluster.
    Frr,
    /// Pages of OpenShift's web console.
    ConsolePlugin,
    /// Assigns private addresses of the cloud to nodes.
    CloudNetwork,
}

impl Part {
    /// All parts, in the order in which they are applied.
    pub const ALL: [Self; 17] = [
        Self::Multus,
        Self::NetworkMetrics,
        Self::AdmissionController,
        Self::MultiNetworkPolicy,
        Self::DefaultNetwork,
        Self::KubeProxy,
        Self::AdditionalNetworks,
        Self::Diagnostics,
        Self::PublicRole,
        Self::Dashboards,
        Self::NodeIdentity,
        Self::ServiceCidrs,
        Self::OperatorMetrics,
        Self::IptablesAlerter,
        Self::Frr,
        Self::ConsolePlugin,
        Self::CloudNetwork,
    ];

    /// Value of the part label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Multus => "multus",
            Self::NetworkMetrics => "network-metrics-daemon",
            Self::AdmissionController => "multus-admission-controller",
            Self::MultiNetworkPolicy => "multi-networkpolicy",
            Self::DefaultNetwork => "default-network",
            Self::KubeProxy => "kube-proxy",
            Self::AdditionalNetworks => "additional-networks",
            Self::Diagnostics => "network-diagnostics",
            Self::PublicRole => "public-role",
            Self::Dashboards => "dashboards",
            Self::NodeIdentity => "network-node-identity",
            Self::ServiceCidrs => "service-cidrs",
            Self::OperatorMetrics => "operator-metrics",
            Self::IptablesAlerter => "iptables-alerter",
            Self::Frr => "frr-k8s",
            Self::ConsolePlugin => "networking-console-plugin",
            Self::CloudNetwork => names::CLOUD_NETWORK,
        }
    }

    fn render(self, context: &Context<'_>) -> Result<Vec<Value>, Error> {
        let with_multus = context.spec.disable_multi_network != Some(true);
        match self {
            Self::Multus if with_multus => parts::multus(context),
            Self::NetworkMetrics if with_multus => network_metrics::objects(context),
            Self::AdmissionController if with_multus => parts::admission_controller(context),
            Self::MultiNetworkPolicy
                if with_multus && context.spec.use_multi_network_policy == Some(true) =>
            {
                parts::multi_network_policy(context)
            }
            Self::DefaultNetwork => default_network(context),
            Self::KubeProxy => kube_proxy(context),
            Self::Diagnostics if diagnostics_wanted(context) => parts::diagnostics(context),
            Self::PublicRole => parts::public_role(),
            Self::Dashboards if context.facts.openshift => Ok(dashboards::objects(context)),
            Self::NodeIdentity if has_node_identity(context) => node_identity::objects(context),
            Self::ServiceCidrs => parts::service_cidrs(),
            Self::OperatorMetrics if context.facts.monitoring => parts::operator_metrics(context),
            Self::IptablesAlerter if has_iptables_alerter(context) => iptables_alerter::objects(context),
            Self::Frr if has_frr(context) => frr::objects(context),
            Self::ConsolePlugin if context.facts.console_plugins => console_plugin::objects(context),
            Self::CloudNetwork if has_cloud_network(context) => cloud_network::objects(context),
            _ => Ok(Vec::new()),
        }
    }
}

/// Result of the rendering.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// Objects in the order in which they are applied.
    pub objects: Vec<Value>,
    /// Parts that cannot be rendered, with the error. The objects of these parts stay unchanged.
    pub failed: Vec<(Part, String)>,
    /// Objects that cannot be rendered, and stay unchanged.
    pub kept: Vec<ObjectId>,
}

/// Renders all parts. A part or an additional network that cannot be rendered does not block the others.
pub fn render(context: &Context<'_>) -> Rendered {
    let mut rendered = Rendered::default();
    for part in Part::ALL {
        let objects = if part == Part::AdditionalNetworks {
            networks(context, &mut rendered)
        } else {
            match part.render(context) {
                Ok(objects) => objects,
                Err(error) => {
                    rendered.failed.push((part, error.to_string()));
                    continue;
                }
            }
        };
        rendered.objects.extend(objects.into_iter().map(|mut object| {
            mark(&mut object, part, context);
            object
        }));
    }
    rendered
}

/// The Job that probes the MTU of the nodes, with its account (§4.3). The Job has no part, because the operator deletes
/// the Job after the result.
///
/// # Errors
/// If the embedded file is invalid.
pub fn mtu_prober(facts: &Facts, settings: &Settings) -> Result<Vec<Value>, Error> {
    parts::mtu_prober(facts, settings)
}

fn networks(context: &Context<'_>, rendered: &mut Rendered) -> Vec<Value> {
    let (mut objects, mut errors) = (Vec::new(), Vec::new());
    for network in &context.spec.additional_networks {
        match additional_networks::render(network) {
            Ok(network) => objects.push(network.object),
            Err(found) => {
                errors.extend(found);
                let namespace = additional_networks::namespace(network);
                let kind = kube_kit::object::NETWORK_ATTACHMENT_DEFINITION;
                rendered.kept.push(kind.object(Some(namespace), &network.name));
            }
        }
    }
    if !errors.is_empty() {
        let message = messages::invalid_additional_networks(&errors);
        rendered.failed.push((Part::AdditionalNetworks, message));
    }
    objects
}

fn default_network(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    match context.spec.default_network.kind.as_str() {
        names::WEFT => parts::pod_network(context),
        names::OVN_KUBERNETES => ovn::objects(context),
        unknown => {
            tracing::info!("NOTICE: Unknown network type {unknown}, ignoring");
            Ok(Vec::new())
        }
    }
}

/// True if each node gets its own user (§17.2). Only OVN-Kubernetes needs these users.
fn has_node_identity(context: &Context<'_>) -> bool {
    context.spec.default_network.kind == names::OVN_KUBERNETES
        && context.facts.ovn.config_maps.has_node_identity()
}

/// True if pods that use iptables are reported (§17.3). The report is about the nodes of OpenShift.
fn has_iptables_alerter(context: &Context<'_>) -> bool {
    context.facts.openshift && !context.facts.without_iptables_alerter
}

/// True if FRR is a provider of additional routing capabilities (§18.2).
fn has_frr(context: &Context<'_>) -> bool {
    let capabilities = context.spec.additional_routing_capabilities.as_ref();
    capabilities.is_some_and(|it| it.providers.iter().any(|provider| provider == names::FRR))
}

/// True if OVN-Kubernetes may request private addresses of the cloud (§18.5).
fn has_cloud_network(context: &Context<'_>) -> bool {
    context.spec.default_network.kind == names::OVN_KUBERNETES
        && cloud_network::supports(&context.facts.platform)
}

/// kube-proxy. On DPUs, OVN-Kubernetes implements no services: kube-proxy runs there, also if it is not configured
/// (§7.3).
fn kube_proxy(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let on_dpus = ovn::node::on_dpus(context)?;
    let is_configured = context.spec.deploy_kube_proxy == Some(true);
    if let Some(other) = &context.facts.foreign_kube_proxy {
        return if is_configured {
            Err(Error::Refused(messages::foreign_kube_proxy(other)))
        } else {
            Ok(Vec::new())
        };
    }
    if !is_configured && on_dpus.is_none() {
        return Ok(Vec::new());
    }
    if !is_configured && context.settings.kube_proxy_image.is_none() {
        return Err(Error::Refused(messages::NO_KUBE_PROXY_ON_DPUS.to_owned()));
    }
    let mut spec = context.spec.clone();
    defaults::fill_kube_proxy(&mut spec);
    let proxy = Proxy::of(&spec).map_err(Error::Refused)?;
    let mut objects = parts::kube_proxy(context, &proxy)?;
    if let Some(affinity) = on_dpus {
        let workload = objects::find(&mut objects, "DaemonSet", "openshift-kube-proxy")?;
        workload["spec"]["template"]["spec"]["affinity"] = affinity;
    }
    Ok(objects)
}

/// True if the connectivity checks run (§13.1). The legacy switch applies only if the cluster configuration has no
/// setting.
fn diagnostics_wanted(context: &Context<'_>) -> bool {
    if context.diagnostics.is_empty() {
        !context.spec.disable_network_diagnostics
    } else {
        context.diagnostics.mode != "Disabled"
    }
}

/// Adds the labels for watches and for the status.
fn mark(object: &mut Value, part: Part, context: &Context<'_>) {
    let management = context.facts.management.as_ref();
    let status_label = management.map_or(names::STAND_ALONE, |it| it.status_label.as_str());
    let is_workload = object["apiVersion"] == "apps/v1";
    let labels = &mut object["metadata"]["labels"];
    labels[names::PART_LABEL] = json!(part.label());
    if is_workload {
        if labels.get(names::STATUS_LABEL).is_none() {
            labels[names::STATUS_LABEL] = json!(status_label);
        }
        object["metadata"]["annotations"][names::VERSION_ANNOTATION] = json!(context.settings.version);
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

//! Renders the objects of a configuration: embedded YAML files, and steps that complete them. A step fails if the file
//! lacks its target (§7-§14).

mod console_plugin;
mod egress_router;
mod frr;
mod hosted;
mod node_identity;
mod objects;
mod ovn;
mod parts;

use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use kube_kit::object::ObjectId;
use serde_json::{Value, json};

use crate::{additional_networks, facts::Facts, kube_proxy::Proxy, messages, names, settings::Settings};

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
    /// Gives each node of OVN-Kubernetes its own user.
    NodeIdentity,
    /// Policy that protects service blocks from changes.
    ServiceCidrs,
    /// Discovery of the operator's metrics by Prometheus.
    OperatorMetrics,
    /// FRR, which exchanges routes with routers outside of the cluster.
    Frr,
    /// Pages of OpenShift's web console.
    ConsolePlugin,
}

impl Part {
    /// All parts, in the order in which they are applied.
    pub const ALL: [Self; 13] = [
        Self::Multus,
        Self::AdmissionController,
        Self::MultiNetworkPolicy,
        Self::DefaultNetwork,
        Self::KubeProxy,
        Self::AdditionalNetworks,
        Self::Diagnostics,
        Self::PublicRole,
        Self::NodeIdentity,
        Self::ServiceCidrs,
        Self::OperatorMetrics,
        Self::Frr,
        Self::ConsolePlugin,
    ];

    /// Value of the part label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Multus => "multus",
            Self::AdmissionController => "multus-admission-controller",
            Self::MultiNetworkPolicy => "multi-networkpolicy",
            Self::DefaultNetwork => "default-network",
            Self::KubeProxy => "kube-proxy",
            Self::AdditionalNetworks => "additional-networks",
            Self::Diagnostics => "network-diagnostics",
            Self::PublicRole => "public-role",
            Self::NodeIdentity => "network-node-identity",
            Self::ServiceCidrs => "service-cidrs",
            Self::OperatorMetrics => "operator-metrics",
            Self::Frr => "frr-k8s",
            Self::ConsolePlugin => "networking-console-plugin",
        }
    }

    fn render(self, context: &Context<'_>) -> Result<Vec<Value>, Error> {
        let with_multus = context.spec.disable_multi_network != Some(true);
        match self {
            Self::Multus if with_multus => parts::multus(context),
            Self::AdmissionController if with_multus => parts::admission_controller(context),
            Self::MultiNetworkPolicy
                if with_multus && context.spec.use_multi_network_policy == Some(true) =>
            {
                parts::multi_network_policy(context)
            }
            Self::DefaultNetwork => default_network(context),
            Self::KubeProxy if context.spec.deploy_kube_proxy == Some(true) => kube_proxy(context),
            Self::Diagnostics if diagnostics_wanted(context) => parts::diagnostics(context),
            Self::PublicRole => parts::public_role(),
            Self::NodeIdentity if has_node_identity(context) => node_identity::objects(context),
            Self::ServiceCidrs => parts::service_cidrs(),
            Self::OperatorMetrics if context.facts.monitoring => parts::operator_metrics(context),
            Self::Frr if has_frr(context) => frr::objects(context),
            Self::ConsolePlugin if context.facts.console_plugins => console_plugin::objects(context),
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

/// True if FRR is a provider of additional routing capabilities (§18.2).
fn has_frr(context: &Context<'_>) -> bool {
    let capabilities = context.spec.additional_routing_capabilities.as_ref();
    capabilities.is_some_and(|it| it.providers.iter().any(|provider| provider == names::FRR))
}

fn kube_proxy(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    if let Some(other) = &context.facts.foreign_kube_proxy {
        return Err(Error::Refused(messages::foreign_kube_proxy(other)));
    }
    let proxy = Proxy::of(context.spec).map_err(Error::Refused)?;
    parts::kube_proxy(context, &proxy)
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
mod tests;

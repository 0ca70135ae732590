//! The components, each a module with its validation, its defaults and its objects.
//!
//! ```text
//! spec ──> validate ──> defaults ──> ALL: enabled ──> render ──> objects in order
//!                          ▲                       └──────> leftovers, issued
//!              specification applied before
//! ```

use api::{network_addons::NetworkAddonsConfigSpec, placement::Placement};

use kube_kit::object::{ObjectId, SECURITY_CONTEXT_CONSTRAINTS};
use serde_json::json;

use crate::{
    cluster_facts::{Cluster, NodeState},
    cni_directories::Directories,
    images::Images,
    manifest::{self, Error, Manifest},
    settings::Prometheus,
    tls::TlsSettings,
};

pub(crate) mod egress_policies;
pub mod kube_mac_pool;
pub(crate) mod kube_secondary_dns;
pub(crate) mod kubevirt_ipam_controller;
pub(crate) mod linux_bridge;
pub(crate) mod macvtap;
pub(crate) mod monitoring;
pub(crate) mod multus;
pub(crate) mod multus_dynamic_networks;
pub mod nmstate;
pub(crate) mod ovs;

pub(crate) use kube_secondary_dns::LONGEST_TTL;
pub use multus_dynamic_networks::CRI_SOCKETS;

/// A part of the configuration with its objects. All functions are pure.
#[derive(Clone, Copy)]
pub(crate) struct Component {
    /// Name of the component: its field in the specification, if it has one.
    pub(crate) name: &'static str,
    /// Whether the specification enables the component.
    pub(crate) enabled: fn(&NetworkAddonsConfigSpec) -> bool,
    /// The component's objects in the order in which they are applied. Called for enabled components with a complete
    /// specification. Labels and owners are added later.
    pub(crate) render: fn(&Context<'_>) -> Result<Vec<Manifest>, Error>,
    /// Objects of the component that are not rendered, such as Secrets of certificates. The operator writes them
    /// depending on the observed state, and deletes them with the component.
    pub(crate) issued: fn(&Context<'_>) -> Result<Vec<ObjectId>, Error>,
    /// Objects of earlier versions that conflict with this component. They are deleted before the component is applied.
    pub(crate) leftovers: fn(&Cluster) -> &'static [Leftover],
}

/// A component whose objects are all rendered, and that conflicts with no object of earlier versions.
const fn component(
    name: &'static str,
    enabled: fn(&NetworkAddonsConfigSpec) -> bool,
    render: fn(&Context<'_>) -> Result<Vec<Manifest>, Error>,
) -> Component {
    Component {
        name,
        enabled,
        render,
        issued: |_| Ok(Vec::new()),
        leftovers: |_| &[],
    }
}

/// Replaces the roles of the same names: Weft's programs need fewer rights than upstream's.
fn replace_roles(objects: &mut [Manifest], roles: Vec<Manifest>) {
    for role in roles {
        let wider = objects
            .iter_mut()
            .find(|object| object.kind() == role.kind() && object.name() == role.name());
        if let Some(wider) = wider {
            *wider = role;
        }
    }
}

/// Allows the runtime's default seccomp profile and these capabilities in security context constraints: constraints
/// without a list refuse pods that name any.
fn permit_confined(objects: &mut [Manifest], capabilities: &[&str]) {
    let kind = SECURITY_CONTEXT_CONSTRAINTS.kind;
    for constraints in objects.iter_mut().filter(|object| object.kind() == kind) {
        constraints.set("seccompProfiles", json!(["runtime/default"]));
        if !capabilities.is_empty() {
            constraints.set("allowedCapabilities", json!(capabilities));
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Leftover {
    pub(crate) kind: kube_kit::object::Kind,
    pub(crate) place: Place,
    pub(crate) name: &'static str,
}

/// Namespace of a [`Leftover`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    Operands,
    Namespace(&'static str),
    /// Cluster-scoped.
    Cluster,
}

/// All components in the order in which they are applied (operator §8.1).
pub(crate) const ALL: [Component; 11] = [
    Component {
        leftovers: multus::leftovers,
        ..component("multus", |spec| spec.multus.is_some(), multus::render)
    },
    component(
        "multusDynamicNetworks",
        |spec| spec.multus_dynamic_networks.is_some(),
        multus_dynamic_networks::render,
    ),
    component(
        "linuxBridge",
        |spec| spec.linux_bridge.is_some(),
        linux_bridge::render,
    ),
    component(
        "kubeMacPool",
        |spec| spec.kube_mac_pool.is_some(),
        kube_mac_pool::render,
    ),
    component("ovs", |spec| spec.ovs.is_some(), ovs::render),
    component("macvtap", |spec| spec.macvtap.is_some(), macvtap::render),
    component(
        "kubeSecondaryDNS",
        |spec| spec.kube_secondary_dns.is_some(),
        kube_secondary_dns::render,
    ),
    Component {
        issued: kubevirt_ipam_controller::issued,
        leftovers: kubevirt_ipam_controller::leftovers,
        ..component(
            kubevirt_ipam_controller::NAME,
            |spec| spec.kubevirt_ipam_controller.is_some(),
            kubevirt_ipam_controller::render,
        )
    },
    component(nmstate::NAME, |spec| spec.nmstate.is_some(), nmstate::render),
    component("monitoring", |_| true, monitoring::render),
    component("networkPolicies", |_| true, egress_policies::render),
];

/// Names of all components, in the order in which they are applied.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|component| component.name)
}

/// Names of the components that a specification enables.
pub fn enabled(spec: &NetworkAddonsConfigSpec) -> Vec<&'static str> {
    let enabled = ALL.into_iter().filter(|component| (component.enabled)(spec));
    enabled.map(|component| component.name).collect()
}

/// The input of rendering.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The complete specification.
    pub spec: &'a NetworkAddonsConfigSpec,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Images of the containers.
    pub images: &'a Images,
    /// Namespace of the operands.
    pub namespace: &'a str,
    /// The monitoring stack.
    pub prometheus: &'a Prometheus,
    /// State of the `NMState` API.
    pub node_state: &'a NodeState,
}

impl Context<'_> {
    /// Reads a component's file, and sets the namespace of its objects.
    pub(crate) fn objects(&self, file: &'static str, yaml: &str) -> Result<Vec<Manifest>, Error> {
        Ok(self.in_namespace(manifest::parse(file, yaml)?))
    }

    /// Sets the namespace of objects.
    fn in_namespace(&self, mut objects: Vec<Manifest>) -> Vec<Manifest> {
        for object in &mut objects {
            object.set_namespace(self.namespace);
        }
        objects
    }

    /// The namespace of the operands, the first object of most components.
    pub(crate) fn namespace_object(&self) -> Result<Vec<Manifest>, Error> {
        self.objects("namespace.yaml", include_str!("components/namespace.yaml"))
    }

    /// Placement of pods on the nodes with workloads.
    pub(crate) fn workloads(&self) -> Placement {
        self.spec
            .placement_configuration
            .as_ref()
            .and_then(|p| p.workloads.clone())
            .unwrap_or_default()
    }

    /// Placement of pods beside the cluster's own controllers.
    pub(crate) fn infra(&self) -> Placement {
        self.spec
            .placement_configuration
            .as_ref()
            .and_then(|p| p.infra.clone())
            .unwrap_or_default()
    }

    /// Directories of CNI on the nodes.
    pub(crate) fn directories(&self) -> Directories<'_> {
        Directories::of(self.spec, self.cluster.platform)
    }

    pub(crate) fn pull_policy(&self) -> &str {
        &self.spec.image_pull_policy
    }

    /// Arguments of servers, from the TLS profile. An invalid profile results in no arguments: then the objects are
    /// only deleted, and their names suffice.
    pub(crate) fn tls_arguments(&self) -> Vec<String> {
        TlsSettings::of(self.spec.tls_security_profile.as_ref())
            .map(|settings| settings.arguments())
            .unwrap_or_default()
    }
}

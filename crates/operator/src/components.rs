//! The components that can be deployed, each a module with its rules and its objects.
//!
//! ```text
//! spec ──> validate ──> defaults ──> change_safe ──> render ──> objects in order
//!                                        ▲
//!                            specification applied before
//! ```

use api::{network_addons::NetworkAddonsConfigSpec, placement::Placement};

use kube_kit::object::{ObjectId, SECURITY_CONTEXT_CONSTRAINTS};
use serde_json::json;

use crate::{
    cluster_facts::{Cluster, NodeState, Platform},
    images::Images,
    layout::Directories,
    manifest::{self, Error, Manifest},
    settings::Prometheus,
    tls::TlsSettings,
};

pub mod kube_mac_pool;
pub mod kube_secondary_dns;
pub mod kubevirt_ipam_controller;
pub mod linux_bridge;
pub mod macvtap;
pub mod monitoring;
pub mod multus;
pub mod multus_dynamic_networks;
pub mod network_policies;
pub mod nmstate;
pub mod ovs;

/// A part of the configuration with the objects that belong to it. Everything here is pure.
pub trait Component: Sync {
    /// Name of the component: its field in the specification, where it has one.
    fn name(&self) -> &'static str;

    /// Whether the specification asks for the component.
    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool;

    /// What is wrong with the component's part of the specification, in the words of operator §5.1.
    fn validate(&self, _spec: &NetworkAddonsConfigSpec, _cluster: &Cluster) -> Vec<String> {
        Vec::new()
    }

    /// Fills in what the specification leaves open; `random` holds two octets drawn at random.
    fn defaults(
        &self,
        _spec: &mut NetworkAddonsConfigSpec,
        _previous: Option<&NetworkAddonsConfigSpec>,
        _platform: Platform,
        _random: [u8; 2],
    ) {
    }

    /// Why the change from the specification applied before is not allowed; both are complete.
    fn change_safe(
        &self,
        _previous: &NetworkAddonsConfigSpec,
        _spec: &NetworkAddonsConfigSpec,
    ) -> Vec<String> {
        Vec::new()
    }

    /// The component's objects in the order in which they are applied. Called for a component that is
    /// enabled, with a complete specification. Labels and owners are put on later.
    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error>;

    /// Objects of the component that are not rendered, such as Secrets of certificates: the operator writes them with
    /// what is there, and removes them with the component.
    fn issued(&self, _context: &Context<'_>) -> Result<Vec<ObjectId>, Error> {
        Ok(Vec::new())
    }

    /// Objects of earlier versions that stand in the way of this one: removed before it is applied.
    fn leftovers(&self, _cluster: &Cluster) -> &'static [Leftover] {
        &[]
    }
}

/// Puts roles in the place of those of the same name: our own programs need less than the established ones.
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

/// Lets pods under security context constraints name the seccomp profile of the container runtime, and these
/// capabilities: constraints that list none refuse pods that name any.
fn permit_confined(objects: &mut [Manifest], capabilities: &[&str]) {
    let kind = SECURITY_CONTEXT_CONSTRAINTS.kind;
    for constraints in objects.iter_mut().filter(|object| object.kind() == kind) {
        constraints.set("seccompProfiles", json!(["runtime/default"]));
        if !capabilities.is_empty() {
            constraints.set("allowedCapabilities", json!(capabilities));
        }
    }
}

/// An object of an earlier version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leftover {
    /// Its kind.
    pub kind: kube_kit::object::Kind,
    /// Its namespace: the operands', another one, or none.
    pub place: Place,
    /// Its name.
    pub name: &'static str,
}

/// Where a [`Leftover`] is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// In the namespace of the operands.
    Operands,
    /// In this namespace.
    Namespace(&'static str),
    /// In no namespace.
    Cluster,
}

/// All components in the order in which they are applied (operator §8.1).
pub const ALL: [&dyn Component; 11] = [
    &multus::Multus,
    &multus_dynamic_networks::MultusDynamicNetworks,
    &linux_bridge::LinuxBridge,
    &kube_mac_pool::KubeMacPool,
    &ovs::Ovs,
    &macvtap::Macvtap,
    &kube_secondary_dns::KubeSecondaryDns,
    &kubevirt_ipam_controller::KubevirtIpamController,
    &nmstate::NMState,
    &monitoring::Monitoring,
    &network_policies::NetworkPolicies,
];

/// What rendering depends on.
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
    /// Who monitors them.
    pub prometheus: &'a Prometheus,
    /// What there is of the API by which node state is wished for.
    pub node_state: &'a NodeState,
}

impl Context<'_> {
    /// Reads a component's file, and moves its objects into the namespace.
    pub fn objects(&self, file: &'static str, yaml: &str) -> Result<Vec<Manifest>, Error> {
        let mut objects = manifest::parse(file, yaml)?;
        for object in &mut objects {
            object.set_namespace(self.namespace);
        }
        Ok(objects)
    }

    /// The namespace of the operands, the first object of most components.
    pub fn namespace_object(&self) -> Result<Vec<Manifest>, Error> {
        self.objects("namespace.yaml", include_str!("components/namespace.yaml"))
    }

    /// Placement of what runs on nodes with workloads.
    pub fn workloads(&self) -> Placement {
        self.spec
            .placement_configuration
            .as_ref()
            .and_then(|p| p.workloads.clone())
            .unwrap_or_default()
    }

    /// Placement of what runs beside the cluster's own controllers.
    pub fn infra(&self) -> Placement {
        self.spec
            .placement_configuration
            .as_ref()
            .and_then(|p| p.infra.clone())
            .unwrap_or_default()
    }

    /// Directories of CNI on the nodes.
    pub fn directories(&self) -> Directories<'_> {
        Directories::of(self.spec, self.cluster.platform)
    }

    /// When images are pulled.
    pub fn pull_policy(&self) -> &str {
        &self.spec.image_pull_policy
    }

    /// Arguments of servers, from the TLS profile: it is valid, or only the names of the objects count, because they
    /// are to be removed.
    pub fn tls_arguments(&self) -> Vec<String> {
        TlsSettings::of(self.spec.tls_security_profile.as_ref())
            .map(|settings| settings.arguments())
            .unwrap_or_default()
    }
}

//! Objects with the fields that this program reads (kubevirt-ipam §4), and the source of each network: pod, secondary, or
//! neither, such as a multus network with `default: true`. The *wire* types have the form of the API. The caches store the
//! other types.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::kubevirt::{self, InstanceSpec, Template};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube_kit::watch::Name;
use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::names;
use crate::uid::Uid;

/// A virtual machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Machine {
    /// UID.
    pub uid: Uid,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Names of the networks of its template.
    pub networks: Arc<[String]>,
}

/// A virtual machine that runs or starts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Instance {
    /// UID.
    pub uid: Uid,
    /// UID of the virtual machine that controls the instance; empty for a standalone instance.
    pub owner: Uid,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether a pod runs it.
    pub has_pods: bool,
    /// The annotation with requested addresses.
    pub addresses: Option<Box<str>>,
    /// Networks, in their order.
    pub networks: Arc<[InstanceNetwork]>,
    /// Names of the interfaces that matter, and hardware addresses if the user chose them.
    pub interfaces: Arc<[Interface]>,
    /// Names of the interfaces in the status.
    pub reported: Arc<[String]>,
}

/// A network of an instance.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct InstanceNetwork {
    /// Name within the instance.
    pub name: String,
    /// Kind of the network.
    pub source: Source,
}

/// Kind of a network of an instance.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Source {
    /// The pod network.
    Pod,
    /// A network that multus attaches: namespace and name of its definition.
    Multus(Name),
    /// A network that multus attaches instead of the pod network, or a network of another kind.
    Neither,
}

/// An interface of an instance.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Interface {
    /// Name of its network.
    pub name: String,
    /// The hardware address; empty if the user chose none.
    pub mac: String,
}

/// A claim for the addresses of one network.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Claim {
    /// The instance that the label names; empty without the label.
    pub machine: Box<str>,
    /// Whether it has our finalizer.
    pub held: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// UIDs of its owners.
    pub owners: Box<[Uid]>,
    /// Name of the network in its configuration.
    pub network: Arc<str>,
    /// Addresses with prefix lengths.
    pub ips: Box<[String]>,
    /// The resource version as a number; 0 if it is not a number.
    pub version: u64,
}

impl Instance {
    /// The secondary networks that multus attaches, with their definitions.
    pub fn secondary(&self) -> impl Iterator<Item = (&str, &Name)> {
        self.networks.iter().filter_map(|network| match &network.source {
            Source::Multus(definition) => Some((network.name.as_str(), definition)),
            Source::Pod | Source::Neither => None,
        })
    }

    /// Name of the instance's network that is the pod network.
    pub fn pod_network(&self) -> Option<&str> {
        let network = self
            .networks
            .iter()
            .find(|network| network.source == Source::Pod)?;
        Some(&network.name)
    }

    /// The interface on a network.
    pub fn interface(&self, network: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == network)
    }
}

impl Claim {
    /// The claim as the API server sends it.
    pub fn of(wire: WireClaim) -> Self {
        let WireClaim {
            metadata,
            spec,
            status,
        } = wire;
        let labels = metadata.labels.unwrap_or_default();
        let finalizers = metadata.finalizers.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let version = metadata.resource_version.and_then(|version| version.parse().ok());
        Self {
            version: version.unwrap_or_default(),
            machine: labels
                .get(names::MACHINE_LABEL)
                .map(|machine| machine.as_str().into())
                .unwrap_or_default(),
            held: finalizers.iter().any(|finalizer| finalizer == names::FINALIZER),
            deleting: metadata.deletion_timestamp.is_some(),
            owners: owners.into_iter().map(|owner| owner.uid.into()).collect(),
            network: spec.unwrap_or_default().network.into(),
            ips: status.and_then(|status| status.ips).unwrap_or_default().into(),
        }
    }
}

/// The read fields of a virtual machine.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::kubevirt::VirtualMachine)]
pub struct WireMachine {
    /// The read fields of the metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    spec: Option<MachineSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MachineSpec {
    template: Option<Template<IgnoredAny, Named>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
}

impl From<WireMachine> for Machine {
    fn from(wire: WireMachine) -> Self {
        let template = wire.spec.and_then(|spec| spec.template);
        let networks = template.and_then(|template| template.spec?.networks);
        Self {
            uid: wire.metadata.uid.unwrap_or_default().into(),
            deleting: wire.metadata.deletion_timestamp.is_some(),
            networks: names_of(networks),
        }
    }
}

fn names_of(list: Option<Vec<Option<Named>>>) -> Arc<[String]> {
    let named = list.into_iter().flatten().flatten();
    named.filter_map(|named| named.name).collect()
}

/// The read fields of an instance.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::kubevirt::VirtualMachineInstance)]
pub struct WireInstance {
    /// The read fields of the metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    spec: Option<InstanceSpec<Vec<Option<WireInterface>>, WireNetwork>>,
    status: Option<InstanceStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireNetwork {
    name: Option<String>,
    pod: Option<IgnoredAny>,
    multus: Option<Multus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Multus {
    network_name: Option<String>,
    default: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireInterface {
    name: Option<String>,
    mac_address: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InstanceStatus {
    active_pods: Option<BTreeMap<String, Option<String>>>,
    interfaces: Option<Vec<Option<Named>>>,
}

impl WireNetwork {
    fn kept(self, namespace: &str) -> InstanceNetwork {
        let source = match self.multus {
            Some(multus) if multus.default != Some(true) => {
                Source::Multus(definition(&multus.network_name.unwrap_or_default(), namespace))
            }
            None if self.pod.is_some() => Source::Pod,
            Some(_) | None => Source::Neither,
        };
        InstanceNetwork {
            name: self.name.unwrap_or_default(),
            source,
        }
    }
}

/// `NAME`, in the instance's namespace, or `NAMESPACE/NAME`.
fn definition(text: &str, namespace: &str) -> Name {
    match text.split_once('/') {
        Some((namespace, name)) => Name::new(namespace, name),
        None => Name::new(namespace, text),
    }
}

impl From<WireInstance> for Instance {
    fn from(wire: WireInstance) -> Self {
        let metadata = wire.metadata;
        let namespace = metadata.namespace.unwrap_or_default();
        let (interfaces, networks) = wire.spec.map(InstanceSpec::into_parts).unwrap_or_default();
        let status = wire.status.unwrap_or_default();
        let networks = networks.into_iter().flatten().flatten();
        let interfaces = interfaces.into_iter().flatten().flatten();
        let interface = |wire: WireInterface| Interface {
            name: wire.name.unwrap_or_default(),
            mac: wire.mac_address.unwrap_or_default(),
        };
        let addresses = metadata.annotations.unwrap_or_default().remove(names::ADDRESSES);
        let mut owners = metadata.owner_references.into_iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == kubevirt::MACHINE);
        Self {
            uid: metadata.uid.unwrap_or_default().into(),
            owner: owner.map(|owner| owner.uid.into()).unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            has_pods: status.active_pods.is_some_and(|pods| !pods.is_empty()),
            addresses: addresses.map(Into::into),
            networks: networks.map(|network| network.kept(&namespace)).collect(),
            interfaces: interfaces.map(interface).collect(),
            reported: names_of(status.interfaces),
        }
    }
}

/// The read fields of a claim.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::ipam_claim::IPAMClaim)]
pub struct WireClaim {
    /// The read fields of the metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    spec: Option<ClaimSpec>,
    status: Option<ClaimStatus>,
}

/// The network of the claimed addresses.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct ClaimSpec {
    /// Name of the network in its configuration.
    pub network: String,
    /// Written as an empty string, and never left out.
    pub interface: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    ips: Option<Vec<String>>,
}

/// The read fields of a network.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::net_attach_def::NetworkAttachmentDefinition)]
pub struct WireNetworkDefinition {
    /// The read fields of the metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// The configuration.
    spec: Option<DefinitionSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DefinitionSpec {
    config: Option<String>,
}

impl WireNetworkDefinition {
    /// The text of the configuration.
    pub fn config(&self) -> &str {
        let config = self.spec.as_ref().and_then(|spec| spec.config.as_deref());
        config.unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
    annotations: Option<Annotations>,
    labels: Option<Labels>,
}

/// The only annotation that this program reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "network.kubevirt.io/addresses")]
    addresses: Option<String>,
}

/// The only label that this program reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Labels {
    #[serde(rename = "kubevirt.io/vm")]
    machine: Option<String>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    let kept =
        |key: &str, value: Option<String>| value.map(|value| BTreeMap::from([(key.to_owned(), value)]));
    let addresses = metadata.annotations.and_then(|annotations| annotations.addresses);
    let machine = metadata.labels.and_then(|labels| labels.machine);
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        deletion_timestamp: metadata.deletion_timestamp,
        finalizers: metadata.finalizers,
        owner_references: metadata.owner_references,
        annotations: kept(names::ADDRESSES, addresses),
        labels: kept(names::MACHINE_LABEL, machine),
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests;

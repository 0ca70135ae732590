//! The named parts of virtual machine instances, and their records (secondary-dns §3.2, §4).
//!
//! ```text
//! VMI ── default network out ──> first IPv4, first IPv6 of each interface ──> sorted records
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

/// Maximum length of a label in bytes (RFC 1035 §2.3.4).
const LABEL: usize = 63;
/// Maximum length of a name in bytes on the wire, with the lengths of its labels and the root.
const NAME: usize = 255;

/// The read fields of a virtual machine instance.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::kubevirt::VirtualMachineInstance)]
pub struct Vmi {
    /// Name, namespace, UID, owners and version only.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    networks: Option<Vec<Option<Network>>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Network {
    name: Option<String>,
    pod: Option<IgnoredAny>,
    multus: Option<Multus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Multus {
    default: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    interfaces: Option<Vec<Option<Interface>>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Interface {
    name: Option<String>,
    ip_addresses: Option<Vec<Option<String>>>,
}

impl Interface {
    fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ip_addresses: None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let Metadata {
        name,
        namespace,
        uid,
        resource_version,
        owner_references,
    } = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        owner_references,
        ..ObjectMeta::default()
    })
}

/// One record of an instance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// Name below the zone, such as `nic1.vmi1.ns1`.
    pub owner: Box<str>,
    /// Address of the record.
    pub address: IpAddr,
    /// Whether the name is the instance's, and not an interface's.
    pub is_default: bool,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.address {
            IpAddr::V4(_) => "A",
            IpAddr::V6(_) => "AAAA",
        };
        write!(f, "{} IN {kind} {}", self.owner, self.address)
    }
}

/// Rules for publishing addresses.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// Whether IPv6 addresses are published.
    pub ipv6: bool,
    /// Prefixes of published addresses; all addresses are allowed if empty.
    pub allowed: Vec<IpNet>,
    /// Bytes of the zone's name on the wire, which names below it share.
    pub zone_octets: usize,
}

/// The reason for an unpublished interface or address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The interface is on the default network.
    #[error("interface {0:?} is on the default network")]
    DefaultNetwork(String),
    /// Only the guest agent reports the interface.
    #[error("an interface has no name")]
    Unnamed,
    /// The text is no DNS name.
    #[error("interface {0:?} gives no DNS name")]
    Name(String),
    /// The interface has no publishable address.
    #[error("interface {0:?} has no address that can be published")]
    NoAddress(String),
    /// No allowed prefix contains the address.
    #[error("address {address} of interface {interface:?} is in none of the allowed prefixes")]
    NotAllowed {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
    },
}

/// The records of an instance in the order of the zone file, and its unpublished parts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Published {
    /// Records: interfaces in byte order, then the default name; A before AAAA.
    pub records: Vec<Record>,
    /// Unpublished interfaces and addresses.
    pub refused: Vec<Refused>,
}

impl Vmi {
    /// Namespace and name; empty if the object has none.
    pub fn name(&self) -> (&str, &str) {
        (
            self.metadata.namespace.as_deref().unwrap_or_default(),
            self.metadata.name.as_deref().unwrap_or_default(),
        )
    }

    /// UIDs of the instance and of its controller.
    pub(crate) fn uids(&self) -> impl Iterator<Item = &str> {
        let mut owners = self.metadata.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true));
        let controller = controller.map(|owner| owner.uid.as_str());
        self.metadata.uid.as_deref().into_iter().chain(controller)
    }

    /// The records of the instance.
    pub fn publish(&self, policy: &Policy) -> Published {
        self.publish_with(policy, |_| Vec::new())
    }

    /// Like [`publish`](Self::publish), with addresses by network for interfaces whose guest has reported none.
    pub fn publish_with(&self, policy: &Policy, early: impl Fn(&str) -> Vec<IpAddr>) -> Published {
        let (namespace, name) = self.name();
        let default = self.default_network();
        let mut published = Published::default();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let unreported = self.unreported().filter(|network| !early(network).is_empty());
        let unreported: Vec<Interface> = unreported.map(Interface::named).collect();
        for interface in self.interfaces().chain(&unreported) {
            let Some(nic) = interface.name.as_deref().filter(|nic| !nic.is_empty()) else {
                published.refused.push(Refused::Unnamed);
                continue;
            };
            if default == Some(nic) {
                published.refused.push(Refused::DefaultNetwork(nic.to_owned()));
                continue;
            }
            let owner = format!("{nic}.{name}.{namespace}");
            if !is_name(&owner, policy.zone_octets) {
                published.refused.push(Refused::Name(nic.to_owned()));
                continue;
            }
            let addresses = || interface.ip_addresses.iter().flatten().flatten();
            let first4 = addresses().find_map(|text| ipv4(text)).map(IpAddr::V4);
            let first6 = || addresses().find_map(|text| ipv6(text)).map(IpAddr::V6);
            let first6 = if policy.ipv6 { first6() } else { None };
            let (first4, first6) = match (first4, first6) {
                (None, None) => {
                    let early = early(nic);
                    let first = |is_wanted: fn(&IpAddr) -> bool| early.iter().copied().find(is_wanted);
                    (
                        first(IpAddr::is_ipv4),
                        first(IpAddr::is_ipv6).filter(|_| policy.ipv6),
                    )
                }
                reported => reported,
            };
            if first4.is_none() && first6.is_none() {
                published.refused.push(Refused::NoAddress(nic.to_owned()));
            }
            for (address, records) in [(first4, &mut v4), (first6, &mut v6)] {
                match address {
                    Some(address) if policy.allows(address) => records.push(Record {
                        owner: owner.as_str().into(),
                        address,
                        is_default: false,
                    }),
                    Some(address) => published.refused.push(Refused::NotAllowed {
                        interface: nic.to_owned(),
                        address,
                    }),
                    None => {}
                }
            }
        }
        for mut records in [v4, v6] {
            records.sort_by_cached_key(ToString::to_string);
            let default = records.first().map(|first| Record {
                owner: format!("{name}.{namespace}").into(),
                address: first.address,
                is_default: true,
            });
            published.records.append(&mut records);
            published.records.extend(default);
        }
        published
    }

    /// Interfaces in the status.
    fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        let interfaces = self.status.as_ref().and_then(|status| status.interfaces.as_ref());
        interfaces.into_iter().flatten().flatten()
    }

    /// Names of networks except the pod network.
    pub fn secondary_networks(&self) -> impl Iterator<Item = &str> {
        let networks = self.spec.as_ref().and_then(|spec| spec.networks.as_ref());
        let names = networks.into_iter().flatten().flatten();
        let names = names.filter_map(|network| network.name.as_deref());
        let default = self.default_network();
        names.filter(move |name| !name.is_empty() && default != Some(name))
    }

    /// Secondary networks without an interface in the status.
    fn unreported(&self) -> impl Iterator<Item = &str> {
        let is_reported = |name: &str| self.interfaces().any(|it| it.name.as_deref() == Some(name));
        self.secondary_networks().filter(move |name| !is_reported(name))
    }

    /// Name of the network that is the pod network.
    fn default_network(&self) -> Option<&str> {
        let networks = self.spec.as_ref().and_then(|spec| spec.networks.as_ref());
        let is_default = |network: &&Network| {
            let multus = network.multus.as_ref();
            network.pod.is_some() || multus.is_some_and(|multus| multus.default == Some(true))
        };
        let default = networks.into_iter().flatten().flatten().find(is_default);
        default.map(|network| network.name.as_deref().unwrap_or_default())
    }
}

impl Policy {
    fn allows(&self, address: IpAddr) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|prefix| prefix.contains(&address))
    }
}

/// Whether a text is a valid name for zone files and messages, with `zone` more bytes after it. Characters with a
/// meaning in zone files are invalid.
pub(crate) fn is_name(text: &str, zone: usize) -> bool {
    let is_character = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    let is_label = |label: &str| !label.is_empty() && label.len() <= LABEL && label.bytes().all(is_character);
    text.split('.').all(is_label) && text.len() + 1 + zone <= NAME
}

/// A plain IPv4 address. The standard library refuses leading zeros.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok()
}

/// An IPv6 address that is reachable from other hosts.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    let address: Ipv6Addr = text.parse().ok()?;
    let is_local = address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local();
    let is_odd = address.is_multicast() || address.to_ipv4_mapped().is_some();
    (!is_local && !is_odd).then_some(address)
}

#[cfg(test)]
mod tests;

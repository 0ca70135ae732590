//! The requested networks of a pod: annotations `k8s.v1.cni.cncf.io/networks` and `v1.multus-cni.io/default-network`.
//!
//! ```text
//! other/net1@eth7, net2                       comma list ─┐
//! [{"name": "net1", "ips": ["10.1.1.2/24"]}]  JSON list  ─┴─> elements ── validation ──> NetworkSelection
//! ```
//!
//! Source: `docs/behaviour/multus.md` §2. Any user who may create pods writes these texts, so their size is limited,
//! and errors quote only a part of them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::json::{self, Object};
use crate::mac::Mac;
use crate::net::parse_cidr;

/// Size limit of an annotation, in bytes. The API server limits all annotations of an object to this size.
pub const MAX_ANNOTATION: usize = 256 * 1024;
/// Limit of networks per pod.
pub const MAX_NETWORKS: usize = 256;

/// Limit of an interface's name, in bytes: the kernel's 16 less the terminator.
const MAX_INTERFACE: usize = 15;
/// Limit of a user's text in an error, in bytes.
const MAX_EXCERPT: usize = 512;

/// Keys of an element in the JSON form (multus §2.3).
mod field {
    pub(super) const NAME: &str = "name";
    pub(super) const NAMESPACE: &str = "namespace";
    pub(super) const INTERFACE: &str = "interface";
    /// The old name of [`INTERFACE`].
    pub(super) const INTERFACE_REQUEST: &str = "interfaceRequest";
    pub(super) const IPS: &str = "ips";
    pub(super) const MAC: &str = "mac";
    pub(super) const INFINIBAND_GUID: &str = "infiniband-guid";
    pub(super) const PORT_MAPPINGS: &str = "portMappings";
    pub(super) const BANDWIDTH: &str = "bandwidth";
    pub(super) const CNI_ARGS: &str = "cni-args";
    pub(super) const DEVICE_ID: &str = "deviceID";
    pub(super) const DEFAULT_ROUTE: &str = "default-route";
    pub(super) const IPAM_CLAIM_REFERENCE: &str = "ipam-claim-reference";
}

/// A requested network, validated.
///
/// Empty texts in the annotation count as missing. Only `name` may be empty: then the lookup of the
/// NetworkAttachmentDefinition fails.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkSelection {
    /// The NetworkAttachmentDefinition.
    pub name: String,
    /// Its namespace; the default namespace if the element has none.
    pub namespace: String,
    /// The interface's name in the pod.
    pub interface: Option<String>,
    /// Addresses to assign, each with or without a prefix length.
    pub ips: Vec<String>,
    /// The interface's hardware address.
    pub mac: Option<String>,
    /// The interface's InfiniBand GUID, in the form of a hardware address.
    pub infiniband_guid: Option<String>,
    /// Ports of the host to forward.
    pub port_mappings: Vec<PortMapping>,
    /// Limits of the traffic.
    pub bandwidth: Option<Bandwidth>,
    /// Values for `args.cni` of every plugin's config.
    pub cni_args: Option<Object>,
    /// The device, unless the pod's resources provide one.
    pub device_id: Option<String>,
    /// Gateways of the pod's default routes. An empty list keeps the routes of the network's own config.
    pub default_route: Option<Vec<IpAddr>>,
    /// An IPAM claim. Multus ignores it.
    pub ipam_claim_reference: Option<String>,
}

/// An entry of `portMappings`, in an element and in `runtimeConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// Port on the host.
    pub host_port: i64,
    /// Port in the pod.
    pub container_port: i64,
    /// `tcp`, `udp` or `sctp`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Address of the host.
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// Limits of an interface's traffic, in an element and in `runtimeConfig`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// Rate into the pod, in bits a second.
    pub ingress_rate: i64,
    /// Burst into the pod, in bits.
    pub ingress_burst: i64,
    /// Rate out of the pod, in bits a second.
    pub egress_rate: i64,
    /// Burst out of the pod, in bits.
    pub egress_burst: i64,
}

/// An annotation is invalid. Multus §2 fixes the texts, except those of the size limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The default network's annotation is empty.
    #[error("parsePodNetworkAnnotation: pod annotation does not have \"network\" as key")]
    Empty,
    /// The annotation is longer than [`MAX_ANNOTATION`].
    #[error("parsePodNetworkAnnotation: pod annotation has {0} bytes, at most {MAX_ANNOTATION} are allowed")]
    TooLong(usize),
    /// The annotation selects more than [`MAX_NETWORKS`].
    #[error(
        "parsePodNetworkAnnotation: pod annotation selects {0} networks, at most {MAX_NETWORKS} are allowed"
    )]
    TooMany(usize),
    /// An item of the comma list has more than one `/`.
    #[error("parsePodNetworkObjectName: Invalid network object (failed at '/')")]
    Slash,
    /// An item of the comma list has more than one `@`.
    #[error("parsePodNetworkObjectName: Invalid network object (failed at '@')")]
    At,
    /// A name or namespace in the comma list is not a DNS label.
    #[error(
        "parsePodNetworkObjectName: Failed to parse: one or more items did not match comma-delimited format (must \
         consist of lower case alphanumeric characters). Must start and end with an alphanumeric character), \
         mismatch @ '{0}'"
    )]
    Label(String),
    /// An interface in the comma list is not a valid interface name.
    #[error(
        "parsePodNetworkObjectName: Failed to parse interface name: must be less than 15 chars and not contain '/' \
         or spaces. interface name '{0}'"
    )]
    Interface(String),
    /// The text is not a JSON list of objects, or a key has the wrong type.
    #[error(
        "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: {0}"
    )]
    Json(String),
    /// A `mac` is not a hardware address.
    #[error("parsePodNetworkAnnotation: failed to mac: {0}")]
    Mac(String),
    /// An `infiniband-guid` is not a hardware address.
    #[error("parsePodNetworkAnnotation: failed to validate infiniband GUID: {0}")]
    InfinibandGuid(String),
    /// An entry of `ips` with a `/` is not an address with a prefix length.
    #[error("failed to parse CIDR {0:?}: invalid CIDR address: {0}")]
    Cidr(String),
    /// An entry of `ips` without a `/` is not an address.
    #[error("failed to parse IP address {0:?}")]
    Ip(String),
    /// The default network's annotation selects several.
    #[error("tryLoadK8sPodDefaultNetwork: more than one default network is specified: {0}")]
    SeveralDefaults(String),
    /// The default network's annotation is an empty list.
    #[error("tryLoadK8sPodDefaultNetwork: no default network is specified: {0}")]
    NoDefault(String),
}

/// Parses annotation `k8s.v1.cni.cncf.io/networks`, in order. An empty annotation selects none. Elements without a
/// namespace get `default_namespace`, the pod's.
pub fn parse_networks(
    annotation: &str,
    default_namespace: &str,
) -> Result<Vec<NetworkSelection>, SelectionError> {
    if annotation.is_empty() {
        return Ok(Vec::new());
    }
    if annotation.len() > MAX_ANNOTATION {
        return Err(SelectionError::TooLong(annotation.len()));
    }
    let mut networks = if annotation.contains(['[', '{', '"']) {
        json_list(annotation)?
    } else {
        comma_list(annotation)?
    };
    for network in &mut networks {
        if network.namespace.is_empty() {
            default_namespace.clone_into(&mut network.namespace);
        }
        network.validate()?;
    }
    Ok(networks)
}

/// The one network that the annotation `v1.multus-cni.io/default-network` selects; without a namespace it is in
/// `default_namespace`, that of multus.
pub fn parse_default_network(
    annotation: &str,
    default_namespace: &str,
) -> Result<NetworkSelection, SelectionError> {
    if annotation.is_empty() {
        return Err(SelectionError::Empty);
    }
    let mut networks = parse_networks(annotation, default_namespace)?;
    match (networks.pop(), networks.is_empty()) {
        (Some(network), true) => Ok(network),
        (Some(_), false) => Err(SelectionError::SeveralDefaults(excerpt(annotation))),
        (None, _) => Err(SelectionError::NoDefault(excerpt(annotation))),
    }
}

/// `[namespace/]name[@interface]`, separated by commas (multus §2.2).
fn comma_list(annotation: &str) -> Result<Vec<NetworkSelection>, SelectionError> {
    let count = annotation.split(',').count();
    if count > MAX_NETWORKS {
        return Err(SelectionError::TooMany(count));
    }
    annotation
        .split(',')
        .map(|item| comma_item(item.trim()))
        .collect()
}

fn comma_item(item: &str) -> Result<NetworkSelection, SelectionError> {
    let (namespace, rest) = item.split_once('/').unwrap_or(("", item));
    if rest.contains('/') {
        return Err(SelectionError::Slash);
    }
    let (name, interface) = rest.split_once('@').unwrap_or((rest, ""));
    if interface.contains('@') {
        return Err(SelectionError::At);
    }
    let [namespace, name, interface] = [namespace, name, interface].map(str::trim);
    if let Some(wrong) = [namespace, name]
        .into_iter()
        .find(|label| !label.is_empty() && !is_label(label))
    {
        return Err(SelectionError::Label(excerpt(wrong)));
    }
    if interface.len() > MAX_INTERFACE || interface.contains([' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '/']) {
        return Err(SelectionError::Interface(excerpt(interface)));
    }
    Ok(NetworkSelection {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        interface: Some(interface.to_owned()).filter(|interface| !interface.is_empty()),
        ..NetworkSelection::default()
    })
}

/// Lower-case letters, digits and inner hyphens. The API server checks the length.
fn is_label(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A JSON list of objects (multus §2.3).
fn json_list(annotation: &str) -> Result<Vec<NetworkSelection>, SelectionError> {
    let wrong = |message: String| SelectionError::Json(excerpt(&message));
    let elements: Vec<Option<Object>> =
        serde_json::from_str(annotation).map_err(|error| wrong(error.to_string()))?;
    if elements.len() > MAX_NETWORKS {
        return Err(SelectionError::TooMany(elements.len()));
    }
    elements
        .iter()
        .enumerate()
        .map(|(index, element)| match element {
            Some(element) => {
                NetworkSelection::from_object(element).map_err(|error| wrong(format!("[{index}].{error}")))
            }
            None => Err(wrong(format!("[{index}]: null is not an object"))),
        })
        .collect()
}

impl NetworkSelection {
    fn from_object(element: &Object) -> Result<Self, json::Error> {
        let text = |key| Ok::<_, json::Error>(element.read::<String>(key)?.filter(|text| !text.is_empty()));
        // As text, because reading a type drops how numbers were written.
        let cni_args = element
            .get(field::CNI_ARGS)
            .map(|value| Object::parse(value.get().as_bytes()))
            .transpose()
            .map_err(|error| json::Error(format!("{}: {error}", field::CNI_ARGS)))?;
        let interface = text(field::INTERFACE)?;
        let deprecated_interface = text(field::INTERFACE_REQUEST)?;
        Ok(Self {
            name: text(field::NAME)?.unwrap_or_default(),
            namespace: text(field::NAMESPACE)?.unwrap_or_default(),
            interface: interface.or(deprecated_interface),
            ips: element.read(field::IPS)?.unwrap_or_default(),
            mac: text(field::MAC)?,
            infiniband_guid: text(field::INFINIBAND_GUID)?,
            port_mappings: element.read(field::PORT_MAPPINGS)?.unwrap_or_default(),
            bandwidth: element.read(field::BANDWIDTH)?,
            cni_args,
            device_id: text(field::DEVICE_ID)?,
            default_route: element.read(field::DEFAULT_ROUTE)?.map(gateways).transpose()?,
            ipam_claim_reference: text(field::IPAM_CLAIM_REFERENCE)?,
        })
    }

    /// The validation of multus §2.3, in order.
    fn validate(&self) -> Result<(), SelectionError> {
        let wrong_mac = |mac: &Option<String>| {
            mac.as_deref()
                .and_then(|text| Mac::parse(text).err())
                .map(|error| excerpt(&error.to_string()))
        };
        if let Some(error) = wrong_mac(&self.mac) {
            return Err(SelectionError::Mac(error));
        }
        if let Some(error) = wrong_mac(&self.infiniband_guid) {
            return Err(SelectionError::InfinibandGuid(error));
        }
        self.ips.iter().try_for_each(|ip| validate_ip(ip))
    }
}

fn gateways(texts: Vec<String>) -> Result<Vec<IpAddr>, json::Error> {
    let parse = |text: String| {
        text.parse()
            .map_err(|_| json::Error(format!("{}: invalid IP address: {text}", field::DEFAULT_ROUTE)))
    };
    texts.into_iter().map(parse).collect()
}

fn validate_ip(text: &str) -> Result<(), SelectionError> {
    let is_cidr = text.contains('/');
    if is_cidr && parse_cidr(text).is_none() {
        return Err(SelectionError::Cidr(excerpt(text)));
    }
    if !is_cidr && text.parse::<IpAddr>().is_err() {
        return Err(SelectionError::Ip(excerpt(text)));
    }
    Ok(())
}

/// Truncates a user's text for an error: errors end up in events and logs.
fn excerpt(text: &str) -> String {
    if text.len() <= MAX_EXCERPT {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(MAX_EXCERPT)])
}

#[cfg(test)]
mod tests;

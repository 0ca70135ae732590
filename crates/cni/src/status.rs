//! The attached networks of a pod: annotation `k8s.v1.cni.cncf.io/network-status`.
//!
//! ```text
//! CniResult ── entries_for ──> NetworkStatus ── render ──> annotation ── parse ──> NetworkStatus
//! ```
//!
//! Source: `docs/behaviour/multus.md` §6.

use std::net::IpAddr;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::json::{self, Node, Object};
use crate::result::{CniResult, Dns, Interface};

/// Keys of an entry.
mod field {
    pub(super) const NAME: &str = "name";
    pub(super) const INTERFACE: &str = "interface";
    pub(super) const IPS: &str = "ips";
    pub(super) const MAC: &str = "mac";
    pub(super) const MTU: &str = "mtu";
    pub(super) const DEFAULT: &str = "default";
    pub(super) const DNS: &str = "dns";
    pub(super) const DEVICE_INFO: &str = "device-info";
    pub(super) const GATEWAY: &str = "gateway";

    pub(super) const NAMESERVERS: &str = "nameservers";
    pub(super) const DOMAIN: &str = "domain";
    pub(super) const SEARCH: &str = "search";
    pub(super) const OPTIONS: &str = "options";
}

/// An entry: an interface of the pod in a network.
#[derive(Debug, Clone, Default)]
pub struct NetworkStatus {
    /// The network: `<namespace>/<name>` of its NetworkAttachmentDefinition, or its config's name.
    pub name: String,
    /// The interface in the pod.
    pub interface: Option<String>,
    /// Its addresses, without prefix lengths.
    pub ips: Vec<String>,
    /// Its hardware address.
    pub mac: Option<String>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether this is the pod's default interface.
    pub default: bool,
    /// Resolver settings of the network.
    pub dns: Dns,
    /// The device-info of the interface's device, as JSON (multus §5.6).
    pub device_info: Option<Box<RawValue>>,
    /// The gateways of the network's default routes.
    pub gateway: Vec<String>,
}

/// An annotation is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The text is not a JSON list of objects.
    #[error("the network-status annotation is not a JSON list of objects")]
    List(#[source] serde_json::Error),
    /// An entry, counted from 0, is `null`.
    #[error("entry {0} of the network-status annotation is null")]
    Null(usize),
    /// A key of an entry, counted from 0, has a value of the wrong type.
    #[error("entry {index} of the network-status annotation is invalid")]
    Entry {
        /// The entry.
        index: usize,
        /// The key and the cause.
        #[source]
        source: json::Error,
    },
}

/// The entries for the result of one network. `is_default` marks the pod's default network.
///
/// A result with one interface has one entry, with that interface's name, MAC and MTU only if it is in the sandbox.
/// Any other result has one entry per interface in the sandbox (multus §6).
pub fn entries_for(
    name: &str,
    result: &CniResult,
    is_default: bool,
    device_info: Option<Box<RawValue>>,
) -> Vec<NetworkStatus> {
    let common = NetworkStatus {
        name: name.to_owned(),
        dns: result.dns.clone(),
        device_info,
        gateway: gateways(result),
        ..NetworkStatus::default()
    };
    if let [interface] = result.interfaces.as_slice() {
        let mut entry = common;
        entry.default = is_default;
        entry.ips = result.ips.iter().map(|ip| address(ip.address.addr())).collect();
        if is_sandboxed(interface) {
            entry.describe(interface);
        }
        return vec![entry];
    }

    let mut entries: Vec<(usize, NetworkStatus)> = Vec::new();
    for (index, interface) in result
        .interfaces
        .iter()
        .enumerate()
        .filter(|(_, found)| is_sandboxed(found))
    {
        let mut entry = common.clone();
        entry.describe(interface);
        entries.push((index, entry));
    }
    if is_default && let Some((_, entry)) = default_entry(result, &mut entries) {
        entry.default = true;
    }
    for ip in &result.ips {
        let entry = match ip.interface {
            Some(wanted) => entries.iter_mut().find(|(index, _)| *index == wanted),
            None => entries.last_mut(),
        };
        if let Some((_, entry)) = entry {
            entry.ips.push(address(ip.address.addr()));
        }
    }
    entries.into_iter().map(|(_, entry)| entry).collect()
}

impl NetworkStatus {
    fn describe(&mut self, interface: &Interface) {
        self.interface = Some(interface.name.clone());
        self.mac.clone_from(&interface.mac);
        self.mtu = interface.mtu;
    }

    fn from_object(entry: &Object) -> Result<Self, json::Error> {
        Ok(Self {
            name: entry.read(field::NAME)?.unwrap_or_default(),
            interface: entry.read(field::INTERFACE)?,
            ips: entry.read(field::IPS)?.unwrap_or_default(),
            mac: entry.read(field::MAC)?,
            mtu: entry.read(field::MTU)?,
            default: entry.read(field::DEFAULT)?.unwrap_or_default(),
            dns: entry.read(field::DNS)?.unwrap_or_default(),
            device_info: entry.get(field::DEVICE_INFO).map(ToOwned::to_owned),
            gateway: entry.read(field::GATEWAY)?.unwrap_or_default(),
        })
    }
}

fn is_sandboxed(interface: &Interface) -> bool {
    interface
        .sandbox
        .as_deref()
        .is_some_and(|sandbox| !sandbox.is_empty())
}

/// The entry of the pod's default interface: that of the first address with a gateway, else the first. Addresses of
/// interfaces on the host do not count.
fn default_entry<'a>(
    result: &CniResult,
    entries: &'a mut [(usize, NetworkStatus)],
) -> Option<&'a mut (usize, NetworkStatus)> {
    let mut with_gateway = result
        .ips
        .iter()
        .filter(|ip| ip.gateway.is_some())
        .filter_map(|ip| ip.interface);
    let place = with_gateway.find_map(|wanted| entries.iter().position(|(index, _)| *index == wanted));
    entries.get_mut(place.unwrap_or(0))
}

fn gateways(result: &CniResult) -> Vec<String> {
    let default = result.routes.iter().filter(|route| route.is_default());
    default.filter_map(|route| route.gw.map(address)).collect()
}

/// IPv4-mapped IPv6 addresses are printed as IPv4, as in Go.
fn address(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

/// The annotation's text: each entry is indented by four spaces, the list itself is not.
pub fn render(entries: &[NetworkStatus]) -> String {
    let entries: Vec<String> = entries.iter().map(json::pretty).collect();
    format!("[{}]", entries.join(","))
}

/// Parses an annotation. Keys match as in Go. An empty annotation has no entries.
pub fn parse(annotation: &str) -> Result<Vec<NetworkStatus>, StatusError> {
    if annotation.is_empty() {
        return Ok(Vec::new());
    }
    let entries: Vec<Option<Object>> = serde_json::from_str(annotation).map_err(StatusError::List)?;
    let read = |(index, entry): (usize, &Option<Object>)| {
        let entry = entry.as_ref().ok_or(StatusError::Null(index))?;
        NetworkStatus::from_object(entry).map_err(|source| StatusError::Entry { index, source })
    };
    entries.iter().enumerate().map(read).collect()
}

impl Serialize for NetworkStatus {
    /// Keys in the order of multus §6. Empty members are omitted, except the name and the DNS settings.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(field::NAME, &self.name)?;
        some_text(&mut map, field::INTERFACE, self.interface.as_deref())?;
        some_list(&mut map, field::IPS, &self.ips)?;
        some_text(&mut map, field::MAC, self.mac.as_deref())?;
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != 0) {
            map.serialize_entry(field::MTU, &mtu)?;
        }
        if self.default {
            map.serialize_entry(field::DEFAULT, &true)?;
        }
        map.serialize_entry(field::DNS, &StatusDns(&self.dns))?;
        if let Some(info) = &self.device_info {
            // Re-indents the raw value; one that is nested too deeply to be parsed is written verbatim.
            match serde_json::from_str::<Node>(info.get()) {
                Ok(node) => map.serialize_entry(field::DEVICE_INFO, &Tree(&node))?,
                Err(_) => map.serialize_entry(field::DEVICE_INFO, info)?,
            }
        }
        some_list(&mut map, field::GATEWAY, &self.gateway)?;
        map.end()
    }
}

fn some_text<M: SerializeMap>(map: &mut M, key: &str, text: Option<&str>) -> Result<(), M::Error> {
    match text {
        None | Some("") => Ok(()),
        Some(text) => map.serialize_entry(key, text),
    }
}

fn some_list<M: SerializeMap>(map: &mut M, key: &str, list: &[String]) -> Result<(), M::Error> {
    if list.is_empty() {
        Ok(())
    } else {
        map.serialize_entry(key, list)
    }
}

/// DNS settings in the annotation's order, which differs from that of a result.
struct StatusDns<'a>(&'a Dns);

impl Serialize for StatusDns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The length matters only for an empty map, which is printed as `{}`.
        let mut map = serializer.serialize_map(if self.0.is_empty() { Some(0) } else { None })?;
        some_list(&mut map, field::NAMESERVERS, &self.0.nameservers)?;
        some_text(&mut map, field::DOMAIN, Some(&self.0.domain))?;
        some_list(&mut map, field::SEARCH, &self.0.search)?;
        some_list(&mut map, field::OPTIONS, &self.0.options)?;
        map.end()
    }
}

/// Serializes a parsed document in document order.
struct Tree<'a>(&'a Node);

impl Serialize for Tree<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(value) => serializer.serialize_bool(*value),
            Node::Number(number) => number.serialize(serializer),
            Node::Text(text) => serializer.serialize_str(text),
            Node::List(items) => serializer.collect_seq(items.iter().map(Tree)),
            Node::Map(entries) => {
                serializer.collect_map(entries.iter().map(|(key, value)| (key, Tree(value))))
            }
        }
    }
}

#[cfg(test)]
mod tests;

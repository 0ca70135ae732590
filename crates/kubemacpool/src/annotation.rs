//! The annotation that selects a pod's networks: parsed, completed and serialized (kubemacpool §9.1, §9.2).
//!
//! Keys are matched like in Go. Unknown keys keep their values and follow the known ones; numbers are not parsed unless
//! necessary, so that they stay exact.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::json::{self, Object};
use cni::mac::{InvalidMac, Mac};
use cni::selection::{Bandwidth, MAX_ANNOTATION, MAX_NETWORKS, PortMapping};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::messages;
use crate::pool::Holding;

/// Keys of an element, in the order of the output.
mod field {
    pub(super) const NAME: &str = "name";
    pub(super) const NAMESPACE: &str = "namespace";
    pub(super) const IPS: &str = "ips";
    pub(super) const MAC: &str = "mac";
    pub(super) const INFINIBAND_GUID: &str = "infiniband-guid";
    pub(super) const INTERFACE: &str = "interface";
    pub(super) const INTERFACE_REQUEST: &str = "interfaceRequest";
    pub(super) const PORT_MAPPINGS: &str = "portMappings";
    pub(super) const BANDWIDTH: &str = "bandwidth";
    pub(super) const DEVICE_ID: &str = "deviceID";
    pub(super) const CNI_ARGS: &str = "cni-args";
    pub(super) const DEFAULT_ROUTE: &str = "default-route";

    pub(super) const ALL: [&str; 12] = [
        NAME,
        NAMESPACE,
        IPS,
        MAC,
        INFINIBAND_GUID,
        INTERFACE,
        INTERFACE_REQUEST,
        PORT_MAPPINGS,
        BANDWIDTH,
        DEVICE_ID,
        CNI_ARGS,
        DEFAULT_ROUTE,
    ];
    pub(super) const OF_PORT_MAPPING: [&str; 4] = ["hostPort", "containerPort", "protocol", "hostIP"];
    pub(super) const OF_BANDWIDTH: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
}

/// Maximum nesting of `cni-args`: no plugin needs more, and each level costs a pass over its content.
const MAX_DEPTH: usize = 64;

/// A pod's annotation is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum InvalidNetworks {
    /// The annotation is empty.
    #[error(
        "parsePodNetworkAnnotation: pod annotation not having \"network\" as key, refer Multus README.md for the usage \
         guide"
    )]
    Empty,
    /// The annotation is neither a comma list nor a JSON list of objects, or a value has the wrong type.
    #[error(
        "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: {0}"
    )]
    Json(String),
    /// The annotation is longer than multus accepts.
    #[error("parsePodNetworkAnnotation: pod annotation has {0} bytes, at most {MAX_ANNOTATION} are allowed")]
    TooLong(usize),
    /// The annotation has more networks than multus attaches.
    #[error(
        "parsePodNetworkAnnotation: pod annotation selects {0} networks, at most {MAX_NETWORKS} are allowed"
    )]
    TooMany(usize),
}

/// A network of a pod. Missing members are empty strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Element {
    /// Network name.
    pub name: String,
    /// Namespace of the network.
    pub namespace: String,
    /// MAC address as written.
    pub mac: String,
    ips: Vec<String>,
    infiniband_guid: String,
    interface: String,
    interface_request: String,
    port_mappings: Vec<Extended<PortMapping>>,
    bandwidth: Option<Extended<Bandwidth>>,
    device_id: String,
    cni_args: Option<Box<RawValue>>,
    default_route: Option<Vec<IpAddr>>,
    rest: Rest,
}

/// Known and unknown members of an object.
#[derive(Clone, Debug, Serialize)]
struct Extended<T> {
    #[serde(flatten)]
    known: T,
    #[serde(flatten)]
    rest: Rest,
}

/// Unknown members of an object in their order; the last one of duplicate keys.
#[derive(Clone, Debug, Default)]
struct Rest(Vec<(String, Box<RawValue>)>);

/// The networks of an annotation, if addresses can be added: a comma list has no place for them, and an empty list
/// needs none.
pub(crate) fn parse(annotation: &str) -> Result<Vec<Element>, InvalidNetworks> {
    if annotation.is_empty() {
        return Err(InvalidNetworks::Empty);
    }
    if !is_json(annotation) {
        tracing::debug!("{}", messages::COMMA_LIST);
        return Ok(Vec::new());
    }
    if annotation.len() > MAX_ANNOTATION {
        return Err(InvalidNetworks::TooLong(annotation.len()));
    }
    let wrong = |message: String| InvalidNetworks::Json(messages::excerpt(message));
    let objects: Vec<Option<Object>> =
        serde_json::from_str(annotation).map_err(|error| wrong(error.to_string()))?;
    if objects.len() > MAX_NETWORKS {
        return Err(InvalidNetworks::TooMany(objects.len()));
    }
    let elements = objects.iter().enumerate().map(|(index, object)| match object {
        Some(object) => Element::read(object).map_err(|error| wrong(format!("[{index}].{error}"))),
        None => Err(wrong(format!("[{index}]: null is not an object"))),
    });
    elements.collect()
}

/// Serializes the annotation.
pub(crate) fn to_text(elements: &[Element]) -> String {
    // Only non-string keys can fail, and there are none.
    serde_json::to_string(elements).unwrap_or_default()
}

/// Addresses in the annotation of an existing pod by network name, and errors of malformed ones. A malformed annotation
/// has no addresses: multus does not attach such a pod.
pub(crate) fn addresses(annotation: &str) -> (Vec<Holding>, Vec<InvalidMac>) {
    let mut found = (Vec::new(), Vec::new());
    if !is_json(annotation) || annotation.len() > MAX_ANNOTATION {
        return found;
    }
    let objects: Vec<Option<Object>> = serde_json::from_str(annotation).unwrap_or_default();
    for object in objects.iter().flatten() {
        let Some(mac) = object.text(field::MAC).filter(|mac| !mac.is_empty()) else {
            continue;
        };
        match Mac::parse(&mac) {
            Ok(mac) => {
                let key = object.text(field::NAME).unwrap_or_default().into();
                let holding = Holding { mac, key };
                if !found.0.contains(&holding) {
                    found.0.push(holding);
                }
            }
            Err(error) => found.1.push(error),
        }
    }
    found
}

/// Whether the annotation is JSON; otherwise it is a comma list.
fn is_json(annotation: &str) -> bool {
    annotation.contains(['[', '{', '"'])
}

impl Element {
    fn read(object: &Object) -> Result<Self, json::Error> {
        let text = |key| Ok::<_, json::Error>(object.read::<String>(key)?.unwrap_or_default());
        Ok(Self {
            name: text(field::NAME)?,
            namespace: text(field::NAMESPACE)?,
            mac: text(field::MAC)?,
            ips: object.read(field::IPS)?.unwrap_or_default(),
            infiniband_guid: text(field::INFINIBAND_GUID)?,
            interface: text(field::INTERFACE)?,
            interface_request: text(field::INTERFACE_REQUEST)?,
            port_mappings: port_mappings(object).map_err(|error| of_key(field::PORT_MAPPINGS, &error))?,
            bandwidth: bandwidth(object).map_err(|error| of_key(field::BANDWIDTH, &error))?,
            device_id: text(field::DEVICE_ID)?,
            cni_args: cni_args(object).map_err(|error| of_key(field::CNI_ARGS, &error))?,
            default_route: object
                .read::<Vec<String>>(field::DEFAULT_ROUTE)?
                .map(gateways)
                .transpose()?,
            rest: Rest::of(object, &field::ALL)?,
        })
    }
}

fn wrong_value(text: impl std::fmt::Display) -> json::Error {
    serde::de::Error::custom(text)
}

fn of_key(key: &str, error: &json::Error) -> json::Error {
    wrong_value(format!("{key}: {error}"))
}

fn port_mappings(object: &Object) -> Result<Vec<Extended<PortMapping>>, json::Error> {
    let Some(text) = object.get(field::PORT_MAPPINGS) else {
        return Ok(Vec::new());
    };
    let entries: Vec<Box<RawValue>> = serde_json::from_str(text.get())?;
    entries
        .iter()
        .map(|entry| Extended::read(entry, &field::OF_PORT_MAPPING))
        .collect()
}

fn bandwidth(object: &Object) -> Result<Option<Extended<Bandwidth>>, json::Error> {
    object
        .get(field::BANDWIDTH)
        .map(|text| Extended::read(text, &field::OF_BANDWIDTH))
        .transpose()
}

fn cni_args(object: &Object) -> Result<Option<Box<RawValue>>, json::Error> {
    let Some(text) = object.get(field::CNI_ARGS) else {
        return Ok(None);
    };
    if !text.get().starts_with('{') {
        return Err(wrong_value("not an object"));
    }
    let mut sorted = String::with_capacity(text.get().len());
    sort(text.get(), 0, &mut sorted)?;
    Ok(Some(RawValue::from_string(sorted)?))
}

/// Writes JSON with sorted keys and without white space; everything else as written.
fn sort(text: &str, depth: usize, out: &mut String) -> Result<(), json::Error> {
    if !text.starts_with(['{', '[']) {
        out.push_str(text);
        return Ok(());
    }
    if depth == MAX_DEPTH {
        return Err(wrong_value(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text)?;
        out.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            sort(item.get(), depth + 1, out)?;
        }
        out.push(']');
        return Ok(());
    }
    let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    out.push('{');
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&serde_json::to_string(key)?);
        out.push(':');
        sort(value.get(), depth + 1, out)?;
    }
    out.push('}');
    Ok(())
}

fn gateways(texts: Vec<String>) -> Result<Vec<IpAddr>, json::Error> {
    let parse = |text: String| {
        text.parse::<IpAddr>()
            .map(|address| address.to_canonical())
            .map_err(|_| wrong_value(format!("{}: invalid IP address: {text}", field::DEFAULT_ROUTE)))
    };
    texts.into_iter().map(parse).collect()
}

impl<T: serde::de::DeserializeOwned> Extended<T> {
    fn read(text: &RawValue, known: &[&str]) -> Result<Self, json::Error> {
        let object = Object::parse(text.get().as_bytes())?;
        Ok(Self {
            known: json::from_str(text.get())?,
            rest: Rest::of(&object, known)?,
        })
    }
}

impl Rest {
    fn of(object: &Object, known: &[&str]) -> Result<Self, json::Error> {
        let mut rest: Vec<(String, Box<RawValue>)> = Vec::new();
        for (key, value) in object.iter() {
            if known.iter().any(|known| json::folds_to(key, known)) {
                continue;
            }
            let value = RawValue::from_string(json::compact(value.get()))?;
            match rest.iter_mut().find(|(there, _)| there == key) {
                Some(entry) => entry.1 = value,
                None => rest.push((key.to_owned(), value)),
            }
        }
        Ok(Self(rest))
    }
}

impl Serialize for Rest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let text = |map: &mut S::SerializeMap, key: &str, text: &str| {
            if text.is_empty() {
                return Ok(());
            }
            map.serialize_entry(key, text)
        };
        text(&mut map, field::NAME, &self.name)?;
        text(&mut map, field::NAMESPACE, &self.namespace)?;
        if !self.ips.is_empty() {
            map.serialize_entry(field::IPS, &self.ips)?;
        }
        text(&mut map, field::MAC, &self.mac)?;
        text(&mut map, field::INFINIBAND_GUID, &self.infiniband_guid)?;
        text(&mut map, field::INTERFACE, &self.interface)?;
        text(&mut map, field::INTERFACE_REQUEST, &self.interface_request)?;
        if !self.port_mappings.is_empty() {
            map.serialize_entry(field::PORT_MAPPINGS, &self.port_mappings)?;
        }
        if let Some(bandwidth) = &self.bandwidth {
            map.serialize_entry(field::BANDWIDTH, bandwidth)?;
        }
        text(&mut map, field::DEVICE_ID, &self.device_id)?;
        map.serialize_entry(field::CNI_ARGS, &self.cni_args)?;
        if let Some(gateways) = &self.default_route {
            map.serialize_entry(field::DEFAULT_ROUTE, gateways)?;
        }
        for (key, value) in &self.rest.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;

//! Reads, completes and writes the annotation that selects a pod's networks (kubevirt-ipam §6.3), and matches its
//! elements with the networks of the instance.

use cni::json::{self, Object};
use cni::selection::{NetworkSelection, SelectionError, parse_networks};
use kube_kit::watch::Name;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::objects::Instance;

/// Keys of an element, in the order of the output. All other keys follow in their own order.
const KEYS: [&str; 11] = [
    NAME,
    NAMESPACE,
    IPS,
    "mac",
    "infiniband-guid",
    INTERFACE,
    "portMappings",
    "bandwidth",
    "cni-args",
    DEFAULT_ROUTE,
    REFERENCE,
];
const NAME: &str = "name";
const NAMESPACE: &str = "namespace";
const IPS: &str = "ips";
const INTERFACE: &str = "interface";
const DEFAULT_ROUTE: &str = "default-route";
const REFERENCE: &str = "ipam-claim-reference";

/// One requested network of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Namespace and name of its definition.
    pub definition: Name,
    /// Name of the interface in the pod; empty if the element has none.
    pub interface: String,
    /// The reference to a claim, with its original text.
    pub reference: Option<String>,
    /// The present keys of [`KEYS`], in this order.
    known: Object,
    /// All other keys, in their order.
    rest: Object,
}

/// The requested networks of an annotation; none if it is absent or empty.
///
/// # Errors
/// If multus could not read the annotation either.
pub fn parse(annotation: Option<&str>, namespace: &str) -> Result<Vec<Element>, SelectionError> {
    let annotation = annotation.unwrap_or_default();
    let networks = parse_networks(annotation, namespace)?;
    // The same text was parsed successfully before.
    let wrong = |error: &dyn std::fmt::Display| SelectionError::Json(error.to_string());
    let objects: Vec<Object> = if annotation.contains(['[', '{', '"']) {
        serde_json::from_str(&json::compact(annotation)).map_err(|error| wrong(&error))?
    } else {
        let object = |network: &NetworkSelection| {
            let mut object = Object::default();
            object.set(INTERFACE, &network.interface)?;
            Ok::<_, json::Error>(object)
        };
        let objects = networks.iter().map(object).collect::<Result<_, _>>();
        objects.map_err(|error| wrong(&error))?
    };
    let elements = networks.into_iter().zip(objects);
    let elements = elements.map(|(network, object)| Element::new(network, object));
    elements.collect::<Result<_, _>>().map_err(|error| wrong(&error))
}

/// The annotation's text, always a JSON list.
pub fn to_text(elements: &[Element]) -> String {
    // Serialization fails only for maps with keys that are no strings, and the elements have none.
    serde_json::to_string(elements).unwrap_or_default()
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.known.iter().chain(self.rest.iter()))
    }
}

impl Element {
    fn new(network: NetworkSelection, object: Object) -> Result<Self, json::Error> {
        let (mut known, mut rest) = (Object::default(), object);
        known.set(NAME, &network.name)?;
        known.set(NAMESPACE, &network.namespace)?;
        for key in KEYS {
            // An empty list of gateways differs from a missing list.
            let value = rest
                .get(key)
                .filter(|value| key == DEFAULT_ROUTE || !is_empty(value));
            if let Some(value) = value.filter(|_| ![NAME, NAMESPACE].contains(&key)) {
                known.set_raw(key, value.to_owned());
            }
            rest.remove(key);
        }
        Ok(Self {
            definition: Name::new(network.namespace, network.name),
            interface: network.interface.unwrap_or_default(),
            reference: network.ipam_claim_reference,
            known,
            rest,
        })
    }

    /// Sets the reference to a claim.
    pub fn refer_to(&mut self, claim: &str) {
        self.put(REFERENCE, claim.to_owned());
        self.reference = Some(claim.to_owned());
    }

    /// Sets the requested addresses.
    pub fn ask_for(&mut self, ips: &[String]) {
        self.put(IPS, ips);
    }

    fn put(&mut self, key: &str, value: impl serde::Serialize) {
        // Strings and lists of strings are always valid JSON.
        if let Err(error) = self.known.set(key, &value) {
            tracing::error!(key, %error, "cannot write a key of a network selection element");
        }
        let mut ordered = Object::default();
        for key in KEYS {
            if let Some(value) = self.known.get(key) {
                ordered.set_raw(key, value.to_owned());
            }
        }
        self.known = ordered;
    }
}

/// Values that mean the same as a missing key.
fn is_empty(value: &RawValue) -> bool {
    ["null", "\"\"", "[]"].contains(&value.get())
}

/// For each element, the network of the instance that it attaches, if there is one. The name of the interface in the
/// pod identifies the network if several networks have one definition; otherwise the definition does. No network is
/// attached twice.
pub fn networks_of<'i>(elements: &[Element], instance: &'i Instance) -> Vec<Option<&'i str>> {
    let secondary: Vec<_> = instance.secondary().collect();
    let mut taken = vec![false; secondary.len()];
    let mut found = vec![None; elements.len()];
    let mut take = |found: &mut Option<&'i str>, fits: &dyn Fn(usize) -> bool| {
        let mut free = (0..secondary.len()).filter(|place| !taken[*place]);
        if let Some(place) = free.find(|place| fits(*place)) {
            taken[place] = true;
            *found = Some(secondary[place].0);
        }
    };
    for (element, found) in elements.iter().zip(&mut found) {
        let is_named = |place: usize| {
            let (network, definition) = secondary[place];
            *definition == element.definition
                && (element.interface == hashed(network) || element.interface == ordinal(place))
        };
        take(found, &is_named);
    }
    for (element, found) in elements.iter().zip(&mut found) {
        if found.is_none() {
            take(found, &|place| *secondary[place].1 == element.definition);
        }
    }
    found
}

/// Name of the interface in the pod. KubeVirt derives it from the network's name.
fn hashed(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // Eleven hexadecimal digits.
    format!("pod{:011x}", u64::from_be_bytes(first) >> 20)
}

/// Name of the interface in the pod. Older versions of KubeVirt derive it from the network's index.
fn ordinal(place: usize) -> String {
    format!("net{}", place + 1)
}

#[cfg(test)]
mod tests;

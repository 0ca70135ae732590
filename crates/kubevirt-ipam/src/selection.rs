//! The annotation that selects a pod's networks, read, completed and written again (kubevirt-ipam §6.3), and which network of
//! the instance each of its elements is.

use cni::json::{self, Object};
use cni::selection::{NetworkSelection, SelectionError, parse_networks};
use kube_kit::watch::Name;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::objects::Instance;

/// Keys of an element, in the order that they are written in; all others follow in their own order.
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
    "default-route",
    REFERENCE,
];
const NAME: &str = "name";
const NAMESPACE: &str = "namespace";
const IPS: &str = "ips";
const INTERFACE: &str = "interface";
const REFERENCE: &str = "ipam-claim-reference";

/// One network that a pod asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Namespace and name of its definition.
    pub definition: Name,
    /// Name of the interface in the pod; empty where the element says none.
    pub interface: String,
    /// The claim that it refers to, as it was written.
    pub reference: Option<String>,
    /// All of it.
    object: Object,
}

/// The networks that an annotation asks for; none where it is absent or empty.
///
/// # Errors
/// When multus could not read it either.
pub fn parse(annotation: Option<&str>, namespace: &str) -> Result<Vec<Element>, SelectionError> {
    let annotation = annotation.unwrap_or_default();
    let networks = parse_networks(annotation, namespace)?;
    if annotation.contains(['[', '{', '"']) {
        // It was read a moment ago.
        let wrong = |error: &dyn std::fmt::Display| SelectionError::Json(error.to_string());
        let objects: Vec<Object> = serde_json::from_str(annotation).map_err(|error| wrong(&error))?;
        let elements = networks.into_iter().zip(objects);
        let elements = elements.map(|(network, object)| Element::new(network, &object));
        return elements.collect::<Result<_, _>>().map_err(|error| wrong(&error));
    }
    let elements = networks.into_iter().map(|network| {
        let mut object = Object::default();
        object.set(INTERFACE, &network.interface)?;
        Element::new(network, &object)
    });
    let elements: Result<_, json::Error> = elements.collect();
    elements.map_err(|error| SelectionError::Json(error.to_string()))
}

/// The annotation's text: a JSON list in any case.
pub fn to_text(elements: &[Element]) -> String {
    let objects: Vec<_> = elements.iter().map(|element| &element.object).collect();
    // Only maps with keys that are no texts can fail, and there are none.
    serde_json::to_string(&objects).unwrap_or_default()
}

impl Element {
    fn new(network: NetworkSelection, object: &Object) -> Result<Self, json::Error> {
        let mut ordered = Object::default();
        for key in KEYS {
            match key {
                NAME => ordered.set(key, &network.name)?,
                NAMESPACE => ordered.set(key, &network.namespace)?,
                _ => {
                    if let Some(value) = object.get(key).filter(|value| !is_empty(value)) {
                        ordered.set_raw(key, compact(value)?);
                    }
                }
            }
        }
        let is_unknown = |key: &str| !KEYS.iter().any(|known| json::folds_to(key, known));
        for (key, value) in object.iter().filter(|(key, _)| is_unknown(key)) {
            ordered.set_raw(key, compact(value)?);
        }
        Ok(Self {
            definition: Name::new(network.namespace, network.name),
            interface: network.interface.unwrap_or_default(),
            reference: network.ipam_claim_reference,
            object: ordered,
        })
    }

    /// Lets it refer to a claim.
    pub fn refer_to(&mut self, claim: &str) {
        self.put(REFERENCE, claim.to_owned());
        self.reference = Some(claim.to_owned());
    }

    /// Lets it ask for these addresses.
    pub fn ask_for(&mut self, ips: &[String]) {
        self.put(IPS, ips);
    }

    fn put(&mut self, key: &str, value: impl serde::Serialize) {
        // Texts and lists of them are always JSON.
        if let Err(error) = self.object.set(key, &value) {
            tracing::error!(key, %error, "cannot write a key of a network selection element");
        }
        self.sort();
    }

    /// Brings the known keys into their order again.
    fn sort(&mut self) {
        let mut ordered = Object::default();
        for key in KEYS {
            if let Some(value) = self.object.get(key) {
                ordered.set_raw(key, value.to_owned());
            }
        }
        for (key, value) in self.object.iter() {
            if !KEYS.contains(&key) {
                ordered.set_raw(key, value.to_owned());
            }
        }
        self.object = ordered;
    }
}

/// Values that mean the same as a missing key.
fn is_empty(value: &RawValue) -> bool {
    let text = json::compact(value.get());
    ["null", "\"\"", "[]"].contains(&text.as_str())
}

fn compact(value: &RawValue) -> Result<Box<RawValue>, json::Error> {
    Ok(RawValue::from_string(json::compact(value.get()))?)
}

/// Of each element the network of the instance that it attaches, if it is one: told by the name of the interface in the pod
/// where several networks have one definition, else by the definition. No network is attached twice.
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

/// Name of the interface in the pod, as KubeVirt makes it of the network's name.
fn hashed(network: &str) -> String {
    const DIGITS: usize = 11;
    let digest = Sha256::digest(network.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("pod{}", &hex[..DIGITS])
}

/// As older versions of KubeVirt make it of the network's place.
fn ordinal(place: usize) -> String {
    format!("net{}", place + 1)
}

#[cfg(test)]
mod tests;

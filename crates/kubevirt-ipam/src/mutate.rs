//! Decides about a launcher pod (kubevirt-ipam §6.2).
//!
//! ```text
//! Request ── Review::read ──> networks, primary network ──> instance ──> mutate ──> Verdict
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::kubevirt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_kit::patch::escape;
use kube_kit::watch::Name;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use webhook::admission::{Change, Operation, Request, Verdict};

use crate::ip_request;
use crate::messages::{self, review as text};
use crate::names;
use crate::network::{Config, Network};
use crate::objects::{Claim, Instance, Machine};
use crate::plan::{self, Networks};
use crate::selection::{self, Element};
use crate::uid::Uid;
use api::ipam_claim::claim_name;

#[cfg(test)]
mod tests;

/// Annotations that the webhook reads and sets.
const LOOKED_AT: [&str; 3] = [names::SELECTION, names::DEFAULT_NETWORK, names::PRIMARY_CLAIM];

/// Read access to the caches.
pub trait Lookup: Networks {
    /// A claim.
    fn claim(&self, id: &Name) -> Option<Claim>;
    /// A virtual machine.
    fn machine(&self, name: &Name) -> Option<Machine>;
}

/// A pod that runs a virtual machine.
#[derive(Clone, Debug)]
pub struct Review {
    namespace: String,
    pod: String,
    operation: Operation,
    /// Whether the request sets or changes one of the annotations.
    asks: bool,
    instance: String,
    /// UID of the instance that owns the pod; empty if none does.
    owner: Uid,
    annotations: BTreeMap<String, String>,
    elements: Vec<Element>,
}

#[derive(Default, Deserialize)]
struct Pod {
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    annotations: Option<BTreeMap<String, Option<String>>>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl Metadata {
    fn read(object: Option<&RawValue>) -> Result<Self, String> {
        let text = object.map_or("null", RawValue::get);
        let pod: Option<Pod> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let pod = pod.ok_or(text::NO_OBJECT)?;
        Ok(pod.metadata.unwrap_or_default())
    }

    fn looked_at(&self) -> Vec<Option<&str>> {
        let annotations = self.annotations.as_ref();
        let value = |key: &&str| annotations?.get(*key)?.as_deref();
        LOOKED_AT.iter().map(value).collect()
    }
}

impl Review {
    /// Reads a request.
    ///
    /// # Errors
    /// With the verdict, if the request alone decides it.
    pub fn read(request: &Request) -> Result<Self, Verdict> {
        let pod = Metadata::read(request.object.as_deref())
            .map_err(|error| Verdict::denied(400, messages::excerpt(error)))?;
        let annotations = pod.annotations.clone().unwrap_or_default();
        let Some(instance) = annotations.get(names::DOMAIN) else {
            return Err(allowed(text::NOT_A_VM));
        };
        let instance = instance.clone().unwrap_or_default();
        let is_update = request.operation != Operation::Create;
        if is_update && pod.deletion_timestamp.is_some() {
            return Err(allowed(text::CARRY_ON));
        }
        let before = Metadata::read(request.old_object.as_deref()).unwrap_or_default();
        let mut owners = pod.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.kind == kubevirt::INSTANCE);
        let mut review = Self {
            namespace: request.namespace.clone(),
            operation: request.operation,
            asks: !is_update || before.looked_at() != pod.looked_at(),
            instance,
            owner: owner.map(|owner| owner.uid.as_str().into()).unwrap_or_default(),
            elements: Vec::new(),
            annotations: annotations
                .into_iter()
                .map(|(key, value)| (key, value.unwrap_or_default()))
                .collect(),
            pod: pod.name.unwrap_or_default(),
        };
        let selected = review.annotations.get(names::SELECTION).map(String::as_str);
        match selection::parse(selected, &review.namespace) {
            Ok(elements) => review.elements = elements,
            Err(error) => {
                tracing::info!(pod = review.pod, namespace = review.namespace, %error, "{}", text::UNREADABLE);
                return Err(review.refused(400, text::UNREADABLE));
            }
        }
        Ok(review)
    }

    /// The verdict, if it does not depend on the instance.
    pub fn early(&self, networks: &impl Networks) -> Option<Verdict> {
        let nothing = self.elements.is_empty() && networks.primary(&self.namespace).is_none();
        nothing.then(|| allowed(text::NOT_REQUIRED))
    }

    /// Namespace and name of the pod's instance.
    pub fn instance(&self) -> Name {
        Name::new(&self.namespace, &self.instance)
    }

    /// Whether the pod runs this instance, and not an earlier or later one of the same name.
    pub fn runs(&self, instance: &Instance) -> bool {
        self.owner.is_empty() || self.owner == instance.uid
    }

    /// Definitions that the decision needs, without duplicates.
    pub fn needs(&self) -> BTreeSet<Name> {
        let definitions = self.elements.iter().map(|element| &element.definition);
        definitions.cloned().collect()
    }

    /// The verdict for a missing instance. The webhook refuses the creation of the pod, and KubeVirt retries. It allows
    /// an update of an existing pod, because the update may serve to end the pod.
    pub fn without_instance(&self) -> Verdict {
        if self.operation == Operation::Create {
            self.no_access(text::instance_not_found(&self.instance))
        } else {
            allowed(text::CARRY_ON)
        }
    }

    /// The verdict for an instance that cannot be read.
    pub fn no_access(&self, error: impl std::fmt::Display) -> Verdict {
        self.refused(500, text::no_access(&self.namespace, &self.pod, error))
    }

    /// Refuses a request that sets or changes one of the annotations. Allows any other update of a pod.
    fn refused(&self, code: u16, message: impl Into<String>) -> Verdict {
        if self.asks {
            Verdict::denied(code, message)
        } else {
            allowed(text::CARRY_ON)
        }
    }
}

/// Allows a pod without a change, with this message.
fn allowed(message: &str) -> Verdict {
    Verdict {
        message: Some(message.to_owned()),
        ..Verdict::default()
    }
}

/// Annotations to set.
type Annotations = Vec<(&'static str, String)>;

/// Decides about a pod of this instance.
pub fn mutate(review: &Review, instance: &Instance, known: &impl Lookup, default_namespace: &str) -> Verdict {
    let mut claims = Claims {
        review,
        known,
        taken: BTreeMap::new(),
    };
    let annotations = secondary(review, instance, known, &mut claims).and_then(|mut annotations| {
        annotations.extend(primary(review, instance, known, &mut claims, default_namespace)?);
        Ok(annotations)
    });
    match annotations {
        Ok(annotations) => patched(review, annotations),
        Err(refusal) => refusal,
    }
}

/// Claims that the pod refers to.
struct Claims<'a, L> {
    review: &'a Review,
    known: &'a L,
    /// Networks by the names of their claims.
    taken: BTreeMap<String, String>,
}

impl<L: Lookup> Claims<'_, L> {
    /// The claim of a network of the instance. The claim must be for this network alone, and its label must not name
    /// another virtual machine.
    fn of(&mut self, network: &str) -> Result<String, Verdict> {
        let review = self.review;
        let claim = claim_name(&review.instance, network);
        if let Some(first) = self.taken.get(&claim) {
            return Err(review.refused(403, text::ambiguous(&claim, first, network)));
        }
        let id = Name::new(&review.namespace, &claim);
        let machine = self.known.claim(&id).unwrap_or_default().machine;
        if !machine.is_empty() && *machine != *review.instance {
            return Err(review.refused(403, text::foreign(&id, &machine)));
        }
        self.taken.insert(claim.clone(), network.to_owned());
        Ok(claim)
    }
}

/// Claims whose addresses the decision needs.
pub fn claims_needed(review: &Review, instance: &Instance, known: &impl Networks) -> Vec<Name> {
    let networks = selection::networks_of(&review.elements, instance);
    let elements = review.elements.iter().zip(networks);
    let claim = |(element, network): (&Element, Option<&str>)| {
        let found = known.network(&element.definition)?;
        let config = found.config.as_ref().ok()?;
        let gives = config.allow_persistent_ips && !config.ranges.is_empty();
        gives.then(|| {
            Some(Name::new(
                &review.namespace,
                claim_name(&review.instance, network?),
            ))
        })?
    };
    elements.filter_map(claim).collect()
}

/// The addresses of a claim for an instance; none if the claim is of an earlier virtual machine of the same name.
pub fn addresses(review: &Review, instance: &Instance, known: &impl Lookup, claim: &Name) -> Box<[String]> {
    let machine = known.machine(&review.instance());
    let claim = known.claim(claim).unwrap_or_default();
    if plan::is_of_others(&claim, machine.as_ref(), instance) {
        return Box::default();
    }
    claim.ips
}

/// References to claims of secondary networks.
fn secondary<L: Lookup>(
    review: &Review,
    instance: &Instance,
    known: &L,
    claims: &mut Claims<'_, L>,
) -> Result<Annotations, Verdict> {
    let mut elements = review.elements.clone();
    let networks = selection::networks_of(&elements, instance);
    let mut changed = false;
    for (element, network) in elements.iter_mut().zip(networks) {
        let definition = &element.definition;
        let Some(found) = known.network(definition) else {
            tracing::info!(
                nad = messages::object(definition),
                "NAD not found, will hang on scheduler"
            );
            return Ok(Annotations::new());
        };
        let config = match &found.config {
            Ok(config) => config,
            // Another pod's owner may have broken the definition. The plugins report the error if it matters.
            Err(error) if network.is_none() => {
                tracing::warn!(nad = messages::object(definition), %error, "malformed NAD is left aside");
                continue;
            }
            Err(error) => return Err(review.refused(500, error.to_string())),
        };
        let Some(network) = network.filter(|_| config.allow_persistent_ips) else {
            continue;
        };
        let claim = claims.of(network)?;
        tracing::info!(
            pod = review.pod,
            namespace = review.namespace,
            network,
            claim,
            "will request persistent IPs"
        );
        element.refer_to(&claim);
        if !config.ranges.is_empty() {
            let id = Name::new(&review.namespace, claim);
            let ips = addresses(review, instance, known, &id);
            if ips.is_empty() {
                return Err(review.refused(500, text::no_addresses(&id)));
            }
            element.ask_for(&ips);
        }
        changed = true;
    }
    if !changed {
        return Ok(Annotations::new());
    }
    Ok(vec![(names::SELECTION, selection::to_text(&elements))])
}

/// The claim of the primary network, and the addresses that the user requests on it.
fn primary<L: Lookup>(
    review: &Review,
    instance: &Instance,
    known: &L,
    claims: &mut Claims<'_, L>,
    default_namespace: &str,
) -> Result<Annotations, Verdict> {
    let Some(config) = persistent(known.primary(&review.namespace)) else {
        return Ok(Annotations::new());
    };
    tracing::debug!(network = config.name, "primary network attachment found");
    let interface = instance
        .pod_network()
        .and_then(|network| instance.interface(network));
    let Some(interface) = interface else {
        tracing::debug!(pod = review.pod, "no interface on the pod network");
        return Ok(Annotations::new());
    };
    if review.operation == Operation::Create && review.annotations.contains_key(names::DEFAULT_NETWORK) {
        return Err(Verdict::denied(403, text::default_network_not_allowed()));
    }
    let ips = ip_request::requested(instance.addresses.as_deref(), &config.subnets, &interface.name)
        .map_err(|error| review.refused(500, error.to_string()))?;
    let claim = claims.of(&interface.name)?;
    tracing::info!(
        pod = review.pod,
        namespace = review.namespace,
        network = interface.name,
        claim,
        "will request persistent IPs"
    );
    let mut annotations = Annotations::new();
    if !ips.is_empty() || !interface.mac.is_empty() {
        let mut element = json!({ "name": names::DEFAULT, "namespace": default_namespace });
        if !ips.is_empty() {
            element["ips"] = json!(ips);
        }
        if !interface.mac.is_empty() {
            element["mac"] = json!(interface.mac);
        }
        element["ipam-claim-reference"] = json!(claim);
        annotations.push((names::DEFAULT_NETWORK, json!([element]).to_string()));
    }
    annotations.push((names::PRIMARY_CLAIM, claim));
    Ok(annotations)
}

/// The configuration of a network with persistent addresses.
fn persistent(network: Option<Arc<Network>>) -> Option<Config> {
    let config = network?.config.clone().ok()?;
    config.allow_persistent_ips.then_some(config)
}

fn patched(review: &Review, annotations: Annotations) -> Verdict {
    if annotations.is_empty() {
        return allowed(text::CARRY_ON);
    }
    let mut patch = Vec::new();
    for (key, value) in annotations {
        let path = format!("/metadata/annotations/{}", escape(key));
        match review.annotations.get(key) {
            Some(present) if *present == value => {}
            Some(_) => patch.push(Change::Replace {
                path,
                value: json!(value),
            }),
            None => patch.push(Change::Add {
                path,
                value: json!(value),
            }),
        }
    }
    if patch.is_empty() {
        return allowed(text::NOT_NEEDED);
    }
    Verdict::patched(patch)
}

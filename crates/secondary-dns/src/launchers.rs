//! Addresses that multus reports for launcher pods (`KSD_EARLY_ADDRESSES=network-status`).
//!
//! ```text
//! list, watch ──> Pod ── network-status ──> addresses by interface ──┐
//! VMI ── networks ──> names of interfaces in the pod ────────────────┴──> addresses by network
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::ListParams;
use kube::{Api, Client};
use kube_kit::connection;
use kube_kit::pages::Pages;
use kube_kit::watch::{Name, Options};
use serde::Deserialize;
use serde::de::Deserializer;
use sha2::{Digest as _, Sha256};

use crate::model::key;
use crate::names;
use crate::vmi::Vmi;

/// Pods per page of a list.
const PAGE: u32 = 250;

/// The read fields of a pod.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
pub(crate) struct Pod {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "kubevirt.io/domain")]
    domain: Option<String>,
    #[serde(rename = "k8s.v1.cni.cncf.io/network-status")]
    status: Option<String>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let read = Metadata::deserialize(deserializer)?;
    let Annotations { domain, status } = read.annotations.unwrap_or_default();
    let kept = [(names::DOMAIN, domain), (names::NETWORK_STATUS, status)];
    let kept = kept
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        annotations: Some(kept.collect()),
        ..ObjectMeta::default()
    })
}

/// The read fields of an entry of the annotation.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    interface: Option<String>,
    ips: Option<Vec<String>>,
}

/// A launcher pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Launcher {
    /// Key of the instance.
    instance: Arc<str>,
    /// Seconds since 1970.
    created: i64,
    reported: Box<[Attached]>,
}

/// An interface in a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Attached {
    interface: Box<str>,
    addresses: Box<[IpAddr]>,
}

impl Launcher {
    /// `None` if the pod runs no instance, or is being deleted.
    fn of(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let annotations = metadata.annotations.as_ref()?;
        let domain = annotations.get(names::DOMAIN)?;
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        let entries = annotations.get(names::NETWORK_STATUS).map(String::as_str);
        // Multus writes the annotation. A malformed one has no addresses.
        let entries: Vec<Option<Entry>> = entries
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let reported = entries.into_iter().flatten().filter_map(|entry| {
            let texts = entry.ips.unwrap_or_default();
            let addresses: Box<[IpAddr]> = texts.iter().filter_map(|text| text.parse().ok()).collect();
            let interface = entry.interface?.into();
            (!addresses.is_empty()).then_some(Attached { interface, addresses })
        });
        let created = metadata.creation_timestamp.as_ref();
        Some(Self {
            instance: key(metadata.namespace.as_deref().unwrap_or_default(), domain),
            created: created.map(|time| time.0.as_second()).unwrap_or_default(),
            reported: reported.collect(),
        })
    }
}

/// Selects the launcher pods that have not ended.
pub(crate) fn options() -> Options {
    Options::all()
        .labels(names::LAUNCHERS)
        .fields(names::NOT_ENDED)
        .page(PAGE)
}

/// The launcher pods.
#[derive(Debug, Default)]
pub(crate) struct Launchers {
    /// Launchers by the key of the instance.
    of_instance: BTreeMap<Arc<str>, BTreeMap<Name, Launcher>>,
    /// Keys of instances by pod.
    of_pod: BTreeMap<Name, Arc<str>>,
}

impl Launchers {
    /// Applies an event of a pod. Returns the keys of the instances whose addresses may have changed.
    pub(crate) fn observe(&mut self, pod: &Pod) -> Vec<Arc<str>> {
        let name = Name::of(&pod.metadata);
        let Some(launcher) = Launcher::of(pod) else {
            return self.remove(&name).into_iter().collect();
        };
        let instance = Arc::clone(&launcher.instance);
        let mut changed = Vec::new();
        // An edit of the pod may name another instance.
        if self.of_pod.get(&name).is_some_and(|former| *former != instance) {
            changed.extend(self.remove(&name));
        }
        let pods = self.of_instance.entry(Arc::clone(&instance)).or_default();
        if pods.get(&name) == Some(&launcher) {
            return changed;
        }
        pods.insert(name.clone(), launcher);
        self.of_pod.insert(name, Arc::clone(&instance));
        changed.push(instance);
        changed
    }

    /// Removes a pod. Returns the key of the instance whose addresses may have changed.
    pub(crate) fn remove(&mut self, pod: &Name) -> Option<Arc<str>> {
        let instance = self.of_pod.remove(pod)?;
        if let Some(pods) = self.of_instance.get_mut(&instance) {
            pods.remove(pod);
            if pods.is_empty() {
                self.of_instance.remove(&instance);
            }
        }
        Some(instance)
    }

    /// Addresses on a network of an instance. The oldest of several pods counts: the younger pod is the target of a
    /// running migration.
    pub(crate) fn addresses(&self, vmi: &Vmi, network: &str) -> Vec<IpAddr> {
        let (namespace, name) = vmi.name();
        let pods = self.of_instance.get(&key(namespace, name));
        let Some((_, launcher)) = pods
            .into_iter()
            .flatten()
            .min_by_key(|(pod, launcher)| (launcher.created, *pod))
        else {
            return Vec::new();
        };
        let mut networks = vmi.secondary_networks();
        let Some(place) = networks.position(|other| other == network) else {
            return Vec::new();
        };
        let named = [hashed(network), format!("net{}", place + 1)];
        let mut reported = launcher.reported.iter();
        let found = reported.find(|it| named.iter().any(|name| **name == *it.interface));
        found.map(|it| it.addresses.to_vec()).unwrap_or_default()
    }
}

/// Reads the pods once.
///
/// # Errors
/// If the pods cannot be read.
pub(crate) async fn list(client: &Client) -> Result<Launchers, connection::Error> {
    let api: Api<Pod> = Api::all(client.clone());
    let parameters = ListParams::default()
        .labels(names::LAUNCHERS)
        .fields(names::NOT_ENDED)
        .limit(PAGE);
    let mut pages = Pages::new(api, parameters);
    let mut all = Launchers::default();
    let failed = |error| connection::Error::of("pods of instances", &error);
    while let Some(page) = pages.next().await.map_err(failed)? {
        for pod in &page {
            all.observe(pod);
        }
    }
    Ok(all)
}

/// Name of the interface in the pod. KubeVirt derives it from the name of the network; older versions number the
/// interfaces.
fn hashed(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // Eleven hexadecimal digits.
    format!("pod{:011x}", u64::from_be_bytes(first) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi() -> Vmi {
        serde_json::from_value(json!({
            "metadata": { "name": "vmi1", "namespace": "ns1" },
            "spec": { "networks": [
                { "name": "default", "pod": {} }, { "name": "red", "multus": { "networkName": "a" } },
                { "name": "blue", "multus": { "networkName": "a" } },
            ] },
        }))
        .unwrap()
    }

    fn pod(name: &str, created: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ns1", "creationTimestamp": created, "labels": { "kubevirt.io": "virt-launcher" },
                "annotations": {
                    "kubevirt.io/domain": "vmi1", "k8s.v1.cni.cncf.io/network-status": status.to_string(), "other": "x",
                },
            },
            "spec": { "containers": [] },
        }))
        .unwrap()
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:00:09Z";

    fn texts(launchers: &Launchers, network: &str) -> Vec<String> {
        let addresses = launchers.addresses(&vmi(), network);
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn interfaces_of_networks_have_their_addresses() {
        // secondary-dns#70, the decision
        let mut launchers = Launchers::default();
        // Eleven digits of the SHA-256 of `red`. The interface of `blue` has its index in the name, as in older
        // versions of KubeVirt.
        let status = json!([
            { "name": "cluster", "interface": "eth0", "ips": ["10.244.0.5"], "default": true },
            { "name": "ns1/a", "interface": "podb1f51a511f1", "ips": ["10.1.0.1", "x", "fd00::1"] },
            { "name": "ns1/a", "interface": "net2", "ips": ["10.2.0.1"] },
            null, { "name": "ns1/b", "interface": "net3" },
        ]);
        assert_eq!(hashed("red"), "podb1f51a511f1");
        let first = pod("p1", EARLY, &status);
        assert_eq!(launchers.observe(&first), [key("ns1", "vmi1")]);
        assert!(launchers.observe(&first).is_empty(), "nothing has changed");
        assert_eq!(texts(&launchers, "red"), ["10.1.0.1", "fd00::1"]);
        assert_eq!(texts(&launchers, "blue"), ["10.2.0.1"]);
        assert!(texts(&launchers, "default").is_empty() && texts(&launchers, "other").is_empty());
    }

    #[test]
    fn target_of_a_migration_counts_when_its_source_is_gone() {
        // secondary-dns#70, the decision
        let at = |address: &str| json!([{ "interface": "net1", "ips": [address] }]);
        let mut launchers = Launchers::default();
        launchers.observe(&pod("b", EARLY, &at("10.0.0.1")));
        launchers.observe(&pod("a", LATE, &at("10.0.0.2")));
        assert_eq!(texts(&launchers, "red"), ["10.0.0.1"]);
        let mut ending = pod("b", EARLY, &at("10.0.0.1"));
        ending.metadata.deletion_timestamp = ending.metadata.creation_timestamp.clone();
        assert_eq!(launchers.observe(&ending).len(), 1);
        assert_eq!(texts(&launchers, "red"), ["10.0.0.2"]);
        assert!(launchers.remove(&Name::new("ns1", "b")).is_none());
        assert!(launchers.remove(&Name::new("ns1", "a")).is_some());
        assert!(texts(&launchers, "red").is_empty());
        assert!(launchers.of_instance.is_empty() && launchers.of_pod.is_empty());
    }

    #[test]
    fn pod_that_runs_another_instance_leaves_the_first_one() {
        let status = json!([{ "interface": "net1", "ips": ["10.0.0.1"] }]);
        let mut launchers = Launchers::default();
        let mut moved = pod("p", EARLY, &status);
        launchers.observe(&moved);
        let annotations = moved.metadata.annotations.as_mut().unwrap();
        annotations.insert(names::DOMAIN.to_owned(), "vmi2".to_owned());
        let changed = launchers.observe(&moved);
        assert_eq!(changed, [key("ns1", "vmi1"), key("ns1", "vmi2")]);
        assert!(texts(&launchers, "red").is_empty());
        assert_eq!((launchers.of_instance.len(), launchers.of_pod.len()), (1, 1));
    }

    #[test]
    fn malformed_annotation_reports_nothing() {
        let mut launchers = Launchers::default();
        for status in [json!({}), json!("x"), json!([1]), json!([{ "interface": 1 }])] {
            launchers.observe(&pod("p", EARLY, &status));
            assert!(texts(&launchers, "red").is_empty(), "{status}");
        }
        let bare: Pod =
            serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "ns1" } })).unwrap();
        assert_eq!(launchers.observe(&bare).len(), 1, "it ran an instance before");
        assert!(launchers.of_pod.is_empty());
    }
}

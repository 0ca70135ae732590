//! Reads the pod, its events, the networks that it refers to, and multus' configuration from the API server.

use super::Error;
use super::facts::{Event, Facts, PodObject};
use crate::cluster::{LookupError, Nad, WatchedNad};
use crate::names;
use crate::networks::net_conf::{self, MultusConfig};
use cni::json::Object;
use cni::selection::{parse_default_network, parse_networks};
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::connection;
use kube_kit::path;
use kube_kit::pod;
use kube_kit::watch::Name;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The ConfigMap of the multus daemon, in any namespace, and its key.
const CONFIG_MAP: &str = "multus-daemon-config";
const CONFIG_KEY: &str = "daemon-config.json";
/// Placeholder for the network that the daemon finds on the node.
pub(super) const ON_THE_NODE: &str = "/";
/// Reasons of events about networks.
const REASONS: [&str; 8] = [
    names::REASON_ADDED,
    names::REASON_FAILED,
    names::REASON_NO_NETWORK,
    "RemovedInterface",
    "FailedRemovingInterface",
    "InterfaceAddRejected",
    "FailedCreatePodSandBox",
    "FailedScheduling",
];

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct ConfigMap {
    metadata: super::facts::Metadata,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EventObject {
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
    last_timestamp: Option<String>,
    event_time: Option<String>,
    source: Source,
    reporting_component: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Source {
    component: String,
}

/// Gathers the state of a pod.
pub(super) async fn about(client: &Client, namespace: &str, name: &str) -> Result<Facts, Error> {
    let no_pod = || Error::NoPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let place = pod::path(&Name::new(namespace, name)).map_err(|_| no_pod())?;
    let pod: PodObject = match read(client, &place).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return Err(no_pod());
        }
        found => found.map_err(|error| connection::Error::of("pods", &error))?,
    };
    let mut notes = Vec::new();
    let (config, config_from) = match multus(client, &mut notes).await {
        Ok((namespace, config)) => (config, Ok(namespace)),
        Err(cause) => (parse("{}").map_err(Error::Config)?, Err(cause)),
    };
    let Nads {
        found: nads,
        forbidden,
        are_served: has_nads,
    } = nads(client, &pod, &config, &mut notes).await?;
    let events = events(client, &pod).await.unwrap_or_else(|error| {
        notes.push(format!("cannot read the events of the pod: {}", message(&error)));
        Vec::new()
    });
    Ok(Facts {
        pod,
        config,
        config_from,
        nads,
        forbidden,
        has_nads,
        events,
        notes,
    })
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, kube::Error> {
    let text = pod::get(client, path).await?;
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

/// Multus' configuration from its ConfigMap, and the ConfigMap's namespace. The rest of the configuration is on the
/// node.
async fn multus(client: &Client, notes: &mut Vec<String>) -> Result<(String, MultusConfig), String> {
    let path = format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{CONFIG_MAP}");
    let found: List<ConfigMap> = read(client, &path)
        .await
        .map_err(|error| format!("cannot read ConfigMaps: {}", message(&error)))?;
    let mut found = found
        .items
        .into_iter()
        .filter_map(|mut map| Some((map.metadata.namespace, map.data.remove(CONFIG_KEY)?)));
    let (namespace, text) = found
        .next()
        .ok_or_else(|| format!("there is no ConfigMap {CONFIG_MAP} in any namespace"))?;
    let others: Vec<_> = found.map(|(namespace, _)| namespace).collect();
    if !others.is_empty() {
        notes.push(format!(
            "several ConfigMaps {CONFIG_MAP} exist: using the one of namespace {namespace}, ignoring {}",
            others.join(", ")
        ));
    }
    match parse(&text) {
        Ok(config) => Ok((namespace, config)),
        Err(error) => Err(format!(
            "cannot parse ConfigMap {namespace}/{CONFIG_MAP}: {error}"
        )),
    }
}

/// The daemon's keys, over a stand-in for the generated configuration on the node.
pub(super) fn parse(text: &str) -> Result<MultusConfig, net_conf::Error> {
    let daemon = Object::parse(text.as_bytes()).map_err(net_conf::Error::Parse)?;
    let generated = format!(r#"{{"clusterNetwork":"{ON_THE_NODE}"}}"#);
    let generated = Object::parse(generated.as_bytes()).map_err(net_conf::Error::Parse)?;
    let mut config = MultusConfig::parse(&net_conf::overlay(generated, &daemon, true))?;
    // The files of this machine are not those of the pod's node.
    config.conf_dir = PathBuf::new();
    Ok(config)
}

/// The definitions that pod and multus refer to.
struct Nads {
    found: BTreeMap<Name, Result<Nad, LookupError>>,
    forbidden: BTreeSet<Name>,
    /// Whether the API server serves them.
    are_served: bool,
}

async fn nads(
    client: &Client,
    pod: &PodObject,
    config: &MultusConfig,
    notes: &mut Vec<String>,
) -> Result<Nads, Error> {
    let mut nads = Nads {
        found: BTreeMap::new(),
        forbidden: BTreeSet::new(),
        are_served: true,
    };
    for name in wanted(pod, config) {
        if let Err(error) = path::check(&name.namespace, &name.name) {
            nads.found.insert(name, Err(error.into()));
            continue;
        }
        let api: Api<WatchedNad> = Api::namespaced(client.clone(), &name.namespace);
        let nad = match api.get(&name.name).await {
            Ok(nad) => Ok(Nad::from(nad)),
            // The error for an unknown kind does not contain the object's name.
            Err(kube::Error::Api(status)) if status.code == 404 && !status.message.contains(&*name.name) => {
                nads.are_served = false;
                return Ok(nads);
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Err(LookupError(status.message.clone())),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                notes.push(format!(
                    "no permission to read network {}/{}: {}",
                    name.namespace, name.name, status.message
                ));
                nads.forbidden.insert(name.clone());
                Err(LookupError(status.message.clone()))
            }
            Err(error) => return Err(connection::Error::of("network-attachment-definitions", &error).into()),
        };
        nads.found.insert(name, nad);
    }
    Ok(nads)
}

/// The definitions that annotations and configuration refer to. Malformed annotations are reported later.
fn wanted(pod: &PodObject, config: &MultusConfig) -> BTreeSet<Name> {
    let namespace = &pod.metadata.namespace;
    let multus = config.multus_namespace.as_str();
    let mut selected = parse_networks(pod.networks().unwrap_or_default(), namespace).unwrap_or_default();
    selected.extend(
        pod.default_network()
            .and_then(|text| parse_default_network(text, multus).ok()),
    );
    let selected = selected
        .into_iter()
        .map(|selection| Name::new(selection.namespace, selection.name));
    let configured = config.cluster_network.iter().chain(&config.default_networks);
    let configured = configured
        .filter(|name| !name.contains('/'))
        .map(|name| Name::new(multus, name.as_str()));
    selected
        .chain(configured)
        .filter(|name| !name.name.is_empty())
        .collect()
}

async fn events(client: &Client, pod: &PodObject) -> Result<Vec<Event>, kube::Error> {
    let metadata = &pod.metadata;
    let path = format!(
        "/api/v1/namespaces/{}/events?fieldSelector=involvedObject.uid%3D{}",
        metadata.namespace, metadata.uid
    );
    let found: List<EventObject> = read(client, &path).await?;
    let mut events: Vec<_> = found
        .items
        .into_iter()
        .filter(|event| REASONS.contains(&event.reason.as_str()))
        .map(|event| Event {
            time: event.last_timestamp.or(event.event_time).unwrap_or_default(),
            kind: event.kind,
            reason: event.reason,
            message: event.message,
            source: if event.source.component.is_empty() {
                event.reporting_component
            } else {
                event.source.component
            },
        })
        .collect();
    events.sort_by(|one, other| one.time.cmp(&other.time));
    Ok(events)
}

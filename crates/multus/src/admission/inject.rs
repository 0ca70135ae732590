//! Computes the resources that a pod's networks need, and the JSON patch that requests them (multus.md §16.2).

use super::messages;
use cni::names::{DEFAULT_NETWORK_ANNOTATION, NETWORKS_ANNOTATION};
use cni::selection::{SelectionError, parse_default_network, parse_networks};
use kube_kit::watch::Name;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use webhook::admission::{Change, Operation, Request, Verdict};

/// JSON pointer to the resources of the container that gets the requests.
const FIRST: &str = "/spec/containers/0/resources";

/// The fields of a pod that decide about the resources of its networks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    host_network: bool,
    containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Option<Map<String, Value>>,
}

/// A container requests a count that is not a whole number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", messages::no_count(.resource, .text))]
pub struct NoCount {
    resource: String,
    text: String,
}

impl Pod {
    /// The pod of a CREATE request; `None` for other operations.
    ///
    /// # Errors
    /// The object is not a pod.
    pub fn read(request: &Request) -> Result<Option<Self>, serde_json::Error> {
        match &request.object {
            Some(object) if request.operation == Operation::Create => {
                serde_json::from_str(object.get()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Names of the definitions of all its networks, with repetitions. Empty for a pod on the host network.
    ///
    /// # Errors
    /// An annotation is malformed.
    pub fn networks(&self, namespace: &str, multus_namespace: &str) -> Result<Vec<Name>, SelectionError> {
        if self.spec.host_network {
            return Ok(Vec::new());
        }
        let annotation = |key: &str| self.metadata.annotations.as_ref()?.get(key).map(String::as_str);
        let namespace = self
            .metadata
            .namespace
            .as_deref()
            .filter(|own| !own.is_empty())
            .unwrap_or(namespace);
        let mut selected = parse_networks(annotation(NETWORKS_ANNOTATION).unwrap_or_default(), namespace)?;
        if let Some(text) = annotation(DEFAULT_NETWORK_ANNOTATION) {
            selected.push(parse_default_network(text, multus_namespace)?);
        }
        Ok(selected
            .into_iter()
            .map(|selection| Name::new(selection.namespace, selection.name))
            .filter(|name| !name.name.is_empty())
            .collect())
    }

    /// The patch that raises the requests of the first container until all containers together request `needed`. It
    /// lowers no request.
    ///
    /// # Errors
    /// A container requests a count that is not a whole number.
    pub fn requesting(&self, needed: &BTreeMap<String, u64>) -> Result<Vec<Change>, NoCount> {
        let Some(first) = self.spec.containers.first() else {
            return Ok(Vec::new());
        };
        let mut resources = first.resources.clone().unwrap_or_default();
        let mut is_changed = false;
        for (resource, needed) in needed {
            let counts = self
                .spec
                .containers
                .iter()
                .map(|container| container.count(resource));
            let counts = counts.collect::<Result<Vec<_>, _>>()?;
            let has: u64 = counts.iter().sum();
            if has >= *needed {
                continue;
            }
            is_changed = true;
            let raised = counts.first().copied().unwrap_or_default() + needed - has;
            for list in ["requests", "limits"] {
                let list = resources.entry(list).or_insert_with(|| json!({}));
                if !list.is_object() {
                    *list = json!({});
                }
                list[resource.as_str()] = json!(raised.to_string());
            }
        }
        if !is_changed {
            return Ok(Vec::new());
        }
        // JSON patch `add` replaces an existing value too.
        Ok(vec![Change::Add {
            path: FIRST.to_owned(),
            value: Value::Object(resources),
        }])
    }
}

impl Container {
    /// How many of a resource the container requests. Kubernetes requires equal requests and limits of extended
    /// resources.
    fn count(&self, resource: &str) -> Result<u64, NoCount> {
        let of = |list: &str| {
            let value = self.resources.as_ref()?.get(list)?.get(resource)?;
            Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let count = |text: String| {
            text.parse().map_err(|_| NoCount {
                resource: resource.to_owned(),
                text,
            })
        };
        let [requests, limits] = ["requests", "limits"].map(|list| of(list).map_or(Ok(0), count));
        Ok(requests?.max(limits?))
    }
}

/// Admits a pod unchanged, with a warning: multus itself reports the error when it attaches the pod.
pub(super) fn admit_unchanged(warning: String) -> Verdict {
    Verdict {
        warnings: vec![warning],
        ..Verdict::allowed()
    }
}

#[cfg(test)]
mod tests;

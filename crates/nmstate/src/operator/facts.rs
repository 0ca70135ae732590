//! Finds out what decides beside the `NMState`: the platform, and nodes set aside for infrastructure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Node, Taint};
use kube::{Api, Client, core::params::ListParams};
use kube_kit::client;
use thiserror::Error;
use tokio::time::Instant;

use super::names;

/// How long what is known of nodes is good for: they can be listed, and not watched.
const KNOWN: Duration = Duration::from_mins(1);
/// Nodes asked for at a time.
const PAGE: u32 = 50;

/// Nodes can't be listed.
#[derive(Debug, Error)]
#[error("cannot list nodes: {}", client::message(.0))]
pub struct Error(#[source] Box<kube::Error>);

/// What was found out, and when.
#[derive(Debug, Default)]
pub struct Known {
    openshift: Option<bool>,
    api_ports: Option<Vec<i32>>,
    nodes: Option<(String, Instant, Vec<Vec<Taint>>)>,
}

impl Known {
    /// Whether this is OpenShift. Where nobody answers, it is not, and the next time somebody is asked again.
    pub async fn openshift(&mut self, client: &Client) -> bool {
        if let Some(known) = self.openshift {
            return known;
        }
        match client.list_api_group_resources(names::OPENSHIFT_API).await {
            Ok(list) => {
                let found = list
                    .resources
                    .iter()
                    .any(|resource| resource.name == names::OPENSHIFT_RESOURCE);
                *self.openshift.insert(found)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => *self.openshift.insert(false),
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot find out whether this is OpenShift");
                false
            }
        }
    }

    /// Ports that API servers listen on, which is what policies see of them behind their Service. None where nobody
    /// says it; the next time somebody is asked again.
    pub async fn api_ports(&mut self, client: &Client) -> Vec<i32> {
        if let Some(known) = &self.api_ports {
            return known.clone();
        }
        let api: Api<Endpoints> = Api::namespaced(client.clone(), names::API_SERVICE.0);
        match api.get_opt(names::API_SERVICE.1).await {
            Ok(endpoints) => {
                let subsets = endpoints.and_then(|endpoints| endpoints.subsets);
                let ports = subsets.into_iter().flatten().filter_map(|subset| subset.ports);
                let mut ports: Vec<i32> = ports.flatten().map(|port| port.port).collect();
                ports.sort_unstable();
                ports.dedup();
                self.api_ports.insert(ports).clone()
            }
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot find out on which port the API server listens");
                Vec::new()
            }
        }
    }

    /// Taints of the nodes with these labels.
    ///
    /// # Errors
    /// When they can't be listed.
    pub async fn taints(
        &mut self,
        client: &Client,
        labels: &[(String, String)],
    ) -> Result<&[Vec<Taint>], Error> {
        let selector: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let selector = selector.join(",");
        let fresh = |(known, at, _): &(String, Instant, _)| *known == selector && at.elapsed() < KNOWN;
        if !self.nodes.as_ref().is_some_and(fresh) {
            let mut taints = Vec::new();
            let api: Api<Node> = Api::all(client.clone());
            let mut parameters = ListParams::default().labels(&selector).limit(PAGE);
            loop {
                let page = api
                    .list(&parameters)
                    .await
                    .map_err(|error| Error(Box::new(error)))?;
                taints.extend(page.items.into_iter().map(|node| {
                    let spec = node.spec.unwrap_or_default();
                    spec.taints.unwrap_or_default()
                }));
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => parameters = parameters.continue_token(&token),
                    None => break,
                }
            }
            self.nodes = Some((selector, Instant::now(), taints));
        }
        Ok(self
            .nodes
            .as_ref()
            .map(|(_, _, taints)| taints.as_slice())
            .unwrap_or_default())
    }
}

//! Reads the facts that the deployment depends on beside the `NMState`: the platform, and nodes reserved for
//! infrastructure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Endpoints, Node, Taint};
use kube::{Api, Client, core::params::ListParams};
use kube_kit::{client, pages::Pages};
use thiserror::Error;
use tokio::time::Instant;

use super::names;

/// How long facts about nodes and API servers are reused: the operator may read and not watch them.
const MAX_AGE: Duration = Duration::from_mins(1);
/// Page size of the list of nodes.
const PAGE: u32 = 50;

/// Nodes cannot be listed.
#[derive(Debug, Error)]
#[error("cannot list nodes: {}", client::message(.0))]
pub(crate) struct Error(#[source] Box<kube::Error>);

/// Facts with the times at which they were read.
#[derive(Debug, Default)]
pub(crate) struct FactCache {
    openshift: Option<bool>,
    api_ports: Option<(Instant, Vec<i32>)>,
    nodes: Option<(String, Instant, Vec<Vec<Taint>>)>,
}

impl FactCache {
    /// Whether this is OpenShift. Without an answer `false`, and the next call retries.
    pub(crate) async fn openshift(&mut self, client: &Client) -> bool {
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
                tracing::warn!(error, "cannot determine whether this is OpenShift");
                false
            }
        }
    }

    /// Ports of the API servers, as network policies see them behind their Service. Returns the last known ports if the
    /// API server does not answer, and retries at the next call.
    pub(crate) async fn api_ports(&mut self, client: &Client) -> Vec<i32> {
        if let Some((at, known)) = &self.api_ports
            && at.elapsed() < MAX_AGE
        {
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
                self.api_ports = Some((Instant::now(), ports.clone()));
                ports
            }
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot determine the ports of the API server");
                self.api_ports
                    .as_ref()
                    .map_or_else(Vec::new, |(_, known)| known.clone())
            }
        }
    }

    /// Taints of the nodes with these labels.
    pub(crate) async fn taints(
        &mut self,
        client: &Client,
        labels: &[(String, String)],
    ) -> Result<&[Vec<Taint>], Error> {
        let selector: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let selector = selector.join(",");
        let fresh = |(known, at, _): &(String, Instant, _)| *known == selector && at.elapsed() < MAX_AGE;
        if !self.nodes.as_ref().is_some_and(fresh) {
            let mut taints = Vec::new();
            let api: Api<Node> = Api::all(client.clone());
            let parameters = ListParams::default().labels(&selector).limit(PAGE);
            let mut pages = Pages::new(api, parameters);
            while let Some(page) = pages.next().await.map_err(|error| Error(Box::new(error)))? {
                taints.extend(page.into_iter().map(|node| {
                    let spec = node.spec.unwrap_or_default();
                    spec.taints.unwrap_or_default()
                }));
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn api_ports_are_read_again_after_a_minute() {
        // 0: the API server does not answer.
        let port = Arc::new(AtomicI32::new(6443));
        let asked = Arc::clone(&port);
        let service = tower::service_fn(move |_: Request<Body>| {
            let port = asked.load(Ordering::Relaxed);
            async move {
                let (code, object) = if port == 0 {
                    (
                        503_u16,
                        json!({ "kind": "Status", "status": "Failure", "code": 503, "message": "no", "reason": "no" }),
                    )
                } else {
                    let subsets = json!([{ "ports": [{ "port": port }] }]);
                    let metadata = json!({ "name": "kubernetes", "namespace": "default" });
                    (200, json!({ "metadata": metadata, "subsets": subsets }))
                };
                let body = Body::from(object.to_string().into_bytes());
                let response = Response::builder().status(code).body(body);
                Ok::<_, Infallible>(response.expect("an answer"))
            }
        });
        let client = Client::new(service, "default");
        let mut known = FactCache::default();
        assert_eq!(known.api_ports(&client).await, [6443]);
        port.store(7443, Ordering::Relaxed);
        assert_eq!(
            known.api_ports(&client).await,
            [6443],
            "not requested again at once"
        );
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(known.api_ports(&client).await, [7443]);
        port.store(0, Ordering::Relaxed);
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(known.api_ports(&client).await, [7443], "known before");
    }
}

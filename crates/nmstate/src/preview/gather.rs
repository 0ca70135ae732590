//! Reads the nodes, their reports, and stored results of captures from the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use kube_kit::connection::Error;
use serde_json::{Map, Value};

use crate::names;
use crate::objects;
use crate::render::NodeFacts;

/// A node with its report.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReportedNode {
    pub(super) facts: NodeFacts,
    /// The reported state, if the node has a handler.
    pub(super) report: Option<Value>,
}

/// All nodes, sorted by name.
pub(super) async fn nodes(client: &Client) -> Result<Vec<ReportedNode>, Error> {
    let everything = ListParams::default();
    let reports = objects::reports(client).list(&everything).await;
    let reports = reports.map_err(|error| Error::of("NodeNetworkStates", &error))?;
    let mut reports: BTreeMap<String, Value> = reports
        .items
        .into_iter()
        .filter_map(|mut state| {
            let report = state.data.pointer_mut("/status/currentState")?.take();
            Some((state.metadata.name?, report))
        })
        .collect();
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&everything).await;
    let nodes = nodes.map_err(|error| Error::of("nodes", &error))?;
    let mut nodes: Vec<ReportedNode> = nodes
        .items
        .into_iter()
        .map(|node| {
            let name = node.metadata.name.unwrap_or_default();
            ReportedNode {
                report: reports.remove(&name),
                facts: NodeFacts {
                    name,
                    labels: node.metadata.labels.unwrap_or_default(),
                    annotations: node.metadata.annotations.unwrap_or_default(),
                },
            }
        })
        .collect();
    nodes.sort_by(|one, other| one.facts.name.cmp(&other.facts.name));
    Ok(nodes)
}

/// Stored results of a policy's captures, by node.
pub(super) async fn captured(
    client: &Client,
    policy: &str,
) -> Result<BTreeMap<String, Map<String, Value>>, Error> {
    if policy.is_empty() {
        return Ok(BTreeMap::new());
    }
    let of_policy = ListParams::default().labels(&format!("{}={policy}", names::POLICY_LABEL));
    let enactments = objects::enactments(client).list(&of_policy).await;
    let enactments = enactments.map_err(|error| Error::of("NodeNetworkConfigurationEnactments", &error))?;
    let captured = enactments.items.into_iter().filter_map(|enactment| {
        let labels = enactment.metadata.labels.as_ref()?;
        let node = labels.get(names::NODE_LABEL)?.clone();
        Some((node, crate::policy::enactment::captured(&enactment)))
    });
    Ok(captured.collect())
}

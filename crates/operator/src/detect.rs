//! Detects the platform and the operator's own image at start, and reads from the API server while a watch is not
//! synced (operator §2.1). [`crate::watches`] reports later changes of the cluster.

use api::names::{MANAGED_BY_LABEL, NETWORK_ADDONS_KIND};
use kube::{
    Api, Client,
    core::{DynamicObject, params::ListParams},
};
use kube_kit::{
    cache::Object,
    client,
    object::{self, Kind},
};
use serde_json::{Value, json};

use crate::{
    cluster_facts::{NMStateObject, NodeStateDefinition, OpenShiftNetwork, Platform},
    layout::Layout,
    names,
    settings::Settings,
};

/// Definitions that monitoring needs.
const MONITORING: [&str; 2] = [
    "prometheusrules.monitoring.coreos.com",
    "servicemonitors.monitoring.coreos.com",
];

/// A request that the API server did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot detect {question}: {}", client::message(.source))]
pub struct Error {
    question: &'static str,
    #[source]
    source: Box<kube::Error>,
}

/// Detects the platform. Can be repeated at any time.
pub async fn platform(client: &Client, settings: &Settings) -> Result<Platform, Error> {
    let mut monitoring = true;
    for name in MONITORING {
        monitoring &= match api(client, object::CUSTOM_RESOURCE_DEFINITION, None)
            .get_opt(name)
            .await
        {
            Ok(definition) => definition.is_some(),
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(name, error, "cannot detect whether monitoring is installed");
                false
            }
        };
    }
    Ok(Platform {
        openshift4: is_served(client, object::OPENSHIFT_NETWORK, "whether this is OpenShift 4").await?,
        scc: is_served(
            client,
            object::SECURITY_CONTEXT_CONSTRAINTS,
            "whether there are security context constraints",
        )
        .await?,
        monitoring,
        layout: layout(client, settings).await,
    })
}

/// Paths of CNI on the nodes, from the node of the operator's own pod: the operator may read that node, and may not
/// list nodes. If the node cannot be read, the defaults apply: the status of the workloads then shows a wrong path, and
/// the specification can override it.
async fn layout(client: &Client, settings: &Settings) -> Layout {
    let Some(pod) = own_pod(client, settings).await else {
        return Layout::default();
    };
    let Some(name) = pod.data.pointer("/spec/nodeName").and_then(Value::as_str) else {
        return Layout::default();
    };
    match api(client, object::NODE, None).get_opt(name).await {
        Ok(Some(node)) => serde_json::to_value(node)
            .map(|node| Layout::of(&node))
            .unwrap_or_default(),
        Ok(None) => Layout::default(),
        Err(error) => {
            let error = client::message(&error);
            tracing::warn!(
                name,
                error,
                "cannot read the operator's own node, assuming the default CNI paths"
            );
            Layout::default()
        }
    }
}

/// The operator's own pod; `None` outside of a pod, or if it cannot be read.
async fn own_pod(client: &Client, settings: &Settings) -> Option<DynamicObject> {
    let pod = settings.pod_name.as_ref()?;
    match api(client, object::POD, Some(&settings.operator_namespace))
        .get_opt(pod)
        .await
    {
        Ok(found) => {
            if found.is_none() {
                tracing::warn!(pod, "the operator's own pod does not exist");
            }
            found
        }
        Err(error) => {
            tracing::warn!(
                pod,
                error = client::message(&error),
                "cannot read the operator's own pod"
            );
            None
        }
    }
}

async fn is_served(client: &Client, kind: Kind, question: &'static str) -> Result<bool, Error> {
    match api(client, kind, None)
        .list(&ListParams::default().limit(1))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(source) => Err(Error {
            question,
            source: Box::new(source),
        }),
    }
}

/// The image of the operator's own pod, otherwise the image in the environment.
pub(crate) async fn own_image(client: &Client, settings: &Settings) -> Option<String> {
    let pod = own_pod(client, settings).await;
    let image = pod.and_then(|pod| image_of(&pod.data));
    image.or_else(|| settings.operator_image.clone())
}

/// The image of the operator's container, or of the only container.
fn image_of(pod: &Value) -> Option<String> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    let ours = containers
        .iter()
        .find(|container| container["name"] == names::OPERATOR);
    ours.or(containers.first())?
        .get("image")?
        .as_str()
        .map(str::to_owned)
}

/// OpenShift's network configuration, if it exists. Call it only on OpenShift 4.
pub async fn openshift_network(client: &Client) -> Result<Option<OpenShiftNetwork>, kube::Error> {
    // RBAC allows to list this kind, and not to get it.
    let cluster = ListParams::default().fields("metadata.name=cluster");
    let list = match api(client, object::OPENSHIFT_NETWORK, None).list(&cluster).await {
        Ok(list) => list,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(list.items.first().map(|network| read_network(&network.data)))
}

/// OpenShift's network configuration, if a watch has the object.
pub(crate) fn known_openshift_network(known: &[Object]) -> Option<OpenShiftNetwork> {
    known.first().map(|network| read_network(network))
}

/// The owner of the definition of `NMState`.
pub fn node_state_definition(definition: &Value) -> NodeStateDefinition {
    let managed_by = definition
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(MANAGED_BY_LABEL));
    if managed_by.and_then(Value::as_str) == Some(names::MANAGED_BY) {
        NodeStateDefinition::Ours
    } else {
        NodeStateDefinition::Foreign
    }
}

/// All `NMState` objects; `None` if the API is not served.
pub async fn node_states(client: &Client) -> Result<Option<Vec<Object>>, kube::Error> {
    match api(client, object::NMSTATE, None)
        .list(&ListParams::default())
        .await
    {
        Ok(list) => {
            let nmstates = list.items.into_iter();
            let nmstates = nmstates.filter_map(|nmstate| serde_json::to_value(nmstate).ok());
            Ok(Some(nmstates.map(Object::from).collect()))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The `NMState` object in use; `None` for `objects` means that the API is not served.
pub fn nmstate_object(nmstates: Option<&[Object]>) -> NMStateObject {
    nmstates.map_or(NMStateObject::NotServed, |nmstates| {
        read_nmstates(nmstates.iter().map(|nmstate| Value::clone(nmstate)))
    })
}

fn read_nmstates(nmstates: impl Iterator<Item = Value>) -> NMStateObject {
    let mut found = NMStateObject::None;
    for nmstate in nmstates {
        if object::owned_by(&nmstate, NETWORK_ADDONS_KIND) {
            return NMStateObject::Ours(nmstate.get("spec").cloned().unwrap_or_else(|| json!({})));
        }
        found = NMStateObject::Foreign;
    }
    found
}

fn read_network(network: &Value) -> OpenShiftNetwork {
    let disabled = network
        .pointer("/spec/disableMultiNetwork")
        .and_then(Value::as_bool);
    OpenShiftNetwork {
        multus_disabled: disabled.unwrap_or(false),
    }
}

fn api(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = kind.api_resource();
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // operator#47, the parsing
    #[test]
    fn read_network_reports_disabled_multus() {
        for (spec, disabled) in [
            (json!({ "disableMultiNetwork": true }), true),
            (json!({ "disableMultiNetwork": false }), false),
            (json!({ "disableMultiNetwork": null }), false),
            (json!({}), false),
        ] {
            let found = read_network(&json!({ "spec": spec }));
            assert_eq!(found.multus_disabled, disabled, "{spec}");
        }
    }

    #[test]
    fn nmstate_of_other_owner_is_foreign() {
        let nmstate = |owner: Option<&str>, spec: &Value| {
            let owners: Vec<_> = owner.into_iter().map(|kind| json!({ "kind": kind })).collect();
            json!({ "metadata": { "ownerReferences": owners }, "spec": spec })
        };
        let ours = nmstate(Some("NetworkAddonsConfig"), &json!({ "logLevel": "debug" }));
        let read = |nmstates: &[Value]| read_nmstates(nmstates.iter().cloned());
        assert_eq!(read(&[]), NMStateObject::None);
        assert_eq!(
            read(std::slice::from_ref(&ours)),
            NMStateObject::Ours(json!({ "logLevel": "debug" }))
        );
        for foreign in [
            nmstate(None, &json!({})),
            nmstate(Some("HyperConverged"), &json!({})),
        ] {
            assert_eq!(read(std::slice::from_ref(&foreign)), NMStateObject::Foreign);
            // The node state operator decides between the two.
            assert!(matches!(read(&[foreign, ours.clone()]), NMStateObject::Ours(_)));
        }
    }

    #[test]
    fn image_of_finds_container_of_operator() {
        let sidecar = json!({ "name": "proxy", "image": "proxy:1" });
        let ours = json!({ "name": "cluster-network-addons-operator", "image": "weft:1" });
        let pod = |containers: Value| image_of(&json!({ "spec": { "containers": containers } }));
        assert_eq!(pod(json!([sidecar, ours])).as_deref(), Some("weft:1"));
        assert_eq!(pod(json!([sidecar])).as_deref(), Some("proxy:1"));
        assert_eq!(pod(json!([])), None);
    }
}

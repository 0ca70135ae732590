//! Asks what kind of cluster this is and which image the operator itself runs, at start, and what a watch does not know
//! yet (operator §2.1). What changes of the cluster later on, [`crate::watches`] tell.

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
    cluster_facts::{NodeStateDefinition, NodeStateWish, OpenShiftNetwork, Platform},
    layout::Layout,
    names,
    settings::Settings,
};

/// Definitions without which nothing can be monitored.
const MONITORING: [&str; 2] = [
    "prometheusrules.monitoring.coreos.com",
    "servicemonitors.monitoring.coreos.com",
];

/// A question that the API server did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot find out {question}: {}", client::message(.source))]
pub struct Error {
    question: &'static str,
    #[source]
    source: Box<kube::Error>,
}

/// Finds out what kind of cluster this is. May be asked again at any time.
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
                tracing::warn!(name, error, "cannot find out whether there is monitoring");
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

/// Where nodes keep what belongs to CNI: as the node of the operator's own pod does. The operator may read that node,
/// and not list all of them. Where it can't be read, the usual places are assumed: a wrong guess shows in the status of
/// the workloads, and the specification can say it better.
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
            tracing::warn!(name, error, "cannot read the operator's own node");
            Layout::default()
        }
    }
}

/// The operator's own pod, if it runs in one and can read it.
async fn own_pod(client: &Client, settings: &Settings) -> Option<DynamicObject> {
    let pod = settings.pod_name.as_ref()?;
    match api(client, object::POD, Some(&settings.operator_namespace))
        .get_opt(pod)
        .await
    {
        Ok(found) => {
            if found.is_none() {
                tracing::warn!(pod, "the operator's own pod is not there");
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

/// The image of the operator's own pod, else the one that the manifest names.
pub async fn own_image(client: &Client, settings: &Settings) -> Option<String> {
    let pod = own_pod(client, settings).await;
    let image = pod.and_then(|pod| image_of(&pod.data));
    image.or_else(|| settings.operator_image.clone())
}

/// The image of the operator's container, or of the only one.
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

/// OpenShift's network configuration, if there is one. Only asked for on OpenShift 4.
pub async fn openshift_network(client: &Client) -> Result<Option<OpenShiftNetwork>, kube::Error> {
    // The operator may list this kind, but not get it.
    let cluster = ListParams::default().fields("metadata.name=cluster");
    let list = match api(client, object::OPENSHIFT_NETWORK, None).list(&cluster).await {
        Ok(list) => list,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(list.items.first().map(|network| read_network(&network.data)))
}

/// OpenShift's network configuration, if it is among the objects that a watch knows.
pub fn known_openshift_network(known: &[Object]) -> Option<OpenShiftNetwork> {
    known.first().map(|network| read_network(network))
}

/// Whose the definition of the API is by which node state is wished for, from what is known of it.
pub fn node_state_definition(definition: &Value) -> NodeStateDefinition {
    let managed_by = definition
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(MANAGED_BY_LABEL));
    if managed_by.and_then(Value::as_str) == Some(names::MANAGED_BY) {
        NodeStateDefinition::Ours
    } else {
        NodeStateDefinition::SomebodyElses
    }
}

/// Wishes for node state; `None` where their API is not served.
pub async fn node_states(client: &Client) -> Result<Option<Vec<Object>>, kube::Error> {
    match api(client, object::NMSTATE, None)
        .list(&ListParams::default())
        .await
    {
        Ok(list) => {
            let wishes = list.items.into_iter();
            let wishes = wishes.filter_map(|wish| serde_json::to_value(wish).ok());
            Ok(Some(wishes.map(Object::from).collect()))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the wishes for node state mean for ours; `None` where their API is not served.
pub fn node_state_wish(wishes: Option<&[Object]>) -> NodeStateWish {
    wishes.map_or(NodeStateWish::NotServed, |wishes| {
        read_wishes(wishes.iter().map(|wish| Value::clone(wish)))
    })
}

fn read_wishes(wishes: impl Iterator<Item = Value>) -> NodeStateWish {
    let mut found = NodeStateWish::None;
    for wish in wishes {
        if object::owned_by(&wish, NETWORK_ADDONS_KIND) {
            return NodeStateWish::Ours(wish.get("spec").cloned().unwrap_or_else(|| json!({})));
        }
        found = NodeStateWish::SomebodyElses;
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

    // operator#47, the reading
    #[test]
    fn multus_is_disabled_only_where_openshift_says_so() {
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
    fn somebody_elses_wish_for_node_state_is_respected() {
        let wish = |owner: Option<&str>, spec: &Value| {
            let owners: Vec<_> = owner.into_iter().map(|kind| json!({ "kind": kind })).collect();
            json!({ "metadata": { "ownerReferences": owners }, "spec": spec })
        };
        let ours = wish(Some("NetworkAddonsConfig"), &json!({ "logLevel": "debug" }));
        let read = |wishes: &[Value]| read_wishes(wishes.iter().cloned());
        assert_eq!(read(&[]), NodeStateWish::None);
        assert_eq!(
            read(std::slice::from_ref(&ours)),
            NodeStateWish::Ours(json!({ "logLevel": "debug" }))
        );
        for stranger in [wish(None, &json!({})), wish(Some("HyperConverged"), &json!({}))] {
            assert_eq!(
                read(std::slice::from_ref(&stranger)),
                NodeStateWish::SomebodyElses
            );
            // Which of two stays, the node state operator decides.
            assert!(matches!(read(&[stranger, ours.clone()]), NodeStateWish::Ours(_)));
        }
    }

    #[test]
    fn the_operators_container_is_found_among_others() {
        let sidecar = json!({ "name": "proxy", "image": "proxy:1" });
        let ours = json!({ "name": "cluster-network-addons-operator", "image": "weft:1" });
        let pod = |containers: Value| image_of(&json!({ "spec": { "containers": containers } }));
        assert_eq!(pod(json!([sidecar, ours])).as_deref(), Some("weft:1"));
        assert_eq!(pod(json!([sidecar])).as_deref(), Some("proxy:1"));
        assert_eq!(pod(json!([])), None);
    }
}

//! Detects the platform and the operator's own image at start, and reads from the API server while a watch is not
//! synced (operator §2.1). [`crate::watches`] reports later changes of the cluster.
//!
//! The start acts on answers alone: a wrong guess would move the CNI directories of all nodes, or delete objects.

use std::time::Duration;

use api::names::{MANAGED_BY_LABEL, NETWORK_ADDONS_KIND};
use kube::{
    Client,
    core::{DynamicObject, params::ListParams},
};
use kube_kit::{
    cache::Object,
    client,
    object::{self, Kind},
};
use serde_json::{Value, json};
use tokio::time::Instant;

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

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// A question that the API server did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot detect {question}: {}", client::message(.source))]
pub struct Error {
    question: &'static str,
    #[source]
    source: Box<kube::Error>,
}

impl Error {
    /// Whether the account lacks the right to ask.
    fn is_refusal(&self) -> bool {
        matches!(&*self.source, kube::Error::Api(status) if status.code == 403)
    }
}

/// The platform and the image that the operator detects at its start.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// The platform. Its layout is that of the operator's own node: the operator may read that node, and may not list
    /// nodes. Outside of a pod, or without right to read pod or node, it is the usual one; the status of the workloads
    /// then shows a wrong path, and the specification can override it.
    pub platform: Platform,
    /// The image of the operator's own pod, otherwise the image in the environment.
    pub own_image: Option<String>,
}

/// Detects the platform and the own image. Failed requests are repeated for as long as `patience`; an API server that
/// starts may also refuse requests for a while.
///
/// # Errors
/// If a request still fails then.
pub async fn at_start(client: &Client, settings: &Settings, patience: Duration) -> Result<Found, Error> {
    let asker = Asker { client, patience };
    let pod = asker.own_pod(settings).await?;
    let platform = Platform {
        openshift4: asker
            .is_served(object::OPENSHIFT_NETWORK, "whether this is OpenShift 4")
            .await?,
        scc: asker
            .is_served(
                object::SECURITY_CONTEXT_CONSTRAINTS,
                "whether there are security context constraints",
            )
            .await?,
        monitoring: asker.has_monitoring().await?,
        layout: asker.layout(pod.as_ref()).await?,
    };
    let image = pod.and_then(|pod| image_of(&pod.data));
    Ok(Found {
        platform,
        own_image: image.or_else(|| settings.operator_image.clone()),
    })
}

/// Asks the API server until it answers, each question for as long as `patience`.
struct Asker<'a> {
    client: &'a Client,
    patience: Duration,
}

impl Asker<'_> {
    async fn ask<T>(
        &self,
        question: &'static str,
        request: impl AsyncFn() -> Result<T, kube::Error>,
    ) -> Result<T, Error> {
        let until = Instant::now() + self.patience;
        loop {
            let error = match request().await {
                Ok(answer) => return Ok(answer),
                Err(source) => Error {
                    question,
                    source: Box::new(source),
                },
            };
            if Instant::now() + PAUSE > until {
                return Err(error);
            }
            tracing::warn!(%error, "repeating the request");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn is_served(&self, kind: Kind, question: &'static str) -> Result<bool, Error> {
        let all = kind.api(self.client, None);
        let one = ListParams::default().limit(1);
        let request = async || match all.list(&one).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        };
        self.ask(question, request).await
    }

    /// An object, if it exists. An object that the account may not read counts as absent: roles of earlier operators
    /// lack the right.
    async fn object(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        question: &'static str,
    ) -> Result<Option<DynamicObject>, Error> {
        let all = kind.api(self.client, namespace);
        match self.ask(question, async || all.get_opt(name).await).await {
            Err(error) if error.is_refusal() => {
                tracing::warn!(name, %error, "treating the object as absent");
                Ok(None)
            }
            answer => answer,
        }
    }

    async fn has_monitoring(&self) -> Result<bool, Error> {
        const QUESTION: &str = "whether monitoring is installed";
        for name in MONITORING {
            let definition = self.object(object::CUSTOM_RESOURCE_DEFINITION, None, name, QUESTION);
            if definition.await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The operator's own pod; `None` outside of a pod.
    async fn own_pod(&self, settings: &Settings) -> Result<Option<DynamicObject>, Error> {
        let Some(name) = &settings.pod_name else {
            return Ok(None);
        };
        let namespace = Some(settings.operator_namespace.as_str());
        self.object(object::POD, namespace, name, "the operator's own pod")
            .await
    }

    /// Paths of CNI on the node of a pod.
    async fn layout(&self, pod: Option<&DynamicObject>) -> Result<Layout, Error> {
        let name = pod.and_then(|pod| pod.data.pointer("/spec/nodeName")?.as_str());
        let Some(name) = name else {
            return Ok(Layout::default());
        };
        let node = self
            .object(object::NODE, None, name, "the operator's own node")
            .await?;
        let node = node.and_then(|node| serde_json::to_value(node).ok());
        Ok(node.map(|node| Layout::of(&node)).unwrap_or_default())
    }
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
    let list = match object::OPENSHIFT_NETWORK.api(client, None).list(&cluster).await {
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
    match object::NMSTATE
        .api(client, None)
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::Arc,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A k3s cluster with the operator's pod and monitoring, whose API server answers the first requests for a path
    /// with another status code.
    fn cluster(path: &'static str, code: u16, times: usize) -> Client {
        let asked = Arc::new(AtomicUsize::new(0));
        let reason = if code == 404 { "NotFound" } else { "" };
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_meant = request.uri().path().ends_with(path);
            let fails = is_meant && asked.fetch_add(1, Ordering::SeqCst) < times;
            let last = request
                .uri()
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            async move {
                let (code, body) = match last.as_str() {
                    _ if fails => (code, json!({ "kind": "Status", "code": code, "reason": reason })),
                    "pod" => {
                        let containers = json!([{ "name": names::OPERATOR, "image": "weft:2" }]);
                        let spec = json!({ "nodeName": "node", "containers": containers });
                        (200, json!({ "metadata": { "name": "pod" }, "spec": spec }))
                    }
                    "node" => {
                        let info = json!({ "kubeletVersion": "v1.33.1+k3s1" });
                        (
                            200,
                            json!({ "metadata": { "name": "node" }, "status": { "nodeInfo": info } }),
                        )
                    }
                    name if MONITORING.contains(&name) => (200, json!({ "metadata": { "name": name } })),
                    _ => (404, json!({ "kind": "Status", "code": 404 })),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).expect("an answer"))
            }
        });
        Client::new(service, "addons")
    }

    async fn found(path: &'static str, code: u16, times: usize) -> Result<Found, Error> {
        let settings = Settings {
            operator_namespace: "addons".to_owned(),
            pod_name: Some("pod".to_owned()),
            operator_image: Some("weft:1".to_owned()),
            ..Settings::default()
        };
        at_start(&cluster(path, code, times), &settings, PATIENCE).await
    }

    // operator#97
    #[tokio::test(start_paused = true)]
    async fn failed_request_at_start_is_repeated_and_never_means_no() {
        let whole = found("", 200, 0).await.expect("a platform");
        assert!(whole.platform.monitoring);
        assert_ne!(whole.platform.layout, Layout::default());
        assert_eq!(whole.own_image.as_deref(), Some("weft:2"));
        for path in ["/pod", "/node", "/networks", MONITORING[0], MONITORING[1]] {
            for code in [403, 500] {
                let found_late = found(path, code, 5).await.expect("a platform");
                assert_eq!(found_late, whole, "{path} {code}");
            }
            let begin = Instant::now();
            let error = found(path, 500, usize::MAX).await.expect_err("no answer");
            assert!(error.to_string().starts_with("cannot detect "), "{error}");
            let waited = begin.elapsed();
            assert!(waited <= PATIENCE && waited + PAUSE >= PATIENCE, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn absent_or_lastingly_refused_object_means_no() {
        for code in [403, 404] {
            let found = async |path| found(path, code, usize::MAX).await.expect("a platform");
            let without_pod = found("/pod").await;
            assert_eq!(without_pod.platform.layout, Layout::default());
            assert_eq!(without_pod.own_image.as_deref(), Some("weft:1"));
            let without_node = found("/node").await;
            assert_eq!(without_node.platform.layout, Layout::default());
            assert_eq!(without_node.own_image.as_deref(), Some("weft:2"));
            assert!(!found(MONITORING[0]).await.platform.monitoring);
        }
    }

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

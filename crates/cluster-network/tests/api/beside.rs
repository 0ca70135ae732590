//! The controllers beside the main loop, with the rights of the shipped roles.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{Method, Request};
use cluster_network::report::{Failure, Level, Reports};
use cluster_network::{beside, objects};
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube_kit::object::OPENSHIFT_INFRASTRUCTURE;
use serde_json::{Value, json};
use tower::service_fn;

use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER, Stage, settings, until};

const INFRASTRUCTURE: &str = "/apis/config.openshift.io/v1/infrastructures/cluster";

// cluster-network#186, cluster-network#187
#[test]
fn parts_beside_the_loop_work_with_the_shipped_rights() {
    let stage = Stage::start();
    stage.configure("Weft");
    for namespace in [
        "openshift-config-managed",
        "openshift-network-diagnostics",
        "openshift-host-network",
    ] {
        stage.namespace(namespace, &[]);
    }
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a".to_owned()]).expect("names");
    let bundle = params.self_signed(&key).expect("a certificate").pem();
    let map = |namespace: &str, name: &str, labels: Value, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "data": { "ca-bundle.crt": text },
        })
    };
    stage.apply(&map(
        "openshift-config-managed",
        "trusted-ca-bundle",
        json!({}),
        &bundle,
    ));
    let labels = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    stage.apply(&map("default", "wants", labels, ""));
    install_on_premises(&stage);
    let mark = stage.mark();
    let reports = Reports::default();
    let sink = reports.clone();
    let _task = stage.task_as(ACCOUNT, |client, shutdown| async move {
        let client = overtaken(client);
        beside::run(&client, &settings(), &sink, &shutdown).await;
    });
    stage.wait_for(
        "the bundle",
        "/api/v1/namespaces/default/configmaps/wants",
        |map| (map?["data"]["ca-bundle.crt"] == bundle.as_str()).then_some(()),
    );
    stage.wait_for("the condition", CLUSTER, |config| {
        let conditions = config?["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .any(|it| it["reason"] == "NoSources")
            .then_some(())
    });
    let node = stage.create(
        "/api/v1/nodes",
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } }),
    );
    stage.create(
        "/api/v1/namespaces/openshift-network-diagnostics/pods",
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "source", "labels": { "app": "network-check-source" } },
            "spec": { "nodeName": "node1", "containers": [{ "name": "main", "image": "registry.example/none" }] },
        }),
    );
    let check = "/apis/controlplane.operator.openshift.io/v1alpha1/namespaces/openshift-network-diagnostics/\
                 podnetworkconnectivitychecks/network-check-source-node1-to-kubernetes-default-service-cluster-0";
    let owner = stage.wait_for("a check", check, |check| {
        Some(check?["metadata"]["ownerReferences"][0]["uid"].clone())
    });
    assert_eq!(owner, node["metadata"]["uid"]);
    synchronises_addresses(&stage, &reports, mark);
    let refused: Vec<_> = stage
        .entries_since(mark)
        .into_iter()
        .filter(|entry| {
            entry["impersonatedUser"]["username"] == ACCOUNT && entry["responseStatus"]["code"] == 403
        })
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Creates the `Infrastructure` of an old installer, with addresses in the deprecated fields alone.
fn install_on_premises(stage: &Stage) {
    stage.apply(&definition("Infrastructure", "infrastructures"));
    stage.wait_until_served("/apis/config.openshift.io/v1/infrastructures");
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
        "spec": { "cloudConfig": { "name": "" }, "platformSpec": { "type": "BareMetal" } },
    }));
    let addresses =
        json!({ "apiServerInternalIP": "192.0.2.1", "ingressIP": "192.0.2.2", "nodeDNSIP": "192.0.2.3" });
    stage.report(
        INFRASTRUCTURE,
        &json!({
            "platform": "BareMetal", "platformStatus": { "type": "BareMetal", "baremetal": addresses },
        }),
    );
}

const DUAL: ([&str; 2], [&str; 2]) = (["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]);

/// The patch of a user for addresses of the API and of the ingress.
fn request(api: &[&str], ingress: &[&str]) -> Value {
    let addresses = json!({ "apiServerInternalIPs": api, "ingressIPs": ingress });
    json!({ "spec": { "platformSpec": { "baremetal": addresses } } })
}

/// A client whose first write of the `Infrastructure` comes right after that of a user.
fn overtaken(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let is_overtaken = AtomicBool::new(false);
    let service = service_fn(move |sent: Request<Body>| {
        let is_write = sent.method() == Method::PATCH && sent.uri().path() == INFRASTRUCTURE;
        let is_first = is_write && !is_overtaken.swap(true, Ordering::Relaxed);
        let client = client.clone();
        async move {
            if is_first {
                let patch = request(&DUAL.0, &DUAL.1);
                let api = objects::api(&client, &OPENSHIFT_INFRASTRUCTURE, "");
                let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
                api.patch("cluster", &params, &patch).await.expect("a write");
            }
            client.send(sent).await
        }
    });
    Client::new(service, namespace)
}

fn synchronises_addresses(stage: &Stage, reports: &Reports, mark: u64) {
    const SPEC: &str = "/spec/platformSpec/baremetal";
    const STATUS: &str = "/status/platformStatus/baremetal";
    let have = |pointer: &str, api: &[&str], ingress: &[&str]| {
        stage.wait_for(&format!("{pointer} {api:?}"), INFRASTRUCTURE, |object| {
            let fields = object?.pointer(pointer)?;
            let is_there =
                fields["apiServerInternalIPs"] == json!(api) && fields["ingressIPs"] == json!(ingress);
            is_there.then(|| fields.clone())
        })
    };
    // The request of the user survives the operator's first write.
    let status = have(STATUS, &DUAL.0, &DUAL.1);
    assert_eq!(
        (&status["apiServerInternalIP"], &status["nodeDNSIP"]),
        (&json!("192.0.2.1"), &json!("192.0.2.3"))
    );
    let spec = have(SPEC, &DUAL.0, &DUAL.1);
    assert_eq!(
        (&spec["machineNetworks"], &status["machineNetworks"]),
        (&json!([]), &json!([]))
    );
    let (api, ingress) = (&DUAL.0[..1], &DUAL.1[..1]);
    stage.change(INFRASTRUCTURE, &request(api, ingress));
    have(STATUS, api, ingress);
    let failure = || {
        reports
            .follow()
            .borrow()
            .get(&Level::InfrastructureConfig)
            .cloned()
    };
    stage.change(INFRASTRUCTURE, &request(&["192.0.2.9"], ingress));
    let expected = Failure::at_once(
        "SyncInfrastructureSpecAndStatus",
        "error while synchronizing spec and status of infrastructures.config.openshift.io/cluster: error on syncing API \
         VIPs: first VIP cannot be modified, have '192.0.2.1' and requested '192.0.2.9'",
    );
    until("the failure", || match failure() {
        Some(failure) if failure == expected => Ok(()),
        other => Err(format!("{other:?}")),
    });
    have(STATUS, api, ingress);
    stage.change(INFRASTRUCTURE, &request(&DUAL.0, &DUAL.1));
    have(STATUS, &DUAL.0, &DUAL.1);
    until("no failure", || {
        failure().map_or(Ok(()), |failure| Err(format!("{failure:?}")))
    });
    // That of the user by this client, the refused one, one of the spec, three of the status, and none of our own
    // changes.
    until("six writes", || {
        let requests = stage.requests_of(ACCOUNT, mark).into_iter();
        let is_write = |verb: &str, uri: &str| verb == "patch" && uri.starts_with(INFRASTRUCTURE);
        let writes = requests.filter(|it| is_write(&it.verb, &it.uri)).count();
        if writes == 6 {
            Ok(())
        } else {
            Err(format!("{writes} writes"))
        }
    });
}

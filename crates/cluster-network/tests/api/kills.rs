//! Operators that are killed while they write.

use std::{
    collections::BTreeSet,
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::http::Request;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use stage::Method;
use tower::service_fn;

use crate::stage::{KUBE_PROXY, OPERATOR, RECORD, Stage, networks, until};

const POLICIES: &str = "/apis/apps/v1/namespaces/openshift-multus/daemonsets/multus-networkpolicy";

/// Numbers of writes after a change, at which operators die one after the other.
const WRITES: [usize; 6] = [1, 10, 4, 13, 2, 7];

/// Kinds of objects that the configurations of this test add or remove.
const KINDS: [&str; 10] = [
    "/api/v1/configmaps",
    "/api/v1/namespaces",
    "/api/v1/serviceaccounts",
    "/api/v1/services",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
];

/// The number of writes until an operator dies.
#[derive(Clone)]
struct Life(Arc<AtomicUsize>);

impl Life {
    fn long() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    /// Ends the life after more writes. The API server carries out the last one, without an answer.
    fn end_after(&self, writes: usize) {
        self.0.store(writes, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Returns a client whose requests get no answer after the end.
    fn client(self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let service = service_fn(move |request: Request<Body>| {
            let (client, life) = (client.clone(), self.clone());
            async move {
                if life.has_ended() {
                    future::pending::<()>().await;
                }
                if request.method() != Method::GET {
                    // The operator writes one object after the other.
                    let one_less = |writes: usize| writes.checked_sub(1);
                    // After the end, nothing is left to count.
                    let _ = life.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
                }
                let answer = client.send(request).await;
                if life.has_ended() {
                    future::pending::<()>().await;
                }
                answer
            }
        });
        Client::new(service, namespace)
    }
}

/// Names of all objects with the label of the operator.
fn labelled(stage: &Stage) -> BTreeSet<String> {
    let named = |kind: &'static str| {
        let list = stage.list(&format!(
            "{kind}?labelSelector=networkoperator.openshift.io%2Fpart"
        ));
        list.into_iter().map(move |object| {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
            format!("{kind} {}/{}", text("namespace"), text("name"))
        })
    };
    KINDS.into_iter().flat_map(named).collect()
}

/// A configuration with these networks, and with or without network policies.
fn configuration(networks: &[String], has_policies: bool) -> Value {
    let network = |name: &String| json!({ "name": name, "type": "Raw", "rawCNIConfig": "{}" });
    let networks: Vec<Value> = networks.iter().map(network).collect();
    json!({ "spec": { "additionalNetworks": networks, "useMultiNetworkPolicy": has_policies } })
}

/// Waits until the cluster has exactly the objects of a configuration.
fn has(stage: &Stage, names: &[String], has_policies: bool) {
    until("the configuration", || {
        let there = stage.list(&networks("default"));
        let name = |object: &Value| object["metadata"]["name"].clone();
        let there: Vec<Value> = there.iter().map(name).collect();
        let policies = stage.get(POLICIES).is_some();
        if there == names && policies == has_policies {
            Ok(())
        } else {
            Err(format!("{there:?}, policies: {policies}"))
        }
    });
}

// cluster-network#205
#[test]
fn successor_of_killed_operators_completes_the_configuration() {
    let stage = Stage::start();
    let (mut names, mut has_policies) = (vec!["first".to_owned()], false);
    let operator = stage.operator();
    stage.configure("Calico");
    stage.there(KUBE_PROXY);
    stage.change(OPERATOR, &configuration(&names, has_policies));
    stage.there(&format!("{}/first", networks("default")));
    has(&stage, &names, has_policies);
    stage.at_rest();
    let (expected, record) = (labelled(&stage), stage.there(RECORD)["data"].clone());
    drop(operator);

    let mut deaths = 0;
    for (round, writes) in WRITES.into_iter().enumerate() {
        let life = Life::long();
        let ending = life.clone();
        let operator = stage.operator_with_client(move |client| ending.client(client));
        // It completes the configuration of the former one.
        has(&stage, &names, has_policies);
        stage.at_rest();
        names = (0..4).map(|number| format!("n{round}-{number}")).collect();
        has_policies = !has_policies;
        life.end_after(writes);
        stage.change(OPERATOR, &configuration(&names, has_policies));
        // An operator that has died is at rest too.
        stage.at_rest();
        deaths += usize::from(life.has_ended());
        operator.kill();
    }
    assert!(deaths >= WRITES.len() / 2, "{deaths} operators died");

    let _operator = stage.operator();
    has(&stage, &names, has_policies);
    names = vec!["first".to_owned()];
    stage.change(OPERATOR, &configuration(&names, false));
    has(&stage, &names, false);
    stage.wait_for("the record", RECORD, |object| {
        (object?["data"] == record).then_some(())
    });
    stage.at_rest();
    assert_eq!(labelled(&stage), expected);
    stage.roll_out_all();
    stage.condition("Progressing", "False : ");
    stage.condition("Degraded", "False : ");
}

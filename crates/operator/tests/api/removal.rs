//! The order of deletions, and their continuation after an interruption.

use std::time::{Duration, Instant};

use cluster::wait;
use kube_kit::object;
use serde_json::{Value, json};
use stage::{Request, until};

use crate::fixture::{DEADLINE, Fixture, NAMESPACE};

const RECORD: &str = "cluster-networks-addons-operator-applied-cluster";
const POOL: [&str; 2] = ["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"];
const WEBHOOK: &str = "kubevirt-ipam-controller-mutating-webhook-configuration";
const NETWORKS: &str = "network-attachment-definitions.k8s.cni.cncf.io";

/// The resources that were deleted since the mark, in order.
fn deletions(fixture: &Fixture, mark: u64) -> Vec<String> {
    let requests = fixture.requests_since(mark).into_iter();
    requests
        .filter(|request| request.verb == "delete")
        .map(|request| {
            let path = request.uri.split('?').next().unwrap_or_default().to_owned();
            let mut parts = path.rsplit('/');
            let (name, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            format!("{kind}/{name}")
        })
        .collect()
}

fn with_pool() -> Fixture {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "kubeMacPool": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out_deployments(&POOL);
    fixture.wait_until_available();
    fixture
}

#[test]
fn webhooks_of_component_are_deleted_first() {
    let fixture = with_pool();
    let mark = fixture.mark();
    fixture.configure(&json!({ "multus": {} }));
    for name in POOL {
        fixture.wait_until_gone("deployment", name);
    }
    fixture.wait_until_gone("configmap", "kubemacpool-mac-range-config");
    fixture.wait_until_available();
    let deleted = deletions(&fixture, mark);
    assert_eq!(
        deleted.first().map(String::as_str),
        Some("mutatingwebhookconfigurations/kubemacpool-mutator"),
        "{deleted:#?}"
    );
}

#[test]
fn deletion_of_configuration_deletes_webhooks_then_access() {
    let fixture = with_pool();
    let mark = fixture.mark();
    fixture
        .kubectl()
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");
    fixture.wait_until_gone("mutatingwebhookconfiguration", "kubemacpool-mutator");
    fixture.wait_until_gone("clusterrolebinding", "multus");
    fixture.wait_until_gone("clusterrolebinding", "kubemacpool-manager-rolebinding");
    // The audit log may be a moment behind.
    let deleted = wait::until("three deletions", DEADLINE, || {
        let deleted = deletions(&fixture, mark);
        if deleted.len() >= 3 {
            Ok(deleted)
        } else {
            Err(format!("{deleted:#?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        deleted.len(),
        3,
        "the rest is the garbage collector's: {deleted:#?}"
    );
    assert_eq!(deleted[0], "mutatingwebhookconfigurations/kubemacpool-mutator");
    assert!(
        deleted[1..]
            .iter()
            .all(|what| what.starts_with("clusterrolebindings/")),
        "{deleted:#?}"
    );
}

// operator#96
#[test]
fn configuration_that_waits_for_foreign_finalizer_is_still_deployed() {
    let fixture = with_pool();
    let held = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
    let configuration = ("networkaddonsconfig", "cluster");
    fixture.patch(
        configuration.0,
        configuration.1,
        &held(json!(["example.org/protect"])),
    );
    fixture.remove(configuration.0, configuration.1);
    fixture.wait_for_operand(configuration.0, configuration.1, |object| {
        object["metadata"]["deletionTimestamp"].is_string().then_some(())
    });

    fixture.delete_and_await_repair("serviceaccount", "multus");
    fixture.configure(&json!({ "multus": {}, "kubeMacPool": {}, "linuxBridge": {} }));
    fixture.roll_out(&["kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
    fixture.configure(&json!({ "multus": {}, "kubeMacPool": {} }));
    fixture.wait_until_gone("daemonset", "bridge-marker");

    // The end of the wait is the deletion.
    let mark = fixture.mark();
    fixture.patch(configuration.0, configuration.1, &held(Value::Null));
    fixture.wait_until_gone("mutatingwebhookconfiguration", "kubemacpool-mutator");
    fixture.wait_until_gone("clusterrolebinding", "multus");
    let deleted = deletions(&fixture, mark);
    assert_eq!(
        deleted.first().map(String::as_str),
        Some("mutatingwebhookconfigurations/kubemacpool-mutator"),
        "{deleted:#?}"
    );
}

/// A stop between any two writes: the operator is stopped after its first deletion, after the second one, and so on,
/// and restarted.
#[test]
fn interrupted_removal_continues_after_restart() {
    let mut fixture = with_pool();
    let mark = fixture.mark();
    let enough = |fixture: &Fixture, stops: usize| deletions(fixture, mark).len() > stops;
    // The whole removal may be shorter than one poll of the cluster: the log is read as fast as possible.
    let hurry = |fixture: &Fixture, stops: usize| {
        let begun = Instant::now();
        while !enough(fixture, stops) && begun.elapsed() < Duration::from_secs(1) {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        // The operator acts before kubectl has ended.
        scope.spawn(|| fixture.configure(&json!({ "multus": {} })));
        hurry(&fixture, 0);
        fixture.interrupt();
    });
    let gone = |fixture: &Fixture| {
        let record = fixture.operand("configmap", RECORD).expect("the record");
        let inventory = record["data"]["inventory"].as_str().expect("an inventory");
        !inventory.contains("kubemacpool")
    };
    let (mut stops, mut interrupted) = (0, 0);
    loop {
        fixture.stop();
        if gone(&fixture) {
            break;
        }
        interrupted += 1;
        stops = deletions(&fixture, mark).len();
        fixture.start();
        hurry(&fixture, stops);
        wait::until("a deletion or the end", DEADLINE, || {
            if enough(&fixture, stops) || gone(&fixture) {
                Ok(())
            } else {
                Err(format!("{:#?}", deletions(&fixture, mark)))
            }
        })
        .expect("progress");
    }
    println!("interrupted {interrupted} times, the last time after {stops} deletions");
    for (kind, name) in [
        ("mutatingwebhookconfiguration", "kubemacpool-mutator"),
        ("deployment", POOL[0]),
        ("deployment", POOL[1]),
        ("service", "kubemacpool-service"),
        ("configmap", "kubemacpool-mac-range-config"),
        ("serviceaccount", "kubemacpool-sa"),
        ("clusterrole", "kubemacpool-manager-role"),
        ("clusterrolebinding", "kubemacpool-manager-rolebinding"),
        ("networkpolicy", "kubemacpool-allow-ingress-to-webhook"),
    ] {
        assert!(fixture.operand(kind, name).is_none(), "{kind} {name}");
    }
    fixture.start();
    fixture.wait_until_available();
}

#[test]
fn foreign_metadata_on_operands_survives() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    let configuration = fixture.wait_until_available();
    let namespace = fixture.operand("namespace", NAMESPACE).expect("it");
    let stranger = json!({
        "apiVersion": "v1", "kind": "Namespace", "name": NAMESPACE, "uid": namespace["metadata"]["uid"],
    });
    let ours = json!({
        "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
        "name": "cluster", "uid": configuration["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    });
    for (kind, name) in [
        ("configmap", "multus-daemon-config"),
        ("serviceaccount", "bridge-marker"),
    ] {
        // The object has a change that the operator reverts, so that it is written.
        let patch = json!({
            "metadata": {
                "ownerReferences": [stranger, ours], "finalizers": ["example.org/mine"],
                "labels": { "app.kubernetes.io/component": "changed" },
            },
            "data": { "more": "1" },
        });
        let patch = if kind == "configmap" {
            patch
        } else {
            json!({ "metadata": patch["metadata"] })
        };
        fixture.patch(kind, name, &patch);
        fixture.wait_for_operand(kind, name, |object| {
            let metadata = &object["metadata"];
            (metadata["labels"]["app.kubernetes.io/component"] == "network").then(|| {
                assert_eq!(metadata["finalizers"], json!(["example.org/mine"]), "{kind}");
                assert_eq!(metadata["ownerReferences"], json!([stranger, ours]), "{kind}");
            })
        });
    }

    // An object with a foreign finalizer is being deleted, and does not block other deletions.
    fixture.configure(&json!({ "multus": {} }));
    for name in ["kube-cni-linux-bridge-plugin", "bridge-marker"] {
        fixture.wait_until_gone("daemonset", name);
    }
    fixture.wait_for_operand("serviceaccount", "bridge-marker", |held| {
        held["metadata"]["deletionTimestamp"].is_string().then_some(())
    });
    fixture.wait_until_available();
    let free = json!({ "metadata": { "finalizers": null } });
    fixture.patch("serviceaccount", "bridge-marker", &free);
    fixture.wait_until_gone("serviceaccount", "bridge-marker");
    fixture.patch("configmap", "multus-daemon-config", &free);
}

#[test]
fn definition_of_networks_outlives_configuration() {
    let mut fixture = Fixture::installed();
    fixture.configure(&json!({}));
    let crd = |owners: &Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": NETWORKS, "ownerReferences": owners },
            "spec": {
                "group": "k8s.cni.cncf.io", "scope": "Namespaced",
                "names": {
                    "kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions",
                    "singular": "network-attachment-definition",
                },
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        })
    };
    let stranger = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "1" });
    let ours = json!({
        "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1alpha1", "kind": "NetworkAddonsConfig",
        "name": "cluster", "uid": fixture.configuration()["metadata"]["uid"], "controller": true,
    });
    fixture.kubectl().delete(["crd", NETWORKS]).expect("deleted");
    let old = crd(&json!([stranger, ours]));
    fixture
        .kubectl()
        .apply(&old.to_string())
        .expect("an old definition");
    fixture.start();
    // Multus is not requested: the owner is removed anyway, and nothing else.
    let freed = fixture.wait_for_operand("crd", NETWORKS, |object| {
        (object["metadata"]["ownerReferences"] == json!([stranger])).then(|| object.clone())
    });
    assert_eq!(freed["spec"]["versions"], old["spec"]["versions"]);
    fixture.wait_until_available();
    fixture.kubectl().delete(["crd", NETWORKS]).expect("deleted");
}

fn claims() -> String {
    object::IPAM_CLAIM.path(Some(NAMESPACE))
}

fn lease() -> String {
    format!("{}/71d89df3", object::LEASE.path(Some(NAMESPACE)))
}

/// The claims that the controller of KubeVirt IPAM held, and the Lease that it renewed.
struct Held<'a>(&'a Fixture);

impl Held<'_> {
    fn create(&self) {
        let kubectl = self.0.kubectl();
        for (name, finalizers) in [
            (
                "stays",
                json!(["example.org/mine", "kubevirt.io/persistent-ipam"]),
            ),
            ("deleted", json!(["kubevirt.io/persistent-ipam"])),
        ] {
            let claim = json!({
                "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
                "metadata": { "name": name, "namespace": NAMESPACE, "finalizers": finalizers },
                "spec": { "network": "lan", "interface": "net1" },
            });
            kubectl.apply(&claim.to_string()).expect("a claim");
        }
        self.0.admin().delete(&format!("{}/deleted", claims()));
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "71d89df3", "namespace": NAMESPACE },
            "spec": { "holderIdentity": "manager-1", "leaseTransitions": 1 },
        });
        kubectl.apply(&lease.to_string()).expect("a Lease");
    }

    fn finalizers(&self, name: &str) -> Option<Value> {
        let claim = self.0.admin().get(&format!("{}/{name}", claims()))?;
        Some(claim["metadata"]["finalizers"].clone())
    }

    fn wait_for_release(&self) {
        until("released claims", || {
            let left = (
                self.finalizers("stays"),
                self.finalizers("deleted"),
                self.0.admin().get(&lease()),
            );
            if left == (Some(json!(["example.org/mine"])), None, None) {
                Ok(())
            } else {
                Err(format!("{left:#?}\n{:#?}", self.0.events()))
            }
        });
    }
}

// kubevirt-ipam#112
#[test]
fn claims_of_removed_ipam_controller_lose_their_finalizer() {
    let fixture = Fixture::running();
    let held = Held(&fixture);
    let ipam = json!({ "kubevirtIpamController": {} });
    fixture.configure(&ipam);
    fixture.roll_out_deployments(&["kubevirt-ipam-controller-manager"]);
    fixture.wait_until_available();
    held.create();

    // The last pod still renews the Lease for a while.
    fixture.configure(&json!({}));
    fixture.wait_until_gone("deployment", "kubevirt-ipam-controller-manager");
    for transitions in 2..8 {
        let renewed = json!({ "spec": { "leaseTransitions": transitions } });
        fixture.admin().patch(&lease(), &renewed).accepted();
        assert_eq!(
            held.finalizers("deleted"),
            Some(json!(["kubevirt.io/persistent-ipam"]))
        );
    }
    held.wait_for_release();
    fixture.wait_until_available();

    // The whole configuration is removed.
    fixture.configure(&ipam);
    fixture.wait_for_operand("deployment", "kubevirt-ipam-controller-manager", |_| Some(()));
    held.create();
    fixture
        .kubectl()
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");
    held.wait_for_release();
    let free = json!({ "metadata": { "finalizers": null } });
    let stays = format!("{}/stays", claims());
    fixture.admin().patch(&stays, &free).accepted();
    fixture.admin().delete(&stays);
}

// kubevirt-ipam#112
#[test]
fn claims_of_another_installation_keep_their_finalizer() {
    let fixture = Fixture::running();
    let held = Held(&fixture);
    fixture.configure(&json!({ "kubevirtIpamController": {} }));
    fixture.wait_for_operand("deployment", "kubevirt-ipam-controller-manager", |_| Some(()));
    held.create();
    fixture.configure(&json!({}));
    fixture.wait_until_gone("deployment", "kubevirt-ipam-controller-manager");
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": WEBHOOK },
    });
    fixture
        .kubectl()
        .apply(&webhook.to_string())
        .expect("another installation");
    let mark = fixture.mark();
    let count = || {
        let path = format!("{}/{WEBHOOK}", object::MUTATING_WEBHOOK_CONFIGURATION.path(None));
        let requests = fixture.requests_since(mark).into_iter();
        let is_read = |request: &Request| request.verb == "get" && request.uri == path;
        requests.filter(is_read).count()
    };
    let reads = |expected: usize| {
        until("a decision about the claims", || match count() {
            found if found >= expected => Ok(()),
            found => Err(format!("{found} reads")),
        });
    };
    reads(1);
    // Reconciles without a new specification do not read.
    for _ in 0..3 {
        fixture.nudge();
        fixture.delete_and_await_repair("networkpolicy", "cnao-allow-egress-to-cluster-dns");
    }
    assert_eq!(count(), 1);
    // The second decision comes after all requests of the first one.
    fixture.configure(&json!({ "linuxBridge": {} }));
    reads(2);
    assert_eq!(
        held.finalizers("stays"),
        Some(json!(["example.org/mine", "kubevirt.io/persistent-ipam"]))
    );
    let webhook = ["mutatingwebhookconfiguration", WEBHOOK];
    fixture.kubectl().delete(webhook).expect("deleted");
    // Earlier than the next check.
    fixture.configure(&json!({}));
    held.wait_for_release();
    let free = json!({ "metadata": { "finalizers": null } });
    let stays = format!("{}/stays", claims());
    fixture.admin().patch(&stays, &free).accepted();
    fixture.admin().delete(&stays);
}

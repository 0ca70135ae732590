//! The operator corrects changes and deletions by other clients at once, and sends no request while nothing changes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stage::until;

use crate::fixture::{Fixture, NAMESPACE, message};

fn with_multus() -> Fixture {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    fixture
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

// operator#18
#[test]
fn a_deleted_daemon_set_is_reported_and_comes_back() {
    let fixture = with_multus();
    let before = uid(&fixture.operand("daemonset", "multus").expect("multus"));
    let mark = fixture.mark();
    fixture
        .kubectl()
        .run(["delete", "--wait=false", "daemonset", "multus", "-n", NAMESPACE])
        .expect("deleted");
    let gone = Instant::now();
    fixture.wait_for_operand("daemonset", "multus", |object| {
        (uid(object) != before).then_some(())
    });
    println!(
        "a deleted DaemonSet was back after {} ms at most",
        gone.elapsed().as_millis()
    );
    fixture.wait_for_event(
        "Warning Failed: NoDaemonSet: Operator failed: Expected DaemonSet \"networking/multus\" does not exist",
    );
    fixture.wait_until_progressing();
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    assert_eq!(
        fixture.work_since(mark),
        ["create /apis/apps/v1/namespaces/networking/daemonsets?"],
        "one write and no read"
    );
}

#[test]
fn an_edited_pod_template_is_reverted() {
    let fixture = with_multus();
    let mark = fixture.mark();
    let patch =
        json!({ "spec": { "template": { "metadata": { "annotations": { "mine": "1" } } } } }).to_string();
    fixture
        .kubectl()
        .run(["patch", "daemonset", "multus", "-n", NAMESPACE, "-p", &patch])
        .expect("patched");
    let edited = Instant::now();
    fixture.wait_for_operand("daemonset", "multus", |object| {
        object
            .pointer("/spec/template/metadata/annotations/mine")
            .is_none()
            .then_some(())
    });
    println!(
        "an edited DaemonSet was reverted after {} ms at most",
        edited.elapsed().as_millis()
    );
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    assert_eq!(
        fixture.work_since(mark),
        ["update /apis/apps/v1/namespaces/networking/daemonsets/multus?"]
    );
}

#[test]
fn every_kind_is_restored() {
    let fixture = with_multus();
    let mark = fixture.mark();
    for (kind, name) in [
        ("clusterrole", "multus"),
        ("clusterrolebinding", "multus"),
        ("serviceaccount", "multus"),
        ("configmap", "multus-daemon-config"),
        ("networkpolicy", "cnao-allow-egress-to-cluster-dns"),
        ("configmap", "cluster-networks-addons-operator-applied-cluster"),
    ] {
        let before = uid(&fixture.operand(kind, name).expect("the object"));
        fixture
            .kubectl()
            .run(["delete", "--wait=false", kind, name, "-n", NAMESPACE])
            .expect("deleted");
        fixture.wait_for_operand(kind, name, |object| (uid(object) != before).then_some(()));
    }
    let patch = json!({ "data": { "daemon-config.json": "{}", "more": "" } }).to_string();
    fixture
        .kubectl()
        .run([
            "patch",
            "configmap",
            "multus-daemon-config",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            &patch,
        ])
        .expect("patched");
    fixture.wait_for_operand("configmap", "multus-daemon-config", |object| {
        let data = object["data"].as_object().expect("data");
        (data.len() == 1 && data["daemon-config.json"] != "{}").then_some(())
    });
    // Another client removes the label that the watch selects.
    fixture
        .kubectl()
        .run([
            "label",
            "clusterrole",
            "multus",
            "app.kubernetes.io/managed-by-",
            "mine=1",
        ])
        .expect("labelled");
    fixture.wait_for_operand("clusterrole", "multus", |object| {
        let labels = &object["metadata"]["labels"];
        (labels["app.kubernetes.io/managed-by"] == "cnao-operator" && labels["mine"] == "1").then_some(())
    });
    let work = fixture.work_since(mark);
    let deletes: Vec<_> = work
        .iter()
        .filter(|request| request.starts_with("delete"))
        .collect();
    assert!(deletes.is_empty(), "{work:#?}");
}

#[test]
fn operator_at_rest_sends_no_request() {
    let fixture = with_multus();
    fixture.delete_and_await_repair("serviceaccount", "multus");
    let mark = fixture.mark();
    // Status of workloads, foreign labels and the operator's own status are no drift; a repair shows that the operator
    // has processed them.
    for round in ["1", "2", "3"] {
        let label = format!("mine={round}");
        fixture
            .kubectl()
            .run([
                "label",
                "--overwrite",
                "daemonset",
                "multus",
                "-n",
                NAMESPACE,
                &label,
            ])
            .expect("labelled");
        fixture
            .kubectl()
            .run(["label", "--overwrite", "namespace", NAMESPACE, &label])
            .expect("labelled");
        fixture.roll_out(&["multus"]);
    }
    fixture.delete_and_await_repair("serviceaccount", "multus");
    let requests: Vec<_> = fixture
        .requests_since(mark)
        .iter()
        .map(|r| format!("{} {}", r.verb, r.uri))
        .collect();
    assert_eq!(
        requests,
        ["create /api/v1/namespaces/networking/serviceaccounts?"]
    );
}

// operator#66
#[test]
fn a_removal_is_not_forgotten_when_something_else_fails() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "linuxBridge": {} }));
    fixture.roll_out(&["kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
    let rules = fixture.forbid("role", "networkpolicies", "create");
    fixture.forbid("role", "daemonsets", "delete");
    fixture
        .kubectl()
        .run([
            "delete",
            "--wait=false",
            "networkpolicy",
            "-n",
            NAMESPACE,
            "--all",
        ])
        .expect("deleted");
    fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToApply",
        "Progressing False InvalidConfiguration",
    ]);
    fixture.configure(&json!({}));
    // The new specification is recorded; some objects of the old one still exist.
    let applied = "cluster-networks-addons-operator-applied-cluster";
    fixture.wait_for_operand("configmap", applied, |object| {
        let spec = object["data"]["applied"].as_str().expect("text");
        (!spec.contains("linuxBridge")).then_some(())
    });
    assert!(fixture.operand("daemonset", "bridge-marker").is_some());

    fixture.permit("role", &rules);
    fixture.nudge();
    fixture.wait_until_gone("daemonset", "bridge-marker");
    for (kind, name) in [
        ("daemonset", "kube-cni-linux-bridge-plugin"),
        ("clusterrole", "bridge-marker-cr"),
        ("clusterrolebinding", "bridge-marker-crb"),
        ("serviceaccount", "bridge-marker"),
    ] {
        fixture.wait_until_gone(kind, name);
    }
    fixture.wait_until_available();
    fixture.wait_for_operand("configmap", applied, |object| {
        (!object["data"]["inventory"]
            .as_str()
            .expect("text")
            .contains("bridge-marker"))
        .then_some(())
    });
}

// operator#90
#[test]
fn reconcile_with_a_lagging_watch_writes_nothing_twice() {
    const APPLIED: &str = "cluster-networks-addons-operator-applied-cluster";
    let mut fixture = Fixture::installed();
    let hold = fixture.hold("configmaps");
    // On a slow machine, the watch must not be reported as stale.
    fixture.set_watch_timeout(Duration::from_mins(10));
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "kubeMacPool": {} }));
    fixture.wait_until_progressing();
    let applied = || fixture.operand("configmap", APPLIED).expect("a record")["data"].clone();
    let first = applied();
    let mark = fixture.mark();
    // Other watches report changes meanwhile.
    fixture.roll_out(&["multus"]);
    fixture.roll_out_deployments(&["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"]);
    fixture.wait_until_available();
    assert_eq!(applied(), first, "the range of addresses is drawn once");
    let work = fixture.work_since(mark);
    assert!(work.is_empty(), "{work:#?}");

    // An object that another client deletes meanwhile is restored once the watch reports the deletion.
    let before = uid(&fixture.operand("configmap", "multus-daemon-config").expect("it"));
    fixture.remove("configmap", "multus-daemon-config");
    hold.release();
    fixture.wait_for_operand("configmap", "multus-daemon-config", |object| {
        (uid(object) != before).then_some(())
    });
}

// operator#90, workloads
#[test]
fn status_of_a_workload_that_its_watch_has_not_reported_is_not_gone() {
    let mut fixture = Fixture::installed();
    let hold = fixture.hold("daemonsets");
    // On a slow machine, the watch must not be reported as stale.
    fixture.set_watch_timeout(Duration::from_mins(10));
    fixture.start();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_progressing();
    // A repair shows that another reconcile ran.
    let before = uid(&fixture.operand("serviceaccount", "multus").expect("it"));
    fixture.remove("serviceaccount", "multus");
    fixture.wait_for_operand("serviceaccount", "multus", |object| {
        (uid(object) != before).then_some(())
    });
    hold.release();
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let events = fixture.events();
    assert!(
        !events.iter().any(|event| event.contains("NoDaemonSet")),
        "{events:#?}"
    );
}

// operator#94
#[test]
fn repair_of_an_object_that_is_reverted_backs_off_and_names_the_manager() {
    const CONFIG: &str = "multus-daemon-config";
    let fixture = with_multus();
    let mark = fixture.mark();
    let theirs = json!({ "data": { "daemon-config.json": "{}" } }).to_string();
    let patch = [
        "patch",
        "configmap",
        CONFIG,
        "--namespace",
        NAMESPACE,
        "--type=merge",
        "--field-manager=gitops",
        "--patch",
        &theirs,
    ];
    let reported = until("the operator to name the manager", || {
        fixture.kubectl().run(patch).expect("patched");
        let reported = message(&fixture.configuration(), "Degraded");
        if reported.is_empty() {
            Err("not yet")
        } else {
            Ok(reported)
        }
    });
    let complaint = format!(
        "could not apply (/v1, Kind=ConfigMap) {NAMESPACE}/{CONFIG}: field manager \"gitops\" keeps changing \
         data.daemon-config.json"
    );
    assert!(reported.starts_with(&complaint), "{reported}");
    until("an event that names the manager", || {
        let events = fixture.events();
        let is_reported = |event: &String| {
            event.starts_with("Warning Failed: FailedToApply: ") && event.contains(complaint.as_str())
        };
        if events.iter().any(is_reported) {
            Ok(())
        } else {
            Err(format!("{events:#?}"))
        }
    });
    let work = fixture.work_since(mark);
    let updates = work.iter().filter(|request| request.starts_with("update"));
    assert!(updates.count() <= 5, "{work:#?}");

    // Other objects are repaired meanwhile, including those of the same component.
    let before = uid(&fixture.operand("serviceaccount", "multus").expect("it"));
    fixture.remove("serviceaccount", "multus");
    fixture.wait_for_operand("serviceaccount", "multus", |object| {
        (uid(object) != before).then_some(())
    });
    // The other client stops reverting it.
    fixture.wait_until_available();
}

//! Reports and tables, written by hand.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Observed, evaluate, table};

const NOW: &str = "2026-03-01T12:00:00Z";

fn shown(observed: &Observed) -> String {
    let now: Timestamp = NOW.parse().expect("a time");
    let text = table::table(&evaluate::report(observed, now));
    for line in text.lines().filter(|line| !line.starts_with("  kubectl")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    text
}

fn operator(ready: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "cluster-network-addons-operator", "namespace": "addons" },
        "spec": { "replicas": 1 }, "status": { "readyReplicas": ready },
    })
}

fn condition(kind: &str, status: &str, minute: u8, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": format!("2026-03-01T11:{minute}:00Z"),
    })
}

/// The conditions of a configuration that is not applied for this reason.
fn failing(reason: &str, message: &str) -> Vec<Value> {
    let text = "Unable to apply desired configuration";
    vec![
        condition("Available", "False", 58, "Failing", text),
        condition("Degraded", "True", 58, reason, message),
    ]
}

fn configuration(spec: &Value, conditions: &[Value]) -> Value {
    json!({
        "metadata": { "name": "cluster" }, "spec": spec,
        "status": {
            "operatorVersion": "1.2.3", "targetVersion": "1.2.3", "observedVersion": "1.2.2", "conditions": conditions,
        },
    })
}

fn daemon_set(name: &str, ready: i64, images: &[&str]) -> Value {
    let containers: Vec<_> = images.iter().map(|image| json!({ "image": image })).collect();
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": name, "namespace": "addons", "generation": 1 },
        "spec": { "template": { "spec": { "containers": containers } } },
        "status": {
            "desiredNumberScheduled": 2, "numberReady": ready, "numberAvailable": ready, "updatedNumberScheduled": 2,
            "numberUnavailable": 2 - ready, "observedGeneration": 1,
        },
    })
}

fn pod(name: &str, owner: (&str, &str), node: &str, status: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "addons", "creationTimestamp": "2026-03-01T11:50:00Z",
            "ownerReferences": [{ "kind": owner.0, "name": owner.1 }],
        },
        "spec": { "nodeName": node }, "status": status,
    })
}

fn waiting(container: &str, reason: &str, message: &str) -> Value {
    json!({ "phase": "Pending", "containerStatuses": [
        { "name": container, "state": { "waiting": { "reason": reason, "message": message } } },
    ] })
}

#[test]
fn report_without_problem_is_available() {
    let conditions = [
        condition("Available", "True", 57, "", ""),
        condition("Progressing", "False", 57, "", ""),
        condition("Degraded", "False", 50, "", ""),
    ];
    let observed = Observed {
        configuration: Some(configuration(
            &json!({ "multus": {}, "linuxBridge": {}, "ovs": {} }),
            &conditions,
        )),
        operator: Some(operator(1)),
        workloads: vec![
            daemon_set(
                "multus",
                2,
                &[
                    "registry.example:5000/a/weft:1.2.3",
                    "registry.example:5000/a/weft:1.2.3",
                ],
            ),
            daemon_set(
                "kube-cni-linux-bridge-plugin",
                2,
                &["weft@sha256:0123456789abcdef0123"],
            ),
            daemon_set(
                "bridge-marker",
                2,
                &["quay.io/kubevirt/bridge-marker:0.13.0", "weft"],
            ),
        ],
        ..Observed::default()
    };
    assert_eq!(
        shown(&observed),
        "\
Operator: 1/1 ready in namespace addons
Versions: operator 1.2.3, target 1.2.3, observed 1.2.2

CONDITION    STATUS  FOR  REASON
Available    True    3m
Progressing  False   3m
Degraded     False   10m

COMPONENT                          READY  STATE / IMAGE
multus                                    available
  ds/multus                        2/2    weft:1.2.3
linuxBridge                               available
  ds/kube-cni-linux-bridge-plugin  2/2    weft@0123456789ab
  ds/bridge-marker                 2/2    bridge-marker:0.13.0
                                          weft
ovs                                       not deployed
"
    );
}

#[test]
fn problem_of_pod_without_image_names_its_node() {
    let conditions = [
        condition("Available", "False", 58, "Startup", "Configuration is in process"),
        condition(
            "Progressing",
            "True",
            58,
            "Deploying",
            "DaemonSet \"addons/multus\" is ...",
        ),
        condition("Degraded", "False", 58, "", ""),
    ];
    let message = "Back-off pulling image \"registry.example/weft:9\": ErrImagePull: not found";
    let observed = Observed {
        configuration: Some(configuration(&json!({ "multus": {} }), &conditions)),
        operator: Some(operator(1)),
        workloads: vec![daemon_set("multus", 0, &["registry.example/weft:9"])],
        pods: vec![
            pod(
                "multus-aaaaa",
                ("DaemonSet", "multus"),
                "node01",
                &waiting("kube-multus", "ImagePullBackOff", message),
            ),
            pod(
                "multus-bbbbb",
                ("DaemonSet", "multus"),
                "node02",
                &waiting("kube-multus", "ImagePullBackOff", message),
            ),
        ],
        events: vec![
            json!({
                "involvedObject": { "kind": "Pod", "name": "multus-aaaaa" }, "reason": "Failed",
                "message": "Error: ImagePullBackOff", "lastTimestamp": "2026-03-01T11:58:30Z",
            }),
            json!({
                "involvedObject": { "kind": "Pod", "name": "multus-aaaaa" }, "reason": "Failed",
                "message": "older", "lastTimestamp": "2026-03-01T11:58:00Z",
            }),
            json!({
                "involvedObject": { "kind": "Pod", "name": "foreign" }, "reason": "Failed",
                "message": "no", "lastTimestamp": "2026-03-01T11:59:00Z",
            }),
            json!({
                "involvedObject": { "kind": "NetworkAddonsConfig", "name": "cluster" }, "reason": "Failed: FailedToApply",
                "message": "Operator failed: old", "lastTimestamp": "2026-03-01T10:00:00Z",
            }),
        ],
        ..Observed::default()
    };
    assert_eq!(
        shown(&observed),
        "\
Operator: 1/1 ready in namespace addons
Versions: operator 1.2.3, target 1.2.3, observed 1.2.2

CONDITION    STATUS  FOR  REASON
Available    False   2m   Startup
Progressing  True    2m   Deploying
Degraded     False   2m

COMPONENT    READY  STATE / IMAGE
multus              progressing
  ds/multus  0/2    weft:9

In progress:
  multus: DaemonSet \"addons/multus\" is not available (awaiting 2 nodes)

Problems:
  multus: pod multus-aaaaa on node node01 and 1 more pod, container kube-multus:
    ImagePullBackOff: Back-off pulling image \"registry.example/weft:9\":
    ErrImagePull: not found

Warnings of the last hour:
  90s ago pod/multus-aaaaa Failed: Error: ImagePullBackOff

Next: check the image's name, and whether node node01 may pull it
  kubectl -n addons describe pod multus-aaaaa
"
    );
}

#[test]
fn problem_of_rejected_specification_has_text_of_operator() {
    let message = "failed to validate NetworkConfig.Spec: invalid configuration:\nboth or none of the KubeMacPool ranges \
                   needs to be configured";
    let conditions = failing("FailedToValidate", message);
    let observed = Observed {
        configuration: Some(configuration(
            &json!({ "kubeMacPool": { "rangeStart": "02:00:00:00:00:00" } }),
            &conditions,
        )),
        operator: Some(operator(1)),
        // No longer requested, and still running while the specification is rejected.
        workloads: vec![daemon_set("multus", 2, &["multus:4"])],
        // The conditions have the same message.
        events: vec![json!({
            "involvedObject": { "kind": "NetworkAddonsConfig", "name": "cluster" }, "type": "Warning",
            "reason": "Failed: FailedToValidate", "message": format!("Operator failed: {message}"),
            "lastTimestamp": "2026-03-01T11:58:00Z",
        })],
        ..Observed::default()
    };
    assert_eq!(
        shown(&observed),
        "\
Operator: 1/1 ready in namespace addons
Versions: operator 1.2.3, target 1.2.3, observed 1.2.2

CONDITION  STATUS  FOR  REASON
Available  False   2m   Failing
Degraded   True    2m   FailedToValidate

COMPONENT    READY  STATE / IMAGE
multus              available
  ds/multus  2/2    multus:4
kubeMacPool         not deployed

Problems:
  configuration: FailedToValidate: failed to validate NetworkConfig.Spec:
    invalid configuration:
    both or none of the KubeMacPool ranges needs to be configured

Next: correct the specification
  kubectl edit networkaddonsconfig cluster
"
    );
}

#[test]
fn table_shows_all_errors_of_specification() {
    let errors: Vec<String> = (0..19)
        .map(|number| format!("field number {number} has a value that can't be used"))
        .collect();
    let shown_message = |message: &str| {
        let condition = condition("Degraded", "True", 58, "FailedToValidate", message);
        shown(&Observed {
            configuration: Some(configuration(&json!({}), &[condition])),
            operator: Some(operator(1)),
            ..Observed::default()
        })
    };
    let text = shown_message(&format!("not valid:\n{}", errors.join("\n")));
    assert!(errors.iter().all(|error| text.contains(error)), "{text}");
    assert!(!text.contains('…'), "{text}");
    // More lines than fit, and a quoted object.
    let text = shown_message(&"line\n".repeat(21));
    assert_eq!((text.matches("line").count(), text.matches('…').count()), (20, 1));
    let text = shown_message(&"x".repeat(1000));
    assert!(text.matches('x').count() < 400 && text.contains('…'), "{text}");
}

#[test]
fn state_of_component_follows_its_condition() {
    let conditions = [
        condition("Available", "False", 58, "Failing", ""),
        condition("Degraded", "True", 58, "FailedToApply", "no matches for kind"),
        condition("MultusAvailable", "True", 58, "", ""),
        condition("NetworkPoliciesAvailable", "True", 58, "", ""),
        condition(
            "KubeSecondaryDNSAvailable",
            "False",
            58,
            "FailedToApply",
            "no matches for kind",
        ),
        condition("NmstateAvailable", "False", 58, "Startup", "it rolls out"),
    ];
    let observed = Observed {
        configuration: Some(configuration(
            &json!({ "multus": {}, "kubeSecondaryDNS": {}, "nmstate": {} }),
            &conditions,
        )),
        operator: Some(operator(1)),
        ..Observed::default()
    };
    let text = shown(&observed);
    assert!(
        text.contains(
            "\
CONDITION  STATUS  FOR  REASON
Available  False   2m   Failing
Degraded   True    2m   FailedToApply

COMPONENT         READY  STATE / IMAGE
multus                   available
kubeSecondaryDNS         degraded
nmstate                  progressing

In progress:
  nmstate: it rolls out

Problems:
  kubeSecondaryDNS: FailedToApply: no matches for kind

Next: install the definition of the missing kind; the operator then continues
"
        ),
        "{text}"
    );
    // The log has further details of a failure.
    let refused = [condition(
        "Degraded",
        "True",
        58,
        "FailedToApply",
        "conversion webhook refused",
    )];
    let text = shown(&Observed {
        configuration: Some(configuration(&json!({}), &refused)),
        ..observed
    });
    assert!(text.contains("\nNext: read the log of the operator\n"), "{text}");
}

#[test]
fn problem_of_pod_has_next_step() {
    let crashed = json!({ "phase": "Running", "containerStatuses": [{
        "name": "manager", "restartCount": 4,
        "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s" } },
        "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
    }] });
    let unscheduled = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available" },
    ] });
    let silent = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] });
    let slow = json!({ "phase": "Pending", "containerStatuses": [
        { "name": "a", "state": { "waiting": { "reason": "ContainerCreating" } } },
    ] });
    for (status, problem, command) in [
        (
            crashed,
            "pod multus-a on node n, container manager: CrashLoopBackOff: it ended\n    with exit code 137 (OOMKilled), \
             4 restarts",
            "kubectl -n addons logs multus-a -c manager --previous",
        ),
        (
            unscheduled,
            "pod multus-a on node n: Unschedulable: 0/2 nodes are available",
            "kubectl -n addons describe pod multus-a",
        ),
        (
            silent,
            "pod multus-a on node n: NotReady: it runs, but",
            "kubectl -n addons describe pod multus-a",
        ),
        (
            slow,
            "pod multus-a on node n: ContainerCreating: its containers",
            "kubectl -n addons describe pod multus-a",
        ),
    ] {
        let observed = Observed {
            configuration: Some(configuration(&json!({ "multus": {} }), &[])),
            operator: Some(operator(1)),
            workloads: vec![daemon_set("multus", 0, &["weft:1"])],
            pods: vec![pod("multus-a", ("DaemonSet", "multus"), "n", &status)],
            ..Observed::default()
        };
        let text = shown(&observed);
        assert!(text.contains(problem), "{problem}\n{text}");
        assert!(text.ends_with(&format!("  {command}\n")), "{command}\n{text}");
    }
}

#[test]
fn next_step_on_empty_cluster_is_installation() {
    let text = shown(&Observed::default());
    assert_eq!(
        text,
        "\
Operator: not found

There is no NetworkAddonsConfig: nothing is deployed.

Next: install the operator
  weft manifests --image REF | kubectl apply -f -
"
    );
    let installed = Observed {
        operator: Some(operator(1)),
        ..Observed::default()
    };
    let text = shown(&installed);
    assert!(
        text.ends_with(
            "\
Next: create a NetworkAddonsConfig that enables components
kubectl apply -f - <<EOF
apiVersion: networkaddonsoperator.network.kubevirt.io/v1
kind: NetworkAddonsConfig
metadata:
  name: cluster
spec:
  multus: {}
  linuxBridge: {}
EOF
"
        ),
        "{text}"
    );
}

#[test]
fn unready_operator_is_first_problem() {
    let observed = Observed {
        configuration: Some(configuration(
            &json!({}),
            &[condition("Available", "True", 58, "", "")],
        )),
        operator: Some(operator(0)),
        ..Observed::default()
    };
    let text = shown(&observed);
    assert!(text.contains("COMPONENT    none requested\n"), "{text}");
    assert!(
        text.contains("Problems:\n  operator: it is not ready: this report may be stale\n"),
        "{text}"
    );
    assert!(
        text.contains("Next: find out why the operator is not ready\n"),
        "{text}"
    );
    // Its last status may be stale.
    let now = NOW.parse().expect("a time");
    assert!(!evaluate::report(&observed, now).available);
}

// operator#91, the next step
#[test]
fn next_step_with_missing_rights_is_to_grant_them() {
    let lacks = |message: &str| Observed {
        configuration: Some(configuration(
            &json!({}),
            &[condition("Degraded", "True", 58, "FailedToWatch", message)],
        )),
        operator: Some(operator(0)),
        ..Observed::default()
    };
    let text = shown(&lacks(
        "not allowed to list customresourcedefinitions.apiextensions.k8s.io",
    ));
    for part in [
        "FailedToWatch",
        "customresourcedefinitions.apiextensions.k8s.io",
        "Next: give the operator the rights that its version needs\n  weft manifests --image REF | kubectl apply -f -\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = shown(&lacks("cannot list daemonsets.apps: no leader"));
    assert!(text.contains("Next: read the log of the operator\n"), "{text}");
}

//! Every component, alone and together with the others, with upstream's images: their programs do not run here, so the
//! tests write the status of their pods.

use serde_json::{Value, json};

use crate::{
    fixture::{AVAILABLE, DEADLINE, Fixture, NAMESPACE, VERSION, conditions, message},
    installation::{
        DAEMON_SETS, DEPLOYMENTS, IMAGES, VERSION_LABEL, everything, is_workload, owned, owned_by,
    },
    stubs::{CERT_MANAGER, MONITORING},
};

/// A component by its field, with its objects from operands §1–§8 as `Kind/name`, without definitions and the
/// namespace.
struct Component {
    field: &'static str,
    objects: &'static [&'static str],
}

const COMPONENTS: [Component; 8] = [
    Component {
        field: "multus",
        objects: &[
            "ClusterRole/multus",
            "ClusterRoleBinding/multus",
            "ServiceAccount/multus",
            "ConfigMap/multus-daemon-config",
            "DaemonSet/multus",
        ],
    },
    Component {
        field: "multusDynamicNetworks",
        objects: &[
            "ClusterRoleBinding/dynamic-networks-controller",
            "ClusterRole/dynamic-networks-controller",
            "ConfigMap/dynamic-networks-controller-config",
            "DaemonSet/dynamic-networks-controller-ds",
            "ServiceAccount/dynamic-networks-controller",
        ],
    },
    Component {
        field: "linuxBridge",
        objects: &[
            "DaemonSet/kube-cni-linux-bridge-plugin",
            "DaemonSet/bridge-marker",
            "ClusterRole/bridge-marker-cr",
            "ClusterRoleBinding/bridge-marker-crb",
            "ServiceAccount/bridge-marker",
        ],
    },
    Component {
        field: "kubeMacPool",
        objects: &[
            "ServiceAccount/kubemacpool-sa",
            "ClusterRole/kubemacpool-manager-role",
            "ClusterRoleBinding/kubemacpool-manager-rolebinding",
            "ConfigMap/kubemacpool-mac-range-config",
            "Service/kubemacpool-service",
            "Deployment/kubemacpool-cert-manager",
            "Deployment/kubemacpool-mac-controller-manager",
            "NetworkPolicy/kubemacpool-allow-ingress-to-metrics-endpoint",
            "NetworkPolicy/kubemacpool-allow-ingress-to-webhook",
            "MutatingWebhookConfiguration/kubemacpool-mutator",
        ],
    },
    Component {
        field: "ovs",
        objects: &[
            "DaemonSet/ovs-cni-amd64",
            "ClusterRole/ovs-cni-marker-cr",
            "ClusterRoleBinding/ovs-cni-marker-crb",
            "ServiceAccount/ovs-cni-marker",
        ],
    },
    Component {
        field: "macvtap",
        objects: &[
            "ServiceAccount/macvtap-cni",
            "ConfigMap/macvtap-deviceplugin-config",
            "DaemonSet/macvtap-cni",
        ],
    },
    Component {
        field: "kubeSecondaryDNS",
        objects: &[
            "ConfigMap/secondary-dns",
            "ClusterRole/secondary",
            "ClusterRoleBinding/secondary",
            "ServiceAccount/secondary",
            "Deployment/secondary-dns",
            "NetworkPolicy/allow-ingress-to-secondary-dns",
        ],
    },
    Component {
        field: "kubevirtIpamController",
        objects: &[
            "ServiceAccount/kubevirt-ipam-controller-manager",
            "Role/kubevirt-ipam-controller-leader-election-role",
            "ClusterRole/kubevirt-ipam-controller-manager-role",
            "RoleBinding/kubevirt-ipam-controller-leader-election-rolebinding",
            "ClusterRoleBinding/kubevirt-ipam-controller-manager-rolebinding",
            "Service/kubevirt-ipam-controller-webhook-service",
            "Deployment/kubevirt-ipam-controller-manager",
            "Certificate/kubevirt-ipam-controller-serving-cert",
            "Issuer/kubevirt-ipam-controller-selfsigned-issuer",
            "MutatingWebhookConfiguration/kubevirt-ipam-controller-mutating-webhook-configuration",
            "NetworkPolicy/kubevirt-ipam-controller-allow-ingress-to-ipam-ext-webhook",
        ],
    },
];

/// The objects of any specification.
const ALWAYS: [&str; 3] = [
    "ConfigMap/cluster-networks-addons-operator-applied-cluster",
    "NetworkPolicy/cnao-allow-egress-to-cluster-api",
    "NetworkPolicy/cnao-allow-egress-to-cluster-dns",
];

impl Component {
    /// Writes the status of its workloads as if all of their pods ran.
    fn roll_out(&self, fixture: &Fixture) {
        for object in self.objects {
            match object.split_once('/') {
                Some(("DaemonSet", name)) => fixture.roll_out(&[name]),
                Some(("Deployment", name)) => fixture.roll_out_deployments(&[name]),
                _ => {}
            }
        }
    }
}

/// Starts with the images of upstream and cert-manager's kinds.
fn upstream() -> Fixture {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.start_images(&IMAGES);
    fixture
}

fn roll_out_everything(fixture: &Fixture) {
    fixture.roll_out(&DAEMON_SETS);
    fixture.roll_out_deployments(&DEPLOYMENTS);
}

/// Waits until the configuration resource owns exactly these objects.
fn wait_for_objects(fixture: &Fixture, expected: &[&str]) -> Vec<Value> {
    let mut expected: Vec<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    expected.sort();
    cluster::wait::until("the objects", DEADLINE, || {
        let all = owned(fixture);
        let found: Vec<_> = all.keys().cloned().collect();
        if found == expected {
            Ok(all.into_values().collect())
        } else {
            Err(format!(
                "{found:#?} instead of {expected:#?}\n{:#?}",
                fixture.events()
            ))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn assert_labels(object: &Value) {
    let name = crate::installation::key(object);
    let pool = object["metadata"]["labels"]["control-plane"] == "mac-controller-manager";
    let relationship = [
        ("app.kubernetes.io/component", "network"),
        ("app.kubernetes.io/managed-by", "cnao-operator"),
        ("prometheus.cnao.io", if pool { "false" } else { "true" }),
    ];
    assert_eq!(object["metadata"]["labels"][VERSION_LABEL], VERSION, "{name}");
    for (key, value) in relationship {
        assert_eq!(object["metadata"]["labels"][key], value, "{key} of {name}");
        if is_workload(object) {
            let template = &object["spec"]["template"]["metadata"]["labels"];
            assert_eq!(template[key], value, "{key} of the pods of {name}");
        }
    }
}

/// The number of events with this reason.
fn emitted(fixture: &Fixture, reason: &str) -> i64 {
    let uid = fixture.configuration()["metadata"]["uid"].clone();
    let list = fixture
        .kubectl()
        .json(["get", "events", "-n", "default"])
        .expect("events");
    let items = list["items"].as_array().expect("items").iter();
    items
        .filter(|event| event["involvedObject"]["uid"] == uid && event["reason"] == reason)
        .map(|event| event["count"].as_i64().unwrap_or(1))
        .sum()
}

// operator#8
#[test]
fn component_alone_has_all_of_its_objects() {
    let fixture = upstream();
    for component in &COMPONENTS {
        let field = component.field;
        // Dynamic networks need multus.
        let needed = (field == "multusDynamicNetworks").then_some(&COMPONENTS[0]);
        let mut spec = json!({ field: {} });
        if let Some(needed) = needed {
            spec[needed.field] = json!({});
        }
        fixture.configure(&spec);
        let configuration = fixture.wait_until_progressing();
        assert!(
            message(&configuration, "Progressing").contains("\"networking/"),
            "{field}"
        );
        let all: Vec<_> = needed
            .into_iter()
            .chain([component])
            .flat_map(|it| it.objects)
            .copied()
            .collect();
        let objects = wait_for_objects(&fixture, &[&all[..], &ALWAYS].concat());
        objects.iter().for_each(assert_labels);
        for part in needed.into_iter().chain([component]) {
            part.roll_out(&fixture);
        }
        fixture.wait_until_available();
    }
    // Definitions are kept forever, and have no owner.
    for name in [
        "network-attachment-definitions.k8s.cni.cncf.io",
        "ipamclaims.k8s.cni.cncf.io",
    ] {
        let definition = fixture.object("crd", name).expect("the definition");
        assert_eq!(definition["metadata"]["labels"][VERSION_LABEL], VERSION, "{name}");
        assert_eq!(definition["metadata"].get("ownerReferences"), None, "{name}");
    }
}

// operator#10
#[test]
fn components_are_added_one_by_one() {
    let fixture = upstream();
    let mut spec = json!({});
    let (mut modified, mut progressing) = (0, 0);
    for component in &COMPONENTS {
        spec[component.field] = json!({});
        fixture.configure(&spec);
        fixture.wait_until_progressing();
        // Each step has an event, even if the same event was emitted before.
        cluster::wait::until(component.field, DEADLINE, || {
            let now = (emitted(&fixture, "Modified"), emitted(&fixture, "Progressing"));
            if now.0 > modified && now.1 > progressing {
                (modified, progressing) = now;
                Ok(())
            } else {
                Err(format!("{now:?}: {:#?}", fixture.events()))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
        component.roll_out(&fixture);
        fixture.wait_until_available();
    }
    fixture.wait_for_event(AVAILABLE);
}

// operator#12
#[test]
fn same_specification_again_changes_nothing() {
    let fixture = upstream();
    fixture.configure(&everything());
    roll_out_everything(&fixture);
    let before = fixture.wait_until_available();
    let policy = ["networkpolicy", "cnao-allow-egress-to-cluster-dns"];
    fixture.delete_and_await_repair(policy[0], policy[1]);
    let mark = fixture.mark();
    // The object is rewritten and not only compared by kubectl; and once with an equivalent change.
    let mut same = before.clone();
    same["metadata"] = json!({ "name": "cluster" });
    crate::fixture::run_with_input(fixture.kubectl(), &["replace", "-f", "-"], &same.to_string())
        .expect("replaced");
    fixture
        .kubectl()
        .run([
            "annotate",
            "networkaddonsconfig",
            "cluster",
            "example.com/again=1",
        ])
        .expect("annotated");
    fixture.delete_and_await_repair(policy[0], policy[1]);
    let after = fixture.wait_until_available();
    assert_eq!(after["status"], before["status"]);
    let writes: Vec<_> = fixture
        .requests_since(mark)
        .into_iter()
        .filter(|request| !["get", "list"].contains(&request.verb.as_str()))
        .map(|request| format!("{} {}", request.verb, request.uri))
        .collect();
    assert_eq!(
        writes,
        ["create /apis/networking.k8s.io/v1/namespaces/networking/networkpolicies?"],
        "no write of the status, and no other"
    );
}

// operator#13, operator#14
#[test]
fn deletion_of_configuration_deletes_everything() {
    let mut fixture = upstream();
    fixture.configure(&everything());
    roll_out_everything(&fixture);
    fixture.wait_until_available();
    let before = owned(&fixture);
    assert!(
        before.contains_key(ALWAYS[0]) && before.len() > 40,
        "{}",
        before.len()
    );
    let uid = fixture.configuration()["metadata"]["uid"].clone();
    let _collector = fixture.collect_garbage();
    fixture
        .kubectl()
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");
    cluster::wait::until("the end of all objects", DEADLINE, || {
        let left: Vec<_> = owned_by(&fixture, &uid).into_keys().collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:#?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    for (kind, name) in [
        ("crd", "network-attachment-definitions.k8s.cni.cncf.io"),
        ("crd", "ipamclaims.k8s.cni.cncf.io"),
        ("namespace", NAMESPACE),
    ] {
        let object = fixture
            .object(kind, name)
            .unwrap_or_else(|| panic!("{kind} {name} is gone"));
        assert_eq!(object["metadata"].get("deletionTimestamp"), None, "{name}");
    }

    fixture.configure(&everything());
    roll_out_everything(&fixture);
    fixture.wait_until_available();
    fixture.stop();
}

// operator#17
#[test]
fn annotation_on_pods_of_macvtap_is_removed() {
    let fixture = upstream();
    fixture.configure(&json!({ "macvtap": {} }));
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
    let patch =
        json!({ "spec": { "template": { "metadata": { "annotations": { "mine": "1" } } } } }).to_string();
    fixture
        .kubectl()
        .run(["patch", "daemonset", "macvtap-cni", "-n", NAMESPACE, "-p", &patch])
        .expect("patched");
    fixture.wait_for_operand("daemonset", "macvtap-cni", |object| {
        object
            .pointer("/spec/template/metadata/annotations/mine")
            .is_none()
            .then_some(())
    });
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
}

// operator#19, the operator's part: here the test writes into the status that the pods wait for the ConfigMap, as the
// controller of DaemonSets would
#[test]
fn macvtap_waits_for_configured_config_map() {
    let fixture = upstream();
    fixture.configure(&json!({ "macvtap": {} }));
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
    fixture.configure(&json!({ "macvtap": { "devicePluginConfig": "another-config" } }));
    let source = fixture.wait_for_operand("daemonset", "macvtap-cni", |object| {
        let source = &object["spec"]["template"]["spec"]["containers"][0]["envFrom"];
        (source[0]["configMapRef"]["name"] == "another-config").then(|| source.clone())
    });
    // The reference is not optional: the pods wait for the ConfigMap, and the operator does not create it.
    assert_eq!(source, json!([{ "configMapRef": { "name": "another-config" } }]));
    assert!(fixture.operand("configmap", "another-config").is_none());
    assert!(
        fixture
            .operand("configmap", "macvtap-deviceplugin-config")
            .is_some()
    );
    fixture.wait_until_progressing();
    // The report of the DaemonSet controller about a waiting pod.
    fixture.report_waiting("macvtap-cni");
    let expected = "DaemonSet \"networking/macvtap-cni\" is not available (awaiting 1 nodes)";
    // A changed message of the same condition is not written at once.
    cluster::wait::until("the report of the waiting pod", DEADLINE, || {
        let configuration = fixture.wait_until_progressing();
        let message = message(&configuration, "Progressing").clone();
        if message == expected { Ok(()) } else { Err(message) }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "another-config", "namespace": NAMESPACE },
        "data": { "DP_MACVTAP_CONF": "[]" },
    });
    fixture
        .kubectl()
        .apply(&config.to_string())
        .expect("a configuration");
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
}

// operator#7, operator#11
#[test]
fn monitoring_is_deployed_once_its_kinds_are_served() {
    let mut fixture = Fixture::with(MONITORING);
    fixture.configure(&json!({}));
    fixture.start_images(&IMAGES);
    let configuration = fixture.wait_until_available();
    assert_eq!(
        conditions(&configuration),
        ["Available True", "Degraded False", "Progressing False"]
    );
    let exist = |names: &[[&str; 2]]| {
        for [kind, name] in names {
            fixture.wait_for_operand(kind, name, |object| {
                assert_labels(object);
                Some(())
            });
        }
    };
    let policies = [
        ["networkpolicy", "cnao-allow-egress-to-cluster-api"],
        ["networkpolicy", "cnao-allow-egress-to-cluster-dns"],
    ];
    let monitoring = [
        ["role", "cluster-network-addons-operator-monitoring"],
        ["rolebinding", "cluster-network-addons-operator-monitoring"],
        ["service", "cluster-network-addons-operator-prometheus-metrics"],
        [
            "servicemonitor",
            "service-monitor-cluster-network-addons-operator",
        ],
        [
            "prometheusrule",
            "prometheus-rules-cluster-network-addons-operator",
        ],
    ];
    exist(&policies);
    exist(&monitoring);
    fixture.configure(&json!({ "macvtap": {} }));
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
    exist(&monitoring);
}

//! From an empty cluster to a running one, through changes and restarts.

use serde_json::{Value, json};

use crate::fixture::{AVAILABLE, Fixture, IMAGE, NAMESPACE, VERSION, message};

const RECORD: &str = "cluster-networks-addons-operator-applied-cluster";
const BRIDGE: [&str; 2] = ["kube-cni-linux-bridge-plugin", "bridge-marker"];

#[test]
fn empty_specification_is_available() {
    let fixture = Fixture::running();
    fixture.configure(&json!({}));
    let configuration = fixture.wait_until_available();
    for name in [
        "cnao-allow-egress-to-cluster-api",
        "cnao-allow-egress-to-cluster-dns",
    ] {
        let policy = fixture.operand("networkpolicy", name).expect("a policy");
        assert_eq!(
            policy["metadata"]["labels"]["app.kubernetes.io/managed-by"],
            "cnao-operator"
        );
        assert_eq!(
            policy["metadata"]["ownerReferences"][0]["uid"],
            configuration["metadata"]["uid"]
        );
    }
    let status = &configuration["status"];
    assert_eq!(
        [
            &status["operatorVersion"],
            &status["targetVersion"],
            &status["observedVersion"]
        ],
        [VERSION; 3]
    );
    let applied = fixture.operand("configmap", RECORD).expect("it");
    let spec: Value = serde_json::from_str(applied["data"]["applied"].as_str().expect("text")).expect("JSON");
    assert_eq!(spec["imagePullPolicy"], "IfNotPresent");
    assert_eq!(spec["placementConfiguration"]["workloads"]["affinity"], json!({}));
}

// operator#15, operator#69
#[test]
fn components_are_added_and_removed_one_by_one() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    let configuration = fixture.wait_until_progressing();
    assert!(message(&configuration, "Progressing").contains("DaemonSet \"networking/multus\""));
    assert_eq!(configuration["status"]["operatorVersion"], VERSION);
    assert_eq!(configuration["status"]["targetVersion"], VERSION);
    assert_eq!(configuration["status"].get("observedVersion"), None);
    fixture.wait_for_event("Normal Progressing: Operator is progressing");
    fixture.wait_for_event("Normal Modified: Config spec was modified");
    fixture.roll_out(&["multus"]);
    let configuration = fixture.wait_until_available();
    assert_eq!(configuration["status"]["observedVersion"], VERSION);
    fixture.wait_for_event(AVAILABLE);

    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    let configuration = fixture.wait_until_progressing();
    for version in ["operatorVersion", "targetVersion", "observedVersion"] {
        assert_eq!(configuration["status"][version], VERSION, "{version}");
    }
    fixture.roll_out(&BRIDGE);
    let configuration = fixture.wait_until_available();
    let container = |parent: &str, name: &str| json!({ "parentKind": "DaemonSet", "parentName": parent, "name": name, "image": IMAGE });
    assert_eq!(
        configuration["status"]["containers"],
        json!([
            container("multus", "install-multus-binary"),
            container("multus", "kube-multus"),
            container("kube-cni-linux-bridge-plugin", "cni-plugins"),
            container("bridge-marker", "bridge-marker"),
        ])
    );
    let version = "networkaddonsoperator.network.kubevirt.io/version";
    for (kind, name) in [
        ("clusterrole", "multus"),
        ("clusterrolebinding", "multus"),
        ("serviceaccount", "multus"),
        ("configmap", "multus-daemon-config"),
        ("daemonset", "multus"),
        ("daemonset", "kube-cni-linux-bridge-plugin"),
        ("daemonset", "bridge-marker"),
        ("clusterrole", "bridge-marker-cr"),
        ("clusterrolebinding", "bridge-marker-crb"),
        ("serviceaccount", "bridge-marker"),
        ("crd", "network-attachment-definitions.k8s.cni.cncf.io"),
    ] {
        let object = fixture
            .operand(kind, name)
            .unwrap_or_else(|| panic!("there is no {kind} {name}"));
        assert_eq!(object["metadata"]["labels"][version], VERSION, "{kind} {name}");
        assert_eq!(
            object["metadata"]["labels"]["app.kubernetes.io/component"], "network",
            "{kind} {name}"
        );
        if kind == "daemonset" {
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            assert_eq!(
                labels["app.kubernetes.io/managed-by"], "cnao-operator",
                "{kind} {name}"
            );
        }
        let owned = object["metadata"].get("ownerReferences").is_some();
        assert_eq!(owned, kind != "crd", "{kind} {name}");
    }

    let multus = fixture.operand("daemonset", "multus").expect("multus");
    fixture.configure(&json!({ "multus": {} }));
    for (kind, name) in [
        ("daemonset", "kube-cni-linux-bridge-plugin"),
        ("daemonset", "bridge-marker"),
        ("clusterrole", "bridge-marker-cr"),
        ("clusterrolebinding", "bridge-marker-crb"),
        ("serviceaccount", "bridge-marker"),
    ] {
        fixture.wait_until_gone(kind, name);
    }
    fixture.wait_for_status(|status| status["containers"].as_array().map(Vec::len) == Some(2));
    fixture.wait_until_available();
    let after = fixture.operand("daemonset", "multus").expect("multus");
    assert_eq!(
        multus["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"],
        "others are untouched"
    );
    let warnings: Vec<_> = fixture
        .events()
        .into_iter()
        .filter(|event| event.starts_with("Warning"))
        .collect();
    assert_eq!(warnings, Vec::<String>::new());
}

// operator#16, operator#84
#[test]
fn restart_changes_nothing() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    let before = fixture.wait_until_available();
    fixture.stop();

    let mark = fixture.mark();
    fixture.start();
    // A reaction of the operator to a change shows that all earlier events are processed: it wrote only the reaction.
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
    let names = [
        "cnao-allow-egress-to-cluster-api",
        "cnao-allow-egress-to-cluster-dns",
    ];
    for name in names {
        fixture.wait_for_operand("networkpolicy", name, |object| {
            object["metadata"]["uid"].as_str().map(str::to_owned)
        });
    }
    let after = fixture.wait_until_available();
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    let writes: Vec<_> = fixture
        .requests_since(mark)
        .into_iter()
        .filter(|request| !["get", "list"].contains(&request.verb.as_str()))
        .collect();
    assert!(
        writes.len() <= 2 && writes.iter().all(|write| write.uri.contains("/networkpolicies")),
        "{writes:#?}"
    );
}

#[test]
fn new_version_relabels_everything() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    fixture.stop();
    fixture.start_version("2.0.0");
    let version = "networkaddonsoperator.network.kubevirt.io/version";
    for (kind, name) in [
        ("daemonset", "multus"),
        ("configmap", "cluster-networks-addons-operator-applied-cluster"),
        ("clusterrole", "multus"),
        ("networkpolicy", "cnao-allow-egress-to-cluster-dns"),
    ] {
        fixture.wait_for_operand(kind, name, |object| {
            (object["metadata"]["labels"][version] == "2.0.0").then_some(())
        });
    }
    fixture.roll_out(&["multus"]);
    for name in ["operatorVersion", "targetVersion"] {
        fixture.wait_for_status(|status| status[name] == "2.0.0");
    }
    let configuration = fixture.wait_until_available();
    assert_eq!(configuration["status"]["observedVersion"], "2.0.0");
}

// operator#25, operator#27
#[test]
fn labels_follow_configuration_resource_except_on_own_namespace() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_progressing();
    fixture
        .kubectl()
        .run([
            "label",
            "networkaddonsconfig",
            "cluster",
            "app.kubernetes.io/component=storage",
            "app.kubernetes.io/part-of=platform",
            "app.kubernetes.io/version=9",
            "app.kubernetes.io/managed-by=me",
        ])
        .expect("labelled");
    fixture.wait_for_operand("daemonset", "multus", |object| {
        let template = &object["spec"]["template"]["metadata"]["labels"];
        (template["app.kubernetes.io/part-of"] == "platform").then(|| {
            for labels in [&object["metadata"]["labels"], template] {
                for (label, value) in [
                    ("component", "storage"),
                    ("part-of", "platform"),
                    ("version", "9"),
                    ("managed-by", "cnao-operator"),
                ] {
                    assert_eq!(labels[format!("app.kubernetes.io/{label}")], value, "{label}");
                }
            }
        })
    });
    fixture.wait_for_operand("clusterrole", "multus", |object| {
        let labels = &object["metadata"]["labels"];
        (labels["app.kubernetes.io/component"] == "storage" && object.get("spec").is_none()).then_some(())
    });
    fixture
        .kubectl()
        .run([
            "label",
            "namespace",
            NAMESPACE,
            "app.kubernetes.io/component=network",
            "app.kubernetes.io/part-of=platform",
            "app.kubernetes.io/version=9",
            "app.kubernetes.io/managed-by=me",
            "prometheus.cnao.io=true",
            "control-plane=manager",
            "networkaddonsoperator.network.kubevirt.io/version=1",
            "mine=1",
        ])
        .expect("labelled");
    fixture.wait_for_operand("namespace", NAMESPACE, |object| {
        let labels = object["metadata"]["labels"].as_object().expect("labels");
        // The installation sets the namespace's name as a label, like the API server.
        let ours = [
            "prometheus.cnao.io",
            "control-plane",
            "networkaddonsoperator.network.kubevirt.io/version",
        ];
        let stale = labels
            .keys()
            .any(|key| ours.contains(&key.as_str()) || key.starts_with("app.kubernetes.io/"));
        (!stale && labels.contains_key("mine")).then_some(())
    });
    let owners = fixture.operand("namespace", NAMESPACE).expect("it")["metadata"]
        .get("ownerReferences")
        .cloned();
    assert_eq!(owners, None);
}

#[test]
fn configuration_can_be_deleted_and_created_again() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "imagePullPolicy": "Always" }));
    fixture.roll_out(&["multus"]);
    let first = fixture.wait_until_available();
    fixture
        .kubectl()
        .delete(["networkaddonsconfig", "cluster"])
        .expect("deleted");

    // No garbage is collected here: objects that do not grant access still exist, without an owner.
    fixture.wait_until_gone("clusterrolebinding", "multus");
    assert!(fixture.operand("daemonset", "multus").is_some());
    fixture.configure(&json!({ "multus": {}, "imagePullPolicy": "Never" }));
    let uid = fixture.configuration()["metadata"]["uid"].clone();
    assert_ne!(uid, first["metadata"]["uid"]);
    fixture.wait_for_operand("daemonset", "multus", |object| {
        let owners = object["metadata"]["ownerReferences"].as_array().expect("owners");
        let policy = &object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"];
        (owners.len() == 1 && owners[0]["uid"] == uid && policy == "Never").then_some(())
    });
    fixture.wait_for_operand("clusterrolebinding", "multus", |_| Some(()));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    assert!(
        fixture
            .object("crd", "network-attachment-definitions.k8s.cni.cncf.io")
            .is_some()
    );
}

#[test]
fn random_range_survives_restart() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "kubeMacPool": {} }));
    fixture.roll_out_deployments(&["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"]);
    fixture.wait_until_available();
    let range = |fixture: &Fixture| {
        let record = fixture.operand("configmap", RECORD).expect("the record");
        let spec: Value =
            serde_json::from_str(record["data"]["applied"].as_str().expect("text")).expect("JSON");
        spec["kubeMacPool"].clone()
    };
    let first = range(&fixture);
    let start = first["rangeStart"].as_str().expect("a start");
    assert!(
        start.len() == 17 && start.starts_with("02:") && start.ends_with(":00:00:00"),
        "{start}"
    );
    assert_eq!(first["rangeEnd"], start.replace(":00:00:00", ":ff:ff:ff"));
    fixture.stop();
    fixture.start();
    // The record is rewritten, so the operator has evaluated the range again.
    let relabelled = [
        "label",
        "networkaddonsconfig",
        "cluster",
        "app.kubernetes.io/part-of=x",
    ];
    fixture.kubectl().run(relabelled).expect("labelled");
    fixture.wait_for_operand("configmap", RECORD, |object| {
        (object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "x").then_some(())
    });
    assert_eq!(range(&fixture), first);
}

#[test]
fn definition_may_be_created_after_operator_start() {
    let mut fixture = Fixture::installed();
    let definition = "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io";
    fixture.kubectl().delete(["crd", definition]).expect("deleted");
    let mark = fixture.mark();
    fixture.start();
    // The operator has requested the kind without success.
    cluster::wait::until("the question", crate::fixture::DEADLINE, || {
        let requests = fixture.requests_since(mark);
        let asked = requests
            .iter()
            .any(|request| request.uri.contains("/networkaddonsconfigs"));
        if asked {
            Ok(())
        } else {
            Err(format!("{requests:#?}"))
        }
    })
    .expect("a question");
    fixture.define();
    fixture.configure(&json!({}));
    fixture.wait_until_available();
}

//! The Helm chart: its rendered output, and its installation, upgrade and takeover on a real API server.

use std::{collections::BTreeMap, fs, path::Path};

use cluster::{Helm, Home, Quiet, run, wait};
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Fixture, NAMESPACE};

const OPERATOR: &str = "cluster-network-addons-operator";

fn deploy(path: &str) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    deploy.join(path).display().to_string()
}

fn helm() -> Helm {
    let home = Home::from_env().expect("a home");
    Helm::ensure(&home, &mut Quiet).expect("Helm")
}

/// Renders the chart with some values, without a cluster.
fn template(values: &[&str]) -> Result<BTreeMap<String, Value>, String> {
    let cluster = ["--namespace", "cluster-network-addons", "--kube-version", "1.34"];
    let mut command = helm().command(["template", "weft", &deploy("chart")]);
    command.args(cluster).args(values);
    let yaml = run::output(&mut command).map_err(|error| error.to_string())?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&yaml).expect("YAML");
    Ok(by_name(objects))
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    objects
        .into_iter()
        .map(|object| (name(&object), object))
        .collect()
}

/// The objects of an installation file.
fn file(name: &str) -> Vec<Value> {
    let yaml = fs::read_to_string(deploy(&format!("install/{name}"))).expect("a file");
    serde_saphyr::from_multiple(&yaml).expect("YAML")
}

fn deployment(values: &[&str]) -> Value {
    let mut objects = template(values).expect("objects");
    let name = format!("Deployment {OPERATOR}");
    objects.remove(&name).expect("the Deployment")
}

fn variable(deployment: &Value, name: &str) -> Value {
    let variables = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let variables = variables.as_array().expect("variables");
    let found = variables.iter().find(|variable| variable["name"] == name);
    found.expect("the variable")["value"].clone()
}

#[test]
fn chart_installs_objects_of_manifests() {
    let policies = [file("admission-policy.yaml"), file("admission-policy-nodes.yaml")];
    let mut manifests = by_name([file("operator.yaml"), policies.concat()].concat());
    let rendered = template(&[]).expect("objects");
    // The chart leaves out upstream's rights if no image of upstream is set.
    for name in ESTABLISHED_RIGHTS {
        assert!(manifests.remove(name).is_some(), "{name}");
    }
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&rendered), names(&manifests));
    for (name, object) in manifests {
        assert_eq!(rendered[&name], object, "{name}");
    }
}

const ESTABLISHED_RIGHTS: [&str; 2] = [
    "ClusterRole cluster-network-addons-operator-established",
    "ClusterRoleBinding cluster-network-addons-operator-established",
];

#[test]
fn chart_grants_optional_rights_if_needed() {
    let manifests = by_name(file("operator.yaml"));
    for (image, wider) in [
        ("multus", true),
        ("multusDynamicNetworks", true),
        ("linuxBridgeMarker", true),
        ("ovs", true),
        ("kubeMacPool", true),
        ("linuxBridge", false),
        ("macvtap", false),
        ("kubevirtIpamController", false),
    ] {
        let rendered = template(&[&format!("--set=operandImages.{image}=r.example/it:1")]).expect("objects");
        for name in ESTABLISHED_RIGHTS {
            let expected = wider.then(|| &manifests[name]);
            assert_eq!(rendered.get(name), expected, "{image}: {name}");
        }
    }
    let node_state = "ClusterRole cluster-network-addons-nmstate-operator";
    let create = "--set=networkAddonsConfig.create=true";
    let request = "--set-json=networkAddonsConfig.spec={\"nmstate\":{}}";
    for (values, there) in [
        (&[] as &[&str], true),
        (&["--set=nodeState=false"], false),
        (&[create], false),
        (&[create, request], true),
        (&[create, request, "--set=nodeState=false"], false),
    ] {
        let rendered = template(values).expect("objects");
        let expected = there.then(|| &manifests[node_state]);
        assert_eq!(rendered.get(node_state), expected, "{values:?}");
    }
}

#[test]
fn chart_values_configure_operator() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let changed = deployment(&[
        "--set=image.repository=r.example:5000/o/weft",
        "--set=image.tag=v9",
        &format!("--set=image.digest={digest}"),
        "--set=image.pullPolicy=Always",
        "--set=imagePullSecrets[0].name=registry",
        "--set=placement.nodeSelector.infra=yes",
        "--set=placement.tolerations[0].operator=Exists",
        "--set-json=placement.affinity={\"nodeAffinity\":{}}",
        "--set=monitoring.namespace=watchers",
        "--set=monitoring.serviceAccount=prometheus",
        "--set=monitoring.runbookUrlTemplate=https://r.example/%s",
        "--set=logLevel=debug",
    ]);
    let pods = &changed["spec"]["template"]["spec"];
    let image = format!("r.example:5000/o/weft:v9@{digest}");
    assert_eq!(pods["containers"][0]["image"], image);
    assert_eq!(pods["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(pods["imagePullSecrets"], json!([{ "name": "registry" }]));
    assert_eq!(pods["nodeSelector"], json!({ "infra": "yes" }));
    assert_eq!(pods["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(pods["affinity"], json!({ "nodeAffinity": {} }));
    for (name, value) in [
        ("OPERATOR_IMAGE", image.as_str()),
        ("MONITORING_NAMESPACE", "watchers"),
        ("MONITORING_SERVICE_ACCOUNT", "prometheus"),
        ("RUNBOOK_URL_TEMPLATE", "https://r.example/%s"),
        ("CNAO_LOG_LEVEL", "-1"),
    ] {
        assert_eq!(variable(&changed, name), value, "{name}");
    }
    for (level, number) in [("info", "0"), ("warn", "1"), ("error", "2")] {
        let changed = deployment(&[&format!("--set=logLevel={level}")]);
        assert_eq!(variable(&changed, "CNAO_LOG_LEVEL"), number);
    }
}

#[test]
fn chart_values_set_image_of_each_operand() {
    for (value, name) in [
        ("multus", "MULTUS_IMAGE"),
        (
            "multusDynamicNetworks",
            "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE",
        ),
        ("linuxBridge", "LINUX_BRIDGE_IMAGE"),
        ("linuxBridgeMarker", "LINUX_BRIDGE_MARKER_IMAGE"),
        ("ovs", "OVS_CNI_IMAGE"),
        ("kubeMacPool", "KUBEMACPOOL_IMAGE"),
        ("macvtap", "MACVTAP_CNI_IMAGE"),
        ("kubeSecondaryDNS", "KUBE_SECONDARY_DNS_IMAGE"),
        ("coreDNS", "CORE_DNS_IMAGE"),
        ("kubevirtIpamController", "KUBEVIRT_IPAM_CONTROLLER_IMAGE"),
    ] {
        let changed = deployment(&[&format!("--set=operandImages.{value}=r.example/it:1")]);
        let variables = &changed["spec"]["template"]["spec"]["containers"][0]["env"];
        let set: Vec<&Value> = variables
            .as_array()
            .expect("variables")
            .iter()
            .filter(|variable| variable["value"] == "r.example/it:1")
            .map(|variable| &variable["name"])
            .collect();
        assert_eq!(set, [name]);
    }
}

#[test]
fn chart_creates_configuration_if_requested() {
    const NAME: &str = "NetworkAddonsConfig cluster";
    assert!(!template(&[]).expect("objects").contains_key(NAME));
    let create = [
        "--set=networkAddonsConfig.create=true",
        "--set=networkAddonsConfig.labels.app\\.kubernetes\\.io/part-of=platform",
        "--set-json=networkAddonsConfig.spec={\"multus\":{},\"imagePullPolicy\":\"Always\"}",
    ];
    let expected = |annotations: &Value| {
        let mut object = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster", "labels": { "app.kubernetes.io/part-of": "platform" } },
            "spec": { "multus": {}, "imagePullPolicy": "Always" },
        });
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations.clone();
        }
        object
    };
    let keep = json!({ "helm.sh/resource-policy": "keep" });
    assert_eq!(template(&create).expect("objects")[NAME], expected(&keep));
    let values = [&create[..], &["--set=networkAddonsConfig.keep=false"]].concat();
    assert_eq!(template(&values).expect("objects")[NAME], expected(&Value::Null));
}

#[test]
fn chart_value_selects_admission_policy() {
    let rendered = |values: &[&str], is_of_nodes: bool| -> BTreeMap<String, Value> {
        let mut objects = template(values).expect("objects");
        objects.retain(|name, _| {
            name.starts_with("ValidatingAdmissionPolicy")
                && name.ends_with(" network-addons-config") != is_of_nodes
        });
        objects
    };
    let policies = |values: &[&str]| rendered(values, false);
    assert_eq!(policies(&[]), by_name(file("admission-policy.yaml")));
    assert_eq!(
        policies(&["--set=admissionPolicy=Deny"]),
        by_name(file("admission-policy-deny.yaml"))
    );
    assert!(policies(&["--set=admissionPolicy=None"]).is_empty());
    assert!(policies(&["--kube-version", "1.29"]).is_empty());
    let nodes = |values: &[&str]| rendered(values, true);
    assert_eq!(nodes(&[]), by_name(file("admission-policy-nodes.yaml")));
    assert_eq!(nodes(&["--set=admissionPolicy=None"]).len(), 4);
    assert!(nodes(&["--set=nodesPolicy=false"]).is_empty());
    assert!(nodes(&["--kube-version", "1.29"]).is_empty());
}

#[test]
fn chart_refuses_invalid_value_by_its_name() {
    for (value, complaint) in [
        ("--set=images.repository=x", "images"),
        ("--set=image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("--set=image.repository=", "/image/repository"),
        ("--set=image.repository=r.example/weft:v1", "/image/repository"),
        ("--set=image.tag=", "/image"),
        ("--set=image.digest=0123", "/image/digest"),
        ("--set=imagePullSecrets[0]=registry", "/imagePullSecrets/0"),
        ("--set=operandImages.multi=x", "multi"),
        ("--set=placement.nodeSelector=node01", "/placement/nodeSelector"),
        (
            "--set=monitoring.runbookUrlTemplate=https://r.example",
            "/monitoring/runbookUrlTemplate",
        ),
        ("--set=logLevel=loud", "/logLevel"),
        ("--set=admissionPolicy=deny", "/admissionPolicy"),
        (
            "--set=networkAddonsConfig.create=perhaps",
            "/networkAddonsConfig/create",
        ),
        ("--set-json=networkAddonsConfig.spec={\"multuss\":{}}", "multuss"),
        (
            "--set=networkAddonsConfig.spec.multus=true",
            "/networkAddonsConfig/spec/multus",
        ),
    ] {
        let error = template(&[value]).expect_err(value);
        assert!(error.contains(complaint), "{value}: {error}");
    }
}

#[test]
fn helm_lint_passes() {
    let mut command = helm().command(["lint", "--strict", &deploy("chart")]);
    run::output(&mut command).expect("a clean chart");
}

#[test]
fn chart_installs_all_at_once_and_uninstall_keeps_configuration() {
    let mut fixture = Fixture::bare();
    let kubectl = fixture.kubectl().clone();
    let namespace = ["--namespace", NAMESPACE];
    let chart = deploy("chart");
    let spec = "--set-json=networkAddonsConfig.spec={\"multus\":{}}";
    let values = ["--set=networkAddonsConfig.create=true", spec];
    let install = ["install", "weft", &chart];
    let installed = helm()
        .run(&kubectl, [&install[..], &namespace, &values].concat())
        .expect("installed");
    assert!(
        installed.contains("kubectl wait networkaddonsconfig cluster"),
        "{installed}"
    );
    fixture.start();
    fixture.wait_until_progressing();
    assert!(fixture.operand("daemonset", "multus").is_some());

    // An upgrade changes the requested components.
    let spec = "--set-json=networkAddonsConfig.spec={\"linuxBridge\":{}}";
    let values = ["--set=networkAddonsConfig.create=true", spec];
    let upgrade = ["upgrade", "weft", &chart];
    helm()
        .run(&kubectl, [&upgrade[..], &namespace, &values].concat())
        .expect("upgraded");
    let marker = || fixture.operand("daemonset", "bridge-marker").ok_or("no marker");
    wait::until("the marker", DEADLINE, marker).expect("a marker");

    // Without the chart, the operator is deleted, and the network stays.
    helm()
        .run(&kubectl, [&["uninstall", "weft"][..], &namespace].concat())
        .expect("uninstalled");
    assert!(fixture.operand("deployment", OPERATOR).is_none());
    assert_eq!(fixture.configuration()["spec"], json!({ "linuxBridge": {} }));
    assert!(fixture.operand("daemonset", "bridge-marker").is_some());
}

/// The two migrations of docs/migration.md, with a Deployment in the form of upstream's release: applied by the client,
/// with a variable of its own and the entry point of its image.
#[test]
fn manifests_replace_those_of_upstream_and_back() {
    let fixture = Fixture::installed();
    let kubectl = fixture.kubectl().clone();
    let ours = fixture.operand("deployment", OPERATOR).expect("it")["spec"].clone();
    let containers = "/spec/template/spec/containers/0";
    let mut upstream = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": OPERATOR, "namespace": NAMESPACE }, "spec": ours,
    });
    let container = upstream
        .pointer_mut(containers)
        .and_then(Value::as_object_mut)
        .expect("it");
    container.shift_remove("command");
    container.insert("image".into(), json!("r.example/upstream:1"));
    container.insert(
        "env".into(),
        json!([{ "name": "OVS_MARKER_IMAGE", "value": "r.example/marker:1" }]),
    );
    kubectl
        .delete(["deployment", OPERATOR, "--namespace", NAMESPACE])
        .expect("gone");
    kubectl.apply(&upstream.to_string()).expect("upstream");

    let server_side = |object: &Value| {
        let mut apply = kubectl.command(["apply", "--server-side", "--force-conflicts", "--filename", "-"]);
        run::output_with_input(&mut apply, object.to_string().as_bytes()).expect("applied");
        fixture.operand("deployment", OPERATOR).expect("it")
    };
    let mut native = upstream.clone();
    native["spec"] = ours.clone();
    assert_eq!(server_side(&native)["spec"], ours);
    let back = server_side(&upstream);
    let container = back.pointer(containers).expect("it");
    assert_eq!(container.get("command"), None);
    assert_eq!(
        container["env"],
        json!([{ "name": "OVS_MARKER_IMAGE", "value": "r.example/marker:1" }])
    );
}

#[test]
fn chart_adopts_objects_applied_from_files() {
    let fixture = Fixture::installed();
    let kubectl = fixture.kubectl().clone();
    fixture.configure(&json!({ "multus": {} }));
    let uid = |object: Option<Value>| object.expect("the object")["metadata"]["uid"].clone();
    let configuration = uid(Some(fixture.configuration()));
    let account = uid(fixture.operand("serviceaccount", OPERATOR));
    let chart = deploy("chart");
    let install = ["install", "weft", &chart, "--namespace", NAMESPACE];
    let refused = helm().run(&kubectl, install).expect_err("a refusal").to_string();
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    helm()
        .run(&kubectl, [&install[..], &["--take-ownership"]].concat())
        .expect("taken over");
    // The migration was in place: no object was deleted.
    assert_eq!(uid(Some(fixture.configuration())), configuration);
    assert_eq!(uid(fixture.operand("serviceaccount", OPERATOR)), account);
    helm()
        .run(&kubectl, ["uninstall", "weft", "--namespace", NAMESPACE])
        .expect("uninstalled");
    assert_eq!(uid(Some(fixture.configuration())), configuration);
}

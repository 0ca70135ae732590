//! A hosted cluster: its control plane runs in another cluster.
//!
//! One server is both clusters. Each has its own account: that of the management cluster has the role that `HyperShift`
//! gives to the operator.

use cluster_network::settings::{Hosted, Settings};
use kube_kit::connection::Answer;
use serde_json::{Value, json};

use crate::commands::asked;
use crate::ovn::configure;
use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER_OPERATOR, OPERATOR, Stage, condition};

/// Account of the operator in the management cluster.
const HOST: &str = "system:serviceaccount:clusters-a:cluster-network-operator";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/clusters-a/deployments";
const HOSTED: &str = "/apis/hypershift.openshift.io/v1beta1/namespaces/clusters-a/hostedcontrolplanes/a";
const WEBHOOK: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/\
                       network-node-identity.openshift.io";

fn path(kind: &str, name: &str) -> String {
    format!("/api/v1/namespaces/clusters-a/{kind}/{name}")
}

fn workload(name: &str) -> String {
    format!("{DEPLOYMENTS}/{name}")
}

fn settings() -> Settings {
    let image = |name: &str| Some(format!("registry.example/{name}:v1"));
    Settings {
        hosted: Some(Hosted {
            name: "a".to_owned(),
            namespace: "clusters-a".to_owned(),
            api_server: "https://kube-apiserver:6443".to_owned(),
            ovn_image: image("ovn-control-plane"),
            token_minter_image: image("token-minter"),
            socks_proxy_image: image("socks"),
            cli_image: image("cli"),
            authorities: ("root-ca".to_owned(), "ca.crt".to_owned()),
            ..Hosted::default()
        }),
        ..crate::stage::settings()
    }
}

/// Defines the kinds, and gives the account its rights in the namespace of the hosted control plane.
fn prepare(stage: &Stage) {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    stage.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "hostedcontrolplanes.hypershift.openshift.io" },
        "spec": {
            "group": "hypershift.openshift.io", "scope": "Namespaced",
            "names": { "kind": "HostedControlPlane", "plural": "hostedcontrolplanes" },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    }));
    for (kind, plural) in [("Infrastructure", "infrastructures"), ("Proxy", "proxies")] {
        stage.apply(&definition(kind, plural));
        stage.wait_until_served(&format!("/apis/config.openshift.io/v1/{plural}"));
    }
    stage.namespace("clusters-a", &[]);
    stage.wait_until_served(HOSTED.rsplit_once('/').expect("a path").0);
    let all = |groups: &[&str], resources: &[&str]| json!({ "apiGroups": groups, "resources": resources, "verbs": ["*"] });
    stage.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "cluster-network-operator", "namespace": "clusters-a" },
        "rules": [
            all(&[""], &["events", "configmaps", "pods", "secrets", "services"]),
            all(&["apps"], &["statefulsets", "deployments"]),
            all(&["monitoring.coreos.com", "monitoring.rhobs"], &["servicemonitors", "prometheusrules"]),
            {
                "apiGroups": ["hypershift.openshift.io"], "resources": ["hostedcontrolplanes"],
                "verbs": ["get", "list", "watch"],
            },
            all(&["hypershift.openshift.io"], &["hostedcontrolplanes/status"]),
        ],
    }));
    stage.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "cluster-network-operator", "namespace": "clusters-a" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "cluster-network-operator",
        },
        "subjects": [{ "kind": "ServiceAccount", "name": "cluster-network-operator", "namespace": "clusters-a" }],
    }));
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
    }));
    stage.report(
        "/apis/config.openshift.io/v1/infrastructures/cluster",
        &json!({
            "controlPlaneTopology": "External", "infrastructureName": "a-x7k2p",
            "platformStatus": { "type": "GCP", "gcp": { "region": "us-central1" } },
        }),
    );
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": { "name": "cluster" },
    }));
    stage.report(
        "/apis/config.openshift.io/v1/proxies/cluster",
        &json!({ "httpsProxy": "http://proxy.example.com:3128" }),
    );
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "root-ca", "namespace": "clusters-a" },
        "data": { "ca.crt": include_str!("ovn_ca.pem") },
    }));
}

fn host(stage: &Stage, policy: &str) {
    stage.apply(&json!({
        "apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedControlPlane",
        "metadata": { "name": "a", "namespace": "clusters-a" },
        "spec": { "clusterID": "id", "controllerAvailabilityPolicy": policy },
    }));
}

/// A condition that the operator mirrors, as `Status Reason: message`.
#[track_caller]
fn mirrored(stage: &Stage, kind: &str, expected: &str) {
    let kind = format!("network.operator.openshift.io/{kind}");
    stage.wait_for(&format!("{kind} {expected}"), HOSTED, |object| {
        (condition(object?, &kind)? == expected).then_some(())
    });
}

// cluster-network#163
#[test]
fn control_plane_is_in_the_management_cluster_and_repaired_there() {
    let stage = Stage::start();
    prepare(&stage);
    host(&stage, "SingleReplica");
    // Other operators have conditions and objects too.
    stage.report(
        HOSTED,
        &json!({ "conditions": [{ "type": "Available", "status": "True" }] }),
    );
    let foreign = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "foreign", "namespace": "clusters-a",
            "labels": { "networkoperator.openshift.io/part": "default-network" },
            "annotations": { "network.operator.openshift.io/cluster-name": "management" },
        },
    });
    stage.apply(&foreign);
    let start = stage.mark();
    let _operator = stage.operator_of_hosted(settings(), HOST);
    configure(&stage);
    let control_plane = stage.there(&workload("ovnkube-control-plane"));
    let uid = stage.there(HOSTED)["metadata"]["uid"].clone();
    let owner = &control_plane["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("HostedControlPlane"), &uid)
    );
    assert_eq!(control_plane["spec"]["replicas"], 1);
    stage.there(&workload("network-node-identity"));
    // cluster-network#192
    let cloud = stage.there(&workload("cloud-network-config-controller"));
    assert!(
        cloud.to_string().contains("-platform-region=us-central1"),
        "{cloud:#}"
    );
    stage.there("/apis/rbac.authorization.k8s.io/v1/clusterroles/cloud-network-config-controller");
    let file = stage.there(&path("configmaps", "ovnkube-config"))["data"]["ovnkube.conf"].clone();
    let file = file.as_str().expect("a file").to_owned();
    assert!(
        file.contains("apiserver=\"https://kube-apiserver:6443\"\n"),
        "{file}"
    );
    // cluster-network#168
    let node = stage.there("/apis/apps/v1/namespaces/openshift-ovn-kubernetes/daemonsets/ovnkube-node");
    assert!(
        node.to_string().contains("http://proxy.example.com:3128"),
        "{node:#}"
    );
    mirrored(&stage, "Degraded", "False AsExpected: ");
    let line = "Deployment \"management/clusters-a/ovnkube-control-plane\" update is being processed";
    stage.wait_for(line, HOSTED, |object| {
        let progressing = condition(object?, "network.operator.openshift.io/Progressing")?;
        progressing.contains(line).then_some(())
    });
    stage.at_rest();
    for absent in [
        "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/deployments/ovnkube-control-plane",
        "/apis/apps/v1/namespaces/openshift-network-node-identity/daemonsets/network-node-identity",
        // The API server would call a webhook that does not answer yet.
        WEBHOOK,
    ] {
        assert_eq!(stage.get(absent), None, "{absent}");
    }
    stage.roll_out_all();
    mirrored(&stage, "Available", "True AsExpected: ");
    let url = stage.there(WEBHOOK)["webhooks"][0]["clientConfig"]["url"].clone();
    assert_eq!(url, "https://network-node-identity.clusters-a.svc:9743/node");
    assert_eq!(
        condition(&stage.there(HOSTED), "Available").as_deref(),
        Some("True : ")
    );
    stage.condition("Available", "True : ");
    let related = &stage.there(CLUSTER_OPERATOR)["metadata"]["annotations"]["network.operator.openshift.io/relatedClusterObjects"];
    let related = related.as_str().expect("an annotation").to_owned();
    assert!(
        related.contains("management/apps/deployments/clusters-a/network-node-identity"),
        "{related}"
    );

    // Edits are repaired, requests for resources stay, and the HostedControlPlane decides the rest.
    stage.change(
        &workload("ovnkube-control-plane"),
        &json!({ "spec": { "replicas": 5 } }),
    );
    stage.remove(&path("services", "ovn-kubernetes-control-plane"));
    stage.wait_for(
        "repaired control plane",
        &workload("ovnkube-control-plane"),
        |it| (it?["spec"]["replicas"] == 1).then_some(()),
    );
    stage.there(&path("services", "ovn-kubernetes-control-plane"));
    host(&stage, "HighlyAvailable");
    stage.wait_for("three replicas", &workload("network-node-identity"), |it| {
        (it?["spec"]["replicas"] == 3).then_some(())
    });
    let mark = stage.at_rest();
    stage.at_rest();
    let requests = stage.requests_of(HOST, mark);
    assert!(requests.is_empty(), "{requests:#?}");
    stage.there(&path("configmaps", "foreign"));
    // Only the account of the management cluster works there.
    let strays = stage.requests_of(ACCOUNT, start);
    let strays: Vec<_> = strays.iter().filter(|it| it.uri.contains("clusters-a")).collect();
    assert!(strays.is_empty(), "{strays:#?}");
}

// cluster-network#164
#[test]
fn hosted_control_plane_is_awaited_and_leftovers_go() {
    let stage = Stage::start();
    prepare(&stage);
    // Upstream's operator left two objects; the second one has its name alone.
    let former = |kind: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": { "name": "ovn-cert", "namespace": "clusters-a", "annotations": annotations },
        })
    };
    stage.apply(&former(
        "Secret",
        json!({ "network.operator.openshift.io/cluster-name": "management" }),
    ));
    let mut own = former("ConfigMap", json!({}));
    own["metadata"]["name"] = json!("ovn-ca");
    stage.apply(&own);
    let _operator = stage.operator_of_hosted(settings(), HOST);
    configure(&stage);
    stage.condition(
        "Degraded",
        "True BootstrapError: Internal error while reconciling platform networking resources: failed to retrieve \
         HostedControlPlane clusters-a/a: not found in the management cluster",
    );
    assert_eq!(stage.get("/api/v1/namespaces/openshift-ovn-kubernetes"), None);
    host(&stage, "SingleReplica");
    stage.there(&workload("network-node-identity"));
    stage.condition("Degraded", "False : ");
    stage.gone(&path("secrets", "ovn-cert"));
    stage.at_rest();
    stage.there(&path("configmaps", "ovn-ca"));
    // Without identities of nodes, their components go, and the control plane stays.
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "network-node-identity", "namespace": "openshift-network-operator" },
        "data": { "enabled": "false" },
    }));
    stage.gone(&workload("network-node-identity"));
    stage.gone(&path("configmaps", "ovnkube-identity-cm"));
    stage.there(&workload("ovnkube-control-plane"));
    // A deleted configuration is reported in both clusters.
    stage.remove("/apis/config.openshift.io/v1/networks/cluster");
    stage.at_rest();
    stage.remove(OPERATOR);
    stage.wait_for("a report of the missing configuration", HOSTED, |object| {
        let reported = condition(object?, "NetworkOperatorAvailable")?;
        reported.starts_with("Unknown NoNetworkOperConfig").then_some(())
    });
}

/// The Deployment of the operator, with the variables that `HyperShift` sets.
fn deployment() -> Value {
    let variables = [
        ("HYPERSHIFT", "true"),
        ("HOSTED_CLUSTER_NAME", "a"),
        ("NETWORK_CHECK_SOURCE_IMAGE", "registry.example/weft:v1"),
        ("KUBE_RBAC_PROXY_IMAGE", "registry.example/kube-rbac-proxy:v1"),
        ("OVN_IMAGE", "registry.example/ovn:v1"),
        ("OVN_CONTROL_PLANE_IMAGE", "registry.example/ovn-control-plane:v1"),
        ("TOKEN_MINTER_IMAGE", "registry.example/token-minter:v1"),
        ("SOCKS5_PROXY_IMAGE", "registry.example/socks:v1"),
        ("CLI_CONTROL_PLANE_IMAGE", "registry.example/cli:v1"),
        ("CA_CONFIG_MAP", "root-ca"),
        ("CA_CONFIG_MAP_KEY", "ca.crt"),
        ("RELEASE_VERSION", "1.2.3"),
        ("APISERVER_OVERRIDE_HOST", "192.0.2.1"),
        ("APISERVER_OVERRIDE_PORT", "6443"),
    ];
    let mut variables: Vec<Value> = variables
        .iter()
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    let namespace = json!({ "fieldRef": { "fieldPath": "metadata.namespace" } });
    variables.push(json!({ "name": "HOSTED_CLUSTER_NAMESPACE", "valueFrom": namespace }));
    let labels = json!({ "name": "cluster-network-operator" });
    let container = json!({ "name": "cluster-network-operator", "image": "a", "env": variables });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "cluster-network-operator", "namespace": "clusters-a" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    })
}

// cluster-network#182
#[test]
fn plan_of_a_hosted_cluster_covers_the_management_cluster() {
    const NETWORK: &str = "{apiVersion: operator.openshift.io/v1, kind: Network, spec: {defaultNetwork: {type: \
                           OVNKubernetes}, clusterNetwork: [{cidr: 10.244.0.0/16, hostPrefix: 24}], serviceNetwork: \
                           [10.96.0.0/12]}}";
    const CONTROL_PLANE: &str = "Deployment management/clusters-a/ovnkube-control-plane\n";
    let stage = Stage::start();
    prepare(&stage);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let plan = |namespace: &str| -> Answer {
        let text = std::fs::read_to_string(stage.kubeconfig()).expect("a kubeconfig");
        let mut kubeconfig: Value = serde_saphyr::from_str(&text).expect("YAML");
        kubeconfig["contexts"][0]["context"]["namespace"] = json!(namespace);
        std::fs::write(file.path(), kubeconfig.to_string()).expect("written");
        let management = format!("management={}", file.path().display());
        asked(&stage, NETWORK, &["--extra-clusters", &management])
    };
    let wrong = plan("default");
    assert_eq!(wrong.code, 2);
    assert!(
        wrong
            .remarks
            .contains("no Deployment default/cluster-network-operator"),
        "{}",
        wrong.remarks
    );
    stage.apply(&deployment());
    let rejected = plan("clusters-a");
    assert!(
        rejected
            .text
            .contains("failed to retrieve HostedControlPlane clusters-a/a"),
        "{}",
        rejected.text
    );
    host(&stage, "SingleReplica");
    configure(&stage);
    let text = plan("clusters-a").text;
    for line in [
        format!("+ {CONTROL_PLANE}"),
        "+ DaemonSet openshift-ovn-kubernetes/ovnkube-node\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{text}");
    }
    assert!(!text.contains("! default-network"), "{text}");

    let operator = stage.operator_of_hosted(settings(), HOST);
    stage.there(&workload("ovnkube-control-plane"));
    stage.at_rest();
    drop(operator);
    let text = plan("clusters-a").text;
    assert!(!text.contains(CONTROL_PLANE), "{text}");
    host(&stage, "HighlyAvailable");
    let text = plan("clusters-a").text;
    assert!(text.contains(&format!("~ {CONTROL_PLANE}")), "{text}");
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "network-node-identity", "namespace": "openshift-network-operator" },
        "data": { "enabled": "false" },
    }));
    let text = plan("clusters-a").text;
    assert!(
        text.contains("- Deployment management/clusters-a/network-node-identity\n"),
        "{text}"
    );
}

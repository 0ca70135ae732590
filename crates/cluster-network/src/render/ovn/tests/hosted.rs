//! A control plane in the management cluster (§18.3).

use super::*;
use crate::hosted::{ControlPlane, Management};

const HOSTED: [(&str, &str); 9] = [
    ("HYPERSHIFT", "true"),
    ("HOSTED_CLUSTER_NAME", "a"),
    ("HOSTED_CLUSTER_NAMESPACE", "clusters-a"),
    ("OVN_CONTROL_PLANE_IMAGE", "registry.example/host-ovn:v1"),
    ("TOKEN_MINTER_IMAGE", "registry.example/minter:v1"),
    ("TOKEN_AUDIENCE", "https://issuer.example.com"),
    ("SOCKS5_PROXY_IMAGE", "registry.example/socks:v1"),
    ("CLI_IMAGE", "registry.example/cli:v1"),
    ("OPENSHIFT_RELEASE_IMAGE", "registry.example/release:v1"),
];

fn settings_with(variables: &[(&str, &str)]) -> Settings {
    let mut all = HOSTED.to_vec();
    all.extend(variables);
    let mut settings = settings(&all);
    let hosted = settings.hosted.as_mut().expect("settings");
    hosted.api_server = "https://kube-apiserver:6443".to_owned();
    settings
}

fn hosted_facts(control_plane: ControlPlane) -> Facts {
    let mut facts = facts();
    facts.control_plane_nodes = 0;
    facts.management = Some(Management {
        control_plane,
        status_label: "a-x7k2p".to_owned(),
        monitoring: true,
        ..Management::default()
    });
    facts
}

fn single() -> ControlPlane {
    ControlPlane {
        cluster_id: "id".to_owned(),
        replicas: 1,
        ..ControlPlane::default()
    }
}

fn hosted(facts: &Facts, settings: &Settings) -> Rendered {
    let rendered = rendered_by(&b(), facts, settings);
    assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
    rendered
}

fn in_management(rendered: &Rendered) -> Vec<&Value> {
    let key = "network.operator.openshift.io/cluster-name";
    let is_there = |object: &&Value| object["metadata"]["annotations"][key] == "management";
    rendered.objects.iter().filter(is_there).collect()
}

fn names(objects: &[&Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &&Value| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
    objects.iter().map(name).collect()
}

// cluster-network#161
#[test]
fn control_plane_moves_to_the_management_cluster() {
    let rendered = hosted(&hosted_facts(single()), &settings_with(&[]));
    let moved = in_management(&rendered);
    assert_eq!(
        names(&moved),
        [
            "ConfigMap ovnkube-config",
            "Service ovn-kubernetes-control-plane",
            "ServiceMonitor monitor-ovn-control-plane-metrics",
            "Deployment ovnkube-control-plane",
            "PrometheusRule master-rules",
            "ConfigMap ovnkube-identity-cm",
            "Service network-node-identity",
            "Deployment network-node-identity",
        ]
    );
    for object in &moved {
        assert_eq!(object["metadata"]["namespace"], "clusters-a", "{object:#}");
    }
    // The hosted cluster has only what concerns its nodes.
    let rest: Vec<&Value> = rendered.objects.iter().filter(|it| !moved.contains(it)).collect();
    let rest = names(&rest);
    for gone in [
        "Deployment ovnkube-control-plane",
        "Service ovn-kubernetes-control-plane",
        "ServiceMonitor monitor-ovn-control-plane-metrics",
        "PrometheusRule master-rules",
        "DaemonSet network-node-identity",
        "OperatorPKI network-node-identity",
        "ConfigMap ovnkube-identity-cm",
    ] {
        assert!(!rest.contains(&gone.to_owned()), "{gone}");
    }
    for kept in [
        "DaemonSet ovnkube-node",
        "ConfigMap ovnkube-config",
        "ServiceAccount ovn-kubernetes-control-plane",
        "ServiceAccount network-node-identity",
        "ServiceMonitor monitor-ovn-node",
        "Service ovn-kubernetes-node",
    ] {
        assert!(rest.contains(&kept.to_owned()), "{kept}");
    }
    let label = "networkoperator.openshift.io/generates-operator-status";
    for name in ["ovnkube-node", "ovnkube-control-plane", "network-node-identity"] {
        assert_eq!(
            workload(&rendered, name)["metadata"]["labels"][label],
            "a-x7k2p",
            "{name}"
        );
    }
}

// cluster-network#161
#[test]
fn files_of_both_clusters_name_their_api_server() {
    let rendered = hosted(&hosted_facts(single()), &settings_with(&[]));
    let files: Vec<&str> = rendered
        .objects
        .iter()
        .filter_map(|object| object["data"]["ovnkube.conf"].as_str())
        .collect();
    let [nodes, management] = files[..] else {
        panic!("{files:?}");
    };
    let (nodes, management): (Vec<&str>, Vec<&str>) = (nodes.lines().collect(), management.lines().collect());
    let only = |left: &[&str], right: &[&str]| -> Vec<String> {
        let other = left
            .iter()
            .filter(|line| !line.is_empty() && !right.contains(line));
        other.map(|line| (*line).to_owned()).collect()
    };
    assert_eq!(
        only(&management, &nodes),
        [
            "cacert=\"/hosted-ca/ca.crt\"",
            "apiserver=\"https://kube-apiserver:6443\""
        ]
    );
    assert_eq!(
        only(&nodes, &management),
        [
            "enable-udp-aggregation=true",
            "apiserver=\"https://api-int.example.com:6443\"",
            "healthz-bind-address=\"0.0.0.0:10256\"",
            "[logging]",
            "libovsdblogfile=/var/log/ovnkube/libovsdb.log",
            "logfile-maxsize=100",
            "logfile-maxbackups=5",
            "logfile-maxage=0",
        ]
    );
    // A single control plane has long timeouts.
    assert!(nodes.contains(&"[clustermgrha]"));
    let three = ControlPlane {
        replicas: 3,
        ..single()
    };
    let rendered = hosted(&hosted_facts(three), &settings_with(&[]));
    let all: String = rendered.objects.iter().map(Value::to_string).collect();
    assert!(!all.contains("[clustermgrha]"));
}

// cluster-network#161
#[test]
fn pods_of_the_control_plane_authenticate_with_tokens_of_the_hosted_cluster() {
    let rendered = hosted(
        &hosted_facts(single()),
        &settings_with(&[("RUN_AS_USER", "1001")]),
    );
    let control_plane = workload(&rendered, "ovnkube-control-plane");
    assert_eq!(control_plane["spec"]["replicas"], 1);
    assert_eq!(control_plane["spec"]["strategy"], Value::Null);
    let pod = &control_plane["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["priorityClassName"], "hypershift-api-critical");
    assert_eq!(pod["securityContext"]["runAsUser"], 1001);
    assert_eq!(pod["affinity"]["podAntiAffinity"], Value::Null);
    let images: Vec<&Value> = pod["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .map(|it| &it["image"])
        .collect();
    assert_eq!(
        images,
        [
            "registry.example/host-ovn:v1",
            "registry.example/socks:v1",
            "registry.example/minter:v1"
        ]
    );
    assert_eq!(
        container(control_plane, "token-minter")["args"],
        json!([
            "--service-account-namespace=openshift-ovn-kubernetes",
            "--service-account-name=ovn-kubernetes-control-plane",
            "--token-audience=https://issuer.example.com",
            "--token-file=/var/run/secrets/hosted_cluster/token",
            "--kubeconfig=/etc/kubernetes/kubeconfig",
        ])
    );
    let args = container(control_plane, "ovnkube-control-plane")["args"].to_string();
    assert!(args.contains("--gateway-v4-masquerade-subnet"), "{args}");
    let identity = workload(&rendered, "network-node-identity");
    let minter = container(identity, "token-minter")["args"].to_string();
    assert!(
        minter.contains("--service-account-name=network-node-identity"),
        "{minter}"
    );
    let setup = &identity["spec"]["template"]["spec"]["initContainers"][0];
    assert_eq!(setup["image"], "registry.example/cli:v1");
    assert_eq!(variable(setup, "API_SERVER"), Some("https://kube-apiserver:6443"));
    assert_eq!(
        container(identity, "webhook")["command"],
        container(identity, "approver")["command"]
    );
}

// cluster-network#159, cluster-network#161
#[test]
fn hosted_control_plane_places_its_pods() {
    let toleration = json!({ "key": "dedicated", "operator": "Exists" });
    let control_plane = ControlPlane {
        replicas: 3,
        node_selector: json!({ "pool": "a" }).as_object().cloned().expect("a map"),
        labels: json!({ "team": "b", "app": "other" })
            .as_object()
            .cloned()
            .expect("a map"),
        tolerations: vec![toleration.clone()],
        priority_class: Some("high".to_owned()),
        restart_date: Some("2026-01-02".to_owned()),
        ..single()
    };
    let mut facts = hosted_facts(control_plane);
    let key = ("ovnkube-control-plane".to_owned(), "socks-proxy".to_owned());
    let live = json!({ "cpu": "50m" }).as_object().cloned().expect("a map");
    facts
        .management
        .as_mut()
        .expect("facts")
        .requests
        .insert(key, live);
    let rendered = hosted(&facts, &settings_with(&[]));
    for name in ["ovnkube-control-plane", "network-node-identity"] {
        let workload = workload(&rendered, name);
        assert_eq!(
            workload["spec"]["strategy"]["rollingUpdate"]["maxSurge"], 0,
            "{name}"
        );
        let template = &workload["spec"]["template"];
        let labels = &template["metadata"]["labels"];
        assert_eq!((&labels["team"], &labels["app"]), (&json!("b"), &json!(name)));
        assert_eq!(
            labels["hypershift.openshift.io/hosted-control-plane"],
            "clusters-a"
        );
        let annotations = &template["metadata"]["annotations"];
        assert_eq!(annotations["hypershift.openshift.io/restart-date"], "2026-01-02");
        assert_eq!(
            annotations["hypershift.openshift.io/release-image"],
            "registry.example/release:v1"
        );
        let pod = &template["spec"];
        assert_eq!(pod["nodeSelector"], json!({ "pool": "a" }), "{name}");
        assert_eq!(pod["priorityClassName"], "high", "{name}");
        assert_eq!(pod["tolerations"][0], toleration, "{name}");
        assert_eq!(pod["tolerations"][2]["value"], "clusters-a", "{name}");
        let apart = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(apart["labelSelector"]["matchLabels"]["app"], name);
    }
    let replicas = |name: &str| workload(&rendered, name)["spec"]["replicas"].clone();
    assert_eq!(replicas("network-node-identity"), 3);
    // The cluster manager needs one standby alone.
    assert_eq!(replicas("ovnkube-control-plane"), 2);
    let socks = container(workload(&rendered, "ovnkube-control-plane"), "socks-proxy");
    assert_eq!(
        socks["resources"]["requests"],
        json!({ "cpu": "50m", "memory": "10Mi" })
    );
    // Nodes of the hosted cluster are not restarted.
    let node = &workload(&rendered, "ovnkube-node")["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(node.get("hypershift.openshift.io/restart-date"), None);
}

// cluster-network#168
#[test]
fn nodes_reach_the_api_server_through_the_proxy_of_the_cluster() {
    let mut facts = hosted_facts(single());
    facts.proxy = vec![("HTTPS_PROXY", "http://proxy.example.com:3128".to_owned())];
    let rendered = hosted(&facts, &settings_with(&[]));
    let controller = container(workload(&rendered, "ovnkube-node"), "ovnkube-controller");
    assert_eq!(
        variable(controller, "HTTPS_PROXY"),
        Some("http://proxy.example.com:3128")
    );
    assert_eq!(variable(controller, "HTTP_PROXY"), None);
}

// cluster-network#161
#[test]
fn monitoring_is_that_of_the_management_cluster() {
    let facts = hosted_facts(single());
    let rendered = hosted(&facts, &settings_with(&[]));
    let monitor = find(&rendered, "ServiceMonitor", "monitor-ovn-control-plane-metrics").expect("a monitor");
    assert_eq!(monitor["apiVersion"], "monitoring.coreos.com/v1");
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(
        endpoint["tlsConfig"]["ca"]["configMap"],
        json!({ "name": "openshift-service-ca.crt", "key": "service-ca.crt" })
    );
    assert_eq!(
        endpoint["relabelings"],
        json!([{ "action": "replace", "replacement": "id", "targetLabel": "_id" }])
    );
    let rules = find(&rendered, "PrometheusRule", "master-rules")
        .expect("rules")
        .to_string();
    assert!(
        rules.contains("namespace=\\\"clusters-a\\\"") && !rules.contains("openshift-ovn"),
        "{rules}"
    );
    let secret = |rendered: &Rendered| {
        let service = in_management(rendered)[1]["metadata"]["annotations"].clone();
        service["service.beta.openshift.io/serving-cert-secret-name"].clone()
    };
    assert_eq!(secret(&rendered), "ovn-control-plane-metrics-cert");
    // With certificate authorities of its own, HyperShift creates the Secret.
    let own = settings_with(&[
        ("CA_CONFIG_MAP", "root-ca"),
        ("CA_CONFIG_MAP_KEY", "ca.crt"),
        ("RHOBS_MONITORING", "1"),
    ]);
    let rendered = hosted(&facts, &own);
    assert_eq!(secret(&rendered), Value::Null);
    let monitor = find(&rendered, "ServiceMonitor", "monitor-ovn-control-plane-metrics").expect("a monitor");
    assert_eq!(monitor["apiVersion"], "monitoring.rhobs/v1");
    // The management cluster may lack the kinds, whatever the hosted cluster has.
    let mut without = facts;
    without.management.as_mut().expect("facts").monitoring = false;
    let rendered = hosted(&without, &settings_with(&[]));
    assert_eq!(
        find(&rendered, "ServiceMonitor", "monitor-ovn-control-plane-metrics"),
        None
    );
    assert!(find(&rendered, "ServiceMonitor", "monitor-ovn-node").is_some());
}

// cluster-network#162
#[test]
fn webhook_of_node_identity_waits_for_the_management_cluster() {
    let mut facts = hosted_facts(single());
    let configuration = |facts: &Facts| {
        let rendered = hosted(facts, &settings_with(&[]));
        let found = find(
            &rendered,
            "ValidatingWebhookConfiguration",
            "network-node-identity.openshift.io",
        );
        found.expect("a configuration").clone()
    };
    let waits = |facts: &Facts| {
        let annotations = &configuration(facts)["metadata"]["annotations"];
        annotations
            .get("networkoperator.openshift.io/create-wait")
            .is_some()
    };
    facts.node_identity.is_bootstrapped = true;
    facts.node_identity.bundle = "authorities".to_owned();
    assert!(waits(&facts));
    facts.node_identity.is_rolled_out = true;
    assert!(!waits(&facts));
    let ready = configuration(&facts);
    let client = &ready["webhooks"][1]["clientConfig"];
    assert_eq!(
        client["url"],
        "https://network-node-identity.clusters-a.svc:9743/pod"
    );
    assert_eq!(client["caBundle"], "YXV0aG9yaXRpZXM=");
}

// cluster-network#165
#[test]
fn missing_image_for_the_management_cluster_names_its_variable() {
    for missing in [
        "OVN_CONTROL_PLANE_IMAGE",
        "TOKEN_MINTER_IMAGE",
        "SOCKS5_PROXY_IMAGE",
        "CLI_IMAGE",
    ] {
        let rendered = rendered_by(&b(), &hosted_facts(single()), &settings_with(&[(missing, "")]));
        let variable = missing.replace("CLI_IMAGE", "CLI_CONTROL_PLANE_IMAGE");
        let text = &rendered.failed.first().expect("a failure").1;
        assert!(
            text.contains(&format!("set environment variable {variable} ")),
            "{text}"
        );
    }
}

// cluster-network#165
#[test]
fn hosted_cluster_needs_a_name_and_a_namespace() {
    for (missing, meaning) in [
        ("HOSTED_CLUSTER_NAME", "the hosted cluster"),
        (
            "HOSTED_CLUSTER_NAMESPACE",
            "the namespace of the hosted control plane",
        ),
    ] {
        let variable = |name: &str| {
            let all = HOSTED.iter().chain([&("NETWORK_CHECK_SOURCE_IMAGE", "weft")]);
            let mut found = all.filter(|(key, _)| *key == name && *key != missing);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        let error = Settings::read("ns", variable).expect_err("a missing variable");
        assert_eq!(
            error.to_string(),
            format!("environment variable {missing} is not set: it has to name {meaning}")
        );
    }
}

// cluster-network#166
#[test]
fn control_plane_without_a_place_is_refused() {
    let mut facts = facts();
    facts.external_control_plane = true;
    let rendered = rendered_by(&b(), &facts, &settings(&[]));
    assert_eq!(
        rendered.failed[0],
        (
            Part::DefaultNetwork,
            "unable to render OVN in a cluster with an external control plane: set environment variable HYPERSHIFT of the \
             operator"
                .to_owned()
        )
    );
}

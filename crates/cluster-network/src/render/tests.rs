use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Context, Part, Rendered, render};
use crate::{
    base::{b, entry, spec},
    defaults,
    facts::{ApiServer, Facts},
    settings::Settings,
};

mod monitoring;
mod security;

fn settings() -> Settings {
    let variable = |name: &str| match name {
        "NETWORK_OPERATOR_IMAGE" => Some("registry.example/weft:v1".to_owned()),
        "KUBE_PROXY_IMAGE" => Some("registry.example/kube-proxy:v1".to_owned()),
        "KUBE_RBAC_PROXY_IMAGE" => Some("registry.example/kube-rbac-proxy:v1".to_owned()),
        "WHEREABOUTS_CNI_IMAGE" => Some("registry.example/whereabouts:v1".to_owned()),
        "RELEASE_VERSION" => Some("1.2.3".to_owned()),
        _ => None,
    };
    Settings::read("openshift-network-operator", variable).expect("settings")
}

fn facts() -> Facts {
    Facts {
        host_mtu: Some(1500),
        control_plane_nodes: 3,
        monitoring: true,
        api_server: ApiServer {
            host: "192.0.2.1".to_owned(),
            port: "6443".to_owned(),
        },
        ..Facts::default()
    }
}

fn of_type(kind: &str) -> NetworkSpec {
    let mut spec = b();
    kind.clone_into(&mut spec.default_network.kind);
    spec.default_network.ovn_kubernetes_config = None;
    spec
}

fn rendered_on(spec: &NetworkSpec, diagnostics: &NetworkDiagnostics, facts: &Facts) -> Rendered {
    let mut spec = spec.clone();
    defaults::fill(&mut spec, None, facts).expect("defaults");
    render(&Context {
        spec: &spec,
        diagnostics,
        facts,
        settings: &settings(),
    })
}

fn rendered(spec: &NetworkSpec) -> Rendered {
    rendered_on(spec, &NetworkDiagnostics::default(), &facts())
}

fn find<'a>(rendered: &'a Rendered, kind: &str, name: &str) -> Option<&'a Value> {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    rendered.objects.iter().find(is_it)
}

fn of_part(rendered: &Rendered, part: Part) -> Vec<String> {
    let has =
        |object: &&Value| object["metadata"]["labels"]["networkoperator.openshift.io/part"] == part.label();
    let objects = rendered.objects.iter().filter(has);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects
        .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .collect()
}

// cluster-network#24
#[rstest]
#[case("OpenShiftSDN")]
#[case("MyPlugin")]
fn network_of_others_gets_everything_else(#[case] kind: &str) {
    let spec = of_type(kind);
    assert_eq!(crate::operator_config::errors(&spec), Vec::<String>::new());
    let rendered = rendered(&spec);
    assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
    assert!(of_part(&rendered, Part::DefaultNetwork).is_empty());
    assert!(
        !rendered
            .objects
            .iter()
            .any(|object| object.to_string().contains("openshift-ovn-kubernetes"))
    );
    for (kind, name) in [
        ("DaemonSet", "multus"),
        ("Role", "openshift-network-public-role"),
        ("Deployment", "network-check-source"),
        ("DaemonSet", "openshift-kube-proxy"),
    ] {
        assert!(find(&rendered, kind, name).is_some(), "{kind} {name}");
    }
}

#[test]
fn every_object_can_be_found_again() {
    let rendered = rendered(&of_type("Weft"));
    for object in &rendered.objects {
        let labels = &object["metadata"]["labels"];
        assert!(
            labels["networkoperator.openshift.io/part"].is_string(),
            "{object}"
        );
        if object["apiVersion"] == "apps/v1" {
            assert!(labels["networkoperator.openshift.io/generates-operator-status"].is_string());
            assert_eq!(
                object["metadata"]["annotations"]["release.openshift.io/version"],
                "1.2.3"
            );
            assert!(!object.to_string().contains("\"image\":\"weft\""), "{object}");
        }
    }
    for name in ["network-check-source", "network-check-target"] {
        let object = rendered
            .objects
            .iter()
            .find(|object| object["apiVersion"] == "apps/v1" && object["metadata"]["name"] == name);
        let labels = &object.expect("it is there")["metadata"]["labels"];
        assert_eq!(
            labels["networkoperator.openshift.io/generates-operator-status"],
            ""
        );
    }
    let kinds = kube_kit::object::ALL;
    for object in &rendered.objects {
        assert!(kinds.iter().any(|kind| kind.kind == object["kind"]), "{object}");
    }
}

#[test]
fn policies_let_the_pods_of_checks_connect() {
    // cluster-network#208
    let rendered = rendered(&of_type("Weft"));
    for name in ["network-check-source", "network-check-target"] {
        let policy = find(&rendered, "NetworkPolicy", name).expect("a policy");
        assert_eq!(policy["spec"]["egress"], json!([{}]), "{policy}");
    }
}

#[test]
fn multus_waits_for_our_network_and_isolates_namespaces() {
    let config = |kind: &str| {
        let rendered = rendered(&of_type(kind));
        let map = find(&rendered, "ConfigMap", "multus-daemon-config").expect("a map");
        let text = map["data"]["daemon-config.json"].as_str().expect("text");
        serde_json::from_str::<Value>(text).expect("JSON")
    };
    let weft = config("Weft");
    assert_eq!(
        weft["readinessindicatorfile"],
        "/host/etc/cni/net.d/10-weft.conflist"
    );
    assert_eq!(weft["namespaceIsolation"], true);
    assert_eq!(
        weft["globalNamespaces"],
        "default,openshift-multus,openshift-sriov-network-operator,openshift-cnv"
    );
    assert!(config("Calico").get("readinessindicatorfile").is_none());
    let mut without = of_type("Weft");
    without.disable_multi_network = Some(true);
    let rendered = rendered(&without);
    assert!(of_part(&rendered, Part::Multus).is_empty());
    assert!(of_part(&rendered, Part::AdmissionController).is_empty());
    assert!(find(&rendered, "DaemonSet", "pod-network").is_some());
}

#[test]
fn directories_of_nodes_are_the_configured_ones() {
    let mut facts = facts();
    facts.cni.bin = "/var/lib/cni/bin".to_owned();
    facts.cni.conf = "/etc/kubernetes/cni/net.d".to_owned();
    let rendered = rendered_on(&of_type("Weft"), &NetworkDiagnostics::default(), &facts);
    for (name, volume, path) in [
        ("multus", "cnibin", "/var/lib/cni/bin"),
        ("multus", "system-cni-dir", "/etc/kubernetes/cni/net.d"),
        ("pod-network", "cni", "/etc/kubernetes/cni/net.d"),
        ("pod-network", "cnibin", "/var/lib/cni/bin"),
    ] {
        let object = find(&rendered, "DaemonSet", name).expect("a DaemonSet");
        let volumes = object["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .expect("volumes");
        let found = volumes.iter().find(|it| it["name"] == volume).expect("a volume");
        assert_eq!(found["hostPath"]["path"], path, "{name} {volume}");
    }
    let plugins = find(&rendered, "DaemonSet", "multus-additional-cni-plugins").expect("a DaemonSet");
    let command = &plugins["spec"]["template"]["spec"]["containers"][0]["command"];
    assert_eq!(command[5], "/var/lib/cni/bin");
}

// cluster-network#53
#[test]
fn kube_proxy_has_eleven_objects() {
    let mut spec = of_type("Flannel");
    spec.cluster_network = vec![entry("192.168.0.0/14", 23)];
    spec.kube_proxy_config = Some(crate::base::spec("{iptablesSyncPeriod: 42s}"));
    let found = rendered(&spec);
    let expected = [
        "Namespace openshift-kube-proxy",
        "NetworkPolicy default-deny",
        "ClusterRole openshift-kube-proxy",
        "ServiceAccount openshift-kube-proxy",
        "ClusterRoleBinding openshift-kube-proxy",
        "ConfigMap proxy-config",
        "DaemonSet openshift-kube-proxy",
        "ServiceMonitor monitor-kube-proxy",
        "Service openshift-kube-proxy",
        "Role prometheus-k8s",
        "RoleBinding prometheus-k8s",
    ];
    assert_eq!(of_part(&found, Part::KubeProxy), expected);
    let file = |rendered: &Rendered| {
        let map = find(rendered, "ConfigMap", "proxy-config").expect("a map");
        let text = map["data"]["kube-proxy-config.yaml"]
            .as_str()
            .expect("text")
            .to_owned();
        serde_saphyr::from_str::<Value>(&text).expect("YAML")
    };
    assert_eq!(file(&found)["iptables"]["syncPeriod"], "42s");
    assert_eq!(file(&found)["metricsBindAddress"], "0.0.0.0:29102");
    assert_eq!(file(&found)["healthzBindAddress"], "0.0.0.0:10255");
    let ports = |rendered: &Rendered| {
        let daemon = find(rendered, "DaemonSet", "openshift-kube-proxy").expect("a DaemonSet");
        let containers = daemon["spec"]["template"]["spec"]["containers"]
            .as_array()
            .cloned();
        let port = |container: &Value| container["ports"][0]["containerPort"].as_i64();
        let listen = daemon["spec"]["template"]["spec"]["containers"][1]["command"][2].clone();
        (
            containers
                .expect("containers")
                .iter()
                .map(port)
                .collect::<Vec<_>>(),
            listen,
        )
    };
    assert_eq!(
        ports(&found),
        (
            vec![Some(10255), Some(9102)],
            json!("--secure-listen-address=:9102")
        )
    );
    spec.kube_proxy_config = Some(crate::base::spec(
        "{proxyArguments: {healthz-port: ['10256'], metrics-port: ['9101']}}",
    ));
    let found = rendered(&spec);
    assert_eq!(
        ports(&found),
        (
            vec![Some(10256), Some(9101)],
            json!("--secure-listen-address=:9101")
        )
    );
    assert_eq!(file(&found)["metricsBindAddress"], "0.0.0.0:29102");
}

#[test]
fn kube_proxy_of_others_is_left_alone() {
    let facts = Facts {
        foreign_kube_proxy: Some("kube-system/kube-proxy".to_owned()),
        ..facts()
    };
    let found = rendered_on(&of_type("Flannel"), &NetworkDiagnostics::default(), &facts);
    assert!(of_part(&found, Part::KubeProxy).is_empty());
    assert_eq!(found.failed.len(), 1);
    assert!(
        found.failed[0].1.contains("kube-system/kube-proxy"),
        "{}",
        found.failed[0].1
    );
    let mut off = of_type("Flannel");
    off.deploy_kube_proxy = Some(false);
    let found = rendered_on(&off, &NetworkDiagnostics::default(), &facts);
    assert!(found.failed.is_empty(), "{:?}", found.failed);
}

#[test]
fn api_server_is_reached_directly_where_services_are_ours() {
    let variables = |deploy: bool| {
        let mut spec = of_type("Weft");
        spec.deploy_kube_proxy = Some(deploy);
        let rendered = rendered(&spec);
        let daemon = find(&rendered, "DaemonSet", "pod-network").expect("a DaemonSet");
        let variables = daemon["spec"]["template"]["spec"]["containers"][0]["env"]
            .as_array()
            .cloned();
        let variables = variables.expect("variables");
        variables
            .into_iter()
            .filter(|it| it["name"] != "K8S_NODE")
            .collect::<Vec<_>>()
    };
    assert_eq!(
        variables(true),
        [
            json!({ "name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.1" }),
            json!({ "name": "KUBERNETES_SERVICE_PORT", "value": "6443" }),
        ]
    );
    assert!(variables(false).is_empty());
}

// cluster-network#51
#[rstest]
#[case(r#"{name: a, type: Raw, rawCNIConfig: '{"ipam":{"type":"dhcp"}}'}"#, &["dhcp-daemon"])]
#[case(r#"{name: a, type: Raw, rawCNIConfig: '{"ipam":"dhcp"}'}"#, &[])]
#[case(r#"{name: a, type: Raw, rawCNIConfig: '{"ipam":{"type":"whereabouts"}}'}"#, &["whereabouts-reconciler"])]
#[case(
    r#"{name: a, type: Raw, rawCNIConfig: '{"plugins":[{"type":"b"},{"ipam":{"type":"whereabouts"}}]}'}"#,
    &["whereabouts-reconciler"]
)]
#[case("{name: a, type: SimpleMacvlan}", &["dhcp-daemon"])]
#[case("{name: a, type: SimpleMacvlan, simpleMacvlanConfig: {ipamConfig: {type: Static}}}", &[])]
fn helpers_of_ipam_run_where_a_network_needs_them(#[case] network: &str, #[case] expected: &[&str]) {
    let mut all = of_type("Calico");
    all.additional_networks.push(spec(network));
    let rendered = rendered(&all);
    let helpers = ["dhcp-daemon", "whereabouts-reconciler"];
    let found: Vec<&str> = helpers
        .into_iter()
        .filter(|name| find(&rendered, "DaemonSet", name).is_some())
        .collect();
    assert_eq!(found, expected);
    let definition = "ippools.whereabouts.cni.cncf.io";
    let has_definition = find(&rendered, "CustomResourceDefinition", definition).is_some();
    assert_eq!(has_definition, expected.contains(&"whereabouts-reconciler"));
}

#[test]
fn wrong_network_keeps_its_definition_and_no_other() {
    let mut all = of_type("Calico");
    for (name, config) in [("a", "{}"), ("b", "wrong"), ("c", "{}")] {
        all.additional_networks.push(spec(&format!(
            "{{name: {name}, type: Raw, rawCNIConfig: '{config}'}}"
        )));
    }
    let rendered = rendered(&all);
    assert_eq!(
        rendered.failed,
        [(
            Part::AdditionalNetworks,
            "invalid Additional Network Configuration: [failed to Unmarshal RawCNIConfig: wrong]".to_owned()
        )]
    );
    assert_eq!(
        of_part(&rendered, Part::AdditionalNetworks),
        ["NetworkAttachmentDefinition a", "NetworkAttachmentDefinition c"]
    );
    let kept: Vec<&str> = rendered.kept.iter().map(|id| id.name.as_str()).collect();
    assert_eq!(kept, ["b"]);
}

// cluster-network#57
#[rstest]
#[case(3, false, 2)]
#[case(1, false, 1)]
#[case(0, false, 2)]
#[case(0, true, 1)]
fn admission_controller_has_replicas_for_the_control_plane(
    #[case] nodes: usize,
    #[case] single_hosted_node: bool,
    #[case] replicas: i64,
) {
    let facts = Facts {
        control_plane_nodes: nodes,
        single_hosted_node,
        ..facts()
    };
    let rendered = rendered_on(&of_type("Calico"), &NetworkDiagnostics::default(), &facts);
    let deployment = find(&rendered, "Deployment", "multus-admission-controller").expect("a Deployment");
    assert_eq!(deployment["spec"]["replicas"], replicas);
    let selector = &deployment["spec"]["template"]["spec"]["nodeSelector"];
    let label = selector.get("node-role.kubernetes.io/control-plane");
    assert_eq!(label.is_some(), nodes > 0);
}

// cluster-network#68
#[test]
fn diagnostics_are_switched_and_placed() {
    let on = |legacy: bool, diagnostics: &str| {
        let mut given = of_type("Calico");
        given.disable_network_diagnostics = legacy;
        let rendered = rendered_on(&given, &spec(diagnostics), &facts());
        find(&rendered, "Namespace", "openshift-network-diagnostics").is_some()
    };
    assert!(on(false, "{}"));
    assert!(!on(true, "{}"));
    assert!(!on(false, "{mode: Disabled}"));
    assert!(on(true, "{mode: All}"));
    assert!(on(true, "{sourcePlacement: {nodeSelector: {a: b}}}"));
    let placed = |diagnostics: &str| {
        let rendered = rendered_on(&of_type("Calico"), &spec(diagnostics), &facts());
        [
            ("Deployment", "network-check-source"),
            ("DaemonSet", "network-check-target"),
        ]
        .map(|(kind, name)| {
            let pod = &find(&rendered, kind, name).expect("a workload")["spec"]["template"]["spec"];
            (pod["nodeSelector"].clone(), pod["tolerations"].clone())
        })
    };
    let linux = json!({ "kubernetes.io/os": "linux" });
    assert_eq!(
        placed("{}"),
        [
            (linux.clone(), json!([])),
            (linux, json!([{ "operator": "Exists" }]))
        ]
    );
    let custom = "sourcePlacement: {nodeSelector: {a: b}, tolerations: [{key: x, operator: Exists}]}
targetPlacement: {nodeSelector: {c: d}, tolerations: [{key: z, operator: Exists, effect: NoSchedule}]}";
    assert_eq!(
        placed(custom),
        [
            (json!({ "a": "b" }), json!([{ "key": "x", "operator": "Exists" }])),
            (
                json!({ "c": "d" }),
                json!([{ "effect": "NoSchedule", "key": "z", "operator": "Exists" }])
            ),
        ]
    );
}

// cluster-network#42
#[test]
fn network_policies_for_additional_networks_need_their_image() {
    let titles = |kind: &str, is_used: bool, image: Option<&str>| {
        let mut given = if kind == "OVNKubernetes" {
            b()
        } else {
            of_type(kind)
        };
        given.use_multi_network_policy = Some(is_used);
        defaults::fill(&mut given, None, &facts()).expect("defaults");
        let mut settings = settings();
        settings.ovn.image = Some("ovn".to_owned());
        settings.multi_network_policy_image = image.map(str::to_owned);
        let rendered = render(&Context {
            spec: &given,
            diagnostics: &NetworkDiagnostics::default(),
            facts: &facts(),
            settings: &settings,
        });
        let control_plane = find(&rendered, "Deployment", "ovnkube-control-plane");
        let has_flag =
            control_plane.is_some_and(|it| it.to_string().contains("\"--enable-multi-networkpolicy\""));
        let failed: Vec<Part> = rendered.failed.iter().map(|(part, _)| *part).collect();
        (of_part(&rendered, Part::MultiNetworkPolicy), has_flag, failed)
    };
    let expected = [
        "CustomResourceDefinition multi-networkpolicies.k8s.cni.cncf.io",
        "ClusterRole openshift-multus-networkpolicy",
        "ClusterRoleBinding openshift-multus-networkpolicy",
        "ConfigMap multi-networkpolicy-custom-rules",
        "DaemonSet multus-networkpolicy",
    ];
    let image = Some("registry.example/policies:v1");
    let expected: Vec<String> = expected.map(str::to_owned).into();
    assert_eq!(
        titles("OVNKubernetes", true, image),
        (expected.clone(), true, vec![])
    );
    assert_eq!(titles("OVNKubernetes", false, image), (vec![], false, vec![]));
    assert_eq!(titles("Calico", true, image), (expected, false, vec![]));
    assert_eq!(
        titles("Calico", true, None),
        (vec![], false, vec![Part::MultiNetworkPolicy])
    );
}

// cluster-network#87
#[test]
fn nodes_copy_the_list_of_sysctls() {
    let rendered = rendered(&of_type("Weft"));
    let list = find(&rendered, "ConfigMap", "cni-sysctl-allowlist").expect("a list");
    assert_eq!(list["metadata"]["namespace"], "openshift-multus");
    let text = list["data"]["allowlist.conf"].as_str().expect("lines");
    let expected = [
        (
            "net.ipv4.conf",
            &[
                "accept_redirects",
                "accept_source_route",
                "arp_accept",
                "arp_notify",
            ][..],
        ),
        (
            "net.ipv4.conf",
            &["disable_policy", "secure_redirects", "send_redirects"],
        ),
        (
            "net.ipv6.conf",
            &[
                "accept_ra",
                "accept_redirects",
                "accept_source_route",
                "arp_accept",
            ],
        ),
        ("net.ipv6.conf", &["arp_notify"]),
        ("net.ipv6.neigh", &["base_reachable_time_ms", "retrans_time_ms"]),
    ];
    let expected: Vec<String> = expected
        .iter()
        .flat_map(|(group, names)| names.iter().map(move |name| format!("^{group}.IFNAME.{name}$")))
        .collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);

    let daemon = find(&rendered, "DaemonSet", "multus-additional-cni-plugins").expect("a DaemonSet");
    let pod = &daemon["spec"]["template"]["spec"];
    let command = pod["containers"][0]["command"].as_array().expect("a command");
    for argument in [
        "--sysctl-allow-list=/etc/sysctl-allowlist/allowlist.conf",
        "--tuning-dir=/host/etc/cni/tuning",
    ] {
        assert!(command.contains(&json!(argument)), "{command:?}");
    }
    let volumes = pod["volumes"].as_array().expect("volumes");
    let volume = |name: &str| {
        volumes
            .iter()
            .find(|volume| volume["name"] == name)
            .expect("a volume")
    };
    assert_eq!(
        volume("cni-sysctl-allowlist")["configMap"],
        json!({ "name": "cni-sysctl-allowlist", "optional": true })
    );
    assert_eq!(volume("tuning-conf-dir")["hostPath"]["path"], "/etc/cni/tuning");
}

// cluster-network#98
#[test]
fn prober_of_mtu_has_a_pod_on_several_nodes() {
    let job = |linux_nodes| {
        let facts = Facts {
            linux_nodes,
            ..facts()
        };
        let objects = super::mtu_prober(&facts, &settings()).expect("objects");
        objects
            .into_iter()
            .find(|object| object["kind"] == "Job")
            .expect("a Job")
    };
    for (nodes, expected) in [(0, None), (1, None), (3, Some(3)), (500, Some(16))] {
        let job = job(nodes);
        let number = |key: &str| job["spec"][key].as_u64();
        assert_eq!(
            (number("completions"), number("parallelism")),
            (expected, expected)
        );
        let pod = &job["spec"]["template"]["spec"];
        let command = pod["containers"][0]["command"].as_array().expect("a command");
        let flag = expected.map(|expected| json!(format!("--nodes={expected}")));
        assert_eq!(command.get(5), flag.as_ref());
        let term = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(
            term["topologyKey"] == "kubernetes.io/hostname",
            expected.is_some()
        );
    }
}

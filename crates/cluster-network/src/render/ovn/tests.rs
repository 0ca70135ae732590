mod hosted;
mod updates;

use std::collections::BTreeMap;

use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use serde_json::{Value, json};

use crate::{
    base::{b, entry, ovn, spec, texts},
    defaults,
    facts::{ApiServer, Facts, Platform},
    ovn::{ipsec, rollout::Workload},
    render::{Context, Part, Rendered, render, sample},
    settings::Settings,
    tls_profile::Profile,
};

const RELEASE: &str = "4.20.0";

fn settings(variables: &[(&str, &str)]) -> Settings {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    let default = |name: &str| match name {
        "NETWORK_OPERATOR_IMAGE" => Some("registry.example/weft:v1"),
        "OVN_IMAGE" => Some("registry.example/ovn:v1"),
        "KUBE_RBAC_PROXY_IMAGE" => Some("registry.example/kube-rbac-proxy:v1"),
        "RELEASE_VERSION" => Some(RELEASE),
        _ => None,
    };
    let variable = |name: &str| {
        variables
            .get(name)
            .copied()
            .or_else(|| default(name))
            .map(str::to_owned)
    };
    Settings::read("openshift-network-operator", variable).expect("settings")
}

fn facts() -> Facts {
    let mut facts = Facts {
        host_mtu: Some(9000),
        control_plane_nodes: 3,
        labelled_master: true,
        openshift: true,
        monitoring: true,
        platform: Platform::BareMetal,
        api_server: ApiServer {
            host: "api-int.example.com".to_owned(),
            port: "6443".to_owned(),
        },
        ..Facts::default()
    };
    facts.ovn.masquerade = texts(&["169.254.0.0/17", "fd69::/112"]);
    facts
}

fn rendered_by(spec: &NetworkSpec, facts: &Facts, settings: &Settings) -> Rendered {
    let mut spec = spec.clone();
    defaults::fill(&mut spec, None, facts).expect("defaults");
    render(&Context {
        spec: &spec,
        diagnostics: &NetworkDiagnostics::default(),
        facts,
        settings,
    })
}

fn rendered(spec: &NetworkSpec, facts: &Facts) -> Rendered {
    let rendered = rendered_by(spec, facts, &settings(&[]));
    assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
    rendered
}

fn ours(rendered: &Rendered) -> Vec<&Value> {
    let is_ours = |object: &&Value| {
        object["metadata"]["labels"]["networkoperator.openshift.io/part"] == Part::DefaultNetwork.label()
    };
    rendered.objects.iter().filter(is_ours).collect()
}

fn titles(rendered: &Rendered) -> Vec<String> {
    sample::titles(ours(rendered))
}

fn find<'a>(rendered: &'a Rendered, kind: &str, name: &str) -> Option<&'a Value> {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    rendered.objects.iter().find(is_it)
}

fn workload<'a>(rendered: &'a Rendered, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["apiVersion"] == "apps/v1" && object["metadata"]["name"] == name;
    rendered
        .objects
        .iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("{name}: {:?}", titles(rendered)))
}

fn container<'a>(workload: &'a Value, name: &str) -> &'a Value {
    let containers = workload["spec"]["template"]["spec"]["containers"]
        .as_array()
        .expect("containers");
    containers
        .iter()
        .find(|it| it["name"] == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let variables = container["env"].as_array().expect("variables");
    variables.iter().find(|it| it["name"] == name)?["value"].as_str()
}

fn volume<'a>(workload: &'a Value, name: &str) -> &'a Value {
    let volumes = workload["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .expect("volumes");
    volumes
        .iter()
        .find(|it| it["name"] == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn args(container: &Value) -> Vec<&str> {
    let args = container["args"].as_array().into_iter().flatten();
    args.filter_map(Value::as_str).collect()
}

// cluster-network#34
#[test]
fn objects_come_in_the_order_of_the_table() {
    let rendered = rendered(&b(), &facts());
    let expected = [
        "Namespace openshift-ovn-kubernetes",
        "NetworkPolicy default-deny",
        "CustomResourceDefinition egressfirewalls.k8s.ovn.org",
        "CustomResourceDefinition egressips.k8s.ovn.org",
        "CustomResourceDefinition egressqoses.k8s.ovn.org",
        "CustomResourceDefinition adminpolicybasedexternalroutes.k8s.ovn.org",
        "CustomResourceDefinition egressservices.k8s.ovn.org",
        "CustomResourceDefinition userdefinednetworks.k8s.ovn.org",
        "CustomResourceDefinition clusteruserdefinednetworks.k8s.ovn.org",
        "CustomResourceDefinition adminnetworkpolicies.policy.networking.k8s.io",
        "CustomResourceDefinition baselineadminnetworkpolicies.policy.networking.k8s.io",
        "CustomResourceDefinition ipamclaims.k8s.cni.cncf.io",
        "ServiceAccount ovn-kubernetes-node",
        "ServiceAccount ovn-kubernetes-control-plane",
        "Role openshift-ovn-kubernetes-node-limited",
        "RoleBinding openshift-ovn-kubernetes-nodes-identity-limited",
        "ClusterRole openshift-ovn-kubernetes-node-limited",
        "ClusterRoleBinding openshift-ovn-kubernetes-node-identity-limited",
        "ClusterRole openshift-ovn-kubernetes-kube-rbac-proxy",
        "ClusterRoleBinding openshift-ovn-kubernetes-node-kube-rbac-proxy",
        "ClusterRole openshift-ovn-kubernetes-control-plane-limited",
        "ClusterRoleBinding openshift-ovn-kubernetes-control-plane-limited",
        "Role openshift-ovn-kubernetes-control-plane-limited",
        "RoleBinding openshift-ovn-kubernetes-control-plane-limited",
        "ClusterRole openshift-ovn-kubernetes-cluster-reader",
        "ClusterRole openshift-ovn-kubernetes-udn-editor",
        "ClusterRole openshift-ovn-kubernetes-udn-viewer",
        "ConfigMap ovnkube-config",
        "OperatorPKI ovn",
        "OperatorPKI signer",
        "FlowSchema openshift-ovn-kubernetes",
        "ConfigMap ovnkube-script-lib",
        "Namespace openshift-config-managed",
        "ConfigMap openshift-network-features",
        "ValidatingAdmissionPolicy default-network-annotation",
        "ValidatingAdmissionPolicyBinding default-network-annotation-binding",
        "ValidatingAdmissionPolicy egressip-mark-annotation-validation",
        "ValidatingAdmissionPolicyBinding egressip-mark-annotation-validation-binding",
        "ValidatingAdmissionPolicy user-defined-networks-namespace-label",
        "ValidatingAdmissionPolicyBinding user-defined-networks-namespace-label-binding",
        "Service ovn-kubernetes-node",
        "Service ovn-kubernetes-control-plane",
        "ServiceMonitor monitor-ovn-node",
        "ServiceMonitor monitor-ovn-control-plane-metrics",
        "Role prometheus-k8s",
        "RoleBinding prometheus-k8s",
        "PrometheusRule networking-rules",
        "PrometheusRule master-rules",
        "Namespace openshift-host-network",
        "NetworkPolicy default-deny",
        "ResourceQuota host-network-namespace-quotas",
        "Deployment ovnkube-control-plane",
        "DaemonSet ovnkube-node",
    ];
    assert_eq!(titles(&rendered), expected);
    let gates = Facts {
        gates: texts(&["EVPN", "NetworkConnect"]).into_iter().collect(),
        ..facts()
    };
    let mut advertised = b();
    "Enabled".clone_into(&mut ovn(&mut advertised).route_advertisements);
    let more = titles(&super::tests::rendered(&advertised, &gates));
    for name in ["routeadvertisements", "vteps", "clusternetworkconnects"] {
        let title = format!("CustomResourceDefinition {name}.k8s.ovn.org");
        assert!(
            more.contains(&title) && !expected.contains(&title.as_str()),
            "{title}"
        );
    }
}

// cluster-network#34
#[test]
fn objects_are_placed_and_described() {
    let rendered = rendered(&b(), &facts());
    for object in ours(&rendered) {
        if object["kind"] == "Deployment" {
            let selector = &object["spec"]["template"]["spec"]["nodeSelector"];
            assert_eq!(selector["node-role.kubernetes.io/master"], "");
        }
        if object["kind"] == "CustomResourceDefinition" {
            let annotations = &object["metadata"]["annotations"];
            assert_eq!(annotations["networkoperator.openshift.io/create-only"], "");
        }
    }
    let node = workload(&rendered, "ovnkube-node");
    let names: Vec<&str> = node["spec"]["template"]["spec"]["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "ovn-controller",
            "ovn-acl-logging",
            "kube-rbac-proxy-node",
            "kube-rbac-proxy-ovn-metrics",
            "northd",
            "nbdb",
            "sbdb",
            "ovnkube-controller"
        ]
    );
    for object in [node, workload(&rendered, "ovnkube-control-plane")] {
        for annotations in [
            &object["metadata"]["annotations"],
            &object["spec"]["template"]["metadata"]["annotations"],
        ] {
            let get = |key: &str| annotations[format!("networkoperator.openshift.io/{key}")].clone();
            assert_eq!(get("ip-family-mode"), "single-stack");
            assert_eq!(get("cluster-network-cidr"), "10.128.0.0/15,10.0.0.0/14");
            assert_eq!(get("hybrid-overlay-status"), "disabled");
        }
    }
}

fn conf(rendered: &Rendered) -> &str {
    let map = find(rendered, "ConfigMap", "ovnkube-config").expect("a ConfigMap");
    map["data"]["ovnkube.conf"].as_str().expect("a file")
}

// cluster-network#35, cluster-network#40
#[test]
fn file_is_that_of_the_configuration_and_its_change_rolls_the_pods() {
    let before = rendered(&b(), &facts());
    let text = conf(&before);
    let beginning =
        "[default]\nmtu=\"8900\"\ncluster-subnets=\"10.128.0.0/15/23,10.0.0.0/14/24\"\nencap-port=\"8061\"\n";
    assert!(text.starts_with(beginning), "{text}");
    assert!(text.contains("\negressip-node-healthcheck-port=9107\n"), "{text}");
    let other = settings(&[("OVN_EGRESSIP_HEALTHCHECK_PORT", "9999")]);
    let changed = rendered_by(&b(), &facts(), &other);
    assert!(conf(&changed).contains("\negressip-node-healthcheck-port=9999\n"));
    let hash = |rendered: &Rendered, name: &str, key: &str| {
        let annotations = &workload(rendered, name)["spec"]["template"]["metadata"]["annotations"];
        annotations[format!("network.operator.openshift.io/{key}")].clone()
    };
    for (name, key) in [
        ("ovnkube-node", "ovnkube-node-config-hash"),
        ("ovnkube-control-plane", "ovnkube-control-plane-config-hash"),
    ] {
        assert_eq!(hash(&before, name, key).as_str().map(str::len), Some(64));
        assert_ne!(hash(&before, name, key), hash(&changed, name, key), "{name}");
    }
    let script = "ovnkube-script-lib-hash";
    assert_eq!(
        hash(&before, "ovnkube-node", script),
        hash(&changed, "ovnkube-node", script)
    );
    for (value, expected) in [("true", false), ("false", true), ("garbage", true)] {
        let mut facts = facts();
        facts.ovn.config_maps.udp_aggregation =
            [("disable-udp-aggregation".to_owned(), value.to_owned())].into();
        let rendered = rendered(&b(), &facts);
        let line = format!("\nenable-udp-aggregation={expected}\n");
        assert!(conf(&rendered).contains(&line), "{value}");
    }
}

// cluster-network#36
#[test]
fn cni_configuration_goes_where_multus_reads_it_or_the_container_runtime() {
    let directory = |is_disabled: bool| {
        let mut spec = b();
        spec.disable_multi_network = Some(is_disabled);
        let mut facts = facts();
        facts.cni.conf = "/etc/kubernetes/cni/net.d".to_owned();
        facts.cni.bin = "/var/lib/cni/bin".to_owned();
        let rendered = rendered(&spec, &facts);
        let node = workload(&rendered, "ovnkube-node");
        assert_eq!(volume(node, "cnibin")["hostPath"]["path"], "/var/lib/cni/bin");
        if !is_disabled {
            let map = find(&rendered, "ConfigMap", "multus-daemon-config").expect("a ConfigMap");
            let config = map["data"]["daemon-config.json"].as_str().expect("text");
            let config: Value = serde_json::from_str(config).expect("JSON");
            assert_eq!(config["multusAutoconfigDir"], "/host/run/multus/cni/net.d");
            assert_eq!(
                config["readinessindicatorfile"],
                "/host/run/multus/cni/net.d/10-ovn-kubernetes.conf"
            );
        }
        volume(node, "host-cni-netd")["hostPath"]["path"].clone()
    };
    assert_eq!(directory(true), "/etc/kubernetes/cni/net.d");
    assert_eq!(directory(false), "/var/run/multus/cni/net.d");
}

// cluster-network#38
#[test]
fn overrides_of_the_environment_are_optional_everywhere() {
    let rendered = rendered(&b(), &facts());
    for name in ["ovnkube-node", "ovnkube-control-plane", "network-node-identity"] {
        let workload = workload(&rendered, name);
        assert_eq!(
            volume(workload, "env-overrides")["configMap"],
            json!({ "name": "env-overrides", "optional": true }),
            "{name}"
        );
    }
    assert!(find(&rendered, "ConfigMap", "env-overrides").is_none());
}

// cluster-network#39
#[test]
fn collectors_are_variables_of_the_nodes() {
    let mut spec = b();
    spec.export_network_flows = Some(crate::base::spec(
        "{netFlow: {collectors: ['192.0.2.1:1', '192.0.2.2:2']}, ipfix: {collectors: ['192.0.2.3:3']}}",
    ));
    let mut facts = facts();
    facts.ovn.config_maps.flows = [("sharedTarget".to_owned(), "192.0.2.9:3030".to_owned())].into();
    let rendered = rendered(&spec, &facts);
    let controller = container(workload(&rendered, "ovnkube-node"), "ovnkube-controller");
    assert_eq!(
        variable(controller, "NETFLOW_COLLECTORS"),
        Some("192.0.2.1:1,192.0.2.2:2")
    );
    assert_eq!(
        variable(controller, "IPFIX_COLLECTORS"),
        Some("192.0.2.3:3,192.0.2.9:3030")
    );
    assert_eq!(variable(controller, "SFLOW_COLLECTORS"), None);
    assert!(
        args(controller)
            .windows(2)
            .any(|it| it == ["--ipfix-targets", "$(IPFIX_COLLECTORS)"])
    );
}

#[test]
fn settings_of_containers_follow_the_configuration() {
    let mut spec = b();
    let config = ovn(&mut spec);
    config.hybrid_overlay_config = Some(crate::base::spec("{hybridOverlayVXLANPort: 4799}"));
    config.gateway_config = Some(crate::base::spec("{routingViaHost: true, ipForwarding: Global}"));
    config.policy_audit_config = Some(crate::base::spec(
        "{maxFileSize: 1, maxLogFiles: 2, destination: libc, syslogFacility: local3}",
    ));
    let settings = settings(&[
        ("OVN_NORTHD_PROBE_INTERVAL", "10000"),
        ("OVN_NB_INACTIVITY_PROBE", "1"),
    ]);
    let rendered = rendered_by(&spec, &facts(), &settings);
    let node = workload(&rendered, "ovnkube-node");
    let controller = container(node, "ovnkube-controller");
    for (name, value) in [
        ("OVN_NOTRACK_PORTS", "8061 4799"),
        ("OVN_IP_FORWARDING", "Global"),
        ("OVN_NODE_MODE", "full"),
        ("OVN_CONTROLLER_INACTIVITY_PROBE", "180000"),
        ("KUBERNETES_SERVICE_HOST", "api-int.example.com"),
        ("KUBERNETES_SERVICE_PORT", "6443"),
    ] {
        assert_eq!(variable(controller, name), Some(value), "{name}");
    }
    let flags = args(controller);
    assert!(
        flags.windows(2).any(|it| it == ["--gateway-mode", "local"]),
        "{flags:?}"
    );
    assert!(
        flags.contains(&"--bootstrap-kubeconfig=/var/lib/kubelet/kubeconfig"),
        "{flags:?}"
    );
    let logging = container(node, "ovn-acl-logging");
    assert_eq!(variable(logging, "MAX_FILE_BYTES"), Some("1000000"));
    assert_eq!(variable(logging, "MAX_LOG_FILES"), Some("2"));
    assert_eq!(
        args(container(node, "ovn-controller")),
        ["--syslog-method=libc", "-vFACILITY:local3"]
    );
    let database = container(node, "nbdb");
    assert_eq!(variable(database, "OVN_NORTHD_PROBE_INTERVAL"), Some("10000"));
    assert_eq!(variable(database, "OVN_NB_INACTIVITY_PROBE"), Some("1"));
    assert_eq!(
        node["metadata"]["annotations"]["networkoperator.openshift.io/default-masquerade-network-cidrs"],
        "169.254.0.0/17,fd69::/112"
    );
    let hybrid = "networkoperator.openshift.io/hybrid-overlay-status";
    assert_eq!(node["metadata"]["annotations"][hybrid], "enabled");
}

#[test]
fn single_control_plane_has_one_replica_and_no_initial_delay() {
    let facts = Facts {
        control_plane_nodes: 1,
        ..facts()
    };
    let rendered = rendered(&b(), &facts);
    assert_eq!(
        workload(&rendered, "ovnkube-control-plane")["spec"]["replicas"],
        1
    );
    let probe = &container(workload(&rendered, "ovnkube-node"), "nbdb")["readinessProbe"];
    assert!(probe.get("initialDelaySeconds").is_none(), "{probe}");
    assert!(conf(&rendered).contains("[clustermgrha]"));
}

#[test]
fn plain_cluster_needs_no_part_of_openshift() {
    let facts = Facts {
        openshift: false,
        labelled_master: false,
        monitoring: false,
        ..facts()
    };
    let rendered = rendered(&b(), &facts);
    assert!(
        ours(&rendered)
            .iter()
            .all(|it| it["apiVersion"] != "monitoring.coreos.com/v1")
    );
    let control_plane = workload(&rendered, "ovnkube-control-plane");
    let selector = &control_plane["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(
        *selector,
        json!({ "kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": "" })
    );
    // The certificate comes from an `OperatorPKI`.
    assert_eq!(
        volume(control_plane, "metrics-cert")["secret"],
        json!({ "secretName": "ovn-cert" })
    );
    let guard = container(control_plane, "kube-rbac-proxy");
    assert_eq!(guard["command"], json!(["kube-rbac-proxy", "--logtostderr"]));
    assert!(args(guard).contains(&"--tls-cert-file=/etc/pki/tls/metrics-cert/tls.crt"));
    let controller = container(workload(&rendered, "ovnkube-node"), "ovnkube-controller");
    assert!(args(controller).contains(&"--bootstrap-kubeconfig=/etc/kubernetes/kubelet.conf"));
    let mut without = settings(&[]);
    without.kube_rbac_proxy_image = None;
    let rendered = rendered_by(&b(), &facts, &without);
    assert!(ours(&rendered).iter().all(|it| it["kind"] != "Service"));
    assert!(
        !rendered
            .objects
            .iter()
            .any(|it| it.to_string().contains("\"kube-rbac-proxy\""))
    );
}

#[test]
fn missing_image_or_address_applies_nothing_of_it() {
    let mut without = settings(&[]);
    without.ovn.image = None;
    let failed = rendered_by(&b(), &facts(), &without);
    let parts: Vec<Part> = failed.failed.iter().map(|(part, _)| *part).collect();
    assert_eq!(parts, [Part::DefaultNetwork, Part::NodeIdentity]);
    assert!(failed.failed[0].1.contains("OVN_IMAGE"), "{:?}", failed.failed);
    assert!(ours(&failed).is_empty());
    let nowhere = Facts {
        api_server: ApiServer::default(),
        ..facts()
    };
    let failed = rendered_by(&b(), &nowhere, &settings(&[]));
    assert!(
        failed.failed[0].1.contains("APISERVER_OVERRIDE_HOST"),
        "{:?}",
        failed.failed
    );
}

#[test]
fn nodes_without_identity_use_the_service_account() {
    let mut facts = facts();
    facts.ovn.config_maps.node_identity = [("enabled".to_owned(), "false".to_owned())].into();
    let rendered = rendered(&b(), &facts);
    let name = "openshift-ovn-kubernetes-node-limited";
    for kind in ["RoleBinding", "ClusterRoleBinding"] {
        let binding = find(&rendered, kind, name).expect("a binding");
        assert_eq!(binding["subjects"][0]["name"], "ovn-kubernetes-node");
    }
    let node = workload(&rendered, "ovnkube-node");
    assert!(node["spec"]["template"]["spec"].get("initContainers").is_none());
    let flags = args(container(node, "ovnkube-controller"));
    assert!(
        !flags
            .iter()
            .any(|flag| flag.starts_with("--bootstrap-kubeconfig")),
        "{flags:?}"
    );
    assert!(find(&rendered, "DaemonSet", "network-node-identity").is_none());
    let with = super::tests::rendered(&b(), &super::tests::facts());
    let binding = find(
        &with,
        "ClusterRoleBinding",
        "openshift-ovn-kubernetes-node-identity-limited",
    );
    assert_eq!(
        binding.expect("a binding")["subjects"][0]["name"],
        "system:ovn-nodes"
    );
}

#[test]
fn script_is_one_that_a_shell_can_read() {
    let output = std::process::Command::new("bash")
        .args(["-n", "-c", include_str!("ovnkube-lib.sh")])
        .output();
    let output = output.expect("a shell");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The script defines each entry point that a container starts.
    let rendered = rendered(&spec_with_everything(), &facts());
    let script = include_str!("ovnkube-lib.sh");
    let text = serde_json::to_string(&rendered.objects).expect("JSON");
    let mut count = 0;
    for part in text.split("\"/ovnkube-lib/ovnkube-lib.sh\",\"").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        let is_defined = script.contains(&format!("\n{name}() {{"));
        assert!(is_defined, "{name}");
        count += 1;
    }
    assert!(count > 12, "{count}");
}

fn spec_with_everything() -> NetworkSpec {
    let mut all: NetworkSpec = spec("{deployKubeProxy: true}");
    let base = b();
    all.cluster_network = base.cluster_network;
    all.service_network = base.service_network;
    all.default_network = base.default_network;
    all.deploy_kube_proxy = None;
    ovn(&mut all).ipsec_config = Some(spec("{mode: Full}"));
    all
}

// cluster-network#74
#[test]
fn webhook_of_node_identity_waits_for_the_rest() {
    let waits = |is_bootstrapped: bool, bundle: &str, is_rolled_out: bool| {
        let mut facts = facts();
        facts.node_identity = crate::facts::NodeIdentity {
            is_bootstrapped,
            bundle: bundle.to_owned(),
            is_rolled_out,
        };
        let rendered = rendered(&b(), &facts);
        let configuration = find(
            &rendered,
            "ValidatingWebhookConfiguration",
            "network-node-identity.openshift.io",
        )
        .expect("a configuration");
        let names: Vec<&str> = configuration["webhooks"]
            .as_array()
            .expect("webhooks")
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "node.network-node-identity.openshift.io",
                "pod.network-node-identity.openshift.io"
            ]
        );
        let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"].clone();
        let annotations = &configuration["metadata"]["annotations"];
        (
            annotations
                .get("networkoperator.openshift.io/create-wait")
                .is_some(),
            bundle,
        )
    };
    assert!(waits(false, "CA", true).0);
    assert!(waits(true, "", true).0);
    assert!(waits(true, "CA", false).0);
    assert_eq!(waits(true, "CA", true), (false, json!("Q0E=")));
    let other = {
        let mut spec = b();
        "Calico".clone_into(&mut spec.default_network.kind);
        spec.default_network.ovn_kubernetes_config = None;
        spec.deploy_kube_proxy = Some(false);
        rendered(&spec, &facts())
    };
    assert!(find(&other, "DaemonSet", "network-node-identity").is_none());
}

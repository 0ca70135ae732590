//! Workloads for kinds of nodes, workloads that wait for other workloads, and workloads that encrypt.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tracing::{Event, Level, Metadata, Subscriber, span};

use super::*;
use crate::ovn::knobs::{self, Hardware};

/// `hardware-offload-config` with one key.
fn hardware(key: &str, value: &str) -> Result<Hardware, knobs::Error> {
    knobs::hardware(&[(key.to_owned(), value.to_owned())].into())
}

/// A log that counts warnings about `ConfigMaps`.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().ends_with("::knobs")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn invalid_label_of_hardware_offload_is_one_warning() {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(count.clone()), || {
        let mut facts = with_node(DPU, "");
        facts.ovn.config_maps.hardware = hardware("dpu-mode-label", "dpu");
        let rendered = with_kube_proxy(&facts);
        assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
    });
    assert_eq!(count.load(Relaxed), 1);
}

// cluster-network#43
#[test]
fn nodes_with_hardware_offload_have_workloads_of_their_own() {
    let labelled = |key: &str| {
        let mut facts = facts();
        let label = format!("network.operator.openshift.io/{key}");
        facts.ovn.offload_nodes = vec![("a".to_owned(), [(label, String::new())].into())];
        facts.ovn.config_maps.hardware = hardware("mgmt-port-resource-name", "openshift.io/mgmt");
        facts
    };
    let terms = |workload: &Value| {
        let affinity = &workload["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        required["nodeSelectorTerms"][0]["matchExpressions"].clone()
    };
    let rendered = rendered(&b(), &labelled("smart-nic"));
    let smart_nic = workload(&rendered, "ovnkube-node-smart-nic");
    assert_eq!(
        terms(smart_nic),
        json!([{ "key": "network.operator.openshift.io/smart-nic", "operator": "Exists" }])
    );
    assert_eq!(
        smart_nic["spec"]["selector"]["matchLabels"]["app"],
        "ovnkube-node-smart-nic"
    );
    let controller = container(smart_nic, "ovnkube-controller");
    assert_eq!(controller["resources"]["limits"]["openshift.io/mgmt"], "1");
    let exists = ["dpu-host", "dpu", "smart-nic"].map(
        |key| json!({ "key": format!("network.operator.openshift.io/{key}"), "operator": "DoesNotExist" }),
    );
    assert_eq!(terms(workload(&rendered, "ovnkube-node")), json!(exists));
    let rendered = super::rendered(&b(), &labelled("dpu-host"));
    let host = workload(&rendered, "ovnkube-node-dpu-host");
    assert_eq!(
        variable(container(host, "ovnkube-controller"), "OVN_NODE_MODE"),
        Some("dpu-host")
    );
    let mut both = labelled("smart-nic");
    let dpu = "network.operator.openshift.io/dpu".to_owned();
    both.ovn.offload_nodes[0].1.insert(dpu, String::new());
    let failed = rendered_by(&b(), &both, &settings(&[]));
    // kube-proxy might have to run on the node.
    let blocked = [Part::DefaultNetwork, Part::KubeProxy];
    let error = "node a has multiple hardware offload labels";
    assert_eq!(failed.failed, blocked.map(|part| (part, error.to_owned())));
}

/// The cluster with a node that has this label.
fn with_node(label: &str, value: &str) -> Facts {
    let mut facts = facts();
    facts.ovn.offload_nodes = vec![("a".to_owned(), [(label.to_owned(), value.to_owned())].into())];
    facts
}

fn with_kube_proxy(facts: &Facts) -> Rendered {
    let settings = settings(&[("KUBE_PROXY_IMAGE", "registry.example/kube-proxy:v1")]);
    rendered_by(&b(), facts, &settings)
}

/// Affinity to nodes with a label.
fn affinity(expression: &Value) -> Value {
    let terms = json!([{ "matchExpressions": [expression] }]);
    json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
    } })
}

const DPU: &str = "network.operator.openshift.io/dpu";

// cluster-network#179
#[test]
fn dpus_get_a_plugin_that_refuses_pods_instead_of_ovnkube_node() {
    let mut facts = with_node(DPU, "");
    let on = |facts: &Facts| {
        let rendered = with_kube_proxy(facts);
        assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
        let workload = workload(&rendered, "error-cni-plugin");
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], "registry.example/ovn:v1");
        let conf = find(&rendered, "ConfigMap", "error-cni-conf").expect("a map");
        let conf: Value =
            serde_json::from_str(conf["data"]["08-error-cni.conf"].as_str().expect("text")).expect("JSON");
        assert_eq!(conf["type"], "error-cni");
        let paths = ["cnibin", "host-cni-netd"].map(|it| volume(workload, it)["hostPath"]["path"].clone());
        (pod["affinity"].clone(), paths)
    };
    let (placed, paths) = on(&facts);
    assert_eq!(placed, affinity(&json!({ "key": DPU, "operator": "Exists" })));
    assert_eq!(paths, ["/opt/cni/bin", "/var/run/multus/cni/net.d"]);
    let names = ["error-cni-script", "error-cni-conf", "error-cni-plugin"];
    let kinds = ["ConfigMap", "ConfigMap", "DaemonSet"].into_iter().zip(names);
    for (kind, name) in kinds {
        let other = with_kube_proxy(&with_node("network.operator.openshift.io/dpu-host", ""));
        assert!(find(&other, kind, name).is_none(), "{name}");
    }
    // The label of the configuration.
    facts.ovn.config_maps.hardware = hardware("dpu-mode-label", "a/b=c");
    facts.ovn.offload_nodes = with_node("a/b", "c").ovn.offload_nodes;
    let expected = json!({ "key": "a/b", "operator": "In", "values": ["c"] });
    assert_eq!(on(&facts).0, affinity(&expected));
}

// cluster-network#180
#[test]
fn dpus_have_kube_proxy_and_no_other_node() {
    const NAME: &str = "openshift-kube-proxy";
    let facts = with_node(DPU, "");
    let rendered = with_kube_proxy(&facts);
    let pod = &workload(&rendered, NAME)["spec"]["template"]["spec"];
    let expected = affinity(&json!({ "key": DPU, "operator": "Exists" }));
    assert_eq!(pod["affinity"], expected);
    let config = find(&rendered, "ConfigMap", "proxy-config").expect("a map");
    let file = config["data"]["kube-proxy-config.yaml"].as_str().expect("text");
    assert!(file.contains(r#"bindAddress: "0.0.0.0""#), "{file}");
    // Other nodes have OVN-Kubernetes.
    let none = with_kube_proxy(&super::facts());
    assert!(find(&none, "DaemonSet", NAME).is_none());
    // Another installer's kube-proxy runs on DPUs too.
    let foreign = Facts {
        foreign_kube_proxy: Some("kube-system/kube-proxy".to_owned()),
        ..facts.clone()
    };
    let foreign = with_kube_proxy(&foreign);
    assert!(foreign.failed.is_empty() && find(&foreign, "DaemonSet", NAME).is_none());
    // Without an image.
    let failed = rendered_by(&b(), &facts, &settings(&[])).failed;
    assert!(
        matches!(&failed[..], [(Part::KubeProxy, text)] if text.contains("DPUs")),
        "{failed:?}"
    );
}

// cluster-network#181
#[test]
fn plugin_of_dpus_answers_each_command() {
    let run = |command: &str| {
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", include_str!("../error-cni.sh")])
            .env("CNI_COMMAND", command)
            .output();
        let output = output.expect("a shell");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), answer)
    };
    let details = "Only host backed pods supported on DPU in Infra Cluster.";
    assert_eq!(
        run("ADD"),
        (
            Some(1),
            json!({ "cniVersion": "0.4.0", "code": 7, "msg": "Not Supported", "details": details })
        )
    );
    assert_eq!(run("DEL"), (Some(0), Value::Null));
    assert_eq!(
        run("VERSION"),
        (
            Some(0),
            json!({ "cniVersion": "0.4.0", "supportedVersions": ["0.3.0", "0.3.1", "0.4.0"] })
        )
    );
    let (code, answer) = run("CHECK");
    assert_eq!((code, &answer["code"]), (Some(1), &json!(4)));
    assert_eq!(answer["details"], "Unknown cni command: CHECK");
}

fn existing(version: &str, ip_family: &str, is_progressing: bool) -> Workload {
    Workload {
        version: version.to_owned(),
        ip_family: ip_family.to_owned(),
        is_progressing,
    }
}

fn waits(rendered: &Rendered, name: &str) -> bool {
    let annotations = &workload(rendered, name)["metadata"]["annotations"];
    annotations
        .get("networkoperator.openshift.io/create-only")
        .is_some()
}

// cluster-network#44
#[test]
fn workloads_that_are_not_updated_yet_stay_as_they_are() {
    const OLD: &str = "4.19.0";
    const NEW: &str = "4.21.0";
    // Version and progress of node and control plane, and whether the image is pulled. Then: whether each of the two
    // waits.
    for (node, control_plane, is_pulled, expected) in [
        ((OLD, false), (OLD, false), false, (true, true)),
        ((OLD, false), (OLD, false), true, (false, true)),
        ((RELEASE, true), (OLD, false), true, (false, true)),
        ((RELEASE, false), (OLD, false), true, (false, false)),
        ((RELEASE, false), (RELEASE, false), true, (false, false)),
        ((NEW, false), (NEW, false), true, (true, false)),
        ((NEW, false), (RELEASE, true), true, (true, false)),
        ((NEW, false), (RELEASE, false), true, (false, false)),
    ] {
        let mut facts = facts();
        let family = "single-stack";
        facts.ovn.existing.node = Some(existing(node.0, family, node.1));
        facts.ovn.existing.control_plane = Some(existing(control_plane.0, family, control_plane.1));
        facts.ovn.existing.prepuller = is_pulled.then(|| existing(RELEASE, "", false));
        let rendered = rendered(&b(), &facts);
        let found = (
            waits(&rendered, "ovnkube-node"),
            waits(&rendered, "ovnkube-control-plane"),
        );
        assert_eq!(found, expected, "{node:?} {control_plane:?} {is_pulled}");
        let prepuller = find(&rendered, "DaemonSet", "ovnkube-upgrades-prepuller");
        assert_eq!(prepuller.is_some(), !is_pulled);
    }
}

// cluster-network#45
#[test]
fn nodes_wait_while_the_control_plane_changes_families() {
    let mut dual = b();
    dual.cluster_network = vec![entry("10.128.0.0/14", 23), entry("fd01::/48", 64)];
    dual.service_network = texts(&["172.30.0.0/16", "fd02::/112"]);
    for (control_plane, is_progressing, expected) in [
        ("single-stack", false, (true, false)),
        ("dual-stack", true, (true, false)),
        ("dual-stack", false, (false, false)),
    ] {
        let mut facts = facts();
        // An upgrade of the version waits too.
        facts.ovn.existing.node = Some(existing("4.19.0", "single-stack", false));
        facts.ovn.existing.control_plane = Some(existing("4.19.0", control_plane, is_progressing));
        let rendered = rendered(&dual, &facts);
        let found = (
            waits(&rendered, "ovnkube-node"),
            waits(&rendered, "ovnkube-control-plane"),
        );
        assert_eq!(found, expected, "{control_plane} {is_progressing}");
        let node = workload(&rendered, "ovnkube-node");
        let family = &node["metadata"]["annotations"]["networkoperator.openshift.io/ip-family-mode"];
        assert_eq!(family, "dual-stack");
    }
}

// cluster-network#46
#[test]
fn encrypting_workloads_follow_the_mode_and_the_machines() {
    let found = |mode: &str, facts_of: ipsec::Facts| {
        let mut spec = b();
        ovn(&mut spec).ipsec_config = Some(crate::base::spec(mode));
        let mut facts = facts();
        facts.ovn.encryption = facts_of;
        let rendered = rendered(&spec, &facts);
        let node = workload(&rendered, "ovnkube-node");
        let is_annotated =
            node["metadata"]["annotations"]["networkoperator.openshift.io/ipsec-enabled"] == "true";
        assert_eq!(
            variable(container(node, "nbdb"), "OVN_IPSEC") == Some("true"),
            is_annotated
        );
        assert!(!conf(&rendered).contains("ipsec"));
        let mut names: Vec<String> = Vec::new();
        for object in ours(&rendered) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if name.contains("ipsec") {
                let annotations = &object["metadata"]["annotations"];
                let waits = annotations
                    .get("networkoperator.openshift.io/create-wait")
                    .is_some();
                names.push(format!("{name}{}", if waits { " waits" } else { "" }));
            }
        }
        (is_annotated, names.join(", "))
    };
    let machines = "80-ipsec-master-extensions, 80-ipsec-worker-extensions";
    let workloads = "ovn-ipsec-host, ovn-ipsec-containerized";
    let able = ipsec::Facts {
        node: Some(ipsec::Node::default()),
        can_configure_machines: true,
        ..ipsec::Facts::default()
    };
    for mode in ["{}", "{mode: Full}"] {
        assert_eq!(
            found(mode, able),
            (true, format!("{machines}, {workloads}")),
            "{mode}"
        );
    }
    let unable = ipsec::Facts {
        can_configure_machines: false,
        ..able
    };
    assert_eq!(found("{mode: Full}", unable), (true, workloads.to_owned()));
    let ready = ipsec::Facts {
        node: Some(ipsec::Node {
            says_so: true,
            ..ipsec::Node::default()
        }),
        has_ours: true,
        are_machines_ready: true,
        ..able
    };
    assert_eq!(
        found("{mode: Full}", ready),
        (true, format!("{machines}, ovn-ipsec-host"))
    );
    let hosted = ipsec::Facts {
        is_hosted: true,
        ..able
    };
    assert_eq!(
        found("{mode: Full}", hosted),
        (true, "ovn-ipsec-containerized".to_owned())
    );
    assert_eq!(found("{mode: External}", able), (false, machines.to_owned()));
    let users = ipsec::Facts {
        has_users: true,
        ..able
    };
    assert_eq!(found("{mode: Full}", users), (true, workloads.to_owned()));
    // `IPsec` is disabled: OVN stops first.
    assert_eq!(
        found("{mode: Disabled}", ready),
        (false, format!("{machines}, ovn-ipsec-host waits"))
    );
    let off = ipsec::Facts {
        node: Some(ipsec::Node::default()),
        ..ready
    };
    assert_eq!(found("{mode: Disabled}", off), (false, String::new()));
}

#[test]
fn two_workloads_that_encrypt_choose_on_the_node() {
    let mut spec = b();
    ovn(&mut spec).ipsec_config = Some(crate::base::spec("{mode: Full, full: {encapsulation: Always}}"));
    let mut facts = facts();
    let number = |facts: &Facts, name: &str| {
        let rendered = rendered(&spec, facts);
        let value = variable(
            container(workload(&rendered, name), "ovn-ipsec"),
            "IPSEC_DAEMON_SETS",
        );
        value.map(str::to_owned)
    };
    assert_eq!(number(&facts, "ovn-ipsec-host").as_deref(), Some("both"));
    facts.ovn.encryption.is_hosted = true;
    assert_eq!(number(&facts, "ovn-ipsec-containerized").as_deref(), Some("one"));
    let rendered = rendered(&spec, &facts);
    let database = container(workload(&rendered, "ovnkube-node"), "nbdb");
    assert_eq!(variable(database, "OVN_IPSEC_ENCAPSULATION"), Some("true"));
}

// cluster-network#158
#[test]
fn servers_beside_the_network_follow_the_tls_profile() {
    const FLAG: &str = "--tls-min-version=VersionTLS13";
    let servers = |facts: &Facts| -> Vec<(String, bool)> {
        let mut spec = b();
        spec.deploy_kube_proxy = Some(true);
        let rendered = rendered_by(&spec, facts, &settings(&[("KUBE_PROXY_IMAGE", "kube-proxy")]));
        assert!(rendered.failed.is_empty(), "{:?}", rendered.failed);
        let containers = rendered
            .objects
            .iter()
            .filter_map(|object| object.pointer("/spec/template/spec/containers")?.as_array())
            .flatten();
        let names = containers.filter_map(|container| {
            let name = container["name"].as_str()?;
            let is_server = name.starts_with("kube-rbac-proxy") || name == "webhook";
            is_server.then(|| (name.to_owned(), container.to_string().contains(FLAG)))
        });
        names.collect()
    };
    let mut facts = facts();
    let without = servers(&facts);
    assert!(
        without.len() >= 5 && without.iter().all(|(_, has)| !has),
        "{without:?}"
    );
    facts.tls_profile = Profile::of(&json!({ "spec": {
        "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": { "type": "Modern" },
    } }));
    let with = servers(&facts);
    assert_eq!(with.len(), without.len());
    assert!(with.iter().all(|(_, has)| *has), "{with:?}");
}

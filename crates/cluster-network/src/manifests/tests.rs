use std::{fs, path::Path};

use serde_json::json;

use super::{Images, Install, everything, files, operator};

fn install() -> Install<'static> {
    Install {
        image: "registry.example/weft:v0.1.0",
        version: "0.1.0",
        pull_policy: "IfNotPresent",
        images: Images::default(),
        api_server: None,
    }
}

#[test]
fn checked_in_files_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cluster-network");
    for (name, fresh) in files(&install()).expect("files") {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::create_dir_all(&folder).expect("a directory");
            fs::write(&path, &fresh).expect("a written file");
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == fresh,
            "{} is stale: run the tests of this crate once with UPDATE_GENERATED=1, and review the difference",
            path.display()
        );
    }
}

#[test]
fn everything_is_rendered() {
    // No other test would find a kind that is missing in the rights.
    let all = everything();
    let kinds: Vec<String> = all
        .iter()
        .map(|object| object["kind"].as_str().unwrap_or_default().to_owned())
        .collect();
    let names: Vec<&str> = all
        .iter()
        .filter_map(|it| it["metadata"]["name"].as_str())
        .collect();
    for name in [
        "pod-network",
        "ovnkube-node",
        "ovnkube-node-smart-nic",
        "ovnkube-node-dpu-host",
        "error-cni-plugin",
        "ovnkube-upgrades-prepuller",
        "ovn-ipsec-host",
        "ovn-ipsec-containerized",
        "80-ipsec-worker-extensions",
        "routeadvertisements.k8s.ovn.org",
        "frr-k8s",
        "frr-k8s-validating-webhook-configuration-ocp",
        "networking-console-plugin",
        "network-metrics-daemon",
        "iptables-alerter",
        "grafana-dashboard-network-stats",
        "grafana-dashboard-ovn-health",
        "cloudprivateipconfigs.cloud.network.openshift.io",
        "cloud-network-config-controller-rb",
        "vteps.k8s.ovn.org",
        "openshift-ovn-kubernetes-node-limited",
        "openshift-ovn-kubernetes-nodes-identity-limited",
        "network-node-identity.openshift.io",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    for kind in [
        "DaemonSet",
        "Deployment",
        "ServiceMonitor",
        "ValidatingAdmissionPolicy",
        "NetworkAttachmentDefinition",
    ] {
        assert!(kinds.iter().any(|it| it == kind), "{kind}");
    }
}

#[test]
fn operator_is_no_administrator() {
    for object in operator(&install()).expect("objects") {
        if object["kind"] == "ClusterRoleBinding" {
            assert_eq!(object["roleRef"]["name"], "cluster-network-operator");
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            for field in ["apiGroups", "resources", "verbs"] {
                let has_all = rule[field].as_array().into_iter().flatten().any(|it| it == "*");
                assert!(!has_all, "{rule}");
            }
            let verbs = rule["verbs"].as_array().cloned().unwrap_or_default();
            let groups = &rule["apiGroups"];
            if groups == &json!(["flows.netobserv.io"]) || groups == &json!(["olm.operatorframework.io"]) {
                // Both belong to the users as soon as they exist.
                assert!(rule["resourceNames"].is_array(), "{rule}");
                assert!(!verbs.contains(&json!("delete")), "{rule}");
            }
            if verbs.iter().any(|verb| verb == "escalate" || verb == "bind") {
                assert!(rule["resourceNames"].is_array(), "{rule}");
            }
        }
    }
}

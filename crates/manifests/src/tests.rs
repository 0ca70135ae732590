//! The files of an installation against operator §11 and §13, and the checked-in files against the rendered ones.

use std::{collections::BTreeSet, path::Path};

use super::*;

mod roles;

/// `group resource verb`, with the names of a rule that has them.
type Permissions = BTreeSet<String>;

fn install() -> Install<'static> {
    Install {
        image: "registry.example/weft:v1",
        namespace: "addons",
        version: "1:2",
        pull_policy: "Always",
    }
}

fn files(install: &Install<'_>) -> Vec<(&'static str, Vec<Value>)> {
    let files = render_install(install).expect("an installation");
    files
        .into_iter()
        .map(|(name, yaml)| (name, serde_saphyr::from_multiple(&yaml).expect("YAML")))
        .collect()
}

fn operator(kind: &str) -> Value {
    let (_, objects) = files(&install()).remove(2);
    objects
        .into_iter()
        .find(|object| object["kind"] == kind)
        .expect("the object")
}

/// The role for upstream's images.
fn upstream() -> Value {
    let (_, objects) = files(&install()).remove(2);
    let named = |object: &Value| {
        object["kind"] == "ClusterRole"
            && object["metadata"]["name"] == "cluster-network-addons-operator-established"
    };
    objects.into_iter().find(named).expect("the role")
}

fn permissions(role: &Value) -> Permissions {
    let list = |rule: &Value, key: &str| -> Vec<String> {
        let list = rule
            .get(key)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        list.iter()
            .map(|item| item.as_str().expect("a word").to_owned())
            .collect()
    };
    let mut all = Permissions::new();
    for rule in role["rules"].as_array().expect("rules") {
        let names = list(rule, "resourceNames").join(",");
        for path in list(rule, "nonResourceURLs") {
            all.extend(list(rule, "verbs").iter().map(|verb| format!("/{path} {verb}")));
        }
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                for verb in list(rule, "verbs") {
                    all.insert(format!("{group}/{resource} {verb} {names}").trim_end().to_owned());
                }
            }
        }
    }
    all
}

/// Parses lines `group!resource,resource: verb verb of name,name`; most have no names.
fn expected(table: &str) -> Permissions {
    let mut all = Permissions::new();
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (resources, verbs) = line.split_once(": ").expect("resources and verbs");
        let (group, resources) = resources.split_once('!').expect("group and resources");
        let (verbs, names) = verbs.split_once(" of ").unwrap_or((verbs, ""));
        for resource in resources.split(',') {
            for verb in verbs.split(' ') {
                all.insert(format!("{group}/{resource} {verb} {names}").trim_end().to_owned());
            }
        }
    }
    all
}

/// Cluster role of the node state operator, nmstate §12.
const NODE_STATE: &str = "
    !events: create
    !nodes: get list watch
    nmstate.io!nodenetworkstates: get list watch create update
    nmstate.io!nodenetworkconfigurationpolicies: get list watch
    nmstate.io!nodenetworkconfigurationenactments: get list watch create delete
    nmstate.io!nodenetworkstates/status,nodenetworkconfigurationpolicies/status: update
    nmstate.io!nodenetworkconfigurationenactments/status: update
    security.openshift.io!securitycontextconstraints: use of privileged
    authentication.k8s.io!tokenreviews: create
    authorization.k8s.io!subjectaccessreviews: create
    !/metrics: get
    !endpoints: get of kubernetes
    !namespaces: get list watch create update
    admissionregistration.k8s.io!mutatingwebhookconfigurations: get list watch create update delete
    admissionregistration.k8s.io!validatingadmissionpolicies: get list watch create update delete
    admissionregistration.k8s.io!validatingadmissionpolicybindings: get list watch create update delete
    apiextensions.k8s.io!customresourcedefinitions: list watch create
    apiextensions.k8s.io!customresourcedefinitions: get update of \
nodenetworkconfigurationenactments.nmstate.io,nodenetworkconfigurationpolicies.nmstate.io,nodenetworkstates.nmstate.io
    config.openshift.io!apiservers: get list watch
    console.openshift.io!consoleplugins: get list watch create update delete
    nmstate.io!nmstates: get list watch delete
    nmstate.io!nmstates/finalizers: update
    nmstate.io!nmstates/status: patch
    operator.openshift.io!consoles: get update of cluster
    rbac.authorization.k8s.io!clusterroles,clusterrolebindings: get list watch create update delete
    rbac.authorization.k8s.io!roles,rolebindings: get list watch create update delete";

/// Role of the node state operator in the namespace of the handlers, nmstate §12.
const NODE_STATE_NAMESPACE: &str = "
    !configmaps,secrets,serviceaccounts,services: get list watch create update delete
    !endpoints,pods: get list watch
    apps!deployments,daemonsets: get list watch create update delete
    networking.k8s.io!networkpolicies: get list watch create update delete
    policy!poddisruptionbudgets: get list watch create update delete
    monitoring.coreos.com!prometheusrules,servicemonitors: get list watch create update";

#[test]
fn roles_of_node_state_operator_equal_tables() {
    let (_, objects) = files(&install()).remove(2);
    let roles: Vec<_> = objects.iter().rev().take(2).map(permissions).collect();
    assert_eq!(roles, [expected(NODE_STATE_NAMESPACE), expected(NODE_STATE)]);
}

#[test]
fn cluster_roles_name_all_changed_objects() {
    let of_operands = [
        // IPAMClaims, status of pods and nodes, finalizers of machines: only granted to operands.
        "k8s.cni.cncf.io/ipamclaims update",
        "k8s.cni.cncf.io/ipamclaims delete",
        "k8s.cni.cncf.io/ipamclaims/status update",
        "/pods/status update",
        "/nodes/status patch",
        "kubevirt.io/virtualmachines update",
        "kubevirt.io/virtualmachines/finalizers update",
        "kubevirt.io/virtualmachineinstances/finalizers update",
    ];
    let own = [
        "networkaddonsoperator.network.kubevirt.io/networkaddonsconfigs/status patch",
        "networkaddonsoperator.network.kubevirt.io/networkaddonsconfigs/finalizers update",
        "/events patch",
        "events.k8s.io/events patch",
    ];
    for permission in permissions(&operator("ClusterRole")) {
        let words: Vec<_> = permission.split(' ').collect();
        let changes = ["bind", "delete", "escalate", "patch", "update", "*"].contains(&words[1]);
        if changes && words.len() == 2 {
            let known = [&of_operands[..], &own].concat();
            assert!(known.contains(&permission.as_str()), "{permission}");
        }
        assert!(!permission.starts_with("/secrets"), "{permission}");
        assert_ne!(words[1], "escalate");
    }
}

#[test]
fn files_have_objects_in_order() {
    let files = files(&install());
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "namespace.yaml",
            "network-addons-config.crd.yaml",
            "operator.yaml",
            "network-addons-config-example.cr.yaml"
        ]
    );
    let kinds: Vec<_> = files[2].1.iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(
        kinds,
        [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "ClusterRole",
            "ClusterRoleBinding",
            "Deployment",
            "ClusterRole",
            "ClusterRole"
        ]
    );
    let (own, granted) = files[2].1.split_at(8);
    for (role, name) in granted.iter().zip(["", "-namespace"]) {
        assert_eq!(
            role["metadata"],
            json!({
                "name": format!("cluster-network-addons-nmstate-operator{name}"),
                "labels": { "name": "cluster-network-addons-operator" },
            })
        );
    }
    let binding = &own[6];
    assert_eq!(
        binding["roleRef"]["name"],
        "cluster-network-addons-operator-established"
    );
    assert_eq!(binding["subjects"][0]["name"], "cluster-network-addons-operator");
    for (index, object) in own.iter().enumerate() {
        let name = match index {
            5 | 6 => "cluster-network-addons-operator-established",
            _ => "cluster-network-addons-operator",
        };
        assert_eq!(object["metadata"]["name"], name);
        if object["kind"].as_str().is_some_and(|kind| kind.ends_with("Role")) {
            assert_eq!(
                object["metadata"]["labels"],
                json!({ "name": "cluster-network-addons-operator" })
            );
        }
        let cluster_scoped = object["kind"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("Cluster"));
        let namespace = object["metadata"].get("namespace");
        assert_eq!(namespace, (!cluster_scoped).then_some(&json!("addons")));
        for subject in object
            .get("subjects")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            assert_eq!(subject["namespace"], "addons");
        }
    }
    assert_eq!(
        files[0].1,
        [json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "addons", "labels": {
                "name": "addons", "openshift.io/cluster-monitoring": "true",
                "pod-security.kubernetes.io/enforce": "privileged",
                "pod-security.kubernetes.io/audit": "privileged",
                "pod-security.kubernetes.io/warn": "privileged",
            } },
        })]
    );
    assert_eq!(
        files[1].1[0]["metadata"]["name"],
        "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io"
    );
    assert_eq!(
        files[3].1,
        [json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" },
            "spec": {
                "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "kubeMacPool": {}, "ovs": {},
                "macvtap": {}, "kubeSecondaryDNS": {}, "kubevirtIpamController": {},
                "imagePullPolicy": "IfNotPresent",
            },
        })]
    );
}

#[test]
fn deployment_equals_specification() {
    let value = |name: &str, value: &str| json!({ "name": name, "value": value });
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    assert_eq!(
        operator("Deployment"),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "cluster-network-addons-operator", "namespace": "addons",
                "annotations": { "networkaddonsoperator.network.kubevirt.io/version": "1_2" },
                "labels": { "prometheus.cnao.io": "true" },
            },
            "spec": {
                "replicas": 1,
                "strategy": { "type": "Recreate" },
                "selector": { "matchLabels": { "name": "cluster-network-addons-operator" } },
                "template": {
                    "metadata": {
                        "labels": {
                            "name": "cluster-network-addons-operator",
                            "prometheus.cnao.io": "true",
                            "np.kubevirt.io/allow-access-cluster-services": "",
                            "np.kubevirt.io/allow-prometheus-access": "",
                        },
                        "annotations": {
                            "description": "Deploys and configures the network add-ons of the cluster",
                        },
                    },
                    "spec": {
                        "serviceAccountName": "cluster-network-addons-operator",
                        "priorityClassName": "system-cluster-critical",
                        "securityContext": {
                            "runAsNonRoot": true, "runAsUser": 1001, "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "containers": [{
                            "name": "cluster-network-addons-operator",
                            "image": "registry.example/weft:v1",
                            "imagePullPolicy": "Always",
                            "command": ["/weft", "operator"],
                            "env": [
                                value("MULTUS_IMAGE", ""),
                                value("MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE", ""),
                                value("LINUX_BRIDGE_IMAGE", ""),
                                value("LINUX_BRIDGE_MARKER_IMAGE", ""),
                                value("OVS_CNI_IMAGE", ""),
                                value("KUBEMACPOOL_IMAGE", ""),
                                value("MACVTAP_CNI_IMAGE", ""),
                                value("KUBE_SECONDARY_DNS_IMAGE", ""),
                                value("CORE_DNS_IMAGE", ""),
                                value("KUBEVIRT_IPAM_CONTROLLER_IMAGE", ""),
                                value("OPERATOR_IMAGE", "registry.example/weft:v1"),
                                value("OPERATOR_NAME", "cluster-network-addons-operator"),
                                value("OPERATOR_VERSION", "1:2"),
                                field("OPERATOR_NAMESPACE", "metadata.namespace"),
                                field("OPERAND_NAMESPACE", "metadata.namespace"),
                                field("POD_NAME", "metadata.name"),
                                value("WATCH_NAMESPACE", ""),
                                value("MONITORING_NAMESPACE", "openshift-monitoring"),
                                value("MONITORING_SERVICE_ACCOUNT", "prometheus-k8s"),
                                value("RUNBOOK_URL_TEMPLATE", "https://kubevirt.io/monitoring/runbooks/%s"),
                                value("CNAO_LOG_LEVEL", "0"),
                            ],
                            "ports": [
                                { "name": "healthprobe", "containerPort": 8081 },
                                { "name": "metrics", "containerPort": 8443, "protocol": "TCP" },
                            ],
                            "livenessProbe": {
                                "httpGet": { "path": "/healthz", "port": "healthprobe" },
                                "initialDelaySeconds": 15, "periodSeconds": 20,
                            },
                            "readinessProbe": {
                                "httpGet": { "path": "/readyz", "port": "healthprobe" },
                                "initialDelaySeconds": 5, "periodSeconds": 10,
                            },
                            "resources": { "requests": { "cpu": "50m", "memory": "30Mi" } },
                            "securityContext": {
                                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                                "capabilities": { "drop": ["ALL"] },
                            },
                            "terminationMessagePolicy": "FallbackToLogsOnError",
                        }],
                    },
                },
            },
        })
    );
}

#[test]
fn operand_image_argument_needs_known_variable() {
    assert_eq!(
        operand_image("MULTUS_IMAGE=r.example/multus:1"),
        Ok(("MULTUS_IMAGE", "r.example/multus:1".to_owned()))
    );
    for (text, complaint) in [
        ("MULTUS_IMAGE=", "it names no image"),
        ("OVS_MARKER_IMAGE=r.example/x", "not one of MULTUS_IMAGE, "),
        ("r.example/x", "not one of "),
    ] {
        let error = operand_image(text).expect_err("an error");
        assert!(error.starts_with(complaint), "{error}");
    }
}

#[test]
fn checked_in_files_are_up_to_date() {
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let image = format!("registry.example/weft:{version}");
    let install = Install {
        image: &image,
        namespace: names::DEFAULT_NAMESPACE,
        version: env!("CARGO_PKG_VERSION"),
        pull_policy: "IfNotPresent",
    };
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let operator = render_install(&install).expect("an installation");
    let admission = render_admission().expect("the admission policy");
    let pool = mac_pool::render(&install).expect("the pool");
    let multus = multus_alone::render(&install).expect("multus alone");
    let network = pod_network::render(&install).expect("the pod network");
    for (dir, name, fresh) in operator
        .into_iter()
        .chain(admission)
        .map(|(name, fresh)| ("install", name, fresh))
        .chain(pool.into_iter().map(|(name, fresh)| ("", name, fresh)))
        .chain(
            multus
                .into_iter()
                .map(|(name, fresh)| (multus_alone::FOLDER, name, fresh)),
        )
        .chain(
            network
                .into_iter()
                .map(|(name, fresh)| (pod_network::FOLDER, name, fresh)),
        )
    {
        let dir = deploy.join(dir);
        let path = dir.join(name);
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::create_dir_all(&dir).expect("a directory");
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

//! What the accounts of operands may do, and what whoever takes over one of their pods gains.

use cluster::Kubectl;
use operator::manifests::{MARKERS_FILE, render_admission};
use serde_json::{Value, json};

use stage::until;

use crate::fixture::Fixture;

/// What an account may do, and what it may not: verb and resource, with a subresource behind a slash.
struct Rights {
    account: &'static str,
    binding: &'static str,
    may: &'static [&'static str],
    may_not: &'static [&'static str],
}

/// Of those whose pods are on every node: one node that is taken over must not lead to the others.
const NODES: [Rights; 3] = [
    Rights {
        account: "multus",
        binding: "multus",
        may: &[
            "get network-attachment-definitions.k8s.cni.cncf.io",
            "watch network-attachment-definitions.k8s.cni.cncf.io",
            "watch pods",
            "update pods/status",
            "create events",
            "get resourceclaims.resource.k8s.io",
            // By both it knows that it leaves the node.
            "get daemonsets.apps multus",
            "get nodes",
        ],
        may_not: &[
            "create network-attachment-definitions.k8s.cni.cncf.io",
            "update network-attachment-definitions.k8s.cni.cncf.io",
            "patch network-attachment-definitions.k8s.cni.cncf.io",
            "delete network-attachment-definitions.k8s.cni.cncf.io",
            "update ipamclaims.k8s.cni.cncf.io",
            "update pods",
            "patch pods",
            "create pods",
            "create pods/exec",
            "get secrets",
            "list nodes",
            "update nodes",
            "patch nodes/status",
            "get daemonsets.apps another",
            "update daemonsets.apps multus",
        ],
    },
    Rights {
        account: "dynamic-networks-controller",
        binding: "dynamic-networks-controller",
        may: &[
            "get network-attachment-definitions.k8s.cni.cncf.io",
            "watch pods",
            "update pods/status",
        ],
        may_not: &[
            "update network-attachment-definitions.k8s.cni.cncf.io",
            "delete network-attachment-definitions.k8s.cni.cncf.io",
            "update pods",
            "patch pods",
            "get secrets",
        ],
    },
    Rights {
        account: "bridge-marker",
        binding: "bridge-marker-crb",
        may: &["get nodes", "patch nodes/status"],
        may_not: &[
            "update nodes",
            "patch nodes",
            "update nodes/status",
            "list nodes",
            "get pods",
            "get secrets",
        ],
    },
];

/// What the MAC pool may do: its pods are on one node, and it needs nothing of other namespaces but to look at it.
const POOL: &str = "kubemacpool-sa";
const POOL_EVERYWHERE: [&str; 5] = [
    "watch pods",
    "watch namespaces",
    "create events",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
    "watch mutatingwebhookconfigurations.admissionregistration.k8s.io kubemacpool-mutator",
];
const POOL_AT_HOME: [&str; 5] = [
    "create secrets",
    "update secrets kubemacpool-service",
    "update secrets kubemacpool-mutator-ca",
    "watch secrets kubemacpool-service",
    "watch configmaps kubemacpool-mac-range-config",
];
const POOL_NOWHERE: [&str; 9] = [
    "list secrets",
    "create secrets",
    "update secrets kubemacpool-service",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "list mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "list validatingwebhookconfigurations.admissionregistration.k8s.io",
    "list configmaps",
    "update pods",
    "get customresourcedefinitions.apiextensions.k8s.io",
];
const POOL_NOT_EVEN_AT_HOME: [&str; 5] = [
    "list secrets",
    "get secrets webhook-server-cert",
    "update secrets webhook-server-cert",
    "list configmaps",
    "delete configmaps kubemacpool-mac-range-config",
];

/// What nobody gains with the operator where no established image is granted anything.
const OPERATOR: &str = "cluster-network-addons-operator";
const OPERATOR_NOWHERE: [&str; 17] = [
    "list secrets",
    "create secrets",
    "update secrets",
    "list configmaps",
    "update pods",
    "update nodes",
    "update nodes/status",
    "patch nodes",
    "delete services",
    "create deployments.apps",
    "update mutatingwebhookconfigurations.admissionregistration.k8s.io another",
    "delete mutatingwebhookconfigurations.admissionregistration.k8s.io another",
    "update customresourcedefinitions.apiextensions.k8s.io another",
    "bind clusterroles.rbac.authorization.k8s.io cluster-admin",
    "update clusterroles.rbac.authorization.k8s.io cluster-admin",
    "delete clusterrolebindings.rbac.authorization.k8s.io cluster-admin",
    "escalate clusterroles.rbac.authorization.k8s.io multus",
];
const OPERATOR_NOT_EVEN_AT_HOME: [&str; 3] =
    ["list secrets", "get secrets another", "update secrets another"];

/// Rights that only established images need: the binding that may be taken away.
const ESTABLISHED: &str = "cluster-network-addons-operator-established";

/// Whether an account may do something, everywhere or in a namespace.
fn can(kubectl: &Kubectl, account: &str, right: &str, namespace: Option<&str>) -> bool {
    let mut words = right.split(' ');
    let verb = words.next().expect("a verb");
    let resource = words.next().expect("a resource");
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let resource = words
        .next()
        .map_or_else(|| resource.to_owned(), |name| format!("{resource}/{name}"));
    let subresource = format!("--subresource={subresource}");
    let place = namespace.map_or_else(
        || "--all-namespaces".to_owned(),
        |namespace| format!("--namespace={namespace}"),
    );
    let question = [
        "auth",
        "can-i",
        verb,
        &resource,
        &subresource,
        &place,
        "--as",
        account,
    ];
    kubectl.run(question).is_ok()
}

/// Waits until an account has rights: the API server hears of a binding some time after it was made.
fn wait_until_let(kubectl: &Kubectl, account: &str, rights: &[&str], namespace: Option<&str>) {
    for right in rights {
        until(&format!("{account} to be let: {right}"), || {
            can(kubectl, account, right, namespace).then_some(()).ok_or("no")
        });
    }
}

fn assert_not_let(kubectl: &Kubectl, account: &str, rights: &[&str], namespace: Option<&str>) {
    for right in rights {
        assert!(
            !can(kubectl, account, right, namespace),
            "{account} does not need: {right}"
        );
    }
}

fn account_in(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

// operands#26
#[test]
fn a_pod_that_is_taken_over_changes_no_network_and_no_other_node() {
    let mut fixture = Fixture::installed("rights");
    fixture.set("MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE", "");
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {} }));
    for Rights {
        account,
        binding,
        may,
        may_not,
    } in &NODES
    {
        fixture.wait_for_operand("clusterrolebinding", binding, |_| Some(()));
        let account = account_in(fixture.namespace, account);
        wait_until_let(fixture.kubectl(), &account, may, None);
        assert_not_let(fixture.kubectl(), &account, may_not, None);
    }
}

// operands#30
#[test]
fn the_mac_pool_has_its_own_secrets_and_its_own_webhook_alone() {
    let fixture = Fixture::running("rights-pool");
    fixture.configure(&json!({ "kubeMacPool": {} }));
    fixture.wait_for_operand("clusterrolebinding", "kubemacpool-manager-rolebinding", |_| {
        Some(())
    });
    let (kubectl, home) = (fixture.kubectl(), Some(fixture.namespace));
    let account = account_in(fixture.namespace, POOL);
    wait_until_let(kubectl, &account, &POOL_EVERYWHERE, None);
    wait_until_let(kubectl, &account, &POOL_AT_HOME, home);
    assert_not_let(kubectl, &account, &POOL_NOWHERE, None);
    assert_not_let(kubectl, &account, &POOL_NOT_EVEN_AT_HOME, home);
}

// operator#82
#[test]
fn native_components_need_no_operator_that_is_as_powerful_as_an_administrator() {
    let mut fixture = Fixture::installed("rights-operator");
    let (kubectl, namespace) = (fixture.kubectl().clone(), fixture.namespace);
    kubectl
        .delete(["clusterrolebinding", ESTABLISHED])
        .expect("deleted");
    let account = account_in(namespace, OPERATOR);
    until("the rights to be gone", || {
        let still = can(&kubectl, &account, "list secrets", None);
        if still { Err("not yet") } else { Ok(()) }
    });
    // Every program, as if none were still to come.
    fixture.start_images(&[]);
    fixture.configure(&json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "kubeMacPool": {}, "ovs": {}, "macvtap": {},
        "kubeSecondaryDNS": {}, "kubevirtIpamController": {},
    }));
    // Not degraded: nothing was refused.
    fixture.wait_until_progressing();
    // What it is not watching for anybody else, but writes itself.
    fixture.wait_for_operand("secret", "webhook-server-cert", |_| Some(()));
    assert_not_let(&kubectl, &account, &OPERATOR_NOWHERE, None);
    assert_not_let(&kubectl, &account, &OPERATOR_NOT_EVEN_AT_HOME, Some(namespace));

    let subject = format!("--serviceaccount={namespace}:{OPERATOR}");
    for role in ["cluster-admin", "system:kube-scheduler"] {
        let role = format!("--clusterrole={role}");
        let bind = [
            "create",
            "clusterrolebinding",
            "rights-operator-gain",
            &role,
            &subject,
            "--as",
            &account,
        ];
        let refused = kubectl.run(bind).expect_err("a refusal").to_string();
        assert!(
            refused.contains("attempting to grant RBAC permissions"),
            "{refused}"
        );
    }

    // What is there goes by its name.
    fixture.configure(&json!({ "multus": {} }));
    for (kind, name) in [
        ("clusterrole", "kubemacpool-manager-role"),
        ("role", "kubemacpool-manager-role"),
        ("rolebinding", "kubemacpool-manager-rolebinding"),
        ("mutatingwebhookconfiguration", "kubemacpool-mutator"),
        ("clusterrole", "kubevirt-ipam-controller-manager-role"),
        ("secret", "webhook-server-cert"),
    ] {
        fixture.wait_until_gone(kind, name);
    }
}

/// The policy that keeps markers to their own node, as long as the value lives.
struct MarkersPolicy(Kubectl);

impl MarkersPolicy {
    fn apply(kubectl: &Kubectl) -> Self {
        let files = render_admission().expect("the policies");
        let (_, yaml) = files
            .iter()
            .find(|(name, _)| *name == MARKERS_FILE)
            .expect("the file");
        kubectl.apply(yaml).expect("the policy is accepted");
        Self(kubectl.clone())
    }
}

impl Drop for MarkersPolicy {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let _ = self.0.delete([kind, "network-addons-markers"]);
        }
    }
}

// operands#31
#[test]
fn a_marker_writes_the_bridges_of_its_own_node_alone() {
    const NODES: [&str; 2] = ["rights-one", "rights-two"];
    let fixture = Fixture::running("rights-marker");
    fixture.configure(&json!({ "linuxBridge": {} }));
    fixture.wait_for_operand("clusterrolebinding", "bridge-marker-crb", |_| Some(()));
    fixture.wait_for_operand("serviceaccount", "bridge-marker", |_| Some(()));
    let (kubectl, namespace) = (fixture.kubectl(), fixture.namespace);
    for name in NODES {
        let labels = json!({ "kept": "" });
        let node =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } });
        kubectl.apply(&node.to_string()).expect("a node");
    }
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "marker", "namespace": namespace },
        "spec": {
            "serviceAccountName": "bridge-marker", "nodeName": NODES[0],
            "containers": [{ "name": "it", "image": "it" }],
        },
    });
    kubectl.apply(&pod.to_string()).expect("a pod");
    // kubectl reads what it patches.
    let look = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "rights-look" },
            "rules": [{ "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["get"] }],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "rights-look" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "rights-look" },
            "subjects": [{ "kind": "ServiceAccount", "name": "bridge-marker", "namespace": namespace }],
        },
    ] });
    kubectl.apply(&look.to_string()).expect("sight of nodes");
    let token = |bound: &[&str]| {
        let create = ["create", "token", "bridge-marker", "--namespace", namespace];
        let text = kubectl.run([&create[..], bound].concat()).expect("a token");
        format!("--token={}", text.trim())
    };
    let of_the_pod = token(&["--bound-object-kind=Pod", "--bound-object-name=marker"]);
    let of_nobody = token(&[]);
    let write = |token: &str, node: &str, patch: &Value| {
        let patch = format!("--patch={patch}");
        let status = ["--subresource=status", "--type=merge", &patch, token];
        kubectl
            .run([&["patch", "node", node][..], &status].concat())
            .map_err(|error| error.to_string())
    };
    let resource = |name: &str| json!({ "status": { "capacity": { name: "1k" } } });
    let bridge = |name: &str| resource(&format!("bridge.network.kubevirt.io/{name}"));

    // The role alone allows it on any node.
    until("the role", || write(&of_the_pod, NODES[1], &bridge("br1")));
    let _policy = MarkersPolicy::apply(kubectl);
    let mut number = 0;
    let refusal = until("the policy", || {
        number += 1;
        match write(&of_the_pod, NODES[1], &bridge(&format!("late{number}"))) {
            Ok(answer) => Err(answer),
            Err(refusal) => Ok(refusal),
        }
    });
    let own_node = "a marker writes the node alone that its token was issued for";
    assert!(refusal.contains(own_node), "{refusal}");

    write(&of_the_pod, NODES[0], &bridge("br1")).expect("its own node");
    write(
        &of_the_pod,
        NODES[0],
        &json!({ "status": { "capacity": { "bridge.network.kubevirt.io/br1": null } } }),
    )
    .expect("its own node");
    let refusal = write(&of_nobody, NODES[0], &bridge("br2")).expect_err("a refusal");
    assert!(refusal.contains(own_node), "{refusal}");
    for patch in [
        resource("cpu"),
        resource("example.com/device"),
        json!({ "status": { "allocatable": { "example.com/device": "1" } } }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        json!({ "metadata": { "labels": { "more": "" } } }),
        json!({ "metadata": { "labels": { "kept": null } } }),
        json!({ "metadata": { "annotations": { "more": "" } } }),
    ] {
        let refusal = write(&of_the_pod, NODES[0], &patch).expect_err("a refusal");
        let alone = "a marker changes the resources alone that stand for bridges";
        assert!(refusal.contains(alone), "{patch}: {refusal}");
    }
    for kind in ["node/rights-one", "node/rights-two", "clusterrole/rights-look"] {
        kubectl.delete([kind]).expect("deleted");
    }
    kubectl
        .delete(["clusterrolebinding/rights-look"])
        .expect("deleted");
}

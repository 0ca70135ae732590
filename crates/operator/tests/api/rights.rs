//! What the accounts of operands may do, and what whoever takes over one of their pods gains.

use cluster::Kubectl;
use serde_json::json;

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
            "get nodes",
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

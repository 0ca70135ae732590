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

fn can(kubectl: &Kubectl, account: &str, right: &str) -> bool {
    let (verb, resource) = right.split_once(' ').expect("a verb and a resource");
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let subresource = format!("--subresource={subresource}");
    let question = [
        "auth",
        "can-i",
        verb,
        resource,
        &subresource,
        "--all-namespaces",
        "--as",
        account,
    ];
    kubectl.run(question).is_ok()
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
        let account = format!("system:serviceaccount:{}:{account}", fixture.namespace);
        for right in *may {
            // The API server hears of a binding some time after it was made.
            until(&format!("{account} to be let: {right}"), || {
                can(fixture.kubectl(), &account, right).then_some(()).ok_or("no")
            });
        }
        for right in *may_not {
            assert!(
                !can(fixture.kubectl(), &account, right),
                "{account} does not need: {right}"
            );
        }
    }
}

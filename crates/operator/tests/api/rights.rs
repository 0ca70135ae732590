//! The rights of the product's accounts, and an attacker's gain from one of their pods. The requests use the accounts'
//! tokens.

mod table;

use std::collections::BTreeSet;

use cluster::Kubectl;
use kube_kit::object::{self, CLUSTER_ROLE_BINDING, NODE, POD, SERVICE_ACCOUNT};
use manifests::{NODES_FILE, render_admission};
use serde_json::{Value, json};
use stage::{Account, Admin, Method, put_out_prey, until};

use self::table::{
    ALONE, ESTABLISHED, NODES, OPERATOR, OPERATOR_NOT_EVEN_AT_HOME, OPERATOR_NOWHERE, OTHERS, PLUGINS,
    PLUGINS_AT_HOME, PLUGINS_NOWHERE, POOL, POOL_AT_HOME, POOL_EVERYWHERE, POOL_NOT_EVEN_AT_HOME,
    POOL_NOWHERE, STANDALONE, Standalone,
};
use crate::{
    fixture::{Fixture, NAMESPACE},
    installation::everything,
    stubs::OPENSHIFT,
};

/// Files of installations without the add-ons operator that have accounts of their own.
const ALONE_FILES: [&str; 2] = [
    include_str!("../../../../deploy/multus/cert-approver.yaml"),
    include_str!("../../../../deploy/multus/nad-webhook.yaml"),
];

/// Revokes the rights that the operator holds for upstream's images, and returns its account.
fn without_upstream_rights(fixture: &Fixture) -> Account {
    fixture
        .admin()
        .delete(&format!("{}/{ESTABLISHED}", CLUSTER_ROLE_BINDING.path(None)));
    let account = Account::of(fixture.admin(), NAMESPACE, OPERATOR);
    until("the rights to be gone", || {
        let still = account.may("list secrets", None);
        if still { Err("not yet") } else { Ok(()) }
    });
    account
}

/// Creates the accounts, roles and bindings of an installation file, and replaces existing ones.
fn grant(fixture: &Fixture, yaml: &str) {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    for object in objects {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let is_role = text("/apiVersion").starts_with(CLUSTER_ROLE_BINDING.group);
        if is_role || text("/kind") == SERVICE_ACCOUNT.kind {
            let kind = object::find(text("/apiVersion"), text("/kind")).expect("a kind");
            let collection = kind.path(object["metadata"]["namespace"].as_str());
            let path = format!("{collection}/{}", text("/metadata/name"));
            // The object may not exist.
            fixture.admin().send(Method::DELETE, &path, None);
            fixture.admin().create(&collection, &object);
        }
    }
}

// operands#26
#[test]
fn compromised_pod_changes_no_network_and_no_other_node() {
    let mut fixture = Fixture::installed();
    for variable in [
        "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE",
        "OVS_CNI_IMAGE",
        "MACVTAP_CNI_IMAGE",
    ] {
        fixture.set(variable, "");
    }
    fixture.start();
    fixture.configure(&json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "ovs": {}, "macvtap": {},
    }));
    for rights in &NODES {
        rights.check(&Account::of(fixture.admin(), NAMESPACE, rights.account));
    }
}

// operands#30
#[test]
fn mac_pool_may_change_its_own_secrets_and_webhook_alone() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "kubeMacPool": {} }));
    let home = Some(NAMESPACE);
    let account = Account::of(fixture.admin(), NAMESPACE, POOL);
    account.wait_until_let(&POOL_EVERYWHERE, None);
    account.wait_until_let(&POOL_AT_HOME, home);
    account.assert_not_let(&POOL_NOWHERE, None);
    account.assert_not_let(&POOL_NOT_EVEN_AT_HOME, home);
}

// operator#82
#[test]
fn native_components_need_no_cluster_admin_rights() {
    let mut fixture = Fixture::installed();
    let account = without_upstream_rights(&fixture);
    let home = Some(NAMESPACE);
    // The environment selects Weft's image for every program, even for unavailable ones.
    fixture.start_images(&[]);
    fixture.configure(&everything());
    // The configuration is not Degraded: no request was refused.
    fixture.wait_until_progressing();
    // The operator writes this Secret, and does not watch Secrets of other owners.
    fixture.wait_for_operand("secret", "webhook-server-cert", |_| Some(()));
    account.assert_not_let(&OPERATOR_NOWHERE, None);
    account.assert_not_let(&OPERATOR_NOT_EVEN_AT_HOME, home);

    for role in ["cluster-admin", "system:kube-scheduler"] {
        let refusal = account.give_itself(role).expect_err("a refusal");
        assert!(
            refusal.code == 403 && refusal.message.contains("attempting to grant RBAC permissions"),
            "{refusal:?}"
        );
    }

    // Existing objects are changed by name.
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

#[test]
fn accounts_of_product_cannot_access_foreign_objects() {
    let mut fixture = Fixture::installed();
    let addons = without_upstream_rights(&fixture);
    fixture.start_images(&[]);
    let mut spec = everything();
    spec["nmstate"] = json!({});
    fixture.configure(&spec);
    // The node state operator does not run here: its own file has its operands.
    let node_state = include_str!("../../../nmstate/src/operator/manifests/rbac.yaml");
    let node_state = node_state.replace("namespace: nmstate\n", &format!("namespace: {NAMESPACE}\n"));
    grant(&fixture, &node_state);
    for file in ALONE_FILES {
        grant(&fixture, file);
    }

    {
        put_out_prey(fixture.admin());
        let mut known = BTreeSet::from([OPERATOR.to_owned(), POOL.to_owned()]);
        let pool = Account::of(fixture.admin(), NAMESPACE, POOL);
        pool.wait_until_let(&POOL_EVERYWHERE, None);
        let mut accounts = vec![addons, pool];
        for rights in NODES.iter().chain(&OTHERS) {
            let account = Account::of(fixture.admin(), NAMESPACE, rights.account);
            rights.check(&account);
            accounts.push(account);
            known.insert(rights.account.to_owned());
        }
        for rights in &ALONE {
            let account = Account::of(fixture.admin(), "kube-system", rights.account);
            rights.check(&account);
            accounts.push(account);
        }
        for account in &accounts {
            account.assert_takes_nothing();
        }
        // The table contains all accounts.
        let deployed = fixture.admin().list(&SERVICE_ACCOUNT.path(Some(NAMESPACE)));
        let deployed = deployed
            .iter()
            .filter_map(|account| account["metadata"]["name"].as_str());
        let deployed: BTreeSet<_> = deployed.map(str::to_owned).collect();
        assert_eq!(deployed, known);
    }
}

// Each file is granted by itself: some have the same names.
#[test]
fn accounts_of_standalone_files_cannot_access_foreign_objects() {
    let fixture = Fixture::installed();
    put_out_prey(fixture.admin());
    for namespace in ["kubemacpool-system", "openshift-network-operator"] {
        fixture.admin().namespace(namespace, &[]);
    }
    for Standalone {
        files,
        namespace,
        rights,
        at_home,
        not_even_at_home,
    } in &STANDALONE
    {
        for file in *files {
            grant(&fixture, file);
        }
        let home = Some(*namespace);
        let account = Account::of(fixture.admin(), namespace, rights.account);
        rights.check(&account);
        account.wait_until_let(at_home, home);
        account.assert_not_let(not_even_at_home, home);
        account.assert_takes_nothing();
    }
}

#[test]
fn plugins_on_openshift_may_use_their_constraints_alone() {
    let mut fixture = Fixture::with(OPENSHIFT);
    fixture.start();
    fixture.configure(&json!({ "linuxBridge": {} }));
    put_out_prey(fixture.admin());
    let home = Some(NAMESPACE);
    let account = Account::of(fixture.admin(), NAMESPACE, PLUGINS);
    account.wait_until_let(&PLUGINS_AT_HOME, home);
    account.assert_not_let(&PLUGINS_AT_HOME, None);
    for namespace in [None, home] {
        account.assert_not_let(&PLUGINS_NOWHERE, namespace);
    }
    account.assert_takes_nothing();
}

/// Applies the policies that restrict programs on nodes to their own node.
fn apply_nodes_policies(kubectl: &Kubectl) {
    let files = render_admission().expect("the policies");
    let (_, yaml) = files
        .iter()
        .find(|(name, _)| *name == NODES_FILE)
        .expect("the file");
    kubectl.apply(yaml).expect("the policies are accepted");
}

/// Creates a pod of an account on a node, with the account's name, and returns the account with the pod's token.
fn in_a_pod(admin: &Admin, account: &str, node: &str) -> Account {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": account, "labels": { "kept": "" } },
        "spec": {
            "serviceAccountName": account, "nodeName": node,
            "containers": [{ "name": "it", "image": "it" }],
        },
    });
    admin.create(&POD.path(Some(NAMESPACE)), &pod);
    Account::of_pod(admin, NAMESPACE, account, account)
}

// operands#31
#[test]
fn marker_writes_bridges_of_its_own_node_alone() {
    const NODES: [&str; 2] = ["rights-one", "rights-two"];
    let fixture = Fixture::running();
    fixture.configure(&json!({ "linuxBridge": {}, "ovs": {} }));
    for account in ["bridge-marker", "ovs-cni-marker"] {
        fixture.wait_for_operand("serviceaccount", account, |_| Some(()));
    }
    let admin = fixture.admin();
    for name in NODES {
        let metadata = json!({ "name": name, "labels": { "kept": "" } });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        admin.create(&NODE.path(None), &node);
    }
    let [of_the_pod, of_ovs] =
        ["bridge-marker", "ovs-cni-marker"].map(|account| in_a_pod(admin, account, NODES[0]));
    let of_nobody = Account::of(fixture.admin(), NAMESPACE, "bridge-marker");
    let write = |account: &Account, node: &str, patch: &Value| {
        let answer = account.patch_status(&NODE.path(None), node, patch);
        answer.map_err(|refusal| refusal.message)
    };
    let resource = |name: &str| json!({ "status": { "capacity": { name: "1k" } } });
    let bridge = |name: &str| resource(&format!("bridge.network.kubevirt.io/{name}"));

    // The role alone allows the write on any node.
    until("the role", || write(&of_the_pod, NODES[1], &bridge("br1")));
    apply_nodes_policies(fixture.kubectl());
    let mut number = 0;
    let refusal = until("the policy", || {
        number += 1;
        match write(&of_the_pod, NODES[1], &bridge(&format!("late{number}"))) {
            Ok(answer) => Err(answer),
            Err(refusal) => Ok(refusal),
        }
    });
    let own_node = "a marker may write only the node that its token was issued for";
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
    let ovs_bridge = |name: &str| resource(&format!("ovs-cni.network.kubevirt.io/{name}"));
    write(&of_ovs, NODES[0], &ovs_bridge("br1")).expect("its own node");
    let alone = "a marker may change only the resources for bridges";
    let refusal = write(&of_ovs, NODES[0], &bridge("br3")).expect_err("a refusal");
    assert!(refusal.contains(alone), "{refusal}");
    for patch in [
        ovs_bridge("br2"),
        resource("cpu"),
        resource("example.com/device"),
        json!({ "status": { "allocatable": { "example.com/device": "1" } } }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        json!({ "metadata": { "labels": { "more": "" } } }),
        json!({ "metadata": { "labels": { "kept": null } } }),
        json!({ "metadata": { "annotations": { "more": "" } } }),
    ] {
        let refusal = write(&of_the_pod, NODES[0], &patch).expect_err("a refusal");
        assert!(refusal.contains(alone), "{patch}: {refusal}");
    }
    for name in NODES {
        admin.delete(&format!("{}/{name}", NODE.path(None)));
    }
}

// operands#37
#[test]
fn network_status_is_written_to_pods_of_the_own_node_alone() {
    const WRITERS: [&str; 2] = ["multus", "dynamic-networks-controller"];
    let mut fixture = Fixture::installed();
    fixture.set("MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE", "");
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "multusDynamicNetworks": {} }));
    for account in WRITERS {
        fixture.wait_for_operand("serviceaccount", account, |_| Some(()));
    }
    let admin = fixture.admin();
    let pods = POD.path(Some(NAMESPACE));
    let mut number = 0;
    // Each write differs from the one before.
    let mut write = |account: &Account, pod: &str, labels: &Value| {
        number += 1;
        let mut pod = admin.get(&format!("{pods}/{pod}")).expect("the pod");
        pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/network-status": number.to_string() });
        pod["metadata"]["labels"] = labels.clone();
        let answer = account.replace_status(&pods, &pod);
        answer.map_err(|refusal| refusal.message)
    };
    let kept = json!({ "kept": "" });
    // Each is on a node of its own.
    let [multus, dynamic] = WRITERS.map(|account| in_a_pod(admin, account, account));
    let cases = [
        (&multus, WRITERS[0], WRITERS[1]),
        (&dynamic, WRITERS[1], WRITERS[0]),
    ];
    // The roles alone allow the write on any node.
    for (account, _, foreign) in cases {
        until("the role", || write(account, foreign, &kept));
    }
    apply_nodes_policies(fixture.kubectl());
    let own_node = "this program may write only the status of pods on its own node";
    for (account, own, foreign) in cases {
        let refusal = until("the policy", || match write(account, foreign, &kept) {
            Ok(answer) => Err(answer),
            Err(refusal) => Ok(refusal),
        });
        assert!(refusal.contains(own_node), "{refusal}");
        let of_nobody = Account::of(admin, NAMESPACE, own);
        let refusal = write(&of_nobody, own, &kept).expect_err("a refusal");
        assert!(refusal.contains(own_node), "{refusal}");
        write(account, own, &kept).expect("a pod of its own node");
        for labels in [
            json!({}),
            json!({ "kept": "", "more": "" }),
            json!({ "kept": "changed" }),
        ] {
            let refusal = write(account, own, &labels).expect_err("a refusal");
            assert!(refusal.contains("may not change the labels"), "{refusal}");
        }
    }
}

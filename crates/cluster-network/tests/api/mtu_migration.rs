//! The migration of the MTU by node network policies. The tests write what nmstate reports.

use cluster_network::manifests;
use serde_json::{Value, json};

use crate::{
    ovn::{self, settled},
    stage::{ACCOUNT, OPERATOR, RECORD, Stage, Task, until},
};

const POLICIES: &str = "/apis/nmstate.io/v1/nodenetworkconfigurationpolicies";
const ENACTMENTS: &str = "/apis/nmstate.io/v1beta1/nodenetworkconfigurationenactments";
const STATES: &str = "/apis/nmstate.io/v1/nodenetworkstates";
const OVN_NODE: &str = "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/daemonsets/ovnkube-node";
const OVN_CONFIG: &str = "/api/v1/namespaces/openshift-ovn-kubernetes/configmaps/ovnkube-config";
const BEGUN: &str = "networkoperator.openshift.io/mtu-migration";

/// Serves the kinds of nmstate.
fn install_nmstate(stage: &Stage) {
    use api::node_state::{enactment_crd, network_state_crd, policy_crd};
    let definitions = [policy_crd(), enactment_crd(), network_state_crd()];
    stage.apply_all(&definitions.map(|crd| serde_json::to_value(crd.expect("a definition")).expect("JSON")));
    for path in [POLICIES, ENACTMENTS, STATES] {
        stage.wait_until_served(path);
    }
}

fn allow(stage: &Stage) {
    let install = manifests::Install {
        image: "",
        version: "",
        pull_policy: "",
        images: manifests::Images::default(),
        api_server: None,
    };
    let files = manifests::files(&install).expect("files");
    let (_, text) = files
        .iter()
        .find(|(name, _)| *name == manifests::MTU_MIGRATION)
        .expect("a file");
    stage.kubectl().apply(text).expect("objects");
}

/// Creates a node that is ready.
fn join(stage: &Stage, name: &str) {
    stage.create(
        "/api/v1/nodes",
        &json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": { "kubernetes.io/os": "linux", "kubernetes.io/hostname": name },
            },
        }),
    );
    stage.report(
        &format!("/api/v1/nodes/{name}"),
        &json!({ "conditions": [{ "type": "Ready", "status": "True" }] }),
    );
}

/// Reports the network of a node with this MTU.
fn describe(stage: &Stage, node: &str, mtu: u64) {
    report(stage, node, mtu, &json!([]));
}

/// Like [`describe`], with the mark of a report that was too large. A complete report would begin the dry run.
fn describe_in_part(stage: &Stage, node: &str, mtu: u64) {
    let condition = json!({
        "type": "Pruned", "status": "True", "reason": "ReportTooLarge", "message": "left out: features of drivers",
    });
    report(stage, node, mtu, &json!([condition]));
}

fn report(stage: &Stage, node: &str, mtu: u64, conditions: &Value) {
    let path = format!("{STATES}/{node}");
    if stage.get(&path).is_none() {
        let state = json!({ "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState", "metadata": { "name": node } });
        stage.create(STATES, &state);
    }
    let state = json!({
        "routes": { "running": [
            { "destination": "0.0.0.0/0", "next-hop-interface": "eth0", "next-hop-address": "192.0.2.1",
                "table-id": 254 },
        ] },
        "interfaces": [{ "name": "eth0", "type": "ethernet", "state": "up", "mtu": mtu, "max-mtu": 9216 }],
    });
    stage.report(&path, &json!({ "currentState": state, "conditions": conditions }));
}

fn policy(node: &str) -> String {
    format!("{POLICIES}/mtu-migration-{node}")
}

/// Waits for the policy of a node, as its MTU and whether it is a dry run.
#[track_caller]
fn wait_for(stage: &Stage, node: &str, mtu: u64, is_dry_run: bool) -> Value {
    stage.wait_for(&format!("{node} {mtu} {is_dry_run}"), &policy(node), |policy| {
        let (found, is_dry) = summary(policy?);
        (found == mtu && is_dry == is_dry_run)
            .then(|| policy.cloned())
            .flatten()
    })
}

fn summary(policy: &Value) -> (u64, bool) {
    let mtu = &policy["spec"]["desiredState"]["interfaces"][0]["mtu"];
    let is_dry_run = policy["metadata"]["annotations"]["nmstate.io/dry-run"] == "true";
    (mtu.as_u64().unwrap_or_default(), is_dry_run)
}

/// Reports a policy on its node, like the handler of nmstate.
fn enact(stage: &Stage, node: &str, condition: &str, reason: &str, message: &str) {
    let policy = stage.there(&policy(node));
    let name = format!("{node}.mtu-migration-{node}");
    let path = format!("{ENACTMENTS}/{name}");
    if stage.get(&path).is_none() {
        let labels = json!({
            "nmstate.io/policy": format!("mtu-migration-{node}"), "nmstate.io/node": node,
        });
        stage.create(
            ENACTMENTS,
            &json!({
                "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
                "metadata": { "name": name, "labels": labels },
            }),
        );
    }
    let conditions: Vec<Value> = ["Available", "Failing", "Progressing", "Pending", "Aborted"]
        .iter()
        .map(|kind| {
            let is_it = *kind == condition;
            let message = if is_it { message } else { "" };
            let status = if is_it { "True" } else { "False" };
            json!({ "type": kind, "status": status, "reason": reason, "message": message })
        })
        .collect();
    stage.report(
        &path,
        &json!({
            "policyGeneration": policy["metadata"]["generation"], "policyUID": policy["metadata"]["uid"],
            "conditions": conditions,
        }),
    );
}

fn tried(stage: &Stage, node: &str) {
    let message = "dry run, nothing was applied; would change: interfaces eth0";
    enact(stage, node, "Available", "DryRun", message);
}

/// Reports that a node applied its policy, and its new MTU.
fn applied(stage: &Stage, node: &str) {
    enact(
        stage,
        node,
        "Available",
        "SuccessfullyConfigured",
        "successfully reconciled",
    );
    let (mtu, _) = summary(&stage.there(&policy(node)));
    describe(stage, node, mtu);
}

#[track_caller]
fn ended(stage: &Stage) {
    until("no policies and no mark", || {
        let policies = stage.list(POLICIES);
        let operator = stage.there(OPERATOR);
        let is_begun = operator["metadata"]["annotations"].get(BEGUN).is_some();
        if policies.is_empty() && !is_begun {
            Ok(())
        } else {
            Err(format!("{policies:#?}\n{operator:#}"))
        }
    });
}

fn start(kind: &str) -> (Stage, Task) {
    let stage = Stage::start();
    install_nmstate(&stage);
    allow(&stage);
    for node in ["a", "b"] {
        join(&stage, node);
        describe(&stage, node, 1500);
    }
    let operator = stage.operator_with_all();
    if kind == "OVNKubernetes" {
        ovn::configure(&stage);
        settled(&stage);
    } else {
        stage.configure(kind);
        stage.there(RECORD);
    }
    (stage, operator)
}

fn migrate(stage: &Stage, migration: &Value) {
    stage.change(
        &format!("{OPERATOR}?fieldManager=user"),
        &json!({ "spec": { "migration": migration } }),
    );
}

// cluster-network#100, cluster-network#102-103, cluster-network#109, cluster-network#131, cluster-network#144
#[test]
fn mtu_of_machines_is_migrated_and_finalised() {
    let stage = Stage::start();
    for node in ["a", "b"] {
        join(&stage, node);
    }
    let _operator = stage.operator_with_all();
    stage.configure("Weft");
    stage.there(RECORD);
    stage.at_rest();
    stage.roll_out_all();
    let migration = |mtu: u32| json!({ "mtu": { "machine": { "to": mtu } }, "nodePolicies": "Apply" });
    migrate(&stage, &migration(100));
    stage.condition(
        "Degraded",
        "True MTUMigrationFailed: invalid Migration.MTU.Machine.To(100), has to be in range: 576-65536",
    );
    migrate(&stage, &migration(9000));
    stage.condition(
        "Degraded",
        "True MTUMigrationFailed: spec.migration.nodePolicies needs rights on node network policies: apply \
         deploy/cluster-network/mtu-migration.yaml",
    );
    allow(&stage);
    stage.condition(
        "Degraded",
        "True MTUMigrationFailed: spec.migration.nodePolicies needs the node network state of Weft: the API server does \
         not serve NodeNetworkState in version v1 of nmstate.io",
    );
    install_nmstate(&stage);
    describe(&stage, "a", 1500);
    describe_in_part(&stage, "b", 1400);
    stage.condition(
        "Progressing",
        "True MTUMigration: dry run of the change of the MTU: 0 of 2 nodes; node b: its NodeNetworkState is incomplete: \
         left out: features of drivers",
    );
    assert_eq!(stage.get(&policy("b")), None);
    describe(&stage, "b", 1400);
    let written = wait_for(&stage, "a", 9000, true);
    wait_for(&stage, "b", 9000, true);
    assert_eq!(
        written["spec"],
        json!({
            "nodeSelector": { "kubernetes.io/hostname": "a" },
            "desiredState": { "interfaces": [
                { "name": "eth0", "type": "ethernet", "state": "up", "mtu": 9000 },
            ] },
        })
    );
    tried(&stage, "b");
    stage.condition(
        "Progressing",
        "True MTUMigration: dry run of the change of the MTU: 1 of 2 nodes; node a: the dry run has no result yet",
    );
    stage.condition("Degraded", "False : ");
    assert_eq!(summary(&stage.there(&policy("a"))), (9000, true));
    tried(&stage, "a");
    wait_for(&stage, "a", 9000, false);
    stage.condition(
        "Progressing",
        "True MTUMigration: 0 of 2 nodes have MTU 9000; node a: the change has no result yet",
    );
    assert_eq!(summary(&stage.there(&policy("b"))), (9000, true));
    applied(&stage, "a");
    wait_for(&stage, "b", 9000, false);
    assert!(stage.there(OPERATOR)["spec"]["migration"].is_object());
    applied(&stage, "b");
    ended(&stage);
    stage.condition("Progressing", "False : ");
    let operator = stage.there(OPERATOR);
    assert_eq!(operator["spec"].get("migration"), None, "{operator:#}");
    // Idle again, with the watch of the operator configuration alone.
    stage.at_rest();
    let mark = stage.mark();
    stage.change(OPERATOR, &json!({ "metadata": { "labels": { "a": "b" } } }));
    stage.at_rest();
    let requests = stage.requests_of(ACCOUNT, mark);
    let of_nmstate: Vec<_> = requests
        .iter()
        .filter(|it| it.uri.contains("nmstate.io"))
        .collect();
    assert!(of_nmstate.is_empty(), "{of_nmstate:#?}");
}

// cluster-network#103-104
#[test]
fn network_uses_both_mtus_before_the_machines_change() {
    let (stage, operator) = start("OVNKubernetes");
    stage.roll_out_all();
    stage.at_rest();
    let mtu = json!({ "network": { "from": 1400, "to": 8900 }, "machine": { "to": 9000 } });
    migrate(&stage, &json!({ "mtu": mtu, "nodePolicies": "Apply" }));
    for node in ["a", "b"] {
        wait_for(&stage, node, 9000, true);
        tried(&stage, node);
    }
    let config = stage.wait_for("both MTUs", OVN_CONFIG, |map| {
        let text = map?["data"]["ovnkube.conf"].as_str()?;
        text.contains("mtu=\"8900\"\nroutable-mtu=\"1400\"")
            .then(|| text.to_owned())
    });
    assert!(config.starts_with("[default]\n"), "{config}");
    stage.at_rest();
    // The nodes of OVN-Kubernetes still run the former configuration.
    assert_eq!(summary(&stage.there(&policy("a"))), (9000, true));
    // A killed operator continues where it ended.
    operator.kill();
    let operator = stage.operator_with_all();
    stage.at_rest();
    assert_eq!(summary(&stage.there(&policy("a"))), (9000, true));
    stage.roll_out(OVN_NODE);
    stage.roll_out_all();
    wait_for(&stage, "a", 9000, false);
    operator.kill();
    applied(&stage, "a");
    let _operator = stage.operator_with_all();
    wait_for(&stage, "b", 9000, false);
    applied(&stage, "b");
    ended(&stage);
    let spec = stage.there(OPERATOR)["spec"].clone();
    assert_eq!(spec.get("migration"), None, "{spec:#}");
    assert_eq!(spec["defaultNetwork"]["ovnKubernetesConfig"]["mtu"], 8900);
    stage.wait_for("one MTU", OVN_CONFIG, |map| {
        let text = map?["data"]["ovnkube.conf"].as_str()?;
        (text.contains("mtu=\"8900\"") && !text.contains("routable-mtu")).then_some(())
    });
    stage.condition("Degraded", "False : ");
}

// cluster-network#105, cluster-network#107-108
#[test]
fn failed_node_is_named_and_an_aborted_migration_restores_the_mtus() {
    let (stage, _operator) = start("Weft");
    let mtu = json!({ "machine": { "to": 9000 } });
    migrate(&stage, &json!({ "mtu": mtu, "nodePolicies": "Apply" }));
    for node in ["a", "b"] {
        wait_for(&stage, node, 9000, true);
        tried(&stage, node);
    }
    wait_for(&stage, "a", 9000, false);
    // A user deletes the policy: the next one begins with a dry run.
    stage.remove(&policy("a"));
    wait_for(&stage, "a", 9000, true);
    tried(&stage, "a");
    wait_for(&stage, "a", 9000, false);
    applied(&stage, "a");
    wait_for(&stage, "b", 9000, false);
    let cause = "rolling back desired state configuration: failed runnig probe 'ping'";
    enact(&stage, "b", "Failing", "FailedToConfigure", cause);
    stage.condition(
        "Degraded",
        &format!("True MTUMigrationFailed: node b: the change failed: {cause}"),
    );
    assert!(stage.there(OPERATOR)["spec"]["migration"].is_object());
    migrate(&stage, &Value::Null);
    wait_for(&stage, "a", 1500, false);
    assert_eq!(summary(&stage.there(&policy("b"))), (9000, false));
    applied(&stage, "a");
    wait_for(&stage, "b", 1500, false);
    applied(&stage, "b");
    ended(&stage);
    stage.condition("Degraded", "False : ");
}

// cluster-network#139
#[test]
fn uninstalled_nmstate_ends_an_aborted_migration() {
    let (stage, operator) = start("Weft");
    let mtu = json!({ "machine": { "to": 9000 } });
    migrate(&stage, &json!({ "mtu": mtu, "nodePolicies": "Apply" }));
    for node in ["a", "b"] {
        wait_for(&stage, node, 9000, true);
        tried(&stage, node);
    }
    wait_for(&stage, "a", 9000, false);
    enact(&stage, "a", "Failing", "FailedToConfigure", "no");
    let failed = "True MTUMigrationFailed: node a: the change failed: no";
    stage.condition("Degraded", failed);
    let manage = |state: &str| stage.change(OPERATOR, &json!({ "spec": { "managementState": state } }));
    manage("Unmanaged");
    stage.condition("Degraded", "False : ");
    manage("Managed");
    stage.condition("Degraded", failed);
    // The API server ends the watches of a deleted kind only after minutes.
    operator.kill();
    for path in [POLICIES, ENACTMENTS, STATES] {
        let (_, kind) = path.rsplit_once('/').expect("a path");
        stage.remove(&format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.nmstate.io"
        ));
        stage.gone(path);
    }
    let _operator = stage.operator_with_all();
    stage.condition(
        "Degraded",
        "True MTUMigrationFailed: spec.migration.nodePolicies needs the node network state of Weft: the API server does \
         not serve NodeNetworkState in version v1 of nmstate.io",
    );
    migrate(&stage, &Value::Null);
    stage.wait_for("no mark", OPERATOR, |operator| {
        operator?["metadata"]["annotations"]
            .get(BEGUN)
            .is_none()
            .then_some(())
    });
    stage.condition("Degraded", "False : ");
}

// cluster-network#109, cluster-network#140
#[test]
fn operator_may_write_nothing_but_the_mtu_of_its_policies() {
    let stage = Stage::start();
    install_nmstate(&stage);
    allow(&stage);
    let write = |name: &str, spec: &Value| {
        let policy = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": name },
            "spec": spec,
        });
        let path = stage.kubeconfig().with_file_name("policy.json");
        std::fs::write(&path, policy.to_string()).expect("a file");
        let path = path.to_string_lossy().into_owned();
        let arguments = ["create", "--as", ACCOUNT, "--dry-run=server", "-f", &path];
        match stage.kubectl().run(arguments) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let selector = json!({ "kubernetes.io/hostname": "a" });
    let interfaces = |interface: &Value| json!({ "nodeSelector": selector, "desiredState": { "interfaces": [interface] } });
    let eth0 = |key: &str, value: Value| {
        let mut interface = json!({ "name": "eth0", "type": "ethernet", "state": "up", "mtu": 9000 });
        interface[key] = value;
        interfaces(&interface)
    };
    let mtu = eth0("mtu", json!(9000));
    until("the admission policy", || {
        let refused = write("other", &mtu);
        if refused.contains("only the node network policies of its migrations") {
            Ok(())
        } else {
            Err(refused)
        }
    });
    assert_eq!(write("mtu-migration-a", &mtu), "");
    assert_eq!(write("mtu-migration-a", &eth0("mtu", json!(576))), "");
    let selects = |selector: &Value| {
        let mut spec = mtu.clone();
        spec["nodeSelector"] = selector.clone();
        spec
    };
    let all_nodes = json!({ "desiredState": mtu["desiredState"] });
    for spec in [
        eth0("state", json!("down")),
        eth0("ipv4", json!({ "enabled": false })),
        eth0("mtu", json!(575)),
        eth0("type", json!("dummy")),
        json!({ "nodeSelector": selector, "desiredState": { "dns-resolver": { "config": {} }, "interfaces": [] } }),
        json!({ "nodeSelector": selector, "desiredState": { "interfaces": [] }, "capture": { "a": "b.c" } }),
        all_nodes,
        selects(&json!({})),
        selects(&json!({ "kubernetes.io/os": "linux" })),
        selects(&json!({ "kubernetes.io/hostname": "a", "kubernetes.io/os": "linux" })),
    ] {
        let refused = write("mtu-migration-a", &spec);
        assert!(
            refused.contains("sets only the MTU of interfaces"),
            "{spec:#}\n{refused}"
        );
    }
    // Without an MTU the expression has no value.
    let refused = write(
        "mtu-migration-a",
        &interfaces(&json!({ "name": "eth0", "state": "up" })),
    );
    assert!(refused.contains("denied request"), "{refused}");
}

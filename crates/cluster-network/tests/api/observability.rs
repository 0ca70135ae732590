//! The installation of network observability, with definitions of OLM's kinds.

use serde_json::{Value, json};

use crate::commands::asked;
use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER, MULTUS, OPERATOR, Stage, Task, condition, managers};

const EXTENSION: &str = "/apis/olm.operatorframework.io/v1/clusterextensions/netobserv-operator";
const COLLECTOR: &str = "/apis/flows.netobserv.io/v1beta2/flowcollectors/cluster";
const NAMESPACE: &str = "/api/v1/namespaces/netobserv-operator";
const INSTALLER: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/netobserv-operator-installer";
const VERSIONS: &str = "/apis/operators.coreos.com/v1alpha1/namespaces/openshift-netobserv-operator/\
                        clusterserviceversions";
const DEPLOYED: &str = "NetworkObservabilityDeployed";
const COMPLETE: &str = "True DeploymentComplete: Network Observability has been deployed";

/// Defines a kind with a status.
fn define(stage: &Stage, group: &str, version: &str, kind: &str, scope: &str) {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let singular = kind.to_lowercase();
    stage.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{singular}s.{group}") },
        "spec": {
            "group": group, "scope": scope,
            "names": { "kind": kind, "plural": format!("{singular}s"), "singular": singular },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    }));
    stage.wait_until_served(&format!("/apis/{group}/{version}/{singular}s"));
}

fn define_olm(stage: &Stage) {
    define(
        stage,
        "olm.operatorframework.io",
        "v1",
        "ClusterExtension",
        "Cluster",
    );
    define(
        stage,
        "operators.coreos.com",
        "v1alpha1",
        "ClusterServiceVersion",
        "Namespaced",
    );
}

fn define_collector(stage: &Stage) {
    define(stage, "flows.netobserv.io", "v1beta2", "FlowCollector", "Cluster");
}

/// An API server of OpenShift with this topology and with the feature gate.
fn openshift(topology: &str) -> Stage {
    let stage = Stage::start();
    for (kind, plural, status) in [
        (
            "Infrastructure",
            "infrastructures",
            json!({ "controlPlaneTopology": topology }),
        ),
        (
            "FeatureGate",
            "featuregates",
            json!({ "featureGates": [
                { "version": "1.2.3", "enabled": [{ "name": "NetworkObservabilityInstall" }] },
            ] }),
        ),
    ] {
        let collection = format!("/apis/config.openshift.io/v1/{plural}");
        stage.apply(&definition(kind, plural));
        stage.wait_until_served(&collection);
        stage.apply(&json!({
            "apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": { "name": "cluster" },
        }));
        stage.report(&format!("{collection}/cluster"), &status);
    }
    stage
}

fn policy(stage: &Stage, policy: &str) {
    let spec = json!({ "networkObservability": { "installationPolicy": policy } });
    stage.change(CLUSTER, &json!({ "spec": spec }));
}

fn manage(stage: &Stage, state: &str) {
    stage.change(OPERATOR, &json!({ "spec": { "managementState": state } }));
}

/// Reports a condition of OLM about the extension.
fn installed(stage: &Stage, status: &str, progress: &str) {
    let reason = if status == "True" { "Succeeded" } else { "Failed" };
    stage.report(
        EXTENSION,
        &json!({ "conditions": [
            { "type": "Installed", "status": status, "reason": reason, "message": "No bundle installed" },
            { "type": "Progressing", "status": "True", "reason": "Retrying", "message": progress },
        ] }),
    );
}

/// Requests of the operator about the installation.
fn requests(stage: &Stage, mark: u64) -> Vec<String> {
    let requests = stage.requests_of(ACCOUNT, mark).into_iter();
    let groups = [
        "olm.operatorframework.io",
        "operators.coreos.com",
        "flows.netobserv.io",
        "netobserv-operator",
    ];
    requests
        .filter(|it| groups.iter().any(|group| it.uri.contains(group)))
        .map(|it| format!("{} {}", it.verb, it.uri))
        .collect()
}

fn nothing_is_refused(stage: &Stage, mark: u64) {
    let all = stage.requests_of(ACCOUNT, mark).into_iter();
    let refused: Vec<_> = all.filter(|it| it.code == 403).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

const PLANNED: &str = "
apiVersion: config.openshift.io/v1
kind: Network
spec:
  clusterNetwork: [{cidr: 10.244.0.0/16}]
  serviceNetwork: [10.96.0.0/12]
  networkType: Calico
  networkObservability: {installationPolicy: InstallAndEnable}
";

/// The lines of the plan about the installation.
fn planned(stage: &Stage) -> Vec<String> {
    let text = asked(stage, PLANNED, &[]).text;
    let lines = text.lines().filter(|line| {
        ["netobserv", "ClusterExtension", "FlowCollector"]
            .iter()
            .any(|part| line.contains(part))
    });
    lines.map(str::to_owned).collect()
}

// cluster-network#194, cluster-network#196, cluster-network#198, cluster-network#199, cluster-network#200
#[test]
fn network_observability_is_installed_once() {
    let stage = openshift("SingleReplica");
    let mark = stage.mark();
    let operator = stage.operator_with_all();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    // A single node asks for it.
    assert_eq!(requests(&stage, mark), Vec::<String>::new());
    assert_eq!(condition(&stage.there(OPERATOR), DEPLOYED), None);

    let no_olm = "Failed to install Network Observability Operator: no matches for kind \
                  \"ClusterExtension\" in version \"olm.operatorframework.io/v1\": install OLM, or set \
                  spec.networkObservability.installationPolicy of network.config.openshift.io cluster to \
                  NoAction";
    policy(&stage, "InstallAndEnable");
    stage.condition(DEPLOYED, &format!("False DeploymentFailed: {no_olm}"));
    assert_eq!(stage.get(NAMESPACE), None);
    assert_eq!(planned(&stage), [format!("! observability: {no_olm}")]);
    policy(&stage, "NoAction");
    let not_requested = "False NotRequested: the installation of Network Observability is not requested";
    stage.condition(DEPLOYED, not_requested);

    define_olm(&stage);
    assert_eq!(
        planned(&stage),
        [
            "+ Namespace netobserv-operator",
            "+ ServiceAccount netobserv-operator/netobserv-operator-installer",
            "+ ClusterRole netobserv-operator-installer",
            "+ ClusterRoleBinding netobserv-operator-installer",
            "+ Role netobserv-operator/netobserv-operator-installer",
            "+ RoleBinding netobserv-operator/netobserv-operator-installer",
            "+ ClusterExtension netobserv-operator",
            "+ Namespace netobserv",
            "+ FlowCollector cluster",
        ]
    );
    manage(&stage, "Unmanaged");
    policy(&stage, "InstallAndEnable");
    stage.at_rest();
    assert_eq!(stage.get(NAMESPACE), None);
    stage.condition(DEPLOYED, not_requested);

    // The role of a user stays as it is.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "netobserv-operator-installer" },
        "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }],
    });
    stage.apply(&role);
    manage(&stage, "Managed");
    stage.wait_for("the conflict", OPERATOR, |object| {
        let text = condition(object?, DEPLOYED)?;
        let start = "False DeploymentFailed: Failed to install Network Observability Operator: failed to \
                     apply ClusterRole netobserv-operator-installer: Apply failed with 1 conflict";
        text.starts_with(start).then_some(())
    });
    assert_eq!(stage.there(INSTALLER)["rules"], role["rules"]);
    assert_eq!(stage.get(EXTENSION), None);
    stage.remove(INSTALLER);

    let extension = stage.there(EXTENSION);
    assert_eq!(managers(&extension), ["cno-observability-controller Apply "]);
    for field in ["ownerReferences", "labels"] {
        assert_eq!(extension["metadata"].get(field), None);
    }
    let awaited = "waiting for ClusterExtension netobserv-operator";
    stage.condition(DEPLOYED, &format!("False DeploymentInProgress: {awaited}"));
    installed(&stage, "False", "no package\n\"netobserv-operator\" found");
    stage.condition(
        DEPLOYED,
        "False DeploymentFailed: Failed to check Network Observability Operator status: OLMv1 installation \
         error: ClusterExtension installation failed: Failed - No bundle installed: no package \
         \"netobserv-operator\" found",
    );
    stage.condition("Degraded", "False : ");
    assert_eq!(stage.get(COLLECTOR), None);

    // The next operator continues.
    drop(operator);
    define_collector(&stage);
    installed(&stage, "True", "");
    let operator = stage.operator_with_all();
    let collector = stage.there(COLLECTOR);
    assert_eq!(collector["spec"]["agent"]["ebpf"]["sampling"], 400);
    stage.there("/api/v1/namespaces/netobserv");
    stage.condition(DEPLOYED, COMPLETE);
    stage.at_rest();
    nothing_is_refused(&stage, mark);
    removed_objects_stay_away(&stage, operator);
}

/// Removes network observability like a user, then gives operators reasons to look at it.
fn removed_objects_stay_away(stage: &Stage, operator: Task) {
    let mark = stage.mark();
    stage.remove(COLLECTOR);
    stage.remove(EXTENSION);
    policy(stage, "NoAction");
    policy(stage, "InstallAndEnable");
    stage.at_rest();
    drop(operator);
    let _operator = stage.operator_with_all();
    stage.at_rest();
    // A new configuration gets the conditions of the ClusterOperator.
    let before = stage.there(OPERATOR)["metadata"]["uid"].clone();
    stage.remove(OPERATOR);
    stage.wait_for("another configuration", OPERATOR, |object| {
        let is_new = object?["metadata"]["uid"] != before;
        (is_new && condition(object?, DEPLOYED)? == COMPLETE).then_some(())
    });
    stage.at_rest();
    assert_eq!(requests(stage, mark), Vec::<String>::new());
    assert_eq!((stage.get(COLLECTOR), stage.get(EXTENSION)), (None, None));
    assert_eq!(planned(stage), Vec::<String>::new());
}

// cluster-network#195, cluster-network#197, cluster-network#201
#[test]
fn installation_of_a_user_is_used_and_stays_as_it_is() {
    let stage = openshift("HighlyAvailable");
    define_olm(&stage);
    define_collector(&stage);
    stage.namespace("openshift-netobserv-operator", &[]);
    let name = "netobserv-operator.v1.9.0";
    let version = format!("{VERSIONS}/{name}");
    let (api, kind) = ("operators.coreos.com/v1alpha1", "ClusterServiceVersion");
    stage.create(
        VERSIONS,
        &json!({ "apiVersion": api, "kind": kind, "metadata": { "name": name } }),
    );
    stage.apply(&json!({
        "apiVersion": "flows.netobserv.io/v1beta2", "kind": "FlowCollector",
        "metadata": { "name": "cluster" },
        "spec": { "agent": { "ebpf": { "sampling": 50 } } },
    }));
    let collector = stage.there(COLLECTOR);
    let mark = stage.mark();
    let _operator = stage.operator_with_all();
    // Without a policy, and with a feature gate and several nodes.
    stage.configure("Calico");
    stage.condition(
        DEPLOYED,
        &format!(
            "False DeploymentInProgress: waiting for ClusterServiceVersion \
             openshift-netobserv-operator/{name}"
        ),
    );
    policy(&stage, "InstallAndEnable");
    stage.report(&version, &json!({ "phase": "Succeeded" }));
    stage.condition(DEPLOYED, COMPLETE);
    assert_eq!(stage.there(COLLECTOR), collector);
    assert_eq!((stage.get(EXTENSION), stage.get(NAMESPACE)), (None, None));
    nothing_is_refused(&stage, mark);

    // The API server refuses other policies, and the operator owns none.
    let wrong = json!({ "spec": { "networkObservability": { "installationPolicy": "Install" } } });
    let refused = stage.patch(CLUSTER, &wrong).refused();
    assert!(
        refused.contains("spec.networkObservability.installationPolicy"),
        "{refused}"
    );
    stage.change(CLUSTER, &json!({ "status": { "networkType": "" } }));
    stage.wait_for("the status", CLUSTER, |object| {
        (object?["status"]["networkType"] == "Calico").then_some(())
    });
    let object = stage.there(CLUSTER);
    let entries = object["metadata"]["managedFields"].as_array().expect("managers");
    let owns = |entry: &&Value| {
        entry["fieldsV1"]["f:spec"]
            .get("f:networkObservability")
            .is_some()
    };
    let owners: Vec<_> = entries
        .iter()
        .filter(owns)
        .map(|entry| &entry["manager"])
        .collect();
    let ours = owners
        .iter()
        .filter(|it| it.as_str().is_some_and(|it| it.contains("operconfig")));
    assert_eq!(ours.count(), 0, "{owners:?}");
    assert_eq!(owners.len(), 1, "{owners:?}");
}

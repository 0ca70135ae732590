//! The files of the pool alone against kubemacpool §14, §17 and §18.

use serde_json::Value;

use super::*;

fn files() -> [Vec<Value>; 3] {
    let install = Install {
        image: "registry.example/weft:v1",
        namespace: "elsewhere",
        version: "1.2.3",
        pull_policy: "IfNotPresent",
    };
    let files = render(&install).expect("files");
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "kubemacpool.yaml",
            "kubemacpool-monitoring.yaml",
            "kubemacpool-replicas.yaml"
        ]
    );
    let parsed: Vec<Vec<Value>> = files
        .iter()
        .map(|(_, text)| serde_saphyr::from_multiple(text).expect("objects"))
        .collect();
    parsed.try_into().expect("three files")
}

fn ids(objects: &[Value]) -> Vec<String> {
    let id = |object: &Value| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("-");
        format!(
            "{} {}/{}",
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name")
        )
    };
    objects.iter().map(id).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

const MANAGER: &str = "kubemacpool-mac-controller-manager";

#[test]
fn files_have_objects_of_standalone_installation() {
    let [alone, monitoring, replicas] = files();
    let ns = "kubemacpool-system";
    let before = [
        format!("Namespace -/{ns}"),
        format!("Role {ns}/kubemacpool-manager-role"),
        format!("RoleBinding {ns}/kubemacpool-manager-rolebinding"),
        format!("ServiceAccount {ns}/kubemacpool-sa"),
        "ClusterRole -/kubemacpool-manager-role".to_owned(),
        "ClusterRoleBinding -/kubemacpool-manager-rolebinding".to_owned(),
        format!("ConfigMap {ns}/kubemacpool-mac-range-config"),
        format!("Service {ns}/kubemacpool-service"),
        format!("Deployment {ns}/kubemacpool-cert-manager"),
    ];
    let after = [
        format!("NetworkPolicy {ns}/kubemacpool-allow-ingress-to-metrics-endpoint"),
        format!("NetworkPolicy {ns}/kubemacpool-allow-ingress-to-webhook"),
        "MutatingWebhookConfiguration -/kubemacpool-mutator".to_owned(),
    ];
    let with = |managers: &[String]| [&before[..], managers, &after].concat();
    let managers = |kinds: &[&str]| -> Vec<String> {
        kinds
            .iter()
            .map(|kind| format!("{kind} {ns}/{MANAGER}"))
            .collect()
    };
    assert_eq!(ids(&alone), with(&managers(&["Deployment"])));
    assert_eq!(
        ids(&replicas),
        with(&managers(&["Service", "PodDisruptionBudget", "StatefulSet"]))
    );
    assert_eq!(
        ids(&monitoring),
        [
            format!("Role {ns}/kubemacpool-prometheus"),
            format!("RoleBinding {ns}/kubemacpool-prometheus"),
            format!("Service {ns}/kubemacpool-metrics-service"),
            format!("PrometheusRule {ns}/kubemacpool-prometheus-rule"),
            format!("ServiceMonitor {ns}/kubemacpool-metrics-monitor"),
        ]
    );
    assert_eq!(
        alone[0]["metadata"]["labels"],
        json!({ "pod-security.kubernetes.io/enforce": "restricted" })
    );
    let range = find(&alone, "ConfigMap", "kubemacpool-mac-range-config");
    assert_eq!(
        range["data"],
        json!({ "RANGE_START": "02:00:00:00:00:00", "RANGE_END": "02:FF:FF:FF:FF:FF" })
    );
    let webhooks = find(&alone, "MutatingWebhookConfiguration", "kubemacpool-mutator");
    for webhook in webhooks["webhooks"].as_array().expect("webhooks") {
        assert_eq!(webhook["clientConfig"]["service"]["namespace"], ns);
        assert_eq!(webhook["clientConfig"].get("caBundle"), None);
    }
    let binding = find(&monitoring, "RoleBinding", "kubemacpool-prometheus");
    assert_eq!(
        binding["subjects"],
        json!([{ "kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "monitoring" }])
    );
}

// The table of kubemacpool §17.1, exactly.
// kubemacpool#93
#[test]
fn roles_equal_permission_table() {
    let [alone, _, replicas] = files();
    let rule = |group: &str, resource: &str, names: &[&str], verbs: &[&str]| {
        let mut rule = json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    let cluster = json!([
        rule(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            &["kubemacpool-mutator"],
            &["get", "list", "update", "watch"]
        ),
        rule("", "pods", &[], &["get", "list", "watch"]),
        rule("", "namespaces", &[], &["list", "watch"]),
        rule(
            "kubevirt.io",
            "virtualmachines",
            &[],
            &["get", "list", "watch", "update"]
        ),
        rule("kubevirt.io", "virtualmachineinstances", &[], &["list", "watch"]),
        rule("authentication.k8s.io", "tokenreviews", &[], &["create"]),
        rule("authorization.k8s.io", "subjectaccessreviews", &[], &["create"]),
        rule("", "events", &[], &["create", "patch"]),
    ]);
    let secrets = ["kubemacpool-service", "kubemacpool-mutator-ca"];
    let own = json!([
        rule("", "secrets", &[], &["create"]),
        rule("", "secrets", &secrets, &["list", "watch", "update"]),
        rule(
            "",
            "configmaps",
            &["kubemacpool-mac-range-config"],
            &["list", "watch"]
        ),
    ]);
    let account =
        json!([{ "kind": "ServiceAccount", "name": "kubemacpool-sa", "namespace": "kubemacpool-system" }]);
    for objects in [alone, replicas] {
        let roles = objects
            .iter()
            .filter(|object| object["kind"].as_str().is_some_and(|kind| kind.ends_with("Role")));
        assert_eq!(roles.count(), 2);
        for (kind, budget) in [("ClusterRole", &cluster), ("Role", &own)] {
            let role = find(&objects, kind, "kubemacpool-manager-role");
            assert_eq!(role["rules"], *budget);
            let binding = find(
                &objects,
                &format!("{kind}Binding"),
                "kubemacpool-manager-rolebinding",
            );
            assert_eq!(binding["roleRef"]["kind"], kind);
            assert_eq!(binding["subjects"], account);
        }
    }
}

#[test]
fn workloads_are_native_and_independent_of_operator() {
    let [alone, _, _] = files();
    for name in ["kubemacpool-cert-manager", MANAGER] {
        let deployment = find(&alone, "Deployment", name);
        assert_eq!(deployment["spec"]["strategy"], json!({ "type": "Recreate" }));
        let template = &deployment["spec"]["template"];
        let mut labels = deployment["spec"]["selector"]["matchLabels"].clone();
        labels["app"] = json!("kubemacpool");
        assert_eq!(template["metadata"]["labels"], labels, "{name}");
        let container = &template["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example/weft:v1");
        assert_eq!(container["command"], json!(["/weft", "kubemacpool"]));
        assert_eq!(template["spec"]["securityContext"]["runAsUser"], 107);
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    }
    let issuer = &find(&alone, "Deployment", "kubemacpool-cert-manager")["spec"]["template"];
    assert_eq!(issuer["spec"].get("affinity"), None);
    let variables = issuer["spec"]["containers"][0]["env"]
        .as_array()
        .expect("variables");
    let intervals: Vec<_> = variables
        .iter()
        .filter(|variable| {
            variable["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("_INTERVAL"))
        })
        .map(|variable| variable["value"].as_str().expect("text"))
        .collect();
    assert_eq!(intervals, ["8760h0m0s", "24h0m0s", "4380h0m0s", "24h0m0s"]);

    let manager = &find(&alone, "Deployment", MANAGER)["spec"]["template"];
    assert_eq!(
        manager["metadata"]["annotations"],
        json!({ "description": "KubeMacPool manages MAC allocation to Pods and VMs" })
    );
    let container = &manager["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["--v=production", "--wait-time=300"]));
    let readiness = &container["readinessProbe"];
    assert_eq!(
        (&readiness["periodSeconds"], readiness.get("initialDelaySeconds")),
        (&json!(1), None)
    );
    assert_eq!(
        manager["spec"]["affinity"],
        json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": {
                "labelSelector": { "matchExpressions": [
                    { "key": "control-plane", "operator": "In", "values": ["mac-controller-manager"] },
                ] },
                "topologyKey": "kubernetes.io/hostname",
            },
        }] } })
    );
    let tolerate = |taint: &str| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 });
    assert_eq!(
        manager["spec"]["tolerations"],
        json!([
            tolerate("node.kubernetes.io/unreachable"),
            tolerate("node.kubernetes.io/not-ready")
        ])
    );
}

#[test]
fn several_managers_are_numbered_and_get_their_count() {
    let [alone, _, replicas] = files();
    let set = &find(&replicas, "StatefulSet", MANAGER)["spec"];
    assert_eq!(set["replicas"], 3);
    assert_eq!(set["serviceName"], MANAGER);
    assert_eq!(set["podManagementPolicy"], "Parallel");
    assert_eq!(set.get("strategy"), None);
    let args = &set["template"]["spec"]["containers"][0]["args"];
    assert_eq!(
        *args,
        json!(["--v=production", "--wait-time=300", "--replicas=3"])
    );
    let mut same = find(&alone, "Deployment", MANAGER)["spec"]["template"].clone();
    same["spec"]["containers"][0]["args"] = args.clone();
    // One of several managers runs ten seconds longer.
    same["spec"]["terminationGracePeriodSeconds"] = json!(10);
    assert_eq!(set["template"], same, "the pods differ in nothing else");
    let names = find(&replicas, "Service", MANAGER);
    assert_eq!(names["spec"]["clusterIP"], "None");
    assert_eq!(
        names["metadata"].get("labels"),
        None,
        "monitoring selects Services by theirs"
    );
}

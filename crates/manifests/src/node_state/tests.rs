//! The files of node state alone against nmstate §10.4 and §11.

use serde_json::Value;

use super::*;

fn files() -> Vec<(&'static str, Vec<Value>)> {
    let install = Install {
        image: "registry.example/weft:v1",
        namespace: "elsewhere",
        version: "1.2.3",
        pull_policy: "Always",
    };
    let files = render(&install).expect("files");
    files
        .into_iter()
        .map(|(name, text)| (name, serde_saphyr::from_multiple(&text).expect("objects")))
        .collect()
}

fn objects(file: &str) -> Vec<Value> {
    let found = files().into_iter().find(|(name, _)| *name == file);
    let (_, objects) = found.unwrap_or_else(|| panic!("no {file}"));
    objects
}

fn object(file: &str) -> Value {
    let objects = objects(file);
    assert_eq!(objects.len(), 1, "{file}");
    objects.into_iter().next().expect("an object")
}

#[test]
fn files_equal_those_of_release() {
    let found: Vec<(&str, String)> = files()
        .into_iter()
        .map(|(name, objects)| {
            let text = |object: &Value, pointer: &str| {
                let text = object.pointer(pointer).and_then(Value::as_str);
                text.unwrap_or("-").to_owned()
            };
            let ids = objects.iter().map(|object| {
                format!(
                    "{} {}/{}",
                    text(object, "/kind"),
                    text(object, "/metadata/namespace"),
                    text(object, "/metadata/name")
                )
            });
            (name, ids.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let expected = [
        (
            "nmstate.io_nmstates.yaml",
            "CustomResourceDefinition -/nmstates.nmstate.io",
        ),
        ("namespace.yaml", "Namespace -/nmstate"),
        ("service_account.yaml", "ServiceAccount nmstate/nmstate-operator"),
        (
            "role.yaml",
            "ClusterRole -/nmstate-operator, ClusterRole -/nmstate-operator-namespace",
        ),
        (
            "role_binding.yaml",
            "ClusterRoleBinding -/nmstate-operator, RoleBinding nmstate/nmstate-operator-namespace",
        ),
        ("operator.yaml", "Deployment nmstate/nmstate-operator"),
        ("nmstate.io_v1_nmstate_cr.yaml", "NMState -/nmstate"),
    ];
    assert_eq!(found, expected.map(|(name, ids)| (name, ids.to_owned())));
    for (binding, role) in objects("role_binding.yaml")
        .iter()
        .zip(["nmstate-operator", "nmstate-operator-namespace"])
    {
        assert_eq!(binding["roleRef"]["kind"], "ClusterRole");
        assert_eq!(binding["roleRef"]["name"], role);
        assert_eq!(
            binding["subjects"],
            json!([{ "kind": "ServiceAccount", "name": "nmstate-operator", "namespace": "nmstate" }])
        );
    }
}

#[test]
fn namespace_has_the_labels_that_the_operator_gives_it() {
    let text = include_str!("../../../nmstate/src/operator/manifests/namespace.yaml");
    let applied: Value = serde_saphyr::from_str(text).expect("a namespace");
    assert_eq!(applied["metadata"]["labels"]["name"], "nmstate");
    assert_eq!(
        object("namespace.yaml")["metadata"]["labels"],
        applied["metadata"]["labels"]
    );
}

#[test]
fn environment_of_operator_equals_table() {
    let operator = object("operator.yaml");
    assert_eq!(operator["spec"]["replicas"], 1);
    assert_eq!(
        operator["spec"]["selector"]["matchLabels"],
        json!({ "name": "kubernetes-nmstate-operator" })
    );
    let template = &operator["spec"]["template"];
    assert_eq!(
        template["metadata"]["labels"],
        json!({ "name": "kubernetes-nmstate-operator", "app": "kubernetes-nmstate-operator" })
    );
    let pods = &template["spec"];
    assert_eq!(pods["serviceAccountName"], "nmstate-operator");
    assert_eq!(pods["priorityClassName"], "system-cluster-critical");
    assert_eq!(pods["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        pods["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let tolerated: Vec<_> = pods["tolerations"]
        .as_array()
        .expect("tolerations")
        .iter()
        .map(|toleration| toleration["key"].as_str().expect("a key"))
        .collect();
    assert_eq!(
        tolerated,
        [
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/master"
        ]
    );
    let container = &pods["containers"][0];
    assert_eq!(container["image"], "registry.example/weft:v1");
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["command"], json!(["/weft-nmstate", "operator"]));
    assert_eq!(
        container["ports"][0],
        json!({ "name": "healthprobe", "containerPort": 8081, "protocol": "TCP" })
    );
    assert_eq!(
        container["securityContext"],
        json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        })
    );
    assert_eq!(
        container["resources"],
        json!({ "requests": { "cpu": "60m", "memory": "30Mi" }, "limits": { "cpu": "500m", "memory": "1Gi" } })
    );
    let variables: Vec<(String, String)> = container["env"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
            let value = if field.is_string() {
                field
            } else {
                &variable["value"]
            };
            (text(&variable["name"]), text(value))
        })
        .collect();
    let expected = [
        ("RUN_OPERATOR", ""),
        ("OPERATOR_NAME", "kubernetes-nmstate-operator"),
        ("POD_NAME", "metadata.name"),
        ("OPERATOR_NAMESPACE", "metadata.namespace"),
        ("HANDLER_NAMESPACE", "metadata.namespace"),
        ("MONITORING_NAMESPACE", "monitoring"),
        ("RELATED_IMAGE_HANDLER_IMAGE", "registry.example/weft:v1"),
        ("HANDLER_IMAGE_PULL_POLICY", "Always"),
        ("NNCP_MAX_RETRIES", "5"),
        ("NNCP_MAX_BACKOFF_SECONDS", "30"),
        ("NNCP_INITIAL_BACKOFF_SECONDS", "1"),
        ("PLUGIN_NAME", "nmstate-console-plugin"),
        (
            "PLUGIN_IMAGE",
            "quay.io/nmstate/nmstate-console-plugin:release-1.0.0",
        ),
        ("PLUGIN_PORT", "9443"),
        ("ENABLE_PROFILER", "False"),
        ("PROFILER_PORT", "6060"),
    ];
    let expected: Vec<_> = expected
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(variables, expected);
}

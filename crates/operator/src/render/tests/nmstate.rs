//! Operands §15.

use super::*;
use crate::cluster_facts::{NMStateObject, NodeStateDefinition};

fn rendered(setting: Setting, definition: NodeStateDefinition, object: NMStateObject) -> Vec<Value> {
    let node_state = NodeState { definition, object };
    let objects = setting.with(json!({ "nmstate": {}, "imagePullPolicy": "Always" }), |context| {
        let context = Context {
            node_state: &node_state,
            ..*context
        };
        components::nmstate::render(&context).expect("objects")
    });
    objects.into_iter().map(Manifest::into_value).collect()
}

fn deployment(scc: bool) -> Value {
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    let from_field = |name: &str, path: &str| json!({ "name": name, "valueFrom": field(path) });
    let labels = json!({ "name": "kubernetes-nmstate-operator" });
    let mut security = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if !scc {
        security["runAsNonRoot"] = json!(true);
        security["runAsUser"] = json!(1001);
    }
    let mut pod = json!({
        "serviceAccountName": "nmstate-operator",
        "priorityClassName": "system-cluster-critical",
        "securityContext": security,
        "containers": [{
            "name": "nmstate-operator",
            "image": "weft:1",
            "imagePullPolicy": "Always",
            "command": ["/weft-nmstate", "operator"],
            "env": [
                variable("RUN_OPERATOR", ""),
                variable("OPERATOR_NAME", "kubernetes-nmstate-operator"),
                from_field("POD_NAME", "metadata.name"),
                from_field("OPERATOR_NAMESPACE", "metadata.namespace"),
                from_field("HANDLER_NAMESPACE", "metadata.namespace"),
                variable("MONITORING_NAMESPACE", "observers"),
                variable("RELATED_IMAGE_HANDLER_IMAGE", "weft:1"),
                variable("HANDLER_IMAGE_PULL_POLICY", "Always"),
            ],
            "ports": [{ "name": "healthprobe", "containerPort": 8081, "protocol": "TCP" }],
            "readinessProbe": {
                "httpGet": { "path": "/readyz", "port": "healthprobe" }, "periodSeconds": 10,
            },
            "livenessProbe": {
                "httpGet": { "path": "/healthz", "port": "healthprobe" },
                "initialDelaySeconds": 15, "periodSeconds": 20,
            },
            "resources": { "requests": { "cpu": "60m", "memory": "30Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }],
    });
    place_infra(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "nmstate-operator", "namespace": "addons", "labels": { "app": "kubernetes-nmstate-operator" },
        },
        "spec": {
            "replicas": 1,
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": {
                    "labels": {
                        "name": "kubernetes-nmstate-operator", "app": "kubernetes-nmstate-operator",
                        "allow-access-cluster-services": "",
                    },
                    "annotations": {
                        "description": "Deploys what reports and configures the network of nodes",
                        "openshift.io/required-scc": "restricted-v2",
                    },
                },
                "spec": pod,
            },
        },
    })
}

fn operator(scc: bool) -> Vec<Value> {
    let definition = api::node_state::crd().expect("a definition");
    let role = "cluster-network-addons-nmstate-operator";
    let inside = "cluster-network-addons-nmstate-operator-namespace";
    vec![
        namespace(),
        Manifest::of("CustomResourceDefinition", &definition)
            .expect("JSON")
            .into_value(),
        service_account("nmstate-operator"),
        binding("ClusterRoleBinding", role, role, "nmstate-operator"),
        binding("RoleBinding", inside, inside, "nmstate-operator"),
        deployment(scc),
    ]
}

fn nmstate() -> Value {
    json!({ "apiVersion": "nmstate.io/v1", "kind": "NMState", "metadata": { "name": "nmstate" } })
}

// operands#23
#[test]
fn nmstate_without_foreign_operator_deploys_own_one() {
    assert!(
        enables("nmstate", &complete(json!({ "nmstate": {} }))) && !enables("nmstate", &complete(json!({})))
    );
    for native in [false, true] {
        for scc in [false, true] {
            let setting = Setting {
                native,
                scc,
                ..Setting::default()
            };
            // The API is not served before its definition is applied.
            let first = rendered(setting, NodeStateDefinition::None, NMStateObject::NotServed);
            assert_objects(&first, &operator(scc));
            let second = rendered(setting, NodeStateDefinition::Ours, NMStateObject::NotServed);
            assert_objects(&second, &operator(scc));
            let third = rendered(setting, NodeStateDefinition::Ours, NMStateObject::None);
            assert_objects(&third, &[operator(scc), vec![nmstate()]].concat());
        }
    }
}

// operands#24
#[test]
fn nmstate_with_foreign_definition_creates_object_alone() {
    let theirs = NodeStateDefinition::Foreign;
    let objects = rendered(Setting::default(), theirs, NMStateObject::None);
    assert_objects(&objects, &[namespace(), nmstate()]);
    let objects = rendered(Setting::default(), theirs, NMStateObject::NotServed);
    assert_objects(&objects, &[namespace()]);
}

// operands#25
#[test]
fn nmstate_keeps_settings_of_users() {
    for definition in [NodeStateDefinition::Ours, NodeStateDefinition::Foreign] {
        let settings = json!({ "logLevel": "debug", "nodeSelector": { "a": "b" } });
        let mut expected = nmstate();
        expected["spec"] = settings.clone();
        let objects = rendered(Setting::default(), definition, NMStateObject::Ours(settings));
        assert_eq!(objects.last(), Some(&expected));

        let objects = rendered(Setting::default(), definition, NMStateObject::Foreign);
        assert!(objects.iter().all(|object| object["kind"] != "NMState"));
    }
}

#[test]
fn nmstate_without_own_image_is_an_error() {
    let images = Images::default();
    let spec = complete(json!({ "nmstate": {} }));
    let error = Setting::default().with(json!({}), |context| {
        let context = Context {
            images: &images,
            spec: &spec,
            ..*context
        };
        components::nmstate::render(&context).expect_err("no image")
    });
    assert_eq!(
        error.to_string(),
        "the operator's own image is unknown: set environment variable POD_NAME or OPERATOR_IMAGE"
    );
}

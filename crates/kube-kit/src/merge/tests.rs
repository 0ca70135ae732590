mod drift;

use super::*;
use crate::object::owned_by;
use serde_json::json;

const OWNER: &str = "NetworkAddonsConfig";

fn owner(uid: &str) -> Value {
    json!({"apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": OWNER, "name": "cluster",
        "uid": uid, "controller": true, "blockOwnerDeletion": true})
}

fn policy() -> Policy {
    Policy::owned_by(OWNER)
}

fn object(api_version: &str, kind: &str, rest: &Value) -> Value {
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "namespace": "ns"}});
    overlay(&mut object, rest);
    object
}

/// Lays `upper` over `lower`: objects are merged, anything else is replaced.
fn overlay(lower: &mut Value, upper: &Value) {
    match (lower, upper) {
        (Value::Object(lower), Value::Object(upper)) => {
            for (key, value) in upper {
                overlay(lower.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (lower, upper) => *lower = upper.clone(),
    }
}

/// The live object that an API server would make of a rendered one.
fn live(rendered: &Value, filled: &Value) -> Value {
    let mut live = rendered.clone();
    overlay(
        &mut live,
        &json!({"metadata": {"uid": "u", "resourceVersion": "7", "generation": 3,
        "creationTimestamp": "2024-01-01T00:00:00Z", "managedFields": [{"manager": "x"}]}}),
    );
    overlay(&mut live, filled);
    live
}

fn update(rendered: &Value, live: &Value) -> Value {
    match plan(rendered, Some(live), &policy()).expect("a plan") {
        Change::Update(value) => value,
        other => panic!("expected an update, got {other:?}"),
    }
}

fn assert_unchanged(rendered: &Value, live: &Value) {
    let found = differences(rendered, live, &policy()).expect("a comparison");
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(
        plan(rendered, Some(live), &policy()).expect("a plan"),
        Change::Unchanged
    );
}

fn config_map(data: &Value) -> Value {
    object("v1", "ConfigMap", &json!({ "data": data }))
}

fn daemon_set() -> Value {
    object(
        "apps/v1",
        "DaemonSet",
        &json!({"metadata": {"labels": {"tier": "node"}, "ownerReferences": [owner("1")]}, "spec": {
            "selector": {"matchLabels": {"name": "x"}},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": {"name": "x", "np.kubevirt.io/allow": ""}, "annotations": {"description": "d"}},
                "spec": {
                    "hostNetwork": false,
                    "serviceAccountName": "sa",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "affinity": {},
                    "initContainers": null,
                    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [{
                        "name": "c", "image": "weft:v1", "command": ["/weft"],
                        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "EMPTY", "value": ""}],
                        "ports": [{"name": "health", "containerPort": 8081}],
                        "resources": {"requests": {"cpu": "0.01", "memory": "15Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "health"}},
                        "volumeMounts": [{"name": "bin", "mountPath": "/opt/cni/bin"}],
                    }],
                    "volumes": [{"name": "bin", "hostPath": {"path": "/opt/cni/bin"}}, {"name": "tmp", "emptyDir": {}},
                        {"name": "cfg", "configMap": {"name": "cfg"}}],
                },
            },
        }}),
    )
}

/// The answer of a real server to [`daemon_set`].
fn live_daemon_set() -> Value {
    let mut live = live(
        &daemon_set(),
        &json!({
            "metadata": {"annotations": {"deprecated.daemonset.template.generation": "1"}},
            "spec": {
                "revisionHistoryLimit": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}},
                "template": {
                    "metadata": {"creationTimestamp": null},
                    "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
                        "securityContext": {}, "serviceAccount": "sa", "terminationGracePeriodSeconds": 30},
                },
            },
            "status": {"numberReady": 0},
        }),
    );
    let spec = live
        .pointer_mut("/spec/template/spec")
        .and_then(Value::as_object_mut)
        .expect("a pod");
    for zero in ["hostNetwork", "affinity", "initContainers"] {
        spec.shift_remove(zero);
    }
    let container = live
        .pointer_mut("/spec/template/spec/containers/0")
        .expect("a container");
    overlay(
        container,
        &json!({"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File", "resources": {"requests": {"cpu": "10m"}},
            "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
                {"name": "EMPTY"}],
            "ports": [{"name": "health", "containerPort": 8081, "protocol": "TCP"}],
            "readinessProbe": {"httpGet": {"scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                "successThreshold": 1, "failureThreshold": 3}}),
    );
    overlay(
        live.pointer_mut("/spec/template/spec/volumes").expect("volumes"),
        &json!([{"name": "bin", "hostPath": {"path": "/opt/cni/bin", "type": ""}}, {"name": "tmp", "emptyDir": {}},
            {"name": "cfg", "configMap": {"name": "cfg", "defaultMode": 420}}]),
    );
    live
}

#[test]
fn plan_creates_absent_object() {
    let rendered = config_map(&json!({"a": "1"}));
    assert_eq!(plan(&rendered, None, &policy()), Ok(Change::Create(rendered)));
}

#[test]
fn plan_refuses_object_without_name() {
    let rendered = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "ns"}});
    assert_eq!(plan(&rendered, None, &policy()), Err(Error::NoName));
}

#[test]
fn plan_refuses_service_account_with_secrets() {
    // operator#62
    let rendered = object("v1", "ServiceAccount", &json!({"secrets": [{"name": "token"}]}));
    let error = plan(&rendered, None, &policy()).expect_err("an error");
    assert_eq!(error.to_string(), "cannot create ServiceAccount with secrets");
    assert_eq!(plan(&rendered, Some(&rendered), &policy()), Err(error));
}

#[test]
fn labels_and_annotations_are_merged_with_rendered_values_first() {
    // operator#56
    for place in ["labels", "annotations"] {
        let rendered = object(
            "v1",
            "ConfigMap",
            &json!({"metadata": {place: {"a": "new", "c": "c"}}}),
        );
        let live = object(
            "v1",
            "ConfigMap",
            &json!({"metadata": {place: {"a": "old", "b": "b"}, "resourceVersion": "7"}}),
        );
        let update = update(&rendered, &live);
        assert_eq!(update["metadata"][place], json!({"a": "new", "b": "b", "c": "c"}));
        assert_eq!(update["metadata"]["resourceVersion"], "7");
    }
}

#[test]
fn missing_rendered_label_is_difference_and_foreign_one_is_not() {
    let rendered = object("v1", "ConfigMap", &json!({"metadata": {"labels": {"ours": ""}}}));
    let with_more = object(
        "v1",
        "ConfigMap",
        &json!({"metadata": {"labels": {"ours": "", "theirs": "1"}}}),
    );
    assert_unchanged(&rendered, &with_more);
    let without = object(
        "v1",
        "ConfigMap",
        &json!({"metadata": {"labels": {"theirs": "1"}}}),
    );
    assert_eq!(
        update(&rendered, &without)["metadata"]["labels"],
        json!({"ours": "", "theirs": "1"})
    );
}

#[test]
fn revision_of_deployment_is_kept() {
    // operator#57
    let annotations =
        |value: &str| json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": value}}});
    let mut live = object("apps/v1", "Deployment", &annotations("4"));
    overlay(&mut live, &json!({"spec": {"replicas": 3}}));
    for rendered in [annotations("1"), json!({})] {
        let rendered = object("apps/v1", "Deployment", &rendered);
        let update = update(&rendered, &live);
        assert_eq!(
            update["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
            "4"
        );
    }
}

#[test]
fn cluster_address_of_service_is_kept() {
    // operator#58
    let live = object(
        "v1",
        "Service",
        &json!({"spec": {"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "type": "ClusterIP", "sessionAffinity": "None",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"}}),
    );
    let same = object("v1", "Service", &json!({"spec": {"ports": [{"port": 80}]}}));
    assert_unchanged(&same, &live);
    for rendered in [
        json!({}),
        json!({"clusterIP": "None"}),
        json!({"clusterIP": "10.9.9.9", "clusterIPs": ["10.9.9.9"]}),
    ] {
        let mut spec = json!({"ports": [{"port": 81}]});
        overlay(&mut spec, &rendered);
        let update = update(&object("v1", "Service", &json!({ "spec": spec })), &live);
        assert_eq!(update["spec"]["clusterIP"], "10.0.0.9");
        assert_eq!(update["spec"]["ports"], json!([{"port": 81}]));
        assert_ne!(update["spec"].get("clusterIPs"), Some(&json!(["10.9.9.9"])));
    }
}

#[test]
fn secrets_of_service_account_are_kept() {
    // operator#59
    let live = object(
        "v1",
        "ServiceAccount",
        &json!({"secrets": [{"name": "token-1"}],
        "imagePullSecrets": [{"name": "pull-1"}]}),
    );
    assert_unchanged(&object("v1", "ServiceAccount", &json!({})), &live);
    let rendered = object(
        "v1",
        "ServiceAccount",
        &json!({"metadata": {"labels": {"a": "1"}}}),
    );
    let update = update(&rendered, &live);
    assert_eq!(update["secrets"], json!([{"name": "token-1"}]));
    assert_eq!(update["imagePullSecrets"], json!([{"name": "pull-1"}]));
}

fn webhooks(kind: &str, webhooks: &Value) -> Value {
    object(
        "admissionregistration.k8s.io/v1",
        kind,
        &json!({ "webhooks": webhooks }),
    )
}

#[test]
fn ca_bundle_is_kept_unless_one_is_rendered() {
    // operator#60
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let live = webhooks(
            kind,
            &json!([
                {"name": "a", "clientConfig": {"caBundle": "bGl2ZS1h"}, "timeoutSeconds": 10, "failurePolicy": "Fail"},
                {"name": "b", "clientConfig": {"caBundle": "bGl2ZS1i"}},
            ]),
        );
        let rendered = webhooks(
            kind,
            &json!([
                {"name": "b", "clientConfig": {"service": {"name": "s"}}},
                {"name": "a", "clientConfig": {"caBundle": "cmVuZGVyZWQ="}},
            ]),
        );
        let update = update(&rendered, &live);
        assert_eq!(
            update["webhooks"][0]["clientConfig"],
            json!({"caBundle": "bGl2ZS1i", "service": {"name": "s"}})
        );
        assert_eq!(update["webhooks"][1]["clientConfig"]["caBundle"], "cmVuZGVyZWQ=");
        let same = webhooks(
            kind,
            &json!([{"name": "a", "clientConfig": {"caBundle": ""}}, {"name": "b"}]),
        );
        assert_unchanged(&same, &live);
    }
}

#[test]
fn webhooks_follow_rendered_configuration() {
    // operator#61
    let live = webhooks("MutatingWebhookConfiguration", &json!([{"name": "old"}]));
    let rendered = webhooks("MutatingWebhookConfiguration", &json!([{"name": "new"}]));
    assert_eq!(update(&rendered, &live)["webhooks"], json!([{"name": "new"}]));
    let both = webhooks(
        "MutatingWebhookConfiguration",
        &json!([{"name": "old"}, {"name": "new"}]),
    );
    assert_eq!(
        update(&both, &live)["webhooks"],
        json!([{"name": "old"}, {"name": "new"}])
    );
}

#[test]
fn existing_tls_secret_is_unchanged() {
    // operator#63
    let rendered = object(
        "v1",
        "Secret",
        &json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "bmV3"}}),
    );
    let live = object(
        "v1",
        "Secret",
        &json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "b2xk"}}),
    );
    assert_eq!(plan(&rendered, Some(&live), &policy()), Ok(Change::Unchanged));
    assert_eq!(plan(&rendered, None, &policy()), Ok(Change::Create(rendered)));
    let opaque = object(
        "v1",
        "Secret",
        &json!({"type": "Opaque", "data": {"tls.crt": "b2xk"}}),
    );
    let rendered = object("v1", "Secret", &json!({"data": {"tls.crt": "bmV3"}}));
    assert_eq!(update(&rendered, &opaque)["data"]["tls.crt"], "bmV3");
}

#[test]
fn rules_of_aggregated_role_are_kept() {
    let role = |rest: &Value| object("rbac.authorization.k8s.io/v1", "ClusterRole", rest);
    let rendered = role(
        &json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}, "rules": []}),
    );
    let mut live = rendered.clone();
    overlay(&mut live, &json!({"rules": [{"verbs": ["get"]}]}));
    assert_unchanged(&rendered, &live);
}

#[test]
fn foreign_owners_and_finalizers_stay_and_managed_ones_are_updated() {
    let stranger =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "s", "uid": "9", "controller": true});
    let rendered = object(
        "v1",
        "ConfigMap",
        &json!({"metadata": {"ownerReferences": [owner("2")]}}),
    );
    let live = object(
        "v1",
        "ConfigMap",
        &json!({"metadata": {"finalizers": ["theirs/hold"],
        "ownerReferences": [stranger, owner("1")]}}),
    );
    let update = update(&rendered, &live);
    let mut no_longer_controller = stranger.clone();
    no_longer_controller["controller"] = json!(false);
    assert_eq!(
        update["metadata"]["ownerReferences"],
        json!([no_longer_controller, owner("2")])
    );
    assert_eq!(update["metadata"]["finalizers"], json!(["theirs/hold"]));
    assert_unchanged(&rendered, &update);
}

#[test]
fn stale_managed_owner_is_removed_if_none_is_rendered() {
    let crd = |owners: &Value| {
        object(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            &json!({"metadata": {"ownerReferences": owners}}),
        )
    };
    let stranger = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "s", "uid": "9"});
    let update = update(&crd(&json!([])), &crd(&json!([owner("1"), stranger])));
    assert_eq!(update["metadata"]["ownerReferences"], json!([stranger]));
    assert!(!owned_by(&update, OWNER));
}

#[test]
fn changed_selector_recreates_owned_workload() {
    let mut live = live_daemon_set();
    live["spec"]["selector"]["matchLabels"] = json!({"app": "x"});
    assert_eq!(
        plan(&daemon_set(), Some(&live), &policy()),
        Ok(Change::Recreate(daemon_set()))
    );
    live["metadata"]["ownerReferences"] = json!([]);
    assert!(matches!(
        plan(&daemon_set(), Some(&live), &policy()),
        Ok(Change::Update(_))
    ));
    let binding = |role: &str| {
        object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            &json!({"metadata": {"ownerReferences": [owner("1")]}, "roleRef": {"kind": "Role", "name": role}}),
        )
    };
    assert_eq!(
        plan(&binding("a"), Some(&binding("b")), &policy()),
        Ok(Change::Recreate(binding("a")))
    );
}

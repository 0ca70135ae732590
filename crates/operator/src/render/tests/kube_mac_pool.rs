//! Operands §4.

mod settings;

use kube_kit::merge::{self, Change, Policy};

use super::*;

const RANGE: &str =
    r#"{ "kubeMacPool": { "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:ff:ff:ff" } }"#;

fn spec() -> Value {
    serde_json::from_str(RANGE).expect("JSON")
}

fn manager_labels() -> Value {
    json!({ "control-plane": "mac-controller-manager", "controller-tools.k8s.io": "1.0" })
}

fn rule(group: &str, resource: &str, names: &[&str], verbs: &str) -> Value {
    let verbs: Vec<_> = verbs.split(' ').collect();
    let mut rule = json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

const ADMISSION: &str = "admissionregistration.k8s.io";

/// The role for upstream's image: operands §4.
fn upstream_role() -> Value {
    cluster_role(
        "kubemacpool-manager-role",
        &json!([
            rule(ADMISSION, "validatingwebhookconfigurations", &[], "list watch"),
            rule(
                ADMISSION,
                "mutatingwebhookconfigurations",
                &[],
                "get list update watch"
            ),
            rule("", "secrets", &[], "list watch create update"),
            rule("apiextensions.k8s.io", "customresourcedefinitions", &[], "get"),
            rule("", "pods", &[], "get list watch"),
            rule("", "namespaces", &[], "get list watch"),
            rule("kubevirt.io", "virtualmachines", &[], "get list watch update"),
            rule("kubevirt.io", "virtualmachineinstances", &[], "get list watch"),
            rule("", "configmaps", &[], "get delete list watch"),
            rule("authentication.k8s.io", "tokenreviews", &[], "create"),
            rule("authorization.k8s.io", "subjectaccessreviews", &[], "create"),
            rule("", "events", &[], "create patch"),
        ]),
    )
}

/// The role for Weft's image: operands §13.
fn native_role() -> Value {
    cluster_role(
        "kubemacpool-manager-role",
        &json!([
            rule(
                ADMISSION,
                "mutatingwebhookconfigurations",
                &["kubemacpool-mutator"],
                "get list update watch"
            ),
            rule("", "pods", &[], "get list watch"),
            rule("", "namespaces", &[], "list watch"),
            rule("kubevirt.io", "virtualmachines", &[], "get list watch update"),
            rule("kubevirt.io", "virtualmachineinstances", &[], "list watch"),
            rule("authentication.k8s.io", "tokenreviews", &[], "create"),
            rule("authorization.k8s.io", "subjectaccessreviews", &[], "create"),
            rule("", "events", &[], "create patch"),
        ]),
    )
}

/// The role for Weft's image in its namespace: operands §13.
fn namespace_role() -> [Value; 2] {
    let (role, binding) = ("kubemacpool-manager-role", "kubemacpool-manager-rolebinding");
    let secrets = ["kubemacpool-service", "kubemacpool-mutator-ca"];
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": role, "namespace": "addons" },
            "rules": [
                rule("", "secrets", &[], "create"),
                rule("", "secrets", &secrets, "list watch update"),
                rule("", "configmaps", &["kubemacpool-mac-range-config"], "list watch"),
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": binding, "namespace": "addons" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": "kubemacpool-sa", "namespace": "addons" }],
        }),
    ]
}

/// Objects 5 to 9.
fn base(native: bool) -> Vec<Value> {
    let mut objects = vec![namespace()];
    if native {
        objects.extend(namespace_role());
    }
    objects.extend([
        service_account("kubemacpool-sa"),
        if native { native_role() } else { upstream_role() },
        binding(
            "ClusterRoleBinding",
            "kubemacpool-manager-rolebinding",
            "kubemacpool-manager-role",
            "kubemacpool-sa",
        ),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "kubemacpool-mac-range-config", "namespace": "addons", "labels": manager_labels(),
            },
            "data": { "RANGE_START": "02:00:00:00:00:00", "RANGE_END": "02:00:00:ff:ff:ff" },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "kubemacpool-service", "namespace": "addons" },
            "spec": {
                "selector": { "control-plane": "mac-controller-manager" },
                "ports": [{ "port": 443, "targetPort": 8000 }],
            },
        }),
    ]);
    objects
}

/// The common part of both Deployments.
fn deployment(name: &str, labels: &Value, annotations: &Value, container: &Value, scc: bool) -> Value {
    let mut pod_labels = labels.clone();
    pod_labels["app"] = json!("kubemacpool");
    pod_labels["allow-access-cluster-services"] = json!("");
    let mut container = container.clone();
    container["name"] = json!("manager");
    container["imagePullPolicy"] = json!("IfNotPresent");
    container["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    if container["command"][0] == "/weft" {
        container["securityContext"]["readOnlyRootFilesystem"] = json!(true);
    }
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut security = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if !scc {
        security["runAsNonRoot"] = json!(true);
        security["runAsUser"] = json!(107);
    }
    let mut pod = json!({
        "serviceAccountName": "kubemacpool-sa",
        "priorityClassName": "system-cluster-critical",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "securityContext": security,
        "containers": [container],
    });
    place_infra(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": "addons", "labels": labels },
        "spec": {
            "replicas": 1,
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": pod_labels, "annotations": annotations }, "spec": pod },
        },
    })
}

fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn from_field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": field(path) })
}

fn cert_manager(native: bool, scc: bool) -> Value {
    let label =
        |name: &str, label: &str| from_field(name, &format!("metadata.labels['app.kubernetes.io/{label}']"));
    let container = json!({
        "image": if native { "weft:1" } else { "pool:1" },
        "command": if native { json!(["/weft", "kubemacpool"]) } else { json!(["/manager"]) },
        "args": ["--v=production"],
        "env": [
            variable("RUN_CERT_MANAGER", ""),
            from_field("POD_NAMESPACE", "metadata.namespace"),
            from_field("POD_NAME", "metadata.name"),
            label("COMPONENT", "component"),
            label("PART_OF", "part-of"),
            label("VERSION", "version"),
            label("MANAGED_BY", "managed-by"),
            variable("CA_ROTATE_INTERVAL", "48h0m0s"),
            variable("CA_OVERLAP_INTERVAL", "24h0m0s"),
            variable("CERT_ROTATE_INTERVAL", "24h0m0s"),
            variable("CERT_OVERLAP_INTERVAL", "12h0m0s"),
        ],
        "resources": { "requests": { "cpu": "30m", "memory": "30Mi" } },
    });
    deployment(
        "kubemacpool-cert-manager",
        &json!({ "control-plane": "cert-manager", "controller-tools.k8s.io": "1.0" }),
        &json!({ "openshift.io/required-scc": "restricted-v2" }),
        &container,
        scc,
    )
}

fn manager(native: bool, scc: bool) -> Value {
    let range = |key: &str| json!({ "name": key, "valueFrom": { "configMapKeyRef": { "name": "kubemacpool-mac-range-config", "key": key } } });
    let probe = |path: &str, initial: u32, period: u32| {
        json!({
            "httpGet": {
                "path": path, "port": "webhook-server", "scheme": "HTTPS",
                "httpHeaders": [{ "name": "Content-Type", "value": "application/json" }],
            },
            "initialDelaySeconds": initial, "periodSeconds": period,
        })
    };
    let mut container = json!({
        "image": "pool:1",
        "command": ["/manager"],
        "args": ["--v=production", "--wait-time=300", "--tls-min-version=VersionTLS13"],
        "env": [
            from_field("POD_NAMESPACE", "metadata.namespace"),
            from_field("POD_NAME", "metadata.name"),
            range("RANGE_START"),
            range("RANGE_END"),
            variable("KUBEVIRT_CLIENT_GO_SCHEME_REGISTRATION_VERSION", "v1"),
        ],
        "ports": [
            { "name": "webhook-server", "containerPort": 8000, "protocol": "TCP" },
            { "name": "metrics", "containerPort": 8443, "protocol": "TCP" },
        ],
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 10, 10),
        "resources": { "requests": { "cpu": "100m", "memory": "100Mi" } },
        "volumeMounts": [{
            "name": "tls-key-pair", "mountPath": "/tmp/k8s-webhook-server/serving-certs/", "readOnly": true,
        }],
    });
    if native {
        container["image"] = json!("weft:1");
        container["command"] = json!(["/weft", "kubemacpool"]);
        let mut eager = probe("/readyz", 0, 1);
        eager
            .as_object_mut()
            .expect("a probe")
            .shift_remove("initialDelaySeconds");
        container["readinessProbe"] = eager;
    }
    let mut deployment = deployment(
        "kubemacpool-mac-controller-manager",
        &manager_labels(),
        &json!({
            "description": "KubeMacPool manages MAC allocation to Pods and VMs",
            "openshift.io/required-scc": "restricted-v2",
        }),
        &container,
        scc,
    );
    deployment["spec"]["template"]["spec"]["volumes"] =
        json!([{ "name": "tls-key-pair", "secret": { "secretName": "kubemacpool-service" } }]);
    deployment
}

fn webhook_configuration() -> Value {
    let webhook = |name: &str, path: &str, own: (&str, &str), rule: Value| {
        let term = |key: &str, operator: &str, values: Value| json!({ "key": key, "operator": operator, "values": values });
        json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "failurePolicy": "Fail",
            "sideEffects": "NoneOnDryRun",
            "clientConfig": { "service": { "name": "kubemacpool-service", "namespace": "addons", "path": path } },
            "namespaceSelector": { "matchExpressions": [
                term("runlevel", "NotIn", json!(["0", "1"])),
                term("openshift.io/run-level", "NotIn", json!(["0", "1"])),
                term(name, own.0, json!([own.1])),
            ] },
            "rules": [rule],
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "kubemacpool-mutator" },
        "webhooks": [
            webhook("mutatepods.kubemacpool.io", "/mutate-pods", ("In", "allocate"), json!({
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            })),
            webhook(
                "mutatevirtualmachines.kubemacpool.io", "/mutate-virtualmachines", ("NotIn", "ignore"),
                json!({
                    "operations": ["CREATE", "UPDATE"], "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"],
                    "resources": ["virtualmachines"],
                }),
            ),
        ],
    })
}

/// Objects 5 to the end.
fn main_part(native: bool, scc: bool) -> Vec<Value> {
    let pods = json!({ "control-plane": "mac-controller-manager" });
    let mut objects = base(native);
    objects.extend([
        cert_manager(native, scc),
        manager(native, scc),
        ingress(
            "kubemacpool-allow-ingress-to-metrics-endpoint",
            &pods,
            "TCP",
            8443,
        ),
        ingress("kubemacpool-allow-ingress-to-webhook", &pods, "TCP", 8000),
        webhook_configuration(),
    ]);
    objects
}

/// Objects 1 to 4.
fn monitoring() -> Vec<Value> {
    let [role, binding] = scraping("kubemacpool-prometheus");
    vec![
        role,
        binding,
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "kubemacpool-metrics-service", "namespace": "addons", "labels": {
                "control-plane": "mac-controller-manager", "prometheus.kubemacpool.io": "true",
            } },
            "spec": {
                "selector": { "control-plane": "mac-controller-manager" },
                "ports": [{ "name": "metrics", "port": 8443, "targetPort": 8443, "protocol": "TCP" }],
            },
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
            "metadata": { "name": "kubemacpool-prometheus-rule", "namespace": "addons", "labels": {
                "openshift.io/prometheus-rule-evaluation-scope": "leaf-prometheus",
                "prometheus.kubemacpool.io": "true",
            } },
            "spec": { "groups": [{ "name": "alerts.rules", "rules": [{
                "alert": "KubemacpoolMACCollisionDetected",
                "expr": "count(kmp_mac_collisions > 1) > 0",
                "for": "30s",
                "labels": { "severity": "warning", "operator_health_impact": "warning" },
                "annotations": {
                    "summary": "MAC address collisions detected.",
                    "description": "{{ $value }} MAC address(es) have collisions. \
                        Multiple running objects are using the same MAC address.",
                    "runbook_url": "https://runbooks.example/KubemacpoolMACCollisionDetected.html",
                },
            }] }] },
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
            "metadata": { "name": "kubemacpool-metrics-monitor", "namespace": "addons", "labels": {
                "openshift.io/cluster-monitoring": "true", "prometheus.kubemacpool.io": "true",
            } },
            "spec": {
                "selector": { "matchLabels": { "control-plane": "mac-controller-manager" } },
                "endpoints": [{
                    "port": "metrics", "scheme": "https",
                    "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
                    "tlsConfig": { "insecureSkipVerify": true },
                }],
            },
        }),
    ]
}

// operands#7
#[test]
fn mac_pool_without_monitoring_has_main_part() {
    assert!(enables("kubeMacPool", &complete(spec())) && !enables("kubeMacPool", &complete(json!({}))));
    for native in [false, true] {
        for (scc, openshift4) in [(false, false), (true, false), (true, true)] {
            let setting = Setting {
                native,
                scc,
                openshift4,
                openshift_network: openshift4,
                ..Setting::default()
            };
            assert_objects(&setting.render("kubeMacPool", spec()), &main_part(native, scc));
        }
    }
}

// operands#8
#[test]
fn mac_pool_with_monitoring_starts_with_its_objects() {
    for native in [false, true] {
        for scc in [false, true] {
            let setting = Setting {
                native,
                scc,
                monitoring: true,
                ..Setting::default()
            };
            let expected = [monitoring(), main_part(native, scc)].concat();
            assert_objects(&setting.render("kubeMacPool", spec()), &expected);
        }
    }
}

// operands#9: the fields are compared here, an existing bundle survives by the rules of operator §9.1.
#[test]
fn merge_keeps_certificate_authority_of_webhooks() {
    let rendered = Setting::default().render("kubeMacPool", spec());
    let rendered = rendered.last().expect("the webhook configuration");
    assert_eq!(rendered, &webhook_configuration());

    let policy = Policy::owned_by("NetworkAddonsConfig");
    let mut live = rendered.clone();
    live["metadata"]["resourceVersion"] = json!("7");
    for webhook in live["webhooks"].as_array_mut().expect("webhooks") {
        webhook["clientConfig"]["caBundle"] = json!("Y2VydGlmaWNhdGU=");
        webhook["clientConfig"]["service"]["port"] = json!(443);
        webhook["timeoutSeconds"] = json!(10);
        webhook["matchPolicy"] = json!("Equivalent");
        webhook["reinvocationPolicy"] = json!("Never");
        webhook["objectSelector"] = json!({});
        webhook["rules"][0]["scope"] = json!("*");
    }
    assert_eq!(merge::plan(rendered, Some(&live), &policy), Ok(Change::Unchanged));

    // A foreign selector is replaced, and the certificate authority stays.
    live["webhooks"][0]["namespaceSelector"] = json!({});
    live["webhooks"][1]["failurePolicy"] = json!("Ignore");
    let Ok(Change::Update(update)) = merge::plan(rendered, Some(&live), &policy) else {
        panic!("the selector is restored");
    };
    for (index, expected) in rendered["webhooks"]
        .as_array()
        .expect("webhooks")
        .iter()
        .enumerate()
    {
        let mut expected = expected.clone();
        expected["clientConfig"]["caBundle"] = json!("Y2VydGlmaWNhdGU=");
        assert_eq!(update["webhooks"][index], expected);
    }
}

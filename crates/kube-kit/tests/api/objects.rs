//! One object of every kind, as components render them.

use serde_json::{Value, json};

pub(crate) const OWNER: &str = "NetworkAddonsConfig";

/// A reference to an owner that does not exist: no garbage collector runs.
pub(crate) fn owner(uid: &str) -> Value {
    json!({"apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": OWNER, "name": "cluster", "uid": uid,
        "controller": true, "blockOwnerDeletion": true})
}

pub(crate) fn metadata(namespace: Option<&str>, name: &str) -> Value {
    let mut metadata = json!({"name": name, "labels": {"networkaddonsoperator.network.kubevirt.io/version": "1"},
        "ownerReferences": [owner("00000000-0000-0000-0000-000000000001")]});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"a": "b"}}})
}

pub(crate) fn config_map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(Some(namespace), name), "data": {"a": "1"}})
}

fn pod_template(name: &str) -> Value {
    json!({
        "metadata": {"labels": {"name": name, "np.kubevirt.io/allow-access": ""}, "annotations": {"description": "d"}},
        "spec": {
            "hostNetwork": true,
            "hostPID": false,
            "serviceAccountName": "sa",
            "priorityClassName": "system-cluster-critical",
            "terminationGracePeriodSeconds": 10,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "affinity": {},
            "tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1001},
            "automountServiceAccountToken": false,
            "initContainers": [{
                "name": "init", "image": "localhost/weft:1", "imagePullPolicy": "IfNotPresent",
                "command": ["/weft"], "resources": {"requests": {"cpu": "10m", "memory": "15Mi"}},
                "securityContext": {"privileged": true, "runAsNonRoot": false, "runAsUser": 0},
                "volumeMounts": [{"name": "bin", "mountPath": "/host/opt/cni/bin", "mountPropagation": "Bidirectional"}],
            }],
            "containers": [{
                "name": "main", "image": "localhost/weft",
                "args": ["-node-name", "$(NODE_NAME)"],
                "env": [
                    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"containerName": "main", "resource": "requests.cpu"}}},
                    {"name": "EMPTY", "value": ""},
                    {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": true}}},
                ],
                "envFrom": [{"configMapRef": {"name": "m"}}],
                "ports": [{"name": "health", "containerPort": 8081, "hostPort": 8081}],
                "resources": {"requests": {"cpu": "0.06", "memory": "30Mi"}, "limits": {"memory": "1024Mi"}},
                "securityContext": {"readOnlyRootFilesystem": true, "privileged": false,
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "initialDelaySeconds": 10,
                    "periodSeconds": 20},
                "readinessProbe": {"exec": {"command": ["/weft"]}, "initialDelaySeconds": 0},
                "startupProbe": {"tcpSocket": {"port": 8081}, "periodSeconds": 1, "failureThreshold": 600},
                "lifecycle": {"preStop": {"httpGet": {"path": "/stop", "port": 8081}}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "bin", "mountPath": "/opt/cni/bin"},
                    {"name": "run", "mountPath": "/run", "mountPropagation": "HostToContainer"},
                    {"name": "cfg", "mountPath": "/cfg", "readOnly": true}],
            }],
            "volumes": [
                {"name": "bin", "hostPath": {"path": "/opt/cni/bin"}},
                {"name": "run", "hostPath": {"path": "/run", "type": "DirectoryOrCreate"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "cfg", "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}},
                {"name": "sec", "secret": {"secretName": "s", "optional": true}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}},
                    {"configMap": {"name": "m"}}]}},
            ],
        },
    })
}

pub(crate) fn daemon_set(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(Some(namespace), name), "spec": {
        "selector": {"matchLabels": {"name": name}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "template": pod_template(name),
    }})
}

pub(crate) fn deployment(namespace: &str, name: &str) -> Value {
    let mut template = pod_template(name);
    template["spec"]["hostNetwork"] = json!(false);
    template["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8000, "name": "webhook"}]);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(Some(namespace), name), "spec": {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"name": name}},
        "template": template,
    }})
}

pub(crate) fn webhooks(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata(None, name), "webhooks": [{
        "name": format!("{name}.example.com"),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"service": {"name": "s", "namespace": "default", "path": "/mutate"}},
        "namespaceSelector": {"matchExpressions": [{"key": "never", "operator": "In", "values": ["x"]}]},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }]})
}

pub(crate) fn definition(group: &str, kind: &str, plural: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")}, "spec": {
            "group": group, "scope": "Namespaced", "preserveUnknownFields": false,
            "names": {"kind": kind, "plural": plural, "shortNames": ["x"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Config", "type": "string", "jsonPath": ".spec.config"}],
                "schema": {"openAPIV3Schema": {"type": "object", "description": "", "properties": {
                    "spec": {"type": "object", "nullable": false, "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"config": {"type": "string"}, "count": {"type": "integer", "minimum": 0, "default": 0}}},
                    "status": {"type": "object", "properties": {}}}}}}]}})
}

/// All objects, in an order in which they can be created.
pub(crate) fn all(namespace_name: &str) -> Vec<Value> {
    let namespaced = |name: &str| metadata(Some(namespace_name), name);
    let cluster = |name: &str| metadata(None, &format!("{namespace_name}-{name}"));
    let rbac = "rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "update", "patch"]}]);
    let subjects = json!([{"kind": "ServiceAccount", "name": "sa", "namespace": namespace_name}]);
    vec![
        namespace(namespace_name),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced("sa")}),
        config_map(namespace_name, "config"),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": namespaced("empty"), "data": {}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": namespaced("opaque"), "stringData": {"key": "value"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": namespaced("tls"), "type": "kubernetes.io/tls",
            "data": {"tls.crt": "", "tls.key": ""}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": namespaced("service"),
            "spec": {"selector": {"name": "x"}, "ports": [{"port": 443}, {"port": 80, "name": "b", "targetPort": "http"}]}})
        .with("/spec/ports/0/name", "a"),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": namespaced("headless"),
            "spec": {"clusterIP": "None", "selector": {"name": "x"}, "ports": [{"port": 8443, "name": "metrics"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": namespaced("node-port"),
            "spec": {"type": "NodePort", "selector": {"name": "x"}, "ports": [{"port": 53, "protocol": "UDP"}]}}),
        daemon_set(namespace_name, "daemon"),
        deployment(namespace_name, "deployment"),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": namespaced("plain"), "spec": {
            "selector": {"matchLabels": {"name": "plain"}},
            "template": {"metadata": {"labels": {"name": "plain"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}}),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": namespaced("plain"), "spec": {
            "selector": {"matchLabels": {"name": "plain"}},
            "template": {"metadata": {"labels": {"name": "plain"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}}),
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": cluster("role"), "rules": rules}),
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": cluster("aggregated"), "rules": [],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"never": "matches"}}]}}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": cluster("binding"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"}, "subjects": subjects}),
        json!({"apiVersion": rbac, "kind": "Role", "metadata": namespaced("role"), "rules": rules}),
        json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": namespaced("binding"),
            "roleRef": {"kind": "Role", "name": "role", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "sa", "namespace": namespace_name}]}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": namespaced("policy"), "spec": {
            "podSelector": {"matchLabels": {"a": ""}},
            "egress": [{"ports": [{"port": 6443}]}, {"to": [{"namespaceSelector": {}, "podSelector": {}}]}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": namespaced("open"), "spec": {
            "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}}),
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": namespaced("budget"),
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"name": "x"}}}}),
        webhooks("MutatingWebhookConfiguration", &format!("{namespace_name}-mutating")),
        webhooks("ValidatingWebhookConfiguration", &format!("{namespace_name}-validating")),
        definition(&format!("{namespace_name}.example.com"), "Example", "examples"),
    ]
}

/// Sets a value in a literal.
trait With {
    fn with(self, pointer: &str, value: impl Into<Value>) -> Self;
}

impl With for Value {
    fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        self.pointer_mut(parent).expect("a parent")[key] = value.into();
        self
    }
}

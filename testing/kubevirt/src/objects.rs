//! The objects of an installation, adapted to a cluster on which KubeVirt runs beside Kubernetes.

use serde_json::{Value, json};

use crate::NAMESPACE;

/// Port on which virt-api listens.
pub(crate) const API_PORT: u16 = 8443;
/// Service accounts of the programs.
pub(crate) const API_ACCOUNT: &str = "kubevirt-apiserver";
pub(crate) const CONTROLLER_ACCOUNT: &str = "kubevirt-controller";
pub(crate) const HANDLER_ACCOUNT: &str = "kubevirt-handler";
/// Service by which the API server reaches virt-api.
pub(crate) const API_SERVICE: &str = "virt-api";
/// The `KubeVirt` object.
pub(crate) const KUBEVIRT: &str = "kubevirt";
/// Role of the stand-in for virt-handler, beyond that of virt-handler.
const STAND_IN: &str = "virt-handler-stand-in";

/// Adapts the objects that KubeVirt's constructors return: adds the certificate authority of virt-api (PEM, and the
/// same in base64), and the Services for virt-api at `address`.
pub(crate) fn complete(made: Vec<Value>, pem: &str, base64: &str, address: &str) -> Vec<Value> {
    let mut all = vec![json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } })];
    for mut object in made {
        if let Some(fields) = object.as_object_mut() {
            fields.shift_remove("status");
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.shift_remove("creationTimestamp");
        }
        match object["kind"].as_str() {
            Some("MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
                for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                    webhook["clientConfig"]["caBundle"] = json!(base64);
                }
            }
            Some("APIService") => object["spec"]["caBundle"] = json!(base64),
            _ => {}
        }
        all.push(object);
    }
    all.extend(service_of_api(address));
    all.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": NAMESPACE, "name": "kubevirt-ca" },
        "data": { "ca-bundle": pem },
    }));
    all.extend(role_of_stand_in());
    all
}

/// Returns the object that enables features. Its kind must be served.
pub(crate) fn kubevirt() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": { "namespace": NAMESPACE, "name": KUBEVIRT },
        "spec": { "configuration": {
            // Launcher pods request no /dev/kvm with this setting.
            "developerConfiguration": { "useEmulation": true },
            "virtualMachineOptions": { "disableSerialConsoleLog": {} },
            // Interfaces of running VMs can be changed with this strategy.
            "vmRolloutStrategy": "LiveUpdate",
        } },
    })
}

/// Returns a Service without pods, because virt-api runs beside Kubernetes.
fn service_of_api(address: &str) -> [Value; 2] {
    let metadata = |name: &str| json!({ "namespace": NAMESPACE, "name": name });
    let mut slice = metadata(API_SERVICE);
    slice["labels"] = json!({ "kubernetes.io/service-name": API_SERVICE });
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(API_SERVICE),
            "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": API_PORT, "protocol": "TCP" }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice, "addressType": "IPv4",
            "ports": [{ "name": "https", "port": API_PORT, "protocol": "TCP" }],
            "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        }),
    ]
}

/// virt-handler observes pods on its node, and the stand-in needs the API server.
fn role_of_stand_in() -> [Value; 2] {
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let group = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": { "name": STAND_IN },
            "rules": [
                rule("", "pods", &["get", "list", "watch"]),
                rule("", "pods/status", &["patch"]),
                rule("", "pods/proxy", &["create"]),
                rule("", "nodes", &["get", "list", "patch"]),
                rule("", "nodes/status", &["patch"]),
            ],
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": STAND_IN },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": STAND_IN },
            "subjects": [{ "kind": "ServiceAccount", "namespace": NAMESPACE, "name": HANDLER_ACCOUNT }],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_adds_the_authority_and_removes_every_status() {
        let made = vec![
            json!({ "kind": "CustomResourceDefinition", "metadata": { "name": "a", "creationTimestamp": null }, "status": {} }),
            json!({ "kind": "MutatingWebhookConfiguration", "metadata": { "name": "b" },
                "webhooks": [{ "clientConfig": { "service": {} } }] }),
            json!({ "kind": "APIService", "metadata": { "name": "c" }, "spec": {} }),
        ];
        let all = complete(made, "pem", "cGVt", "10.10.0.1");
        let find = |kind: &str| all.iter().find(|object| object["kind"] == kind).unwrap();
        assert_eq!(all[0]["kind"], "Namespace");
        assert_eq!(
            *find("CustomResourceDefinition"),
            json!({ "kind": "CustomResourceDefinition", "metadata": { "name": "a" } })
        );
        let webhook = &find("MutatingWebhookConfiguration")["webhooks"][0];
        assert_eq!(webhook["clientConfig"]["caBundle"], "cGVt");
        assert_eq!(find("APIService")["spec"]["caBundle"], "cGVt");
        assert_eq!(find("EndpointSlice")["endpoints"][0]["addresses"][0], "10.10.0.1");
        assert_eq!(find("ConfigMap")["data"]["ca-bundle"], "pem");
    }
}

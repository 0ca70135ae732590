//! Privileges of the containers that run Weft's image.

use super::*;
use crate::render::parts;

/// Workload, container, security context of the pod, security context of the container.
fn security_contexts(objects: &[Value]) -> Vec<Value> {
    let mut all = Vec::new();
    for object in objects {
        let pod = &object["spec"]["template"]["spec"];
        for list in ["initContainers", "containers"] {
            for container in pod[list].as_array().into_iter().flatten() {
                let workload = &object["metadata"]["name"];
                let own = &container["securityContext"];
                all.push(json!([workload, container["name"], pod["securityContext"], own]));
            }
        }
    }
    all
}

#[test]
fn containers_of_weft_have_minimal_privileges() {
    let only_volumes = json!({ "privileged": true, "readOnlyRootFilesystem": true });
    let seccomp = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    let user = |user: u32| json!({ "runAsNonRoot": true, "runAsUser": user, "seccompProfile": { "type": "RuntimeDefault" } });
    let service = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
    });
    let mut network = service.clone();
    network["capabilities"]["add"] = json!(["NET_ADMIN"]);
    let mut spec = of_type("Weft");
    spec.deploy_kube_proxy = Some(false);
    let source = "network-check-source";
    let target = "network-check-target";
    assert_eq!(
        security_contexts(&rendered(&spec).objects),
        [
            json!(["multus", "install-multus", null, only_volumes]),
            json!(["multus", "kube-multus", null, only_volumes]),
            json!([
                "multus-additional-cni-plugins",
                "kube-multus-additional-cni-plugins",
                null,
                only_volumes
            ]),
            json!([
                "multus-admission-controller",
                "multus-admission-controller",
                user(65534),
                service
            ]),
            json!(["pod-network", "plugins", seccomp, service]),
            json!(["pod-network", "pod-network", seccomp, network]),
            json!([source, "check-endpoints", user(65534), service]),
            json!([target, "network-check-target-container", user(65534), service]),
        ]
    );
    let prober = parts::mtu_prober(&facts(), &settings()).expect("objects");
    assert_eq!(
        security_contexts(&prober),
        [json!(["mtu-prober", "prober", user(65534), service])]
    );
}

//! The shipped manifests against an API server.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    fixture::{NAMESPACE, Stage},
    objects::Kind,
};

/// Applies a shipped file, and returns its workloads.
fn workloads(stage: &Stage, file: &str) -> Vec<Value> {
    // Possibly left by another test: no controller empties namespaces.
    let left = ["deployments,statefulsets", "--all", "--namespace", NAMESPACE];
    stage.kubectl().delete(left).expect("deleted");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(file);
    stage.kubectl().apply_file(&path).expect("applied");
    let all = stage
        .kubectl()
        .json(["get", "deployments,statefulsets", "--namespace", NAMESPACE])
        .expect("workloads");
    all["items"].as_array().expect("a list").clone()
}

#[test]
fn shipped_pods_pass_pod_security() {
    for (file, kinds) in [
        ("kubemacpool.yaml", &["Deployment", "Deployment"][..]),
        ("kubemacpool-replicas.yaml", &["Deployment", "StatefulSet"]),
    ] {
        let stage = Stage::start();
        let namespace = stage.get(Kind::Namespace, "", NAMESPACE).expect("the namespace");
        let level = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
        assert_eq!(level, "restricted");
        let workloads = workloads(&stage, file);
        let found: Vec<_> = workloads.iter().map(|workload| &workload["kind"]).collect();
        assert_eq!(found, kinds, "{file}");
        for workload in &workloads {
            let template = &workload["spec"]["template"];
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
                "metadata": template["metadata"],
            });
            pod["metadata"]["name"] = json!("p");
            stage.create_dry(Kind::Pod, NAMESPACE, &pod).accepted();
            // The level is enforced: a privileged pod is refused.
            pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
            let text = stage.create_dry(Kind::Pod, NAMESPACE, &pod).refused();
            assert!(text.contains("violates PodSecurity"), "{text}");
        }
    }
}

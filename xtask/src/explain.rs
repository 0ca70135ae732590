//! Evidence about problems of a cluster: objects, events, logs.

use cluster::{Cluster, Kubectl, run};
use serde_json::Value;

/// Collects the evidence of a cluster and some of its namespaces.
pub(crate) fn cluster(cluster: &Cluster, namespaces: &[&str]) -> String {
    let mut text = "\n".to_owned();
    let dead: Vec<_> = cluster
        .components()
        .into_iter()
        .filter(|component| !component.runs)
        .collect();
    for component in &dead {
        let log = std::fs::read_to_string(&component.log).unwrap_or_default();
        if !log.is_empty() {
            text.push_str(&format!(
                "{} on {} is dead; its last words:",
                component.program, component.space
            ));
            text.push_str(&format!("{}\n\n", run::tail(&log)));
        }
    }
    if dead.iter().any(|component| component.program == "kube-apiserver") {
        return text;
    }
    let kubectl = cluster.kubectl();
    let mut show = |args: &[&str]| {
        if let Ok(answer) = kubectl.run(args)
            && !answer.trim().is_empty()
        {
            text.push_str(&format!("kubectl {}:{}\n\n", args.join(" "), run::tail(&answer)));
        }
    };
    show(&["get", "networkaddonsconfig", "cluster", "--output", "yaml"]);
    for namespace in namespaces {
        show(&[
            "get",
            "deployments,daemonsets,pods",
            "--output",
            "wide",
            "--namespace",
            namespace,
        ]);
        show(&[
            "get",
            "events",
            "--field-selector=type=Warning",
            "--sort-by=.lastTimestamp",
            "--namespace",
            namespace,
        ]);
        for (pod, container) in unready(&kubectl, namespace) {
            show(&[
                "logs",
                "--tail=30",
                "--namespace",
                namespace,
                &pod,
                "--container",
                &container,
            ]);
            show(&[
                "logs",
                "--tail=30",
                "--previous",
                "--namespace",
                namespace,
                &pod,
                "--container",
                &container,
            ]);
        }
    }
    text
}

/// Returns the containers that are not ready: pod and container.
fn unready(kubectl: &Kubectl, namespace: &str) -> Vec<(String, String)> {
    let list = kubectl
        .json(["get", "pods", "--namespace", namespace])
        .unwrap_or(Value::Null);
    let mut found = Vec::new();
    for pod in list["items"].as_array().into_iter().flatten() {
        for kind in ["initContainerStatuses", "containerStatuses"] {
            for status in pod["status"][kind].as_array().into_iter().flatten() {
                let (Some(pod), Some(name)) = (pod["metadata"]["name"].as_str(), status["name"].as_str())
                else {
                    continue;
                };
                if status["ready"] != true {
                    found.push((pod.to_owned(), name.to_owned()));
                }
            }
        }
    }
    found
}

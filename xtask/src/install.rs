//! Installs the product on the cluster of this repository, as its README describes, with the policies for programs on nodes.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cluster::{Cluster, Kubectl, Progress, run, wait};
use serde_json::Value;

use crate::{image, manifests, paths};

/// Namespace of the operator and its components.
pub(crate) const NAMESPACE: &str = "cluster-network-addons";
/// Bridge over the spare NIC of every node.
pub(crate) const BRIDGE: &str = "br1";
/// Deployment and service account of the operator.
pub(crate) const OPERATOR: &str = "cluster-network-addons-operator";
/// The cluster network operator, and the namespaces of the pod network and of kube-proxy that it deploys.
pub(crate) const NETWORK_NAMESPACE: &str = "openshift-network-operator";
const NETWORK_OPERATOR: &str = "network-operator";
pub(crate) const POD_NETWORK_NAMESPACE: &str = "weft-pod-network";
pub(crate) const KUBE_PROXY_NAMESPACE: &str = "openshift-kube-proxy";
/// Namespace of the pod network that its own manifest deploys.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
/// Label of the pod network in both namespaces.
pub(crate) const POD_NETWORK_LABEL: &str = "app=weft-pod-network";
const TIMEOUT: Duration = Duration::from_mins(5);

/// The examples with multus and Linux bridges, with the components for virtual machines, and with every component.
pub(crate) const CONFIG: &str = "network-addons-config.yaml";
pub(crate) const CONFIG_OF_ALL: &str = "network-addons-config-all.yaml";
pub(crate) const CONFIG_FOR_MACHINES: &str = "network-addons-config-vms.yaml";

/// The examples of a network for a cluster without one: with kube-proxy on its nodes, without it, and without it on a
/// cluster with dual stack.
const CLUSTER_NETWORK: &str = "cluster-network.yaml";
const CLUSTER_NETWORK_WITH_KUBE_PROXY: &str = "cluster-network-with-kube-proxy.yaml";
const CLUSTER_NETWORK_DUAL_STACK: &str = "cluster-network-dual-stack.yaml";

/// Returns a file in `examples/`.
pub(crate) fn example(name: &str) -> PathBuf {
    paths::root().join("examples").join(name)
}

/// Loads the image, applies the manifests for it and an example of a `NetworkAddonsConfig`, and waits until all
/// components run this image alone. Skips steps that are already done.
pub(crate) fn install(
    cluster: &Cluster,
    built: &image::Built,
    config: &str,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    load(cluster, built, steps)?;
    addons(&cluster.kubectl(), built, config, steps)
}

/// Loads the image into the nodes that lack it.
pub(crate) fn load(cluster: &Cluster, built: &image::Built, steps: &mut dyn Progress) -> anyhow::Result<()> {
    steps.step(&format!("loading {} into the nodes", built.reference));
    cluster.load(&built.archive)?;
    Ok(())
}

/// Like [`install`], for nodes with the image.
pub(crate) fn addons(
    kubectl: &Kubectl,
    built: &image::Built,
    config: &str,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    steps.step("installing the operator");
    let dir = manifests::default_dir();
    let files = manifests::INSTALL.iter().chain([&manifests::NODES_POLICIES]);
    let files: Vec<_> = files.map(|name| dir.join(name)).collect();
    apply(kubectl, &files)?;
    let operator = ["deployment", "--namespace", NAMESPACE, OPERATOR];
    wait_for(kubectl, steps, &operator, "the operator", |deployment| {
        rolled_out(deployment, &built.reference)
    })?;

    steps.step(&format!("creating a NetworkAddonsConfig: examples/{config}"));
    // The API server may just have started to serve the kind.
    wait::until("the kind NetworkAddonsConfig to be served", TIMEOUT, || {
        steps.tick("waiting for the API server to know NetworkAddonsConfig");
        apply(kubectl, &[example(config)]).map_err(|error| format!("{error:#}"))
    })?;
    steps.step("waiting until the NetworkAddonsConfig is Available");
    let object = ["networkaddonsconfig", "cluster"];
    wait_for(
        kubectl,
        steps,
        &object,
        "NetworkAddonsConfig to be Available",
        |config| available(config).and_then(|()| components_available(config)),
    )?;
    let sets = ["daemonsets", "--namespace", NAMESPACE];
    wait_for(kubectl, steps, &sets, "programs on all nodes", |list| {
        on_all_nodes(list, &built.reference)
    })
}

/// Installs the pod network from its manifest, on nodes with the image, or updates it. Waits until it runs on all nodes.
pub(crate) fn pod_network(
    kubectl: &Kubectl,
    built: &image::Built,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    steps.step(&format!(
        "installing Weft's pod network: deploy/{}",
        manifests::POD_NETWORK
    ));
    apply(kubectl, &[manifests::default_dir().join(manifests::POD_NETWORK)])?;
    steps.step("waiting until the pod network runs on all nodes");
    let sets = [
        "daemonsets",
        "--namespace",
        SYSTEM_NAMESPACE,
        "--selector",
        POD_NETWORK_LABEL,
    ];
    wait_for(kubectl, steps, &sets, "the pod network on all nodes", |list| {
        on_all_nodes(list, &built.reference)
    })
}

/// Waits until all nodes are Ready.
pub(crate) fn nodes_ready(kubectl: &Kubectl, steps: &mut dyn Progress) -> anyhow::Result<()> {
    steps.step("waiting until the nodes are Ready");
    wait_for(kubectl, steps, &["nodes"], "nodes to be Ready", all_ready)
}

/// Loads the image into nodes without a network, and lets the cluster network operator connect their pods: by
/// `examples/cluster-network.yaml`, or where nodes lack kube-proxy by `examples/cluster-network-with-kube-proxy.yaml` or
/// `examples/cluster-network-dual-stack.yaml`. Waits until the nodes are Ready and the operator is Available.
pub(crate) fn cluster_network(
    cluster: &Cluster,
    built: &image::Built,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    load(cluster, built, steps)?;
    let kube_proxy = kube_proxy(cluster, steps)?;
    network_operator(cluster, built, kube_proxy.as_deref(), steps)?;
    network(cluster, built, steps)
}

/// Loads the image of kube-proxy into the nodes, and returns its name. `None` if kube-proxy is a program of the nodes.
pub(crate) fn kube_proxy(cluster: &Cluster, steps: &mut dyn Progress) -> anyhow::Result<Option<String>> {
    if cluster.has_kube_proxy() {
        return Ok(None);
    }
    Ok(Some(cluster.load_kube_proxy(steps)?))
}

/// Installs the cluster network operator of a loaded image, with the image of kube-proxy that it deploys. Waits until it
/// runs.
pub(crate) fn network_operator(
    cluster: &Cluster,
    built: &image::Built,
    kube_proxy: Option<&str>,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    let kubectl = cluster.kubectl();
    let mut weft = Command::new(&built.weft);
    weft.args(["network", "manifests", "--image", &built.reference]);
    if let Some(kube_proxy) = kube_proxy {
        weft.args(["--kube-proxy-image", kube_proxy]);
        weft.args(["--api-server", &cluster.api_server()]);
    }
    steps.step("installing the cluster network operator: weft network manifests");
    let manifests = run::output(&mut weft)?;
    let mut server_side = kubectl.command(["apply", "--server-side", "--force-conflicts", "--filename", "-"]);
    run::output_with_input(&mut server_side, manifests.as_bytes())?;
    // On a cluster that is used again, nodes and conditions are still those of the earlier image.
    let operator = ["deployment", "--namespace", NETWORK_NAMESPACE, NETWORK_OPERATOR];
    wait_for(&kubectl, steps, &operator, "the operator", |deployment| {
        rolled_out(deployment, &built.reference)
    })
}

/// Creates the network of a cluster with the cluster network operator, and waits until the nodes are Ready and the
/// operator is Available.
pub(crate) fn network(
    cluster: &Cluster,
    built: &image::Built,
    steps: &mut dyn Progress,
) -> anyhow::Result<()> {
    let kubectl = cluster.kubectl();
    let network = if cluster.has_kube_proxy() {
        CLUSTER_NETWORK
    } else if cluster.has_dual_stack() {
        CLUSTER_NETWORK_DUAL_STACK
    } else {
        CLUSTER_NETWORK_WITH_KUBE_PROXY
    };
    steps.step(&format!("creating the network: examples/{network}"));
    wait::until("the kinds of the operator to be served", TIMEOUT, || {
        apply(&kubectl, &[example(network)]).map_err(|error| format!("{error:#}"))
    })?;
    steps.step("waiting until the nodes are Ready, and the operator Available");
    let sets = ["daemonsets", "--namespace", POD_NETWORK_NAMESPACE];
    wait_for(&kubectl, steps, &sets, "the pod network on all nodes", |list| {
        on_all_nodes(list, &built.reference)
    })?;
    wait_for(&kubectl, steps, &["nodes"], "nodes to be Ready", all_ready)?;
    let operator = ["clusteroperator", "network"];
    wait_for(
        &kubectl,
        steps,
        &operator,
        "the network to be Available",
        available,
    )
}

/// Returns an error unless all objects of a list are Ready. The error has their messages.
fn all_ready(list: &Value) -> Result<(), String> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let waiting = items.iter().filter(|node| !cluster::is_ready(node));
    let complaint = |node: &Value| {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        let message = ready.and_then(|ready| ready["message"].as_str());
        format!("{name} ({})", message.unwrap_or("no message"))
    };
    let waiting: Vec<String> = waiting.map(complaint).collect();
    if waiting.is_empty() && !items.is_empty() {
        Ok(())
    } else {
        Err(format!("not Ready: {}", waiting.join(", ")))
    }
}

/// Creates [`BRIDGE`] over the spare NIC of every node.
pub(crate) fn bridges(cluster: &Cluster, steps: &mut dyn Progress) -> anyhow::Result<()> {
    steps.step(&format!("creating the bridge {BRIDGE} over eth1 on each node"));
    let script = format!(
        "ip link show {BRIDGE} >/dev/null 2>&1 || ip link add {BRIDGE} type bridge\n\
         ip link set eth1 master {BRIDGE} up\nip link set {BRIDGE} up"
    );
    for node in cluster.nodes() {
        run::output(&mut cluster.node_command(node, ["sh", "-euc", &script])?)?;
    }
    Ok(())
}

/// Applies files in order.
pub(crate) fn apply(kubectl: &Kubectl, files: &[PathBuf]) -> anyhow::Result<()> {
    // A conflict with another field manager must not be an error.
    let mut command = kubectl.command(["apply", "--server-side", "--force-conflicts"]);
    for file in files {
        command.arg("--filename").arg(file);
    }
    run::output(&mut command)?;
    Ok(())
}

/// Waits until `condition` accepts the object that `args` name, and shows its latest error.
pub(crate) fn wait_for<T>(
    kubectl: &Kubectl,
    steps: &mut dyn Progress,
    args: &[&str],
    what: &str,
    mut condition: impl FnMut(&Value) -> Result<T, String>,
) -> anyhow::Result<T> {
    let done = kubectl.wait_for(args, what, TIMEOUT, |object| {
        let outcome = condition(object);
        if let Err(complaint) = &outcome {
            steps.tick(complaint);
        }
        outcome
    });
    Ok(done?)
}

/// Returns an error unless a Deployment runs only its newest version, with the given image.
fn rolled_out(deployment: &Value, image: &str) -> Result<(), String> {
    let now = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        .as_str()
        .unwrap_or_default();
    if now != image {
        return Err(format!("its image is {now}, expected {image}"));
    }
    if deployment["status"]["observedGeneration"] != deployment["metadata"]["generation"] {
        return Err("its newest generation is not observed yet".to_owned());
    }
    let desired = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
    let number = |field: &str| deployment["status"][field].as_u64().unwrap_or(0);
    let counts = [
        number("updatedReplicas"),
        number("availableReplicas"),
        number("replicas"),
    ];
    if counts == [desired; 3] {
        Ok(())
    } else {
        Err(format!("updated, available, all: {counts:?} of {desired}"))
    }
}

/// Returns an error unless a `NetworkAddonsConfig` is Available, and neither Progressing nor Degraded.
pub(crate) fn available(config: &Value) -> Result<(), String> {
    let conditions = config["status"]["conditions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut complaints = Vec::new();
    for (kind, expected) in [
        ("Available", "True"),
        ("Progressing", "False"),
        ("Degraded", "False"),
    ] {
        match conditions.iter().find(|condition| condition["type"] == kind) {
            Some(condition) if condition["status"] == expected => {}
            Some(condition) => {
                let text = |key: &str| condition[key].as_str().unwrap_or_default();
                complaints.push(format!("{kind} is {}: {}", text("status"), text("message")));
            }
            None => complaints.push(format!("it has no condition {kind}")),
        }
    }
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(complaints.join("; "))
    }
}

/// Fields of a `NetworkAddonsConfig` that deploy a component.
const COMPONENTS: [&str; 9] = [
    "kubeMacPool",
    "kubeSecondaryDNS",
    "kubevirtIpamController",
    "linuxBridge",
    "macvtap",
    "multus",
    "multusDynamicNetworks",
    "nmstate",
    "ovs",
];

/// Returns an error unless exactly the components of the spec are Available. The condition Available alone is that of
/// the former spec until the operator has observed the new one: the kind has no observed generation.
fn components_available(config: &Value) -> Result<(), String> {
    for component in COMPONENTS {
        let (first, rest) = component.split_at(1);
        let kind = format!("{}{rest}Available", first.to_uppercase());
        let conditions = config["status"]["conditions"].as_array();
        let condition = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == *kind);
        match (config["spec"].get(component), condition) {
            (None, None) => {}
            (Some(_), Some(condition)) if condition["status"] == "True" => {}
            (Some(_), Some(condition)) => {
                let message = condition["message"].as_str().unwrap_or_default();
                return Err(format!("{kind} is not True: {message}"));
            }
            (Some(_), None) => return Err(format!("{component} is not deployed yet")),
            (None, Some(_)) => return Err(format!("{component} is not removed yet")),
        }
    }
    Ok(())
}

/// Returns an error unless the pods of a list are as many as its `DaemonSets` and Deployments need, and none is ending.
pub(crate) fn only_desired_pods(list: &Value) -> Result<(), String> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &'static str| items.iter().filter(move |object| object["kind"] == kind);
    let pods: Vec<_> = of("Pod")
        .filter(|pod| pod["status"]["phase"] != "Succeeded" && pod["status"]["phase"] != "Failed")
        .collect();
    if let Some(pod) = pods
        .iter()
        .find(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    {
        return Err(format!("pod {} is ending", pod["metadata"]["name"]));
    }
    let number = |value: &Value, default| value.as_u64().unwrap_or(default);
    let daemons = of("DaemonSet").map(|set| number(&set["status"]["desiredNumberScheduled"], 0));
    let others = of("Deployment").map(|deployment| number(&deployment["spec"]["replicas"], 1));
    let desired: u64 = daemons.chain(others).sum();
    if pods.len() as u64 == desired {
        Ok(())
    } else {
        Err(format!("there are {} pods, expected {desired}", pods.len()))
    }
}

/// Returns an error unless each DaemonSet of a list runs only its newest version on every node, with the given image.
fn on_all_nodes(list: &Value, image: &str) -> Result<(), String> {
    let sets = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if sets.is_empty() {
        return Err("there are no DaemonSets".to_owned());
    }
    for set in sets {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        let mut containers = set["spec"]["template"]["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten();
        if containers.any(|container| container["image"] != image) {
            return Err(format!("{name} is of another image"));
        }
        let number = |field: &str| set["status"][field].as_u64().unwrap_or(0);
        let desired = number("desiredNumberScheduled");
        let seen = set["status"]["observedGeneration"] == set["metadata"]["generation"];
        if !seen
            || desired == 0
            || [number("updatedNumberScheduled"), number("numberAvailable")] != [desired; 2]
        {
            return Err(format!(
                "{name}: {} of {desired} available",
                number("numberAvailable")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(conditions: &[(&str, &str)]) -> Value {
        let condition =
            |(kind, status): &(&str, &str)| json!({ "type": kind, "status": status, "message": "why" });
        json!({ "status": { "conditions": conditions.iter().map(condition).collect::<Vec<_>>() } })
    }

    #[test]
    fn config_is_available_if_neither_progressing_nor_degraded() {
        let good = [
            ("Degraded", "False"),
            ("Progressing", "False"),
            ("Available", "True"),
            ("Upgradeable", "True"),
        ];
        assert_eq!(available(&config(&good)), Ok(()));
        let busy = available(&config(&[
            ("Degraded", "False"),
            ("Progressing", "True"),
            ("Available", "True"),
        ]));
        assert_eq!(busy.unwrap_err(), "Progressing is True: why");
        assert!(available(&config(&[("Available", "True")])).is_err());
        assert!(available(&json!({})).is_err());
    }

    #[test]
    fn components_are_available_if_the_operator_observed_the_spec() {
        let config = |spec: &Value, conditions: &[(&str, &str)]| {
            let mut config = config(conditions);
            config["spec"] = spec.clone();
            components_available(&config)
        };
        let spec =
            json!({ "multus": {}, "kubeSecondaryDNS": { "service": {} }, "imagePullPolicy": "Always" });
        let former = ("MultusAvailable", "True");
        let general = [
            ("Available", "True"),
            ("NetworkPoliciesAvailable", "True"),
            former,
        ];
        assert_eq!(
            config(&spec, &general).unwrap_err(),
            "kubeSecondaryDNS is not deployed yet"
        );
        let new = |status| [former, ("KubeSecondaryDNSAvailable", status)];
        assert_eq!(
            config(&spec, &new("False")).unwrap_err(),
            "KubeSecondaryDNSAvailable is not True: why"
        );
        assert_eq!(config(&spec, &new("True")), Ok(()));
        let less = json!({ "multus": {} });
        assert_eq!(
            config(&less, &new("True")).unwrap_err(),
            "kubeSecondaryDNS is not removed yet"
        );
        assert_eq!(config(&less, &general), Ok(()));
    }

    #[test]
    fn pods_are_the_desired_ones_if_none_of_former_workloads_is_left() {
        let pod =
            |phase: &str| json!({ "kind": "Pod", "metadata": { "name": "p" }, "status": { "phase": phase } });
        let list = |pods: &[Value]| {
            let workloads = [
                json!({ "kind": "DaemonSet", "status": { "desiredNumberScheduled": 2 } }),
                json!({ "kind": "Deployment", "spec": { "replicas": 1 } }),
            ];
            let items = [&workloads, pods].concat();
            only_desired_pods(&json!({ "items": items }))
        };
        let three = [pod("Running"), pod("Running"), pod("Pending")];
        assert_eq!(list(&three), Ok(()));
        assert_eq!(list(&three[1..]).unwrap_err(), "there are 2 pods, expected 3");
        assert_eq!(list(&[&three[..], &[pod("Failed")]].concat()), Ok(()));
        assert!(list(&[&three[..], &[pod("Running")]].concat()).is_err());
        let mut ending = three;
        ending[0]["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        assert_eq!(list(&ending).unwrap_err(), "pod \"p\" is ending");
    }

    #[test]
    fn deployment_is_rolled_out_if_only_its_newest_version_runs() {
        let deployment = |replicas: u64| {
            json!({
                "metadata": { "generation": 3 },
                "spec": { "replicas": 1, "template": { "spec": { "containers": [{ "image": "a:1" }] } } },
                "status": { "observedGeneration": 3, "updatedReplicas": 1, "availableReplicas": 1, "replicas": replicas }
            })
        };
        assert_eq!(rolled_out(&deployment(1), "a:1"), Ok(()));
        assert!(rolled_out(&deployment(2), "a:1").is_err());
        assert!(rolled_out(&deployment(1), "a:2").is_err());
    }

    #[test]
    fn daemon_set_is_rolled_out_if_every_node_runs_the_given_image() {
        let set = |image: &str, available: u64| {
            json!({ "items": [{
                "metadata": { "name": "multus", "generation": 2 },
                "spec": { "template": { "spec": { "containers": [{ "image": image }] } } },
                "status": {
                    "observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
                    "numberAvailable": available
                }
            }] })
        };
        assert_eq!(on_all_nodes(&set("a:1", 2), "a:1"), Ok(()));
        assert!(on_all_nodes(&set("a:0", 2), "a:1").is_err());
        assert!(on_all_nodes(&set("a:1", 1), "a:1").is_err());
        assert!(on_all_nodes(&json!({ "items": [] }), "a:1").is_err());
    }

    #[test]
    fn nodes_are_ready_if_all_of_them_are() {
        let node = |name: &str, status: &str| {
            let ready = json!({ "type": "Ready", "status": status, "message": "why" });
            json!({ "metadata": { "name": name }, "status": { "conditions": [ready] } })
        };
        let list = |nodes: &[Value]| json!({ "items": nodes });
        assert_eq!(all_ready(&list(&[node("a", "True"), node("b", "True")])), Ok(()));
        let waiting = all_ready(&list(&[node("a", "True"), node("b", "False")]));
        assert_eq!(waiting.unwrap_err(), "not Ready: b (why)");
        let new = all_ready(&list(&[json!({ "metadata": { "name": "c" } })]));
        assert_eq!(new.unwrap_err(), "not Ready: c (no message)");
        assert!(all_ready(&list(&[])).is_err());
    }
}

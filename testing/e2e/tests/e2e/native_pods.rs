//! Containers run Weft's image with the rights of their pods, and their probes pass.

use std::fs;

use serde_json::{Value, json};

use crate::components::Components;
use crate::support::{NODES, OPERATOR_NAMESPACE, Stage};
use crate::virtual_machines::Definitions;

/// Daemon sets of all components with pods on nodes.
const WORKLOADS: [&str; 6] = [
    "multus",
    "dynamic-networks-controller-ds",
    "kube-cni-linux-bridge-plugin",
    "bridge-marker",
    "ovs-cni-amd64",
    "macvtap-cni",
];

/// Deployments of all components of the control plane.
const DEPLOYMENTS: [&str; 4] = [
    "kubemacpool-mac-controller-manager",
    "kubemacpool-cert-manager",
    "kubevirt-ipam-controller-manager",
    "secondary-dns",
];

/// Rights of a process, as reported by the kernel or as requested by its pod.
#[derive(Debug, PartialEq)]
struct Confinement {
    user: u32,
    /// Effective capabilities. `None` if the container has all capabilities.
    capabilities: Option<u64>,
    no_new_privileges: bool,
    read_only_root: bool,
}

impl Confinement {
    fn wanted(pod: &Value, container: &Value) -> Self {
        let own = &container["securityContext"];
        let common = &pod["spec"]["securityContext"];
        let user = [own, common].into_iter().find_map(|it| it["runAsUser"].as_u64());
        let privileged = own["privileged"] == true;
        let added = own["capabilities"]["add"].as_array().into_iter().flatten();
        Self {
            user: u32::try_from(user.unwrap_or_default()).expect("a user"),
            capabilities: (!privileged).then(|| added.map(capability).sum()),
            no_new_privileges: own["allowPrivilegeEscalation"] == false,
            read_only_root: own["readOnlyRootFilesystem"] == true,
        }
    }

    fn of(pid: u32, privileged: bool) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process");
        let (status, mounts) = (read("status"), read("mountinfo"));
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let value = value.and_then(|value| value.split_whitespace().next());
            value
                .unwrap_or_else(|| panic!("no {name} in {status}"))
                .to_owned()
        };
        // The fifth field is the mount point, and the sixth has its options.
        let is_root = |words: &Vec<&str>| words.get(4) == Some(&"/");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(is_root).expect("a root");
        Self {
            user: field("Uid").parse().expect("a number"),
            capabilities: (!privileged).then(|| u64::from_str_radix(&field("CapEff"), 16).expect("a number")),
            no_new_privileges: field("NoNewPrivs") == "1",
            read_only_root: root[5].split(',').any(|option| option == "ro"),
        }
    }
}

/// Bit of a capability (capabilities(7)).
fn capability(name: &Value) -> u64 {
    match name.as_str().unwrap_or_default() {
        "DAC_OVERRIDE" => 1 << 1,
        other => panic!("capability {other} is unknown to this test"),
    }
}

/// Finds the process of Weft's program in the control group of a container.
fn process(stage: &Stage, node: &str, status: &Value) -> u32 {
    let id = status["containerID"]
        .as_str()
        .and_then(|id| id.rsplit('/').next());
    let id = id.expect("an id");
    let is_in = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.contains(id)
    };
    stage.wait(&format!("the process of {id} on {node}"), || {
        stage.weft_pids(node).into_iter().find(is_in)
    })
}

/// Checks a running container.
fn check(stage: &Stage, pod: &Value, container: &Value) {
    let (name, of) = (
        &container["name"],
        pod["metadata"]["name"].as_str().expect("a name"),
    );
    let node = pod["spec"]["nodeName"].as_str().expect("a node");
    let statuses = pod["status"]["containerStatuses"].as_array().expect("statuses");
    let status = statuses.iter().find(|status| status["name"] == *name);
    let status = status.unwrap_or_else(|| panic!("{of} has no status of {name}"));
    assert_eq!(container["image"], stage.image(), "{of} {name}");
    assert_eq!(status["ready"], true, "{of}: {status}");
    assert_eq!(status["started"], true, "{of}: {status}");

    let pid = process(stage, node, status);
    let privileged = container["securityContext"]["privileged"] == true;
    assert_eq!(
        Confinement::of(pid, privileged),
        Confinement::wanted(pod, container),
        "{of} {name}"
    );
    let shell = format!("/proc/{pid}/root/bin/sh");
    assert!(fs::symlink_metadata(&shell).is_err(), "{of} {name} has a shell");

    // The test does not wait for probes with an initial delay of more than a minute.
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let Some(command) = container[probe]["exec"]["command"].as_array() else {
            continue;
        };
        let name = name.as_str().expect("a name");
        let mut exec = vec!["-n", OPERATOR_NAMESPACE, "exec", of, "-c", name, "--"];
        exec.extend(command.iter().filter_map(Value::as_str));
        let outcome = stage.try_kubectl(&exec);
        assert!(outcome.is_ok(), "{of} {name} {probe}: {outcome:?}");
    }
}

/// Pods of a Deployment, once its newest version runs.
fn deployment_pods(stage: &Stage, name: &str) -> Vec<Value> {
    let deployment = stage.wait(&format!("Deployment {name} runs"), || {
        let deployment = stage
            .kubectl
            .get(["-n", OPERATOR_NAMESPACE, "deployment", name])
            .ok()??;
        let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
        let seen = deployment["metadata"]["generation"] == status["observedGeneration"];
        let counts = ["replicas", "updatedReplicas", "availableReplicas"].map(|field| &status[field]);
        (seen && counts == [wanted; 3]).then_some(deployment)
    });
    let labels = deployment["spec"]["selector"]["matchLabels"]
        .as_object()
        .expect("labels");
    let has_labels = |pod: &Value| {
        labels
            .iter()
            .all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    };
    let pods = stage.json(&["-n", OPERATOR_NAMESPACE, "get", "pods"]);
    let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.retain(|pod| has_labels(pod) && pod["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(
        Some(pods.len() as u64),
        deployment["spec"]["replicas"].as_u64(),
        "{name}"
    );
    pods
}

// operands#21
#[test]
fn containers_of_all_components_have_the_requested_rights_and_pass_their_probes() {
    let Some(stage) = Stage::enter() else { return };
    let _definitions = Definitions::create(&stage);
    let spec = json!({
        "linuxBridge": { "dhcp": true }, "ovs": {}, "macvtap": {}, "kubeMacPool": {},
        "multusDynamicNetworks": { "hostCRISocketPath": "/run/containerd/containerd.sock" },
        "kubevirtIpamController": {}, "kubeSecondaryDNS": {},
    });
    let _all = Components::deploy(&stage, &spec, &WORKLOADS);
    for deployment in DEPLOYMENTS {
        for pod in deployment_pods(&stage, deployment) {
            for container in pod["spec"]["containers"].as_array().expect("containers") {
                check(&stage, &pod, container);
            }
        }
    }
    for workload in WORKLOADS {
        let mut pods = stage.daemonset_pods(workload);
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        assert_eq!(pods.len(), NODES.len(), "{workload}");
        for pod in &pods {
            for container in pod["spec"]["containers"].as_array().expect("containers") {
                check(&stage, pod, container);
            }
        }
    }
    stage.available();
    // The installers copied Weft's binary to each node.
    for node in NODES {
        for plugin in [
            "ovs",
            "ovs-mirror-producer",
            "ovs-mirror-consumer",
            "macvtap",
            "dhcp",
        ] {
            let path = format!("/opt/cni/bin/{plugin}");
            let digest = stage.node(node, &["sha256sum", &path]);
            assert!(
                digest.starts_with(&stage.image_binary_digest()),
                "{node} {plugin}: {digest}"
            );
        }
    }
}

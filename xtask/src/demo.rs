//! `cargo xtask demo`: from a fresh clone to pods that talk over a secondary network.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::{Cluster, Kubectl, Progress, Steps, run, wait};
use serde_json::Value;

use crate::{explain, image, manifests, paths};

/// Whether to show or to remove.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove the cluster of the demo with everything in it
    #[arg(long)]
    down: bool,
}

/// Namespace of the operator and of all that it deploys.
pub(crate) const NAMESPACE: &str = "cluster-network-addons";
const OPERATOR: &str = "cluster-network-addons-operator";
const BRIDGE: &str = "br1";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    steps.step(if args.down {
        "removing the demo"
    } else {
        "looking at what is there already"
    });
    let cluster = Cluster::from_env()?;
    if args.down {
        cluster.down(&mut steps)?;
        steps.step("done; caches for the next time stay, and can be removed with their directory");
        return Ok(());
    }
    show(&cluster, &mut steps).map_err(|error| {
        let failed = steps.current().to_owned();
        drop(std::mem::take(&mut steps));
        eprint!("{}", explain::cluster(&cluster, &[NAMESPACE, "default"]));
        let next = "what to do: `cargo xtask demo` goes on where it stopped, `cargo xtask cluster logs` shows what the\n\
                    cluster's programs say, `cargo xtask demo --down` starts over";
        error.context(format!("the demo failed at the step: {failed}\n{next}"))
    })
}

fn show(cluster: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    // First, because it takes longest when it is the first time.
    cluster.prepare(steps)?;
    let built = image::build(steps)?;
    cluster.up(steps)?;
    let kubectl = cluster.kubectl();

    steps.step(&format!("loading {} into the nodes", built.reference));
    cluster.load(&built.archive)?;

    steps.step("installing the operator");
    let dir = manifests::default_dir();
    manifests::write(&built.reference, &dir)?;
    apply(&kubectl, &dir)?;
    wait_for(
        &kubectl,
        steps,
        &["deployment", "--namespace", NAMESPACE, OPERATOR],
        "the operator",
        |deployment| {
            let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
                .as_str()
                .unwrap_or_default();
            if image == built.reference {
                rolled_out(deployment, "replicas")
            } else {
                Err(format!("it is of image {image}"))
            }
        },
    )?;

    steps.step("asking for multus and linuxBridge: examples/network-addons-config.yaml");
    let example = |name: &str| paths::root().join("examples").join(name);
    // The definition of the kind may have been served for a moment only.
    wait::until("the kind NetworkAddonsConfig to be known", PATIENCE, || {
        steps.tick("waiting for the API server to know NetworkAddonsConfig");
        apply(&kubectl, &example("network-addons-config.yaml")).map_err(|error| format!("{error:#}"))
    })?;
    steps.step("waiting until it is Available");
    wait_for(
        &kubectl,
        steps,
        &["networkaddonsconfig", "cluster"],
        "NetworkAddonsConfig to be Available",
        available,
    )?;
    wait_for(
        &kubectl,
        steps,
        &["daemonsets", "--namespace", NAMESPACE],
        "programs on all nodes",
        |list| on_all_nodes(list, &built.reference),
    )?;

    steps.step(&format!("creating the bridge {BRIDGE} over eth1 on each node"));
    for node in cluster.nodes() {
        let script = format!(
            "ip link show {BRIDGE} >/dev/null 2>&1 || ip link add {BRIDGE} type bridge\n\
             ip link set eth1 master {BRIDGE} up\nip link set {BRIDGE} up"
        );
        run::output(&mut cluster.node_command(node, ["sh", "-euc", &script])?)?;
    }

    steps.step(
        "creating the network and a pod on each node: examples/bridge-network.yaml, examples/pods.yaml",
    );
    apply(&kubectl, &example("bridge-network.yaml"))?;
    apply(&kubectl, &example("pods.yaml"))?;
    let alpha = attached(&kubectl, steps, "alpha")?;
    let beta = attached(&kubectl, steps, "beta")?;

    steps.step("pinging from pod to pod, from node to node, over net1");
    let ping = [
        "exec",
        "alpha",
        "--",
        "ping",
        "-c",
        "3",
        "-W",
        "10",
        "-I",
        "net1",
        &beta.address,
    ];
    let answers = kubectl.run(ping)?;
    let neighbours = kubectl.run(["exec", "alpha", "--", "cat", "/proc/net/arp"])?;
    let neighbour = neighbour(&neighbours, &beta.address).context("the ping left no neighbour entry")?;
    ensure!(alpha.node != beta.node, "both pods are on {}", alpha.node);
    ensure!(
        alpha.address != beta.address,
        "both pods have the address {}",
        alpha.address
    );
    ensure!(
        neighbour == beta.mac,
        "the neighbour's MAC is {neighbour}, but net1 of beta has {}",
        beta.mac
    );
    steps.step("done");
    print!("{}", story(&alpha, &beta, &answers, &neighbour, &built));
    print!("{}", what_next(cluster, &kubectl));
    Ok(())
}

/// A pod's place on the secondary network, by what its status annotation says.
#[derive(Debug, PartialEq, Eq)]
struct Attachment {
    pod: String,
    node: String,
    address: String,
    mac: String,
    status: String,
}

impl Attachment {
    fn of(pod: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        if !conditions
            .into_iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        {
            return Err(format!("it is {}", text(&pod["status"]["phase"])));
        }
        let status = text(&pod["metadata"]["annotations"][STATUS]);
        let networks: Value = serde_json::from_str(&status).map_err(|_| format!("it has no {STATUS}"))?;
        let net1 = networks
            .as_array()
            .into_iter()
            .flatten()
            .find(|network| network["interface"] == "net1");
        let net1 = net1.ok_or_else(|| format!("its {STATUS} knows no net1: {status}"))?;
        Ok(Self {
            pod: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            address: text(&net1["ips"][0]),
            mac: text(&net1["mac"]),
            status,
        })
    }
}

fn attached(kubectl: &Kubectl, steps: &mut Steps, name: &str) -> anyhow::Result<Attachment> {
    wait_for(
        kubectl,
        steps,
        &["pod", "--namespace", "default", name],
        &format!("pod {name} with net1"),
        Attachment::of,
    )
}

/// The MAC of an address, from the lines of /proc/net/arp.
fn neighbour(table: &str, address: &str) -> Option<String> {
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(address))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

fn apply(kubectl: &Kubectl, path: &std::path::Path) -> anyhow::Result<()> {
    // Updates of what another process writes too must not be refused for that.
    run::output(
        kubectl
            .command(["apply", "--server-side", "--force-conflicts", "--filename"])
            .arg(path),
    )?;
    Ok(())
}

fn wait_for<T>(
    kubectl: &Kubectl,
    steps: &mut Steps,
    args: &[&str],
    what: &str,
    mut condition: impl FnMut(&Value) -> Result<T, String>,
) -> anyhow::Result<T> {
    let done = kubectl.wait_for(args, what, PATIENCE, |object| {
        let outcome = condition(object);
        if let Err(complaint) = &outcome {
            steps.tick(complaint);
        }
        outcome
    });
    Ok(done?)
}

/// Whether the newest form of a Deployment (`replicas`) is what runs, and nothing else.
fn rolled_out(object: &Value, wanted: &str) -> Result<(), String> {
    let number = |field: &str| object["status"][field].as_u64().unwrap_or(0);
    let desired = object["spec"][wanted].as_u64().unwrap_or(1);
    if object["status"]["observedGeneration"] != object["metadata"]["generation"] {
        return Err("its controller has not seen its newest form".to_owned());
    }
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

/// Whether a NetworkAddonsConfig is Available, and neither Progressing nor Degraded.
fn available(config: &Value) -> Result<(), String> {
    let conditions = config["status"]["conditions"].as_array().into_iter().flatten();
    let mut said = Vec::new();
    for condition in conditions {
        let (kind, status) = (
            condition["type"].as_str().unwrap_or("?"),
            condition["status"].as_str().unwrap_or("?"),
        );
        let expected = match kind {
            "Available" => "True",
            "Progressing" | "Degraded" => "False",
            _ => continue,
        };
        if status != expected {
            said.push(format!(
                "{kind} is {status}: {}",
                condition["message"].as_str().unwrap_or_default()
            ));
        } else if kind == "Available" {
            said.insert(0, String::new());
        }
    }
    match said.as_slice() {
        [only] if only.is_empty() => Ok(()),
        [] => Err("it has no conditions".to_owned()),
        _ => Err(said.join(" ").trim().to_owned()),
    }
}

/// Whether each DaemonSet of a list runs its newest form on every node, with the given image alone.
fn on_all_nodes(list: &Value, image: &str) -> Result<(), String> {
    let sets = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if sets.is_empty() {
        return Err("there are no DaemonSets".to_owned());
    }
    for set in sets {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        let other = |container: &Value| container["image"] != image;
        if set["spec"]["template"]["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .any(other)
        {
            return Err(format!("{name} is of another image"));
        }
        let number = |field: &str| set["status"][field].as_u64().unwrap_or(0);
        let desired = number("desiredNumberScheduled");
        let seen = set["status"]["observedGeneration"] == set["metadata"]["generation"];
        if !seen
            || desired == 0
            || number("updatedNumberScheduled") != desired
            || number("numberAvailable") != desired
        {
            return Err(format!(
                "{name}: {} of {desired} available",
                number("numberAvailable")
            ));
        }
    }
    Ok(())
}

fn story(
    alpha: &Attachment,
    beta: &Attachment,
    answers: &str,
    neighbour: &str,
    built: &image::Built,
) -> String {
    let mut text = "\nTwo pods on two nodes, talking over net1:\n\n".to_owned();
    for pod in [alpha, beta] {
        text.push_str(&format!(
            "  {:6} on {}  net1 {:14} {}\n",
            pod.pod, pod.node, pod.address, pod.mac
        ));
    }
    text.push_str(&format!("\n{} pings {}:\n", alpha.pod, beta.pod));
    text.push_str(
        &answers
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect::<String>(),
    );
    text.push_str(&format!(
        "\n{}'s neighbour {} has the MAC {neighbour}, which is {}'s net1.\n",
        alpha.pod, beta.address, beta.pod
    ));
    for pod in [alpha, beta] {
        let status: Value = serde_json::from_str(&pod.status).unwrap_or(Value::Null);
        text.push_str(&format!("\nnetwork-status of {}:\n{status:#}\n", pod.pod));
    }
    text.push_str(&format!(
        "\nsizes:\n{}",
        built
            .sizes()
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect::<String>()
    ));
    text
}

fn what_next(cluster: &Cluster, kubectl: &Kubectl) -> String {
    let client = kubectl.command([] as [&str; 0]).get_program().to_owned();
    let client = PathBuf::from(client);
    let dir = client
        .parent()
        .map(|dir| dir.display().to_string())
        .unwrap_or_default();
    format!(
        "\nWhat to try next:\n\n  \
         export KUBECONFIG={}\n  \
         export PATH={dir}:$PATH\n  \
         kubectl get pods --all-namespaces --output wide\n  \
         kubectl exec alpha -- ip address\n  \
         kubectl get networkaddonsconfig cluster --output yaml\n  \
         cargo xtask cluster shell node01 -- ip link show master {BRIDGE}\n  \
         cargo xtask bench footprint\n  \
         cargo xtask cluster down\n\n",
        cluster.kubeconfig().display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status)| json!({ "type": kind, "status": status, "message": "why" }))
            .collect();
        json!({ "status": { "conditions": conditions } })
    }

    #[test]
    fn available_means_available_and_neither_progressing_nor_degraded() {
        let good = [
            ("Degraded", "False"),
            ("Progressing", "False"),
            ("Available", "True"),
            ("Upgradeable", "True"),
        ];
        assert_eq!(available(&config(&good)), Ok(()));
        assert!(available(&config(&[("Available", "True"), ("Progressing", "True")])).is_err());
        assert!(
            available(&config(&[("Available", "False")]))
                .unwrap_err()
                .contains("why")
        );
        assert!(available(&config(&[("Degraded", "False")])).is_err());
        assert!(available(&json!({})).is_err());
    }

    #[test]
    fn the_neighbour_is_read_from_the_kernel_table() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     192.168.66.2     0x1         0x2         0a:58:c0:a8:42:02     *        net1\n";
        assert_eq!(
            neighbour(table, "192.168.66.2").as_deref(),
            Some("0a:58:c0:a8:42:02")
        );
        assert_eq!(neighbour(table, "192.168.66.22"), None);
    }

    #[test]
    fn an_attachment_is_read_from_the_status_annotation() {
        let status = json!([{ "name": "cluster", "interface": "eth0", "ips": ["10.244.1.2"] },
            { "name": "default/br1", "interface": "net1", "ips": ["192.168.66.1"], "mac": "0a:00:00:00:00:01" }]);
        let pod = json!({
            "metadata": { "name": "alpha", "annotations": { STATUS: status.to_string() } },
            "spec": { "nodeName": "node01" },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }
        });
        let attachment = Attachment::of(&pod).unwrap();
        assert_eq!(
            (attachment.address.as_str(), attachment.mac.as_str()),
            ("192.168.66.1", "0a:00:00:00:00:01")
        );
        assert!(
            Attachment::of(&json!({ "status": { "phase": "Pending" } }))
                .unwrap_err()
                .contains("Pending")
        );
    }

    #[test]
    fn a_set_counts_only_with_the_image_asked_for_on_every_node() {
        let set = |image: &str, available: u64| {
            json!({ "items": [{
                "metadata": { "name": "multus", "generation": 2 },
                "spec": { "template": { "spec": { "containers": [{ "image": image }] } } },
                "status": { "observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
                    "numberAvailable": available }
            }] })
        };
        assert_eq!(on_all_nodes(&set("a:1", 2), "a:1"), Ok(()));
        assert!(on_all_nodes(&set("a:0", 2), "a:1").is_err());
        assert!(on_all_nodes(&set("a:1", 1), "a:1").is_err());
        assert!(on_all_nodes(&json!({ "items": [] }), "a:1").is_err());
    }
}

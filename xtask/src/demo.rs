//! `cargo xtask demo`: from a fresh clone to pods on Weft's pod network and a secondary network, or to connected virtual
//! machines.

mod network;
mod vms;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use cluster::{Cluster, Kubectl, Options, Progress, Steps};
use serde_json::Value;

use crate::board::Board;
use crate::default_network::{self, DefaultNetwork};
use crate::install::{
    self, BRIDGE, KUBE_PROXY_NAMESPACE, NAMESPACE, NETWORK_NAMESPACE, POD_NETWORK_NAMESPACE,
    SYSTEM_NAMESPACE, apply, example, wait_for,
};
use crate::{build, explain, image, manifests};

/// Arguments of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show virtual machines: one migrates to another node while the other pings it by name. A new cluster has the pod
    /// network of Debian's plugins. The first time, the build of KubeVirt's control plane takes ten more minutes
    #[arg(long, conflicts_with_all = ["down", "network"])]
    vms: bool,
    /// Let the cluster network operator deploy the whole network. Refused if the cluster has another network already
    #[arg(long, conflicts_with = "down")]
    network: bool,
    /// Remove the demo's cluster and everything in it
    #[arg(long)]
    down: bool,
}

/// Generous, because machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(5);
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    steps.step(if args.down {
        "removing the demo"
    } else {
        "looking for what exists already"
    });
    let cluster = Cluster::new(Options {
        // Without one, the demo installs Weft's.
        pod_network: args.vms,
        ..Options::from_env()?
    })?;
    if args.down {
        cluster.down(&mut steps)?;
        steps.step("done; the caches are kept in WEFT_HOME (default: ~/.cache/weft)");
        return Ok(());
    }
    if args.network {
        default_network::refuse_second(&cluster)?;
    }
    let show = match args {
        Args { vms: true, .. } => vms::show,
        Args { network: true, .. } => network::show,
        Args { .. } => show,
    };
    show(&cluster, &mut steps).map_err(|error| {
        let failed = steps.current().to_owned();
        drop(std::mem::take(&mut steps));
        let namespaces: &[&str] = if args.network {
            &[NETWORK_NAMESPACE, POD_NETWORK_NAMESPACE, KUBE_PROXY_NAMESPACE, "default"]
        } else {
            &[NAMESPACE, SYSTEM_NAMESPACE, "default"]
        };
        eprint!("{}", explain::cluster(&cluster, namespaces));
        error.context(format!(
            "the demo failed at the step: {failed}\n\
             remedy: the same command continues where it stopped, `cargo xtask cluster logs` lists the logs of the\n\
             cluster's programs, `cargo xtask demo --down` removes the cluster"
        ))
    })
}

fn show(cluster: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    let built = prepare(cluster, steps)?;
    let network = default_network::connect(cluster, &built, steps)?;
    let kubectl = cluster.kubectl();
    install::addons(&kubectl, &built, install::CONFIG, steps)?;
    install::bridges(cluster, steps)?;
    steps.step(
        "creating the network and a pod on each node: examples/bridge-network.yaml, examples/pods.yaml",
    );
    apply(&kubectl, &[example("bridge-network.yaml")])?;
    apply(&kubectl, &[example("pods.yaml")])?;
    let alpha = attached(&kubectl, steps, "alpha")?;
    let beta = attached(&kubectl, steps, "beta")?;

    steps.step("pinging pod beta from pod alpha, on the other node, over eth0 and net1");
    let ping = |interface: &str, address: &str| {
        let ping = ["ping", "-c", "3", "-W", "10", "-I", interface, address];
        kubectl.run(["exec", "alpha", "--"].iter().chain(&ping))
    };
    let over_eth0 = ping("eth0", &beta.default)?;
    let answers = ping("net1", &beta.address)?;
    let neighbours = kubectl.run(["exec", "alpha", "--", "cat", "/proc/net/arp"])?;
    let neighbour =
        neighbour(&neighbours, &beta.address).context("the neighbour table has no entry after the ping")?;
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
    print!(
        "{}",
        story(&alpha, &beta, &answers, &neighbour, &over_eth0, network)
    );
    let ports = format!("cargo xtask cluster shell node01 -- ip link show master {BRIDGE}");
    let next = [
        "kubectl get pods --all-namespaces --output wide",
        "kubectl exec alpha -- ip address",
        "cargo xtask cluster shell node01 -- ls /etc/cni/net.d",
        "kubectl get networkaddonsconfig cluster --output yaml",
        &ports,
        "cargo xtask bench footprint",
        "cargo xtask cluster down",
    ];
    print!("{}", commands(cluster, &next));
    Ok(())
}

/// Builds the image and the missing programs of the cluster concurrently: both take minutes the first time.
fn prepare(cluster: &Cluster, steps: &mut Steps) -> anyhow::Result<image::Built> {
    steps.step("building Weft, and downloading programs of the cluster");
    let board = Board::new();
    thread::scope(|scope| {
        let cluster = scope.spawn(|| cluster.prepare(&mut board.lane("cluster")));
        let mut lane = board.lane("weft");
        let inventory = build::programs(build::Extent::Product, &mut lane)?;
        let built = image::development(&inventory, &mut lane)?;
        manifests::write(&built)?;
        drop(lane);
        cluster
            .join()
            .map_err(|_| anyhow!("the preparation of the cluster panicked"))??;
        Ok(built)
    })
}

/// A pod's attachment to the secondary network, from its status annotation.
#[derive(Debug, PartialEq, Eq)]
struct Attachment {
    pod: String,
    node: String,
    /// Address on the default network.
    default: String,
    address: String,
    mac: String,
    status: String,
}

impl Attachment {
    fn of(pod: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if !cluster::is_ready(pod) {
            return Err(format!("it is {}", text(&pod["status"]["phase"])));
        }
        let status = text(&pod["metadata"]["annotations"][STATUS]);
        let networks: Value = serde_json::from_str(&status).map_err(|_| format!("it has no {STATUS}"))?;
        let net1 = networks
            .as_array()
            .into_iter()
            .flatten()
            .find(|network| network["interface"] == "net1");
        let net1 = net1.ok_or_else(|| format!("its {STATUS} lists no net1: {status}"))?;
        Ok(Self {
            pod: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            default: text(&pod["status"]["podIP"]),
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

/// Returns the MAC of an address, from the lines of /proc/net/arp.
fn neighbour(table: &str, address: &str) -> Option<String> {
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(address))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

fn story(
    alpha: &Attachment,
    beta: &Attachment,
    answers: &str,
    neighbour: &str,
    over_eth0: &str,
    network: DefaultNetwork,
) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("  {line}\n")).collect::<String>();
    let mut text = "\nTwo pods on two nodes, talking over net1:\n\n".to_owned();
    for pod in [alpha, beta] {
        text.push_str(&format!(
            "  {:6} on {}  net1 {:14} {}\n",
            pod.pod, pod.node, pod.address, pod.mac
        ));
    }
    text.push_str(&format!("\n{} pings {}:\n", alpha.pod, beta.pod));
    text.push_str(&indented(answers));
    text.push_str(&format!(
        "\n{}'s neighbour {} has the MAC {neighbour}, which is {}'s net1.\n",
        alpha.pod, beta.address, beta.pod
    ));
    text.push_str(&format!(
        "\nOver eth0, the default network ({network}), {} pings {}:\n{}",
        alpha.pod,
        beta.pod,
        indented(over_eth0)
    ));
    for pod in [alpha, beta] {
        let status: Value = serde_json::from_str(&pod.status).unwrap_or(Value::Null);
        text.push_str(&format!("\nnetwork-status of {}:\n{status:#}\n", pod.pod));
    }
    text.push_str(
        "\nThe demo runs a development build, which compiles faster. `cargo xtask bench footprint` replaces it by the\n\
         release build, and prints the size of the image and the memory of Weft's processes.\n",
    );
    text
}

/// Returns the next commands for the user, with the cluster's client.
fn commands(cluster: &Cluster, commands: &[&str]) -> String {
    let client = cluster
        .kubectl()
        .command([] as [&str; 0])
        .get_program()
        .to_owned();
    let client = PathBuf::from(client);
    let dir = client
        .parent()
        .map(|dir| dir.display().to_string())
        .unwrap_or_default();
    let mut text = format!(
        "\nNext commands:\n\n  export KUBECONFIG={}\n  export PATH={dir}:$PATH\n",
        cluster.kubeconfig().display()
    );
    for command in commands {
        text.push_str(&format!("  {command}\n"));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn neighbour_is_parsed_from_the_kernels_table() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
                     192.168.66.2     0x1         0x2         0a:58:c0:a8:42:02     *        net1\n";
        assert_eq!(
            neighbour(table, "192.168.66.2").as_deref(),
            Some("0a:58:c0:a8:42:02")
        );
        assert_eq!(neighbour(table, "192.168.66.22"), None);
    }

    #[test]
    fn attachment_is_parsed_from_the_status_annotation() {
        let status = json!([{ "name": "cluster", "interface": "eth0", "ips": ["10.244.1.2"] },
            { "name": "default/br1", "interface": "net1", "ips": ["192.168.66.1"], "mac": "0a:00:00:00:00:01" }]);
        let pod = json!({
            "metadata": { "name": "alpha", "annotations": { STATUS: status.to_string() } },
            "spec": { "nodeName": "node01" },
            "status": {
                "phase": "Running", "podIP": "10.244.1.2",
                "conditions": [{ "type": "Ready", "status": "True" }]
            }
        });
        let attachment = Attachment::of(&pod).unwrap();
        assert_eq!(
            (attachment.address.as_str(), attachment.mac.as_str()),
            ("192.168.66.1", "0a:00:00:00:00:01")
        );
        assert_eq!(attachment.default, "10.244.1.2");
        assert!(
            Attachment::of(&json!({ "status": { "phase": "Pending" } }))
                .unwrap_err()
                .contains("Pending")
        );
    }
}

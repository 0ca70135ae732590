//! `cargo xtask bench network`: Weft's pod network beside flannel's, on one cluster.
//!
//! ```text
//! node01 ── node02    Weft:    its daemon, cnv-ptp
//! node03 ── node04    flannel: flanneld with host-gw, Debian's bridge
//! ```
//!
//! Both networks take turns in each round, so that a disturbance affects both. Kernel, runtime, API server and
//! kube-proxy are the same programs. The sockets of this process are in the network namespaces of pods: a program of a
//! pod takes part only in the time from a pod's start to its first packet.

mod figures;
mod peers;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::{Cluster, Home, Kubectl, Options, Progress, Steps, flannel, image as images, is_ready, wait};
use serde_json::{Value, json};

use self::figures::Figures;
use self::peers::Peer;
use self::traffic::Arrivals;
use super::harness::on_own_cluster;
use super::memory::{self, Memory};
use crate::{image, test};

/// How much to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds, in each of which both networks take their turn
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Services of the cluster
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5000))]
    services: u32,
    /// Measure this image, an archive of `cargo xtask image`, instead of building one
    #[arg(long, value_name = "ARCHIVE")]
    image: Option<PathBuf>,
    /// Keep the cluster
    #[arg(long)]
    keep: bool,
}

/// Name of the cluster, its namespace, and the deadline of each wait.
const CLUSTER: &str = "bench-network";
const NAMESPACE: &str = "bench-network";
const DEADLINE: Duration = Duration::from_mins(5);
/// Time without traffic before the memory is measured. Both daemons return memory that the traffic needed.
const REST: Duration = Duration::from_secs(30);

/// Round trips and connections per round, and bytes per transfer.
const ROUND_TRIPS: usize = 1000;
const CONNECTIONS: usize = 200;
const BYTES: usize = 512 << 20;

/// Variable with the name of the pod, for the search of its processes.
const POD: &str = "BENCH_POD";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        test::is_root(),
        "only root can make the network namespaces that this takes; run it as root"
    );
    let mut steps = Steps::new();
    let home = Home::from_env()?;
    let cluster = Cluster::new(Options {
        home: home.clone(),
        name: CLUSTER.to_owned(),
        nodes: Peer::ALL.iter().map(|peer| peer.nodes().len()).sum(),
        network_manager: false,
        pod_network: false,
        kube_proxy: true,
        dual_stack: false,
    })?;
    cluster.prepare(&mut steps)?;
    let flannel = flannel::ensure(&home, &mut steps)?;
    let archive = match &args.image {
        Some(archive) => archive.clone(),
        None => image::build(&mut steps)?.archive,
    };
    let namespaces = [NAMESPACE, "kube-system"];
    let figures = on_own_cluster(&cluster, args.keep, &namespaces, &mut steps, |steps| {
        measure(&cluster, &archive, &flannel, args, steps)
    })?;
    drop(steps);
    println!("\n{}", figures.table());
    println!(
        "flannel {}, two nodes for each network, {} interleaved rounds; a ratio above 1 is better for Weft",
        flannel::VERSION,
        args.rounds
    );
    Ok(())
}

fn measure(
    cluster: &Cluster,
    archive: &Path,
    flannel: &flannel::Flannel,
    args: &Args,
    steps: &mut Steps,
) -> anyhow::Result<Figures> {
    cluster.up(steps)?;
    let kubectl = cluster.kubectl();
    steps.step("installing both networks");
    let references = cluster.load(archive)?;
    let reference = references.first().context("the archive has no image")?;
    peers::install_weft(&kubectl, reference)?;
    peers::install_flannel(cluster, flannel)?;
    wait::until("the nodes to be Ready", DEADLINE, || {
        let list = kubectl
            .json(["get", "nodes"])
            .map_err(|error| error.to_string())?;
        let nodes = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        match nodes.iter().find(|node| !is_ready(node)) {
            Some(node) => Err(format!("{} is not", node["metadata"]["name"])),
            None => Ok(()),
        }
    })?;
    steps.step(&format!("creating pods and {} Services", args.services));
    let networks = create(cluster, &kubectl, args.services)?;
    let mut figures = Figures::new();
    for round in 1..=args.rounds {
        // The networks alternate as the first one.
        let turn = usize::try_from(round).unwrap_or_default() % networks.len();
        for network in networks[turn..].iter().chain(&networks[..turn]) {
            steps.step(&format!("{}: round {round} of {}", network.peer, args.rounds));
            network.measure(&kubectl, round, &mut figures)?;
        }
    }
    steps.step(&format!("leaving both daemons at rest for {} s", REST.as_secs()));
    std::thread::sleep(REST);
    for network in &networks {
        network.measure_daemon(cluster, &mut figures)?;
    }
    Ok(figures)
}

/// The pods of one network.
#[derive(Debug)]
struct Network {
    peer: Peer,
    /// A process of the client pod, and the receiver of first packets of new pods.
    client: i32,
    client_address: String,
    arrivals: Arrivals,
    /// Addresses of a pod on the same node, of a pod on the other node, and of the latter's Service.
    near: String,
    far: String,
    service: String,
}

impl Network {
    fn measure(&self, kubectl: &Kubectl, round: u32, figures: &mut Figures) -> anyhow::Result<()> {
        let trips = |address: &str| traffic::round_trips(self.client, address, ROUND_TRIPS);
        let connections = |address: &str| traffic::connections(self.client, address, CONNECTIONS);
        let rate = |address: &str| traffic::rate(self.client, address, BYTES);
        let peer = self.peer;
        figures.times(peer, "round trip, one node (us)", &trips(&self.near)?);
        figures.times(peer, "round trip, across nodes (us)", &trips(&self.far)?);
        figures.times(peer, "connection, one node (us)", &connections(&self.near)?);
        figures.times(peer, "connection, across nodes (us)", &connections(&self.far)?);
        figures.times(
            peer,
            "connection to a Service, across nodes (us)",
            &connections(&self.service)?,
        );
        figures.rate(peer, "throughput, one node (MiB/s)", rate(&self.near)?);
        figures.rate(peer, "throughput, across nodes (MiB/s)", rate(&self.far)?);
        let start = self.start_pod(kubectl, round)?;
        figures.start(peer, "pod created to its first packet (ms)", start);
        Ok(())
    }

    /// The time from the creation of a pod to its first packet at the pod of the other node.
    fn start_pod(&self, kubectl: &Kubectl, round: u32) -> anyhow::Result<Duration> {
        let name = format!("{}-start-{round}", self.peer);
        let [_, far] = self.peer.nodes();
        let script = format!(
            "until nc -w 1 {} {} </dev/null; do :; done; exec sleep infinity",
            self.client_address,
            traffic::ARRIVALS
        );
        let pod = pod(&name, far, &["sh", "-c", &script]);
        self.arrivals.clear();
        let began = Instant::now();
        kubectl.apply(&pod.to_string())?;
        let arrived = self.arrivals.next(DEADLINE);
        let arrived = arrived.with_context(|| format!("pod {name}: no packet arrived"))?;
        kubectl.delete(["pod", "--namespace", NAMESPACE, &name])?;
        Ok(arrived.duration_since(began))
    }

    /// Memory of the daemon, on the node with the larger value.
    fn measure_daemon(&self, cluster: &Cluster, figures: &mut Figures) -> anyhow::Result<()> {
        let daemons = self.peer.nodes().map(|node| self.daemon(cluster, node));
        let mut most = Memory::default();
        let mut busy = Duration::ZERO;
        for pid in daemons {
            let pid = pid?;
            let memory = memory::of(pid);
            if memory.rss > most.rss {
                most = memory;
            }
            busy = busy.max(memory::processor_time(pid));
        }
        figures.memory(self.peer, "memory of the daemon, RSS (KiB)", most.rss);
        figures.memory(self.peer, "memory of the daemon, Pss (KiB)", most.pss);
        figures.memory(self.peer, "memory of the daemon, anonymous (KiB)", most.anonymous);
        figures.start(self.peer, "processor time of the daemon so far (ms)", busy);
        Ok(())
    }

    fn daemon(&self, cluster: &Cluster, node: &str) -> anyhow::Result<i32> {
        let is_it = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            self.peer.is_daemon(&arguments)
        };
        let found = cluster.processes(node).into_iter().find(is_it);
        found.with_context(|| format!("{node}: the daemon of {} does not run", self.peer))
    }
}

/// Creates the pods of all networks and the Services, and starts the servers.
fn create(cluster: &Cluster, kubectl: &Kubectl, services: u32) -> anyhow::Result<Vec<Network>> {
    kubectl.apply(
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }).to_string(),
    )?;
    let account = ["serviceaccount", "--namespace", NAMESPACE, "default"];
    kubectl.wait_for(&account, "the default service account", DEADLINE, |_| Ok(()))?;
    let mut objects: Vec<Value> = (0..services)
        .map(|number| service(&format!("other-{number}"), &json!({ "bench": "pod" })))
        .collect();
    for peer in Peer::ALL {
        let [one, two] = peer.nodes();
        for (name, node) in [("client", one), ("near", one), ("far", two)] {
            objects.push(pod(&format!("{peer}-{name}"), node, &["sleep", "infinity"]));
        }
        let far = format!("{peer}-far");
        objects.push(service(&far, &json!({ "name": far })));
    }
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string())?;
    let networks = Peer::ALL.into_iter().map(|peer| {
        let running = |name: &str| running(cluster, kubectl, &format!("{peer}-{name}"));
        let (client, client_address) = running("client")?;
        let (near, near_address) = running("near")?;
        let (far, far_address) = running("far")?;
        traffic::serve(near)?;
        traffic::serve(far)?;
        let service = kubectl.json(["get", "service", "--namespace", NAMESPACE, &format!("{peer}-far")])?;
        let service = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        for address in [&near_address, &far_address, service] {
            wait::until(&format!("{peer}: an answer of {address}"), DEADLINE, || {
                traffic::connections(client, address, 1)
            })?;
        }
        Ok(Network {
            peer,
            client,
            client_address,
            arrivals: Arrivals::listen(client)?,
            near: near_address,
            far: far_address,
            service: service.to_owned(),
        })
    });
    networks.collect()
}

/// A process of a pod, and the pod's address, once the pod runs.
fn running(cluster: &Cluster, kubectl: &Kubectl, name: &str) -> anyhow::Result<(i32, String)> {
    let args = ["pod", "--namespace", NAMESPACE, name];
    let address = kubectl.wait_for(&args, &format!("pod {name} to be Ready"), DEADLINE, |pod| {
        if !is_ready(pod) {
            return Err(format!("its status is {}", pod["status"]));
        }
        Ok(pod["status"]["podIP"].as_str().unwrap_or_default().to_owned())
    })?;
    let variable = format!("{POD}={name}");
    let is_of_pod = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
    };
    let nodes = cluster.nodes();
    let mut processes = nodes.iter().flat_map(|node| cluster.processes(node));
    let pid = processes
        .find(is_of_pod)
        .with_context(|| format!("pod {name} has no process"))?;
    Ok((pid, address))
}

fn pod(name: &str, node: &str, command: &[&str]) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "bench": "pod", "name": name } },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "pod", "image": images::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": command,
                "env": [{ "name": POD, "value": name }]
            }]
        } })
}

fn service(name: &str, selector: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "selector": selector, "ports": [{ "port": traffic::PORT }] } })
}

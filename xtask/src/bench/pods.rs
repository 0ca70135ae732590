//! `cargo xtask bench pods`: pods that become Ready per second in bursts, with and without networks, and what the bursts
//! leave in the memory of the daemons.
//!
//! The kinds alternate, so that disturbances affect all of them. The runtime, the kubelet and the API server take most
//! of the time: the difference between the kinds is the cost of networks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use cluster::{Cluster, Kubectl, Progress as _, Steps, wait};
use serde_json::{Value, json};

use super::harness::{pass, times_text};
use super::memory::{Memory, mebibytes, processes};
use crate::{default_network, image, install, manifests};

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pods of a burst, created at once
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// Bursts for each kind of pod
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Deploy node state too: its handlers report the links of pods on bridges
    #[arg(long)]
    node_state: bool,
}

const NAMESPACE: &str = "bench-pods";
const TIMEOUT: Duration = Duration::from_mins(10);
/// Time after the last burst in which daemons return memory.
const REST: Duration = Duration::from_mins(1);

/// The networks of each kind of pod. The first kind is without multus.
const KINDS: [(&str, &str); 5] = [
    ("without multus", ""),
    ("the cluster's network alone", ""),
    ("and a bridge", "plain"),
    ("and a bridge with addresses", "leased"),
    ("and three bridges with addresses", "leased,leased,leased"),
];
const WITHOUT_MULTUS: usize = 0;
const MULTUS: &str = "daemonset/multus";

/// The file with which multus makes the runtime call it.
const MULTUS_CONFIG: &str = "/etc/cni/net.d/00-multus.conf";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    if !cluster.is_up() {
        bail!("the cluster is not up; `cargo xtask demo` starts it with networks");
    }
    let built = image::build(&mut steps)?;
    // A demo runs a development build.
    manifests::write(&built)?;
    default_network::connect(&cluster, &built, &mut steps)?;
    install::addons(&cluster.kubectl(), &built, install::CONFIG, &mut steps)?;
    install::bridges(&cluster, &mut steps)?;
    let bench = Bench {
        kubectl: cluster.kubectl(),
        cluster: &cluster,
        pods: args.pods,
    };
    bench.clear()?;
    let node_state = if args.node_state { json!({}) } else { Value::Null };
    bench.configure(&json!({ "multus": {}, "nmstate": node_state }))?;
    bench.follow(true)?;
    bench.kubectl.apply(&networks().to_string())?;
    let mut times = KINDS.map(|_| (Vec::new(), Vec::new()));
    for round in 1..=args.rounds {
        let mut kinds: Vec<_> = KINDS.iter().enumerate().collect();
        if round % 2 == 0 {
            kinds.reverse();
        }
        for (kind, (name, networks)) in kinds {
            steps.step(&format!(
                "{} pods, {name}: round {round} of {}",
                args.pods, args.rounds
            ));
            let burst = || Ok((bench.create(networks)?, bench.delete()?));
            let (ready, gone) = if kind == WITHOUT_MULTUS {
                bench.without_multus(burst)?
            } else {
                burst()?
            };
            times[kind].0.push(ready);
            times[kind].1.push(gone);
        }
    }
    bench.clear()?;
    let after = bench.memory();
    steps.step("giving the daemons a minute of rest");
    pass(REST, &mut steps);
    let at_rest = bench.memory();
    drop(steps);
    println!(
        "\n{:<34}{:>8}  {:<22}  {:<22}  later",
        "", "pods/s", "until all are Ready", "until gone"
    );
    let mut least = None;
    for ((name, _), (mut ready, mut gone)) in KINDS.iter().zip(times) {
        ready.sort();
        gone.sort();
        let median = ready[ready.len() / 2].as_secs_f64();
        let rate = f64::from(args.pods) / median;
        let later = (median / *least.get_or_insert(median) - 1.0) * 100.0;
        println!(
            "{name:<34}{rate:>8.1}  {:<22}  {:<22}  {later:>4.0} %",
            times_text(&ready),
            times_text(&gone)
        );
    }
    println!(
        "\n{} pods in a burst; median (least to most) of {} bursts. \"later\" compares Ready pods with those without multus",
        args.pods, args.rounds
    );
    println!(
        "\n{:<34}{:<24}  a minute later",
        "Pss (anonymous), MiB", "after the last burst"
    );
    for (name, memory) in &at_rest {
        let before = after.get(name).copied().unwrap_or_default();
        println!("{name:<34}{:<24}  {}", memory_text(before), memory_text(*memory));
    }
    Ok(())
}

fn memory_text(memory: Memory) -> String {
    format!("{} ({})", mebibytes(memory.pss), mebibytes(memory.anonymous))
}

struct Bench<'a> {
    cluster: &'a Cluster,
    kubectl: Kubectl,
    pods: u32,
}

impl Bench<'_> {
    /// Runs `work` while multus is removed from the cluster.
    fn without_multus<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let done = self.deploy_multus(false).and_then(|()| work());
        let restored = self.deploy_multus(true);
        let done = done?;
        restored?;
        Ok(done)
    }

    /// Lets the operator deploy or remove multus, and waits until the runtimes of all nodes call it or do not.
    fn deploy_multus(&self, is_deployed: bool) -> anyhow::Result<()> {
        let multus = if is_deployed { json!({}) } else { Value::Null };
        self.configure(&json!({ "multus": multus }))?;
        self.follow(is_deployed)
    }

    /// Changes the components that the operator deploys.
    fn configure(&self, components: &Value) -> anyhow::Result<()> {
        let patch = json!({ "spec": components }).to_string();
        self.kubectl.run([
            "patch",
            "networkaddonsconfig",
            "cluster",
            "--type=merge",
            "--patch",
            &patch,
        ])?;
        Ok(())
    }

    /// Waits until all components are there, and the runtimes of all nodes call multus or do not.
    fn follow(&self, is_deployed: bool) -> anyhow::Result<()> {
        wait::until("multus on all nodes to follow its operator", TIMEOUT, || {
            for node in self.cluster.nodes() {
                let test = ["test", "-e", MULTUS_CONFIG];
                let mut test = self
                    .cluster
                    .node_command(node, test)
                    .map_err(|error| error.to_string())?;
                let status = test.status().map_err(|error| error.to_string())?;
                if status.success() != is_deployed {
                    return Err(format!("{MULTUS_CONFIG} of {node} is as before"));
                }
            }
            let config = self.kubectl.json(["get", "networkaddonsconfig", "cluster"]);
            install::available(&config.map_err(|error| error.to_string())?)?;
            if is_deployed
                && !self
                    .kubectl
                    .is_rolled_out(install::NAMESPACE, MULTUS)
                    .unwrap_or(false)
            {
                return Err(format!("{MULTUS} is not rolled out"));
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Returns the memory of each program: the most that it takes on a node.
    fn memory(&self) -> BTreeMap<String, Memory> {
        let mut most: BTreeMap<String, Memory> = BTreeMap::new();
        for node in self.cluster.nodes() {
            for (name, memory) in processes(self.cluster, node) {
                let known = most.entry(name).or_default();
                if memory.pss > known.pss {
                    *known = memory;
                }
            }
        }
        most
    }

    /// Creates a burst of pods and waits until all are Ready.
    fn create(&self, networks: &str) -> anyhow::Result<Duration> {
        let pods: Vec<_> = (0..self.pods).map(|number| pod(number, networks)).collect();
        let began = Instant::now();
        self.kubectl
            .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string())?;
        let all = usize::try_from(self.pods).unwrap_or(usize::MAX);
        self.until("all pods to be Ready", |pods| {
            let ready = pods.iter().filter(|pod| cluster::is_ready(pod)).count();
            if ready == all {
                Ok(())
            } else {
                Err(format!("{ready} of {all} are"))
            }
        })?;
        Ok(began.elapsed())
    }

    /// Deletes the burst and waits until all pods are gone. Their grace period is not zero: the API server would remove
    /// them at once, and kubelet would detach them during the next burst.
    fn delete(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.kubectl.run([
            "delete",
            "pods",
            "--all",
            "--namespace",
            NAMESPACE,
            "--wait=false",
        ])?;
        self.until("all pods to be gone", |pods| match pods.len() {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        })?;
        Ok(began.elapsed())
    }

    fn until(&self, what: &str, condition: impl Fn(&[Value]) -> Result<(), String>) -> anyhow::Result<()> {
        wait::until(what, TIMEOUT, || {
            let list = self.kubectl.get(["pods", "--namespace", NAMESPACE]);
            let list = list.map_err(|error| error.to_string())?.unwrap_or_default();
            condition(list["items"].as_array().map_or(&[], Vec::as_slice))
        })
        .map_err(|error| anyhow::anyhow!("{error}\n{}", self.kubectl.explain(NAMESPACE)))
    }

    fn clear(&self) -> anyhow::Result<()> {
        self.kubectl.delete(["namespace", NAMESPACE])?;
        Ok(())
    }
}

fn networks() -> Value {
    let network = |name: &str, config: &Value| {
        json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "config": config.to_string() } })
    };
    let plain =
        json!({ "cniVersion": "0.3.1", "name": "plain", "type": "cnv-bridge", "bridge": install::BRIDGE });
    let leased = json!({ "cniVersion": "0.3.1", "name": "leased", "type": "cnv-bridge", "bridge": install::BRIDGE,
        "ipam": { "type": "host-local", "subnet": "10.222.0.0/16" } });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } },
        network("plain", &plain),
        network("leased", &leased),
    ] })
}

fn pod(number: u32, networks: &str) -> Value {
    let annotations = if networks.is_empty() {
        json!({})
    } else {
        json!({ "k8s.v1.cni.cncf.io/networks": networks })
    };
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("pod-{number}"), "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [
            { "name": "pause", "image": cluster::image::PAUSE, "imagePullPolicy": "IfNotPresent" }
        ] } })
}

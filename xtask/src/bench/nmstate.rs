//! `cargo xtask bench nmstate`: memory of node state's programs, their processor time at rest, the time from a change
//! of the host to its report, and the time until one policy, and many at once, are Available on two nodes.
//!
//! Reports are timed by the API server's audit log. A test of the component measures the cost of policies on many
//! simulated nodes.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::{Cluster, Kubectl, NameServer, Progress, Steps, run, wait};
use serde_json::{Value, json};

use super::audit::{self, Log};
use super::harness::{pass, rounds};
use super::memory::{Memory, NODE_STATE, mebibytes, processes, programs};
use crate::{image, install, manifests, paths};

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds of each time measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=254))]
    rounds: u32,
    /// Minutes of the measurement of processor time at rest
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
    /// Policies to apply at once; 0 skips that
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(..=200))]
    policies: u32,
    /// Simulated nodes for the count of a policy's writes; 0 skips that
    #[arg(long, default_value_t = 200)]
    simulated: u32,
}

const TIMEOUT: Duration = Duration::from_mins(5);

/// A change of the host that no policy desires.
const BYSTANDER: &str = "bench0";
/// Prefix of the names of created bridges.
const BRIDGE: &str = "bench1";
/// Prefix of the names of many bridges and policies.
const BRIDGES: &str = "brp";

/// Memory of upstream's programs of node state: the handler, and each of the others.
const ESTABLISHED: &str = "43 to 47 MiB";

/// The network of `eth1`, with the name server for probes.
const ROUTER: &str = "192.0.2.254";

/// The tests of the component with simulated nodes, and the prefixes of their output lines for this measurement.
const SIMULATION: (&str, &str) = ("policy::simulation", "simulation: ");
/// Variable with the number of simulated nodes.
const SIMULATED_NODES: &str = "WEFT_SIMULATED_NODES";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    cluster.prepare(&mut steps)?;
    let built = image::build(&mut steps)?;
    cluster.up(&mut steps)?;
    manifests::write(&built)?;
    install::install(&cluster, &built, install::CONFIG, &mut steps)?;
    let _names = NameServer::start(&cluster, "control")?;
    let bench = Bench {
        kubectl: cluster.kubectl(),
        log: Log::of(&cluster),
        cluster: &cluster,
    };
    steps.step("deploying node state");
    bench.prepare()?;
    bench.deploy()?;

    let mut table = Vec::new();
    steps.step(&format!("counting processor time for {} idle minutes", args.idle));
    let before = bench.processor();
    let began = Instant::now();
    pass(Duration::from_mins(args.idle), &mut steps);
    let hours = began.elapsed().as_secs_f64() / 3600.0;
    let after = bench.processor();
    for (name, memory) in bench.memory() {
        let seconds = |times: &BTreeMap<String, f64>| times.get(&name).copied().unwrap_or_default();
        let used = (seconds(&after) - seconds(&before)) / hours;
        table.push((format!("{name}, memory"), memory_text(memory), ESTABLISHED));
        table.push((
            format!("{name}, idle"),
            format!("{used:.1} s of processor an hour"),
            "",
        ));
    }
    let mut time = |what: &str, measure: &dyn Fn(u32) -> anyhow::Result<Duration>| {
        let times = rounds(&mut steps, what, args.rounds, measure)?;
        table.push((what.to_owned(), times, ""));
        anyhow::Ok(())
    };
    time("host changed until reported", &|round| bench.reported(round))?;
    time("policy until Available on all", &|round| bench.available(round))?;
    for (name, memory) in bench.memory() {
        table.push((format!("{name}, afterwards"), memory_text(memory), ""));
    }
    if args.policies > 0 {
        let what = format!("{} policies until Available", args.policies);
        steps.step(&what);
        let took = bench.all_available(args.policies)?;
        table.push((what, at_once_text(took, args.policies), ""));
    }
    steps.step("removing policies and bridges");
    bench.restore()?;
    let simulated = if args.simulated == 0 {
        Vec::new()
    } else {
        steps.step(&format!(
            "counting writes for a policy on {} simulated nodes",
            args.simulated
        ));
        simulate(args.simulated)?
    };
    drop(steps);
    println!("\n{}", line("", "ours", "upstream"));
    for (what, ours, upstream) in table {
        println!("{}", line(&what, &ours, upstream));
    }
    for text in simulated {
        println!("{text}");
    }
    println!("\ntimes: median (least to most) of {} rounds", args.rounds);
    Ok(())
}

struct Bench<'a> {
    kubectl: Kubectl,
    log: Log,
    cluster: &'a Cluster,
}

impl Bench<'_> {
    /// Configures a name server on the nodes, because probes wait for one.
    fn prepare(&self) -> anyhow::Result<()> {
        self.script("control", &format!("ip address replace {ROUTER}/24 dev spare0"))?;
        for (index, node) in (1..).zip(self.cluster.nodes()) {
            self.clean(node)?;
            self.script(
                node,
                &format!(
                    "nmcli connection add type ethernet ifname eth1 con-name eth1 ipv4.method manual \
                     ipv4.addresses 192.0.2.{index}/24 ipv4.dns {ROUTER} ipv6.method disabled\n\
                     nmcli --wait 60 connection up eth1"
                ),
            )?;
        }
        Ok(())
    }

    fn clean(&self, node: &str) -> anyhow::Result<()> {
        self.script(
            node,
            &format!(
                "for uuid in $(nmcli --terse --fields UUID connection show); do\n\
                 nmcli connection delete $uuid || :\ndone\n\
                 many=$(ip -brief link show type bridge | grep -o '^{BRIDGES}[0-9]*' || :)\n\
                 for link in {BYSTANDER} {BRIDGE} $many; do\n\
                 ip link delete $link 2>/dev/null || :\ndone"
            ),
        )
    }

    fn deploy(&self) -> anyhow::Result<()> {
        self.configure(true)?;
        let state = ["nmstate", "nmstate"];
        self.kubectl.wait_for(
            &state,
            "the node state to be Available",
            TIMEOUT,
            install::available,
        )?;
        for node in self.cluster.nodes() {
            let report = ["nodenetworkstate", node];
            self.kubectl
                .wait_for(&report, "the first report", TIMEOUT, |_| Ok(()))?;
        }
        Ok(())
    }

    /// The default configuration, with or without node state.
    fn configure(&self, with: bool) -> anyhow::Result<()> {
        let mut spec = json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" });
        if with {
            spec["nmstate"] = json!({});
        }
        let config = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" }, "spec": spec,
        });
        self.kubectl.apply(&config.to_string())?;
        Ok(())
    }

    /// Measures the time from a change on a node to its report.
    fn reported(&self, round: u32) -> anyhow::Result<Duration> {
        let (node, link) = ("node01", BYSTANDER);
        let add = round % 2 == 1;
        let script = if add {
            format!("ip link add {link} type bridge; ip link set {link} up")
        } else {
            format!("ip link delete {link}")
        };
        let mark = self.log.mark()?;
        let began = audit::now();
        self.script(node, &script)?;
        let state = ["nodenetworkstate", node];
        self.kubectl
            .wait_for(&state, "the report of the change", TIMEOUT, |state| {
                let interfaces = state["status"]["currentState"]["interfaces"].as_array();
                let there = interfaces.is_some_and(|all| all.iter().any(|one| one["name"] == link));
                if there == add {
                    Ok(())
                } else {
                    Err(format!("{link} is {}there", if there { "" } else { "not " }))
                }
            })?;
        let events = self.log.since(&mark)?;
        let mut written = events.iter().filter(|event| {
            event.resource == "nodenetworkstates/status" && event.name == node && event.verb == "update"
        });
        let event = written
            .next_back()
            .context("the audit log does not contain the report")?;
        Ok(audit::from_to(began, event.at))
    }

    /// Measures the time from the creation of a policy to its condition.
    fn available(&self, round: u32) -> anyhow::Result<Duration> {
        let name = format!("bench-{round}");
        let policy = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
            "metadata": { "name": name },
            "spec": { "desiredState": { "interfaces": [{
                "name": BRIDGE, "type": "linux-bridge", "state": "up",
                "ipv4": { "enabled": true, "dhcp": false, "address": [
                    { "ip": format!("198.51.100.{round}"), "prefix-length": 24 },
                ] },
                "bridge": { "options": { "stp": { "enabled": false } }, "port": [] },
            }] } },
        });
        let began = Instant::now();
        self.kubectl.apply(&policy.to_string())?;
        let resource = format!("nncp/{name}");
        self.kubectl
            .run(["wait", "--for=condition=Available", "--timeout=300s", &resource])?;
        let time = began.elapsed();
        self.delete_policies(&[name])?;
        Ok(time)
    }

    /// Measures the time from the creation of many policies at once to the condition of the last one. Each policy is
    /// applied node by node, and each node applies one policy at a time.
    fn all_available(&self, count: u32) -> anyhow::Result<Duration> {
        let names: Vec<String> = (0..count).map(|index| format!("{BRIDGES}{index}")).collect();
        let policies: Vec<Value> = names.iter().map(|name| bridge_policy(name)).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": policies });
        let began = Instant::now();
        self.kubectl.apply(&list.to_string())?;
        let all = ["wait", "--for=condition=Available", "--timeout=900s", "nncp"];
        self.kubectl
            .run(all.into_iter().chain(names.iter().map(String::as_str)))?;
        let time = began.elapsed();
        self.delete_policies(&names)?;
        Ok(time)
    }

    /// Deletes policies, and waits until only their interfaces remain.
    fn delete_policies(&self, names: &[String]) -> anyhow::Result<()> {
        let names = names.iter().map(String::as_str);
        self.kubectl.delete(["nncp"].into_iter().chain(names))?;
        wait::until("the removal of the enactments", TIMEOUT, || {
            let left = self.kubectl.run(["get", "nnce", "--output=name"]);
            match left.map_err(|error| error.to_string())?.trim() {
                "" => Ok(()),
                left => Err(left.to_owned()),
            }
        })?;
        Ok(())
    }

    /// Returns the memory of node state's programs by name. The value of the handler is the largest of all nodes.
    fn memory(&self) -> BTreeMap<String, Memory> {
        let mut all = BTreeMap::new();
        for node in self.cluster.nodes() {
            for (name, memory) in processes(self.cluster, node) {
                let Some(name) = name.strip_prefix(NODE_STATE).map(str::trim_start) else {
                    continue;
                };
                let largest: &mut Memory = all.entry(name.to_owned()).or_default();
                if memory.pss > largest.pss {
                    *largest = memory;
                }
            }
        }
        all
    }

    /// Returns the processor seconds of node state's programs by name. The value of the handler is the first node's.
    fn processor(&self) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        for node in self.cluster.nodes() {
            for (name, pid) in programs(self.cluster, node) {
                let Some(name) = name.strip_prefix(NODE_STATE).map(str::trim_start) else {
                    continue;
                };
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                all.entry(name.to_owned())
                    .or_insert_with(|| processor_seconds(&stat));
            }
        }
        all
    }

    /// Restores the previous configuration, for other uses of the cluster.
    fn restore(&self) -> anyhow::Result<()> {
        self.configure(false)?;
        for node in self.cluster.nodes() {
            wait::until("the end of the handlers", TIMEOUT, || {
                let left = programs(self.cluster, node).into_iter().map(|(name, _)| name);
                match left.into_iter().find(|name| name.starts_with(NODE_STATE)) {
                    Some(name) => Err(format!("{name} still runs on {node}")),
                    None => Ok(()),
                }
            })?;
            self.clean(node)?;
        }
        Ok(())
    }

    fn script(&self, node: &str, script: &str) -> anyhow::Result<()> {
        run::output(&mut self.cluster.node_command(node, ["sh", "-euc", script])?)?;
        Ok(())
    }
}

/// Returns a policy that creates a bridge with the policy's name, without ports and addresses.
fn bridge_policy(name: &str) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name },
        "spec": { "desiredState": { "interfaces": [{
            "name": name, "type": "linux-bridge", "state": "up",
            "bridge": { "options": { "stp": { "enabled": false } }, "port": [] },
        }] } },
    })
}

/// Times of many policies at once, and of each policy on one node.
fn at_once_text(took: Duration, policies: u32) -> String {
    let each = took / policies.max(1);
    format!(
        "{:.1} s, {:.2} s each on a node",
        took.as_secs_f64(),
        each.as_secs_f64()
    )
}

/// Returns the results of the component's tests with many simulated nodes.
fn simulate(nodes: u32) -> anyhow::Result<Vec<String>> {
    let (tests, prefix) = SIMULATION;
    let mut cargo = paths::cargo();
    cargo.args(["test", "--package", "weft-nmstate", "--test", "api", tests]);
    // The tests run one after the other, so that each has the whole machine.
    cargo.args(["--", "--nocapture", "--test-threads=1"]);
    let output = run::output(cargo.env(SIMULATED_NODES, nodes.to_string()))?;
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix(prefix));
    Ok(lines.map(str::to_owned).collect())
}

/// Returns the processor time of a process from `/proc/PID/stat`, where the kernel counts hundredths of a second.
#[allow(
    clippy::cast_precision_loss,
    reason = "hundredths of a second are small numbers"
)]
fn processor_seconds(stat: &str) -> f64 {
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks = |index: usize| -> u64 {
        fields
            .get(index)
            .and_then(|field| field.parse().ok())
            .unwrap_or_default()
    };
    (ticks(11) + ticks(12)) as f64 / 100.0
}

fn memory_text(memory: Memory) -> String {
    format!("{} MiB Pss", mebibytes(memory.pss))
}

fn line(what: &str, ours: &str, upstream: &str) -> String {
    format!("{what:<31}{ours:<31}{upstream}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::harness::times_text;
    use super::*;

    #[test]
    fn processor_time_is_parsed_from_the_kernel() {
        let stat = "123 (weft (x) y) S 1 123 123 0 -1 4194560 500 0 0 0 150 25 0 0 20 0 3 0 1000 1 2";
        assert!((processor_seconds(stat) - 1.75).abs() < 1e-9);
    }

    #[test]
    fn result_fits_a_terminal() {
        let times = [1, 2, 30].map(Duration::from_secs);
        let text = line("policy until Available on all", &times_text(&times), ESTABLISHED);
        assert!(text.len() <= 80, "{text}");
        let at_once = at_once_text(Duration::from_secs(163), 30);
        assert_eq!(at_once, "163.0 s, 5.43 s each on a node");
        assert!(at_once.len() <= 31, "{at_once}");
    }
}

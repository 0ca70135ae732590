//! `cargo xtask bench footprint`: memory of all programs on the nodes, and their sizes.

use std::time::Duration;

use anyhow::{Context, bail};
use cluster::{Cluster, Progress, Steps, run};

use super::memory::{Memory, processes, processor_time, programs};
use crate::{default_network, image, install, manifests};

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Deploy every component, on the cluster of `cargo xtask demo --vms`: some components need KubeVirt's definitions
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = if args.all {
        install::CONFIG_OF_ALL
    } else {
        install::CONFIG
    };
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    if !cluster.is_up() {
        bail!("the cluster is not up; `cargo xtask demo` starts it with workloads to measure");
    }
    let built = image::build(&mut steps)?;
    // A demo runs a development build.
    manifests::write(&built)?;
    default_network::connect(&cluster, &built, &mut steps)?;
    install::addons(&cluster.kubectl(), &built, config, &mut steps)?;
    steps.step("waiting until the pods of former components have ended");
    let pods = ["daemonsets,deployments,pods", "--namespace", install::NAMESPACE];
    install::wait_for(
        &cluster.kubectl(),
        &mut steps,
        &pods,
        "pods of former components to end",
        install::only_desired_pods,
    )?;
    println!("\n{}", built.sizes());
    let mut control_plane = Memory::default();
    for node in cluster.nodes() {
        let processes = processes(&cluster, node);
        println!("{}", memory_table(node, &processes));
        for (_, memory) in processes.iter().filter(|(name, _)| is_control_plane(name)) {
            control_plane.add(*memory);
        }
    }
    println!(
        "control plane together: {} KiB Pss, {} of them anonymous",
        control_plane.pss, control_plane.anonymous
    );
    let node = cluster
        .nodes()
        .first()
        .copied()
        .context("the cluster has no nodes")?;
    steps.step(&format!("creating and removing {LINKS} pairs of links on {node}"));
    let times = times_of_links(&cluster, node)?;
    drop(steps);
    println!("{}", times_table(node, &times));
    Ok(())
}

/// Number of created and removed pairs of links, similar to those of pods. They affect no component.
const LINKS: u32 = 200;

/// Measures the processor time of each program of a node for [`LINKS`].
fn times_of_links(cluster: &Cluster, node: &str) -> anyhow::Result<Vec<(String, Duration)>> {
    let before: Vec<_> = programs(cluster, node)
        .into_iter()
        .map(|(name, pid)| (name, pid, processor_time(pid)))
        .collect();
    let script = format!(
        "for number in $(seq {LINKS}); do\n\
         ip link add bench0 type veth peer name bench1\nip link delete bench0\ndone"
    );
    run::output(&mut cluster.node_command(node, ["sh", "-euc", &script])?)?;
    let spent = before
        .into_iter()
        .map(|(name, pid, before)| (name, processor_time(pid).saturating_sub(before)));
    Ok(spent.collect())
}

fn times_table(node: &str, times: &[(String, Duration)]) -> String {
    let mut text = format!("\n{:<34}{:>32}\n", node, "processor us for a pair of links");
    for (name, time) in times {
        let each = time.as_secs_f64() * 1e6 / f64::from(LINKS);
        text.push_str(&format!("  {name:<32}{each:>32.1}\n"));
    }
    text
}

/// Suffixes of the names of programs that run a fixed number of times in a cluster, independent of its number of nodes.
const CONTROL_PLANE: [&str; 8] = [
    "cert-manager",
    "kubemacpool",
    "kubevirt-ipam",
    "metrics",
    "monitor",
    "operator",
    "secondary-dns",
    "webhook",
];

fn is_control_plane(name: &str) -> bool {
    name.rsplit(' ')
        .next()
        .is_some_and(|last| CONTROL_PLANE.contains(&last))
}

fn memory_table(node: &str, processes: &[(String, Memory)]) -> String {
    let mut text = format!(
        "{node:<34}{:>10}{:>10}{:>12}\n",
        "Pss KiB", "RSS KiB", "anon. KiB"
    );
    let mut sum = Memory::default();
    let mut line = |name: &str, memory: Memory| {
        text.push_str(&format!(
            "  {name:<32}{:>10}{:>10}{:>12}\n",
            memory.pss, memory.rss, memory.anonymous
        ));
    };
    for (name, memory) in processes {
        line(name, *memory);
        if !is_control_plane(name) {
            sum.add(*memory);
        }
    }
    line("node daemons together", sum);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_a_terminal() {
        let table = memory_table(
            "node01",
            &[(
                "weft multus-daemon".to_owned(),
                Memory {
                    pss: 1,
                    rss: 2,
                    anonymous: 3,
                },
            )],
        );
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        let times = times_table(
            "node01",
            &[("weft bridge-marker".to_owned(), Duration::from_millis(2))],
        );
        assert!(times.lines().all(|line| line.len() <= 80), "{times}");
        assert!(times.trim_end().ends_with(" 10.0"), "{times}");
        assert!(
            table.lines().last().unwrap().trim().starts_with("node daemons"),
            "{table}"
        );
    }
}

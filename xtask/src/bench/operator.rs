//! `cargo xtask bench operator`: times of the add-ons operator, its requests to the API server, and its memory. With
//! `--network`: those of the cluster network operator.
//!
//! Times are differences between two entries of the API server's audit log, and therefore contain no time of this
//! program or of kubectl.

mod network;

use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::{Cluster, Kubectl, Progress, Steps, run, wait};
use serde_json::{Value, json};

use super::audit::{Event, Log, Requests, Which, account};
use super::harness::{pass, rounds};
use super::memory::{Memory, mebibytes, processes};
use crate::{image, install, manifests};

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure the cluster network operator and its pod network, on a separate cluster whose nodes have no other network
    #[arg(long)]
    network: bool,
    /// Rounds of each time measurement, 5 with --network. Without it, a fifth round within a minute reaches the operator's
    /// back-off
    #[arg(
        long,
        default_value_t = 4,
        default_value_if("network", "true", "5"),
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    rounds: u32,
    /// Minutes of the count of requests at rest
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
}

/// A namespace with many objects that do not concern the operator.
const FOREIGN: &str = "bench-foreign";
const FOREIGN_CONFIG_MAPS: usize = 2_000;
const FOREIGN_DEPLOYMENTS: usize = 500;

/// The workload to delete.
const WORKLOAD: &str = "bridge-marker";
/// The workload to edit.
const EDITED: &str = "kube-cni-linux-bridge-plugin";

const TIMEOUT: Duration = Duration::from_mins(5);

/// An operator without requests for this time is at rest: idle programs return their memory within 20 s.
const REST: Duration = Duration::from_secs(25);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.network {
        return network::run(args);
    }
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    cluster.prepare(&mut steps)?;
    let built = image::build(&mut steps)?;
    cluster.up(&mut steps)?;
    manifests::write(&built)?;
    install::install(&cluster, &built, install::CONFIG, &mut steps)?;
    let bench = Bench {
        kubectl: cluster.kubectl(),
        log: Log::of(&cluster),
        account: account(install::NAMESPACE, install::OPERATOR),
        cluster: &cluster,
    };
    bench.delete_foreign()?;

    let mut table = vec![Line::heading("upstream")];
    let mut time = |what: &str, upstream: &str, measure: &dyn Fn() -> anyhow::Result<Duration>| {
        table.push(Line {
            what: what.to_owned(),
            ours: rounds(&mut steps, what, args.rounds, |_| measure())?,
            other: upstream.to_owned(),
        });
        anyhow::Ok(())
    };
    time("CR created until Available", "26 to 50 s", &|| bench.available())?;
    time("deleted DaemonSet is back", "15 to 57 s", &|| bench.deleted())?;
    time("edited DaemonSet is reverted", "15 to 57 s", &|| bench.edited())?;

    steps.step(&format!("counting requests for {} idle minutes", args.idle));
    table.push(bench.idle(Duration::from_mins(args.idle), &mut steps)?);

    table.push(Line::memory("operator", bench.operator()?));
    steps.step(&format!(
        "creating {FOREIGN_CONFIG_MAPS} foreign ConfigMaps and {FOREIGN_DEPLOYMENTS} foreign Deployments"
    ));
    bench.create_foreign()?;
    table.push(Line::memory("operator, among them", bench.operator()?));
    steps.step("restarting the operator among these objects");
    bench.restart()?;
    table.push(Line::memory("operator, started among them", bench.operator()?));
    steps.step("removing these objects");
    bench.delete_foreign()?;
    drop(steps);
    println!();
    for line in table {
        println!("{}", line.text());
    }
    println!(
        "\nmedian (least to most) of {} rounds; the upstream operator was measured on two cores, too",
        args.rounds
    );
    Ok(())
}

struct Bench<'a> {
    kubectl: Kubectl,
    log: Log,
    /// The operator's name in the log.
    account: String,
    cluster: &'a Cluster,
}

impl Bench<'_> {
    /// Measures the time from the creation of the configuration to the status Available.
    fn available(&self) -> anyhow::Result<Duration> {
        self.kubectl.delete(["networkaddonsconfig", "cluster"])?;
        let others = "name!=cluster-network-addons-operator";
        let pods = ["pods", "--namespace", install::NAMESPACE, "--selector", others];
        wait::until("the removal of all deployed objects", TIMEOUT, || {
            // kubectl prints nothing if no objects remain.
            let list = self.kubectl.get(pods).map_err(|error| error.to_string())?;
            let left = list.map_or(0, |list| list["items"].as_array().map_or(0, Vec::len));
            if left == 0 {
                Ok(())
            } else {
                Err(format!("{left} pods are left"))
            }
        })?;
        let mark = self.log.mark()?;
        self.kubectl
            .apply_file(&install::example("network-addons-config.yaml"))?;
        let config = ["networkaddonsconfig", "cluster"];
        self.kubectl.wait_for(
            &config,
            "the configuration to be Available",
            TIMEOUT,
            install::available,
        )?;
        self.log.between(
            &mark,
            |event| event.verb == "create" && event.resource == "networkaddonsconfigs",
            |event| event.user == self.account && event.resource == "networkaddonsconfigs/status",
            Which::Last,
        )
    }

    /// Measures the time from the deletion of a DaemonSet to its creation.
    fn deleted(&self) -> anyhow::Result<Duration> {
        let uid = |set: &Value| set["metadata"]["uid"].as_str().map(str::to_owned);
        let set = ["daemonset", "--namespace", install::NAMESPACE, WORKLOAD];
        let before = self.kubectl.get(set)?.as_ref().and_then(uid);
        let mark = self.log.mark()?;
        self.kubectl.delete([
            "daemonset",
            "--namespace",
            install::NAMESPACE,
            WORKLOAD,
            "--wait=false",
        ])?;
        self.kubectl
            .wait_for(&set, "the DaemonSet to be back", TIMEOUT, |set| {
                if uid(set) == before {
                    Err("it is the old one".to_owned())
                } else {
                    Ok(())
                }
            })?;
        let time = self.log.between(
            &mark,
            |event| event.verb == "delete" && event.name == WORKLOAD,
            |event| event.user == self.account && event.verb == "create" && event.resource == "daemonsets",
            Which::First,
        )?;
        self.settled()?;
        Ok(time)
    }

    /// Measures the time from the edit of a pod template to its repair.
    fn edited(&self) -> anyhow::Result<Duration> {
        let mark = self.log.mark()?;
        let edit = json!({ "spec": { "template": { "metadata": { "annotations": { "bench": "edit" } } } } });
        let set = ["daemonset", "--namespace", install::NAMESPACE, EDITED];
        let patch = ["--type=merge".to_owned(), format!("--patch={edit}")];
        self.kubectl.run(
            std::iter::once("patch")
                .chain(set)
                .map(str::to_owned)
                .chain(patch),
        )?;
        self.kubectl
            .wait_for(&set, "the DaemonSet to be as before", TIMEOUT, |set| {
                match set["spec"]["template"]["metadata"]["annotations"].get("bench") {
                    Some(_) => Err("it is still edited".to_owned()),
                    None => Ok(()),
                }
            })?;
        let time = self.log.between(
            &mark,
            |event| event.verb == "patch" && event.name == EDITED && event.user != self.account,
            |event| event.user == self.account && event.verb == "update" && event.name == EDITED,
            Which::First,
        )?;
        self.settled()?;
        Ok(time)
    }

    fn settled(&self) -> anyhow::Result<()> {
        let config = ["networkaddonsconfig", "cluster"];
        self.kubectl.wait_for(
            &config,
            "the configuration to be Available",
            TIMEOUT,
            install::available,
        )?;
        Ok(())
    }

    fn idle(&self, time: Duration, steps: &mut Steps) -> anyhow::Result<Line> {
        self.settled()?;
        let mark = self.log.mark()?;
        pass(time, steps);
        let requests = Requests::of(&self.log.since(&mark)?, &self.account);
        let minutes = time.as_secs() / 60;
        Ok(Line {
            what: format!("requests in {minutes} idle minutes"),
            ours: format!(
                "{} writes, {} reads, {} watches",
                requests.writes, requests.reads, requests.watches
            ),
            other: format!("{} writes, {} reads", 61 * minutes, 87 * minutes),
        })
    }

    /// Returns the memory of the operator at rest.
    fn operator(&self) -> anyhow::Result<Memory> {
        self.settled()?;
        let nodes = self.cluster.nodes();
        let mut all = nodes.into_iter().flat_map(|node| processes(self.cluster, node));
        let found = all.find(|(name, _)| name.ends_with(" operator"));
        Ok(found.context("no node runs the operator")?.1)
    }

    fn create_foreign(&self) -> anyhow::Result<()> {
        let mut objects = vec![json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": FOREIGN },
        })];
        objects.extend((0..FOREIGN_CONFIG_MAPS).map(|index| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("foreign-{index}"), "namespace": FOREIGN },
                "data": { "text": "x".repeat(1000) },
            })
        }));
        objects.extend((0..FOREIGN_DEPLOYMENTS).map(|index| {
            let labels = json!({ "app": format!("foreign-{index}") });
            let container =
                json!({ "name": "main", "image": "foreign", "env": [{ "name": "A", "value": "b" }] });
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": { "name": format!("foreign-{index}"), "namespace": FOREIGN },
                "spec": {
                    "replicas": 0, "selector": { "matchLabels": labels },
                    "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
                },
            })
        }));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.kubectl.apply(&list.to_string())?;
        Ok(())
    }

    fn delete_foreign(&self) -> anyhow::Result<()> {
        self.kubectl.delete(["namespace", FOREIGN])?;
        Ok(())
    }

    /// Replaces the operator's pod, and waits until the new one is at rest.
    fn restart(&self) -> anyhow::Result<()> {
        let deployment = [
            "deployment/cluster-network-addons-operator",
            "--namespace",
            install::NAMESPACE,
        ];
        for action in ["restart", "status"] {
            let mut command = self.kubectl.command(["rollout", action]);
            run::output(command.args(deployment))?;
        }
        at_rest(&self.log, |event| event.user == self.account)
    }
}

/// Waits until no request that `disturbs` selects was sent for [`REST`].
fn at_rest(log: &Log, disturbs: impl Fn(&Event) -> bool) -> anyhow::Result<()> {
    let begin = log.mark()?;
    let mut last = (0, Instant::now());
    wait::until("the operator to be at rest", TIMEOUT, || {
        let events = log.since(&begin).map_err(|error| error.to_string())?;
        let sent: Vec<&Event> = events.iter().filter(|event| disturbs(event)).collect();
        if sent.len() != last.0 {
            last = (sent.len(), Instant::now());
        }
        if last.1.elapsed() > REST {
            return Ok(());
        }
        Err(match sent.last() {
            Some(Event {
                verb, resource, name, ..
            }) => format!("the last request is {verb} {resource} {name}"),
            None => "the time is too short".to_owned(),
        })
    })?;
    Ok(())
}

/// A line of the result.
#[derive(Debug)]
struct Line {
    what: String,
    ours: String,
    /// The figure of upstream, or the aim.
    other: String,
}

impl Line {
    fn heading(other: &str) -> Self {
        Self {
            what: String::new(),
            ours: "ours".to_owned(),
            other: other.to_owned(),
        }
    }

    fn memory(what: &str, memory: Memory) -> Self {
        Self {
            what: what.to_owned(),
            ours: format!("{} MiB Pss", mebibytes(memory.pss)),
            other: "63 to 76 MiB".to_owned(),
        }
    }

    fn text(&self) -> String {
        format!("{:<30}{:<31}{}", self.what, self.ours, self.other)
            .trim_end()
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::harness::times_text;
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn number_of_rounds_depends_on_the_operator() {
        let parse = |words: &[&str]| {
            let words = ["operator"].iter().chain(words);
            let args = Cli::try_parse_from(words).unwrap().args;
            (args.network, args.rounds, args.idle)
        };
        assert_eq!(parse(&[]), (false, 4, 5));
        assert_eq!(parse(&["--network"]), (true, 5, 5));
        assert_eq!(parse(&["--network", "--rounds=7", "--idle=2"]), (true, 7, 2));
        assert!(Cli::try_parse_from(["operator", "--idle=0"]).is_err());
    }

    #[test]
    fn result_fits_a_terminal() {
        let times = [1, 2, 30].map(Duration::from_secs);
        let line = Line {
            what: "edited DaemonSet is reverted".to_owned(),
            ours: times_text(&times),
            other: "26 to 50 s".to_owned(),
        };
        assert_eq!(
            line.text(),
            "edited DaemonSet is reverted  2.00 s (1.00 to 30.00)         26 to 50 s"
        );
        assert_eq!(times_text(&times[..1]), "1.00 s");
        let memory = Memory {
            pss: 5632,
            rss: 0,
            anonymous: 0,
        };
        let line = Line::memory("operator, started among them", memory).text();
        assert_eq!(
            line,
            "operator, started among them  5.5 MiB Pss                    63 to 76 MiB"
        );
    }
}

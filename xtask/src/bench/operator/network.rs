//! `cargo xtask bench operator --network`: the cluster network operator on nodes without another network.
//!
//! Times of repairs are differences between two events of one watch, and therefore contain no time of kubectl.

mod watch;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::{Cluster, Home, Kubectl, Options, Progress, Steps, is_ready};
use serde_json::{Value, json};

use self::watch::Watch;
use super::super::audit::{Log, Mark, Requests, account, open_watches};
use super::super::harness::{on_own_cluster, pass, times_text};
use super::super::memory::{Memory, mebibytes, processes};
use super::{Args, Line, at_rest};
use crate::{image, install};

/// Name of the cluster.
const CLUSTER: &str = "bench-operator";

/// Interval of repairs of one object: the operator reaches its back-off with the sixth within a minute.
const INTERVAL: Duration = Duration::from_secs(15);

/// The aim for each repair.
const REPAIR: &str = "1 s";

/// Namespace of multus.
const MULTUS: &str = "openshift-multus";

/// A measured program.
#[derive(Debug)]
struct Program {
    name: &'static str,
    /// Name of its processes.
    process: &'static str,
    /// Namespace and name of its service account.
    account: (&'static str, &'static str),
    /// The aim for its memory.
    memory: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "operator",
        process: "weft cluster-network-operator",
        account: (install::NETWORK_NAMESPACE, "cluster-network-operator"),
        memory: "10 MiB",
    },
    Program {
        name: "pod network",
        process: "weft pod-network",
        account: (install::POD_NETWORK_NAMESPACE, "pod-network"),
        memory: "4 MiB",
    },
];

/// A change of an applied object, which the operator repairs.
#[derive(Debug)]
struct Drift {
    what: &'static str,
    kind: &'static str,
    /// Missing for an object without a namespace.
    namespace: Option<&'static str>,
    name: &'static str,
    /// A merge patch. If it is missing, the object is deleted.
    edit: Option<&'static str>,
}

/// Each object is repaired once in a round. No edit starts pods again.
const DRIFTS: [Drift; 6] = [
    Drift {
        what: "deleted DaemonSet is back",
        kind: "daemonset",
        namespace: Some(install::POD_NETWORK_NAMESPACE),
        name: "pod-network",
        edit: None,
    },
    Drift {
        what: "deleted ConfigMap is back",
        kind: "configmap",
        namespace: Some(MULTUS),
        name: "cni-sysctl-allowlist",
        edit: None,
    },
    Drift {
        what: "deleted ClusterRole is back",
        kind: "clusterrole",
        namespace: None,
        name: "net-attach-def-project",
        edit: None,
    },
    Drift {
        what: "edited DaemonSet reverted",
        kind: "daemonset",
        namespace: Some(MULTUS),
        name: "multus",
        edit: Some(r#"{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":"50%"}}}}"#),
    },
    Drift {
        what: "edited ConfigMap reverted",
        kind: "configmap",
        namespace: Some(MULTUS),
        name: "multus-daemon-config",
        edit: Some(r#"{"data":{"daemon-config.json":"{}"}}"#),
    },
    Drift {
        what: "edited ClusterRole reverted",
        kind: "clusterrole",
        namespace: None,
        name: "network-diagnostics",
        edit: Some(r#"{"rules":[]}"#),
    },
];

/// All results.
#[derive(Debug)]
struct Figures {
    /// From the installation of the operator, and from the creation of the network, until all nodes are Ready.
    ready: [Duration; 2],
    /// Each program's.
    idle: Vec<Idle>,
    /// Times of each drift's repairs, sorted.
    repairs: [Vec<Duration>; DRIFTS.len()],
}

/// A program at rest.
#[derive(Debug)]
struct Idle {
    program: &'static Program,
    /// Memory of its processes. Each node of the pod network has one.
    memory: Vec<Memory>,
    requests: Requests,
    open_watches: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let cluster = Cluster::new(Options {
        home: Home::from_env()?,
        name: CLUSTER.to_owned(),
        nodes: 2,
        network_manager: false,
        pod_network: false,
        kube_proxy: false,
        dual_stack: false,
    })?;
    cluster.prepare(&mut steps)?;
    let built = image::build(&mut steps)?;
    let namespaces = [
        install::NETWORK_NAMESPACE,
        install::POD_NETWORK_NAMESPACE,
        install::KUBE_PROXY_NAMESPACE,
        MULTUS,
    ];
    let figures = on_own_cluster(&cluster, false, &namespaces, &mut steps, |steps| {
        measure(&cluster, &built, args, steps)
    })?;
    drop(steps);
    println!();
    for line in figures.table(args.idle) {
        println!("{}", line.text());
    }
    println!(
        "\nuntil nodes Ready: from the installation of the operator, and from the creation of its network\n\
         repairs: median (least to most) of {} rounds; upstream's operator repairs every 3 minutes\n\
         memory: of the process with the most",
        args.rounds
    );
    Ok(())
}

fn measure(
    cluster: &Cluster,
    built: &image::Built,
    args: &Args,
    steps: &mut Steps,
) -> anyhow::Result<Figures> {
    cluster.up(steps)?;
    let kubectl = cluster.kubectl();
    install::load(cluster, built, steps)?;
    let kube_proxy = install::kube_proxy(cluster, steps)?;
    let nodes = Watch::start(&kubectl, &["nodes"])?;
    let installed = Instant::now();
    install::network_operator(cluster, built, kube_proxy.as_deref(), steps)?;
    let created = Instant::now();
    install::network(cluster, built, steps)?;
    let ready = all_ready(&nodes, &cluster.nodes())?;
    drop(nodes);
    let ready = [installed, created].map(|began| ready.duration_since(began));

    // The last work of the start: these targets become ready half a minute later, without a request until then.
    steps.step("waiting until the pod of each node is checked");
    let checks = [
        "podnetworkconnectivitychecks",
        "--namespace",
        "openshift-network-diagnostics",
    ];
    let node_names = cluster.nodes();
    install::wait_for(&kubectl, steps, &checks, "a check of each node", |list| {
        each_is_checked(list, &node_names)
    })?;
    steps.step("waiting until the operator and the pod network are at rest");
    let log = Log::of(cluster);
    let accounts = PROGRAMS.map(|program| account(program.account.0, program.account.1));
    at_rest(&log, |event| {
        accounts.contains(&event.user) && event.disturbs_rest()
    })?;
    steps.step(&format!("counting requests for {} idle minutes", args.idle));
    let mark = log.mark()?;
    pass(Duration::from_mins(args.idle), steps);
    let (since, all) = (log.since(&mark)?, log.since(&Mark::BEGIN)?);
    let mut idle = Vec::new();
    for (program, account) in PROGRAMS.iter().zip(&accounts) {
        idle.push(Idle {
            program,
            memory: memory_of(cluster, program.process)?,
            requests: Requests::of(&since, account),
            open_watches: open_watches(&all, account),
        });
    }

    let mut repairs = DRIFTS.map(|_| Vec::new());
    for round in 1..=args.rounds {
        steps.step(&format!(
            "deleting and editing {} objects: round {round} of {}",
            DRIFTS.len(),
            args.rounds
        ));
        let began = Instant::now();
        for (drift, times) in DRIFTS.iter().zip(&mut repairs) {
            let time = drift.repair(&kubectl);
            times.push(time.with_context(|| format!("not measured: {}", drift.what))?);
        }
        if round < args.rounds {
            pass(INTERVAL.saturating_sub(began.elapsed()), steps);
        }
    }
    for times in &mut repairs {
        times.sort();
    }
    Ok(Figures { ready, idle, repairs })
}

/// Returns the time at which the last node was Ready for the first time.
fn all_ready(watch: &Watch, nodes: &[&str]) -> anyhow::Result<Instant> {
    let mut waiting: BTreeSet<&str> = nodes.iter().copied().collect();
    watch.until("that all nodes are Ready", |event| {
        let node = &event["object"];
        if is_ready(node) {
            waiting.remove(node["metadata"]["name"].as_str().unwrap_or_default());
        }
        waiting.is_empty()
    })
}

/// Returns the memory of all processes with a name.
fn memory_of(cluster: &Cluster, process: &str) -> anyhow::Result<Vec<Memory>> {
    let nodes = cluster.nodes();
    let all = nodes.into_iter().flat_map(|node| processes(cluster, node));
    let found: Vec<Memory> = all
        .filter(|(name, _)| name == process)
        .map(|(_, memory)| memory)
        .collect();
    ensure!(!found.is_empty(), "no node runs {process}");
    Ok(found)
}

impl Drift {
    /// Changes the object, and returns the time until it is as before.
    fn repair(&self, kubectl: &Kubectl) -> anyhow::Result<Duration> {
        let scope = || self.namespace.into_iter().flat_map(|name| ["--namespace", name]);
        let selector = format!("--field-selector=metadata.name={}", self.name);
        let mut watched = vec![self.kind, &selector];
        watched.extend(scope());
        let watch = Watch::start(kubectl, &watched)?;
        let mut before = None;
        watch.until("the object", |event| {
            before = applied(event);
            before.is_some()
        })?;
        let mut change = match self.edit {
            Some(patch) => vec!["patch", "--type=merge", "--patch", patch],
            None => vec!["delete", "--wait=false"],
        };
        change.extend([self.kind, self.name].into_iter().chain(scope()));
        kubectl.run(change)?;
        let changed = watch.until("the change", |event| applied(event) != before)?;
        let repaired = watch.until("the repair", |event| applied(event) == before)?;
        Ok(repaired.duration_since(changed))
    }
}

/// Returns the parts of an object that the operator applies, from an event of a watch. Of the metadata, the API server
/// and controllers change the rest with each write. A deleted object has none.
fn applied(event: &Value) -> Option<Value> {
    if event["type"] == "DELETED" {
        return None;
    }
    let mut object = event["object"].clone();
    let fields = object.as_object_mut()?;
    fields.shift_remove("status");
    let metadata = &event["object"]["metadata"];
    let kept = json!({ "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"] });
    fields.insert("metadata".to_owned(), kept);
    Some(object)
}

impl Figures {
    fn table(&self, minutes: u64) -> Vec<Line> {
        let line = |what: &str, ours: String, aim: &str| Line {
            what: what.to_owned(),
            ours,
            other: aim.to_owned(),
        };
        let [installed, created] = self.ready.map(|time| times_text(&[time]));
        let mut table = vec![
            Line::heading("aim"),
            line("operator until nodes Ready", installed, ""),
            line("network until nodes Ready", created, ""),
        ];
        for (drift, times) in DRIFTS.iter().zip(&self.repairs) {
            table.push(line(drift.what, times_text(times), REPAIR));
        }
        for idle in &self.idle {
            table.extend(idle.lines(minutes));
        }
        table
    }
}

impl Idle {
    fn lines(&self, minutes: u64) -> Vec<Line> {
        let Self {
            program, requests, ..
        } = self;
        let line = |what: &str, ours: String, aim: &str| Line {
            what: format!("{}, {what}", program.name),
            ours,
            other: aim.to_owned(),
        };
        // A read a minute for each process.
        let reads = minutes * self.memory.len() as u64;
        let mut lines = vec![line(
            &format!("{minutes} idle minutes"),
            format!("{} writes, {} reads", requests.writes, requests.reads),
            &format!("0 writes, {reads} reads"),
        )];
        lines.extend(requests.each.iter().map(|(kind, count)| Line {
            what: String::new(),
            ours: format!("{count} {kind}"),
            other: String::new(),
        }));
        if requests.renewals > 0 {
            let renewals = format!("{} reads and writes", requests.renewals);
            lines.push(line("its Lease", renewals, ""));
        }
        let watches = format!("{} open, {} started", self.open_watches, requests.watches);
        lines.push(line("watches", watches, ""));
        let largest = self.memory.iter().max_by_key(|memory| memory.pss);
        let largest = largest.copied().unwrap_or_default();
        let memory = format!(
            "{} MiB Pss, {} anonymous",
            mebibytes(largest.pss),
            mebibytes(largest.anonymous)
        );
        lines.push(line("memory", memory, program.memory));
        lines
    }
}

/// Returns an error unless the pod of each node is the target of a connectivity check.
fn each_is_checked(checks: &Value, nodes: &[&str]) -> Result<(), String> {
    let items = checks["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_checked = |node: &str| {
        let end = format!("-to-network-check-target-{node}");
        let mut names = items
            .iter()
            .filter_map(|check| check["metadata"]["name"].as_str());
        names.any(|name| name.ends_with(&end))
    };
    match nodes.iter().find(|node| !is_checked(node)) {
        Some(node) => Err(format!("the pod of {node} has no check")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_of_each_node_is_missed() {
        let checks = |targets: &[&str]| {
            let check = |target: &&str| json!({ "metadata": { "name": format!("network-check-source-node01-to-{target}") } });
            json!({ "items": targets.iter().map(check).collect::<Vec<_>>() })
        };
        let nodes = ["node01", "node02"];
        let [one, two] = ["network-check-target-node01", "network-check-target-node02"];
        assert_eq!(each_is_checked(&checks(&[one, two]), &nodes), Ok(()));
        for few in [&[][..], &[one], &[two], &["network-check-target-service-cluster"]] {
            assert!(each_is_checked(&checks(few), &nodes).is_err(), "{few:?}");
        }
    }

    #[test]
    fn object_is_as_applied_if_only_the_servers_fields_differ() {
        let event = |kind: &str, uid: &str, app: &str, image: &str| {
            applied(&json!({ "type": kind, "object": {
                "kind": "DaemonSet",
                "metadata": { "name": "a", "uid": uid, "labels": { "app": app }, "generation": 1 },
                "spec": { "image": image }, "status": { "ready": uid },
            } }))
        };
        let before = event("ADDED", "1", "weft", "image");
        assert!(before.is_some());
        assert_eq!(event("MODIFIED", "2", "weft", "image"), before);
        assert_ne!(event("MODIFIED", "1", "other", "image"), before);
        assert_ne!(event("MODIFIED", "1", "weft", "other"), before);
        assert_eq!(event("DELETED", "1", "weft", "image"), None);
    }

    #[test]
    fn table_has_aims_and_fits_a_terminal() {
        let memory = |pss: u64| Memory {
            pss,
            rss: 0,
            anonymous: 1536,
        };
        let requests = Requests {
            writes: 1,
            reads: 11,
            renewals: 60,
            watches: 48,
            each: [("list pods", 11), ("patch clusteroperators/status", 1)]
                .map(|(kind, count)| (kind.to_owned(), count))
                .into(),
        };
        let [operator, pod_network] = &PROGRAMS;
        let figures = Figures {
            ready: [30, 20].map(Duration::from_secs),
            repairs: DRIFTS.map(|_| [100, 200, 1500].map(Duration::from_millis).to_vec()),
            idle: vec![
                Idle {
                    program: operator,
                    memory: vec![memory(8192)],
                    requests,
                    open_watches: 45,
                },
                Idle {
                    program: pod_network,
                    memory: vec![memory(2048), memory(3072)],
                    requests: Requests::default(),
                    open_watches: 2,
                },
            ],
        };
        let table: Vec<String> = figures.table(5).iter().map(Line::text).collect();
        let text = table.join("\n");
        assert!(table.iter().all(|line| line.len() <= 80), "{text}");
        assert_eq!(table.len(), 3 + DRIFTS.len() + 6 + 3, "{text}");
        for line in [
            "operator until nodes Ready    30.00 s",
            "deleted DaemonSet is back     0.20 s (0.10 to 1.50)          1 s",
            "edited ClusterRole reverted   0.20 s (0.10 to 1.50)          1 s",
            "operator, 5 idle minutes      1 writes, 11 reads             0 writes, 5 reads",
            "                              1 patch clusteroperators/status",
            "operator, its Lease           60 reads and writes",
            "operator, watches             45 open, 48 started",
            "operator, memory              8.0 MiB Pss, 1.5 anonymous     10 MiB",
            "pod network, 5 idle minutes   0 writes, 0 reads              0 writes, 10 reads",
            "pod network, memory           3.0 MiB Pss, 1.5 anonymous     4 MiB",
        ] {
            assert!(
                table.iter().any(|other| other == line),
                "{line}\nis not in\n{text}"
            );
        }
    }
}

//! Memory of the processes on a node, from the kernel's statistics.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster::Cluster;

/// Memory of a process, kibibytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) pss: u64,
    pub(super) rss: u64,
    pub(super) anonymous: u64,
}

impl Memory {
    pub(super) fn add(&mut self, other: Self) {
        self.pss += other.pss;
        self.rss += other.rss;
        self.anonymous += other.anonymous;
    }
}

/// Returns kibibytes as mebibytes with one decimal, rounded down.
pub(super) fn mebibytes(kibibytes: u64) -> String {
    format!("{}.{}", kibibytes / 1024, kibibytes % 1024 * 10 / 1024)
}

/// Parses `/proc/PID/smaps_rollup`.
fn memory(rollup: &str) -> Memory {
    let field = |name: &str| {
        let line = rollup
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    Memory {
        pss: field("Pss"),
        rss: field("Rss"),
        anonymous: field("Anonymous"),
    }
}

/// Returns the memory of a process, or none if it has ended.
pub(super) fn of(pid: i32) -> Memory {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    memory(&rollup.unwrap_or_default())
}

/// Returns Weft's processes on a node, with names and memory.
pub(super) fn processes(cluster: &Cluster, node: &str) -> Vec<(String, Memory)> {
    let programs = programs(cluster, node).into_iter();
    programs.map(|(name, pid)| (name, of(pid))).collect()
}

/// Returns the processor time of all threads of a process in nanoseconds, from `/proc/PID/task/TID/schedstat`.
pub(super) fn processor_time(pid: i32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let times = threads.flatten().filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse().ok()
    });
    times.map(Duration::from_nanos).sum()
}

/// Returns Weft's processes on a node, with names and numbers, sorted.
pub(super) fn programs(cluster: &Cluster, node: &str) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    for pid in cluster.processes(node) {
        let dir = Path::new("/proc").join(pid.to_string());
        let program = fs::read_link(dir.join("exe")).unwrap_or_default();
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("weft") {
            continue;
        }
        let arguments = fs::read(dir.join("cmdline")).unwrap_or_default();
        let environment = fs::read(dir.join("environ")).unwrap_or_default();
        let words = |text: &[u8]| -> Vec<String> {
            let words = text.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            words.map(|word| word.trim().to_owned()).collect()
        };
        found.push((component(&name, &words(&arguments), &words(&environment)), pid));
    }
    found.sort();
    found
}

/// The programs of node state, by the name of the process.
pub(super) const NODE_STATE: &str = "weft-nmstate";

/// Variables that select the role of node state's `manager`. Without any, it is the handler.
const TASKS: [(&str, &str); 4] = [
    ("RUN_CERT_MANAGER=", "cert-manager"),
    ("RUN_WEBHOOK_SERVER=", "webhook"),
    ("RUN_METRICS_MANAGER=", "metrics"),
    ("RUN_OPERATOR=", "operator"),
];

/// A program, and its role.
fn component(program: &str, arguments: &[String], environment: &[String]) -> String {
    let started_as = arguments.first().map(String::as_str).unwrap_or_default();
    let first = arguments.get(1).map(String::as_str).unwrap_or_default();
    if !started_as.ends_with(NODE_STATE) && started_as != "manager" {
        return format!("{program} {first}");
    }
    let is_set = |variable: &str| environment.iter().any(|word| word.starts_with(variable));
    let task = TASKS.iter().find(|(variable, _)| is_set(variable));
    let task = match task {
        _ if !first.is_empty() && !first.starts_with('-') => first,
        Some((_, task)) => task,
        None => "handler",
    };
    format!("{NODE_STATE} {task}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_named_after_its_role() {
        let component = |arguments: &[&str], environment: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            component("weft", &words(arguments), &words(environment))
        };
        assert_eq!(
            component(&["/weft", "operator"], &["RUN_OPERATOR="]),
            "weft operator"
        );
        let manager = ["manager", "--zap-time-encoding=iso8601"];
        assert_eq!(
            component(&manager, &["RUN_METRICS_MANAGER="]),
            "weft-nmstate metrics"
        );
        assert_eq!(
            component(&["manager"], &["NODE_NAME=node01"]),
            "weft-nmstate handler"
        );
        assert_eq!(
            component(&["/weft-nmstate", "webhook"], &[]),
            "weft-nmstate webhook"
        );
    }

    #[test]
    fn memory_is_parsed_from_the_kernels_summary() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0   [rollup]\nRss:       6300 kB\nPss:       4100 kB\n\
                      Pss_Anon:  900 kB\nAnonymous:  1000 kB\n";
        assert_eq!(
            memory(rollup),
            Memory {
                pss: 4100,
                rss: 6300,
                anonymous: 1000
            }
        );
    }
}

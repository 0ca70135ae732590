//! `cargo xtask bench footprint`: memory, sizes, and requests while nothing happens.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cluster::{Cluster, Progress, Steps};
use serde_json::Value;

use crate::{image, install};

/// How long to look.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Minutes to count requests of the operator while nothing changes
    #[arg(long, default_value_t = 10)]
    idle: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let cluster = Cluster::from_env()?;
    if !cluster.is_up() {
        bail!("the cluster is not up; `cargo xtask demo` brings it up with something to measure");
    }
    let built = image::build(&mut steps)?;
    println!("\n{}", built.sizes());
    for node in cluster.nodes() {
        println!("{}", memory_table(node, &processes(&cluster, node)));
    }
    if args.idle > 0 {
        println!(
            "{}",
            requests(&cluster, Duration::from_mins(args.idle), &mut steps)?
        );
    }
    Ok(())
}

/// Kibibytes of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    pss: u64,
    rss: u64,
    anonymous: u64,
}

/// Reads `/proc/PID/smaps_rollup`.
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

/// Processes of ours on a node: what they are, and their memory.
fn processes(cluster: &Cluster, node: &str) -> Vec<(String, Memory)> {
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
        let words: Vec<_> = arguments
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy)
            .collect();
        let subcommand = words
            .get(1)
            .map(|word| word.trim().to_owned())
            .unwrap_or_default();
        let rollup = fs::read_to_string(dir.join("smaps_rollup")).unwrap_or_default();
        found.push((format!("{name} {subcommand}"), memory(&rollup)));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
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
        // The operator runs on one node of a cluster, whatever its size.
        if !name.ends_with(" operator") {
            sum.pss += memory.pss;
            sum.rss += memory.rss;
            sum.anonymous += memory.anonymous;
        }
    }
    line("node daemons together", sum);
    text
}

/// Counts the operator's requests during `time`, watches apart.
fn requests(cluster: &Cluster, time: Duration, steps: &mut Steps) -> anyhow::Result<String> {
    let log = cluster.audit_log();
    let read = || fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()));
    let before = read()?.len();
    steps.step(&format!("counting requests for {} minutes", time.as_secs() / 60));
    let began = Instant::now();
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(500));
        steps.tick("");
    }
    let user = format!(
        "system:serviceaccount:{0}:cluster-network-addons-operator",
        install::NAMESPACE
    );
    let after = read()?;
    let counts = count(after.get(before..).unwrap_or_default(), &user);
    let words: Vec<String> = counts
        .iter()
        .map(|(verb, count)| format!("{count} {verb}"))
        .collect();
    let words = if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    };
    Ok(format!(
        "requests of the operator in {} idle minutes: {words}\n",
        time.as_secs() / 60
    ))
}

/// Requests of `user` by verb, in lines of an audit log.
fn count(lines: &str, user: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        // A watch is recorded when it starts and when it ends; the start is the request.
        let first = event["stage"] == "ResponseStarted" || event["verb"] != "watch";
        if event["user"]["username"] == user && first {
            *counts
                .entry(event["verb"].as_str().unwrap_or("?").to_owned())
                .or_default() += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel_summary() {
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

    #[test]
    fn requests_are_counted_by_verb_and_user_and_a_watch_once() {
        let line = |verb: &str, user: &str, stage: &str| {
            serde_json::json!({ "verb": verb, "stage": stage, "user": { "username": user } }).to_string()
                + "\n"
        };
        let log = line("get", "a", "ResponseComplete")
            + &line("watch", "a", "ResponseStarted")
            + &line("watch", "a", "ResponseComplete")
            + &line("update", "b", "ResponseComplete");
        let expected = [("get".to_owned(), 1), ("watch".to_owned(), 1)];
        assert_eq!(count(&log, "a"), BTreeMap::from(expected));
    }

    #[test]
    fn the_table_fits_a_terminal() {
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
        assert!(
            table.lines().last().unwrap().trim().starts_with("node daemons"),
            "{table}"
        );
    }
}

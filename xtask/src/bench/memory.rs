//! Memory of the processes on a node, as the kernel counts it.

use std::fs;
use std::path::Path;

use cluster::Cluster;

/// Kibibytes of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) pss: u64,
    pub(super) rss: u64,
    pub(super) anonymous: u64,
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
pub(super) fn processes(cluster: &Cluster, node: &str) -> Vec<(String, Memory)> {
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
}

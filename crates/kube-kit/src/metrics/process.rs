//! Metrics of the process, from `/proc`.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Clock ticks per second in `/proc`, the same on every supported architecture.
const TICKS: f64 = 100.0;

/// The current process, read at each scrape.
#[derive(Debug, Clone, Copy, Default)]
pub struct Process;

impl Process {
    /// Adds the metrics to a registry.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |file: &str| fs::read_to_string(file).ok();
        let mut gauge = |name: &str, help: &str, value: Option<f64>| -> fmt::Result {
            // An unknown value is omitted.
            let Some(value) = value else { return Ok(()) };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let stat = read("/proc/self/stat");
        let status = read("/proc/self/status");
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            status.as_deref().and_then(|status| bytes(status, "VmRSS:")),
        )?;
        gauge(
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            status.as_deref().and_then(|status| bytes(status, "VmSize:")),
        )?;
        gauge(
            "process_open_fds",
            "Number of open file descriptors.",
            // The directory that is read counts as an open file too.
            fs::read_dir("/proc/self/fd")
                .ok()
                .map(|files| float(files.count().saturating_sub(1))),
        )?;
        gauge(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            read("/proc/self/limits").as_deref().and_then(open_files),
        )?;
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            stat.as_deref().and_then(started).and_then(|after_boot| {
                let boot = read("/proc/stat").as_deref().and_then(booted)?;
                Some(boot + after_boot)
            }),
        )?;
        let Some(seconds) = stat.as_deref().and_then(processor_time) else {
            return Ok(());
        };
        let counter = ConstCounter::new(seconds);
        let (name, help) = (
            "process_cpu_seconds",
            "Total user and system CPU time spent in seconds.",
        );
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}

/// Field of `/proc/self/stat` after the command's name, which may contain any characters.
fn field(stat: &str, number: usize) -> Option<f64> {
    const BEHIND_THE_NAME: usize = 3;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace()
        .nth(number.checked_sub(BEHIND_THE_NAME)?)?
        .parse()
        .ok()
}

/// CPU time of the process in user and kernel mode, in seconds.
fn processor_time(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// Start of the process in seconds since boot.
fn started(stat: &str) -> Option<f64> {
    Some(field(stat, 22)? / TICKS)
}

/// Boot time from `/proc/stat`, in seconds since 1970.
fn booted(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// The value of a line of `/proc/self/status`, in bytes.
fn bytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// Maximum number of open files, from `/proc/self/limits`.
fn open_files(limits: &str) -> Option<f64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "7 (a) b) S 1 7 7 0 -1 4194560 1000 0 3 0 150 50 0 0 20 0 1 0 4200 9000000 800 1844 1 1 0 0";

    #[test]
    #[allow(clippy::float_cmp, reason = "no arithmetic that rounds")]
    fn fields_of_proc_files_are_parsed() {
        assert_eq!(processor_time(STAT), Some(2.0));
        assert_eq!(started(STAT), Some(42.0));
        assert_eq!(booted("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
        let status = "Name:\tweft\nVmSize:\t  9000 kB\nVmRSS:\t    12 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(12_288.0));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max open files            1024                 4096                 files\n";
        assert_eq!(open_files(limits), Some(1024.0));
        assert_eq!(
            open_files("Max open files            unlimited            unlimited            files\n"),
            None
        );
        for broken in ["", "7 (weft", "7 (weft) S"] {
            assert_eq!((processor_time(broken), started(broken)), (None, None));
        }
    }

    #[test]
    fn current_process_has_all_metrics() {
        let mut registry = Registry::default();
        Process.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in [
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_start_time_seconds",
            "process_cpu_seconds_total",
        ] {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name} ")));
            let value: f64 = value
                .unwrap_or_else(|| panic!("{name} is not in\n{text}"))
                .parse()
                .unwrap();
            assert!(
                value > 0.0 || name == "process_cpu_seconds_total",
                "{name} {value}"
            );
        }
    }
}

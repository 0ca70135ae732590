//! Debian's dnsperf as the client: an independent program for measurements of DNS servers.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{Args, Asked, CLIENTS, ROUNDS, Server, UNDER_WAY, middle};

/// Results of one run of dnsperf.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Report {
    completed: f64,
    lost: f64,
    /// In seconds.
    latency: f64,
}

/// Sends each kind of query to both servers in turn.
pub(crate) fn measure(directory: &Path, args: &Args, servers: [&Server; 2]) -> anyhow::Result<()> {
    println!(
        "by dnsperf                   answers a second and core          average latency               lost of a million"
    );
    for asked in Asked::ALL {
        let questions = directory.join("questions");
        let text: String = (0..args.vms).map(|n| format!("{} A\n", asked.name(n))).collect();
        fs::write(&questions, text)?;
        let mut rates = [Vec::new(), Vec::new()];
        let mut latencies = [Vec::new(), Vec::new()];
        let mut sent = [(0.0, 0.0); 2];
        for _ in 0..ROUNDS {
            for (which, server) in servers.iter().enumerate() {
                let before = server.processor_time()?;
                let report = run(args, server.port, &questions)?;
                let busy = server.processor_time()?.saturating_sub(before);
                rates[which].push(report.completed / busy.as_secs_f64().max(f64::EPSILON));
                latencies[which].push(report.latency);
                sent[which].0 += report.completed + report.lost;
                sent[which].1 += report.lost;
            }
        }
        let [rate, their_rate] = rates.map(|mut all| middle(&mut all));
        let [latency, their_latency] = latencies.map(|mut all| middle(&mut all) * 1000.0);
        let [lost, their_lost] = sent.map(|(sent, lost)| lost / sent.max(1.0) * 1e6);
        println!(
            "{:<28} {rate:>7.0}  {their_rate:>7.0}  {:>10.1}x  {latency:>6.2} ms  {their_latency:>6.2} ms         {lost:>6.0}  {their_lost:>6.0}",
            asked.text(),
            rate / their_rate,
        );
    }
    Ok(())
}

/// Sends queries as fast as answers arrive.
fn run(args: &Args, port: u16, questions: &Path) -> anyhow::Result<Report> {
    let mut command = Command::new(&args.dnsperf);
    command.args(["-s", "127.0.0.1", "-e", "-p", &port.to_string()]);
    command.args(["-c", &CLIENTS.to_string()]);
    command.args(["-q", &(CLIENTS as usize * UNDER_WAY).to_string()]);
    command
        .args(["-l", &args.seconds.to_string(), "-d"])
        .arg(questions);
    let output = command.output().context("cannot run dnsperf")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("dnsperf: {}{text}", String::from_utf8_lossy(&output.stderr));
    }
    read(&text).with_context(|| format!("dnsperf printed no statistics:\n{text}"))
}

fn read(text: &str) -> Option<Report> {
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Report {
        completed: number("Queries completed:")?,
        lost: number("Queries lost:")?,
        latency: number("Average Latency (s):")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "Statistics:\n\n  Queries sent:         100\n  Queries completed:    99 (99.00%)\n  Queries lost:         1 (1.00%)\n\n  \
                    Run time (s):         1.00\n  Average Latency (s):  0.000120 (min 0.000010, max 0.02)\n";
        let expected = Report {
            completed: 99.0,
            lost: 1.0,
            latency: 0.000_12,
        };
        assert_eq!(read(text), Some(expected));
        assert_eq!(read("nothing"), None);
    }
}

//! The tables, for a terminal of 80 columns.

use std::time::Duration;

use review_bench::load::Figures;
use review_bench::table::{self, Row, mebibytes};

use crate::hostile::Hostility;

/// Results of a start among a number of virtual machines.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) machines: usize,
    /// Durations until readiness, sorted.
    pub(crate) ready: Vec<Duration>,
    /// Memory in kibibytes: proportional and anonymous.
    pub(crate) memory: (u64, u64),
    /// Outages, from the last answer before the kill to the first answer after it.
    pub(crate) outage: Duration,
}

/// Starts.
pub(crate) fn starts(starts: &[Start]) -> String {
    let mut text = format!(
        "\n{:<16}{:>24}{:>12}{:>12}{:>14}\n",
        "VMs", "ready s (least, most)", "Pss MiB", "anon MiB", "outage s"
    );
    for start in starts {
        let seconds =
            |time: Option<&Duration>| format!("{:.2}", time.copied().unwrap_or_default().as_secs_f64());
        let middle = start.ready.get(start.ready.len() / 2);
        let ready = format!(
            "{} ({}, {})",
            seconds(middle),
            seconds(start.ready.first()),
            seconds(start.ready.last())
        );
        text.push_str(&format!(
            "{:<16}{ready:>24}{:>12}{:>12}{:>14}\n",
            start.machines,
            mebibytes(start.memory.0),
            mebibytes(start.memory.1),
            seconds(Some(&start.outage)),
        ));
    }
    text.push_str(&format!(
        "{:<16}{:>24}{:>12}{:>12}{:>14}\n",
        "upstream", "5.6 to 8.7", "120", "", "12"
    ));
    text.push_str("(upstream with 10,000 virtual machines)\n");
    text
}

/// Answers.
pub(crate) fn reviews(rows: &[Row]) -> String {
    let mut text = table::reviews(rows);
    let (kind, clients, rate, p99) = ("upstream", 8, "2300 to 2600", "14 to 26");
    text.push_str(&format!("{kind:<16}{clients:>8}{rate:>14}{:>10}{p99:>10}\n", ""));
    text
}

/// Answers to a client while another is hostile.
pub(crate) fn hostile(hostile: &[(Hostility, Figures, u64)]) -> String {
    let mut text = format!(
        "\n{:<24}{:>14}{:>10}{:>10}{:>14}\n",
        "VM create, beside", "reviews/s", "p50 ms", "p99 ms", "Pss MiB"
    );
    for (hostility, figures, memory) in hostile {
        text.push_str(&format!(
            "{:<24}{:>14.0}{:>10.2}{:>10.2}{:>14}\n",
            hostility.name(),
            figures.per_second,
            figures.p50.as_secs_f64() * 1e3,
            figures.p99.as_secs_f64() * 1e3,
            mebibytes(*memory),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_a_terminal() {
        let start = Start {
            machines: 50_000,
            ready: [1, 2, 30].map(Duration::from_secs).to_vec(),
            memory: (15_872, 2048),
            outage: Duration::from_millis(123),
        };
        let figures = Figures {
            per_second: 12_345.6,
            p50: Duration::from_micros(456),
            p99: Duration::from_millis(4),
            cpu: Duration::from_micros(78),
        };
        let row = Row {
            name: "VM update",
            clients: "8".to_owned(),
            figures,
        };
        let hostile = hostile(&[(Hostility::LargeBodies, figures, 123_456)]);
        let text = starts(&[start]) + &reviews(&[row]) + &hostile;
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(
            text.contains(
                "\n50000                 2.00 (1.00, 30.00)        15.5         2.0          0.12\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("\nVM update              8         12346      0.46      4.00            78\n"),
            "{text}"
        );
    }
}

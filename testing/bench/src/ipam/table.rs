//! The tables, for a terminal of 80 columns.

use std::time::Duration;

use review_bench::load::percentile;
use review_bench::table::mebibytes;

use crate::claims::Order;
use crate::objects::Network;

/// Start, and memory in kibibytes, proportional and anonymous: at rest, and after all reviews and new instances.
pub(crate) fn start(machines: u32, ready: &[Duration], rest: (u64, u64), after: (u64, u64)) -> String {
    let seconds = |time: Option<&Duration>| time.copied().unwrap_or_default().as_secs_f64();
    format!(
        "\n{machines} virtual machines with a claim each\n\
         ready after {:.2} s ({:.2} to {:.2})\n\
         memory at rest {} MiB Pss, {} MiB anonymous; in the end {}, {}\n",
        seconds(ready.get(ready.len() / 2)),
        seconds(ready.first()),
        seconds(ready.last()),
        mebibytes(rest.0),
        mebibytes(rest.1),
        mebibytes(after.0),
        mebibytes(after.1),
    )
}

/// Times from a new instance to its claim, sorted.
pub(crate) fn claims(waits: &[(Network, Order, Vec<Duration>)]) -> String {
    let mut text = format!(
        "\n{:<16}{:>16}{:>12}{:>12}{:>12}\n",
        "addresses by", "new instances", "number", "median ms", "p99 ms"
    );
    for (network, order, waits) in waits {
        text.push_str(&format!(
            "{:<16}{:>16}{:>12}{:>12.1}{:>12.1}\n",
            network.name(),
            order.name(),
            waits.len(),
            percentile(waits, 50).as_secs_f64() * 1e3,
            percentile(waits, 99).as_secs_f64() * 1e3,
        ));
    }
    text.push_str("(from the instance's request until a watch reports its claim or address)\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_a_terminal() {
        let ready = [1, 2, 30].map(Duration::from_secs);
        let waits = [(
            Network::Plugin,
            Order::Together,
            vec![Duration::from_millis(1234); 100],
        )];
        let text = start(1_000_000, &ready, (15_872, 2048), (25_872, 12_048)) + &claims(&waits);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(text.contains("\nready after 2.00 s (1.00 to 30.00)\n"), "{text}");
        let row = "\nplugin               all at once         100      1234.0      1234.0\n";
        assert!(text.contains(row), "{text}");
    }
}

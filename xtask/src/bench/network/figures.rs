//! Results of both networks, side by side.

use std::time::Duration;

use super::peers::Peer;

/// All results, in the order of their first measurement.
#[derive(Debug, Default)]
pub(super) struct Figures(Vec<Figure>);

#[derive(Debug)]
struct Figure {
    name: &'static str,
    better: Better,
    weft: Vec<f64>,
    flannel: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

impl Figures {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds times, printed in microseconds.
    pub(super) fn times(&mut self, peer: Peer, name: &'static str, times: &[Duration]) {
        for time in times {
            self.add(peer, name, Better::Lower, time.as_secs_f64() * 1e6);
        }
    }

    /// Adds a time, printed in milliseconds.
    pub(super) fn start(&mut self, peer: Peer, name: &'static str, time: Duration) {
        self.add(peer, name, Better::Lower, time.as_secs_f64() * 1e3);
    }

    /// Adds a rate.
    pub(super) fn rate(&mut self, peer: Peer, name: &'static str, rate: f64) {
        self.add(peer, name, Better::Higher, rate);
    }

    /// Adds an amount of memory.
    pub(super) fn memory(&mut self, peer: Peer, name: &'static str, kibibytes: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        self.add(peer, name, Better::Lower, kibibytes as f64);
    }

    fn add(&mut self, peer: Peer, name: &'static str, better: Better, value: f64) {
        let index = self.0.iter().position(|figure| figure.name == name);
        let index = index.unwrap_or_else(|| {
            self.0.push(Figure {
                name,
                better,
                weft: Vec::new(),
                flannel: Vec::new(),
            });
            self.0.len() - 1
        });
        let Some(figure) = self.0.get_mut(index) else {
            return;
        };
        match peer {
            Peer::Weft => figure.weft.push(value),
            Peer::Flannel => figure.flannel.push(value),
        }
    }

    /// Medians, and the factor by which Weft's is better.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{:<44}{:>10}{:>10}{:>8}\n", "median", "Weft", "flannel", "ratio");
        for figure in &self.0 {
            let (weft, flannel) = (median(&figure.weft), median(&figure.flannel));
            let ratio = match figure.better {
                Better::Lower => flannel / weft,
                Better::Higher => weft / flannel,
            };
            text.push_str(&format!(
                "{:<44}{weft:>10.0}{flannel:>10.0}{ratio:>8.2}\n",
                figure.name
            ));
        }
        text
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_above_one_is_better_for_weft() {
        let mut figures = Figures::new();
        for (peer, micros) in [(Peer::Weft, 20), (Peer::Flannel, 30)] {
            figures.times(
                peer,
                "round trip (us)",
                &[1, micros, 900].map(Duration::from_micros),
            );
        }
        figures.rate(Peer::Weft, "throughput, across nodes (MiB/s)", 900.0);
        figures.rate(Peer::Flannel, "throughput, across nodes (MiB/s)", 300.0);
        let table = figures.table();
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["round", "trip", "(us)", "20", "30", "1.50"]);
        assert!(lines[2].ends_with(&["900", "300", "3.00"]), "{table}");
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    }
}

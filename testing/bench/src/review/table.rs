//! Tables for a terminal of 80 columns.

use crate::load::Figures;

/// Answers to reviews of one kind.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kind.
    pub name: &'static str,
    /// Number of clients, or pace.
    pub clients: String,
    /// The results.
    pub figures: Figures,
}

/// A table of answers.
pub fn reviews(rows: &[Row]) -> String {
    let mut text = format!(
        "\n{:<16}{:>8}{:>14}{:>10}{:>10}{:>14}\n",
        "review", "clients", "reviews/s", "p50 ms", "p99 ms", "CPU us each"
    );
    for Row {
        name,
        clients,
        figures,
    } in rows
    {
        text.push_str(&format!(
            "{name:<16}{clients:>8}{:>14.0}{:>10.2}{:>10.2}{:>14}\n",
            figures.per_second,
            figures.p50.as_secs_f64() * 1e3,
            figures.p99.as_secs_f64() * 1e3,
            figures.cpu.as_micros(),
        ));
    }
    text
}

/// Formats kibibytes as mebibytes.
pub fn mebibytes(kibibytes: u64) -> String {
    format!("{}.{}", kibibytes / 1024, kibibytes % 1024 * 10 / 1024)
}

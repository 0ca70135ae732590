//! Renders a report as text.

use super::report::{Attached, Network, Report};
use program::table::{WIDTH, table};
use std::fmt::Write as _;

/// Limits of displayed events and of each event's length: some quote whole objects.
const EVENTS: usize = 10;
const LONGEST: usize = 400;

/// The report as text.
pub(in crate::explain) fn of(report: &Report) -> String {
    let mut text = head(report);
    if !report.networks.is_empty() {
        text.push('\n');
        text.push_str(&networks(report));
    }
    if !report.problems.is_empty() {
        text.push_str("\nProblems\n");
        for problem in &report.problems {
            let what = format!("{}: {}", problem.about, clipped(&problem.text));
            text.push_str(&wrapped(&what, 2));
            text.push_str(&wrapped(&format!("To do: {}", problem.advice), 4));
        }
    }
    let described: Vec<_> = report.networks.iter().filter(|it| it.config.is_some()).collect();
    if !described.is_empty() {
        text.push_str("\nConfigurations\n");
    }
    for network in described {
        let _ = writeln!(text, "  {} {}", network.interface, network.name);
        if !network.asks.is_empty() {
            let asks = network.asks.iter().map(|(key, value)| format!("{key} {value}"));
            text.push_str(&wrapped(
                &format!("the pod requests {}", asks.collect::<Vec<_>>().join("; ")),
                4,
            ));
        }
        if let Some(resource) = &network.resource {
            text.push_str(&wrapped(&format!("it needs a device of {resource}"), 4));
        }
        if let Some(config) = &network.config {
            text.push_str(&broken(&cni::json::compact(config.get()), 4));
        }
    }
    if !report.events.is_empty() {
        text.push_str("\nEvents\n");
        let skipped = report.events.len().saturating_sub(EVENTS);
        for event in report.events.iter().skip(skipped) {
            let line = format!(
                "{} {} {}: {}",
                event.time,
                event.kind,
                event.reason,
                clipped(&event.message)
            );
            text.push_str(&wrapped(&line, 2));
        }
    }
    if report.problems.is_empty() {
        text.push_str(verdict(report));
    }
    text
}

fn head(report: &Report) -> String {
    let pod = &report.pod;
    let place = match (pod.node.is_empty(), pod.host_network) {
        (true, _) => ", on no node yet".to_owned(),
        (false, true) => format!(" on node {}, whose network it uses", pod.node),
        (false, false) => format!(" on node {}", pod.node),
    };
    format!("Pod {}/{}: {}{place}\n", pod.namespace, pod.name, pod.phase)
}

fn verdict(report: &Report) -> &'static str {
    let is_attached = report.networks.iter().any(|network| network.attached.is_some());
    if report.pod.host_network {
        "\nThe pod uses the host network and requests no networks.\n"
    } else if is_attached {
        "\nThe pod has its requested networks.\n"
    } else if report.networks.len() < 2 {
        "\nThe pod requests no networks, and multus reports none.\n"
    } else {
        "\nThe requested networks are valid, but nothing is attached yet.\n"
    }
}

fn networks(report: &Report) -> String {
    let rows: Vec<_> = report.networks.iter().map(row).collect();
    table(["INTERFACE", "NETWORK", "FROM", "PLUGINS", "ATTACHED"], &rows)
}

fn row(network: &Network) -> [String; 5] {
    let or = |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
    [
        network.interface.clone(),
        or(&network.name, "?"),
        network.from.clone(),
        or(&network.plugins.join(", "), "not seen"),
        network
            .attached
            .as_ref()
            .map_or_else(|| "no".to_owned(), attached_text),
    ]
}

fn attached_text(attached: &Attached) -> String {
    let Attached { ips, mac, .. } = attached;
    match (ips.is_empty(), mac.is_empty()) {
        (false, _) => ips.join(", "),
        (true, false) => mac.clone(),
        (true, true) => "yes".to_owned(),
    }
}

/// A text on one line, truncated to the limit.
pub(crate) fn clipped(text: &str) -> String {
    let text = text.replace('\n', " ");
    if text.len() <= LONGEST {
        return text;
    }
    format!("{}...", &text[..text.floor_char_boundary(LONGEST)])
}

/// A text wrapped and indented; continuation lines are indented by two more.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(indent + 2);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}

/// JSON on indented lines that break after commas, so that copied text is the same JSON.
fn broken(json: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for piece in pieces(json) {
        if !line.is_empty() && indent + line.chars().count() + piece.chars().count() > WIDTH {
            let _ = writeln!(lines, "{:indent$}{line}", "");
            line.clear();
        }
        line.push_str(piece);
    }
    let _ = writeln!(lines, "{:indent$}{line}", "");
    lines
}

/// Splits JSON after each comma outside strings.
fn pieces(json: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut in_text, mut escaped) = (0, false, false);
    for (at, byte) in json.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' if !in_text => {
                pieces.push(&json[start..=at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&json[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_breaks_only_after_commas() {
        let json = r#"{"a":"x, y \" , z","b":[1,2],"c":{"d":null}}"#;
        assert_eq!(
            pieces(json),
            [
                r#"{"a":"x, y \" , z","#,
                r#""b":[1,"#,
                "2],",
                r#""c":{"d":null}}"#
            ]
        );
        let long = format!("[{}]", vec!["123456789"; 20].join(","));
        let lines = broken(&long, 4);
        assert!(lines.lines().all(|line| line.len() <= WIDTH), "{lines}");
        assert_eq!(lines.lines().map(str::trim).collect::<String>(), long);
    }

    #[test]
    fn text_wraps_between_words() {
        let lines = wrapped(&"word ".repeat(30), 2);
        assert!(lines.lines().all(|line| line.len() <= WIDTH), "{lines}");
        assert!(lines.starts_with("  word") && lines.lines().nth(1).unwrap().starts_with("    word"));
        assert_eq!(wrapped("", 2), "  \n");
    }
}

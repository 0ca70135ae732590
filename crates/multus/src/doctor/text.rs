//! Renders a report as text.

use super::report::{Check, Finding, Kind, Report, Row};
use crate::explain::text::{clipped, wrapped};
use program::table::fitted;

const HEAD: [&str; 4] = ["CHECK", "INTERFACE", "NETWORK", "POD"];
/// Maximum widths of all columns but the last. An interface has at most 15 characters.
const LIMITS: [usize; 4] = [11, 15, 22, usize::MAX];
/// Displayed characters of a sandbox's ID.
const ID: usize = 12;

/// The report as text.
pub(super) fn of(report: &Report) -> String {
    let mut text = summary(report);
    if !report.attachments.is_empty() {
        text.push('\n');
        let rows: Vec<_> = report.attachments.iter().map(cells).collect();
        text.push_str(&fitted(HEAD, LIMITS, &rows));
    }
    text.push_str(&section("Not checked", not_checked(&report.attachments)));
    if !report.findings.is_empty() {
        text.push_str("\nProblems\n");
    }
    for finding in &report.findings {
        let problem = clipped(&finding.problem);
        text.push_str(&wrapped(&format!("{}: {problem}", about(finding)), 2));
        text.push_str(&wrapped(&format!("To do: {}", finding.advice), 4));
    }
    if let Some(repair) = &report.repair {
        text.push_str(&section("Removed", repair.removed.clone()));
        text.push_str(&section("Not removed", repair.failed.clone()));
        text.push_str(&section("Nothing was repaired", repair.refused.clone()));
    }
    text
}

/// The first line: the state of the node.
pub(super) fn summary(report: &Report) -> String {
    let count = |wanted: Check| {
        let rows = report.attachments.iter();
        rows.filter(|row| row.check == wanted).count()
    };
    let of_kind = |wanted: Kind| {
        let findings = report.findings.iter();
        findings.filter(|finding| finding.kind == wanted).count()
    };
    let parts = [
        (count(Check::Ok), "ok"),
        (count(Check::Failed), "drifted"),
        (of_kind(Kind::LeftOver), "left over"),
        (of_kind(Kind::Unreadable), "unreadable"),
        (count(Check::NotChecked), "not checked"),
    ];
    let counts = parts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let verdict = match (report.findings.is_empty(), counts.is_empty()) {
        (true, true) => "all is well, nothing is attached".to_owned(),
        (true, false) => format!("all is well: {}", counts.join(", ")),
        (false, _) => counts.join(", "),
    };
    format!("Node {}: {verdict}\n", report.node)
}

fn section(title: &str, lines: impl IntoIterator<Item = String>) -> String {
    let lines: String = lines.into_iter().map(|line| wrapped(&line, 2)).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("\n{title}\n{lines}")
}

/// The reasons why CHECK was not called, with counts.
fn not_checked(rows: &[Row]) -> Vec<String> {
    let mut lines: Vec<(&str, usize)> = Vec::new();
    for row in rows.iter().filter(|row| row.check == Check::NotChecked) {
        match lines.iter_mut().find(|(reason, _)| *reason == row.reason) {
            Some((_, count)) => *count += 1,
            None => lines.push((&row.reason, 1)),
        }
    }
    let line = |(reason, count)| format!("{count}: {reason}");
    lines.into_iter().map(line).collect()
}

fn about(finding: &Finding) -> String {
    let mut parts = Vec::new();
    if !finding.pod.is_empty() {
        parts.push(finding.pod.clone());
    } else if !finding.sandbox.is_empty() {
        parts.push(format!("sandbox {}", short(&finding.sandbox)));
    }
    if !finding.interface.is_empty() {
        parts.push(finding.interface.clone());
    }
    if !finding.network.is_empty() {
        parts.push(format!("network {}", finding.network));
    }
    if !finding.plugin.is_empty() {
        parts.push(format!("plugin {}", finding.plugin));
    }
    if parts.is_empty() {
        return "node".to_owned();
    }
    parts.join(", ")
}

fn cells(row: &Row) -> [String; 4] {
    let check = match row.check {
        Check::Ok => "ok",
        Check::Failed => "drifted",
        Check::NotChecked => "not checked",
        Check::LeftOver => "left over",
    };
    let pod = match row.pod.as_str() {
        "" => format!("sandbox {}", short(&row.sandbox)),
        pod => pod.to_owned(),
    };
    [check.to_owned(), row.interface.clone(), row.network.clone(), pod]
}

fn short(id: &str) -> String {
    id.chars().take(ID).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::Repair;
    use super::*;
    use program::table::WIDTH;

    fn row(check: Check, interface: &str, network: &str, pod: &str) -> Row {
        Row {
            pod: pod.into(),
            interface: interface.into(),
            network: network.into(),
            sandbox: "0123456789abcdef".into(),
            check,
            ..Row::default()
        }
    }

    fn drifted() -> Report {
        let mut stale = row(Check::NotChecked, "eth0", "k8s-pod-network", "kube-system/dns");
        stale.reason = "cniVersion 0.3.1 has no CHECK".into();
        Report {
            node: "node01".into(),
            attachments: vec![
                row(Check::Ok, "net1", "lan", "default/web"),
                row(Check::Failed, "net2", "red", "default/web"),
                row(Check::LeftOver, "net1", "lan", ""),
                stale,
            ],
            findings: vec![Finding {
                pod: "default/web".into(),
                interface: "net2".into(),
                network: "red".into(),
                plugin: "bridge".into(),
                problem: "port veth1a2b3c4d is not on the bridge br-red".into(),
                advice: "put it back".into(),
                ..Finding::default()
            }],
            ..Report::default()
        }
    }

    #[test]
    fn report_with_a_drifted_attachment_names_it_and_the_advice() {
        assert_eq!(
            of(&drifted()),
            "\
Node node01: 1 ok, 1 drifted, 1 not checked

CHECK        INTERFACE  NETWORK          POD
ok           net1       lan              default/web
drifted      net2       red              default/web
left over    net1       lan              sandbox 0123456789ab
not checked  eth0       k8s-pod-network  kube-system/dns

Not checked
  1: cniVersion 0.3.1 has no CHECK

Problems
  default/web, net2, network red, plugin bridge: port veth1a2b3c4d is not on the
    bridge br-red
    To do: put it back
"
        );
    }

    #[test]
    fn report_of_healthy_node_has_no_problems() {
        let report = Report {
            node: "node01".into(),
            ..Report::default()
        };
        assert_eq!(of(&report), "Node node01: all is well, nothing is attached\n");
    }

    #[test]
    fn report_of_refused_repair_has_reason() {
        let report = Report {
            node: "n".into(),
            repair: Some(Repair {
                refused: Some("no runtime answers".into()),
                ..Repair::default()
            }),
            ..Report::default()
        };
        assert!(of(&report).ends_with("\nNothing was repaired\n  no runtime answers\n"));
    }

    #[test]
    fn table_with_the_longest_names_fits_the_terminal() {
        let mut report = drifted();
        let long = row(
            Check::NotChecked,
            &"i".repeat(15),
            &"n".repeat(253),
            &"p".repeat(317),
        );
        report.attachments.push(long);
        let text = of(&report);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("nnn…nnn") && text.contains("ppp…ppp"), "{text}");
    }
}

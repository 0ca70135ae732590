//! The table of a case, for a terminal of 100 columns.

use std::time::Duration;

use crate::statistics::Summary;

/// Maximum width, columns.
const WIDTH: usize = 100;
/// Placeholder of a missing value.
const NONE: &str = "-";

/// Costs of both verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) add: Summary,
    pub(crate) del: Summary,
}

/// The results of a case. A failed contestant has the reason instead of costs.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ours: Result<Costs, String>,
    pub(crate) theirs: Result<Costs, String>,
    /// `None` without a comparison to the kernel.
    pub(crate) floor: Option<Result<Costs, String>>,
}

/// Returns the case's name, a line per verb, and a line per failed contestant.
pub(crate) fn table(case: &str, outcome: &Outcome) -> String {
    let three = ["ours", "theirs", "floor"];
    let heads = [&three[..], &three, &three, &three[..2]]
        .concat()
        .iter()
        .map(|head| format!("{head:>7}"))
        .collect::<String>();
    let mut text = format!(
        "\n{case}\n{:5}{:>21}{:>21}{:>21}{:>14}{:>8}{:>9}\n{:5}{heads}{:>8}{:>9}\n",
        "", "min ms", "median ms", "p95 ms", "CPU ms", "theirs", "ours", "", "/ ours", "- floor"
    );
    let (ours, theirs) = (outcome.ours.as_ref(), outcome.theirs.as_ref());
    let floor = outcome.floor.as_ref().map(Result::as_ref);
    let costs = [ours.ok(), theirs.ok(), floor.and_then(Result::ok)];
    text.push_str(&line("ADD", costs.map(|costs| Some(costs?.add))));
    text.push_str(&line("DEL", costs.map(|costs| Some(costs?.del))));
    let reasons = [
        ("ours", ours.err()),
        ("theirs", theirs.err()),
        ("floor", floor.and_then(Result::err)),
    ];
    for (name, reason) in reasons {
        if let Some(reason) = reason {
            text.push_str(&wrapped(&format!("{name}: error: {reason}")));
        }
    }
    text
}

fn line(verb: &str, [ours, theirs, floor]: [Option<Summary>; 3]) -> String {
    let mut text = format!("{verb:5}");
    for time in [
        |summary: Summary| summary.min,
        |summary: Summary| summary.median,
        |summary: Summary| summary.p95,
    ] {
        for summary in [ours, theirs, floor] {
            text.push_str(&format!("{:>7}", milliseconds(summary.map(time))));
        }
    }
    for summary in [ours, theirs] {
        text.push_str(&format!(
            "{:>7}",
            milliseconds(summary.map(|summary| summary.cpu))
        ));
    }
    let ratio = ours.zip(theirs).map_or_else(
        || NONE.to_owned(),
        |(ours, theirs)| {
            let ratio = theirs.median.as_secs_f64() / ours.median.as_secs_f64().max(f64::MIN_POSITIVE);
            figure(ratio) + "x"
        },
    );
    // DEL always waits for the kernel: the difference to it matters.
    if let Some((ours, floor)) = ours.zip(floor).filter(|_| verb == "DEL") {
        let above = signed_milliseconds(ours.median, floor.median);
        return text + &format!("{ratio:>8}{above:>9}\n");
    }
    text + &format!("{ratio:>8}\n")
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or_else(|| NONE.to_owned(), |time| figure(time.as_secs_f64() * 1e3))
}

/// Two decimals, as long as they fit.
fn figure(value: f64) -> String {
    let digits = match value {
        ..100.0 => 2,
        ..1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn signed_milliseconds(one: Duration, other: Duration) -> String {
    format!("{:+.2}", (one.as_secs_f64() - other.as_secs_f64()) * 1e3)
}

/// Returns the text in lines that fit, with folded white space.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            lines.push_str("\n    ");
            width = 4;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(milliseconds: u64) -> Costs {
        let time = Duration::from_millis(milliseconds);
        let summary = Summary {
            min: time,
            median: time,
            p95: time,
            cpu: time,
        };
        Costs {
            add: summary,
            del: summary,
        }
    }

    fn columns(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn line_has_all_values_the_ratio_and_for_del_the_distance_to_the_floor() {
        let outcome = Outcome {
            ours: Ok(costs(2)),
            theirs: Ok(costs(12345)),
            floor: Some(Ok(costs(1))),
        };
        let table = table("bridge", &outcome);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "bridge");
        let add = columns(lines[4]);
        assert_eq!(add[..4], ["ADD", "2.00", "12345", "1.00"]);
        assert_eq!(add[10..], ["2.00", "12345", "6172x"]);
        assert_eq!(columns(lines[5]).last(), Some(&"+1.00"));
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{table}");
        assert_eq!(lines[2].trim_end().len(), lines[3].len(), "{table}");
    }

    #[test]
    fn failed_contestant_has_dashes_and_its_reason() {
        let outcome = Outcome {
            ours: Err("macspoofchk\n is not  there ".repeat(20)),
            theirs: Ok(costs(150)),
            floor: None,
        };
        let table = table("bridge+macspoofchk@1000", &outcome);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(columns(lines[4])[..4], ["ADD", "-", "150.0", "-"]);
        assert!(
            lines[6].starts_with("ours: error: macspoofchk is not there mac"),
            "{table}"
        );
        assert_eq!(table.matches("macspoofchk").count(), 1 + 20, "{table}");
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{table}");
    }
}

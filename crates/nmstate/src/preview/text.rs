//! The output as text: a table of the nodes that fits the terminal, followed by the changes.

use program::answer::{FINDINGS, TROUBLE, WELL};

use super::changes::Change;
use super::evaluate::Outcome;

/// Default width.
const DEFAULT_WIDTH: usize = 80;
/// Minimum width.
const MIN_WIDTH: usize = 40;
/// Maximum number of changes in a row of the table.
const MAX_CHANGES: usize = 4;

/// The line width for this value of `COLUMNS`.
pub(super) fn width(columns: Option<&str>) -> usize {
    let columns = columns.and_then(|columns| columns.parse().ok());
    columns.unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
}

/// The table, and the changes of all nodes; nodes with equal changes are grouped.
pub(super) fn table(outcomes: &[(String, Outcome)], width: usize) -> String {
    let widest = outcomes.iter().map(|(node, _)| node.chars().count()).max();
    let first = widest.unwrap_or_default().max("NODE".len()) + 2;
    let second = "SELECTED".len() + 2;
    let mut text = format!("{:first$}{:second$}WOULD CHANGE\n", "NODE", "SELECTED");
    for (node, outcome) in outcomes {
        let (selected, rest) = row(outcome);
        let head = format!("{node:first$}{selected:second$}");
        push(&mut text, &head, &" ".repeat(first + second), &rest, width);
    }
    let mut grouped: Vec<(Vec<&str>, &[Change])> = Vec::new();
    for (node, outcome) in outcomes {
        let Outcome::Changes(changes, _) = outcome else {
            continue;
        };
        if changes.is_empty() {
            continue;
        }
        match grouped.iter_mut().find(|(_, other)| *other == changes.as_slice()) {
            Some((nodes, _)) => nodes.push(node),
            None => grouped.push((vec![node], changes)),
        }
    }
    for (nodes, changes) in grouped {
        text.push('\n');
        push(&mut text, "", "  ", &format!("{}:", nodes.join(", ")), width);
        for change in changes {
            push(
                &mut text,
                &format!("  {} ", change.sign),
                "      ",
                &change.what,
                width,
            );
            for detail in &change.details {
                push(&mut text, "      ", "        ", detail, width);
            }
        }
    }
    text
}

/// The notes about all nodes, each once.
pub(super) fn notes(outcomes: &[(String, Outcome)]) -> Vec<&'static str> {
    let mut notes_once = Vec::new();
    for (_, outcome) in outcomes {
        if let Outcome::Changes(_, notes) = outcome {
            notes_once.extend(
                notes
                    .iter()
                    .filter(|note| !notes_once.contains(*note))
                    .collect::<Vec<_>>(),
            );
        }
    }
    notes_once
}

/// The exit code.
pub(super) fn code(outcomes: &[(String, Outcome)]) -> u8 {
    let codes = outcomes.iter().map(|(_, outcome)| match outcome {
        Outcome::Unknown(_) | Outcome::Fails(_) => TROUBLE,
        Outcome::Changes(changes, _) if !changes.is_empty() => FINDINGS,
        Outcome::Changes(..) | Outcome::NotSelected(_) => WELL,
    });
    codes.max().unwrap_or_default()
}

fn row(outcome: &Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::NotSelected(lacking) => ("no", format!("its labels lack {}", lacking.join(", "))),
        Outcome::Unknown(text) => ("yes", format!("unknown, {text}")),
        Outcome::Fails(text) => ("yes", format!("would fail: {}", one_line(text))),
        Outcome::Changes(changes, _) if changes.is_empty() => ("yes", "nothing".to_owned()),
        Outcome::Changes(changes, _) => {
            let named: Vec<String> = changes
                .iter()
                .take(MAX_CHANGES)
                .map(|change| format!("{} {}", change.sign, change.what))
                .collect();
            let more = changes.len() - named.len();
            let more = if more > 0 {
                format!(", and {more} more")
            } else {
                String::new()
            };
            ("yes", format!("{}{more}", named.join(", ")))
        }
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// Adds a paragraph with `head` before its first line and `indent` before the others. Lines exceed `width` only because
/// of a long word.
fn push(text: &mut String, head: &str, indent: &str, paragraph: &str, width: usize) {
    let mut line = head.to_owned();
    let mut is_empty = true;
    for word in paragraph.split(' ') {
        let needed = word.chars().count() + usize::from(!is_empty);
        if !is_empty && line.chars().count() + needed > width {
            text.push_str(line.trim_end());
            text.push('\n');
            indent.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

//! The answer as it is printed: a table of the nodes that fits the terminal, and the changes below it.

use program::terminal::TROUBLE;

use super::CHANGES;
use super::changes::Change;
use super::paper::Outcome;

/// Width where the terminal does not say its own.
const USUAL: usize = 80;
/// Narrower terminals get lines of this width.
const NARROWEST: usize = 40;
/// Interfaces that a row of the table names.
const NAMED: usize = 4;

/// The width of lines on a terminal that says this of itself.
pub(super) fn width(columns: Option<&str>) -> usize {
    let columns = columns.and_then(|columns| columns.parse().ok());
    columns.unwrap_or(USUAL).max(NARROWEST)
}

/// The table, and the changes of all nodes; nodes with the same ones stand together.
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
    let mut told: Vec<(Vec<&str>, &[Change])> = Vec::new();
    for (node, outcome) in outcomes {
        let Outcome::Changes(changes, _) = outcome else {
            continue;
        };
        if changes.is_empty() {
            continue;
        }
        match told.iter_mut().find(|(_, other)| *other == changes.as_slice()) {
            Some((nodes, _)) => nodes.push(node),
            None => told.push((vec![node], changes)),
        }
    }
    for (nodes, changes) in told {
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

/// What has to be said beside the table, each once.
pub(super) fn notes(outcomes: &[(String, Outcome)]) -> Vec<&'static str> {
    let mut said = Vec::new();
    for (_, outcome) in outcomes {
        if let Outcome::Changes(_, notes) = outcome {
            said.extend(
                notes
                    .iter()
                    .filter(|note| !said.contains(*note))
                    .collect::<Vec<_>>(),
            );
        }
    }
    said
}

/// What the exit code says of these outcomes.
pub(super) fn code(outcomes: &[(String, Outcome)]) -> u8 {
    let codes = outcomes.iter().map(|(_, outcome)| match outcome {
        Outcome::Unknown(_) | Outcome::Fails(_) => TROUBLE,
        Outcome::Changes(changes, _) if !changes.is_empty() => CHANGES,
        Outcome::Changes(..) | Outcome::NotSelected(_) => 0,
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
                .take(NAMED)
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

/// Adds a paragraph: `head` before its first line, `indent` before the others, none wider than the terminal unless a
/// word is.
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

//! The report as a table of 80 columns.

use program::table::{WIDTH, fitted};

use super::{
    components::{State, Workload},
    report::{Problem, Report},
};

/// Indentation of continued lines.
const HANG: &str = "    ";
/// Maximum number of characters of one line of a message: some messages quote whole objects.
const LONGEST: usize = 400;
/// Maximum number of lines of a message. All errors of a specification fit.
const MOST_LINES: usize = 20;

pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    text.push_str(&operator(report));
    if report.configured {
        text.push('\n');
        text.push_str(&conditions(report));
        text.push('\n');
        text.push_str(&components(report));
    } else {
        text.push_str("\nThere is no NetworkAddonsConfig: nothing is deployed.\n");
    }
    let line = |it: &Problem| format!("{}: {}", it.about, it.message);
    text.push_str(&section("In progress", report.in_progress.iter().map(line)));
    text.push_str(&section("Problems", report.problems.iter().map(line)));
    let warnings = report
        .warnings
        .iter()
        .map(|it| format!("{} ago {} {}: {}", age(it.age), it.object, it.reason, it.message));
    text.push_str(&section("Warnings of the last hour", warnings));
    text.push_str(&section("Not seen", report.notes.iter().cloned()));
    if let Some(next) = &report.next {
        text.push_str(&format!("\nNext: {}\n", next.text));
        // A here-document must start at the margin.
        let indent = if next.commands.len() == 1 { "  " } else { "" };
        for command in &next.commands {
            text.push_str(&format!("{indent}{command}\n"));
        }
    }
    text
}

fn operator(report: &Report) -> String {
    let operator = &report.operator;
    let place = if operator.namespace.is_empty() {
        "not found".to_owned()
    } else {
        format!(
            "{}/{} ready in namespace {}",
            operator.ready, operator.desired, operator.namespace
        )
    };
    let mut text = format!("Operator: {place}\n");
    if report.configured {
        let known = |version: &str| {
            if version.is_empty() {
                "none".to_owned()
            } else {
                version.to_owned()
            }
        };
        text.push_str(&wrapped(&format!(
            "Versions: operator {}, target {}, observed {}",
            known(&operator.version),
            known(&operator.target_version),
            known(&operator.observed_version)
        )));
    }
    text
}

fn conditions(report: &Report) -> String {
    if report.conditions.is_empty() {
        return "CONDITION    none yet\n".to_owned();
    }
    let rows = report.conditions.iter().map(|it| {
        [
            it.kind.clone(),
            it.status.clone(),
            it.age.map(age).unwrap_or_default(),
            it.reason.clone(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    fitted(["CONDITION", "STATUS", "FOR", "REASON"], [usize::MAX; 4], &rows)
}

fn components(report: &Report) -> String {
    if report.components.is_empty() {
        return "COMPONENT    none requested\n".to_owned();
    }
    let mut rows = Vec::new();
    for component in &report.components {
        rows.push([
            component.name.to_owned(),
            String::new(),
            state(component.state).to_owned(),
        ]);
        for workload in &component.workloads {
            let mut images = workload.images.iter();
            let first = images.next().map(|image| tag(image)).unwrap_or_default();
            rows.push([
                workload_name(workload),
                format!("{}/{}", workload.ready, workload.desired),
                first,
            ]);
            rows.extend(images.map(|image| [String::new(), String::new(), tag(image)]));
        }
    }
    fitted(["COMPONENT", "READY", "STATE / IMAGE"], [usize::MAX; 3], &rows)
}

fn state(state: State) -> &'static str {
    match state {
        State::Available => "available",
        State::Progressing => "progressing",
        State::Degraded => "degraded",
        State::NotDeployed => "not deployed",
    }
}

/// A workload in the form of kubectl's arguments.
fn workload_name(workload: &Workload) -> String {
    let kind = if workload.kind == "DaemonSet" {
        "ds"
    } else {
        "deploy"
    };
    format!("  {kind}/{}", workload.name)
}

/// The last part of an image's name with its tag, or with the head of its digest.
fn tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once("@sha256:") {
        Some((name, digest)) => format!("{name}@{}", digest.chars().take(12).collect::<String>()),
        None => last.to_owned(),
    }
}

fn section(title: &str, entries: impl Iterator<Item = String>) -> String {
    let text: String = entries.map(|entry| wrapped(&format!("  {entry}"))).collect();
    if text.is_empty() {
        text
    } else {
        format!("\n{title}:\n{text}")
    }
}

/// The head of a line that is too long.
fn cut(line: &str) -> String {
    let mut head: String = line.chars().take(LONGEST).collect();
    if head.len() < line.len() {
        head.push('…');
    }
    head
}

/// A paragraph, wrapped to the width; its line breaks are kept.
fn wrapped(paragraph: &str) -> String {
    let indent: String = paragraph.chars().take_while(|c| *c == ' ').collect();
    let mut parts: Vec<String> = paragraph.lines().take(MOST_LINES).map(cut).collect();
    if paragraph.lines().nth(MOST_LINES).is_some() {
        parts.push("…".to_owned());
    }
    let mut text = String::new();
    let mut line = indent;
    let mut is_fresh = true;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            text.push_str(line.trim_end());
            text.push('\n');
            HANG.clone_into(&mut line);
            is_fresh = true;
        }
        for word in part.split_whitespace() {
            let room = |line: &str| WIDTH.saturating_sub(line.chars().count());
            if !is_fresh && word.chars().count() + 1 > room(&line) {
                text.push_str(line.trim_end());
                text.push('\n');
                HANG.clone_into(&mut line);
                is_fresh = true;
            }
            if !is_fresh {
                line.push(' ');
            }
            for c in word.chars() {
                if room(&line) == 0 {
                    text.push_str(&line);
                    text.push('\n');
                    HANG.clone_into(&mut line);
                }
                line.push(c);
            }
            is_fresh = false;
        }
    }
    text.push_str(line.trim_end());
    text.push('\n');
    text
}

/// A time span in the form of kubectl.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

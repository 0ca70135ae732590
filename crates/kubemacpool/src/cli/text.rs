//! Output for a terminal of 80 columns. Pure.

use std::fmt::Write as _;

use cni::mac::Mac;
use program::table::table;

use super::inventory::{Found, Installed, Report, Standing};

/// Maximum number of lines of a list.
const MAX_ROWS: usize = 10;

/// The holders of an address.
pub(super) fn who(mac: Mac, found: &[Found], installed: Option<&Installed>) -> String {
    let place = match installed {
        Some(installed) => {
            let side = if installed.includes(mac) { "in" } else { "not in" };
            let (start, end) = (installed.range.start(), installed.range.end());
            format!("; it is {side} the pool's range {start} - {end}")
        }
        None => String::new(),
    };
    let holders = found
        .iter()
        .filter(|found| found.standing != Standing::Runs)
        .count();
    let mut text = match holders {
        0 if found.is_empty() => format!("no object has {mac}{place}\n"),
        0 => format!("no object holds {mac}, but it is in use{place}\n"),
        1 => format!("{mac} is held by one object{place}\n"),
        _ => format!("{mac} is held by {holders} objects{place}\n"),
    };
    if found.is_empty() {
        return text;
    }
    let rows = found.iter().map(|found| {
        let standing = match found.standing {
            Standing::Managed => "managed by the pool",
            Standing::Reserved => "not managed; never handed out",
            Standing::Runs => "running instance",
        };
        [found.object.clone(), found.interface.clone(), standing.to_owned()]
    });
    text.push('\n');
    text.push_str(&table(
        ["OBJECT", "INTERFACE", "STANDING"],
        &rows.collect::<Vec<_>>(),
    ));
    text
}

/// Usage of the range.
pub(super) fn usage(report: &Report) -> String {
    let Installed { namespace, range } = &report.installed;
    let usage = &report.usage;
    let mut text = format!(
        "range     {} - {}, of the pool in {namespace}\n",
        range.start(),
        range.end()
    );
    let width = grouped(usage.size).len();
    let mut line = |name: &str, count: u64, remark: &str| {
        let share = percent(count, usage.size);
        let line = format!("{name:<9} {:>width$}  {share:>7}  {remark}", grouped(count));
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line("size", usage.size, "");
    line("used", usage.used, "by objects of managed namespaces");
    line("reserved", usage.reserved, "by objects of other namespaces");
    line("free", usage.free(), "");
    if report.outside > 0 {
        let _ = writeln!(
            text,
            "\n{} held by objects outside the range",
            addresses(report.outside)
        );
    }
    if report.is_nearly_full() {
        text.push_str(
            "\nThe range is nearly full: enlarge it in the NetworkAddonsConfig (spec.kubeMacPool.rangeStart\nand rangeEnd), \
             or in the ConfigMap where no operator deploys the pool. Nothing restarts.\n",
        );
    }
    if !report.namespaces.is_empty() {
        let rows = report.namespaces.iter().take(MAX_ROWS);
        let rows = rows.map(|(name, machines, pods)| [name.clone(), machines.to_string(), pods.to_string()]);
        text.push('\n');
        text.push_str(&table(
            ["NAMESPACE", "OF MACHINES", "OF PODS"],
            &rows.collect::<Vec<_>>(),
        ));
        more(&mut text, report.namespaces.len());
    }
    if !report.shared.is_empty() {
        let rows = report.shared.iter().take(MAX_ROWS);
        let rows = rows.map(|(mac, owners)| [mac.to_string(), owners.to_string(), String::new()]);
        text.push('\n');
        text.push_str(&table(["HELD TWICE", "OBJECTS", ""], &rows.collect::<Vec<_>>()));
        more(&mut text, report.shared.len());
        text.push_str("`weft macpool who MAC` names them.\n");
    }
    text
}

fn more(text: &mut String, all: usize) {
    if all > MAX_ROWS {
        let _ = writeln!(text, "and {} more", all - MAX_ROWS);
    }
}

fn addresses(count: usize) -> String {
    match count {
        1 => "1 more address is".to_owned(),
        _ => format!("{} more addresses are", grouped(count as u64)),
    }
}

/// A number with separated thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share with one decimal; a non-zero share is not shown as zero.
fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1000)
        .checked_div(u128::from(whole))
        .unwrap_or_default();
    if tenths == 0 && part > 0 {
        return "< 0.1 %".to_owned();
    }
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;

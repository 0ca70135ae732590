//! Decides from a node's facts the report and the leftovers that a repair removes. Pure.
//!
//! A sandbox is gone when its network namespace does not exist and the runtime does not list it: neither is
//! sufficient alone. When no path is recorded, the sandbox is gone when the runtime lists others but not this one,
//! and the state is older than any ADD can take. So a running ADD is never a leftover.

use super::facts::{CacheOwner, CachedAttachment, Checked, Facts, Netns};
use super::report::{Check, Finding, Kind, Report, Row};
use crate::daemon::runtime::SETTLED;
use crate::sandbox::PodRef;
use plugins::traces::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

const REPAIR: &str = "run `weft doctor --repair` on the node";
const PUT_BACK: &str = "put back what the error names, or delete the pod: its controller creates a new one, which is attached anew";
const READ_IT: &str =
    "inspect the file and remove it if its pod is gone; the plugins' leftovers are found without it";
const STOPPED: &str = "its network namespace is gone, but the runtime has not removed the sandbox yet";
const NO_NETNS: &str = "the cache does not name its network namespace";

/// Leftover state of a sandbox or of one of its attachments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leftover {
    /// All records of the multus daemon about a sandbox.
    Sandbox { id: String },
    /// An attachment in the runtime's own cache.
    Cached {
        network: String,
        sandbox: String,
        interface: String,
    },
    /// State of a plugin about an attachment that is in no cache.
    Trace {
        plugin: String,
        network: String,
        sandbox: String,
        interface: String,
    },
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxState {
    Alive,
    /// Its namespace is gone, but the runtime lists it.
    Stopped,
    Gone,
    /// The path of its namespace is unknown.
    Unsure,
}

/// The report on a node.
pub(super) fn report(facts: &Facts) -> Report {
    let sandbox_states = sandbox_states(facts);
    let mut findings = Vec::new();
    let mut attachments = Vec::new();
    for attachment in &facts.attachments {
        let state = sandbox_states
            .get(&*attachment.sandbox)
            .copied()
            .unwrap_or(SandboxState::Unsure);
        attachments.push(row(attachment, state));
        findings.extend(of_attachment(attachment, state));
    }
    for sandbox in gone_prepared(facts) {
        findings.push(Finding {
            sandbox: sandbox.to_owned(),
            problem: "the multus daemon has records of a sandbox that is gone: its ADD was interrupted"
                .to_owned(),
            ..left_over()
        });
    }
    let (gone, foreign) = orphans(facts);
    findings.extend(gone.into_iter().map(of_trace));
    findings.extend(facts.broken.iter().map(|error| Finding {
        kind: Kind::Unreadable,
        problem: error.clone(),
        advice: READ_IT.to_owned(),
        ..Finding::default()
    }));
    let mut notes = facts.notes.clone();
    notes.extend(foreign);
    if let Err(cause) = &facts.runtime {
        notes.push(format!(
            "the sandboxes of the container runtime are unknown ({cause}): only missing network namespaces show that a \
             sandbox is gone"
        ));
    }
    attachments.sort();
    findings.sort();
    Report {
        node: facts.node.clone(),
        attachments,
        findings,
        repair: None,
        notes,
    }
}

/// The leftovers that a repair removes.
///
/// # Errors
/// The reason why nothing may be removed: the runtime's sandboxes are unknown.
pub(super) fn leftovers(facts: &Facts) -> Result<BTreeSet<Leftover>, String> {
    if let Err(cause) = &facts.runtime {
        return Err(format!(
            "the sandboxes of the container runtime are unknown: {cause}"
        ));
    }
    let sandbox_states = sandbox_states(facts);
    let is_gone = |attachment: &&CachedAttachment| {
        sandbox_states.get(&*attachment.sandbox) == Some(&SandboxState::Gone)
    };
    let cached = facts.attachments.iter().filter(is_gone).map(|attachment| {
        let sandbox = attachment.sandbox.clone();
        match attachment.owner {
            CacheOwner::Multus => Leftover::Sandbox { id: sandbox },
            CacheOwner::Runtime => Leftover::Cached {
                network: attachment.network.clone(),
                sandbox,
                interface: attachment.interface.clone(),
            },
        }
    });
    let prepared = gone_prepared(facts).map(|id| Leftover::Sandbox { id: id.to_owned() });
    let traces = orphans(facts).0.into_iter().map(|trace| Leftover::Trace {
        plugin: trace.plugin.clone(),
        network: trace.network.clone(),
        sandbox: trace.container_id.clone(),
        interface: trace.ifname.clone(),
    });
    Ok(cached.chain(prepared).chain(traces).collect())
}

/// The state of every sandbox in a cache.
fn sandbox_states(facts: &Facts) -> BTreeMap<&str, SandboxState> {
    let mut places: BTreeMap<&str, Vec<Netns>> = BTreeMap::new();
    for attachment in &facts.attachments {
        places
            .entry(&attachment.sandbox)
            .or_default()
            .push(attachment.netns);
    }
    let known = |id: &str| facts.runtime.as_ref().is_ok_and(|known| known.contains(id));
    let state = |id: &str, places: &[Netns]| {
        if places.contains(&Netns::There) {
            SandboxState::Alive
        } else if !places.contains(&Netns::Gone) {
            SandboxState::Unsure
        } else if known(id) {
            SandboxState::Stopped
        } else {
            SandboxState::Gone
        }
    };
    places
        .into_iter()
        .map(|(id, places)| (id, state(id, &places)))
        .collect()
}

/// Whether the runtime's list is sufficient: it has sandboxes but not this one, and the state is older than any ADD.
fn is_gone_by_runtime(facts: &Facts, id: &str, written: SystemTime) -> bool {
    let is_settled = facts.now.duration_since(written).is_ok_and(|age| age > SETTLED);
    let is_unknown = |known: &BTreeSet<String>| !known.is_empty() && !known.contains(id);
    is_settled && facts.runtime.as_ref().is_ok_and(is_unknown)
}

fn gone_prepared(facts: &Facts) -> impl Iterator<Item = &str> {
    let prepared = facts.prepared.iter();
    prepared
        .filter(|prepared| is_gone_by_runtime(facts, &prepared.sandbox, prepared.written))
        .map(|prepared| &*prepared.sandbox)
}

/// Traces of sandboxes that are in no cache: the leftovers, and notes on networks that this runtime may not use.
/// Programs outside Kubernetes use plugins too.
fn orphans(facts: &Facts) -> (Vec<&Trace>, Vec<String>) {
    let cached = facts.attachments.iter().map(|it| &*it.sandbox);
    let named: BTreeSet<&str> = cached
        .chain(facts.prepared.iter().map(|it| &*it.sandbox))
        .collect();
    let networks: BTreeSet<&str> = facts.attachments.iter().map(|it| &*it.network).collect();
    let unnamed = facts.traces.iter().filter(|trace| {
        !named.contains(&*trace.container_id) && is_gone_by_runtime(facts, &trace.container_id, trace.written)
    });
    let (gone, foreign): (Vec<_>, Vec<_>) = unnamed.partition(|trace| networks.contains(&*trace.network));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for trace in foreign {
        *counts.entry(&trace.network).or_default() += 1;
    }
    let note = |(network, count)| {
        format!(
            "network {network}: {count} records or leases of sandboxes that the runtime does not know; no attachment on this \
             node is of that network, so they may be another program's and are left alone"
        )
    };
    (gone, counts.into_iter().map(note).collect())
}

fn row(attachment: &CachedAttachment, state: SandboxState) -> Row {
    let (check, reason) = match (state, &attachment.checked) {
        (SandboxState::Gone, _) => (Check::LeftOver, ""),
        (SandboxState::Stopped, _) => (Check::NotChecked, STOPPED),
        (SandboxState::Unsure, Checked::Skipped(_)) => (Check::NotChecked, NO_NETNS),
        (_, Checked::Good) => (Check::Ok, ""),
        (_, Checked::Failed(_)) => (Check::Failed, ""),
        (SandboxState::Alive, Checked::Skipped(reason)) => (Check::NotChecked, &**reason),
    };
    Row {
        pod: name_of(&attachment.pod),
        interface: attachment.interface.clone(),
        network: attachment.network.clone(),
        sandbox: attachment.sandbox.clone(),
        plugins: attachment.plugins.clone(),
        check,
        reason: reason.to_owned(),
    }
}

fn of_attachment(attachment: &CachedAttachment, state: SandboxState) -> Vec<Finding> {
    let about = Finding {
        pod: name_of(&attachment.pod),
        interface: attachment.interface.clone(),
        network: attachment.network.clone(),
        sandbox: attachment.sandbox.clone(),
        ..Finding::default()
    };
    match (state, &attachment.checked) {
        (SandboxState::Gone, _) => vec![Finding {
            kind: Kind::LeftOver,
            problem: "the sandbox is gone and was never detached from this network".to_owned(),
            advice: REPAIR.to_owned(),
            ..about
        }],
        (SandboxState::Alive, Checked::Failed(failed)) => failed
            .iter()
            .map(|(plugin, error)| Finding {
                plugin: plugin.clone(),
                problem: error.clone(),
                advice: PUT_BACK.to_owned(),
                ..about.clone()
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn of_trace(trace: &Trace) -> Finding {
    let problem = match trace.address {
        Some(address) => format!("address {address} is leased to a sandbox that is gone"),
        None => "a record of a sandbox that is gone: its links, rules or addresses on the host may be there"
            .to_owned(),
    };
    Finding {
        interface: trace.ifname.clone(),
        network: trace.network.clone(),
        sandbox: trace.container_id.clone(),
        plugin: trace.plugin.clone(),
        problem,
        ..left_over()
    }
}

fn left_over() -> Finding {
    Finding {
        kind: Kind::LeftOver,
        advice: REPAIR.to_owned(),
        ..Finding::default()
    }
}

fn name_of(pod: &PodRef) -> String {
    if pod.name.is_empty() {
        return String::new();
    }
    format!("{}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests;

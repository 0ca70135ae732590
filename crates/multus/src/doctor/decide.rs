//! From a node's facts to a report, and to the leftovers that a repair removes.
//!
//! A sandbox is gone when nothing is at the path of its network namespace and the runtime does not know it: one of the two
//! alone is no evidence. Where no path is recorded, the sandbox is gone when the runtime knows others but not this one, and
//! the state is older than any ADD. So an ADD that is under way is never taken for a leftover.

use super::facts::{Attachment, Checked, Facts, Keeper, Netns};
use super::report::{Check, Finding, Kind, Report, Row};
use crate::request::PodRef;
use crate::runtime::SETTLED;
use plugins::traces::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

const REPAIR: &str = "run `weft doctor --repair` on the node";
const PUT_BACK: &str = "put back what the error names, or delete the pod: its controller creates a new one, which is attached anew";
const READ_IT: &str = "look at the file; remove it when the pod that it names is gone, the plugins' leftovers are found without it";
const STOPPED: &str = "its network namespace is gone, the runtime has yet to remove the sandbox";
const NO_NETNS: &str = "the cache does not name its network namespace";

/// State of one sandbox, or of one attachment of it, that is left over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leftover {
    /// Everything that the multus daemon saved of a sandbox.
    Sandbox { id: String },
    /// An attachment in the runtime's own cache.
    Cached {
        network: String,
        sandbox: String,
        interface: String,
    },
    /// State of a plugin that no cache knows.
    Trace {
        plugin: String,
        network: String,
        sandbox: String,
        interface: String,
    },
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Alive,
    /// Its namespace is gone, and the runtime lists it.
    Stopped,
    Gone,
    /// Nothing says where its namespace is.
    Unsure,
}

/// The report on a node.
pub(super) fn report(facts: &Facts) -> Report {
    let fates = fates(facts);
    let mut findings = Vec::new();
    let mut attachments = Vec::new();
    for attachment in &facts.attachments {
        let fate = fates.get(&*attachment.sandbox).copied().unwrap_or(Fate::Unsure);
        attachments.push(row(attachment, fate));
        findings.extend(of_attachment(attachment, fate));
    }
    for sandbox in gone_prepared(facts) {
        findings.push(Finding {
            sandbox: sandbox.to_owned(),
            problem: "the multus daemon saved networks of a sandbox that is gone: its ADD was cut off"
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
            "the container runtime does not tell its sandboxes ({cause}): only missing network namespaces show that a \
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

/// What a repair removes.
///
/// # Errors
/// Why it may remove nothing: the runtime does not tell what is alive.
pub(super) fn leftovers(facts: &Facts) -> Result<BTreeSet<Leftover>, String> {
    if let Err(cause) = &facts.runtime {
        return Err(format!(
            "the container runtime does not tell its sandboxes: {cause}"
        ));
    }
    let fates = fates(facts);
    let is_gone = |attachment: &&Attachment| fates.get(&*attachment.sandbox) == Some(&Fate::Gone);
    let cached = facts.attachments.iter().filter(is_gone).map(|attachment| {
        let sandbox = attachment.sandbox.clone();
        match attachment.keeper {
            Keeper::Multus => Leftover::Sandbox { id: sandbox },
            Keeper::Runtime => Leftover::Cached {
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

/// The state of every sandbox that a cache names.
fn fates(facts: &Facts) -> BTreeMap<&str, Fate> {
    let mut places: BTreeMap<&str, Vec<Netns>> = BTreeMap::new();
    for attachment in &facts.attachments {
        places
            .entry(&attachment.sandbox)
            .or_default()
            .push(attachment.netns);
    }
    let known = |id: &str| facts.runtime.as_ref().is_ok_and(|known| known.contains(id));
    let fate = |id: &str, places: &[Netns]| {
        if places.contains(&Netns::There) {
            Fate::Alive
        } else if !places.contains(&Netns::Gone) {
            Fate::Unsure
        } else if known(id) {
            Fate::Stopped
        } else {
            Fate::Gone
        }
    };
    places
        .into_iter()
        .map(|(id, places)| (id, fate(id, &places)))
        .collect()
}

/// Whether the runtime's word is enough: it knows sandboxes, not this one, and the state is older than any ADD.
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

/// Traces of sandboxes that no cache names: those that are left over, and notes on those of networks that this runtime
/// may have nothing to do with. Programs without Kubernetes use plugins too.
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

fn row(attachment: &Attachment, fate: Fate) -> Row {
    let (check, reason) = match (fate, &attachment.checked) {
        (Fate::Gone, _) => (Check::LeftOver, ""),
        (Fate::Stopped, _) => (Check::NotChecked, STOPPED),
        (Fate::Unsure, Checked::NotAsked(_)) => (Check::NotChecked, NO_NETNS),
        (_, Checked::Good) => (Check::Ok, ""),
        (_, Checked::Failed(_)) => (Check::Failed, ""),
        (Fate::Alive, Checked::NotAsked(reason)) => (Check::NotChecked, &**reason),
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

fn of_attachment(attachment: &Attachment, fate: Fate) -> Vec<Finding> {
    let about = Finding {
        pod: name_of(&attachment.pod),
        interface: attachment.interface.clone(),
        network: attachment.network.clone(),
        sandbox: attachment.sandbox.clone(),
        ..Finding::default()
    };
    match (fate, &attachment.checked) {
        (Fate::Gone, _) => vec![Finding {
            kind: Kind::LeftOver,
            problem: "the sandbox is gone and was never detached from this network".to_owned(),
            advice: REPAIR.to_owned(),
            ..about
        }],
        (Fate::Alive, Checked::Failed(failed)) => failed
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

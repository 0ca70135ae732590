//! Masquerading of pod addresses with the node's address (cni-plugins §2.8).
//!
//! ```text
//! nftables   inet cni_plugins_masquerade   postrouting ──> masq_checks ── a rule for each subnet of a network
//!                                                                             │
//!                                          a set per rule <── source in the set, and destination outside the subnet?
//!                                                             masquerade
//! iptables   nat POSTROUTING ── a rule for each address ──> a chain for each attachment
//! ```
//!
//! Upstream's plugins use the same table, with a rule per address in `masq_checks`. Both formats coexist, and DEL
//! removes the attachment's rules of either.

mod iptables;
mod nftables;

use std::collections::BTreeSet;

use cni::Error;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    messages::{Explain, MASQUERADE_CHECK, MASQUERADE_COLLECT, MASQUERADE_SET_UP, MASQUERADE_TEAR_DOWN},
    record::{Attachment, AttachmentId},
    ruleset::{Ruleset, unless_unsupported},
};

/// The implementation of masquerading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Backend {
    /// nftables, over netlink.
    Nftables,
    /// The programs `iptables` and `ip6tables`.
    Iptables,
}

/// The configured backend (`ipMasqBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Default: nftables, or iptables if the kernel's nftables cannot masquerade.
    Automatic,
    /// Only this backend.
    Only(Backend),
}

impl Choice {
    /// Parses the name of a backend.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        match name {
            "" => Ok(Choice::Automatic),
            "nftables" => Ok(Choice::Only(Backend::Nftables)),
            "iptables" => Ok(Choice::Only(Backend::Iptables)),
            other => Err(Error::internal(format!("unknown ipmasq backend \"{other}\""))),
        }
    }
}

/// Masquerades packets from these addresses to destinations outside their subnets. Takes over an address of another
/// attachment. Calls `begin` before the attempt with each backend.
pub(crate) fn set_up(
    rules: &mut Ruleset,
    choice: Choice,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
    mut begin: impl FnMut(Backend) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut missing = None;
    if choice != Choice::Only(Backend::Iptables) {
        begin(Backend::Nftables)?;
        let added = rules
            .socket()
            .and_then(|socket| nftables::add(socket, attachment, addresses));
        match added {
            Err(error) if error.is_unsupported() && choice == Choice::Automatic => {
                missing = error.missing_feature();
            }
            outcome => return outcome.explain(|| MASQUERADE_SET_UP.to_owned()),
        }
    }
    begin(Backend::Iptables)?;
    iptables::set_up(rules, attachment, addresses).map_err(|error| {
        let error = Error::internal(format!("{MASQUERADE_SET_UP}: {error}"));
        match missing {
            Some(feature) => error.with_details(feature.to_string()),
            None => error,
        }
    })
}

/// Removes masquerading. `known` is the recorded step, which makes a search unnecessary. Rules of upstream's plugins
/// are only found by the search. Keeps addresses that belong to another attachment now.
pub(crate) fn tear_down(
    rules: &mut Ruleset,
    attachment: Attachment<'_>,
    known: Option<(Backend, &[IpNet])>,
) -> Result<(), Error> {
    let removed = match known {
        Some((Backend::Nftables, addresses)) => rules
            .socket()
            .and_then(|socket| nftables::remove(socket, attachment, addresses)),
        Some((Backend::Iptables, _)) => Ok(()),
        None => rules
            .socket()
            .and_then(|socket| nftables::search_and_remove(socket, attachment)),
    };
    let removed = unless_unsupported(removed).explain(|| MASQUERADE_TEAR_DOWN.to_owned());
    if let Some((Backend::Nftables, _)) = known {
        return removed;
    }
    let by_iptables = iptables::tear_down(rules, attachment)
        .map_err(|error| Error::internal(format!("{MASQUERADE_TEAR_DOWN}: {error}")));
    removed.and(by_iptables)
}

/// An error if an address is masqueraded by neither our nor upstream's rules.
pub(crate) fn check(
    rules: &mut Ruleset,
    choice: Choice,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> Result<(), Error> {
    let missing = match choice {
        Choice::Only(Backend::Nftables) => missing_in_nftables(rules, attachment, addresses)?,
        Choice::Only(Backend::Iptables) => iptables::missing(rules, attachment, addresses)
            .map_err(|error| Error::internal(format!("{MASQUERADE_CHECK}: {error}")))?,
        Choice::Automatic => match missing_in_nftables(rules, attachment, addresses) {
            Ok(None) => None,
            // ADD may have fallen back to iptables, if installed.
            by_nftables => match iptables::missing(rules, attachment, addresses) {
                Ok(missing) => missing,
                Err(_) => by_nftables?,
            },
        },
    };
    match missing {
        Some(address) => Err(Error::internal(format!("masquerading of {address} not found"))),
        None => Ok(()),
    }
}

fn missing_in_nftables(
    rules: &mut Ruleset,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> Result<Option<IpNet>, Error> {
    rules
        .socket()
        .and_then(|socket| nftables::missing(socket, attachment, addresses))
        .explain(|| MASQUERADE_CHECK.to_owned())
}

/// Removes the masquerading of a network's attachments that are not in `valid`, and unused sets and rules. Only
/// covers nftables, because legacy iptables rules do not record the network.
pub(crate) fn collect(
    rules: &mut Ruleset,
    network: &str,
    valid: &BTreeSet<AttachmentId>,
) -> Result<(), Error> {
    let collected = rules
        .socket()
        .and_then(|socket| nftables::collect(socket, network, valid));
    match collected {
        Err(error) if error.is_unsupported() => Ok(()),
        outcome => outcome
            .explain(|| MASQUERADE_COLLECT.to_owned())
            .and_then(|()| remove_unused(rules, network)),
    }
}

/// Removes unused sets, rules and chains of a network. Keeps those with foreign references.
pub(crate) fn remove_unused(rules: &mut Ruleset, network: &str) -> Result<(), Error> {
    match rules
        .socket()
        .and_then(|socket| nftables::remove_unused(socket, network))
    {
        Err(error) if error.is_unsupported() || error.is_in_use() => Ok(()),
        outcome => outcome.explain(|| MASQUERADE_COLLECT.to_owned()),
    }
}

#[cfg(test)]
mod tests;

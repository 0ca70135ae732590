//! Addresses of containers whose packets leave with the node's address (cni-plugins §2.8).
//!
//! ```text
//! nftables   inet cni_plugins_masquerade   postrouting ──> masq_checks ── a rule for each subnet of a network
//!                                                                             │
//!                                          a set for each of them <── is the source in it, and the destination outside
//!                                                                     of the subnet? masquerade
//! iptables   nat POSTROUTING ── a rule for each address ──> a chain for each attachment
//! ```
//!
//! The table is the one of established plugins, which have a rule for each address in `masq_checks`: both live side
//! by side, and either's rules go with their attachment.

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

/// A way to masquerade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Backend {
    /// nftables, over netlink.
    Nftables,
    /// The programs `iptables` and `ip6tables`.
    Iptables,
}

/// The backend that a config asks for (`ipMasqBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It names none: nftables, or iptables where the kernel cannot masquerade by nftables.
    Automatic,
    /// It names this one.
    Only(Backend),
}

impl Choice {
    /// The choice of that name.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        match name {
            "" => Ok(Choice::Automatic),
            "nftables" => Ok(Choice::Only(Backend::Nftables)),
            "iptables" => Ok(Choice::Only(Backend::Iptables)),
            other => Err(Error::internal(format!("unknown ipmasq backend \"{other}\""))),
        }
    }
}

/// Masquerades what comes from these addresses and goes beyond their subnets. An address that another attachment had
/// becomes this one's. Calls `begin` with each backend before it is tried.
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

/// Ends it. `known` is what is on record, which spares the search; established plugins' rules are found by searching
/// only. Addresses that another attachment has by now stay.
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

/// An error if what comes from one of the addresses is not masqueraded, in our way or in that of established plugins.
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
            // ADD may have fallen back. Without iptables it has not.
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

/// Ends the masquerading of a network's attachments other than those in `valid`, and removes what nothing uses then. Only
/// what nftables hold carries its network.
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

/// Removes sets, rules and chains of a network that no attachment uses. Those that others refer to stay.
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

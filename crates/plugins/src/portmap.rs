//! `portmap`: forwards host ports to a pod (cni-plugins §13).
//!
//! ```text
//! ip cni_hostport   prerouting, output ──> is the destination the host? hostports_all ──> hostports
//!                                                                                             │
//!                   maps: [host address,] protocol, port ──> pod address, port <──────────────┘
//!                   masquerading ──> from the host itself or from the pod to itself? use the host's address
//! ip6 cni_hostport  the same
//! ```
//!
//! Upstream's plugin uses the same tables, with a rule per port instead of a map element. Both formats coexist, and
//! DEL removes the pod's rules of either. iptables is used for configs that request it, and on kernels whose nftables
//! lacks NAT.

mod conditions;
mod config;
mod forward;
mod iptables;
mod nftables;

use cni::{
    Error,
    note::Level,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::{nft::Destination, route::Socket, sysctl::Key};
use serde::{Deserialize, Serialize};

use self::{
    config::Config,
    forward::{Forward, Protocol},
};
use crate::{
    chained,
    masquerade::{Backend, Choice},
    messages::{Explain, NOT_CHAINED, PORTMAP_CHECK, PORTMAP_COLLECT, PORTMAP_SET_UP, PORTMAP_TEAR_DOWN},
    names::PORTMAP,
    record::{Attachment, AttachmentId, Journal, RecordedSteps, Records, gc},
    ruleset::{Ruleset, unless_unsupported},
};

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    config::keys()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    Config::read(call).map(drop)
}

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portmap;

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Forwarded ports to the pod.
    Forward {
        /// The attempted backend.
        backend: Backend,
        /// The ports and their target addresses.
        forwards: Vec<Forward>,
    },
}

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        PORTMAP
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, NOT_CHAINED)?;
        // Fails before any change if the config's version cannot represent the result.
        result.to_json(call.version)?;
        let forwards = config.forwards(&result, &call.request.ifname);
        if forwards.is_empty() {
            return Ok(result);
        }
        let (records, key) = (Records::of(PORTMAP, call), AttachmentId::of(call));
        let owner = key.to(call.config.name());
        let mut rules = Ruleset::of(call);
        let mut journal = chained::begin(&records, &key, |recorded| undo_steps(&mut rules, owner, recorded))?;
        let done = set_up(&mut rules, &config, owner, &forwards, &mut journal)
            .and_then(|()| admit_localhost(&forwards));
        if let Err(error) = done {
            // ADD reports its own error. Leftovers are recorded.
            if let Ok(Some(recorded)) = records.read::<Step>(&key)
                && undo_steps(&mut rules, owner, &recorded).is_ok()
            {
                let _ = chained::forget(call, &records, &key);
            }
            return Err(error);
        }
        forget_connections(call, &mut rules, &forwards);
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(PORTMAP, call), AttachmentId::of(call));
        let owner = key.to(call.config.name());
        let mut rules = Ruleset::of(call);
        match records.read(&key)? {
            Some(recorded) => undo_steps(&mut rules, owner, &recorded)?,
            None => search_and_remove(&mut rules, owner)?,
        }
        if chained::forget(call, &records, &key)?
            && let Err(error) = remove_unused(&mut rules)
        {
            call.note(Level::Warn, error);
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, NOT_CHAINED)?;
        let forwards = config.forwards(&result, &call.request.ifname);
        if forwards.is_empty() {
            return Ok(());
        }
        let key = AttachmentId::of(call);
        let owner = key.to(call.config.name());
        let mut rules = Ruleset::of(call);
        let missing = match config.choice {
            Choice::Only(Backend::Nftables) => missing_in_nftables(&mut rules, &config, owner, &forwards)?,
            Choice::Only(Backend::Iptables) => iptables::missing(&rules, &config, owner, &forwards)
                .map_err(|error| Error::internal(format!("{PORTMAP_CHECK}: {error}")))?,
            Choice::Automatic => match missing_in_nftables(&mut rules, &config, owner, &forwards) {
                Ok(None) => None,
                // ADD may have fallen back to iptables, if installed.
                by_nftables => match iptables::missing(&rules, &config, owner, &forwards) {
                    Ok(None) => None,
                    _ => by_nftables?,
                },
            },
        };
        match missing {
            Some(chain) => Err(Error::internal(format!(
                "missing hostport rules in \"{chain}\" chain"
            ))),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = gc::valid(call)? else {
            return Ok(());
        };
        let network = call.config.name();
        let records = Records::of(PORTMAP, call);
        let mut rules = Ruleset::of(call);
        let recorded = records.collect(call, &valid, |key, recorded| {
            undo_steps(&mut rules, key.to(network), recorded)
        });
        let collected = rules
            .socket()
            .and_then(|socket| nftables::collect(socket, network, &valid));
        let collected = unless_unsupported(collected).explain(|| PORTMAP_COLLECT.to_owned());
        recorded.map(drop).and(collected).and(remove_unused(&mut rules))
    }
}

/// Forwards the ports with the configured backend, else with nftables, else with iptables. Records each before the
/// attempt.
fn set_up(
    rules: &mut Ruleset,
    config: &Config,
    owner: Attachment<'_>,
    forwards: &[Forward],
    journal: &mut Journal,
) -> Result<(), Error> {
    let mut begin = |backend| {
        journal.note(&[Step::Forward {
            backend,
            forwards: forwards.to_vec(),
        }])
    };
    let mut missing = None;
    if config.choice != Choice::Only(Backend::Iptables) {
        begin(Backend::Nftables)?;
        let added = rules
            .socket()
            .and_then(|socket| nftables::add(socket, config, owner, forwards));
        match added {
            Err(error) if error.is_unsupported() && config.choice == Choice::Automatic => {
                missing = error.missing_feature();
            }
            outcome => return outcome.explain(|| PORTMAP_SET_UP.to_owned()),
        }
    }
    begin(Backend::Iptables)?;
    iptables::set_up(rules, config, owner, forwards).map_err(|error| {
        let error = Error::internal(format!("{PORTMAP_SET_UP}: {error}"));
        match missing {
            Some(feature) => error.with_details(feature.to_string()),
            None => error,
        }
    })
}

fn undo_steps(
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    recorded: &RecordedSteps<Step>,
) -> Result<(), Error> {
    let mut outcome = Ok(());
    for Step::Forward { backend, forwards } in &recorded.steps {
        let undone = match backend {
            Backend::Nftables => unless_unsupported(
                rules
                    .socket()
                    .and_then(|socket| nftables::remove(socket, owner, forwards)),
            )
            .explain(|| PORTMAP_TEAR_DOWN.to_owned()),
            Backend::Iptables => tear_down_iptables(rules, owner),
        };
        outcome = outcome.and(undone);
    }
    if recorded.is_whole {
        return outcome;
    }
    outcome.and(search_and_remove(rules, owner))
}

/// Searches for the attachment's rules, also upstream's, and removes them.
fn search_and_remove(rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
    let removed = rules
        .socket()
        .and_then(|socket| nftables::search_and_remove(socket, owner));
    let removed = unless_unsupported(removed).explain(|| PORTMAP_TEAR_DOWN.to_owned());
    removed.and(tear_down_iptables(rules, owner))
}

fn tear_down_iptables(rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
    iptables::tear_down(rules, owner)
        .map_err(|error| Error::internal(format!("{PORTMAP_TEAR_DOWN}: {error}")))
}

fn remove_unused(rules: &mut Ruleset) -> Result<(), Error> {
    match rules.socket().and_then(nftables::remove_unused) {
        Err(error) if error.is_unsupported() || error.is_in_use() => Ok(()),
        outcome => outcome.explain(|| PORTMAP_COLLECT.to_owned()),
    }
}

fn missing_in_nftables(
    rules: &mut Ruleset,
    config: &Config,
    owner: Attachment<'_>,
    forwards: &[Forward],
) -> Result<Option<String>, Error> {
    rules
        .socket()
        .and_then(|socket| nftables::missing(socket, config, owner, forwards))
        .explain(|| PORTMAP_CHECK.to_owned())
}

/// Permits packets from 127.0.0.1 to the pod, which the kernel otherwise drops as martians.
fn admit_localhost(forwards: &[Forward]) -> Result<(), Error> {
    for forward in forwards.iter().filter(|forward| forward.admits_localhost()) {
        let address = forward.address.addr();
        let mut host = Socket::open().map_err(cni::error::internal)?;
        let failed = || format!("unable to set route_localnet = 1 for the way to {address}");
        let Some(link) = host.link_towards(address).explain(failed)? else {
            continue;
        };
        let link = host.link_by_index(link).explain(failed)?;
        let key = Key::ipv4(&link.name, "route_localnet").explain(failed)?;
        if key.read().explain(failed)? != "1" {
            key.write("1").explain(failed)?;
        }
    }
    Ok(())
}

/// Deletes the UDP conntrack entries of the ports. They would keep forwarding existing senders to the previous
/// target.
fn forget_connections(call: &Call, rules: &mut Ruleset, forwards: &[Forward]) {
    for forward in forwards {
        let family = forward.family();
        for mapping in forward
            .mappings
            .iter()
            .filter(|mapping| mapping.protocol == Protocol::Udp)
        {
            let to = Destination {
                address: mapping.host_ip,
                port: mapping.host_port,
            };
            let forgotten = rules.socket().and_then(|socket| socket.forget_udp(family, to));
            if let Err(error) = forgotten {
                call.note(Level::Warn, error);
            }
        }
    }
}

#[cfg(test)]
mod tests;

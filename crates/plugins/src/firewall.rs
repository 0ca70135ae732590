//! `firewall`: accepts the forwarded packets of pods and isolates bridges (cni-plugins §15).
//!
//! ```text
//! inet cni_firewall  forward:    has a pod's address? marked
//!                    isolation:  from one isolated bridge to another? dropped
//! ip filter          FORWARD ──> CNI-FORWARD ──> CNI-ADMIN, then: marked? accepted
//! inet cni_firewall  unmark
//! ```
//!
//! An accept rule only affects its own chain, so a host that drops by default must accept the packets in its iptables
//! chain. That chain may only contain rules that iptables can list: it gets one rule that accepts marked packets. Our
//! own table has a set with an element per address and marks the packets. Upstream's plugin has two rules per address
//! in `CNI-FORWARD` instead, which are recognised and removed.

mod config;
mod firewalld;
mod iptables;
mod nftables;

use std::{collections::HashSet, net::IpAddr};

use cni::{
    Error, Version,
    note::Level,
    plugin::{Call, Plugin},
    result::CniResult,
};
use linux::route::Socket;
use serde::{Deserialize, Serialize};

use self::config::{Backend, Config, Policy};
use crate::{
    chained,
    iptables::Version as IpVersion,
    messages::{
        Explain, FIREWALL_CHECK, FIREWALL_COLLECT, FIREWALL_NO_BRIDGE, FIREWALL_NOT_CHAINED, FIREWALL_SET_UP,
        FIREWALL_TEAR_DOWN,
    },
    names::{FIREWALL, IPTABLES_FILTER},
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
pub(crate) struct Firewall;

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Step {
    /// Admitted addresses.
    Admit {
        /// The attempted backend.
        backend: Backend,
        addresses: Vec<IpAddr>,
        /// firewalld: the zone.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        zone: String,
    },
}

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        FIREWALL
    }

    fn versions(&self) -> &'static [Version] {
        Version::V0_4_0.and_later()
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, FIREWALL_NOT_CHAINED)?;
        let (records, key) = (Records::of(FIREWALL, call), AttachmentId::of(call));
        let owner = key.to(call.config.name());
        let mut rules = Ruleset::of(call);
        let mut journal = chained::begin(&records, &key, |recorded| {
            undo_steps(call, &mut rules, owner, recorded)
        })?;
        let wanted = Admission {
            config: &config,
            owner,
            addresses: addresses(&result),
        };
        let done = wanted
            .admit(&mut rules, &mut journal)
            .and_then(|backend| wanted.isolate(&mut rules, &result, backend));
        if let Err(error) = done {
            // ADD reports its own error. Leftovers are recorded.
            if let Ok(Some(recorded)) = records.read::<Step>(&key)
                && undo_steps(call, &mut rules, owner, &recorded).is_ok()
            {
                let _ = chained::forget(call, &records, &key);
            }
            return Err(error);
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let (records, key) = (Records::of(FIREWALL, call), AttachmentId::of(call));
        let owner = key.to(call.config.name());
        let mut rules = Ruleset::of(call);
        match records.read(&key)? {
            Some(recorded) => undo_steps(call, &mut rules, owner, &recorded)?,
            None => search_and_remove(call, &mut rules, owner)?,
        }
        if chained::forget(call, &records, &key)?
            && let Err(error) = sweep(&mut rules)
        {
            call.note(Level::Warn, error);
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call)?;
        let result = chained::previous(call, FIREWALL_NOT_CHAINED)?;
        let key = AttachmentId::of(call);
        let mut rules = Ruleset::of(call);
        let wanted = Admission {
            config: &config,
            owner: key.to(call.config.name()),
            addresses: addresses(&result),
        };
        // The backend of ADD, even if the host would choose another one now.
        let recorded: Option<RecordedSteps<Step>> = Records::of(FIREWALL, call).read(&key)?;
        let recorded = recorded
            .and_then(|recorded| recorded.steps.into_iter().last())
            .map(|Step::Admit { backend, .. }| backend);
        let backend = match recorded {
            Some(backend) => backend,
            None => wanted.backend(&rules),
        };
        wanted.check(&mut rules, &result, backend)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = gc::valid(call)? else {
            return Ok(());
        };
        let network = call.config.name();
        let records = Records::of(FIREWALL, call);
        let mut rules = Ruleset::of(call);
        let recorded = records.collect(call, &valid, |key, recorded| {
            undo_steps(call, &mut rules, key.to(network), recorded)
        });
        let collected = rules
            .socket()
            .and_then(|socket| nftables::collect(socket, network, &valid));
        let collected = unless_unsupported(collected).explain(|| FIREWALL_COLLECT.to_owned());
        recorded.map(drop).and(collected).and(sweep(&mut rules))
    }
}

/// The distinct addresses of a result.
fn addresses(result: &CniResult) -> Vec<IpAddr> {
    let mut known = HashSet::new();
    let all = result.ips.iter().map(|ip| ip.address.addr());
    all.filter(|address| known.insert(*address)).collect()
}

/// The rules that an ADD requests.
struct Admission<'a> {
    config: &'a Config,
    owner: Attachment<'a>,
    addresses: Vec<IpAddr>,
}

impl Admission<'_> {
    /// The backend of the config, else firewalld if it runs, else that of the host's rules: legacy iptables has
    /// its own tables, which can drop packets that nftables accepts.
    fn backend(&self, rules: &Ruleset) -> Backend {
        if let Some(backend) = self.config.backend {
            return backend;
        }
        if firewalld::is_running(rules) {
            return Backend::Firewalld;
        }
        let is_legacy = IpVersion::ALL
            .iter()
            .any(|version| version.has_legacy(IPTABLES_FILTER));
        if is_legacy {
            Backend::Iptables
        } else {
            Backend::Nftables
        }
    }

    fn note(&self, journal: &mut Journal, backend: Backend) -> Result<(), Error> {
        let zone = match backend {
            Backend::Firewalld => self.config.zone.clone(),
            _ => String::new(),
        };
        journal.note(&[Step::Admit {
            backend,
            addresses: self.addresses.clone(),
            zone,
        }])
    }

    /// Admits the addresses. Returns the used backend.
    fn admit(&self, rules: &mut Ruleset, journal: &mut Journal) -> Result<Backend, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::internal(format!("{FIREWALL_SET_UP}: {error}"));
        let (config, addresses) = (self.config, &self.addresses);
        let mut backend = self.backend(rules);
        if backend == Backend::Nftables {
            self.note(journal, backend)?;
            let admitted = rules
                .socket()
                .and_then(|socket| nftables::admit(socket, config, self.owner, addresses));
            match admitted {
                Err(error) if error.is_unsupported() && config.backend.is_none() => {
                    backend = Backend::Iptables;
                }
                admitted => {
                    admitted.explain(|| FIREWALL_SET_UP.to_owned())?;
                    return Ok(backend);
                }
            }
        }
        self.note(journal, backend)?;
        match backend {
            Backend::Firewalld => {
                firewalld::admit(rules, &config.zone, addresses).map_err(|error| failed(&error))?;
            }
            _ => iptables::admit(rules, config, addresses).map_err(|error| failed(&error))?,
        }
        Ok(backend)
    }

    /// The bridge that the policy applies to.
    fn bridge<'a>(&self, result: &'a CniResult) -> Result<Option<&'a str>, Error> {
        if self.config.policy == Policy::Open {
            return Ok(None);
        }
        let first = result.interfaces.first().map(|bridge| bridge.name.as_str());
        first.map(Some).ok_or_else(|| Error::internal(FIREWALL_NO_BRIDGE))
    }

    /// Isolates the pod's bridge according to the policy.
    fn isolate(&self, rules: &mut Ruleset, result: &CniResult, backend: Backend) -> Result<(), Error> {
        let Some(bridge) = self.bridge(result)? else {
            return Ok(());
        };
        if backend != Backend::Iptables {
            return rules
                .socket()
                .and_then(|socket| nftables::isolate(socket, self.config.policy, bridge))
                .explain(|| FIREWALL_SET_UP.to_owned());
        }
        iptables::isolate(rules, self.config.policy, bridge, &self.addresses)
            .map_err(|error| Error::internal(format!("{FIREWALL_SET_UP}: {error}")))
    }

    fn check(&self, rules: &mut Ruleset, result: &CniResult, backend: Backend) -> Result<(), Error> {
        let failed = |error: &dyn std::fmt::Display| Error::internal(format!("{FIREWALL_CHECK}: {error}"));
        let (config, addresses) = (self.config, &self.addresses);
        let missing = match backend {
            Backend::Nftables => rules
                .socket()
                .and_then(|socket| nftables::missing(socket, config, self.owner, addresses))
                .explain(|| FIREWALL_CHECK.to_owned())?,
            Backend::Iptables => {
                iptables::missing(rules, config, addresses).map_err(|error| failed(&error))?
            }
            Backend::Firewalld => {
                firewalld::missing(rules, &config.zone, addresses).map_err(|error| failed(&error))?
            }
        };
        if let Some(address) = missing {
            return Err(Error::internal(format!("firewall rules for {address} not found")));
        }
        let Some(bridge) = self.bridge(result)? else {
            return Ok(());
        };
        let is_isolated = if backend == Backend::Iptables {
            iptables::is_isolated(rules, config.policy, bridge, addresses).map_err(|error| failed(&error))?
        } else {
            rules
                .socket()
                .and_then(|socket| nftables::is_isolated(socket, config.policy, bridge))
                .explain(|| FIREWALL_CHECK.to_owned())?
        };
        if is_isolated {
            return Ok(());
        }
        Err(Error::internal(format!("ingress policy of {bridge} not found")))
    }
}

fn undo_steps(
    call: &Call,
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    recorded: &RecordedSteps<Step>,
) -> Result<(), Error> {
    let mut outcome = Ok(());
    for Step::Admit {
        backend,
        addresses,
        zone,
    } in &recorded.steps
    {
        let undone = match backend {
            Backend::Nftables => unless_unsupported(
                rules
                    .socket()
                    .and_then(|socket| nftables::remove(socket, owner, addresses)),
            )
            .explain(|| FIREWALL_TEAR_DOWN.to_owned()),
            Backend::Iptables => remove_upstream(rules, addresses),
            Backend::Firewalld => {
                // If the daemon has ended, its rules are gone.
                if let Err(error) = firewalld::remove(rules, zone, addresses) {
                    call.note(Level::Warn, error);
                }
                Ok(())
            }
        };
        outcome = outcome.and(undone);
    }
    if recorded.is_whole {
        return outcome;
    }
    outcome.and(search_and_remove(call, rules, owner))
}

/// Removes the attachment's rules, and those of its addresses if the runtime passes them.
fn search_and_remove(call: &Call, rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
    let removed = rules
        .socket()
        .and_then(|socket| nftables::search_and_remove(socket, owner));
    let removed = unless_unsupported(removed).explain(|| FIREWALL_TEAR_DOWN.to_owned());
    let Ok(Some(result)) = call.config.prev_result() else {
        return removed;
    };
    let addresses = addresses(&result);
    let zone = Config::read(call).map(|config| config.zone).unwrap_or_default();
    if firewalld::is_running(rules)
        && let Err(error) = firewalld::remove(rules, &zone, &addresses)
    {
        call.note(Level::Warn, error);
    }
    removed.and(remove_upstream(rules, &addresses))
}

/// Removes the iptables rules of addresses, of ours and of upstream's plugins.
fn remove_upstream(rules: &mut Ruleset, addresses: &[IpAddr]) -> Result<(), Error> {
    let removed = rules
        .socket()
        .and_then(|socket| nftables::remove_upstream(socket, addresses));
    unless_unsupported(removed)
        .explain(|| FIREWALL_TEAR_DOWN.to_owned())
        .and(
            iptables::remove_legacy(rules, addresses)
                .map_err(|error| Error::internal(format!("{FIREWALL_TEAR_DOWN}: {error}"))),
        )
}

/// Removes the elements of deleted bridges, and our table if it is empty.
fn sweep(rules: &mut Ruleset) -> Result<(), Error> {
    let mut host = Socket::open().map_err(cni::error::internal)?;
    let links = || Ok(host.links()?.into_iter().map(|link| link.name).collect());
    match rules.socket().and_then(|socket| nftables::sweep(socket, links)) {
        Err(error) if error.is_unsupported() || error.is_in_use() => Ok(()),
        outcome => outcome.explain(|| FIREWALL_COLLECT.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        time::{Duration, Instant},
    };

    use cni::result::IpConfig;

    use super::*;

    #[test]
    fn many_addresses_are_distinct_in_little_time() {
        // cni-plugins#90
        let ip = |number: u32| IpConfig {
            address: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)).into(),
            gateway: None,
            interface: None,
        };
        let result = CniResult {
            ips: (0..50_000).chain(0..50_000).map(ip).collect(),
            ..CniResult::default()
        };
        let started = Instant::now();
        let found = addresses(&result);
        assert_eq!(
            (found.len(), found[0]),
            (50_000, Ipv4Addr::new(10, 0, 0, 0).into())
        );
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

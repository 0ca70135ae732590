//! Holders and reservations of the addresses of a network, and virtual machines that wait for one (kubevirt-ipam §16).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use kube_kit::watch::Name;

use super::{Holder, State};
use crate::messages::event;
use crate::network::Config;
use crate::plan::Wanted;
use crate::pool::{self, Holders, Refused};

/// Addresses of a network that one claim may already have.
#[derive(Debug)]
pub(super) struct Reserved {
    network: Arc<str>,
    addresses: Vec<IpNet>,
}

impl State {
    /// Records that a claim has or may have an address.
    pub(super) fn take(&mut self, network: &Arc<str>, address: IpAddr, id: &Name) {
        let holders = self.addresses.entry(Arc::clone(network)).or_default();
        let all = holders.entry(address).or_default();
        if !all.iter().any(|Holder(holder)| holder == id) {
            all.reserve_exact(1);
            all.push(Holder(id.clone()));
        }
    }

    /// Records that a claim no longer has an address, unless the address is reserved for the claim.
    pub(super) fn free(&mut self, network: &str, address: IpAddr, id: &Name) {
        let is_reserved = |reserved: &Reserved| {
            let mut addresses = reserved.addresses.iter();
            *reserved.network == *network && addresses.any(|reserved| reserved.addr() == address)
        };
        if self.reserved.get(id).is_some_and(is_reserved) {
            return;
        }
        let Some(holders) = self.addresses.get_mut(network) else {
            return;
        };
        if let Some(all) = holders.get_mut(&address) {
            all.retain(|Holder(holder)| holder != id);
            if all.is_empty() {
                holders.remove(&address);
            }
        }
        if holders.is_empty() {
            self.addresses.remove(network);
        }
        if self.waiting.contains_key(network) {
            self.freed.insert((network.into(), address));
        }
    }

    /// Records that a network has no address for a virtual machine now.
    pub fn waits(&mut self, machine: &Name, network: &str) {
        if self.instance(machine).is_some() {
            let waiting = self.waiting.entry(network.into()).or_default();
            waiting.insert(machine.clone());
        }
    }

    /// Virtual machines that waited for addresses of networks, of which one has become free since the last call.
    pub fn woken(&mut self) -> BTreeSet<Name> {
        let mut woken = BTreeSet::new();
        for (network, address) in std::mem::take(&mut self.freed) {
            let is_free = |holders: &Holders<Holder>| !holders.contains_key(&address);
            if self.addresses.get(&network).is_none_or(is_free) {
                woken.extend(self.waiting.remove(&network).unwrap_or_default());
            }
        }
        woken
    }

    /// Reserves one address of each family for a claim on a network. No other claim gets the addresses before the write
    /// is [settled](Self::settled). Earlier reservations of the claim stay, because the write of an unanswered request
    /// may come late.
    ///
    /// # Errors
    /// If no address is free, or a requested one cannot be allocated.
    pub fn reserve(&mut self, id: &Name, wanted: &Wanted) -> Result<Vec<IpNet>, Refused> {
        if let Some(reserved) = self.reserved.get(id)
            && *reserved.network == *wanted.network
        {
            return Ok(reserved.addresses.clone());
        }
        // A claim that names another network now has changed since: no earlier write can still succeed.
        self.settled(id);
        let addresses = self.allocate(wanted)?;
        let network: Arc<str> = wanted.network.as_str().into();
        for address in &addresses {
            self.take(&network, address.addr(), id);
        }
        let reserved = Reserved {
            network,
            addresses: addresses.clone(),
        };
        self.reserved.insert(id.clone(), reserved);
        Ok(addresses)
    }

    /// The outcome of the write of reserved addresses is known and cached. Reserved addresses that the claim does not
    /// have are free.
    pub fn settled(&mut self, id: &Name) {
        let Some(Reserved { network, addresses }) = self.reserved.remove(id) else {
            return;
        };
        let claim = self.claims.get(id).filter(|claim| claim.network == network);
        let held: Vec<_> = claim
            .into_iter()
            .flat_map(|claim| pool::addresses_of(&claim.ips))
            .collect();
        for address in addresses.iter().map(IpNet::addr) {
            if !held.contains(&address) {
                self.free(&network, address, id);
            }
        }
    }

    /// Whether the outcome of all writes of reserved addresses is known.
    pub fn are_settled(&self) -> bool {
        self.reserved.is_empty()
    }

    /// One address of each family for a claim on a network.
    fn allocate(&self, wanted: &Wanted) -> Result<Vec<IpNet>, Refused> {
        let none = Holders::new();
        let holders = self.addresses.get(&*wanted.network).unwrap_or(&none);
        pool::allocate(&wanted.ranges, holders, &wanted.requested)
    }

    /// Oddities of the addresses of a claim on a network with ranges, as messages.
    pub fn oddities(&self, id: &Name, wanted: &Wanted) -> Vec<String> {
        let mut odd = Vec::new();
        let holders = self.addresses.get(&*wanted.network);
        let claim = self.claims.get(id);
        for address in claim.into_iter().flat_map(|claim| pool::addresses_of(&claim.ips)) {
            let others = holders
                .and_then(|holders| holders.get(&address))
                .into_iter()
                .flatten();
            let other = others.map(|Holder(other)| other).find(|other| *other != id);
            if let Some(other) = other {
                odd.push(event::shared_address(&id.name, address, other));
            }
            if !wanted.ranges.iter().any(|range| range.contains(address)) {
                odd.push(event::foreign_address(&id.name, address, &wanted.network));
            }
        }
        let configs = self
            .networks
            .values()
            .filter_map(|network| network.config.as_ref().ok());
        let shares = |config: &&Config| {
            let mut pairs = config
                .ranges
                .iter()
                .flat_map(|one| wanted.ranges.iter().map(move |two| (one, two)));
            config.name != wanted.network && pairs.any(|(one, two)| one.overlaps(two))
        };
        let mut sharing = configs.filter(shares);
        odd.extend(
            sharing
                .next()
                .map(|other| event::shared_range(&wanted.network, &other.name)),
        );
        odd
    }
}

//! Addresses of networks whose plugin has no pool for claims: sizes of ranges, free addresses, requested addresses
//! (kubevirt-ipam §16).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// A range in a network's configuration.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct WireRange {
    subnet: String,
    range_start: Option<String>,
    range_end: Option<String>,
    gateway: Option<String>,
    exclude: Vec<String>,
}

/// The error in a range.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidRange {
    /// The subnet cannot be parsed.
    #[error("subnet {0:?} is not an address with a prefix length")]
    Subnet(String),
    /// A bound or the gateway cannot be parsed.
    #[error("{key} {text:?} is not an address")]
    Address {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
    },
    /// A bound or the gateway is outside of the subnet.
    #[error("{key} {address} is not in the subnet {subnet}")]
    Outside {
        /// The key.
        key: &'static str,
        /// The value.
        address: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// An excluded range is no subnet.
    #[error("exclude {0:?} is neither an address nor an address with a prefix length")]
    Exclude(String),
    /// The range contains no address.
    #[error("no address of {0} is left to be given")]
    Empty(IpNet),
}

/// Addresses that virtual machines of a network may get.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Range {
    subnet: IpNet,
    first: u128,
    last: u128,
    /// Excluded intervals, in order. No interval touches another.
    excluded: Vec<(u128, u128)>,
}

/// Holders of the addresses of a network. An address with several holders is a conflict.
pub type Holders<H> = BTreeMap<IpAddr, Vec<H>>;

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

impl Range {
    /// Reads a range. Without bounds it is the whole subnet except network and broadcast address. The gateway, by
    /// default the subnet's first address, is excluded.
    ///
    /// # Errors
    /// If the range is invalid.
    pub fn read(wire: &WireRange) -> Result<Self, InvalidRange> {
        let subnet: IpNet = wire
            .subnet
            .parse()
            .map_err(|_| InvalidRange::Subnet(wire.subnet.clone()))?;
        let subnet = subnet.trunc();
        let within = |key: &'static str, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let address: IpAddr = text.parse().map_err(|_| InvalidRange::Address {
                key,
                text: text.clone(),
            })?;
            if !subnet.contains(&address) {
                return Err(InvalidRange::Outside { key, address, subnet });
            }
            Ok(Some(number(address)))
        };
        let (low, high) = (number(subnet.network()), number(subnet.broadcast()));
        // A subnet of two addresses or of one has neither network nor broadcast address (RFC 3021, RFC 6164).
        let is_tiny = high - low < 2;
        let lowest = if is_tiny { low } else { low + 1 };
        let highest = if is_tiny || subnet.addr().is_ipv6() {
            high
        } else {
            high - 1
        };
        let first = within("rangeStart", &wire.range_start)?.unwrap_or(lowest);
        let last = within("rangeEnd", &wire.range_end)?.unwrap_or(highest);
        let gateway = within("gateway", &wire.gateway)?;
        let gateway = gateway.or_else(|| (!is_tiny).then_some(low + 1));
        let mut excluded: Vec<_> = gateway.into_iter().map(|it| (it, it)).collect();
        for text in &wire.exclude {
            let interval = text
                .parse::<IpNet>()
                .map(|net| (net.network(), net.broadcast()))
                .or_else(|_| text.parse::<IpAddr>().map(|address| (address, address)));
            let (from, to) = interval.map_err(|_| InvalidRange::Exclude(text.clone()))?;
            if from.is_ipv4() == subnet.addr().is_ipv4() {
                excluded.push((number(from), number(to)));
            }
        }
        let range = Self {
            subnet,
            first,
            last,
            excluded: merged(excluded),
        };
        if range.next_free(|_| None).is_none() {
            return Err(InvalidRange::Empty(subnet));
        }
        Ok(range)
    }

    /// The subnet of the range.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    fn is_ipv4(&self) -> bool {
        self.subnet.addr().is_ipv4()
    }

    fn address(&self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.is_ipv4() => Ipv4Addr::from(number).into(),
            _ => Ipv6Addr::from(number).into(),
        }
    }

    fn with_prefix(&self, address: IpAddr) -> Option<IpNet> {
        IpNet::new(address, self.subnet.prefix_len()).ok()
    }

    /// Whether the range may allocate an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let wanted = number(address);
        address.is_ipv4() == self.is_ipv4()
            && (self.first..=self.last).contains(&wanted)
            && !self
                .excluded
                .iter()
                .any(|(from, to)| (*from..=*to).contains(&wanted))
    }

    /// Whether the ranges share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.first <= other.last && other.first <= self.last
    }

    /// The number of addresses for allocation.
    pub fn size(&self) -> u128 {
        let left_out = self.excluded.iter().map(|(from, to)| {
            let (from, to) = (*from.max(&self.first), *to.min(&self.last));
            (to + 1).saturating_sub(from)
        });
        let all = (self.last - self.first).saturating_add(1);
        all.saturating_sub(left_out.sum())
    }

    /// The lowest free address.
    fn free<H>(&self, holders: &Holders<H>) -> Option<IpAddr> {
        let (first, last) = (self.address(self.first), self.address(self.last));
        let mut taken = (first <= last).then(|| {
            holders
                .range(first..=last)
                .map(|(address, _)| number(*address))
                .peekable()
        });
        let found = self.next_free(|next| {
            let taken = taken.as_mut()?;
            while taken.next_if(|it| *it < next).is_some() {}
            // The end of the present run of consecutive addresses.
            let mut behind = next;
            while taken.next_if_eq(&behind).is_some() {
                behind = behind.checked_add(1)?;
            }
            (behind > next).then_some(behind)
        });
        found.map(|number| self.address(number))
    }

    /// The lowest number that is not excluded, and for which `skip` returns no successor.
    fn next_free(&self, mut skip: impl FnMut(u128) -> Option<u128>) -> Option<u128> {
        let mut next = self.first;
        while next <= self.last {
            let left_out = self
                .excluded
                .iter()
                .find(|(from, to)| (*from..=*to).contains(&next));
            if let Some((_, to)) = left_out {
                next = to.checked_add(1)?;
            } else if let Some(behind) = skip(next) {
                next = behind;
            } else {
                return Some(next);
            }
        }
        None
    }
}

/// The same intervals in order. Intervals that touch are merged.
fn merged(mut intervals: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    intervals.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (from, to) in intervals {
        match merged.last_mut() {
            Some((_, end)) if from <= end.saturating_add(1) => *end = (*end).max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// The reason for a claim without addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// All addresses are taken.
    #[error("all {0} addresses of the network's range are taken")]
    Exhausted(&'static str),
    /// A requested address is malformed.
    #[error("invalid IP address format: {0}")]
    Format(String),
    /// A requested address is in no range.
    #[error("the requested address {0} is not in the network's range")]
    Outside(IpAddr),
    /// A requested address is taken.
    #[error("the requested address {0} is taken by {1}")]
    Taken(IpAddr, String),
    /// A claim requests several addresses of one family.
    #[error("more than one address of a family is requested")]
    Several,
}

impl Refused {
    /// Whether an address that another claim gives back may be enough.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Exhausted(_) | Self::Taken(..))
    }
}

/// One address of each family that the ranges have: the requested one, otherwise the lowest free one.
///
/// # Errors
/// If a requested address cannot be allocated, or no address is free.
pub fn allocate<H: std::fmt::Display>(
    ranges: &[Range],
    holders: &Holders<H>,
    requested: &[String],
) -> Result<Vec<IpNet>, Refused> {
    let mut given = Vec::new();
    for text in requested {
        let address: IpAddr = text.parse().map_err(|_| Refused::Format(text.clone()))?;
        let range = ranges.iter().find(|range| range.contains(address));
        let range = range.ok_or(Refused::Outside(address))?;
        if let Some(holder) = holders.get(&address).and_then(|holders| holders.first()) {
            return Err(Refused::Taken(address, holder.to_string()));
        }
        if given
            .iter()
            .any(|net: &IpNet| net.addr().is_ipv4() == address.is_ipv4())
        {
            return Err(Refused::Several);
        }
        given.extend(range.with_prefix(address));
    }
    for (is_ipv4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let mut of_family = ranges
            .iter()
            .filter(|range| range.is_ipv4() == is_ipv4)
            .peekable();
        let has_one = given.iter().any(|net| net.addr().is_ipv4() == is_ipv4);
        if has_one || of_family.peek().is_none() {
            continue;
        }
        let found = of_family.find_map(|range| range.with_prefix(range.free(holders)?));
        given.push(found.ok_or(Refused::Exhausted(family))?);
    }
    // IPv4 comes first, in any order of the requests.
    given.sort_by_key(|net| net.addr().is_ipv6());
    Ok(given)
}

/// The addresses in a claim's status.
pub fn addresses_of(ips: &[String]) -> impl Iterator<Item = IpAddr> {
    ips.iter().filter_map(|text| {
        let net = text.parse::<IpNet>().map(|net| net.addr());
        net.or_else(|_| text.parse()).ok()
    })
}

//! Ranges of addresses, and which address is next: pure, and never a list of addresses, so that a range may
//! be a /8 or a /64.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use cni::net::parse_cidr;
use ipnet::IpNet;
use serde::Deserialize;

/// A range as configs write it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireRange {
    range_start: String,
    range_end: String,
    subnet: Option<String>,
    gateway: String,
}

impl WireRange {
    /// A range by its four keys.
    pub(super) fn new(
        range_start: String,
        range_end: String,
        subnet: Option<String>,
        gateway: String,
    ) -> Self {
        Self {
            range_start,
            range_end,
            subnet,
            gateway,
        }
    }

    /// Reads the texts; what they say together is for [`RangeSet::new`] to judge.
    pub(super) fn read(&self) -> Result<Draft, String> {
        let address = |text: &str| match text {
            "" => Ok(None),
            text => parse_ip(text)
                .map(Some)
                .ok_or_else(|| format!("invalid IP address: {text}")),
        };
        let cidr = |text: &String| parse_cidr(text).ok_or_else(|| format!("invalid CIDR address: {text}"));
        Ok(Draft {
            start: address(&self.range_start)?,
            end: address(&self.range_end)?,
            subnet: self.subnet.as_ref().map(cidr).transpose()?,
            gateway: address(&self.gateway)?,
        })
    }
}

/// A range that is not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    start: Option<IpAddr>,
    end: Option<IpAddr>,
    subnet: Option<IpNet>,
    gateway: Option<IpAddr>,
}

impl Draft {
    /// Whether a subnet is given, without which the old keys of a single range mean nothing.
    pub(super) fn has_subnet(&self) -> bool {
        self.subnet.is_some()
    }
}

/// Addresses of one subnet, from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    gateway: IpAddr,
}

impl Range {
    /// Checks a range and fills in what it leaves out (cni-plugins §6).
    fn new(draft: &Draft) -> Result<Self, String> {
        let subnet = draft.subnet.ok_or_else(|| "IP <nil> not v4 nor v6".to_owned())?;
        if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        if subnet.addr().to_canonical() != subnet.addr() {
            return Err("IPNet IP and Mask version mismatch".to_owned());
        }
        let network = subnet.network();
        if subnet.addr() != network {
            return Err(format!(
                "Network has host bits set. For a subnet mask of length {} the network address is {network}",
                subnet.prefix_len()
            ));
        }
        // Subnets have more than three addresses.
        let second = successor(network).unwrap_or(network);
        let broadcast = subnet.broadcast();
        let mut range = Range {
            subnet,
            first: second,
            last: match subnet {
                IpNet::V4(_) => predecessor(broadcast).unwrap_or(broadcast),
                IpNet::V6(_) => broadcast,
            },
            gateway: draft.gateway.unwrap_or(second),
        };
        let outside = |what: &str, ip| format!("{what} {ip} not in network {subnet}");
        if let Some(start) = draft.start {
            if !subnet.contains(&start) || draft.end.is_some_and(|end| start > end) {
                return Err(outside("RangeStart", start));
            }
            range.first = start;
        }
        if let Some(end) = draft.end {
            if !subnet.contains(&end) || end < range.first {
                return Err(outside("RangeEnd", end));
            }
            range.last = end;
        }
        Ok(range)
    }

    /// The subnet that the addresses are of.
    pub(super) fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// Its gateway.
    pub(super) fn gateway(&self) -> IpAddr {
        self.gateway
    }

    fn contains(&self, ip: IpAddr) -> bool {
        self.first <= ip && ip <= self.last
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Addresses that nobody gets, wherever the range begins and ends: the gateway's, the network's own, and
    /// the one that reaches everybody.
    fn reserved(&self) -> impl Iterator<Item = IpAddr> {
        let broadcast = matches!(self.subnet, IpNet::V4(_)).then(|| self.subnet.broadcast());
        [self.gateway, self.subnet.network()].into_iter().chain(broadcast)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Ranges of one family that an attachment gets one address of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Checks the ranges, and that none overlaps another.
    pub(super) fn new(drafts: &[Draft]) -> Result<Self, String> {
        if drafts.is_empty() {
            return Err("empty range set".to_owned());
        }
        let mut ranges: Vec<Range> = Vec::new();
        for draft in drafts {
            let range = Range::new(draft)?;
            if ranges
                .first()
                .is_some_and(|first| first.first.is_ipv4() != range.first.is_ipv4())
            {
                return Err("mixed address families".to_owned());
            }
            ranges.push(range);
        }
        for (index, one) in ranges.iter().enumerate() {
            if let Some(other) = ranges[index + 1..].iter().find(|other| one.overlaps(other)) {
                return Err(format!("subnets {one} and {other} overlap"));
            }
        }
        Ok(RangeSet(ranges))
    }

    /// Whether the addresses are IPv4 ones.
    pub(super) fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.first.is_ipv4())
    }

    /// Whether an address is in both sets.
    pub(super) fn overlaps(&self, other: &RangeSet) -> bool {
        self.0
            .iter()
            .any(|one| other.0.iter().any(|range| one.overlaps(range)))
    }

    /// The range that an address is in.
    pub(super) fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether an address of the set is one of a gateway.
    pub(super) fn is_gateway(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.gateway == ip)
    }

    /// Whether an address is one that nobody gets.
    pub(super) fn is_reserved(&self, ip: IpAddr) -> bool {
        self.0
            .iter()
            .any(|range| range.reserved().any(|other| other == ip))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A search for a free address of a set, round robin: from behind the last one that was given away through
/// all ranges and back to it.
#[derive(Debug)]
pub(super) struct Search {
    /// First and last address of what is to be gone through, in this order.
    stretches: Vec<(IpAddr, IpAddr)>,
    unavailable: BTreeSet<IpAddr>,
}

impl Search {
    /// A search that begins behind `last` if that is in the set, else at the set's first address.
    pub(super) fn new(set: &RangeSet, last: Option<IpAddr>) -> Self {
        let ranges = &set.0;
        let whole = |range: &Range| (range.first, range.last);
        let position = last.and_then(|last| Some((ranges.iter().position(|r| r.contains(last))?, last)));
        let stretches = match position {
            None => ranges.iter().map(whole).collect(),
            Some((index, last)) => {
                let range = &ranges[index];
                let rest = successor(last)
                    .filter(|next| range.contains(*next))
                    .map(|next| (next, range.last));
                let others = ranges[index + 1..].iter().chain(&ranges[..index]).map(whole);
                rest.into_iter()
                    .chain(others)
                    .chain([(range.first, last)])
                    .collect()
            }
        };
        Search {
            stretches,
            unavailable: ranges.iter().flat_map(Range::reserved).collect(),
        }
    }

    /// Says that addresses are taken.
    pub(super) fn exclude(&mut self, taken: impl IntoIterator<Item = IpAddr>) {
        self.unavailable.extend(taken);
    }

    /// The next free address. It stays the same until it is excluded.
    pub(super) fn next(&self) -> Option<IpAddr> {
        self.stretches
            .iter()
            .find_map(|(first, last)| first_free(*first, *last, &self.unavailable))
    }
}

/// The first address from `first` to `last` that is available.
fn first_free(first: IpAddr, last: IpAddr, unavailable: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let mut candidate = first;
    for used in unavailable.range(first..=last) {
        if *used != candidate {
            break;
        }
        candidate = successor(candidate).filter(|next| *next <= last)?;
    }
    Some(candidate)
}

/// Reads an address; one of IPv4 that is written as one of IPv6 is one of IPv4.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn successor(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|ip| Ipv4Addr::from(ip).into()),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|ip| Ipv6Addr::from(ip).into()),
    }
}

fn predecessor(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(1).map(|ip| Ipv4Addr::from(ip).into()),
        IpAddr::V6(ip) => u128::from(ip).checked_sub(1).map(|ip| Ipv6Addr::from(ip).into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(subnet: &str, start: &str, end: &str, gateway: &str) -> WireRange {
        WireRange {
            range_start: start.into(),
            range_end: end.into(),
            subnet: Some(subnet.into()).filter(|subnet: &String| !subnet.is_empty()),
            gateway: gateway.into(),
        }
    }

    fn read(ranges: &[WireRange]) -> Result<RangeSet, String> {
        let drafts: Vec<Draft> = ranges.iter().map(WireRange::read).collect::<Result<_, _>>()?;
        RangeSet::new(&drafts)
    }

    fn set(ranges: &[WireRange]) -> RangeSet {
        read(ranges).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// All addresses of a search, in order.
    fn all(set: &RangeSet, last: Option<&str>) -> Vec<String> {
        let mut search = Search::new(set, last.map(ip));
        let mut found = Vec::new();
        while let Some(next) = search.next() {
            search.exclude([next]);
            found.push(next.to_string());
        }
        found
    }

    // cni-plugins#42
    #[test]
    fn ranges_are_checked_one_after_the_other() {
        let cases = [
            (wire("", "10.0.0.1", "", ""), "IP <nil> not v4 nor v6"),
            (wire("10.0.0.0", "", "", ""), "invalid CIDR address: 10.0.0.0"),
            (
                wire("10.0.00.0/24", "", "", ""),
                "invalid CIDR address: 10.0.00.0/24",
            ),
            (wire("10.0.0.0/24", "x", "", ""), "invalid IP address: x"),
            (
                wire("10.0.0.0/24", "", "10.0.0", ""),
                "invalid IP address: 10.0.0",
            ),
            (wire("10.0.0.0/24", "", "", "::g"), "invalid IP address: ::g"),
            (
                wire("10.0.0.4/31", "", "", ""),
                "Network 10.0.0.4/31 too small to allocate from",
            ),
            (
                wire("10.0.0.5/32", "", "", ""),
                "Network 10.0.0.5/32 too small to allocate from",
            ),
            (
                wire("fd00::/127", "", "", ""),
                "Network fd00::/127 too small to allocate from",
            ),
            (
                wire("::ffff:10.0.0.0/120", "", "", ""),
                "IPNet IP and Mask version mismatch",
            ),
            (
                wire("10.0.0.5/24", "", "", ""),
                "Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
            ),
            (
                wire("fd00::5/64", "", "", ""),
                "Network has host bits set. For a subnet mask of length 64 the network address is fd00::",
            ),
            (
                wire("10.0.0.0/24", "10.0.1.1", "", ""),
                "RangeStart 10.0.1.1 not in network 10.0.0.0/24",
            ),
            (
                wire("10.0.0.0/24", "fd00::1", "", ""),
                "RangeStart fd00::1 not in network 10.0.0.0/24",
            ),
            (
                wire("10.0.0.0/24", "10.0.0.9", "10.0.0.8", ""),
                "RangeStart 10.0.0.9 not in network 10.0.0.0/24",
            ),
            (
                wire("10.0.0.0/24", "", "10.0.1.1", ""),
                "RangeEnd 10.0.1.1 not in network 10.0.0.0/24",
            ),
            (
                wire("10.0.0.0/24", "", "10.0.0.0", ""),
                "RangeEnd 10.0.0.0 not in network 10.0.0.0/24",
            ),
        ];
        for (range, text) in cases {
            assert_eq!(read(&[range]).unwrap_err(), text);
        }
        assert_eq!(read(&[]).unwrap_err(), "empty range set");
    }

    // cni-plugins#42
    #[test]
    fn ranges_of_a_set_are_of_one_family_and_apart() {
        let mixed = [wire("10.0.0.0/24", "", "", ""), wire("fd00::/64", "", "", "")];
        assert_eq!(read(&mixed).unwrap_err(), "mixed address families");
        let overlapping = [
            wire("10.0.0.0/24", "10.0.0.10", "10.0.0.20", ""),
            wire("10.0.0.0/16", "10.0.0.20", "10.0.0.30", ""),
        ];
        assert_eq!(
            read(&overlapping).unwrap_err(),
            "subnets 10.0.0.10-10.0.0.20 and 10.0.0.20-10.0.0.30 overlap"
        );
        let inner = set(&[wire("10.0.0.0/24", "10.0.0.12", "10.0.0.13", "")]);
        let outer = set(&[wire("10.0.0.0/24", "10.0.0.10", "10.0.0.20", "")]);
        assert!(inner.overlaps(&outer) && outer.overlaps(&inner));
        let beside = set(&[wire("10.0.0.0/24", "10.0.0.21", "", "")]);
        assert!(!beside.overlaps(&outer) && !outer.overlaps(&beside));
        assert!(!set(&[wire("fd00::/64", "", "", "")]).overlaps(&outer));
    }

    #[test]
    fn a_subnet_alone_says_everything() {
        for (subnet, range, gateway) in [
            ("10.1.2.0/24", "10.1.2.1-10.1.2.254", "10.1.2.1"),
            ("10.0.0.0/8", "10.0.0.1-10.255.255.254", "10.0.0.1"),
            ("0.0.0.0/0", "0.0.0.1-255.255.255.254", "0.0.0.1"),
            (
                "2001:db8::/64",
                "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff",
                "2001:db8::1",
            ),
            ("fd00::/126", "fd00::1-fd00::3", "fd00::1"),
            ("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
        ] {
            let set = set(&[wire(subnet, "", "", "")]);
            assert_eq!(set.to_string(), range);
            assert_eq!(set.0[0].gateway().to_string(), gateway);
            let first = Search::new(&set, None).next().unwrap();
            assert!(set.range_of(first).is_some() && !set.is_reserved(first));
        }
        // A gateway may be elsewhere.
        let elsewhere = set(&[wire("10.1.2.0/30", "", "", "10.9.9.9")]);
        assert_eq!(all(&elsewhere, None), ["10.1.2.1", "10.1.2.2"]);
    }

    // cni-plugins#41
    #[test]
    fn addresses_go_round() {
        let plain = set(&[wire("10.0.0.0/29", "", "", "")]);
        let five = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        assert_eq!(all(&plain, None), five);
        assert_eq!(
            all(&plain, Some("10.0.0.4")),
            ["10.0.0.5", "10.0.0.6", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        );
        assert_eq!(
            all(&plain, Some("10.0.0.6")),
            five,
            "the end is followed by the start"
        );
        assert_eq!(all(&plain, Some("10.0.0.7")), five, "outside of the set");
        assert_eq!(all(&plain, Some("fd00::1")), five, "of the other family");

        let several = set(&[
            wire("10.0.0.0/24", "10.0.0.10", "10.0.0.11", "10.0.0.1"),
            wire("10.1.0.0/24", "10.1.0.1", "10.1.0.3", ""),
            wire("10.0.0.0/24", "10.0.0.5", "10.0.0.5", "10.0.0.11"),
        ]);
        // The gateway of any range is nobody's address.
        assert_eq!(
            all(&several, None),
            ["10.0.0.10", "10.1.0.2", "10.1.0.3", "10.0.0.5"]
        );
        assert_eq!(
            all(&several, Some("10.1.0.2")),
            ["10.1.0.3", "10.0.0.5", "10.0.0.10", "10.1.0.2"]
        );
        // Not even where the range says so.
        let whole = set(&[wire("10.0.0.0/30", "10.0.0.0", "10.0.0.3", "10.0.0.2")]);
        assert_eq!(all(&whole, None), ["10.0.0.1"]);
        assert_eq!(
            all(&set(&[wire("10.0.0.0/24", "10.0.0.1", "10.0.0.1", "")]), None),
            [""; 0]
        );
        let end = set(&[wire("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126", "", "", "")]);
        assert_eq!(
            all(&end, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")).len(),
            2
        );
    }

    #[test]
    fn names_are_those_that_others_write() {
        for text in [
            "10.0.0.1",
            "2001:db8::1",
            "2001:db8:0:1::",
            "fd00::1:0:0:1",
            "::a00:1",
        ] {
            assert_eq!(parse_ip(text).unwrap().to_string(), text);
        }
        assert_eq!(parse_ip("::ffff:10.0.0.1").unwrap().to_string(), "10.0.0.1");
        assert_eq!(
            parse_ip("2001:DB8:0:0:0:0:0:1").unwrap().to_string(),
            "2001:db8::1"
        );
        assert_eq!(parse_ip("10.0.0.01"), None);
    }

    proptest! {
        // cni-plugins#41
        #[test]
        fn only_free_addresses_of_the_set_are_found(
            network in any::<u32>(), length in 20u8..=30, start in 0u32..4096, size in 0u32..4096,
            gateway in 0u32..4096, last in 0u32..4096, taken in prop::collection::btree_set(0u32..4096, 0..300),
        ) {
            let net = ipnet::Ipv4Net::new(network.into(), length).unwrap().trunc();
            let within = |offset: u32| Ipv4Addr::from(u32::from(net.network()) + offset % (1 << (32 - length)));
            let (start, end) = (within(start), within(start.saturating_add(size)));
            let range = wire(&net.to_string(), &start.to_string(), &end.to_string(), &within(gateway).to_string());
            prop_assume!(start <= end);
            let set = set(&[range]);
            let taken: BTreeSet<IpAddr> = taken.into_iter().map(|offset| within(offset).into()).collect();
            let free = |ip: &u32| {
                let ip = Ipv4Addr::from(*ip);
                ip != net.network() && ip != net.broadcast() && ip != within(gateway) && !taken.contains(&ip.into())
            };
            let expected = (u32::from(start)..=u32::from(end)).filter(free).count();
            let mut search = Search::new(&set, Some(within(last).into()));
            search.exclude(taken.clone());
            let mut found = BTreeSet::new();
            while let Some(next) = search.next() {
                search.exclude([next]);
                let IpAddr::V4(next) = next else { panic!("{next}") };
                prop_assert!(free(&next.into()) && start <= next && next <= end);
                prop_assert!(found.insert(next), "{next} twice");
            }
            prop_assert_eq!(found.len(), expected);
        }

        #[test]
        fn nothing_that_is_written_makes_it_panic(subnet in "[0-9a-f:./]{0,24}", start in "[0-9a-f:.]{0,20}", end in "\\PC{0,8}", gateway in "[0-9.]{0,12}") {
            if let Ok(set) = read(&[wire(&subnet, &start, &end, &gateway)]) {
                let _ = Search::new(&set, parse_ip(&start)).next();
            }
        }

        #[test]
        fn any_subnet_has_an_order(address in any::<u128>(), length in 0u8..=128) {
            let net = ipnet::Ipv6Net::new(address.into(), length).unwrap().trunc();
            if let Ok(set) = read(&[wire(&net.to_string(), "", "", "")]) {
                let first = Search::new(&set, None).next().unwrap();
                prop_assert!(set.range_of(first).is_some() && !set.is_reserved(first));
            }
        }
    }
}

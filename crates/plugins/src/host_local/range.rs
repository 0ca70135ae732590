//! Address ranges, stored as their ends so that a range may be a /8 or a /64.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use cni::net::parse_cidr;
use ipnet::IpNet;
use serde::Deserialize;

/// A range as in the config.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WireRange {
    range_start: String,
    range_end: String,
    subnet: Option<String>,
    gateway: String,
}

impl WireRange {
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

    /// Parses the values. [`RangeSet::new`] validates their combination.
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

/// A range before its validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    start: Option<IpAddr>,
    end: Option<IpAddr>,
    subnet: Option<IpNet>,
    gateway: Option<IpAddr>,
}

impl Draft {
    /// Whether the range has a subnet. Without one, the old keys of a single range are ignored.
    pub(super) fn has_subnet(&self) -> bool {
        self.subnet.is_some()
    }
}

/// A range of addresses in one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    gateway: IpAddr,
}

impl Range {
    /// Validates a range and sets its defaults (cni-plugins §6).
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

    /// The subnet of the addresses.
    pub(super) fn subnet(&self) -> IpNet {
        self.subnet
    }

    pub(super) fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// The first and the last address.
    pub(super) fn ends(&self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.first <= ip && ip <= self.last
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Addresses that are never leased, whatever the ends of the range: gateway, network and broadcast address.
    pub(super) fn reserved(&self) -> impl Iterator<Item = IpAddr> {
        let broadcast = matches!(self.subnet, IpNet::V4(_)).then(|| self.subnet.broadcast());
        [self.gateway, self.subnet.network()].into_iter().chain(broadcast)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Ranges of one family, of which an attachment gets one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Validates the ranges, and that they do not overlap.
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

    /// The ranges in the order of the config, at least one.
    pub(super) fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.first.is_ipv4())
    }

    /// Whether the sets share an address.
    pub(super) fn overlaps(&self, other: &RangeSet) -> bool {
        self.0
            .iter()
            .any(|one| other.0.iter().any(|range| one.overlaps(range)))
    }

    /// The range that contains an address.
    pub(super) fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether an address is the gateway of a range.
    pub(super) fn is_gateway(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.gateway == ip)
    }

    /// Whether an address is never leased.
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

/// Parses an address. An IPv4-mapped IPv6 address becomes IPv4.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// The next address. `None` after the last one of the family.
pub(super) fn successor(ip: IpAddr) -> Option<IpAddr> {
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
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn wire(subnet: &str, start: &str, end: &str, gateway: &str) -> WireRange {
        WireRange {
            range_start: start.into(),
            range_end: end.into(),
            subnet: Some(subnet.into()).filter(|subnet: &String| !subnet.is_empty()),
            gateway: gateway.into(),
        }
    }

    pub(in super::super) fn read(ranges: &[WireRange]) -> Result<RangeSet, String> {
        let drafts: Vec<Draft> = ranges.iter().map(WireRange::read).collect::<Result<_, _>>()?;
        RangeSet::new(&drafts)
    }

    pub(in super::super) fn set(ranges: &[WireRange]) -> RangeSet {
        read(ranges).unwrap()
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
    fn subnet_alone_defines_the_range() {
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
        }
    }

    #[test]
    fn names_match_other_implementations() {
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
}

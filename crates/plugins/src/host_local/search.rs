//! The search for the next address: pure, and based on intervals, so that large ranges and many leases stay cheap.

use std::{collections::BTreeSet, net::IpAddr};

use super::range::{Range, RangeSet, successor};

/// A round-robin search for a free address of a set: starts after the last leased one, through all ranges, back to
/// it.
#[derive(Debug)]
pub(super) struct Search {
    /// The remaining intervals, in search order.
    stretches: Vec<(IpAddr, IpAddr)>,
    unavailable: BTreeSet<IpAddr>,
}

impl Search {
    /// Starts after `last` if it is in the set, else at the first address.
    pub(super) fn new(set: &RangeSet, last: Option<IpAddr>) -> Self {
        let ranges = set.ranges();
        let position = last.and_then(|last| Some((ranges.iter().position(|r| r.contains(last))?, last)));
        let stretches = match position {
            None => ranges.iter().map(Range::ends).collect(),
            Some((index, last)) => {
                let range = &ranges[index];
                let (first, end) = range.ends();
                let rest = successor(last)
                    .filter(|next| range.contains(*next))
                    .map(|next| (next, end));
                let others = ranges[index + 1..]
                    .iter()
                    .chain(&ranges[..index])
                    .map(Range::ends);
                rest.into_iter().chain(others).chain([(first, last)]).collect()
            }
        };
        Search {
            stretches,
            unavailable: ranges.iter().flat_map(Range::reserved).collect(),
        }
    }

    /// Excludes addresses from the search.
    pub(super) fn exclude(&mut self, taken: impl IntoIterator<Item = IpAddr>) {
        self.unavailable.extend(taken);
    }

    /// The next free address. Unchanged until it is excluded.
    pub(super) fn next(&self) -> Option<IpAddr> {
        self.stretches
            .iter()
            .find_map(|(first, last)| first_free(*first, *last, &self.unavailable))
    }
}

/// The first available address from `first` to `last`.
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::{
        super::range::{
            parse_ip,
            tests::{read, set, wire},
        },
        *,
    };

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

    // cni-plugins#41
    #[test]
    fn addresses_rotate() {
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
        // Gateways of all ranges are never leased.
        assert_eq!(
            all(&several, None),
            ["10.0.0.10", "10.1.0.2", "10.1.0.3", "10.0.0.5"]
        );
        assert_eq!(
            all(&several, Some("10.1.0.2")),
            ["10.1.0.3", "10.0.0.5", "10.0.0.10", "10.1.0.2"]
        );
        // Not even if the range includes them.
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
    fn gateway_outside_the_range_is_accepted() {
        let elsewhere = set(&[wire("10.1.2.0/30", "", "", "10.9.9.9")]);
        assert_eq!(all(&elsewhere, None), ["10.1.2.1", "10.1.2.2"]);
    }

    proptest! {
        // cni-plugins#41
        #[test]
        fn only_free_addresses_of_the_set_are_found(
            network in any::<u32>(), length in 23u8..=30, start in 0u32..512, size in 0u32..512,
            gateway in 0u32..512, last in 0u32..512, taken in prop::collection::btree_set(0u32..512, 0..300),
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
        fn arbitrary_ranges_do_not_panic(subnet in "[0-9a-f:./]{0,24}", start in "[0-9a-f:.]{0,20}", end in "\\PC{0,8}", gateway in "[0-9.]{0,12}") {
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

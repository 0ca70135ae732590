//! Zones of PTR records for prefixes (secondary-dns §14).
//!
//! A prefix has one zone if it ends at a label of reverse names (8 bits, or 4 for IPv6). Otherwise the prefix has a
//! zone for each of its parts that ends at a label: no zone answers for an address outside of the prefix.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use ipnet::IpNet;

/// Minimum prefix lengths for reverse zones: whole networks of providers are no secondary networks.
const SHORTEST: (u8, u8) = (8, 16);

/// A reverse zone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reverse {
    /// Name of the zone, such as `1.10.in-addr.arpa`.
    pub origin: String,
    prefix: IpNet,
}

/// A prefix is too short.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("prefix {prefix} is shorter than /{limit}")]
pub struct TooShort {
    prefix: IpNet,
    limit: u8,
}

/// The zones of prefixes, without duplicates.
///
/// # Errors
/// If a prefix is too short.
pub fn zones(prefixes: &[IpNet]) -> Result<Vec<Reverse>, TooShort> {
    let mut zones: Vec<Reverse> = Vec::new();
    for prefix in prefixes {
        let (step, limit) = match prefix {
            IpNet::V4(_) => (8, SHORTEST.0),
            IpNet::V6(_) => (4, SHORTEST.1),
        };
        if prefix.prefix_len() < limit {
            return Err(TooShort {
                prefix: *prefix,
                limit,
            });
        }
        let length = prefix.prefix_len().div_ceil(step) * step;
        for part in prefix.trunc().subnets(length).into_iter().flatten() {
            let labels = usize::from(length / step);
            let origin = name(part.addr(), labels);
            if !zones.iter().any(|zone| zone.origin == origin) {
                zones.push(Reverse { origin, prefix: part });
            }
        }
    }
    Ok(zones)
}

impl Reverse {
    /// Name of an address below this zone, empty if the zone is this address alone; `None` if the address is in another
    /// zone.
    pub fn owner(&self, address: IpAddr) -> Option<String> {
        if !self.prefix.contains(&address) {
            return None;
        }
        let whole = match address {
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) => 32,
        };
        let name = name(address, whole);
        let owner = name.strip_suffix(&self.origin)?;
        Some(owner.strip_suffix('.').unwrap_or(owner).to_owned())
    }

    /// Name of the zone in messages. Never `None`, because the text is always a name.
    pub fn origin(&self) -> Option<Name> {
        Name::from_ascii(format!("{}.", self.origin)).ok()
    }
}

/// The reverse name of the first labels of an address.
fn name(address: IpAddr, labels: usize) -> String {
    match address {
        IpAddr::V4(address) => {
            let octets = address.octets();
            let labels: Vec<String> = octets.iter().take(labels).rev().map(u8::to_string).collect();
            format!("{}.in-addr.arpa", labels.join("."))
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            let digits = octets.iter().flat_map(|octet| [octet >> 4, octet & 15]);
            let digits: Vec<u8> = digits.take(labels).collect();
            let labels: Vec<String> = digits.iter().rev().map(|digit| format!("{digit:x}")).collect();
            format!("{}.ip6.arpa", labels.join("."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(prefixes: &[&str]) -> Vec<String> {
        let prefixes: Vec<IpNet> = prefixes.iter().map(|it| it.parse().unwrap()).collect();
        let zones = zones(&prefixes).unwrap();
        zones.into_iter().map(|zone| zone.origin).collect()
    }

    #[test]
    fn zones_cover_their_prefix_and_no_more() {
        assert_eq!(origins(&["10.0.0.0/8"]), ["10.in-addr.arpa"]);
        assert_eq!(origins(&["10.1.2.0/24", "10.1.2.7/24"]), ["2.1.10.in-addr.arpa"]);
        assert_eq!(
            origins(&["192.168.4.0/23"]),
            ["4.168.192.in-addr.arpa", "5.168.192.in-addr.arpa"]
        );
        assert_eq!(origins(&["fd00:1::/32"]), ["1.0.0.0.0.0.d.f.ip6.arpa"]);
        assert_eq!(
            origins(&["fd00::/19"]),
            ["0.0.0.d.f.ip6.arpa", "1.0.0.d.f.ip6.arpa"]
        );
    }

    #[test]
    fn prefixes_without_end_are_refused() {
        for (prefix, text) in [
            ("0.0.0.0/0", "prefix 0.0.0.0/0 is shorter than /8"),
            ("fd00::/8", "prefix fd00::/8 is shorter than /16"),
        ] {
            let error = zones(&[prefix.parse().unwrap()]).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn owners_of_addresses() {
        let zone = |prefix: &str| zones(&[prefix.parse().unwrap()]).unwrap().remove(0);
        let owner = |prefix: &str, address: &str| zone(prefix).owner(address.parse().unwrap());
        assert_eq!(owner("10.1.0.0/16", "10.1.2.3").as_deref(), Some("3.2"));
        assert_eq!(owner("10.1.0.0/16", "10.2.2.3"), None);
        assert_eq!(owner("10.1.0.0/16", "fd00::1"), None);
        assert_eq!(
            owner("fd00::/64", "fd00::1f").as_deref(),
            Some("f.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0")
        );
        assert_eq!(owner("10.1.2.3/32", "10.1.2.3").as_deref(), Some(""));
    }
}

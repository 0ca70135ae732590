//! Addresses that a user requests on the primary network (kubevirt-ipam §6.5).

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::messages;

/// The cause of a refused request. The specification fixes the texts.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum InvalidRequest {
    /// The annotation is no JSON object of lists of strings. The text is the parser's.
    #[error("{0}")]
    Json(String),
    /// An entry of the network's `subnets` is no subnet.
    #[error("invalid subnet format: {0}")]
    Subnet(String),
    /// A request for IPv4 on a network without IPv4 subnets.
    #[error("no IPv4 subnet configured for IPv4 IP request: {0}")]
    NoIpv4(String),
    /// A request for IPv6 on a network without IPv6 subnets.
    #[error("no IPv6 subnet configured for IPv6 IP request: {0}")]
    NoIpv6(String),
    /// The text is no address.
    #[error("invalid IP address format: {0}")]
    Address(String),
}

/// Addresses that the annotation of an instance requests on an interface, each with the prefix length of the network's
/// first subnet of its family. An address keeps its text. A subnet need not contain the address: see [`outside`].
///
/// # Errors
/// If annotation, subnets or an address cannot be read, or the network has no subnet of an address's family.
pub(crate) fn requested(
    annotation: Option<&str>,
    subnets: &str,
    interface: &str,
) -> Result<Vec<String>, InvalidRequest> {
    if annotation.is_none() {
        return Ok(Vec::new());
    }
    let addresses = addresses_of(annotation, interface)?;
    let subnets = subnets
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty());
    let parse = |entry: &str| {
        let subnet: Result<IpNet, _> = entry.parse();
        subnet.map_err(|_| InvalidRequest::Subnet(messages::excerpt(entry.to_owned())))
    };
    let subnets: Vec<IpNet> = subnets.map(parse).collect::<Result<_, _>>()?;
    let prefix = |is_ipv4: bool| {
        let mut of_family = subnets.iter().filter(|net| net.addr().is_ipv4() == is_ipv4);
        of_family.next().map(IpNet::prefix_len)
    };
    let with_prefix = |text: String| {
        let Ok(address) = text.parse::<IpAddr>() else {
            return Err(InvalidRequest::Address(messages::excerpt(text)));
        };
        let is_ipv4 = address.to_canonical().is_ipv4();
        match prefix(is_ipv4) {
            Some(length) => Ok(format!("{text}/{length}")),
            None if is_ipv4 => Err(InvalidRequest::NoIpv4(text)),
            None => Err(InvalidRequest::NoIpv6(text)),
        }
    };
    addresses.into_iter().map(with_prefix).collect()
}

/// Addresses that the annotation of an instance requests on an interface, and that none of the network's subnets
/// contains. Empty if annotation, subnets or an address cannot be read: [`requested`] refuses those.
pub(crate) fn outside(annotation: Option<&str>, subnets: &str, interface: &str) -> Vec<IpAddr> {
    let Ok(addresses) = requested(annotation, subnets, interface) else {
        return Vec::new();
    };
    let subnets: Vec<IpNet> = subnets
        .split(',')
        .filter_map(|entry| entry.trim().parse().ok())
        .collect();
    let address = |text: &String| text.split('/').next()?.parse::<IpAddr>().ok();
    let is_outside = |address: &IpAddr| !subnets.iter().any(|subnet| subnet.contains(address));
    addresses
        .iter()
        .filter_map(address)
        .map(|address| address.to_canonical())
        .filter(is_outside)
        .collect()
}

/// Addresses that the annotation of an instance requests on an interface, with their original text.
///
/// # Errors
/// If the annotation cannot be read.
pub(crate) fn addresses_of(annotation: Option<&str>, interface: &str) -> Result<Vec<String>, InvalidRequest> {
    let Some(annotation) = annotation else {
        return Ok(Vec::new());
    };
    let mut asked: HashMap<String, Option<Vec<String>>> = serde_json::from_str(annotation)
        .map_err(|error| InvalidRequest::Json(messages::excerpt(error.to_string())))?;
    Ok(asked.remove(interface).flatten().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "192.168.0.0/16,fd12:1234::123/64";

    fn ask(addresses: &[&str], subnets: &str) -> Result<Vec<String>, String> {
        let annotation = serde_json::json!({ "podnet": addresses }).to_string();
        requested(Some(&annotation), subnets, "podnet").map_err(|error| error.to_string())
    }

    #[test]
    fn families_get_the_prefix_of_their_first_subnet() {
        // kubevirt-ipam#35
        let subnets = "192.168.0.0/16,10.0.0.0/8,fd12:1234::/64,fd34:5678::/48";
        assert_eq!(
            ask(&["192.168.1.10", "fd34:5678::1", "10.0.0.1"], subnets),
            Ok(vec![
                "192.168.1.10/16".to_owned(),
                "fd34:5678::1/64".to_owned(),
                "10.0.0.1/16".to_owned()
            ])
        );
    }

    #[test]
    fn blanks_and_empty_items_of_subnets_are_ignored() {
        // kubevirt-ipam#36
        let subnets = " ,, 192.168.0.0/16 , ,fd12::/64,";
        assert_eq!(
            ask(&["192.168.1.1"], subnets),
            Ok(vec!["192.168.1.1/16".to_owned()])
        );
        assert_eq!(
            ask(&["::ffff:192.168.1.1"], subnets),
            Ok(vec!["::ffff:192.168.1.1/16".to_owned()])
        );
    }

    #[test]
    fn family_without_a_subnet_is_refused() {
        // kubevirt-ipam#32
        assert_eq!(
            ask(&["192.168.1.1"], "fd12::/64").unwrap_err(),
            "no IPv4 subnet configured for IPv4 IP request: 192.168.1.1"
        );
        assert_eq!(
            ask(&["fd12::1"], "192.168.0.0/16").unwrap_err(),
            "no IPv6 subnet configured for IPv6 IP request: fd12::1"
        );
    }

    #[test]
    fn text_that_is_no_address_is_refused() {
        // kubevirt-ipam#33
        for address in [
            "not.an.ip.address",
            "192.168.1.1/16",
            "",
            "fe80::1%eth0",
            "192.168.01.1",
        ] {
            assert_eq!(
                ask(&[address], BOTH).unwrap_err(),
                format!("invalid IP address format: {address}")
            );
        }
    }

    #[test]
    fn address_in_no_subnet_is_outside() {
        // kubevirt-ipam#107, the decision
        let outside = |addresses: &[&str], subnets| {
            let annotation = serde_json::json!({ "podnet": addresses }).to_string();
            let outside = outside(Some(&annotation), subnets, "podnet");
            outside.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let inside = ["192.168.255.1", "fd12:1234::1", "::ffff:192.168.1.1"];
        assert!(outside(&inside, BOTH).is_empty());
        let others = ["192.169.0.1", "fd20:1234::200", "192.168.0.1", "::ffff:10.0.0.1"];
        assert_eq!(
            outside(&others, BOTH),
            ["192.169.0.1", "fd20:1234::200", "10.0.0.1"]
        );
        assert!(outside(&["10.0.0.1"], "192.168.0.0/16, 10.0.0.0/8").is_empty());
        for refused in ["x", ""] {
            assert!(outside(&[refused], BOTH).is_empty());
        }
    }

    #[test]
    fn subnets_count_only_with_a_request() {
        // kubevirt-ipam#34
        assert_eq!(
            ask(&["192.168.1.1"], "192.168.0.0").unwrap_err(),
            "invalid subnet format: 192.168.0.0"
        );
        assert_eq!(requested(None, "192.168.0.0", "podnet"), Ok(Vec::new()));
    }

    #[test]
    fn other_interfaces_are_not_meant() {
        // kubevirt-ipam#37
        assert_eq!(
            requested(Some(r#"{"other": ["192.168.1.1"]}"#), BOTH, "podnet"),
            Ok(Vec::new())
        );
        assert_eq!(
            requested(Some(r#"{"podnet": null}"#), BOTH, "podnet"),
            Ok(Vec::new())
        );
    }

    #[test]
    fn malformed_annotation_is_refused() {
        // kubevirt-ipam#31
        for text in [
            "invalid json",
            "[]",
            r#"{"podnet": "192.168.1.1"}"#,
            r#"{"podnet": [1]}"#,
        ] {
            let error = requested(Some(text), BOTH, "podnet");
            assert!(matches!(error, Err(InvalidRequest::Json(_))), "{text}: {error:?}");
        }
    }
}

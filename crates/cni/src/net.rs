//! Parses addresses with a prefix length as strictly as Go (multus §0).

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// Parses `address/prefix`. `IpNet` itself is not used, because it accepts leading zeros in IPv4 octets, which other
/// programs read as octal numbers.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    // `parse` would accept a sign.
    let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let length = prefix.parse().ok().filter(|_| digits)?;
    IpNet::new(address, length).ok()
}

/// [`parse_cidr`] for `serde(deserialize_with)`.
pub fn deserialize_cidr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_cidr(&text).ok_or_else(|| serde::de::Error::custom(format!("invalid CIDR address: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_and_lengths_are_read() {
        for text in ["10.1.1.2/24", "0.0.0.0/0", "fd00::1/128", "::/0"] {
            assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), Some(text));
        }
        for text in [
            "10.01.1.2/24",
            "10.1.1.2",
            "10.1.1.2/",
            "10.1.1.2/+8",
            "10.1.1.2/33",
            "fd00::1/129",
            "/8",
            "",
        ] {
            assert_eq!(parse_cidr(text), None, "{text}");
        }
    }
}

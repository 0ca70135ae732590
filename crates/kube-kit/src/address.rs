//! Addresses of servers in flags, variables and objects: a host and a port.

/// Splits `host:port`. Removes the brackets of an IPv6 address. The host may be empty. `None` without a port, and for an
/// IPv6 address without brackets, whose port would be ambiguous.
pub fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match host.strip_prefix('[') {
        Some(rest) => {
            let host = rest.strip_suffix(']').filter(|host| !host.is_empty())?;
            Some((host, port))
        }
        None => (!host.contains(':')).then_some((host, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_host_and_a_port() {
        for (address, expected) in [
            ("127.0.0.1:8443", Some(("127.0.0.1", 8443))),
            ("api.example.com:443", Some(("api.example.com", 443))),
            ("[fd00::1]:6443", Some(("fd00::1", 6443))),
            (":80", Some(("", 80))),
            ("host", None),
            ("host:", None),
            ("host:x", None),
            ("host:65536", None),
            ("fd00::1:6443", None),
            ("[fd00::1:6443", None),
            ("[fd00::1]", None),
            ("[]:1", None),
        ] {
            assert_eq!(split(address), expected, "{address}");
        }
    }
}

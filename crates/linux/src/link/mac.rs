//! Ethernet addresses.

use std::{fmt, str::FromStr};

/// Bits of the first byte.
const MULTICAST: u8 = 1;
const LOCAL: u8 = 2;

/// An Ethernet address. Printed in lower case with colons; parsed from the three usual notations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// The text is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address {0}: invalid MAC address")]
pub struct InvalidMac(pub String);

impl Mac {
    /// Returns a random locally administered address, like the kernel's for virtual devices.
    pub fn random() -> crate::Result<Self> {
        let mut bytes: [u8; 6] = crate::random::bytes()?;
        bytes[0] = bytes[0] & !MULTICAST | LOCAL;
        Ok(Mac(bytes))
    }

    /// The address is `00:00:00:00:00:00`, as on a bridge that lost its last port.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl FromStr for Mac {
    type Err = InvalidMac;

    /// Accepts `00:11:22:aa:bb:cc`, `00-11-22-AA-BB-CC` and `0011.22aa.bbcc`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Mac).ok_or_else(|| InvalidMac(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<[u8; 6]> {
    let (separator, digits) = match text.as_bytes().get(2)? {
        b':' => (':', 2),
        b'-' => ('-', 2),
        _ => ('.', 4),
    };
    let mut bytes = [0; 6];
    let mut place = bytes.iter_mut();
    for group in text.split(separator) {
        if group.len() != digits || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for start in (0..digits).step_by(2) {
            *place.next()? = u8::from_str_radix(&group[start..start + 2], 16).ok()?;
        }
    }
    place.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_notations_are_parsed_and_one_is_printed() {
        for text in ["02:1a:2B:3c:4d:5e", "02-1a-2b-3c-4d-5e", "021a.2b3c.4d5e"] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(mac.to_string(), "02:1a:2b:3c:4d:5e", "{text}");
        }
    }

    #[test]
    fn random_address_is_local_and_unicast() {
        for _ in 0..50 {
            let mac = Mac::random().unwrap();
            assert_eq!(mac.0[0] & 3, 2, "{mac}");
        }
        assert!(Mac([0; 6]).is_zero());
    }

    #[test]
    fn other_text_is_refused_and_named() {
        for text in [
            "",
            "02",
            "02:1a:2b:3c:4d",
            "02:1a:2b:3c:4d:5e:6f",
            "2:1a:2b:3c:4d:5e",
            "02:1a:2b:3c:4d:5g",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(InvalidMac(text.to_owned())));
        }
        assert_eq!(
            "xx".parse::<Mac>().unwrap_err().to_string(),
            "address xx: invalid MAC address"
        );
    }
}

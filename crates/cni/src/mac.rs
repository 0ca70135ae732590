//! Hardware addresses in one form, however they were written.

use std::fmt;

/// A hardware address of 6, 8 or 20 octets. Displayed in lower case with colons.
///
/// The addresses of links are `linux::link::Mac`, which has exactly six octets.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mac {
    length: u8,
    octets: [u8; Self::LONGEST],
}

/// A text is no hardware address. Displayed as Go's `net.ParseMAC` does.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}invalid MAC address", if .0.is_empty() { String::new() } else { format!("address {}: ", .0) })]
pub struct InvalidMac(String);

impl Mac {
    const LONGEST: usize = 20;
    const ETHERNET: usize = 6;

    /// Parses 6, 8 or 20 octets, written `aa:bb:..`, `aa-bb-..` or `aabb.ccdd...` in either letter case
    /// (`docs/behaviour/multus.md` §0).
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(text: &str) -> Result<Self, InvalidMac> {
        parse(text.as_bytes()).ok_or_else(|| InvalidMac(text.to_owned()))
    }

    /// The Ethernet address with the low 48 bits of a number.
    pub fn from_number(number: u64) -> Self {
        let mut octets = [0; Self::LONGEST];
        octets[..Self::ETHERNET].copy_from_slice(&number.to_be_bytes()[2..]);
        Self { length: 6, octets }
    }

    /// An Ethernet address as a number; `None` for longer addresses.
    pub fn number(self) -> Option<u64> {
        (usize::from(self.length) == Self::ETHERNET).then(|| {
            self.octets[..Self::ETHERNET]
                .iter()
                .fold(0, |number, octet| number << 8 | u64::from(*octet))
        })
    }

    /// The first octet, which distinguishes multicast from unicast.
    pub fn first_octet(self) -> u8 {
        self.octets[0]
    }

    /// Whether this is a multicast address.
    pub fn is_multicast(self) -> bool {
        self.first_octet() & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.octets[..usize::from(self.length)].iter().enumerate() {
            let colon = if index > 0 { ":" } else { "" };
            write!(f, "{colon}{octet:02x}")?;
        }
        Ok(())
    }
}

/// All separators must equal the first.
fn parse(text: &[u8]) -> Option<Mac> {
    let (separator, digits) = match (text.get(2), text.get(4)) {
        (Some(separator @ (b':' | b'-')), _) => (*separator, 2),
        (_, Some(b'.')) => (b'.', 4),
        _ => return None,
    };
    let mut octets = [0; Mac::LONGEST];
    let mut length = 0;
    for group in text.split(|byte| *byte == separator) {
        if group.len() != digits {
            return None;
        }
        for pair in group.chunks(2) {
            *octets.get_mut(usize::from(length))? = pair
                .iter()
                .try_fold(0, |value, digit| Some(value << 4 | nibble(*digit)?))?;
            length += 1;
        }
    }
    matches!(length, 6 | 8 | 20).then_some(Mac { length, octets })
}

fn nibble(digit: u8) -> Option<u8> {
    u8::try_from(char::from(digit).to_digit(16)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // kubemacpool#8
    #[test]
    fn notations_of_an_address_are_equal() {
        let canonical = "00:00:5e:00:53:01";
        for text in [
            "00-00-5E-00-53-01",
            "0000.5e00.5301",
            "00:00:5e:00:53:01",
            "0000.5E00.5301",
        ] {
            let mac = Mac::parse(text).unwrap();
            assert_eq!(mac, Mac::parse(canonical).unwrap(), "{text}");
            assert_eq!(mac.to_string(), canonical, "{text}");
        }
    }

    // kubemacpool#8
    #[test]
    fn longer_addresses_are_normalized() {
        let long = [
            ("02-00-5E-10-00-00-00-01", "02:00:5e:10:00:00:00:01"),
            ("0200.5E10.0000.0001", "02:00:5e:10:00:00:00:01"),
            (
                "0000.0000.FE80.0000.0000.0000.0200.5E10.0000.0001",
                "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01",
            ),
        ];
        for (text, canonical) in long {
            let mac = Mac::parse(text).unwrap();
            assert_eq!(mac.to_string(), canonical);
            assert_eq!(mac, Mac::parse(canonical).unwrap());
            assert_eq!(mac.number(), None);
        }
        let beginnings =
            ["02:00:5e:10:00:00", "02:00:5e:10:00:00:00:00"].map(|text| Mac::parse(text).unwrap());
        assert_ne!(beginnings[0], beginnings[1], "a longer address is another one");
    }

    #[test]
    fn invalid_address_is_refused_with_its_text() {
        for text in [
            "zz",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00-00:00:00:00",
            "2:0:0:0:0:0",
            "02:00:00:00:00:0g",
            "020000000000",
            " 02:00:00:00:00:00",
            "02:00:00:00:00:00:",
            "02:00:00:00:00:+1",
            "0200.0000.00",
            "0200.0000",
            "02000000.0000",
            "éé:éé:é",
            &vec!["00"; 21].join(":"),
        ] {
            let error = Mac::parse(text).unwrap_err();
            assert_eq!(error.to_string(), format!("address {text}: invalid MAC address"));
        }
        assert_eq!(Mac::parse("").unwrap_err().to_string(), "invalid MAC address");
    }

    #[test]
    fn ethernet_address_converts_to_number() {
        let mac = Mac::parse("02:00:00:00:01:ff").unwrap();
        assert_eq!(mac.number(), Some(0x0200_0000_01ff));
        assert_eq!(Mac::from_number(0x0200_0000_01ff), mac);
    }

    #[test]
    fn multicast_bit_is_lowest_of_first_octet() {
        for (text, multicast) in [
            ("02:00:00:00:00:00", false),
            ("03:00:00:00:00:00", true),
            ("fe:01:01:01:01:01", false),
            ("ff:ff:ff:ff:ff:ff", true),
        ] {
            assert_eq!(Mac::parse(text).unwrap().is_multicast(), multicast, "{text}");
        }
    }
}

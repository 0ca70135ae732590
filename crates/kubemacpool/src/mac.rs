//! Hardware addresses in one form, whatever they were written like (kubemacpool §4.1).

use std::fmt;

/// An address of 6, 8 or 20 octets. Shown in lower case with colons.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mac {
    length: u8,
    octets: [u8; Self::LONGEST],
}

/// A text that is no address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}invalid MAC address", if .0.is_empty() { String::new() } else { format!("address {}: ", .0) })]
pub struct InvalidMac(String);

impl Mac {
    const LONGEST: usize = 20;
    const ETHERNET: usize = 6;

    /// Reads any of the accepted forms: 6, 8 or 20 octets, two digits a group with `:` or `-`, or four with `.`.
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(text: &str) -> Result<Self, InvalidMac> {
        let parsed = cni::mac::parse(text).map_err(|_| InvalidMac(text.to_owned()))?;
        let mut octets = [0; Self::LONGEST];
        let length = u8::try_from(parsed.len()).map_err(|_| InvalidMac(text.to_owned()))?;
        for (octet, parsed) in octets.iter_mut().zip(parsed) {
            *octet = parsed;
        }
        Ok(Self { length, octets })
    }

    /// The Ethernet address of the low 48 bits of a number.
    pub fn from_number(number: u64) -> Self {
        let mut octets = [0; Self::LONGEST];
        octets[..Self::ETHERNET].copy_from_slice(&number.to_be_bytes()[2..]);
        Self { length: 6, octets }
    }

    /// An Ethernet address as a number; nothing for longer addresses.
    pub fn number(self) -> Option<u64> {
        (usize::from(self.length) == Self::ETHERNET).then(|| {
            self.octets[..Self::ETHERNET]
                .iter()
                .fold(0, |number, octet| number << 8 | u64::from(*octet))
        })
    }

    /// The first octet, which tells multicast from unicast.
    pub fn first_octet(self) -> u8 {
        self.octets[0]
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

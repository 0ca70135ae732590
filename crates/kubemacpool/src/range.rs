//! The addresses that may be handed out (kubemacpool §4.2).

use crate::mac::Mac;

/// From the first to the last address, both included; two at least, Ethernet, both ends unicast.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    start: u64,
    end: u64,
}

/// Why two addresses make no range.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidRange {
    /// The first is not below the last, or one of them is no Ethernet address.
    #[error("invalid range. rangeStart: {0} rangeEnd: {1}")]
    Order(Mac, Mac),
    /// An end is a multicast address.
    #[error(
        "invalid range {end}: invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
         used. The first octet is 0X{:X}", .mac.first_octet()
    )]
    Multicast {
        /// `start` or `end`.
        end: &'static str,
        /// The address.
        mac: Mac,
    },
}

impl Range {
    /// Checks the ends.
    ///
    /// # Errors
    /// When they make no range; the first error counts.
    pub fn new(start: Mac, end: Mac) -> Result<Self, InvalidRange> {
        let order = || InvalidRange::Order(start, end);
        let range = Self {
            start: start.number().ok_or_else(order)?,
            end: end.number().ok_or_else(order)?,
        };
        if range.start >= range.end {
            return Err(order());
        }
        for (name, mac) in [("start", start), ("end", end)] {
            if mac.first_octet() & 1 == 1 {
                return Err(InvalidRange::Multicast { end: name, mac });
            }
        }
        Ok(range)
    }

    /// The first address.
    pub fn start(&self) -> Mac {
        Mac::from_number(self.start)
    }

    /// The last address.
    pub fn end(&self) -> Mac {
        Mac::from_number(self.end)
    }
}

impl Range {
    /// How many addresses there are, multicast ones included.
    pub fn size(&self) -> u64 {
        self.end - self.start + 1
    }

    /// A place in the range that a random number stands for.
    pub fn place(&self, random: u64) -> u64 {
        self.start + random % self.size()
    }

    /// The address behind another one; behind the last comes the first.
    pub fn after(&self, address: u64) -> u64 {
        if address >= self.end {
            self.start
        } else {
            address + 1
        }
    }

    /// Whether an address may be handed out: no multicast, nothing that is known to be in use elsewhere.
    #[allow(clippy::unused_self, reason = "reserved addresses are to come")]
    pub fn may_hand_out(&self, mac: Mac) -> bool {
        mac.first_octet() & 1 == 0
    }
}

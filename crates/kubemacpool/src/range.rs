//! Ranges of allocatable addresses (kubemacpool §4.2).
//!
//! ```text
//! 02:00:00:00:00:00 ── 02:ff:ff:ff:ff:ff │ 03:.. multicast │ 04:00:00:00:00:00 ── 04:ff:.. │ 05:.. │ 06:..
//! reserved, the very first                 skipped at once
//! ```

use cni::mac::Mac;

/// Number of addresses with one first octet.
const BLOCK: u64 = 1 << 40;
/// Number of all addresses.
const ALL: u64 = 1 << 48;
/// The zero address, which no interface can have.
const ZERO: u64 = 0;
/// The address that `KubeVirt` gives to the bridge in each virtual machine's pod.
const KUBEVIRT_BRIDGE: u64 = 0x0200_0000_0000;
/// In a range of at most this size, users rely on each address.
const SMALL_RANGE: u64 = 256;

/// A range of unicast Ethernet addresses, including both ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    start: u64,
    end: u64,
    /// Whether the reserved address is allocatable too: see [`SMALL_RANGE`].
    counted: bool,
}

/// Two addresses form no range.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidRange {
    /// The first one is not below the last one, or one of them is no Ethernet address.
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

/// A range cannot be divided as requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoShare {
    /// The range has fewer addresses than parts.
    #[error("the range {start} - {end} has too few addresses for {replicas} replicas")]
    TooSmall {
        /// First address of the range.
        start: Mac,
        /// Last address of the range.
        end: Mac,
        /// Number of parts.
        replicas: u64,
    },
    /// The part does not exist.
    #[error("there is no replica {ordinal} of {replicas}: they count from 0")]
    Ordinal {
        /// Requested part.
        ordinal: u64,
        /// Number of parts.
        replicas: u64,
    },
}

impl Range {
    /// Checks the ends.
    ///
    /// # Errors
    /// If they form no range; the first error counts.
    pub fn new(start: Mac, end: Mac) -> Result<Self, InvalidRange> {
        let order = || InvalidRange::Order(start, end);
        let (first, last) = (start.number().ok_or_else(order)?, end.number().ok_or_else(order)?);
        if first >= last {
            return Err(order());
        }
        for (name, mac) in [("start", start), ("end", end)] {
            if mac.is_multicast() {
                return Err(InvalidRange::Multicast { end: name, mac });
            }
        }
        Ok(Self {
            start: first,
            end: last,
            counted: last - first < SMALL_RANGE,
        })
    }

    /// The part of the range that one of several replicas allocates from. The parts have equal size (plus or minus
    /// one), follow one another and never overlap. Ordinals count from 0.
    ///
    /// # Errors
    /// If the replica does not exist, or there are fewer addresses than replicas.
    pub fn share(&self, ordinal: u64, replicas: u64) -> Result<Self, NoShare> {
        if ordinal >= replicas {
            return Err(NoShare::Ordinal { ordinal, replicas });
        }
        let unicast = self.unicast();
        if unicast < replicas {
            return Err(NoShare::TooSmall {
                start: self.start(),
                end: self.end(),
                replicas,
            });
        }
        // This cannot overflow: there are fewer than 2^48 addresses, and so fewer than 2^48 replicas. The remainder
        // goes to the first ones.
        let (each, more) = (unicast / replicas, unicast % replicas);
        let begin = |ordinal: u64| each * ordinal + ordinal.min(more);
        Ok(Self {
            start: self.unicast_at(begin(ordinal)),
            end: self.unicast_at(begin(ordinal + 1) - 1),
            counted: self.counted,
        })
    }

    /// The first address.
    pub fn start(&self) -> Mac {
        Mac::from_number(self.start)
    }

    /// The last address.
    pub fn end(&self) -> Mac {
        Mac::from_number(self.end)
    }

    /// Number of addresses from the first to the last, including those that are never allocated.
    pub fn size(&self) -> u64 {
        self.end - self.start + 1
    }

    /// Number of allocatable addresses.
    pub fn usable(&self) -> u64 {
        let reserved = [ZERO, KUBEVIRT_BRIDGE].into_iter();
        let reserved = reserved.filter(|address| self.has(*address) && self.is_reserved(*address));
        self.unicast() - reserved.count() as u64
    }

    /// Whether an address is allocatable: it is in the range, unicast, and not reserved.
    pub fn may_hand_out(&self, mac: Mac) -> bool {
        mac.number()
            .is_some_and(|address| self.has(address) && self.reserved_until(address).is_none())
    }

    /// Maps a random number to a uniformly distributed address in the range.
    pub(crate) fn place(&self, random: u64) -> u64 {
        self.unicast_at(random % self.unicast())
    }

    /// The address after another one; the first one after the last.
    pub(crate) fn after(&self, address: u64) -> u64 {
        let next = successor(address);
        if self.has(next) { next } else { self.start }
    }

    /// The first allocatable address in a part of the range. `taken` returns the last address of the taken run that an
    /// address belongs to, so that addresses are not tried one by one.
    pub(crate) fn first_free(
        &self,
        (from, to): (u64, u64),
        taken: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let mut candidate = from;
        while candidate <= to {
            match self.reserved_until(candidate).or_else(|| taken(candidate)) {
                Some(last) => candidate = last + 1,
                None => return Some(candidate),
            }
        }
        None
    }

    /// Both ends as numbers.
    pub(crate) fn ends(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    fn has(&self, address: u64) -> bool {
        (self.start..=self.end).contains(&address)
    }

    /// For an address that is not allocatable: the last one of its run.
    fn reserved_until(&self, address: u64) -> Option<u64> {
        if is_multicast(address) {
            return Some(address | (BLOCK - 1));
        }
        self.is_reserved(address).then_some(address)
    }

    fn is_reserved(&self, address: u64) -> bool {
        address == ZERO || address == KUBEVIRT_BRIDGE && !self.counted
    }

    fn unicast(&self) -> u64 {
        unicast_below(self.end + 1) - unicast_below(self.start)
    }

    /// The unicast address of the range with this index, from 0.
    fn unicast_at(&self, number: u64) -> u64 {
        let number = unicast_below(self.start) + number;
        number / BLOCK * 2 * BLOCK + number % BLOCK
    }
}

fn is_multicast(address: u64) -> bool {
    address & BLOCK != 0
}

/// Number of unicast addresses below an address: every second block.
fn unicast_below(address: u64) -> u64 {
    address / (2 * BLOCK) * BLOCK + (address % (2 * BLOCK)).min(BLOCK)
}

/// The next address; zero after the last one.
fn successor(address: u64) -> u64 {
    (address + 1) % ALL
}

#[cfg(test)]
mod tests;

//! The addresses that may be handed out (kubemacpool §4.2).
//!
//! ```text
//! 02:00:00:00:00:00 ── 02:ff:ff:ff:ff:ff │ 03:.. multicast │ 04:00:00:00:00:00 ── 04:ff:.. │ 05:.. │ 06:..
//! reserved, the very first                 stepped over at once
//! ```

use crate::mac::Mac;

/// Addresses with one first octet.
const BLOCK: u64 = 1 << 40;
/// Every address there is.
const ALL: u64 = 1 << 48;
/// No interface can have it.
const NOTHING: u64 = 0;
/// What `KubeVirt` gives to the bridge in each virtual machine's pod.
const KUBEVIRT_BRIDGE: u64 = 0x0200_0000_0000;
/// Whoever sets a range of up to this many addresses counts on each of them.
const COUNTED: u64 = 256;

/// From the first to the last address, both included; Ethernet, both ends unicast.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    start: u64,
    end: u64,
    /// Every address counts, reserved or not: see [`COUNTED`].
    counted: bool,
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

/// A range cannot be cut as asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoShare {
    /// There are fewer addresses than parts.
    #[error("the range {start} - {end} has too few addresses for {replicas} replicas")]
    TooSmall {
        /// First address of the range.
        start: Mac,
        /// Last address of the range.
        end: Mac,
        /// How many parts there were to be.
        replicas: u64,
    },
    /// There is no such part.
    #[error("there is no replica {ordinal} of {replicas}: they count from 0")]
    Ordinal {
        /// The part asked for.
        ordinal: u64,
        /// How many parts there are.
        replicas: u64,
    },
}

impl Range {
    /// Checks the ends.
    ///
    /// # Errors
    /// When they make no range; the first error counts.
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
            counted: last - first < COUNTED,
        })
    }

    /// The part of the range that one of several replicas hands out of: parts of equal size (to one address) that
    /// follow one another and never overlap. Ordinals count from 0.
    ///
    /// # Errors
    /// When there is no such replica, or when there are fewer addresses than replicas.
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
        // Neither overflows: there are fewer than 2^48 addresses, so there are fewer than 2^48 replicas; the remainder
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

    /// How many addresses there are from the first to the last, those included that are never handed out.
    pub fn size(&self) -> u64 {
        self.end - self.start + 1
    }

    /// How many addresses can be handed out.
    pub fn usable(&self) -> u64 {
        let reserved = [NOTHING, KUBEVIRT_BRIDGE].into_iter();
        let reserved = reserved.filter(|address| self.has(*address) && self.is_reserved(*address));
        self.unicast() - reserved.count() as u64
    }

    /// Whether an address may be handed out: it lies in the range, is no multicast address and none that is known to be
    /// in use elsewhere.
    pub fn may_hand_out(&self, mac: Mac) -> bool {
        mac.number()
            .is_some_and(|address| self.has(address) && self.barred_until(address).is_none())
    }

    /// A place in the range that a random number stands for, each as likely as any other.
    pub(crate) fn place(&self, random: u64) -> u64 {
        self.unicast_at(random % self.unicast())
    }

    /// The address behind another one; behind the last comes the first.
    pub(crate) fn after(&self, address: u64) -> u64 {
        let next = successor(address);
        if self.has(next) { next } else { self.start }
    }

    /// The first address in a part of the range that may be handed out. `taken` tells of an address that is taken up to
    /// where all are taken, itself at least; so nothing is tried one by one.
    pub(crate) fn first_free(
        &self,
        (from, to): (u64, u64),
        taken: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let mut candidate = from;
        while candidate <= to {
            match self.barred_until(candidate).or_else(|| taken(candidate)) {
                Some(last) => candidate = last + 1,
                None => return Some(candidate),
            }
        }
        None
    }

    /// Both ends, as numbers.
    pub(crate) fn ends(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    fn has(&self, address: u64) -> bool {
        (self.start..=self.end).contains(&address)
    }

    /// Of an address that must not be handed out: the last one of those from there on.
    fn barred_until(&self, address: u64) -> Option<u64> {
        if is_multicast(address) {
            return Some(address | (BLOCK - 1));
        }
        self.is_reserved(address).then_some(address)
    }

    fn is_reserved(&self, address: u64) -> bool {
        address == NOTHING || address == KUBEVIRT_BRIDGE && !self.counted
    }

    fn unicast(&self) -> u64 {
        unicast_below(self.end + 1) - unicast_below(self.start)
    }

    /// The unicast address of the range with this number, counted from 0.
    fn unicast_at(&self, number: u64) -> u64 {
        let number = unicast_below(self.start) + number;
        number / BLOCK * 2 * BLOCK + number % BLOCK
    }
}

fn is_multicast(address: u64) -> bool {
    address & BLOCK != 0
}

/// How many unicast addresses lie below an address: every second block of them.
fn unicast_below(address: u64) -> u64 {
    address / (2 * BLOCK) * BLOCK + (address % (2 * BLOCK)).min(BLOCK)
}

/// The next of all addresses; behind the very last comes the very first.
fn successor(address: u64) -> u64 {
    (address + 1) % ALL
}

#[cfg(test)]
mod tests;

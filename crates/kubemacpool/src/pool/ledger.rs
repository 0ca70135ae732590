//! The holders of each address in the order in which they took it, and their numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cni::mac::Mac;

use super::objects::{Kind, Owner, Usage};
use super::runs::Runs;
use crate::range::Range;

/// A holder of an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Who {
    /// An observed object.
    Stored(Arc<Owner>),
    /// An admission, by number.
    Pending(u64),
}

/// Holders of addresses, ordered by position: the first holder of an address stays the first.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    holders: BTreeMap<(Mac, u64), Who>,
    /// Ethernet addresses with a holder.
    taken: Runs,
    /// The range whose addresses are counted.
    range: Range,
    /// Number of addresses whose first holder is an object, by its kind and namespace.
    stored: HashMap<(Kind, Arc<str>), u64>,
    /// Number of addresses whose first holder is an admission.
    pending: u64,
}

impl Ledger {
    pub(super) fn new(range: Range) -> Self {
        Self {
            holders: BTreeMap::new(),
            taken: Runs::default(),
            range,
            stored: HashMap::new(),
            pending: 0,
        }
    }

    /// Counts the addresses of another range from now on.
    pub(super) fn count(&mut self, range: Range) {
        self.range = range;
        self.stored.clear();
        self.pending = 0;
        let mut last = None;
        let firsts: Vec<(Mac, Who)> = self
            .holders
            .iter()
            .filter(|((mac, _), _)| last.replace(*mac) != Some(*mac))
            .map(|((mac, _), who)| (*mac, who.clone()))
            .collect();
        for (mac, first) in firsts {
            self.add(mac, &first);
        }
    }

    pub(super) fn hold(&mut self, mac: Mac, place: u64, who: Who) {
        self.change(mac, |holders| holders.insert((mac, place), who));
    }

    pub(super) fn release(&mut self, mac: Mac, place: u64) {
        self.change(mac, |holders| holders.remove(&(mac, place)));
    }

    /// Holders of an address in order, with their positions.
    pub(super) fn holders(&self, mac: Mac) -> impl Iterator<Item = (u64, &Who)> {
        self.holders
            .range((mac, 0)..=(mac, u64::MAX))
            .map(|((_, place), who)| (*place, who))
    }

    /// The last address of the taken run that an address belongs to.
    pub(super) fn taken_until(&self, address: u64) -> Option<u64> {
        self.taken.until(address)
    }

    pub(super) fn usage(&self, is_managed: impl Fn(Kind, &str) -> bool) -> Usage {
        let mut usage = Usage {
            size: self.range.usable(),
            pending: self.pending,
            ..Usage::default()
        };
        for ((kind, namespace), count) in &self.stored {
            if is_managed(*kind, namespace) {
                usage.used += count;
            } else {
                usage.reserved += count;
            }
        }
        usage
    }

    fn change(&mut self, mac: Mac, change: impl FnOnce(&mut BTreeMap<(Mac, u64), Who>) -> Option<Who>) {
        let first = |ledger: &Self| ledger.holders(mac).next().map(|(_, who)| who.clone());
        let before = first(self);
        change(&mut self.holders);
        let after = first(self);
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.subtract(mac, &before);
        }
        if let Some(after) = &after {
            self.add(mac, after);
        }
        if let Some(number) = mac.number() {
            if after.is_some() {
                self.taken.insert(number);
            } else {
                self.taken.remove(number);
            }
        }
    }

    fn add(&mut self, mac: Mac, first: &Who) {
        if !self.range.may_hand_out(mac) {
            return;
        }
        match first {
            Who::Stored(owner) => {
                let namespace = (owner.kind, Arc::clone(&owner.namespace));
                *self.stored.entry(namespace).or_default() += 1;
            }
            Who::Pending(_) => self.pending += 1,
        }
    }

    fn subtract(&mut self, mac: Mac, first: &Who) {
        if !self.range.may_hand_out(mac) {
            return;
        }
        match first {
            Who::Stored(owner) => {
                let namespace = (owner.kind, Arc::clone(&owner.namespace));
                if let Some(count) = self.stored.get_mut(&namespace) {
                    *count -= 1;
                    if *count == 0 {
                        self.stored.remove(&namespace);
                    }
                }
            }
            Who::Pending(_) => self.pending -= 1,
        }
    }
}

//! Who holds which address (kubemacpool §5, §6, §10.5, §10.7). Pure: no clock, no client.
//!
//! ```text
//! webhook ── Draft ──> admit ──> pending (until the object is seen, or the wait is over)
//! watch ── what is stored ────> persisted
//!
//! an address is taken while anybody holds it, pending or persisted, managed or not
//! ```
//!
//! What an object holds is what was last seen of it, and what was admitted for it since. So nothing has to be undone
//! when an update is refused later, an address that an update removes stays taken until the update is seen to be
//! stored, and an object that was never seen loses its addresses when its wait is over.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::mac::Mac;
use crate::range::Range;
use crate::timestamp::Timestamp;

/// What holds addresses.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A pod; its keys are names of networks.
    Pod,
    /// A virtual machine; its keys are names of interfaces.
    Machine,
}

/// An object that holds addresses. Shown as `pod/<namespace>/<name>` or `vm/<namespace>/<name>`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Owner {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Owner {
    /// A pod.
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self {
            kind: Kind::Pod,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A virtual machine.
    pub fn machine(namespace: &str, name: &str) -> Self {
        Self {
            kind: Kind::Machine,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Pod => "pod",
            Kind::Machine => "vm",
        };
        write!(f, "{kind}/{}/{}", self.namespace, self.name)
    }
}

/// An address of an object, by the name of the interface or network that has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holding {
    /// The address.
    pub mac: Mac,
    /// Interface of a virtual machine, or network of a pod.
    pub key: Arc<str>,
}

/// Nothing is left to hand out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the range is full")]
pub struct RangeIsFull;

/// Whose request was admitted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claimant {
    /// An object with a name.
    Named(Owner),
    /// An object that gets its name from the API server later; known by the UID of the request.
    Unnamed {
        /// What it is.
        kind: Kind,
        /// Its namespace.
        namespace: Arc<str>,
        /// UID of the admission request.
        request: Arc<str>,
    },
}

/// A request that is to be admitted, so far: addresses that it keeps or gets anew. Dropping it undoes everything.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Draft {
    holdings: Vec<Holding>,
}

impl Draft {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The object brings this address itself.
    pub fn register(&mut self, mac: Mac, key: &str) {
        self.holdings.push(Holding { mac, key: key.into() });
    }

    /// All so far.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }
}

/// An admission whose object was not seen yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pending {
    /// Whose.
    pub claimant: Claimant,
    /// When, as the object will tell.
    pub timestamp: Timestamp,
    /// UID of the object, where it existed already (an update).
    pub uid: Option<Arc<str>>,
    /// When, by a clock that never jumps.
    pub admitted: Instant,
}

/// One who holds an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// Whose it is.
    pub claimant: Claimant,
    /// Interface or network.
    pub key: Arc<str>,
    /// Whether the object was not seen with it yet.
    pub pending: bool,
}

/// All addresses that are taken, and the next one to hand out.
#[derive(Debug)]
pub struct Pool {
    range: Range,
    next: u64,
    stored: HashMap<Owner, Stored>,
    pending: BTreeMap<u64, (Pending, Vec<Holding>)>,
    admissions: u64,
    /// Who holds an address, the first first.
    holders: HashMap<Mac, Vec<Handle>>,
}

#[derive(Debug)]
struct Stored {
    uid: Arc<str>,
    holdings: Vec<Holding>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Handle {
    Stored(Owner, Arc<str>),
    Pending(u64, Arc<str>),
}

impl Pool {
    /// An empty pool that begins at a random place of the range.
    pub fn new(range: Range, random: u64) -> Self {
        Self {
            range,
            next: range.place(random),
            stored: HashMap::new(),
            pending: BTreeMap::new(),
            admissions: 0,
            holders: HashMap::new(),
        }
    }

    /// Hands out of another range from now on; what is taken stays taken. The same range changes nothing.
    pub fn set_range(&mut self, range: Range, random: u64) {
        if self.range != range {
            self.range = range;
            self.next = range.place(random);
        }
    }

    /// The range that addresses are handed out of.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Takes the next free address into a draft. The same address is not tried again before all others were, even when
    /// the draft is dropped.
    ///
    /// # Errors
    /// When every address of the range is taken.
    pub fn allocate(&mut self, draft: &mut Draft, key: &str) -> Result<Mac, RangeIsFull> {
        let mut candidate = self.next;
        loop {
            let mac = Mac::from_number(candidate);
            candidate = self.range.after(candidate);
            let free = self.range.may_hand_out(mac)
                && !self.holders.contains_key(&mac)
                && !draft.holdings.iter().any(|holding| holding.mac == mac);
            if free {
                self.next = candidate;
                draft.register(mac, key);
                return Ok(mac);
            }
            if candidate == self.next {
                return Err(RangeIsFull);
            }
        }
    }

    /// A draft is admitted: its addresses are taken until the object is seen, or [`Pool::overdue`].
    pub fn admit(&mut self, draft: Draft, pending: Pending) {
        if draft.holdings.is_empty() {
            return;
        }
        let number = self.admissions;
        self.admissions += 1;
        for Holding { mac, key } in &draft.holdings {
            let handle = Handle::Pending(number, Arc::clone(key));
            self.holders.entry(*mac).or_default().push(handle);
        }
        self.pending.insert(number, (pending, draft.holdings));
    }

    /// An object was seen as it is stored. `transaction` is what a virtual machine says about the admission that it
    /// includes: admissions up to it are settled. Of a pod, those are settled whose addresses it has.
    pub fn store(
        &mut self,
        owner: &Owner,
        uid: &str,
        holdings: Vec<Holding>,
        transaction: Option<Timestamp>,
    ) {
        let settled: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, (pending, admitted))| match &pending.claimant {
                Claimant::Named(named) if named != owner => false,
                Claimant::Named(_) if owner.kind == Kind::Machine => {
                    transaction.is_some_and(|transaction| pending.timestamp <= transaction)
                }
                Claimant::Unnamed { kind, namespace, .. }
                    if *kind != owner.kind || *namespace != owner.namespace =>
                {
                    false
                }
                Claimant::Named(_) | Claimant::Unnamed { .. } => {
                    admitted.iter().all(|holding| holdings.contains(holding))
                }
            })
            .map(|(number, _)| *number)
            .collect();
        for holding in &holdings {
            let handle = Handle::Stored(owner.clone(), Arc::clone(&holding.key));
            let holders = self.holders.entry(holding.mac).or_default();
            if holders.contains(&handle) {
                continue;
            }
            // Who was admitted first stays first.
            let admitted = holders.iter_mut().find(|holder| match holder {
                Handle::Pending(number, key) => settled.contains(number) && *key == holding.key,
                Handle::Stored(..) => false,
            });
            match admitted {
                Some(admitted) => *admitted = handle,
                None => holders.push(handle),
            }
        }
        for number in settled {
            self.settle(number);
        }
        let stored = Stored {
            uid: uid.into(),
            holdings,
        };
        if let Some(before) = self.stored.insert(owner.clone(), stored) {
            for gone in before.holdings {
                let kept = self
                    .stored
                    .get(owner)
                    .is_some_and(|now| now.holdings.contains(&gone));
                if !kept {
                    self.release(gone.mac, &Handle::Stored(owner.clone(), gone.key));
                }
            }
        }
    }

    /// An object is gone, and with it what was admitted for it. What was admitted for another one of its name stays.
    pub fn remove(&mut self, owner: &Owner) -> Vec<Holding> {
        let Some(Stored { uid, holdings }) = self.stored.remove(owner) else {
            return Vec::new();
        };
        for Holding { mac, key } in &holdings {
            self.release(*mac, &Handle::Stored(owner.clone(), Arc::clone(key)));
        }
        let updates: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, (pending, _))| pending.uid.as_ref() == Some(&uid))
            .map(|(number, _)| *number)
            .collect();
        for number in updates {
            self.settle(number);
        }
        holdings
    }

    /// Admissions up to this moment whose objects were not seen since, by number.
    pub fn overdue(&self, admitted_by: Instant) -> Vec<(u64, Pending)> {
        self.pending
            .iter()
            .filter(|(_, (pending, _))| pending.admitted <= admitted_by)
            .map(|(number, (pending, _))| (*number, pending.clone()))
            .collect()
    }

    /// When the oldest open admission was, if there is one.
    pub fn oldest(&self) -> Option<Instant> {
        self.pending.values().map(|(pending, _)| pending.admitted).min()
    }

    /// Ends an admission: it came to nothing, or its object was seen.
    pub fn settle(&mut self, number: u64) {
        let Some((_, holdings)) = self.pending.remove(&number) else {
            return;
        };
        for Holding { mac, key } in holdings {
            self.release(mac, &Handle::Pending(number, key));
        }
    }

    /// Who holds an address, the first first.
    pub fn holders(&self, mac: Mac) -> Vec<Holder> {
        let handles = self.holders.get(&mac).map_or(&[][..], Vec::as_slice);
        let holders = handles.iter().filter_map(|handle| match handle {
            Handle::Stored(owner, key) => Some(Holder {
                claimant: Claimant::Named(owner.clone()),
                key: Arc::clone(key),
                pending: false,
            }),
            Handle::Pending(number, key) => self.pending.get(number).map(|(pending, _)| Holder {
                claimant: pending.claimant.clone(),
                key: Arc::clone(key),
                pending: true,
            }),
        });
        holders.collect()
    }

    /// What an object was last seen with; nothing when it was not seen.
    pub fn stored(&self, owner: &Owner) -> Option<&[Holding]> {
        self.stored.get(owner).map(|stored| stored.holdings.as_slice())
    }

    fn release(&mut self, mac: Mac, handle: &Handle) {
        if let Some(holders) = self.holders.get_mut(&mac) {
            holders.retain(|holder| holder != handle);
            if holders.is_empty() {
                self.holders.remove(&mac);
            }
        }
    }
}

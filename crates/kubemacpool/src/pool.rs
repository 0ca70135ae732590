//! The holders of all addresses (kubemacpool §5, §6, §10.5, §10.7). Pure: no clock, no client.
//!
//! ```text
//! webhook ── Draft ──> admit ──> pending (until the object is observed, or the wait is over)
//! watch ── stored object ──────> stored
//!
//! an address is taken while it has a holder, pending or stored, managed or not
//! ```
//!
//! An object holds the addresses with which it was last observed, and those that were admitted for it since. So an
//! update that is refused later needs no roll-back, an address that an update removes stays taken until the stored
//! update is observed, and an object that is never observed loses its addresses after the wait.
//!
//! An admission is settled when the observed object includes it:
//!
//! | admission | settled by |
//! |---|---|
//! | update | the same object (by UID) with this transaction or a later one; its deletion |
//! | creation | an object with exactly this transaction; otherwise the first observation of one that may be it (by name, or by namespace if it had none) and has all addresses. One object settles one creation, the oldest |
//! | either | [`Pool::settle`] and [`Pool::found`], after the wait |
//!
//! A creation that is tried twice under one name therefore holds two sets of addresses until the wait of the failed one
//! is over: it is unknown which of them failed, and an object that is about to be stored must keep its addresses.

mod compact;
mod held;
mod ledger;
mod objects;
mod runs;

use cni::mac::Mac;
pub use objects::{Claimant, Draft, Holder, Holding, Kind, Owner, Pending, Usage};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use kube_kit::places::Shares;

use crate::range::Range;
use crate::timestamp::Timestamp;
use compact::{Names, Uid};
use held::Held;
use ledger::{Ledger, Who};

/// All addresses of the range are taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the range is full")]
pub struct RangeIsFull;

/// Maximum number of addresses in admissions whose objects are not observed yet. One client gets at most half of them,
/// so forged reviews fill neither a large range nor the memory.
const MAX_PENDING: usize = 131_072;

/// All taken addresses, and the next one to allocate.
#[derive(Clone, Debug)]
pub struct Pool {
    range: Range,
    next: u64,
    ledger: Ledger,
    /// Objects as last observed.
    objects: HashMap<Arc<Owner>, Object>,
    pending: BTreeMap<u64, Admission>,
    /// Numbers of the admissions of each named object, the oldest first.
    claims: HashMap<Owner, Vec<u64>>,
    /// Admissions by the start of their wait.
    waits: BTreeSet<(Instant, u64)>,
    /// Number of addresses in admissions, by client.
    pending_by_client: Shares<IpAddr>,
    /// Number of the next admission.
    admissions: u64,
    /// The next position in the order of holders.
    places: u64,
    names: Names,
}

#[derive(Clone, Debug)]
struct Object {
    uid: Uid,
    held: Held,
}

#[derive(Clone, Debug)]
struct Admission {
    pending: Pending,
    uid: Option<Uid>,
    held: Held,
    /// Number of addresses that count for the client until the admission is settled.
    addresses: usize,
}

impl Pool {
    /// An empty pool that starts at the address of a random number. The number must come from the kernel
    /// (`linux::random::bytes`), so that allocations are unpredictable, and two starts hardly ever allocate the same
    /// addresses.
    pub fn new(range: Range, random: u64) -> Self {
        Self {
            range,
            next: range.place(random),
            ledger: Ledger::new(range),
            objects: HashMap::new(),
            pending: BTreeMap::new(),
            claims: HashMap::new(),
            waits: BTreeSet::new(),
            pending_by_client: Shares::new(MAX_PENDING),
            admissions: 0,
            places: 0,
            names: Names::default(),
        }
    }

    /// Allocates from another range from now on, starting at a random address as in [`Pool::new`]; taken addresses stay
    /// taken. The same range changes nothing.
    pub fn set_range(&mut self, range: Range, random: u64) {
        if self.range != range {
            self.range = range;
            self.next = range.place(random);
            self.ledger.count(range);
        }
    }

    /// The range of allocations.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Takes the next free address into a draft. The address is not allocated again before all others, even if the
    /// draft is dropped. The time does not depend on the number of taken addresses.
    ///
    /// # Errors
    /// If every address of the range is taken.
    pub fn allocate(&mut self, draft: &mut Draft, key: &str) -> Result<Mac, RangeIsFull> {
        let taken = |address| {
            self.ledger
                .taken_until(address)
                .or_else(|| draft.taken.until(address))
        };
        let (start, end) = self.range.ends();
        let free = self
            .range
            .first_free((self.next, end), taken)
            .or_else(|| self.range.first_free((start, self.next), taken))
            .ok_or(RangeIsFull)?;
        self.next = self.range.after(free);
        let mac = Mac::from_number(free);
        draft.register(mac, key);
        Ok(mac)
    }

    /// Whether a client's draft can be admitted ([`Pool::admit`]): the number of unobserved addresses is limited.
    pub fn has_capacity(&self, draft: &Draft, client: IpAddr) -> bool {
        self.pending_by_client.may_take(&client, draft.holdings().len())
    }

    /// Admits a draft: its addresses are taken until its object is observed or its wait is over.
    pub fn admit(&mut self, draft: Draft, pending: Pending) {
        let held = Held::new(draft.into_holdings(), |_| self.new_position());
        if held.holdings.is_empty() {
            return;
        }
        let number = self.admissions;
        self.admissions += 1;
        for (holding, place) in held.iter() {
            self.ledger.hold(holding.mac, place, Who::Pending(number));
        }
        if let Claimant::Named(owner) = &pending.claimant {
            self.claims.entry(owner.clone()).or_default().push(number);
        }
        self.waits.insert((pending.admitted, number));
        let uid = pending.uid.as_deref().map(Uid::new);
        let addresses = held.holdings.len();
        self.pending_by_client.take(&pending.client, addresses);
        let admission = Admission {
            pending,
            uid,
            held,
            addresses,
        };
        self.pending.insert(number, admission);
    }

    /// Stores an object of a list or a watch; observations of an object are in order. `transaction` is the admission
    /// that a virtual machine includes. A pod without addresses is not stored; a virtual machine is, because others
    /// look it up ([`Pool::stored`]).
    pub fn store(
        &mut self,
        owner: &Owner,
        uid: &str,
        mut holdings: Vec<Holding>,
        transaction: Option<Timestamp>,
    ) {
        if owner.kind == Kind::Pod && holdings.is_empty() {
            self.remove(owner);
            return;
        }
        holdings.sort_unstable();
        let uid = Uid::new(uid);
        let settled = self.settled_by(owner, &uid, &holdings, transaction);
        let (owner, before) = match self.objects.remove_entry(owner) {
            Some((owner, object)) => (owner, object.held),
            None => (self.shared_owner(owner), Held::default()),
        };
        let held = Held::new(holdings, |holding| {
            self.reuse_position(holding, &before, &settled)
        });
        for number in settled {
            self.settle(number);
        }
        for (holding, place) in before.iter() {
            if held.place(holding).is_none() {
                self.ledger.release(holding.mac, place);
            }
        }
        for (holding, place) in held.iter() {
            let who = Who::Stored(Arc::clone(&owner));
            self.ledger.hold(holding.mac, place, who);
        }
        self.objects.insert(owner, Object { uid, held });
    }

    /// Removes a deleted object and the admissions of its updates; returns its addresses. Admissions of another object
    /// of its name stay. An object that is being deleted is not removed: its workload is on the network until then.
    pub fn remove(&mut self, owner: &Owner) -> Vec<Holding> {
        let Some(Object { uid, held }) = self.objects.remove(owner) else {
            return Vec::new();
        };
        for number in self.claims(owner, |admission| admission.uid.as_ref() == Some(&uid)) {
            self.settle(number);
        }
        for (holding, place) in held.iter() {
            self.ledger.release(holding.mac, place);
        }
        held.holdings.into_vec()
    }

    /// Admissions up to this time whose objects are not observed, by number, the oldest first.
    pub fn overdue(&self, admitted_by: Instant) -> Vec<(u64, Pending)> {
        self.waits
            .range(..=(admitted_by, u64::MAX))
            .filter_map(|(_, number)| Some((*number, self.pending.get(number)?.pending.clone())))
            .collect()
    }

    /// Time of the oldest pending admission.
    pub fn oldest(&self) -> Option<Instant> {
        self.waits.first().map(|(admitted, _)| *admitted)
    }

    /// Settles an admission without an object.
    pub fn settle(&mut self, number: u64) {
        let Some(admission) = self.pending.remove(&number) else {
            return;
        };
        for (holding, place) in admission.held.iter() {
            self.ledger.release(holding.mac, place);
        }
        self.pending_by_client
            .give_back(&admission.pending.client, admission.addresses);
        self.waits.remove(&(admission.pending.admitted, number));
        if let Claimant::Named(owner) = &admission.pending.claimant
            && let Some(claims) = self.claims.get_mut(owner)
        {
            claims.retain(|claim| *claim != number);
            if claims.is_empty() {
                self.claims.remove(owner);
            }
        }
    }

    /// Applies the state of an object in the API server after the wait (kubemacpool §10.7). The admission releases the
    /// addresses that the object does not have. Addresses that the object has but was not observed with, because the
    /// watch is that stale, stay taken and wait again from `now`. Only the watch stores objects: this read is ahead of
    /// its next event, and may concern another object of the same name.
    pub fn found(&mut self, number: u64, uid: &str, holdings: &[Holding], now: Instant) {
        let Some(admission) = self.pending.get(&number) else {
            return;
        };
        let uid = Uid::new(uid);
        let seen = match &admission.pending.claimant {
            Claimant::Named(owner) => self.objects.get(owner),
            Claimant::Unnamed { .. } => None,
        };
        let seen = seen.filter(|object| object.uid == uid);
        let (kept, given_up): (Vec<(&Holding, u64)>, Vec<_>) =
            admission.held.iter().partition(|(holding, _)| {
                let is_seen = seen.is_some_and(|object| object.held.place(holding).is_some());
                holdings.contains(holding) && !is_seen
            });
        let given_up: Vec<(Mac, u64)> = given_up
            .into_iter()
            .map(|(holding, place)| (holding.mac, place))
            .collect();
        let kept: Held = kept
            .into_iter()
            .map(|(holding, place)| (holding.clone(), place))
            .collect();
        if kept.holdings.is_empty() {
            self.settle(number);
            return;
        }
        for (mac, place) in given_up {
            self.ledger.release(mac, place);
        }
        if let Some(admission) = self.pending.get_mut(&number) {
            admission.held = kept;
        }
        self.postpone(number, now);
    }

    /// Restarts the wait of an admission at this time: the API server could not be read.
    pub fn postpone(&mut self, number: u64, admitted: Instant) {
        if let Some(Admission { pending, .. }) = self.pending.get_mut(&number) {
            self.waits.remove(&(pending.admitted, number));
            pending.admitted = admitted;
            self.waits.insert((admitted, number));
        }
    }

    /// Holders of an address, in order. An object that has it and was admitted with it again counts once.
    pub fn holders(&self, mac: Mac) -> Vec<Holder> {
        let mut holders: Vec<Holder> = Vec::new();
        let mut admitted = HashSet::new();
        for (place, who) in self.ledger.holders(mac) {
            let Some(holder) = self.holder(place, who) else {
                continue;
            };
            let holding = Holding {
                mac,
                key: Arc::clone(&holder.key),
            };
            let again = holder.pending
                && (self.is_stored_with(&holder.claimant, &holding)
                    || !admitted.insert((holder.claimant.clone(), holding.key)));
            if !again {
                holders.push(holder);
            }
        }
        holders
    }

    /// Addresses with which an object was last observed; `None` if it was not observed.
    pub fn stored(&self, owner: &Owner) -> Option<&[Holding]> {
        self.objects.get(owner).map(|object| &*object.held.holdings)
    }

    /// Usage of the range. The time depends on the number of namespaces with addresses, not on that of addresses.
    pub fn usage(&self, is_managed: impl Fn(Kind, &str) -> bool) -> Usage {
        self.ledger.usage(is_managed)
    }

    /// Admissions that an observed object includes.
    fn settled_by(
        &self,
        owner: &Owner,
        uid: &Uid,
        holdings: &[Holding],
        transaction: Option<Timestamp>,
    ) -> Vec<u64> {
        let known = self.objects.get(owner).map(|object| &object.uid);
        let first_sight = known != Some(uid);
        let mut settled = self.claims(owner, |admission| match &admission.uid {
            Some(updated) if updated == uid => {
                transaction.is_some_and(|transaction| admission.pending.timestamp <= transaction)
            }
            // The earlier object of this name is gone.
            Some(updated) => first_sight && known == Some(updated),
            None => false,
        });
        settled.extend(self.creation_of(owner, first_sight, holdings, transaction));
        settled
    }

    /// The admission that created an object. Without its transaction, only the first observation is considered.
    fn creation_of(
        &self,
        owner: &Owner,
        first_sight: bool,
        holdings: &[Holding],
        transaction: Option<Timestamp>,
    ) -> Option<u64> {
        let mut candidates = self.claims(owner, |admission| admission.uid.is_none());
        let unnamed: BTreeSet<u64> = holdings
            .iter()
            .flat_map(|holding| self.ledger.holders(holding.mac))
            .filter_map(|(_, who)| match who {
                Who::Pending(number) => Some(*number),
                Who::Stored(_) => None,
            })
            .filter(|number| {
                self.pending
                    .get(number)
                    .is_some_and(|admission| match &admission.pending.claimant {
                        Claimant::Named(_) => false,
                        Claimant::Unnamed { kind, namespace, .. } => {
                            *kind == owner.kind && *namespace == owner.namespace
                        }
                    })
            })
            .collect();
        candidates.extend(unnamed);
        let find = |fits: &dyn Fn(&Admission) -> bool| {
            let mut candidates = candidates.iter().copied();
            candidates.find(|number| self.pending.get(number).is_some_and(fits))
        };
        let of_transaction = |admission: &Admission| transaction == Some(admission.pending.timestamp);
        let may_be = |admission: &Admission| {
            let reached = match owner.kind {
                Kind::Pod => true,
                Kind::Machine => Some(admission.pending.timestamp) <= transaction,
            };
            let mut admitted = admission.held.holdings.iter();
            reached && admitted.all(|admitted| holdings.binary_search(admitted).is_ok())
        };
        find(&of_transaction).or_else(|| find(&may_be).filter(|_| first_sight))
    }

    /// Matching admissions of a named object.
    fn claims(&self, owner: &Owner, such: impl Fn(&Admission) -> bool) -> Vec<u64> {
        let claims = self.claims.get(owner).map_or(&[][..], Vec::as_slice);
        claims
            .iter()
            .copied()
            .filter(|number| self.pending.get(number).is_some_and(&such))
            .collect()
    }

    /// An earlier or admitted holder of an address keeps its position among the holders.
    fn reuse_position(&mut self, holding: &mut Holding, before: &Held, settled: &[u64]) -> u64 {
        holding.key = self.names.one(&holding.key);
        let admitted = |number| self.pending.get(number)?.held.place(holding);
        before
            .place(holding)
            .or_else(|| settled.iter().find_map(admitted))
            .unwrap_or_else(|| self.new_position())
    }

    fn shared_owner(&mut self, owner: &Owner) -> Arc<Owner> {
        Arc::new(Owner {
            namespace: self.names.one(&owner.namespace),
            ..owner.clone()
        })
    }

    fn new_position(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn is_stored_with(&self, claimant: &Claimant, holding: &Holding) -> bool {
        let object = match claimant {
            Claimant::Named(owner) => self.objects.get(owner),
            Claimant::Unnamed { .. } => None,
        };
        object.is_some_and(|object| object.held.place(holding).is_some())
    }

    fn holder(&self, place: u64, who: &Who) -> Option<Holder> {
        let key = |held: &Held| {
            let (holding, _) = held.iter().find(|(_, other)| *other == place)?;
            Some(Arc::clone(&holding.key))
        };
        match who {
            Who::Stored(owner) => Some(Holder {
                claimant: Claimant::Named((**owner).clone()),
                key: key(&self.objects.get(owner)?.held)?,
                pending: false,
            }),
            Who::Pending(number) => {
                let admission = self.pending.get(number)?;
                Some(Holder {
                    claimant: admission.pending.claimant.clone(),
                    key: key(&admission.held)?,
                    pending: true,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;

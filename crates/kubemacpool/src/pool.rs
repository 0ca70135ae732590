//! Who holds which address (kubemacpool §5, §6, §10.5, §10.7). Pure: no clock, no client.
//!
//! ```text
//! webhook ── Draft ──> admit ──> pending (until the object is seen, or the wait is over)
//! watch ── what is stored ────> stored
//!
//! an address is taken while anybody holds it, pending or stored, managed or not
//! ```
//!
//! What an object holds is what was last seen of it, and what was admitted for it since. So nothing has to be undone
//! when an update is refused later, an address that an update removes stays taken until the update is seen to be
//! stored, and an object that was never seen loses its addresses when its wait is over.
//!
//! When an admission is settled, that is: what was seen of the object says everything about it:
//!
//! | admission | by |
//! |---|---|
//! | update | a sight of the same object (by UID) that tells of this transaction or a later one; its end |
//! | creation | a sight of an object that tells of this very transaction; else the first sight of one that may be it (by name, or by namespace where it had none) and has all addresses. One object settles one creation, the oldest |
//! | either | [`Pool::settle`] and [`Pool::found`], when the wait is over |
//!
//! A creation that is tried twice under one name is so held twice until the wait of the failed one is over: which of
//! the two failed cannot be told, and an object that is on its way under this name must find its addresses.

mod compact;
mod ledger;
mod objects;
mod runs;

pub use objects::{Claimant, Draft, Holder, Holding, Kind, Owner, Pending, Usage};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use kube_kit::places::Shares;

use crate::mac::Mac;
use crate::range::Range;
use crate::timestamp::Timestamp;
use compact::{Names, Uid};
use ledger::{Ledger, Who};

/// Nothing is left to hand out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the range is full")]
pub struct RangeIsFull;

/// How many addresses may be taken by admissions whose objects were not seen yet, in all. Clients share them: one client
/// has half of them at most. Forged reviews therefore fill neither a large range nor the memory.
const UNSEEN: usize = 131_072;

/// All addresses that are taken, and the next one to hand out.
#[derive(Clone, Debug)]
pub struct Pool {
    range: Range,
    next: u64,
    ledger: Ledger,
    /// Objects as they were last seen.
    objects: HashMap<Arc<Owner>, Object>,
    pending: BTreeMap<u64, Admission>,
    /// Numbers of the admissions of each object that has a name, the oldest first.
    claims: HashMap<Owner, Vec<u64>>,
    /// Admissions, by when their wait began.
    waits: BTreeSet<(Instant, u64)>,
    /// How many addresses admissions have taken, by client.
    unseen: Shares<IpAddr>,
    /// Number of the next admission.
    admissions: u64,
    /// The next place in the order of holders.
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
    /// How many addresses count as the client's until it is settled.
    addresses: usize,
}

/// What one object or admission holds.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Sorted, none twice.
    holdings: Box<[Holding]>,
    /// Of each, in the order of those who hold its address.
    places: Box<[u64]>,
}

impl Pool {
    /// An empty pool that begins at the place of the range that a random number stands for. The number is to come from
    /// the kernel (`linux::random::bytes`), so that nobody foresees which addresses will be handed out and two starts
    /// hardly ever give the same.
    pub fn new(range: Range, random: u64) -> Self {
        Self {
            range,
            next: range.place(random),
            ledger: Ledger::new(range),
            objects: HashMap::new(),
            pending: BTreeMap::new(),
            claims: HashMap::new(),
            waits: BTreeSet::new(),
            unseen: Shares::new(UNSEEN),
            admissions: 0,
            places: 0,
            names: Names::default(),
        }
    }

    /// Hands out of another range from now on, beginning at a random place as in [`Pool::new`]; what is taken stays
    /// taken. The same range changes nothing.
    pub fn set_range(&mut self, range: Range, random: u64) {
        if self.range != range {
            self.range = range;
            self.next = range.place(random);
            self.ledger.count(range);
        }
    }

    /// The range that addresses are handed out of.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Takes the next free address into a draft. The same address is not tried again before all others were, even when
    /// the draft is dropped. The time it takes does not depend on how many are taken.
    ///
    /// # Errors
    /// When every address of the range is taken.
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

    /// Whether a draft of a client can be admitted ([`Pool::admit`]): too many addresses of its admissions may wait.
    pub fn has_room(&self, draft: &Draft, client: IpAddr) -> bool {
        self.unseen.may_take(&client, draft.holdings().len())
    }

    /// A draft is admitted: its addresses are taken until its object is seen or its wait is over.
    pub fn admit(&mut self, draft: Draft, pending: Pending) {
        let held = Held::new(draft.into_holdings(), |_| self.new_place());
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
        self.unseen.take(&pending.client, addresses);
        let admission = Admission {
            pending,
            uid,
            held,
            addresses,
        };
        self.pending.insert(number, admission);
    }

    /// An object was seen as it is stored, by a list or a watch: per object, what is seen never goes back in time.
    /// `transaction` is what a virtual machine says about the admission that it includes. A pod without addresses is
    /// not remembered; a virtual machine is, because it is asked for later ([`Pool::stored`]).
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
            None => (self.remembered(owner), Held::default()),
        };
        let held = Held::new(holdings, |holding| self.keep_place(holding, &before, &settled));
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

    /// An object is gone from the API server, and with it what was admitted for updates of it; what it held is
    /// answered. What was admitted for another object of its name stays. An object that is being deleted is not gone:
    /// what it runs is on the network until then.
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

    /// Admissions up to this moment whose objects were not seen since, by number, the oldest first.
    pub fn overdue(&self, admitted_by: Instant) -> Vec<(u64, Pending)> {
        self.waits
            .range(..=(admitted_by, u64::MAX))
            .filter_map(|(_, number)| Some((*number, self.pending.get(number)?.pending.clone())))
            .collect()
    }

    /// When the oldest open admission was, if there is one.
    pub fn oldest(&self) -> Option<Instant> {
        self.waits.first().map(|(admitted, _)| *admitted)
    }

    /// Ends an admission: it came to nothing.
    pub fn settle(&mut self, number: u64) {
        let Some(admission) = self.pending.remove(&number) else {
            return;
        };
        for (holding, place) in admission.held.iter() {
            self.ledger.release(holding.mac, place);
        }
        self.unseen
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

    /// What the API server has of an object whose wait is over (kubemacpool §10.7), and its UID. What the object does not
    /// have, the admission gives up. What it has and was not seen with, because the watch is that far behind, stays taken
    /// and waits again from `now` on. Only the watch tells what is stored: what was asked for is ahead of what the watch
    /// tells next, and may be another object of the same name.
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
        self.wait_again(number, now);
    }

    /// Lets an admission wait anew, as if it had been at this moment: the API server could not be asked.
    pub fn wait_again(&mut self, number: u64, admitted: Instant) {
        if let Some(Admission { pending, .. }) = self.pending.get_mut(&number) {
            self.waits.remove(&(pending.admitted, number));
            pending.admitted = admitted;
            self.waits.insert((admitted, number));
        }
    }

    /// Who holds an address, the first first. An object that has it and was admitted with it again counts once.
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
                && (self.is_seen_with(&holder.claimant, &holding)
                    || !admitted.insert((holder.claimant.clone(), holding.key)));
            if !again {
                holders.push(holder);
            }
        }
        holders
    }

    /// What an object was last seen with; nothing when it was not seen.
    pub fn stored(&self, owner: &Owner) -> Option<&[Holding]> {
        self.objects.get(owner).map(|object| &*object.held.holdings)
    }

    /// How full the range is. Takes time by the number of namespaces that have addresses, not by that of addresses.
    pub fn usage(&self, is_managed: impl Fn(Kind, &str) -> bool) -> Usage {
        self.ledger.usage(is_managed)
    }

    /// Admissions that what is seen of an object says everything about.
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
            // The object of this name that was there before is gone.
            Some(updated) => first_sight && known == Some(updated),
            None => false,
        });
        settled.extend(self.creation_of(owner, first_sight, holdings, transaction));
        settled
    }

    /// The admission that an object was created by. Unless it tells of it, that is only asked at the first sight.
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
        let told = |admission: &Admission| transaction == Some(admission.pending.timestamp);
        let may_be = |admission: &Admission| {
            let reached = match owner.kind {
                Kind::Pod => true,
                Kind::Machine => Some(admission.pending.timestamp) <= transaction,
            };
            let mut admitted = admission.held.holdings.iter();
            reached && admitted.all(|admitted| holdings.binary_search(admitted).is_ok())
        };
        find(&told).or_else(|| find(&may_be).filter(|_| first_sight))
    }

    /// Admissions of an object with a name that are such.
    fn claims(&self, owner: &Owner, such: impl Fn(&Admission) -> bool) -> Vec<u64> {
        let claims = self.claims.get(owner).map_or(&[][..], Vec::as_slice);
        claims
            .iter()
            .copied()
            .filter(|number| self.pending.get(number).is_some_and(&such))
            .collect()
    }

    /// Who had an address before, or was admitted with it, keeps the place among those who hold it.
    fn keep_place(&mut self, holding: &mut Holding, before: &Held, settled: &[u64]) -> u64 {
        holding.key = self.names.one(&holding.key);
        let admitted = |number| self.pending.get(number)?.held.place(holding);
        before
            .place(holding)
            .or_else(|| settled.iter().find_map(admitted))
            .unwrap_or_else(|| self.new_place())
    }

    fn remembered(&mut self, owner: &Owner) -> Arc<Owner> {
        Arc::new(Owner {
            namespace: self.names.one(&owner.namespace),
            ..owner.clone()
        })
    }

    fn new_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn is_seen_with(&self, claimant: &Claimant, holding: &Holding) -> bool {
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

impl Held {
    fn new(mut holdings: Vec<Holding>, mut place: impl FnMut(&mut Holding) -> u64) -> Self {
        holdings.sort_unstable();
        holdings.dedup();
        let places = holdings.iter_mut().map(&mut place).collect();
        Self {
            holdings: holdings.into(),
            places,
        }
    }

    fn place(&self, holding: &Holding) -> Option<u64> {
        let index = self.holdings.binary_search(holding).ok()?;
        self.places.get(index).copied()
    }

    fn iter(&self) -> impl Iterator<Item = (&Holding, u64)> {
        self.holdings.iter().zip(self.places.iter().copied())
    }
}

/// Of holdings that are sorted already.
impl FromIterator<(Holding, u64)> for Held {
    fn from_iter<I: IntoIterator<Item = (Holding, u64)>>(held: I) -> Self {
        let (holdings, places): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        Self {
            holdings: holdings.into(),
            places: places.into(),
        }
    }
}

#[cfg(test)]
mod tests;

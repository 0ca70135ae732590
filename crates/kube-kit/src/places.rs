//! A semaphore that is shared fairly among its owners, such as the namespaces of pods or the clients of a server.
//!
//! An owner may take a place only if it then holds no more than are free (the dynamic thresholds of switches with
//! shared memory, Choudhury and Hahne 1998). A single owner takes half of the places, the next owner half of the rest,
//! and so on, so that slow work of one owner does not block the others. Waiting work is queued, first in, first out
//! among the owners that may take the requested places.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// A semaphore with a number of places. Clones share it.
#[derive(Debug)]
pub struct Places<Owner: Clone + Ord>(Arc<Mutex<State<Owner>>>);

#[derive(Debug)]
struct State<Owner: Clone + Ord> {
    shares: Shares<Owner>,
    waiting: VecDeque<Waiting<Owner>>,
}

/// The places of each owner: the rule, without the queue.
#[derive(Clone, Debug)]
pub struct Shares<Owner: Clone + Ord> {
    all: usize,
    free: usize,
    /// Number of places of each owner that has any.
    taken: BTreeMap<Owner, usize>,
}

#[derive(Debug)]
struct Waiting<Owner: Clone + Ord> {
    owner: Owner,
    number: usize,
    turn: oneshot::Sender<Taken<Owner>>,
}

impl<Owner: Clone + Ord> Shares<Owner> {
    /// Creates shares of this many places; at least one.
    pub fn new(number: usize) -> Self {
        let number = number.max(1);
        Self {
            all: number,
            free: number,
            taken: BTreeMap::new(),
        }
    }

    /// Whether an owner may take this many more places.
    pub fn may_take(&self, owner: &Owner, number: usize) -> bool {
        let taken = self.taken.get(owner).copied().unwrap_or_default();
        taken.saturating_add(number) <= self.free
    }

    /// Gives an owner this many more places; the caller has checked [`Self::may_take`].
    pub fn take(&mut self, owner: &Owner, number: usize) {
        self.free = self.free.saturating_sub(number);
        *self.taken.entry(owner.clone()).or_default() += number;
    }

    /// Returns this many places of an owner.
    pub fn give_back(&mut self, owner: &Owner, number: usize) {
        self.free += number;
        if let Some(taken) = self.taken.get_mut(owner) {
            *taken = taken.saturating_sub(number);
            if *taken == 0 {
                self.taken.remove(owner);
            }
        }
    }
}

impl<Owner: Clone + Ord> State<Owner> {
    /// The waiting owners that may take their places now, in order of arrival.
    fn next(&mut self) -> Vec<Waiting<Owner>> {
        let mut turns = Vec::new();
        let mut index = 0;
        while self.shares.free > 0
            && let Some(waiting) = self.waiting.get(index)
        {
            let gave_up = waiting.turn.is_closed();
            if !gave_up && !self.shares.may_take(&waiting.owner, waiting.number) {
                index += 1;
                continue;
            }
            if let Some(waiting) = self.waiting.remove(index).filter(|_| !gave_up) {
                self.shares.take(&waiting.owner, waiting.number);
                turns.push(waiting);
            }
        }
        turns
    }
}

impl<Owner: Clone + Ord> Clone for Places<Owner> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Owner: Clone + Ord> Places<Owner> {
    /// Creates a semaphore of this many places; at least one.
    pub fn new(number: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            shares: Shares::new(number),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a place.
    pub async fn take(&self, owner: &Owner) -> Taken<Owner> {
        self.take_many(owner, 1).await
    }

    /// Waits for several places at once; at most for all of them.
    pub async fn take_many(&self, owner: &Owner, number: usize) -> Taken<Owner> {
        let turn = {
            let mut state = crate::lock(&self.0);
            let number = number.min(state.shares.all);
            // No waiting owner may take its places now: it would have got them when they were returned.
            if state.shares.may_take(owner, number) {
                state.shares.take(owner, number);
                return self.taken(owner, number);
            }
            state.waiting.retain(|waiting| !waiting.turn.is_closed());
            let (turn, comes) = oneshot::channel();
            state.waiting.push_back(Waiting {
                owner: owner.clone(),
                number,
                turn,
            });
            comes
        };
        match turn.await {
            Ok(taken) => taken,
            // A sender is dropped only after its receiver.
            Err(_) => std::future::pending().await,
        }
    }

    fn taken(&self, owner: &Owner, number: usize) -> Taken<Owner> {
        Taken {
            owner: owner.clone(),
            number,
            places: self.clone(),
        }
    }

    /// Number of free places.
    pub fn free(&self) -> usize {
        crate::lock(&self.0).shares.free
    }
}

/// Places that are returned when this is dropped.
#[derive(Debug)]
pub struct Taken<Owner: Clone + Ord> {
    owner: Owner,
    number: usize,
    places: Places<Owner>,
}

impl<Owner: Clone + Ord> Drop for Taken<Owner> {
    fn drop(&mut self) {
        let turns = {
            let mut state = crate::lock(&self.places.0);
            state.shares.give_back(&self.owner, self.number);
            state.next()
        };
        for Waiting { owner, number, turn } in turns {
            // If the receiver was dropped meanwhile, the places are dropped too, and go to the next owner.
            let _ = turn.send(self.places.taken(&owner, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    type Owner = &'static str;

    fn now(places: &Places<Owner>, owner: Owner) -> Option<Taken<Owner>> {
        places.take(&owner).now_or_never()
    }

    #[test]
    fn take_leaves_places_for_other_owners() {
        // multus#109
        let places = Places::new(32);
        let mut held = Vec::new();
        let mut taken = |owner: Owner| {
            let before = held.len();
            held.extend(std::iter::from_fn(|| now(&places, owner)));
            held.len() - before
        };
        assert_eq!(
            ["a", "b", "c", "d", "a", "e", "f"].map(&mut taken),
            [16, 8, 4, 2, 0, 1, 1]
        );
        assert_eq!(taken("g"), 0);
        held.clear();
        assert_eq!(places.free(), 32);
    }

    #[test]
    fn single_place_goes_to_each_owner_in_turn() {
        let places = Places::new(0);
        let first = now(&places, "a").unwrap();
        let mut second = Box::pin(places.take(&"b"));
        let mut gone = Box::pin(places.take(&"a"));
        let mut third = Box::pin(places.take(&"a"));
        for waiting in [&mut second, &mut gone, &mut third] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(gone);
        drop(first);
        assert!((&mut third).now_or_never().is_none());
        let second = second.now_or_never().unwrap();
        drop(second);
        drop(third.now_or_never().unwrap());
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn take_many_takes_all_or_none() {
        let places = Places::new(8);
        let all = places.take_many(&"a", 100).now_or_never().unwrap();
        assert_eq!(places.free(), 0);
        drop(all);
        let first = places.take_many(&"a", 3).now_or_never().unwrap();
        assert!(places.take_many(&"a", 3).now_or_never().is_none());
        assert!(places.take_many(&"b", 5).now_or_never().is_some());
        drop(first);
        assert_eq!(places.free(), 8);
    }

    proptest! {
        /// For any sequence of takes, returns and cancelled waits, no place is lost, and no owner waits that may take
        /// its places.
        #[test]
        fn no_place_is_lost(number in 1_usize..6, steps in prop::collection::vec((0_u8..3, 0_usize..8, 0_usize..4, 1_usize..8), 0..60)) {
            let places = Places::new(number);
            let owners = ["a", "b", "c", "d"];
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (step, index, owner, many) in steps {
                match step {
                    0 => waiting.push(Box::pin(places.take_many(&owners[owner], many))),
                    1 if !held.is_empty() => drop(held.remove(index % held.len())),
                    2 if !waiting.is_empty() => drop(waiting.remove(index % waiting.len())),
                    _ => {}
                }
                let mut still = Vec::new();
                for mut one in waiting {
                    match (&mut one).now_or_never() {
                        Some(place) => held.push(place),
                        None => still.push(one),
                    }
                }
                waiting = still;
                let taken: usize = held.iter().map(|taken: &Taken<Owner>| taken.number).sum();
                prop_assert_eq!(places.free() + taken, number);
                prop_assert!(waiting.is_empty() || !held.is_empty());
            }
        }
    }
}

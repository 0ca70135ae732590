//! A bounded number of places for concurrent work, shared fairly among its owners: the namespaces of the pods.
//!
//! An owner takes another place only while more places are free than it holds. A single owner takes half of them, the next
//! owner half of the rest, and so on, so that slow work of one owner does not block the others. Work without a place waits
//! in a queue, first in, first out among those owners that may take one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// A number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// How many an owner has, of those that have any.
    taken: BTreeMap<String, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    owner: String,
    turn: oneshot::Sender<Place>,
}

impl State {
    fn may_take(&self, owner: &str) -> bool {
        self.free > self.taken.get(owner).copied().unwrap_or_default()
    }

    fn take(&mut self, owner: &str) {
        self.free -= 1;
        *self.taken.entry(owner.to_owned()).or_default() += 1;
    }

    fn give_back(&mut self, owner: &str) {
        self.free += 1;
        if let Some(taken) = self.taken.get_mut(owner) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(owner);
            }
        }
    }

    /// Those whose turn it is, in the order they came.
    fn next(&mut self) -> Vec<Waiting> {
        let mut turns = Vec::new();
        let mut index = 0;
        while self.free > 0
            && let Some(waiting) = self.waiting.get(index)
        {
            let gave_up = waiting.turn.is_closed();
            if !gave_up && !self.may_take(&waiting.owner) {
                index += 1;
                continue;
            }
            if let Some(waiting) = self.waiting.remove(index).filter(|_| !gave_up) {
                self.take(&waiting.owner);
                turns.push(waiting);
            }
        }
        turns
    }
}

impl Places {
    /// So many; at least one.
    pub fn new(number: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: number.max(1),
            taken: BTreeMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a place.
    pub async fn take(&self, owner: &str) -> Place {
        let turn = {
            let mut state = kube_kit::lock(&self.0);
            // No waiting owner may take a place now: it would have got one when the place became free.
            if state.may_take(owner) {
                state.take(owner);
                return self.place(owner);
            }
            state.waiting.retain(|waiting| !waiting.turn.is_closed());
            let (turn, comes) = oneshot::channel();
            state.waiting.push_back(Waiting {
                owner: owner.to_owned(),
                turn,
            });
            comes
        };
        match turn.await {
            Ok(place) => place,
            // A sender is dropped only after its receiver.
            Err(_) => std::future::pending().await,
        }
    }

    fn place(&self, owner: &str) -> Place {
        Place {
            owner: owner.to_owned(),
            places: self.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        kube_kit::lock(&self.0).free
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    owner: String,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let turns = {
            let mut state = kube_kit::lock(&self.places.0);
            state.give_back(&self.owner);
            state.next()
        };
        for Waiting { owner, turn } in turns {
            // A receiver that was dropped meanwhile drops the place, which goes to the next.
            let _ = turn.send(self.places.place(&owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    fn now(places: &Places, owner: &str) -> Option<Place> {
        places.take(owner).now_or_never()
    }

    #[test]
    fn nobody_takes_all() {
        // multus#109
        let places = Places::new(32);
        let mut held = Vec::new();
        let mut taken = |owner: &str| {
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
    fn a_single_place_is_everybodys_in_turn() {
        let places = Places::new(0);
        let first = now(&places, "a").unwrap();
        let mut second = Box::pin(places.take("b"));
        let mut gone = Box::pin(places.take("a"));
        let mut third = Box::pin(places.take("a"));
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

    proptest! {
        /// Whatever is taken, given back and not waited for any longer: no place is lost, nobody waits whose turn it is.
        #[test]
        fn no_place_is_lost(number in 1_usize..6, steps in prop::collection::vec((0_u8..3, 0_usize..8, 0_usize..4), 0..60)) {
            let places = Places::new(number);
            let owners = ["a", "b", "c", "d"];
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (step, index, owner) in steps {
                match step {
                    0 => waiting.push(Box::pin(places.take(owners[owner]))),
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
                prop_assert_eq!(places.free() + held.len(), number);
                prop_assert!(waiting.is_empty() || !held.is_empty());
            }
        }
    }
}

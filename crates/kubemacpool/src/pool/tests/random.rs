//! The pool compared to a simple model, after random changes.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::*;

const FIRST: u64 = 0x02ff_ffff_fff8;

#[derive(Clone, Debug)]
enum Change {
    /// Object, explicit addresses, requested addresses.
    Admit(u8, Vec<u8>, u8, bool),
    AdmitUnnamed(Vec<u8>, u8),
    Drop(u8),
    /// Object, incarnation, addresses, number of the admissions before it.
    Store(u8, u8, Vec<u8>, u8),
    Remove(u8),
    Settle(u8),
    Found(u8, Vec<u8>),
    Range(u8, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let macs = || prop::collection::vec(0u8..24, 0..3);
    let object = 0u8..6;
    prop_oneof![
        4 => (object.clone(), macs(), 0u8..3, any::<bool>())
            .prop_map(|(object, macs, more, update)| Change::Admit(object, macs, more, update)),
        2 => (macs(), 0u8..3).prop_map(|(macs, more)| Change::AdmitUnnamed(macs, more)),
        1 => (0u8..3).prop_map(Change::Drop),
        4 => (object.clone(), 0u8..2, macs(), 0u8..12)
            .prop_map(|(object, uid, macs, after)| Change::Store(object, uid, macs, after)),
        2 => object.prop_map(Change::Remove),
        2 => (0u8..12).prop_map(Change::Settle),
        1 => (0u8..12, macs()).prop_map(|(number, macs)| Change::Found(number, macs)),
        1 => (0u8..8, 1u8..16).prop_map(|(from, size)| Change::Range(from, size)),
    ]
}

/// Addresses around both borders of a multicast block, and a long one.
fn address(number: u8) -> Mac {
    match number {
        23 => mac("02:00:00:00:00:00:00:01"),
        // The last four are multicast.
        0..12 => Mac::from_number(FIRST + u64::from(number)),
        _ => Mac::from_number(0x0400_0000_0000 + u64::from(number) - 12),
    }
}

fn object(number: u8) -> Owner {
    let namespace = if number.is_multiple_of(2) {
        "managed"
    } else {
        "other"
    };
    if number < 3 {
        Owner::pod(namespace, &format!("pod-{number}"))
    } else {
        Owner::machine(namespace, &format!("machine-{number}"))
    }
}

fn drafted(pool: &mut Pool, macs: &[u8], more: u8) -> Draft {
    let mut draft = Draft::new();
    for (index, mac) in macs.iter().enumerate() {
        draft.register(address(*mac), &format!("explicit-{index}"));
    }
    for index in 0..more {
        let before: BTreeSet<Mac> = draft.holdings().iter().map(|holding| holding.mac).collect();
        let (next, range) = (pool.next, pool.range);
        let is_free = |number: &u64| {
            let mac = Mac::from_number(*number);
            range.may_hand_out(mac) && pool.holders(mac).is_empty() && !before.contains(&mac)
        };
        // The whole range from the next address on; only the ends of the multicast block.
        let (start, end) = range.ends();
        let mut all: Vec<u64> = (start..=end.min(start + 64)).collect();
        all.extend((end.saturating_sub(64)).max(start)..=end);
        let (behind, ahead): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|number| *number < next);
        let expected = ahead.into_iter().chain(behind).find(is_free);
        let got = pool.allocate(&mut draft, &format!("asked-{index}"));
        assert_eq!(got.ok(), expected.map(Mac::from_number));
    }
    draft
}

fn some_pending(pool: &Pool, number: u8) -> Option<u64> {
    let count = pool.pending.len().max(1);
    pool.pending.keys().copied().nth(usize::from(number) % count)
}

fn apply(pool: &mut Pool, change: &Change, clock: &mut u64, start: Instant) {
    let now = start + Duration::from_secs(*clock);
    *clock += 1;
    match change {
        Change::Admit(number, macs, more, is_update) => {
            let draft = drafted(pool, macs, *more);
            let owner = object(*number);
            let pending = if *is_update {
                update(&owner, "uid-0", *clock, now)
            } else {
                creation(&owner, *clock, now)
            };
            pool.admit(draft, pending);
        }
        Change::AdmitUnnamed(macs, more) => {
            let draft = drafted(pool, macs, *more);
            pool.admit(
                draft,
                unnamed(Kind::Pod, "managed", &clock.to_string(), *clock, now),
            );
        }
        Change::Drop(more) => drop(drafted(pool, &[], *more)),
        Change::Store(number, uid, macs, after) => {
            let macs = macs.iter().enumerate();
            let macs = macs.map(|(index, mac)| holding(address(*mac), &format!("explicit-{index}")));
            let transaction = Some(moment(clock.saturating_sub(u64::from(*after))));
            pool.store(
                &object(*number),
                &format!("uid-{uid}"),
                macs.collect(),
                transaction,
            );
        }
        Change::Remove(number) => {
            let owner = object(*number);
            let before = pool.stored(&owner).map(<[Holding]>::to_vec);
            assert_eq!(pool.remove(&owner), before.unwrap_or_default());
            assert!(pool.stored(&owner).is_none());
        }
        Change::Settle(number) => {
            if let Some(number) = some_pending(pool, *number) {
                pool.settle(number);
            }
        }
        Change::Found(number, macs) => {
            if let Some(number) = some_pending(pool, *number) {
                let macs = macs.iter().enumerate();
                let macs = macs.map(|(index, mac)| holding(address(*mac), &format!("explicit-{index}")));
                pool.found(number, "uid-0", &macs.collect::<Vec<_>>(), now);
            }
        }
        Change::Range(from, size) => {
            let start = FIRST + u64::from(*from);
            let end = start + u64::from(*size);
            let end = if end >= FIRST + 8 {
                0x0400_0000_0000 + u64::from(*size)
            } else {
                end
            };
            let ends = (Mac::from_number(start), Mac::from_number(end));
            pool.set_range(Range::new(ends.0, ends.1).unwrap(), *clock);
        }
    }
}

fn assert_books(pool: &Pool) {
    let mut holders: BTreeMap<Mac, BTreeMap<u64, bool>> = BTreeMap::new();
    for object in pool.objects.values() {
        for (holding, place) in object.held.iter() {
            assert!(
                holders
                    .entry(holding.mac)
                    .or_default()
                    .insert(place, true)
                    .is_none()
            );
        }
    }
    for admission in pool.pending.values() {
        for (holding, place) in admission.held.iter() {
            assert!(
                holders
                    .entry(holding.mac)
                    .or_default()
                    .insert(place, false)
                    .is_none()
            );
        }
    }
    let mut usage = Usage {
        size: pool.range.usable(),
        ..Usage::default()
    };
    for (mac, expected) in &holders {
        let places: Vec<(u64, bool)> = pool
            .ledger
            .holders(*mac)
            .map(|(place, who)| (place, matches!(who, Who::Stored(_))))
            .collect();
        assert_eq!(
            places,
            expected
                .iter()
                .map(|(place, stored)| (*place, *stored))
                .collect::<Vec<_>>()
        );
        assert!(!pool.holders(*mac).is_empty());
        if pool.range.may_hand_out(*mac) {
            match pool.ledger.holders(*mac).next() {
                Some((_, Who::Stored(owner))) if &*owner.namespace == "managed" => usage.used += 1,
                Some((_, Who::Stored(_))) => usage.reserved += 1,
                _ => usage.pending += 1,
            }
        }
    }
    for number in 0..24 {
        let mac = address(number);
        assert_eq!(pool.holders(mac).is_empty(), !holders.contains_key(&mac), "{mac}");
        if let Some(address) = mac.number() {
            assert_eq!(
                pool.ledger.taken_until(address).is_some(),
                holders.contains_key(&mac),
                "{mac}"
            );
        }
    }
    assert_eq!(pool.usage(|_, namespace| namespace == "managed"), usage);
    let waits: BTreeSet<(Instant, u64)> = pool
        .pending
        .iter()
        .map(|(number, admission)| (admission.pending.admitted, *number))
        .collect();
    assert_eq!(pool.waits, waits);
    assert_eq!(pool.oldest(), waits.first().map(|(admitted, _)| *admitted));
    let named = |admission: &Admission| matches!(admission.pending.claimant, Claimant::Named(_));
    let claims: usize = pool.claims.values().map(Vec::len).sum();
    assert_eq!(
        claims,
        pool.pending.values().filter(|admission| named(admission)).count()
    );
    assert!(pool.claims.values().all(|claims| !claims.is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // kubemacpool#14
    #[test]
    fn pool_stays_consistent_after_random_steps(changes in prop::collection::vec(change(), 1..60)) {
        let start = Instant::now();
        let (mut pool, mut clock) = (Pool::new(range("02:ff:ff:ff:ff:f8", "04:00:00:00:00:07"), 3), 100);
        for change in &changes {
            apply(&mut pool, change, &mut clock, start);
            assert_books(&pool);
        }
        // At the end, nothing is left.
        for number in 0..6 {
            pool.remove(&object(number));
        }
        for (number, _) in pool.overdue(start + Duration::from_secs(clock)) {
            pool.settle(number);
        }
        assert_books(&pool);
        prop_assert_eq!(pool.usage(|_, _| true).free(), pool.range().usable());
        prop_assert!(pool.objects.is_empty() && pool.pending.is_empty());
    }
}

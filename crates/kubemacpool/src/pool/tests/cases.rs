//! The cases of the specification that the pool alone decides.

use std::net::IpAddr;
use std::time::Duration;

use super::*;

struct World {
    pool: Pool,
    start: Instant,
}

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const C: &str = "02:00:00:00:00:0c";

impl World {
    fn new(range: Range) -> Self {
        Self {
            pool: Pool::new(range, 0),
            start: Instant::now(),
        }
    }

    fn large() -> Self {
        Self::new(range("0a:00:00:00:00:00", "0a:ff:ff:ff:ff:ff"))
    }

    fn two() -> Self {
        Self::new(range("02:00:00:00:00:00", "02:00:00:00:00:01"))
    }

    /// Creates a machine and observes it.
    fn create(&mut self, owner: &Owner, timestamp: u64) -> Result<Mac, RangeIsFull> {
        let mut draft = Draft::new();
        let mac = self.pool.allocate(&mut draft, "nic")?;
        self.pool.admit(draft, creation(owner, timestamp, self.start));
        self.see(owner, timestamp, &[(&mac.to_string(), "nic")]);
        Ok(mac)
    }

    fn admit(&mut self, pending: Pending, held: &[(&str, &str)]) {
        let mut draft = Draft::new();
        for (address, key) in held {
            draft.register(mac(address), key);
        }
        self.pool.admit(draft, pending);
    }

    fn see(&mut self, owner: &Owner, timestamp: u64, held: &[(&str, &str)]) {
        self.see_as(owner, "uid", Some(moment(timestamp)), held);
    }

    fn see_as(&mut self, owner: &Owner, uid: &str, transaction: Option<Timestamp>, held: &[(&str, &str)]) {
        let held = held.iter().map(|(address, key)| holding(mac(address), key));
        self.pool.store(owner, uid, held.collect(), transaction);
    }

    /// Holders of an address: `owner key`, with `?` while pending.
    fn holders(&self, address: &str) -> Vec<String> {
        let holders = self.pool.holders(mac(address)).into_iter();
        let shown = holders.map(
            |Holder {
                 claimant,
                 key,
                 pending,
             }| {
                let owner = match claimant {
                    Claimant::Named(owner) => owner.to_string(),
                    Claimant::Unnamed { request, .. } => format!("request {request}"),
                };
                format!("{owner} {key}{}", if pending { "?" } else { "" })
            },
        );
        shown.collect()
    }

    fn number(&self) -> u64 {
        let overdue = self.pool.overdue(self.start);
        assert_eq!(overdue.len(), 1, "{overdue:?}");
        overdue[0].0
    }
}

fn vm(name: &str) -> Owner {
    Owner::machine("ns", name)
}

// kubemacpool#10, kubemacpool#37
#[test]
fn range_of_two_is_full_after_two() {
    let mut world = World::two();
    let first = world.create(&vm("one"), 1).unwrap();
    let second = world.create(&vm("two"), 2).unwrap();
    assert_eq!(
        (first, second),
        (mac("02:00:00:00:00:00"), mac("02:00:00:00:00:01"))
    );
    let error = world.create(&vm("three"), 3).unwrap_err();
    assert_eq!(error.to_string(), "the range is full");
    assert_eq!(world.holders("02:00:00:00:00:00"), ["vm/ns/one nic"]);
    assert_eq!(world.holders("02:00:00:00:00:01"), ["vm/ns/two nic"]);
}

// kubemacpool#11
#[test]
fn released_address_is_not_reused_at_once() {
    let mut world = World::large();
    let first = world.create(&vm("one"), 1).unwrap();
    world.pool.remove(&vm("one"));
    let second = world.create(&vm("two"), 2).unwrap();
    assert_ne!(first, second);
    assert!(world.pool.holders(first).is_empty());
}

// kubemacpool#12
#[test]
fn released_address_is_reused_after_a_round() {
    let mut world = World::two();
    let first = world.create(&vm("one"), 1).unwrap();
    world.create(&vm("two"), 2).unwrap();
    assert_eq!(world.pool.remove(&vm("one")), [holding(first, "nic")]);
    assert_eq!(world.create(&vm("three"), 3), Ok(first));
    assert!(world.create(&vm("four"), 4).is_err());
}

// kubemacpool#13
#[test]
fn different_seeds_start_at_different_addresses() {
    let range = range("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff");
    let first = |random| {
        Pool::new(range, random)
            .allocate(&mut Draft::new(), "nic")
            .unwrap()
    };
    let random = || u64::from_ne_bytes(linux::random::bytes().unwrap());
    assert_ne!(first(random()), first(random()));
    assert_eq!(first(0x1234), mac("02:00:00:00:12:34"));
}

// kubemacpool#14, kubemacpool#24
#[test]
fn held_and_draft_addresses_are_not_allocated() {
    let mut world = World::new(range("02:00:00:00:00:0a", "02:00:00:00:00:0f"));
    world.see(&vm("seen"), 1, &[(A, "nic")]);
    world.admit(creation(&vm("admitted"), 2, world.start), &[(B, "nic")]);
    let mut draft = Draft::new();
    draft.register(mac(C), "own");
    let mut next = |draft: &mut Draft| world.pool.allocate(draft, "nic").map(|mac| mac.to_string());
    assert_eq!(next(&mut draft), Ok("02:00:00:00:00:0d".to_owned()));
    assert_eq!(next(&mut draft), Ok("02:00:00:00:00:0e".to_owned()));
    assert_eq!(next(&mut draft), Ok("02:00:00:00:00:0f".to_owned()));
    assert_eq!(next(&mut draft), Err(RangeIsFull));
    // A dropped draft holds nothing, as in a dry run.
    assert_eq!(next(&mut Draft::new()), Ok(C.to_owned()));
    assert_eq!(world.pool.usage(|_, _| true).free(), 4);
}

// kubemacpool#91
#[test]
fn one_client_takes_at_most_half_of_pending_limit() {
    const EACH: u32 = 4_096;
    let mut world = World::large();
    let client = |last| IpAddr::from([10, 0, 0, last]);
    let mut number = 0_u32;
    let mut fill = |world: &mut World, client: IpAddr| {
        let mut admitted = 0;
        loop {
            let mut draft = Draft::new();
            for _ in 0..EACH {
                world.pool.allocate(&mut draft, "nic").unwrap();
            }
            if !world.pool.has_capacity(&draft, client) {
                return admitted;
            }
            number += 1;
            let owner = vm(&format!("forged-{number}"));
            let pending = Pending {
                client,
                ..creation(&owner, 1, world.start)
            };
            world.pool.admit(draft, pending);
            admitted += EACH;
        }
    };
    assert_eq!(fill(&mut world, client(1)), 65_536);
    assert_eq!(fill(&mut world, client(2)), 32_768);
    for (number, _) in world.pool.overdue(world.start) {
        world.pool.settle(number);
    }
    assert_eq!(fill(&mut world, client(3)), 65_536);
}

// kubemacpool#15
#[test]
fn multicast_addresses_are_never_allocated() {
    let range = range("02:ff:ff:ff:ff:fe", "06:00:00:00:00:01");
    let blocks = (range.usable() - 4) / (1 << 40);
    assert_eq!(blocks, 1, "04, and two addresses on each side");
    let mut pool = Pool::new(range, 0);
    let mut next = || pool.allocate(&mut Draft::new(), "nic").unwrap().to_string();
    assert_eq!(
        [next(), next(), next()],
        ["02:ff:ff:ff:ff:fe", "02:ff:ff:ff:ff:ff", "04:00:00:00:00:00"]
    );
    let mut pool = Pool::new(range, range.usable() - 3);
    let mut next = || pool.allocate(&mut Draft::new(), "nic").unwrap().to_string();
    assert_eq!(
        [next(), next(), next(), next()],
        [
            "04:ff:ff:ff:ff:ff",
            "06:00:00:00:00:00",
            "06:00:00:00:00:01",
            "02:ff:ff:ff:ff:fe"
        ]
    );
    for random in 0..1000 {
        let mut pool = Pool::new(range, random * 0x1234_5678_9abc);
        let mac = pool.allocate(&mut Draft::new(), "nic").unwrap();
        assert!([2, 4, 6].contains(&mac.first_octet()), "{mac}");
    }
}

// kubemacpool#23, kubemacpool#54
#[test]
fn holders_are_sorted_by_creation() {
    let mut world = World::large();
    let (first, second) = (Owner::machine("b", "vm"), Owner::machine("a", "vm"));
    world.admit(creation(&first, 1, world.start), &[(A, "nic")]);
    world.admit(creation(&second, 2, world.start), &[(A, "nic")]);
    assert_eq!(world.holders(A), ["vm/b/vm nic?", "vm/a/vm nic?"]);
    // Observed in the other order, they keep their positions.
    world.see_as(&second, "2", Some(moment(2)), &[(A, "nic")]);
    assert_eq!(world.holders(A), ["vm/b/vm nic?", "vm/a/vm nic"]);
    world.see_as(&first, "1", Some(moment(1)), &[(A, "nic")]);
    assert_eq!(world.holders(A), ["vm/b/vm nic", "vm/a/vm nic"]);
    let pods = [Owner::pod("ns", "p2"), Owner::pod("ns", "p1")];
    for (index, pod) in pods.iter().enumerate() {
        world.admit(creation(pod, 10 + index as u64, world.start), &[(B, "net")]);
        world.see_as(pod, &index.to_string(), None, &[(B, "net")]);
    }
    assert_eq!(world.holders(B), ["pod/ns/p2 net", "pod/ns/p1 net"]);
}

// kubemacpool#32, kubemacpool#41, kubemacpool#42
#[test]
fn changed_address_is_held_with_old_one_until_stored() {
    let mut world = World::large();
    world.see(&vm("vm"), 1, &[(A, "nic")]);
    world.admit(update(&vm("vm"), "uid", 5, world.start), &[(B, "nic")]);
    assert_eq!(world.holders(A), ["vm/ns/vm nic"]);
    assert_eq!(world.holders(B), ["vm/ns/vm nic?"]);
    // Observing an earlier transaction changes nothing.
    world.see(&vm("vm"), 4, &[(A, "nic")]);
    assert_eq!(world.holders(B), ["vm/ns/vm nic?"]);
    world.see(&vm("vm"), 5, &[(B, "nic")]);
    assert_eq!(world.holders(B), ["vm/ns/vm nic"]);
    assert!(world.holders(A).is_empty());
}

// kubemacpool#33-35
#[test]
fn stored_object_decides_held_interfaces() {
    let mut world = World::large();
    world.see(&vm("vm"), 1, &[(A, "one"), (B, "two")]);
    // Adding one keeps the others.
    world.admit(
        update(&vm("vm"), "uid", 2, world.start),
        &[(A, "one"), (B, "two"), (C, "three")],
    );
    assert_eq!(world.holders(A), ["vm/ns/vm one"]);
    assert_eq!(world.holders(B), ["vm/ns/vm two"]);
    assert_eq!(world.holders(C), ["vm/ns/vm three?"]);
    world.see(&vm("vm"), 2, &[(A, "one"), (B, "two"), (C, "three")]);
    assert_eq!(world.holders(C), ["vm/ns/vm three"]);
    // One address is removed and another added: the removed address stays taken until the update is stored.
    let d = "02:00:00:00:00:0d";
    world.admit(
        update(&vm("vm"), "uid", 3, world.start),
        &[(A, "one"), (C, "three"), (d, "four")],
    );
    assert_eq!(world.holders(B), ["vm/ns/vm two"]);
    world.see(&vm("vm"), 3, &[(A, "one"), (C, "three"), (d, "four")]);
    assert!(world.holders(B).is_empty());
    assert_eq!(world.holders(d), ["vm/ns/vm four"]);
    // An address belongs to the interface that has it now.
    world.see(&vm("vm"), 4, &[(A, "three"), (C, "one")]);
    assert_eq!(world.holders(A), ["vm/ns/vm three"]);
    assert_eq!(world.holders(C), ["vm/ns/vm one"]);
}

// kubemacpool#41, kubemacpool#42
#[test]
fn later_transaction_settles_earlier_one() {
    let mut world = World::large();
    world.see(&vm("vm"), 1, &[(A, "one")]);
    world.admit(
        update(&vm("vm"), "uid", 2, world.start),
        &[(A, "one"), (B, "two")],
    );
    world.admit(
        update(&vm("vm"), "uid", 3, world.start),
        &[(A, "one"), (C, "two")],
    );
    world.see(&vm("vm"), 4, &[(A, "one"), (C, "two")]);
    assert!(world.holders(B).is_empty(), "the interface is gone");
    assert_eq!(world.holders(C), ["vm/ns/vm two"]);
    assert_eq!(world.pool.oldest(), None);
    // The address moved to another interface.
    let e = "02:00:00:00:00:0e";
    world.admit(
        update(&vm("vm"), "uid", 8, world.start),
        &[(A, "one"), (e, "three")],
    );
    world.see(&vm("vm"), 8, &[(A, "one"), (e, "four")]);
    assert_eq!(world.holders(e), ["vm/ns/vm four"]);
    assert_eq!(world.pool.oldest(), None);
    // A creation that is first observed with a later transaction.
    world.admit(creation(&vm("new"), 5, world.start), &[(B, "one")]);
    world.see_as(&vm("new"), "new", Some(moment(6)), &[(B, "one")]);
    assert_eq!(world.holders(B), ["vm/ns/new one"]);
    assert_eq!(world.pool.oldest(), None);
    // A machine whose creation's transaction is only in a later observation, and which lost its admitted address.
    let d = "02:00:00:00:00:0d";
    world.admit(creation(&vm("late"), 7, world.start), &[(d, "one")]);
    world.see_as(&vm("late"), "late", None, &[]);
    assert_eq!(world.holders(d), ["vm/ns/late one?"]);
    world.see_as(&vm("late"), "late", Some(moment(7)), &[]);
    assert!(world.holders(d).is_empty());
    assert_eq!(world.pool.oldest(), None);
}

// kubemacpool#43
#[test]
fn address_added_back_between_updates_stays_held() {
    for is_stored in [true, false] {
        let mut world = World::large();
        world.see(&vm("vm"), 1, &[(A, "one"), (B, "two")]);
        world.admit(update(&vm("vm"), "uid", 2, world.start), &[(A, "one")]);
        world.admit(
            update(&vm("vm"), "uid", 3, world.start),
            &[(A, "one"), (B, "two")],
        );
        world.see(&vm("vm"), 2, &[(A, "one")]);
        assert_eq!(world.holders(B), ["vm/ns/vm two?"]);
        if is_stored {
            world.see(&vm("vm"), 3, &[(A, "one"), (B, "two")]);
            assert_eq!(world.holders(B), ["vm/ns/vm two"]);
        } else {
            let found = [holding(mac(A), "one")];
            world.pool.found(world.number(), "uid", &found, world.start);
            assert!(world.holders(B).is_empty());
        }
        assert_eq!(world.holders(A), ["vm/ns/vm one"]);
        assert_eq!(world.pool.oldest(), None);
    }
}

// kubemacpool#44
#[test]
fn stored_addresses_are_held_without_admission() {
    let mut world = World::large();
    world.see(&vm("vm"), 1, &[(A, "nic")]);
    assert_eq!(world.holders(A), ["vm/ns/vm nic"]);
    assert_eq!(world.pool.stored(&vm("vm")), Some(&[holding(mac(A), "nic")][..]));
    assert_eq!(world.pool.stored(&vm("other")), None);
}

// kubemacpool#45
#[test]
fn abandoned_admission_ends_after_its_wait() {
    let mut world = World::large();
    let before = world.start + Duration::from_secs(10);
    let later = before + Duration::from_nanos(1);
    world.admit(creation(&vm("vm"), 1, later), &[(A, "nic")]);
    assert_eq!(world.pool.oldest(), Some(later));
    assert!(world.pool.overdue(before).is_empty());
    let overdue = world.pool.overdue(later);
    assert_eq!(overdue.len(), 1);
    world.pool.settle(overdue[0].0);
    assert!(world.holders(A).is_empty());
    assert_eq!(world.pool.oldest(), None);
    assert_eq!(world.pool.usage(|_, _| true).pending, 0);
}

// kubemacpool#46
#[test]
fn update_refused_later_keeps_stored_addresses() {
    let mut world = World::large();
    world.see(&vm("vm"), 1, &[(A, "nic")]);
    world.admit(update(&vm("vm"), "uid", 2, world.start), &[(B, "nic")]);
    let found = [holding(mac(A), "nic")];
    world.pool.found(
        world.number(),
        "uid",
        &found,
        world.start + Duration::from_secs(600),
    );
    assert_eq!(world.holders(A), ["vm/ns/vm nic"]);
    assert!(world.holders(B).is_empty());
    assert_eq!(world.pool.oldest(), None);
}

#[test]
fn found_but_unreported_object_waits_again() {
    let mut world = World::large();
    world.admit(creation(&vm("vm"), 1, world.start), &[(A, "one"), (B, "two")]);
    let later = world.start + Duration::from_secs(600);
    world
        .pool
        .found(world.number(), "uid", &[holding(mac(A), "one")], later);
    assert_eq!(world.holders(A), ["vm/ns/vm one?"]);
    assert!(world.holders(B).is_empty());
    assert_eq!(world.pool.oldest(), Some(later));
    world.see(&vm("vm"), 1, &[(A, "one")]);
    assert_eq!(world.holders(A), ["vm/ns/vm one"]);
    assert_eq!(world.pool.oldest(), None);
}

#[test]
fn failed_lookup_does_not_block_others() {
    let mut world = World::large();
    world.admit(creation(&vm("one"), 1, world.start), &[(A, "nic")]);
    let number = world.number();
    let later = world.start + Duration::from_secs(1);
    world.admit(creation(&vm("two"), 2, later), &[(B, "nic")]);
    world.pool.postpone(number, later + Duration::from_secs(1));
    assert_eq!(world.pool.oldest(), Some(later));
    let order: Vec<u64> = world
        .pool
        .overdue(later + Duration::from_secs(9))
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(order, [number + 1, number]);
}

// kubemacpool#47, kubemacpool#56
#[test]
fn removing_one_holder_keeps_the_others() {
    let mut world = World::new(range(A, B));
    let (first, second) = (Owner::machine("a", "vm"), Owner::machine("b", "vm"));
    world.see(&first, 1, &[(A, "nic")]);
    world.see(&second, 2, &[(A, "nic")]);
    world.see_as(&Owner::pod("c", "pod"), "pod", None, &[(A, "net")]);
    world.pool.remove(&first);
    assert_eq!(world.holders(A), ["vm/b/vm nic", "pod/c/pod net"]);
    assert_eq!(world.pool.allocate(&mut Draft::new(), "nic"), Ok(mac(B)));
    assert_eq!(
        world.pool.allocate(&mut Draft::new(), "nic"),
        Ok(mac(B)),
        "the other one is taken"
    );
    world.pool.remove(&second);
    assert_eq!(world.holders(A), ["pod/c/pod net"]);
    world.pool.remove(&Owner::pod("c", "pod"));
    assert!(world.holders(A).is_empty());
}

#[test]
fn late_deletion_keeps_addresses_of_successor() {
    let mut world = World::large();
    world.see_as(&vm("vm"), "old", Some(moment(1)), &[(A, "nic")]);
    world.admit(
        update(&vm("vm"), "old", 2, world.start),
        &[(A, "nic"), (B, "two")],
    );
    world.admit(creation(&vm("vm"), 3, world.start), &[(C, "nic")]);
    // The old one is observed again, then deleted.
    world.see_as(&vm("vm"), "old", Some(moment(9)), &[(A, "nic")]);
    world.pool.remove(&vm("vm"));
    assert!(world.holders(A).is_empty());
    assert!(
        world.holders(B).is_empty(),
        "what was admitted for the old one went with it"
    );
    assert_eq!(world.holders(C), ["vm/ns/vm nic?"]);
    world.see_as(&vm("vm"), "new", Some(moment(3)), &[(C, "nic")]);
    assert_eq!(world.holders(C), ["vm/ns/vm nic"]);
    // The next one is observed without a deletion of this one.
    world.admit(
        update(&vm("vm"), "new", 4, world.start),
        &[(C, "nic"), (B, "two")],
    );
    world.see_as(&vm("vm"), "newer", Some(moment(3)), &[(A, "nic")]);
    assert_eq!((world.holders(B).len(), world.holders(C).len()), (0, 0));
}

// kubemacpool#49
#[test]
fn unnamed_machine_is_matched_when_stored() {
    let mut world = World::large();
    for (request, timestamp, address) in [("r1", 1, A), ("r2", 2, B)] {
        let pending = unnamed(Kind::Machine, "ns", request, timestamp, world.start);
        world.admit(pending, &[(address, "nic")]);
    }
    assert_eq!(world.holders(B), ["request r2 nic?"]);
    world.see_as(
        &Owner::machine("other", "vm-x"),
        "0",
        Some(moment(2)),
        &[(B, "nic")],
    );
    assert_eq!(
        world.holders(B),
        ["request r2 nic?", "vm/other/vm-x nic"],
        "another namespace"
    );
    world.see_as(&vm("vm-b"), "2", Some(moment(2)), &[(B, "nic")]);
    assert_eq!(world.holders(B), ["vm/ns/vm-b nic", "vm/other/vm-x nic"]);
    assert_eq!(world.holders(A), ["request r1 nic?"]);
    world.pool.remove(&vm("vm-b"));
    assert_eq!(world.holders(B), ["vm/other/vm-x nic"]);
    // The other one was never created.
    world.pool.settle(world.number());
    assert!(world.holders(A).is_empty());
    assert_eq!(world.pool.oldest(), None);
}

// kubemacpool#60
#[test]
fn replica_set_pods_leave_no_admissions() {
    let mut world = World::large();
    for number in 0..100u64 {
        let request = format!("r{number}");
        let mut draft = Draft::new();
        world.pool.allocate(&mut draft, "net").unwrap();
        let held = draft.holdings().to_vec();
        let pending = unnamed(Kind::Pod, "ns", &request, number, world.start);
        world.pool.admit(draft, pending);
        if number % 10 != 9 {
            let pod = Owner::pod("ns", &format!("set-{number}"));
            world.pool.store(&pod, &request, held, None);
            world.pool.remove(&pod);
        }
    }
    let usage = world.pool.usage(|_, _| true);
    assert_eq!((usage.used, usage.pending), (0, 10), "those that were refused");
    for (number, _) in world.pool.overdue(world.start) {
        world.pool.settle(number);
    }
    assert_eq!(world.pool.usage(|_, _| true).free(), world.pool.range().usable());
}

#[test]
fn pods_with_same_address_settle_one_admission_each() {
    let mut world = World::large();
    for request in ["r1", "r2"] {
        world.admit(unnamed(Kind::Pod, "ns", request, 1, world.start), &[(A, "net")]);
    }
    let first = Owner::pod("ns", "first");
    world.see_as(&first, "1", None, &[(A, "net")]);
    world.see_as(&first, "1", None, &[(A, "net")]);
    world.pool.remove(&first);
    assert_eq!(
        world.holders(A),
        ["request r2 net?"],
        "the other one is on its way"
    );
}

#[test]
fn usage_counts_each_state() {
    let mut world = World::new(range(A, "02:00:00:00:00:0f"));
    world.see(
        &Owner::machine("managed", "vm"),
        1,
        &[(A, "one"), ("0a:00:00:00:00:01", "two")],
    );
    world.see(&Owner::machine("other", "vm"), 1, &[(A, "one"), (B, "two")]);
    world.see_as(&Owner::pod("managed", "pod"), "1", None, &[(C, "net")]);
    world.admit(
        creation(&vm("new"), 2, world.start),
        &[("02:00:00:00:00:0d", "nic")],
    );
    let managed = |kind, namespace: &str| kind == Kind::Machine && namespace == "managed";
    let usage = world.pool.usage(managed);
    let expected = Usage {
        size: 6,
        used: 1,
        pending: 1,
        reserved: 2,
    };
    assert_eq!(usage, expected);
    assert_eq!(usage.free(), 2);
    // A shared address counts once, for the first holder; after its deletion, for the other.
    world.pool.remove(&Owner::machine("managed", "vm"));
    let usage = world.pool.usage(managed);
    assert_eq!((usage.used, usage.reserved), (0, 3));
    // Another range counts other addresses.
    world.pool.set_range(range("02:00:00:00:00:00", B), 0);
    let expected = Usage {
        size: 12,
        used: 0,
        pending: 0,
        reserved: 2,
    };
    assert_eq!(world.pool.usage(managed), expected);
}

// kubemacpool#72
#[test]
fn setting_same_range_keeps_position() {
    let mut world = World::new(range("0a:00:00:00:00:00", "0a:00:00:00:00:ff"));
    let next = |world: &mut World| {
        let mac = world.pool.allocate(&mut Draft::new(), "nic");
        mac.unwrap().to_string()
    };
    assert_eq!(next(&mut world), "0a:00:00:00:00:00");
    world
        .pool
        .set_range(range("0A-00-00-00-00-00", "0A-00-00-00-00-FF"), 77);
    assert_eq!(next(&mut world), "0a:00:00:00:00:01");
    world
        .pool
        .set_range(range("0c:00:00:00:00:00", "0c:00:00:00:00:ff"), 77);
    assert_eq!(next(&mut world), "0c:00:00:00:00:4d");
}

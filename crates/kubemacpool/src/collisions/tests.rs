use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

mod model;

fn all(_: pool::Kind, _: &str) -> bool {
    true
}

fn mac(text: &str) -> Mac {
    Mac::parse(text).expect("an address")
}

const M1: &str = "02:00:00:00:00:50";
const M2: &str = "02:00:00:00:00:51";

fn begun() -> Collisions {
    let mut collisions = Collisions::new();
    assert_eq!(collisions.begin(), []);
    collisions
}

fn instance(macs: &[&str]) -> Option<Facts> {
    migrating(macs, None, None)
}

fn migrating(macs: &[&str], source: Option<&str>, target: Option<&str>) -> Option<Facts> {
    let macs = macs.iter().map(|text| mac(text));
    Facts::of_instance("uid", "Running", macs, Migration::new(source, target))
}

fn pod(macs: &[&str]) -> Option<Facts> {
    pod_that(true, false, "Running", macs)
}

fn pod_that(attached: bool, launcher: bool, phase: &str, macs: &[&str]) -> Option<Facts> {
    let pod = Pod {
        uid: "uid",
        phase,
        launcher,
        attached,
    };
    Facts::of_pod(&pod, pod_macs(macs.iter().copied()))
}

fn vmi(name: &str) -> Reference {
    let (namespace, name) = name.split_once('/').expect("a namespace and a name");
    Reference::instance(namespace, name)
}

fn of_pod(name: &str) -> Reference {
    let (namespace, name) = name.split_once('/').expect("a namespace and a name");
    Reference::pod(namespace, name)
}

/// The text of notices, with the parties.
fn reported(notices: &[Notice]) -> Vec<String> {
    let text = |notice: &Notice| {
        let parties: Vec<_> = notice.parties.iter().map(|party| &party.reference).collect();
        crate::messages::collision(notice.mac, &parties)
    };
    notices.iter().map(text).collect()
}

fn gauge(collisions: &Collisions) -> Vec<(String, usize)> {
    let series = collisions.colliding();
    series.map(|(mac, objects)| (mac.to_string(), objects)).collect()
}

fn series(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    let own = expected
        .iter()
        .map(|(mac, objects)| ((*mac).to_owned(), *objects));
    own.collect()
}

// kubemacpool#73
#[test]
fn instances_sharing_an_address_collide() {
    let mut collisions = begun();
    assert_eq!(collisions.set(&vmi("a/v1"), instance(&[M1]), &all), []);
    assert_eq!(gauge(&collisions), []);
    // Another notation and another namespace.
    let notices = collisions.set(&vmi("b/v2"), instance(&["02-00-00-00-00-50"]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/b/v2"]
    );
    assert_eq!(notices[0].parties.len(), 2);
    assert_eq!(gauge(&collisions), series(&[(M1, 2)]));
    let notices = collisions.set(&vmi("a/v3"), instance(&["0200.0000.0050"]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/a/v3, vmi/b/v2"]
    );
    assert_eq!(notices[0].parties.len(), 3);
    assert_eq!(gauge(&collisions), series(&[(M1, 3)]));
}

// kubemacpool#74
#[test]
fn each_shared_address_has_its_own_notice() {
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), instance(&[M1, M2, "02:00:00:00:00:99"]), &all);
    let notices = collisions.set(&vmi("a/v2"), instance(&[M1, "02:00:00:00:00:98"]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/a/v2"]
    );
    let notices = collisions.set(&vmi("a/v3"), instance(&[M2]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:51: Collision between vmi/a/v1, vmi/a/v3"]
    );
    assert_eq!(gauge(&collisions), series(&[(M1, 2), (M2, 2)]));
}

// kubemacpool#75
#[test]
fn deleted_or_stopped_instance_stops_colliding() {
    for phase in ["Pending", "Scheduling", "Succeeded", "Failed", ""] {
        let at_rest = Facts::of_instance("uid", phase, [mac(M1)], Migration::default());
        let mut collisions = begun();
        for name in ["a/v1", "a/v2", "a/v3"] {
            collisions.set(&vmi(name), instance(&[M1]), &all);
        }
        assert_eq!(collisions.set(&vmi("a/v3"), at_rest.clone(), &all), []);
        assert_eq!(gauge(&collisions), series(&[(M1, 2)]));
        collisions.remove(&vmi("a/v2"));
        assert_eq!(gauge(&collisions), []);
        // And does not start to collide.
        assert_eq!(collisions.set(&vmi("a/v4"), at_rest, &all), []);
        assert_eq!(gauge(&collisions), []);
    }
}

#[test]
fn removed_address_ends_its_collision() {
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), instance(&[M1, M2]), &all);
    collisions.set(&vmi("a/v2"), instance(&[M1, M2]), &all);
    let notices = collisions.set(&vmi("a/v1"), instance(&[M2]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:51: Collision between vmi/a/v1, vmi/a/v2"]
    );
    assert_eq!(gauge(&collisions), series(&[(M2, 2)]));
    assert_eq!(collisions.set(&vmi("a/v1"), instance(&[]), &all), []);
    assert_eq!(gauge(&collisions), []);
}

// kubemacpool#76
#[test]
fn unmanaged_namespaces_are_ignored() {
    let managed = |_: pool::Kind, namespace: &str| namespace != "out";
    let mut collisions = begun();
    collisions.set(&vmi("out/v1"), instance(&[M1]), &managed);
    assert_eq!(collisions.set(&vmi("in/v2"), instance(&[M1]), &managed), []);
    assert_eq!(collisions.set(&vmi("out/v3"), instance(&[M1]), &managed), []);
    assert_eq!(gauge(&collisions), []);
    // The namespace becomes managed: one notice.
    let notices = collisions.recheck(Some("out"), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:50: Collision between vmi/in/v2, vmi/out/v1, vmi/out/v3"]
    );
    assert_eq!(gauge(&collisions), series(&[(M1, 3)]));
    assert_eq!(collisions.recheck(None, &all), [], "nothing changed");
    // And unmanaged again.
    assert_eq!(collisions.recheck(None, &managed), []);
    assert_eq!(gauge(&collisions), []);
}

#[test]
fn each_kind_follows_its_webhook() {
    let machines = |kind: pool::Kind, _: &str| kind == pool::Kind::Machine;
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), instance(&[M1]), &machines);
    assert_eq!(collisions.set(&of_pod("a/p1"), pod(&[M1]), &machines), []);
    assert_eq!(
        reported(&collisions.recheck(Some("a"), &all)),
        ["MAC 02:00:00:00:00:50: Collision between pod/a/p1, vmi/a/v1"]
    );
}

// kubemacpool#77
#[test]
fn migration_source_and_target_do_not_collide() {
    let cases = [
        ((Some("s"), None), (Some("s"), None), false),
        ((None, Some("t")), (None, Some("t")), false),
        ((Some("s"), Some("t")), (Some("s"), Some("u")), false),
        ((Some("s"), Some("t")), (Some("r"), Some("t")), false),
        ((Some("s"), None), (Some("r"), None), true),
        ((None, Some("t")), (None, Some("u")), true),
        ((Some("s"), None), (None, None), true),
        ((None, Some("t")), (None, None), true),
        ((Some("s"), None), (None, Some("t")), true),
        ((Some("s"), None), (None, Some("s")), true),
        // Empty means none.
        ((Some(""), Some("")), (Some(""), Some("")), true),
    ];
    for (one, other, expected) in cases {
        for (one, other) in [(one, other), (other, one)] {
            let mut collisions = begun();
            collisions.set(&vmi("a/v1"), migrating(&[M1], one.0, one.1), &all);
            let notices = collisions.set(&vmi("b/v1"), migrating(&[M1], other.0, other.1), &all);
            let case = format!("{one:?} {other:?}");
            assert_eq!(!notices.is_empty(), expected, "{case}");
            assert_eq!(gauge(&collisions).is_empty(), !expected, "{case}");
        }
    }
}

#[test]
fn migration_end_reveals_collision() {
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), migrating(&[M1], Some("s"), None), &all);
    collisions.set(&vmi("b/v1"), migrating(&[M1], Some("s"), None), &all);
    let notices = collisions.set(&vmi("b/v1"), instance(&[M1]), &all);
    assert_eq!(
        reported(&notices),
        ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/b/v1"]
    );
    collisions.set(&vmi("b/v1"), migrating(&[M1], Some("s"), None), &all);
    assert_eq!(gauge(&collisions), []);
}

#[test]
fn third_instance_collides_with_both_migration_sides() {
    let sides = [
        (vmi("a/v1"), migrating(&[M1], Some("s"), None)),
        (vmi("b/v1"), migrating(&[M1], Some("s"), None)),
        (vmi("c/v9"), instance(&[M1])),
    ];
    // In either order.
    for last in 0..3 {
        let mut sides = sides.to_vec();
        sides.rotate_left(last);
        let mut collisions = begun();
        let mut notices = Vec::new();
        for (object, facts) in sides {
            notices = collisions.set(&object, facts, &all);
        }
        assert_eq!(
            reported(&notices),
            ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/b/v1, vmi/c/v9"]
        );
        assert_eq!(gauge(&collisions), series(&[(M1, 3)]));
    }
}

// kubemacpool#78
#[test]
fn replaced_instance_of_same_name_does_not_collide() {
    let mut collisions = begun();
    let of = |uid: &str, phase: &str| Facts::of_instance(uid, phase, [mac(M1)], Migration::default());
    collisions.set(&vmi("a/v1"), of("1", "Running"), &all);
    collisions.set(&vmi("a/v1"), of("1", "Succeeded"), &all);
    assert_eq!(collisions.set(&vmi("a/v1"), of("2", "Scheduling"), &all), []);
    assert_eq!(collisions.set(&vmi("a/v1"), of("2", "Running"), &all), []);
    // Even if the states in between were missed.
    assert_eq!(collisions.set(&vmi("a/v1"), of("3", "Running"), &all), []);
    assert_eq!(gauge(&collisions), []);
}

// kubemacpool#79
#[test]
fn pod_and_instance_collide() {
    for gone in [vmi("a/v1"), of_pod("a/p1")] {
        for pod_last in [true, false] {
            let mut collisions = begun();
            let mut seen = [(vmi("a/v1"), instance(&[M1])), (of_pod("a/p1"), pod(&[M1]))];
            if !pod_last {
                seen.reverse();
            }
            let [first, last] = seen;
            assert_eq!(collisions.set(&first.0, first.1, &all), []);
            let notices = collisions.set(&last.0, last.1, &all);
            assert_eq!(
                reported(&notices),
                ["MAC 02:00:00:00:00:50: Collision between pod/a/p1, vmi/a/v1"]
            );
            let parties: Vec<_> = notices[0].parties.iter().map(|party| &party.reference).collect();
            assert_eq!(parties, [&of_pod("a/p1"), &vmi("a/v1")]);
            assert_eq!(gauge(&collisions), series(&[(M1, 2)]));
            collisions.remove(&gone);
            assert_eq!(gauge(&collisions), []);
        }
    }
}

#[test]
fn migration_does_not_excuse_pods() {
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), migrating(&[M1], Some("s"), None), &all);
    collisions.set(&vmi("b/v1"), migrating(&[M1], Some("s"), None), &all);
    assert_eq!(
        reported(&collisions.set(&of_pod("a/p1"), pod(&[M1]), &all)),
        ["MAC 02:00:00:00:00:50: Collision between pod/a/p1, vmi/a/v1, vmi/b/v1"]
    );
}

// kubemacpool#80: nothing but pods is known without KubeVirt
#[test]
fn only_running_attached_standalone_pods_count() {
    for (attached, launcher, phase, counts) in [
        (true, false, "Running", true),
        (false, false, "Running", false),
        (true, true, "Running", false),
        (true, false, "Pending", false),
        (true, false, "Succeeded", false),
    ] {
        let mut collisions = begun();
        collisions.set(&of_pod("a/p1"), pod(&[M1]), &all);
        let other = pod_that(attached, launcher, phase, &[M1]);
        let expected = if counts {
            vec!["MAC 02:00:00:00:00:50: Collision between pod/a/p1, pod/b/p2"]
        } else {
            Vec::new()
        };
        assert_eq!(
            reported(&collisions.set(&of_pod("b/p2"), other, &all)),
            expected,
            "{phase}"
        );
        assert_eq!(gauge(&collisions).len(), usize::from(counts));
    }
}

// kubemacpool#81: what the first lists show
#[test]
fn initial_collisions_are_reported_once_after_sync() {
    let mut collisions = Collisions::new();
    for name in ["a/v1", "a/v2", "a/v3"] {
        assert_eq!(collisions.set(&vmi(name), instance(&[M1]), &all), []);
    }
    collisions.set(&of_pod("a/p1"), pod(&[M2]), &all);
    assert_eq!(
        reported(&collisions.begin()),
        ["MAC 02:00:00:00:00:50: Collision between vmi/a/v1, vmi/a/v2, vmi/a/v3"]
    );
}

#[test]
fn unchanged_object_gives_no_notice() {
    let mut collisions = begun();
    collisions.set(&vmi("a/v1"), migrating(&[M1, M2], Some("s"), None), &all);
    let other = |macs: &[&str]| migrating(macs, Some("r"), None);
    assert_eq!(
        collisions.set(&vmi("a/v2"), other(&[M1, M2]), &all).len(),
        2,
        "it is new"
    );
    let again = other(&["02-00-00-00-00-51", M1, M2]);
    assert_eq!(
        collisions.set(&vmi("a/v2"), again, &all),
        [],
        "the same in another order"
    );
    let changed = migrating(&[M1, M2], Some("q"), None);
    assert_eq!(
        collisions.set(&vmi("a/v2"), changed, &all).len(),
        2,
        "another migration"
    );
}

#[test]
fn only_supported_interfaces_of_the_spec_count() {
    let status = [
        ("default", M1),
        ("udn", M2),
        ("", "02:42:00:00:00:01"),
        ("docker0", "02:42:00:00:00:02"),
        ("late", ""),
        ("odd", "no address"),
    ];
    let supported = |name: &str| ["default", "late", "odd"].contains(&name);
    assert_eq!(instance_macs(status, supported), [mac(M1)]);
}

#[test]
fn unreadable_pod_addresses_are_skipped() {
    assert_eq!(pod_macs(["", "no", M1, "02-00-00-00-00-51"]), [mac(M1), mac(M2)]);
}

#[test]
fn references_sort_by_their_text() {
    let mut collisions = begun();
    for name in ["a/v", "a-b/v", "a.b/v"] {
        collisions.set(&vmi(name), instance(&[M1]), &all);
    }
    assert_eq!(
        reported(&collisions.set(&of_pod("z/p"), pod(&[M1]), &all)),
        ["MAC 02:00:00:00:00:50: Collision between pod/z/p, vmi/a-b/v, vmi/a.b/v, vmi/a/v"]
    );
}

#[test]
fn deleted_objects_leave_no_memory() {
    let mut collisions = begun();
    for name in ["a/v1", "a/v2", "b/v3"] {
        collisions.set(&vmi(name), instance(&[M1, M2]), &all);
    }
    for name in ["a/v1", "a/v2", "b/v3"] {
        collisions.remove(&vmi(name));
    }
    collisions.remove(&vmi("a/v1"));
    assert!(collisions.objects.is_empty() && collisions.holders.is_empty());
    assert!(collisions.namespaces.is_empty() && collisions.colliding.is_empty());
}

fn change() -> impl Strategy<Value = model::Change> {
    use model::Change;
    let object = (any::<bool>(), 0..3_u8, 0..3_u8);
    let macs = prop::collection::btree_set(0..3_u8, 0..3);
    let migration = (0..3_u8, 0..3_u8);
    prop_oneof![
        6 => (object.clone(), any::<bool>(), 0..2_u8, macs, migration).prop_map(
            |(object, running, uid, macs, migration)| Change::Set { object, running, uid, macs, migration }
        ),
        2 => object.prop_map(Change::Remove),
        1 => (any::<bool>(), 0..3_u8).prop_map(|(machines, namespace)| Change::Toggle { machines, namespace }),
        1 => Just(Change::Begin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn index_agrees_with_brute_force(changes in prop::collection::vec(change(), 0..40)) {
        let mut world = model::World::default();
        let mut collisions = Collisions::new();
        for change in changes {
            let (actual, expected) = (world.index(&mut collisions, &change), world.check(&change));
            prop_assert_eq!(actual, expected, "{:?}", change);
            let counts: BTreeSet<_> = collisions.colliding().collect();
            prop_assert_eq!(counts, world.counts());
        }
    }
}

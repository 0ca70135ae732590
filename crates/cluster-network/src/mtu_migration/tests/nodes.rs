//! Nodes that hold up the migration, join or leave.

use super::*;

// cluster-network#106
#[test]
fn node_without_a_report_holds_up_the_change() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.facts.nodes.get_mut("b").expect("a node").links = None;
    world.run(false);
    assert_eq!(world.mtus(), [1500; 2]);
    assert_eq!(
        world.plan().obstacles,
        ["node b: no NodeNetworkState, the handler of nmstate does not run there"]
    );
    world.facts.nodes.insert("b".to_owned(), node(1500));
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 2]);
}

// cluster-network#106
#[test]
fn node_that_cannot_have_the_mtu_is_named() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b", "c", "d"]);
    let of = |world: &mut World, name: &str| world.facts.nodes.get_mut(name).expect("a node").clone();
    let mut small = of(&mut world, "a");
    small
        .links
        .as_mut()
        .expect("links")
        .get_mut("eth0")
        .expect("a link")
        .max_mtu = Some(1500);
    let mut unnamed = of(&mut world, "b");
    unnamed.hostname = None;
    let mut away = of(&mut world, "c");
    away.links = Some(Links::new());
    for (name, node) in [("a", small), ("b", unnamed), ("c", away)] {
        world.facts.nodes.insert(name.to_owned(), node);
    }
    world.run(false);
    assert_eq!(world.mtus(), [1500; 4]);
    assert_eq!(
        world.plan().failures,
        [
            "node a: interface eth0 supports an MTU of at most 1500, and 9000 is requested",
            "node b: label kubernetes.io/hostname is missing",
        ]
    );
    assert_eq!(
        world.plan().obstacles,
        ["node c: no interface has a default route"]
    );
}

// cluster-network#106
#[test]
fn node_that_is_not_ready_is_awaited() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a"]);
    world.facts.nodes.get_mut("a").expect("a node").is_ready = false;
    world.all_actions();
    world.all_actions();
    assert_eq!(world.plan().obstacles, ["node a is not ready"]);
    world.facts.nodes.get_mut("a").expect("a node").is_ready = true;
    assert_eq!(world.plan().obstacles.len(), 0);
    world.facts.overdue.insert("mtu-migration-a".to_owned());
    assert_eq!(
        world.plan().obstacles,
        ["node a: nmstate has reported no result of policy mtu-migration-a for 15 minutes"]
    );
    assert_eq!(World::new(wanted(Mode::Apply, None), &[]).all_actions().len(), 1);
    let mut empty = World::new(wanted(Mode::Apply, None), &[]);
    empty.facts.begun = Some(Begun::of(target(None)));
    let plan = empty.plan();
    assert_eq!((plan.actions.len(), plan.obstacles.len()), (0, 1), "{plan:?}");
}

// cluster-network#106
#[test]
fn node_that_joins_gets_its_dry_run_before_the_others_continue() {
    let mut world = World::changing(None, &["a", "b"]);
    world.nmstate();
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    world.facts.nodes.insert("aa".to_owned(), node(1500));
    world.mtus.insert(policy::name("aa"), 1500);
    let actions = world.all_actions();
    assert!(
        matches!(actions.as_slice(), [Action::Write(draft)] if draft.node == "aa" && draft.is_dry_run),
        "{actions:?}"
    );
    assert_eq!(world.all_actions(), []);
    world.nmstate();
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 3]);
    assert_eq!(world.facts.request, Request::None);
}

// cluster-network#106
#[test]
fn policy_of_a_removed_node_is_deleted() {
    let mut world = World::in_dry_run(None, &["a", "b"]);
    world.facts.nodes.remove("b");
    assert_eq!(
        world.all_actions(),
        [Action::Delete("mtu-migration-b".to_owned())]
    );
}

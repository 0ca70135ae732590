//! Migrations that end before their target.

use super::*;

// cluster-network#108
#[rstest]
#[case::ovn(Some(NETWORK))]
#[case::weft(None)]
fn aborted_migration_restores_the_mtus(#[case] network: Option<u32>, #[values(false, true)] is_killed: bool) {
    for changed in 0..3 {
        let mut world = World::in_dry_run(network, &["a", "b", "c"]);
        world.nmstate();
        for _ in 0..changed {
            world.all_actions();
            world.nmstate();
        }
        assert_eq!(
            world.mtus().iter().filter(|mtu| **mtu == MACHINE).count(),
            changed
        );
        world.most_at_once = 0;
        world.facts.request = Request::None;
        world.run(is_killed);
        assert_eq!(world.mtus(), [1500; 3]);
        assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
        assert!(world.most_at_once <= 1, "{world:?}");
    }
}

// cluster-network#108
#[test]
fn failed_return_is_named_and_keeps_the_policies() {
    let mut world = World::changing(None, &["a", "b"]);
    world.set("a", failed("no"));
    world.facts.request = Request::None;
    let actions = world.all_actions();
    assert!(
        matches!(actions.as_slice(), [Action::Write(draft)] if draft.goal == Goal::Former && !draft.is_dry_run),
        "{actions:?}"
    );
    world.set("a", failed("still no"));
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(plan.failures, ["node a: the change failed: still no"]);
    assert_eq!(
        plan.progress.as_deref(),
        Some("the migration of the MTU was aborted: 1 nodes have to return to their former MTU")
    );
}

// cluster-network#108
#[test]
fn migration_that_the_user_finalised_stays() {
    let mut world = World::changing(Some(NETWORK), &["a", "b"]);
    world.nmstate();
    world.facts.request = Request::None;
    world.facts.network_mtu = Some(NETWORK);
    world.run(true);
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#100, cluster-network#108
#[test]
fn other_agent_continues_with_the_nodes_as_they_are() {
    let mut world = World::changing(None, &["a", "b"]);
    world.nmstate();
    world.facts.request = Request::Elsewhere;
    world.run(true);
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
    for request in [Request::None, Request::Elsewhere, Request::Unmanaged] {
        assert_eq!(World::new(request, &["a"]).plan(), Plan::default());
    }
}

// cluster-network#103
#[test]
fn finalised_migration_is_not_aborted_whatever_nodes_report() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    while world.facts.request != Request::None {
        world.all_actions();
        world.nmstate();
    }
    // A handler that starts applies all policies again, and may fail.
    world.set("a", failed("no"));
    world.set("b", Progress::Pending);
    world.run(true);
    assert_eq!(world.mtus(), [MACHINE; 2]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#108
#[test]
fn removed_node_does_not_abort_finalised_migration() {
    let mut world = World::changing(None, &["a", "b"]);
    world.nmstate();
    world.facts.nodes.remove("b");
    world.facts.request = Request::None;
    world.run(true);
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

#[test]
fn mark_is_written_and_read() {
    let weft = Begun {
        finalised: true,
        ..begun(None)
    };
    for (mark, text) in [
        (
            begun(Some(NETWORK)),
            r#"{"machine":9000,"network":8900,"configured":1400}"#,
        ),
        (weft, r#"{"machine":9000,"finalised":true}"#),
    ] {
        assert_eq!(serde_json::to_string(&mark).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<Begun>(text).expect("a mark"), mark);
    }
}

/// A migration to another MTU of the nodes.
fn other_wanted(machine: u32, network: Option<u32>) -> Request {
    Request::Wanted {
        target: Target { machine, network },
        mode: Mode::Apply,
        network_from: network,
        is_accepted: true,
    }
}

// cluster-network#133
#[test]
fn abort_waits_for_nodes_that_are_not_ready() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b", "c"]);
    world.try_all();
    world.change_next();
    world.change_next();
    world.facts.request = Request::None;
    world.node("c").is_ready = false;
    let plan = world.plan();
    assert_eq!(
        (plan.actions, plan.obstacles),
        (vec![], vec!["node c is not ready".to_owned()])
    );
    // The new MTU may be the cause: such a node returns first.
    world.node("b").is_ready = false;
    let actions = world.all_actions();
    assert!(
        matches!(actions.as_slice(), [Action::Write(draft)] if draft.node == "b" && draft.goal == Goal::Former),
        "{actions:?}"
    );
    assert_eq!(world.all_actions(), []);
    world.nmstate();
    world.node("b").is_ready = true;
    assert_eq!(world.all_actions(), []);
    world.node("c").is_ready = true;
    world.run(false);
    assert_eq!((world.mtus(), world.facts.begun), (vec![1500; 3], None));
}

// cluster-network#134
#[rstest]
fn abort_after_a_second_target_restores_the_mtus(#[values(false, true)] is_killed: bool) {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.try_all();
    world.change_next();
    for machine in [4000, 5000] {
        world.facts.request = other_wanted(machine, None);
        world.try_all();
    }
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    world.facts.request = Request::None;
    world.run(is_killed);
    assert_eq!(world.mtus(), [1500; 2]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#134
#[test]
fn unknown_former_mtu_of_a_changed_node_is_named() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.try_all();
    world.change_next();
    let policy = |world: &mut World| -> Policy {
        let (policy, _) = world.facts.policies.get_mut("mtu-migration-a").expect("a policy");
        policy.former.clear();
        policy.clone()
    };
    policy(&mut world);
    // The reported MTU is the new one, and must not be recorded as the former one.
    world.facts.request = other_wanted(4000, None);
    world.try_all();
    assert_eq!(policy(&mut world).former, Settings::new());
    world.facts.request = Request::None;
    world.run(false);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.failures,
        ["node a: its former MTU is unknown: set it by hand, then delete policy mtu-migration-a"]
    );
    assert_eq!(world.facts.policies.len(), 2);
    world.facts.policies.remove("mtu-migration-a");
    world.run(false);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#135
#[test]
fn null_is_no_end_if_the_configuration_had_the_mtu_from_the_start() {
    let mut world = World::new(wanted(Mode::Apply, Some(NETWORK)), &["a", "b"]);
    world.facts.network_mtu = Some(NETWORK);
    world.try_all();
    world.change_next();
    assert_eq!(world.facts.begun.expect("a mark").configured, Some(NETWORK));
    world.facts.request = Request::None;
    world.run(true);
    assert_eq!(world.mtus(), [1500; 2]);
    // After the last node it is the end.
    let mut world = World::new(wanted(Mode::Apply, Some(NETWORK)), &["a", "b"]);
    world.facts.network_mtu = Some(NETWORK);
    world.try_all();
    world.change_next();
    world.change_next();
    world.facts.request = Request::None;
    world.run(true);
    assert_eq!(world.mtus(), [MACHINE; 2]);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#136
#[test]
fn abort_begins_with_the_node_that_applies_its_policy() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b", "c"]);
    world.try_all();
    world.change_next();
    assert_eq!(
        world.all_actions(),
        [Action::Release("mtu-migration-b".to_owned())]
    );
    world.most_at_once = 0;
    world.facts.request = Request::None;
    let actions = world.all_actions();
    assert!(
        matches!(actions.as_slice(), [Action::Write(draft)] if draft.node == "b" && draft.goal == Goal::Former),
        "{actions:?}"
    );
    assert_eq!(
        world.plan().progress.as_deref(),
        Some(
            "the migration of the MTU was aborted: 2 nodes have to return to their former MTU; node b: the change has no \
             result yet"
        )
    );
    world.nmstate();
    world.run(false);
    assert_eq!((world.mtus(), world.most_at_once), (vec![1500; 3], 1));
}

// cluster-network#141
#[test]
fn abort_ends_after_the_reports_show_the_former_mtu() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.try_all();
    world.change_next();
    world.facts.request = Request::None;
    world.all_actions();
    world.nmstate();
    world.node("a").links = Some(Ok(links(MACHINE)));
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.obstacles,
        ["node a: its NodeNetworkState still has MTU 9000 of interface eth0"]
    );
    // Without a report the result of the policy counts.
    world.node("a").links = None;
    world.run(false);
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
}

// cluster-network#141
#[test]
fn next_migration_begins_without_the_policies_of_a_finalised_one() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a"]);
    while world.facts.request != Request::None {
        world.all_actions();
        world.nmstate();
    }
    world.facts.request = other_wanted(4000, None);
    assert_eq!(
        world.all_actions(),
        [Action::Delete("mtu-migration-a".to_owned())]
    );
    assert_eq!(world.all_actions(), [Action::Mark(None)]);
    world.try_all();
    let (policy, _) = &world.facts.policies["mtu-migration-a"];
    assert_eq!(policy.former, settings(MACHINE));
}

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
    let ovn = Begun::of(target(Some(NETWORK)));
    let weft = Begun {
        finalised: true,
        ..Begun::of(target(None))
    };
    for (mark, text) in [
        (ovn, r#"{"machine":9000,"network":8900}"#),
        (weft, r#"{"machine":9000,"finalised":true}"#),
    ] {
        assert_eq!(serde_json::to_string(&mark).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<Begun>(text).expect("a mark"), mark);
    }
}

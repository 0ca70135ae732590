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
    assert_eq!(
        world.plan().progress.as_deref(),
        Some(
            "dry run of the change of the MTU: 1 of 2 nodes; node b: no NodeNetworkState, the handler of nmstate does \
             not run there"
        )
    );
    world.facts.nodes.insert("b".to_owned(), node("b", 1500));
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 2]);
}

// cluster-network#106
#[test]
fn node_that_cannot_have_the_mtu_is_named() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b", "c", "d"]);
    let of = |world: &mut World, name: &str| world.facts.nodes.get_mut(name).expect("a node").clone();
    let mut small = of(&mut world, "a");
    let mut least = links(1500);
    least.get_mut("eth0").expect("a link").max_mtu = Some(1500);
    small.links = Some(Ok(least));
    let mut unnamed = of(&mut world, "b");
    unnamed.hostname = None;
    let mut away = of(&mut world, "c");
    away.links = Some(Ok(Links::new()));
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
    empty.facts.begun = Some(begun(None));
    let plan = empty.plan();
    assert_eq!((plan.actions.len(), plan.obstacles.len()), (0, 1), "{plan:?}");
}

// cluster-network#106
#[test]
fn node_that_joins_gets_its_dry_run_before_the_others_continue() {
    let mut world = World::changing(None, &["a", "b"]);
    world.nmstate();
    assert_eq!(world.mtus(), [MACHINE, 1500]);
    world.facts.nodes.insert("aa".to_owned(), node("aa", 1500));
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

// cluster-network#131
#[test]
fn incomplete_report_holds_the_change_up() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    let reason = "its NodeNetworkState lacks interface eth1";
    world.node("b").links = Some(Err(reason.to_owned()));
    world.run(false);
    assert_eq!(world.mtus(), [1500; 2]);
    assert_eq!(world.plan().obstacles, [format!("node b: {reason}")]);
}

// cluster-network#132
#[test]
fn node_that_lost_its_profile_after_the_dry_run_is_not_changed() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a"]);
    world.try_all();
    let mut unmanaged = links(1500);
    unmanaged.get_mut("eth0").expect("a link").state = "down".to_owned();
    world.node("a").links = Some(Ok(unmanaged));
    assert_eq!(world.all_actions(), []);
    assert_eq!(
        world.plan().failures,
        ["node a: interface eth0 is not managed by NetworkManager: its reported state is \"down\""]
    );
}

// cluster-network#133
#[test]
fn node_that_is_not_ready_stops_the_others_and_the_end() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.try_all();
    world.change_next();
    for next in ["b", "the end"] {
        world.node("a").is_ready = false;
        let plan = world.plan();
        assert_eq!(plan.actions, [], "{next}");
        assert_eq!(plan.obstacles, ["node a is not ready"]);
        world.node("a").is_ready = true;
        if next == "b" {
            world.change_next();
        }
    }
    world.run(false);
    assert_eq!(world.facts.request, Request::None);
}

// cluster-network#133
#[test]
fn node_that_joins_before_it_is_ready_is_named() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a"]);
    world.try_all();
    let joined = Node {
        hostname: Some("host-b".to_owned()),
        ..Node::default()
    };
    world.facts.nodes.insert("b".to_owned(), joined);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.obstacles,
        [
            "node b is not ready",
            "node b: no NodeNetworkState, the handler of nmstate does not run there"
        ]
    );
}

fn state(policy: &str, mtu: u64) -> Stated {
    Stated {
        policy: policy.to_owned(),
        interface: "eth0".to_owned(),
        mtu,
    }
}

// cluster-network#137
#[test]
fn policy_of_a_user_with_another_mtu_is_named() {
    let failure =
        "node a: policy uplink sets MTU 1500 on eth0: change or delete it first, or it undoes the migration";
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    let other = Stated {
        interface: "eth7".to_owned(),
        ..state("other", 1500)
    };
    world.node("a").stated = vec![other.clone(), state("same", 9000), state("uplink", 1500)];
    world.run(false);
    assert_eq!(world.mtus(), [1500; 2]);
    assert_eq!(world.plan().failures, [failure]);
    world.node("a").stated = vec![other];
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 2]);
    // A policy that is written meanwhile stops the migration as well.
    for changed in 0..2 {
        let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
        world.try_all();
        (0..changed).for_each(|_| world.change_next());
        world.node("a").stated = vec![state("uplink", 1500)];
        assert_eq!(world.all_actions(), [], "{changed}");
        assert_eq!(world.plan().failures, [failure]);
    }
}

// cluster-network#141
#[test]
fn change_goes_on_after_the_report_shows_the_mtu() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a"]);
    world.try_all();
    world.change_next();
    world.node("a").links = Some(Ok(links(1500)));
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.obstacles,
        ["node a: its NodeNetworkState still has MTU 1500 of interface eth0"]
    );
    // The report of the moment at which the profile was activated again.
    let mut down = links(MACHINE);
    down.get_mut("eth0").expect("a link").state = "down".to_owned();
    world.node("a").links = Some(Ok(down));
    let plan = world.plan();
    assert_eq!(
        (plan.actions.len(), plan.failures.len(), plan.obstacles.len()),
        (0, 0, 1)
    );
    world.node("a").links = Some(Ok(links(MACHINE)));
    world.run(false);
    assert_eq!(world.facts.request, Request::None);
}

// cluster-network#142
#[test]
fn nodes_with_the_same_hostname_are_named() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b", "c"]);
    world.node("c").hostname = world.node("a").hostname.clone();
    world.run(false);
    assert_eq!(world.mtus(), [1500; 3]);
    assert_eq!(
        world.plan().failures,
        [
            "nodes a and c have the same label kubernetes.io/hostname: host-a",
            "nodes c and a have the same label kubernetes.io/hostname: host-a",
        ]
    );
    // The label is edited after the dry run.
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.try_all();
    world.node("b").hostname = world.node("a").hostname.clone();
    assert_eq!((world.all_actions(), world.plan().failures.len()), (vec![], 2));
}

// cluster-network#143
#[test]
fn condition_is_bounded() {
    let cause = "error reconciling NodeNetworkConfigurationPolicy on node a at desired state apply: \"\",\n no carrier";
    assert_eq!(
        messages::lines(&[cause, "node b is not ready"]),
        "error reconciling NodeNetworkConfigurationPolicy on node a at desired state apply: \"\", no carrier\nnode b \
         is not ready"
    );
    assert_eq!(
        messages::lines(&["no carrier\nlog: [INFO] first\n[INFO] last"]),
        "no carrier"
    );
    let long = format!("{}{}", "a".repeat(299), "ü".repeat(2000));
    assert_eq!(messages::lines(&[&long]), format!("{}…", "a".repeat(299)));
    let texts = vec![long.as_str(); 500];
    let condition = messages::lines(&texts);
    assert!(condition.ends_with("…\nand 490 more"), "{condition}");
    assert!(condition.len() < 3200, "{}", condition.len());
}

// cluster-network#145
#[test]
fn dry_run_that_is_retried_is_an_obstacle() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    world.all_actions();
    world.all_actions();
    world.set("a", Progress::Done);
    world.set(
        "b",
        Progress::Retrying("no bus; another attempt follows".to_owned()),
    );
    let plan = world.plan();
    assert_eq!((plan.actions, plan.failures), (vec![], vec![]));
    assert_eq!(
        plan.obstacles,
        ["node b: the dry run failed: no bus; another attempt follows"]
    );
    world.nmstate();
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 2]);
}

// cluster-network#146
#[test]
fn uplink_that_changed_after_the_dry_run_gets_another_one() {
    let mut world = World::new(wanted(Mode::DryRun, None), &["a", "b"]);
    world.try_all();
    assert_eq!(world.all_actions(), []);
    let eth0 = links(1400).remove("eth0").expect("a link");
    let uplink = BTreeMap::from([("eth0".to_owned(), eth0.clone()), ("eth1".to_owned(), eth0)]);
    world.node("a").links = Some(Ok(uplink));
    world.facts.request = wanted(Mode::Apply, None);
    let actions = world.all_actions();
    let [Action::Write(draft)] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    let of = |mtu: u32| {
        let eth0 = settings(mtu).remove("eth0").expect("a setting");
        BTreeMap::from([("eth0".to_owned(), eth0.clone()), ("eth1".to_owned(), eth0)])
    };
    assert_eq!((draft.node.as_str(), draft.is_dry_run), ("a", true));
    assert_eq!((&draft.settings, &draft.former), (&of(9000), &of(1400)));
    // Once, and the others wait for it.
    world.set("b", Progress::Done);
    assert_eq!(world.all_actions(), []);
    world.set("a", Progress::Done);
    assert_eq!(
        world.all_actions(),
        [Action::Release("mtu-migration-a".to_owned())]
    );
}

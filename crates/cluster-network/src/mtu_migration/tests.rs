mod abort;
mod nodes;
mod request;

use rstest::rstest;

use super::{
    uplink::{Link, Setting},
    *,
};

const MACHINE: u32 = 9000;
const NETWORK: u32 = 8900;

fn target(network: Option<u32>) -> Target {
    Target {
        machine: MACHINE,
        network,
    }
}

/// The mark of a migration that is not finalised, in a cluster whose pods have MTU 1400.
fn begun(network: Option<u32>) -> Begun {
    Begun {
        target: target(network),
        configured: network.map(|_| 1400),
        finalised: false,
    }
}

fn wanted(mode: Mode, network: Option<u32>) -> Request {
    Request::Wanted {
        target: target(network),
        mode,
        network_from: network.map(|_| 1400),
        is_accepted: true,
    }
}

fn links(mtu: u32) -> Links {
    let link = Link {
        kind: "ethernet".to_owned(),
        mtu,
        max_mtu: Some(9216),
        is_base: false,
        state: "up".to_owned(),
        above: BTreeMap::new(),
    };
    BTreeMap::from([("eth0".to_owned(), link)])
}

fn node(name: &str, mtu: u32) -> Node {
    Node {
        hostname: Some(format!("host-{name}")),
        is_ready: true,
        links: Some(Ok(links(mtu))),
        stated: Vec::new(),
    }
}

fn settings(mtu: u32) -> Settings {
    let kind = "ethernet".to_owned();
    BTreeMap::from([("eth0".to_owned(), Setting { kind, mtu })])
}

/// The API server with the nodes, and nmstate on the nodes.
#[derive(Clone, Debug)]
struct World {
    facts: Facts,
    /// MTU of each node, by the name of its policy.
    mtus: BTreeMap<String, u32>,
    /// Desired settings of each policy.
    desired: BTreeMap<String, Settings>,
    /// Number of nodes that were changed at the same time.
    most_at_once: usize,
}

impl World {
    fn new(request: Request, nodes: &[&str]) -> Self {
        let nodes: BTreeMap<String, Node> = nodes
            .iter()
            .map(|name| ((*name).to_owned(), node(name, 1500)))
            .collect();
        Self {
            mtus: nodes.keys().map(|node| (policy::name(node), 1500)).collect(),
            facts: Facts {
                request,
                begun: None,
                network_mtu: Some(1400),
                is_network_ready: true,
                nodes,
                policies: BTreeMap::new(),
                overdue: BTreeSet::new(),
            },
            desired: BTreeMap::new(),
            most_at_once: 0,
        }
    }

    /// A migration whose dry runs are written.
    fn in_dry_run(network: Option<u32>, nodes: &[&str]) -> Self {
        let mut world = Self::new(wanted(Mode::Apply, network), nodes);
        world.all_actions();
        world.all_actions();
        world
    }

    /// A migration whose dry runs have passed, and whose first node changes.
    fn changing(network: Option<u32>, nodes: &[&str]) -> Self {
        let mut world = Self::in_dry_run(network, nodes);
        world.nmstate();
        world.all_actions();
        world
    }

    fn plan(&self) -> Plan {
        plan(&self.facts)
    }

    fn act(&mut self, action: &Action) {
        let facts = &mut self.facts;
        match action {
            Action::Mark(begun) => facts.begun = *begun,
            Action::Write(draft) => {
                let name = policy::name(&draft.node);
                let policy = Policy {
                    uid: "u".to_owned(),
                    generation: 1,
                    goal: Some(draft.goal),
                    former: draft.former.clone(),
                    is_dry_run: draft.is_dry_run,
                    was_changed: draft.was_changed,
                };
                self.desired.insert(name.clone(), draft.settings.clone());
                facts.policies.insert(name, (policy, Progress::Pending));
            }
            Action::Release(name) => {
                let (policy, progress) = facts.policies.get_mut(name).expect("a policy");
                assert_eq!((policy.is_dry_run, &*progress), (true, &Progress::Done), "{name}");
                policy.is_dry_run = false;
                *progress = Progress::Pending;
            }
            Action::Delete(name) => {
                facts.policies.remove(name).expect("a policy");
            }
            Action::Finalise(mtu) => {
                facts.request = Request::None;
                facts.begun.as_mut().expect("a mark").finalised = true;
                facts.network_mtu = mtu.or(facts.network_mtu);
            }
        }
        let changing = facts
            .policies
            .values()
            .filter(|(policy, progress)| !policy.is_dry_run && *progress == Progress::Pending);
        self.most_at_once = self.most_at_once.max(changing.count());
    }

    /// The nodes apply all policies, and report their MTUs.
    fn nmstate(&mut self) {
        for (name, (policy, progress)) in &mut self.facts.policies {
            if !policy.is_dry_run && *progress == Progress::Pending {
                self.mtus.insert(name.clone(), self.desired[name]["eth0"].mtu);
            }
            *progress = Progress::Done;
        }
        for (node, observed) in &mut self.facts.nodes {
            if let Some(Ok(links)) = &mut observed.links
                && let Some(link) = links.get_mut("eth0")
            {
                link.mtu = self.mtus[&policy::name(node)];
            }
        }
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.facts.nodes.get_mut(name).expect("a node")
    }

    /// Runs until all nodes have passed their dry run.
    fn try_all(&mut self) {
        self.all_actions();
        self.all_actions();
        self.nmstate();
    }

    /// Changes the next node.
    fn change_next(&mut self) {
        let actions = self.all_actions();
        assert!(matches!(actions.as_slice(), [Action::Release(_)]), "{actions:?}");
        self.nmstate();
    }

    fn all_actions(&mut self) -> Vec<Action> {
        let plan = self.plan();
        for action in &plan.actions {
            self.act(action);
        }
        plan.actions
    }

    /// Runs until nothing changes. An operator that is killed after each write applies one action of each plan.
    fn run(&mut self, is_killed: bool) {
        for _ in 0..100 {
            let plan = self.plan();
            let count = if is_killed { 1 } else { plan.actions.len() };
            for action in plan.actions.iter().take(count) {
                self.act(action);
            }
            self.nmstate();
            if plan.actions.is_empty() {
                return;
            }
        }
        panic!("no end: {self:#?}");
    }

    fn mtus(&self) -> Vec<u32> {
        self.mtus.values().copied().collect()
    }

    fn set(&mut self, node: &str, progress: Progress) {
        self.facts
            .policies
            .get_mut(&policy::name(node))
            .expect("a policy")
            .1 = progress;
    }
}

fn failed(message: &str) -> Progress {
    Progress::Failed(message.to_owned())
}

// cluster-network#102-104
#[rstest]
#[case::ovn(Some(NETWORK), 8900)]
#[case::weft(None, 1400)]
fn migration_ends_finalised_wherever_the_operator_is_killed(
    #[case] network: Option<u32>,
    #[case] network_mtu: u32,
    #[values(false, true)] is_killed: bool,
) {
    let mut world = World::new(wanted(Mode::Apply, network), &["a", "b", "c"]);
    world.run(is_killed);
    assert_eq!(world.mtus(), [MACHINE; 3]);
    assert_eq!(world.facts.request, Request::None);
    assert_eq!(world.facts.network_mtu, Some(network_mtu));
    assert_eq!((world.facts.begun, world.facts.policies.len()), (None, 0));
    assert_eq!(world.most_at_once, 1);
}

// cluster-network#102
#[test]
fn dry_run_on_all_nodes_comes_first() {
    let mut world = World::new(wanted(Mode::Apply, None), &["a", "b"]);
    assert_eq!(world.all_actions(), [Action::Mark(Some(begun(None)))]);
    let draft = |node: &str| {
        Action::Write(Draft {
            node: node.to_owned(),
            hostname: format!("host-{node}"),
            goal: Goal::Mtu(MACHINE),
            settings: settings(MACHINE),
            former: settings(1500),
            is_dry_run: true,
            was_changed: false,
        })
    };
    assert_eq!(world.all_actions(), [draft("a"), draft("b")]);
    world.set("a", Progress::Done);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    // Pending dry runs count as not passed.
    world.set("b", failed("NotSupportedError: no"));
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.failures,
        ["node b: the dry run failed: NotSupportedError: no"]
    );
    world.set("b", Progress::Done);
    assert_eq!(
        world.all_actions(),
        [Action::Release("mtu-migration-a".to_owned())]
    );
    // The second node waits for the first one.
    assert_eq!(world.all_actions(), []);
    assert_eq!(
        world.plan().progress.as_deref(),
        Some("0 of 2 nodes have MTU 9000; node a: the change has no result yet")
    );
    world.nmstate();
    assert_eq!(
        world.plan().progress.as_deref(),
        Some("1 of 2 nodes have MTU 9000")
    );
    assert_eq!(
        world.all_actions(),
        [Action::Release("mtu-migration-b".to_owned())]
    );
}

// cluster-network#102
#[test]
fn pending_dry_run_is_not_passed() {
    let mut world = World::in_dry_run(None, &["a", "b"]);
    world.set("a", Progress::Done);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.progress.as_deref(),
        Some("dry run of the change of the MTU: 1 of 2 nodes; node b: the dry run has no result yet")
    );
}

// cluster-network#102
#[test]
fn mode_dry_run_changes_no_node() {
    let mut world = World::new(wanted(Mode::DryRun, Some(NETWORK)), &["a", "b"]);
    world.run(false);
    assert_eq!(world.mtus(), [1500; 2]);
    assert_eq!(
        world.plan().progress.as_deref(),
        Some("the dry run of the change of the MTU passed on 2 nodes: nodePolicies is DryRun")
    );
    world.facts.request = wanted(Mode::Apply, Some(NETWORK));
    world.run(false);
    assert_eq!(
        (world.mtus(), world.facts.network_mtu),
        (vec![MACHINE; 2], Some(NETWORK))
    );
}

// cluster-network#104
#[test]
fn nodes_wait_for_the_network() {
    let mut world = World::new(wanted(Mode::Apply, Some(NETWORK)), &["a"]);
    world.facts.is_network_ready = false;
    world.run(false);
    assert_eq!(world.mtus(), [1500]);
    let progress = world.plan().progress;
    assert_eq!(
        progress.as_deref(),
        Some("waiting until all nodes of OVN-Kubernetes use both MTUs")
    );
    // A rollout that begins after the change of the nodes holds up the end.
    world.facts.is_network_ready = true;
    assert_eq!(
        world.all_actions(),
        [Action::Release("mtu-migration-a".to_owned())]
    );
    world.nmstate();
    world.facts.is_network_ready = false;
    assert_eq!(world.all_actions(), []);
}

// cluster-network#105
#[test]
fn failed_change_stops_the_migration() {
    let mut world = World::changing(Some(NETWORK), &["a", "b", "c"]);
    world.set("a", failed("rolling back desired state configuration"));
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert_eq!(
        plan.failures,
        ["node a: the change failed: rolling back desired state configuration"]
    );
    assert_eq!(plan.progress.as_deref(), Some("0 of 3 nodes have MTU 9000"));
    // nmstate tries again, for instance after a restart of NetworkManager.
    world.set("a", Progress::Pending);
    world.nmstate();
    world.run(false);
    assert_eq!(world.mtus(), [MACHINE; 3]);
    assert_eq!(world.facts.request, Request::None);
}

// cluster-network#107
#[test]
fn deleted_policy_comes_back_as_a_dry_run() {
    let mut world = World::changing(None, &["a", "b"]);
    world.nmstate();
    world.facts.policies.remove("mtu-migration-a");
    let actions = world.all_actions();
    assert!(
        matches!(actions.as_slice(), [Action::Write(draft)] if draft.node == "a" && draft.is_dry_run),
        "{actions:?}"
    );
}

// cluster-network#107
#[test]
fn other_target_keeps_the_former_mtus() {
    let mut world = World::changing(None, &["a"]);
    world.nmstate();
    let other = Target {
        machine: 4000,
        network: None,
    };
    world.facts.request = Request::Wanted {
        target: other,
        mode: Mode::Apply,
        network_from: None,
        is_accepted: true,
    };
    let mark = Begun {
        target: other,
        ..begun(None)
    };
    assert_eq!(world.all_actions(), [Action::Mark(Some(mark))]);
    let actions = world.all_actions();
    let [Action::Write(draft)] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!(
        (&draft.settings, &draft.former),
        (&settings(4000), &settings(1500))
    );
    assert_eq!((draft.is_dry_run, draft.was_changed), (true, true));
}

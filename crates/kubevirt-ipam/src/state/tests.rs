use ipnet::IpNet;

use super::*;
use crate::network::Config;
use crate::plan::Wanted;
use crate::pool::Refused;

fn name(text: &str) -> Name {
    Name::new("ns1", text)
}

fn instance(networks: &[Source]) -> Instance {
    let network = |source: &Source| InstanceNetwork {
        name: "n".to_owned(),
        source: source.clone(),
    };
    Instance {
        networks: networks.iter().map(network).collect(),
        ..Instance::default()
    }
}

fn claim(machine: &str) -> Claim {
    Claim {
        machine: machine.into(),
        held: true,
        ..Claim::default()
    }
}

#[test]
fn primary_network_is_the_first_by_name() {
    let mut state = State::default();
    assert_eq!(state.primary("ns1"), None);
    for (namespace, name, config) in [
        ("ns0", "a", r#"{"role": "primary"}"#),
        ("ns1", "z", r#"{"role": "primary", "name": "last"}"#),
        ("ns1", "a", "{broken"),
        ("ns1", "b", r#"{"role": "secondary"}"#),
        ("ns1", "c", r#"{"role": "primary", "name": "first"}"#),
        ("ns2", "a", r#"{"role": "primary"}"#),
    ] {
        state.network_seen(Network::read(Name::new(namespace, name), config));
    }
    let found = state.primary("ns1").expect("a network");
    assert_eq!(found.config.as_ref().expect("readable").name, "first");
}

#[test]
fn network_concerns_the_instances_that_are_attached() {
    let mut state = State::default();
    state.instance_seen(name("pod"), instance(&[Source::Pod]));
    state.instance_seen(name("blue"), instance(&[Source::Multus(name("blue"))]));
    state.instance_seen(name("other"), instance(&[Source::Neither]));
    state.instance_seen(Name::new("ns2", "pod"), instance(&[Source::Pod]));
    let mut concerned = state.network_seen(Network::read(name("blue"), "{}"));
    concerned.sort();
    assert_eq!(concerned, [name("blue"), name("pod")]);
    assert!(
        state.network_seen(Network::read(name("blue"), "{}")).is_empty(),
        "unchanged"
    );
    assert_eq!(state.network_gone(&name("blue")).len(), 2);
}

#[test]
fn claim_concerns_the_machine_that_its_label_names() {
    let mut state = State::default();
    assert_eq!(state.claim_seen(name("c"), claim("vm1")), [name("vm1")]);
    assert!(state.claim_seen(name("c"), claim("vm1")).is_empty(), "unchanged");
    assert_eq!(state.claims_of(&name("vm1")).count(), 1);
    assert_eq!(
        state.claim_seen(name("c"), claim("vm2")),
        [name("vm1"), name("vm2")]
    );
    assert_eq!(state.claims_of(&name("vm1")).count(), 0);
    assert_eq!(state.all(), BTreeSet::from([name("vm2")]));
    assert_eq!(state.claim_gone(&name("c")), [name("vm2")]);
    assert!(state.all().is_empty());
    assert!(state.claim_seen(name("foreign"), claim("")).is_empty());
}

#[test]
fn conflicting_claim_concerns_the_waiting_machine() {
    // kubevirt-ipam#87
    let mut state = State::default();
    state.instance_seen(name("vm1"), instance(&[]));
    state.claim_seen(name("c"), claim(""));
    state.stands_in_the_way(name("c"), name("vm1"));
    assert_eq!(state.figures().in_the_way, 1);
    assert_eq!(state.claim_gone(&name("c")), [name("vm1")]);
    assert_eq!(state.figures().in_the_way, 0);
}

#[test]
fn claim_blocks_no_machine_without_an_instance() {
    let mut state = State::default();
    state.instance_seen(name("vm1"), instance(&[]));
    state.claim_seen(name("c"), claim(""));
    state.stands_in_the_way(name("c"), name("vm1"));
    state.instance_gone(name("vm1"));
    assert_eq!(state.figures().in_the_way, 0);
    // Its reconcile ends later.
    state.stands_in_the_way(name("c"), name("vm1"));
    assert_eq!(state.figures().in_the_way, 0);
}

#[test]
fn machine_without_instance_and_claims_causes_no_work() {
    // kubevirt-ipam#63
    let mut state = State::default();
    assert!(state.machine_seen(name("vm1"), Machine::default()).is_empty());
    state.claim_seen(name("c"), claim("vm1"));
    assert!(
        state.machine_seen(name("vm1"), Machine::default()).is_empty(),
        "unchanged"
    );
    let deleting = Machine {
        deleting: true,
        ..Machine::default()
    };
    assert_eq!(state.machine_seen(name("vm1"), deleting), [name("vm1")]);
    assert_eq!(state.machine_gone(name("vm1")), [name("vm1")]);
}

#[test]
fn irrelevant_change_of_status_causes_no_work() {
    let mut state = State::default();
    assert_eq!(state.instance_seen(name("vm1"), instance(&[])), [name("vm1")]);
    assert!(state.instance_seen(name("vm1"), instance(&[])).is_empty());
}

fn wanted(network: &str, range: &str) -> Wanted {
    let config = format!(r#"{{"name": "{network}", "persistentIPRanges": [{{"subnet": "{range}"}}]}}"#);
    Wanted {
        name: "c".to_owned(),
        network: network.to_owned(),
        ranges: Config::parse(&config).expect("readable").ranges,
        requested: Vec::new(),
    }
}

fn with_address(address: &str, version: u64) -> Claim {
    Claim {
        network: "lan".into(),
        ips: [address.to_owned()].into(),
        version,
        ..claim("vm1")
    }
}

fn reserved(state: &mut State, id: &str) -> Result<Vec<String>, Refused> {
    let addresses = state.reserve(&name(id), &wanted("lan", "10.0.0.0/29"))?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

// kubevirt-ipam#111, the decision
#[test]
fn reserved_address_is_given_to_no_other_claim() {
    let mut state = State::default();
    assert_eq!(reserved(&mut state, "a"), Ok(vec!["10.0.0.2/29".to_owned()]));
    assert_eq!(reserved(&mut state, "b"), Ok(vec!["10.0.0.3/29".to_owned()]));
    // A repeated request gets the same address, if the first write had no answer.
    assert_eq!(reserved(&mut state, "a"), Ok(vec!["10.0.0.2/29".to_owned()]));
    // The claim is settled without an address.
    state.settled(&name("a"));
    assert_eq!(reserved(&mut state, "c"), Ok(vec!["10.0.0.2/29".to_owned()]));
    // The claim has its address.
    state.claim_seen(name("b"), with_address("10.0.0.3/29", 1));
    state.settled(&name("b"));
    assert_eq!(reserved(&mut state, "d"), Ok(vec!["10.0.0.4/29".to_owned()]));
    // The claim is deleted, and its address is free.
    state.claim_gone(&name("b"));
    assert_eq!(reserved(&mut state, "e"), Ok(vec!["10.0.0.3/29".to_owned()]));
    state.claim_gone(&name("c"));
    assert_eq!(reserved(&mut state, "f"), Ok(vec!["10.0.0.2/29".to_owned()]));
}

/// An instance `vm3` waits: the claim `a` has the only address.
fn full() -> State {
    let mut state = State::default();
    let range = wanted("lan", "10.0.0.0/30");
    for machine in ["vm1", "vm3"] {
        state.instance_seen(name(machine), instance(&[]));
    }
    state.claim_seen(name("a"), with_address("10.0.0.2/30", 1));
    let refused = state.reserve(&name("c"), &range).expect_err("no address");
    assert!(refused.is_temporary(), "{refused}");
    state.waits(&name("vm3"), "lan");
    state
}

// kubevirt-ipam#103, the decision
#[test]
fn free_address_concerns_the_machines_that_wait() {
    let waiting = BTreeSet::from([name("vm3")]);
    let mut state = full();
    assert!(state.woken().is_empty(), "nothing has changed");
    // The claim changes, and keeps its address.
    let ending = Claim {
        deleting: true,
        ..with_address("10.0.0.2/30", 2)
    };
    state.claim_seen(name("a"), ending);
    assert!(state.woken().is_empty(), "the address is still taken");
    state.claim_gone(&name("a"));
    assert_eq!(state.woken(), waiting);
    assert!(state.woken().is_empty(), "once");

    // The claim gets another network.
    let mut state = full();
    let moved = Claim {
        network: "wan".into(),
        ..with_address("10.0.0.2/30", 2)
    };
    state.claim_seen(name("a"), moved);
    assert_eq!(state.woken(), waiting);

    // A reserved address is not written.
    let mut state = full();
    state.claim_gone(&name("a"));
    assert!(state.reserve(&name("b"), &wanted("lan", "10.0.0.0/30")).is_ok());
    assert!(state.woken().is_empty(), "another claim was faster");
    state.settled(&name("b"));
    assert_eq!(state.woken(), waiting);
}

#[test]
fn machine_without_an_instance_waits_for_no_address() {
    let mut state = full();
    state.instance_gone(name("vm3"));
    // Its reconcile ends later.
    state.waits(&name("vm3"), "lan");
    state.claim_gone(&name("a"));
    assert!(state.woken().is_empty());
}

#[test]
fn address_on_a_network_without_a_name_is_given_to_no_other_claim() {
    let mut state = State::default();
    let unnamed = Claim {
        network: "".into(),
        ..with_address("10.0.0.2/29", 1)
    };
    state.claim_seen(name("a"), unnamed);
    let given = state.reserve(&name("b"), &wanted("", "10.0.0.0/29"));
    let expected: IpNet = "10.0.0.3/29".parse().unwrap();
    assert_eq!(given, Ok(vec![expected]));
}

#[test]
fn write_of_addresses_is_settled_when_the_claim_has_them() {
    let mut state = State::default();
    assert!(state.are_settled());
    assert_eq!(reserved(&mut state, "a"), Ok(vec!["10.0.0.2/29".to_owned()]));
    assert!(!state.are_settled());
    state.claim_seen(name("a"), with_address("10.0.0.2/29", 1));
    assert!(state.are_settled());
}

#[test]
fn reserved_address_survives_events_of_the_claim() {
    let mut state = State::default();
    state.claim_seen(
        name("a"),
        Claim {
            network: "old".into(),
            ..claim("vm1")
        },
    );
    assert_eq!(reserved(&mut state, "a"), Ok(vec!["10.0.0.2/29".to_owned()]));
    let moved = Claim {
        network: "lan".into(),
        version: 1,
        ..claim("vm1")
    };
    state.claim_seen(name("a"), moved);
    assert_eq!(reserved(&mut state, "b"), Ok(vec!["10.0.0.3/29".to_owned()]));
    // Another client wrote a different address meanwhile: the reserved one is free.
    state.claim_seen(name("a"), with_address("10.0.0.6/29", 2));
    assert_eq!(reserved(&mut state, "c"), Ok(vec!["10.0.0.2/29".to_owned()]));
    assert!(state.addresses["lan"].values().all(|holders| holders.len() == 1));
}

// kubevirt-ipam#109, the decision
#[test]
fn claim_without_finalizer_is_found_where_its_machine_exists() {
    let free = |owner: &str| Claim {
        held: false,
        owners: [owner.into()].into(),
        ..claim("vm1")
    };
    let mut state = State::default();
    state.machine_seen(
        name("vm1"),
        Machine {
            uid: "vm".into(),
            ..Machine::default()
        },
    );
    for (id, claim) in [
        ("ours", free("vm")),
        ("foreign", free("other")),
        ("held", claim("vm1")),
        (
            "unlabelled",
            Claim {
                machine: "".into(),
                ..free("vm")
            },
        ),
        (
            "of-another",
            Claim {
                machine: "vm2".into(),
                ..free("vm")
            },
        ),
        (
            "ending",
            Claim {
                deleting: true,
                ..free("vm")
            },
        ),
    ] {
        state.claim_seen(name(id), claim);
    }
    assert_eq!(state.unheld(), [name("ours")]);
    state.machine_gone(name("vm1"));
    assert!(state.unheld().is_empty());
    // The instance still exists.
    let left = Instance {
        owner: "vm".into(),
        ..Instance::default()
    };
    state.instance_seen(name("vm1"), left);
    assert_eq!(state.unheld(), [name("ours")]);
}

#[test]
fn common_data_of_machines_is_kept_once() {
    let mut state = State::default();
    for machine in ["vm1", "vm2"] {
        state.instance_seen(name(machine), instance(&[Source::Pod]));
    }
    let networks = |machine: &str| Arc::as_ptr(&state.instance(&name(machine)).expect("known").networks);
    assert!(std::ptr::addr_eq(networks("vm1"), networks("vm2")));
}

/// A claim in the API server.
#[derive(Clone, Debug, Default)]
struct Stored {
    ips: Vec<String>,
    version: u64,
}

/// The API server's state of claims that get addresses.
#[derive(Debug, Default)]
struct Written {
    /// Name of the network, which may be empty.
    network: &'static str,
    /// Existing claims.
    claims: BTreeMap<usize, Stored>,
    /// Pending writes, with the version of the read before. A worker waits for the last one only.
    under_way: BTreeMap<usize, Vec<Stored>>,
    versions: u64,
}

impl Written {
    fn store(&mut self, number: usize, ips: Vec<String>) {
        self.versions += 1;
        let version = self.versions;
        self.claims.insert(number, Stored { ips, version });
    }

    fn cached(&self, number: usize) -> Option<Claim> {
        let Stored { ips, version } = self.claims.get(&number)?.clone();
        Some(Claim {
            network: self.network.into(),
            ips: ips.into(),
            version,
            ..claim(&format!("vm{number}"))
        })
    }

    /// A write arrives. It succeeds if the claim still has the version of the read.
    fn arrives(&mut self, number: usize, write: Stored) -> bool {
        let is_current = self
            .claims
            .get(&number)
            .is_some_and(|claim| claim.version == write.version);
        if is_current {
            self.store(number, write.ips);
        }
        is_current
    }
}

fn id_of(number: usize) -> Name {
    name(&format!("c{number}"))
}

/// An event of a claim. Several claims are in work at a time. Answers and events may be late or lost.
fn happens(state: &mut State, written: &mut Written, number: usize, what: u8) {
    let id = id_of(number);
    let knows = |state: &mut State, written: &Written| match written.cached(number) {
        Some(claim) => drop(state.claim_seen(id.clone(), claim)),
        None => drop(state.claim_gone(&id)),
    };
    match what {
        // A worker reads the claim, and writes addresses. It creates a missing claim.
        0 | 1 => match written.claims.get(&number).cloned() {
            None => written.store(number, Vec::new()),
            Some(Stored { ips, .. }) if !ips.is_empty() => {
                knows(state, written);
                state.settled(&id);
            }
            Some(Stored { version, .. }) => {
                if let Ok(ips) = state.reserve(&id, &wanted(written.network, "10.0.0.0/29")) {
                    let ips = ips.iter().map(ToString::to_string).collect();
                    let writes = written.under_way.entry(number).or_default();
                    writes.push(Stored { ips, version });
                }
            }
        },
        // The last write arrives, and so does its answer.
        2 => {
            let write = written.under_way.get_mut(&number).and_then(Vec::pop);
            if write.is_some_and(|write| written.arrives(number, write)) {
                knows(state, written);
                state.settled(&id);
            }
        }
        // The first write arrives, and its answer is lost.
        3 => {
            let writes = written.under_way.entry(number).or_default();
            if !writes.is_empty() {
                let write = writes.remove(0);
                written.arrives(number, write);
            }
        }
        // The watch reports the present state.
        4 => knows(state, written),
        // Another client changes another field of the claim.
        5 => {
            if let Some(Stored { ips, .. }) = written.claims.get(&number).cloned() {
                written.store(number, ips);
            }
        }
        // The claim is deleted. The watch reports the deletion later, or a new claim of the same name.
        _ => drop(written.claims.remove(&number)),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    // kubevirt-ipam#111, the decision
    #[test]
    fn no_two_claims_ever_have_one_address(
        network in proptest::sample::select(vec!["lan", ""]),
        events in proptest::collection::vec((0..4_usize, 0..7_u8), 1..120),
    ) {
        let (mut state, mut written) = (State::default(), Written { network, ..Written::default() });
        for (number, what) in events {
            happens(&mut state, &mut written, number, what);
            let mut all: Vec<_> = written.claims.values().flat_map(|claim| &claim.ips).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            proptest::prop_assert_eq!(all.len(), count, "{:?}", written);
        }
        // After the deletion of claims without addresses, no address is taken without a claim.
        written.claims.retain(|_, claim| !claim.ips.is_empty());
        for number in 0..4 {
            happens(&mut state, &mut written, number, 4);
        }
        let taken = state.addresses.get(network).map_or(0, BTreeMap::len);
        proptest::prop_assert_eq!(taken, written.claims.len());
    }
}

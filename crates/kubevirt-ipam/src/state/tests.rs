use super::*;
use crate::objects::InstanceNetwork;

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
        machine: machine.to_owned(),
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
    state.instance_seen(name("other"), instance(&[Source::Other]));
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
fn claim_in_the_way_concerns_the_machine_that_waits() {
    // kubevirt-ipam#87
    let mut state = State::default();
    state.claim_seen(name("c"), claim(""));
    state.stands_in_the_way(name("c"), name("vm1"));
    assert_eq!(state.figures().in_the_way, 1);
    assert_eq!(state.claim_gone(&name("c")), [name("vm1")]);
    assert_eq!(state.figures().in_the_way, 0);
}

#[test]
fn machine_without_instance_and_claims_concerns_nobody() {
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
fn status_that_changes_nothing_of_interest_concerns_nobody() {
    let mut state = State::default();
    assert_eq!(state.instance_seen(name("vm1"), instance(&[])), [name("vm1")]);
    assert!(state.instance_seen(name("vm1"), instance(&[])).is_empty());
}

use std::collections::HashMap;

use super::*;
use crate::objects::InstanceNetwork;

const VM: &str = "uid-of-vm";
const VMI: &str = "uid-of-vmi";

#[derive(Default)]
struct Known(HashMap<Name, Arc<Network>>);

impl Known {
    fn with(mut self, namespace: &str, name: &str, config: &str) -> Self {
        let id = Name::new(namespace, name);
        self.0.insert(id.clone(), Arc::new(Network::read(id, config)));
        self
    }
}

impl Networks for Known {
    fn network(&self, definition: &Name) -> Option<Arc<Network>> {
        self.0.get(definition).cloned()
    }

    fn primary(&self, namespace: &str) -> Option<Arc<Network>> {
        let mut primary = self.0.values();
        primary
            .find(|network| network.id.namespace == namespace && network.is_primary())
            .cloned()
    }
}

fn networks() -> Known {
    Known::default()
        .with(
            "ns1",
            "supadupanet",
            r#"{"name":"goodnet","allowPersistentIPs":true}"#,
        )
        .with(
            "ns1",
            "udn",
            r#"{"name":"primarynet","role":"primary","allowPersistentIPs":true,"subnets":"192.168.0.0/16"}"#,
        )
}

fn machine() -> Machine {
    Machine {
        uid: VM.into(),
        ..Machine::default()
    }
}

fn instance() -> Instance {
    let network = |name: &str, source| InstanceNetwork {
        name: name.to_owned(),
        source,
    };
    Instance {
        uid: VMI.into(),
        has_pods: true,
        networks: [
            network("podnet", Source::Pod),
            network("random_net", Source::Multus(Name::new("ns1", "supadupanet"))),
        ]
        .into(),
        ..Instance::default()
    }
}

fn deleting_machine() -> Machine {
    Machine {
        deleting: true,
        ..machine()
    }
}

fn deleting_instance(has_pods: bool) -> Instance {
    Instance {
        deleting: true,
        has_pods,
        ..instance()
    }
}

fn planned(machine: Option<&Machine>, instance: Option<&Instance>) -> Plan {
    plan(&Name::new("ns1", "vm1"), machine, instance, &networks())
}

fn wanted(name: &str, network: &str) -> Wanted {
    Wanted {
        name: name.to_owned(),
        network: network.to_owned(),
        ranges: Vec::new(),
        requested: Vec::new(),
    }
}

#[test]
fn addresses_are_released_when_no_machine_can_use_them() {
    // kubevirt-ipam#46-51, kubevirt-ipam#60-62
    for (machine, instance, release) in [
        (Some(deleting_machine()), None, true),
        (Some(machine()), None, false),
        (Some(machine()), Some(instance()), false),
        (Some(deleting_machine()), Some(instance()), false),
        (Some(deleting_machine()), Some(deleting_instance(false)), false),
        (None, None, true),
        (None, Some(deleting_instance(false)), true),
        (None, Some(deleting_instance(true)), false),
        (None, Some(instance()), false),
    ] {
        let planned = planned(machine.as_ref(), instance.as_ref());
        assert_eq!(planned == Plan::Cleanup, release, "{machine:?} {instance:?}");
    }
}

#[test]
fn stopped_machine_and_ending_pod_change_nothing() {
    // kubevirt-ipam#47, kubevirt-ipam#49
    assert_eq!(planned(Some(&machine()), None), Plan::Nothing);
    assert_eq!(planned(None, Some(&deleting_instance(true))), Plan::Nothing);
    assert_eq!(
        planned(Some(&machine()), Some(&deleting_instance(true))),
        Plan::Nothing
    );
}

#[test]
fn opted_in_networks_get_claims() {
    // kubevirt-ipam#42
    let expected = Ensure {
        claims: vec![
            wanted("vm1.podnet", "primarynet"),
            wanted("vm1.random.net", "goodnet"),
        ],
        problems: vec![],
        outside: vec![],
    };
    assert_eq!(
        planned(Some(&machine()), Some(&instance())),
        Plan::Ensure(expected.clone())
    );
    assert_eq!(planned(None, Some(&instance())), Plan::Ensure(expected));
}

#[test]
fn network_in_the_place_of_the_default_one_gets_no_claim() {
    // kubevirt-ipam#43
    let mut instance = instance();
    Arc::make_mut(&mut instance.networks)[1].source = Source::Neither;
    let expected = vec![wanted("vm1.podnet", "primarynet")];
    assert!(matches!(planned(None, Some(&instance)), Plan::Ensure(ensure) if ensure.claims == expected));
}

#[test]
fn broken_network_hinders_no_other() {
    // kubevirt-ipam#44, kubevirt-ipam#45, kubevirt-ipam#27
    let name = Name::new("ns1", "vm1");
    let broken = networks()
        .with("ns1", "supadupanet", "this is not JSON !!!")
        .with("ns1", "a-stranger", "{broken");
    let Plan::Ensure(ensure) = plan(&name, None, Some(&instance()), &broken) else {
        panic!("claims are desired");
    };
    assert_eq!(ensure.claims, [wanted("vm1.podnet", "primarynet")]);
    let text = ensure.problems[0].to_string();
    assert!(
        text.starts_with(
            "failed to extract the relevant NAD information: failed to extract CNI configuration"
        ),
        "{text}"
    );
    assert_eq!(ensure.problems[0].reason(), "InvalidNAD");

    let missing = Known::default().with("ns1", "udn", r#"{"role":"primary"}"#);
    let Plan::Ensure(ensure) = plan(&name, None, Some(&instance()), &missing) else {
        panic!("claims are desired");
    };
    assert_eq!(ensure.claims, []);
    assert_eq!(ensure.problems[0].reason(), "NADNotFound");
    assert_eq!(
        ensure.problems[0].message(),
        r#"network "random_net" needs the NetworkAttachmentDefinition "ns1/supadupanet", which does not exist"#
    );
}

#[test]
fn networks_that_would_share_a_claim_are_reported() {
    // kubevirt-ipam#91
    let mut instance = instance();
    Arc::make_mut(&mut instance.networks)[0] = InstanceNetwork {
        name: "random.net".to_owned(),
        source: Source::Multus(Name::new("ns1", "supadupanet")),
    };
    let Plan::Ensure(ensure) = planned(None, Some(&instance)) else {
        panic!("claims are desired");
    };
    assert_eq!(ensure.claims, [wanted("vm1.random.net", "goodnet")]);
    assert_eq!(
        ensure.problems[0].message(),
        r#"networks "random.net" and "random_net" would share the IPAMClaim "vm1.random.net": rename one of them"#
    );
}

fn claim(owners: &[&str]) -> Claim {
    Claim {
        machine: "vm1".into(),
        held: true,
        owners: owners.iter().map(|uid| (*uid).into()).collect(),
        ..Claim::default()
    }
}

#[test]
fn owner_reference_decides_the_owner_of_a_claim() {
    // kubevirt-ipam#52-54, kubevirt-ipam#86
    let whose = |claim: &Claim, with: Option<&Machine>| belongs(claim, "vm1", with, &instance());
    assert_eq!(whose(&claim(&[VM]), Some(&machine())), Belongs::Ours);
    assert_eq!(whose(&claim(&[VMI]), Some(&machine())), Belongs::Ours);
    assert_eq!(whose(&claim(&[VMI]), None), Belongs::Ours);
    assert_eq!(whose(&claim(&[VM]), None), Belongs::Foreign);
    assert_eq!(whose(&claim(&["other"]), Some(&machine())), Belongs::Foreign);
    assert_eq!(whose(&claim(&[VM, "other"]), Some(&machine())), Belongs::Foreign);
    assert_eq!(whose(&claim(&[]), Some(&machine())), Belongs::Orphaned);
    for change in [
        (|claim: &mut Claim| claim.machine = "".into()) as fn(&mut Claim),
        |claim| claim.machine = "vm2".into(),
        |claim| claim.held = false,
        |claim| claim.deleting = true,
    ] {
        let mut changed = claim(&[]);
        change(&mut changed);
        assert_eq!(whose(&changed, Some(&machine())), Belongs::Foreign, "{changed:?}");
    }
}

#[test]
fn claim_goes_when_its_network_left() {
    // kubevirt-ipam#85
    let mut instance = instance();
    instance.networks = instance.networks[..1].into();
    let gone = |claim: &Claim, machine: &Machine, instance: &Instance| {
        is_unplugged(("vm1.random.net", claim), "vm1", Some(machine), instance)
    };
    assert!(gone(&claim(&[VM]), &machine(), &instance));
    // The virtual machine still names the network, or a pod is still attached.
    let mut names_it = machine();
    names_it.networks = ["random_net".to_owned()].into();
    assert!(!gone(&claim(&[VM]), &names_it, &instance));
    let mut attached = instance.clone();
    attached.reported = ["random_net".to_owned()].into();
    assert!(!gone(&claim(&[VM]), &machine(), &attached));
    // The claim has another owner or none, or lacks our finalizer, or the instance is being deleted anyway.
    assert!(!gone(&claim(&["other"]), &machine(), &instance));
    assert!(!gone(&claim(&[]), &machine(), &instance));
    let mut of_another = claim(&[VM]);
    of_another.machine = "vm2".into();
    assert!(!gone(&of_another, &machine(), &instance));
    let mut free = claim(&[VM]);
    free.held = false;
    assert!(!gone(&free, &machine(), &instance));
    let mut ending = instance.clone();
    ending.deleting = true;
    assert!(!gone(&claim(&[VM]), &machine(), &ending));
    // Claims of present networks stay.
    assert!(!is_unplugged(
        ("vm1.podnet", &claim(&[VM])),
        "vm1",
        Some(&machine()),
        &instance
    ));
}

#[test]
fn claim_of_an_earlier_machine_goes_when_its_instance_is_gone() {
    // kubevirt-ipam#92
    let mut left = claim(&["earlier"]);
    left.deleting = true;
    let behind = |claim: &Claim, machine: Option<&Machine>, instance: Option<&Instance>| {
        is_left_behind(claim, "vm1", machine, instance)
    };
    assert!(behind(&left, Some(&machine()), Some(&instance())));
    assert!(behind(&left, Some(&machine()), None));
    // The instance of the earlier virtual machine still runs.
    let mut ending = deleting_instance(true);
    ending.owner = "earlier".into();
    assert!(!behind(&left, Some(&machine()), Some(&ending)));
    // The claim is not being deleted, or has another owner.
    assert!(!behind(&claim(&["earlier"]), Some(&machine()), Some(&instance())));
    left.machine = "vm2".into();
    assert!(!behind(&left, Some(&machine()), Some(&instance())));
    let mut own = claim(&[VM]);
    own.deleting = true;
    assert!(!behind(&own, Some(&machine()), Some(&instance())));
}

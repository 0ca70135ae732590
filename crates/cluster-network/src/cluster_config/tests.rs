use api::cluster_network::{config::NetworkSpec, operator};
use rstest::rstest;

use super::{merge, validate};
use crate::{
    base::{entry, texts},
    facts::{Facts, Platform},
};

const FAMILIES: &str = "spec.clusterNetwork and spec.serviceNetwork must either both be IPv4-only, both be IPv6-only, or \
                        both be dual-stack";

fn base() -> NetworkSpec {
    NetworkSpec {
        cluster_network: vec![entry("10.0.0.0/22", 24), entry("10.2.0.0/22", 23)],
        service_network: texts(&["192.168.0.0/20"]),
        network_type: "None".to_owned(),
        ..NetworkSpec::default()
    }
}

fn error(change: impl FnOnce(&mut NetworkSpec)) -> String {
    let mut spec = base();
    change(&mut spec);
    validate(&spec, &Facts::default()).err().unwrap_or_default()
}

fn service(blocks: &[&str]) -> String {
    error(|spec| spec.service_network = texts(blocks))
}

// cluster-network#1
#[test]
fn valid_configuration_has_no_error() {
    assert_eq!(error(|_| {}), "");
}

// cluster-network#2
#[test]
fn wrong_service_network_is_named() {
    assert_eq!(
        service(&["123q"]),
        "could not parse spec.serviceNetwork 123q: invalid CIDR address: 123q"
    );
    assert_eq!(
        service(&["10.0.2.0/24"]),
        "CIDRs 10.0.2.0/24 and 10.0.0.0/22 overlap"
    );
    assert_eq!(service(&[]), "spec.serviceNetwork must have at least 1 entry");
}

// cluster-network#3
#[test]
fn wrong_cluster_network_is_named() {
    let cluster = |cidr: &str| error(|spec| cidr.clone_into(&mut spec.cluster_network[0].cidr));
    assert_eq!(
        cluster("1234fz"),
        "could not parse spec.clusterNetwork 1234fz: invalid CIDR address: 1234fz"
    );
    assert_eq!(
        cluster("192.168.2.0/23"),
        "CIDRs 192.168.0.0/20 and 192.168.2.0/23 overlap"
    );
    assert_eq!(
        error(|spec| spec.cluster_network.clear()),
        "spec.clusterNetwork must have at least 1 entry"
    );
}

// cluster-network#4
#[rstest]
#[case("None", 0, "")]
#[case("OVNKubernetes", 0, "hostPrefix 0 is larger than its cidr 10.2.0.0/22")]
#[case("OVNKubernetes", 21, "hostPrefix 21 is larger than its cidr 10.2.0.0/22")]
#[case("None", 21, "hostPrefix 21 is larger than its cidr 10.2.0.0/22")]
#[case("None", 31, "hostPrefix 31 is too small, must be a /30 or larger")]
#[case("None", 30, "")]
fn host_prefix_fits_into_its_block(#[case] network: &str, #[case] prefix: u32, #[case] expected: &str) {
    let found = error(|spec| {
        network.clone_into(&mut spec.network_type);
        spec.cluster_network[1].host_prefix = prefix;
    });
    assert_eq!(found, expected);
}

// cluster-network#5
#[test]
fn families_of_pods_and_services_are_the_same() {
    let one_each = "spec.serviceNetwork must contain at most one IPv4 and one IPv6 network";
    assert_eq!(service(&["192.168.0.0/20", "172.16.0.0/20"]), one_each);
    assert_eq!(
        service(&["192.168.0.0/20", "fd02::/112", "172.16.0.0/20"]),
        one_each
    );
    assert_eq!(service(&["192.168.0.0/20", "fd02::/112"]), FAMILIES);
    assert_eq!(
        error(|spec| spec.cluster_network.push(entry("fd01::/48", 64))),
        FAMILIES
    );
    assert_eq!(service(&["fd02::/112"]), FAMILIES);
}

// cluster-network#6
#[rstest]
#[case(Platform::BareMetal, "", true)]
#[case(Platform::None, "", true)]
#[case(Platform::VSphere, "", true)]
#[case(Platform::Gcp, "", false)]
#[case(Platform::Gcp, "GCPDualStackInstall", true)]
#[case(Platform::Aws, "AWSDualStackInstall", true)]
#[case(Platform::Aws, "GCPDualStackInstall", false)]
#[case(Platform::Azure, "AzureDualStackInstall", true)]
#[case(Platform::Azure, "", false)]
#[case(Platform::Other("IBMCloud".to_owned()), "", false)]
fn dual_stack_depends_on_the_platform(#[case] platform: Platform, #[case] gate: &str, #[case] allowed: bool) {
    let mut spec = base();
    spec.cluster_network.push(entry("fd01::/48", 64));
    spec.service_network.push("fd02::/112".to_owned());
    let expected = if allowed {
        Ok(())
    } else {
        Err(format!(
            "{platform} is not one of the supported platforms for dual stack"
        ))
    };
    let facts = Facts {
        platform,
        gates: [gate.to_owned()].into(),
        ..Facts::default()
    };
    assert_eq!(validate(&spec, &facts), expected);
}

// cluster-network#7
#[test]
fn network_type_is_required() {
    assert_eq!(
        error(|spec| spec.network_type.clear()),
        "spec.networkType is required"
    );
}

// cluster-network#8
#[test]
fn merge_sets_blocks_type_and_state_and_nothing_else() {
    let mut merged = operator::NetworkSpec::default();
    merge(&base(), &mut merged);
    let expected = serde_json::json!({
        "managementState": "Managed",
        "clusterNetwork": [{ "cidr": "10.0.0.0/22", "hostPrefix": 24 }, { "cidr": "10.2.0.0/22", "hostPrefix": 23 }],
        "serviceNetwork": ["192.168.0.0/20"],
        "defaultNetwork": { "type": "None" },
    });
    assert_eq!(serde_json::to_value(&merged).expect("JSON"), expected);
    merged.management_state = "Unmanaged".to_owned();
    merge(&base(), &mut merged);
    assert_eq!(merged.management_state, "Unmanaged");
    let mut other_spelling = base();
    "ovnkubernetes".clone_into(&mut other_spelling.network_type);
    merge(&other_spelling, &mut merged);
    assert_eq!(merged.default_network.kind, "OVNKubernetes");
}

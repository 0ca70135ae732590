use api::cluster_network::operator::NetworkSpec;
use rstest::rstest;

use super::errors;
use crate::base::{b, entry, ovn, spec, texts};

fn errors_after(change: impl FnOnce(&mut NetworkSpec)) -> Vec<String> {
    let mut spec = b();
    change(&mut spec);
    errors(&spec)
}

fn dual(spec: &mut NetworkSpec) {
    spec.cluster_network.push(entry("fd01::/48", 64));
    spec.service_network.push("fd02::/112".to_owned());
}

#[test]
fn base_is_valid() {
    assert_eq!(errors(&b()), Vec::<String>::new());
}

// cluster-network#11
#[test]
fn mtu_and_port_are_in_their_ranges() {
    assert_eq!(
        errors_after(|spec| ovn(spec).mtu = Some(70_000)),
        ["invalid MTU 70000"]
    );
    assert_eq!(
        errors_after(|spec| ovn(spec).mtu = Some(576)),
        Vec::<String>::new()
    );
    let with_v6 = errors_after(|spec| {
        dual(spec);
        ovn(spec).mtu = Some(576);
    });
    assert_eq!(with_v6, ["invalid MTU 576"]);
    assert_eq!(
        errors_after(|spec| ovn(spec).geneve_port = Some(70_001)),
        ["invalid GenevePort 70001"]
    );
}

// cluster-network#12
#[test]
fn empty_blocks_are_reported() {
    let found = errors_after(|spec| spec.cluster_network.clear());
    assert!(
        found.contains(&"ClusterNetwork cannot be empty".to_owned()),
        "{found:?}"
    );
    let found = errors_after(|spec| spec.service_network.clear());
    assert!(
        found.contains(&"ServiceNetwork cannot be empty".to_owned()),
        "{found:?}"
    );
}

// cluster-network#13
#[test]
fn families_and_number_of_service_blocks() {
    let found = errors_after(|spec| spec.service_network = texts(&["fd02::/112"]));
    let expected = "ClusterNetwork and ServiceNetwork must have matching IP families".to_owned();
    assert!(found.contains(&expected), "{found:?}");
    let found = errors_after(|spec| {
        dual(spec);
        spec.service_network.push("172.16.0.0/16".to_owned());
    });
    let expected = "ServiceNetwork must have either a single CIDR or a dual-stack pair of CIDRs".to_owned();
    assert!(found.contains(&expected), "{found:?}");
}

// cluster-network#14
#[test]
fn join_subnet_is_large_enough_and_of_a_family_of_pods() {
    let small = "v4InternalJoinSubnet 100.64.0.0/22 is not large enough for the maximum number of nodes which can be \
                 supported by ClusterNetwork";
    let join = |subnet: &str| errors_after(|spec| subnet.clone_into(&mut ovn(spec).v4_internal_subnet));
    assert_eq!(join("100.64.0.0/22"), [small]);
    assert_eq!(join("100.64.0.0/21"), Vec::<String>::new());
    assert_eq!(
        errors_after(|spec| "fd01::/48".clone_into(&mut ovn(spec).v6_internal_subnet)),
        ["JoinSubnet fd01::/48 and ClusterNetwork must have matching IP families"]
    );
}

// cluster-network#15
#[rstest]
#[case("100.65.0.0/16", &["v4InternalSubnet will be deprecated soon, until then it must be same as \
                          v4InternalJoinSubnet 100.65.0.0/16 "])]
#[case("100.64.0.0/16", &[])]
fn former_name_of_the_join_subnet_is_equivalent(#[case] join: &str, #[case] expected: &[&str]) {
    let found = errors_after(|spec| {
        "100.64.0.0/16".clone_into(&mut ovn(spec).v4_internal_subnet);
        join.clone_into(&mut ovn(spec).ipv4.get_or_insert_default().internal_join_subnet);
    });
    assert_eq!(found, expected);
}

// cluster-network#16
#[test]
fn internal_subnets_overlap_with_nothing() {
    let base = "clusterNetwork: [{cidr: 'fd01::/48', hostPrefix: 64}]
serviceNetwork: ['fd02::/112']
defaultNetwork: {type: OVNKubernetes, ovnKubernetesConfig: ";
    let found = |ovn: &str| errors(&spec(&format!("{base}{ovn}}}")));
    let small = "v6InternalJoinSubnet fd03::/112 is not large enough for the maximum number of nodes which can be \
                 supported by ClusterNetwork";
    assert_eq!(found("{v6InternalSubnet: 'fd03::/112'}"), [small]);
    assert_eq!(found("{v6InternalSubnet: 'fd03::/111'}"), Vec::<String>::new());
    let in_use = |name: &str, subnet: &str, older: &str| {
        format!(
            "whole or subset of {name} CIDR {subnet} is already in use: CIDRs {older} and {subnet} overlap"
        )
    };
    assert_eq!(
        found("{ipv6: {internalJoinSubnet: 'fd03::/64', internalTransitSwitchSubnet: 'fd03::/64'}}"),
        [in_use("v6InternalTransitSwitchSubnet", "fd03::/64", "fd03::/64")]
    );
    assert_eq!(
        found(
            "{ipv6: {internalTransitSwitchSubnet: 'fd04::/64'},
gatewayConfig: {ipv6: {internalMasqueradeSubnet: 'fd04::/112'}}}"
        ),
        [in_use("v6InternalMasqueradeSubnet", "fd04::/112", "fd04::/64")]
    );
    assert_eq!(
        found("{ipv6: {internalJoinSubnet: 'fd01:0:0:1::/64'}}"),
        [in_use("v6InternalJoinSubnet", "fd01:0:0:1::/64", "fd01::/48")]
    );
    let found = errors_after(|spec| {
        ovn(spec).hybrid_overlay_config = Some(crate::base::spec(
            "hybridClusterNetwork: [{cidr: 10.128.4.0/23, hostPrefix: 24}]",
        ));
    });
    assert_eq!(
        found,
        [in_use("hybridClusterNetwork", "10.128.4.0/23", "10.128.0.0/15")]
    );
}

#[test]
fn pool_errors_are_collected() {
    let found = errors_after(|spec| {
        spec.service_network = texts(&["1q", "10.0.0.0/16"]);
        spec.default_network.kind = "None".to_owned();
        spec.cluster_network[0].host_prefix = 31;
    });
    let expected = [
        "could not parse spec.serviceNetwork 1q: invalid CIDR address: 1q",
        "spec.serviceNetwork must contain at most one IPv4 and one IPv6 network",
        "hostPrefix 31 is too small, must be a /30 or larger",
        "whole or subset of ClusterNetwork CIDR 10.0.0.0/14 is already in use: CIDRs 10.0.0.0/16 and 10.0.0.0/14 overlap",
    ];
    assert_eq!(found, expected);
}

// cluster-network#22
#[test]
fn additional_networks_need_multus() {
    let found = errors_after(|spec| {
        spec.disable_multi_network = Some(true);
        spec.additional_networks
            .push(crate::base::spec("{name: a, type: Raw, rawCNIConfig: '{}'}"));
    });
    assert_eq!(
        found,
        ["additional networks cannot be specified without deploying Multus"]
    );
}

// cluster-network#23
#[test]
fn only_the_mtu_is_migrated() {
    let found = errors_after(|spec| spec.migration = Some(crate::base::spec("{networkType: OVNKubernetes}")));
    assert_eq!(found, ["network type migration is not supported"]);
    let found = errors_after(|spec| spec.migration = Some(crate::base::spec("{features: {egressIP: true}}")));
    assert_eq!(found, ["network feature migration is not supported"]);
}

// cluster-network#152
#[test]
fn routing_providers_are_known_and_advertisements_have_theirs() {
    let found = errors_after(|spec| {
        spec.additional_routing_capabilities = Some(crate::base::spec("{providers: [FRR, BIRD]}"));
    });
    assert_eq!(found, ["unknown routing capability provider: BIRD"]);
    let missing =
        "Route advertisements cannot be Enabled if 'FRR' routing capability provider is not available";
    let advertises = |spec: &mut NetworkSpec| "Enabled".clone_into(&mut ovn(spec).route_advertisements);
    assert_eq!(errors_after(advertises), [missing]);
    let found = errors_after(|spec| {
        advertises(spec);
        spec.additional_routing_capabilities = Some(crate::base::spec("{providers: [FRR]}"));
    });
    assert_eq!(found, Vec::<String>::new());
}

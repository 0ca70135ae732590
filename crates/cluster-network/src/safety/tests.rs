use api::cluster_network::operator::NetworkSpec;
use rstest::rstest;

use super::errors;
use crate::{
    base::{b, entry, ovn, spec, texts},
    defaults,
    facts::{Facts, Platform},
};

fn applied() -> NetworkSpec {
    let mut applied = b();
    let facts = Facts {
        host_mtu: Some(1500),
        ..Facts::default()
    };
    defaults::fill(&mut applied, None, &facts).expect("defaults");
    applied
}

fn errors_after(change: impl FnOnce(&mut NetworkSpec)) -> Vec<String> {
    let mut next = applied();
    change(&mut next);
    errors(&applied(), &next, &Platform::BareMetal)
}

const NONE: [&str; 0] = [];

// cluster-network#25
#[test]
fn unchanged_configuration_is_safe() {
    assert_eq!(errors_after(|_| {}), NONE);
    // The record of an operator of version 4.4. The test adds the defaults to both sides of the comparison.
    let old = r#"{"clusterNetwork":[{"cidr":"10.128.0.0/14","hostPrefix":23}],"serviceNetwork":["172.30.0.0/16"],
        "defaultNetwork":{"type":"OVNKubernetes","openshiftSDNConfig":null,"ovnKubernetesConfig":null},
        "additionalNetworks":null,"disableMultiNetwork":false,"deployKubeProxy":false}"#;
    let facts = Facts {
        host_mtu: Some(1500),
        ..Facts::default()
    };
    let mut previous: NetworkSpec = serde_json::from_str(old).expect("a specification");
    let before = previous.clone();
    defaults::fill(&mut previous, Some(&before), &facts).expect("defaults");
    let mut next: NetworkSpec = spec(
        "{clusterNetwork: [{cidr: 10.128.0.0/14, hostPrefix: 23}], serviceNetwork: [172.30.0.0/16],
defaultNetwork: {type: OVNKubernetes}}",
    );
    defaults::fill(&mut next, Some(&before), &facts).expect("defaults");
    assert_eq!(errors(&previous, &next, &Platform::None), NONE);
}

// cluster-network#26
#[test]
fn blocks_of_the_same_family_are_not_added_or_replaced() {
    assert_eq!(
        errors_after(|spec| spec.cluster_network.push(entry("1.2.0.0/16", 24))),
        ["adding/removing clusterNetwork entries of the same type is not supported"]
    );
    assert_eq!(
        errors_after(|spec| spec.service_network = texts(&["1.2.3.0/24"])),
        ["unsupported change to ServiceNetwork"]
    );
}

// cluster-network#27
#[test]
fn blocks_of_pods_only_grow() {
    let cidr = |cidr: &str| errors_after(|spec| cidr.clone_into(&mut spec.cluster_network[0].cidr));
    assert_eq!(cidr("10.128.0.0/14"), NONE);
    assert_eq!(
        cidr("10.128.0.0/16"),
        ["reducing IP range with a larger CIDR mask for clusterNetwork CIDR is unsupported"]
    );
    assert_eq!(
        cidr("10.132.0.0/15"),
        ["modifying IP network value for clusterNetwork CIDR is unsupported"]
    );
    assert_eq!(
        cidr(""),
        ["error parsing CIDR from ClusterNetwork entry : invalid CIDR address: "]
    );
    let swapped = errors_after(|spec| {
        spec.cluster_network.reverse();
        "10.0.0.0/13".clone_into(&mut spec.cluster_network[0].cidr);
    });
    assert_eq!(swapped, NONE);
    assert_eq!(
        errors_after(|spec| spec.cluster_network[0].host_prefix = 24),
        ["modifying a clusterNetwork's hostPrefix value is unsupported"]
    );
}

#[test]
fn blocks_of_pods_of_another_network_stay() {
    let mut previous = applied();
    previous.default_network.kind = "Calico".to_owned();
    let mut next = previous.clone();
    "10.128.0.0/14".clone_into(&mut next.cluster_network[0].cidr);
    assert_eq!(
        errors(&previous, &next, &Platform::None),
        ["network type is Calico. changing clusterNetwork entries is only supported for OVNKubernetes"]
    );
}

fn dual() -> NetworkSpec {
    let mut dual = applied();
    dual.service_network.push("fd02::/112".to_owned());
    dual.cluster_network.push(entry("fd01::/48", 64));
    dual
}

// cluster-network#28
#[test]
fn second_family_comes_and_goes_behind_the_first() {
    let (single, on) = (applied(), Platform::BareMetal);
    assert_eq!(errors(&single, &dual(), &on), NONE);
    assert_eq!(errors(&dual(), &single, &on), NONE);
    let mut other = dual();
    other.service_network.reverse();
    let primary = ["cannot change primary ServiceNetwork when migrating to/from dual-stack"];
    assert_eq!(errors(&single, &other, &on), primary);
    assert_eq!(errors(&other, &single, &on), primary);
    let mut other = dual();
    other.cluster_network.rotate_right(1);
    assert_eq!(
        errors(&single, &other, &on),
        ["cannot change primary ClusterNetwork when migrating to/from dual-stack"]
    );
    let mut other = dual();
    other.cluster_network.push(entry("fd05::/48", 64));
    assert_eq!(errors(&single, &other, &on), NONE);
    other.cluster_network.push(entry("1.2.0.0/16", 24));
    assert_eq!(
        errors(&single, &other, &on),
        ["cannot add additional ClusterNetwork values of original IP family when migrating to dual stack"]
    );
    let gcp = Platform::Gcp;
    assert_eq!(
        errors(&single, &dual(), &gcp),
        ["GCP does not allow conversion to dual-stack cluster"]
    );
    assert_eq!(errors(&dual(), &single, &gcp), NONE);
}

// cluster-network#29
#[test]
fn settings_of_tunnels_stay() {
    let mut hybrid = applied();
    ovn(&mut hybrid).hybrid_overlay_config = Some(spec(
        "hybridClusterNetwork: [{cidr: 10.132.0.0/14, hostPrefix: 23}]",
    ));
    let on = Platform::None;
    assert_eq!(errors(&applied(), &hybrid, &on), NONE);
    assert_eq!(errors(&hybrid, &applied(), &on), NONE);
    let mut edited = hybrid.clone();
    ovn(&mut edited).hybrid_overlay_config = Some(spec(
        "hybridClusterNetwork: [{cidr: 10.140.0.0/14, hostPrefix: 23}]",
    ));
    assert_eq!(
        errors(&hybrid, &edited, &on),
        ["cannot edit a running hybrid overlay network"]
    );
    let found = errors_after(|spec| {
        ovn(spec).mtu = Some(4000);
        ovn(spec).geneve_port = Some(34001);
    });
    assert_eq!(
        found,
        [
            "cannot change ovn-kubernetes MTU without migration",
            "cannot change ovn-kubernetes genevePort"
        ]
    );
}

// cluster-network#30
#[rstest]
#[case("network: {from: 1400, to: 1300}, machine: {to: 1500}", &[])]
#[case("network: {to: 1300}, machine: {to: 1500}", &["invalid Migration.MTU, at least one of the required fields is missing"])]
#[case("network: {from: 1100, to: 1300}, machine: {to: 1500}",
       &["invalid Migration.MTU.Network.From(1100) not equal to the currently applied MTU(1400)"])]
#[case("network: {from: 1400, to: 100}, machine: {to: 1500}",
       &["invalid Migration.MTU.Network.To(100), has to be in range: 576-65536"])]
#[case("network: {from: 1400, to: 65537}, machine: {to: 1500}",
       &["invalid Migration.MTU.Network.To(65537), has to be in range: 576-65536",
         "invalid Migration.MTU.Machine.To(1500), has to be at least 65637"])]
#[case("network: {from: 1400, to: 1500}, machine: {to: 1500}", &["invalid Migration.MTU.Machine.To(1500), has to be at least 1600"])]
#[case("network: {from: 1400, to: 1500}, machine: {to: 65537}",
       &["invalid Migration.MTU.Machine.To(65537), has to be in range: 576-65536"])]
fn mtu_migration_is_checked(#[case] mtu: &str, #[case] expected: &[&str]) {
    let found = errors_after(|next| next.migration = Some(spec(&format!("{{mtu: {{{mtu}}}}}"))));
    assert_eq!(found, expected);
    let mut previous = dual();
    ovn(&mut previous).mtu = Some(1400);
    let mut next = previous.clone();
    next.migration = Some(spec(
        "{mtu: {network: {from: 1400, to: 1200}, machine: {to: 1500}}}",
    ));
    assert_eq!(
        errors(&previous, &next, &Platform::None),
        ["invalid Migration.MTU.Network.To(1200), has to be in range: 1280-65536"]
    );
}

#[test]
fn migration_needs_room_for_encryption_too() {
    let found = errors_after(|next| {
        ovn(next).ipsec_config = Some(spec("{mode: Full}"));
        next.migration = Some(spec(
            "{mtu: {network: {from: 1400, to: 1355}, machine: {to: 1500}}}",
        ));
    });
    assert_eq!(
        found,
        ["invalid Migration.MTU.Machine.To(1500), has to be at least 1501"]
    );
}

#[test]
fn services_stay_while_a_migration_runs() {
    let mut previous = applied();
    previous.migration = Some(spec("{}"));
    let mut next = previous.clone();
    next.cluster_network.clear();
    assert_eq!(errors(&previous, &next, &Platform::None), NONE);
    next.service_network.clear();
    assert_eq!(
        errors(&previous, &next, &Platform::None),
        ["cannot change ServiceNetwork during migration"]
    );
}

// cluster-network#33
#[test]
fn type_and_multus_stay() {
    assert_eq!(
        errors_after(|spec| spec.default_network.kind = "Kuryr".to_owned()),
        ["cannot change default network type"]
    );
    assert_eq!(
        errors_after(|spec| spec.disable_multi_network = Some(true)),
        ["cannot change DisableMultiNetwork"]
    );
}

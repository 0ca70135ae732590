use api::cluster_network::operator::{NetworkSpec, OvnKubernetesConfig};

use super::{UnknownMtu, fill, no_overlay_error};
use crate::{
    base::{b, entry, ovn, spec},
    facts::Facts,
};

fn facts(mtu: u32) -> Facts {
    Facts {
        host_mtu: Some(mtu),
        ..Facts::default()
    }
}

fn filled(mut spec: NetworkSpec, previous: Option<&NetworkSpec>, facts: &Facts) -> NetworkSpec {
    fill(&mut spec, previous, facts).expect("defaults");
    spec
}

fn open() -> NetworkSpec {
    let mut spec = b();
    spec.default_network.ovn_kubernetes_config = None;
    spec
}

// cluster-network#17
#[test]
fn defaults_of_ovn_kubernetes() {
    let mut filled = filled(open(), None, &facts(9000));
    let expected: OvnKubernetesConfig = spec(
        "mtu: 8900
genevePort: 6081
policyAuditConfig: {rateLimit: 20, maxFileSize: 50, destination: 'null', syslogFacility: local0}
gatewayConfig: {}",
    );
    assert_eq!(*ovn(&mut filled), expected);
    assert_eq!(
        (
            filled.disable_multi_network,
            filled.use_multi_network_policy,
            filled.deploy_kube_proxy
        ),
        (Some(false), Some(false), Some(false))
    );
    assert_eq!(filled.log_level, "Normal");
}

// cluster-network#18
#[test]
fn mtu_depends_on_encapsulation_of_packets() {
    let mtu = |ovn_config: &str| {
        let mut given = open();
        *ovn(&mut given) = spec(ovn_config);
        ovn(&mut filled(given, None, &facts(9000))).mtu
    };
    assert_eq!(mtu("{ipsecConfig: {mode: Full}}"), Some(8854));
    assert_eq!(mtu("{ipsecConfig: {}}"), Some(8854));
    assert_eq!(mtu("{ipsecConfig: {mode: External}}"), Some(8900));
    assert_eq!(mtu("{transport: NoOverlay}"), Some(9000));
    let mut given = open();
    *ovn(&mut given) = spec("{transport: NoOverlay, mtu: 9001}");
    assert_eq!(
        no_overlay_error(&given, &facts(9000)).as_deref(),
        Some(
            "Invalid MTU configuration for no-overlay mode: invalid MTU 9001 for no-overlay mode: cannot exceed host MTU \
             9000"
        )
    );
    ovn(&mut given).mtu = Some(9000);
    assert_eq!(no_overlay_error(&given, &facts(9000)), None);
}

// cluster-network#19
#[test]
fn mtu_that_is_applied_stays() {
    let mut previous = b();
    ovn(&mut previous).mtu = Some(1400);
    for facts in [Facts::default(), facts(9000)] {
        assert_eq!(ovn(&mut filled(open(), Some(&previous), &facts)).mtu, Some(1400));
    }
    assert_eq!(fill(&mut open(), None, &Facts::default()), Err(UnknownMtu));
}

#[test]
fn gateway_mode_counts_while_the_configuration_is_open() {
    let facts = Facts {
        routing_via_host: true,
        ..facts(1500)
    };
    let via_host = |given: NetworkSpec| {
        let gateway = ovn(&mut filled(given, None, &facts)).gateway_config.clone();
        gateway.expect("a gateway").routing_via_host
    };
    assert!(via_host(open()));
    let mut given = open();
    ovn(&mut given).gateway_config = Some(spec("{}"));
    assert!(!via_host(given));
}

// cluster-network#56
#[test]
fn kube_proxy_listens_on_the_family_of_the_first_block() {
    let mut given = open();
    given.default_network.kind = "Flannel".to_owned();
    let address = |given: &NetworkSpec| {
        let filled = filled(given.clone(), None, &Facts::default());
        assert_eq!(filled.deploy_kube_proxy, Some(true));
        filled.kube_proxy_config.expect("a configuration").bind_address
    };
    assert_eq!(address(&given), "0.0.0.0");
    given.cluster_network.insert(0, entry("fd01::/48", 64));
    assert_eq!(address(&given), "::");
    given.deploy_kube_proxy = Some(false);
    let filled = filled(given, None, &Facts::default());
    assert_eq!(
        (filled.deploy_kube_proxy, filled.kube_proxy_config),
        (Some(false), None)
    );
}

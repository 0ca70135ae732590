use super::*;
use crate::facts::{ApiServer, Platform};
use crate::ovn::knobs;
use serde_json::{Value, json};

/// The base configuration of the specification's cases (§20).
fn base(change: impl FnOnce(&mut Value)) -> NetworkSpec {
    let mut spec = json!({
        "clusterNetwork": [
            { "cidr": "10.128.0.0/15", "hostPrefix": 23 }, { "cidr": "10.0.0.0/14", "hostPrefix": 24 },
        ],
        "serviceNetwork": ["172.30.0.0/16"],
        "defaultNetwork": {
            "type": "OVNKubernetes",
            "ovnKubernetesConfig": { "mtu": 8900, "genevePort": 8061, "gatewayConfig": { "routingViaHost": false } },
        },
    });
    change(&mut spec);
    serde_json::from_value(spec).expect("a configuration")
}

fn facts() -> Facts {
    Facts {
        platform: Platform::BareMetal,
        control_plane_nodes: 3,
        api_server: ApiServer {
            host: "api-int.example.com".to_owned(),
            port: "6443".to_owned(),
        },
        ..Facts::default()
    }
}

fn written(spec: &NetworkSpec, facts: &Facts) -> String {
    ini(&Input {
        spec,
        facts,
        udp_aggregation: true,
        egress_health_port: EGRESS_HEALTH_PORT,
        local_api_server: None,
    })
}

const DEFAULT: &str = r#"[default]
mtu="8900"
cluster-subnets="10.128.0.0/15/23,10.0.0.0/14/24"
encap-port="8061"
enable-lflow-cache=true
lflow-cache-limit-kb=1048576
enable-udp-aggregation=true
udn-allowed-default-services="default/kubernetes,openshift-dns/dns-default"

[kubernetes]
service-cidrs="172.30.0.0/16"
ovn-config-namespace="openshift-ovn-kubernetes"
apiserver="https://api-int.example.com:6443"
host-network-namespace="openshift-host-network"
platform-type="BareMetal"
healthz-bind-address="0.0.0.0:10256"
dns-service-namespace="openshift-dns"
dns-service-name="dns-default"

[ovnkubernetesfeature]
enable-egress-ip=true
enable-egress-firewall=true
enable-egress-qos=true
enable-egress-service=true
egressip-node-healthcheck-port=9107
enable-multi-network=true
enable-network-segmentation=true
enable-preconfigured-udn-addresses=true
enable-admin-network-policy=true
enable-multi-external-gateway=true

[gateway]
mode=shared
nodeport=true

[logging]
libovsdblogfile=/var/log/ovnkube/libovsdb.log
logfile-maxsize=100
logfile-maxbackups=5
logfile-maxage=0
"#;

#[test]
fn file_has_the_keys_of_the_table_in_its_order() {
    // cluster-network#35
    assert_eq!(written(&base(|_| {}), &facts()), DEFAULT);
}

#[test]
fn hybrid_overlay_is_the_last_section_and_traffic_leaves_through_the_host() {
    // cluster-network#35
    let spec = base(|spec| {
        let ovn = &mut spec["defaultNetwork"]["ovnKubernetesConfig"];
        ovn["gatewayConfig"]["routingViaHost"] = json!(true);
        ovn["hybridOverlayConfig"] = json!({
            "hybridClusterNetwork": [{ "cidr": "10.132.0.0/14", "hostPrefix": 23 }], "hybridOverlayVXLANPort": 9000,
        });
    });
    let host = "host-network-namespace=\"openshift-host-network\"\n";
    let expected = DEFAULT.replace("mode=shared", "mode=local").replace(
        host,
        &format!("{host}no-hostsubnet-nodes=\"kubernetes.io/os=windows\"\n"),
    );
    let hybrid = "\n[hybridoverlay]\nenabled=true\ncluster-subnets=\"10.132.0.0/14\"\nhybrid-overlay-vxlan-port=\"9000\"\n";
    assert_eq!(written(&spec, &facts()), expected + hybrid);
}

#[test]
fn single_control_plane_gives_elections_time_and_ipv6_hosts_have_brackets() {
    // cluster-network#35
    let facts = Facts {
        control_plane_nodes: 1,
        api_server: ApiServer {
            host: "fd00::1".to_owned(),
            port: "6443".to_owned(),
        },
        ..facts()
    };
    let expected = DEFAULT.replace("https://api-int.example.com:6443", "https://[fd00::1]:6443");
    let election = "\n[clustermgrha]\nelection-lease-duration=137\nelection-renew-deadline=107\nelection-retry-period=26\n";
    assert_eq!(written(&base(|_| {}), &facts), expected + election);
}

#[test]
fn migration_keeps_both_mtus_and_gates_add_their_keys() {
    let spec = base(|spec| {
        spec["migration"] =
            json!({ "mtu": { "network": { "from": 1400, "to": 1300 }, "machine": { "to": 1500 } } });
    });
    let facts = Facts {
        gates: ["NetworkConnect".to_owned(), "DNSNameResolver".to_owned()].into(),
        ..facts()
    };
    let last = "enable-multi-external-gateway=true\n";
    let expected = DEFAULT
        .replace("mtu=\"8900\"\n", "mtu=\"1400\"\nroutable-mtu=\"1300\"\n")
        .replace(
            last,
            &format!("{last}enable-dns-name-resolver=true\nenable-network-connect=true\n"),
        );
    assert_eq!(written(&spec, &facts), expected);
}

#[test]
fn network_without_tunnels_has_its_routing_mode() {
    let spec = base(|spec| {
        let ovn = &mut spec["defaultNetwork"]["ovnKubernetesConfig"];
        ovn["transport"] = json!("NoOverlay");
        ovn["noOverlayConfig"] = json!({ "outboundSNAT": "Enabled", "routing": "Managed" });
        ovn["bgpManagedConfig"] = json!({ "bgpTopology": "FullMesh" });
    });
    let text = written(&spec, &facts());
    assert!(
        text.contains("/24\"\ntransport=\"no-overlay\"\nencap-port="),
        "{text}"
    );
    let sections = "nodeport=true\n\n[no-overlay]\noutbound-snat=enabled\nrouting=managed\n\n[bgp-managed]\n\
                    frr-namespace=openshift-frr-k8s\nas-number=64512\ntopology=full-mesh\n\n[logging]\n";
    assert!(text.contains(sections), "{text}");
}

#[test]
fn datagrams_are_aggregated_unless_the_config_map_disables_it() {
    // cluster-network#40
    for (value, expected) in [("true", false), ("false", true), ("garbage", true)] {
        let data = [("disable-udp-aggregation".to_owned(), value.to_owned())].into();
        let text = ini(&Input {
            spec: &base(|_| {}),
            facts: &facts(),
            udp_aggregation: knobs::udp_aggregation(&data),
            egress_health_port: EGRESS_HEALTH_PORT,
            local_api_server: None,
        });
        let line = format!("enable-udp-aggregation={expected}");
        assert!(text.lines().any(|it| it == line), "{value}: {text}");
    }
}

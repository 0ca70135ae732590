use serde_json::{Value, json};

use super::*;

fn spec(ovn: &Value) -> NetworkSpec {
    let spec = json!({
        "clusterNetwork": [{ "cidr": "10.128.0.0/14", "hostPrefix": 23 }], "serviceNetwork": ["172.30.0.0/16"],
        "defaultNetwork": { "type": "OVNKubernetes", "ovnKubernetesConfig": ovn },
    });
    serde_json::from_value(spec).expect("a configuration")
}

fn node_flags(spec: &NetworkSpec, facts: &Facts) -> Vec<String> {
    node(
        spec,
        facts,
        None,
        &knobs::hardware(&knobs::Data::new()).expect("defaults"),
    )
}

/// True if the flag has this value.
fn has(flags: &[String], flag: &str, value: &str) -> bool {
    flags.windows(2).any(|pair| pair[0] == flag && pair[1] == value)
}

// cluster-network#37
#[test]
fn reachability_timeout_is_a_flag_of_both_workloads_once_it_is_set() {
    let flag = "--egressip-reachability-total-timeout";
    let facts = Facts::default();
    for (config, expected) in [
        (json!({}), None),
        (
            json!({ "egressIPConfig": { "reachabilityTotalTimeoutSeconds": 0 } }),
            Some("0"),
        ),
        (
            json!({ "egressIPConfig": { "reachabilityTotalTimeoutSeconds": 10 } }),
            Some("10"),
        ),
    ] {
        let spec = spec(&config);
        for flags in [control_plane(&spec, &facts), node_flags(&spec, &facts)] {
            match expected {
                Some(seconds) => assert!(has(&flags, flag, seconds), "{flags:?}"),
                None => assert!(!flags.iter().any(|it| it == flag), "{flags:?}"),
            }
        }
    }
}

#[test]
fn subnets_of_both_workloads_are_those_of_the_configuration_or_of_the_installation() {
    let config = json!({
        "gatewayConfig": { "routingViaHost": true, "ipv4": { "internalMasqueradeSubnet": "169.254.64.0/18" } },
        "v4InternalSubnet": "100.70.0.0/16",
        "ipv4": { "internalJoinSubnet": "100.70.0.0/16", "internalTransitSwitchSubnet": "100.90.0.0/16" },
        "v6InternalSubnet": "fd90::/64", "ipv6": { "internalTransitSwitchSubnet": "fd91::/64" },
    });
    let mut facts = Facts::default();
    facts.ovn.masquerade = vec!["169.254.0.0/17".to_owned(), "fd69::/112".to_owned()];
    let spec = spec(&config);
    for flags in [control_plane(&spec, &facts), node_flags(&spec, &facts)] {
        for (flag, value) in [
            ("--gateway-mode", "local"),
            ("--gateway-v4-join-subnet", "100.70.0.0/16"),
            ("--gateway-v6-join-subnet", "fd90::/64"),
            ("--gateway-v4-masquerade-subnet", "169.254.64.0/18"),
            ("--gateway-v6-masquerade-subnet", "fd69::/112"),
            ("--cluster-manager-v4-transit-subnet", "100.90.0.0/16"),
            ("--cluster-manager-v6-transit-subnet", "fd91::/64"),
        ] {
            assert!(has(&flags, flag, value), "{flag} {value}: {flags:?}");
        }
    }
}

// cluster-network#39
#[test]
fn collectors_are_variables_that_flags_refer_to() {
    let mut spec = spec(&json!({}));
    spec.export_network_flows = serde_json::from_value(json!({
        "netFlow": { "collectors": ["192.0.2.1:1", "192.0.2.2:2"] }, "ipfix": { "collectors": ["192.0.2.3:3"] },
    }))
    .expect("collectors");
    let mut facts = Facts::default();
    facts.ovn.config_maps.flows = [
        ("sharedTarget".to_owned(), "192.0.2.9:3030".to_owned()),
        ("sampling".to_owned(), "55".to_owned()),
    ]
    .into();
    let variables = flow_variables(&spec, &facts.ovn);
    assert_eq!(
        variables,
        [
            ("NETFLOW_COLLECTORS", "192.0.2.1:1,192.0.2.2:2".to_owned()),
            ("IPFIX_COLLECTORS", "192.0.2.3:3,192.0.2.9:3030".to_owned()),
            ("IPFIX_SAMPLING", "55".to_owned()),
        ]
    );
    let flags = node_flags(&spec, &facts);
    for (flag, value) in [
        ("--netflow-targets", "$(NETFLOW_COLLECTORS)"),
        ("--ipfix-targets", "$(IPFIX_COLLECTORS)"),
        ("--ipfix-sampling", "$(IPFIX_SAMPLING)"),
    ] {
        assert!(has(&flags, flag, value), "{flag}: {flags:?}");
    }
    assert!(!flags.iter().any(|it| it == "--sflow-targets"), "{flags:?}");
    facts.ovn.config_maps.flows = [("nodePort".to_owned(), "3030".to_owned())].into();
    let ipfix = flow_variables(&spec, &facts.ovn).pop();
    assert_eq!(ipfix, Some(("IPFIX_COLLECTORS", "192.0.2.3:3,:3030".to_owned())));
    facts.ovn.config_maps.flows = [("sampling".to_owned(), "55".to_owned())].into();
    let ipfix = flow_variables(&spec, &facts.ovn).pop();
    assert_eq!(ipfix, Some(("IPFIX_COLLECTORS", "192.0.2.3:3".to_owned())));
}

// cluster-network#41
#[test]
fn valid_overrides_are_flags_of_nodes() {
    let flags = |key: &str, value: &str| {
        let mut facts = Facts::default();
        facts.ovn.config_maps.overrides = [(key.to_owned(), value.to_owned())].into();
        node_flags(&spec(&json!({})), &facts)
    };
    let is_there = |flags: &[String], text: &str| flags.iter().any(|flag| flag.contains(text));
    for wrong in ["-1", "abc"] {
        assert!(
            !is_there(&flags("openflow-probe", wrong), "openflow-probe"),
            "{wrong}"
        );
    }
    assert!(flags("openflow-probe", "180").contains(&"--openflow-probe=180".to_owned()));
    assert!(!is_there(
        &flags("allow-icmp-network-policy", "maybe"),
        "allow-icmp"
    ));
    let icmp = flags("allow-icmp-network-policy", "true");
    assert!(icmp.contains(&"--allow-icmp-network-policy=true".to_owned()));
    let mode = flags("advertised-udn-isolation-mode", "loose");
    assert!(mode.contains(&"--advertised-udn-isolation-mode=loose".to_owned()));
}

#[test]
fn forwarding_and_audit_follow_the_configuration() {
    let facts = Facts::default();
    let restricted = spec(&json!({}));
    assert!(node_flags(&restricted, &facts).contains(&"--disable-forwarding".to_owned()));
    let global = spec(&json!({
        "genevePort": 6081, "gatewayConfig": { "ipForwarding": "Global" }, "hybridOverlayConfig": {},
        "policyAuditConfig": {
            "maxFileSize": 1, "maxLogFiles": 3, "rateLimit": 5, "destination": "libc", "syslogFacility": "local0",
        },
    }));
    let flags = node_flags(&global, &facts);
    assert!(!flags.contains(&"--disable-forwarding".to_owned()));
    assert!(has(&flags, "--acl-logging-rate-limit", "5"));
    let ovn = config(&global);
    assert_eq!(audit(&ovn), ["--syslog-method=libc", "-vFACILITY:local0"]);
    assert_eq!(audit_files(&ovn), ("1000000".to_owned(), "3".to_owned()));
    assert_eq!(tunnel_ports(&ovn), "6081 4789");
}

// cluster-network#43
#[test]
fn host_of_a_data_processing_unit_has_flags_of_its_own() {
    let facts = Facts::default();
    let flags = |data: &[(&str, &str)]| {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let hardware = knobs::hardware(&data.collect()).expect("valid");
        node(&spec(&json!({})), &facts, Some(Offload::DpuHost), &hardware)
    };
    let (renew, duration) = ("dpu-node-lease-renew-interval", "dpu-node-lease-duration");
    for (data, expected) in [
        (vec![(renew, "50"), (duration, "40")], ("10", "40")),
        (vec![(renew, "0")], ("0", "40")),
        (vec![(renew, "20"), (duration, "90")], ("20", "90")),
    ] {
        let flags = flags(&data);
        assert!(
            has(&flags, "--dpu-node-lease-renew-interval", expected.0),
            "{flags:?}"
        );
        assert!(has(&flags, "--dpu-node-lease-duration", expected.1), "{flags:?}");
        assert!(has(&flags, "--ovnkube-node-mode", "dpu-host"), "{flags:?}");
        assert!(
            has(&flags, "--gateway-interface", "derive-from-mgmt-port"),
            "{flags:?}"
        );
    }
}

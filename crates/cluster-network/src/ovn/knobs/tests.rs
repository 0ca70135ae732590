use super::*;
use serde_json::json;

fn data(pairs: &[(&str, &str)]) -> Data {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn collectors_are_joined_and_that_of_the_config_map_is_the_last() {
    // cluster-network#39
    let export: ExportNetworkFlows = serde_json::from_value(json!({
        "netFlow": { "collectors": ["192.0.2.1:2056", "192.0.2.2:2056"] },
        "sFlow": { "collectors": ["192.0.2.3:6343"] },
        "ipfix": { "collectors": ["192.0.2.4:4739", "192.0.2.5:4739"] },
    }))
    .expect("collectors");
    let shared = flows(&data(&[
        ("sharedTarget", "192.0.2.9:3030"),
        ("cacheActiveTimeout", "3200ms"),
        ("cacheMaxFlows", "33"),
        ("sampling", "55"),
    ]));
    let shared = shared.expect("a target");
    assert_eq!(
        (
            shared.cache_active_timeout,
            shared.cache_max_flows,
            shared.sampling
        ),
        (Some(3), Some(33), Some(55))
    );
    let all = collectors(Some(&export), Some(&shared));
    assert_eq!(all.net_flow, "192.0.2.1:2056,192.0.2.2:2056");
    assert_eq!(all.s_flow, "192.0.2.3:6343");
    assert_eq!(all.ipfix, "192.0.2.4:4739,192.0.2.5:4739,192.0.2.9:3030");
    let port = flows(&data(&[("nodePort", "3030")]));
    assert_eq!(collectors(None, port.as_ref()).ipfix, ":3030");
    assert_eq!(flows(&data(&[("sampling", "55")])), None);
    assert_eq!(flows(&Data::new()), None);
    assert_eq!(collectors(None, None), Collectors::default());
    let wrong = flows(&data(&[
        ("nodePort", "1"),
        ("cacheActiveTimeout", "x"),
        ("cacheMaxFlows", "-1"),
        ("sampling", "many"),
    ]));
    let target = ":1".to_owned();
    assert_eq!(
        wrong,
        Some(Flows {
            target,
            ..Flows::default()
        })
    );
}

#[test]
fn invalid_overrides_are_ignored() {
    // cluster-network#41
    for value in ["-1", "abc"] {
        assert_eq!(overrides(&data(&[("openflow-probe", value)])), [] as [&str; 0]);
    }
    assert_eq!(
        overrides(&data(&[("openflow-probe", "180")])),
        ["--openflow-probe=180"]
    );
    assert_eq!(
        overrides(&data(&[("allow-icmp-network-policy", "maybe")])),
        [] as [&str; 0]
    );
    assert_eq!(
        overrides(&data(&[
            ("allow-icmp-network-policy", "true"),
            ("advertised-udn-isolation-mode", "loose")
        ])),
        [
            "--advertised-udn-isolation-mode=loose",
            "--allow-icmp-network-policy=true"
        ]
    );
}

#[test]
fn node_is_of_one_kind_at_most() {
    // cluster-network#43
    let hardware = hardware(&data(&[("smart-nic-mode-label", "card=smart")])).expect("hardware");
    let of = |labels: &[(&str, &str)]| offload(&hardware, "node1", &data(labels));
    let (dpu, host) = (
        "network.operator.openshift.io/dpu",
        "network.operator.openshift.io/dpu-host",
    );
    assert_eq!(of(&[]), Ok(None));
    assert_eq!(of(&[(dpu, "")]), Ok(Some(Offload::Dpu)));
    assert_eq!(of(&[(host, "any")]), Ok(Some(Offload::DpuHost)));
    assert_eq!(of(&[("card", "smart")]), Ok(Some(Offload::SmartNic)));
    assert_eq!(of(&[("card", "plain")]), Ok(None));
    let two = of(&[(dpu, ""), (host, "")]).expect_err("two labels");
    assert_eq!(two.to_string(), "node node1 has multiple hardware offload labels");
}

#[test]
fn lease_lasts_longer_than_until_it_is_renewed() {
    // cluster-network#43
    let lease = |pairs: &[(&str, &str)]| {
        let hardware = hardware(&data(pairs)).expect("hardware");
        (hardware.lease_renew, hardware.lease_duration)
    };
    let (renew, duration) = ("dpu-node-lease-renew-interval", "dpu-node-lease-duration");
    assert_eq!(lease(&[]), (10, 40));
    assert_eq!(lease(&[(renew, "50"), (duration, "40")]), (10, 40));
    assert_eq!(lease(&[(renew, "0")]), (0, 40));
    assert_eq!(lease(&[(renew, "20"), (duration, "60")]), (20, 60));
    assert_eq!(lease(&[(renew, "x"), (duration, "0")]), (10, 40));
    assert_eq!(lease(&[(renew, "40"), (duration, "40")]), (10, 40));
}

#[test]
fn labels_and_counts_are_checked() {
    for label in ["", "key", "=v", "a b=", "-a=", "a/b/c=", "A.b/c=", "key=-"] {
        assert_eq!(NodeLabel::read(label), None, "{label}");
    }
    for label in ["key=", "key=value", "a.b/c_d="] {
        assert!(NodeLabel::read(label).is_some(), "{label}");
    }
    let count = |text| hardware(&data(&[(KEY_COUNT, text)])).map(|hardware| hardware.port_count);
    assert_eq!(count("2"), Ok(2));
    for text in ["0", "-1", "x", ""] {
        assert_eq!(
            count(text).map_err(|error| error.to_string()),
            Err(format!(
                "invalid mgmt-port-resource-count {text:?}, it must be a positive integer"
            ))
        );
    }
}

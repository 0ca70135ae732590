use super::*;
use serde_json::{Value, json};

const A_ONLY: Policy = Policy {
    ipv6: false,
    allowed: Vec::new(),
    zone_octets: 4,
};
const AUTO: Policy = Policy {
    ipv6: true,
    allowed: Vec::new(),
    zone_octets: 4,
};

fn vmi(networks: &Value, interfaces: &Value) -> Vmi {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "vmi1", "namespace": "ns1", "labels": { "a": "b" } },
        "spec": { "networks": networks, "domain": { "devices": {} } },
        "status": { "phase": "Running", "interfaces": interfaces },
    });
    serde_json::from_value(object).unwrap()
}

fn nic(name: &str, addresses: &[&str]) -> Value {
    json!({ "name": name, "mac": "02:00:00:00:00:01", "ipAddresses": addresses })
}

#[track_caller]
fn assert_records(policy: &Policy, networks: &Value, interfaces: &Value, expected: &[&str]) {
    let published = vmi(networks, interfaces).publish(policy);
    let records: Vec<String> = published.records.iter().map(ToString::to_string).collect();
    assert_eq!(records, expected, "{:?}", published.refused);
}

#[track_caller]
fn assert_interfaces(policy: &Policy, interfaces: &Value, expected: &[&str]) {
    assert_records(policy, &json!([]), interfaces, expected);
}

#[test]
fn interface_and_default_record() {
    // secondary-dns#8
    assert_interfaces(
        &A_ONLY,
        &json!([nic("nic1", &["1.2.3.4"])]),
        &["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
    );
}

#[test]
fn ipv4_is_found_behind_ipv6() {
    // secondary-dns#15-16
    for addresses in [["1.2.3.4", "fd00::5"], ["fd00::5", "1.2.3.4"]] {
        let interfaces = json!([nic("nic1", &addresses)]);
        assert_interfaces(
            &A_ONLY,
            &interfaces,
            &["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
        );
        assert_interfaces(
            &AUTO,
            &interfaces,
            &[
                "nic1.vmi1.ns1 IN A 1.2.3.4",
                "vmi1.ns1 IN A 1.2.3.4",
                "nic1.vmi1.ns1 IN AAAA fd00::5",
                "vmi1.ns1 IN AAAA fd00::5",
            ],
        );
    }
}

#[test]
fn ipv6_alone_gives_aaaa_if_enabled() {
    // secondary-dns#17-19: what a query for A then gets is a test of the answers.
    let interfaces = json!([nic("nic1", &["fe80::1", "2001:db8::1", "2001:db8::2"])]);
    assert_interfaces(&A_ONLY, &interfaces, &[]);
    assert_interfaces(
        &AUTO,
        &interfaces,
        &[
            "nic1.vmi1.ns1 IN AAAA 2001:db8::1",
            "vmi1.ns1 IN AAAA 2001:db8::1",
        ],
    );
    for local in [
        "fe80::1",
        "::1",
        "::",
        "ff02::1",
        "::ffff:1.2.3.4",
        "fe80::1%eth0",
    ] {
        assert_interfaces(&AUTO, &json!([nic("nic1", &[local])]), &[]);
    }
}

#[test]
fn default_aaaa_is_of_first_interface_that_has_one() {
    let interfaces = json!([
        nic("b", &["1.1.1.2", "fd00::2"]),
        nic("a", &["1.1.1.1"]),
        nic("c", &["fd00::3"])
    ]);
    assert_interfaces(
        &AUTO,
        &interfaces,
        &[
            "a.vmi1.ns1 IN A 1.1.1.1",
            "b.vmi1.ns1 IN A 1.1.1.2",
            "vmi1.ns1 IN A 1.1.1.1",
            "b.vmi1.ns1 IN AAAA fd00::2",
            "c.vmi1.ns1 IN AAAA fd00::3",
            "vmi1.ns1 IN AAAA fd00::2",
        ],
    );
}

#[test]
fn first_ipv4_address_is_published() {
    // secondary-dns#20
    assert_interfaces(
        &AUTO,
        &json!([nic("nic1", &["1.2.3.4", "1.2.3.5"])]),
        &["nic1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
    );
}

#[test]
fn scalar_address_is_not_used() {
    // secondary-dns#21
    assert_interfaces(
        &AUTO,
        &json!([{ "name": "nic1", "ipAddress": "1.2.3.4", "ipAddresses": [] }]),
        &[],
    );
}

#[test]
fn default_network_is_left_out() {
    // secondary-dns#22-25
    let both = json!([nic("default", &["10.0.0.1"]), nic("n1", &["1.2.3.4"])]);
    let n1 = ["n1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"];
    let multus = json!({ "name": "n1", "multus": { "networkName": "net" } });
    let pod = json!([{ "name": "default", "pod": {} }, multus]);
    assert_records(&AUTO, &pod, &both, &n1);
    let default = json!([{ "name": "default", "multus": { "networkName": "d", "default": true } }, multus]);
    assert_records(&AUTO, &default, &both, &n1);
    let none = json!([{ "name": "default", "multus": { "networkName": "d", "default": false } }, multus]);
    let all = [
        "default.vmi1.ns1 IN A 10.0.0.1",
        "n1.vmi1.ns1 IN A 1.2.3.4",
        "vmi1.ns1 IN A 10.0.0.1",
    ];
    assert_records(&AUTO, &none, &both, &all);
    assert_records(&AUTO, &pod, &json!([nic("n1", &["1.2.3.4"])]), &n1);
}

#[test]
fn first_of_several_default_networks_counts() {
    let networks = json!([{ "name": "a", "pod": {} }, { "name": "b", "pod": {} }]);
    assert_records(
        &AUTO,
        &networks,
        &json!([nic("a", &["1.1.1.1"]), nic("b", &["1.1.1.2"])]),
        &["b.vmi1.ns1 IN A 1.1.1.2", "vmi1.ns1 IN A 1.1.1.2"],
    );
}

#[test]
fn interfaces_without_name_are_skipped() {
    // secondary-dns#26
    let interfaces = json!([
        nic("", &["1.1.1.1"]),
        { "ipAddresses": ["1.1.1.2"] },
        nic("n1", &["1.2.3.4"]),
    ]);
    assert_interfaces(
        &AUTO,
        &interfaces,
        &["n1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
    );
}

#[test]
fn instance_without_addresses_gives_nothing() {
    // secondary-dns#27
    for (networks, interfaces) in [
        (json!(null), json!(null)),
        (json!([]), json!([])),
        (json!([null]), json!([null, { "name": "n", "ipAddresses": null }])),
    ] {
        assert_records(&AUTO, &networks, &interfaces, &[]);
    }
    let bare: Vmi = serde_json::from_value(json!({ "metadata": { "name": "a", "namespace": "b" } })).unwrap();
    assert_eq!(bare.publish(&AUTO), Published::default());
}

#[test]
fn records_are_sorted_as_texts() {
    // secondary-dns#30
    let interfaces = json!([
        nic("nic10", &["1.1.1.1"]),
        nic("nic", &["1.1.1.2"]),
        nic("nic-a", &["1.1.1.3"]),
        nic("nic1", &["1.1.1.4"]),
        nic("Nic", &["1.1.1.5"]),
    ]);
    assert_interfaces(
        &AUTO,
        &interfaces,
        &[
            "Nic.vmi1.ns1 IN A 1.1.1.5",
            "nic-a.vmi1.ns1 IN A 1.1.1.3",
            "nic.vmi1.ns1 IN A 1.1.1.2",
            "nic1.vmi1.ns1 IN A 1.1.1.4",
            "nic10.vmi1.ns1 IN A 1.1.1.1",
            "vmi1.ns1 IN A 1.1.1.5",
        ],
    );
}

#[test]
fn names_that_dns_cannot_have_are_skipped() {
    // secondary-dns#34
    let long = "n".repeat(64);
    let fits = "n".repeat(63);
    let interfaces = json!([
        nic(&long, &["1.1.1.1"]),
        nic("a..b", &["1.1.1.1"]),
        nic("a b", &["1.1.1.1"]),
        nic("x IN A 6.6.6.6\ny", &["1.1.1.1"]),
        nic("$ORIGIN", &["1.1.1.1"]),
        nic(&fits, &["1.2.3.4"]),
    ]);
    let published = vmi(&json!([]), &interfaces).publish(&AUTO);
    let owners: Vec<&str> = published.records.iter().map(|record| &*record.owner).collect();
    assert_eq!(owners, [format!("{fits}.vmi1.ns1").as_str(), "vmi1.ns1"]);
    assert_eq!(published.refused.len(), 5);
    assert_eq!(
        published.refused[0].to_string(),
        format!("interface {long:?} gives no DNS name")
    );
}

#[test]
fn whole_names_have_a_limit() {
    // 63 + 1 + 63 + 1 + 63 + 1 + 58 bytes of text are 251, and `vm.` with the root adds 4.
    let name = |last: usize| format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(last));
    assert!(is_name(&name(58), 4));
    assert!(!is_name(&name(59), 4));
}

#[test]
fn addresses_are_read_strictly() {
    // secondary-dns#35
    for odd in ["::ffff:1.2.3.4", "1.2.3", "010.1.1.1", "1.2.3.4/24", "", "host"] {
        assert_interfaces(&AUTO, &json!([nic("n1", &[odd])]), &[]);
        assert_interfaces(
            &A_ONLY,
            &json!([nic("n1", &[odd, "1.2.3.4"])]),
            &["n1.vmi1.ns1 IN A 1.2.3.4", "vmi1.ns1 IN A 1.2.3.4"],
        );
    }
}

#[test]
fn addresses_outside_the_allowed_prefixes_are_left_out() {
    let policy = Policy {
        allowed: vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()],
        ipv6: true,
        zone_octets: 4,
    };
    let interfaces = json!([
        nic("a", &["10.1.2.3", "2001:db8::1"]),
        nic("b", &["10.2.0.1", "fd00::1"])
    ]);
    let published = vmi(&json!([]), &interfaces).publish(&policy);
    let records: Vec<String> = published.records.iter().map(ToString::to_string).collect();
    assert_eq!(
        records,
        [
            "a.vmi1.ns1 IN A 10.1.2.3",
            "vmi1.ns1 IN A 10.1.2.3",
            "b.vmi1.ns1 IN AAAA fd00::1",
            "vmi1.ns1 IN AAAA fd00::1",
        ]
    );
    let refused: Vec<String> = published.refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        refused,
        [
            "address 2001:db8::1 of interface \"a\" is in none of the allowed prefixes",
            "address 10.2.0.1 of interface \"b\" is in none of the allowed prefixes",
        ]
    );
}

#[test]
fn dots_in_names_are_labels_more() {
    let object = json!({
        "metadata": { "name": "a.b", "namespace": "c" },
        "status": { "interfaces": [nic("n", &["1.1.1.1"])] },
    });
    let vmi: Vmi = serde_json::from_value(object).unwrap();
    let owners: Vec<_> = vmi
        .publish(&AUTO)
        .records
        .into_iter()
        .map(|it| it.owner)
        .collect();
    assert_eq!(&*owners[0], "n.a.b.c");
    assert_eq!(&*owners[1], "a.b.c");
}

#[test]
fn claimed_addresses_stand_in_until_the_guest_reports_some() {
    // secondary-dns#69
    let networks = json!([
        { "name": "default", "pod": {} }, { "name": "nic1", "multus": { "networkName": "n" } },
        { "name": "nic2", "multus": { "networkName": "n" } }, { "name": "nic3", "multus": { "networkName": "n" } },
    ]);
    let reported = json!([nic("nic1", &["10.10.0.5"]), nic("nic2", &["fe80::1"])]);
    let claimed = |network: &str| -> Vec<IpAddr> {
        let texts: &[&str] = match network {
            "default" | "nic1" => &["10.84.0.1"],
            "nic2" => &["fd00::2", "10.84.0.2", "10.84.0.3"],
            _ => &[],
        };
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let records = |status: &Value| {
        let published = vmi(&networks, status).publish_with(&AUTO, claimed);
        let records: Vec<String> = published.records.iter().map(ToString::to_string).collect();
        (records, published.refused)
    };
    let (texts, refused) = records(&reported);
    let expected = [
        "nic1.vmi1.ns1 IN A 10.10.0.5",
        "nic2.vmi1.ns1 IN A 10.84.0.2",
        "vmi1.ns1 IN A 10.10.0.5",
        "nic2.vmi1.ns1 IN AAAA fd00::2",
        "vmi1.ns1 IN AAAA fd00::2",
    ];
    assert_eq!(texts, expected);
    assert_eq!(refused, []);
    let (before_any_report, _) = records(&json!([]));
    assert_eq!(before_any_report[0], "nic1.vmi1.ns1 IN A 10.84.0.1");
    assert!(
        !before_any_report
            .iter()
            .any(|record| record.starts_with("default."))
    );
}

use super::*;
use cni::status::render;
use cni::version::Version;
use rstest::rstest;
use serde_json::{Value, json};

fn status(entries: &[(&str, &str)]) -> String {
    let default = json!({"name": "cluster-net", "interface": "eth0", "default": true, "dns": {}});
    let of = |(name, interface): &(&str, &str)| json!({"name": name, "interface": interface, "dns": {}});
    let entries: Vec<Value> = std::iter::once(default).chain(entries.iter().map(of)).collect();
    json!(entries).to_string()
}

/// `+network@interface` for an addition, `-network@interface` for a removal.
fn texts(steps: &[Step]) -> Vec<String> {
    let text = |step: &Step| match step {
        Step::Plug(desired) => format!("+{}@{}", desired.network(), desired.ifname),
        Step::Unplug(gone) => format!("-{}@{}", gone.network, gone.ifname),
    };
    steps.iter().map(text).collect()
}

#[rstest]
// multus#77, multus#78: one more, one less
#[case("a@net1,other/b@net2", &[("ns/a", "net1")], &["+other/b@net2"])]
#[case("a@net1", &[("ns/a", "net1"), ("other/b", "net2")], &["-other/b@net2"])]
// multus#79: both in one edit, and each in its order
#[case("c@net3,b@net9,a@net1", &[("ns/x", "net5"), ("ns/a", "net1"), ("ns/y", "net4")],
    &["+ns/c@net3", "+ns/b@net9", "-ns/x@net5", "-ns/y@net4"])]
// the same network twice, another interface of it
#[case("a@net1,a@net2", &[("ns/a", "net1"), ("ns/a", "net3")], &["+ns/a@net2", "-ns/a@net3"])]
// an interface of another network: only that network is removed first
#[case("c@net3,b@net1", &[("ns/x", "net5"), ("ns/a", "net1")], &["-ns/a@net1", "+ns/c@net3", "+ns/b@net1", "-ns/x@net5"])]
#[case("b@net1,a@net2", &[("ns/a", "net1"), ("ns/b", "net2")], &["-ns/a@net1", "-ns/b@net2", "+ns/b@net1", "+ns/a@net2"])]
// multus#87: any element without interface
#[case("a,b@net2", &[("ns/a", "net1")], &[])]
#[case("b@net2,c", &[], &[])]
// multus#85: the default entry, and entries without a definition
#[case("", &[("nameless", "net7"), ("ns/a", "net1")], &["-ns/a@net1"])]
#[case("", &[("ns/a?watch=true", "net7"), ("../a", "net8"), ("ns/", "net9")], &[])]
#[case("", &[], &[])]
// a further interface of a remaining network matches no element
#[case("a@net1", &[("ns/a", "net1"), ("ns/a", "net1.100")], &["-ns/a@net1.100"])]
fn missing_networks_are_added_and_surplus_networks_removed(
    #[case] networks: &str,
    #[case] attached: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    let steps = plan(networks, &status(attached), "ns").unwrap();
    assert_eq!(texts(&steps), expected);
}

#[rstest]
#[case("a@net1,a@net1", &[], "interface net1 is asked for twice")]
#[case("a@net1,b@net2,b@net1", &[("ns/a", "net1")], "interface net1 is asked for twice")]
#[case("a@eth0", &[], "interface eth0 is taken by network cluster-net")]
#[case("a@net7", &[("nameless", "net7")], "interface net7 is taken by network nameless")]
#[case(r#"[{"name":"?watch=true","interface":"net1"}]"#, &[],
    r#""ns/?watch=true" can't be the namespace and name of a network-attachment-definition"#)]
#[case(r#"[{"name":"a","namespace":"../b","interface":"net1"}]"#, &[],
    r#""../b/a" can't be the namespace and name of a network-attachment-definition"#)]
#[case(r#"[{"interface":"net1"}]"#, &[],
    r#""ns/" can't be the namespace and name of a network-attachment-definition"#)]
fn impossible_request_is_refused_as_a_whole(
    #[case] networks: &str,
    #[case] attached: &[(&str, &str)],
    #[case] expected: &str,
) {
    let error = plan(networks, &status(attached), "ns").unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn excessive_status_is_error() {
    let entry = |index: usize| format!(r#"{{"name":"ns/a","interface":"n{index}"}}"#);
    let of = |count: usize| format!("[{}]", (0..count).map(entry).collect::<Vec<_>>().join(","));
    assert_eq!(plan("", &of(256), "ns").unwrap().len(), 256);
    let error = plan("", &of(20_000), "ns").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the network-status annotation lists 20000 networks to remove, the limit is 256"
    );
}

#[test]
fn interfaces_of_default_network_are_kept() {
    // multus#85
    let status = json!([{"name": "kube-system/net", "interface": "eth0", "default": true, "dns": {}},
        {"name": "kube-system/net", "interface": "eth0.1", "dns": {}}]);
    assert!(plan("", &status.to_string(), "ns").unwrap().is_empty());
}

#[test]
fn changed_addresses_are_ignored() {
    let networks = r#"[{"name":"a","interface":"net1","ips":["10.0.0.9/24"],"mac":"02:00:00:00:00:01"}]"#;
    assert!(
        plan(networks, &status(&[("ns/a", "net1")]), "ns")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn malformed_annotation_is_error() {
    assert!(matches!(plan("[{", "", "ns"), Err(PlanError::Networks(_))));
    assert!(matches!(plan("a@net1", "{}", "ns"), Err(PlanError::Status(_))));
    assert!(matches!(
        plan("a@net1", "[null]", "ns"),
        Err(PlanError::Status(_))
    ));
    // multus#13
    assert!(plan("[null]", "", "ns").is_err());
    // Unused fields may have any value.
    let odd = r#"[{"name":"ns/a","interface":"net1","mtu":-1,"dns":7}]"#;
    assert!(plan("a@net1", odd, "ns").unwrap().is_empty());
}

fn desired() -> DesiredNetwork {
    match plan("a@net1", "", "ns").unwrap().remove(0) {
        Step::Plug(desired) => *desired,
        Step::Unplug(gone) => panic!("{gone:?}"),
    }
}

fn result(value: &Value) -> CniResult {
    CniResult::parse(value.to_string().as_bytes(), Version::LATEST).unwrap()
}

#[test]
fn entry_of_plugged_network_has_addresses() {
    let result = result(
        &json!({"cniVersion": "1.1.0", "dns": {"nameservers": ["10.0.0.2"]},
        "interfaces": [{"name": "br1"}, {"name": "veth1"},
            {"name": "net1", "mac": "02:00:00:00:00:07", "mtu": 1400, "sandbox": "/run/netns/x"}],
        "ips": [{"interface": 2, "address": "10.0.0.7/24", "gateway": "10.0.0.1"}, {"address": "fd00::7/64"}]}),
    );
    let entry: Value = serde_json::from_str(&render(&[entry(&desired(), &result)])).unwrap();
    assert_eq!(
        entry,
        json!([{"name": "ns/a", "interface": "net1", "ips": ["10.0.0.7", "fd00::7"], "mac": "02:00:00:00:00:07",
            "mtu": 1400, "dns": {"nameservers": ["10.0.0.2"]}}])
    );
}

#[test]
fn empty_result_still_has_entry() {
    let entry = entry(&desired(), &CniResult::default());
    let text = with("", &entry).unwrap();
    assert_eq!(text, render(&[entry]));
    assert!(plan("a@net1", &text, "ns").unwrap().is_empty(), "{text}");
}

fn attachment(text: &str) -> Attachment {
    let (network, ifname) = text.split_once(' ').unwrap();
    Attachment {
        network: network.into(),
        ifname: ifname.into(),
    }
}

#[test]
fn status_keeps_order_and_foreign_entries() {
    // multus#79 (the status), multus#85
    let default = "{\n    \"name\": \"cluster-net\", \"interface\":\"eth0\",\n \"default\": true,\"new-key\":{\"big\": 9007199254740993}}";
    let other = r#"{"name":"ns/other","interface":"net6","mtu":-1}"#;
    let now = format!(
        r#"[{default}, {{"name":"ns/x","interface":"net5"}},{{"name":"ns/a","interface":"net1"}} ,{other}]"#
    );
    let of = |name: &str, ifname: &str, mac: &str| NetworkStatus {
        name: name.into(),
        interface: Some(ifname.into()),
        mac: Some(mac.into()),
        ..NetworkStatus::default()
    };
    let one = of("ns/c", "net3", "02:00:00:00:00:03");
    let again = of("ns/a", "net1", "02:00:00:00:00:01");
    let after = with(&now, &one).unwrap();
    let after = with(&after, &again).unwrap();
    let after = without(&after, &attachment("ns/x net5")).unwrap();
    let text = |status: &NetworkStatus| json::pretty(status);
    let expected = format!("[{default},{},{other},{}]", text(&again), text(&one));
    assert_eq!(after, expected);
    assert_eq!(
        without(&after, &attachment("cluster-net eth0")).unwrap(),
        expected
    );
    // The very same once more is no change.
    assert_eq!(with(&expected, &one).unwrap(), expected);
    assert!(with("[{]", &one).is_err());
}

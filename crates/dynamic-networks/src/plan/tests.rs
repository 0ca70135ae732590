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

fn texts(change: &Change) -> (Vec<String>, Vec<String>) {
    let add = change
        .add
        .iter()
        .map(|wanted| format!("{}@{}", wanted.network(), wanted.ifname));
    let remove = change
        .remove
        .iter()
        .map(|gone| format!("{}@{}", gone.network, gone.ifname));
    (add.collect(), remove.collect())
}

#[rstest]
// multus#77, multus#78: one more, one less
#[case("a@net1,other/b@net2", &[("ns/a", "net1")], &["other/b@net2"], &[])]
#[case("a@net1", &[("ns/a", "net1"), ("other/b", "net2")], &[], &["other/b@net2"])]
// multus#79: both in one edit, and each in its order
#[case("c@net3,b@net9,a@net1", &[("ns/x", "net5"), ("ns/a", "net1"), ("ns/y", "net4")],
    &["ns/c@net3", "ns/b@net9"], &["ns/x@net5", "ns/y@net4"])]
// the same network twice, another interface of it
#[case("a@net1,a@net2", &[("ns/a", "net1"), ("ns/a", "net3")], &["ns/a@net2"], &["ns/a@net3"])]
// multus#87: any element without interface
#[case("a,b@net2", &[("ns/a", "net1")], &[], &[])]
#[case("b@net2,c", &[], &[], &[])]
// multus#85: the default entry, and what no definition made
#[case("", &[("nameless", "net7"), ("ns/a", "net1")], &[], &["ns/a@net1"])]
#[case("", &[], &[], &[])]
fn what_is_missing_is_added_and_what_is_too_much_removed(
    #[case] networks: &str,
    #[case] there: &[(&str, &str)],
    #[case] add: &[&str],
    #[case] remove: &[&str],
) {
    let change = plan(networks, &status(there), "ns").unwrap();
    let (added, removed) = texts(&change);
    assert_eq!((added, removed), (strings(add), strings(remove)));
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn all_interfaces_of_the_default_network_stay() {
    // multus#85
    let status = json!([{"name": "kube-system/net", "interface": "eth0", "default": true, "dns": {}},
        {"name": "kube-system/net", "interface": "eth0.1", "dns": {}}]);
    assert!(plan("", &status.to_string(), "ns").unwrap().is_empty());
}

#[test]
fn a_change_of_addresses_is_none() {
    let networks = r#"[{"name":"a","interface":"net1","ips":["10.0.0.9/24"],"mac":"02:00:00:00:00:01"}]"#;
    assert!(
        plan(networks, &status(&[("ns/a", "net1")]), "ns")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn nothing_is_done_on_the_ground_of_what_can_not_be_read() {
    assert!(matches!(plan("[{", "", "ns"), Err(Unreadable::Networks(_))));
    assert!(matches!(plan("a@net1", "{}", "ns"), Err(Unreadable::Status(_))));
    // multus#13
    assert!(plan("[null]", "", "ns").is_err());
}

fn wanted() -> Wanted {
    plan("a@net1", "", "ns").unwrap().add.remove(0)
}

fn result(value: &Value) -> CniResult {
    CniResult::parse(value.to_string().as_bytes(), Version::LATEST).unwrap()
}

#[test]
fn the_entry_of_a_plugged_network() {
    let result = result(
        &json!({"cniVersion": "1.1.0", "dns": {"nameservers": ["10.0.0.2"]},
        "interfaces": [{"name": "br1"}, {"name": "veth1"},
            {"name": "net1", "mac": "02:00:00:00:00:07", "mtu": 1400, "sandbox": "/run/netns/x"}],
        "ips": [{"interface": 2, "address": "10.0.0.7/24", "gateway": "10.0.0.1"}, {"address": "fd00::7/64"}]}),
    );
    let entry: Value = serde_json::from_str(&render(&[entry(&wanted(), &result)])).unwrap();
    assert_eq!(
        entry,
        json!([{"name": "ns/a", "interface": "net1", "ips": ["10.0.0.7", "fd00::7"], "mac": "02:00:00:00:00:07",
            "mtu": 1400, "dns": {"nameservers": ["10.0.0.2"]}}])
    );
}

#[test]
fn a_plugin_that_says_nothing_is_found_again_nevertheless() {
    let entry = entry(&wanted(), &CniResult::default());
    let text = render(&[entry]);
    assert!(plan("a@net1", &text, "ns").unwrap().is_empty(), "{text}");
}

#[test]
fn the_status_keeps_its_order_and_what_others_wrote() {
    // multus#79 (the status), multus#85
    let now = status(&[("ns/x", "net5"), ("ns/a", "net1"), ("ns/other", "net6")]);
    let new = NetworkStatus {
        name: "ns/c".into(),
        interface: Some("net3".into()),
        ..NetworkStatus::default()
    };
    let again = NetworkStatus {
        name: "ns/a".into(),
        interface: Some("net1".into()),
        mac: Some("02:00:00:00:00:01".into()),
        ..NetworkStatus::default()
    };
    let gone = ["ns/x net5", "cluster-net eth0"].map(|text| {
        let (network, ifname) = text.split_once(' ').unwrap();
        Attachment {
            network: network.into(),
            ifname: ifname.into(),
        }
    });
    let after = merged(&now, &[new, again], &gone).unwrap();
    let names: Vec<_> = after.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["cluster-net", "ns/a", "ns/other", "ns/c"]);
    assert_eq!(after[1].mac.as_deref(), Some("02:00:00:00:00:01"));
}

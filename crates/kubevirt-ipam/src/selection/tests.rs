use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::objects::WireInstance;

fn elements(annotation: &str) -> Vec<Element> {
    parse(Some(annotation), "ns1").unwrap()
}

fn instance(networks: &[(&str, &str)]) -> Instance {
    let networks: Vec<_> = networks
        .iter()
        .map(|(name, definition)| json!({ "name": name, "multus": { "networkName": definition } }))
        .collect();
    let wire: WireInstance = serde_json::from_value(json!({
        "metadata": { "name": "vm1", "namespace": "ns1" }, "spec": { "networks": networks },
    }))
    .unwrap();
    wire.into()
}

#[test]
fn comma_list_becomes_a_json_list() {
    // kubevirt-ipam#23
    let mut elements = elements("ns1/supadupanet@net1, other");
    elements[0].refer_to("vm1.randomnet");
    assert_eq!(
        to_text(&elements),
        r#"[{"name":"supadupanet","namespace":"ns1","interface":"net1","ipam-claim-reference":"vm1.randomnet"},"#
            .to_owned()
            + r#"{"name":"other","namespace":"ns1"}]"#
    );
}

#[test]
fn keys_have_their_order_and_unknown_ones_stay() {
    // kubevirt-ipam#22
    let text = r#"[ {"x-unknown": {"b": 1.50, "a": 12345678901234567890123}, "cni-args": {"k": "v w"},
        "mac": "02:03:04:05:06:07", "interface": "pod1", "Namespace": "", "name": "blue", "ips": [], "second": null,
        "ipam-claim-reference": "old", "deviceID": "d", "Second": [1 , 2]} ]"#;
    let mut elements = elements(text);
    assert_eq!(elements[0].reference.as_deref(), Some("old"));
    elements[0].refer_to("new");
    assert_eq!(
        to_text(&elements),
        r#"[{"name":"blue","namespace":"ns1","mac":"02:03:04:05:06:07","interface":"pod1","cni-args":{"k":"v w"},"#
            .to_owned()
            + r#""ipam-claim-reference":"new","x-unknown":{"b":1.50,"a":12345678901234567890123},"second":null,"#
            + r#""deviceID":"d","Second":[1,2]}]"#
    );
}

#[test]
fn absent_and_empty_annotations_select_nothing() {
    assert_eq!(parse(None, "ns1"), Ok(Vec::new()));
    assert_eq!(parse(Some(""), "ns1"), Ok(Vec::new()));
}

#[test]
fn malformed_annotations_are_refused() {
    // kubevirt-ipam#10, kubevirt-ipam#24
    for text in [
        "{not json}",
        "a/b/c",
        "x@y@z",
        "UPPER",
        r#"[{"name": 1}]"#,
        "[null]",
    ] {
        assert!(parse(Some(text), "ns1").is_err(), "{text}");
    }
}

#[test]
fn interface_name_distinguishes_networks_on_one_definition() {
    // kubevirt-ipam#83
    assert_eq!(hashed("blue"), "pod16477688c0e");
    let instance = instance(&[("blue", "lan"), ("red", "lan"), ("wide", "wan")]);
    let networks = |annotation: &str| networks_of(&elements(annotation), &instance);
    let by_hash = format!("lan@{},lan@{},wan", hashed("red"), hashed("blue"));
    assert_eq!(networks(&by_hash), [Some("red"), Some("blue"), Some("wide")]);
    assert_eq!(networks("lan@net2,lan@net1"), [Some("red"), Some("blue")]);
    // Elements without a known interface name are matched in their order.
    assert_eq!(networks("lan,lan"), [Some("blue"), Some("red")]);
    assert_eq!(networks("lan@eth5,lan@net1"), [Some("red"), Some("blue")]);
}

#[test]
fn network_is_attached_once() {
    // kubevirt-ipam#84
    let instance = instance(&[("blue", "lan")]);
    let networks = |annotation: &str| networks_of(&elements(annotation), &instance);
    assert_eq!(networks("lan@eth5"), [Some("blue")]);
    assert_eq!(networks("lan@eth5,lan@net1,lan"), [None, Some("blue"), None]);
    assert_eq!(networks("other,ns2/lan"), [None, None]);
}

proptest! {
    #[test]
    fn written_selection_is_read_as_the_same(
        name in "[a-z]{0,8}", key in "[A-Za-z\\-]{1,12}", value in prop_oneof![
            Just("null"), Just("1.50"), Just("\"x y\""), Just("[ 1, {\"a\" : 2} ]"), Just("{ }"),
        ],
    ) {
        let text = format!(r#"[ {{ "name" : "{name}" , "{key}": {value}, "interface":"net1" }} ]"#);
        if let Ok(elements) = parse(Some(&text), "ns1") {
            let written = to_text(&elements);
            prop_assert_eq!(parse(Some(&written), "ns1").unwrap(), elements, "{}", written);
        }
    }
}

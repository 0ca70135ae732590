//! Captures and templates, on the state of a real host.

use rstest::rstest;
use serde_json::{Map, Value, json};
use weft_nmstate::engine::{Backend, Engine, Error};
use weft_nmstate::render::{NodeFacts, PolicySpec, Rendered, render};

use crate::beyond::apply;
use crate::host::{interface, wait};
use crate::kernel::Host;

fn rendered(
    engine: &Engine,
    capture: Value,
    desired: Value,
    captured: Map<String, Value>,
) -> Result<Rendered, Error> {
    let spec = json!({ "capture": capture, "desiredState": desired });
    let spec: PolicySpec = serde_json::from_value(spec).unwrap();
    wait(render(engine, &spec, &NodeFacts::default(), captured))
}

/// The default NIC goes under a bridge, which gets its address and its routes.
fn takeover() -> (Value, Value) {
    let capture = json!({
        "default-gw": "routes.running.destination==\"0.0.0.0/0\"",
        "base-iface": "interfaces.name==capture.default-gw.routes.running.0.next-hop-interface",
        "base-iface-routes":
            "routes.running.next-hop-interface==capture.default-gw.routes.running.0.next-hop-interface",
        "bridge-routes": "capture.base-iface-routes | routes.running.next-hop-interface:=\"br1\"",
    });
    let desired = json!({
        "interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up",
             "mac-address": "{{ capture.base-iface.interfaces.0.mac-address }}",
             "ipv4": "{{ capture.base-iface.interfaces.0.ipv4 }}",
             "bridge": {"options": {"stp": {"enabled": false}},
                "port": [{"name": "{{ capture.base-iface.interfaces.0.name }}"}]}},
        ],
        "routes": {"config": "{{ capture.bridge-routes.routes.running }}"},
    });
    (capture, desired)
}

// nmstate#53, nmstate#54
#[test]
fn default_nic_moves_under_a_bridge_and_stays() {
    let host = Host::enter();
    let engine = host.engine();
    let (capture, desired) = takeover();
    let first = rendered(&engine, capture.clone(), desired.clone(), Map::new()).unwrap();
    let bridge = &first.desired["interfaces"][0];
    let before = wait(engine.report()).unwrap();
    assert_eq!(
        bridge["mac-address"],
        interface(&before, "eth1").unwrap()["mac-address"]
    );
    assert_eq!(bridge["ipv4"]["address"][0]["ip"], "192.0.2.2");
    assert_eq!(
        bridge["bridge"]["port"],
        json!([{"name": "eth1", "vlan": {"mode": "trunk", "trunk-tags": [{"id-range": {"min": 2, "max": 4094}}]}}])
    );
    assert_eq!(first.desired["routes"]["config"][0]["next-hop-interface"], "br1");
    let names: Vec<&String> = first.captured.keys().collect();
    assert_eq!(names.len(), 4, "{names:?}");
    apply(&engine, Backend::Kernel, &first.desired).unwrap();

    // Now the NIC has nothing to capture, and the stored captures are used.
    let captured = first.captured.clone();
    let second = rendered(&engine, capture.clone(), desired.clone(), captured).unwrap();
    assert_eq!(second.desired, first.desired);
    assert_eq!(second.captured, first.captured);
    apply(&engine, Backend::Kernel, &second.desired).unwrap();
    let after = wait(engine.report()).unwrap();
    let bridge = interface(&after, "br1").unwrap();
    assert_eq!(bridge["ipv4"]["address"][0]["ip"], "192.0.2.2");
    assert_eq!(bridge["bridge"]["port"][0]["name"], "eth1");
    // Without them the bridge would be its own port.
    let anew = rendered(&engine, capture, desired, Map::new()).unwrap();
    assert_eq!(anew.desired["interfaces"][0]["bridge"]["port"][0]["name"], "br1");
}

/// An expression and the error that it is.
fn wrong(expression: &str) -> String {
    let host = Host::enter();
    let desired = json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]});
    let error = rendered(&host.engine(), json!({ "x": expression }), desired, Map::new()).unwrap_err();
    assert_eq!(error.kind, "PolicyError", "{error}");
    error.text
}

// nmstate#56
#[test]
fn expression_without_result_is_an_error() {
    let text = wrong("interfaces.name==\"nosuch\"");
    assert!(
        text.starts_with("PolicyError: interface with 'name=nosuch' not found\n| "),
        "{text}"
    );
}

// nmstate#57, nmstate#59
#[rstest]
#[case::one_equals_sign(
    "interfaces.name=\"eth1\"",
    "Invalid equal action string after =, expecting another '='",
    16
)]
#[case::two_comparisons(
    "interfaces.name==\"eth1\"==\"eth2\"",
    "Nmpolicy does not allows two equal action",
    23
)]
#[case::two_pipes(
    "capture.x | interfaces.name:=\"x\" | interfaces.name:=\"y\"",
    "Nmpolicy does not allows two pipe action",
    33
)]
#[case::open_quote("interfaces.name==\"eth1", "No ending double quote", 17)]
#[case::unknown_section("links.name==\"eth1\"", "Unsupported capture keyword 'links'", 0)]
#[case::missing_capture("interfaces.name==capture.y.interfaces.0.name", "Capture y not found", 17)]
#[case::unquoted_network("routes.running.destination==0.0.0.0/0", "Failed to find leaf 0 data, ", 28)]
fn malformed_expression_is_shown_with_its_position(
    #[case] expression: &str,
    #[case] message: &str,
    #[case] place: usize,
) {
    let text = wrong(expression);
    let dots = ".".repeat(place);
    assert!(text.starts_with(&format!("PolicyError: {message}")), "{text}");
    assert!(text.ends_with(&format!("\n| {expression}\n| {dots}^")), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

// nmstate#58
#[test]
fn references_keep_the_type_of_their_values() {
    let host = Host::enter();
    let engine = host.engine();
    let capture = json!({ "nic": "interfaces.name==\"eth1\"" });
    let desired = |description: &str| {
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up",
            "mtu": "{{ capture.nic.interfaces.0.mtu }}",
            "ipv4": "{{ capture.nic.interfaces.0.ipv4 }}",
            "description": description}]})
    };
    let filled = rendered(
        &engine,
        capture.clone(),
        desired("port-{{ capture.nic.interfaces.0.name }}"),
        Map::new(),
    );
    let bridge = &filled.unwrap().desired["interfaces"][0];
    assert_eq!(bridge["mtu"], 1500);
    assert_eq!(
        bridge["ipv4"]["address"],
        json!([{"ip": "192.0.2.2", "prefix-length": 24}])
    );
    assert_eq!(bridge["description"], "port-eth1");
    let object = desired("port-{{ capture.nic.interfaces.0.ipv4 }}");
    let error = rendered(&engine, capture.clone(), object, Map::new()).unwrap_err();
    assert!(
        error.text.contains(
            "The resolved reference result is object or array, hence you cannot add prefix or postfix"
        ),
        "{error}"
    );
    let list = json!({ "interfaces": "{{ capture.nic.interfaces }}" });
    let filled = rendered(&engine, capture, list, Map::new()).unwrap();
    assert_eq!(filled.desired["interfaces"][0]["name"], "eth1");
}

// nmstate#59
#[test]
fn quoted_network_is_found() {
    let host = Host::enter();
    let capture = json!({ "gw": "routes.running.destination==\"0.0.0.0/0\"" });
    let desired = json!({"routes": {"config": "{{ capture.gw.routes.running }}"}});
    let filled = rendered(&host.engine(), capture, desired, Map::new()).unwrap();
    assert_eq!(
        filled.desired["routes"]["config"][0]["next-hop-address"],
        "192.0.2.1"
    );
}

// nmstate#60
#[test]
fn captures_can_have_any_order() {
    let host = Host::enter();
    let engine = host.engine();
    let desired = json!({ "interfaces": "{{ capture.a0.interfaces }}" });
    // Each needs the next one, and the last needs none.
    let chain = |length: usize| -> Value {
        let mut captures: Map<String, Value> = (0..length)
            .map(|index| {
                let needs = format!("capture.a{} | interfaces.description:=\"x\"", index + 1);
                (format!("a{index}"), needs.into())
            })
            .collect();
        captures.insert(format!("a{length}"), "interfaces.name==\"eth1\"".into());
        Value::Object(captures)
    };
    for length in [1, 2, 9] {
        let filled = rendered(&engine, chain(length), desired.clone(), Map::new()).unwrap();
        let nic = &filled.desired["interfaces"][0];
        assert_eq!((&nic["name"], &nic["description"]), (&json!("eth1"), &json!("x")));
    }
    // Neither first to last nor last to first.
    let ordered = chain(9);
    let mut shuffled = Map::new();
    for index in [4, 9, 0, 7, 2, 5, 8, 1, 3, 6] {
        let name = format!("a{index}");
        shuffled.insert(name.clone(), ordered[&name].clone());
    }
    let filled = rendered(&engine, Value::Object(shuffled), desired.clone(), Map::new()).unwrap();
    assert_eq!(filled.desired["interfaces"][0]["name"], "eth1");
    // One capture more is too many, in the worst order.
    let error = rendered(&engine, chain(10), desired, Map::new()).unwrap_err();
    assert!(
        error
            .text
            .contains("Failed to sort the policy capture in 10 round of rotation, "),
        "{error}"
    );
}

// nmstate#53
#[test]
fn malformed_document_is_refused_with_the_path() {
    let host = Host::enter();
    let engine = host.engine();
    let error = rendered(&engine, json!({}), json!("- interfaces"), Map::new()).unwrap_err();
    assert!(error.text.starts_with("InvalidArgument: "), "{error}");
    let unknown = json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "bridge": {"prot": []}}]});
    let error = rendered(&engine, json!({}), unknown.clone(), Map::new()).unwrap_err();
    assert_eq!(error.kind, "Malformed", "{error}");
    assert!(error.text.contains("interfaces[0].bridge.prot: "), "{error}");
    let failure = apply(&engine, Backend::Kernel, &unknown).unwrap_err();
    assert!(
        !failure.retry && failure.text.contains("interfaces[0].bridge.prot: "),
        "{failure}"
    );
}

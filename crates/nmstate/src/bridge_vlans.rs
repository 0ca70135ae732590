//! Default VLANs of ports of Linux bridges: all, tagged (nmstate §5.6).

use serde_json::{Value, json};

/// Makes every port without `vlan` of a Linux bridge that is up pass all VLANs. `vlan: {}` passes none, and keeps VLAN
/// filtering off.
pub(crate) fn fill(document: &mut Value) {
    let bridges = document
        .get_mut("interfaces")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter(|interface| interface["type"] == "linux-bridge" && interface["state"] == "up");
    for bridge in bridges {
        let ports = bridge.pointer_mut("/bridge/port").and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            if let Some(port) = port.as_object_mut()
                && !port.contains_key("vlan")
            {
                port.insert("vlan".to_owned(), all());
            }
        }
    }
}

/// All tagged VLANs of a port, without the default VLAN 1.
pub(crate) fn all() -> Value {
    json!({ "mode": "trunk", "trunk-tags": [{ "id-range": { "min": 2, "max": 4094 } }] })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    // nmstate#53
    #[rstest]
    #[case::without_vlan(
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up",
            "bridge": {"port": [{"name": "eth1"}]}}]}),
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up",
            "bridge": {"port": [{"name": "eth1",
                "vlan": {"mode": "trunk", "trunk-tags": [{"id-range": {"min": 2, "max": 4094}}]}}]}}]})
    )]
    #[case::each_port_by_itself(
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up", "bridge": {"port": [
            {"name": "eth1", "vlan": {}},
            {"name": "eth2", "vlan": {"mode": "access", "tag": 100}},
            {"name": "eth3"}]}}]}),
        json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up", "bridge": {"port": [
            {"name": "eth1", "vlan": {}},
            {"name": "eth2", "vlan": {"mode": "access", "tag": 100}},
            {"name": "eth3", "vlan": {"mode": "trunk", "trunk-tags": [{"id-range": {"min": 2, "max": 4094}}]}}]}}]})
    )]
    fn port_without_vlans_passes_all_vlans(#[case] mut document: Value, #[case] expected: Value) {
        super::fill(&mut document);
        assert_eq!(document, expected);
    }

    // nmstate#53
    #[rstest]
    #[case::no_ports(json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up",
        "bridge": {"options": {"stp": {"enabled": false}}}}]}))]
    #[case::no_bridge(json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up"}]}))]
    #[case::down(json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "down",
        "bridge": {"port": [{"name": "eth1"}]}}]}))]
    #[case::absent(json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "absent",
        "bridge": {"port": [{"name": "eth1"}]}}]}))]
    #[case::another_type(json!({"interfaces": [{"name": "br1", "type": "ovs-bridge", "state": "up",
        "bridge": {"port": [{"name": "eth1"}]}}]}))]
    #[case::no_bridges(json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]}))]
    #[case::empty(json!({}))]
    #[case::nothing(Value::Null)]
    fn other_interfaces_stay(#[case] document: Value) {
        let mut filled = document.clone();
        super::fill(&mut filled);
        assert_eq!(filled, document);
    }
}

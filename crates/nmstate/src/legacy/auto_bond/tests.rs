use super::*;
use crate::legacy::matching;
use crate::legacy::policy::OriginalPolicy;

fn nic(name: &str, vlans: &[u16]) -> Value {
    let vlans: Vec<Value> = vlans.iter().map(|vid| json!({"name": "v", "vid": vid})).collect();
    json!({
        "name": name, "type": "ethernet", "state": "up",
        "lldp": {"enabled": true, "neighbors": [[
            {"type": 127, "ieee-802-1-vlans": vlans, "oui": "00:80:c2", "subtype": 3},
        ]]},
    })
}

fn with(mut nic: Value, members: &Value) -> Value {
    for (key, value) in members.as_object().expect("members") {
        nic[key] = value.clone();
    }
    nic
}

fn bonded(report: &Value, vlans: &[u16]) -> Result<Value, Error> {
    let spec = json!({
        "match": {"interfaces": {"type": "ethernet", "lldp": {"vlan-ids": vlans}}},
        "autoConfig": {"autoBonding": true},
    });
    let policy = OriginalPolicy::of(&spec).expect("sense").expect("an old policy");
    matching::document(&policy, report)
}

fn plain(name: &str, ports: &[&str]) -> Value {
    json!({"name": name, "type": "bond", "state": "up",
        "link-aggregation": {"mode": "active-backup", "options": {"miimon": 100}, "port": ports}})
}

// nmstate#92
#[test]
fn two_interfaces_on_one_vlan_are_bonded_once() {
    let two = json!({"interfaces": [nic("eth2", &[101]), nic("eth1", &[101, 7]), nic("eth3", &[9])]});
    let bond = plain("bond101", &["eth1", "eth2"]);
    assert_eq!(bonded(&two, &[101]), Ok(json!({"interfaces": [bond]})));

    let port = json!({"controller": "bond101"});
    let done =
        json!({"interfaces": [bond, with(nic("eth1", &[101]), &port), with(nic("eth2", &[101]), &port)]});
    assert_eq!(bonded(&done, &[101]), Ok(Value::Null));

    let one = json!({"interfaces": [nic("eth1", &[101]), nic("eth3", &[9])]});
    assert_eq!(bonded(&one, &[101]), Ok(Value::Null));
}

#[test]
fn existing_bond_is_kept_and_our_own_grows() {
    let other = json!({"controller": "bond0"});
    let theirs = plain("bond0", &["eth2", "eth1"]);
    let report = json!({"interfaces": [theirs, with(nic("eth1", &[101]), &other), with(nic("eth2", &[101]), &other), nic("eth3", &[101])]});
    assert_eq!(bonded(&report, &[101]), Ok(Value::Null));

    let ours = json!({"controller": "bond101"});
    let report = json!({"interfaces": [plain("bond101", &["eth1", "eth2"]),
        with(nic("eth1", &[101]), &ours), with(nic("eth2", &[101]), &ours), nic("eth3", &[101])]});
    assert_eq!(
        bonded(&report, &[101]),
        Ok(json!({"interfaces": [plain("bond101", &["eth1", "eth2", "eth3"])]}))
    );
}

#[test]
fn groups_follow_all_requested_vlans_with_unique_names() {
    let report = json!({"interfaces": [
        nic("a", &[101]), nic("b", &[101]), nic("c", &[101, 102]), nic("d", &[101, 102]),
    ]});
    assert_eq!(
        bonded(&report, &[101, 102]),
        Ok(json!({"interfaces": [plain("bond101", &["a", "b"]), plain("bond102", &["c", "d"])]}))
    );
    let report = json!({"interfaces": [
        nic("a", &[101]), nic("b", &[101]), nic("c", &[101, 102]), nic("d", &[101, 102]),
        nic("e", &[102]), nic("f", &[102]),
    ]});
    let error = bonded(&report, &[101, 102]).expect_err("three groups, two names");
    assert_eq!(
        error.to_string(),
        "no name is left for a bond of e, f: the names of all its VLANs are taken by other bonds"
    );
}

// nmstate#108
#[test]
fn bond_of_other_ports_keeps_its_name() {
    // The bond named after the VLAN of this group has the ports of another group.
    let port = json!({"controller": "bond101"});
    let (c, d) = (
        with(nic("c", &[101, 102]), &port),
        with(nic("d", &[101, 102]), &port),
    );
    let report =
        json!({"interfaces": [plain("bond101", &["c", "d"]), nic("a", &[101]), nic("b", &[101]), c, d]});
    let error = bonded(&report, &[101, 102]).expect_err("the name is taken");
    assert_eq!(
        error.to_string(),
        "no name is left for a bond of a, b: the names of all its VLANs are taken by other bonds"
    );
    let spare =
        json!({"interfaces": [plain("bond101", &["x", "y"]), nic("a", &[101, 102]), nic("b", &[101, 102])]});
    let bond = plain("bond102", &["a", "b"]);
    assert_eq!(
        bonded(&spare, &[101, 102]),
        Ok(json!({"interfaces": [bond]})),
        "the next VLAN's name is free"
    );
    let other = json!({"name": "bond101", "type": "linux-bridge", "state": "up"});
    let report = json!({"interfaces": [other, nic("a", &[101]), nic("b", &[101])]});
    bonded(&report, &[101]).expect_err("an interface of another type has the name");

    // Without free ports no name is needed.
    let theirs = json!({"controller": "bond101"});
    let report = json!({"interfaces": [plain("bond101", &["a", "b", "x"]),
        with(nic("a", &[101]), &theirs), with(nic("b", &[101]), &theirs)]});
    assert_eq!(bonded(&report, &[101]), Ok(Value::Null));
}

#[test]
fn uplink_addresses_and_routes_move_to_the_bond() {
    let uplink = json!({
        "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "192.0.2.5", "prefix-length": 24}]},
        "ipv6": {"enabled": true, "autoconf": true, "dhcp": true, "address": [
            {"ip": "2001:db8::5", "prefix-length": 64, "valid-life-time": "3000sec"},
            {"ip": "fe80::5", "prefix-length": 64}]},
    });
    let route = |interface: &str| json!({"destination": "0.0.0.0/0", "next-hop-interface": interface, "next-hop-address": "192.0.2.1", "table-id": 254});
    let report = json!({
        "interfaces": [with(nic("eth0", &[101]), &uplink), nic("eth1", &[101])],
        "routes": {"running": [route("eth0")], "config": [route("eth0")]},
    });
    let mut gone = route("eth0");
    gone["state"] = json!("absent");
    assert_eq!(
        bonded(&report, &[101]),
        Ok(json!({
            "interfaces": [{
                "name": "bond101", "type": "bond", "state": "up",
                "copy-mac-from": "eth0",
                "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "192.0.2.5", "prefix-length": 24}]},
                "ipv6": {"enabled": true, "autoconf": true, "dhcp": true},
                "link-aggregation": {"mode": "active-backup", "options": {"miimon": 100}, "port": ["eth0", "eth1"]},
            }],
            "routes": {"config": [gone, route("bond101")]},
        }))
    );
}

#[test]
fn second_uplink_stays_outside_the_bond() {
    let route = |interface: &str, table: u16| json!({"destination": "0.0.0.0/0", "next-hop-interface": interface, "table-id": table});
    let report = json!({
        "interfaces": [nic("eth0", &[101]), nic("eth1", &[101]), nic("eth2", &[101])],
        "routes": {"running": [route("eth0", 254), route("eth1", 254), route("eth2", 200)]},
    });
    let document = bonded(&report, &[101]).expect("a bond");
    let bond = &document["interfaces"][0];
    assert_eq!(bond["link-aggregation"]["port"], json!(["eth0", "eth2"]));
    assert_eq!(bond["copy-mac-from"], "eth0");
    let alone = json!({
        "interfaces": [nic("eth0", &[101]), nic("eth1", &[101])],
        "routes": {"running": [route("eth0", 254), route("eth1", 254)]},
    });
    assert_eq!(bonded(&alone, &[101]), Ok(Value::Null));
}

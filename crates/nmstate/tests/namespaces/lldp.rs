//! Neighbours that announce themselves on a wire.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use weft_nmstate::engine::Backend;
use weft_nmstate::filter;
use weft_nmstate::render::{NodeFacts, render};

use crate::beyond::{Beyond, apply};
use crate::host::{Host, interface, wait};
use crate::shared::{Place, spec};
use crate::victim;

/// A frame that a switch sends every half a minute: the switch is `02:00:00:00:00:99`, its port `swp7`, its name
/// `switch01`, and the port has VLAN 101 with the name `blue`.
const FRAME: &[u8] = b"\x01\x80\xc2\x00\x00\x0e\x02\x00\x00\x00\x00\x99\x88\xcc\
    \x02\x07\x04\x02\x00\x00\x00\x00\x99\
    \x04\x05\x05swp7\
    \x06\x02\x00\x78\
    \x0a\x08switch01\
    \xfe\x0b\x00\x80\xc2\x03\x00\x65\x04blue\
    \x00\x00";

/// The TLV of this type in a neighbour's announcement.
fn part<'a>(neighbour: &'a Value, kind: &Value) -> Option<&'a Value> {
    neighbour.as_array()?.iter().find(|part| &part["type"] == kind)
}

// nmstate#55
#[test]
fn neighbour_is_reported_once_lldp_is_enabled() {
    let host = Host::enter();
    let beyond = Beyond::new();
    let there = beyond.path();
    host.script(&format!("ip link set wire netns {there}")).unwrap();
    beyond.serve();
    // Cards of virtual hosts are veths, and one of them is no card.
    host.script("ip link add eth2 type veth peer name down").unwrap();
    let mut policy = spec(Place::Namespaces, "lldp");
    policy.capture["ethernets"] = "interfaces.type==\"veth\"".into();
    let engine = host.engine();
    let up = json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]});
    apply(&engine, Backend::NetworkManager, &up).unwrap();
    let rendered = wait(render(&engine, &policy, &NodeFacts::default(), Map::new())).unwrap();
    apply(&engine, Backend::NetworkManager, &rendered.desired)
        .unwrap_or_else(|error| panic!("{error}\n{}", host.log()));

    let send = || {
        let mut sender = host.command([
            "nsenter",
            &format!("--net={there}"),
            "socat",
            "-u",
            "-",
            "INTERFACE:wire",
        ]);
        let mut sender = sender.stdin(Stdio::piped()).spawn().unwrap();
        sender.stdin.take().unwrap().write_all(FRAME).unwrap();
        assert!(sender.wait().unwrap().success());
    };
    let started = Instant::now();
    let lldp = loop {
        send();
        let report = filter::report(wait(engine.report()).unwrap(), |_| false);
        assert_eq!(interface(&report, "eth2").and_then(|eth2| eth2.get("lldp")), None);
        let lldp = interface(&report, "eth1").unwrap()["lldp"].clone();
        if lldp["neighbors"]
            .as_array()
            .is_some_and(|neighbours| !neighbours.is_empty())
        {
            break lldp;
        }
        assert!(started.elapsed() < victim::DEADLINE, "{report:#}\n{}", host.log());
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(lldp["enabled"], true);
    let neighbour = &lldp["neighbors"][0];
    assert_eq!(
        part(neighbour, &json!(5)),
        Some(&json!({"type": 5, "system-name": "switch01"}))
    );
    let of = |kind, key: &str| part(neighbour, &json!(kind)).map(|part| part[key].clone());
    assert_eq!(of(1, "chassis-id"), Some(json!("02:00:00:00:00:99")), "{lldp:#}");
    assert_eq!(of(2, "port-id"), Some(json!("swp7")), "{lldp:#}");
    assert_eq!(
        of(127, "ieee-802-1-vlans"),
        Some(json!([{"name": "blue", "vid": 101}])),
        "{lldp:#}"
    );
    assert_eq!(of(127, "oui"), Some(json!("00:80:c2")), "{lldp:#}");
}

//! An applied change exists, stays after a commit, and is rolled back without one.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weft_nmstate::engine::{Backend, Engine, Template};

use crate::host::{Host, interface, wait};

/// A bridge with a port and an address.
fn bridge() -> Value {
    json!({ "interfaces": [{
        "name": "br1", "type": "linux-bridge", "state": "up",
        "ipv4": { "enabled": true, "dhcp": false, "address": [{ "ip": "192.0.2.1", "prefix-length": 24 }] },
        "bridge": { "options": { "stp": { "enabled": false } }, "port": [{ "name": "eth1" }] },
    }] })
}

#[test]
fn committed_bridge_is_a_profile_of_network_manager() {
    let host = Host::enter();
    let engine = host.engine();
    let report = wait(async {
        engine.apply(bridge()).await?;
        engine.commit().await?;
        engine.report().await
    });
    let report = report.unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    let bridge = interface(&report, "br1").unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(bridge["type"], "linux-bridge");
    assert_eq!(bridge["ipv4"]["address"][0]["ip"], "192.0.2.1");
    assert_eq!(bridge["bridge"]["port"][0]["name"], "eth1");
    let links = host
        .script("ip -brief address show br1; ip -brief link show master br1")
        .unwrap();
    assert!(
        links.contains("192.0.2.1/24") && links.contains("eth1"),
        "{links}"
    );
    assert_eq!(host.profiles(), ["br1", "eth1"]);
    // There is nothing left to undo.
    assert!(wait(engine.rollback()).is_err());
}

#[test]
fn rollback_behind_a_question_without_an_answer_is_done() {
    let host = Host::enter();
    let limit = Duration::from_secs(2);
    let engine = Engine::start_with(Backend::NetworkManager, limit).unwrap();
    wait(engine.apply(bridge())).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    // Open vSwitch accepts connections, and answers nothing.
    host.script("mkdir -p /run/openvswitch").unwrap();
    let _silent = UnixListener::bind("/run/openvswitch/db.sock").unwrap();
    let (report, rolled_back) = wait(async { tokio::join!(engine.report(), engine.rollback()) });
    let error = report.expect_err("no answer");
    assert_eq!(error.text, "the host did not answer within 2 s");
    rolled_back.unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    assert!(host.script("ip link show br1").is_err());
}

#[test]
fn uncommitted_change_is_rolled_back() {
    let host = Host::enter();
    let engine = host.engine();
    let before = wait(engine.report()).unwrap();
    wait(engine.apply(bridge())).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    assert!(host.script("ip link show br1").is_ok());
    // The next handler after a kill rolls it back as well: the checkpoint belongs to the host.
    drop(engine);
    let successor = host.engine();
    wait(successor.rollback()).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    let after = wait(successor.report()).unwrap();
    assert_eq!(interface(&after, "br1"), None, "{after:#}\n{}", host.log());
    let controller = |report: &Value| interface(report, "eth1").map(|eth1| eth1.get("controller").cloned());
    assert_eq!(controller(&after), controller(&before));
    assert_eq!(host.profiles(), [] as [String; 0]);
}

// nmstate#109, nmstate#110
#[test]
fn change_that_the_kernel_cannot_make_names_the_missing_symbol() {
    let host = Host::enter();
    let engine = host.engine();
    let mut filtering = bridge();
    filtering["interfaces"][0]["bridge"]["port"][0]["vlan"] =
        json!({ "mode": "trunk", "trunk-tags": [{ "id-range": { "min": 2, "max": 4094 } }] });
    let Err(error) = wait(engine.apply(filtering)) else {
        println!("skipped: this kernel filters VLANs on bridges");
        return;
    };
    let cause = "interface br1 cannot be made: the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING; ";
    assert!(error.text.starts_with(cause), "{error}\n{}", host.log());
    let log: Vec<&str> = error.log.lines().filter(|line| line.starts_with('[')).collect();
    for line in &log {
        let times = log.iter().filter(|other| *other == line).count();
        assert_eq!(times, 1, "{line}");
        let is_chatter = line.contains("WIFI") || line.contains("NetworkManager version");
        assert!(!is_chatter, "{line}");
    }
    // The same kernel makes the bridge without VLANs.
    wait(engine.apply(bridge())).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    wait(engine.rollback()).unwrap();
}

/// The addresses and routes of a NIC move to a bridge above it.
fn takeover() -> Template {
    let capture = json!({
        "bridge-routes": "capture.default-gw | routes.running.next-hop-interface:=\"br1\"",
        "base-iface": "interfaces.name==capture.default-gw.routes.running.0.next-hop-interface",
        "default-gw": "routes.running.destination==\"0.0.0.0/0\"",
    });
    let desired = json!({
        "interfaces": [{
            "name": "br1", "type": "linux-bridge", "state": "up",
            "mac-address": "{{ capture.base-iface.interfaces.0.mac-address }}",
            "ipv4": "{{ capture.base-iface.interfaces.0.ipv4 }}",
            "bridge": {
                "options": { "stp": { "enabled": false } },
                "port": [{ "name": "{{ capture.base-iface.interfaces.0.name }}" }],
            },
        }],
        "routes": { "config": "{{ capture.bridge-routes.routes.running }}" },
    });
    Template {
        capture: capture.as_object().cloned().unwrap(),
        desired,
        captured: Map::new(),
    }
}

#[test]
fn default_nic_under_a_bridge_survives_a_reboot() {
    let mut host = Host::managing(&["eth1", "br1"]);
    host.script(
        "nmcli connection add type ethernet ifname eth1 con-name eth1 ipv4.method manual \
             ipv4.addresses 192.0.2.1/24 ipv4.gateway 192.0.2.254 ipv4.dns 192.0.2.253 ipv6.method disabled
         nmcli connection up eth1",
    )
    .unwrap();
    let engine = host.engine();
    let filled = wait(engine.fill(takeover())).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    wait(engine.apply(filled.desired.clone())).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    wait(engine.commit()).unwrap();
    let moved = |report: &Value| {
        let interface = |name| interface(report, name).unwrap_or_else(|| panic!("{report:#}"));
        let route = &report["routes"]["running"][0];
        assert_eq!(interface("br1")["ipv4"]["address"][0]["ip"], "192.0.2.1");
        assert_eq!(interface("br1")["mac-address"], interface("eth1")["mac-address"]);
        assert_eq!(interface("eth1")["controller"], "br1");
        assert_eq!(
            (&route["next-hop-interface"], &route["next-hop-address"]),
            (&json!("br1"), &json!("192.0.2.254"))
        );
        assert_eq!(
            report["dns-resolver"]["running"]["server"],
            json!(["192.0.2.253"])
        );
    };
    moved(&wait(engine.report()).unwrap());

    // The captures are stored: evaluated again, the bridge would be its own port.
    host.kill().unwrap();
    host.script(
        "ip link delete br1; ip link set eth1 down; ip address flush dev eth1; rm -r /run/NetworkManager",
    )
    .unwrap();
    host.start_again().unwrap();
    let again = Template {
        captured: filled.captured,
        ..takeover()
    };
    let again = wait(engine.fill(again)).unwrap();
    assert_eq!(again.desired, filled.desired);
    let restored = cluster::wait::until("the bridge after the restart", Duration::from_mins(1), || {
        let shown = host.script("ip -brief address show br1").unwrap_or_default();
        let there = shown.contains("192.0.2.1/24") && shown.contains(" UP ");
        if there {
            Ok(())
        } else {
            Err(format!("{shown}\n{}", host.log()))
        }
    });
    restored.unwrap();
    wait(engine.apply(again.desired)).unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
    wait(engine.commit()).unwrap();
    moved(&wait(engine.report()).unwrap());
}

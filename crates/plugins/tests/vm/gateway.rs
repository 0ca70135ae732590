//! The node as the gateway of a VLAN.

use std::net::UdpSocket;

use serde_json::{Value, json};

use crate::{
    access, at, attach, in_the_vm, outer,
    stage::{Host, with},
    vlans,
};

fn gateway(id: u16, address: &str) -> Value {
    with(&at(&access(id), address), "isGateway", true.into())
}

/// The end of the pair `br0.ID` that is a port.
fn port(host: &mut Host, id: u16) -> linux::link::Link {
    let link = host.link(&format!("br0.{id}")).unwrap();
    host.socket.link_by_index(link.peer.unwrap()).unwrap()
}

/// The container reaches its gateway: the gateway echoes its packet.
fn reaches(pod: &crate::Pod, address: &str) {
    let node = UdpSocket::bind((address, 0)).unwrap();
    let there = node.local_addr().unwrap();
    let said = pod.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for socket in [&node, &said] {
        socket
            .set_read_timeout(Some(std::time::Duration::from_mins(1)))
            .unwrap();
    }
    said.send_to(b"hello", there).unwrap();
    let mut text = [0; 8];
    let (length, from) = node.recv_from(&mut text).unwrap();
    node.send_to(&text[..length], from).unwrap();
    assert_eq!(said.recv(&mut text).unwrap(), 5);
}

// cni-plugins#21
#[test]
fn vlan_gateway_is_a_separate_port() {
    in_the_vm("VLAN gateways", |host| {
        let config = with(&gateway(100, "10.1.2.2/24"), "mtu", 1400.into());
        let pod = host.pod();
        let result = host.add(&pod, &config);
        let interfaces = result["interfaces"].as_array().unwrap();
        assert_eq!(interfaces.len(), 4, "{result}");
        let link = host.link("br0.100").unwrap();
        assert_eq!(
            interfaces[3],
            json!({ "name": "br0.100", "mac": link.mac.unwrap().to_string() })
        );
        assert_eq!(result["ips"][0]["interface"], 2);
        assert_eq!(result["ips"][0]["gateway"], "10.1.2.1");
        assert!(link.is_kind("veth") && link.is_up());
        assert_eq!(link.mtu, 1400);
        assert_eq!(host.addresses("br0.100"), ["10.1.2.1/24"]);
        assert_eq!(host.addresses("br0"), [""; 0]);
        let port_link = port(host, 100);
        assert_eq!(port_link.master, Some(host.link("br0").unwrap().index));
        assert_eq!(vlans(host, &port_link.name), ["100 PVID untagged"]);
        assert_eq!(vlans(host, outer(&result)), ["100 PVID untagged"]);
        host.check(&pod, &config, &result).success();
        reaches(&pod, "10.1.2.1");
        let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(forwarding.trim(), "1");

        // Another container in the VLAN shares it, one in another has its own.
        let (second, _) = attach(host, &gateway(100, "10.1.2.3/24"));
        assert_eq!(host.link("br0.100").unwrap(), link);
        reaches(&second, "10.1.2.1");
        let (other, _) = attach(host, &gateway(200, "10.1.3.2/24"));
        assert_eq!(host.addresses("br0.200"), ["10.1.3.1/24"]);
        reaches(&other, "10.1.3.1");
        host.check(&pod, &config, &result).success();

        host.del(&pod, &config);
        reaches(&second, "10.1.2.1");
    });
}

#[test]
fn a_trunk_has_the_gateway_of_its_native_vlan() {
    in_the_vm("gateways of trunks", |host| {
        let mut config = with(&gateway(100, "10.1.2.2/24"), "vlanTrunk", json!([{ "id": 5 }]));
        config["ipam"]["addresses"] = json!([{ "address": "10.1.2.2/24" }, { "address": "2001:db8::2/64" }]);
        config["preserveDefaultVlan"] = true.into();
        let (pod, found) = attach(host, &config);
        assert_eq!(found, ["1 untagged", "5", "100 PVID untagged"]);
        let mut addresses = host.addresses("br0.100");
        addresses.sort();
        assert_eq!(addresses, ["10.1.2.1/24", "2001:db8::1/64"]);
        let port = port(host, 100);
        assert_eq!(vlans(host, &port.name), ["1 untagged", "100 PVID untagged"]);
        reaches(&pod, "10.1.2.1");
    });
}

#[test]
fn gateway_without_bridge_is_reconnected() {
    in_the_vm("VLAN gateways that were cut off", |host| {
        let (_, _) = attach(host, &gateway(100, "10.1.2.2/24"));
        let link = host.link("br0.100").unwrap();
        // The bridge is removed, and made again by the next attachment.
        host.socket.delete_link_by_name("br0").unwrap();
        host.socket.set_down(&link).unwrap();
        let (pod, _) = attach(host, &gateway(100, "10.1.2.3/24"));
        let port = port(host, 100);
        assert_eq!(vlans(host, &port.name), ["100 PVID untagged"]);
        reaches(&pod, "10.1.2.1");
    });
}

#[test]
fn other_link_with_the_gateways_name_is_kept() {
    in_the_vm("foreign VLAN gateways", |host| {
        let spec = linux::link::BridgeSpec {
            name: "br0.100",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        host.socket.create_bridge(&spec).unwrap();
        let pod = host.pod();
        let message = host.call("ADD", &pod, &gateway(100, "10.1.2.2/24")).message();
        assert_eq!(message, "\"br0.100\" already exists but is not a veth");
        assert!(pod.link("net1").is_none());
        assert_eq!(host.veths(), []);
    });
}

#[test]
fn pair_of_another_bridge_is_kept() {
    in_the_vm("VLAN gateways of others", |host| {
        attach(host, &gateway(200, "10.1.3.2/24"));
        let spec = linux::link::VethSpec {
            name: "br0.100",
            mac: None,
            mtu: None,
            peer_name: "other",
            peer_ns: None,
        };
        host.socket.create_veth(&spec).unwrap();
        let spec = linux::link::BridgeSpec {
            name: "br1",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        host.socket.create_bridge(&spec).unwrap();
        let (port, bridge) = (host.link("other").unwrap(), host.link("br1").unwrap());
        host.socket.set_master(&port, bridge.index).unwrap();
        let pod = host.pod();
        let message = host.call("ADD", &pod, &gateway(100, "10.1.2.2/24")).message();
        assert_eq!(
            message,
            "failed to connect \"br0.100\" to bridge br0: its other end is not free"
        );
        assert_eq!(host.link("other").unwrap().master, Some(bridge.index));
        assert!(pod.link("net1").is_none());
    });
}

#[test]
fn half_a_gateway_is_completed() {
    in_the_vm("half a VLAN gateway", |host| {
        attach(host, &gateway(200, "10.1.3.2/24"));
        let spec = linux::link::VethSpec {
            name: "br0.100",
            mac: None,
            mtu: None,
            peer_name: "half",
            peer_ns: None,
        };
        host.socket.create_veth(&spec).unwrap();
        let (pod, _) = attach(host, &gateway(100, "10.1.2.2/24"));
        assert_eq!(port(host, 100).name, "half");
        assert_eq!(vlans(host, "half"), ["100 PVID untagged"]);
        reaches(&pod, "10.1.2.1");
    });
}

#[test]
fn host_ignores_router_advertisements_of_a_vlan() {
    in_the_vm("router advertisements", |host| {
        attach(host, &gateway(100, "10.1.2.2/24"));
        for name in ["br0.100".to_owned(), port(host, 100).name] {
            let path = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
            assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "0", "{name}");
        }
    });
}

#[test]
fn check_lets_the_bridge_of_a_vlan_gateway_take_on_addresses_of_ports() {
    in_the_vm("CHECK of a bridge that is no gateway itself", |host| {
        let spec = linux::link::BridgeSpec {
            name: "br0",
            mtu: None,
            mac: None,
            vlan_filtering: true,
        };
        host.socket.create_bridge(&spec).unwrap();
        let pod = host.pod();
        let config = gateway(100, "10.1.2.2/24");
        let result = host.add(&pod, &config);
        let other = host.pod();
        let port = host.add(&other, &access(100));
        let port = host.link(outer(&port)).unwrap();
        host.socket
            .set_mac(&port, "02:00:00:00:00:01".parse().unwrap())
            .unwrap();
        let bridge = host.link("br0").unwrap();
        assert_eq!(bridge.mac.unwrap().to_string(), "02:00:00:00:00:01");
        host.check(&pod, &config, &result).success();
    });
}

#[test]
fn concurrent_adds_share_a_gateway() {
    in_the_vm("parallel VLAN gateways", |host| {
        let pods: Vec<_> = (2..8)
            .map(|n| (host.pod(), gateway(100, &format!("10.1.2.{n}/24"))))
            .collect();
        let outcomes = host.call_together(16, "ADD", pods.iter().map(|(pod, config)| (pod, config.clone())));
        for outcome in outcomes {
            outcome.success();
        }
        assert_eq!(host.addresses("br0.100"), ["10.1.2.1/24"]);
        let port = port(host, 100);
        assert_eq!(vlans(host, &port.name), ["100 PVID untagged"]);
        for (pod, _) in &pods {
            reaches(pod, "10.1.2.1");
        }
    });
}

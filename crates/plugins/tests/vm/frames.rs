//! Frames between containers: the ports that receive them, and those that do not.

use std::net::UdpSocket;

use serde_json::json;

use crate::{
    access, at, attach, in_the_vm, ip,
    stage::{Host, l2, with},
    trunk,
};

fn hears(socket: &UdpSocket) -> String {
    let mut text = [0; 64];
    let length = socket.recv(&mut text).unwrap();
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// Sends to all hosts in the subnet, this socket too. A socket that receives the packet does so before any later
/// packet.
fn broadcast(socket: &UdpSocket, text: &str) {
    socket.send_to(text.as_bytes(), "10.1.2.255:7777").unwrap();
    assert_eq!(hears(socket), text);
}

fn socket(host: &mut Host, id: u16, address: &str) -> UdpSocket {
    attach(host, &at(&access(id), address)).0.udp()
}

#[test]
fn pods_receive_only_frames_of_their_vlan() {
    in_the_vm("frames of access ports", |host| {
        let first = socket(host, 100, "10.1.2.1/24");
        let second = socket(host, 100, "10.1.2.2/24");
        let other = socket(host, 200, "10.1.2.3/24");
        let neighbour = socket(host, 200, "10.1.2.4/24");
        let default = attach(host, &at(&l2("1.0.0"), "10.1.2.5/24")).0.udp();
        broadcast(&first, "for 100");
        broadcast(&default, "for 1");
        broadcast(&other, "for 200");
        assert_eq!(hears(&second), "for 100");
        assert_eq!(hears(&neighbour), "for 200");
        second.send_to(b"answer", "10.1.2.1:7777").unwrap();
        broadcast(&neighbour, "again");
        assert_eq!(hears(&other), "again");
        assert_eq!(hears(&first), "answer");
    });
}

#[test]
fn a_preserved_default_vlan_reaches_the_port_untagged() {
    in_the_vm("frames of the default VLAN", |host| {
        let preserved = with(&access(100), "preserveDefaultVlan", true.into());
        let both = attach(host, &at(&preserved, "10.1.2.1/24")).0.udp();
        let plain = attach(host, &at(&l2("1.0.0"), "10.1.2.2/24")).0.udp();
        let alone = socket(host, 100, "10.1.2.3/24");
        broadcast(&plain, "from 1");
        assert_eq!(hears(&both), "from 1");
        broadcast(&alone, "from 100");
        assert_eq!(hears(&both), "from 100");
        // Its own frames belong to its own VLAN.
        broadcast(&both, "mine");
        assert_eq!(hears(&alone), "mine");
    });
}

// cni-plugins#19
#[test]
fn a_trunk_exchanges_tagged_frames() {
    in_the_vm("frames of trunks", |host| {
        let config = with(&trunk(json!([{ "minID": 100, "maxID": 101 }])), "vlan", 50.into());
        let (pod, _) = attach(host, &config);
        for id in [100, 101, 102] {
            ip(
                &pod,
                &format!("link add link net1 name net1.{id} type vlan id {id}"),
            );
            ip(&pod, &format!("link set net1.{id} up"));
        }
        ip(&pod, "address add 10.1.2.9/24 dev net1.100");
        ip(&pod, "address add 10.1.3.9/24 dev net1.101");
        ip(&pod, "address add 10.1.4.9/24 dev net1.102");
        ip(&pod, "address add 10.1.5.9/24 dev net1");
        let trunk = pod.udp();
        let in_100 = socket(host, 100, "10.1.2.1/24");
        let in_101 = socket(host, 101, "10.1.3.1/24");
        let in_102 = socket(host, 102, "10.1.4.1/24");
        let in_50 = socket(host, 50, "10.1.5.1/24");
        in_102.send_to(b"not carried", "10.1.4.255:7777").unwrap();
        for (id, sender, subnet) in [(100, &in_100, 2), (101, &in_101, 3), (50, &in_50, 5)] {
            sender
                .send_to(format!("in {id}").as_bytes(), format!("10.1.{subnet}.9:7777"))
                .unwrap();
            assert_eq!(hears(&trunk), format!("in {id}"));
            trunk
                .send_to(format!("to {id}").as_bytes(), format!("10.1.{subnet}.1:7777"))
                .unwrap();
            assert_eq!(hears(sender), format!("to {id}"));
        }
    });
}

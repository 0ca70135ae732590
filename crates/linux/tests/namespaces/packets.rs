//! Packets of a link without an address.

use std::time::{Duration, Instant};

use linux::{link::Mac, packet::PacketSocket, route::Socket};

use crate::support::{alone, far_deadline, neighbourhood};

/// Returns an IPv4 UDP packet with four bytes, from port 9 to `port`.
fn packet(port: u16) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 255, 255, 255, 255,
    ];
    packet.extend([0, 9]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0]);
    packet.extend(b"word");
    packet
}

fn receive(socket: &PacketSocket, deadline: Instant) -> Option<(Vec<u8>, Mac)> {
    receive_sent(socket, deadline, || {})
}

/// Receives a packet that `send` sends repeatedly: a link loses packets until it has a carrier.
fn receive_sent(socket: &PacketSocket, deadline: Instant, mut send: impl FnMut()) -> Option<(Vec<u8>, Mac)> {
    let mut buffer = [0; 256];
    loop {
        send();
        match socket.receive(&mut buffer) {
            Ok((length, from)) => return Some((buffer[..length].to_vec(), from)),
            Err(error) if Instant::now() < deadline => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

#[test]
fn packet_socket_receives_only_its_port_from_its_link() {
    alone("a packet socket", || {
        let mut here = Socket::open().unwrap();
        let mut there = neighbourhood(&mut here, "peer");
        here.set_up(&there.outer).unwrap();
        there.inside.set_up(&there.inner).unwrap();
        let inside = there
            .ns
            .run(|| PacketSocket::open(there.inner.index, 68))
            .unwrap()
            .unwrap();
        let outside = PacketSocket::open(there.outer.index, 67).unwrap();
        let broadcast = Mac([0xff; 6]);
        let send = || {
            for port in [69, 68] {
                outside.send(&packet(port), broadcast).unwrap();
            }
        };
        let (received, from) = receive_sent(&inside, far_deadline(), send).expect("a packet");
        assert_eq!(received, packet(68));
        assert_eq!(Some(from), there.outer.mac);
        // The answer reaches the sender.
        inside.send(&packet(67), from).unwrap();
        let (_, from) = receive(&outside, far_deadline()).expect("an answer");
        assert_eq!(Some(from), there.inner.mac);
        // The packets for another port were sent first, and were dropped.
        while let Some((received, _)) = receive(&inside, Instant::now()) {
            assert_eq!(received, packet(68));
        }
    });
}

//! Events of the kernel, and its announcements to neighbours.

use std::{
    net::IpAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use linux::{
    arp,
    link::{Link, LinkChange, LinkKind, LinkSpec, Mac, OperState, Vxlan},
    monitor::{self, HostEvent, HostMonitor, LinkEvent, LinkFilter, LinkMonitor, Settled},
    neighbour::Forwarding,
    netns::NetNs,
    nft,
    route::Socket,
    routes::Route,
    sysctl::Key,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{AddressFamily, Protocol, RecvFlags, SocketType},
};

use crate::support::{alone, bridge, far_deadline, neighbourhood};

/// Reads events until one satisfies `wanted`.
fn expect(monitor: &mut LinkMonitor, wanted: impl Fn(&LinkEvent) -> bool) {
    let mut received = Vec::new();
    while let Some(event) = monitor.next_before(Some(far_deadline())).unwrap() {
        if wanted(&event) {
            return;
        }
        received.push(event);
    }
    panic!("the event is missing; received: {received:#?}");
}

fn named(link: &Link, name: &str) -> bool {
    link.name == name
}

#[test]
fn monitor_of_one_kind_receives_only_links_of_that_kind() {
    alone("link events of a kind", || {
        let mut monitor = LinkMonitor::open().unwrap();
        monitor
            .pass_only(&LinkFilter {
                kinds: &["bridge"],
                ..LinkFilter::default()
            })
            .unwrap();
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethevent");
        let br = bridge(&mut here, "br0");
        here.set_master(&pod.outer, br.index).unwrap();
        here.delete_link_by_name("vethevent").unwrap();
        here.delete_link_by_name("br0").unwrap();
        loop {
            match monitor.next_before(Some(far_deadline())).unwrap().unwrap() {
                LinkEvent::Changed(link) => assert!(named(&link, "br0"), "{link:?}"),
                LinkEvent::Gone(link) => break assert!(named(&link, "br0"), "{link:?}"),
                LinkEvent::Lost => panic!("few events are not lost"),
            }
        }
        assert_eq!(monitor.pending().unwrap(), None);
    });
}

#[test]
fn monitor_of_names_and_indexes_is_not_woken_by_other_links() {
    alone("link events of names and indexes", || {
        let mut here = Socket::open().unwrap();
        let known = bridge(&mut here, "longest-name-15");
        let mut monitor = LinkMonitor::open().unwrap();
        monitor
            .pass_only(&LinkFilter {
                names: &["br", "br0"],
                indexes: &[known.index],
                ..LinkFilter::default()
            })
            .unwrap();
        for name in ["br00", "b", "longest-name-1"] {
            let other = bridge(&mut here, name);
            here.delete_link(&other).unwrap();
        }
        let rename = LinkChange {
            name: Some("other"),
            ..LinkChange::default()
        };
        here.change_link(&known, "rename link", &rename).unwrap();
        bridge(&mut here, "br0");
        here.delete_link_by_name("br0").unwrap();
        let mut seen = Vec::new();
        loop {
            match monitor.next_before(Some(far_deadline())).unwrap().unwrap() {
                LinkEvent::Changed(link) => seen.push(link.name),
                LinkEvent::Gone(link) => break assert_eq!(link.name, "br0"),
                LinkEvent::Lost => panic!("few events are not lost"),
            }
        }
        seen.dedup();
        assert_eq!(seen, ["other", "br0"]);
        assert_eq!(monitor.pending().unwrap(), None);
    });
}

#[test]
fn monitor_of_links_without_a_kind_is_not_woken_by_pairs() {
    alone("link events of links without a kind", || {
        let mut monitor = LinkMonitor::open().unwrap();
        monitor
            .pass_only(&LinkFilter {
                kinds: &["bond"],
                without_kind: true,
                ..LinkFilter::default()
            })
            .unwrap();
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethevent");
        let br = bridge(&mut here, "br0");
        here.set_master(&pod.outer, br.index).unwrap();
        here.delete_link_by_name("vethevent").unwrap();
        let loopback = here.link_by_name("lo").unwrap();
        here.set_up(&loopback).unwrap();
        match monitor.next_before(Some(far_deadline())).unwrap() {
            Some(LinkEvent::Changed(link)) => assert!(named(&link, "lo"), "{link:?}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn created_changed_and_removed_links_are_reported() {
    alone("link events", || {
        let mut monitor = LinkMonitor::open().unwrap();
        let mut here = Socket::open().unwrap();
        assert_eq!(monitor.pending().unwrap(), None);
        let br = bridge(&mut here, "br0");
        expect(
            &mut monitor,
            |e| matches!(e, LinkEvent::Changed(l) if named(l, "br0") && l.is_kind("bridge")),
        );
        expect(
            &mut monitor,
            |e| matches!(e, LinkEvent::Changed(l) if named(l, "br0") && l.is_up()),
        );

        // A port that leaves its bridge is a change of the port, and no link is removed.
        let pod = neighbourhood(&mut here, "vethevent");
        here.set_master(&pod.outer, br.index).unwrap();
        here.set_master(&pod.outer, 0).unwrap();
        here.set_down(&br).unwrap();
        loop {
            match monitor.next_before(Some(far_deadline())).unwrap().unwrap() {
                LinkEvent::Gone(link) => panic!("{link:?} is not gone"),
                LinkEvent::Changed(link) if named(&link, "br0") && !link.is_up() => break,
                _ => {}
            }
        }
        here.change_link(
            &br,
            "rename link",
            &LinkChange {
                name: Some("br1"),
                ..LinkChange::default()
            },
        )
        .unwrap();
        expect(
            &mut monitor,
            |e| matches!(e, LinkEvent::Changed(l) if named(l, "br1")),
        );
        here.delete_link(&br).unwrap();
        expect(
            &mut monitor,
            |e| matches!(e, LinkEvent::Gone(l) if l.index == br.index),
        );
    });
}

#[test]
fn wait_for_operstate_ends_with_the_event_or_the_deadline() {
    alone("operational state events", || {
        let mut here = Socket::open().unwrap();
        let mut pod = neighbourhood(&mut here, "vethwait");
        here.set_up(&pod.outer).unwrap();
        let begun = Instant::now();
        let link =
            monitor::wait_operstate_up(&mut here, &pod.outer, begun + Duration::from_millis(50)).unwrap();
        assert_ne!(link.operstate, OperState::Up);
        assert!(begun.elapsed() >= Duration::from_millis(50));

        let outer = pod.outer.clone();
        let other_end = std::thread::spawn(move || {
            pod.inside.set_up(&pod.inner).unwrap();
            pod
        });
        let link = monitor::wait_operstate_up(&mut here, &outer, far_deadline()).unwrap();
        assert_eq!(link.operstate, OperState::Up);
        drop(other_end.join().unwrap());
    });
}

/// Opens a socket that receives all frames of all interfaces in this namespace.
fn listener() -> OwnedFd {
    let all = Protocol::from_raw(std::num::NonZeroU32::from(
        std::num::NonZeroU16::new(0x0003_u16.to_be()).unwrap(),
    ));
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, Some(all)).unwrap();
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_mins(1)),
    )
    .unwrap();
    socket
}

/// Reads frames until one satisfies `wanted`.
fn expect_frame(socket: &OwnedFd, name: &str, wanted: impl Fn(&[u8]) -> bool) {
    let mut frame = [0; 2048];
    loop {
        let (length, _) = rustix::net::recv(socket, &mut frame[..], RecvFlags::empty())
            .unwrap_or_else(|error| panic!("no {name} received: {error}"));
        if wanted(&frame[..length]) {
            return;
        }
    }
}

#[test]
fn announce_sends_arp_and_neighbour_advertisement() {
    alone("announcements", || {
        let mut here = Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        let mut pod = neighbourhood(&mut here, "vethannounce");
        here.set_master(&pod.outer, br.index).unwrap();
        here.set_up(&pod.outer).unwrap();
        pod.ns
            .run(|| {
                arp::enable("eth0").unwrap();
                Key::ipv6("eth0", "accept_dad").unwrap().write("0").unwrap();
            })
            .unwrap();
        pod.inside
            .add_address(&pod.inner, "10.1.2.3/24".parse().unwrap())
            .unwrap();
        pod.inside
            .add_address(&pod.inner, "2001:db8::5/64".parse().unwrap())
            .unwrap();
        pod.inside.set_up(&pod.inner).unwrap();
        monitor::wait_operstate_up(&mut here, &pod.outer, far_deadline()).unwrap();
        let settled = pod
            .ns
            .run(|| monitor::wait_addresses_settled(&mut pod.inside, &pod.inner, far_deadline()))
            .unwrap();
        assert_eq!(settled, Ok(Settled::Usable));

        // The kernel sent its own announcements before this point.
        let wire = listener();
        let mac = pod.inner.mac.unwrap();
        arp::announce(&mut pod.inside, &pod.inner, mac).unwrap();
        let ip = [10, 1, 2, 3];
        expect_frame(&wire, "gratuitous ARP", |frame| {
            frame.len() >= 42
                && frame[..6] == [0xff; 6]
                && frame[6..12] == mac.0
                && frame[12..14] == [0x08, 0x06]
                && frame[28..32] == ip
                && frame[38..42] == ip
        });
        arp::announce(&mut pod.inside, &pod.inner, mac).unwrap();
        let IpAddr::V6(ip) = "2001:db8::5".parse().unwrap() else {
            unreachable!()
        };
        expect_frame(&wire, "unsolicited neighbour advertisement", |frame| {
            frame.len() >= 78
                && frame[12..14] == [0x86, 0xdd]
                && frame[54] == 136
                && frame[62..78] == ip.octets()
        });
    });
}

#[test]
fn duplicate_ipv6_address_is_reported() {
    alone("duplicate address detection", || {
        let mut here = Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        let home = NetNs::current().unwrap();
        let mut settle = |name: &str| {
            let mut pod = neighbourhood(&mut here, name);
            here.set_master(&pod.outer, br.index).unwrap();
            here.set_up(&pod.outer).unwrap();
            // The port is set up first, so that the detection starts when the bridge already forwards.
            pod.inside.set_up(&pod.inner).unwrap();
            monitor::wait_operstate_up(&mut here, &pod.outer, far_deadline()).unwrap();
            pod.inside
                .add_address(&pod.inner, "2001:db8::5/64".parse().unwrap())
                .unwrap();
            let settled = pod
                .ns
                .run(|| monitor::wait_addresses_settled(&mut pod.inside, &pod.inner, far_deadline()))
                .unwrap()
                .unwrap();
            assert!(NetNs::current().unwrap().same_as(&home));
            (pod, settled)
        };
        let (_first, settled) = settle("vethdad1");
        assert_eq!(settled, Settled::Usable);
        let (_second, settled) = settle("vethdad2");
        assert_eq!(settled, Settled::Duplicate("2001:db8::5".parse().unwrap()));
    });
}

#[test]
fn changes_of_links_addresses_and_routes_are_reported() {
    alone("events of a host", || {
        let mut monitor = HostMonitor::open().unwrap();
        let mut here = Socket::open().unwrap();
        let mut pod = neighbourhood(&mut here, "vethhost");
        here.set_up(&pod.outer).unwrap();
        // The kernel reports IPv6 addresses shortly after the link has a carrier.
        pod.inside.set_up(&pod.inner).unwrap();
        let mut wait_for = |wanted: &dyn Fn(&HostEvent) -> bool| {
            let mut received = Vec::new();
            loop {
                while let Some(event) = monitor.pending().unwrap() {
                    if wanted(&event) {
                        return;
                    }
                    received.push(event);
                }
                let minute = Duration::from_mins(1).try_into().unwrap();
                let mut fds = [PollFd::new(&monitor, PollFlags::IN)];
                assert_ne!(
                    poll(&mut fds, Some(&minute)).unwrap(),
                    0,
                    "missing; received: {received:#?}"
                );
            }
        };
        wait_for(
            &|event| matches!(event, HostEvent::Link(link) if link.index == pod.outer.index && link.is_up()),
        );
        for (address, dst, gateway) in [
            ("192.0.2.1/24", "10.9.0.0/24", "192.0.2.9"),
            ("2001:db8::1/64", "fd00:9::/64", "2001:db8::9"),
        ] {
            let net = address.parse().unwrap();
            here.add_own_address(&pod.outer, net).unwrap();
            wait_for(&|event| matches!(event, HostEvent::Address(address) if address.net == net));
            let route = Route {
                gateway: Some(gateway.parse().unwrap()),
                link: Some(pod.outer.index),
                protocol: Some(87),
                ..Route::to(dst.parse().unwrap())
            };
            let is_it = |event: &HostEvent| matches!(event, HostEvent::Route(found) if found.dst == route.dst && found.protocol == Some(87));
            here.add_route(&route).unwrap();
            wait_for(&is_it);
            here.delete_route(&route).unwrap();
            wait_for(&is_it);
        }
    });
}

#[test]
fn neighbours_of_one_link_are_reported_and_no_others() {
    alone("events of neighbours", || {
        let mut here = Socket::open().unwrap();
        let first = neighbourhood(&mut here, "vethfirst").outer;
        let vxlan = Vxlan {
            id: 7,
            port: 4789,
            local: None,
            learning: false,
        };
        here.create_link(&LinkSpec::new("vxlan7", LinkKind::Vxlan(vxlan)))
            .unwrap();
        let tunnel = here.link_by_name("vxlan7").unwrap();
        for link in [&first, &tunnel] {
            here.set_up(link).unwrap();
        }
        let mut monitor = HostMonitor::open().unwrap();
        let (mac, ip) = (Mac([2, 0, 0, 0, 0, 9]), "192.0.2.9".parse().unwrap());
        let entry = Forwarding { mac, host: ip };
        let mut seen = |monitor: &mut HostMonitor| {
            here.set_neighbour(&first, ip, mac).unwrap();
            here.delete_neighbour(&first, ip).unwrap();
            here.set_neighbour(&tunnel, ip, mac).unwrap();
            here.delete_neighbour(&tunnel, ip).unwrap();
            here.set_forwarding(&tunnel, entry).unwrap();
            here.delete_forwarding(&tunnel, entry).unwrap();
            // The kernel answers after it has sent the events.
            let mut links = Vec::new();
            while let Some(event) = monitor.pending().unwrap() {
                if let HostEvent::Neighbour { link } = event {
                    links.push(link);
                }
            }
            links
        };
        assert!(seen(&mut monitor).is_empty());
        for link in [&first, &tunnel] {
            monitor.add_neighbours(link.index).unwrap();
            let links = seen(&mut monitor);
            assert!(links.iter().all(|found| *found == link.index), "{links:?}");
            let number = if link.index == tunnel.index { 4 } else { 2 };
            assert!(links.len() >= number, "{links:?}");
        }
        // Events of other kinds pass the filter.
        here.set_down(&first).unwrap();
        let mut passed = false;
        while let Some(event) = monitor.pending().unwrap() {
            passed |= matches!(event, HostEvent::Link(link) if link.index == first.index);
        }
        assert!(passed);
    });
}

#[test]
fn monitor_of_a_table_reports_changes_of_that_table_alone() {
    alone("events of packet rules", || {
        let table = |name| nft::Table {
            family: nft::Family::Inet,
            name,
        };
        let mut monitor = nft::Monitor::open("ours").unwrap();
        let mut rules = nft::Socket::open().unwrap();
        let mut change = |edit: &dyn Fn(&mut nft::Transaction)| {
            let mut transaction = nft::Transaction::new();
            edit(&mut transaction);
            rules.commit(&transaction).unwrap();
            monitor.changed().unwrap()
        };
        assert!(change(&|it| it.add_table(table("ours"), "")));
        assert!(!change(&|it| it.add_table(table("theirs"), "")));
        assert!(change(&|it| it.add_chain(table("ours"), "c", None, "")));
        let accept = [nft::Expression::Verdict(nft::Verdict::Accept)];
        assert!(change(&|it| it.add_rule(table("ours"), "c", &accept, "")));
        assert!(change(&|it| it.flush_chain(table("ours"), "c")));
        assert!(!change(&|it| it.delete_table(table("theirs"))));
        assert!(change(&|it| it.delete_table(table("ours"))));
    });
}

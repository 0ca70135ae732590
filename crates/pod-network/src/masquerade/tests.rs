use linux::netns::unshare_network;

use super::*;

fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn masquerade(inside: &[&str]) -> Masquerade {
    Masquerade {
        pods: nets(&["10.1.0.0/24", "fd00:1::/64"]),
        inside: nets(inside),
    }
}

#[test]
fn prefix_length_has_one_rule_and_one_set() {
    let wanted = wanted(&masquerade(&[
        "10.1.0.0/24",
        "10.1.1.0/24",
        "192.0.2.2/32",
        "fd00:1::/64",
    ]));
    let names: Vec<_> = wanted.sets.keys().map(String::as_str).collect();
    assert_eq!(names, ["inside-ipv4-24", "inside-ipv4-32", "inside-ipv6-64"]);
    assert_eq!(wanted.sets["inside-ipv4-24"].1.len(), 2);
    // Two rules for multicast, one rule for each set, and the masquerading.
    assert_eq!((wanted.postrouting.len(), wanted.from_pods.len()), (2, 6));
    assert_eq!(wanted.from_pods.last().unwrap(), &[Expression::Masquerade]);
}

/// Numbers of elements by set, as the kernel reports them.
fn elements(socket: &mut Socket) -> BTreeMap<String, usize> {
    let sets = socket.sets(TABLE).unwrap();
    sets.into_iter()
        .map(|name| {
            let count = socket.elements(TABLE, &name).unwrap().len();
            (name, count)
        })
        .collect()
}

#[test]
fn table_is_written_adapted_repaired_and_removed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: packet rules need root");
        return;
    }
    let test = std::thread::spawn(|| {
        unshare_network().unwrap();
        let mut socket = Socket::open().unwrap();
        let one = masquerade(&["10.1.0.0/24", "192.0.2.2/32"]);
        assert!(ensure(&mut socket, &one).unwrap());
        assert!(!ensure(&mut socket, &one).unwrap(), "nothing changed");
        let two = masquerade(&["10.1.1.0/24", "10.1.2.0/24", "192.0.2.2/32"]);
        assert!(ensure(&mut socket, &two).unwrap());
        assert!(!ensure(&mut socket, &two).unwrap());
        let expected = [("inside-ipv4-24", 2), ("inside-ipv4-32", 1)];
        assert_eq!(
            elements(&mut socket),
            expected.map(|(name, count)| (name.to_owned(), count)).into()
        );
        // Another prefix length needs another rule.
        let three = masquerade(&["10.1.0.0/16", "fd00:1::/48"]);
        assert!(ensure(&mut socket, &three).unwrap());
        assert!(!ensure(&mut socket, &three).unwrap());
        // Another program flushes a chain, and then the whole ruleset.
        let mut flush = Transaction::new();
        flush.flush_chain(TABLE, FROM_PODS);
        socket.commit(&flush).unwrap();
        assert!(ensure(&mut socket, &three).unwrap());
        remove(&mut socket).unwrap();
        assert!(ensure(&mut socket, &three).unwrap());
        remove(&mut socket).unwrap();
        remove(&mut socket).unwrap();
        assert!(socket.chains(TABLE).unwrap().is_empty());
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn transaction_with_thousands_of_nodes_is_accepted() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: packet rules need root");
        return;
    }
    let test = std::thread::spawn(|| {
        unshare_network().unwrap();
        let mut socket = Socket::open().unwrap();
        let inside = (0..10_000_u32).map(|n| {
            let address = Ipv4Addr::from(0x0a00_0000 + (n << 8));
            IpNet::new(address.into(), 24).unwrap()
        });
        let many = Masquerade {
            pods: nets(&["10.1.0.0/24"]),
            inside: inside.collect(),
        };
        assert!(ensure(&mut socket, &many).unwrap());
        assert!(!ensure(&mut socket, &many).unwrap());
        assert_eq!(elements(&mut socket)["inside-ipv4-24"], 10_000);
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

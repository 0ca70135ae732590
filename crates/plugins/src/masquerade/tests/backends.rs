//! Rules of iptables, and the choice between them and nftables.

use super::*;
use crate::masquerade;

fn listing(program: &str) -> String {
    let path = format!("/usr/local/sbin/{program}");
    output(std::process::Command::new(path).args(["-t", "nat", "-S"]), "")
}

// cni-plugins#22, the other backend
#[test]
fn iptables_rules_match_upstream_and_are_removed() {
    for (variant, shown) in [("nft", "iptables"), ("legacy", "iptables-legacy")] {
        alone("masquerading by iptables", move || {
            install_iptables(variant);
            let other = format!("{shown} of others");
            let program = format!("/usr/local/sbin/{shown}");
            let foreign = [
                "-t",
                "nat",
                "-A",
                "POSTROUTING",
                "-s",
                "10.9.9.9",
                "-j",
                "ACCEPT",
                "-m",
                "comment",
                "--comment",
            ];
            output(std::process::Command::new(program).args(foreign).arg(&other), "");
            let before = listing(shown);
            let shown6 = shown.replace("iptables", "ip6tables");
            let before6 = listing(&shown6);

            let [pod, outside, near] = node();
            let addresses = nets(&["10.1.2.3/24", "fd00::3/64"]);
            for _ in 0..2 {
                set_up(Backend::Iptables, FIRST, &addresses).unwrap();
                check(Backend::Iptables, FIRST, &addresses).unwrap();
            }
            let chain = hashed(28, "CNI-", "unit-testone");
            let comment = "-m comment --comment \"name: \\\"unit-test\\\" id: \\\"one\\\"\"";
            assert_eq!(
                listing(shown),
                before.replace("-A POSTROUTING", &format!("-N {chain}\n-A POSTROUTING"))
                    + &format!("-A POSTROUTING -s 10.1.2.3/32 {comment} -j {chain}\n")
                    + &format!("-A {chain} -d 10.1.2.0/24 {comment} -j ACCEPT\n")
                    + &format!("-A {chain} ! -d 224.0.0.0/4 {comment} -j MASQUERADE\n")
            );
            assert_eq!(
                listing(&shown6),
                before6.clone()
                    + &format!("-N {chain}\n-A POSTROUTING -s fd00::3/128 {comment} -j {chain}\n")
                    + &format!("-A {chain} -d fd00::/64 {comment} -j ACCEPT\n")
                    + &format!("-A {chain} ! -d ff00::/8 {comment} -j MASQUERADE\n")
            );
            let from = pod.udp();
            assert_eq!(source(&from, &outside, "192.0.2.2").to_string(), "192.0.2.1");
            assert_eq!(source(&from, &near, "10.1.2.9").to_string(), "10.1.2.3");

            tear_down(FIRST, Some((Backend::Iptables, &addresses))).unwrap();
            assert_eq!(listing(shown), before);
            assert_eq!(listing(&shown6), before6);
            check(Backend::Iptables, FIRST, &addresses).unwrap_err();
            // Without a record, and when all is gone.
            set_up(Backend::Iptables, FIRST, &addresses).unwrap();
            tear_down(FIRST, None).unwrap();
            tear_down(FIRST, None).unwrap();
            assert_eq!(listing(shown), before);
        });
    }
}

/// ADD with a config that names no backend, and the backends that it tries.
fn set_up_automatically(rules: &mut Ruleset, addresses: &[IpNet]) -> (Result<(), Error>, Vec<Backend>) {
    let mut tried = Vec::new();
    let outcome = masquerade::set_up(rules, Choice::Automatic, FIRST, addresses, |backend| {
        tried.push(backend);
        Ok(())
    });
    (outcome, tried)
}

// cni-plugins#76
#[test]
fn masquerading_without_nftables_uses_iptables() {
    alone("masquerading without nftables", || {
        install_iptables("legacy");
        let before = [listing("iptables-legacy"), listing("ip6tables-legacy")];
        let [pod, outside, _near] = node();
        let addresses = nets(&["10.1.2.3/24", "fd00::3/64"]);
        let mut rules = Ruleset::without_nftables();
        let (outcome, tried) = set_up_automatically(&mut rules, &addresses);
        outcome.unwrap();
        assert_eq!(tried, [Backend::Nftables, Backend::Iptables]);
        masquerade::check(&mut rules, Choice::Automatic, FIRST, &addresses).unwrap();
        let from = pod.udp();
        assert_eq!(source(&from, &outside, "192.0.2.2").to_string(), "192.0.2.1");

        // DEL undoes both recorded steps.
        for backend in tried {
            masquerade::tear_down(&mut rules, FIRST, Some((backend, &addresses))).unwrap();
        }
        assert_eq!([listing("iptables-legacy"), listing("ip6tables-legacy")], before);
        let missing = masquerade::check(&mut rules, Choice::Automatic, FIRST, &addresses).unwrap_err();
        assert_eq!(missing.msg, "masquerading of 10.1.2.3/24 not found");

        // A config with nftables gets nftables or an error.
        let named = Choice::Only(Backend::Nftables);
        let refused = masquerade::set_up(&mut rules, named, FIRST, &addresses, |_| Ok(())).unwrap_err();
        assert_eq!(refused.details, "the kernel lacks CONFIG_NFT_NAT");
        assert_eq!([listing("iptables-legacy"), listing("ip6tables-legacy")], before);
    });
}

// cni-plugins#76
#[test]
fn masquerading_with_nftables_does_not_use_iptables() {
    alone("masquerading by the default", || {
        let addresses = nets(&["10.1.2.3/24"]);
        let (outcome, tried) = set_up_automatically(&mut Ruleset::default(), &addresses);
        outcome.unwrap();
        assert_eq!(tried, [Backend::Nftables]);
        masquerade::check(&mut Ruleset::default(), Choice::Automatic, FIRST, &addresses).unwrap();
    });
}

#[test]
fn missing_iptables_fails_add_and_not_del() {
    alone("no iptables", || {
        linux::process::unshare_mounts().unwrap();
        for directory in ["/usr/local", "/usr/sbin"] {
            mount("tmpfs", directory, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        let error = set_up(Backend::Iptables, FIRST, &nets(&["10.1.2.3/24"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to set up masquerading: iptables not found in \
            /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        );
        // cni-plugins#76, with neither
        let addresses = nets(&["10.1.2.3/24"]);
        let mut rules = Ruleset::without_nftables();
        let neither = set_up_automatically(&mut rules, &addresses).0.unwrap_err();
        assert_eq!(neither.msg, error.msg);
        assert_eq!(neither.details, "the kernel lacks CONFIG_NFT_NAT");
        let unknown = masquerade::check(&mut rules, Choice::Automatic, FIRST, &addresses).unwrap_err();
        assert!(
            unknown.msg.starts_with("failed to read masquerading: "),
            "{unknown}"
        );
        tear_down(FIRST, None).unwrap();
    });
}

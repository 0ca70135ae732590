use super::*;

fn claim(id: &str, network: &str, machine: &str, ips: &[&str]) -> (Name, Claim) {
    let claim = Claim {
        machine: machine.into(),
        network: network.into(),
        ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        ..Claim::default()
    };
    (Name::new("ns", id), claim)
}

#[test]
fn holders_of_an_address_are_shown() {
    let claims = [
        claim("vm1.lan", "lan", "vm1", &["10.0.0.2/24", "fd00::2/64"]),
        claim("x", "wan", "", &["10.0.0.2"]),
        claim("vm2.lan", "lan", "vm2", &["10.0.0.3/24"]),
    ];
    let answer = who("10.0.0.2".parse().unwrap(), &claims);
    assert_eq!(
        answer.text,
        "NETWORK  IPAMCLAIM   VIRTUAL MACHINE  STATE\n\
         lan      ns/vm1.lan  vm1              held\n\
         wan      ns/x        -                held\n"
    );
    assert_eq!(answer.code, 0);
    let nobody = who("fd00::9".parse().unwrap(), &claims);
    assert_eq!(
        (nobody.text.as_str(), nobody.code),
        ("no IPAMClaim has fd00::9\n", 1)
    );
}

#[test]
fn ranges_are_shown_with_their_free_addresses() {
    let network = |name: &str, config: &str| Network::read(Name::new("ns", name), config);
    let networks = [
        network(
            "lan",
            r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/29"},{"subnet":"fd00::/120"}]}"#,
        ),
        network(
            "off",
            r#"{"name":"off","persistentIPRanges":[{"subnet":"10.0.1.0/29"}]}"#,
        ),
        network("broken", "{"),
    ];
    let claims = [
        claim("vm1.lan", "lan", "vm1", &["10.0.0.2/29", "fd00::2/120"]),
        claim("vm1.wan", "wan", "vm1", &["10.0.0.3/29"]),
    ];
    let answer = usage(&networks, &claims);
    assert_eq!(
        answer.text,
        "NETWORK  DEFINITION  SUBNET       ADDRESSES  TAKEN  FREE\n\
         lan      ns/lan      10.0.0.0/29  5          1      4\n\
         lan      ns/lan      fd00::/120   254        1      253\n"
    );
    assert_eq!((answer.code, answer.remarks.as_str()), (0, ""));
    let all = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    let full = usage(&networks, &[claim("c", "lan", "vm1", &all)]);
    assert_eq!(full.code, 1);
    assert!(full.remarks.contains("nearly full"));
    assert_eq!(usage(&[], &[]).text, "no network has persistentIPRanges\n");
}

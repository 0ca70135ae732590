use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(range: &Value) -> Result<Range, String> {
    let wire: WireRange = serde_json::from_value(range.clone()).unwrap();
    Range::read(&wire).map_err(|error| error.to_string())
}

fn range(range: &Value) -> Range {
    read(range).unwrap()
}

fn held(addresses: &[&str]) -> Holders<&'static str> {
    let holder = |text: &&str| (text.parse().unwrap(), vec!["ns/other"]);
    addresses.iter().map(holder).collect()
}

fn given(ranges: &[Range], taken: &[&str], requested: &[&str]) -> Result<Vec<String>, String> {
    let requested: Vec<_> = requested.iter().map(|text| (*text).to_owned()).collect();
    let given = allocate(ranges, &held(taken), &requested);
    let texts = |nets: Vec<IpNet>| nets.iter().map(ToString::to_string).collect();
    given.map(texts).map_err(|error| error.to_string())
}

#[test]
fn lowest_free_address_is_given() {
    // kubevirt-ipam#96
    let ranges = [range(&json!({ "subnet": "10.0.0.0/29" }))];
    assert_eq!(ranges[0].size(), 5, "without network, broadcast and gateway");
    assert_eq!(given(&ranges, &[], &[]), Ok(vec!["10.0.0.2/29".to_owned()]));
    assert_eq!(
        given(&ranges, &["10.0.0.2", "10.0.0.3", "10.0.0.5"], &[]),
        Ok(vec!["10.0.0.4/29".to_owned()])
    );
    let all = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    assert_eq!(
        given(&ranges, &all, &[]).unwrap_err(),
        "all IPv4 addresses of the network's range are taken"
    );
}

#[test]
fn bounds_gateway_and_exclusions_count() {
    // kubevirt-ipam#97
    let ranges = [range(&json!({
        "subnet": "10.0.0.7/24", "rangeStart": "10.0.0.1", "rangeEnd": "10.0.0.10", "gateway": "10.0.0.4",
        "exclude": ["10.0.0.1", "10.0.0.2/31", "fd00::/64", "10.0.0.8/30"],
    }))];
    assert_eq!(ranges[0].size(), 3);
    assert_eq!(
        given(&ranges, &["10.0.0.5", "10.0.0.6"], &[]),
        Ok(vec!["10.0.0.7/24".to_owned()])
    );
    assert!(given(&ranges, &["10.0.0.5", "10.0.0.6", "10.0.0.7"], &[]).is_err());
}

#[test]
fn both_families_are_served() {
    // kubevirt-ipam#98
    let ranges = [
        range(&json!({ "subnet": "fd00:1::/64" })),
        range(&json!({ "subnet": "10.0.0.0/30" })),
        range(&json!({ "subnet": "10.1.0.0/24" })),
    ];
    assert_eq!(
        given(&ranges, &[], &[]),
        Ok(vec!["10.0.0.2/30".to_owned(), "fd00:1::2/64".to_owned()])
    );
    // The first range is full: the address is from the next range of the family.
    assert_eq!(
        given(&ranges, &["10.0.0.2", "fd00:1::2"], &[]),
        Ok(vec!["10.1.0.2/24".to_owned(), "fd00:1::3/64".to_owned()])
    );
    assert_eq!(ranges[0].size(), (1 << 64) - 2);
}

#[test]
fn requested_addresses_are_checked() {
    // kubevirt-ipam#99
    let ranges = [
        range(&json!({ "subnet": "10.0.0.0/24", "exclude": ["10.0.0.128/25"] })),
        range(&json!({ "subnet": "fd00::/64" })),
    ];
    assert_eq!(
        given(&ranges, &[], &["fd00::77", "10.0.0.77"]),
        Ok(vec!["10.0.0.77/24".to_owned(), "fd00::77/64".to_owned()])
    );
    assert_eq!(
        given(&ranges, &[], &["10.0.0.77"]),
        Ok(vec!["10.0.0.77/24".to_owned(), "fd00::2/64".to_owned()])
    );
    for (requested, text) in [
        (
            "10.0.1.1",
            "the requested address 10.0.1.1 is not in the network's range",
        ),
        (
            "10.0.0.200",
            "the requested address 10.0.0.200 is not in the network's range",
        ),
        ("10.0.0.9", "the requested address 10.0.0.9 is taken by ns/other"),
        ("nonsense", "invalid IP address format: nonsense"),
    ] {
        assert_eq!(given(&ranges, &["10.0.0.9"], &[requested]).unwrap_err(), text);
    }
    assert_eq!(
        given(&ranges, &[], &["10.0.0.8", "10.0.0.9"]).unwrap_err(),
        "more than one address of a family is requested"
    );
}

#[test]
fn malformed_ranges_name_their_mistake() {
    for (wrong, text) in [
        (json!({}), r#"subnet "" is not an address with a prefix length"#),
        (
            json!({ "subnet": "10.0.0.0" }),
            r#"subnet "10.0.0.0" is not an address with a prefix length"#,
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "rangeStart": "x" }),
            r#"rangeStart "x" is not an address"#,
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "rangeEnd": "10.0.1.0" }),
            "rangeEnd 10.0.1.0 is not in the subnet 10.0.0.0/24",
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "gateway": "fd00::1" }),
            "gateway fd00::1 is not in the subnet 10.0.0.0/24",
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "exclude": ["y"] }),
            r#"exclude "y" is neither an address nor an address with a prefix length"#,
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8" }),
            "no address of 10.0.0.0/24 is left to be given",
        ),
        (
            json!({ "subnet": "10.0.0.0/24", "exclude": ["0.0.0.0/0"] }),
            "no address of 10.0.0.0/24 is left to be given",
        ),
    ] {
        assert_eq!(read(&wrong).unwrap_err(), text, "{wrong}");
    }
}

#[test]
fn tiny_and_huge_subnets_have_ranges() {
    assert_eq!(range(&json!({ "subnet": "10.0.0.4/31" })).size(), 2);
    assert_eq!(range(&json!({ "subnet": "10.0.0.4/32" })).size(), 1);
    assert_eq!(range(&json!({ "subnet": "fd00::4/128" })).size(), 1);
    assert_eq!(range(&json!({ "subnet": "0.0.0.0/0" })).size(), (1 << 32) - 3);
    let whole = range(&json!({ "subnet": "::/0" }));
    assert!(whole.size() > u128::MAX - 4);
    assert_eq!(given(&[whole], &["::2"], &[]), Ok(vec!["::3/0".to_owned()]));
}

#[test]
fn ranges_overlap_when_they_share_an_address() {
    // kubevirt-ipam#104
    let of = |subnet: &str| range(&json!({ "subnet": subnet }));
    assert!(of("10.0.0.0/24").overlaps(&of("10.0.0.128/25")));
    assert!(!of("10.0.0.0/25").overlaps(&of("10.0.0.128/25")));
    assert!(!of("::/0").overlaps(&of("0.0.0.0/0")));
}

proptest! {
    #[test]
    fn addresses_are_given_until_all_are_and_none_twice(
        prefix in 26_u8..31, excluded in prop::collection::vec((0_u8..64, 27_u8..33), 0..4),
    ) {
        // kubevirt-ipam#96, kubevirt-ipam#97
        let exclude: Vec<_> = excluded.iter().map(|(low, length)| format!("10.0.0.{low}/{length}")).collect();
        let wire = json!({ "subnet": format!("10.0.0.0/{prefix}"), "exclude": exclude });
        if let Ok(range) = read(&wire) {
            let mut holders: Holders<&str> = BTreeMap::new();
            while let Ok(given) = allocate(std::slice::from_ref(&range), &holders, &[]) {
                prop_assert_eq!(given.len(), 1);
                prop_assert!(range.contains(given[0].addr()));
                prop_assert!(holders.insert(given[0].addr(), vec!["x"]).is_none());
            }
            prop_assert_eq!(holders.len() as u128, range.size());
        }
    }
}

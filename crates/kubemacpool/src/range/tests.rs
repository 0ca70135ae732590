use proptest::prelude::*;
use std::collections::BTreeSet;

use super::*;

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

fn range(start: &str, end: &str) -> Range {
    Range::new(mac(start), mac(end)).unwrap()
}

fn error(start: &str, end: &str) -> String {
    Range::new(mac(start), mac(end)).unwrap_err().to_string()
}

// kubemacpool#1, kubemacpool#4
#[test]
fn start_must_be_below_end() {
    for (start, end, text) in [
        (
            "0A:00:00:00:00:00",
            "02:00:00:00:00:00",
            "invalid range. rangeStart: 0a:00:00:00:00:00 rangeEnd: 02:00:00:00:00:00",
        ),
        (
            "02:00:00:00:00:00",
            "02:00:00:00:00:00",
            "invalid range. rangeStart: 02:00:00:00:00:00 rangeEnd: 02:00:00:00:00:00",
        ),
        (
            "02:FF:00:00:00:00",
            "00:00:00:00:00:00",
            "invalid range. rangeStart: 02:ff:00:00:00:00 rangeEnd: 00:00:00:00:00:00",
        ),
        (
            "02:FF:00:00:00:00",
            "02:00:00:00:00:01",
            "invalid range. rangeStart: 02:ff:00:00:00:00 rangeEnd: 02:00:00:00:00:01",
        ),
        // The order is checked before the ends.
        (
            "03:00:00:00:00:00",
            "01:00:00:00:00:00",
            "invalid range. rangeStart: 03:00:00:00:00:00 rangeEnd: 01:00:00:00:00:00",
        ),
        // Only Ethernet addresses make a range.
        (
            "02:00:00:00:00:00",
            "02:00:00:00:00:00:00:01",
            "invalid range. rangeStart: 02:00:00:00:00:00 rangeEnd: 02:00:00:00:00:00:00:01",
        ),
        (
            "0200.0000.0000.0001",
            "02:00:00:00:00:02",
            "invalid range. rangeStart: 02:00:00:00:00:00:00:01 rangeEnd: 02:00:00:00:00:02",
        ),
    ] {
        assert_eq!(error(start, end), text);
    }
    let accepted = range("02:00:00:00:00:00", "02:10:00:00:00:00");
    assert_eq!(accepted.start(), mac("02:00:00:00:00:00"));
    assert_eq!(accepted.end(), mac("02:10:00:00:00:00"));
}

// kubemacpool#2, kubemacpool#3
#[test]
fn both_ends_must_be_unicast() {
    assert_eq!(
        error("03:00:00:00:00:00", "06:00:00:00:00:00"),
        "invalid range start: invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
         used. The first octet is 0X3"
    );
    assert_eq!(
        error("02:00:00:00:00:00", "05:00:00:00:00:00"),
        "invalid range end: invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
         used. The first octet is 0X5"
    );
}

// kubemacpool#5
#[test]
fn unicast_is_an_even_first_octet() {
    for octet in (0u8..=0xfe).step_by(2) {
        let (start, end) = (
            format!("{octet:02x}:00:00:00:00:00"),
            format!("{octet:02x}:00:00:00:00:0f"),
        );
        assert_eq!(range(&start, &end).size(), 16, "{start}");
    }
    for octet in ["01", "FF"] {
        let (start, end) = (
            format!("{octet}:00:00:00:00:00"),
            format!("{octet}:00:00:00:00:0f"),
        );
        let text = error(&start, &end);
        assert!(text.starts_with("invalid range start: "), "{text}");
    }
    let text = error("FF:00:00:00:00:00", "FF:00:00:00:00:0f");
    assert!(text.ends_with("The first octet is 0XFF"), "{text}");
}

// kubemacpool#6
#[test]
fn size_counts_both_ends() {
    assert_eq!(range("02:00:00:00:00:00", "02:00:00:00:00:10").size(), 17);
    assert_eq!(
        range("40:00:00:00:00:00", "50:00:00:00:00:00").size(),
        (1 << 44) + 1
    );
    let same = "02:00:00:00:00:10";
    assert!(Range::new(mac(same), mac(same)).is_err());
}

// kubemacpool#7
#[test]
fn successor_skips_multicast() {
    for (address, next) in [
        ("02:00:00:00:00:00", "02:00:00:00:00:01"),
        ("02:00:00:00:00:FF", "02:00:00:00:01:00"),
        ("FF:FF:FF:FF:FF:FF", "00:00:00:00:00:00"),
    ] {
        assert_eq!(
            Mac::from_number(successor(mac(address).number().unwrap())),
            mac(next)
        );
    }
    let range = range("02:00:00:00:00:00", "02:00:00:00:00:FF");
    assert_eq!(
        range.after(range.end),
        range.start,
        "behind the last comes the first"
    );
}

#[test]
fn usable_addresses_are_counted() {
    let all = range("00:00:00:00:00:00", "fe:ff:ff:ff:ff:ff");
    assert_eq!(
        all.usable(),
        (1 << 47) - 2,
        "every second block, but for two reserved addresses"
    );
    let default = range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");
    assert_eq!(default.usable(), (1 << 40) - 1);
    let wide = range("02:ff:ff:ff:ff:f0", "04:00:00:00:00:0f");
    assert_eq!(wide.usable(), 32);
}

#[test]
fn kubevirt_bridge_address_is_reserved() {
    let bridge = mac("02:00:00:00:00:00");
    assert!(!range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF").may_hand_out(bridge));
    assert!(!range("02:00:00:00:00:00", "02:00:00:00:01:00").may_hand_out(bridge));
    let small = range("02:00:00:00:00:00", "02:00:00:00:00:FF");
    assert!(small.may_hand_out(bridge));
    assert_eq!(small.usable(), 256);
    assert!(range("02:00:00:00:00:00", "02:00:00:00:00:01").may_hand_out(bridge));
}

#[test]
fn zero_address_is_never_allocated() {
    let range = range("00:00:00:00:00:00", "00:00:00:00:00:01");
    assert!(!range.may_hand_out(mac("00:00:00:00:00:00")));
    assert_eq!(range.usable(), 1);
}

#[test]
fn replicas_share_a_range() {
    let default = range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");
    assert_eq!(default.share(0, 1), Ok(default));
    let shares: Vec<Range> = (0..3).map(|ordinal| default.share(ordinal, 3).unwrap()).collect();
    let ends: Vec<String> = shares
        .iter()
        .map(|share| format!("{} {}", share.start(), share.end()))
        .collect();
    assert_eq!(
        ends,
        [
            "02:00:00:00:00:00 02:55:55:55:55:55",
            "02:55:55:55:55:56 02:aa:aa:aa:aa:aa",
            "02:aa:aa:aa:aa:ab 02:ff:ff:ff:ff:ff",
        ]
    );
    let two = range("02:00:00:00:00:00", "02:00:00:00:00:01");
    assert_eq!(two.share(1, 2).map(|share| share.usable()), Ok(1));
    assert_eq!(
        two.share(0, 3).unwrap_err().to_string(),
        "the range 02:00:00:00:00:00 - 02:00:00:00:00:01 has too few addresses for 3 replicas"
    );
    assert_eq!(
        two.share(2, 2).unwrap_err().to_string(),
        "there is no replica 2 of 2: they count from 0"
    );
    assert!(two.share(0, 0).is_err());
    assert!(default.share(0, u64::MAX).is_err());
}

/// Every address of a small range around the borders of first octets, by brute force.
fn handed_out(range: &Range) -> BTreeSet<u64> {
    (range.start..=range.end)
        .filter(|address| address >> 40 & 1 == 0)
        .filter(|address| *address != 0)
        .filter(|address| *address != 0x0200_0000_0000 || range.size() <= 256)
        .collect()
}

fn near_a_border() -> impl Strategy<Value = Range> {
    // Brute force skips the multicast block between the two, which the code skips at once.
    (0u64..4, -300i64..300, 1u64..600).prop_filter_map("ends must be unicast", |(octet, from, size)| {
        let start = (octet << 41).checked_add_signed(from)?;
        Range::new(Mac::from_number(start), Mac::from_number(start + size)).ok()
    })
}

proptest! {
    #[test]
    fn usable_agrees_with_brute_force(range in near_a_border()) {
        prop_assert_eq!(range.usable(), handed_out(&range).len() as u64);
    }

    #[test]
    fn search_finds_each_address_in_order(range in near_a_border()) {
        let mut found = BTreeSet::new();
        let mut from = range.start;
        while let Some(address) = range.first_free((from, range.end), |_| None) {
            prop_assert!(range.may_hand_out(Mac::from_number(address)));
            found.insert(address);
            from = address + 1;
        }
        prop_assert_eq!(found, handed_out(&range));
    }

    #[test]
    fn random_position_is_unicast_and_in_range(start in 0u64..1 << 47, size in 1u64..1 << 47, random: u64) {
        let (start, end) = (start & !(1 << 40), (start + size) & !(1 << 40));
        prop_assume!(start < end);
        let range = Range::new(Mac::from_number(start), Mac::from_number(end)).unwrap();
        let place = range.place(random);
        prop_assert!(range.has(place) && !is_multicast(place), "{place:x}");
    }

    #[test]
    fn shares_cover_the_range_and_never_overlap(
        start in 0u64..1 << 47,
        size in 1u64..1 << 47,
        replicas in 1u64..9,
    ) {
        let (start, end) = (start & !(1 << 40), (start + size) & !(1 << 40));
        prop_assume!(start < end);
        let range = Range::new(Mac::from_number(start), Mac::from_number(end)).unwrap();
        prop_assume!(range.unicast() >= replicas);
        let shares: Vec<Range> =
            (0..replicas).map(|ordinal| range.share(ordinal, replicas).unwrap()).collect();
        prop_assert_eq!(shares[0].start, range.start);
        prop_assert_eq!(shares[shares.len() - 1].end, range.end);
        for pair in shares.windows(2) {
            let next = range.first_free((pair[0].end + 1, range.end), |_| None);
            prop_assert!(pair[0].end < pair[1].start);
            prop_assert_eq!(unicast_below(pair[0].end + 1), unicast_below(pair[1].start));
            prop_assert!(next.is_some_and(|next| next >= pair[1].start));
        }
        let sizes: Vec<u64> = shares.iter().map(Range::unicast).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
    }
}

#[test]
fn share_allocates_only_addresses_of_the_range() {
    let bridge = mac("02:00:00:00:00:00");
    let whole = range("02:00:00:00:00:00", "02:00:00:00:01:ff");
    let part = whole.share(0, 3).expect("a part");
    assert!(part.size() < 256 && !part.may_hand_out(bridge));
    let counted = range("02:00:00:00:00:00", "02:00:00:00:00:ff");
    assert!(counted.share(0, 3).expect("a part").may_hand_out(bridge));
}

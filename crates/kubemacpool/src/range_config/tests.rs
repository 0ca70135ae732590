use super::*;
use crate::messages;

fn range(start: &str, end: &str) -> Range {
    let mac = |text| Mac::parse(text).expect("an address");
    Range::new(mac(start), mac(end)).expect("a range")
}

fn data(start: &str, end: &str) -> BTreeMap<String, String> {
    let ends = [("RANGE_START", start), ("RANGE_END", end)];
    ends.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn active() -> Range {
    range("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff")
}

fn decided(data: &BTreeMap<String, String>) -> Decision {
    decide(data, &active(), Share::WHOLE)
}

/// The message of the event about this data.
fn reported(data: &BTreeMap<String, String>) -> String {
    match decided(data) {
        Decision::Invalid(error) => messages::range_ignored(error),
        Decision::Refused { start, end, cause } => messages::range_refused(start, end, cause),
        decision => panic!("{decision:?}"),
    }
}

// kubemacpool#68
#[test]
fn changed_range_is_taken_over() {
    let other = range("0a:00:00:00:00:00", "0a:00:00:00:00:ff");
    let decision = decided(&data("0A:00:00:00:00:00", "0A:00:00:00:00:FF"));
    let expected = Decision::Change {
        range: other,
        share: other,
    };
    assert_eq!(decision, expected);
}

// kubemacpool#72
#[test]
fn same_range_in_other_case_changes_nothing() {
    assert_eq!(
        decided(&data("02-00-00-00-00-00", "02FF.FFFF.FFFF")),
        Decision::Keep
    );
}

// kubemacpool#69, kubemacpool#71
#[test]
fn data_without_range_is_reported() {
    let before = "Invalid MAC range in ConfigMap, ignoring new range values: ";
    for (data, text) in [
        (BTreeMap::new(), "RANGE_START not found in ConfigMap"),
        (
            [("RANGE_START".to_owned(), "02:00:00:00:00:00".to_owned())].into(),
            "RANGE_END not found in ConfigMap",
        ),
        (
            data("invalid-mac", "02:00:00:00:00:00"),
            "invalid RANGE_START \"invalid-mac\": address invalid-mac: invalid MAC address",
        ),
        (
            data("02:00:00:00:00:00", ""),
            "invalid RANGE_END \"\": invalid MAC address",
        ),
    ] {
        assert_eq!(reported(&data), format!("{before}{text}"));
    }
}

// kubemacpool#70
#[test]
fn unusable_range_is_reported() {
    assert_eq!(
        reported(&data("03:00:00:00:00:00", "06:00:00:00:00:00")),
        "Failed to apply new MAC ranges 03:00:00:00:00:00 - 06:00:00:00:00:00: invalid range start: invalid mac address. \
         Multicast addressing is not supported. Unicast addressing must be used. The first octet is 0X3"
    );
    assert_eq!(
        reported(&data("02:00:00:00:00:01", "02:00:00:00:00:00")),
        "Failed to apply new MAC ranges 02:00:00:00:00:01 - 02:00:00:00:00:00: invalid range. rangeStart: \
         02:00:00:00:00:01 rangeEnd: 02:00:00:00:00:00"
    );
}

#[test]
fn each_replica_takes_its_share() {
    let data = data("0a:00:00:00:00:00", "0a:00:00:00:00:03");
    let share = |ordinal| decide(&data, &active(), Share { ordinal, replicas: 2 });
    let whole = range("0a:00:00:00:00:00", "0a:00:00:00:00:03");
    for (ordinal, start, end) in [
        (0, "0a:00:00:00:00:00", "0a:00:00:00:00:01"),
        (1, "0a:00:00:00:00:02", "0a:00:00:00:00:03"),
    ] {
        let expected = Decision::Change {
            range: whole,
            share: range(start, end),
        };
        assert_eq!(share(ordinal), expected);
    }
    let decision = decide(
        &data,
        &active(),
        Share {
            ordinal: 0,
            replicas: 5,
        },
    );
    assert!(matches!(&decision, Decision::Refused { cause, .. } if cause.to_string().contains("5 replicas")));
}

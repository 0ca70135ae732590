use super::*;

type Harm = fn(&mut Found);

fn take(found: &mut Found, next: Next) {
    found.authority = next.authority.or(found.authority.take());
    found.bundle = next.bundle.unwrap_or(std::mem::take(&mut found.bundle));
    found.certificate = next.certificate.or(found.certificate.take());
}

fn step(found: &mut Found, now: SystemTime) -> [bool; 3] {
    let next = next(found, "ns_ovn", "ovn", now).expect("issued");
    let written = [
        next.authority.is_some(),
        next.bundle.is_some(),
        next.certificate.is_some(),
    ];
    take(found, next);
    written
}

#[test]
fn everything_is_renewed_in_time_and_nothing_before() {
    let start = SystemTime::now();
    let mut found = Found::default();
    assert_eq!(step(&mut found, start), [true, true, true]);
    assert_eq!(step(&mut found, start), [false; 3]);
    assert_eq!(step(&mut found, start + DAY * 89), [false; 3]);
    assert_eq!(step(&mut found, start + DAY * 90), [false, false, true]);
    // The bundle contains the first authority beside the second one.
    let year = |years: u32| start + YEAR * years;
    step(&mut found, year(9) - DAY);
    let before = found.bundle.clone();
    assert_eq!(step(&mut found, year(9)), [true, true, true]);
    assert!(found.bundle.ends_with(&before) && found.bundle.len() > before.len());
    // The bundle drops the first authority after its expiry.
    let [authority, bundle, _] = step(&mut found, year(11));
    assert_eq!((authority, bundle), (false, true));
    assert!(!found.bundle.contains(&before));
}

#[test]
fn lost_or_broken_objects_are_restored() {
    let now = SystemTime::now();
    let mut whole = Found::default();
    step(&mut whole, now);
    let harms: [(Harm, [bool; 3]); 5] = [
        (|found| found.authority = None, [true, true, true]),
        (
            |found| {
                let authority = found.authority.as_mut().expect("one");
                authority.key = b"x".to_vec();
            },
            [true, true, true],
        ),
        (|found| found.bundle.clear(), [false, true, false]),
        (|found| found.certificate = None, [false, false, true]),
        (
            // The key of another certificate.
            |found| {
                let key = found.authority.as_ref().expect("one").key.clone();
                found.certificate.as_mut().expect("one").key = key;
            },
            [false, false, true],
        ),
    ];
    for (harm, expected) in harms {
        let mut found = whole.clone();
        harm(&mut found);
        // The names of two authorities differ after a second.
        assert_eq!(step(&mut found, now + Duration::from_secs(1)), expected);
        assert_eq!(step(&mut found, now + Duration::from_secs(1)), [false; 3]);
    }
    let renamed = next(&whole, "ns_ovn", "other", now).expect("issued");
    assert!(renamed.certificate.is_some() && renamed.authority.is_none());
}

use super::*;
use crate::mac::Mac;
use crate::range::Range;

// kubemacpool#45
#[test]
fn the_next_look_is_when_the_oldest_admission_has_waited() {
    let (wait, now) = (Duration::from_mins(10), Instant::now());
    let since = |seconds| now.checked_sub(Duration::from_secs(seconds));
    assert_eq!(pause(since(100), now, wait), Duration::from_secs(500));
    assert_eq!(pause(since(700), now, wait), Duration::ZERO);
    // Whatever is admitted meanwhile is not due before that.
    assert_eq!(pause(None, now, wait), wait);
    assert!(
        pause(None, now, Duration::ZERO) > Duration::ZERO,
        "nothing is polled in a circle"
    );
}

#[test]
fn an_object_that_was_not_told_of_keeps_the_addresses_of_what_had_no_name() {
    let mac = |text| Mac::parse(text).expect("an address");
    let holding = |text| Holding {
        mac: mac(text),
        key: "net".into(),
    };
    let (told, untold_of) = (holding("02:00:00:00:00:01"), holding("02:00:00:00:00:02"));
    let range = Range::new(mac("02:00:00:00:00:00"), mac("02:00:00:00:00:ff")).expect("a range");
    let mut pool = Pool::new(range, 0);
    pool.store(&Owner::pod("ns", "a"), "uid", vec![told.clone()], None);
    let objects = vec![
        (Owner::pod("ns", "a"), vec![told]),
        (Owner::pod("ns", "b"), vec![untold_of.clone()]),
    ];
    assert_eq!(untold(&pool, objects), [untold_of]);
}

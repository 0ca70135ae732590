use rstest::rstest;
use serde_json::json;

use super::*;
use crate::conditions::Status;

fn counts(pairs: &[(&str, i64)]) -> Counts {
    let owned = pairs.iter();
    owned.map(|(key, count)| ((*key).to_owned(), *count)).collect()
}

// nmstate#23
#[rstest]
#[case::default_of_five(5, None, 3)]
#[case::default_of_six(6, None, 3)]
#[case::number_of_five(5, Some(json!(3)), 3)]
#[case::number_of_six(6, Some(json!(3)), 3)]
#[case::no_number(5, Some(json!("asdf")), 3)]
#[case::number_as_text(5, Some(json!("3")), 3)]
#[case::nothing_percent(5, Some(json!("0%")), 1)]
#[case::nothing(5, Some(json!(0)), 1)]
#[case::less_than_nothing(5, Some(json!(-4)), 1)]
#[case::rounded_up(5, Some(json!("30%")), 2)]
#[case::all(7, Some(json!("100%")), 7)]
#[case::more_than_all(7, Some(json!("200%")), 14)]
#[case::alone(1, None, 1)]
#[case::nobody_yet(0, None, 1)]
#[case::null(6, Some(json!(null)), 3)]
fn so_many_nodes_at_a_time(#[case] enactments: usize, #[case] wanted: Option<Value>, #[case] expected: i64) {
    assert_eq!(limit(wanted.as_ref(), enactments).nodes, expected);
}

// nmstate#23
#[test]
fn what_is_no_limit_is_told() {
    let mistake = |wanted: Value| limit(Some(&wanted), 5).mistake;
    assert_eq!(
        mistake(json!("asdf")).as_deref(),
        Some("maxUnavailable is neither a number nor a percentage: \"asdf\"")
    );
    assert_eq!(
        mistake(json!("3")).as_deref(),
        Some("maxUnavailable is neither a number nor a percentage: \"3\"")
    );
    for fine in [json!("0%"), json!(0), json!("50%"), json!(null)] {
        assert_eq!(mistake(fine), None);
    }
}

// nmstate#24
#[test]
fn a_slot_is_taken_below_the_limit_and_not_at_it() {
    assert_eq!(take(&counts(&[]), 3, 1, 0), Some(counts(&[("3", 1)])));
    assert_eq!(take(&counts(&[("3", 1)]), 3, 2, 0), Some(counts(&[("3", 2)])));
    assert_eq!(take(&counts(&[("3", 2)]), 3, 2, 0), None);
    assert_eq!(take(&counts(&[("3", 7)]), 3, 2, 0), None);
}

#[test]
fn what_is_counted_for_older_generations_is_dropped_and_for_newer_ones_kept() {
    let before = counts(&[("2", 2), ("3", 1), ("4", 1), ("old", 9)]);
    assert_eq!(take(&before, 3, 2, 0), Some(counts(&[("3", 2), ("4", 1)])));
}

#[test]
fn slots_that_are_nobodys_are_given_away() {
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 1), Some(counts(&[("1", 2)])));
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 2), Some(counts(&[("1", 1)])));
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 9), Some(counts(&[("1", 1)])));
}

// nmstate#26
#[test]
fn a_slot_is_given_back_and_none_that_is_not_there() {
    let mut two = counts(&[("1", 2), ("2", 0)]);
    assert!(release(&mut two, 1));
    assert_eq!(two, counts(&[("1", 1), ("2", 0)]));
    assert!(!release(&mut two, 2));
    assert!(!release(&mut two, 3));
    assert_eq!(two, counts(&[("1", 1), ("2", 0)]));
}

fn enactment(node: &str, version: &str, failing: Status, progressing: Status, attempts: i64) -> Enactment {
    Enactment {
        name: format!("{node}.p"),
        node: node.to_owned(),
        version: version.to_owned(),
        generation: 1,
        failing: Some(failing),
        progressing: Some(progressing),
        attempts,
        ..Enactment::default()
    }
}

fn at_work(node: &str, version: &str) -> Enactment {
    enactment(node, version, Status::Unknown, Status::True, 0)
}

fn failed(node: &str) -> Enactment {
    enactment(node, "1", Status::True, Status::False, 5)
}

#[test]
fn enactments_that_failed_for_good_are_counted_in_their_generation() {
    let retrying = enactment("c", "1", Status::True, Status::True, 1);
    let mut old = failed("d");
    old.generation = 9;
    let all = [failed("a"), failed("b"), retrying, old, at_work("e", "1")];
    assert_eq!(failures(&all, 1), 2);
    let names: Vec<&str> = holders(&all, 1).map(|held| held.node.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "e"]);
    let never_made = [enactment("f", "1", Status::True, Status::False, 0)];
    assert_eq!(
        (holders(&never_made, 1).count(), failures(&never_made, 1)),
        (0, 0),
        "its document could not be made, so it had no slot"
    );
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_slot_without_an_enactment_is_nobodys_after_a_while() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    let one = [at_work("a", "1")];
    // Two slots, and one node at work: the other may be about to say so.
    assert_eq!(sightings.observe(1, 2, &one, start), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(10)), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(19)), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(20)), 1);
}

#[test]
fn a_slot_that_is_late_in_being_written_down_is_not_given_away() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    let one = [at_work("a", "1")];
    let two = [at_work("a", "1"), at_work("b", "1")];
    assert_eq!(sightings.observe(1, 2, &one, start), 0);
    assert_eq!(sightings.observe(1, 2, &two, start + seconds(15)), 0);
    // Seen anew, the while begins anew.
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(30)), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(40)), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(45)), 0);
    assert_eq!(sightings.observe(1, 2, &one, start + seconds(50)), 1);
    // Another generation is another count.
    assert_eq!(sightings.observe(2, 2, &one, start + seconds(60)), 0);
}

#[test]
fn only_as_many_as_were_never_held_are_given_away() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    let (one, two) = ([at_work("a", "1")], [at_work("a", "1"), at_work("b", "1")]);
    assert_eq!(sightings.observe(1, 3, &one, start), 0);
    assert_eq!(sightings.observe(1, 3, &two, start + seconds(10)), 0);
    assert_eq!(sightings.observe(1, 3, &one, start + seconds(25)), 1);
}

#[test]
fn a_node_that_no_longer_says_that_it_is_at_work_loses_its_slot() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    let minute = |count: u64| start + seconds(60 * count);
    let silent = [at_work("a", "1")];
    for at in 0..15 {
        assert_eq!(sightings.observe(1, 1, &silent, minute(at)), 0, "minute {at}");
    }
    for at in 15..17 {
        assert_eq!(sightings.observe(1, 1, &silent, minute(at)), 0, "minute {at}");
    }
    assert_eq!(sightings.observe(1, 1, &silent, minute(17)), 1);
    // nmstate#100: the node that takes the slot first checks whether node a is NotReady.
    assert_eq!(*sightings.silent(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(sightings.observe(1, 1, &[at_work("a", "2")], minute(18)), 0);
    assert!(sightings.silent().is_empty());

    let mut sightings = Sightings::default();
    for at in 0..60 {
        let alive = [at_work("a", &(at / 4).to_string())];
        assert_eq!(sightings.observe(1, 1, &alive, minute(at)), 0, "minute {at}");
        assert!(sightings.silent().is_empty());
    }
}

// nmstate#105
#[test]
fn pause_is_shorter_where_a_slot_seems_to_have_no_holder() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    sightings.observe(1, 1, &[at_work("a", "1")], start);
    assert_eq!(sightings.pause(), seconds(30));
    // Each look comes one pause after the look before.
    let (mut at, mut given_away) = (start, Vec::new());
    for _ in 0..3 {
        given_away.push(sightings.observe(1, 2, &[at_work("a", "1")], at));
        at += sightings.pause();
    }
    assert_eq!(given_away, [0, 0, 1]);
}

// nmstate#105
#[test]
fn is_full_at_the_limit_and_above_it_only_where_the_limit_is_fresh() {
    assert!(is_full(2, 2, false));
    assert!(!is_full(1, 2, true));
    assert!(!is_full(3, 2, false), "others saw that there are more");
    assert!(is_full(3, 2, true));
}

#[test]
fn who_failed_for_good_keeps_the_slot_however_long() {
    let mut sightings = Sightings::default();
    let start = Instant::now();
    for at in 0..100 {
        let now = start + seconds(60 * at);
        assert_eq!(sightings.observe(1, 1, &[failed("a")], now), 0, "minute {at}");
    }
}

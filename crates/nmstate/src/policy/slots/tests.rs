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
#[case::no_enactment(0, None, 1)]
#[case::null(6, Some(json!(null)), 3)]
fn limit_follows_max_unavailable_and_number_of_enactments(
    #[case] enactments: usize,
    #[case] max_unavailable: Option<Value>,
    #[case] expected: i64,
) {
    assert_eq!(limit(max_unavailable.as_ref(), enactments).nodes, expected);
}

// nmstate#23
#[test]
fn limit_with_invalid_max_unavailable_reports_the_mistake() {
    let mistake = |max_unavailable: Value| limit(Some(&max_unavailable), 5).mistake;
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
fn slot_is_taken_only_below_the_limit() {
    assert_eq!(take(&counts(&[]), 3, 1, 0), Some(counts(&[("3", 1)])));
    assert_eq!(take(&counts(&[("3", 1)]), 3, 2, 0), Some(counts(&[("3", 2)])));
    assert_eq!(take(&counts(&[("3", 2)]), 3, 2, 0), None);
    assert_eq!(take(&counts(&[("3", 7)]), 3, 2, 0), None);
}

#[test]
fn take_drops_counts_of_older_generations_and_keeps_newer_ones() {
    let before = counts(&[("2", 2), ("3", 1), ("4", 1), ("old", 9)]);
    assert_eq!(take(&before, 3, 2, 0), Some(counts(&[("3", 2), ("4", 1)])));
}

#[test]
fn leaked_slots_are_taken() {
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 1), Some(counts(&[("1", 2)])));
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 2), Some(counts(&[("1", 1)])));
    assert_eq!(take(&counts(&[("1", 2)]), 1, 2, 9), Some(counts(&[("1", 1)])));
}

// nmstate#26
#[test]
fn release_reports_whether_a_slot_was_taken() {
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

fn progressing(node: &str, version: &str) -> Enactment {
    enactment(node, version, Status::Unknown, Status::True, 0)
}

fn failed(node: &str) -> Enactment {
    enactment(node, "1", Status::True, Status::False, 5)
}

#[test]
fn failures_count_final_failures_of_one_generation() {
    let retrying = enactment("c", "1", Status::True, Status::True, 1);
    let mut old = failed("d");
    old.generation = 9;
    let all = [failed("a"), failed("b"), retrying, old, progressing("e", "1")];
    assert_eq!(failures(&all, 1), 2);
    let names: Vec<&str> = holders(&all, 1).map(|held| held.node.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "e"]);
    let never_made = [enactment("f", "1", Status::True, Status::False, 0)];
    assert_eq!(
        (holders(&never_made, 1).count(), failures(&never_made, 1)),
        (0, 0),
        "rendering failed, so it had no slot"
    );
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// An observation with a grace time of 20 s.
fn observe(
    leaks: &mut LeakDetector,
    generation: i64,
    counted: i64,
    enactments: &[Enactment],
    now: Instant,
) -> i64 {
    leaks.observe(generation, counted, enactments, seconds(20), now)
}

#[test]
fn slot_without_enactment_is_leaked_after_grace_time() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    let one = [progressing("a", "1")];
    // Two slots and one progressing node: the other one may be about to write its enactment.
    assert_eq!(observe(&mut leaks, 1, 2, &one, start), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(10)), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(19)), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(20)), 1);
}

#[test]
fn slot_whose_handler_lost_two_answers_is_not_leaked() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    for at in [seconds(0), TIMEOUT, 2 * TIMEOUT, 3 * TIMEOUT] {
        assert_eq!(leaks.observe(1, 1, &[], GRACE, start + at), 0, "after {at:?}");
    }
}

#[test]
fn slot_whose_enactment_is_written_late_is_not_leaked() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    let one = [progressing("a", "1")];
    let two = [progressing("a", "1"), progressing("b", "1")];
    assert_eq!(observe(&mut leaks, 1, 2, &one, start), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &two, start + seconds(15)), 0);
    // A new surplus starts a new grace time.
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(30)), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(40)), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(45)), 0);
    assert_eq!(observe(&mut leaks, 1, 2, &one, start + seconds(50)), 1);
    // Each generation has its own count.
    assert_eq!(observe(&mut leaks, 2, 2, &one, start + seconds(60)), 0);
}

#[test]
fn leak_is_the_lowest_observed_surplus() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    let (one, two) = (
        [progressing("a", "1")],
        [progressing("a", "1"), progressing("b", "1")],
    );
    assert_eq!(observe(&mut leaks, 1, 3, &one, start), 0);
    assert_eq!(observe(&mut leaks, 1, 3, &two, start + seconds(10)), 0);
    assert_eq!(observe(&mut leaks, 1, 3, &one, start + seconds(25)), 1);
}

#[test]
fn node_without_heartbeat_loses_its_slot() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    let minute = |count: u64| start + seconds(60 * count);
    let silent = [progressing("a", "1")];
    for at in 0..15 {
        assert_eq!(observe(&mut leaks, 1, 1, &silent, minute(at)), 0, "minute {at}");
    }
    for at in 15..17 {
        assert_eq!(observe(&mut leaks, 1, 1, &silent, minute(at)), 0, "minute {at}");
    }
    assert_eq!(observe(&mut leaks, 1, 1, &silent, minute(17)), 1);
    // nmstate#100: the node that takes the slot first checks whether node a is NotReady.
    assert_eq!(*leaks.silent_nodes(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(observe(&mut leaks, 1, 1, &[progressing("a", "2")], minute(18)), 0);
    assert!(leaks.silent_nodes().is_empty());

    let mut leaks = LeakDetector::default();
    for at in 0..60 {
        let alive = [progressing("a", &(at / 4).to_string())];
        assert_eq!(observe(&mut leaks, 1, 1, &alive, minute(at)), 0, "minute {at}");
        assert!(leaks.silent_nodes().is_empty());
    }
}

// nmstate#105
#[test]
fn interval_is_shorter_while_a_leak_is_suspected() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    observe(&mut leaks, 1, 1, &[progressing("a", "1")], start);
    assert_eq!(leaks.interval(), seconds(30));
    // Each observation follows one interval after the previous one.
    let (mut at, mut leaked) = (start, Vec::new());
    for _ in 0..3 {
        leaked.push(observe(&mut leaks, 1, 2, &[progressing("a", "1")], at));
        at += leaks.interval();
    }
    assert_eq!(leaked, [0, 0, 1]);
}

// nmstate#105
#[test]
fn is_full_at_the_limit_and_above_it_only_where_the_limit_is_fresh() {
    assert!(is_full(2, 2, false));
    assert!(!is_full(1, 2, true));
    assert!(!is_full(3, 2, false), "other nodes observed a higher limit");
    assert!(is_full(3, 2, true));
}

#[test]
fn final_failure_keeps_its_slot() {
    let mut leaks = LeakDetector::default();
    let start = Instant::now();
    for at in 0..100 {
        let now = start + seconds(60 * at);
        assert_eq!(observe(&mut leaks, 1, 1, &[failed("a")], now), 0, "minute {at}");
    }
}

use super::*;

const SET: &str = "DaemonSet multus";

fn event(revision: u64, seconds: f64, news: News) -> Event {
    Event {
        revision,
        at: Duration::from_secs_f64(seconds),
        news,
    }
}

/// The configuration of this generation, whose condition last changed at this second.
fn says(revision: u64, seconds: f64, generation: i64, available: bool, since: u32) -> Event {
    let configuration = Configuration {
        generation,
        ending: false,
        available,
        since: format!("2026-01-02T03:{:02}:{:02}Z", since / 60, since % 60),
        node_state: false,
    };
    event(revision, seconds, News::Configuration(Some(configuration)))
}

fn rolling(revision: u64, seconds: f64, generation: i64) -> Event {
    let workload = Workload {
        generation,
        unfinished: Some("numberAvailable is 1 of 2".to_owned()),
        of_node_state: false,
    };
    event(revision, seconds, News::Workload(SET.to_owned(), Some(workload)))
}

fn rolled_out(revision: u64, seconds: f64, generation: i64) -> Event {
    let workload = Workload {
        generation,
        unfinished: None,
        of_node_state: false,
    };
    event(revision, seconds, News::Workload(SET.to_owned(), Some(workload)))
}

fn runs(revision: u64, seconds: f64, runs: bool) -> Event {
    event(revision, seconds, News::Operator(runs))
}

#[test]
fn violations_true_after_roll_out_is_none() {
    let events = vec![
        runs(1, 0.0, true),
        says(2, 0.1, 1, false, 0),
        rolling(3, 0.2, 1),
        rolled_out(4, 20.0, 1),
        says(5, 20.1, 1, true, 20),
        // The configuration changes, the workload is rolled out again, and the status follows.
        says(6, 90.0, 2, true, 20),
        rolling(7, 91.0, 2),
        says(8, 92.0, 2, false, 92),
        rolled_out(9, 130.0, 2),
        says(10, 130.5, 2, true, 130),
    ];
    assert_eq!(violations(events), [] as [String; 0]);
}

#[test]
fn violations_true_before_roll_out_is_found_by_the_order_of_revisions() {
    let before = |revision: u64| {
        vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, 0),
            rolling(3, 0.2, 1),
            says(5, 20.1, 1, true, 20),
            // The watch of the workload is late.
            rolled_out(revision, 20.3, 1),
        ]
    };
    assert_eq!(violations(before(4)), [] as [String; 0]);
    assert_eq!(
        violations(before(6)),
        [
            "Available became True while DaemonSet multus was not rolled out for 19.9 s: numberAvailable is 1 of 2"
        ]
    );
}

#[test]
fn violations_true_just_after_a_workload_broke_is_none() {
    let broken_at = |seconds: f64| {
        vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, 0),
            rolled_out(3, 0.2, 1),
            rolling(4, seconds, 1),
            says(5, 20.0, 1, true, 20),
            says(6, 22.0, 1, false, 22),
        ]
    };
    assert_eq!(violations(broken_at(11.0)), [] as [String; 0]);
    assert_eq!(violations(broken_at(9.0)).len(), 1);
}

#[test]
fn violations_true_that_stays_over_a_broken_workload_is_found_once() {
    let until = |seconds: f64| {
        vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, true, 0),
            rolled_out(3, 0.2, 1),
            rolling(4, 100.0, 1),
            says(5, seconds, 1, false, 131),
            rolled_out(6, 200.0, 1),
        ]
    };
    assert_eq!(violations(until(129.0)), [] as [String; 0]);
    assert_eq!(
        violations(until(131.0)),
        [
            "Available stayed True while DaemonSet multus was not rolled out for 31.0 s: numberAvailable is 1 of 2"
        ]
    );
    // The end of the roll-out shows it too, without a new status.
    let mut silent = until(131.0);
    silent.remove(4);
    assert_eq!(violations(silent).len(), 1);
}

#[test]
fn violations_time_without_the_operator_does_not_count() {
    let after = |seconds: f64| {
        vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, true, 0),
            rolled_out(3, 0.2, 1),
            rolling(4, 100.0, 2),
            runs(5, 101.0, false),
            runs(6, 160.0, true),
            says(7, 160.0 + seconds, 1, false, 189),
        ]
    };
    assert_eq!(violations(after(29.0)), [] as [String; 0]);
    assert_eq!(violations(after(31.0)).len(), 1);
}

#[test]
fn violations_true_that_ends_within_a_second_is_found_unless_a_change_was_requested() {
    let flap = |between: Option<Event>, generation: i64, (end, since): (f64, u32)| {
        let mut events = vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, 0),
            rolled_out(3, 0.2, 1),
            says(5, 100.0, 1, true, 100),
            says(7, end, generation, false, since),
        ];
        events.extend(between);
        violations(events)
    };
    let found = ["Available was True for less than a second, at 2026-01-02T03:01:40Z"];
    let none = [] as [String; 0];
    let at_once = (100.4, 100);
    assert_eq!(flap(None, 1, at_once), found);
    assert_eq!(flap(None, 1, (100.4, 101)), found, "over the turn of a second");
    assert_eq!(flap(None, 1, (101.1, 101)), none, "for more than a second");
    assert_eq!(
        flap(None, 1, (100.4, 130)),
        none,
        "for half a minute, and the watch was late"
    );
    assert_eq!(flap(None, 2, at_once), none, "another configuration");
    // The workload was rolled out in its first event.
    let killed = rolling(6, 100.2, 1);
    assert_eq!(flap(Some(killed), 1, at_once), none, "a daemon died");
    let disturbed = event(5, 100.2, News::Disturbance);
    assert_eq!(
        flap(Some(disturbed), 1, at_once),
        none,
        "the test killed a program whose workload has no label"
    );
    let edited = rolling(6, 100.2, 2);
    assert_eq!(flap(Some(edited), 1, at_once), none, "a workload was edited");
    let edited_before = rolled_out(4, 99.9, 2);
    assert_eq!(
        flap(Some(edited_before), 1, at_once),
        found,
        "the operator knows its edit"
    );
    let deleted = event(6, 100.2, News::Workload(SET.to_owned(), None));
    assert_eq!(flap(Some(deleted), 1, at_once), none, "a workload was deleted");
}

#[test]
fn violations_true_while_an_old_pod_counts_is_found() {
    // The first status after an edit still counts the old pod.
    let events = vec![
        runs(1, 0.0, true),
        says(2, 0.1, 1, true, 0),
        rolled_out(3, 0.2, 1),
        says(4, 100.0, 2, true, 0),
        rolling(5, 100.1, 2),
        says(6, 100.1, 2, false, 100),
        says(7, 100.2, 2, true, 100),
        says(8, 100.3, 2, false, 100),
        rolled_out(9, 105.0, 2),
        says(10, 106.5, 2, true, 106),
    ];
    assert_eq!(
        violations(events),
        [
            "Available became True while DaemonSet multus was not rolled out for 0.1 s: numberAvailable is 1 of 2",
            "Available was True for less than a second, at 2026-01-02T03:01:40Z"
        ]
    );
}

#[test]
fn violations_handlers_of_node_state_count_where_the_configuration_has_them() {
    let of_node_state = |revision: u64, seconds: f64| {
        let workload = Workload {
            generation: 1,
            unfinished: Some("numberAvailable is 0 of 2".to_owned()),
            of_node_state: true,
        };
        let news = News::Workload("DaemonSet nmstate-handler".to_owned(), Some(workload));
        event(revision, seconds, news)
    };
    let with = |has_node_state: bool| {
        let mut events = vec![
            runs(1, 0.0, true),
            says(2, 0.1, 1, false, 0),
            of_node_state(3, 5.0),
            says(4, 20.0, 1, true, 20),
        ];
        for event in &mut events {
            if let News::Configuration(Some(configuration)) = &mut event.news {
                configuration.node_state = has_node_state;
            }
        }
        violations(events).len()
    };
    assert_eq!((with(true), with(false)), (1, 0));
}

#[test]
fn violations_true_that_a_roll_out_ends_in_its_second_is_found() {
    let events = vec![
        runs(1, 0.0, true),
        says(2, 0.1, 1, false, 0),
        rolling(3, 80.0, 1),
        rolled_out(4, 99.9, 1),
        says(5, 100.0, 1, true, 100),
        rolling(6, 100.2, 1),
        says(7, 100.4, 1, false, 100),
    ];
    assert_eq!(
        violations(events),
        ["Available was True for less than a second, at 2026-01-02T03:01:40Z"]
    );
}

#[test]
fn violations_workload_that_is_deleted_does_not_count() {
    let events = vec![
        runs(1, 0.0, true),
        says(2, 0.1, 2, false, 0),
        rolling(3, 0.2, 1),
        event(4, 50.0, News::Workload(SET.to_owned(), None)),
        says(5, 50.5, 2, true, 50),
        says(6, 100.0, 2, true, 50),
    ];
    assert_eq!(violations(events), [] as [String; 0]);
}

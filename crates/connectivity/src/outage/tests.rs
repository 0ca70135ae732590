use super::*;
use proptest::prelude::*;

const START: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn step(second: i64, success: bool, reason: &'static str, message: &str) -> Step {
    Step {
        at: at(second),
        success,
        reason,
        message: message.to_owned(),
        latency: Duration::from_millis(1),
    }
}

fn connect(second: i64, error: Option<&str>) -> Outcome {
    let last = match error {
        None => step(
            second,
            true,
            entry::TCP_CONNECT,
            "t: tcp connection to h:80 succeeded",
        ),
        Some(error) => step(second, false, entry::TCP_CONNECT_ERROR, error),
    };
    Outcome { resolved: None, last }
}

pub(crate) fn success(second: i64) -> Outcome {
    connect(second, None)
}

pub(crate) fn failure(second: i64) -> Outcome {
    connect(second, Some("no"))
}

fn entry_at(second: i64, success: bool, reason: &str, message: &str) -> LogEntry {
    LogEntry {
        time: Some(Time(at(second))),
        success,
        reason: reason.to_owned(),
        message: message.to_owned(),
        latency: Some("1ms".to_owned()),
    }
}

fn refused(second: i64, message: &str) -> LogEntry {
    entry_at(second, false, "TCPConnectError", message)
}

fn messages(entries: &[LogEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.message.as_str()).collect()
}

fn reachable(status: &Status) -> (&str, &str, &str, i64) {
    let [condition] = status.conditions.as_slice() else {
        panic!("{:?}", status.conditions)
    };
    assert_eq!(condition.type_, "Reachable");
    let since = condition.last_transition_time.as_ref().expect("a time").0;
    (
        &condition.status,
        &condition.reason,
        &condition.message,
        since.as_second(),
    )
}

#[test]
fn steps_of_a_check_are_listed_with_their_reasons() {
    // cluster-network#70
    let mut status = Status::default();
    let resolved = Some(step(
        START,
        true,
        entry::DNS_RESOLVE,
        "t: resolved host name h successfully",
    ));
    let last = step(
        START,
        true,
        entry::TCP_CONNECT,
        "t: tcp connection to h:80 succeeded",
    );
    assert_eq!(record(&mut status, &Outcome { resolved, last }), None);
    let unresolved = step(
        START + 60,
        false,
        entry::DNS_ERROR,
        "t: failure looking up host h: e",
    );
    let outcome = Outcome {
        resolved: None,
        last: unresolved,
    };
    record(&mut status, &outcome);
    record(&mut status, &connect(START + 120, Some("t: failed")));
    assert_eq!(
        status.successes,
        [
            entry_at(START, true, "TCPConnect", "t: tcp connection to h:80 succeeded"),
            entry_at(START, true, "DNSResolve", "t: resolved host name h successfully"),
        ]
    );
    assert_eq!(
        status.failures,
        [
            refused(START + 120, "t: failed"),
            entry_at(START + 60, false, "DNSError", "t: failure looking up host h: e"),
        ]
    );
}

#[test]
fn outage_starts_continues_and_ends() {
    // cluster-network#70
    let mut status = Status::default();
    assert_eq!(record(&mut status, &success(START)), None);
    assert_eq!(
        reachable(&status),
        (
            "True",
            "TCPConnectSuccess",
            "t: tcp connection to h:80 succeeded",
            START
        )
    );
    let failure = "a".to_owned();
    assert_eq!(
        record(&mut status, &connect(START + 60, Some("a"))),
        Some(Edge::Started { failure })
    );
    let started = Outage {
        start: Some(Time(at(START + 60))),
        end: None,
        start_logs: vec![refused(START + 60, "a")],
        end_logs: vec![refused(START + 60, "a")],
        message: "Connectivity outage detected at 2023-11-14T22:14:20Z".to_owned(),
    };
    assert_eq!(status.outages, [started]);
    assert_eq!(reachable(&status), ("False", "TCPConnectError", "a", START + 60));
    for (minute, message) in ["a", "b", "b", "a", "c", "d", "e"].into_iter().enumerate() {
        let second = START + 120 + 60 * i64::try_from(minute).expect("a number");
        assert_eq!(record(&mut status, &connect(second, Some(message))), None);
    }
    let outage = &status.outages[0];
    assert_eq!(messages(&outage.start_logs), ["d", "c", "a", "b", "a"]);
    assert_eq!(messages(&outage.end_logs), ["e", "d", "c", "a", "b"]);
    assert_eq!(reachable(&status).3, START + 60);

    let success = "t: tcp connection to h:80 succeeded".to_owned();
    let ended = record(&mut status, &connect(START + 600, None));
    let after = GoDuration::parse("9m").expect("a duration");
    assert_eq!(ended, Some(Edge::Ended { after, success }));
    let outage = &status.outages[0];
    assert_eq!(outage.end, Some(Time(at(START + 600))));
    assert_eq!(outage.message, "Connectivity restored after 9m0s");
    assert_eq!(
        messages(&outage.end_logs),
        ["t: tcp connection to h:80 succeeded", "e", "d", "c", "a"]
    );
    assert_eq!(reachable(&status).0, "True");
    assert_eq!(status.outages.len(), 1);
}

#[test]
fn resolved_host_that_refuses_connections_stays_unreachable() {
    let mut status = Status::default();
    for minute in 0..3 {
        let second = START + 60 * minute;
        let resolved = Some(step(second, true, entry::DNS_RESOLVE, "resolved"));
        let last = step(second + 1, false, entry::TCP_CONNECT_ERROR, "no");
        record(&mut status, &Outcome { resolved, last });
    }
    assert_eq!(status.outages.len(), 1);
    assert_eq!(status.outages[0].end, None);
}

#[test]
fn lists_are_capped() {
    // cluster-network#70
    let mut status = Status::default();
    for second in (START..).take(50) {
        record(&mut status, &connect(second, (second % 2 == 0).then_some("no")));
    }
    assert_eq!(
        (
            status.successes.len(),
            status.failures.len(),
            status.outages.len()
        ),
        (10, 10, 20)
    );
    let newest = |entries: &[LogEntry]| entries[0].time.clone().map(|time| time.0.as_second());
    assert_eq!(newest(&status.successes), Some(START + 49));
    assert_eq!(newest(&status.failures), Some(START + 48));
}

#[test]
fn outage_is_recorded_even_if_the_clock_is_set_back() {
    let mut status = Status::default();
    record(&mut status, &success(START + 3600));
    assert!(matches!(
        record(&mut status, &failure(START + 60)),
        Some(Edge::Started { .. })
    ));
    let Some(Edge::Ended { after, .. }) = record(&mut status, &success(START)) else {
        panic!("{status:?}")
    };
    assert_eq!(after.to_string(), "0s");
}

/// Results in intervals of a minute. The number of a failure is its message.
fn results() -> impl Strategy<Value = Vec<Option<u8>>> {
    prop::collection::vec(prop::option::of(0_u8..3), 0..120)
}

proptest! {
    #[test]
    fn status_is_bounded_and_has_the_last_result(results in results()) {
        let mut status = Status::default();
        let mut edges = Vec::new();
        let mut second = START;
        for result in &results {
            let message = result.map(|number| number.to_string());
            edges.extend(record(&mut status, &connect(second, message.as_deref())));
            second += 60;
        }
        prop_assert!(status.successes.len() <= 10 && status.failures.len() <= 10);
        prop_assert!(status.outages.len() <= 20);
        for outage in &status.outages {
            prop_assert!((1..=5).contains(&outage.start_logs.len()));
            prop_assert!((1..=5).contains(&outage.end_logs.len()));
            // The failure that started the outage is never removed.
            prop_assert_eq!(&outage.start_logs.last().expect("an entry").time, &outage.start);
            prop_assert!(outage.start_logs.windows(2).all(|two| two[0].message != two[1].message));
        }
        for list in [&status.successes, &status.failures] {
            prop_assert!(list.windows(2).all(|two| two[0].time > two[1].time));
        }
        // Only the newest outage may continue, and only if the last result is a failure.
        let open: Vec<_> = status.outages.iter().map(|outage| outage.end.is_none()).collect();
        prop_assert!(open.iter().skip(1).all(|open| !open));
        let fails = results.last().is_some_and(Option::is_some);
        prop_assert_eq!(open.first().copied().unwrap_or(false), fails);
        // Starts and ends alternate.
        let starts: Vec<_> = edges.iter().map(|edge| matches!(edge, Edge::Started { .. })).collect();
        prop_assert!(starts.iter().enumerate().all(|(at, starts)| *starts == (at % 2 == 0)));
        let runs = results.chunk_by(|one, two| one.is_some() == two.is_some());
        prop_assert_eq!(
            starts.iter().filter(|starts| **starts).count(),
            runs.filter(|run| run[0].is_some()).count()
        );
    }
}

#[test]
fn results_of_a_write_without_an_answer_are_recorded_once() {
    let second = |number: i64| {
        // Stored times have no fractions of a second.
        let mut outcome = if number % 4 == 3 {
            failure(number)
        } else {
            success(number)
        };
        outcome.last.at = Timestamp::from_millisecond(number * 1000 + 123).expect("a time");
        outcome
    };
    // More results than the lists have places.
    let results: Vec<_> = (0..48).map(second).collect();
    let mut status = Status::default();
    for outcome in &results[..40] {
        record(&mut status, outcome);
    }
    let stored = serde_json::to_value(&status).expect("JSON");
    let mut stored: Status = serde_json::from_value(stored).expect("a status");
    assert_eq!(missing(&stored, &results), &results[40..]);
    for outcome in &results[40..] {
        record(&mut stored, outcome);
    }
    assert_eq!(missing(&stored, &results), []);
    assert_eq!(missing(&Status::default(), &results), results);
    // The same result with another latency is another one.
    let mut other = [results[47].clone()];
    other[0].last.latency += Duration::from_nanos(1);
    assert_eq!(missing(&stored, &other), other);
}

#[test]
fn edges_of_a_write_without_an_answer_are_kept_once() {
    let started = |edges: &Edges| -> Vec<(i64, bool)> {
        let edge = |(outcome, edge): &(Outcome, Edge)| {
            (outcome.at().as_second(), matches!(edge, Edge::Started { .. }))
        };
        edges.iter().map(edge).collect()
    };
    let mut results = vec![success(1), failure(2)];
    let mut edges = Edges::new();
    let mut stored = Status::default();
    assert!(catch_up(&mut stored, &results, &mut edges));
    assert_eq!(started(&edges), [(2, true)]);
    // The write was not stored: the next attempt has the same edge.
    let mut again = edges.clone();
    assert!(catch_up(&mut Status::default(), &results, &mut again));
    assert_eq!(started(&again), [(2, true)]);
    // It was stored: nothing is left to write, and the edge is still to publish.
    let mut again = edges.clone();
    assert!(!catch_up(&mut stored.clone(), &results, &mut again));
    assert_eq!(started(&again), [(2, true)]);
    // Further results come meanwhile, and their first write is refused.
    results.push(success(3));
    for _ in 0..2 {
        assert!(catch_up(&mut stored.clone(), &results, &mut edges));
        assert_eq!(started(&edges), [(2, true), (3, false)]);
    }
    // The results are no longer waited for.
    assert!(!catch_up(&mut stored, &results[..1], &mut edges));
    assert!(edges.is_empty());
}

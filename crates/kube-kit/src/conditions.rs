//! Transition times of conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The transition time of a condition with this status `now`: `before` is the previous status and transition time, if
/// the condition existed. The time changes only with the status.
pub fn since(before: Option<(&str, Option<&Time>)>, status: &str, now: Timestamp) -> Time {
    match before {
        Some((before, Some(since))) if before == status => since.clone(),
        _ => whole_seconds(now),
    }
}

/// A time as the API stores it, in whole seconds; a finer comparison would see a change on every write.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_with_status_alone() {
        let now = Timestamp::new(20, 500_000_000).expect("a time");
        let earlier = Time(Timestamp::from_second(10).expect("a time"));
        for (before, expected) in [
            (None, 20),
            (Some(("False", Some(&earlier))), 20),
            (Some(("True", None)), 20),
            (Some(("True", Some(&earlier))), 10),
        ] {
            let since = since(before, "True", now).0;
            assert_eq!(
                (since.as_second(), since.subsec_nanosecond()),
                (expected, 0),
                "{before:?}"
            );
        }
    }
}

//! Conditions in a status: since when they are what they are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The transition time of a condition that has this status `now`: `before` is the condition's status and transition
/// time until now, if there was one. The time stays as long as the status does, whatever else changes.
pub fn since(before: Option<(&str, Option<&Time>)>, status: &str, now: Timestamp) -> Time {
    match before {
        Some((before, Some(since))) if before == status => since.clone(),
        _ => whole_seconds(now),
    }
}

/// A time as the API keeps it, in seconds; comparing anything finer would see a change where there is none.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
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

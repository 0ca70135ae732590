//! The time at which a transaction was admitted, as annotated on a virtual machine (kubemacpool §10.6).

use k8s_openapi::jiff;
use std::fmt;

/// A time with nanoseconds. Displayed as RFC 3339 in UTC, without trailing zeros of the fraction.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(jiff::Timestamp);

/// A text is no time.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no RFC 3339 time")]
pub struct InvalidTimestamp {
    text: String,
    #[source]
    cause: jiff::Error,
}

impl Timestamp {
    /// The current time, but later than `last`, even if the clock stands still or jumps back.
    pub fn after(last: Option<Self>) -> Self {
        Self(jiff::Timestamp::now()).or_after(last)
    }

    /// This time, or the nanosecond after `last` if that is later. An update must be later than the timestamp of its
    /// object, from whichever clock: then an object with this timestamp or a later one includes the update.
    #[must_use]
    pub fn or_after(self, last: Option<Self>) -> Self {
        let next = last.and_then(|Self(last)| last.checked_add(jiff::SignedDuration::from_nanos(1)).ok());
        next.map_or(self, |next| self.max(Self(next)))
    }

    #[cfg(test)]
    pub(crate) fn plus(self, nanoseconds: u64) -> Self {
        let more = jiff::SignedDuration::from_nanos(i64::try_from(nanoseconds).unwrap());
        Self(self.0.checked_add(more).unwrap())
    }

    /// Parses RFC 3339 with any offset.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(text: &str) -> Result<Self, InvalidTimestamp> {
        text.parse().map(Self).map_err(|cause| InvalidTimestamp {
            text: text.to_owned(),
            cause,
        })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn timestamp_is_utc_without_trailing_zeros() {
        for (text, written) in [
            ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456789Z"),
            ("2026-01-02T03:04:05.120000000Z", "2026-01-02T03:04:05.12Z"),
            ("2026-01-02T03:04:05.000000000Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05.000000001Z", "2026-01-02T03:04:05.000000001Z"),
            ("2026-01-02T05:34:05.5+02:30", "2026-01-02T03:04:05.5Z"),
            ("2026-01-01T23:04:05-04:00", "2026-01-02T03:04:05Z"),
            ("2026-01-02t03:04:05z", "2026-01-02T03:04:05Z"),
        ] {
            assert_eq!(at(text).to_string(), written, "{text}");
        }
    }

    // kubemacpool#41
    #[test]
    fn timestamps_compare_to_the_nanosecond() {
        assert!(at("2026-01-02T03:04:05.123456788Z") < at("2026-01-02T03:04:05.123456789Z"));
        assert!(at("2026-01-02T03:04:05.9Z") > at("2026-01-02T03:04:05.89Z"));
        assert_eq!(at("2026-01-02T05:04:05.1+02:00"), at("2026-01-02T03:04:05.100Z"));
    }

    #[test]
    fn invalid_timestamp_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-13-02T03:04:05Z",
        ] {
            let error = Timestamp::parse(text).unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is no RFC 3339 time"));
        }
    }

    #[test]
    fn timestamps_only_grow() {
        let mut last = None;
        for _ in 0..10_000 {
            let next = Timestamp::after(last);
            assert!(Some(next) > last);
            last = Some(next);
        }
        let future = at("2999-01-01T00:00:00Z");
        assert_eq!(
            Timestamp::after(Some(future)),
            at("2999-01-01T00:00:00.000000001Z")
        );
    }

    #[test]
    fn timestamp_follows_the_objects() {
        let now = at("2026-01-02T03:04:05Z");
        assert_eq!(now.or_after(None), now);
        assert_eq!(now.or_after(Some(at("2026-01-02T03:04:04Z"))), now);
        let ahead = at("2026-01-02T03:05:00Z");
        assert_eq!(now.or_after(Some(ahead)), at("2026-01-02T03:05:00.000000001Z"));
        let last = at("9999-12-30T22:00:00.999999999Z");
        assert_eq!(now.or_after(Some(last)), now, "there is none behind the last");
    }
}

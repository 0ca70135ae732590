//! When a transaction was admitted, as it is written into a virtual machine (kubemacpool §10.6).

use k8s_openapi::jiff;
use std::fmt;

/// A moment, exact to the nanosecond. Shown as RFC 3339 in UTC, without trailing zeros of the fraction.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(jiff::Timestamp);

/// A text that is no moment.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no RFC 3339 time")]
pub struct InvalidTimestamp {
    text: String,
    #[source]
    cause: jiff::Error,
}

impl Timestamp {
    /// Now, but later than `last`: a clock that stands or jumps back makes no two moments equal.
    pub fn after(last: Option<Self>) -> Self {
        let now = jiff::Timestamp::now();
        let next = last.and_then(|Self(last)| last.checked_add(jiff::SignedDuration::from_nanos(1)).ok());
        Self(next.map_or(now, |next| next.max(now)))
    }

    /// Reads RFC 3339 with any offset.
    ///
    /// # Errors
    /// When it is none.
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

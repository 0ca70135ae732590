//! Settings of a certificate manager from its environment (kubemacpool §2.2, §15.1; nmstate §8).

use super::names::{self, Interval};
use crate::certificates::Intervals;
use kube_kit::duration::{self, GoDuration};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Lifetime of a CA if the variable is `0`.
const USUAL: Duration = Duration::from_hours(8760);

/// A variable is missing or invalid; the texts are upstream's.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[allow(missing_docs, reason = "the texts document the variants")]
pub enum InvalidSettings {
    #[error("Failed to load pod namespace from environment variable")]
    Namespace,
    #[error("Failed to load {0} from environment")]
    Missing(&'static str),
    #[error("Failed to convert {variable} value to time.Duration: {cause}")]
    Duration {
        variable: &'static str,
        cause: duration::Error,
    },
    #[error("failed validating certificate options, '{0}' has to be >= 0")]
    Negative(&'static str),
    #[error("failed validating certificate options, '{part}' has to be <= '{whole}'")]
    TooLong { part: &'static str, whole: &'static str },
}

/// Settings of the certificate manager.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Namespace of the Service and the Secrets.
    pub namespace: String,
    /// Lifetimes of the certificates.
    pub intervals: Intervals,
    /// Labels of the Secrets.
    pub labels: BTreeMap<&'static str, String>,
}

/// Whether the environment selects this mode.
pub fn is_wanted(lookup: impl Fn(&str) -> Option<String>) -> bool {
    lookup(names::MODE).is_some()
}

impl Settings {
    /// Reads the environment through `lookup`.
    ///
    /// # Errors
    /// If a variable is missing or no duration, or the durations contradict each other.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidSettings> {
        let set = |variable: &str| lookup(variable).filter(|value| !value.is_empty());
        let labels = names::LABELS
            .into_iter()
            .filter_map(|(variable, label)| Some((label, set(variable)?)));
        Ok(Self {
            namespace: set(names::POD_NAMESPACE).ok_or(InvalidSettings::Namespace)?,
            intervals: intervals(&lookup)?,
            labels: labels.collect(),
        })
    }
}

fn intervals(lookup: impl Fn(&str) -> Option<String>) -> Result<Intervals, InvalidSettings> {
    let read = |interval| read(&lookup, interval);
    let ca_rotate = read(names::CA_ROTATE)?;
    let ca_overlap = read(names::CA_OVERLAP)?;
    let cert_rotate = read(names::CERT_ROTATE)?;
    let cert_overlap = read(names::CERT_OVERLAP)?;
    let ca_rotate = ca_rotate.unwrap_or(USUAL);
    let cert_rotate = cert_rotate.unwrap_or(ca_rotate);
    let intervals = Intervals {
        ca_rotate,
        ca_overlap: ca_overlap.unwrap_or(ca_rotate),
        cert_rotate,
        cert_overlap: cert_overlap.unwrap_or(cert_rotate),
    };
    let within = |part: Interval, short: Duration, whole: Interval, long: Duration| {
        if short <= long {
            Ok(())
        } else {
            Err(InvalidSettings::TooLong {
                part: part.option,
                whole: whole.option,
            })
        }
    };
    within(
        names::CA_OVERLAP,
        intervals.ca_overlap,
        names::CA_ROTATE,
        ca_rotate,
    )?;
    within(names::CERT_ROTATE, cert_rotate, names::CA_ROTATE, ca_rotate)?;
    within(
        names::CERT_OVERLAP,
        intervals.cert_overlap,
        names::CERT_ROTATE,
        cert_rotate,
    )?;
    Ok(intervals)
}

/// The value of a variable; `None` is the default, for 0.
fn read(
    lookup: impl Fn(&str) -> Option<String>,
    interval: Interval,
) -> Result<Option<Duration>, InvalidSettings> {
    let Interval { variable, option } = interval;
    let text = lookup(variable).ok_or(InvalidSettings::Missing(variable))?;
    let length = GoDuration::parse(&text).map_err(|cause| InvalidSettings::Duration { variable, cause })?;
    if length.is_negative() {
        return Err(InvalidSettings::Negative(option));
    }
    Ok(length.is_positive().then(|| length.length()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: [(&str, &str); 5] = [
        ("POD_NAMESPACE", "pool"),
        ("CA_ROTATE_INTERVAL", "8760h0m0s"),
        ("CA_OVERLAP_INTERVAL", "24h0m0s"),
        ("CERT_ROTATE_INTERVAL", "4380h0m0s"),
        ("CERT_OVERLAP_INTERVAL", "1h30m"),
    ];

    /// Reads a complete environment with these variables changed; `None` takes one away.
    fn read(changes: &[(&str, Option<&str>)]) -> Result<Settings, String> {
        let mut environment: BTreeMap<_, _> = WHOLE.into_iter().collect();
        for (name, value) in changes {
            match value {
                Some(value) => environment.insert(name, value),
                None => environment.remove(name),
            };
        }
        Settings::read(|name| environment.get(name).map(|value| (*value).to_owned()))
            .map_err(|error| error.to_string())
    }

    fn minutes(intervals: &Intervals) -> [u64; 4] {
        let Intervals {
            ca_rotate,
            ca_overlap,
            cert_rotate,
            cert_overlap,
        } = intervals;
        [ca_rotate, ca_overlap, cert_rotate, cert_overlap].map(|length| length.as_secs() / 60)
    }

    #[test]
    fn durations_use_go_syntax_and_zero_means_default() {
        const HOUR: u64 = 60;
        let zero = |name| (name, Some("0"));
        let all = WHOLE[1..].iter().map(|(name, _)| zero(*name));
        for (changes, expected) in [
            (vec![], [8760 * HOUR, 24 * HOUR, 4380 * HOUR, 90]),
            (all.collect(), [8760 * HOUR; 4]),
            (
                vec![zero("CA_OVERLAP_INTERVAL")],
                [8760 * HOUR, 8760 * HOUR, 4380 * HOUR, 90],
            ),
            (
                vec![zero("CERT_ROTATE_INTERVAL")],
                [8760 * HOUR, 24 * HOUR, 8760 * HOUR, 90],
            ),
            (
                vec![("CERT_OVERLAP_INTERVAL", Some("0s"))],
                [8760 * HOUR, 24 * HOUR, 4380 * HOUR, 4380 * HOUR],
            ),
        ] {
            let settings = read(&changes).expect("settings");
            assert_eq!(minutes(&settings.intervals), expected, "{changes:?}");
            assert_eq!(settings.namespace, "pool");
        }
    }

    // kubemacpool#87
    #[test]
    fn missing_or_invalid_settings_are_refused() {
        for (changes, text) in [
            (
                ("POD_NAMESPACE", None),
                "Failed to load pod namespace from environment variable",
            ),
            (
                ("CA_ROTATE_INTERVAL", None),
                "Failed to load CA_ROTATE_INTERVAL from environment",
            ),
            (
                ("CA_OVERLAP_INTERVAL", None),
                "Failed to load CA_OVERLAP_INTERVAL from environment",
            ),
            (
                ("CERT_ROTATE_INTERVAL", None),
                "Failed to load CERT_ROTATE_INTERVAL from environment",
            ),
            (
                ("CERT_OVERLAP_INTERVAL", None),
                "Failed to load CERT_OVERLAP_INTERVAL from environment",
            ),
            (
                ("CA_OVERLAP_INTERVAL", Some("1d")),
                "Failed to convert CA_OVERLAP_INTERVAL value to time.Duration: time: unknown unit \"d\" in duration \
                 \"1d\"",
            ),
            (
                ("CERT_ROTATE_INTERVAL", Some("")),
                "Failed to convert CERT_ROTATE_INTERVAL value to time.Duration: time: invalid duration \"\"",
            ),
            (
                ("CA_ROTATE_INTERVAL", Some("-1h")),
                "failed validating certificate options, 'CARotateInterval' has to be >= 0",
            ),
            (
                ("CA_OVERLAP_INTERVAL", Some("8761h")),
                "failed validating certificate options, 'CAOverlapInterval' has to be <= 'CARotateInterval'",
            ),
            (
                ("CERT_ROTATE_INTERVAL", Some("8760h0m1s")),
                "failed validating certificate options, 'CertRotateInterval' has to be <= 'CARotateInterval'",
            ),
            (
                ("CERT_OVERLAP_INTERVAL", Some("4381h")),
                "failed validating certificate options, 'CertOverlapInterval' has to be <= 'CertRotateInterval'",
            ),
        ] {
            assert_eq!(read(&[changes]), Err(text.to_owned()), "{changes:?}");
        }
    }

    #[test]
    fn relationship_variables_become_labels() {
        let settings = read(&[
            ("COMPONENT", Some("network")),
            ("PART_OF", Some("")),
            ("VERSION", Some("1.2")),
        ]);
        let expected = [
            ("app.kubernetes.io/component", "network".to_owned()),
            ("app.kubernetes.io/version", "1.2".to_owned()),
        ];
        assert_eq!(settings.expect("settings").labels, expected.into());
    }

    #[test]
    fn mode_variable_selects_the_mode() {
        assert!(is_wanted(|name| (name == "RUN_CERT_MANAGER").then(String::new)));
        assert!(!is_wanted(|_| None));
    }
}

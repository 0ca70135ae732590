//! Log settings of the configuration (multus.md §11).

use program::multus_log::{Sinks, Verbosity};
use program::rotated::Rotation;
use program::terminal;
use serde::Deserialize;
use std::fmt::Display;
use std::time::Duration;

const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_hours(24);
/// Defaults: megabytes, days, files.
const MAX_SIZE: u64 = 100;
const MAX_AGE: u32 = 5;
const MAX_BACKUPS: usize = 5;

/// `logOptions`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(clippy::struct_field_names, reason = "these are the keys that users write")]
pub struct LogOptions {
    max_age: Option<u32>,
    max_size: Option<u64>,
    max_backups: Option<usize>,
}

/// Sinks and level of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The sinks, with the default level for an unknown one.
    pub sinks: Sinks,
    /// The unknown level, if any.
    pub unknown: Option<String>,
}

impl Default for Log {
    fn default() -> Self {
        Self::of("", true, "", &LogOptions::default())
    }
}

impl Log {
    /// The settings by the configuration's keys. Without a file, the log goes to standard error even if `logToStderr`
    /// is false.
    pub fn of(level: &str, to_stderr: bool, file: &str, options: &LogOptions) -> Self {
        let read = Verbosity::read(level);
        let LogOptions {
            max_age,
            max_size,
            max_backups,
        } = options;
        let rotation = Rotation {
            max_size: max_size
                .filter(|size| *size > 0)
                .unwrap_or(MAX_SIZE)
                .saturating_mul(MEGABYTE),
            max_age: Some(max_age.unwrap_or(MAX_AGE))
                .filter(|days| *days > 0)
                .map(|days| DAY * days),
            max_backups: Some(max_backups.unwrap_or(MAX_BACKUPS)).filter(|count| *count > 0),
        };
        Self {
            sinks: Sinks {
                level: read.unwrap_or_default(),
                to_stderr: to_stderr || file.is_empty(),
                file: (!file.is_empty()).then(|| (file.into(), rotation)),
            },
            unknown: (read.is_none() && !level.is_empty()).then(|| level.to_owned()),
        }
    }

    /// Applies the settings.
    pub fn start(&self) {
        program::multus_log::start(&self.sinks);
        if let Some(level) = &self.unknown {
            terminal::remark(format_args!(
                "multus logging: cannot set logging level to {level}\n"
            ));
        }
    }
}

impl Log {
    /// Logs why the process ends, even with level `panic`.
    pub fn fatal(&self, cause: &dyn Display) {
        if self.sinks.level == Verbosity::Panic {
            terminal::remark(format_args!("{cause}\n"));
        } else {
            tracing::error!("{cause}");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::DaemonConfig;
    use program::multus_log::{Sinks, Verbosity};
    use program::rotated::Rotation;
    use std::time::Duration;

    fn sinks(config: &str) -> Sinks {
        DaemonConfig::parse(config.as_bytes()).unwrap().log.sinks
    }

    #[test]
    fn keys_configure_log() {
        let sinks = sinks(
            r#"{"logLevel":"Error","logToStderr":true,"logFile":"/var/log/multus.log",
                "logOptions":{"maxAge":2,"maxSize":3,"maxBackups":4,"compress":true}}"#,
        );
        let rotation = Rotation {
            max_size: 3 * 1024 * 1024,
            max_age: Some(Duration::from_secs(2 * 86_400)),
            max_backups: Some(4),
        };
        let expected = Sinks {
            level: Verbosity::Error,
            to_stderr: true,
            file: Some(("/var/log/multus.log".into(), rotation)),
        };
        assert_eq!(sinks, expected);
    }

    #[test]
    fn missing_keys_have_defaults() {
        let nothing = sinks("{}");
        assert_eq!(
            (nothing.level, nothing.to_stderr, nothing.file),
            (Verbosity::Verbose, true, None)
        );
        let file = sinks(r#"{"logFile":"/l"}"#);
        let rotation = Rotation {
            max_size: 100 * 1024 * 1024,
            max_age: Some(Duration::from_secs(5 * 86_400)),
            max_backups: Some(5),
        };
        assert_eq!(
            (file.to_stderr, file.file),
            (false, Some(("/l".into(), rotation)))
        );
        let zeros = sinks(r#"{"logFile":"/l","logOptions":{"maxAge":0,"maxSize":0,"maxBackups":0}}"#);
        let rotation = Rotation {
            max_size: 100 * 1024 * 1024,
            max_age: None,
            max_backups: None,
        };
        assert_eq!(zeros.file, Some(("/l".into(), rotation)));
    }

    #[test]
    fn unknown_level_is_reported() {
        let log = DaemonConfig::parse(br#"{"logLevel":"loud"}"#).unwrap().log;
        assert_eq!(log.unknown.as_deref(), Some("loud"));
        assert_eq!(log.sinks.level, Verbosity::Verbose);
    }
}

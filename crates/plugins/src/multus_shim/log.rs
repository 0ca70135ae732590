//! Logs the errors of DEL, which always succeeds (multus.md §11).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::config::NetworkConfig;
use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Sinks {
    #[serde(rename = "logFile")]
    file: String,
    #[serde(rename = "logLevel")]
    level: String,
    #[serde(rename = "logToStderr")]
    to_stderr: bool,
}

/// Writes a line to the configured log. The default is no log.
pub(super) fn error(config: &NetworkConfig, text: &str) {
    let sinks: Sinks = config.read().unwrap_or_default();
    // Only the level `panic` excludes errors.
    if sinks.level.eq_ignore_ascii_case("panic") {
        return;
    }
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let line = format!("{} [error] {text}\n", rfc3339(seconds));
    if sinks.to_stderr {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    if !sinks.file.is_empty() {
        // Best effort: logging must not fail a DEL.
        let _ = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&sinks.file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Formats Unix time. Counts days from 1 March of year 0, so that a leap day is the last day of its year.
fn rfc3339(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn one_line_in_the_configured_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("multus.log");
        let config = format!(r#"{{"logFile":"{}"}}"#, file.display());
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        error(&config, "CmdDel (shim): a");
        error(&config, "CmdDel (shim): b");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.lines()
                .next()
                .unwrap()
                .ends_with("Z [error] CmdDel (shim): a"),
            "{text}"
        );
    }
}

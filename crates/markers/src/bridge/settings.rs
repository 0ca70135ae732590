//! Validated flags.

use super::Args;
use std::num::NonZeroU16;
use std::time::Duration;
use thiserror::Error;

/// An invalid flag; the texts are those of upstream's marker.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSettings {
    /// No node is named.
    #[error("node-name must be set")]
    NodeName,
    /// An invalid port.
    #[error("health-probe-port must be between 1 and 65535, got {0}")]
    HealthPort(i64),
}

/// Settings of the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Maximum back-off of failed requests.
    pub update_interval: Duration,
    /// Interval of reading the node.
    pub reconcile_interval: Duration,
    /// Port of `/healthz`.
    pub health_port: NonZeroU16,
}

impl TryFrom<Args> for Settings {
    type Error = InvalidSettings;

    fn try_from(args: Args) -> Result<Self, InvalidSettings> {
        let Args {
            node_name,
            update_interval,
            reconcile_interval,
            health_probe_port,
            kubeconfig: _,
            log_flags: _,
        } = args;
        let node = node_name
            .filter(|name| !name.is_empty())
            .ok_or(InvalidSettings::NodeName)?;
        let health_port = u16::try_from(health_probe_port).ok().and_then(NonZeroU16::new);
        Ok(Self {
            node,
            update_interval: Duration::from_secs(update_interval.max(1)),
            reconcile_interval: Duration::from_mins(reconcile_interval.max(1)),
            health_port: health_port.ok_or(InvalidSettings::HealthPort(health_probe_port))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, InvalidSettings> {
        let argv = ["bridge-marker"].iter().chain(flags);
        Settings::try_from(Command::try_parse_from(argv).expect("flags").args)
    }

    #[test]
    fn defaults_equal_those_of_upstream() {
        let settings = settings(&["--node-name", "n"]).expect("settings");
        assert_eq!(settings.update_interval, Duration::from_secs(60));
        assert_eq!(settings.reconcile_interval, Duration::from_mins(10));
        assert_eq!(settings.health_port.get(), 8081);
    }

    #[test]
    fn invalid_flag_is_refused_with_text_of_upstream() {
        for (flags, text) in [
            (vec![], "node-name must be set"),
            (vec!["--node-name", ""], "node-name must be set"),
            (
                vec!["--node-name", "n", "--health-probe-port", "0"],
                "health-probe-port must be between 1 and 65535, got 0",
            ),
            (
                vec!["--node-name", "n", "--health-probe-port", "70000"],
                "health-probe-port must be between 1 and 65535, got 70000",
            ),
            (
                vec!["--node-name", "n", "--health-probe-port", "-1"],
                "health-probe-port must be between 1 and 65535, got -1",
            ),
        ] {
            assert_eq!(settings(&flags).expect_err("an error").to_string(), text);
        }
    }

    #[test]
    fn logging_flags_are_accepted() {
        let flags = [
            "--node-name",
            "n",
            "-v",
            "3",
            "--logtostderr",
            "--alsologtostderr=false",
        ];
        assert_eq!(settings(&flags).expect("settings").node, "n");
        assert_eq!(settings(&["-v=5", "--node-name=n"]).expect("settings").node, "n");
    }
}

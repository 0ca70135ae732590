//! Validated flags.

use super::Args;
use ovsdb::{Address, InvalidAddress};
use std::time::Duration;
use thiserror::Error;

/// An invalid flag; the first two texts are those of upstream's marker.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSettings {
    /// No node is named.
    #[error("node-name must be set")]
    NodeName,
    /// No socket is given.
    #[error("ovs-socket must be set")]
    Socket,
    /// The socket is not a valid address.
    #[error("invalid ovs-socket: {0}")]
    Address(InvalidAddress),
}

/// Settings of the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Address of the database server.
    pub socket: Address,
    /// Maximum back-off of failed requests and connections.
    pub update_interval: Duration,
    /// Interval of reading the node.
    pub reconcile_interval: Duration,
    /// Interval of touching the file of the probes.
    pub health_interval: Duration,
}

impl TryFrom<Args> for Settings {
    type Error = InvalidSettings;

    fn try_from(args: Args) -> Result<Self, InvalidSettings> {
        let Args {
            node_name,
            ovs_socket,
            update_interval,
            reconcile_interval,
            healthcheck_interval,
            check: _,
            kubeconfig: _,
            log_flags: _,
        } = args;
        let is_set = |text: &String| !text.is_empty();
        let node = node_name.filter(is_set).ok_or(InvalidSettings::NodeName)?;
        let socket = ovs_socket.filter(is_set).ok_or(InvalidSettings::Socket)?;
        Ok(Self {
            node,
            socket: socket.parse().map_err(InvalidSettings::Address)?,
            update_interval: Duration::from_secs(update_interval.max(1)),
            reconcile_interval: Duration::from_mins(reconcile_interval.max(1)),
            health_interval: Duration::from_secs(healthcheck_interval.max(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use program::argv::go_flags;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, InvalidSettings> {
        let argv = ["ovs-marker"].iter().chain(flags).map(Into::into);
        Settings::try_from(Command::try_parse_from(go_flags(argv)).expect("flags").args)
    }

    #[test]
    fn defaults_equal_those_of_upstream() {
        let settings = settings(&["-node-name", "n", "-ovs-socket", "/db.sock"]).expect("settings");
        assert_eq!(settings.update_interval, Duration::from_secs(60));
        assert_eq!(settings.reconcile_interval, Duration::from_mins(10));
        assert_eq!(settings.health_interval, Duration::from_secs(60));
    }

    #[test]
    fn arguments_of_upstream_are_accepted() {
        // operands.md §5
        let flags = [
            "-v",
            "3",
            "-logtostderr",
            "-node-name",
            "n",
            "-ovs-socket",
            "unix:/host/var/run/openvswitch/db.sock",
            "-healthcheck-interval=30",
        ];
        let settings = settings(&flags).expect("settings");
        assert_eq!(settings.node, "n");
        assert_eq!(
            settings.socket.to_string(),
            "unix:/host/var/run/openvswitch/db.sock"
        );
        assert_eq!(settings.health_interval, Duration::from_secs(30));
    }

    #[test]
    fn missing_flag_is_refused_with_text_of_upstream() {
        // cni-plugins#64 (the OVS marker's flags)
        for (flags, text) in [
            (vec![], "node-name must be set"),
            (
                vec!["-node-name", "", "-ovs-socket", "/s"],
                "node-name must be set",
            ),
            (vec!["-node-name", "n"], "ovs-socket must be set"),
            (
                vec!["-node-name", "n", "-ovs-socket", ""],
                "ovs-socket must be set",
            ),
        ] {
            assert_eq!(settings(&flags).expect_err("an error").to_string(), text);
        }
        let error = settings(&["-node-name", "n", "-ovs-socket", "ssl:127.0.0.1:6640"]);
        let error = error.expect_err("an error").to_string();
        assert!(
            error.starts_with("invalid ovs-socket: ") && error.contains("not by ssl"),
            "{error}"
        );
    }
}

//! Flags, checked.

use super::Args;
use ovsdb::{Address, InvalidAddress};
use std::time::Duration;
use thiserror::Error;

/// A flag that makes no sense; the first two texts are the established marker's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidSettings {
    /// Without a node there is nothing to mark.
    #[error("node-name must be set")]
    NodeName,
    /// Without a socket there are no bridges.
    #[error("ovs-socket must be set")]
    Socket,
    /// The socket is no address.
    #[error("invalid ovs-socket: {0}")]
    Address(InvalidAddress),
}

/// What the marker needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The node to mark.
    pub node: String,
    /// Where the database server listens.
    pub socket: Address,
    /// Longest pause before a failed request or connection is repeated.
    pub update_interval: Duration,
    /// Within which time the node is read again.
    pub reconcile_interval: Duration,
    /// Time between two signs of life.
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
    fn defaults_are_the_established_ones() {
        let settings = settings(&["-node-name", "n", "-ovs-socket", "/db.sock"]).expect("settings");
        assert_eq!(settings.update_interval, Duration::from_secs(60));
        assert_eq!(settings.reconcile_interval, Duration::from_mins(10));
        assert_eq!(settings.health_interval, Duration::from_secs(60));
    }

    #[test]
    fn the_established_arguments_are_accepted() {
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
    fn missing_flags_are_refused_with_the_known_text() {
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

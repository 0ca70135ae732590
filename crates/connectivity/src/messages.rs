//! Texts that users see in checks, events and answers (cluster-network §1, §13.4).

use std::fmt::Display;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use kube_kit::duration::GoDuration;

use crate::names::TO;

/// What a check leads to, by the name of the check.
pub fn target(check: &str) -> &str {
    check.rsplit_once(TO).map_or(check, |(_, target)| target)
}

/// A connection came about.
pub fn connected(target: &str, endpoint: &str) -> String {
    format!("{target}: tcp connection to {endpoint} succeeded")
}

/// A connection did not come about.
pub fn not_connected(target: &str, endpoint: &str, error: impl Display) -> String {
    format!("{target}: failed to establish a TCP connection to {endpoint}: {error}")
}

/// The name of a host was resolved.
pub fn resolved(target: &str, host: &str) -> String {
    format!("{target}: resolved host name {host} successfully")
}

/// The name of a host was not resolved.
pub fn not_resolved(target: &str, host: &str, error: impl Display) -> String {
    format!("{target}: failure looking up host {host}: {error}")
}

/// An outage that lasts.
pub fn outage(start: Timestamp) -> String {
    format!("Connectivity outage detected at {start}")
}

/// An outage that is over.
pub fn restored(after: GoDuration) -> String {
    format!("Connectivity restored after {after}")
}

/// Texts of events.
pub mod event {
    use super::{Display, GoDuration};

    /// An outage began.
    pub fn outage(failure: &str) -> String {
        format!("Connectivity outage detected: {failure}")
    }

    /// It ended.
    pub fn restored(after: GoDuration, success: &str) -> String {
        format!("Connectivity restored after {after}: {success}")
    }

    /// Events of one reason were withheld.
    pub fn withheld(count: u64, reason: impl Display, during: GoDuration) -> String {
        format!(
            "{count} events of reason {reason} were withheld during {during}, because there were too many"
        )
    }
}

/// What a target answers.
pub fn hello(client: IpAddr, server: IpAddr, node: &str) -> String {
    format!("Hello, {client}. You have reached {server} on {node}")
}

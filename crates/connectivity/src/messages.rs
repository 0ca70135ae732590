//! Texts in checks, events and answers (cluster-network §1, §13.4).

use std::fmt::Display;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use kube_kit::duration::GoDuration;

use crate::names::TO;

/// The target's part of the name of a check.
pub(crate) fn target(check: &str) -> &str {
    check.rsplit_once(TO).map_or(check, |(_, target)| target)
}

pub(crate) fn connected(target: &str, endpoint: &str) -> String {
    format!("{target}: tcp connection to {endpoint} succeeded")
}

pub(crate) fn not_connected(target: &str, endpoint: &str, error: impl Display) -> String {
    format!("{target}: failed to establish a TCP connection to {endpoint}: {error}")
}

pub(crate) fn resolved(target: &str, host: &str) -> String {
    format!("{target}: resolved host name {host} successfully")
}

pub(crate) fn not_resolved(target: &str, host: &str, error: impl Display) -> String {
    format!("{target}: failure looking up host {host}: {error}")
}

/// Message of an outage that has not ended.
pub(crate) fn outage(start: Timestamp) -> String {
    format!("Connectivity outage detected at {start}")
}

/// Message of an outage that ended.
pub(crate) fn restored(after: GoDuration) -> String {
    format!("Connectivity restored after {after}")
}

/// Texts of events.
pub(crate) mod event {
    use super::{Display, GoDuration};

    pub(crate) fn outage(failure: &str) -> String {
        format!("Connectivity outage detected: {failure}")
    }

    pub(crate) fn restored(after: GoDuration, success: &str) -> String {
        format!("Connectivity restored after {after}: {success}")
    }

    /// Summary of withheld events of one reason.
    pub(crate) fn withheld(count: u64, reason: impl Display, during: GoDuration) -> String {
        format!(
            "{count} events of reason {reason} were withheld during {during}, because there were too many"
        )
    }
}

/// The answer of a target.
pub(crate) fn hello(client: IpAddr, server: IpAddr, node: &str) -> String {
    format!("Hello, {client}. You have reached {server} on {node}")
}

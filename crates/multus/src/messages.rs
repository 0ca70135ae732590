//! Texts that multus.md §5 fixes.

use crate::sandbox::Sandbox;
use cni::Error;
use cni::result::CniResult;

/// An error about a pod: `Multus: [<namespace>/<pod>/<uid>]: <text>`, code 999.
pub(crate) fn of_pod(sandbox: &Sandbox, text: &str) -> Error {
    Error::internal(format!("Multus: [{}]: {text}", sandbox.pod))
}

/// The event about an attached interface.
pub(crate) fn added(ifname: &str, display_name: &str, result: &CniResult) -> String {
    let ips: Vec<_> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    let from = if display_name.is_empty() {
        String::new()
    } else {
        format!(" from {display_name}")
    };
    format!("Add {ifname} [{}]{from}", ips.join(" "))
}

/// The event about a failed network, with the plugin's error.
pub(crate) fn failed_adding(ifname: &str, display_name: &str, error: &Error) -> String {
    format!("failed adding interface {ifname} to network {display_name}: {error}")
}

/// The error of a call that the daemon gave up.
pub(crate) const GIVEN_UP: &str = "the call was given up";

/// The error of a plugin that could not be called.
pub(crate) fn not_run(plugin: &str, cause: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("failed to run plugin {plugin}: {cause}"))
}

/// The error of a plugin whose call was given up before.
pub(crate) fn given_up(plugin: &str) -> Error {
    let cause = format_args!("{GIVEN_UP}, one of its plugins took too long");
    not_run(plugin, &cause)
}

/// The error of an in-process plugin that panicked.
pub(crate) fn panicked(plugin: &str, network: &str, cause: &str) -> Error {
    Error::internal(format!(
        "plugin {plugin} of network \"{network}\" panicked: {cause}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::result::IpConfig;

    #[test]
    fn added_event_lists_addresses() {
        let ip = |address: &str| IpConfig {
            address: address.parse().unwrap(),
            gateway: None,
            interface: None,
        };
        let result = CniResult {
            ips: vec![ip("10.0.0.1/24"), ip("fd00::1/64")],
            ..CniResult::default()
        };
        assert_eq!(
            added("net1", "ns/a", &result),
            "Add net1 [10.0.0.1/24 fd00::1/64] from ns/a"
        );
        assert_eq!(added("net1", "", &CniResult::default()), "Add net1 []");
    }
}

//! Texts that users see and that are fixed (multus.md §5).

use crate::request::Sandbox;
use cni::Error;
use cni::result::CniResult;

/// An error about a pod: `Multus: [<namespace>/<pod>/<uid>]: <text>`, code 999.
pub fn of_pod(sandbox: &Sandbox, text: &str) -> Error {
    Error::internal(format!("Multus: [{}]: {text}", sandbox.pod))
}

/// The event about an interface that was attached.
pub fn added(ifname: &str, display_name: &str, result: &CniResult) -> String {
    let ips: Vec<_> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    let from = if display_name.is_empty() {
        String::new()
    } else {
        format!(" from {display_name}")
    };
    format!("Add {ifname} [{}]{from}", ips.join(" "))
}

/// The event about a network that failed: interface, network and the plugin's own words.
pub fn failed_adding(ifname: &str, display_name: &str, error: &Error) -> String {
    format!("failed adding interface {ifname} to network {display_name}: {error}")
}

/// A plugin whose call could not even begin.
pub fn not_run(plugin: &str, cause: &dyn std::fmt::Display) -> Error {
    Error::internal(format!("failed to run plugin {plugin}: {cause}"))
}

/// A plugin of a call that was given up.
pub fn given_up(plugin: &str) -> Error {
    not_run(plugin, &"the call was given up, one of its plugins took too long")
}

/// A plugin of ours that did not come to its end, in the daemon's own process.
pub fn panicked(plugin: &str, network: &str, cause: &str) -> Error {
    Error::internal(format!(
        "plugin {plugin} of network \"{network}\" panicked: {cause}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::result::IpConfig;

    #[test]
    fn an_attached_interface_with_its_addresses() {
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

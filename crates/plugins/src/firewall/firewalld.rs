//! Admits addresses with `firewall-cmd`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    iptables::{self, Result},
    ruleset::Ruleset,
};

const PROGRAM: &str = "firewall-cmd";

/// Whether the daemon answers.
pub(super) fn is_running(rules: &Ruleset) -> bool {
    iptables::is_installed(PROGRAM)
        && iptables::execute(rules, PROGRAM, &["--state"], "").is_ok_and(|output| output.status.success())
}

fn arguments(zone: &str, action: &str, address: IpAddr) -> [String; 2] {
    [
        format!("--zone={zone}"),
        format!("--{action}-source={}", IpNet::from(address)),
    ]
}

pub(super) fn admit(rules: &Ruleset, zone: &str, addresses: &[IpAddr]) -> Result<()> {
    for address in addresses {
        must(rules, zone, "add", *address)?;
    }
    Ok(())
}

/// Removes all addresses. Returns the first error at the end.
pub(super) fn remove(rules: &Ruleset, zone: &str, addresses: &[IpAddr]) -> Result<()> {
    let mut outcome = Ok(());
    for address in addresses {
        outcome = outcome.and(must(rules, zone, "remove", *address));
    }
    outcome
}

/// The first address that is not admitted.
pub(super) fn missing(rules: &Ruleset, zone: &str, addresses: &[IpAddr]) -> Result<Option<IpAddr>> {
    for address in addresses {
        let [zone, source] = arguments(zone, "query", *address);
        if !iptables::execute(rules, PROGRAM, &[&zone, &source], "")?
            .status
            .success()
        {
            return Ok(Some(*address));
        }
    }
    Ok(None)
}

fn must(rules: &Ruleset, zone: &str, action: &str, address: IpAddr) -> Result<()> {
    let [zone, source] = arguments(zone, action, address);
    let arguments = [zone.as_str(), source.as_str()];
    let output = iptables::execute(rules, PROGRAM, &arguments, "")?;
    iptables::succeeded(PROGRAM, &arguments, output).map(drop)
}

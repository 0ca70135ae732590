//! Addresses and wires of one cluster.
//!
//! ```text
//! host ──169.254.x.y/30── control ──cluster0 (bridge)──┬── eth0 node01 ── pods 10.244.1.0/24
//!                                                      └── eth0 node02 ── pods 10.244.2.0/24
//!                                   spare0 (bridge) ───┬── eth1 node01
//!                                                      └── eth1 node02
//! ```
//!
//! Everything but the wire to the host is inside the cluster's own network namespaces, so that every cluster
//! uses the same addresses and no two of them, nor anything else on the machine, can collide.

use std::process::Stdio;

use crate::error::{Error, Result};
use crate::run;
use crate::space::Space;

/// Address of the control plane as nodes and pods see it.
pub(crate) const CONTROL: &str = "10.10.0.1";
/// Addresses of services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The `kubernetes` service.
pub(crate) const KUBERNETES: &str = "10.96.0.1";
/// Where a cluster DNS would be.
pub(crate) const DNS: &str = "10.96.0.10";
/// Addresses of all pods.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// Address of a node, counted from 1.
pub(crate) fn node_address(index: usize) -> String {
    format!("10.10.0.{}", 10 + index)
}

/// Pod addresses of a node, counted from 1.
pub(crate) fn pod_range(index: usize) -> String {
    format!("10.244.{index}.0/24")
}

/// The wire between host and control plane: addresses of both ends within one /30.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostLink {
    pub(crate) host: String,
    pub(crate) control: String,
}

impl HostLink {
    /// The wire whose /30 has the number `index`, taken modulo the 16,000 of the link-local range that are used.
    fn numbered(index: u32) -> Self {
        let index = index % (250 * 64);
        // 169.254.0.0/24 and 169.254.255.0/24 are reserved (RFC 3927), 169.254.169.0/24 is used by clouds.
        let third = match index / 64 + 1 {
            169.. => index / 64 + 2,
            below => below,
        };
        let fourth = index % 64 * 4;
        let address = |offset| format!("169.254.{third}.{}", fourth + offset);
        Self {
            host: address(1),
            control: address(2),
        }
    }

    /// A wire that is not in use, `taken` being a listing of addresses and routes; `seed` says where to begin.
    pub(crate) fn free(seed: u32, taken: &str) -> Option<Self> {
        let free = |link: &Self| {
            let prefix = link
                .host
                .rsplit_once('.')
                .map_or("", |(prefix, _)| prefix)
                .to_owned()
                + ".";
            // A whole /24 to spare costs nothing.
            !taken.contains(&prefix)
        };
        (0..250)
            .map(|step| Self::numbered(seed.wrapping_add(step * 64)))
            .find(free)
    }
}

/// Plugs the wire between the host and the control plane, `name` being the host's end.
pub(crate) fn connect_host(control: &Space, name: &str, link: &HostLink) -> Result<()> {
    let on_host = |script: &str| -> Result<String> {
        run::output(&mut control.command_in(&["--mount", "--pid"], ["sh", "-euc", script])?)
    };
    if !has_links(control, &["host0"]) {
        let host = std::fs::File::open("/proc/self/ns/net").map_err(|source| Error::Io {
            what: "cannot open the host's network namespace".to_owned(),
            source,
        })?;
        // The namespace of a control plane that was killed may outlive it for a minute, with its wire.
        on_host(&format!("ip link delete {name} 2>/dev/null || :"))?;
        let script = format!("ip link add host0 type veth peer name {name} netns /proc/self/fd/0");
        control.script(&script, Stdio::from(host))?;
    }
    let script = format!(
        "ip address replace {}/30 dev host0\nip link set host0 up",
        link.control
    );
    control.script(&script, Stdio::null())?;
    on_host(&format!(
        "ip address replace {}/30 dev {name}\nip link set {name} up",
        link.host
    ))
    .map(drop)
}

fn has_links(space: &Space, names: &[&str]) -> bool {
    let script: String = names
        .iter()
        .map(|name| format!("ip link show {name}\n"))
        .collect();
    space.script(&script, Stdio::null()).is_ok()
}

/// Creates the bridges of the control plane.
pub(crate) fn create_bridges(control: &Space) -> Result<()> {
    let script = format!(
        "for bridge in cluster0 spare0; do\n\
         ip link show $bridge >/dev/null 2>&1 || ip link add $bridge type bridge\n\
         ip link set $bridge up\n\
         done\n\
         ip address replace {CONTROL}/24 dev cluster0"
    );
    control.script(&script, Stdio::null()).map(drop)
}

/// Plugs `node`, the `index`th of `count` nodes, into both bridges, and lays the routes to the other nodes' pod ranges; none
/// where `count` is 0.
pub(crate) fn connect_node(control: &Space, node: &Space, index: usize, count: usize) -> Result<()> {
    let mut script = String::new();
    let wired = has_links(node, &["eth0", "eth1"]);
    for (bridge, nic) in [("cluster0", "eth0"), ("spare0", "eth1")] {
        let port = format!("{}-{nic}", node.name());
        if !wired {
            // The namespace of a node that was killed may outlive it for a minute, with its wires.
            script.push_str(&format!(
                "ip link delete {port} 2>/dev/null || :\n\
                 ip link add {port} type veth peer name {nic} netns /proc/self/fd/0\n"
            ));
        }
        script.push_str(&format!("ip link set {port} master {bridge} up\n"));
    }
    script.push_str(&format!(
        "ip route replace {} via {}\n",
        pod_range(index),
        node_address(index)
    ));
    control.script(&script, Stdio::from(node.network()?))?;
    let mut script = format!(
        "ip address replace {}/24 dev eth0\nip link set eth0 up\nip link set eth1 up\nip route replace default via {CONTROL}\n",
        node_address(index)
    );
    for other in (1..=count).filter(|other| *other != index) {
        script.push_str(&format!(
            "ip route replace {} via {}\n",
            pod_range(other),
            node_address(other)
        ));
    }
    node.script(&script, Stdio::null()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_to_the_host_avoids_what_is_in_use() {
        let first = HostLink::free(0, "").unwrap();
        assert_eq!(
            (first.host.as_str(), first.control.as_str()),
            ("169.254.1.1", "169.254.1.2")
        );
        let second = HostLink::free(0, "inet 169.254.1.77/16 scope link").unwrap();
        assert_eq!(second.host, "169.254.2.1");
    }

    #[test]
    fn reserved_link_local_addresses_are_never_used() {
        for index in 0..250 * 64 {
            let link = HostLink::numbered(index);
            let third: u32 = link.host.split('.').nth(2).unwrap().parse().unwrap();
            assert!((1..=254).contains(&third) && third != 169, "{link:?}");
        }
    }
}
